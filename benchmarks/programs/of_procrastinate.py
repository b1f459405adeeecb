# It runs in an environment of its own, where type checkers do not look.
# mypy: disable-error-code="import-not-found, untyped-decorator"
"""Procrastinate with its own concurrency: `python -m … of_procrastinate install|work|add`.

A connection for each job that runs, finished jobs deleted as its guide to production has it, its
log at warnings, and uvloop.
"""

import logging
import sys
import time

import uvloop
from procrastinate import App, PsycopgConnector

from benchmarks.programs.words import Counter, dsn, number, say, say_late

ROOM = number("concurrency") + 2

app = App(connector=PsycopgConnector(conninfo=dsn(), min_size=ROOM, max_size=ROOM))
counter = Counter()


@app.task(name="noop")
async def noop(id: int) -> None:
    counter.count()


@app.task(name="ping")
async def ping(sent: int) -> None:
    say_late(sent)


async def install() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def work() -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=number("concurrency"), delete_jobs="always")


async def add() -> None:
    jobs, batch = number("jobs"), number("batch")
    payloads = [{"id": each} for each in range(batch)]
    async with app.open_async():
        await noop.defer_async(id=0)
        began = time.monotonic()
        for payload in payloads:
            await noop.defer_async(**payload)
        between = time.monotonic()
        for _ in range(0, jobs, batch):
            await noop.batch_defer_async(*payloads)
        ended = time.monotonic()
    say(one_by_one=batch / (between - began), in_batches=jobs / (ended - between))


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    uvloop.run({"install": install, "work": work, "add": add}[sys.argv[1]]())
