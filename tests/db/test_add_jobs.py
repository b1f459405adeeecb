"""Add many jobs with the async and the blocking client."""

import asyncio
import random
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo

from graphile_worker import Job, JobKeyMode, JobSpec, JobSpecError, sync
from graphile_worker.errors import SchemaError
from tests.support.clients import KINDS, before_each_statement, open_client, unwrap
from tests.support.fakes import (
    ALWAYS,
    FIXED_TIME,
    MEANINGS,
    StoppedClock,
    count_calls,
    fail_add_jobs,
)
from tests.support.fetch_locks import commit_when_blocking, open_fetch
from tests.support.rows import count_jobs
from tests.support.sql import Sql


def assert_paired(specs: list[JobSpec], jobs: list[Job]) -> None:
    """Check that every job has the values of the spec at its position."""
    assert len(specs) == len(jobs) == len({job.id for job in jobs})
    for spec, job in zip(specs, jobs, strict=True):
        assert job.task_identifier == spec.identifier
        assert job.queue_name == spec.queue_name
        assert job.payload == ({} if spec.payload is None else spec.payload)
        assert job.max_attempts == (25 if spec.max_attempts is None else spec.max_attempts)
        assert job.priority == (spec.priority or 0)
        assert job.key == spec.job_key
        assert job.flags == frozenset(spec.flags or ())
        assert job.run_at == _moment(spec, job)


def _moment(spec: JobSpec, job: Job) -> datetime:
    if isinstance(spec.run_at, datetime):
        return spec.run_at
    return job.updated_at + (spec.run_at or timedelta(0))


def mixed_specs(count: int, *, names: int = 20, seed: int = 1) -> list[JobSpec]:
    """Shuffled specs of a few tasks and queues, many of them alike."""
    pick = random.Random(seed)
    return [
        JobSpec(
            f"task-{pick.randrange(names)}",
            pick.choice([None, {"n": pick.randrange(50)}, number]),
            queue_name=pick.choice([None, "", f"queue-{pick.randrange(names)}"]),
            run_at=pick.choice([None, FIXED_TIME, timedelta(seconds=pick.randrange(3))]),
            max_attempts=pick.choice([None, 1, 25]),
            priority=pick.choice([None, 0, -3]),
            job_key=pick.choice([None, f"key-{number}"]),
            job_key_mode=pick.choice([None, "replace", "preserve_run_at"]),
            flags=pick.choice([None, [], ["a"], ["b", "a"]]),
        )
        for number in range(count)
    ]


# One round trip


@pytest.mark.feature("F57", "F58")
async def test_any_number_of_jobs_is_one_round_trip(client, sql, statements):
    specs = mixed_specs(500)
    await client.add_jobs([JobSpec(spec.identifier, queue_name=spec.queue_name) for spec in specs])
    del statements[:]

    await client.add_jobs(specs)

    assert statements == ["add_jobs"]


@pytest.mark.feature("F57")
async def test_the_first_jobs_of_a_task_are_one_round_trip(client, statements):
    specs = [JobSpec("new", number, queue_name="new") for number in range(10)]

    jobs = await client.add_jobs(specs)

    assert statements == ["add_jobs"]
    assert_paired(specs, jobs)


@pytest.mark.feature("F58")
async def test_several_new_names_need_one_more_round_trip(client, statements):
    specs = [JobSpec(f"task-{n % 3}", n, queue_name=f"queue-{n % 5}") for n in range(30)]

    jobs = await client.add_jobs(specs)

    assert statements == ["add_jobs", "get_task_and_queue_names"]
    assert_paired(specs, jobs)


@pytest.mark.feature("F58")
async def test_no_specs_add_nothing_without_a_round_trip(client, sql, statements):
    notes: list[psycopg.Notify] = []
    sql.connection.add_notify_handler(notes.append)
    sql.run('listen "jobs:insert"')

    assert await client.add_jobs([]) == []
    assert await client.add_jobs(iter(())) == []

    sql.run("select 1")
    assert (statements, notes) == ([], [])


@pytest.mark.feature("F56")
async def test_a_spec_with_only_a_name_is_ready_now(client):
    spec = JobSpec("task")

    [job] = await client.add_jobs([spec])

    assert job.run_at == job.created_at
    with pytest.raises(FrozenInstanceError):
        spec.priority = 1  # type: ignore[misc]  # what must not be possible


# Pairing


@pytest.mark.feature("F58")
async def test_mixed_jobs_are_paired_with_their_specs(client, sql):
    specs = mixed_specs(300)

    jobs = await client.add_jobs(specs)

    assert_paired(specs, jobs)
    assert count_jobs(sql) == 300


@pytest.mark.feature("F58")
async def test_known_keys_among_new_ones_are_paired_too(client):
    specs = [JobSpec("task", {"n": n}, job_key=f"key-{n}") for n in range(50)]
    before = await client.add_jobs(specs[::2])
    random.Random(2).shuffle(specs)

    jobs = await client.add_jobs(specs)

    assert_paired(specs, jobs)
    known = {job.key: job.id for job in before}
    assert all(job.id == known[job.key] for job in jobs if job.key in known)
    assert {job.revision for job in jobs if job.key in known} == {1}


@pytest.mark.feature("F58")
async def test_equal_specs_get_separate_jobs(client):
    specs = [JobSpec("task", {"a": 1}, queue_name="queue", flags=["x"])] * 20

    assert_paired(specs, await client.add_jobs(specs))


@pytest.mark.feature("F57")
async def test_each_job_is_the_stored_one(client):
    jobs = await client.add_jobs(mixed_specs(40))

    stored = [await client.get_job(job.id) for job in jobs]

    assert stored == jobs


@pytest.mark.feature("F58")
async def test_jobs_are_paired_even_if_they_are_completed_immediately(client, sql, monkeypatch):
    def finish(statement: str) -> None:
        if statement != "add_jobs":
            for table in ("jobs", "tasks", "job_queues"):
                sql.run(f"delete from :schema._private_{table}")

    before_each_statement(monkeypatch, finish)
    specs = [JobSpec(f"task-{n % 3}", n, queue_name=f"queue-{n % 5}") for n in range(30)]

    assert_paired(specs, await client.add_jobs(specs))


async def test_ids_follow_the_order_of_the_specs(client):
    specs = [JobSpec(f"task-{n % 7}", n, queue_name=f"queue-{n % 5}") for n in range(200)]
    random.Random(3).shuffle(specs)

    jobs = await client.add_jobs(specs)

    assert [job.id for job in jobs] == sorted(job.id for job in jobs)


@pytest.mark.feature("F58")
async def test_delays_of_centuries_are_paired_to_the_microsecond(client):
    delays = [timedelta(days=120_000, microseconds=n) for n in range(20)]

    jobs = await client.add_jobs([JobSpec("task", n, run_at=d) for n, d in enumerate(delays)])

    assert [job.payload for job in jobs] == list(range(20))


@pytest.mark.feature("F58")
@pytest.mark.parametrize("kind", KINDS)
async def test_thousands_are_paired_on_the_schema_of_node(kind, node_database):
    specs = mixed_specs(5000, names=50)

    async with open_client(kind, node_database) as client:
        jobs = await client.add_jobs(specs)

    assert_paired(specs, jobs)


names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=6)
payloads = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=4,
)
specs_of_a_batch = st.lists(
    st.builds(
        JobSpec,
        identifier=st.sampled_from(["a", "b", "c"]) | names.filter(bool),
        payload=st.sampled_from([{}, {"a": 1}, "text"]) | payloads,
        queue_name=st.none() | st.sampled_from(["q", "r"]) | names,
        run_at=st.none()
        | st.timedeltas(timedelta(days=-9), timedelta(days=9))
        | st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1), timezones=st.just(UTC)),
        max_attempts=st.none() | st.sampled_from([1, 25, 32767]),
        priority=st.none() | st.sampled_from([-32768, 0, 1]),
        job_key=st.none() | names.filter(bool),
        job_key_mode=st.sampled_from([None, "replace", JobKeyMode.PRESERVE_RUN_AT]),
        flags=st.none() | st.lists(names, max_size=3),
    ),
    max_size=40,
    unique_by=lambda spec: object() if spec.job_key is None else spec.job_key,
)


@pytest.mark.feature("F58")
@given(specs=specs_of_a_batch)
@settings(
    max_examples=30,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_each_job_of_any_batch_is_paired_with_its_spec(database, sql, specs):
    # Known keys would be merged with what an earlier example left.
    sql.run("delete from :schema._private_jobs")

    with sync.Client(database.dsn, schema=database.schema) as client:
        jobs = client.add_jobs(specs)

    assert_paired(specs, jobs)


# Modes


@pytest.mark.feature("F60")
async def test_each_spec_keeps_its_own_mode(client):
    for key in ("kept", "replaced", "default"):
        await client.add_job("task", job_key=key, run_at=FIXED_TIME)
    later = FIXED_TIME + timedelta(days=1)

    kept, replaced, default = await client.add_jobs(
        [
            JobSpec("task", job_key="kept", run_at=later, job_key_mode="preserve_run_at"),
            JobSpec("task", job_key="replaced", run_at=later, job_key_mode=JobKeyMode.REPLACE),
            JobSpec("task", job_key="default", run_at=later),
        ]
    )

    assert (kept.run_at, replaced.run_at, default.run_at) == (FIXED_TIME, later, later)
    assert {job.revision for job in (kept, replaced, default)} == {1}


@pytest.mark.parametrize("modes", [("replace", "replace"), ("replace", "preserve_run_at")])
async def test_a_duplicate_key_is_rejected_before_any_sql(client, statements, modes):
    specs = [JobSpec("task", job_key="k", job_key_mode=mode) for mode in modes]

    with pytest.raises(JobSpecError) as caught:
        await client.add_jobs([JobSpec("task"), *specs])

    assert (caught.value.argument, caught.value.value) == ("job_key", "k")
    assert caught.value.code == "21000"
    assert statements == []


@pytest.mark.feature("F59")
@pytest.mark.parametrize("mode", ["unsafe_dedupe", JobKeyMode.UNSAFE_DEDUPE])
async def test_unsafe_dedupe_is_rejected_before_any_sql(client, statements, mode):
    specs = [JobSpec("task"), JobSpec("task", job_key="k", job_key_mode=mode)]

    with pytest.raises(JobSpecError) as caught:
        await client.add_jobs(specs)

    assert (caught.value.argument, caught.value.code) == ("job_key_mode", "GWBKM")
    assert statements == []


@pytest.mark.feature("F36")
async def test_unsafe_dedupe_without_a_key_has_no_effect(client):
    [job] = await client.add_jobs([JobSpec("task", job_key_mode="unsafe_dedupe")])

    assert (job.key, job.revision) == (None, 0)


# The same rules as for one job


@pytest.mark.feature("F62")
async def test_with_local_time_an_omitted_run_at_is_the_time_of_the_program(kind, database):
    specs = [JobSpec("task"), JobSpec("task", run_at=timedelta(0))]

    async with open_client(kind, database, use_local_time=True, clock=StoppedClock()) as client:
        local, given = await client.add_jobs(specs)

    assert local.run_at == FIXED_TIME
    assert given.run_at == given.created_at


async def test_one_payload_that_is_too_large_rejects_the_batch(kind, database, sql, statements):
    async with open_client(kind, database, max_payload_bytes=10) as client:
        with pytest.raises(JobSpecError) as caught:
            await client.add_jobs([JobSpec("task"), JobSpec("task", "x" * 9)])

    assert (caught.value.argument, caught.value.code) == ("payload", "54000")
    assert statements == []


@pytest.mark.feature("F39")
async def test_a_batch_added_in_a_transaction_exists_after_the_commit(client, conn, sql):
    specs = mixed_specs(20)
    jobs = await client.add_jobs(specs, conn=unwrap(conn))
    before = count_jobs(sql)
    await conn.commit()

    assert_paired(specs, jobs)
    assert (before, count_jobs(sql)) == (0, 20)


@pytest.mark.feature("F39")
async def test_a_batch_added_in_a_transaction_disappears_at_rollback(client, conn, sql):
    await client.add_jobs(mixed_specs(20), conn=unwrap(conn))
    await conn.rollback()

    assert count_jobs(sql) == 0


async def test_an_error_of_the_database_function_names_its_argument(client, sql, subtests):
    for state, constraint, argument, code in MEANINGS:
        with subtests.test(f"{state} {constraint}"):
            fail_add_jobs(sql, state, constraint=constraint)

            with pytest.raises(JobSpecError) as caught:
                await client.add_jobs([JobSpec("task"), JobSpec("task")])

            assert (caught.value.argument, caught.value.code) == (argument, code)
            assert (count_calls(sql), count_jobs(sql)) == (1, 0)


@pytest.mark.parametrize("delay", [timedelta.max, timedelta.min, timedelta(days=-(10**7))])
async def test_a_delay_beyond_the_calendar_of_postgresql_is_rejected_by_name(client, sql, delay):
    with pytest.raises(JobSpecError) as caught:
        await client.add_jobs([JobSpec("task"), JobSpec("task", run_at=delay)])

    assert caught.value.argument == "run_at"
    assert count_jobs(sql) == 0


async def test_any_other_error_passes_through(client, sql):
    fail_add_jobs(sql, "P0001")

    with pytest.raises(psycopg.errors.RaiseException):
        await client.add_jobs([JobSpec("task")])


@pytest.mark.parametrize("state", ["40001", "40P01", "GWNOR"])
async def test_a_serialization_failure_is_retried_on_the_clients_connection(client, sql, state):
    fail_add_jobs(sql, state, times=2)
    specs = mixed_specs(10)

    jobs = await client.add_jobs(specs)

    assert_paired(specs, jobs)
    assert count_jobs(sql) == 10


@pytest.mark.parametrize(
    ("state", "error"),
    [("40001", psycopg.Error), ("40P01", psycopg.Error), ("GWNOR", JobSpecError)],
)
async def test_a_serialization_failure_on_your_connection_is_not_retried(
    client, conn, sql, state, error
):
    fail_add_jobs(sql, state, times=ALWAYS)

    with pytest.raises(error):
        await client.add_jobs([JobSpec("task", job_key="k")], conn=unwrap(conn))

    assert count_calls(sql) == 1


# A key that another session is about to lock


@pytest.mark.feature("F86")
@pytest.mark.parametrize("borrowed", [False, True], ids=["own", "borrowed"])
async def test_only_a_lost_row_is_requested_again(client, conn, sql, borrowed):
    old = await client.add_job("task", {"old": 1}, job_key="k1")
    specs = [JobSpec("task", {"n": n}, job_key=f"k{n}") for n in range(3)] + [JobSpec("task", 3)]

    fetcher = open_fetch(sql, old.id)
    adding = asyncio.create_task(client.add_jobs(specs, conn=unwrap(conn) if borrowed else None))
    await commit_when_blocking(fetcher, sql)
    jobs = await adding
    await conn.commit()

    assert_paired(specs, jobs)
    assert old.id not in {job.id for job in jobs}
    assert count_jobs(sql) == 5


# Triggers of the table


def create_trigger(sql: Sql, body: str) -> None:
    sql.run(
        f"create function public.change_job() returns trigger language plpgsql as $$ begin {body} "
        "return new; end $$"
    )
    sql.run(
        "create trigger change_job before insert on :schema._private_jobs for each row "
        "execute function public.change_job()"
    )


@pytest.mark.parametrize("borrowed", [False, True], ids=["own", "borrowed"])
@pytest.mark.parametrize(
    "change",
    [
        "new.priority = new.priority + 5;",
        "new.payload = '{}';",
        "new.run_at = new.run_at + interval '1 day';",
        "new.max_attempts = 3;",
        "new.flags = '{\"changed\": true}';",
        "new.key = null;",
        "new.key = 'prefix-' || new.key;",
        "if new.priority = 0 then new.priority = 5; end if;",
    ],
)
async def test_jobs_that_a_trigger_changes_are_paired_with_their_specs(
    client, conn, sql, change, borrowed
):
    create_trigger(sql, change)
    specs = [
        JobSpec("b", 1, priority=5),
        JobSpec("a", 1),
        JobSpec("a", 2, queue_name="queue"),
        JobSpec("a", 3, queue_name="queue"),
        JobSpec("c", 4, job_key="key"),
        JobSpec("b", 1),
    ]

    # The second call finds a schema that it may not insert into directly.
    for count in (1, 2):
        sql.run("update :schema._private_jobs set key = null")
        jobs = await client.add_jobs(specs, conn=unwrap(conn) if borrowed else None)
        await conn.commit()

        assert count_jobs(sql) == count * len(specs)
        assert [await client.get_job(job.id) for job in jobs] == jobs
        assert len({job.id for job in jobs}) == len(specs)
        assert [(job.task_identifier, job.queue_name) for job in jobs] == [
            (spec.identifier, spec.queue_name) for spec in specs
        ]
        if "payload" not in change:
            assert [job.payload for job in jobs] == [spec.payload for spec in specs]


async def test_changed_jobs_whose_names_are_deleted_get_the_names_of_their_specs(
    client, sql, monkeypatch
):
    def finish(statement: str) -> None:
        if statement != "add_jobs":
            for table in ("jobs", "tasks", "job_queues"):
                sql.run(f"delete from :schema._private_{table}")

    create_trigger(sql, "new.payload = '{}'; new.priority = 5;")
    before_each_statement(monkeypatch, finish)
    specs = [JobSpec(f"task-{n % 3}", n, queue_name=f"queue-{n % 5}") for n in range(30)]

    jobs = await client.add_jobs(specs)

    assert [(job.task_identifier, job.queue_name) for job in jobs] == [
        (spec.identifier, spec.queue_name) for spec in specs
    ]


@pytest.mark.parametrize("borrowed", [False, True], ids=["own", "borrowed"])
@pytest.mark.parametrize("key", [None, "key"])
async def test_jobs_that_a_trigger_discards_are_a_schema_error(
    client, conn, sql, statements, borrowed, key
):
    create_trigger(sql, "if new.priority = 1 then return null; end if;")
    specs = [JobSpec("task", n, priority=n % 2) for n in range(5)] + [JobSpec("task", job_key=key)]

    with pytest.raises(SchemaError, match=r"^2 of 6 jobs were not stored: a trigger of table "):
        await client.add_jobs(specs, conn=unwrap(conn) if borrowed else None)
    await conn.rollback()

    assert count_jobs(sql) == 0
    if key is None:
        assert statements == ["add_jobs"] * (1 if borrowed else 2)


@pytest.mark.parametrize("borrowed", [False, True], ids=["own", "borrowed"])
async def test_a_single_job_that_a_trigger_discards_is_a_schema_error(client, conn, sql, borrowed):
    create_trigger(sql, "return null;")

    with pytest.raises(SchemaError, match=r"^1 of 1 jobs were not stored"):
        await client.add_job("task", conn=unwrap(conn) if borrowed else None)


# Sessions with other settings


@pytest.mark.parametrize("digits", [-15, 0])
async def test_jobs_are_paired_with_any_float_setting_of_the_session(kind, database, digits):
    dsn = make_conninfo(database.dsn, options=f"-c extra_float_digits={digits}")
    specs = [JobSpec("task", run_at=FIXED_TIME + timedelta(microseconds=n)) for n in range(5)]

    async with open_client(kind, SimpleNamespace(dsn=dsn, schema=database.schema)) as client:
        jobs = await client.add_jobs(specs)

    assert_paired(specs, jobs)


# All or nothing


async def test_a_batch_that_meets_a_lock_is_added_in_one_transaction(client, sql):
    old = await client.add_job("task", job_key="key")
    fetcher = open_fetch(sql, old.id)
    adding = asyncio.create_task(
        client.add_jobs([JobSpec("plain"), JobSpec("task", job_key="key")])
    )

    await commit_when_blocking(fetcher, sql)
    jobs = await adding

    ids = [job.id for job in jobs]
    found = sql.run("select distinct xmin::text from :schema._private_jobs where id = any($1)", ids)
    assert len(found) == 1
    assert count_jobs(sql) == 3
