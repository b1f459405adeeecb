"""Tasks of the laboratory. Each body records its start and its end, and writes an effect.

Some tasks keep their results: each run returns a different one, which its start records.
"""

import asyncio
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import graphile_worker
from graphile_worker import App, Backoff, BaseJobContext, JobContext, RunnerStarted, SyncJobContext
from tests.laboratory.history_checker import Body, Journal
from tests.laboratory.metrics import write_counters

PROCESS = os.environ.get("PGAPPNAME", "nobody")

EFFECT = "insert into gw_audit.effects (job_id, attempt) values (%s, %s)"
SOON = Backoff(base=timedelta(milliseconds=100), max=timedelta(seconds=1))

# A version without retention keeps nothing.
KEEPS: dict[str, Any] = {}
if hasattr(graphile_worker, "Retention"):
    KEEPS = {"retention": graphile_worker.Retention(results=True, attempts=True)}

# The limit that two tasks share in scenarios with one.
LIMITS: dict[str, Any] = {}
if "LABORATORY_SLOTS" in os.environ:
    slots = int(os.environ["LABORATORY_SLOTS"])
    LIMITS = {"limit": graphile_worker.ConcurrencyLimit(slots, name="laboratory")}

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
def body(ctx: BaseJobContext, *, keeps: bool = False) -> Iterator[str | None]:
    """Record the start and the end of a body. Yields the result of this run, if it is kept."""
    result = secrets.token_hex(8) if keeps and KEEPS else None
    say("start", ctx, None if result is None else json.dumps(result))
    try:
        yield result
    finally:
        say("end", ctx)


def say(step: Literal["start", "end"], ctx: BaseJobContext, result: str | None = None) -> None:
    job = ctx.job
    journal.note(Body(step, job.id, job.attempts, ctx.pool_id, PROCESS, time.time(), result))


@app.task
async def work(ctx: JobContext, seconds: float = 0.0) -> None:
    with body(ctx):
        await asyncio.sleep(seconds)
        await ctx.query(EFFECT + " returning 1", (ctx.job.id, ctx.job.attempts))


@app.task(**KEEPS)
async def keep(ctx: JobContext, seconds: float = 0.0) -> str | None:
    with body(ctx, keeps=True) as result:
        await asyncio.sleep(seconds)
        return result


@app.task
def work_in_thread(ctx: SyncJobContext, seconds: float = 0.0) -> None:
    with body(ctx):
        time.sleep(seconds)


@app.task(**KEEPS)
def keep_in_thread(ctx: SyncJobContext, seconds: float = 0.0) -> str | None:
    with body(ctx, keeps=True) as result:
        time.sleep(seconds)
        return result


@app.task(**LIMITS)
async def limited(ctx: JobContext, seconds: float = 0.0) -> None:
    with body(ctx):
        await asyncio.sleep(seconds)


@app.task(**LIMITS)
def limited_in_thread(ctx: SyncJobContext, seconds: float = 0.0) -> None:
    with body(ctx):
        time.sleep(seconds)


@app.task(retry=SOON, **KEEPS)
async def stumble(ctx: JobContext, times: int = 1) -> str | None:
    """Fail the first `times` attempts."""
    with body(ctx, keeps=True) as result:
        if ctx.job.attempts <= times:
            raise LookupError(f"attempt {ctx.job.attempts} of {times} that fail")
        return result


@app.task(**KEEPS)
async def pay(ctx: JobContext) -> None:
    """Write the effect in the transaction that completes the job."""
    with body(ctx, keeps=True) as result:
        async with ctx.transaction() as connection:
            await connection.execute(EFFECT, (ctx.job.id, ctx.job.attempts))
            if result is not None:
                ctx.set_result(result)


@app.task
async def tick(ctx: JobContext) -> None:
    with body(ctx):
        pass
