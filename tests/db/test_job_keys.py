"""What a key means when jobs are added, through the async and the blocking client alike."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from graphile_worker import Job, JobKeyMode, JobSpec
from graphile_worker.events import JobStarted, JobSucceeded
from tests.support.clients import open_client, record_statements, unwrap
from tests.support.fetch_locks import commit_when_blocking, open_fetch, wait_for_lock
from tests.support.rows import count_jobs
from tests.support.sql import Sql

MODES = tuple(JobKeyMode)
OVERWRITING = MODES[:2]
OLD_TIME = datetime(2035, 1, 1, tzinfo=UTC)
NEW_TIME = datetime(2045, 1, 1, tzinfo=UTC)
SOON = timedelta(milliseconds=20)


async def add_old(client: Any) -> Job:
    job: Job = await client.add_job(
        "old",
        {"old": 1},
        queue_name="old",
        run_at=OLD_TIME,
        max_attempts=5,
        priority=3,
        flags=["old"],
        job_key="k",
    )
    return job


def add_new(client: Any, mode: str | None = None, **more: Any) -> Any:
    return client.add_job(
        "new", {"new": 1}, run_at=NEW_TIME, job_key="k", job_key_mode=mode, **more
    )


def change(sql: Sql, assignments: str) -> None:
    """Make of the job what a worker would have made of it, a day ago."""
    moment = "updated_at = now() - interval '1 day'"
    sql.run(f"update :schema._private_jobs set {assignments}, {moment}")


# The table of keys: what there is, and what an add makes of it.

STATES = {
    "waiting": "attempts = 0",
    "failed": "attempts = 2, last_error = 'boom'",
    "permanently failed": "attempts = 5, last_error = 'boom'",
    "locked": "attempts = 1, locked_at = now(), locked_by = 'pool'",
    "locked long ago": "attempts = 1, locked_at = now() - interval '5 hours', locked_by = 'pool'",
}


def overwritten(old: Job, job: Job, left: Job) -> None:
    assert (job.id, job.created_at, job.revision) == (old.id, old.created_at, 1)
    assert_new(job)
    assert job.run_at == NEW_TIME


def overwritten_but_run_at(old: Job, job: Job, left: Job) -> None:
    assert (job.id, job.created_at, job.revision) == (old.id, old.created_at, 1)
    assert_new(job)
    assert job.run_at == OLD_TIME


def succeeded(old: Job, job: Job, left: Job) -> None:
    assert (job.id != old.id, job.revision, job.run_at) == (True, 0, NEW_TIME)
    assert_new(job)
    assert (left.key, left.attempts, left.payload) == (None, left.max_attempts, {"old": 1})
    assert (left.locked_by, left.last_error) == (old.locked_by, old.last_error)


def revised(old: Job, job: Job, left: Job) -> None:
    assert job == left
    assert job.revision == old.revision + 1
    assert job.updated_at > old.updated_at
    assert _but_revision(job) == _but_revision(old)


def assert_new(job: Job) -> None:
    assert (job.task_identifier, job.queue_name, job.payload) == ("new", None, {"new": 1})
    assert (job.max_attempts, job.priority, job.flags) == (25, 0, frozenset())
    assert (job.key, job.attempts, job.last_error) == ("k", 0, None)
    assert (job.locked_at, job.locked_by) == (None, None)


def _but_revision(job: Job) -> list[object]:
    changing = {"revision", "_updated_at", "_payload", "_result_source", "_shard", "_is_duplicate"}
    return [getattr(job, name) for name in Job.__slots__ if name not in changing]


Outcome = Callable[[Job, Job, Job], None]
TABLE: dict[str, tuple[Outcome, Outcome, Outcome]] = {
    "waiting": (overwritten, overwritten_but_run_at, revised),
    "failed": (overwritten, overwritten, revised),
    "permanently failed": (succeeded, succeeded, revised),
    "locked": (succeeded, succeeded, revised),
    "locked long ago": (succeeded, succeeded, revised),
}
CELLS = [
    pytest.param(state, mode, outcome, id=f"{state}-{mode}-{outcome.__name__}")
    for state, outcomes in TABLE.items()
    for mode, outcome in zip(MODES, outcomes, strict=True)
]


@pytest.mark.feature("F67", "F68", "F69", "F70", "F72", "F73", "F75", "F76", "F77")
@pytest.mark.parametrize(("state", "mode", "outcome"), CELLS)
async def test_what_a_keyed_add_makes_of_what_there_is(client, sql, state, mode, outcome):
    added = await add_old(client)
    change(sql, STATES[state])
    old = await client.get_job(added.id)

    job = await add_new(client, mode)

    outcome(old, job, await client.get_job(old.id))
    assert await client.get_job_by_key("k") == job


BATCH_CELLS = [cell for cell in CELLS if cell.values[1] != JobKeyMode.UNSAFE_DEDUPE]


@pytest.mark.feature("F60", "F67", "F69", "F75", "F77")
@pytest.mark.parametrize(("state", "mode", "outcome"), BATCH_CELLS)
async def test_what_a_batch_makes_of_what_there_is(client, sql, state, mode, outcome):
    added = await add_old(client)
    change(sql, STATES[state])
    old = await client.get_job(added.id)
    spec = JobSpec("new", {"new": 1}, run_at=NEW_TIME, job_key="k", job_key_mode=mode)

    [job] = await client.add_jobs([spec])

    outcome(old, job, await client.get_job(old.id))


@pytest.mark.feature("F36", "F64", "F65")
@pytest.mark.parametrize("mode", [*MODES, *map(str, MODES), None])
async def test_an_unused_key_adds_a_job(client, mode):
    job = await add_new(client, mode)

    assert_new(job)
    assert (job.revision, job.run_at) == (0, NEW_TIME)


@pytest.mark.feature("F36")
@pytest.mark.parametrize("mode", MODES)
async def test_a_mode_and_its_name_are_the_same(client, mode):
    runs = []
    for spelling in (mode, str(mode)):
        await client.add_job("task", job_key=f"{spelling!r}", run_at=OLD_TIME)
        job = await client.add_job(
            "task", job_key=f"{spelling!r}", run_at=NEW_TIME, job_key_mode=spelling
        )
        runs.append((job.run_at, job.revision))

    assert runs[0] == runs[1]


@pytest.mark.feature("F36", "F67")
async def test_replace_is_the_default(client):
    await add_old(client)

    job = await add_new(client)

    assert (job.run_at, job.revision) == (NEW_TIME, 1)


@pytest.mark.feature("F67", "F235")
async def test_a_keyed_add_changes_every_option(client):
    await client.add_job("old", job_key="k", flags=["old"])

    job = await client.add_job(
        "new", queue_name="queue", max_attempts=3, priority=9, flags=["x", "y"], job_key="k"
    )

    assert (job.task_identifier, job.queue_name) == ("new", "queue")
    assert (job.max_attempts, job.priority, job.flags) == (3, 9, frozenset("xy"))


@pytest.mark.feature("F66")
async def test_two_keyed_adds_in_one_transaction_leave_the_second(client, conn, sql):
    first = await client.add_job("task", {"n": 1}, job_key="k", conn=unwrap(conn))
    second = await client.add_job("task", {"n": 2}, job_key="k", conn=unwrap(conn))
    await conn.commit()

    assert (second.id, second.revision) == (first.id, 1)
    assert sql.run("select payload from :schema._private_jobs") == [({"n": 2},)]


@pytest.mark.parametrize("key", ["k" * 512, "ü" * 512, " ", "%s", "$1", "'; --", "a\nb"])
async def test_any_text_of_up_to_512_characters_is_a_key(client, key):
    job = await client.add_job("task", job_key=key)

    again = await client.add_job("task", job_key=key)

    assert (again.id, again.key) == (job.id, key)


@pytest.mark.feature("F85")
@pytest.mark.parametrize("mode", OVERWRITING)
async def test_a_key_is_one_name_space_over_all_tasks(client, sql, mode):
    invoice = await client.add_job("send_invoice", job_key="9")

    reminder = await client.add_job("send_reminder", job_key="9", job_key_mode=mode)

    assert (reminder.id, reminder.task_identifier) == (invoice.id, "send_reminder")
    assert count_jobs(sql) == 1


# Arrays


@pytest.mark.feature("F78", "F79", "F80")
@pytest.mark.parametrize(
    ("old", "new", "mode", "joined"),
    [
        ([1], [2, 3], "replace", [1, 2, 3]),
        ([1], [2, 3], "preserve_run_at", [1, 2, 3]),
        ([1], [2, 3], "unsafe_dedupe", [1]),
        ([], [1], "replace", [1]),
        ([{"a": 1}], [{"a": 1}], "replace", [{"a": 1}, {"a": 1}]),
        ([1], {"a": 1}, "replace", {"a": 1}),
        ([1], None, "replace", {}),
        ([1], None, "preserve_run_at", {}),
        ({"a": 1}, [1], "replace", [1]),
        (None, [1], "replace", [1]),
        ({"a": 1}, {"b": 1}, "replace", {"b": 1}),
    ],
)
async def test_only_two_arrays_are_joined_old_one_first(client, old, new, mode, joined):
    await client.add_job("task", old, job_key="k")

    job = await client.add_job("task", new, job_key="k", job_key_mode=mode)

    assert job.payload == joined
    assert await client.get_job(job.id) == job


@pytest.mark.feature("F78")
async def test_a_batch_joins_arrays_too(client):
    await client.add_jobs([JobSpec("task", [key], job_key=key) for key in "ab"])

    jobs = await client.add_jobs([JobSpec("task", [2], job_key=key) for key in ("b", "a")])

    assert [job.payload for job in jobs] == [["b", 2], ["a", 2]]


@pytest.mark.feature("F75", "F79")
@pytest.mark.parametrize("state", ["locked", "permanently failed"])
async def test_arrays_are_not_joined_with_a_job_that_lost_its_key(client, sql, state):
    await client.add_job("task", [1], job_key="k", max_attempts=5)
    change(sql, STATES[state])

    job = await client.add_job("task", [2], job_key="k")

    assert job.payload == [2]


# Names


@pytest.mark.feature("F72")
async def test_unsafe_dedupe_returns_the_found_job_under_its_own_names(client):
    old = await add_old(client)

    job = await add_new(client, "unsafe_dedupe", queue_name="new")

    assert (job.id, job.task_identifier, job.queue_name) == (old.id, "old", "old")


@pytest.mark.feature("F67")
async def test_a_replaced_job_has_the_names_of_the_call(client):
    await add_old(client)

    known = await client.add_job("old", queue_name="other", job_key="k")
    new = await client.add_job("brand new", queue_name="brand new", job_key="k")

    assert (known.task_identifier, known.queue_name) == ("old", "other")
    assert (new.task_identifier, new.queue_name) == ("brand new", "brand new")


# Another session is about to lock the job: the server answers with nothing, the client asks again.


@pytest.mark.feature("F37", "F86")
@pytest.mark.parametrize("mode", OVERWRITING)
@pytest.mark.parametrize("borrowed", [False, True], ids=["own", "borrowed"])
async def test_an_add_that_meets_an_uncommitted_lock_gets_its_job(
    client, conn, sql, monkeypatch, mode, borrowed
):
    old = await add_old(client)
    statements = record_statements(monkeypatch)

    fetcher = open_fetch(sql, old.id)
    adding = asyncio.create_task(add_new(client, mode, conn=unwrap(conn) if borrowed else None))
    await commit_when_blocking(fetcher, sql)
    job = await adding
    await conn.commit()

    assert statements == ["add_job", "add_job"]
    left = await client.get_job(old.id)
    assert left.locked_by == "pool"
    succeeded(left, job, left)
    assert count_jobs(sql) == 2


@pytest.mark.feature("F72", "F73")
async def test_unsafe_dedupe_waits_for_an_uncommitted_lock_and_revises(client, sql):
    old = await add_old(client)

    fetcher = open_fetch(sql, old.id)
    adding = asyncio.create_task(add_new(client, "unsafe_dedupe"))
    await commit_when_blocking(fetcher, sql)
    job = await adding

    assert (job.id, job.revision, job.locked_by) == (old.id, 1, "pool")
    assert count_jobs(sql) == 1


@pytest.mark.feature("F86")
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_in_a_stricter_transaction_the_clash_is_the_callers(client, conn, sql, level):
    old = await add_old(client)
    await conn.execute(f"begin isolation level {level}")

    fetcher = open_fetch(sql, old.id)
    adding = asyncio.create_task(add_new(client, conn=unwrap(conn)))
    await commit_when_blocking(fetcher, sql)
    with pytest.raises(psycopg.errors.SerializationFailure):
        await adding

    await conn.rollback()
    assert count_jobs(sql) == 1


@pytest.mark.feature("F86")
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_where_the_database_is_stricter_the_client_asks_again(kind, database, sql, level):
    sql.run(f"alter database {database.name} set default_transaction_isolation = '{level}'")

    async with open_client(kind, database) as client:
        old = await add_old(client)
        fetcher = open_fetch(sql, old.id)
        adding = asyncio.create_task(add_new(client))
        await commit_when_blocking(fetcher, sql)
        job = await adding

    assert_new(job)
    assert count_jobs(sql) == 2


@pytest.mark.feature("F86")
async def test_a_fetch_that_rolls_back_leaves_the_job_to_the_add(client, sql):
    old = await add_old(client)

    fetcher = open_fetch(sql, old.id)
    adding = asyncio.create_task(add_new(client))
    await commit_when_blocking(fetcher, sql, how="rollback")
    job = await adding

    assert (job.id, job.revision) == (old.id, 1)
    assert_new(job)


@pytest.mark.feature("F65", "F86")
async def test_two_sessions_that_add_a_new_key_at_once_make_one_job(client, conn, sql):
    first = await client.add_job("task", {"n": 1}, job_key="k", conn=unwrap(conn))

    second = asyncio.create_task(client.add_job("task", {"n": 2}, job_key="k"))
    await wait_for_lock(sql)
    await conn.commit()
    job = await second

    assert (job.id, job.revision, job.payload) == (first.id, 1, {"n": 2})
    assert count_jobs(sql) == 1


@pytest.mark.feature("F67", "F69", "F71")
async def test_replace_debounces_and_preserve_run_at_throttles(client):
    delay = timedelta(minutes=5)
    for mode in OVERWRITING:
        await client.add_job("task", job_key=mode, run_at=OLD_TIME)

    debounced = await client.add_job("task", job_key="replace", run_at=OLD_TIME + delay)
    throttled = await client.add_job(
        "task", job_key="preserve_run_at", job_key_mode="preserve_run_at", run_at=OLD_TIME + delay
    )

    assert (debounced.run_at, throttled.run_at) == (OLD_TIME + delay, OLD_TIME)


# What comes of it on a worker.


def make_due(sql: Sql) -> None:
    sql.run("update :schema._private_jobs set run_at = now()")


@pytest.mark.feature("F71")
async def test_what_is_debounced_runs_once_when_it_is_quiet(client, sql, start, recorder):
    ran: list[Any] = []
    await start({"save": ran.append}, poll_interval=SOON)
    jobs = [
        await client.add_job("save", n, job_key="save:7", run_at=timedelta(minutes=n))
        for n in (1, 2, 3)
    ]

    make_due(sql)
    await recorder.wait_for(JobSucceeded)

    assert {job.id for job in jobs} == {jobs[0].id}
    assert jobs[0].run_at < jobs[1].run_at < jobs[2].run_at
    assert ran == [3]


@pytest.mark.feature("F71")
async def test_what_is_throttled_runs_once_in_each_period(client, sql, start, recorder):
    ran: list[Any] = []
    await start({"count": ran.append}, poll_interval=SOON)
    period = timedelta(minutes=1)
    options = {"job_key": "count:7", "job_key_mode": "preserve_run_at", "run_at": period}

    for number in (1, 2):
        first = await client.add_job("count", [number], **options)
        second = await client.add_job("count", {"newest": number}, **options)
        assert (second.id, second.run_at) == (first.id, first.run_at)
        make_due(sql)
        await recorder.wait_for(JobSucceeded, count=number)

    assert ran == [{"newest": 1}, {"newest": 2}]


@pytest.mark.feature("F74")
async def test_with_unsafe_dedupe_what_is_added_while_a_job_runs_never_runs(
    client, sql, start, recorder
):
    ran: list[Any] = []
    added = asyncio.Event()

    async def export(payload: Any) -> None:
        ran.append(payload)
        await added.wait()

    await start({"export": export}, poll_interval=SOON)
    await client.add_job("export", "Monday", job_key="k")
    await recorder.wait_for(JobStarted)
    await client.add_job("export", "Tuesday", job_key="k", job_key_mode="unsafe_dedupe")
    added.set()
    await recorder.wait_for(JobSucceeded)

    assert count_jobs(sql) == 0
    assert ran == ["Monday"]


@pytest.mark.feature("F74")
async def test_unsafe_dedupe_adds_nothing_beside_a_permanently_failed_job(client, sql):
    failed = await client.add_job("export", "Monday", job_key="k")
    await client.permanently_fail_jobs([failed.id], "no space")

    job = await client.add_job("export", "Tuesday", job_key="k", job_key_mode="unsafe_dedupe")

    assert (job.id, job.attempts, job.payload) == (failed.id, job.max_attempts, "Monday")
    assert count_jobs(sql) == 1


@pytest.mark.feature("F244")
@pytest.mark.parametrize("name", ["größe/ñ", "送信", "🚀", "a b\nc"])
async def test_names_of_other_letters_than_ascii_work(client, start, recorder, name):
    ran: list[Any] = []
    await start({name: ran.append}, poll_interval=SOON)

    job = await client.add_job(name, 7, queue_name=name, job_key=name)
    await recorder.wait_for(JobSucceeded, job_id=job.id)

    assert (job.task_identifier, job.queue_name, job.key) == (name, name, name)
    assert ran == [7]
