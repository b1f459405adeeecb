"""A pool whose tasks sleep for as long as their payload says: `python -m … sleepers`.

Times BENCH_SLOWNESS. With BENCH_LOCAL_QUEUE it fetches so many ahead, otherwise as it does by
default. Of each job it tells, a quarter of a second later at most: its id, when it was taken, when
it began and when it ended. The first is by the clock of the database, the others by ours; both run
on one machine.
"""

import asyncio
import os
import time
from typing import Any

from benchmarks.programs.words import dsn, number, say
from graphile_worker import App, JobContext, LocalQueueOptions, RunnerStarted, WorkerOptions, run

TELL_EVERY = 0.25

app = App(dsn())
told: list[tuple[int, float, float, float]] = []


@app.task
async def sleep(ctx: JobContext, payload: Any, /) -> None:
    began = time.time()
    locked_at = ctx.job.locked_at
    assert locked_at is not None
    await asyncio.sleep(payload["seconds"] * number("slowness"))
    told.append((ctx.job.id, locked_at.timestamp(), began, time.time()))


@app.on(RunnerStarted)
def tell(event: RunnerStarted) -> None:
    say(pool=event.pool_id)


def options() -> WorkerOptions:
    concurrency = number("concurrency")
    if "BENCH_LOCAL_QUEUE" not in os.environ:
        return WorkerOptions(concurrency=concurrency)
    queue = LocalQueueOptions(size=number("local_queue"))
    return WorkerOptions(concurrency=concurrency, local_queue=queue)


async def main() -> None:
    await run(dsn(), app, options=options())
    while True:
        await asyncio.sleep(TELL_EVERY)
        say(ran=told)
        told.clear()


if __name__ == "__main__":
    asyncio.run(main())
