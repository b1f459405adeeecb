"""How many trivial jobs several worker processes run in a second."""

import time
from dataclasses import dataclass

from graphile_worker._bench.adding import add_trivial_jobs
from graphile_worker._bench.processes import start_workers
from graphile_worker._bench.schema import BenchTarget
from graphile_worker.errors import GraphileWorkerError


@dataclass(frozen=True, slots=True)
class Throughput:
    """From the word to begin, all processes up and waiting, until the last has nothing to do."""

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
    with start_workers(processes, target, "--once", "--jobs", str(concurrency)) as started:
        began = time.monotonic()
        for worker in started:
            worker.send_start()
        reports = [worker.read_message("done") for worker in started]
    ran = sum(report["jobs"] for report in reports)
    if ran != jobs:
        raise GraphileWorkerError(f"{ran} of {jobs} jobs were run")
    seconds = max(report["done"] for report in reports) - began
    cpu = sum(report["cpu"] for report in reports)
    return Throughput(jobs, processes, concurrency, seconds, jobs / seconds, cpu / jobs * 1e6)
