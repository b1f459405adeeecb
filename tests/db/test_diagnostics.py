"""The findings of the doctor, and that the SQL which it prints fixes them."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from graphile_worker import sync
from graphile_worker._sql.identifiers import Schemas, derive_companion_schema
from graphile_worker._sql.queries.migrations import EXT_STEPS
from graphile_worker._sql.render import render_bytes
from graphile_worker.ops.diagnostics import (
    DoctorOptions,
    Finding,
    FindingId,
    QueueHealth,
    Report,
    Severity,
    Thresholds,
    examine,
)
from tests.conftest import TestDatabase
from tests.support.cluster import Cluster
from tests.support.processes import eventually
from tests.support.sql import Sql

# The servers of the tests run with fsync off.
EXPECTED_IN_TESTS = {FindingId.UNSAFE_SERVER}

SYNC_REP_WAITS = "select pid from pg_stat_activity where wait_event = 'SyncRep'"
LOCK_WAITS = "select pid from pg_locks where locktype = 'object' and database = 0 and not granted"

TABLES = ("_private_jobs", "_private_job_queues", "_private_tasks", "_private_known_crontabs")


@pytest.fixture(autouse=True)
def expect_open_public_schema_before_15(pytestconfig, monkeypatch) -> None:
    """Expect the finding that every role may create in public up to PostgreSQL 14."""
    if pytestconfig.getoption("--pg") < 15:
        expected = EXPECTED_IN_TESTS | {FindingId.UNSAFE_PATH}
        monkeypatch.setattr("tests.db.test_diagnostics.EXPECTED_IN_TESTS", expected)


@pytest.fixture(scope="module")
def limited_cluster(pytestconfig) -> Iterator[Cluster]:
    """A server with few connections and without autovacuum."""
    major = pytestconfig.getoption("--pg")
    settings = ["autovacuum=off", "max_connections=20", "max_prepared_transactions=1"]
    # Only sessions that set synchronous_commit wait for it.
    settings += ["synchronous_standby_names=missing"]
    settings += ["max_notify_queue_pages=64"] if major >= 17 else []
    server = Cluster(major, settings).start()
    yield server
    server.stop()


@pytest.fixture
def limited(limited_cluster, schema) -> Iterator[Sql]:
    """A session on a database of that server, with the schema installed."""
    limited_cluster.create_database("limited")
    with sync.Client(limited_cluster.dsn("limited"), schema=schema) as client:
        client.migrate()
    connection = Sql(limited_cluster.dsn("limited"), schema)
    yield connection
    connection.close()
    limited_cluster.drop_database("limited")


async def run_doctor(where: TestDatabase | Sql, user: str | None = None, **options: Any) -> Report:
    dsn = where.dsn if user is None else make_conninfo(where.dsn, user=user)
    thresholds = replace(
        Thresholds(), **{name: options.pop(name) for name in list(options) if name != "timeout"}
    )
    doctor_options = DoctorOptions(thresholds=thresholds, **options)
    return await examine(dsn, schema=where.schema, options=doctor_options)


async def list_findings(
    where: TestDatabase | Sql, user: str | None = None, **options: Any
) -> dict[FindingId, Finding]:
    """Return the findings by id, without those that all tests have."""
    findings = (await run_doctor(where, user, **options)).findings
    assert len({each.id for each in findings}) == len(findings)
    return {each.id: each for each in findings if each.id not in EXPECTED_IN_TESTS}


def apply_sql(sql: Sql, finding: Finding) -> None:
    """Run the SQL of a finding."""
    assert finding.sql is not None
    # Without parameters, psycopg sends several statements at once.
    psycopg.ClientCursor(sql.connection).execute(finding.sql.encode())


def migrate(database: TestDatabase) -> None:
    with sync.Client(database.dsn, schema=database.schema) as client:
        client.migrate()


# No findings


async def test_a_new_database_has_no_findings(database):
    report = await run_doctor(database)

    assert {each.id for each in report.findings} == EXPECTED_IN_TESTS
    assert (report.is_critical, report.verdict) == (False, QueueHealth.HEALTHY)
    assert "level 20, installed by Python on " in report.facts["schema"]
    assert "owned by postgres" in report.facts["schema"]
    assert (
        f"level {len(EXT_STEPS)} of {len(EXT_STEPS)}, by postgres on " in report.facts["companion"]
    )


async def test_young_jobs_of_every_kind_have_no_findings(database, sql):
    sql.run("select :schema.add_job('one', queue_name => 'q')")
    sql.run("select :schema.add_job('two', run_at => now() + interval '1 year')")
    sql.run("select :schema.add_job('three', max_attempts => 1)")
    sql.run("update :schema._private_jobs set attempts = 1 where max_attempts = 1")
    sql.run("update :schema._private_jobs set locked_by = 'x', locked_at = now()")

    assert await list_findings(database) == {}


async def test_a_paused_queue_is_a_note(database, sql):
    sql.run("select :schema.add_job('one', queue_name => 'q')")
    sql.run(
        "update :schema._private_job_queues set locked_by = 'paused:ana', locked_at = '9999-01-01'"
    )

    report = await run_doctor(database)

    [finding] = [each for each in report.findings if each.id not in EXPECTED_IN_TESTS]
    assert (finding.id, finding.severity) == (FindingId.QUEUE_PAUSED, Severity.NOTE)
    assert finding.title == 'queue "q" is paused, 1 job waiting'
    assert finding.evidence == ("paused by ana",)
    assert report.verdict is QueueHealth.HEALTHY


async def test_permanently_failed_jobs_are_reported_by_task(database, sql):
    sql.run("select :schema.add_job(task) from unnest(array['a', 'a', 'b']) as task")
    sql.run(
        "update :schema._private_jobs set attempts = max_attempts, last_error = 'Boom', "
        "run_at = now() - id * interval '1 hour', updated_at = now() - id * interval '1 hour'"
    )

    report = await run_doctor(database)

    [finding] = [each for each in report.findings if each.id not in EXPECTED_IN_TESTS]
    assert (finding.id, finding.severity) == (FindingId.PERMANENTLY_FAILED, Severity.WARNING)
    assert finding.title == "3 jobs failed permanently, the oldest 3h ago, the newest 1h ago"
    assert finding.evidence == (
        "a: 2, the oldest 2h ago, the newest 1h ago; job 2: Boom",
        "b: 1, 3h ago; job 3: Boom",
    )
    assert report.verdict is QueueHealth.DEGRADED


async def test_a_member_of_the_owner_has_no_findings(database, sql, role):
    sql.run(f"grant postgres to {role}")
    report = await run_doctor(database, user=role)
    sql.run(f"revoke postgres from {role}")

    # A member inherits the tables of a superuser, not its attributes.
    assert {each.id for each in report.findings} == EXPECTED_IN_TESTS


async def test_the_diagnosis_only_reads(database, sql):
    sql.run(f"alter database {database.name} set default_transaction_read_only = on")

    [finding] = (await list_findings(database)).values()
    apply_sql(sql, finding)

    assert (finding.id, finding.severity) == (FindingId.READ_ONLY, Severity.CRITICAL)
    assert finding.evidence == ("default_transaction_read_only is on",)
    assert await list_findings(database) == {}


# The connection


async def test_a_missing_database_is_reported(database):
    gone = make_conninfo(database.dsn, dbname="nowhere")

    report = await examine(gone, schema=database.schema)

    assert [each.id for each in report.findings] == [FindingId.DATABASE_MISSING]
    assert report.findings[0].sql == 'create database "nowhere";'


@pytest.mark.nightly
async def test_a_server_that_is_too_old_is_reported():
    server = Cluster(13).start()
    try:
        report = await examine(server.dsn())
    finally:
        server.stop()

    assert [each.id for each in report.findings] == [FindingId.SERVER_TOO_OLD]


# The schema


async def test_a_database_without_the_schema_is_reported_with_the_command_to_install_it(
    empty_database,
):
    [finding] = (await list_findings(empty_database)).values()

    assert (finding.id, finding.severity) == (FindingId.SCHEMA_MISSING, Severity.CRITICAL)
    assert finding.shell is not None
    assert finding.shell.startswith("graphile-worker migrate")
    migrate(empty_database)
    assert await list_findings(empty_database) == {}


async def test_an_empty_schema_counts_as_missing(empty_database):
    sql = Sql(empty_database.dsn, empty_database.schema)
    sql.run("create schema :schema")
    sql.close()

    [finding] = (await list_findings(empty_database)).values()

    assert finding.id is FindingId.SCHEMA_MISSING
    assert finding.evidence == ("the schema exists, but is empty",)


async def test_a_schema_that_node_installed_lacks_only_the_companion_and_the_indexes(node_database):
    report = await run_doctor(node_database)
    missing = {each.id for each in report.findings} - EXPECTED_IN_TESTS
    migrate(node_database)

    assert missing == {FindingId.COMPANION_MISSING, FindingId.INDEXES_MISSING}
    assert "level 20, installed by Node on " in report.facts["schema"]
    assert await list_findings(node_database) == {}


async def test_missing_objects_of_a_schema_are_reported(database, sql):
    sql.run("drop function :schema.remove_job(text)")
    sql.run("drop view :schema.jobs")

    [finding] = (await list_findings(database)).values()

    assert (finding.id, finding.severity) == (FindingId.SCHEMA_INCOMPLETE, Severity.CRITICAL)
    assert finding.evidence == ("missing: jobs, remove_job",)


@pytest.mark.parametrize(
    ("change", "id"),
    [
        ("delete from :schema.migrations where id > 17", FindingId.SCHEMA_TOO_OLD),
        ("delete from :schema.migrations where id > 18", FindingId.SCHEMA_BEHIND),
        ("delete from :schema.migrations where id > 19", FindingId.SCHEMA_BEHIND),
        ("insert into :schema.migrations values (21, now(), false)", FindingId.SCHEMA_NEWER),
        ("insert into :schema.migrations values (21, now(), true)", FindingId.SCHEMA_TOO_NEW),
        ("alter table :schema.migrations drop column breaking", FindingId.SCHEMA_TOO_OLD),
    ],
)
async def test_the_level_of_the_ledger_decides(database, sql, change, id):
    if "drop column" in change:
        sql.run("delete from :schema.migrations where id > 5")
    sql.run(change)

    assert set(await list_findings(database)) == {id}


# Permissions


async def test_missing_privileges_are_reported_with_the_grants(database, sql, role):
    [finding] = (await list_findings(database, user=role)).values()
    apply_sql(sql, finding)
    remaining = await list_findings(database, user=role)
    sql.run(f"revoke postgres from {role}")

    assert (finding.id, finding.severity) == (FindingId.PRIVILEGES_MISSING, Severity.CRITICAL)
    assert finding.evidence[0] == f"no usage on schema {database.schema}"
    assert "no select, insert, update, delete on _private_jobs" in finding.evidence
    assert "That is a superuser" in finding.advice
    assert remaining == {}


async def test_rows_hidden_from_a_role_with_privileges_are_reported(database, sql, role):
    sql.run(f"grant usage on schema :schema, :ext_schema to {role}")
    sql.run(f"grant all on all tables in schema :schema to {role}")
    sql.run(f"grant all on all tables in schema :ext_schema to {role}")

    [finding] = (await list_findings(database, user=role)).values()
    apply_sql(sql, finding)
    remaining = await list_findings(database, user=role)
    sql.run(f"revoke postgres from {role}")

    assert (finding.id, finding.severity) == (FindingId.ROWS_HIDDEN, Severity.CRITICAL)
    assert remaining == {}


async def test_a_role_with_policies_has_no_findings(database, sql, role):
    sql.run(f"grant usage on schema :schema, :ext_schema to {role}")
    sql.run(f"grant all on all tables in schema :schema to {role}")
    sql.run(f"grant all on all tables in schema :ext_schema to {role}")
    for table in TABLES:
        sql.run(f"create policy all_of_it on :schema.{table} to {role} using (true)")

    assert await list_findings(database, user=role) == {}


async def test_a_limited_role_sees_what_is_not_checked_and_no_way_to_more_privileges(
    database, sql, role
):
    sql.run(f"grant usage on schema :schema, :ext_schema to {role}")
    sql.run(f"grant select on all tables in schema :schema to {role}")
    sql.run(f"grant select on all tables in schema :ext_schema to {role}")

    hidden = await list_findings(database, user=role)
    for table in TABLES:
        sql.run(f"create policy all_of_it on :schema.{table} to {role} using (true)")
    sql.run("select :schema.add_job('a')")
    sql.run("delete from :schema._private_tasks")
    seen = await list_findings(database, user=role)

    assert set(hidden) == {FindingId.LIMITED_ROLE, FindingId.ROWS_HIDDEN}
    assert hidden[FindingId.ROWS_HIDDEN].sql is None
    limited = hidden[FindingId.LIMITED_ROLE]
    assert (limited.severity, limited.sql) == (Severity.WARNING, None)
    assert "no insert, update, delete on _private_jobs" in limited.evidence
    assert set(seen) == {FindingId.LIMITED_ROLE, FindingId.DANGLING_TASKS}


async def test_where_the_queue_has_policies_no_finding_makes_a_role_its_owner(database, sql, role):
    sql.run("create policy for_another_role on :schema._private_jobs to pg_monitor using (true)")
    without = await list_findings(database, user=role)
    sql.run(f"grant usage on schema :schema to {role}")
    sql.run(f"grant all on all tables in schema :schema to {role}")
    hidden = await list_findings(database, user=role)

    for findings, id in ((without, FindingId.PRIVILEGES_MISSING), (hidden, FindingId.ROWS_HIDDEN)):
        assert set(findings) == {id}
        assert findings[id].sql is None
        assert "deploy/sql/rights.sql" in findings[id].advice


async def test_forced_row_level_security_of_the_owner_is_reported(database, sql, role):
    sql.run(f"grant usage, create on schema :schema to {role}")
    sql.run(f"grant usage on schema :ext_schema to {role}")
    sql.run(f"grant all on all tables in schema :ext_schema to {role}")
    sql.run(f"grant select on :schema.migrations to {role}")
    for table in TABLES:
        sql.run(f"alter table :schema.{table} owner to {role}")
        sql.run(f"alter table :schema.{table} force row level security")

    [finding] = (await list_findings(database, user=role)).values()
    apply_sql(sql, finding)
    remaining = await list_findings(database, user=role)

    assert finding.id is FindingId.ROWS_HIDDEN
    assert finding.advice.startswith("The owner is subject to row level security too")
    assert remaining == {}


async def test_a_function_without_execute_is_reported(database, sql, role):
    sql.run("revoke execute on all functions in schema :schema from public")
    sql.run(f"grant usage on schema :schema to {role}")
    sql.run(f"grant all on all tables in schema :schema to {role}")

    [finding] = (await list_findings(database, user=role)).values()

    assert finding.id is FindingId.PRIVILEGES_MISSING
    assert finding.evidence == tuple(
        f"no execute on {each}" for each in ("add_job", "add_jobs", "remove_job")
    )


# The companion


async def test_a_missing_companion_is_reported_and_migrate_installs_it(database, sql):
    sql.run("drop schema :ext_schema cascade")

    [finding] = (await list_findings(database)).values()
    migrate(database)

    assert (finding.id, finding.severity) == (FindingId.COMPANION_MISSING, Severity.WARNING)
    assert await list_findings(database) == {}


async def test_a_companion_that_another_role_owns_is_reported_and_not_read(database, sql, role):
    sql.run(f"alter schema :ext_schema owner to {role}")
    # A read would fail.
    sql.run("alter table :ext_schema.migrations drop column applied_by")

    [finding] = (await list_findings(database)).values()
    apply_sql(sql, finding)
    migrate(database)

    assert (finding.id, finding.severity) == (FindingId.COMPANION_FOREIGN, Severity.CRITICAL)
    assert finding.evidence == (f"{derive_companion_schema(database.schema)} belongs to {role}",)
    assert await list_findings(database) == {}


async def test_a_companion_that_is_behind_is_reported_and_migrate_upgrades_it(database, sql):
    sql.run("delete from :ext_schema.migrations where id > 1")

    [finding] = (await list_findings(database)).values()
    migrate(database)

    assert (finding.id, finding.severity) == (FindingId.COMPANION_BEHIND, Severity.WARNING)
    assert finding.evidence == (
        "missing: 0002_leases, 0004_turns, 0005_samples, 0006_history, 0007_pauses, 0008_limits, "
        "0009_unique",
    )
    assert await list_findings(database) == {}


async def test_missing_privileges_on_the_companion_are_reported_with_the_grants(
    database, sql, role
):
    sql.run(f"grant usage on schema :schema to {role}")
    sql.run(f"grant all on all tables in schema :schema to {role}")
    for table in TABLES:
        sql.run(f"create policy all_of_it on :schema.{table} to {role} using (true)")

    [finding] = (await list_findings(database, user=role)).values()
    apply_sql(sql, finding)

    assert (finding.id, finding.severity) == (FindingId.COMPANION_PRIVILEGES, Severity.WARNING)
    assert await list_findings(database, user=role) == {}

    # A role that got its privileges before pauses existed.
    sql.run(f"revoke insert, delete on :ext_schema.pauses from {role}")
    [finding] = (await list_findings(database, user=role)).values()
    assert finding.id == FindingId.COMPANION_PRIVILEGES
    assert finding.evidence == (
        "no insert, delete on pauses",
        "workers may run jobs of paused tasks, and may not end pauses in time",
    )
    apply_sql(sql, finding)
    assert await list_findings(database, user=role) == {}


async def test_missing_indexes_are_reported_and_migrate_creates_them(database, sql):
    sql.run("drop index :schema.gwpy_free_jobs")
    sql.run(
        "update pg_index set indisvalid = false where indexrelid = $1::regclass", half_built(sql)
    )

    [finding] = (await list_findings(database)).values()
    migrate(database)

    assert (finding.id, finding.severity) == (FindingId.INDEXES_MISSING, Severity.WARNING)
    assert finding.evidence[:2] == (
        "missing: gwpy_free_jobs, gwpy_queued_jobs",
        "half built: gwpy_queued_jobs",
    )
    assert await list_findings(database) == {}


def half_built(sql: Sql) -> str:
    return sql.text(":schema.gwpy_queued_jobs").decode()


# The search path


async def check_search_path(database: TestDatabase, **settings: str) -> Finding | None:
    """Return the finding about the search path, with settings of the session."""
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    report = await examine(make_conninfo(database.dsn, options=options), schema=database.schema)
    return next((each for each in report.findings if each.id is FindingId.UNSAFE_PATH), None)


async def test_roles_that_can_create_in_a_schema_on_the_search_path_are_reported(
    database, sql, role
):
    sql.run("revoke create on schema public from public")
    safe = await check_search_path(database)
    sql.run(f"grant create on schema public to {role}, public")

    finding = await check_search_path(database)
    assert finding is not None
    apply_sql(sql, finding)

    assert safe is None
    assert finding.severity is Severity.WARNING
    assert finding.evidence == (
        "every role may create in schema 'public'",
        f"role '{role}' may create in schema 'public'",
    )
    assert "Functions that Node or Rust installed" in finding.advice
    assert await check_search_path(database) is None


async def test_a_schema_of_another_role_on_the_search_path_is_reported(database, sql, role):
    sql.run("revoke create on schema public from public")
    sql.run(f"create schema shop authorization {role}")

    behind = await check_search_path(database, search_path="public,shop")
    first = await check_search_path(database, search_path="shop,pg_catalog")

    assert behind is not None
    assert (behind.evidence, behind.sql) == ((f"role '{role}' owns schema 'shop'",), None)
    assert first is not None
    assert first.evidence == (
        f"role '{role}' owns schema 'shop', which is searched before pg_catalog",
    )
    assert first.advice.startswith("Their functions replace built-in operators")
    assert await check_search_path(database) is None


async def test_the_owner_of_the_queue_or_the_database_may_create_on_the_search_path(
    database, sql, role
):
    sql.run("revoke create on schema public from public")
    sql.run(f"grant create on schema public to {role}")
    sql.run(f"alter schema :schema owner to {role}")
    as_owner_of_the_queue = await check_search_path(database)
    sql.run("alter schema :schema owner to postgres")
    sql.run(f"alter database {database.name} owner to {role}")
    as_owner_of_the_database = await check_search_path(database)
    sql.run(f"alter database {database.name} owner to postgres")

    assert (as_owner_of_the_queue, as_owner_of_the_database) == (None, None)


# Jobs


async def test_jobs_of_a_deleted_task_run_again_with_a_task(database, sql):
    sql.run("select :schema.add_job('resize'), :schema.add_job('resize')")
    sql.run("delete from :schema._private_tasks")

    [finding] = (await list_findings(database)).values()
    apply_sql(sql, finding)

    assert (finding.id, finding.severity) == (FindingId.DANGLING_TASKS, Severity.CRITICAL)
    assert finding.title.startswith("2 jobs of deleted tasks")
    assert await list_findings(database) == {}
    assert sql.run("select task_identifier from :schema.jobs") == [("the-task",)] * 2


async def test_jobs_of_a_deleted_queue_run_again_without_a_queue(database, sql):
    sql.run("select :schema.add_job('resize', queue_name => 'a')")
    sql.run("select :schema.add_job('resize', queue_name => 'b')")
    sql.run("delete from :schema._private_job_queues")

    [finding] = (await list_findings(database)).values()
    apply_sql(sql, finding)

    assert (finding.id, finding.severity) == (FindingId.DANGLING_QUEUES, Severity.CRITICAL)
    assert len(finding.evidence) == 2
    assert await list_findings(database) == {}


async def test_locks_older_than_four_hours_are_reported_by_holder(database, sql):
    for name in ("a", "b", "b", "c"):
        sql.run("select :schema.add_job($1, queue_name => $1)", name)
    sql.run(
        "update :schema._private_jobs as jobs set locked_at = now() - interval '5 hours', "
        "locked_by = 'pool of ' || (select identifier from :schema._private_tasks as tasks "
        "where tasks.id = jobs.task_id and identifier <> 'c')"
    )

    [finding] = (await list_findings(database)).values()

    assert (finding.id, finding.severity) == (FindingId.STALE_LOCKS, Severity.CRITICAL)
    assert finding.title == "4 jobs are locked for more than four hours"
    assert "pool of b: 2 jobs, locked for up to 5h, the first is job 2" in finding.evidence
    assert "without a worker id: 1 job, locked for up to 5h, the first is job 4" in finding.evidence
    assert finding.shell is not None
    assert finding.shell.endswith("'pool of b' 'pool of a'")


async def test_the_lock_of_a_named_queue_alone_may_be_stale(database, sql):
    sql.run("select :schema.add_job('a', queue_name => 'images')")
    sql.run(
        "update :schema._private_job_queues "
        "set locked_by = 'x', locked_at = now() - interval '5 hours'"
    )

    findings = await list_findings(database)

    assert set(findings) == {FindingId.STALE_LOCKS, FindingId.QUEUE_BLOCKED}
    assert findings[FindingId.STALE_LOCKS].title == (
        "1 named queue is locked for more than four hours"
    )


async def test_the_locks_of_a_dead_pool_are_reported_once_at_any_age(database, sql):
    sql.run("select :schema.add_job('a')")
    sql.run(
        "update :schema._private_jobs set locked_by = 'p', locked_at = now() - interval '5 hours'"
    )
    enter(sql, "p", silent="5 hours")

    findings = await list_findings(database)
    with sync.Client(database.dsn, schema=database.schema) as client:
        client.recover_workers(["p"])

    assert set(findings) == {FindingId.DEAD_POOL_LOCKS}
    assert await list_findings(database) == {}


async def test_a_pool_counts_as_dead_after_two_leases(database, sql):
    enter(sql, "sleepy", silent="15 minutes", lease="10 minutes")
    enter(sql, "swept", silent="1 hour", swept=True)

    assert await list_findings(database) == {}


async def test_a_dead_pool_without_locks_is_a_warning(database, sql):
    enter(sql, "p", silent="1 hour")

    [finding] = (await list_findings(database)).values()

    assert (finding.id, finding.severity) == (FindingId.DEAD_POOLS, Severity.WARNING)
    assert finding.evidence == ("unknown worker p on web-1, process 7, last heartbeat 1h ago",)


async def test_a_session_that_holds_the_rescue_lock_is_reported(database, sql):
    locks = (
        "select pg_advisory_lock(1196905043, 1398228304)",
        "select name from :ext_schema.turns for update",
    )
    for lock in locks:
        other = sql.another()
        other.run("begin")
        other.run(lock)
        pid = other.value("select pg_backend_pid()")

        young = await list_findings(database)
        finding = (await list_findings(database, max_transaction_age=timedelta(0)))[
            FindingId.RESCUE_LOCK_HELD
        ]
        apply_sql(sql, finding)

        assert young == {}
        assert (finding.id, finding.severity) == (FindingId.RESCUE_LOCK_HELD, Severity.WARNING)
        assert finding.evidence[0].startswith(f"pid={pid} role=postgres application=")
        # A terminated session ends a moment later.
        while FindingId.RESCUE_LOCK_HELD in await list_findings(
            database, max_transaction_age=timedelta(0)
        ):
            pass
        other.close()


async def test_the_wrong_clock_of_a_worker_is_reported(database, sql):
    enter(sql, "early", clock="extract(epoch from now()) + 120")
    enter(sql, "late", clock="extract(epoch from now()) - 3600")
    enter(sql, "right", clock="extract(epoch from now()) - 9")
    enter(sql, "odd", clock="'noon'::text")
    enter(sql, "mute", clock="null::text")

    [finding] = (await list_findings(database)).values()

    assert (finding.id, finding.severity) == (FindingId.POOL_CLOCK_OFFSET, Severity.WARNING)
    assert set(finding.evidence) == {
        "early on web-1: 2m ahead of the database's",
        "late on web-1: 1h behind the database's",
    }


def enter(
    sql: Sql,
    pool_id: str,
    *,
    silent: str = "0",
    lease: str = "10 milliseconds",
    swept: bool = False,
    clock: str = "null::text",
) -> None:
    lease = lease if silent != "0" else "1 hour"
    sql.run(
        "insert into :ext_schema.pools (id, seen_at, lease, swept_at, details) "
        "values ($1, now() - $2::text::interval, $3::text::interval, "
        "case when $4 then now() end, "
        f"json_build_object('host', 'web-1', 'pid', 7, 'clock', {clock}))",
        pool_id,
        silent,
        lease,
        swept,
    )


# The server


@pytest.mark.parametrize(
    ("sequence", "reached", "severity"),
    [
        ("tasks_id_seq", 1_100_000_000, Severity.WARNING),
        ("job_queues_id_seq", 2_147_483_646, Severity.CRITICAL),
    ],
)
async def test_sequences_that_come_to_their_end_are_reported(
    database, sql, sequence, reached, severity
):
    name = sql.text(f":schema.{sequence}").decode()
    sql.run("select setval($1::text::regclass, $2)", name, reached)
    sql.run("select :schema.add_job('a', queue_name => 'a')")

    [finding] = (await list_findings(database)).values()
    apply_sql(sql, finding)
    sql.run("select :schema.add_job('b', queue_name => 'b')")

    assert (finding.id, finding.severity) == (FindingId.SEQUENCE_FILL, severity)
    assert await list_findings(database) == {}


async def test_a_restarted_sequence_skips_ids_that_jobs_use(database, sql):
    sql.run("select :schema.add_job(name, queue_name => name) from unnest(array['a', 'b']) as name")
    sql.run("delete from :schema._private_tasks where identifier = 'b'")
    sql.run("delete from :schema._private_job_queues where queue_name = 'b'")
    for sequence in ("tasks_id_seq", "job_queues_id_seq"):
        sql.run(f"alter sequence :schema.{sequence} restart with 2147483647")
    sql.run("select :schema.add_job('c', queue_name => 'c')")

    findings = (await run_doctor(database)).findings

    statements = [each.sql for each in findings if each.id is FindingId.SEQUENCE_FILL]
    assert [(each or "").rpartition(" ")[2] for each in statements] == ["3;", "3;"]


async def test_dead_rows_are_reported(database, sql):
    if database.cluster.major < 15:
        pytest.skip("counts come when they come before PostgreSQL 15")
    sql.run("alter table :schema._private_jobs set (autovacuum_enabled = off)")
    sql.run(
        "select count(*) from :schema.add_jobs(array(select "
        "cast(row('a', null, null, null, null, null, null, null) as :schema.job_spec) "
        "from generate_series(1, 11000)))"
    )
    sql.run("delete from :schema._private_jobs")
    sql.run("select pg_stat_force_next_flush()")

    findings = await list_findings(database, min_dead_rows=10_000)
    with sync.Client(database.dsn, schema=database.schema) as client:
        client.apply_tuning()
    apply_sql(sql, findings[FindingId.DEAD_ROWS])

    assert set(findings) == {FindingId.DEAD_ROWS, FindingId.AUTOVACUUM_OFF}
    assert findings[FindingId.DEAD_ROWS].evidence == (
        "_private_jobs: 11,000 dead beside 0, last vacuum never",
    )
    assert await list_findings(database) == {}


async def test_a_server_without_autovacuum_is_reported(limited):
    [finding] = (await list_findings(limited)).values()

    assert (finding.id, finding.severity) == (FindingId.AUTOVACUUM_OFF, Severity.WARNING)
    assert (
        finding.sql
        == "alter system set \"autovacuum\" = 'on';\nselect pg_catalog.pg_reload_conf();"
    )


async def test_an_old_prepared_transaction_is_reported(limited):
    limited.run("begin")
    limited.run("select txid_current()")
    limited.run("prepare transaction 'it''s left'")

    findings = await list_findings(limited, max_transaction_age=timedelta(0))
    apply_sql(limited, findings[FindingId.HELD_SNAPSHOT])

    assert (
        "prepared transaction it's left for 0.0s" in findings[FindingId.HELD_SNAPSHOT].evidence[0]
    )
    assert FindingId.HELD_SNAPSHOT not in await list_findings(
        limited, max_transaction_age=timedelta(0)
    )


async def test_a_server_with_few_free_connections_is_reported(limited):
    others = [limited.another() for _ in range(14)]

    findings = await list_findings(limited)
    for each in others:
        each.close()

    assert findings[FindingId.CONNECTIONS_FULL].severity is Severity.WARNING


async def test_a_notification_queue_that_fills_up_is_reported(limited, limited_cluster):
    if limited_cluster.major < 17:
        pytest.skip("the room for notifications can be made small from PostgreSQL 17 on")
    sleeper = limited.another()
    sleeper.run("listen somewhere")
    sleeper.run("begin")
    sleeper.run("select 1")
    severities = []

    for count in (10, 40):
        limited.run(
            "select pg_notify('somewhere', repeat('x', 7900) || n) "
            f"from generate_series(1, {count}) as n"
        )
        severities.append((await list_findings(limited))[FindingId.NOTIFY_QUEUE].severity)
    sleeper.close()

    assert severities == [Severity.WARNING, Severity.CRITICAL]


async def test_commits_that_wait_for_the_lock_of_notifications_are_reported(limited):
    add = limited.text("select :schema.add_job('task')")
    # A new name would make the others wait for the transaction that creates it.
    limited.connection.execute(add)
    with ExitStack() as stack:
        sessions = [stack.enter_context(closing(limited.another())) for _ in range(3)]
        # Its commit has the lock, and waits for a standby.
        sessions[0].run("set synchronous_commit = on")
        threads = [
            threading.Thread(target=each.connection.execute, args=(add,)) for each in sessions
        ]
        threads[0].start()
        eventually(lambda: limited.run(SYNC_REP_WAITS), "the first commit waits")
        before = await list_findings(limited)
        for thread in threads[1:]:
            thread.start()
        eventually(lambda: len(limited.run(LOCK_WAITS)) == 2, "two commits wait for the lock")
        found = (await list_findings(limited))[FindingId.NOTIFY_LOCK]
        limited.run(
            "select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'"
        )
        for thread in threads:
            thread.join()

    assert FindingId.NOTIFY_LOCK not in before
    assert found.severity is Severity.WARNING
    assert found.title.endswith("up to 2 sessions at once")
    assert 'notify="coalesced"' in found.advice


# The diagnosis itself


async def test_a_locked_table_leaves_a_check_unfinished(database, sql):
    other = sql.another()
    other.run("begin")
    other.run("lock table :schema._private_jobs in access exclusive mode")

    [finding] = (await list_findings(database)).values()
    other.close()

    assert (finding.id, finding.severity) == (FindingId.CHECK_UNFINISHED, Severity.WARNING)
    assert finding.title == "a check could not be finished: jobs, locks and workers"
    assert "lock timeout" in finding.evidence[0]


# With these thresholds, every server has an old snapshot, dead rows and a wrong clock.
STRICT: dict[str, Any] = {
    "max_transaction_age": timedelta(0),
    "min_dead_rows": -1,
    "vacuum_overdue_after": timedelta(0),
    "clock_warning": timedelta(0),
}


def hold_snapshot(sql: Sql) -> Sql:
    """Open a transaction that holds a snapshot, in another session."""
    other = sql.another()
    other.run("begin isolation level repeatable read")
    other.run("select 1")
    return other


async def test_clock_old_snapshots_and_dead_rows_are_reported_while_the_jobs_are_locked(
    database, sql
):
    other = hold_snapshot(sql)
    other.run("lock table :schema._private_jobs in access exclusive mode")
    pid = other.value("select pg_backend_pid()")

    report = await run_doctor(database, **STRICT)
    other.close()

    findings = {each.id: each for each in report.findings if each.id not in EXPECTED_IN_TESTS}
    assert set(findings) == {
        FindingId.CHECK_UNFINISHED,
        FindingId.HELD_SNAPSHOT,
        FindingId.DEAD_ROWS,
        FindingId.CLOCK_OFFSET,
    }
    assert findings[FindingId.CHECK_UNFINISHED].title.endswith("jobs, locks and workers")
    assert findings[FindingId.HELD_SNAPSHOT].evidence[0].startswith(f"session {pid}, postgres")
    assert f"pg_terminate_backend({pid})" in (findings[FindingId.HELD_SNAPSHOT].sql or "")
    assert report.verdict is QueueHealth.UNKNOWN


async def test_clock_and_old_snapshots_are_reported_without_the_schema(empty_database):
    sql = Sql(empty_database.dsn, empty_database.schema)
    other = hold_snapshot(sql)

    report = await run_doctor(empty_database, **STRICT)
    other.close()
    sql.close()

    assert {each.id for each in report.findings} - EXPECTED_IN_TESTS == {
        FindingId.SCHEMA_MISSING,
        FindingId.HELD_SNAPSHOT,
        FindingId.CLOCK_OFFSET,
    }
    assert report.verdict is QueueHealth.UNKNOWN


async def test_a_finding_of_a_snapshot_and_of_a_separate_check_is_reported_once(database, sql):
    other = hold_snapshot(sql)

    findings = await list_findings(database, **STRICT)
    other.close()

    assert set(findings) == {
        FindingId.HELD_SNAPSHOT,
        FindingId.DEAD_ROWS,
        FindingId.CLOCK_OFFSET,
    }


async def test_a_check_ends_after_its_timeout(database, sql):
    other = sql.another()
    other.run("begin")
    other.run("lock table :schema._private_jobs in access exclusive mode")

    report = await run_doctor(database, timeout=timedelta(milliseconds=200))
    other.close()

    [finding] = [each for each in report.findings if "jobs, locks" in each.title]
    assert finding.id is FindingId.CHECK_UNFINISHED
    # A busy machine may leave more than the jobs unread.
    assert any("statement timeout" in each for each in finding.evidence)
    assert finding.shell is not None
    assert finding.shell.startswith("graphile-worker doctor --timeout 1m")


def test_a_snapshot_reads_jobs_once(database, sql):
    statement = render_bytes("snapshot_jobs", Schemas.from_names(database.schema))

    plan = sql.connection.execute(b"explain " + statement, ([], 100)).fetchall()

    assert sum("on _private_jobs" in line for (line,) in plan) == 1
