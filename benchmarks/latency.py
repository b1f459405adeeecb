"""From adding a job to the start of its task, in a worker that has nothing else to do.

The time is taken before the statement that adds the job, and by the task itself; both programs read
the same monotonic clock. Every queue adds by its own function or table, through one connection of
one common program. With `own_client`, a program of each queue adds the jobs with its own client.
"""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from benchmarks.contenders import WorkerContender
from benchmarks.contenders.contender import BATCH, CONCURRENCY
from benchmarks.processes import Program, environment, running
from benchmarks.rounds import Figures, alternated, ratios, summary
from benchmarks.server import Database, Server
from graphile_worker._bench.stats import summarize

# What is prepared on first use is not what a job waits for.
WARM_UP = 50

# Until the job before is settled and the worker idle again, in seconds.
PAUSE_SECONDS = 0.003


def latency(
    server: Server,
    contenders: Sequence[WorkerContender],
    *,
    samples: int,
    rounds: int,
    own_client: bool = False,
) -> dict[str, Any]:
    sample = _own_samples if own_client else _samples
    measures = {each.name: _measure(server, each, samples, sample) for each in contenders}
    found = alternated(measures, rounds)
    return {
        "settings": {"samples": samples, "rounds": rounds},
        "contenders": {
            each.name: {"label": each.label, **summary(found[each.name])} for each in contenders
        },
        "ratio_of": "p50_ms",
        "ratios": ratios(found, contenders[0].name, "p50_ms"),
    }


def _measure(
    server: Server,
    contender: WorkerContender,
    samples: int,
    sample: Callable[[WorkerContender, Database, int], list[float]],
) -> Callable[[], Figures]:
    def measure() -> Figures:
        with server.database(contender.kind, contender.install) as database:
            found = summarize(sample(contender, database, samples))
        return {"min_ms": found.minimum, "p50_ms": found.p50, "p99_ms": found.p99}

    return measure


def _samples(contender: WorkerContender, database: Database, samples: int) -> list[float]:
    told = environment(database, jobs=samples, concurrency=CONCURRENCY, batch=BATCH)
    with running(contender.pinged(), told) as program, database.connected() as connection:
        for _ in range(WARM_UP):
            _sample(contender, connection, program)
        return [_sample(contender, connection, program) for _ in range(samples)]


def _own_samples(contender: WorkerContender, database: Database, samples: int) -> list[float]:
    told = environment(database, jobs=WARM_UP + samples, concurrency=CONCURRENCY, batch=BATCH)
    with running(contender.pinged(), told) as program, database.connected() as connection:
        # The worker has started when it runs a job.
        _sample(contender, connection, program)
        with running(contender.pinger(), told):
            found = [program.wait_for_line("late")["late"] / 1e6 for _ in range(WARM_UP + samples)]
    return found[WARM_UP:]


def _sample(contender: WorkerContender, connection: psycopg.Connection, program: Program) -> float:
    payload = json.dumps({"sent": time.monotonic_ns()})
    connection.execute(contender.pinging.encode(), (payload,))
    late: int = program.wait_for_line("late")["late"]
    time.sleep(PAUSE_SECONDS)
    return late / 1e6
