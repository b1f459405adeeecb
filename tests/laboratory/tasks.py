"""Tasks of the laboratory: each body notes when it begins and ends, and has an effect."""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Literal

from graphile_worker import App, Backoff, JobContext, RunnerStarted
from tests.laboratory.history import Body, Journal

PROCESS = os.environ.get("PGAPPNAME", "nobody")

EFFECT = "insert into gw_audit.effects (job_id, attempt) values (%s, %s)"
SOON = Backoff(base=timedelta(milliseconds=100), max=timedelta(seconds=1))

app = App()
JOURNAL = Path(os.environ.get("LABORATORY_JOURNAL", os.devnull))
journal = Journal(JOURNAL)


@app.on(RunnerStarted)
def note_readiness(event: RunnerStarted) -> None:
    """From here on it must not end by itself."""
    JOURNAL.with_suffix(".ready").touch()


@contextmanager
def body(ctx: JobContext) -> Iterator[None]:
    say("start", ctx)
    try:
        yield
    finally:
        say("end", ctx)


def say(step: Literal["start", "end"], ctx: JobContext) -> None:
    job = ctx.job
    journal.note(Body(step, job.id, job.attempts, ctx.pool_id, PROCESS, time.time()))


@app.task
async def work(ctx: JobContext, seconds: float = 0.0) -> None:
    with body(ctx):
        await asyncio.sleep(seconds)
        await ctx.query(EFFECT + " returning 1", (ctx.job.id, ctx.job.attempts))


@app.task
def work_in_thread(ctx: JobContext, seconds: float = 0.0) -> None:
    with body(ctx):
        time.sleep(seconds)


@app.task(retry=SOON)
async def stumble(ctx: JobContext, times: int = 1) -> None:
    """Fails so many times."""
    with body(ctx):
        if ctx.job.attempts <= times:
            raise LookupError(f"attempt {ctx.job.attempts} of {times} that fail")


@app.task
async def pay(ctx: JobContext) -> None:
    """Its effect and its end are one."""
    with body(ctx):
        async with ctx.transaction() as connection:
            await connection.execute(EFFECT, (ctx.job.id, ctx.job.attempts))


@app.task
async def tick(ctx: JobContext) -> None:
    with body(ctx):
        pass
