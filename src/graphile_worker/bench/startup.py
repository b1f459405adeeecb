"""How long a worker takes to start and stop when there is nothing to do."""

import asyncio
import time
from dataclasses import dataclass

from graphile_worker.bench.figures import Spread, spread
from graphile_worker.bench.place import Place
from graphile_worker.bench.processes import workers
from graphile_worker.options import WorkerOptions
from graphile_worker.runner import Runner


@dataclass(frozen=True, slots=True)
class Startup:
    """In milliseconds, connecting and looking at the schema included.

    `process` is the command from its start to its end, Python and imports included; `runner` is a
    worker that starts and stops in a program that runs already.
    """

    rounds: int
    process: Spread
    runner: Spread


def measure_startup(place: Place, *, rounds: int) -> Startup:
    _process_ms(place)
    process = [_process_ms(place) for _ in range(rounds)]
    runner = asyncio.run(_runner_rounds(place, rounds))
    return Startup(rounds, spread(process), spread(runner))


def _process_ms(place: Place) -> float:
    began = time.monotonic()
    with workers(1, place, "--once") as (worker,):
        worker.begin()
        worker.end()
        return (time.monotonic() - began) * 1000


async def _runner_rounds(place: Place, rounds: int) -> list[float]:
    return [await _runner_ms(place) for _ in range(rounds)]


async def _runner_ms(place: Place) -> float:
    began = time.monotonic()
    options = WorkerOptions(schema=place.schema)
    async with Runner(place.connection, {"nothing": _nothing}, options=options):
        pass
    return (time.monotonic() - began) * 1000


async def _nothing() -> None: ...
