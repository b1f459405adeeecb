"""How many trivial jobs several worker processes run in a second."""

import time
from dataclasses import dataclass

from graphile_worker.bench.adding import add
from graphile_worker.bench.place import Place
from graphile_worker.bench.processes import workers
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


def measure_throughput(place: Place, *, jobs: int, processes: int, concurrency: int) -> Throughput:
    with place.client() as client:
        add(client, jobs)
    with workers(processes, place, "--once", "--jobs", str(concurrency)) as started:
        began = time.monotonic()
        for worker in started:
            worker.begin()
        reports = [worker.hear("done") for worker in started]
    ran = sum(report["jobs"] for report in reports)
    if ran != jobs:
        raise GraphileWorkerError(f"{ran} of {jobs} jobs were run")
    seconds = max(report["done"] for report in reports) - began
    cpu = sum(report["cpu"] for report in reports)
    return Throughput(jobs, processes, concurrency, seconds, jobs / seconds, cpu / jobs * 1e6)
