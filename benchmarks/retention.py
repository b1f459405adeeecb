"""What kept outcomes cost: the write-ahead log and the CPU time of each job, by what is kept.

A worker in this process drains a queue of trivial jobs, so batches have the sizes that a worker
makes. The CPU time of the server is that of all its processes.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.contenders.contender import CONCURRENCY
from benchmarks.contenders.ours import SCHEMA, Ours
from benchmarks.rounds import Figures, alternated, rounded, summary
from benchmarks.server import Database, Server
from graphile_worker import App, Retention, WorkerOptions
from graphile_worker._metrics.definitions import WRITE_DURATION
from graphile_worker._metrics.values import HistogramValue

RESULT_BYTES = 200
# With its quotes, the JSON text has this number of bytes.
RESULT = "x" * (RESULT_BYTES - 2)

KINDS: dict[str, tuple[str, Retention | None]] = {
    "nothing": ("nothing", None),
    "outcome": ("outcome", Retention()),
    "result": (f"outcome and a result of {RESULT_BYTES} bytes", Retention(results=True)),
    "attempts": ("the same and attempts", Retention(results=True, attempts=True)),
}

LSN = "select pg_current_wal_insert_lsn() - '0/0'"
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def retention(server: Server, *, jobs: int, rounds: int) -> dict[str, Any]:
    measures = {name: _measure(server, name, jobs) for name in KINDS}
    found = alternated(measures, rounds)
    return {
        "settings": {"jobs": jobs, "rounds": rounds, "concurrency": CONCURRENCY},
        "kinds": {
            name: {
                "label": label,
                **summary(found[name]),
                "more_cpu_us": _compare(found[name], found["nothing"], "cpu_us_per_job"),
                "more_wal_bytes": _compare(found[name], found["nothing"], "wal_bytes_per_job"),
            }
            for name, (label, _) in KINDS.items()
        },
    }


def _compare(found: list[Figures], base: list[Figures], key: str) -> float:
    """Return the median of the differences between two kinds in the same round."""
    differences = sorted(
        (each[key] or 0) - (other[key] or 0) for each, other in zip(found, base, strict=True)
    )
    return rounded(differences[len(differences) // 2])


def _measure(server: Server, name: str, jobs: int) -> Callable[[], Figures]:
    def measure() -> Figures:
        ours = Ours()
        with server.database(ours.kind, ours.install) as database:
            with database.connected() as connection:
                connection.execute(ours.filling.encode(), (jobs,))
                connection.execute("vacuum analyze")
            return asyncio.run(drain(database, KINDS[name][1], jobs))

    return measure


async def drain(
    database: Database, kept: Retention | None, jobs: int, *, schema: str = SCHEMA
) -> Figures:
    """Run jobs of a task that keeps this, and return what one of them cost."""
    logging.getLogger("graphile_worker").setLevel(logging.WARNING)
    async with App(database.url, schema=schema) as app:

        @app.task(retention=kept)
        async def noop(id: int) -> str:
            return RESULT

        options = WorkerOptions(concurrency=CONCURRENCY, max_pool_size=CONCURRENCY)
        recorder = app.hooks._enable_metrics()
        with database.connected() as connection:
            postmaster = _find_postmaster(connection)
            wal, server_cpu = _read_value(connection, LSN), read_server_cpu(postmaster)
            cpu, began = time.process_time(), time.perf_counter()
            assert await app.worker(options).run_once() == jobs
            seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
            server_cpu = read_server_cpu(postmaster) - server_cpu
            wal = _read_value(connection, LSN) - wal
    writes = [
        value
        for labels, value in recorder.collect()[WRITE_DURATION].items()
        if isinstance(value, HistogramValue) and "complete" in labels
    ]
    count = sum(sum(each.counts) for each in writes)
    write_seconds = sum(each.sum for each in writes)
    return {
        "wal_bytes_per_job": wal / jobs,
        "worker_cpu_us_per_job": cpu / jobs * 1e6,
        "server_cpu_us_per_job": server_cpu / jobs * 1e6,
        "cpu_us_per_job": (cpu + server_cpu) / jobs * 1e6,
        "write_us_per_job": write_seconds / jobs * 1e6,
        "jobs_per_write": jobs / count,
        "jobs_per_second": jobs / seconds,
    }


def _read_value(connection: psycopg.Connection, statement: str) -> int:
    found = connection.execute(statement.encode()).fetchone()
    assert found is not None
    return int(found[0])


def _find_postmaster(connection: psycopg.Connection) -> int:
    """Return the process that started the backend of a connection."""
    return _read_stat(connection.info.backend_pid)[0]


def read_server_cpu(postmaster: int) -> float:
    """Return the CPU seconds of a server: of its processes, and of those that have ended."""
    children = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent, own, _ = _read_stat(int(path.name))
            if parent == postmaster:
                children.append(own)
    _, own, ended = _read_stat(postmaster)
    return own + ended + sum(children)


def _read_stat(process: int) -> tuple[int, float, float]:
    """Return the parent of a process, its CPU seconds, and those of children that have ended."""
    text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    # The name, in parentheses, may contain spaces.
    fields = text.rpartition(")")[2].split()
    user, system, ended_user, ended_system = (int(each) for each in fields[11:15])
    own, ended = user + system, ended_user + ended_system
    return int(fields[1]), own / TICKS_PER_SECOND, ended / TICKS_PER_SECOND
