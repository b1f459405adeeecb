"""A worker on one database or over several shards, which reports the CPU time of its jobs.

It counts from the first tenth of the jobs to the last job, so without its start.
"""

import asyncio
import json
import resource
import sys
import time

from benchmarks.contenders.contender import CONCURRENCY
from graphile_worker import Hooks, Shards, WorkerOptions, run


class Counter:
    """Counts jobs, and reads the clocks at the first and the last one that counts."""

    def __init__(self, jobs: int) -> None:
        self.first = jobs // 10
        self.last = jobs
        self.done = asyncio.Event()
        self.readings: list[tuple[float, float]] = []
        self._count = 0

    async def nothing(self, payload: object) -> None:
        self._count += 1
        if self._count in (self.first, self.last):
            self.readings.append((time.monotonic(), _read_cpu_seconds()))
        if self._count == self.last:
            self.done.set()


async def main(jobs: int, schema: str, urls: list[str], *, is_sharded: bool) -> None:
    counter = Counter(jobs)
    shards = Shards({f"s{number}": url for number, url in enumerate(urls)})
    runner = await run(
        shards if is_sharded else urls[0],
        {"nothing": counter.nothing},
        options=WorkerOptions(schema=schema, concurrency=CONCURRENCY),
        hooks=Hooks(),
        handle_signals=False,
    )
    await counter.done.wait()
    await runner.stop()
    (began, cpu_before), (ended, cpu_after) = counter.readings
    counted = counter.last - counter.first
    figures = {
        "jobs_per_second": counted / (ended - began),
        "cpu_us_per_job": (cpu_after - cpu_before) / counted * 1e6,
    }
    sys.stdout.write(json.dumps(figures))


def _read_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    settings = json.loads(sys.stdin.read())
    asyncio.run(
        main(
            settings["jobs"],
            settings["schema"],
            settings["urls"],
            is_sharded=settings["is_sharded"],
        )
    )
