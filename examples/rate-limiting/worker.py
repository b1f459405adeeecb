"""A worker that skips jobs whose limit is used up. Start any number of them."""

import asyncio
import logging
import os
from datetime import timedelta
from functools import partial

from graphile_worker import WorkerOptions, run
from psycopg_pool import AsyncConnectionPool

from limits import exhausted
from tasks import app

# Poll often, because nothing notifies a worker of a free token.
OPTIONS = WorkerOptions(concurrency=2, poll_interval=timedelta(milliseconds=200))


async def main() -> None:
    pool = AsyncConnectionPool(os.environ["DATABASE_URL"], min_size=1, max_size=1, open=False)
    async with pool:
        runner = await run(None, app, options=OPTIONS, forbidden_flags=partial(exhausted, pool))
        await runner.wait()


if __name__ == "__main__":
    # A program configures its own logging; the graphile-worker command does it for you.
    logging.basicConfig(level=logging.INFO)
    asyncio.run(main())
