"""Tasks of the laboratory. Each body records its start and its end, and writes an effect."""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Literal

from graphile_worker import App, Backoff, BaseJobContext, JobContext, RunnerStarted, SyncJobContext
from tests.laboratory.history_checker import Body, Journal
from tests.laboratory.metrics import write_counters

PROCESS = os.environ.get("PGAPPNAME", "nobody")

EFFECT = "insert into gw_audit.effects (job_id, attempt) values (%s, %s)"
SOON = Backoff(base=timedelta(milliseconds=100), max=timedelta(seconds=1))

app = App()
JOURNAL = Path(os.environ.get("LABORATORY_JOURNAL", os.devnull))
journal = Journal(JOURNAL)
if "LABORATORY_JOURNAL" in os.environ:
    write_counters(app, JOURNAL)


@app.on(RunnerStarted)
def note_readiness(event: RunnerStarted) -> None:
    """Create the file that marks a worker as started; after it, an exit is a violation."""
    JOURNAL.with_suffix(".ready").touch()


@contextmanager
def body(ctx: BaseJobContext) -> Iterator[None]:
    say("start", ctx)
    try:
        yield
    finally:
        say("end", ctx)


def say(step: Literal["start", "end"], ctx: BaseJobContext) -> None:
    job = ctx.job
    journal.note(Body(step, job.id, job.attempts, ctx.pool_id, PROCESS, time.time()))


@app.task
async def work(ctx: JobContext, seconds: float = 0.0) -> None:
    with body(ctx):
        await asyncio.sleep(seconds)
        await ctx.query(EFFECT + " returning 1", (ctx.job.id, ctx.job.attempts))


@app.task
def work_in_thread(ctx: SyncJobContext, seconds: float = 0.0) -> None:
    with body(ctx):
        time.sleep(seconds)


@app.task(retry=SOON)
async def stumble(ctx: JobContext, times: int = 1) -> None:
    """Fail the first `times` attempts."""
    with body(ctx):
        if ctx.job.attempts <= times:
            raise LookupError(f"attempt {ctx.job.attempts} of {times} that fail")


@app.task
async def pay(ctx: JobContext) -> None:
    """Write the effect in the transaction that completes the job."""
    with body(ctx):
        async with ctx.transaction() as connection:
            await connection.execute(EFFECT, (ctx.job.id, ctx.job.attempts))


@app.task
async def tick(ctx: JobContext) -> None:
    with body(ctx):
        pass
