"""How long after it was added a job begins, in a worker that has nothing else to do."""

import time
from dataclasses import dataclass

from graphile_worker.bench.figures import Spread, spread
from graphile_worker.bench.place import Place
from graphile_worker.bench.processes import WorkerProcess, workers
from graphile_worker.sync import Client

# What is prepared on first use is not what a job waits for.
WARM_UP = 20

# Until the job before is settled and the worker idle again, in seconds.
REST = 0.003


@dataclass(frozen=True, slots=True)
class Latency:
    """In milliseconds, from before the call that adds a job to the first line of its task."""

    samples: int
    late: Spread


def measure_latency(place: Place, *, samples: int) -> Latency:
    with workers(1, place) as (worker,), place.client() as client:
        worker.begin()
        for _ in range(WARM_UP):
            _sample(worker, client)
        late = [_sample(worker, client) for _ in range(samples)]
    return Latency(samples, spread(late))


def _sample(worker: WorkerProcess, client: Client) -> float:
    client.add_job("ping", {"sent": time.monotonic_ns()})
    nanoseconds: int = worker.hear("late")["late"]
    time.sleep(REST)
    return nanoseconds / 1e6
