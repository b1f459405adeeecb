"""Answers each job with how late its task began: python latency.py <dsn>."""

import asyncio
import os
import sys
import time

from graphile_worker import App, run


async def main(dsn: str) -> None:
    app = App(dsn)

    @app.task
    async def ping(sent: str) -> None:
        late = time.monotonic_ns() - int(sent)
        os.write(1, b"late %d\n" % late)

    runner = await run(dsn, app)
    os.write(1, b"ready\n")
    await runner.wait()


asyncio.run(main(sys.argv[1]))
