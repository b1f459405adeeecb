"""`get_tuning` and `apply_tuning`: settings of the tables, advice, and old snapshots."""

import asyncio
import re
from contextlib import closing
from datetime import timedelta

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from graphile_worker import sync
from graphile_worker._cli.commands.tune import format_comments
from graphile_worker._db.database import run_plan_sync
from graphile_worker._db.sync import SyncPsycopgDatabase
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans import tuning
from graphile_worker._sql.plans.tuning import (
    TableTuning,
    Tuning,
    plan_apply_tuning,
    plan_get_tuning,
)
from graphile_worker._sql.queries.storage import VacuumBlocker
from graphile_worker.errors import SchemaMissing
from tests.conftest import TestDatabase
from tests.support.clients import open_client, unwrap
from tests.support.cluster import Cluster
from tests.support.fetch_locks import wait_for_lock
from tests.support.sql import Sql

TABLES = ["_private_jobs", "_private_job_queues"]


def get_tuning(dsn: str, schema: str) -> Tuning:
    """Get the tuning with open transactions of any age."""
    schemas = Schemas.from_names(schema)
    with closing(SyncPsycopgDatabase(dsn, schemas)) as database:
        return run_plan_sync(database, plan_get_tuning(schemas, timedelta(0)))


def list_vacuum_blockers(database: TestDatabase) -> list[VacuumBlocker]:
    return list(get_tuning(database.dsn, database.schema).vacuum_blockers)


def options(sql: Sql, table: str) -> dict[str, str]:
    """The storage parameters of a table."""
    found = sql.value(
        "select coalesce(reloptions, '{}') from pg_class where oid = $1::regclass",
        sql.text(f":schema.{table}").decode(),
    )
    return dict(each.split("=") for each in found)


def table(found: Tuning, name: str) -> TableTuning:
    [one] = [each for each in found.tables if each.table == name]
    return one


# Tables


async def test_get_tuning_changes_nothing(client, sql):
    found = await client.get_tuning()

    assert [each.table for each in found.tables] == TABLES
    assert not any(each.is_set for table in found.tables for each in table.settings)
    assert [options(sql, each) for each in TABLES] == [{}, {}]


async def test_every_setting_has_a_reason(client):
    found = await client.get_tuning()

    assert all(each.reason.endswith(".") for table in found.tables for each in table.settings)


async def test_apply_tuning_sets_what_get_tuning_returns(client, sql):
    before = await client.get_tuning()

    changed = await client.apply_tuning()

    assert changed == TABLES
    for each in before.tables:
        assert options(sql, each.table) == {one.name: one.value for one in each.settings}
    after = await client.get_tuning()
    assert all(each.is_set for each in after.tables)


async def test_apply_tuning_does_not_change_tables_that_are_set(client):
    await client.apply_tuning()

    assert await client.apply_tuning() == []


async def test_other_settings_stay_and_different_values_are_replaced(client, sql):
    sql.run("alter table :schema._private_jobs set (fillfactor = 90, autovacuum_enabled = off)")
    sql.run("alter table :schema._private_jobs set (autovacuum_vacuum_scale_factor = 0.0)")

    found = table(await client.get_tuning(), "_private_jobs")
    now = {each.name: each.current_value for each in found.settings}
    already_set = {each.name for each in found.settings if each.is_set}
    await client.apply_tuning()

    assert now["autovacuum_enabled"] == "off"
    assert already_set == {"autovacuum_vacuum_scale_factor"}
    assert options(sql, "_private_jobs")["fillfactor"] == "90"
    assert options(sql, "_private_jobs")["autovacuum_enabled"] == "true"


async def test_the_printed_sql_sets_the_same(client, sql, database):
    found = await client.get_tuning()
    schemas = Schemas.from_names(database.schema)

    for each in found.tables:
        sql.connection.execute(tuning.render_tuning_sql(each, schemas).encode())

    assert all(each.is_set for each in (await client.get_tuning()).tables)


def test_a_role_that_does_not_own_the_tables_changes_nothing(database, sql, role):
    dsn = make_conninfo(database.dsn, user=role)

    with sync.Client(dsn, schema=database.schema) as client:
        found, changed = client.get_tuning(), client.apply_tuning()

    assert [each.can_change for each in found.tables] == [False, False]
    assert {each.owner for each in found.tables} == {"postgres"}
    assert changed == []
    assert options(sql, "_private_jobs") == {}


def test_the_owner_of_the_tables_can_apply_tuning(database, sql, role):
    sql.run(f"grant usage on schema :schema to {role}")
    for each in TABLES:
        sql.run(f"alter table :schema.{each} owner to {role}")
    dsn = make_conninfo(database.dsn, user=role)

    with sync.Client(dsn, schema=database.schema) as client:
        assert client.apply_tuning() == TABLES

    for each in TABLES:
        sql.run(f"alter table :schema.{each} owner to postgres")


async def test_without_the_schema_it_raises_schema_missing(kind, empty_database):
    async with open_client(kind, empty_database) as client:
        with pytest.raises(SchemaMissing):
            await client.get_tuning()
        with pytest.raises(SchemaMissing):
            await client.apply_tuning()


async def test_get_tuning_runs_in_the_transaction_of_the_caller(client, conn):
    found = await client.get_tuning(conn=unwrap(conn))

    assert [each.table for each in found.tables] == TABLES


# Locks


async def test_apply_tuning_waits_for_a_vacuum_and_blocks_no_session_that_adds_jobs(client, sql):
    other = sql.another()
    other.run("begin")
    other.run("lock table :schema._private_jobs in share update exclusive mode")

    applying = asyncio.create_task(client.apply_tuning())
    await wait_for_lock(sql)
    sql.run("set statement_timeout = '20s'")
    sql.run("select :schema.add_job('task')")
    was_waiting = not applying.done()
    other.run("rollback")

    assert was_waiting
    assert await applying == TABLES
    other.close()


def test_apply_tuning_raises_after_its_last_attempt(database, sql):
    schemas = Schemas.from_names(database.schema)
    other = sql.another()
    other.run("begin")
    other.run("lock table :schema._private_jobs in share update exclusive mode")

    with (
        closing(SyncPsycopgDatabase(database.dsn, schemas)) as db,
        pytest.raises(psycopg.errors.LockNotAvailable),
    ):
        run_plan_sync(db, plan_apply_tuning(schemas, max_attempts=1))

    other.close()
    assert options(sql, "_private_jobs") == {}


# The server


async def test_settings_of_the_server_that_slow_down_a_queue_are_reported(client, sql, database):
    found = {each.name: each for each in (await client.get_tuning()).server}

    naptime = found["autovacuum_naptime"]
    assert (naptime.current_value, naptime.value) == ("1min", "10s")
    assert naptime.sql == "alter system set autovacuum_naptime = '10s'"
    idle = found["idle_in_transaction_session_timeout"]
    assert idle.sql == f"alter database {database.name} set {idle.name} = '{idle.value}'"
    assert {"autovacuum", "track_counts", "old_snapshot_threshold"}.isdisjoint(found)
    assert ("transaction_timeout" in found) == (database.cluster.major >= 17)


async def test_good_settings_of_the_server_are_not_reported(kind, database, sql):
    advised = f"alter database {database.name} set idle_in_transaction_session_timeout = '1min'"
    sql.run(advised)

    async with open_client(kind, database) as client:
        found = await client.get_tuning()

    assert "idle_in_transaction_session_timeout" not in {each.name for each in found.server}


async def test_the_sql_of_each_advice_applies_it(kind, database, sql):
    async with open_client(kind, database) as client:
        found = await client.get_tuning()
    for each in found.server:
        if each.sql.startswith("alter database"):
            sql.run(each.sql)

    async with open_client(kind, database) as client:
        left = (await client.get_tuning()).server

    assert all(each.sql.startswith("alter system") for each in left)


# Old snapshots


async def test_an_open_transaction_is_reported(client, database, sql):
    other = sql.another()
    other.run("set application_name = 'report'")
    other.run("begin isolation level repeatable read")
    other.run("select from :schema._private_jobs")
    pid = other.connection.info.backend_pid
    for _ in range(3):
        await client.add_job("task")

    [blocker] = [each for each in list_vacuum_blockers(database) if "report" in each.name]
    other.close()

    assert blocker.kind == "session"
    assert blocker.name == f"{pid}, postgres, report"
    assert blocker.state == "idle in transaction"
    assert blocker.seconds is not None
    assert blocker.transactions >= 3


def test_a_transaction_that_only_wrote_is_reported(database, sql):
    other = sql.another()
    other.run("set application_name = 'writer'")
    other.run("begin")
    other.run("select :schema.add_job('task')")

    found = list_vacuum_blockers(database)
    other.close()

    assert any("writer" in each.name for each in found)


async def test_a_transaction_younger_than_five_minutes_is_not_reported(client, sql):
    other = sql.another()
    other.run("begin isolation level repeatable read")
    other.run("select 1")

    found = await client.get_tuning()
    other.close()

    assert found.vacuum_blockers == ()


def test_sessions_of_other_databases_are_not_reported(database, cluster):
    with psycopg.connect(cluster.dsn(application_name="elsewhere")) as other:
        other.execute("select 1")
        found = list_vacuum_blockers(database)

    assert not any("elsewhere" in each.name for each in found)


@pytest.mark.single_version
def test_a_prepared_transaction_is_reported(pytestconfig):
    server = Cluster(pytestconfig.getoption("--pg"), ["max_prepared_transactions=1"]).start()
    try:
        with sync.Client(server.dsn()) as client:
            client.migrate()
            behind = Sql(server.dsn(), "graphile_worker")
            behind.run("begin")
            behind.run("insert into :schema._private_tasks (identifier) values ('task')")
            behind.run("prepare transaction 'forgotten'")
            behind.close()
            [blocker] = get_tuning(server.dsn(), "graphile_worker").vacuum_blockers
    finally:
        server.stop()

    assert (blocker.kind, blocker.name, blocker.state) == (
        "prepared transaction",
        "forgotten",
        None,
    )


def test_a_name_with_a_line_break_cannot_end_a_comment(database, sql):
    name = f"role_{database.name}\nselect 1/0;"
    sql.run(f'create role "{name}" login')
    other = Sql(make_conninfo(database.dsn, user=name), database.schema)
    other.run("begin isolation level repeatable read")
    other.run("select 1")

    comments = format_comments(get_tuning(database.dsn, database.schema))
    other.close()
    sql.run(f'drop role "{name}"')

    [line] = [line for line in comments if f"role_{database.name}" in line]
    assert line.startswith("--   session ")
    assert re.search(r"idle in transaction for \d+\.\ds", line)
    assert "\n" not in line


async def test_a_role_that_does_not_see_all_sessions_is_reported(database, sql, role, client):
    dsn = make_conninfo(database.dsn, user=role)

    with sync.Client(dsn, schema=database.schema) as other:
        assert not other.get_tuning().can_see_all_sessions
        sql.run(f"grant pg_read_all_stats to {role}")
        assert other.get_tuning().can_see_all_sessions
    assert (await client.get_tuning()).can_see_all_sessions
