"""Installing, upgrading and refusing: what `migrate` and `check_schema` do to a database."""

import json
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, contextmanager

import asyncpg
import psycopg
import pytest
import sqlalchemy
from alembic import command as alembic
from alembic.config import Config
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy.ext.asyncio import create_async_engine

import graphile_worker
from graphile_worker import (
    Client,
    ConfigurationError,
    SchemaError,
    SchemaMissing,
    SchemaTooNew,
    SchemaTooOld,
    WorkerOptions,
    migration_sql,
    sync,
)
from graphile_worker._db.database import run_plan_sync
from graphile_worker._db.sync import SyncPsycopgDatabase
from graphile_worker._sql.identifiers import Schemas, derive_companion_schema
from graphile_worker._sql.plans.migration import plan_migrate
from graphile_worker._sql.queries.migrations import (
    EXT_STEPS,
    FUNCTION_BODIES,
    LATEST_LEVEL,
    compute_checksum,
)
from graphile_worker._sql.render import ParameterStyle, render, render_script
from tests.support.catalog import read_catalogue, read_companion, read_ledger
from tests.support.cluster import Cluster
from tests.support.node import node_install
from tests.support.roles import temporary_role
from tests.support.sql import Sql
from tests.support.tools import client_program

LONG_NAMES = ["x" * 59, "x" * 60, "x" * 63, "ü" * 31 + "x", "語" * 21, 'Some "Name"']


@pytest.fixture
def role(empty_database, behind):
    """A role that may log in and create nothing."""
    with temporary_role(behind, f"role_{empty_database.name}") as name:
        yield name


def installed(database) -> tuple[list[str], list[str], list[tuple[int, bool]]]:
    """All that an installation leaves: both catalogues and the ledger."""
    where = (database.dsn, database.schema)
    return read_catalogue(*where), read_companion(*where), read_ledger(*where)


def schemas_in(sql: Sql) -> set[str]:
    return {name for (name,) in sql.run("select nspname from pg_namespace")}


def migrate(database, **options) -> int:
    dsn = options.pop("dsn", database.dsn)
    with sync.Client(dsn, schema=database.schema, **options) as client:
        return client.migrate()


def migrate_with_timeout(database, stall_timeout_seconds: float) -> int:
    schemas = Schemas.from_names(database.schema)
    with closing(SyncPsycopgDatabase(database.dsn, schemas)) as db:
        return run_plan_sync(db, plan_migrate(schemas, stall_timeout_seconds=stall_timeout_seconds))


def set_level(sql: Sql, level: int) -> None:
    """Make a complete schema look as if it stood there."""
    sql.run("delete from :schema.migrations where id > $1", level)


def enter_level(sql: Sql, level: int, *, breaking: bool) -> None:
    sql.run("insert into :schema.migrations (id, breaking) values ($1, $2)", level, breaking)


# Where it runs, and what it makes


@pytest.mark.nightly
@pytest.mark.feature("F6")
def test_a_server_older_than_14_is_rejected_with_its_version():
    server = Cluster(13).start()
    try:
        with sync.Client(server.dsn()) as client:
            for attempt in (client.migrate, client.check_schema):
                with pytest.raises(SchemaError, match=r"PostgreSQL 13\.\d+ is too old: 14"):
                    attempt()
        with closing(Sql(server.dsn(), "graphile_worker")) as sql:
            assert not schemas_in(sql) & {"graphile_worker", "graphile_worker_ext"}
    finally:
        server.stop()


@pytest.mark.feature("F8")
def test_no_extension_is_created(empty_database, behind):
    migrate(empty_database)

    assert behind.run("select extname from pg_extension") == [("plpgsql",)]


@pytest.mark.feature("F15")
def test_all_objects_are_in_the_schema_and_its_companion(empty_database, behind):
    before = schemas_in(behind)

    migrate(empty_database)

    shared = empty_database.schema
    assert schemas_in(behind) - before == {shared, derive_companion_schema(shared)}


@pytest.mark.feature("F17")
async def test_a_function_migrates_and_returns_the_level(empty_database, database):
    options = WorkerOptions(schema=empty_database.schema)

    assert (
        await graphile_worker.run_migrations(empty_database.dsn, options=options)
        == LATEST_LEVEL
        == 20
    )
    assert sync.run_migrations(empty_database.dsn, options=options) == LATEST_LEVEL

    assert installed(empty_database) == installed(database)


@pytest.mark.feature("F18")
async def test_an_async_client_migrates(empty_database, database):
    async with Client(empty_database.dsn, schema=empty_database.schema) as client:
        assert await client.migrate() == LATEST_LEVEL

    assert installed(empty_database) == installed(database)


@pytest.mark.feature("F18")
def test_a_blocking_client_migrates(empty_database, database):
    assert migrate(empty_database) == LATEST_LEVEL

    assert installed(empty_database) == installed(database)


def test_migrating_again_changes_nothing(database):
    before = installed(database)

    assert migrate(database) == LATEST_LEVEL

    assert installed(database) == before


@pytest.mark.feature("F23")
def test_an_install_leaves_no_error_in_the_servers_log(empty_database, behind):
    log = empty_database.cluster.log
    beginning = log.stat().st_size

    migrate(empty_database)

    assert "ERROR" not in log.read_bytes()[beginning:].decode()
    # The log would have shown it.
    with pytest.raises(psycopg.errors.UndefinedTable):
        behind.run("select from nowhere")
    assert "ERROR" in log.read_bytes()[beginning:].decode()


# Who installs, and who only uses


@pytest.mark.feature("F19")
async def test_a_client_does_not_install_but_names_the_command(empty_database, behind):
    before = schemas_in(behind)

    async with Client(empty_database.dsn, schema=empty_database.schema) as client:
        for attempt in (client.add_job("greet"), client.check_schema()):
            with pytest.raises(SchemaMissing, match="run `graphile-worker migrate"):
                await attempt

    assert schemas_in(behind) == before


@pytest.mark.feature("F19")
def test_a_blocking_client_does_not_install_either(empty_database, behind):
    before = schemas_in(behind)

    with sync.Client(empty_database.dsn, schema=empty_database.schema) as client:
        with pytest.raises(SchemaMissing, match="run `graphile-worker migrate"):
            client.add_job("greet")
        with pytest.raises(SchemaMissing, match="run `graphile-worker migrate"):
            client.check_schema()

    assert schemas_in(behind) == before


@pytest.mark.feature("F19")
async def test_make_worker_utils_migrates_first(empty_database, database):
    client = await graphile_worker.make_worker_utils(
        empty_database.dsn, schema=empty_database.schema
    )
    await client.close()

    assert installed(empty_database) == installed(database)


@pytest.mark.feature("F19")
def test_make_worker_utils_migrates_first_without_await(empty_database, database):
    sync.make_worker_utils(empty_database.dsn, schema=empty_database.schema).close()

    assert installed(empty_database) == installed(database)


@pytest.mark.parametrize("name", ["add_job_adhoc", "quick_add_job"])
@pytest.mark.feature("F19")
async def test_adding_one_job_from_a_script_migrates_first(empty_database, database, name):
    add = getattr(graphile_worker, name)

    job = await add(empty_database.dsn, "greet", schema=empty_database.schema)

    assert job.task_identifier == "greet"
    assert installed(empty_database) == installed(database)


@pytest.mark.parametrize("name", ["add_job_adhoc", "quick_add_job"])
@pytest.mark.feature("F19")
def test_adding_one_job_from_a_blocking_script_migrates_first(empty_database, database, name):
    add = getattr(sync, name)

    job = add(empty_database.dsn, "greet", schema=empty_database.schema)

    assert job.task_identifier == "greet"
    assert installed(empty_database) == installed(database)


def test_a_role_that_may_not_create_can_check_the_schema(empty_database, behind, role):
    migrate(empty_database)
    behind.run(f"grant usage on schema :schema to {role}")
    behind.run(f"grant select on :schema.migrations to {role}")

    dsn = make_conninfo(empty_database.dsn, user=role)
    with sync.Client(dsn, schema=empty_database.schema) as client:
        assert client.check_schema() == LATEST_LEVEL


def test_checking_creates_no_companion(empty_database, behind):
    node_install(empty_database.url, schema=empty_database.schema)
    before = schemas_in(behind)

    with sync.Client(empty_database.dsn, schema=empty_database.schema) as client:
        assert client.check_schema() == LATEST_LEVEL

    assert schemas_in(behind) == before


def test_without_the_right_to_a_companion_migrating_works_and_warns(
    empty_database, behind, role, caplog
):
    dsn = make_conninfo(empty_database.dsn, user=role)
    behind.run(f"grant create on database {empty_database.name} to {role}")
    migrate(empty_database, dsn=dsn)
    behind.run("drop schema :ext_schema cascade")
    behind.run(f"revoke create on database {empty_database.name} from {role}")

    assert migrate(empty_database, dsn=dsn) == LATEST_LEVEL

    assert "not available to this role" in caplog.text
    assert derive_companion_schema(empty_database.schema) not in schemas_in(behind)


def test_a_role_installs_into_the_empty_schema_that_it_was_given(
    empty_database, behind, role, caplog
):
    behind.run(f"create schema :schema authorization {role}")

    assert migrate(empty_database, dsn=make_conninfo(empty_database.dsn, user=role)) == LATEST_LEVEL

    assert "not available to this role" in caplog.text


def test_a_companion_of_an_older_release_is_brought_up(database, sql):
    before = installed(database)
    sql.run("drop table :ext_schema.turns")
    sql.run("delete from :ext_schema.migrations where id > 3")

    migrate(database)

    assert installed(database) == before
    assert sql.run("select name from :ext_schema.turns") == [("sweep",)]


def test_a_role_that_may_not_upgrade_the_companion_gets_a_warning(
    empty_database, behind, role, caplog
):
    migrate(empty_database)
    behind.run("delete from :ext_schema.migrations where id > 3")
    behind.run(f"grant usage on schema :schema, :ext_schema to {role}")
    behind.run(f"grant select on :schema.migrations, :ext_schema.migrations to {role}")

    migrate(empty_database, dsn=make_conninfo(empty_database.dsn, user=role))

    assert f"is at level 3 of {len(EXT_STEPS)}, and this role may not upgrade it" in caplog.text
    assert "four hours" not in caplog.text


# A role that may create schemas waits for one with more privileges to use what it made.
TRAP = (
    "create schema :ext_schema",
    "grant all on schema :ext_schema to public",
    "create table :ext_schema.caught (role name)",
    "create table :ext_schema.migrations (id int primary key, name text, applied_at timestamptz "
    "default now(), applied_by text default current_user)",
    "create function :ext_schema.spring() returns trigger language plpgsql as "
    "'begin insert into caught values (current_user); return new; end'",
    "alter function :ext_schema.spring set search_path = :ext_schema",
    "create trigger spring before insert on :ext_schema.migrations "
    "for each row execute function :ext_schema.spring()",
    "grant all on all tables in schema :ext_schema to public",
)


def test_a_companion_that_another_role_created_is_rejected(empty_database, behind, role):
    behind.run(f"grant create on database {empty_database.name} to {role}")
    intruder = Sql(make_conninfo(empty_database.dsn, user=role), empty_database.schema)
    for statement in TRAP:
        intruder.run(statement)
    intruder.close()

    with pytest.raises(psycopg.errors.InvalidTextRepresentation, match=f"belongs to role {role}"):
        run_in_psycopg(empty_database, migration_sql(empty_database.schema))
    with pytest.raises(SchemaError, match=f"belongs to role '{role}', not to the owner") as refused:
        migrate(empty_database)
    # What is in it does not become better by another owner of the schema alone.
    behind.run("alter schema :ext_schema owner to postgres")
    with pytest.raises(SchemaError, match=f"'migrations' belongs to role '{role}'"):
        migrate(empty_database)
    with sync.Client(empty_database.dsn, schema=empty_database.schema) as client:
        assert client.recover_workers(["dead"]) == []
    caught = behind.run("select role from :ext_schema.caught")
    cure = behind.text("drop schema :ext_schema cascade").decode()
    behind.run("drop schema :ext_schema cascade")

    assert caught == []
    assert f"`{cure}`" in str(refused.value)
    assert migrate(empty_database) == LATEST_LEVEL


def test_a_companion_may_belong_to_the_owner_of_the_schema_or_to_who_has_its_privileges(
    empty_database, behind, role
):
    behind.run(f"create role {role}_member in role {role}")
    behind.run(f"create schema :schema authorization {role}")
    behind.run(f"create schema :ext_schema authorization {role}_member")

    assert migrate(empty_database) == LATEST_LEVEL
    behind.run(f"alter schema :ext_schema owner to {role}")
    assert migrate(empty_database) == LATEST_LEVEL

    behind.run(f"drop role {role}_member")


# Names


@pytest.mark.feature("F20")
async def test_the_schema_is_named_by_argument(empty_database, behind):
    async with Client(empty_database.dsn, schema="by_argument") as client:
        await client.migrate()

    assert {"by_argument", "by_argument_ext"} <= schemas_in(behind)


@pytest.mark.feature("F20")
async def test_the_schema_is_named_by_options(empty_database, behind):
    options = WorkerOptions(schema="by_options", ext_schema="beside_it")

    await graphile_worker.run_migrations(empty_database.dsn, options=options)

    assert {"by_options", "beside_it"} <= schemas_in(behind)
    assert "by_options_ext" not in schemas_in(behind)


@pytest.mark.feature("F20")
async def test_the_schema_is_named_by_the_environment(empty_database, behind, monkeypatch):
    monkeypatch.setenv("GRAPHILE_WORKER_SCHEMA", "by_environment")
    before = schemas_in(behind)

    async with Client(empty_database.dsn) as client:
        await client.migrate()
    await graphile_worker.run_migrations(empty_database.dsn)

    assert schemas_in(behind) - before == {"by_environment", "by_environment_ext"}


@pytest.mark.feature("F20")
async def test_an_argument_wins_over_the_environment(empty_database, behind, monkeypatch):
    monkeypatch.setenv("GRAPHILE_WORKER_SCHEMA", "by_environment")

    async with Client(empty_database.dsn, schema="by_argument") as client:
        await client.migrate()

    assert "by_environment" not in schemas_in(behind)


@pytest.mark.parametrize("name", LONG_NAMES)
@pytest.mark.feature("F21")
def test_any_name_of_63_bytes_can_be_installed(empty_database, behind, database, name):
    before = schemas_in(behind)

    with sync.Client(empty_database.dsn, schema=name) as client:
        client.migrate()
        client.add_job("greet")

    assert schemas_in(behind) - before == {name, derive_companion_schema(name)}
    assert read_catalogue(empty_database.dsn, name) == read_catalogue(database.dsn, database.schema)


@pytest.mark.feature("F21")
def test_a_companion_is_named_after_its_schema():
    assert derive_companion_schema("jobs") == "jobs_ext"
    assert derive_companion_schema("x" * 59) == "x" * 59 + "_ext"


@pytest.mark.feature("F21")
def test_long_names_with_the_same_beginning_have_different_companions():
    first, second = "x" * 62 + "a", "x" * 62 + "b"

    assert derive_companion_schema(first) != derive_companion_schema(second)


@pytest.mark.feature("F21")
def test_a_long_name_is_cut_between_characters():
    # Byte 50 is in the middle of the seventeenth character.
    companion = derive_companion_schema("語" * 21)

    assert companion.startswith("語" * 16 + "_")
    assert companion.endswith("_ext")


# One to four bytes a character, and what the suffix is made of.
@given(st.text('xü語𐍈"_et0', min_size=1, max_size=63).filter(lambda name: len(name.encode()) <= 63))
@pytest.mark.feature("F21")
def test_a_companion_never_has_the_name_of_its_schema(name):
    companion = derive_companion_schema(name)

    assert companion != name
    assert len(companion.encode()) <= 63


@pytest.mark.parametrize("name", ["x" * 64, "ü" * 32, "", "a\x00b", "\ud800"])
@pytest.mark.feature("F21")
def test_a_name_that_postgresql_would_truncate_is_rejected(name):
    with pytest.raises(ConfigurationError, match="schema"):
        Schemas.from_names(name)


@pytest.mark.feature("F21")
def test_a_companion_in_the_schema_itself_is_rejected():
    with pytest.raises(ConfigurationError, match="must differ"):
        Client("anywhere", schema="jobs", ext_schema="jobs")


# Going, and coming back


@pytest.mark.feature("F22")
def test_dropping_both_schemas_uninstalls(database, sql):
    before = installed(database)

    sql.run("drop schema :schema, :ext_schema cascade")

    assert not schemas_in(sql) & {database.schema, derive_companion_schema(database.schema)}
    assert migrate(database) == LATEST_LEVEL
    assert installed(database) == before


@pytest.mark.feature("F22")
def test_a_new_install_over_a_left_over_companion_works(database, sql):
    before = installed(database)

    sql.run("drop schema :schema cascade")

    assert migrate(database) == LATEST_LEVEL
    assert installed(database) == before


# Levels


@pytest.mark.parametrize("level", [10, 17])
@pytest.mark.feature("F24")
def test_a_ledger_that_stays_below_18_is_rejected(database, sql, level):
    set_level(sql, level)

    with pytest.raises(SchemaTooOld, match="npx graphile-worker@0.18.0 --schema-only") as caught:
        migrate_with_timeout(database, 0.5)

    assert f"level {level}." in str(caught.value)
    assert read_ledger(database.dsn, database.schema)[-1][0] == level


@pytest.mark.single_version
@pytest.mark.feature("F24")
def test_a_ledger_below_18_has_ten_seconds_to_move(database, sql):
    set_level(sql, 17)
    began = time.monotonic()

    with pytest.raises(SchemaTooOld):
        migrate(database)

    assert 10 <= time.monotonic() - began < 40


@pytest.mark.feature("F24")
def test_a_migration_waits_for_another_installer_that_makes_progress(database, sql):
    set_level(sql, 17)

    with ThreadPoolExecutor() as executor:
        waiting = executor.submit(migrate_with_timeout, database, 50.0)
        wait_until_the_ledger_is_read(sql)
        for level in (18, 19, 20):
            enter_level(sql, level, breaking=level == 19)

        assert waiting.result(timeout=40) == LATEST_LEVEL


def wait_until_the_ledger_is_read(sql: Sql) -> None:
    """Until a session of ours has looked at the ledger and pauses before the next look."""
    while not sql.run(
        "select pid from pg_stat_activity where application_name = 'graphile-worker' and "
        "datname = current_database() and state = 'idle' and query like '%filter (where breaking)%'"
    ):
        time.sleep(0.01)


class Interrupted(SyncPsycopgDatabase):
    """A database in which something happens right after the first look at the catalogue."""

    meanwhile: Callable[[], object] | None = None

    def run(self, query):
        answer = super().run(query)
        if query.statement == "inspect_database" and self.meanwhile:
            happening, self.meanwhile = self.meanwhile, None
            happening()
        return answer


def test_an_installer_that_finishes_between_two_questions_is_not_taken_for_damage(
    empty_database, behind
):
    for path in ("schema/schema", "schema/ledger"):
        behind.connection.execute(render_script(path, Schemas.from_names(behind.schema)).encode())
    interrupted = Interrupted(empty_database.dsn, Schemas.from_names(empty_database.schema))
    interrupted.meanwhile = lambda: migrate(empty_database)

    with closing(interrupted):
        assert run_plan_sync(interrupted, plan_migrate(interrupted.schemas)) == LATEST_LEVEL


@pytest.mark.feature("F24")
def test_a_check_of_a_ledger_below_18_fails_at_once(database, sql):
    set_level(sql, 17)

    with (
        sync.Client(database.dsn, schema=database.schema) as client,
        pytest.raises(SchemaTooOld, match="level 17"),
    ):
        client.check_schema()


def test_a_newer_breaking_level_is_rejected_with_status_57(database, sql):
    enter_level(sql, 21, breaking=True)

    with pytest.raises(SchemaTooNew, match="level 21") as caught:
        migrate(database)

    assert caught.value.exit_code == 57


def test_another_level_of_the_future_is_used_with_a_warning(database, sql, caplog):
    enter_level(sql, 21, breaking=False)

    assert migrate(database) == 21

    assert "is at level 21, newer than level 20" in caplog.text


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        ("drop function :schema.reschedule_jobs", "reschedule_jobs"),
        ("drop view :schema.jobs", "jobs"),
        ("drop table :schema._private_known_crontabs", "_private_known_crontabs"),
    ],
)
def test_an_incomplete_schema_is_rejected_with_what_it_lacks(database, sql, damage, name):
    sql.run(damage)

    with sync.Client(database.dsn, schema=database.schema) as client:
        for attempt in (client.migrate, client.check_schema):
            with pytest.raises(SchemaError, match=f"is incomplete, it lacks: {name}$"):
                attempt()


def test_an_installation_notifies_workers_that_listen(empty_database, behind):
    behind.run('listen "worker:migrate"')

    migrate(empty_database)

    assert heard(behind, 1) == [{"migrationNumber": 20, "breaking": False}]


@pytest.mark.feature("F24")
def test_an_upgrade_notifies_workers_of_every_level(empty_database, behind):
    node_install(empty_database.url, version="0.16", schema=empty_database.schema)
    behind.run('listen "worker:migrate"')

    migrate(empty_database)

    assert heard(behind, 2) == [
        {"migrationNumber": 19, "breaking": True},
        {"migrationNumber": 20, "breaking": False},
    ]


def heard(sql: Sql, count: int) -> list[dict]:
    notes = sql.connection.notifies(timeout=30, stop_after=count)
    return [json.loads(note.payload) for note in notes]


# Functions of earlier releases


@pytest.fixture
def earlier_body(empty_database, behind, monkeypatch) -> str:
    """The body that an earlier release gave to `complete_jobs`, which has it still."""
    migrate(empty_database)
    statement, known = FUNCTION_BODIES["complete_jobs"]
    text = render(statement, Schemas.from_names(behind.schema), ParameterStyle.NATIVE)
    behind.connection.execute(text.replace("delete from", "delete /* earlier */ from").encode())
    earlier = compute_checksum(body_of(behind), Schemas.from_names(behind.schema))
    monkeypatch.setitem(FUNCTION_BODIES, "complete_jobs", (statement, (earlier, *known)))
    return body_of(behind)


def body_of(sql: Sql) -> str:
    body: str = sql.value(
        "select prosrc from pg_proc "
        "where proname = 'complete_jobs' and pronamespace = $1::regnamespace",
        sql.text(":schema").decode(),
    )
    return body


def test_functions_of_an_earlier_release_are_replaced(empty_database, behind, earlier_body):
    before = installed(empty_database)

    assert migrate(empty_database) == LATEST_LEVEL

    assert body_of(behind) == earlier_body.replace("/* earlier */ ", "")
    assert installed(empty_database) == before


def test_any_number_of_installers_may_replace_functions_at_once(
    empty_database, behind, earlier_body
):
    with ThreadPoolExecutor(4) as threads:
        levels = list(threads.map(migrate, [empty_database] * 4))

    assert levels == [LATEST_LEVEL] * 4
    assert body_of(behind) != earlier_body


def test_functions_that_this_package_has_not_made_stay_as_they_are(
    empty_database, behind, earlier_body
):
    text = behind.value("select pg_get_functiondef($1::regproc)", name_of(behind))
    behind.connection.execute(text.replace("earlier", "of Node").encode())

    migrate(empty_database)

    assert body_of(behind) == earlier_body.replace("earlier", "of Node")


def name_of(sql: Sql) -> str:
    return sql.text(":schema.complete_jobs").decode()


def test_a_role_that_may_not_replace_functions_gets_a_warning(
    empty_database, behind, role, caplog, earlier_body
):
    behind.run(f"grant usage on schema :schema, :ext_schema to {role}")
    behind.run(f"grant select on :schema.migrations, :ext_schema.migrations to {role}")

    migrate(empty_database, dsn=make_conninfo(empty_database.dsn, user=role))

    assert "are outdated and this role may not replace them" in caplog.text
    assert body_of(behind) == earlier_body


# Pools and engines of the caller's


@asynccontextmanager
async def psycopg_pool(database):
    async with AsyncConnectionPool(database.dsn, min_size=1, open=False) as pool:
        yield pool


@asynccontextmanager
async def asyncpg_pool(database):
    async with asyncpg.create_pool(database.url, min_size=1) as pool:
        yield pool


def async_engine(driver: str):
    @asynccontextmanager
    async def engine(database):
        lent = create_async_engine(database.sqlalchemy_url(driver))
        yield lent
        await lent.dispose()

    return engine


@contextmanager
def blocking_psycopg_pool(database):
    with ConnectionPool(database.dsn, min_size=1, open=False) as pool:
        yield pool


def blocking_engine(driver: str):
    @contextmanager
    def engine(database):
        lent = sqlalchemy.create_engine(database.sqlalchemy_url(driver))
        yield lent
        lent.dispose()

    return engine


ASYNC_SOURCES = {
    "psycopg": psycopg_pool,
    "asyncpg": asyncpg_pool,
    "sqlalchemy-psycopg": async_engine("psycopg"),
    "sqlalchemy-asyncpg": async_engine("asyncpg"),
}
BLOCKING_SOURCES = {
    "psycopg": blocking_psycopg_pool,
    "sqlalchemy-psycopg": blocking_engine("psycopg"),
    "sqlalchemy-psycopg2": blocking_engine("psycopg2"),
}


@pytest.mark.parametrize("source", ASYNC_SOURCES)
@pytest.mark.feature("F18")
async def test_migrating_over_a_lent_async_pool(empty_database, database, source):
    async with ASYNC_SOURCES[source](empty_database) as lent:
        client = Client(lent, schema=empty_database.schema)
        assert await client.migrate() == LATEST_LEVEL
        assert await client.migrate() == LATEST_LEVEL

    assert installed(empty_database) == installed(database)


@pytest.mark.parametrize("source", BLOCKING_SOURCES)
@pytest.mark.feature("F18")
def test_migrating_over_a_lent_blocking_pool(empty_database, database, source):
    with BLOCKING_SOURCES[source](empty_database) as lent:
        client = sync.Client(lent, schema=empty_database.schema)
        assert client.migrate() == LATEST_LEVEL
        assert client.migrate() == LATEST_LEVEL

    assert installed(empty_database) == installed(database)


# The SQL as text


def run_in_psql(database, text: str) -> None:
    subprocess.run(
        [str(client_program("psql")), "-X", "-q", "-v", "ON_ERROR_STOP=1"]
        + ["--single-transaction", "-d", make_conninfo(database.dsn, client_encoding="utf8")],
        input=text.encode(),
        check=True,
        capture_output=True,
    )


def run_in_psycopg(database, text: str) -> None:
    with psycopg.connect(database.dsn) as connection:
        connection.execute(text.encode())


MIGRATION = """
from alembic import op
from graphile_worker import migration_sql, migration_statements

revision = "1"
down_revision = None


def upgrade():
    text = migration_sql({schema!r})
    {execute}
"""

# The first would take colons and percent signs in a schema's name for parameters.
EXECUTE = "for each in migration_statements({schema!r}): op.execute(each)"
EXECUTE_PLAIN = "op.get_bind().exec_driver_sql(text, None, dict(no_parameters=True))"

ENVIRONMENT = """
from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
"""


@pytest.mark.parametrize("run", [run_in_psql, run_in_psycopg])
@pytest.mark.feature("F17")
def test_the_sql_as_text_installs_the_same(empty_database, database, run):
    run(empty_database, migration_sql(empty_database.schema))

    assert installed(empty_database) == installed(database)


@pytest.mark.parametrize(("version", "level"), [("0.16", 18), ("0.17", 19)])
@pytest.mark.parametrize("run", [run_in_psql, run_in_psycopg])
@pytest.mark.feature("F24")
def test_the_sql_as_text_upgrades_the_same(empty_database, database, run, version, level):
    node_install(empty_database.url, version=version, schema=empty_database.schema)

    run(empty_database, migration_sql(empty_database.schema, from_level=level))

    assert installed(empty_database) == installed(database)


@pytest.mark.parametrize("level", [1, 17, 20, 21])
def test_sql_for_other_levels_is_rejected(level):
    with pytest.raises(ConfigurationError, match=f"got {level}"):
        migration_sql("graphile_worker", from_level=level)


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
@pytest.mark.parametrize("execute", [EXECUTE, EXECUTE_PLAIN])
@pytest.mark.feature("F17")
def test_the_sql_as_text_can_be_an_alembic_migration(
    empty_database, database, tmp_path, driver, execute
):
    if execute == EXECUTE and not empty_database.schema.isidentifier():
        pytest.skip("for names without colons and percent signs")
    write_alembic_project(tmp_path, empty_database.schema, execute)

    upgrade_with_alembic(tmp_path, empty_database.sqlalchemy_url(driver))

    assert installed(empty_database) == installed(database)


def write_alembic_project(folder, schema: str, execute: str) -> None:
    (folder / "versions").mkdir()
    (folder / "env.py").write_text(ENVIRONMENT)
    (folder / "script.py.mako").write_text("")
    migration = MIGRATION.format(schema=schema, execute=execute.format(schema=schema))
    (folder / "versions" / "one.py").write_text(migration)


def upgrade_with_alembic(folder, url: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(folder))
    config.set_main_option("path_separator", "os")
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        alembic.upgrade(config, "head")
    engine.dispose()
