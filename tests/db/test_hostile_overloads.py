"""A role that may create in public changes nothing: no overload of a built-in name is ever called.

Decision record 15 has the reasons, tests/support/overloads.py makes the overloads.
"""

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from graphile_worker import CleanupTask, JobErrored, JobSpec, JobSucceeded, sync
from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.cron import register_crontabs, schedule_jobs
from graphile_worker._sql.remedies import format_remedy
from graphile_worker._sql.render import ParameterStyle, render
from graphile_worker._sql.statement import Statement
from graphile_worker.ops.bulk import (
    CompleteAction,
    FailAction,
    RescheduleAction,
    RetryAction,
    UnlockAction,
    plan_bulk_change,
    plan_bulk_preview,
)
from graphile_worker.ops.diagnostics import FindingId, examine
from graphile_worker.ops.explain import plan_explain
from graphile_worker.ops.filters import Filter, parse_filter
from graphile_worker.ops.search import plan_count_jobs, plan_list_jobs
from graphile_worker.ops.snapshot import take_snapshot
from graphile_worker.ops.states import JobState
from tests.conftest import TestDatabase
from tests.rules.test_statements import STATEMENTS
from tests.support.cluster import Cluster
from tests.support.database_pool import DatabasePool
from tests.support.job_table import NODE, JobTable
from tests.support.overloads import Overloads
from tests.support.pools import open_session
from tests.support.recorder import Recorder, open_runners
from tests.support.roles import as_role, grant_permissions, open_administered_database, run_script
from tests.support.rust import LEVEL_20
from tests.support.sql import Sql
from tests.support.statements import list_conditions, run_all_statements

pytestmark = pytest.mark.single_version

MODE = "job_key_mode =>"
MINUTE = datetime(2024, 2, 29, 4, 30, tzinfo=UTC)

# What a parsed body can hold; the others are commands without expressions.
PARSED = re.compile(r"(select|with|insert|update|delete)\b")

# Expressions that the search path decides about. Each is how one of the files was written before.
UNSAFE = (
    "json_build_object('r', random(), 'count', cardinality(array[1]))",
    "format('alter database %I set', current_database())",
    "concat_ws(', ', 1::text, current_user, nullif('', ''))",
    "(select count(*) from unnest(array['a']::text[]))",
    "array_agg(1::bigint)",
    "count(1)",
    "exp(least(1::smallint, 10))",
    "quote_ident(current_user)",
    "1::bigint * interval '1 microsecond'",
    "interval '1 second' / 2",
    "'table ' || 'pg_class'::regclass",
    "'at ' || 1 || ' recoveries'",
    "1::oid = 'pg_class'::regclass",
    "1::oid = any (array['pg_catalog'::regnamespace])",
    "case 1::oid when 0 then true end",
)


@dataclass
class Hostile:
    """A database with overloads in public, and a look at what was called.

    The search path of `connection` leads to the overloads, that of `sql` does not.
    """

    database: TestDatabase
    overloads: Overloads
    sql: Sql
    connection: psycopg.Connection

    @property
    def schemas(self) -> Schemas:
        return Schemas.from_names(self.database.schema)

    def called(self, act: str) -> bool:
        """Does an expression call an overload, or fail as one fits too well?"""
        before = len(self.overloads.calls())
        try:
            self.connection.execute(f"select {act}".encode())
        except psycopg.Error:
            return True
        return len(self.overloads.calls()) > before


@pytest.fixture(scope="module")
def hostile_template(cluster, schema) -> Iterator[Overloads]:
    """A database, named `hostile`, with overloads of all that the SQL files name."""
    cluster.create_database("hostile")
    with closing(Sql(cluster.dsn("hostile"), schema)) as sql:
        overloads = Overloads(sql)
        overloads.make()
    yield overloads
    cluster.drop_database("hostile")


@pytest.fixture(scope="module")
def installed_template(cluster, schema, hostile_template) -> Iterator[Overloads]:
    """A copy, named `hostile_installed`, with the schema of the queue and overloads for its types.

    It also has what the Rust worker adds, which some statements read.
    """
    cluster.create_database("hostile_installed", "hostile")
    dsn, schemas = cluster.dsn("hostile_installed"), Schemas.from_names(schema)
    with sync.Client(dsn, schema=schema) as client:
        client.migrate()
    with closing(Sql(dsn, schema)) as sql:
        overloads = hostile_template.in_copy(sql)
        overloads.make(schemas.shared, schemas.companion)
        for statement in LEVEL_20[1:]:
            sql.run(statement)
        assert overloads.calls() == []
    yield overloads
    cluster.drop_database("hostile_installed")


@contextmanager
def open_copy(
    databases: DatabasePool, cluster: Cluster, schema: str, template: str, overloads: Overloads
) -> Iterator[Hostile]:
    name = databases.clone(template)
    database = TestDatabase(name, cluster, schema)
    with closing(Sql(database.dsn, schema)) as sql, closing(sql.another()) as other:
        yield Hostile(database, overloads.in_copy(sql), sql, other.connection)
    cluster.drop_database(name)


@pytest.fixture
def hostile(databases, cluster, schema, hostile_template) -> Iterator[Hostile]:
    """A copy of the template without the schema of the queue."""
    with open_copy(databases, cluster, schema, "hostile", hostile_template) as copy:
        yield copy


@pytest.fixture
def installed(databases, cluster, schema, installed_template) -> Iterator[Hostile]:
    """A copy of the template with the schema of the queue."""
    with open_copy(databases, cluster, schema, "hostile_installed", installed_template) as copy:
        yield copy


def test_overloads_are_called_where_the_search_path_decides(hostile):
    assert [each for each in UNSAFE if not hostile.called(each)] == []


def test_no_statement_would_call_an_overload(installed):
    """As PostgreSQL parses them, in branches that never run, too."""
    found = []
    installed.sql.run("create schema resolved")
    for name in STATEMENTS:
        text = render(
            Statement.with_clauses(name, list_conditions(name)),
            installed.schemas,
            ParameterStyle.NATIVE,
        )
        if not PARSED.match(text):
            continue
        types = dict(reversed(re.findall(r"\$(\d+)::(\w+(?:\[\])?)", text)))
        arguments = ", ".join(types[str(n + 1)] for n in range(len(types)))
        body = f"create function resolved.{name}({arguments}) returns void begin atomic {text}; end"
        try:
            installed.connection.execute(body.encode())
        except psycopg.Error as error:
            found.append((name, str(error)))

    assert found + installed.overloads.chosen() == []
    assert (
        installed.sql.value(
            "select count(*) from pg_proc where pronamespace = 'resolved'::regnamespace"
        )
        > 90
    )


def test_no_statement_calls_an_overload(installed):
    with closing(JobTable(installed.database, installed.sql)) as table:
        for state in JobState:
            table.add_job_in_state(state)
    run_all_statements(installed.connection, installed.schemas)

    assert installed.overloads.calls() == []


def test_no_function_of_the_schema_calls_an_overload(installed):
    """Each branch of their bodies, as any language calls them."""
    for statement in (
        "select :schema.add_job('task', '[1]', 'queue', job_key => 'a', flags => array['f'])",
        f"select :schema.add_job('task', '[2]', job_key => 'a', {MODE} 'preserve_run_at')",
        f"select :schema.add_job('task', job_key => 'b', {MODE} 'unsafe_dedupe')",
        f"select :schema.add_job('task', job_key => 'b', {MODE} 'unsafe_dedupe')",
        f"select :schema.add_job('x', null, 'y', job_key => 'c', {MODE} 'unsafe_dedupe')",
        "select :schema.add_jobs(cast('{}' as :schema.job_spec[]))",
        "select :schema.remove_job('a')",
        "update :schema._private_jobs set locked_at = pg_catalog.now() where key = 'b'",
        "select :schema.remove_job('b')",
        "select :schema.permanently_fail_jobs('{1,2,3}')",
        "select :schema.reschedule_jobs('{1,2,3}', pg_catalog.now(), 1, 2, 3)",
        "select :schema.complete_jobs('{1,2,3}')",
        "select :schema.force_unlock_workers('{x}')",
    ):
        installed.connection.execute(installed.sql.text(statement))
    with suppress(psycopg.DatabaseError):
        installed.connection.execute(
            installed.sql.text(f"select :schema.add_job('t', job_key => 'd', {MODE} 'e')")
        )

    assert installed.overloads.calls() == []


async def test_no_command_worker_or_client_calls_an_overload(installed):
    database = installed.database
    recorder = Recorder()

    async def task(payload: Any) -> None: ...

    async def bad(payload: Any) -> None:
        raise ValueError("no")

    with sync.Client(database.dsn, schema=database.schema) as client:
        use(client)
    async with open_runners(database, recorder.hooks) as start:
        runner = await start({"task": task, "bad": bad})
        await recorder.wait_for(JobSucceeded, count=2)
        await recorder.wait_for(JobErrored)
        await runner.stop()
    with open_session(database) as connection:
        connection.run(register_crontabs(["item"], MINUTE))
        connection.run(schedule_jobs([("item", JobSpec("task"))], MINUTE))
    with closing(JobTable(database, installed.sql)) as table:
        administer(table)
    opened = PsycopgDatabase(database.dsn, installed.schemas, max_size=1)
    await take_snapshot(opened)
    await opened.close()
    told = await examine(database.dsn, schema=database.schema)

    assert {each.id for each in told.findings} & {FindingId.CHECK_UNFINISHED} == set()
    assert installed.overloads.calls() == []


def use(client: sync.Client) -> None:
    """All that a client can do, with jobs left for a worker."""
    hour = timedelta(hours=1)
    client.add_jobs([JobSpec("task", [n], job_key=f"k{n}", run_at=hour) for n in range(3)])
    later = client.add_job("task", queue_name="q", flags=["f"], run_at=hour, job_key="later")
    client.get_job(later.id)
    client.get_job_by_key("later")
    client.reschedule_jobs([later.id], run_at=timedelta(0), priority=1)
    client.permanently_fail_jobs([client.add_job("task").id], "because")
    client.complete_jobs([client.add_job("task").id])
    client.remove_job("k0")
    client.force_unlock_workers(["dead"])
    client.recover_workers(["dead"], crash_retry_delay=timedelta(seconds=1))
    client.list_locked_jobs(["dead"])
    client.cleanup(list(CleanupTask))
    client.list_known_crontabs()
    client.get_tuning()
    client.apply_tuning()
    assert client.migrate() == client.check_schema()
    client.add_job("task")
    client.add_job("bad")


def administer(table: JobTable) -> None:
    """What `jobs` and `workers` ask and change."""
    ids = [table.add_job_in_state(state) for state in JobState]
    for action in (
        RetryAction(),
        RescheduleAction(run_at=timedelta(0)),
        FailAction("x"),
        UnlockAction(force=True),
    ):
        seen = table.run_plan(plan_bulk_preview(action, Filter(), table.schemas))
        table.run_plan(plan_bulk_change(seen, table.schemas, throttle=0))
    wanted = parse_filter(f"task:t* -key:a payload.x:1 error:*no* created:>1h worker:{NODE} any")
    table.run_plan(plan_list_jobs(wanted, table.schemas))
    table.run_plan(plan_count_jobs(wanted, table.schemas))
    for each in ids:
        table.run_plan(plan_explain(each, table.schemas))
    seen = table.run_plan(plan_bulk_preview(CompleteAction(), Filter(), table.schemas))
    table.run_plan(plan_bulk_change(seen, table.schemas, throttle=0))


def test_no_remedy_that_the_doctor_prints_calls_an_overload(installed):
    for name in ("list_open_transactions", "count_sessions", "restore_task", "detach_from_queue"):
        installed.connection.execute(format_remedy(name, installed.schemas, id=1).encode())

    assert installed.overloads.calls() == []


def test_no_script_of_deploy_calls_an_overload(cluster, schema, hostile_template):
    with open_administered_database(cluster, schema, "hostile_roles", "hostile") as database:
        run_script(database, "roles.sql", user="queue_dba")
        grant_permissions(database)
        run_script(database, "hand-over.sql")
        run_script(database, "rights.sql", user="queue_migrator")
        with closing(Sql(database.dsn, schema)) as sql:
            overloads = hostile_template.in_copy(sql)
            sql.run(
                "insert into graphile_worker_api.allowed_tasks values ('queue_enqueuer', 'task')"
            )
            with closing(Sql(as_role(database, "queue_enqueuer"), schema)) as enqueuer:
                enqueuer.run("select graphile_worker_api.enqueue('task', job_key => 'a')")

            assert overloads.calls() == []
