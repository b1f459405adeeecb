"""Measure how many trivial jobs several worker processes run per second."""

import time
from dataclasses import dataclass

from graphile_worker._bench.adding import add_trivial_jobs
from graphile_worker._bench.processes import start_workers
from graphile_worker._bench.schema import BenchTarget
from graphile_worker.errors import GraphileWorkerError


@dataclass(frozen=True, slots=True)
class Throughput:
    """The throughput from the start signal until the last process has no jobs left."""

    jobs: int
    processes: int
    concurrency: int
    seconds: float
    jobs_per_second: float
    cpu_microseconds_per_job: float


def measure_throughput(
    target: BenchTarget, *, jobs: int, processes: int, concurrency: int
) -> Throughput:
    with target.client() as client:
        add_trivial_jobs(client, jobs)
    with start_workers(processes, target, "--once", "--jobs", str(concurrency)) as workers:
        started_at = time.monotonic()
        for worker in workers:
            worker.send_start()
        reports = [worker.read_message("done") for worker in workers]
    total = sum(report["jobs"] for report in reports)
    if total != jobs:
        raise GraphileWorkerError(f"only {total} of {jobs} jobs ran")
    seconds = max(report["done"] for report in reports) - started_at
    cpu = sum(report["cpu"] for report in reports)
    return Throughput(jobs, processes, concurrency, seconds, jobs / seconds, cpu / jobs * 1e6)
