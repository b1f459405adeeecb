"""`finish`: no more jobs are taken, and those that run have all the time they need."""

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
async def test_running_jobs_end_in_their_own_time_and_the_rest_is_left(
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


async def test_a_stop_hurries_those_that_were_let_finish(start, recorder, sql):
    runner = await start(waiting_tasks(asyncio.Event()), shutdown_timeout=SHORT)
    sql.run("select :schema.add_job('wait')")
    await recorder.wait_for(JobStarted)

    runner.finish()
    await runner.stop()

    assert len(recorder.events_of(JobInterrupted)) == 1
    assert sql.run("select attempts, locked_by from :schema.jobs") == [(0, None)]


async def test_an_idle_worker_ends_at_once(start):
    runner = await start(waiting_tasks(asyncio.Event()))

    runner.finish()
    async with asyncio.timeout(10):
        await runner.wait()


async def test_before_the_start_there_is_nothing_to_finish(database):
    runner = Runner(database.dsn, {}, options=WorkerOptions(schema=database.schema))

    runner.finish()

    assert not runner.is_ready
