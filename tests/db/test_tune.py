"""Which settings suit a queue: what is said, what is set, and what stands in the way."""

import asyncio
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from graphile_worker import sync
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans import tuning
from graphile_worker._sql.plans.tuning import TableTuning, Tuning
from graphile_worker.errors import SchemaMissing
from tests.support.clients import open_client, unwrap
from tests.support.cluster import Cluster
from tests.support.fetch_locks import wait_for_lock
from tests.support.sql import Sql

TABLES = ["_private_jobs", "_private_job_queues"]


@pytest.fixture
def at_once(monkeypatch) -> None:
    """Snapshots are told however young they are."""
    monkeypatch.setattr(tuning, "MIN_BLOCKER_SECONDS", 0)


@pytest.fixture
def role(database, sql) -> Iterator[str]:
    """A role that owns nothing; roles belong to the cluster, so it goes again."""
    name = f"role_{database.name}"
    sql.run(f"create role {name} login")
    yield name
    sql.run(f"drop owned by {name}")
    sql.run(f"drop role {name}")


def options(sql: Sql, table: str) -> dict[str, str]:
    """What is set for a table."""
    found = sql.value(
        "select coalesce(reloptions, '{}') from pg_class where oid = $1::regclass",
        sql.text(f":schema.{table}").decode(),
    )
    return dict(each.split("=") for each in found)


def table(found: Tuning, name: str) -> TableTuning:
    [one] = [each for each in found.tables if each.table == name]
    return one


# Tables


async def test_nothing_is_set_at_first_and_looking_changes_nothing(client, sql):
    found = await client.get_tuning()

    assert [each.table for each in found.tables] == TABLES
    assert not any(each.is_set for table in found.tables for each in table.settings)
    assert [options(sql, each) for each in TABLES] == [{}, {}]


async def test_every_setting_says_why(client):
    found = await client.get_tuning()

    assert all(each.reason.endswith(".") for table in found.tables for each in table.settings)


async def test_what_is_said_is_what_is_set(client, sql):
    said = await client.get_tuning()

    changed = await client.apply_tuning()

    assert changed == TABLES
    for each in said.tables:
        assert options(sql, each.table) == {one.name: one.value for one in each.settings}
    after = await client.get_tuning()
    assert all(each.is_set for each in after.tables)


async def test_what_is_set_already_is_left_alone(client):
    await client.apply_tuning()

    assert await client.apply_tuning() == []


async def test_settings_of_others_stay_and_those_that_differ_are_told(client, sql):
    sql.run("alter table :schema._private_jobs set (fillfactor = 90, autovacuum_enabled = off)")
    sql.run("alter table :schema._private_jobs set (autovacuum_vacuum_scale_factor = 0.0)")

    found = table(await client.get_tuning(), "_private_jobs")
    now = {each.name: each.current_value for each in found.settings}
    set_already = {each.name for each in found.settings if each.is_set}
    await client.apply_tuning()

    assert now["autovacuum_enabled"] == "off"
    assert set_already == {"autovacuum_vacuum_scale_factor"}
    assert options(sql, "_private_jobs")["fillfactor"] == "90"
    assert options(sql, "_private_jobs")["autovacuum_enabled"] == "true"


async def test_the_sql_that_people_read_sets_the_same(client, sql, database):
    found = await client.get_tuning()
    schemas = Schemas.from_names(database.schema)

    for each in found.tables:
        sql.connection.execute(tuning.render_tuning_sql(each, schemas).encode())

    assert all(each.is_set for each in (await client.get_tuning()).tables)


def test_a_role_that_does_not_own_the_tables_is_told_who_does(database, sql, role):
    dsn = make_conninfo(database.dsn, user=role)

    with sync.Client(dsn, schema=database.schema) as client:
        found, changed = client.get_tuning(), client.apply_tuning()

    assert [each.can_change for each in found.tables] == [False, False]
    assert {each.owner for each in found.tables} == {"postgres"}
    assert changed == []
    assert options(sql, "_private_jobs") == {}


def test_a_member_of_the_role_that_owns_them_may_set_them(database, sql, role):
    sql.run(f"grant usage on schema :schema to {role}")
    for each in TABLES:
        sql.run(f"alter table :schema.{each} owner to {role}")
    dsn = make_conninfo(database.dsn, user=role)

    with sync.Client(dsn, schema=database.schema) as client:
        assert client.apply_tuning() == TABLES

    for each in TABLES:
        sql.run(f"alter table :schema.{each} owner to postgres")


async def test_without_the_schema_it_says_so(kind, empty_database):
    async with open_client(kind, empty_database) as client:
        with pytest.raises(SchemaMissing):
            await client.get_tuning()
        with pytest.raises(SchemaMissing):
            await client.apply_tuning()


async def test_it_can_be_asked_in_a_transaction_of_yours(client, conn):
    found = await client.get_tuning(conn=unwrap(conn))

    assert [each.table for each in found.tables] == TABLES


# Locks


async def test_it_waits_for_a_vacuum_and_nobody_who_adds_jobs_waits_for_it(client, sql):
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


async def test_it_gives_up_in_the_end(client, sql, monkeypatch):
    monkeypatch.setattr(tuning, "MAX_TUNING_ATTEMPTS", 1)
    other = sql.another()
    other.run("begin")
    other.run("lock table :schema._private_jobs in share update exclusive mode")

    with pytest.raises(psycopg.errors.LockNotAvailable):
        await client.apply_tuning()

    other.close()
    assert options(sql, "_private_jobs") == {}


# The server


async def test_settings_of_the_server_that_do_not_suit_a_queue_are_told(client, sql, database):
    found = {each.name: each for each in (await client.get_tuning()).server}

    naptime = found["autovacuum_naptime"]
    assert (naptime.current_value, naptime.value) == ("1min", "10s")
    assert naptime.sql == "alter system set autovacuum_naptime = '10s'"
    idle = found["idle_in_transaction_session_timeout"]
    assert idle.sql == f"alter database {database.name} set {idle.name} = '{idle.value}'"
    assert {"autovacuum", "track_counts", "old_snapshot_threshold"}.isdisjoint(found)
    assert ("transaction_timeout" in found) == (database.cluster.major >= 17)


async def test_what_is_good_is_not_mentioned(kind, database, sql):
    advised = f"alter database {database.name} set idle_in_transaction_session_timeout = '1min'"
    sql.run(advised)

    async with open_client(kind, database) as client:
        found = await client.get_tuning()

    assert "idle_in_transaction_session_timeout" not in {each.name for each in found.server}


async def test_every_advice_is_sql_that_makes_it_go_away(kind, database, sql):
    async with open_client(kind, database) as client:
        found = await client.get_tuning()
    for each in found.server:
        if each.sql.startswith("alter database"):
            sql.run(each.sql)

    async with open_client(kind, database) as client:
        left = (await client.get_tuning()).server

    assert all(each.sql.startswith("alter system") for each in left)


# Snapshots that are held


async def test_a_transaction_that_stays_open_is_named(client, sql, at_once):
    other = sql.another()
    other.run("set application_name = 'report'")
    other.run("begin isolation level repeatable read")
    other.run("select from :schema._private_jobs")
    pid = other.connection.info.backend_pid
    for _ in range(3):
        await client.add_job("task")

    [held] = [each for each in (await client.get_tuning()).vacuum_blockers if "report" in each.name]
    other.close()

    assert held.kind == "session"
    assert held.name == f"{pid}, postgres, report"
    assert held.state == "idle in transaction"
    assert held.seconds is not None
    assert held.transactions >= 3


async def test_a_transaction_that_only_wrote_is_named_too(client, sql, at_once):
    other = sql.another()
    other.run("set application_name = 'writer'")
    other.run("begin")
    other.run("select :schema.add_job('task')")

    found = await client.get_tuning()
    other.close()

    assert any("writer" in each.name for each in found.vacuum_blockers)


async def test_a_young_transaction_is_not_named(client, sql):
    other = sql.another()
    other.run("begin isolation level repeatable read")
    other.run("select 1")

    found = await client.get_tuning()
    other.close()

    assert found.vacuum_blockers == ()


async def test_sessions_of_other_databases_are_not_in_the_way(client, cluster, at_once):
    with psycopg.connect(cluster.dsn(application_name="elsewhere")) as other:
        other.execute("select 1")
        found = await client.get_tuning()

    assert not any("elsewhere" in each.name for each in found.vacuum_blockers)


@pytest.mark.single_version
def test_a_prepared_transaction_is_named(pytestconfig, at_once):
    server = Cluster(pytestconfig.getoption("--pg"), ["max_prepared_transactions=1"]).start()
    try:
        with sync.Client(server.dsn()) as client:
            client.migrate()
            behind = Sql(server.dsn(), "graphile_worker")
            behind.run("begin")
            behind.run("insert into :schema._private_tasks (identifier) values ('task')")
            behind.run("prepare transaction 'forgotten'")
            behind.close()
            [held] = client.get_tuning().vacuum_blockers
    finally:
        server.stop()

    assert (held.kind, held.name, held.state) == ("prepared transaction", "forgotten", None)


async def test_a_role_that_does_not_see_all_sessions_says_so(database, sql, role, client):
    dsn = make_conninfo(database.dsn, user=role)

    with sync.Client(dsn, schema=database.schema) as other:
        assert not other.get_tuning().can_see_all_sessions
        sql.run(f"grant pg_read_all_stats to {role}")
        assert other.get_tuning().can_see_all_sessions
    assert (await client.get_tuning()).can_see_all_sessions
