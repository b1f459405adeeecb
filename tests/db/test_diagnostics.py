"""What the doctor finds, what it leaves alone, and that what it says to type is a cure."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from graphile_worker import sync
from graphile_worker._sql.identifiers import Schemas, derive_companion_schema
from graphile_worker._sql.render import ParameterStyle, render
from graphile_worker.ops.diagnostics import (
    DoctorOptions,
    Finding,
    FindingId,
    Report,
    Severity,
    examine,
)
from tests.conftest import TestDatabase
from tests.support.cluster import Cluster
from tests.support.sql import Sql

# The servers of the tests write nothing to disk: true, and told.
OF_THE_TESTS = {FindingId.UNSAFE_SERVER}

TABLES = ("_private_jobs", "_private_job_queues", "_private_tasks", "_private_known_crontabs")


@pytest.fixture(autouse=True)
def public_is_open_before_15(pytestconfig, monkeypatch) -> None:
    """By default, every role may create in public up to PostgreSQL 14: true, and told."""
    if pytestconfig.getoption("--pg") < 15:
        told = OF_THE_TESTS | {FindingId.UNSAFE_PATH}
        monkeypatch.setattr("tests.db.test_diagnostics.OF_THE_TESTS", told)


@pytest.fixture
def role(database, sql) -> Iterator[str]:
    """A role that owns nothing; roles belong to the cluster, so it goes again."""
    name = f"role_{database.name}"
    sql.run(f"create role {name} login")
    yield name
    sql.run(f"drop owned by {name} cascade")
    sql.run(f"drop role {name}")


@pytest.fixture(scope="module")
def strained_cluster(pytestconfig) -> Iterator[Cluster]:
    """A server with little room, and nobody who tidies up."""
    major = pytestconfig.getoption("--pg")
    settings = ["autovacuum=off", "max_connections=20", "max_prepared_transactions=1"]
    settings += ["max_notify_queue_pages=64"] if major >= 17 else []
    server = Cluster(major, settings).start()
    yield server
    server.stop()


@pytest.fixture
def strained(strained_cluster, schema) -> Iterator[Sql]:
    """A session on a database of that server, with our schema."""
    strained_cluster.create_database("strained")
    with sync.Client(strained_cluster.dsn("strained"), schema=schema) as client:
        client.migrate()
    connection = Sql(strained_cluster.dsn("strained"), schema)
    yield connection
    connection.close()
    strained_cluster.drop_database("strained")


async def report(where: TestDatabase | Sql, user: str | None = None, **options: Any) -> Report:
    dsn = where.dsn if user is None else make_conninfo(where.dsn, user=user)
    return await examine(dsn, schema=where.schema, options=DoctorOptions(**options))


async def found(
    where: TestDatabase | Sql, user: str | None = None, **options: Any
) -> dict[FindingId, Finding]:
    """What is found, by id."""
    findings = (await report(where, user, **options)).findings
    assert len({each.id for each in findings}) == len(findings)
    return {each.id: each for each in findings if each.id not in OF_THE_TESTS}


def do_as_told(sql: Sql, finding: Finding) -> None:
    """Type the SQL of a cure, as it is."""
    assert finding.sql is not None
    # Without parameters, psycopg sends the whole of it.
    psycopg.ClientCursor(sql.connection).execute(finding.sql.encode())


def migrate(database: TestDatabase) -> None:
    with sync.Client(database.dsn, schema=database.schema) as client:
        client.migrate()


# Nothing


async def test_nothing_is_wrong_with_a_new_database(database):
    told = await report(database)

    assert {each.id for each in told.findings} == OF_THE_TESTS
    assert not told.is_critical
    assert "level 20, installed by Python on " in told.facts["schema"]
    assert "owned by postgres" in told.facts["schema"]
    assert "level 4 of 4, by postgres on " in told.facts["companion"]


async def test_nothing_is_wrong_with_jobs_of_every_kind_while_they_are_young(database, sql):
    sql.run("select :schema.add_job('one', queue_name => 'q')")
    sql.run("select :schema.add_job('two', run_at => now() + interval '1 year')")
    sql.run("select :schema.add_job('three', max_attempts => 1)")
    sql.run("update :schema._private_jobs set attempts = 1 where max_attempts = 1")
    sql.run("update :schema._private_jobs set locked_by = 'x', locked_at = now()")
    # A queue that somebody has paused.
    sql.run("update :schema._private_job_queues set locked_by = 'paused', locked_at = '9999-01-01'")

    assert await found(database) == {}


async def test_nothing_is_wrong_with_a_member_of_the_owner(database, sql, role):
    sql.run(f"grant postgres to {role}")
    told = await report(database, user=role)
    sql.run(f"revoke postgres from {role}")

    # A superuser's attributes are not inherited, its tables are.
    assert {each.id for each in told.findings} == OF_THE_TESTS


async def test_it_only_reads(database, sql):
    sql.run(f"alter database {database.name} set default_transaction_read_only = on")

    [finding] = (await found(database)).values()
    do_as_told(sql, finding)

    assert (finding.id, finding.severity) == (FindingId.READ_ONLY, Severity.CRITICAL)
    assert finding.evidence == ("default_transaction_read_only is on",)
    assert await found(database) == {}


# The server, from outside


async def test_a_missing_database_is_told(database):
    gone = make_conninfo(database.dsn, dbname="nowhere")

    told = await examine(gone, schema=database.schema)

    assert [each.id for each in told.findings] == [FindingId.DATABASE_MISSING]
    assert told.findings[0].sql == 'create database "nowhere";'


@pytest.mark.nightly
async def test_a_server_that_is_too_old_is_told():
    server = Cluster(13).start()
    try:
        told = await examine(server.dsn())
    finally:
        server.stop()

    assert [each.id for each in told.findings] == [FindingId.SERVER_TOO_OLD]


# The schema


async def test_a_database_without_the_schema_is_told_how_to_install_it(empty_database):
    [finding] = (await found(empty_database)).values()

    assert (finding.id, finding.severity) == (FindingId.SCHEMA_MISSING, Severity.CRITICAL)
    assert finding.shell is not None
    assert finding.shell.startswith("graphile-worker migrate")
    migrate(empty_database)
    assert await found(empty_database) == {}


async def test_an_empty_schema_counts_as_missing(empty_database):
    sql = Sql(empty_database.dsn, empty_database.schema)
    sql.run("create schema :schema")
    sql.close()

    [finding] = (await found(empty_database)).values()

    assert finding.id is FindingId.SCHEMA_MISSING
    assert finding.evidence == ("it exists, but nothing is installed in it",)


async def test_a_schema_of_the_reference_lacks_only_what_is_ours(node_database):
    told = await report(node_database)
    missing = {each.id for each in told.findings} - OF_THE_TESTS
    migrate(node_database)

    assert missing == {FindingId.COMPANION_MISSING, FindingId.INDEXES_MISSING}
    assert "level 20, installed by Node on " in told.facts["schema"]
    assert await found(node_database) == {}


async def test_what_is_missing_of_a_schema_is_told(database, sql):
    sql.run("drop function :schema.remove_job(text)")
    sql.run("drop view :schema.jobs")

    [finding] = (await found(database)).values()

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
async def test_how_far_the_ledger_is_decides(database, sql, change, id):
    if "drop column" in change:
        sql.run("delete from :schema.migrations where id > 5")
    sql.run(change)

    assert set(await found(database)) == {id}


# Who may use it


async def test_a_role_without_rights_is_told_which_and_how_to_get_them(database, sql, role):
    [finding] = (await found(database, user=role)).values()
    do_as_told(sql, finding)
    cured = await found(database, user=role)
    sql.run(f"revoke postgres from {role}")

    assert (finding.id, finding.severity) == (FindingId.PRIVILEGES_MISSING, Severity.CRITICAL)
    assert finding.evidence[0] == f"no usage of schema {database.schema}"
    assert "no select, insert, update, delete on _private_jobs" in finding.evidence
    assert "That is a superuser" in finding.advice
    assert cured == {}


async def test_a_role_with_rights_that_sees_no_rows_is_told(database, sql, role):
    sql.run(f"grant usage on schema :schema, :ext_schema to {role}")
    sql.run(f"grant all on all tables in schema :schema to {role}")
    sql.run(f"grant all on all tables in schema :ext_schema to {role}")

    [finding] = (await found(database, user=role)).values()
    do_as_told(sql, finding)
    cured = await found(database, user=role)
    sql.run(f"revoke postgres from {role}")

    assert (finding.id, finding.severity) == (FindingId.ROWS_HIDDEN, Severity.CRITICAL)
    assert cured == {}


async def test_a_role_that_policies_let_see_is_left_alone(database, sql, role):
    sql.run(f"grant usage on schema :schema, :ext_schema to {role}")
    sql.run(f"grant all on all tables in schema :schema to {role}")
    sql.run(f"grant all on all tables in schema :ext_schema to {role}")
    for table in TABLES:
        sql.run(f"create policy all_of_it on :schema.{table} to {role} using (true)")

    assert await found(database, user=role) == {}


async def test_a_role_that_only_reads_is_told_what_is_not_checked_and_no_way_to_more_rights(
    database, sql, role
):
    sql.run(f"grant usage on schema :schema, :ext_schema to {role}")
    sql.run(f"grant select on all tables in schema :schema to {role}")
    sql.run(f"grant select on all tables in schema :ext_schema to {role}")

    hidden = await found(database, user=role)
    for table in TABLES:
        sql.run(f"create policy all_of_it on :schema.{table} to {role} using (true)")
    sql.run("select :schema.add_job('a')")
    sql.run("delete from :schema._private_tasks")
    seen = await found(database, user=role)

    assert set(hidden) == {FindingId.LIMITED_ROLE}
    limited = hidden[FindingId.LIMITED_ROLE]
    assert (limited.severity, limited.sql) == (Severity.WARNING, None)
    assert limited.evidence[0] == (
        "not checked: jobs and locks, whose rows are hidden from this role"
    )
    assert "no insert, update, delete on _private_jobs" in limited.evidence
    assert set(seen) == {FindingId.LIMITED_ROLE, FindingId.DANGLING_TASKS}


async def test_where_the_queue_has_policies_no_role_is_told_to_become_the_owner(
    database, sql, role
):
    sql.run("create policy for_another_role on :schema._private_jobs to pg_monitor using (true)")
    without = await found(database, user=role)
    sql.run(f"grant usage on schema :schema to {role}")
    sql.run(f"grant all on all tables in schema :schema to {role}")
    hidden = await found(database, user=role)

    for told, id in ((without, FindingId.PRIVILEGES_MISSING), (hidden, FindingId.ROWS_HIDDEN)):
        assert set(told) == {id}
        assert told[id].sql is None
        assert "deploy/sql/rights.sql" in told[id].advice


async def test_an_owner_that_is_bound_by_security_too_is_told(database, sql, role):
    sql.run(f"grant usage, create on schema :schema to {role}")
    sql.run(f"grant usage on schema :ext_schema to {role}")
    sql.run(f"grant all on all tables in schema :ext_schema to {role}")
    sql.run(f"grant select on :schema.migrations to {role}")
    for table in TABLES:
        sql.run(f"alter table :schema.{table} owner to {role}")
        sql.run(f"alter table :schema.{table} force row level security")

    [finding] = (await found(database, user=role)).values()
    do_as_told(sql, finding)
    cured = await found(database, user=role)

    assert finding.id is FindingId.ROWS_HIDDEN
    assert finding.advice.startswith("The owner is bound by it too")
    assert cured == {}


async def test_a_function_that_may_not_be_called_is_told(database, sql, role):
    sql.run("revoke execute on all functions in schema :schema from public")
    sql.run(f"grant usage on schema :schema to {role}")
    sql.run(f"grant all on all tables in schema :schema to {role}")

    [finding] = (await found(database, user=role)).values()

    assert finding.id is FindingId.PRIVILEGES_MISSING
    assert finding.evidence == tuple(
        f"no execute on {each}" for each in ("add_job", "add_jobs", "remove_job")
    )


# The companion


async def test_a_missing_companion_is_told_and_migrating_brings_it(database, sql):
    sql.run("drop schema :ext_schema cascade")

    [finding] = (await found(database)).values()
    migrate(database)

    assert (finding.id, finding.severity) == (FindingId.COMPANION_MISSING, Severity.WARNING)
    assert await found(database) == {}


async def test_a_companion_that_another_role_made_is_told_and_not_read(database, sql, role):
    sql.run(f"alter schema :ext_schema owner to {role}")
    # What reads it would fail.
    sql.run("alter table :ext_schema.migrations drop column applied_by")

    [finding] = (await found(database)).values()
    do_as_told(sql, finding)
    migrate(database)

    assert (finding.id, finding.severity) == (FindingId.COMPANION_FOREIGN, Severity.CRITICAL)
    assert finding.evidence == (f"{derive_companion_schema(database.schema)} belongs to {role}",)
    assert await found(database) == {}


async def test_a_companion_that_is_behind_is_told_and_migrating_brings_it_up(database, sql):
    sql.run("delete from :ext_schema.migrations where id > 1")

    [finding] = (await found(database)).values()
    migrate(database)

    assert (finding.id, finding.severity) == (FindingId.COMPANION_BEHIND, Severity.WARNING)
    assert finding.evidence == ("missing: 0002_leases, 0004_turns",)
    assert await found(database) == {}


async def test_a_companion_that_may_not_be_used_is_told_with_the_grants(database, sql, role):
    sql.run(f"grant usage on schema :schema to {role}")
    sql.run(f"grant all on all tables in schema :schema to {role}")
    for table in TABLES:
        sql.run(f"create policy all_of_it on :schema.{table} to {role} using (true)")

    [finding] = (await found(database, user=role)).values()
    do_as_told(sql, finding)

    assert (finding.id, finding.severity) == (FindingId.COMPANION_PRIVILEGES, Severity.WARNING)
    assert await found(database, user=role) == {}


async def test_missing_indexes_are_told_and_migrating_makes_them(database, sql):
    sql.run("drop index :schema.gwpy_free_jobs")
    sql.run(
        "update pg_index set indisvalid = false where indexrelid = $1::regclass", half_built(sql)
    )

    [finding] = (await found(database)).values()
    migrate(database)

    assert (finding.id, finding.severity) == (FindingId.INDEXES_MISSING, Severity.WARNING)
    assert finding.evidence[:2] == (
        "missing: gwpy_free_jobs, gwpy_queued_jobs",
        "half built: gwpy_queued_jobs",
    )
    assert await found(database) == {}


def half_built(sql: Sql) -> str:
    return sql.text(":schema.gwpy_queued_jobs").decode()


# The search path


async def path_of(database: TestDatabase, **settings: str) -> Finding | None:
    """What is found about the path, with PostgreSQL's settings for the session."""
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    told = await examine(make_conninfo(database.dsn, options=options), schema=database.schema)
    return next((each for each in told.findings if each.id is FindingId.UNSAFE_PATH), None)


async def test_roles_that_may_create_in_a_schema_on_the_search_path_are_told(database, sql, role):
    sql.run("revoke create on schema public from public")
    safe = await path_of(database)
    sql.run(f"grant create on schema public to {role}, public")

    told = await path_of(database)
    assert told is not None
    do_as_told(sql, told)

    assert safe is None
    assert told.severity is Severity.WARNING
    assert told.evidence == (
        "every role may create in schema 'public'",
        f"role '{role}' may create in schema 'public'",
    )
    assert "Functions that Node or Rust installed" in told.advice
    assert await path_of(database) is None


async def test_a_schema_of_another_role_on_the_search_path_is_told(database, sql, role):
    sql.run("revoke create on schema public from public")
    sql.run(f"create schema shop authorization {role}")

    behind = await path_of(database, search_path="public,shop")
    first = await path_of(database, search_path="shop,pg_catalog")

    assert behind is not None
    assert (behind.evidence, behind.sql) == ((f"role '{role}' owns schema 'shop'",), None)
    assert first is not None
    assert first.evidence == (
        f"role '{role}' owns schema 'shop', which is searched before pg_catalog",
    )
    assert first.advice.startswith("What they create replaces built-in operators")
    assert await path_of(database) is None


async def test_who_owns_the_queue_or_the_database_may_create_on_the_search_path(
    database, sql, role
):
    sql.run("revoke create on schema public from public")
    sql.run(f"grant create on schema public to {role}")
    sql.run(f"alter schema :schema owner to {role}")
    as_owner_of_the_queue = await path_of(database)
    sql.run("alter schema :schema owner to postgres")
    sql.run(f"alter database {database.name} owner to {role}")
    as_owner_of_the_database = await path_of(database)
    sql.run(f"alter database {database.name} owner to postgres")

    assert (as_owner_of_the_queue, as_owner_of_the_database) == (None, None)


# Jobs


async def test_jobs_whose_task_is_nowhere_run_again_when_they_have_a_name(database, sql):
    sql.run("select :schema.add_job('resize'), :schema.add_job('resize')")
    sql.run("delete from :schema._private_tasks")

    [finding] = (await found(database)).values()
    do_as_told(sql, finding)

    assert (finding.id, finding.severity) == (FindingId.DANGLING_TASKS, Severity.CRITICAL)
    assert finding.title.startswith("2 jobs of tasks that have no name any more")
    assert await found(database) == {}
    assert sql.run("select task_identifier from :schema.jobs") == [("the-task",)] * 2


async def test_jobs_whose_queue_is_nowhere_run_again_without_one(database, sql):
    sql.run("select :schema.add_job('resize', queue_name => 'a')")
    sql.run("select :schema.add_job('resize', queue_name => 'b')")
    sql.run("delete from :schema._private_job_queues")

    [finding] = (await found(database)).values()
    do_as_told(sql, finding)

    assert (finding.id, finding.severity) == (FindingId.DANGLING_QUEUES, Severity.CRITICAL)
    assert len(finding.evidence) == 2
    assert await found(database) == {}


async def test_locks_of_four_hours_are_told_by_who_holds_them(database, sql):
    for name in ("a", "b", "b", "c"):
        sql.run("select :schema.add_job($1, queue_name => $1)", name)
    sql.run(
        "update :schema._private_jobs as jobs set locked_at = now() - interval '5 hours', "
        "locked_by = 'pool of ' || (select identifier from :schema._private_tasks as tasks "
        "where tasks.id = jobs.task_id and identifier <> 'c')"
    )

    [finding] = (await found(database)).values()

    assert (finding.id, finding.severity) == (FindingId.STALE_LOCKS, Severity.CRITICAL)
    assert finding.title == "4 jobs are locked for more than four hours"
    assert "pool of b: 2 jobs, locked for up to 5 h, the first is job 2" in finding.evidence
    assert "nobody: 1 job, locked for up to 5 h, the first is job 4" in finding.evidence
    assert finding.shell is not None
    assert finding.shell.endswith("'pool of b' 'pool of a'")


async def test_a_named_queue_alone_may_be_locked_for_too_long(database, sql):
    sql.run("select :schema.add_job('a', queue_name => 'images')")
    sql.run(
        "update :schema._private_job_queues "
        "set locked_by = 'x', locked_at = now() - interval '5 hours'"
    )

    [finding] = (await found(database)).values()

    assert finding.title == "1 named queue is locked for more than four hours"


async def test_the_jobs_of_a_silent_pool_are_told_once_however_old_their_locks(database, sql):
    sql.run("select :schema.add_job('a')")
    sql.run(
        "update :schema._private_jobs set locked_by = 'p', locked_at = now() - interval '5 hours'"
    )
    enter(sql, "p", silent="5 hours")

    told = await found(database)
    with sync.Client(database.dsn, schema=database.schema) as client:
        client.recover_workers(["p"])

    assert set(told) == {FindingId.DEAD_POOL_LOCKS}
    assert await found(database) == {}


async def test_a_pool_is_silent_only_when_others_should_have_noticed(database, sql):
    enter(sql, "sleepy", silent="15 minutes", lease="10 minutes")
    enter(sql, "swept", silent="1 hour", swept=True)

    assert await found(database) == {}


async def test_a_silent_pool_that_holds_nothing_is_a_warning(database, sql):
    enter(sql, "p", silent="1 hour")

    [finding] = (await found(database)).values()

    assert (finding.id, finding.severity) == (FindingId.DEAD_POOLS, Severity.WARNING)
    assert finding.evidence == ("p on web-1, process 7, silent for 1 h",)


async def test_a_session_that_holds_the_turn_to_recover_jobs_is_named(database, sql):
    locks = (
        "select pg_advisory_lock(1196905043, 1398228304)",
        "select name from :ext_schema.turns for update",
    )
    for lock in locks:
        other = sql.another()
        other.run("begin")
        other.run(lock)
        pid = other.value("select pg_backend_pid()")

        young = await found(database)
        finding = (await found(database, max_transaction_age=timedelta(0)))[
            FindingId.RESCUE_LOCK_HELD
        ]
        do_as_told(sql, finding)

        assert young == {}
        assert (finding.id, finding.severity) == (FindingId.RESCUE_LOCK_HELD, Severity.WARNING)
        assert finding.evidence[0].startswith(f"pid={pid} role=postgres application=")
        # A session ends a moment after it was told to.
        while FindingId.RESCUE_LOCK_HELD in await found(database, max_transaction_age=timedelta(0)):
            pass
        other.close()


async def test_the_clock_of_a_worker_that_was_wrong_is_told(database, sql):
    enter(sql, "early", clock="extract(epoch from now()) + 120")
    enter(sql, "late", clock="extract(epoch from now()) - 3600")
    enter(sql, "right", clock="extract(epoch from now()) - 9")
    enter(sql, "odd", clock="'noon'::text")
    enter(sql, "mute", clock="null::text")

    [finding] = (await found(database)).values()

    assert (finding.id, finding.severity) == (FindingId.POOL_CLOCK_OFFSET, Severity.WARNING)
    assert set(finding.evidence) == {
        "early on web-1: 2 min ahead of the database",
        "late on web-1: 1 h behind the database",
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


# Ids, dead rows, room


@pytest.mark.parametrize(
    ("sequence", "reached", "severity"),
    [
        ("tasks_id_seq", 1_100_000_000, Severity.WARNING),
        ("job_queues_id_seq", 2_147_483_646, Severity.CRITICAL),
    ],
)
async def test_ids_that_come_to_an_end_are_told(database, sql, sequence, reached, severity):
    name = sql.text(f":schema.{sequence}").decode()
    sql.run("select setval($1::text::regclass, $2)", name, reached)
    sql.run("select :schema.add_job('a', queue_name => 'a')")

    [finding] = (await found(database)).values()
    do_as_told(sql, finding)
    sql.run("select :schema.add_job('b', queue_name => 'b')")

    assert (finding.id, finding.severity) == (FindingId.SEQUENCE_FILL, severity)
    assert await found(database) == {}


async def test_ids_to_go_on_with_are_not_those_that_jobs_still_point_to(database, sql):
    sql.run("select :schema.add_job(name, queue_name => name) from unnest(array['a', 'b']) as name")
    sql.run("delete from :schema._private_tasks where identifier = 'b'")
    sql.run("delete from :schema._private_job_queues where queue_name = 'b'")
    for sequence in ("tasks_id_seq", "job_queues_id_seq"):
        sql.run(f"alter sequence :schema.{sequence} restart with 2147483647")
    sql.run("select :schema.add_job('c', queue_name => 'c')")

    findings = (await report(database)).findings

    said = [each.sql for each in findings if each.id is FindingId.SEQUENCE_FILL]
    assert [(each or "").rpartition(" ")[2] for each in said] == ["3;", "3;"]


async def test_dead_rows_are_told_where_nobody_removes_them(database, sql):
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

    told = await found(database)
    with sync.Client(database.dsn, schema=database.schema) as client:
        client.apply_tuning()
    do_as_told(sql, told[FindingId.DEAD_ROWS])

    assert set(told) == {FindingId.DEAD_ROWS, FindingId.AUTOVACUUM_OFF}
    assert told[FindingId.DEAD_ROWS].evidence == (
        "_private_jobs: 11,000 dead beside 0, last vacuum never",
    )
    assert await found(database) == {}


async def test_a_server_without_autovacuum_is_told(strained):
    [finding] = (await found(strained)).values()

    assert (finding.id, finding.severity) == (FindingId.AUTOVACUUM_OFF, Severity.WARNING)
    assert (
        finding.sql
        == "alter system set \"autovacuum\" = 'on';\nselect pg_catalog.pg_reload_conf();"
    )


async def test_a_prepared_transaction_that_was_forgotten_is_told(strained):
    strained.run("begin")
    strained.run("select txid_current()")
    strained.run("prepare transaction 'it''s left'")

    told = await found(strained, max_transaction_age=timedelta(0))
    do_as_told(strained, told[FindingId.HELD_SNAPSHOT])

    assert "prepared transaction it's left for 0 s" in told[FindingId.HELD_SNAPSHOT].evidence[0]
    assert FindingId.HELD_SNAPSHOT not in await found(strained, max_transaction_age=timedelta(0))


async def test_connections_that_come_to_an_end_are_told(strained):
    others = [strained.another() for _ in range(14)]

    told = await found(strained)
    for each in others:
        each.close()

    assert told[FindingId.CONNECTIONS_FULL].severity is Severity.WARNING


async def test_notifications_that_nobody_reads_are_told(strained, strained_cluster):
    if strained_cluster.major < 17:
        pytest.skip("the room for notifications can be made small from PostgreSQL 17 on")
    sleeper = strained.another()
    sleeper.run("listen somewhere")
    sleeper.run("begin")
    sleeper.run("select 1")
    severities = []

    for count in (10, 40):
        strained.run(
            "select pg_notify('somewhere', repeat('x', 7900) || n) "
            f"from generate_series(1, {count}) as n"
        )
        severities.append((await found(strained))[FindingId.NOTIFY_QUEUE].severity)
    sleeper.close()

    assert severities == [Severity.WARNING, Severity.CRITICAL]


# The doctor


async def test_it_waits_for_nobody_and_says_what_it_could_not_look_at(database, sql):
    other = sql.another()
    other.run("begin")
    other.run("lock table :schema._private_jobs in access exclusive mode")

    [finding] = (await found(database)).values()
    other.close()

    assert (finding.id, finding.severity) == (FindingId.CHECK_UNFINISHED, Severity.WARNING)
    assert finding.title == "could not look at everything: jobs, locks and pools"
    assert "lock timeout" in finding.evidence[0]


async def test_it_gives_up_after_the_time_that_it_has(database, sql):
    other = sql.another()
    other.run("begin")
    other.run("lock table :schema._private_jobs in access exclusive mode")

    told = await report(database, timeout=timedelta(milliseconds=200))
    other.close()

    [finding] = [each for each in told.findings if "jobs, locks" in each.title]
    assert finding.id is FindingId.CHECK_UNFINISHED
    # A busy machine may leave more than the jobs unread.
    assert any("statement timeout" in each for each in finding.evidence)
    assert finding.shell is not None
    assert finding.shell.startswith("graphile-worker doctor --timeout 1m")


def test_jobs_are_read_once(database, sql):
    statement = render("diagnose_jobs", Schemas.from_names(database.schema), ParameterStyle.NATIVE)

    plan = sql.connection.execute(f"explain {statement}".encode()).fetchall()

    assert sum("on _private_jobs" in line for (line,) in plan) == 1
