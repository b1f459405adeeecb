"""`finish`: claim no more jobs, and wait for the running ones without a limit."""

import asyncio
from datetime import timedelta

import pytest

from graphile_worker.events import JobInterrupted, JobStarted, JobSucceeded
from graphile_worker.options import LocalQueueOptions, WorkerOptions
from graphile_worker.runner import Runner

SHORT = timedelta(milliseconds=100)
SOURCES = [None, LocalQueueOptions(size=10), WorkerOptions().local_queue]


def waiting_tasks(go: asyncio.Event) -> dict:
    async def wait(payload: object) -> None:
        await go.wait()

    return {"wait": wait}


@pytest.mark.parametrize("local_queue", SOURCES, ids=["direct", "local queue", "default"])
async def test_finish_waits_for_running_jobs_and_leaves_the_others(
    start, recorder, sql, local_queue
):
    go = asyncio.Event()
    # A stop would cancel them after so long.
    limits = {"cancel_after": SHORT, "shutdown_timeout": SHORT}
    runner = await start(waiting_tasks(go), concurrency=2, local_queue=local_queue, **limits)
    sql.run("select :schema.add_job('wait') from generate_series(1, 4)")
    await recorder.wait_for(JobStarted, count=2)

    runner.finish()
    ready = runner.is_ready
    sql.run("select :schema.add_job('wait')")
    ended = asyncio.create_task(runner.wait())
    done, _ = await asyncio.wait({ended}, timeout=1)
    go.set()
    await ended

    assert (ready, done) == (False, set())
    assert len(recorder.events_of(JobSucceeded)) == 2
    assert len(recorder.events_of(JobInterrupted)) == 0
    assert sql.run("select attempts, locked_by from :schema.jobs") == [(0, None)] * 3


async def test_a_stop_after_finish_cancels_running_jobs(start, recorder, sql):
    runner = await start(waiting_tasks(asyncio.Event()), shutdown_timeout=SHORT)
    sql.run("select :schema.add_job('wait')")
    await recorder.wait_for(JobStarted)

    runner.finish()
    await runner.stop()

    assert len(recorder.events_of(JobInterrupted)) == 1
    assert sql.run("select attempts, locked_by from :schema.jobs") == [(0, None)]


async def test_finish_ends_an_idle_worker_immediately(start):
    runner = await start(waiting_tasks(asyncio.Event()))

    runner.finish()
    async with asyncio.timeout(10):
        await runner.wait()


async def test_finish_before_the_start_does_nothing(database):
    runner = Runner(database.dsn, {}, options=WorkerOptions(schema=database.schema))

    runner.finish()

    assert not runner.is_ready
