"""Add jobs with our client, one by one and many in a call: `python -m … ours_adding`."""

import asyncio
import time

from benchmarks.programs.words import dsn, number, say
from graphile_worker import Client, JobSpec


async def main() -> None:
    jobs, batch = number("jobs"), number("batch")
    async with Client(dsn()) as client:
        await client.add_job("noop", {"id": 0})
        began = time.monotonic()
        for each in range(batch):
            await client.add_job("noop", {"id": each})
        between = time.monotonic()
        for first in range(0, jobs, batch):
            await client.add_jobs(
                JobSpec("noop", {"id": each}) for each in range(first, first + batch)
            )
        ended = time.monotonic()
    say(one_by_one=batch / (between - began), in_batches=jobs / (ended - between))


if __name__ == "__main__":
    asyncio.run(main())
