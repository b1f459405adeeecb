"""Add single jobs with our client, with pauses: `python -m … ours_pinging`."""

import asyncio
import time

from benchmarks.programs.words import dsn, number
from graphile_worker import Client

PAUSE_SECONDS = 0.005


async def main() -> None:
    async with Client(dsn()) as client:
        for _ in range(number("jobs")):
            await client.add_job("ping", {"sent": time.monotonic_ns()})
            await asyncio.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    asyncio.run(main())
