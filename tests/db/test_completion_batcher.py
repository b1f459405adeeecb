"""Ends of jobs that are gathered and written together, on a real database."""

import asyncio
from datetime import timedelta

import pytest

from graphile_worker import JobSpec, Retry, WorkerOptions, run_once, sync
from graphile_worker.events import JobErrored, JobFinished, JobStarted, JobSucceeded
from tests.support.tasks import nothing

AT_ONCE = timedelta(0)
NEVER = timedelta(days=1)

LEFT = "select count(*) from :schema._private_jobs"
LOCKED = "select count(*) from :schema._private_jobs where locked_by is not null"


async def broken(payload: object) -> None:
    raise LookupError("boom")


@pytest.mark.feature("F292", "F189")
async def test_a_success_is_announced_once_its_row_is_gone(start, recorder, sql):
    seen: list[int] = []

    @recorder.hooks.on(JobSucceeded)
    def look(event: JobSucceeded) -> None:
        query = "select count(*) from :schema._private_jobs where id = $1"
        seen.append(sql.value(query, event.job.id))

    runner = await start({"task": nothing}, concurrency=10, complete_batch_delay=AT_ONCE)
    await runner.add_jobs([JobSpec("task")] * 200)
    await recorder.wait_for(JobFinished, count=200)

    assert seen == [0] * 200
    assert sql.value(LEFT) == 0


@pytest.mark.feature("F293")
async def test_failures_are_written_together_each_with_its_own_error(start, recorder, sql):
    runner = await start({"task": broken}, concurrency=10, fail_batch_delay=AT_ONCE)
    await runner.add_jobs([JobSpec("task")] * 20)
    await recorder.wait_for(JobErrored, count=20)

    rows = sql.run("select attempts, locked_by, last_error from :schema._private_jobs")
    assert {row[:2] for row in rows} == {(1, None)}
    assert all(row[2].startswith("LookupError: boom") for row in rows)


async def test_a_failure_that_the_database_rejects_fails_alone(start, recorder, sql):
    async def some(payload: dict[str, int]) -> None:
        if payload["n"] == 3:
            raise Retry(timedelta(days=290_000 * 365))
        raise LookupError("boom")

    runner = await start({"task": some}, concurrency=10, fail_batch_delay=AT_ONCE)
    await runner.add_jobs([JobSpec("task", {"n": n}) for n in range(10)])
    await recorder.wait_for(JobErrored, count=10)

    assert sql.value(LOCKED) == 0
    assert sql.run("select distinct attempts from :schema._private_jobs") == [(1,)]


@pytest.mark.feature("F295")
async def test_what_is_gathered_is_written_before_a_worker_ends(start, recorder, sql):
    runner = await start({"task": nothing}, complete_batch_delay=NEVER)
    await runner.add_jobs([JobSpec("task")] * 10)
    await recorder.wait_for(JobStarted, count=10)

    await asyncio.wait_for(runner.stop(), 20)

    assert sql.value(LEFT) == 0
    assert len(recorder.events_of(JobSucceeded)) == 10


async def test_a_named_queue_goes_on_without_waiting_for_the_delay(start, recorder, sql):
    runner = await start({"task": nothing}, concurrency=3, complete_batch_delay=NEVER)

    await runner.add_jobs([JobSpec("task", queue_name="one")] * 10)
    await recorder.wait_for(JobSucceeded, count=10)

    assert sql.value(LEFT) == 0


async def test_batches_outlive_a_connection(start, database, recorder, sql):
    await start({"task": nothing}, concurrency=5, complete_batch_delay=AT_ONCE)
    kill = (
        "select count(pg_terminate_backend(pid)) from pg_stat_activity "
        "where application_name = 'graphile-worker' and pid <> pg_backend_pid()"
    )

    for _ in range(5):
        with sync.Client(database.dsn, schema=database.schema) as client:
            client.add_jobs([JobSpec("task")] * 100)
        sql.run(kill)
    await recorder.wait_for(JobSucceeded, count=500)

    assert sql.value(LEFT) == 0


async def test_run_once_ends_when_all_is_written(database, sql):
    with sync.Client(database.dsn, schema=database.schema) as client:
        client.add_jobs([JobSpec("task", queue_name=f"q{n % 7}") for n in range(100)])
    options = WorkerOptions(
        schema=database.schema, concurrency=10, complete_batch_delay=timedelta(milliseconds=20)
    )

    assert await run_once(database.dsn, {"task": nothing}, options=options) == 100
    assert sql.value(LEFT) == 0
