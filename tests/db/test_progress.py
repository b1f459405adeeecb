"""Progress: what running tasks report, in one row per job that goes when the job ends."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import pytest

from graphile_worker import (
    Client,
    JobContext,
    JobSpec,
    Logger,
    RecoveryOptions,
    SyncJobContext,
    WorkerOptions,
    run_task_list_once,
)
from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._sql.queries.progress import (
    ProgressReport,
    delete_orphaned_progress,
    write_progress,
)
from graphile_worker._worker.progress import MAX_MESSAGE_BYTES, ProgressBuffer
from graphile_worker.events import HeartbeatFailed, JobErrored, JobFinished
from tests.support.pools import Pool
from tests.support.recorder import wait_until
from tests.support.timings import make_heartbeat_timings

# Logic of the worker, which test_polling.py runs on the oldest pair too.
pytestmark = pytest.mark.single_version

ROWS = "select job_id, pool_id, fraction, message from :ext_schema.progress order by job_id"
SOON = timedelta(milliseconds=50)
# A long lease, so that a busy machine keeps it.
RECOVERY = RecoveryOptions(heartbeat_interval=SOON)


class Field:
    """The buffer of a pool, on a real database, and the jobs that the pool holds."""

    def __init__(self, database: Any, pool: Pool) -> None:
        self.pool = pool
        self.held: list[ClaimedJob] = []
        self.logged: list[str] = []
        self.database = PsycopgDatabase(database.dsn, Schemas.from_names(database.schema))
        logger = Logger(lambda scope: lambda level, message, meta: self.logged.append(message))
        self.buffer = ProgressBuffer(logger, retry_interval_seconds=0)

    async def claim(self) -> ClaimedJob:
        claimed = self.pool.claim_one()
        self.held.append(claimed)
        return claimed

    async def flush(self) -> None:
        await self.buffer.flush(self.database.run, lambda: self.held)


@pytest.fixture
async def field(database, pool) -> AsyncIterator[Field]:
    field = Field(database, pool)
    yield field
    await field.database.close()


# The buffer


async def test_a_thousand_reports_are_one_row_and_one_statement(
    field, sql, blocking_client, statements
):
    blocking_client.add_jobs([JobSpec("task")] * 2)
    first, second = await field.claim(), await field.claim()
    field.buffer.add(first, None, None)
    await field.flush()
    statements.clear()

    def report() -> None:
        for number in range(250):
            field.buffer.add(second, number / 1000, f"thread {number}")

    threads = [threading.Thread(target=report) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    field.buffer.add(second, 0.4, "page 4 of 10")
    await field.flush()

    assert statements == ["write_progress"]
    assert sql.run(ROWS) == [
        (first.job.id, "pool", None, None),
        (second.job.id, "pool", 0.4, "page 4 of 10"),
    ]
    await field.flush()
    assert statements == ["write_progress"]


async def test_a_pool_without_reports_runs_no_statement(field, blocking_client, statements):
    blocking_client.add_job("task")
    await field.claim()

    await field.flush()

    assert not [each for each in statements if "progress" in str(each)]


async def test_a_row_has_the_time_of_the_report(field, sql, blocking_client):
    job = blocking_client.add_job("task")
    await field.claim()
    report = ProgressReport(job.id, "pool", 0.5, None, time.monotonic() - 100)

    await field.database.run(write_progress([report], {}))

    age = "select extract(epoch from now() - updated_at)::float8 from :ext_schema.progress"
    assert 100 <= sql.value(age) < 110


async def test_progress_is_deleted_when_the_job_ended(field, sql, blocking_client):
    blocking_client.add_jobs([JobSpec("task")] * 2)
    for claimed in (await field.claim(), await field.claim()):
        field.buffer.add(claimed, 0.1, None)
    await field.flush()

    ended, running = field.held
    field.held = [running]
    # Too late: a thread that outlives its job.
    field.buffer.add(ended, 0.2, None)
    await field.flush()

    assert sql.run(ROWS) == [(running.job.id, "pool", 0.1, None)]


async def test_progress_of_an_earlier_attempt_is_deleted(field, sql, blocking_client):
    blocking_client.add_job("task")
    first = await field.claim()
    field.buffer.add(first, 0.9, None)
    await field.flush()
    field.pool.release(first)
    field.held = []
    second = await field.claim()

    await field.flush()
    assert sql.run(ROWS) == []

    field.buffer.add(second, 0.1, None)
    # A thread that outlives its attempt.
    field.buffer.add(first, 1.0, None)
    await field.flush()
    assert sql.run(ROWS) == [(second.job.id, "pool", 0.1, None)]


async def test_a_pool_that_lost_its_job_neither_writes_nor_deletes_the_progress_of_the_next_run(
    field, sql, database, blocking_client
):
    blocking_client.add_job("task")
    lost = await field.claim()
    field.buffer.add(lost, 0.9, "lost")
    await field.flush()
    field.pool.release(lost)
    other = Field(database, field.pool.with_id("other"))
    held = await other.claim()

    field.buffer.add(lost, 1.0, "too late")
    await field.flush()
    assert sql.run(ROWS) == [(lost.job.id, "pool", 0.9, "lost")]

    other.buffer.add(held, 0.1, "other")
    await other.flush()
    expected = [(lost.job.id, "other", 0.1, "other")]
    assert sql.run(ROWS) == expected
    field.buffer.add(lost, 1.0, "too late")
    await field.flush()
    field.held = []
    await field.flush()
    assert sql.run(ROWS) == expected
    await other.database.close()


async def test_an_older_report_of_another_pool_does_not_replace_a_newer_one(
    field, sql, blocking_client
):
    # As if the other pool had claimed the job and reported since the statement started.
    blocking_client.add_job("task")
    claimed = await field.claim()
    field.buffer.add(claimed, 0.4, None)
    await field.flush()
    sql.run(
        "update :ext_schema.progress set pool_id = 'other', fraction = 0,"
        " updated_at = now() + interval '1 minute'"
    )
    field.buffer.add(claimed, 0.5, None)

    await field.flush()

    assert sql.run(ROWS) == [(claimed.job.id, "other", 0, None)]


async def test_any_message_can_be_stored(field, sql, blocking_client):
    messages = {
        "a\x00b": "a␀b",
        "half \ud83d": "half ?",
        "": "",
        '"\\ \n ü 😀 %s $1': '"\\ \n ü 😀 %s $1',
        "x" * 10_000: "x" * MAX_MESSAGE_BYTES,
        # A character is kept or cut as a whole.
        "€" * 10_000: "€" * (MAX_MESSAGE_BYTES // 3),
    }
    blocking_client.add_job("task")
    claimed = await field.claim()
    for message, stored in messages.items():
        field.buffer.add(claimed, 0.5, message)
        await field.flush()

        assert sql.value("select message from :ext_schema.progress") == stored
    assert field.logged == []


async def test_progress_of_dead_processes_is_deleted(field, sql, blocking_client):
    blocking_client.add_jobs([JobSpec("task")] * 3)
    running, released = await field.claim(), await field.claim()
    field.pool.release(released)
    for job_id, pool_id in (
        (running.job.id, "pool"),
        (released.job.id, "pool"),
        (released.job.id + 1, "pool"),
        (2**40, "pool"),
    ):
        sql.run("insert into :ext_schema.progress values ($1, $2, 0, null, now())", job_id, pool_id)

    await field.database.run(delete_orphaned_progress())

    assert sql.run(ROWS) == [(running.job.id, "pool", 0, None)]


async def test_the_first_write_of_a_pool_deletes_progress_of_dead_processes(
    field, sql, blocking_client
):
    sql.run("insert into :ext_schema.progress values (1, 'dead', 0, null, now())")
    blocking_client.add_job("task")
    claimed = await field.claim()
    field.buffer.add(claimed, 0.5, None)

    await field.flush()

    assert sql.run(ROWS) == [(claimed.job.id, "pool", 0.5, None)]


async def test_a_failed_write_is_logged_once_and_retried(field, sql, blocking_client):
    blocking_client.add_job("task")
    claimed = await field.claim()
    sql.run("alter table :ext_schema.progress rename to hidden")
    for fraction in (0.1, 0.2):
        field.buffer.add(claimed, fraction, None)
        await field.flush()
    [problem] = field.logged
    assert problem.startswith("writing progress failed, retrying every 0 s: UndefinedTable: ")

    sql.run("alter table :ext_schema.hidden rename to progress")
    await field.flush()

    assert sql.run(ROWS) == [(claimed.job.id, "pool", 0.2, None)]
    field.held = []
    await field.flush()
    assert sql.run(ROWS) == []


# Workers


def list_tasks() -> tuple[dict[str, Any], threading.Event]:
    """Tasks of both kinds, which report until the event is set."""
    is_over = threading.Event()

    async def report(payload: object, ctx: JobContext) -> None:
        ctx.progress(0.4, "page 4 of 10")
        while not is_over.is_set():  # noqa: ASYNC110  # a plain function waits for it too
            await asyncio.sleep(0.01)

    def report_in_thread(payload: object, ctx: SyncJobContext) -> None:
        ctx.progress(0.4, "page 4 of 10")
        is_over.wait()

    return {"async": report, "plain": report_in_thread}, is_over


async def test_tasks_of_both_kinds_report_progress_while_they_run(start, sql, recorder):
    tasks, is_over = list_tasks()
    runner = await start(tasks, recovery=RECOVERY, concurrency=2)
    jobs = [await runner.add_job(name) for name in tasks]

    await wait_until(lambda: len(sql.run(ROWS)) == 2)
    pool_id = sql.value("select distinct locked_by from :schema._private_jobs")
    assert sql.run(ROWS) == [(job.id, pool_id, 0.4, "page 4 of 10") for job in jobs]

    is_over.set()
    await recorder.wait_for(JobFinished, count=2)
    await wait_until(lambda: sql.run(ROWS) == [])
    await runner.stop()


async def test_a_graceful_shutdown_deletes_the_progress_of_its_jobs(start, sql):
    tasks, is_over = list_tasks()
    # A long interval, so that the shutdown deletes the row and not a heartbeat.
    timings = make_heartbeat_timings(max_interval=timedelta(seconds=2))
    runner = await start(tasks, timings=timings, recovery=None)
    await runner.add_job("plain")
    await wait_until(lambda: sql.run(ROWS))

    is_over.set()
    await runner.stop()

    assert sql.run(ROWS) == []


async def test_a_pool_of_the_caller_writes_progress(start, sql, database):
    tasks, is_over = list_tasks()
    async with asyncpg.create_pool(database.url, min_size=1, max_size=4) as connections:
        runner = await start({"async": tasks["async"]}, on=connections, recovery=RECOVERY)
        job = await runner.add_job("async")
        await wait_until(lambda: [row[0] for row in sql.run(ROWS)] == [job.id])
        is_over.set()
        await runner.stop()
    assert sql.run(ROWS) == []


async def test_a_worker_on_a_connection_of_the_caller_drops_reports(database, sql):
    async def report(payload: object, ctx: JobContext) -> None:
        ctx.progress(0.4, "page 4 of 10")

    async with await psycopg.AsyncConnection.connect(database.dsn) as connection:
        await Client(database.dsn, schema=database.schema).add_job("report", conn=connection)
        options = WorkerOptions(schema=database.schema)
        count = await run_task_list_once({"report": report}, connection, options=options)
    assert (count, sql.run(ROWS)) == (1, [])


async def test_heartbeats_go_on_without_the_table(start, sql, recorder):
    tasks, is_over = list_tasks()
    lines: list[str] = []
    logger = Logger(lambda scope: lambda level, message, meta: lines.append(message))
    sql.run("drop table :ext_schema.progress")
    runner = await start(tasks, recovery=RECOVERY, logger=logger)
    await runner.add_job("plain")
    await wait_until(lambda: [each for each in lines if "writing progress failed" in each])

    seen = "select seen_at from :ext_schema.pools"
    before = sql.run(seen)
    await wait_until(lambda: sql.run(seen) != before)
    is_over.set()
    await recorder.wait_for(JobFinished)
    await runner.stop()

    assert len([each for each in lines if "writing progress failed" in each]) == 1
    assert not recorder.events_of(HeartbeatFailed)


async def test_a_locked_table_does_not_delay_heartbeats(start, sql, recorder):
    tasks, is_over = list_tasks()
    lines: list[str] = []
    logger = Logger(lambda scope: lambda level, message, meta: lines.append(message))
    sql.run("begin")
    sql.run("lock table :ext_schema.progress")
    runner = await start(tasks, recovery=RECOVERY, logger=logger)
    await runner.add_job("async")
    await wait_until(lambda: [each for each in lines if "writing progress failed" in each])
    sql.run("rollback")
    is_over.set()
    await recorder.wait_for(JobFinished)
    await runner.stop()

    assert any("TimeoutError: no answer within 1 s" in each for each in lines)
    assert not recorder.events_of(HeartbeatFailed)


async def test_an_invalid_report_raises_in_the_task(start, recorder):
    async def report(payload: list[Any], ctx: JobContext) -> None:
        ctx.progress(*payload)

    errors = {
        (1.5,): "ValueError: fraction must be from 0 to 1, got 1.5",
        (10**400,): f"ValueError: fraction must be from 0 to 1, got {10**400}",
        (-0.1,): "ValueError: fraction must be from 0 to 1, got -0.1",
        ("half",): "TypeError: fraction must be a number from 0 to 1 or None, got 'half'",
        (True,): "TypeError: fraction must be a number from 0 to 1 or None, got True",
        (1, 2): "TypeError: message must be a string or None, got 2",
    }
    runner = await start({"report": report})
    for args, error in errors.items():
        job = await runner.add_job("report", list(args), max_attempts=1)
        [event] = await recorder.wait_for(JobErrored, job_id=job.id)
        assert f"{type(event.error).__name__}: {event.error}" == error
    for args in ((0,), (1,), (None,), (None, "x"), (0.5, None)):
        job = await runner.add_job("report", list(args))
        [finished] = await recorder.wait_for(JobFinished, job_id=job.id)
        assert finished.error is None
