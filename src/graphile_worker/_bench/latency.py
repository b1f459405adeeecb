"""Measure the time from adding a job to its start, in an idle worker."""

import time
from dataclasses import dataclass

from graphile_worker._bench.processes import WorkerProcess, start_workers
from graphile_worker._bench.schema import BenchTarget
from graphile_worker._bench.stats import SampleStats, summarize
from graphile_worker.sync import Client

# The first jobs include one-time preparations.
WARM_UP_JOBS = 20

# The time in which the previous job is completed and the worker becomes idle.
PAUSE_SECONDS = 0.003


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds from the call that adds a job to the first line of its task."""

    samples: int
    latency: SampleStats


def measure_latency(target: BenchTarget, *, samples: int) -> Latency:
    with start_workers(1, target) as (worker,), target.client() as client:
        worker.send_start()
        for _ in range(WARM_UP_JOBS):
            _measure_once(worker, client)
        latencies = [_measure_once(worker, client) for _ in range(samples)]
    return Latency(samples, summarize(latencies))


def _measure_once(worker: WorkerProcess, client: Client) -> float:
    client.add_job("ping", {"sent": time.monotonic_ns()})
    nanoseconds: int = worker.read_message("latency")["latency"]
    time.sleep(PAUSE_SECONDS)
    return nanoseconds / 1e6
