"""How many jobs a program adds in a second: one call each, and many in one call."""

import time
from dataclasses import dataclass

from graphile_worker._bench.schema import BenchTarget
from graphile_worker.jobs import JobSpec
from graphile_worker.sync import Client

BATCH_SIZE = 1000

# Calls for one job each take that many times longer.
SINGLE_CALL_DIVISOR = 10


@dataclass(frozen=True, slots=True)
class AddingResult:
    """On one connection, each call waiting for the one before."""

    jobs: int
    batch: int
    one_by_one_per_second: float
    in_batches_per_second: float


def measure_adding(target: BenchTarget, *, jobs: int, batch: int = BATCH_SIZE) -> AddingResult:
    singles = max(1, jobs // SINGLE_CALL_DIVISOR)
    with target.client() as client:
        add_trivial_jobs(client, 1)
        began = time.monotonic()
        for number in range(singles):
            client.add_job("nothing", {"id": number})
        between = time.monotonic()
        add_trivial_jobs(client, jobs, batch)
        ended = time.monotonic()
    return AddingResult(jobs, batch, singles / (between - began), jobs / (ended - between))


def add_trivial_jobs(client: Client, jobs: int, batch: int = BATCH_SIZE) -> None:
    """Add trivial jobs, so many in a call."""
    for first in range(0, jobs, batch):
        numbers = range(first, min(first + batch, jobs))
        client.add_jobs([JobSpec("nothing", {"id": number}) for number in numbers])
