"""Find and manage jobs with the async and the blocking client."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from graphile_worker import Job, JobSpec, JobSpecError
from graphile_worker.errors import SchemaMissing
from tests.support.clients import open_client, record_statements, unwrap
from tests.support.rows import fail_job as fail
from tests.support.rows import lock_job
from tests.support.sql import Sql

# What the statements do: test_statements.py runs each of them on the oldest pair too.
pytestmark = pytest.mark.single_version

SOON = datetime(2035, 6, 7, 8, 9, 10, 123456, tzinfo=UTC)
LIVING = timedelta(hours=3, minutes=59)
STALE = timedelta(hours=4, minutes=1)


def lock(sql: Sql, job: Job, *, age: timedelta = LIVING, by: str = "pool") -> None:
    lock_job(sql, job, age=age, by=by)


async def add_zoo(client: Any, sql: Sql) -> dict[str, Job]:
    """A job in every state that matters here."""
    kinds = ("waiting", "failed", "permanently failed", "locked", "locked long ago")
    specs = [JobSpec("task", kind, queue_name=kind, job_key=kind, max_attempts=5) for kind in kinds]
    zoo: dict[str, Job] = dict(zip(kinds, await client.add_jobs(specs), strict=True))
    fail(sql, zoo["failed"], attempts=2)
    fail(sql, zoo["permanently failed"], attempts=5)
    lock(sql, zoo["locked"])
    lock(sql, zoo["locked long ago"], age=STALE)
    return {kind: await client.get_job(job.id) for kind, job in zoo.items()}


def ids(zoo: dict[str, Job]) -> list[int]:
    return [job.id for job in zoo.values()]


def payloads(jobs: list[Job]) -> set[str]:
    return {job.payload for job in jobs}


FREE = {"waiting", "failed", "permanently failed", "locked long ago"}


# Looking up


@pytest.mark.feature("F227")
async def test_a_job_is_found_by_id_and_by_key(client):
    job = await client.add_job("task", {"a": 1}, queue_name="queue", job_key="k", flags=["x"])

    assert await client.get_job(job.id) == job
    assert await client.get_job_by_key("k") == job


@pytest.mark.feature("F83")
async def test_a_missing_job_is_none(client):
    assert await client.get_job(12345) is None
    assert await client.get_job_by_key("unknown") is None
    assert await client.get_job_by_key("") is None
    assert await client.remove_job("unknown") is None


async def test_lookups_join_your_transaction(client, conn):
    job = await client.add_job("task", job_key="k", conn=unwrap(conn))

    assert await client.get_job(job.id, conn=unwrap(conn)) == job
    assert await client.get_job_by_key("k", conn=unwrap(conn)) == job
    assert await client.get_job(job.id) is None


# Removing


@pytest.mark.feature("F82")
@pytest.mark.parametrize("state", sorted(FREE))
async def test_remove_job_returns_and_deletes_a_waiting_job(client, sql, state):
    zoo = await add_zoo(client, sql)

    removed = await client.remove_job(state)

    assert removed == zoo[state]
    assert await client.get_job(removed.id) is None


@pytest.mark.feature("F84")
async def test_remove_job_lets_a_running_job_finish_and_never_retry(client, sql):
    running = (await add_zoo(client, sql))["locked"]

    removed = await client.remove_job("locked")

    assert (removed.id, removed.locked_by) == (running.id, "pool")
    assert removed.locked_at == running.locked_at
    assert (removed.key, removed.attempts) == (None, removed.max_attempts)
    assert await client.get_job(running.id) == removed
    assert await client.remove_job("locked") is None


@pytest.mark.feature("F82")
async def test_a_removed_job_may_be_added_again(client):
    removed = await client.add_job("task", job_key="k")
    await client.remove_job("k")

    job = await client.add_job("task", job_key="k")

    assert (job.id != removed.id, job.revision) == (True, 0)


@pytest.mark.feature("F39", "F82")
async def test_a_removal_that_rolls_back_has_no_effect(client, conn):
    job = await client.add_job("task", job_key="k")

    assert await client.remove_job("k", conn=unwrap(conn)) == job
    await conn.rollback()

    assert await client.get_job(job.id) == job


# Completing


@pytest.mark.feature("F228", "F232")
async def test_complete_jobs_deletes_and_returns_jobs_that_are_not_locked(client, sql):
    zoo = await add_zoo(client, sql)

    done = await client.complete_jobs([*ids(zoo), 99999])

    assert payloads(done) == FREE
    assert done == [zoo[job.payload] for job in done]
    assert sql.run("select key from :schema._private_jobs") == [("locked",)]


# Failing


@pytest.mark.feature("F229", "F232")
@pytest.mark.parametrize("reason", [None, "why", "", "ü\n'"])
async def test_permanently_fail_jobs_changes_jobs_that_are_not_locked(client, sql, reason):
    zoo = await add_zoo(client, sql)

    failed = await client.permanently_fail_jobs([*ids(zoo), 99999], reason)

    expected = "Manually marked as failed" if reason is None else reason
    assert payloads(failed) == FREE
    assert {(job.attempts, job.last_error) for job in failed} == {(5, expected)}
    assert [await client.get_job(job.id) for job in failed] == failed
    assert await client.get_job(zoo["locked"].id) == zoo["locked"]


async def test_a_reason_that_is_not_text_is_rejected(client, sql):
    with pytest.raises(JobSpecError, match="reason"):
        await client.permanently_fail_jobs([1], "a\x00b")


# Rescheduling


@pytest.mark.feature("F230", "F232")
@pytest.mark.parametrize(
    "given",
    [{"run_at": SOON}, {"priority": 0}, {"priority": -7}, {"attempts": 0}, {"attempts": 4}]
    + [{"max_attempts": 9}, {"run_at": SOON, "priority": 0, "attempts": 0, "max_attempts": 1}],
)
async def test_reschedule_jobs_changes_only_the_passed_values(client, sql, given):
    zoo = await add_zoo(client, sql)

    changed = await client.reschedule_jobs([*ids(zoo), 99999], **given)

    assert payloads(changed) == FREE
    for job in changed:
        assert {name: getattr(job, name) for name in given} == given
        assert _rest(job, given) == _rest(zoo[job.payload], given)
    assert await client.get_job(zoo["locked"].id) == zoo["locked"]


def _rest(job: Job, given: dict[str, Any]) -> dict[str, Any]:
    names = [
        *("run_at", "priority", "attempts", "max_attempts", "last_error"),
        *("revision", "key", "locked_at", "locked_by"),
    ]
    return {name: getattr(job, name) for name in names if name not in given}


@pytest.mark.feature("F230")
async def test_a_timedelta_reschedules_from_the_clock_of_the_database(client):
    job = await client.add_job("task", run_at=SOON)

    [changed] = await client.reschedule_jobs([job.id], run_at=timedelta(minutes=-5))

    assert changed.run_at == changed.updated_at - timedelta(minutes=5)


@pytest.mark.feature("F230")
async def test_zero_as_a_timedelta_means_now(client):
    job = await client.add_job("task", run_at=SOON)

    [changed] = await client.reschedule_jobs([job.id], run_at=timedelta(0))

    assert changed.run_at == changed.updated_at


@pytest.mark.feature("F231")
@pytest.mark.parametrize("given", [{"attempts": 0}, {"max_attempts": 6}])
@pytest.mark.parametrize("state", ["failed", "permanently failed"])
async def test_reschedule_jobs_retries_permanently_failed_jobs(client, sql, state, given):
    job = (await add_zoo(client, sql))[state]

    [revived] = await client.reschedule_jobs([job.id], run_at=timedelta(0), **given)

    assert revived.attempts < revived.max_attempts
    assert sql.value("select is_available from :schema._private_jobs where id = $1", job.id)
    assert revived.last_error == "boom"


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"priority": 32768}, "22003"),
        ({"attempts": -32769}, "22003"),
        ({"max_attempts": 0}, "GWBMA"),
        ({"max_attempts": True}, "22003"),
        ({"run_at": datetime(2030, 1, 1)}, "22007"),  # naive
        ({"run_at": 5}, "22007"),
    ],
)
async def test_values_that_cannot_be_stored_are_rejected_before_any_sql(
    client, monkeypatch, given, code
):
    statements = record_statements(monkeypatch)

    with pytest.raises(JobSpecError) as caught:
        await client.reschedule_jobs([1], **given)

    assert (caught.value.argument, caught.value.code) == (next(iter(given)), code)
    assert statements == []


# Unlocking


@pytest.mark.feature("F227")
@pytest.mark.parametrize("age", [timedelta(0), STALE])
async def test_force_unlock_workers_unlocks_jobs_and_queues_of_those_pools(client, sql, age):
    jobs = [await client.add_job("task", queue_name=pool) for pool in ("one", "two", "three")]
    for job in jobs:
        lock(sql, job, age=age, by=job.queue_name)

    await client.force_unlock_workers(["one", "two", "unknown"])

    query = "select queue_name from :schema._private_job_queues where locked_at is not null"
    assert sql.run(query) == [("three",)]
    one, two, three = [await client.get_job(job.id) for job in jobs]
    assert (one.locked_by, two.locked_at, three.locked_by) == (None, None, "three")
    assert {one.attempts, two.attempts, three.attempts} == {1}


@pytest.mark.feature("F218")
async def test_locks_can_be_cleared_by_hand_in_the_tables(client, sql):
    job = await client.add_job("task", queue_name="queue")
    lock(sql, job)
    held = await client.complete_jobs([job.id])

    for table in ("_private_jobs", "_private_job_queues"):
        sql.run(f"update :schema.{table} set locked_at = null, locked_by = null")

    assert held == []
    assert sql.run("select is_available from :schema._private_jobs") == [(True,)]
    assert sql.run("select is_available from :schema._private_job_queues") == [(True,)]
    assert [done.id for done in await client.complete_jobs([job.id])] == [job.id]


# All of them


BY_IDS = ["complete_jobs", "permanently_fail_jobs", "reschedule_jobs"]


@pytest.mark.parametrize("call", BY_IDS)
async def test_no_ids_change_no_jobs(client, sql, call):
    await add_zoo(client, sql)

    assert await getattr(client, call)([]) == []
    assert sql.value("select count(*) from :schema._private_jobs") == 5


@pytest.mark.parametrize("call", BY_IDS)
@pytest.mark.parametrize("form", [list, tuple, set, iter])
async def test_ids_may_be_any_iterable(client, call, form):
    jobs = await client.add_jobs([JobSpec("task"), JobSpec("task")])

    touched = await getattr(client, call)(form([job.id for job in jobs]))

    assert [job.id for job in touched] == [job.id for job in jobs]


@pytest.mark.feature("F39", "F227")
@pytest.mark.parametrize("call", BY_IDS)
async def test_changes_in_a_transaction_that_rolls_back_have_no_effect(client, conn, call):
    job = await client.add_job("task")

    touched = await getattr(client, call)([job.id], conn=unwrap(conn))
    await conn.rollback()

    assert [each.id for each in touched] == [job.id]
    assert await client.get_job(job.id) == job


@pytest.mark.parametrize(
    ("call", "argument"),
    [("get_job", 1), ("get_job_by_key", "k"), ("remove_job", "k"), ("complete_jobs", [1])]
    + [("permanently_fail_jobs", [1]), ("reschedule_jobs", [1]), ("force_unlock_workers", ["p"])],
)
async def test_a_missing_schema_is_reported(kind, empty_database, call, argument):
    async with open_client(kind, empty_database) as client:
        with pytest.raises(SchemaMissing):
            await getattr(client, call)(argument)
