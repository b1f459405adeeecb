# It runs in an environment of its own, where type checkers do not look.
# mypy: disable-error-code="import-not-found, untyped-decorator"
"""PgQueuer, as its guide to performance has it: `python -m … of_pgqueuer work|add`.

A single asyncpg connection for the queue manager, a large batch and no cap on tasks for short jobs,
its own autovacuum settings, the log of its jobs unlogged ("balanced"), and uvloop.
"""

import json
import sys
import time

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks.programs.words import Counter, dsn, number, say, say_late


async def work() -> None:
    queue = PgQueuer(AsyncpgDriver(await asyncpg.connect(dsn())))
    counter = Counter()

    @queue.entrypoint("noop")
    async def noop(job: Job) -> None:
        json.loads(job.payload or b"null")
        counter.count()

    @queue.entrypoint("ping")
    async def ping(job: Job) -> None:
        say_late(json.loads(job.payload or b"null")["sent"])

    await queue.run(batch_size=number("batch"))


async def add() -> None:
    jobs, batch = number("jobs"), number("batch")
    queries = Queries(AsyncpgDriver(await asyncpg.connect(dsn())))
    payloads: list[bytes | None] = [b'{"id": %d}' % each for each in range(batch)]
    await queries.enqueue("noop", payloads[0])
    began = time.monotonic()
    for payload in payloads:
        await queries.enqueue("noop", payload)
    between = time.monotonic()
    for _ in range(0, jobs, batch):
        await queries.enqueue(["noop"] * batch, payloads, [0] * batch)
    ended = time.monotonic()
    say(one_by_one=batch / (between - began), in_batches=jobs / (ended - between))


if __name__ == "__main__":
    uvloop.run({"work": work, "add": add}[sys.argv[1]]())
