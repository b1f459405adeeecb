"""A worker that writes down each run of a task: the one that dies, or the one that takes over.

FAILPOINTS names where it dies. ROLE is "doomed" or "heir", BATCHES names what is written together
(complete, fail), CRONTAB is one.
"""

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path

from graphile_worker import (
    App,
    JobContext,
    LocalQueueOptions,
    RecoveryOptions,
    Retention,
    WorkerOptions,
    run,
)
from graphile_worker._sql.identifiers import derive_companion_schema, quote_identifier

# It runs outside of the folder that has the package of the tests.
sys.path.append(str(Path(__file__).parents[3]))
from tests.support.failpoints import install_from_environment

ROLE = os.environ["ROLE"]
BATCHES = os.environ.get("BATCHES", "")
TOGETHER = timedelta(milliseconds=50)

BEGAN = """
insert into runs (job_id, n, queue_name, role, attempt, run_at, last_error, tick)
values (%s, %s, %s, %s, %s, %s, %s, %s)
returning id
"""
ENDED = "update runs set ended_at = clock_timestamp() where id = %s"

app = App()


@app.task(retention=Retention(results=True, attempts=True))
async def keep(ctx: JobContext, n: int, waits: str = "", fails: bool = False) -> int:
    """Do the same as `work`, and keep the number of the run."""
    run_id: int = await work.fn(ctx, n, waits, fails)
    return run_id


@app.task
async def work(ctx: JobContext, n: int, waits: str = "", fails: bool = False) -> int:
    """Wait in the worker that dies, for a heartbeat or for ever, and fail once."""
    job, tick = ctx.job, ctx.cron and ctx.cron.scheduled_at
    values = [job.id, n, ctx.queue_name, ROLE, job.attempts, job.run_at, job.last_error, tick]
    (began,) = await ctx.query(BEGAN, values)
    if ROLE == "doomed":
        if waits == "for ever":
            await asyncio.Event().wait()
        if waits == "for a heartbeat":
            await until_told(ctx)
        if fails and job.attempts == 1:
            raise RuntimeError("as it was asked to")
    await ctx.query(ENDED, [began["id"]])
    run_id: int = began["id"]
    return run_id


async def until_told(ctx: JobContext) -> None:
    """Return once a heartbeat has recorded the start of this job."""
    pools = f"{quote_identifier(derive_companion_schema(ctx.schema))}.pools"
    told = f"select id from {pools} where %s = any (started_jobs)"
    while True:
        if await ctx.query(told, [ctx.job.id]):
            return
        await asyncio.sleep(0.02)


def options() -> WorkerOptions:
    # The doomed one holds jobs that have not begun; the heir looks often for dead pools. A long
    # lease, so that neither looks dead while it runs; the test ages the row of the dead one.
    doomed = ROLE == "doomed"
    return WorkerOptions(
        concurrency=2,
        poll_interval=timedelta(milliseconds=200),
        local_queue=LocalQueueOptions(size=4 if doomed else None),
        complete_batch_delay=TOGETHER if "complete" in BATCHES else None,
        fail_batch_delay=TOGETHER if "fail" in BATCHES else None,
        cancel_after=timedelta(milliseconds=100),
        shutdown_timeout=timedelta(milliseconds=300 if doomed else 20_000),
        recovery=RecoveryOptions(
            lease_duration=timedelta(seconds=30),
            heartbeat_interval=timedelta(milliseconds=250),
            rescue_interval=timedelta(milliseconds=200),
        ),
    )


async def main() -> None:
    crontab = os.environ.get("CRONTAB")
    runner = await run(os.environ["DATABASE_URL"], app, crontab=crontab, options=options())
    os.write(2, b"ready\n")
    await runner


install_from_environment()
asyncio.run(main())
