"""How long after it was added a job begins, in a worker that has nothing else to do."""

import time
from dataclasses import dataclass

from graphile_worker._bench.processes import WorkerProcess, start_workers
from graphile_worker._bench.schema import BenchTarget
from graphile_worker._bench.stats import SampleStats, summarize
from graphile_worker.sync import Client

# What is prepared on first use is not what a job waits for.
WARM_UP_JOBS = 20

# Until the job before is settled and the worker idle again, in seconds.
PAUSE_SECONDS = 0.003


@dataclass(frozen=True, slots=True)
class Latency:
    """In milliseconds, from before the call that adds a job to the first line of its task."""

    samples: int
    latency: SampleStats


def measure_latency(target: BenchTarget, *, samples: int) -> Latency:
    with start_workers(1, target) as (worker,), target.client() as client:
        worker.send_start()
        for _ in range(WARM_UP_JOBS):
            _measure_once(worker, client)
        late = [_measure_once(worker, client) for _ in range(samples)]
    return Latency(samples, summarize(late))


def _measure_once(worker: WorkerProcess, client: Client) -> float:
    client.add_job("ping", {"sent": time.monotonic_ns()})
    nanoseconds: int = worker.read_message("late")["late"]
    time.sleep(PAUSE_SECONDS)
    return nanoseconds / 1e6
