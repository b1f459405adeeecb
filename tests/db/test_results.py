"""Results and status: what callers learn of jobs that run, ended or are deleted."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pickle import dumps, loads
from typing import Any

import psycopg
import pytest

from graphile_worker import (
    App,
    Client,
    ConfigurationError,
    Job,
    JobContext,
    JobFailedError,
    JobSpec,
    JobSpecError,
    JobStatus,
    JobStatusState,
    OpenTransactionError,
    ResultError,
    ResultUnknownError,
    Retention,
    sync,
)
from graphile_worker._sql.identifiers import Schemas
from graphile_worker.testing import Harness
from tests.conftest import TestDatabase
from tests.support.recorder import wait_until

# What Python does: test_statements.py runs each statement on the oldest pair too.
pytestmark = pytest.mark.single_version

SOON = timedelta(seconds=60)
NO_WAIT = timedelta(0)
KEPT = Retention(results=True, attempts=True)

UNKNOWN_WORDS = (
    "is not in the queue and left no outcome: it ended under a worker that keeps nothing (for "
    "example Node or Rust, or a task without retention), was removed, or is older than the time "
    "that outcomes are kept"
)


@dataclass
class Size:
    width: int
    height: int


class App2(App[None]):
    """An app whose blocking methods are called in a thread, so that each rule is written once."""

    kind = "async"

    async def get_result(self, job: Job[Any], limit: timedelta | None = SOON) -> Any:
        if self.kind == "async":
            return await job.aresult(limit)
        return await asyncio.to_thread(job.result, limit)

    async def get_result_by_id(self, job_id: int) -> Any:
        if self.kind == "async":
            return await self.aresult(job_id, timeout=SOON)
        return await asyncio.to_thread(self.result, job_id, timeout=SOON)

    async def get_status(self, job_id: int, conn: object = None) -> JobStatus:
        if self.kind == "async":
            return await self.astatus(job_id, conn=conn)
        return await asyncio.to_thread(self.status, job_id, conn=conn)


@asynccontextmanager
async def open_app(database: TestDatabase, kind: str = "async") -> AsyncIterator[App2]:
    async with App2(database.dsn, schema=database.schema) as app:
        app.kind = kind
        yield app


@pytest.fixture
async def app(database, kind) -> AsyncIterator[App2]:
    async with open_app(database, kind) as app:
        yield app


@pytest.fixture
async def async_app(database) -> AsyncIterator[App2]:
    async with open_app(database) as app:
        yield app


# Results


async def test_a_result_has_the_return_type_of_the_task(app, database):
    @app.task(retention=KEPT)
    async def measure(ctx: JobContext[None], width: int) -> Size:
        return Size(width, 2)

    @app.task(retention=KEPT)
    def measure_all(width: int) -> list[Size]:
        return [Size(width, 1)]

    @app.task(retention=KEPT)
    async def when(at: datetime) -> datetime:
        return at

    @app.task(retention=KEPT)
    async def nothing() -> None: ...

    @app.task(retention=KEPT)
    def unannotated():
        return {"any": ["json"]}

    now = datetime.now(UTC)
    expected: list[tuple[Job[Any], Any]] = [
        (await measure.aenqueue(3), Size(3, 2)),
        (await measure_all.aenqueue(3), [Size(3, 1)]),
        (await when.aenqueue(now), now),
        (await nothing.aenqueue(), None),
        (await unannotated.aenqueue(), {"any": ["json"]}),
    ]
    await app.worker().run_once()

    for job, result in expected:
        assert await app.get_result(job) == result
        assert await app.get_result_by_id(job.id) == result
    # A client that does not know the task reads plain JSON.
    job = expected[0][0]
    async with Client(database.dsn, schema=database.schema) as client:
        assert await client.result(job.id, timeout=SOON) == {"width": 3, "height": 2}
    with sync.Client(database.dsn, schema=database.schema) as blocking:
        plain = await asyncio.to_thread(blocking.result, job.id, timeout=SOON)
        assert plain == {"width": 3, "height": 2}


async def test_a_waiter_may_come_before_during_and_after_the_run(app):
    started, finish = asyncio.Event(), asyncio.Event()

    @app.task(retention=KEPT)
    async def slow(value: int) -> int:
        started.set()
        await finish.wait()
        return value

    job = await slow.aenqueue(5)
    before = asyncio.create_task(app.get_result(job))
    async with app.worker():
        await started.wait()
        during = asyncio.create_task(app.get_result(job))
        await asyncio.sleep(0.05)
        assert not before.done()
        assert not during.done()
        finish.set()
        assert (await before, await during, await app.get_result(job)) == (5, 5, 5)


async def test_a_job_that_permanently_failed_raises_its_error(app, sql):
    @app.task(retention=KEPT, max_attempts=1)
    async def fail() -> int:
        raise ValueError("no paper")

    @app.task(max_attempts=1)
    async def fail_unkept() -> int:
        raise ValueError("no ink")

    kept, unkept = await fail.aenqueue(), await fail_unkept.aenqueue()
    await app.worker().run_once()

    for job, text in ((kept, "no paper"), (unkept, "no ink")):
        with pytest.raises(JobFailedError, match=text) as caught:
            await app.get_result(job)
        assert caught.value.job_id == job.id
    # The outcome remains if a person deletes the row.
    sql.run("delete from :schema._private_jobs")
    with pytest.raises(JobFailedError, match="no paper"):
        await app.get_result(kept)
    assert (await app.get_status(kept.id)).state is JobStatusState.FAILED
    with pytest.raises(ResultUnknownError, match="left no outcome"):
        await app.get_result(unkept)


async def test_a_job_that_is_retried_by_hand_waits_again_and_the_newest_outcome_counts(app, sql):
    @app.task(retention=KEPT, max_attempts=1)
    async def flaky() -> str:
        if not sql.run("select 1 from :ext_schema.outcomes"):
            raise ValueError
        return "second"

    job = await flaky.aenqueue()
    await app.worker().run_once()
    async with Client(app.dsn, schema=app.schema) as client:
        await client.reschedule_jobs([job.id], attempts=0)

    with pytest.raises(TimeoutError):
        await app.get_result(job, NO_WAIT)
    await app.worker().run_once()
    assert await app.get_result(job) == "second"
    assert sql.value("select count(*) from :ext_schema.outcomes") == 2


async def test_a_result_that_is_not_kept_is_unknown(app):
    @app.task(retention=Retention())
    async def outcome_only() -> int:
        return 1

    @app.task
    async def unkept() -> int:
        return 1

    first, second = await outcome_only.aenqueue(), await unkept.aenqueue()
    await app.worker().run_once()

    with pytest.raises(ResultUnknownError) as caught:
        await app.get_result(first)
    assert str(caught.value) == f"job {first.id} succeeded, and its task keeps no results"
    with pytest.raises(ResultUnknownError) as caught:
        await app.get_result(second)
    status = await app.get_status(second.id)
    assert str(caught.value) == str(status) == f"job {second.id} {UNKNOWN_WORDS}"
    assert (status.state, status.detail) == (JobStatusState.UNKNOWN, UNKNOWN_WORDS)
    assert (await app.get_status(2**40)).state is JobStatusState.UNKNOWN


async def test_an_outcome_is_hidden_when_its_task_no_longer_keeps_it(async_app, sql):
    @async_app.task(retention=KEPT)
    async def task() -> int:
        return 1

    job = await task.aenqueue()
    await async_app.worker().run_once()
    for table in ("outcomes", "attempts"):
        sql.run(f"update :ext_schema.{table} set expires_at = now() - interval '1 s'")

    with pytest.raises(ResultUnknownError, match="older than the time"):
        await job.aresult()
    status = await async_app.astatus(job.id)
    assert (status.state, status.attempts) == (JobStatusState.UNKNOWN, ())


async def test_a_stored_result_of_another_type_raises_result_error(app, sql):
    @app.task(retention=KEPT)
    async def size() -> Size:
        return Size(1, 2)

    job = await size.aenqueue()
    await app.worker().run_once()
    cases = {
        '{"width": "1", "height": 2}': "width: expected int, got str",
        "[1, 2]": "expected an object (Size), got list",
    }
    for stored, reason in cases.items():
        sql.run("update :ext_schema.outcomes set result = $1::text::json", stored)
        with pytest.raises(ResultError) as caught:
            await app.get_result(job)
        assert str(caught.value).startswith(f"the stored result of job {job.id} cannot be read: ")
        assert reason in str(caught.value)


async def test_the_return_annotation_of_a_task_that_keeps_results_is_checked(async_app):
    def returns_bytes() -> bytes: ...  # type: ignore[empty-body]

    def returns_later() -> "Later":  # type: ignore[name-defined]  # noqa: F821
        ...

    async_app.task(name="plain")(returns_bytes)
    async_app.task(name="outcome", retention=Retention())(returns_bytes)
    with pytest.raises(ConfigurationError, match="returns_bytes, return annotation: .*JSON has no"):
        async_app.task(name="kept", retention=KEPT)(returns_bytes)
    later = async_app.task(name="later", retention=KEPT)(returns_later)
    with pytest.raises(ConfigurationError, match="Later"):
        later.signature.read_result("1")
    globals()["Later"] = int
    try:
        assert later.signature.read_result("1") == 1
    finally:
        del globals()["Later"]


async def test_a_job_read_from_the_table_has_no_result(async_app):
    @async_app.task(retention=KEPT)
    async def task(ctx: JobContext[None]) -> str:
        with pytest.raises(TypeError):
            ctx.job.result()
        return "done"

    job = await task.aenqueue()
    async with Client(async_app.dsn, schema=async_app.schema) as client:
        read = await client.get_job(job.id)
    added = await async_app.aadd_job("task")
    await async_app.worker().run_once()

    others: list[Any] = [read, added, loads(dumps(job))]
    for other in others:
        gets: list[Any] = [partial(asyncio.to_thread, other.result), other.aresult]
        for get in gets:
            with pytest.raises(TypeError) as caught:
                await get()
            assert str(caught.value) == (
                f"job {other.id} has no result here, because `enqueue` of a task did not return "
                f"it. Call result({other.id}) of an app or a client."
            )
    assert job == read
    assert await job.aresult() == "done"


async def test_a_pickled_job_equals_the_job(async_app):
    @async_app.task
    async def task(value: str) -> None: ...

    job = await task.using(job_key="a", flags=["x"], queue_name="q").aenqueue("é")
    copy = loads(dumps(job))

    assert (copy, hash(copy), repr(copy)) == (job, hash(job), repr(job))
    assert copy.payload == {"value": "é"}
    assert (copy.flags, copy.run_at) == (job.flags, job.run_at)


async def test_ids_and_timeouts_are_checked(app):
    for job_id in (None, "1", True, 2**63):
        with pytest.raises(JobSpecError):
            await app.get_result_by_id(job_id)
        with pytest.raises(JobSpecError):
            await app.get_status(job_id)
    with pytest.raises(ConfigurationError, match="timeout must be a timedelta, got 30"):
        await app.aresult(1, timeout=30)


async def test_a_timeout_names_the_job(app):
    @app.task(retention=KEPT)
    async def task() -> None: ...

    job = await task.aenqueue()

    for seconds in (0, 0.02):
        with pytest.raises(TimeoutError) as caught:
            await app.get_result(job, timedelta(seconds=seconds))
        assert str(caught.value) == f"job {job.id} did not end within {seconds:g} s"


async def test_closing_an_app_raises_in_its_waiters(database, kind):
    app = App2(database.dsn, schema=database.schema)
    app.kind = kind

    @app.task(retention=KEPT)
    async def task() -> None: ...

    job = await task.aenqueue()
    waiting = asyncio.create_task(app.get_result(job, None))
    await asyncio.sleep(0.1)
    await app.close()

    with pytest.raises(Exception, match=f"closed while a caller waited for job {job.id}"):
        await waiting


async def test_blocking_calls_in_an_event_loop_are_logged(async_app, caplog):
    @async_app.task(retention=KEPT)
    async def task() -> None: ...

    job = await task.aenqueue()
    with pytest.raises(TimeoutError):
        job.result(NO_WAIT)
    with pytest.raises(TimeoutError):
        async_app.result(job.id, timeout=NO_WAIT)

    lines = [each.getMessage() for each in caplog.records]
    assert [line.rpartition(": ")[2] for line in lines] == [
        "await job.aresult(…)",
        "await app.aresult(…)",
    ]
    assert all("test_results.py" in line for line in lines)


# Many waiters

END_ALL = """
with ended as (
  delete from :schema._private_jobs returning id, created_at
)
insert into :ext_schema.outcomes (
  slot, job_id, task_identifier, succeeded, attempts, created_at, run_at, started_at, finished_at,
  pool_id, result
)
select 0, id, 'task', true, 1, created_at, created_at, created_at, now(), 'pool', to_json(id)
from ended
"""


async def test_five_thousand_waiters_are_one_statement_per_look(async_client, sql, statements):
    jobs = await async_client.add_jobs(JobSpec("task") for _ in range(5000))
    statements.clear()

    waiters = [asyncio.create_task(async_client.result(each.id, timeout=SOON)) for each in jobs]
    await wait_until(lambda: statements.count("find_ended_jobs") >= 2)
    sql.run(END_ALL)
    results = await asyncio.gather(*waiters)

    assert results == [job.id for job in jobs]
    assert statements[0] == "inspect_history_access"
    assert set(statements[1:]) == {"find_ended_jobs"}
    # A minute has fewer than 75 looks by the schedule.
    assert len(statements) < 80


async def test_waiting_threads_share_their_statements(blocking_client, sql, statements):
    jobs = blocking_client.add_jobs(JobSpec("task") for _ in range(20))
    statements.clear()

    def wait(job: Job) -> Any:
        return blocking_client.result(job.id, timeout=SOON)

    waiters = [asyncio.create_task(asyncio.to_thread(wait, each)) for each in jobs]
    await wait_until(lambda: statements.count("find_ended_jobs") >= 10)
    sql.run(END_ALL)

    assert await asyncio.gather(*waiters) == [job.id for job in jobs]
    assert len(statements) < 20 * 5


# Outages


@pytest.mark.timeout(120)
@pytest.mark.single_version
async def test_waiting_continues_across_a_restart_of_the_server(own_cluster, schema):
    own_cluster.create_database("restarted")
    database = TestDatabase("restarted", own_cluster, schema)
    async with open_app(database) as app:
        await app.amigrate()

        @app.task(retention=KEPT)
        async def task(value: int) -> int:
            return value

        jobs = [await task.aenqueue(1), await task.aenqueue(2)]
        waiters = [
            asyncio.create_task(jobs[0].aresult(SOON)),
            asyncio.create_task(asyncio.to_thread(jobs[1].result, SOON)),
        ]
        await asyncio.sleep(0.1)
        await asyncio.to_thread(own_cluster.halt)
        await asyncio.sleep(0.3)
        late = asyncio.create_task(jobs[0].aresult(SOON))
        with pytest.raises(TimeoutError) as caught:
            await jobs[0].aresult(timedelta(milliseconds=300))
        assert isinstance(caught.value.__cause__, psycopg.OperationalError)
        assert not any(each.done() for each in waiters)

        await asyncio.to_thread(own_cluster.launch)
        await app.worker().run_once()

        assert await asyncio.gather(*waiters, late) == [1, 2, 1]


# Transactions


async def test_waiting_in_the_transaction_that_adds_the_job_is_rejected(app, database):
    @app.task(retention=KEPT)
    async def task(value: int) -> int:
        return value

    async with await psycopg.AsyncConnection.connect(database.dsn) as conn:
        job = await task.using(conn=conn).aenqueue(1)
        with pytest.raises(OpenTransactionError, match=f"job {job.id} has not ended: commit the"):
            await app.get_result(job)
        with app.using_connection(conn):
            same = await task.aenqueue(2)
            with pytest.raises(OpenTransactionError, match="end the transaction of using_conn"):
                await app.get_result(same)
            with pytest.raises(OpenTransactionError):
                await app.get_result_by_id(job.id)
        with pytest.raises(OpenTransactionError):
            await app.get_result(same)
        await conn.commit()

        await app.worker().run_once()
        assert [await app.get_result(each) for each in (job, same)] == [1, 2]


async def test_waiting_in_a_transaction_that_updates_the_job_is_rejected(app, database):
    @app.task(retention=KEPT)
    async def task(value: int) -> int:
        return value

    await task.using(job_key="a").aenqueue(1)
    async with await psycopg.AsyncConnection.connect(database.dsn) as conn:
        job = await task.using(job_key="a", conn=conn).aenqueue(2)

        with pytest.raises(OpenTransactionError):
            await app.get_result(job)


async def test_a_connection_that_a_pool_lends_again_does_not_reject_waiting(app, database):
    @app.task(retention=KEPT)
    async def task(value: int) -> int:
        return value

    @app.task
    async def unkept() -> None: ...

    async with await psycopg.AsyncConnection.connect(database.dsn) as conn:
        job = await task.using(conn=conn).aenqueue(1)
        other = await unkept.using(conn=conn).aenqueue()
        rolled_back = None
        await conn.commit()
        # The transaction of the next owner.
        await conn.execute("select 1")
        waiting = asyncio.create_task(app.get_result(job))
        await asyncio.sleep(0.05)
        await app.worker().run_once()

        assert await waiting == 1
        if app.kind == "async":
            with pytest.raises(ResultUnknownError):
                await app.get_result(other)
        await conn.rollback()
        rolled_back = await task.using(conn=conn).aenqueue(1)
        await conn.rollback()
        with pytest.raises(ResultUnknownError):
            await app.get_result(rolled_back)


async def test_an_outcome_that_the_transaction_can_see_is_returned(app, database, sql):
    @app.task(retention=KEPT)
    async def task() -> int:
        return 1

    async with await psycopg.AsyncConnection.connect(database.dsn) as conn:
        job = await task.using(conn=conn).aenqueue()
        await conn.execute(sql.text(END_ALL))
        if app.kind == "async":
            assert await job.aresult() == job.id
    with psycopg.connect(database.dsn) as blocking:
        job = task.using(conn=blocking).enqueue()
        blocking.execute(sql.text(END_ALL))
        assert await asyncio.to_thread(job.result) == job.id


def test_a_test_reads_results_in_its_transaction_and_never_waits(database, sql):
    app = App[None](database.dsn, schema=database.schema)

    @app.task(retention=KEPT)
    async def task() -> int:
        return 1

    with psycopg.connect(database.dsn) as conn, Harness(app, conn):
        for each in (task, task.using(conn=conn)):
            job = each.enqueue()
            with pytest.raises(OpenTransactionError, match=r"run it with drain\(\) before you"):
                job.result()
            with app.using_connection(conn), pytest.raises(OpenTransactionError):
                app.result(job.id)
            conn.execute(sql.text(END_ALL))
            assert job.result() == app.result(job.id) == job.id
            assert app.status(job.id).state is JobStatusState.SUCCEEDED


# Status


async def test_status_has_the_state_times_and_attempts_of_a_job(app, sql):
    @app.task(retention=KEPT, retry=lambda error, job: timedelta(0))
    async def flaky(ctx: JobContext[None]) -> int:
        if ctx.job.attempts == 1:
            raise ValueError("first")
        return 1

    job = await flaky.aenqueue()
    waiting = await app.get_status(job.id)
    await app.worker().run_once()
    status = await app.get_status(job.id)

    assert (waiting.state, waiting.attempt_count) == (JobStatusState.READY, 0)
    assert str(waiting) == f"job {job.id} (flaky) waits for a worker"
    assert waiting.created_at == status.created_at == job.created_at
    assert (status.state, status.attempt_count) == (JobStatusState.SUCCEEDED, 2)
    assert status.started_at is not None
    assert status.finished_at is not None
    assert status.started_at <= status.finished_at
    assert str(status) == (
        f"job {job.id} (flaky) succeeded at {status.finished_at:%Y-%m-%d %H:%M:%S} UTC "
        "after 2 attempts"
    )
    first, second = status.attempts
    assert (first.number, second.number, second.error) == (1, 2, None)
    assert first.error is not None
    assert first.error.startswith("ValueError: first")
    assert first.duration >= timedelta(0)
    assert first.worker.startswith("pypool-")


SENTENCES: dict[str, tuple[str, str]] = {
    "ready": ("", "waits for a worker"),
    "scheduled": ("run_at = now() + interval '1 hour'", "is scheduled for later"),
    "retrying": (
        "run_at = now() + interval '1 hour', attempts = 2, last_error = E'Boom\\nTraceback'",
        "waits for its next attempt after 2 attempts: Boom",
    ),
    "failed": (
        "attempts = max_attempts, last_error = 'Boom'",
        "permanently failed after 25 attempts: Boom",
    ),
    "running": (
        "attempts = 1, locked_at = now(), locked_by = 'pool-of-node'",
        "is running, attempt 1",
    ),
    "stale": (
        "attempts = 1, locked_at = now() - interval '5 hours', locked_by = 'x'",
        "is held by a dead worker, attempt 1",
    ),
}


async def test_status_has_the_states_of_jobs_list(app, sql, kind):
    for state, (change, sentence) in SENTENCES.items():
        job = await app.aadd_job("task")
        sql.run(
            f"update :schema._private_jobs set {change or 'priority = 0'} where id = $1", job.id
        )
        status = await app.get_status(job.id)

        assert status.state == state
        assert str(status) == f"job {job.id} (task) {sentence}"
    queued = await app.aadd_job("task", queue_name="q")
    sql.run("update :schema._private_job_queues set locked_at = now(), locked_by = 'x'")
    status = await app.get_status(queued.id)
    assert status.state is JobStatusState.WAITING
    assert str(status) == f"job {queued.id} (task) waits for another job of its named queue"


LOCK = "update :schema._private_jobs set locked_at = now(), locked_by = $1, attempts = 1"
REGISTER = """
insert into :ext_schema.pools (id, started_at, seen_at, lease, details)
values ($1, now(), now() - interval '1 minute', $2::text::interval, $3::text::json)
"""


async def test_a_job_of_a_dead_pool_is_stale(async_app, sql):
    job = await async_app.aadd_job("task")
    pools = {
        "alive": ("1 hour", "{}", JobStatusState.RUNNING),
        "dead": ("1 s", "{}", JobStatusState.STALE),
        "stopped": ("1 s", json.dumps({"stopped": True}), JobStatusState.RUNNING),
    }
    for pool, (lease, details, state) in pools.items():
        sql.run(REGISTER, pool, lease, details)
        sql.run(LOCK, pool)

        assert (await async_app.astatus(job.id)).state is state


async def test_status_has_the_progress_that_the_pool_of_the_job_reported(async_app, sql):
    job = await async_app.aadd_job("task")
    sql.run(LOCK, "pool")
    sql.run(
        "insert into :ext_schema.progress (job_id, pool_id, fraction, message, updated_at)"
        " values ($1, 'pool', 0.4, 'page 4 of 10', now())",
        job.id,
    )
    status = await async_app.astatus(job.id)

    assert status.progress is not None
    assert status.progress.fraction == pytest.approx(0.4)
    assert status.progress.message == "page 4 of 10"
    assert str(status) == f"job {job.id} (task) is running, attempt 1, 40% done: page 4 of 10"
    sql.run("update :ext_schema.progress set pool_id = 'an earlier pool'")
    assert (await async_app.astatus(job.id)).progress is None


async def test_status_joins_the_transaction_of_the_caller(async_app, database):
    @async_app.task
    async def task() -> None: ...

    async with await psycopg.AsyncConnection.connect(database.dsn) as conn:
        job = await task.using(conn=conn).aenqueue()

        assert (await async_app.astatus(job.id)).state is JobStatusState.UNKNOWN
        assert (await async_app.astatus(job.id, conn=conn)).state is JobStatusState.READY
        with async_app.using_connection(conn):
            assert (await async_app.astatus(job.id)).state is JobStatusState.READY
    with psycopg.connect(database.dsn) as blocking:
        job = task.using(conn=blocking).enqueue()
        assert async_app.status(job.id, conn=blocking).state is JobStatusState.READY


async def test_without_readable_outcomes_the_reason_is_named(app, sql, database, role):
    @app.task(retention=KEPT, max_attempts=1)
    async def task(fails: bool) -> int:
        if fails:
            raise ValueError("boom")
        return 1

    failed, job = await task.aenqueue(True), await task.aenqueue(False)
    await app.worker().run_once()
    companion = Schemas.from_names(database.schema).companion

    async def check(app: App2, reason: str, *, sees_jobs: bool = True) -> None:
        detail = f"{UNKNOWN_WORDS}. {reason}"
        with pytest.raises(ResultUnknownError) as caught:
            await app.get_result_by_id(job.id)
        assert str(caught.value) == f"job {job.id} {detail}"
        assert (await app.get_status(job.id)).detail == detail
        if sees_jobs:
            with pytest.raises(JobFailedError, match="boom"):
                await app.get_result_by_id(failed.id)
            assert (await app.get_status(failed.id)).state is JobStatusState.FAILED

    dsn = psycopg.conninfo.make_conninfo(database.dsn, user=role)
    async with App2(dsn, schema=database.schema) as restricted:
        restricted.kind = app.kind
        sql.run(f"grant usage on schema :schema, :ext_schema to {role}")
        sql.run(f"grant select on all tables in schema :schema to {role}")
        hint = "because of row level security: connect as a role that runs workers"
        await check(restricted, f"This role cannot see jobs, {hint}", sees_jobs=False)
        sql.run(f"create policy seen on :schema._private_jobs for select to {role} using (true)")
        await check(
            restricted,
            "This role may not read the outcomes: grant it select on the table outcomes of schema "
            f"{companion!r}",
        )
        sql.run(f"grant select on :ext_schema.outcomes to {role}")
        assert await restricted.get_result_by_id(job.id) == 1
    sql.run("drop policy seen on :schema._private_jobs")
    sql.run("drop table :ext_schema.outcomes")
    async with open_app(database, app.kind) as other:
        await check(
            other, f"Schema {companion!r} has no table of outcomes: run `graphile-worker migrate`"
        )
