"""Jobs at a steady rate for a long time, with a snapshot held in the middle.

One program adds jobs, a hundred in a call; the installed command works on them with its defaults,
24 at once. Autovacuum is on, and the tables are set as `graphile-worker tune --apply` does. Each
second: how many jobs began, how long they had waited since they were added, how many still wait,
how many rows are dead, and how many pages were touched.
"""

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import click
import psycopg

from benchmarks.contenders.contender import CONCURRENCY
from benchmarks.contenders.ours import COMMAND, SCHEMA, Ours
from benchmarks.histogram import Histogram
from benchmarks.processes import Program, environment, running
from benchmarks.rounds import rounded
from benchmarks.server import Database, Server
from graphile_worker import sync

# Seconds at the beginning in which programs still start.
WARM_UP = 5

# Seconds at the end in which nothing is added any more.
TAIL = 5

# What is compared: so many seconds of the beginning and of the end, or a quarter of a short run.
WINDOW = 300

# Dead rows may be a fifth of their peak after so many seconds.
SWEPT = 5
SWEPT_WITHIN = 60

LOOK = """
    select
      n_dead_tup,
      autovacuum_count,
      pg_relation_size(relid),
      (
        select (blks_hit + blks_read)::bigint
        from pg_stat_database where datname = current_database()
      )
    from pg_stat_user_tables where schemaname = 'graphile_worker' and relname = '_private_jobs'
"""


@dataclass(slots=True)
class Second:
    """What happened in one second of the run."""

    added: int = 0
    waits: Histogram = field(default_factory=Histogram)
    dead: int = 0
    vacuums: int = 0
    table_bytes: int = 0
    pages: int = 0
    """How many the database has touched since it exists: what a busy machine does not change."""


@dataclass(frozen=True, slots=True)
class Length:
    """How long it lasts and when the snapshot is held, in seconds."""

    total: int
    held_from: int
    held_until: int

    @classmethod
    def of(cls, minutes: float, held: float) -> "Length":
        total, middle = round(minutes * 60), round((minutes - held) * 30)
        return cls(total, middle, middle + round(held * 60))


def endurance(server: Server, *, minutes: float, rate: int, held: float) -> dict[str, Any]:
    length = Length.of(minutes, held)
    contender = Ours()
    with server.database(contender.kind, contender.install) as database:
        with sync.Client(database.url, schema=SCHEMA) as client:
            client.apply_tuning()
        seconds = _watched(database, length, rate)
    settings = {"minutes": minutes, "rate": rate, "held_minutes": held, "concurrency": CONCURRENCY}
    return {"settings": settings, **judged(seconds, length, rate), **series(seconds)}


def judged(seconds: Sequence[Second], length: Length, rate: int) -> dict[str, Any]:
    """What the issue is about: the rate, the waiting, and the dead rows."""
    window = min(WINDOW, length.total // 4)
    first = _together(seconds[WARM_UP : WARM_UP + window]).percentile(99) * 1000
    last = _together(seconds[length.total - window : length.total]).percentile(99) * 1000
    backlog = backlogs(seconds)
    return {
        "held_from_second": length.held_from,
        "held_until_second": length.held_until,
        "rate_done": rounded(sum(each.waits.count for each in seconds) / length.total),
        "slowest_10_seconds": rounded(_slowest(seconds, length, rate)),
        "most_pages_per_job": max(pages_per_job(seconds)[WARM_UP : length.total]),
        "largest_backlog": max(backlog),
        "backlog_at_end": backlog[-1],
        "p99_ms_first": rounded(first),
        "p99_ms_held": rounded(_p99_while_held(seconds, length)),
        "p99_ms_last": rounded(last),
        "p99_ratio": rounded(last / first),
        **_swept(seconds, length),
    }


def series(seconds: Sequence[Second]) -> dict[str, Any]:
    """Each second's figures, in lists."""
    waits = [each.waits for each in seconds]
    return {
        "done": [each.count for each in waits],
        "backlog": backlogs(seconds),
        "p50_ms": [_milliseconds(each, 50) for each in waits],
        "p99_ms": [_milliseconds(each, 99) for each in waits],
        "dead_rows": [each.dead for each in seconds],
        "vacuums": [each.vacuums for each in seconds],
        "pages_per_job": pages_per_job(seconds),
        "table_megabytes": [rounded(each.table_bytes / 1e6) for each in seconds],
    }


def backlogs(seconds: Sequence[Second]) -> list[int]:
    """How many jobs were added and had not begun, at the end of each second."""
    waiting, found = 0, []
    for each in seconds:
        waiting += each.added - each.waits.count
        # The two programs do not end their seconds at the same moment.
        found.append(max(0, waiting))
    return found


def pages_per_job(seconds: Sequence[Second]) -> list[float]:
    """How many pages were touched in each second, for each job that was added in it."""
    return [
        rounded((now.pages - before.pages) / now.added) if now.added else 0.0
        for before, now in zip([seconds[0], *seconds], seconds, strict=False)
    ]


def _slowest(seconds: Sequence[Second], length: Length, rate: int) -> float:
    """The least rate of any ten seconds in a row."""
    done = [each.waits.count for each in seconds[WARM_UP : length.total]]
    return min((sum(done[at : at + 10]) / 10 for at in range(len(done) - 9)), default=float(rate))


def _p99_while_held(seconds: Sequence[Second], length: Length) -> float:
    held = _together(seconds[length.held_from : length.held_until])
    return held.percentile(99) * 1000 if held.count else 0.0


def _swept(seconds: Sequence[Second], length: Length) -> dict[str, Any]:
    """The peak of dead rows, and how long after the release they were a fifth of it."""
    dead = [each.dead for each in seconds]
    peak = max(dead[length.held_from : length.held_until + SWEPT_WITHIN])
    after = dead[length.held_until :]
    below = (at for at, count in enumerate(after) if count < peak / SWEPT)
    return {"dead_rows_peak": peak, "seconds_to_a_fifth": next(below, None)}


def _together(seconds: Sequence[Second]) -> Histogram:
    waits = Histogram()
    for each in seconds:
        waits.include(each.waits)
    return waits


def _milliseconds(waits: Histogram, percent: int) -> float:
    return rounded(waits.percentile(percent) * 1000) if waits.count else 0.0


def _watched(database: Database, length: Length, rate: int) -> list[Second]:
    told = {
        **environment(database, concurrency=CONCURRENCY),
        "BENCH_RATE": str(rate),
        "BENCH_SECONDS": str(length.total),
    }
    working = [COMMAND, "--app", "benchmarks.programs.timed", "--jobs", str(CONCURRENCY)]
    adding = [sys.executable, "-m", "benchmarks.programs.steady_adding"]
    with (
        database.connected() as watcher,
        database.connected() as holder,
        running(working, told) as worker,
        running(adding, told) as adder,
    ):
        record = Record(length.total + TAIL)
        with record.hearing(worker), record.hearing(adder):
            for number in range(length.total + TAIL):
                if number in (length.held_from, length.held_until):
                    _hold_or_release(holder, number == length.held_from)
                record.look(watcher, number)
                worker.check()
            adder.end()
            worker.kill()
    return record.seconds


def _hold_or_release(holder: psycopg.Connection, hold: bool) -> None:
    if hold:
        holder.execute("begin isolation level repeatable read")
        holder.execute("select from graphile_worker._private_jobs limit 1")
    else:
        holder.execute("rollback")
    click.echo("the snapshot is held" if hold else "the snapshot is released", err=True)


class Record:
    """Puts together what the programs say and what the database says, second by second."""

    def __init__(self, total: int) -> None:
        self._began = time.time()
        self.seconds = [Second() for _ in range(total)]

    @contextmanager
    def hearing(self, program: Program) -> Iterator[None]:
        """While this lasts, what a program says is recorded, to its end."""
        ear = threading.Thread(target=self._hear, args=(program,), daemon=True)
        ear.start()
        yield
        ear.join()

    def look(self, watcher: psycopg.Connection, number: int) -> None:
        """At the end of a second."""
        time.sleep(max(0.0, self._began + number + 1 - time.time()))
        row = watcher.execute(LOOK).fetchone()
        assert row is not None
        second = self.seconds[number]
        second.dead, second.vacuums, second.table_bytes, second.pages = row
        if number % 10 == 9:
            click.echo(f"second {number + 1}: {second.dead} dead rows", err=True)

    def _hear(self, program: Program) -> None:
        for said in program.lines():
            if "second" not in said:
                continue
            # The first and the last take what falls beside them.
            number = min(max(0, said["second"] - int(self._began)), len(self.seconds) - 1)
            self.seconds[number].added += said.get("added", 0)
            self.seconds[number].waits.include(Histogram(said.get("waits", ())))
