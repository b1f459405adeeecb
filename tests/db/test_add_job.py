"""Add one job with the async and the blocking client."""

import asyncio
import json
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import Any

import psycopg
import pytest

import graphile_worker.client
from graphile_worker import JobKeyMode, JobSpecError, sync
from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._db.sync import SyncPsycopgDatabase
from graphile_worker._sql.identifiers import Schemas
from graphile_worker.errors import SchemaMissing
from tests.support.clients import AsyncWrapper, open_client, unwrap
from tests.support.fakes import (
    ALWAYS,
    FIXED_TIME,
    MEANINGS,
    StoppedClock,
    count_calls,
    fail_add_jobs,
)

# Stored values


@pytest.mark.feature("F1", "F28", "F37", "F44", "F47", "F55")
async def test_a_job_with_only_a_name_has_the_defaults(client):
    job = await client.add_job("some/task:name")

    assert (job.task_identifier, job.payload, job.queue_name) == ("some/task:name", {}, None)
    assert (job.priority, job.attempts, job.max_attempts, job.revision) == (0, 0, 25, 0)
    assert (job.key, job.flags, job.last_error) == (None, frozenset(), None)
    assert (job.locked_at, job.locked_by) == (None, None)
    assert job.run_at == job.created_at == job.updated_at


@pytest.mark.feature("F30", "F31", "F32", "F33", "F34", "F35", "F36", "F47")
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("queue_name", "queue"),
        ("queue_name", ""),
        ("run_at", FIXED_TIME),
        ("max_attempts", 1),
        ("max_attempts", 32767),
        ("priority", -32768),
        ("priority", 0),
        ("priority", 32767),
        ("flags", frozenset({"a", "b c", "ü"})),
    ],
)
async def test_an_option_is_stored_and_read_back(client, option, value):
    job = await client.add_job("task", **{option: value})

    assert getattr(job, option) == value
    assert await client.get_job(job.id) == job


@pytest.mark.feature("F27", "F46", "F47")
async def test_all_options_together_reach_the_row(client, sql):
    job = await client.add_job(
        "task",
        {"a": 1},
        queue_name="queue",
        run_at=FIXED_TIME,
        max_attempts=3,
        priority=-5,
        job_key="key",
        job_key_mode="preserve_run_at",
        flags=["x"],
    )

    assert sql.run(
        "select id, queue_name, task_identifier, priority, run_at, attempts, max_attempts, "
        "last_error, created_at, updated_at, key, locked_at, locked_by, revision, flags "
        "from :schema.jobs"
    ) == [_view_row(job)]
    assert sql.run("select payload from :schema._private_jobs") == [({"a": 1},)]


def _view_row(job) -> tuple[Any, ...]:
    names = [
        *("id", "queue_name", "task_identifier", "priority", "run_at", "attempts", "max_attempts"),
        *("last_error", "created_at", "updated_at", "key", "locked_at", "locked_by", "revision"),
    ]
    return (*(getattr(job, name) for name in names), dict.fromkeys(job.flags, True))


@pytest.mark.feature("F47")
async def test_a_job_has_its_lock_and_its_last_error(client, sql):
    job = await client.add_job("task")
    sql.run(
        "update :schema._private_jobs set locked_at = $1, locked_by = 'pool', attempts = 2, "
        "last_error = 'boom'",
        FIXED_TIME,
    )

    found = await client.get_job(job.id)

    assert (found.locked_at, found.locked_by) == (FIXED_TIME, "pool")
    assert (found.attempts, found.last_error) == (2, "boom")


@pytest.mark.feature("F35")
@pytest.mark.parametrize(
    "flags", [["a", "b", "a"], ("b", "a"), {"a", "b"}, {"a": 1, "b": 2}.keys()]
)
async def test_flags_are_any_collection_and_come_back_as_a_set(client, flags):
    assert (await client.add_job("task", flags=flags)).flags == frozenset({"a", "b"})


@pytest.mark.parametrize("flags", [None, [], set()])
async def test_no_flags_are_null(client, sql, flags):
    await client.add_job("task", flags=flags)

    assert sql.value("select flags from :schema._private_jobs") is None


@pytest.mark.feature("F36")
@pytest.mark.parametrize("mode", [*JobKeyMode, *map(str, JobKeyMode), None])
async def test_a_mode_without_a_key_has_no_effect(client, mode):
    first = await client.add_job("task", job_key_mode=mode)
    second = await client.add_job("task", job_key_mode=mode)

    assert first.id != second.id
    assert (first.key, second.revision) == (None, 0)


# Payloads


@pytest.mark.feature("F14", "F29")
@pytest.mark.parametrize(
    "payload",
    [{}, [], "", "text", 0, 1.5, True, False, [None], {"a": {"b": [1, "ü€😀", None]}}, 2**70]
    + ["'; drop table jobs; --", "\\u0000", {"": ""}, "%s $1 :x"],
)
async def test_any_json_value_is_stored_unchanged(client, sql, payload):
    job = await client.add_job("task", payload)

    assert job.payload == payload
    assert type(job.payload) is type(payload)
    stored = sql.value("select payload::text from :schema._private_jobs")
    assert stored == job.payload_text
    assert json.loads(stored) == payload


@pytest.mark.feature("F29")
async def test_no_payload_is_an_empty_object(client, sql):
    job = await client.add_job("task", None)

    assert job.payload_text == "{}"
    assert sql.value("select payload::text from :schema._private_jobs") == "{}"


@pytest.mark.feature("F14")
async def test_key_order_and_the_spelling_of_numbers_survive(client):
    job = await client.add_job("task", {"b": 1.0, "a": 1, "c": [True, 10**25]})

    assert job.payload_text == '{"b":1.0,"a":1,"c":[true,10000000000000000000000000]}'


async def test_a_payload_may_have_at_most_max_payload_bytes(kind, database, statements):
    async with open_client(kind, database, max_payload_bytes=10) as client:
        job = await client.add_job("task", "ü" * 4)
        del statements[:]
        with pytest.raises(JobSpecError, match="max_payload_bytes") as caught:
            await client.add_job("task", "ü" * 4 + "x")

    assert job.payload == "üüüü"
    assert (caught.value.argument, caught.value.code) == ("payload", "54000")
    assert statements == []


# Times


@pytest.mark.feature("F31", "F38")
@pytest.mark.parametrize(
    "delay",
    [timedelta(0), timedelta(seconds=90), timedelta(days=-3), timedelta(microseconds=1)]
    + [timedelta(days=36500, microseconds=1)],
)
async def test_a_timedelta_counts_from_the_clock_of_the_database(client, delay):
    job = await client.add_job("task", run_at=delay)

    assert job.run_at - job.created_at == delay


@pytest.mark.feature("F31")
@pytest.mark.parametrize(
    "moment",
    [
        datetime(2030, 1, 1, 12, 0, tzinfo=timezone(timedelta(hours=5, minutes=30))),
        datetime(1, 1, 2, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
    ],
)
async def test_a_datetime_of_any_zone_is_the_same_time(client, sql, moment):
    job = await client.add_job("task", run_at=moment)

    assert job.run_at == moment
    stored = sql.value("select (run_at at time zone 'UTC')::text from :schema._private_jobs")
    assert stored == moment.astimezone(UTC).replace(tzinfo=None).isoformat(" ")


@pytest.mark.parametrize("delay", [timedelta.max, timedelta.min, timedelta(days=-(10**7))])
async def test_a_delay_beyond_the_calendar_of_postgresql_is_rejected_by_name(client, sql, delay):
    with pytest.raises(JobSpecError) as caught:
        await client.add_job("task", run_at=delay)

    assert caught.value.argument == "run_at"
    assert sql.value("select count(*) from :schema._private_jobs") == 0


@pytest.mark.feature("F62")
async def test_with_local_time_an_omitted_run_at_is_the_time_of_the_program(kind, database):
    async with open_client(kind, database, use_local_time=True, clock=StoppedClock()) as client:
        left_out = await client.add_job("task")
        given = await client.add_job("task", run_at=timedelta(seconds=5))

    assert left_out.run_at == FIXED_TIME
    assert given.run_at == given.created_at + timedelta(seconds=5)


@pytest.mark.feature("F62")
async def test_local_time_is_off_by_default(kind, database):
    async with open_client(kind, database, clock=StoppedClock()) as client:
        job = await client.add_job("task")

    assert job.run_at == job.created_at


# The caller's transaction


@pytest.mark.feature("F39")
async def test_a_job_added_in_a_transaction_exists_after_the_commit(client, conn, sql):
    job = await client.add_job("task", conn=unwrap(conn))
    before = sql.value("select count(*) from :schema._private_jobs")
    await conn.commit()

    assert before == 0
    assert sql.run("select id from :schema._private_jobs") == [(job.id,)]


@pytest.mark.feature("F39")
async def test_a_job_added_in_a_transaction_disappears_at_rollback(client, conn, sql):
    await client.add_job("task", conn=unwrap(conn))
    await conn.rollback()

    assert sql.value("select count(*) from :schema._private_jobs") == 0


@pytest.mark.feature("F46")
async def test_adding_is_one_statement_that_calls_the_function(client, statements, sql):
    await client.add_job("new name", queue_name="new queue")

    assert statements == ["add_job"]


@pytest.mark.feature("F48", "F51")
async def test_utils_are_a_client_on_a_schema_that_is_installed_first(kind, empty_database):
    utils = await function_of(kind, "make_worker_utils")(
        empty_database.dsn, schema=empty_database.schema
    )

    client = utils if kind == "async" else AsyncWrapper(utils)
    job = await client.add_job("task")
    await client.release()

    assert job.task_identifier == "task"


@pytest.mark.feature("F52")
@pytest.mark.parametrize("name", ["add_job_adhoc", "quick_add_job"])
async def test_an_ad_hoc_job_needs_only_a_database(kind, empty_database, name):
    job = await function_of(kind, name)(
        empty_database.dsn, "task", {"a": 1}, priority=3, schema=empty_database.schema
    )

    async with open_client(kind, empty_database) as client:
        assert await client.get_job(job.id) == job
    assert (job.payload, job.priority) == ({"a": 1}, 3)


def function_of(kind: str, name: str) -> Any:
    """Return the function of this name for the kind of client, as an awaitable one."""
    if kind == "async":
        return getattr(graphile_worker.client, name)
    return partial(asyncio.to_thread, getattr(sync, name))


NOTE_SESSIONS = """
create table sessions (pid int);
create function note_session() returns trigger language plpgsql as $$
begin
  insert into sessions values (pg_backend_pid());
  return new;
end
$$;
create trigger note_session before insert on :schema._private_jobs
for each row execute function note_session();
"""


@pytest.mark.feature("F53")
async def test_an_ad_hoc_job_opens_a_connection_and_jobs_of_a_client_do_not(kind, database, sql):
    sql.run(NOTE_SESSIONS)
    quick_add_job = function_of(kind, "quick_add_job")

    for _ in range(3):
        await quick_add_job(database.dsn, "ad hoc", schema=database.schema)
    async with open_client(kind, database) as client:
        for _ in range(10):
            await client.add_job("shared")

    pids = [pid for (pid,) in sql.run("select pid from sessions")]
    assert len(set(pids[:3])) == 3
    assert len(set(pids[3:])) < 10


@pytest.mark.feature("F50")
async def test_one_client_serves_many_concurrent_callers(client):
    jobs = await asyncio.gather(*(client.add_job("task", number) for number in range(50)))

    assert [job.payload for job in jobs] == list(range(50))
    assert len({job.id for job in jobs}) == 50


# Errors


@pytest.mark.parametrize("borrowed", [False, True], ids=["own", "borrowed"])
async def test_an_error_of_the_database_function_names_its_argument(
    client, conn, sql, borrowed, subtests
):
    for state, constraint, argument, code in MEANINGS:
        with subtests.test(f"{state} {constraint}"):
            await conn.rollback()
            fail_add_jobs(sql, state, constraint=constraint)

            with pytest.raises(JobSpecError) as caught:
                await client.add_job("task", conn=unwrap(conn) if borrowed else None)

            assert (caught.value.argument, caught.value.code) == (argument, code)
            assert isinstance(caught.value.__cause__, psycopg.Error)
            assert count_calls(sql) == 1


async def test_any_other_error_passes_through(client, sql, subtests):
    for state in ("23514", "P0001", "23505", "42501", "57014", "XX000"):
        with subtests.test(state):
            fail_add_jobs(
                sql, state, constraint="a_constraint_of_yours" if state == "23514" else ""
            )

            with pytest.raises(psycopg.Error) as caught:
                await client.add_job("task")

            assert caught.value.sqlstate == state
            assert count_calls(sql) == 1


async def test_an_array_with_nul_that_prevents_a_merge_is_a_job_spec_error(client, sql):
    sql.run("select :schema.add_job('task', '[\"\\u0000\"]', job_key => 'k')")

    with pytest.raises(JobSpecError) as caught:
        await client.add_job("task", [1], job_key="k")

    assert (caught.value.argument, caught.value.code) == ("payload", "22P05")


@pytest.mark.parametrize("state", ["40001", "40P01", "GWNOR"])
async def test_a_serialization_failure_is_retried_on_the_clients_connection(client, sql, state):
    fail_add_jobs(sql, state, times=2)

    job = await client.add_job("task", {"kept": True})

    assert job.payload == {"kept": True}
    assert count_calls(sql) == 3
    assert sql.value("select count(*) from :schema._private_jobs") == 1


@pytest.mark.parametrize("state", ["40001", "40P01"])
async def test_a_serialization_failure_on_your_connection_is_raised(client, conn, sql, state):
    fail_add_jobs(sql, state)

    with pytest.raises(psycopg.Error) as caught:
        await client.add_job("task", conn=unwrap(conn))

    assert caught.value.sqlstate == state
    assert count_calls(sql) == 1


@pytest.mark.feature("F86")
async def test_a_lost_key_on_your_connection_is_a_job_spec_error(client, conn, sql):
    fail_add_jobs(sql, "GWNOR")

    with pytest.raises(JobSpecError) as caught:
        await client.add_job("task", job_key="k", conn=unwrap(conn))

    assert (caught.value.argument, caught.value.value) == ("job_key", "k")
    assert caught.value.code == "GWNOR"
    assert count_calls(sql) == 1


@pytest.mark.parametrize(
    ("state", "error"),
    [("40001", psycopg.Error), ("40P01", psycopg.Error), ("GWNOR", JobSpecError)],
)
async def test_retries_of_a_serialization_failure_end(kind, database, sql, state, error):
    fail_add_jobs(sql, state, times=ALWAYS)
    open_database = PsycopgDatabase if kind == "async" else SyncPsycopgDatabase
    schemas = Schemas.from_names(database.schema)
    connections = open_database(database.dsn, schemas, max_attempts=3)

    async with open_client(kind, database, connections) as client:
        with pytest.raises(error):
            await client.add_job("task", job_key="k")

    assert count_calls(sql) == 3


async def test_a_missing_schema_is_reported(kind, empty_database):
    async with open_client(kind, empty_database) as client:
        with pytest.raises(SchemaMissing):
            await client.add_job("task")


async def test_a_client_works_after_a_job_spec_error(client, sql):
    fail_add_jobs(sql, "22003")
    with pytest.raises(JobSpecError):
        await client.add_job("task")

    assert (await client.add_job("task")).id is not None
