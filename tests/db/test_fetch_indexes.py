"""The indexes that fetches need: who makes them, when, and how nobody has to wait for them."""

import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from psycopg.conninfo import make_conninfo

from graphile_worker import migration_sql, sync
from graphile_worker._sql.queries.migrations import EXT_STEPS, INDEXES
from tests.support.pools import open_pool, payloads
from tests.support.processes import eventually
from tests.support.roles import temporary_role
from tests.support.sql import Sql

NO_INDEXES = "this role may not create them"
NOT_COMPLETE = "are incomplete"
BUILDING = "select exists (select from pg_stat_progress_create_index)"
WAITING = """
select exists (
  select from pg_stat_activity
  where datname = current_database() and wait_event_type = 'Lock'
)
"""


@pytest.fixture
def their_sql(node_database):
    """A look behind the scenes of the reference's install, in which there are jobs."""
    with closing(Sql(node_database.dsn, node_database.schema)) as sql:
        sql.run("select :schema.add_job('task', to_json(n)) from generate_series(0, 9) as n")
        yield sql


@pytest.fixture
def role(their_sql, node_database):
    """A role that may use all tables of the schema and owns none."""
    with temporary_role(their_sql, f"role_{node_database.name}") as name:
        their_sql.run(f"alter role {name} bypassrls")
        their_sql.run(f"grant usage on schema :schema to {name}")
        their_sql.run(f"grant all on all tables in schema :schema to {name}")
        yield name


def migrate(database, **more: str) -> None:
    dsn = make_conninfo(database.dsn, **more)
    with sync.Client(dsn, schema=database.schema) as client:
        client.migrate()


def valid(sql: Sql) -> list[str]:
    return [
        name
        for (name,) in sql.run(
            "select relname from pg_class join pg_index on indexrelid = pg_class.oid "
            "join pg_namespace on pg_namespace.oid = relnamespace "
            "where nspname = $1 and relname like 'gwpy%' and indisvalid order by relname",
            sql.schema,
        )
    ]


def test_an_install_makes_them_and_enters_the_step(sql):
    assert valid(sql) == sorted(INDEXES)
    assert sql.value("select name from :ext_schema.migrations where id = 3") == "0003_indexes"


def test_the_text_for_a_dba_makes_them(empty_database):
    with closing(Sql(empty_database.dsn, empty_database.schema)) as sql:
        sql.connection.execute(migration_sql(empty_database.schema).encode())

        assert valid(sql) == sorted(INDEXES)


def test_they_are_made_in_a_schema_that_is_in_use(node_database, their_sql):
    migrate(node_database)

    assert valid(their_sql) == sorted(INDEXES)
    assert their_sql.value("select count(*) from :ext_schema.migrations") == len(EXT_STEPS)


def test_building_the_indexes_blocks_no_session(node_database, their_sql):
    writer = their_sql.another()
    writer.run("begin")
    writer.run("update :schema._private_jobs set last_error = 'x' where payload::text = '0'")

    with ThreadPoolExecutor(1) as threads:
        installer = threads.submit(migrate, node_database)
        # While it waits for that transaction to end, others add jobs.
        while not their_sql.value(BUILDING):
            assert not installer.done()
        their_sql.run("select :schema.add_job('task')")
        assert valid(their_sql) == []
        writer.run("commit")
        installer.result()

    writer.close()
    assert valid(their_sql) == sorted(INDEXES)


def test_producers_add_jobs_while_a_migration_waits_for_an_open_transaction(database, sql):
    for name in INDEXES:
        sql.run(f"drop index :schema.{name}")
    writer, producer = sql.another(), sql.another()
    writer.run("begin")
    writer.run("select :schema.add_job('one')")
    # The transaction stays open for longer than that.
    producer.run("set lock_timeout = '10s'")

    with ThreadPoolExecutor(1) as threads:
        installer = threads.submit(migrate, database)
        try:
            eventually(lambda: sql.value(WAITING), "the installer waits for the transaction")
            # It lets go of the table, and builds beside those who use it.
            while not sql.value(BUILDING):
                assert not installer.done()
                producer.run("select :schema.add_job('another')")
            producer.run("select :schema.add_job('another')")
            assert valid(sql) == []
        finally:
            writer.run("commit")
        installer.result()

    writer.close()
    producer.close()
    assert valid(sql) == sorted(INDEXES)


def test_one_that_is_missing_is_made_though_its_step_was_entered(database, sql):
    sql.run("select :schema.add_job('task')")
    sql.run("drop index :schema.gwpy_free_jobs")

    migrate(database)

    assert valid(sql) == sorted(INDEXES)


@pytest.mark.parametrize("jobs", [0, 5])
def test_an_incomplete_index_is_built_again(database, sql, jobs):
    sql.run("select :schema.add_job('task') from generate_series(1, $1)", jobs)
    sql.run(
        "update pg_index set indisvalid = false where indexrelid in "
        "(select oid from pg_class where relname = 'gwpy_queued_jobs')"
    )

    migrate(database)

    assert valid(sql) == sorted(INDEXES)


def test_several_installers_at_once_make_them_once(node_database, their_sql):
    with ThreadPoolExecutor(4) as threads:
        for installer in [threads.submit(migrate, node_database) for _ in range(4)]:
            installer.result()

    migrate(node_database)
    assert valid(their_sql) == sorted(INDEXES)


@pytest.mark.parametrize("setting", ["lock_timeout", "statement_timeout"])
def test_what_is_in_their_way_does_not_keep_anybody_from_starting(
    node_database, their_sql, caplog, setting
):
    writer = their_sql.another()
    writer.run("begin")
    writer.run("update :schema._private_jobs set last_error = 'x' where payload::text = '0'")

    with caplog.at_level(logging.WARNING, "graphile_worker"):
        migrate(node_database, options=f"-c {setting}=500ms")

    assert [NOT_COMPLETE in each.message for each in caplog.records] == [True]
    with open_pool(node_database) as pool:
        assert not pool.has_indexes
        assert payloads(pool.claim(1)) == [1]

    writer.run("commit")
    writer.close()
    migrate(node_database)
    assert valid(their_sql) == sorted(INDEXES)


def test_a_role_that_does_not_own_the_tables_works_without_them(
    node_database, their_sql, role, caplog
):
    with caplog.at_level(logging.WARNING, "graphile_worker"):
        migrate(node_database, user=role)

    assert sum(NO_INDEXES in each.message for each in caplog.records) == 1
    assert valid(their_sql) == []
    migrate(node_database)

    assert valid(their_sql) == sorted(INDEXES)
