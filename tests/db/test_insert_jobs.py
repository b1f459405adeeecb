"""Jobs without keys are inserted directly, to the same effect as by the functions."""

import json
import random
import string
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from enum import Enum, IntEnum
from types import SimpleNamespace
from typing import Any, TypeVar

import psycopg
import pytest

from graphile_worker import CleanupTask, JobSpec, JobSpecError, sync
from graphile_worker._db.database import run_plan_sync_on
from graphile_worker._db.sync import SyncPsycopgConnection
from graphile_worker._sql.identifiers import Schemas, quote_identifier
from graphile_worker._sql.plans.add import plan_add_job, plan_add_jobs
from graphile_worker._sql.plans.cleanup import plan_cleanup
from graphile_worker._sql.plans.insert import DirectInserts
from graphile_worker._sql.query import Query
from graphile_worker._sql.sqlstate import get_sqlstate
from graphile_worker.errors import CleanupBlocked, SchemaMissing
from graphile_worker.jobs import Job, RunAt
from tests.conftest import TestDatabase
from tests.support import tiers
from tests.support.clients import open_client, open_connection, unwrap
from tests.support.fakes import count_calls, fail_add_jobs
from tests.support.node import node_install
from tests.support.roles import as_role
from tests.support.sql import Sql

T = TypeVar("T")

CASES = tiers.size(gate=100, nightly=2_000)
SEED = 27

OTHER_SCHEMA = "other_jobs"
KNOWN_NAMES = ("task", "töösk", 'na"me\\', "{a,b}", "null", " ")
LETTERS = string.ascii_letters + string.digits + "\"\\'{},:%$ äß€😀\n\t\x7f\x01"

# What a spec rejects and the database must reject alike.
REJECTED: tuple[dict[str, Any], ...] = (
    {"max_attempts": 0},
    {"max_attempts": -1},
    {"max_attempts": 32768},
    {"max_attempts": 2**31},
    {"priority": 32768},
    {"priority": -32769},
    {"priority": -(2**31) - 1},
    {"run_at": timedelta(days=200_000_000)},
    {"run_at": timedelta(days=-200_000_000)},
    {"identifier": "x" * 129},
    {"identifier": None},
    {"queue_name": "x" * 129},
    {"flags": ["a", None]},
)


class Name(str, Enum):  # noqa: UP042 - StrEnum prints as its value, this class does not
    TASK = "task"


class Level(IntEnum):
    HIGH = -5


def build_unchecked(**values: Any) -> JobSpec:
    """A spec that was not checked, as if its check had a gap."""
    spec = object.__new__(JobSpec)
    for each in fields(JobSpec):
        object.__setattr__(spec, each.name, {"identifier": "task", **values}.get(each.name))
    return spec


def draw_text(rng: random.Random, most: int = 8) -> str:
    return "".join(rng.choices(LETTERS, k=rng.randint(0, most)))


def draw_payload(rng: random.Random, depth: int = 3) -> Any:
    kind = rng.randrange(8 if depth else 6)
    if kind == 6:
        return [draw_payload(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    if kind == 7:
        return {draw_text(rng): draw_payload(rng, depth - 1) for _ in range(rng.randint(0, 3))}
    return [None, True, rng.randint(-(2**70), 2**70), rng.random() * 1e9, draw_text(rng), {}][kind]


def draw_run_at(rng: random.Random) -> RunAt:
    microseconds = rng.randint(0, 10**6)
    times: list[RunAt] = [
        timedelta(0),
        timedelta(seconds=rng.randint(-(10**5), 10**8), microseconds=microseconds),
        timedelta(days=rng.randint(-700_000, 2_000_000), microseconds=microseconds),
        datetime.fromtimestamp(rng.randint(-(10**10), 10**11), UTC)
        + timedelta(microseconds=microseconds),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
    ]
    return rng.choice(times)


def draw_spec(rng: random.Random, mode: str | None) -> JobSpec:
    def maybe(value: Any, share: float = 0.5) -> Any:
        return value if rng.random() < share else None

    is_new = rng.random() < 0.02
    values: dict[str, Any] = {
        "identifier": f"new {rng.random()}" if is_new else rng.choice((*KNOWN_NAMES, Name.TASK)),
        "payload": draw_payload(rng),
        "queue_name": maybe(rng.choice((*KNOWN_NAMES, "", f"new {rng.random()}")), 0.3),
        "run_at": maybe(draw_run_at(rng)),
        "max_attempts": maybe(rng.choice([1, 25, 32767, rng.randint(1, 100)])),
        "priority": maybe(rng.choice([0, -32768, 32767, rng.randint(-9, 9), Level.HIGH])),
        "job_key": maybe(f"key {rng.random()}", 0.01),
        "job_key_mode": mode,
        "flags": maybe([draw_text(rng) for _ in range(rng.randint(0, 4))], 0.3),
    }
    if rng.random() < 0.02:
        return build_unchecked(**{**values, "job_key": None, **rng.choice(REJECTED)})
    return JobSpec(**values)


class Recorder(SyncPsycopgConnection):
    """A connection that notes the names of its statements."""

    def __init__(self, connection: psycopg.Connection[Any], schemas: Schemas) -> None:
        super().__init__(connection, schemas)
        self.statements: list[str] = []

    def run(self, query: Query[T]) -> T:
        self.statements.append(str(query.statement))
        return super().run(query)


@dataclass
class Way:
    """One schema, and how jobs are added to it."""

    schemas: Schemas
    connection: psycopg.Connection[Any]
    inserts: DirectInserts | None
    statements: list[str] = field(default_factory=list)
    """Those of the last call of `add`."""

    def add(self, specs: list[JobSpec], as_batch: bool) -> list[Job] | tuple[Any, ...]:
        """Add the jobs in a savepoint; the jobs, or what is known of the error."""
        options: dict[str, Any] = {"max_bytes": None, "inserts": self.inserts}
        runner = Recorder(self.connection, self.schemas)
        self.statements = runner.statements
        try:
            with self.connection.transaction():
                if as_batch or len(specs) > 1:
                    plan = plan_add_jobs(specs, self.schemas, all_or_nothing=False, **options)
                    return run_plan_sync_on(runner, plan)
                return [run_plan_sync_on(runner, plan_add_job(specs[0], self.schemas, **options))]
        except JobSpecError as error:
            return (JobSpecError, error.argument, error.code, error.reason, error.value)
        except psycopg.Error as error:
            return (type(error), get_sqlstate(error))

    def read_rows(self, jobs: list[Job]) -> list[tuple[Any, ...]]:
        """All columns of their rows, with names instead of ids."""
        return self.run(
            """
            select tasks.identifier, job_queues.queue_name, jobs.job_queue_id is null,
              jobs.payload::text, jobs.priority, jobs.run_at::text, jobs.attempts,
              jobs.max_attempts, jobs.last_error, jobs.created_at::text, jobs.updated_at::text,
              jobs.key, jobs.locked_at, jobs.locked_by, jobs.revision, jobs.flags::text,
              jobs.is_available
            from unnest($1::bigint[]) with ordinality as wanted (id, position)
            left join :schema._private_jobs as jobs using (id)
            left join :schema._private_tasks as tasks on tasks.id = jobs.task_id
            left join :schema._private_job_queues as job_queues
              on job_queues.id = jobs.job_queue_id
            order by wanted.position
            """,
            [job.id for job in jobs],
        )

    def read_totals(self) -> list[tuple[Any, ...]]:
        return self.run(
            """
            select (select count(*) from :schema._private_jobs),
              (select array_agg(identifier order by 1) from :schema._private_tasks),
              (select array_agg(queue_name order by 1) from :schema._private_job_queues)
            """
        )

    def run(self, statement: str, *args: Any) -> list[tuple[Any, ...]]:
        text = Sql.text(self, statement)  # type: ignore[arg-type]  # it needs only the schema
        return psycopg.RawCursor(self.connection).execute(text, args or None).fetchall()

    @property
    def schema(self) -> str:
        return self.schemas.shared


@contextmanager
def open_ways(database: TestDatabase, other: str) -> Iterator[tuple[Way, Way]]:
    """The functions on the schema of the database, and direct inserts on the other schema."""
    with psycopg.connect(database.dsn) as connection:
        by_function = Way(Schemas.from_names(database.schema), connection, None)
        by_insert = Way(Schemas.from_names(other), connection, DirectInserts(is_callers=True))
        for way in (by_function, by_insert):
            names = [JobSpec(name, queue_name=name) for name in KNOWN_NAMES]
            assert isinstance(way.add(names, as_batch=True), list)
        connection.commit()
        yield by_function, by_insert


def install_other(database: TestDatabase, installer: str) -> None:
    """Install the second schema as the first one was."""
    if installer == "python":
        with sync.Client(database.dsn, schema=OTHER_SCHEMA) as client:
            client.migrate()
    else:
        node_install(database.url, version="0.18", schema=OTHER_SCHEMA)


@pytest.mark.feature("F46")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("installer", ["python", "node"])
def test_direct_inserts_and_the_functions_have_the_same_effect(request, installer):
    database = request.getfixturevalue("database" if installer == "python" else "node_database")
    install_other(database, installer)
    rng = random.Random(SEED)
    notes: list[psycopg.Notify] = []
    direct = 0

    with open_ways(database, OTHER_SCHEMA) as ways:
        connection = ways[0].connection
        connection.add_notify_handler(notes.append)
        connection.execute('listen "jobs:insert"')
        connection.commit()
        for number in range(CASES):
            count = rng.choice([1, 1, 1, 2, 3, rng.randint(4, 30)])
            # A batch calls the function once for each mode, even of jobs without keys.
            mode = rng.choice([None, None, "replace", "preserve_run_at"])
            specs, as_batch = [draw_spec(rng, mode) for _ in range(count)], rng.random() < 0.5
            del notes[:]
            # In one transaction, because now() is then the same for both ways.
            with connection.transaction():
                expected, found = (way.add(specs, as_batch) for way in ways)
                totals = [way.read_totals() for way in ways]
                if isinstance(expected, list) and isinstance(found, list):
                    rows = [ways[0].read_rows(expected), ways[1].read_rows(found)]
                    assert rows[0] == rows[1], (number, specs)
                    assert_same_jobs(expected, found)
                else:
                    assert expected == found, (number, specs)

            if ways[1].statements in (["insert_job"], ["insert_jobs"]):
                direct += 1
                # Jobs that are otherwise equal run in the order of their ids.
                assert not isinstance(found, list) or is_sorted([job.id for job in found])
            assert totals[0] == totals[1], (number, specs)
            contents = [json.loads(note.payload) for note in notes]
            assert [sorted(each) for each in contents] == [["count", "r"]] * len(notes)
            sent = [each["count"] for each in contents]
            assert sent == ([count, count] if isinstance(expected, list) else []), (number, specs)

    assert direct > CASES // 2


def is_sorted(ids: list[int]) -> bool:
    return ids == sorted(ids)


def assert_same_jobs(expected: list[Job], jobs: list[Job]) -> None:
    for one, job in zip(expected, jobs, strict=True):
        other = copy(job)
        other.id = one.id
        assert one == other
        assert type(other.task_identifier) is str
        assert (type(other.priority), type(other.max_attempts)) == (int, int)


# Which statements are sent

DIRECT = ["insert_job"]
BY_FUNCTION = ["add_job"]


async def send(client: Any, statements: list[str], **options: Any) -> list[str]:
    """Add one job of the task "task"; the statements that were sent."""
    del statements[:]
    await client.add_job("task", **options)
    return list(statements)


async def prepare(client: Any, conn: Any = None) -> None:
    """Add jobs until the client inserts directly."""
    for _ in range(2):
        await client.add_job("task", queue_name="queue", conn=unwrap(conn))


@pytest.mark.feature("F46", "F57")
async def test_after_two_calls_jobs_without_keys_are_one_direct_insert(client, statements):
    first = await send(client, statements)
    second = await send(client, statements)

    assert first == BY_FUNCTION
    assert second == ["inspect_adding", "has_levels_above", "insert_job"]
    assert await send(client, statements) == DIRECT
    await client.add_jobs([JobSpec("task"), JobSpec("task", {"n": 1})])
    assert statements == [*DIRECT, "insert_jobs"]


async def test_functions_add_jobs_with_keys_and_new_names(client, statements, sql):
    await prepare(client)
    for options, expected in (
        ({"job_key": "key"}, BY_FUNCTION),
        ({"queue_name": "new"}, DIRECT + BY_FUNCTION),
        ({"queue_name": "new"}, DIRECT),
    ):
        assert await send(client, statements, **options) == expected

    del statements[:]
    specs = [JobSpec("task", 1), JobSpec("another", 2), JobSpec("task", 3)]
    jobs = await client.add_jobs(specs)

    assert statements == ["insert_jobs", "add_jobs"]
    assert [job.payload for job in jobs] == [1, 2, 3]
    assert sql.value("select count(*) from :schema._private_jobs where payload::text = '1'") == 1
    assert await client.add_jobs([*specs, JobSpec("task", job_key="key")])
    assert statements[2:] == ["add_jobs"]


async def test_a_connection_of_the_caller_is_inspected_once(client, conn, statements):
    await prepare(client, conn)
    await conn.commit()

    assert await send(client, statements, conn=unwrap(conn)) == DIRECT
    assert await send(client, statements) == BY_FUNCTION


async def test_an_error_of_a_direct_insert_names_its_argument(client, conn):
    await prepare(client)
    await prepare(client, conn)
    await conn.commit()
    for borrowed in (None, unwrap(conn)):
        with pytest.raises(JobSpecError) as caught:
            await client.add_spec(build_unchecked(max_attempts=0), conn=borrowed)
        assert (caught.value.argument, caught.value.code) == ("max_attempts", "GWBMA")
        await conn.rollback()


async def test_a_read_only_transaction_raises_the_error_of_the_server(client, conn):
    await prepare(client, conn)
    await conn.commit()

    await conn.execute("set transaction read only")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        await client.add_job("task", conn=unwrap(conn))
    await conn.rollback()


async def test_a_cleanup_keeps_the_names_of_an_open_transaction(client, conn, database, table, sql):
    await prepare(client, conn)
    await conn.commit()
    sql.run("delete from :schema._private_jobs")

    await client.add_job("task", queue_name="queue", conn=unwrap(conn))
    for cleanup in (CleanupTask.GC_TASK_IDENTIFIERS, CleanupTask.GC_JOB_QUEUES):
        with pytest.raises(CleanupBlocked):
            table.run_plan(plan_cleanup([cleanup], (), table.schemas, max_attempts=1))
    await conn.commit()

    assert sql.run("select task_identifier, queue_name from :schema.jobs") == [("task", "queue")]


# Schemas and roles for which the functions add all jobs

NOTHING = "create function nothing() returns trigger language plpgsql as 'begin return new; end'"
TRIGGER = """
create trigger yours before insert on :schema._private_jobs
for each row execute function nothing()
"""
SECURITY_DEFINER = (
    "alter function :schema.add_job security definer",
    "alter function :schema.add_jobs security definer",
)
CHANGES: dict[str, tuple[str, ...]] = {
    "a trigger": (NOTHING, TRIGGER),
    "a newer level": ("insert into :schema.migrations (id, breaking) values (21, false)",),
    "an overload": ("create function :schema.add_job(name text) returns int return 1",),
    "a setting of a function": ("alter function :schema.add_job set work_mem = '8MB'",),
    "the privileges of the owner": SECURITY_DEFINER,
    "a session without nulls in arrays": ("set local array_nulls = off",),
}


async def test_functions_add_the_jobs_of_a_schema_that_was_changed(
    kind, database, conn, sql, statements
):
    for name, changes in CHANGES.items():
        async with open_client(kind, database) as client:
            for change in changes:
                await conn.execute(sql.text(change))
            sent = [await send(client, statements, conn=unwrap(conn)) for _ in range(3)]
            await conn.rollback()

        assert sent[0] == sent[2] == BY_FUNCTION, name
        assert sent[1][0] == "inspect_adding", name
        assert sent[1][-1] == "add_job", name


async def test_a_direct_insert_notices_changes_of_the_functions_and_new_triggers(
    kind, database, conn, sql, statements
):
    for name in ("a trigger", "a setting of a function", "the privileges of the owner"):
        async with open_client(kind, database) as client:
            await prepare(client, conn)
            await conn.commit()
            for change in CHANGES[name]:
                await conn.execute(sql.text(change))
            sent = [await send(client, statements, conn=unwrap(conn)) for _ in range(4)]
            await conn.rollback()

        assert sent[0] == DIRECT + BY_FUNCTION, name
        assert sent[1] == sent[3] == BY_FUNCTION, name
        assert sent[2] == ["inspect_adding", "add_job"], name


async def test_triggers_for_changes_leave_inserts_direct(client, conn, sql, statements):
    await conn.execute(NOTHING)
    await conn.execute(sql.text(TRIGGER.replace("insert", "update or delete")))
    await prepare(client, conn)

    assert await send(client, statements, conn=unwrap(conn)) == DIRECT
    await conn.rollback()


async def test_jobs_are_inserted_directly_soon_after_a_trigger_is_dropped(client, sql, statements):
    inserts = unwrap(client)._inserts
    sql.run(NOTHING)
    sql.run(TRIGGER)
    await prepare(client)
    assert await send(client, statements) == BY_FUNCTION
    sql.run("drop trigger yours on :schema._private_jobs")
    assert await send(client, statements) == BY_FUNCTION

    inserts._inspect_at -= inserts.inspect_interval_seconds

    assert await send(client, statements) == ["inspect_adding", "has_levels_above", "insert_job"]
    assert await send(client, statements) == DIRECT


async def test_jobs_are_inserted_directly_as_soon_as_the_schema_is_installed(
    kind, database, sql, statements
):
    sql.run("alter schema :schema rename to not_installed_yet")
    async with open_client(kind, database) as client:
        for _ in range(3):
            with pytest.raises(SchemaMissing):
                await client.add_job("task")
        sql.run("alter schema not_installed_yet rename to :schema")
        await prepare(client)

        assert await send(client, statements) == DIRECT


async def test_a_role_that_may_not_call_a_function_adds_no_job(kind, database, role, sql):
    grant(sql, role, INVOKER_PRIVILEGES)
    restricted = SimpleNamespace(dsn=as_role(database, role), schema=database.schema)

    async with open_client(kind, restricted) as client:
        await prepare(client)
        sql.run("revoke execute on function :schema.add_job from public")
        for _ in range(3):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await client.add_job("task")


async def test_a_replaced_function_adds_all_jobs(client, sql, statements):
    await prepare(client)
    fail_add_jobs(sql, "P0001", times=0)

    sent = [await send(client, statements) for _ in range(4)]

    assert sent[0] == DIRECT + BY_FUNCTION
    assert sent[3] == BY_FUNCTION
    assert count_calls(sql) == 4


# What a role needs to call the functions, if they have the privileges of their owner.
CALLER_PRIVILEGES = (
    "grant usage on schema :schema to {role}",
    "grant select on :schema._private_tasks, :schema._private_job_queues to {role}",
)

# What a role needs if they do not.
INVOKER_PRIVILEGES = (
    "grant usage on schema :schema to {role}",
    "grant select on :schema.migrations to {role}",
    *(
        statement
        for table in ("tasks", "job_queues", "jobs")
        for statement in (
            f"grant select, insert, update on :schema._private_{table} to {{role}}",
            f"create policy yours on :schema._private_{table} to {{role}} using (true)",
        )
    ),
)


def grant(sql: Sql, role: str, statements: tuple[str, ...]) -> None:
    for statement in statements:
        sql.run(statement.replace("{role}", quote_identifier(role)))


async def test_a_role_that_may_only_call_the_functions_adds_jobs_in_its_transaction(
    kind, database, role, sql
):
    grant(sql, role, (*CALLER_PRIVILEGES, *SECURITY_DEFINER))
    restricted = SimpleNamespace(dsn=as_role(database, role), schema=database.schema)

    async with open_client(kind, restricted) as client, open_connection(kind, restricted) as conn:
        for connection in (None, unwrap(conn)):
            for _ in range(3):
                await client.add_job("task", conn=connection)
                await client.add_jobs([JobSpec("task"), JobSpec("task")], conn=connection)
        await conn.commit()

    assert sql.value("select count(*) from :schema.jobs") == 18


async def test_a_role_with_policies_inserts_directly(kind, database, role, sql, statements):
    grant(sql, role, INVOKER_PRIVILEGES)
    restricted = SimpleNamespace(dsn=as_role(database, role), schema=database.schema)

    async with open_client(kind, restricted) as client:
        await prepare(client)
        assert await send(client, statements) == DIRECT
        sql.run("drop policy yours on :schema._private_jobs")
        # The function raises the same error.
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await client.add_job("task")


async def test_a_role_that_cannot_read_the_catalog_calls_the_functions(
    kind, database, role, sql, statements
):
    grant(sql, role, INVOKER_PRIVILEGES)
    sql.run("revoke select on pg_catalog.pg_trigger from public")
    restricted = SimpleNamespace(dsn=as_role(database, role), schema=database.schema)

    async with open_client(kind, restricted) as client:
        sent = [await send(client, statements) for _ in range(4)]

    assert sent == [BY_FUNCTION, ["inspect_adding", "add_job"], BY_FUNCTION, BY_FUNCTION]


async def test_privileges_that_a_role_loses_are_noticed(kind, database, role, sql, statements):
    grant(sql, role, INVOKER_PRIVILEGES)
    restricted = SimpleNamespace(dsn=as_role(database, role), schema=database.schema)

    async with open_client(kind, restricted) as client, open_connection(kind, restricted) as conn:
        await prepare(client)
        await prepare(client, conn)
        await conn.commit()
        grant(sql, role, SECURITY_DEFINER)
        grant(sql, role, ("revoke insert on :schema._private_jobs from {role}",))

        assert await send(client, statements) == DIRECT + BY_FUNCTION
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await client.add_job("task", conn=unwrap(conn))
        await conn.rollback()
        assert await send(client, statements, conn=unwrap(conn)) == BY_FUNCTION
        await conn.commit()


async def test_any_level_of_node_is_inserted_into_directly(cluster, databases, statements):
    """The Rust worker has the functions of level 18 too, until it replaces them."""
    name = databases.acquire("template0")
    database = TestDatabase(name, cluster, "of_node")
    try:
        node_install(database.url, version="0.17", schema=database.schema)
        async with open_client("blocking", database) as client:
            await prepare(client)
            assert await send(client, statements) == DIRECT
    finally:
        databases.release(name)
