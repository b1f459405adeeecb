"""Ours without a local queue, each worker fetching for itself: `python -m … ours_direct`."""

import asyncio
from dataclasses import fields
from typing import Any

from benchmarks.programs.ours import app
from benchmarks.programs.words import dsn, number
from graphile_worker import WorkerOptions, run


async def main() -> None:
    known = {each.name for each in fields(WorkerOptions)}
    off: dict[str, Any] = {"local_queue": None} if "local_queue" in known else {}
    options = WorkerOptions(concurrency=number("concurrency"), **off)
    runner = await run(dsn(), app, options=options)
    await runner.wait()


if __name__ == "__main__":
    asyncio.run(main())
