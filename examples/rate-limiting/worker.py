"""A worker that leaves jobs alone whose limit is used up; start as many as you like."""

import asyncio
import logging
import os
from datetime import timedelta
from functools import partial

from graphile_worker import WorkerOptions, run
from psycopg_pool import AsyncConnectionPool

from limits import exhausted
from tasks import app

# Nobody tells a worker that a token is free again: it looks so often.
OPTIONS = WorkerOptions(concurrency=2, poll_interval=timedelta(milliseconds=200))


async def main() -> None:
    pool = AsyncConnectionPool(os.environ["DATABASE_URL"], min_size=1, max_size=1, open=False)
    async with pool:
        runner = await run(None, app, options=OPTIONS, forbidden_flags=partial(exhausted, pool))
        await runner.wait()


if __name__ == "__main__":
    # A program decides itself where the log goes; the command would show it.
    logging.basicConfig(level=logging.INFO)
    asyncio.run(main())
