"""Measure how many jobs a program adds per second, with one call each and in batches."""

import time
from dataclasses import dataclass

from graphile_worker._bench.schema import BenchTarget
from graphile_worker.jobs import JobSpec
from graphile_worker.sync import Client

BATCH_SIZE = 1000

# Calls with one job each take longer, so there are fewer of them.
SINGLE_CALL_DIVISOR = 10


@dataclass(frozen=True, slots=True)
class AddingResult:
    """The rates of adding jobs on one connection, one call after the other."""

    jobs: int
    batch: int
    one_by_one_per_second: float
    in_batches_per_second: float


def measure_adding(target: BenchTarget, *, jobs: int, batch: int = BATCH_SIZE) -> AddingResult:
    singles = max(1, jobs // SINGLE_CALL_DIVISOR)
    with target.client() as client:
        add_trivial_jobs(client, 1)
        started_at = time.monotonic()
        for number in range(singles):
            client.add_job("nothing", {"id": number})
        singles_done_at = time.monotonic()
        add_trivial_jobs(client, jobs, batch)
        single_seconds = singles_done_at - started_at
        batch_seconds = time.monotonic() - singles_done_at
    return AddingResult(jobs, batch, singles / single_seconds, jobs / batch_seconds)


def add_trivial_jobs(client: Client, jobs: int, batch: int = BATCH_SIZE) -> None:
    for first in range(0, jobs, batch):
        numbers = range(first, min(first + batch, jobs))
        client.add_jobs([JobSpec("nothing", {"id": number}) for number in numbers])
