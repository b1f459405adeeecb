"""Measure how long a worker takes to start and stop without jobs."""

import asyncio
import time
from dataclasses import dataclass

from graphile_worker._bench.processes import start_workers
from graphile_worker._bench.schema import BenchTarget
from graphile_worker._bench.stats import SampleStats, summarize
from graphile_worker.options import WorkerOptions
from graphile_worker.runner import Runner


@dataclass(frozen=True, slots=True)
class Startup:
    """The time to start and stop in ms, including the connection and the check of the schema.

    `process` is the whole command, including Python and imports. `runner` is a worker that starts
    and stops in a running program.
    """

    rounds: int
    process: SampleStats
    runner: SampleStats


def measure_startup(target: BenchTarget, *, rounds: int) -> Startup:
    _measure_process_ms(target)
    process = [_measure_process_ms(target) for _ in range(rounds)]
    runner = asyncio.run(_measure_runner_rounds(target, rounds))
    return Startup(rounds, summarize(process), summarize(runner))


def _measure_process_ms(target: BenchTarget) -> float:
    started_at = time.monotonic()
    with start_workers(1, target, "--once") as (worker,):
        worker.send_start()
        worker.wait()
        return (time.monotonic() - started_at) * 1000


async def _measure_runner_rounds(target: BenchTarget, rounds: int) -> list[float]:
    return [await _measure_runner_ms(target) for _ in range(rounds)]


async def _measure_runner_ms(target: BenchTarget) -> float:
    started_at = time.monotonic()
    options = WorkerOptions(schema=target.schema)
    async with Runner(target.connection, {"nothing": _do_nothing}, options=options):
        pass
    return (time.monotonic() - started_at) * 1000


async def _do_nothing() -> None: ...
