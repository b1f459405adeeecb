"""Add jobs at a steady rate, a hundred in a call: `python -m … steady_adding`.

BENCH_RATE of them a second for BENCH_SECONDS. Each second it says how many it added.
"""

import asyncio
import time

from benchmarks.programs.words import dsn, number, say
from graphile_worker import Client, JobSpec

BATCH = 100


async def main() -> None:
    pause = BATCH / number("rate")
    specs = [JobSpec("timed", {"id": each}) for each in range(BATCH)]
    second, added = int(time.time()), 0
    async with Client(dsn()) as client:
        began = time.monotonic()
        for turn in range(round(number("seconds") / pause)):
            # By the clock, not by the length of a pause: a late call is followed by an early one.
            await asyncio.sleep(max(0.0, began + turn * pause - time.monotonic()))
            await client.add_jobs(specs)
            if int(time.time()) != second:
                say(second=second, added=added)
                second, added = int(time.time()), 0
            added += BATCH
    say(second=second, added=added)
    say(end=True)


if __name__ == "__main__":
    asyncio.run(main())
