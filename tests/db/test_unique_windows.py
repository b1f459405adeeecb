"""Unique windows: with one key, one job per window is added, also if it has ended."""

import json
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from graphile_worker import App, JobContext, JobSpec, JobSpecError, Retention, SchemaError, sync
from graphile_worker._db.database import run_plan_sync_on
from graphile_worker._db.sync import SyncPsycopgConnection
from graphile_worker._lease.expired_keys import KEYS_PER_STATEMENT
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.unique_keys import delete_expired_keys
from graphile_worker._sql.query import Plan
from graphile_worker._sql.render import ParameterStyle, render
from graphile_worker.jobs import MAX_WINDOW
from graphile_worker.ops.adding import plan_add_for_person
from tests.support.clients import open_client, unwrap
from tests.support.recorder import wait_until
from tests.support.roles import as_role
from tests.support.tiers import size

# What the statements do: test_statements.py runs each of them on the oldest pair too.
pytestmark = pytest.mark.single_version

DAY = timedelta(days=1)
REPORT: dict[str, Any] = {"unique": "report:2026-11", "unique_for": DAY}

# 50 producers of one key: length of a window, and of the test.
PRODUCERS = 50
WINDOW_SECONDS = size(gate=0.2, nightly=1.0)
TEST_SECONDS = size(gate=0.8, nightly=60.0)

EXPIRE = "update :ext_schema.unique_keys set until = now() - interval '1 microsecond'"
COUNT = "select count(*) from :schema._private_jobs"


def count_jobs(sql) -> int:
    return int(sql.value(COUNT))


# The window


async def test_no_other_job_is_added_while_the_window_is_open_and_one_after_it(client, sql):
    first = await client.add_job("report", {"n": 1}, queue_name="slow", **REPORT)
    second = await client.add_job("report", {"n": 2}, priority=7, **REPORT)

    assert not first.is_duplicate
    assert second.is_duplicate
    assert second == first
    assert (second.payload, second.queue_name, second.priority) == ({"n": 1}, "slow", 0)
    assert count_jobs(sql) == 1

    sql.run(EXPIRE)
    third = await client.add_job("report", {"n": 3}, **REPORT)
    fourth = await client.add_job("other", **REPORT)

    assert third.id > first.id
    assert (third.is_duplicate, fourth.is_duplicate, fourth.id) == (False, True, third.id)
    assert fourth.task_identifier == "report"


async def test_the_window_stays_open_when_the_job_has_ended(client, sql):
    job = await client.add_job("report", {"n": 1}, **REPORT)
    await client.complete_jobs([job.id])

    again = await client.add_job(
        "report", {"n": 2}, flags=["b", "a"], max_attempts=3, queue_name="slow", **REPORT
    )

    assert (again.is_duplicate, again.id, count_jobs(sql)) == (True, job.id, 0)
    assert (again.task_identifier, again.payload, again.queue_name) == ("report", {"n": 2}, "slow")
    assert (again.flags, again.max_attempts, again.attempts) == ({"a", "b"}, 3, 0)
    assert abs(again.created_at - job.created_at) < timedelta(seconds=10)


async def test_a_window_ends_when_the_database_clock_reaches_its_end(client, sql):
    short: dict[str, Any] = {"unique": "tick", "unique_for": timedelta(milliseconds=150)}
    job = await client.add_job("tick", **short)
    until = sql.value("select until from :ext_schema.unique_keys")

    again = job
    while again.id == job.id:
        again = await client.add_job("tick", **short)

    assert not again.is_duplicate
    assert sql.value("select since from :ext_schema.unique_keys") >= until
    assert count_jobs(sql) == 2


def test_the_time_of_a_call_decides_and_not_the_start_of_its_transaction(
    blocking_client, database, sql
):
    with psycopg.connect(database.dsn) as conn:
        conn.execute("select now()")
        sql.run("select pg_sleep(0.02)")
        added = blocking_client.add_job("report", **REPORT)
        since = sql.value("select since from :ext_schema.unique_keys")
        [(began,)] = conn.execute("select now()").fetchall()

        again = blocking_client.add_job("report", conn=conn, **REPORT)

    assert since > began
    assert (again.is_duplicate, again.id) == (True, added.id)


async def test_with_local_time_the_clock_of_the_client_decides(kind, database):
    now = datetime(2030, 1, 1, tzinfo=UTC)

    class Clock:
        def now(self) -> datetime:
            return now

    async with open_client(kind, database, use_local_time=True, clock=Clock()) as client:
        first = await client.add_job("report", **REPORT)
        now += DAY - timedelta(microseconds=1)
        second = await client.add_job("report", **REPORT)
        now += timedelta(microseconds=1)
        third = await client.add_job("report", **REPORT)

    assert [job.is_duplicate for job in (first, second, third)] == [False, True, False]


@pytest.mark.parametrize("length", [timedelta(microseconds=1), MAX_WINDOW])
def test_a_window_has_exactly_the_length_that_was_passed(blocking_client, sql, length):
    sql.run("set timezone = 'America/New_York'")
    blocking_client.add_job("report", unique="a", unique_for=length)

    found = sql.value(
        "select (extract(epoch from until) - extract(epoch from since))::text"
        " from :ext_schema.unique_keys"
    )

    # The end is computed some microseconds after the beginning.
    microseconds = int(found.replace(".", ""))
    assert 0 <= microseconds - length // timedelta(microseconds=1) < 1_000_000


# Concurrency and transactions


def test_a_rollback_frees_the_key_and_a_producer_waits_for_the_first(
    blocking_client, database, sql
):
    for ends, is_duplicate in (("rollback", False), ("commit", True)):
        key: dict[str, Any] = {"unique": ends, "unique_for": DAY}
        second: list[Any] = []
        with psycopg.connect(database.dsn) as conn:
            first = blocking_client.add_job("report", conn=conn, **key)
            thread = threading.Thread(
                target=lambda: second.append(blocking_client.add_job("report", **key))  # noqa: B023
            )
            thread.start()
            while not sql.value(
                "select count(*) from pg_locks where not granted and locktype = 'transactionid'"
            ):
                pass
            assert second == []
            conn.execute(ends)
            thread.join()
        assert second[0].is_duplicate is is_duplicate
        assert (second[0].id == first.id) is is_duplicate
    assert count_jobs(sql) == 2


def test_a_duplicate_blocks_no_other_producer(blocking_client, database, sql):
    blocking_client.add_job("report", **REPORT)

    with psycopg.connect(database.dsn) as conn:
        assert blocking_client.add_job("report", conn=conn, **REPORT).is_duplicate
        # It has written nothing, so it has no transaction id and no lock on the key.
        [(written,)] = conn.execute("select pg_current_xact_id_if_assigned()").fetchall()
        sql.run("set lock_timeout = '15s'")
        sql.run(EXPIRE)

    assert written is None


async def test_two_batches_with_a_common_key_into_a_new_queue_do_not_deadlock(database, sql):
    # A batch waits after it added its first job, until the test goes on.
    sql.run(
        "create function public.wait() returns trigger language plpgsql as $$ begin"
        " perform pg_catalog.pg_advisory_xact_lock_shared(1); return null; end $$"
    )
    sql.run(
        "create trigger wait after insert on :schema._private_jobs for each row"
        " execute function public.wait()"
    )
    waiting = (
        "select count(*) from pg_stat_activity"
        " where datname = current_database() and wait_event_type = 'Lock'"
    )

    def add(*keys: str) -> list[bool]:
        # Past the client, which would retry after a deadlock.
        spec = {"identifier": "new", "payload": "{}", "queue_name": "new", "unique_for": "1 day"}
        specs = json.dumps([spec | {"unique_key": key} for key in keys])
        with closing(sql.another()) as session:
            rows = session.run(
                "select is_duplicate from :ext_schema.add_unique_jobs($1::text::json)", specs
            )
        return [is_duplicate for (is_duplicate,) in rows]

    with ThreadPoolExecutor(2) as threads:
        sql.run("select pg_advisory_lock(1)")
        both = threads.submit(add, "a", "b")
        await wait_until(lambda: sql.value(waiting) == 1)
        one = threads.submit(add, "b")
        await wait_until(lambda: sql.value(waiting) == 2)
        sql.run("select pg_advisory_unlock(1)")

        assert both.result() == [False, False]
        assert one.result() == [True]


def test_a_duplicate_adds_no_name_of_a_task_or_queue(blocking_client, sql):
    blocking_client.add_job("report", **REPORT)

    again = blocking_client.add_job("other", queue_name="other", **REPORT)

    assert again.is_duplicate
    assert sql.run("select identifier from :schema._private_tasks") == [("report",)]
    assert sql.run("select queue_name from :schema._private_job_queues") == []


async def test_a_snapshot_that_is_too_old_fails_instead_of_adding_a_second_job(
    client, conn, blocking_client, sql
):
    await conn.execute("set transaction isolation level repeatable read")
    await conn.execute("select 1")
    blocking_client.add_job("report", **REPORT)

    with pytest.raises(psycopg.errors.SerializationFailure):
        await client.add_job("report", conn=unwrap(conn), **REPORT)

    assert count_jobs(sql) == 1


@pytest.mark.timeout(TEST_SECONDS + 120)
def test_of_50_producers_of_one_key_exactly_one_adds_a_job_per_window(
    database, sql, record_property
):
    barrier = threading.Barrier(PRODUCERS)
    errors: list[BaseException] = []
    attempts: Counter[bool] = Counter()
    window: dict[str, Any] = {"unique": "tick", "unique_for": timedelta(seconds=WINDOW_SECONDS)}
    # The name is known, because the first transaction that adds it blocks others.
    sql.run("insert into :schema._private_tasks (identifier) values ('tick')")
    # One row per window: the key has one, which changes with each.
    sql.run("create table public.windows (since timestamptz, until timestamptz, job_id bigint)")
    sql.run(
        "create function public.keep() returns trigger language plpgsql as $$ begin"
        " insert into public.windows values (new.since, new.until, new.job_id);"
        " return null; end $$"
    )
    sql.run(
        "create trigger keep after update of job_id on :ext_schema.unique_keys for each row"
        " when (new.job_id is not null) execute function public.keep()"
    )

    def produce(number: int) -> None:
        found: Counter[bool] = Counter()
        try:
            with sync.Client(database.dsn, schema=database.schema) as client:
                client.get_job(1)
                barrier.wait(30)
                ends_at = time.monotonic() + TEST_SECONDS
                while time.monotonic() < ends_at:
                    # Every other producer has a transaction of its own, and some roll back.
                    if number % 2:
                        job = client.add_job("tick", {"by": number}, **window)
                        found[job.is_duplicate] += 1
                        continue
                    with suppress(ZeroDivisionError), psycopg.connect(database.dsn) as conn:
                        job = client.add_job("tick", {"by": number}, conn=conn, **window)
                        if number % 10 == 0:
                            raise ZeroDivisionError
                        conn.commit()
                        found[job.is_duplicate] += 1
        except BaseException as error:
            errors.append(error)
            barrier.abort()
        attempts.update(found)

    threads = [threading.Thread(target=produce, args=(n,)) for n in range(PRODUCERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    windows = sql.run("select since, until, job_id from public.windows order by since")
    jobs = sql.run("select id from :schema._private_jobs order by id")
    record_property("figures", f"{len(windows)} windows, {len(jobs)} jobs, {dict(attempts)} adds")
    assert sorted(job_id for _, _, job_id in windows) == [job_id for (job_id,) in jobs]
    assert attempts[False] == len(jobs)
    assert len(jobs) >= TEST_SECONDS / WINDOW_SECONDS / 4
    for (_, until, _), (since, _, _) in zip(windows, windows[1:], strict=False):
        assert since >= until


# Batches


async def test_jobs_with_and_without_unique_keys_are_added_together(client, sql):
    earlier = await client.add_job("report", {"n": 0}, unique="b", unique_for=DAY)

    jobs = await client.add_jobs(
        [
            JobSpec("plain", {"n": 1}),
            JobSpec("report", {"n": 2}, unique="b", unique_for=DAY),
            JobSpec("report", {"n": 3}, unique="a", unique_for=DAY, run_at=timedelta(hours=1)),
            JobSpec("keyed", {"n": 4}, job_key="a"),
            JobSpec("report", {"n": 5}, unique="a", unique_for=DAY),
        ]
    )

    assert [job.is_duplicate for job in jobs] == [False, True, False, False, True]
    assert [job.payload["n"] for job in jobs] == [1, 0, 3, 4, 3]
    assert jobs[1].id == earlier.id
    assert jobs[4].id == jobs[2].id
    assert timedelta(minutes=59) < jobs[2].run_at - jobs[2].created_at <= timedelta(hours=1)
    assert jobs[3].key == "a"
    assert count_jobs(sql) == 4


async def test_a_batch_that_fails_adds_nothing_and_frees_its_keys(client, sql):
    specs = [
        JobSpec("report", unique="a", unique_for=DAY),
        JobSpec("report", unique="b", unique_for=DAY, flags=["x"]),
    ]
    sql.run(
        "alter table :schema._private_jobs add constraint no_flags check (flags is null) not valid"
    )

    for batch in (specs, [*specs, JobSpec("plain")]):
        with pytest.raises(psycopg.errors.CheckViolation):
            await client.add_jobs(batch)

    assert count_jobs(sql) == 0
    assert sql.value("select count(*) from :ext_schema.unique_keys") == 0


async def test_a_spec_that_is_rejected_adds_no_part_of_its_batch(client, conn, sql):
    good = JobSpec("report", unique="a", unique_for=DAY)

    for bad, error in ((object(), TypeError), (JobSpec("plain", object()), JobSpecError)):
        with pytest.raises(error):
            await client.add_jobs([good, bad], conn=unwrap(conn))
    await conn.commit()

    assert count_jobs(sql) == 0


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unique": "a"}, r"unique='a': needs unique_for, the length of the window"),
        ({"unique_for": DAY}, r"unique_for=.*: needs unique, the key of the window"),
        ({"unique": "", "unique_for": DAY}, "must not be empty"),
        ({"unique": "x" * 513, "unique_for": DAY}, "at most 512 characters"),
        ({"unique": 7, "unique_for": DAY}, "expected a str"),
        ({"unique": "a\x00", "unique_for": DAY}, "NUL"),
        ({"unique": "a", "unique_for": timedelta(0)}, "expected a timedelta above 0"),
        ({"unique": "a", "unique_for": 60}, "expected a timedelta above 0"),
        ({"unique": "a", "unique_for": timedelta.max}, "expected at most 89,478,485 days"),
        ({**REPORT, "job_key": "k"}, r"not together with job_key='k'\. .* Choose one of them"),
    ],
)
def test_a_window_that_is_not_valid_is_rejected(options, message):
    with pytest.raises(JobSpecError, match=message):
        JobSpec("report", **options)


async def test_a_task_and_its_context_add_unique_jobs(database):
    app = App(database.dsn, schema=database.schema)
    found = []

    @app.task(retention=Retention(results=True))
    def add(a: int, b: int) -> int:
        return a + b

    @app.task
    async def produce(ctx: JobContext) -> None:
        for _ in range(2):
            job = await ctx.add_job("add", {"a": 1, "b": 1}, unique="in task", unique_for=DAY)
            found.append(job.is_duplicate)

    async with app:
        first = await add.using(**REPORT).aenqueue(1, 2)
        await produce.aenqueue()
        await app.worker().run_once()
        again = await add.using(**REPORT).aenqueue(3, 4)

        assert (again.is_duplicate, again.id) == (True, first.id)
        # The result of the earlier job, which has ended.
        assert await again.aresult() == 3
    assert found == [False, True]


async def test_a_unique_add_is_one_round_trip_and_other_adds_stay_as_they_are(client, statements):
    for name in ("first", "second", "second"):
        await client.add_job(name)
        assert "check_unique_keys" not in statements
    plain = list(statements)

    await client.add_job("report", **REPORT)
    await client.add_job("report", **REPORT)
    await client.add_jobs([JobSpec("report", **REPORT), JobSpec("report", **REPORT)])

    # The schema is checked once.
    added = ["check_unique_keys", "add_unique_jobs", "add_unique_jobs", "add_unique_jobs"]
    assert statements[len(plain) :] == added


@pytest.mark.parametrize("notify", ["coalesced", "never"])
async def test_unique_jobs_of_a_quiet_client_notify_at_their_commit(kind, database, sql, notify):
    with psycopg.connect(database.dsn, autocommit=True) as listener:
        listener.execute('listen "jobs:insert"')
        async with open_client(kind, database, notify=notify) as client:
            for _ in range(2):
                await client.add_job("report", **REPORT)
        received = list(listener.notifies(timeout=0.2))

    assert received


def test_a_person_adds_a_unique_job_once(database, sql):
    schemas = Schemas.from_names(database.schema)

    def run(plan: Plan[Any]) -> Any:
        with psycopg.connect(database.dsn) as conn:
            return run_plan_sync_on(SyncPsycopgConnection(conn, schemas), plan)

    added, again = (
        run(plan_add_for_person(JobSpec("report", **REPORT), '{"a": 1.0}', schemas, actor="ada"))
        for _ in range(2)
    )

    assert (added.is_new, added.is_duplicate) == (True, False)
    assert (again.is_new, again.is_duplicate, again.id) == (False, True, added.id)
    assert sql.value("select payload::text from :schema._private_jobs") == '{"a": 1.0}'
    entries = sql.run("select job_ids, note from :ext_schema.audit order by id")
    assert entries[0] == ([added.id], "unique=report:2026-11")


async def test_only_jobs_that_were_added_count_in_metrics(client, monkeypatch):
    counted: list[list[str]] = []

    class Recorder:
        def record_added(self, identifiers: Any, mode: Any) -> None:
            counted.append(list(identifiers))

    owner = getattr(client, "blocking", client)
    monkeypatch.setattr(owner._hooks, "_recorder", Recorder())
    for _ in range(2):
        await client.add_job("report", **REPORT)
    await client.add_jobs([JobSpec("report", **REPORT), JobSpec("plain")])

    assert counted == [["report"], [], ["plain"]]


# From SQL


def test_the_function_adds_a_job_for_triggers_and_other_languages(sql, blocking_client):
    call = "select job_id, is_duplicate from :ext_schema.add_unique_job({})"
    plain = "'report', '{\"n\": 1.50}', 'report:1', '1 day'"
    named = (
        "identifier => 'report', payload => null, unique_key => 'report:2', "
        "unique_for => interval '1 month 2 days', queue_name => 'slow', "
        "run_at => '2030-01-01 00:00:00.000001+00', max_attempts => 3, priority => -5, "
        "flags => array['a', 'b']"
    )

    [(first, is_duplicate)] = sql.run(call.format(plain))
    sql.run("set intervalstyle = 'sql_standard'")
    [(second, _)] = sql.run(call.format(named))

    assert not is_duplicate
    assert sql.run(call.format(plain)) == [(first, True)]
    assert blocking_client.add_job("x", unique="report:1", unique_for=DAY).id == first
    assert blocking_client.get_job(first).payload_text == '{"n": 1.50}'
    job = blocking_client.get_job(second)
    assert (job.payload_text, job.queue_name, job.max_attempts) == ("{}", "slow", 3)
    assert (job.priority, job.flags) == (-5, {"a", "b"})
    assert job.run_at == datetime(2030, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
    assert sql.value(
        "select until between since + interval '1 month 2 days'"
        " and since + interval '1 month 2 days 1 second'"
        " from :ext_schema.unique_keys where key = 'report:2'"
    )


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ("'report', null, null, '1 day'", psycopg.errors.NotNullViolation),
        ("'report', null, '', '1 day'", psycopg.errors.CheckViolation),
        ("'report', null, 'a', null", psycopg.errors.InvalidParameterValue),
        ("'report', null, 'a', '-1 day'", psycopg.errors.InvalidParameterValue),
        ("'report', null, 'a', '1 day', max_attempts => 0", psycopg.errors.CheckViolation),
        ("null, null, 'a', '1 day'", psycopg.errors.NotNullViolation),
    ],
)
def test_the_function_rejects_invalid_values_and_keeps_no_key(sql, values, error):
    with pytest.raises(error):
        sql.run(f"select :ext_schema.add_unique_job({values})")

    assert sql.value("select count(*) from :ext_schema.unique_keys") == 0


# Schemas and roles


async def test_without_the_step_an_error_names_the_command_and_the_transaction_goes_on(
    client, conn, sql
):
    sql.run("drop table :ext_schema.unique_keys")
    sql.run("drop function :ext_schema.add_unique_job, :ext_schema.add_unique_jobs")
    sql.run("delete from :ext_schema.migrations where name like '%unique'")

    for specs in ([JobSpec("report", **REPORT)], [JobSpec("plain"), JobSpec("report", **REPORT)]):
        with pytest.raises(SchemaError, match=r"has no unique keys.*graphile-worker migrate"):
            await client.add_jobs(specs, conn=unwrap(conn))
        await client.add_job("plain", conn=unwrap(conn))
    await conn.commit()
    assert count_jobs(sql) == 2

    await client.migrate()
    assert not (await client.add_job("report", **REPORT)).is_duplicate


async def test_an_error_names_the_command_if_the_step_is_missing_later(client, sql):
    await client.add_job("report", **REPORT)
    sql.run("drop schema :ext_schema cascade")

    with pytest.raises(SchemaError, match=r"has no unique keys.*graphile-worker migrate"):
        await client.add_job("report", **REPORT)


def test_a_role_needs_privileges_on_unique_keys(database, sql, role):
    sql.run(f"grant usage on schema :schema, :ext_schema to {role}")
    sql.run(f"grant all on all tables in schema :schema to {role}")
    for table in ("_private_jobs", "_private_tasks", "_private_job_queues"):
        sql.run(f"create policy all_of_it on :schema.{table} to {role} using (true)")

    with sync.Client(as_role(database, role), schema=database.schema) as client:
        with pytest.raises(SchemaError, match="may not use the unique keys of schema"):
            client.add_job("report", **REPORT)
        assert not client.add_job("report").is_duplicate
        sql.run(f"grant select, insert, update on :ext_schema.unique_keys to {role}")
        assert not client.add_job("report", **REPORT).is_duplicate
        assert client.add_job("report", **REPORT).is_duplicate


def test_the_search_path_of_the_caller_does_not_matter(database, sql):
    sql.run("create schema hostile")
    sql.run(
        "create function hostile.clock_timestamp() returns timestamptz language sql"
        " as 'select 1 / 0 * interval ''1 s'' + pg_catalog.now()'"
    )
    sql.run("create table hostile.unique_keys (key text)")
    with psycopg.connect(database.dsn) as conn:
        conn.execute("set search_path = hostile, pg_catalog")
        with sync.Client(database.dsn, schema=database.schema) as client:
            found = [client.add_job("report", conn=conn, **REPORT).is_duplicate for _ in range(2)]

    assert found == [False, True]
    configs = sql.run(
        "select proname, array_to_string(proconfig, ' ') from pg_proc"
        " where proname in ('add_unique_job', 'add_unique_jobs')"
    )
    assert {name for name, _ in configs} == {"add_unique_job", "add_unique_jobs"}
    assert all("search_path=pg_catalog, pg_temp" in config for _, config in configs)


# Expired keys


def test_expired_keys_are_deleted_in_pieces_and_open_ones_stay(sql, database):
    schemas = Schemas.from_names(database.schema)
    sql.run(
        "insert into :ext_schema.unique_keys (key, since, until, job_id)"
        " select 'k' || n, now() - interval '3 hours', now() - interval '2 hours', n"
        " from generate_series(1, 25) as n"
    )
    sql.run(
        "insert into :ext_schema.unique_keys (key, since, until, job_id) values"
        " ('open', now(), now() + interval '1 hour', 1),"
        " ('recent', now(), now() - interval '1 minute', 2)"
    )

    with (
        psycopg.connect(database.dsn, autocommit=True) as conn,
        closing(sql.another()) as other,
    ):
        connection = SyncPsycopgConnection(conn, schemas)
        other.run("begin")
        other.run("select from :ext_schema.unique_keys where key = 'k1' for update")
        counts = [connection.run(delete_expired_keys(10)) for _ in range(4)]
        other.run("rollback")

    assert counts == [10, 10, 4, 0]
    keys = {key for (key,) in sql.run("select key from :ext_schema.unique_keys")}
    assert keys == {"k1", "open", "recent"}


def test_expired_keys_are_found_by_indexes_beside_many_open_ones(database, sql):
    sql.run(
        "insert into :ext_schema.unique_keys (key, since, until, job_id)"
        " select 'k' || n, now() - interval '3 hours',"
        " now() + case n % 3 when 0 then interval '-2 hours' else interval '1 day' end, n"
        " from generate_series(1, 100000) as n"
    )
    sql.run("analyze :ext_schema.unique_keys")
    text = render("delete_expired_keys", Schemas.from_names(database.schema), ParameterStyle.NATIVE)

    with psycopg.connect(database.dsn) as connection, psycopg.RawCursor(connection) as cursor:
        for mode in ("force_custom_plan", "force_generic_plan"):
            cursor.execute(f"set plan_cache_mode = {mode}".encode())
            cursor.execute(f"explain (costs off) {text}".encode(), (KEYS_PER_STATEMENT,))
            plan = "\n".join(line for (line,) in cursor.fetchall())
            assert "Seq Scan" not in plan, plan


async def test_a_worker_deletes_expired_keys(app, start, sql):
    @app.task
    def report() -> None: ...

    count = KEYS_PER_STATEMENT + 5
    sql.run(
        "insert into :ext_schema.unique_keys (key, since, until, job_id)"
        " select 'k' || n, now() - interval '3 hours', now() - interval '2 hours', n"
        f" from generate_series(1, {count}) as n"
    )

    await start(
        app, min_reset_locked_interval=timedelta(seconds=0.05),
        max_reset_locked_interval=timedelta(seconds=0.1),
    )  # fmt: skip

    await wait_until(lambda: sql.value("select count(*) from :ext_schema.unique_keys") == 0)
