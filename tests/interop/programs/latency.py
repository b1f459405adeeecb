"""Answers each job with how late its task began: python latency.py <dsn>."""

import asyncio
import os
import sys
import time

from graphile_worker import App, WorkerOptions, run


async def main(dsn: str) -> None:
    app = App(dsn)

    @app.task
    async def ping(sent: str) -> None:
        late = time.monotonic_ns() - int(sent)
        os.write(1, b"late %d\n" % late)

    # As it was when this was first measured: with nothing fetched ahead.
    options = WorkerOptions(local_queue=None, complete_batch_delay=None)
    runner = await run(dsn, app, options=options)
    os.write(1, b"ready\n")
    await runner.wait()


asyncio.run(main(sys.argv[1]))
