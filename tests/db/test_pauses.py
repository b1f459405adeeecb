"""Pauses of named queues and of tasks: statements, plans, and what leaves them alone."""

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from graphile_worker import (
    CleanupTask,
    JobSpec,
    JobSpecError,
    Pause,
    PauseKind,
    QueueBusy,
    sync,
)
from graphile_worker._sql.queries.pauses import get_paused_tasks, resume_expired_queues
from graphile_worker._sql.queries.workers import unlock_stale_jobs
from graphile_worker.errors import SchemaError
from tests.support.clients import open_client, unwrap
from tests.support.pools import queue_lock
from tests.support.sql import Sql

# What the statements do: test_statements.py runs each of them on the oldest pair too.
pytestmark = pytest.mark.single_version

FAR_FUTURE = datetime(9999, 1, 1, tzinfo=UTC)
SOON = timedelta(milliseconds=200)

QUEUES = "select queue_name, locked_at, locked_by from :schema._private_job_queues order by 1"
AUDIT = "select actor, action, filter, count, note from :ext_schema.audit order by id"
ROWS = "select kind, name, paused_by, reason, until is null from :ext_schema.pauses order by 1, 2"


ON_BOTH_INSTALLS = pytest.mark.parametrize(
    "pool_database", ["database", "node_database"], indirect=True
)


@pytest.fixture
def pool_database(request):
    """An install by Python, or by Node in tests that run on both."""
    return request.getfixturevalue(getattr(request, "param", "database"))


@pytest.fixture
async def client(pool_database):
    async with open_client("async", pool_database, actor="ada") as client:
        # Adds the companion schema to an install by Node.
        await client.migrate()
        yield client


@pytest.fixture
def blocking_client(pool_database):
    with sync.Client(pool_database.dsn, schema=pool_database.schema) as client:
        # Adds the companion schema to an install by Node.
        client.migrate()
        yield client


@contextmanager
def start_pausing(database: Any, name: str) -> Iterator[Future[Pause]]:
    """Pause a queue in another thread, on its own connection."""
    with (
        ThreadPoolExecutor(1) as threads,
        sync.Client(database.dsn, schema=database.schema, actor="ada") as client,
    ):
        yield threads.submit(client.pause_queue, name, wait=timedelta(seconds=15))


def wait_until_held(sql: Sql, name: str) -> None:
    """Wait until a pause keeps workers from claiming jobs of a queue."""
    claim = (
        "select id from :schema._private_job_queues where queue_name = $1 for update skip locked"
    )
    while sql.run(claim, name):
        time.sleep(0.01)


@contextmanager
def listening(database: Any, channel: str) -> Iterator[Callable[[], str]]:
    """A function that waits for the next notification of a channel, and returns its payload."""
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(f'listen "{channel}"')
        yield lambda: next(connection.notifies(timeout=20)).payload


def expire(sql: Sql, name: str) -> None:
    """Let a pause end now."""
    sql.run("update :ext_schema.pauses set until = now() where name = $1", name)


# Named queues


@ON_BOTH_INSTALLS
async def test_a_paused_queue_is_locked_until_the_year_9999_by_the_one_who_paused_it(client, sql):
    await client.add_job("task", queue_name="imports")

    pause = await client.pause_queue("imports", reason="vendor is down")

    assert sql.run(QUEUES) == [("imports", FAR_FUTURE, "paused:ada")]
    assert (pause.kind, pause.name, pause.by, pause.reason) == (
        *(PauseKind.QUEUE, "imports"),
        *("ada", "vendor is down"),
    )
    assert pause.since is not None
    assert pause.until is None
    assert await client.list_pauses() == [pause]


@ON_BOTH_INSTALLS
async def test_no_job_of_a_paused_queue_is_claimed_and_all_are_after_resume(client, pool, sql):
    for name in ("a", "b", "a"):
        await client.add_job("task", {"queue": name}, queue_name=name)
    await client.pause_queue("a")

    assert [each.job.payload for each in pool.claim(10)] == [{"queue": "b"}]
    assert await client.resume_queue("a")
    [claimed] = pool.claim(10)
    assert claimed.job.payload == {"queue": "a"}
    # One at a time, as before.
    assert pool.claim(10) == []


@ON_BOTH_INSTALLS
async def test_a_queue_that_does_not_exist_is_created_paused(client, pool):
    await client.pause_queue("new")
    await client.add_job("task", queue_name="new")

    assert pool.claim(1) == []
    assert await client.resume_queue("new")
    assert len(pool.claim(1)) == 1


async def test_a_locked_queue_is_not_paused(client, pool, sql):
    job = await client.add_job("task", queue_name="a")
    [claimed] = pool.claim(1)
    before = queue_lock(sql, "a")

    with pytest.raises(QueueBusy, match=f"queue 'a' is busy: worker '{claimed.pool_id}'") as busy:
        await client.pause_queue("a", wait=SOON)

    assert (busy.value.queue_name, busy.value.locked_by) == ("a", claimed.pool_id)
    assert queue_lock(sql, "a") == before
    assert await client.list_pauses() == []
    assert sql.run(AUDIT) == []
    assert job.queue_name == "a"


async def test_after_queue_busy_the_transaction_of_the_caller_keeps_the_queue_locked(
    kind, database, conn, pool
):
    async with open_client(kind, database) as client:
        await client.add_jobs([JobSpec("task", queue_name="a")] * 2)
        held = pool.claim_one()
        with pytest.raises(QueueBusy):
            await client.pause_queue("a", wait=timedelta(0), conn=unwrap(conn))
    pool.finish(held)

    assert pool.claim(1) == []
    await conn.rollback()
    assert len(pool.claim(1)) == 1


@ON_BOTH_INSTALLS
def test_a_pause_waits_for_the_running_job_and_no_worker_claims_the_next_one(
    pool, blocking_client, pool_database, sql
):
    for _ in range(3):
        blocking_client.add_job("task", queue_name="a")
    held = pool.claim_one()
    with start_pausing(pool_database, "a") as pausing:
        wait_until_held(sql, "a")
        # Neither the end of the job nor other workers wait for the pause.
        assert pool.finish(held) == {held.job.id}
        assert pool.claim(3) == []
        assert pausing.result(20).name == "a"

    assert queue_lock(sql, "a") == ("paused:ada", False)
    assert pool.claim(3) == []


def test_a_pause_waits_for_a_busy_queue_whose_next_job_a_worker_would_claim_at_once(
    pool, blocking_client, pool_database, sql
):
    for _ in range(500):
        blocking_client.add_job("task", queue_name="a")
    with start_pausing(pool_database, "a") as pausing:
        completed = 0
        while not pausing.done() and (held := pool.claim(1)):
            completed += len(pool.finish(*held))
        pausing.result(20)

    assert queue_lock(sql, "a") == ("paused:ada", False)
    assert completed < 500


async def test_a_second_pause_replaces_reason_and_end_of_the_first(client, sql):
    first = await client.pause_queue("a", reason="one", duration=timedelta(hours=1))
    second = await client.pause_queue("a", reason="two", actor="bob")

    assert await client.list_pauses() == [
        Pause(PauseKind.QUEUE, "a", "bob", "two", first.since, None)
    ]
    assert second.by == "bob"
    assert queue_lock(sql, "a") == ("paused:bob", False)


async def test_resume_unlocks_only_a_pause(client, pool, sql):
    await client.add_job("task", queue_name="a")
    pool.claim_one()
    before = queue_lock(sql, "a")

    assert not await client.resume_queue("a")
    assert not await client.resume_queue("no such queue")

    assert queue_lock(sql, "a") == before
    assert sql.run(AUDIT) == []


@ON_BOTH_INSTALLS
def test_resume_waits_for_a_job_that_ran_when_another_program_paused_the_queue(
    pool, blocking_client, sql
):
    blocking_client.add_job("task", queue_name="a")
    blocking_client.add_job("task", queue_name="a")
    held = pool.claim_one()
    sql.run(
        "update :schema._private_job_queues"
        " set locked_at = '9999-01-01', locked_by = 'paused:script'"
    )

    with pytest.raises(QueueBusy, match=f"worker '{pool.id}' is running job {held.job.id}"):
        blocking_client.resume_queue("a", wait=SOON)
    assert queue_lock(sql, "a") == ("paused:script", False)

    pool.finish(held)
    assert blocking_client.resume_queue("a")
    assert len(pool.claim(2)) == 1


def test_resume_does_not_wait_for_a_session_that_changes_the_queue(blocking_client, sql):
    blocking_client.pause_queue("a")
    with psycopg.connect(sql.dsn) as other:
        other.execute(sql.text("update :schema._private_job_queues set queue_name = queue_name"))

        with pytest.raises(QueueBusy, match="another session"):
            blocking_client.resume_queue("a", wait=SOON)

    assert blocking_client.resume_queue("a")
    assert not blocking_client.resume_queue("a")


async def test_a_queue_that_another_program_paused_is_listed_without_reason(client, sql):
    await client.pause_queue("a", reason="mine")
    sql.run("update :schema._private_job_queues set locked_by = 'paused:script'")

    assert await client.list_pauses() == [Pause(PauseKind.QUEUE, "a", "script")]


async def test_workers_in_every_language_are_woken_on_resume(client, sql, pool_database):
    await client.pause_queue("a")
    with listening(pool_database, "jobs:insert") as get_next:
        await client.resume_queue("a")

        assert json.loads(get_next())["count"] == 1


async def test_a_pause_is_part_of_the_transaction_of_the_caller(kind, database, conn, sql):
    async with open_client(kind, database) as client:
        await client.pause_queue("a", conn=unwrap(conn))
        await client.pause_task("task", conn=unwrap(conn))
        await conn.rollback()

        assert await client.list_pauses() == []
        assert sql.run(QUEUES) == []


@ON_BOTH_INSTALLS
def test_the_rules_for_stale_locks_and_dead_workers_leave_pauses_alone(pool, blocking_client, sql):
    blocking_client.pause_queue("a", actor="ada")
    blocking_client.pause_task("task")
    job = blocking_client.add_job("task", queue_name="a")

    pool.connection.run(unlock_stale_jobs())
    pool.connection.run(unlock_stale_jobs(datetime.now(UTC) + timedelta(days=365)))
    blocking_client.cleanup(list(CleanupTask))
    for unlock in (blocking_client.force_unlock_workers, blocking_client.recover_workers):
        with pytest.raises(JobSpecError, match="resume the queue instead"):
            unlock(["paused:ada"])
    blocking_client.migrate()

    assert queue_lock(sql, "a") == ("paused:ada", False)
    assert [each.name for each in blocking_client.list_pauses()] == ["a", "task"]
    blocking_client.complete_jobs([job.id])
    blocking_client.cleanup([CleanupTask.GC_JOB_QUEUES])
    assert queue_lock(sql, "a") == ("paused:ada", False)


# The end of a pause


def test_a_pause_of_a_queue_ends_when_a_worker_reads_that_it_is_over(pool, blocking_client, sql):
    for name in ("a", "b", "c"):
        blocking_client.add_job("task", queue_name=name)
        blocking_client.pause_queue(name, duration=timedelta(hours=1), actor="ada")
    assert pool.connection.run(resume_expired_queues()) == []
    for name in ("a", "b"):
        expire(sql, name)
    # Another person paused it since, past the library: that pause has no end.
    sql.run(
        "update :schema._private_job_queues set locked_by = 'paused:bob' where queue_name = 'b'"
    )

    ended = pool.connection.run(resume_expired_queues())

    assert sorted(ended) == [(PauseKind.QUEUE, "a"), (PauseKind.QUEUE, "b")]
    assert queue_lock(sql, "a") == (None, True)
    assert queue_lock(sql, "b") == ("paused:bob", False)
    assert queue_lock(sql, "c") == ("paused:ada", False)
    assert [each.name for each in blocking_client.list_pauses()] == ["b", "c"]


def test_a_pause_of_a_task_ends_at_its_time_in_the_database(pool, blocking_client, sql):
    pause = blocking_client.pause_task("a", duration=timedelta(hours=1))
    blocking_client.pause_task("b")
    assert pause.until - pause.since == timedelta(hours=1)
    names, seconds_left, has_expired = pool.connection.run(get_paused_tasks())
    assert (sorted(names), has_expired) == (["a", "b"], False)
    assert 3500 < seconds_left <= 3600

    expire(sql, "a")

    assert pool.connection.run(get_paused_tasks()) == (["b"], None, True)
    assert [each.name for each in blocking_client.list_pauses()] == ["b"]
    assert not blocking_client.resume_task("a")
    # A pause after that one is a new one.
    again = blocking_client.pause_task("a")
    assert again.since > pause.since


@pytest.mark.parametrize("duration", [timedelta(0), timedelta(seconds=-1), 5])
def test_the_duration_of_a_pause_is_above_0(blocking_client, duration):
    for pause in (blocking_client.pause_queue, blocking_client.pause_task):
        with pytest.raises(JobSpecError, match="duration"):
            pause("a", duration=duration)


@pytest.mark.parametrize("name", ["x" * 129, "\x00", None])
def test_a_name_that_no_queue_or_task_can_have_is_rejected(blocking_client, sql, name):
    for pause in (blocking_client.pause_queue, blocking_client.pause_task):
        with pytest.raises(JobSpecError):
            pause(name)
    assert sql.run(QUEUES) == []


# Tasks


async def test_a_task_is_paused_in_the_companion_schema(client, sql):
    await client.pause_task("send_email", reason="bounces", duration=timedelta(minutes=10))
    await client.pause_task("resize", actor="bob")

    assert sql.run(ROWS) == [
        ("task", "resize", "bob", None, True),
        ("task", "send_email", "ada", "bounces", False),
    ]
    assert await client.resume_task("send_email")
    assert not await client.resume_task("send_email")
    assert [each.name for each in await client.list_pauses()] == ["resize"]


def test_without_an_actor_the_role_pauses(blocking_client, sql):
    blocking_client.pause_task("task")
    blocking_client.pause_queue("queue")

    role = sql.value("select session_user::text")
    assert [each.by for each in blocking_client.list_pauses()] == [role, role]


# The audit


async def test_each_pause_and_resume_adds_an_entry_with_its_reason(client, sql):
    await client.pause_queue("a", reason="vendor is down", duration=timedelta(minutes=10))
    await client.pause_task("task", reason="bounces")
    await client.resume_queue("a", actor="bob")
    await client.resume_task("task")
    await client.resume_task("task")

    assert sql.run(AUDIT) == [
        ("ada", "pause", "queue:a", 1, "vendor is down (for 10m)"),
        ("ada", "pause", "task:task", 1, "bounces"),
        ("bob", "resume", "queue:a", 1, None),
        ("ada", "resume", "task:task", 1, None),
    ]


# Older companion schemas, and roles without privileges


@pytest.fixture
def old_companion(sql):
    sql.run("drop table :ext_schema.pauses")
    sql.run("delete from :ext_schema.migrations where id >= 7")


async def test_without_the_table_a_queue_can_be_paused_without_an_end(client, sql, old_companion):
    pause = await client.pause_queue("a", reason="vendor is down")

    assert await client.list_pauses() == [Pause(PauseKind.QUEUE, "a", "ada")]
    assert pause.reason == "vendor is down"
    assert [entry[4] for entry in sql.run(AUDIT)] == ["vendor is down"]
    with pytest.raises(SchemaError, match="cannot store pauses"):
        await client.pause_queue("a", duration=timedelta(hours=1))
    assert await client.resume_queue("a")


async def test_without_the_table_no_task_is_paused(client, old_companion):
    assert await client.list_pauses() == []
    for change in (client.pause_task, client.resume_task):
        with pytest.raises(SchemaError, match="graphile-worker migrate"):
            await change("task")


async def test_migrate_adds_the_table_to_an_older_companion(client, sql, old_companion):
    await client.migrate()

    await client.pause_task("task")
    assert sql.run(ROWS) == [("task", "task", "ada", None, True)]
