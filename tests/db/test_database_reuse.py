"""The pool of test databases: a kept database equals a fresh clone, an altered one is dropped."""

from collections.abc import Iterator

import psycopg
import pytest

from graphile_worker._sql.identifiers import derive_companion_schema
from tests.support.catalog import read_bodies, read_catalogue, read_companion, read_dated_ledger
from tests.support.cluster import Cluster
from tests.support.database_pool import APPLICATION_NAME, DatabasePool
from tests.support.sql import Sql

TABLES = """
select table_schema, table_name,
  (xpath('/row/n/text()', query_to_xml(
    format('select count(*) as n from %I.%I', table_schema, table_name), false, true, ''
  )))[1]::text::int
from information_schema.tables
where table_schema in ($1, $2) and table_type = 'BASE TABLE'
order by 1, 2
"""

ALTERATIONS = {
    "column": "alter table :schema._private_jobs add column more int",
    "default": "alter table :schema._private_jobs alter column priority set default 1",
    "grant": "grant select on :schema._private_jobs to public",
    "column grant": "grant select (id) on :schema._private_jobs to public",
    "schema grant": "grant usage on schema :schema to public",
    "function": "create function :schema.more() returns int language sql as 'select 1'",
    "index": "create index on :schema._private_jobs (priority, id)",
    "dropped index": "drop index :schema.jobs_main_index",
    "table": "create table more (id int)",
    "row security": "alter table :schema._private_jobs disable row level security",
    "storage option": "alter table :schema._private_jobs set (autovacuum_enabled = off)",
    "comment": "comment on table :schema._private_jobs is 'more'",
    "statistics": "analyze :schema.migrations",
    "changed ledger": "update :schema.migrations set ts = now() where id = 1",
    "shorter ledger": "delete from :ext_schema.migrations where id = 1",
}


@pytest.fixture
def taken(databases: DatabasePool, cluster: Cluster, schema: str, template: str) -> Iterator[Sql]:
    """A session in a database of the pool, which the test gives back."""
    behind = Sql(cluster.dsn(databases.acquire(template)), schema)
    yield behind
    behind.close()


def given_back(databases: DatabasePool, behind: Sql) -> str | None:
    """Why the pool drops the database, if it does."""
    name = behind.connection.info.dbname
    behind.close()
    return databases.release(name)


def contents(dsn: str, schema: str) -> list[object]:
    """All that a test can see of an install."""
    behind = Sql(dsn, schema)
    counts = behind.run(TABLES, schema, derive_companion_schema(schema))
    behind.close()
    reads = (read_catalogue, read_companion, read_bodies, read_dated_ledger)
    return [counts, *(read(dsn, schema) for read in reads)]


def test_a_reset_database_equals_a_fresh_clone(databases, cluster, schema, template, taken):
    taken.run("select :schema.add_job('work', queue_name := 'q', job_key := 'k')")
    taken.run("insert into :schema._private_known_crontabs values ('c', now(), now())")
    taken.run("insert into :ext_schema.recoveries (job_id, count) values (1, 1)")
    taken.run("create temporary table own (id int)")
    name = taken.connection.info.dbname

    assert given_back(databases, taken) is None
    assert databases.acquire(template) == name
    fresh = databases.clone(template)

    assert contents(cluster.dsn(name), schema) == contents(cluster.dsn(fresh), schema)
    again = Sql(cluster.dsn(name), schema)
    assert again.value("select id from :schema.add_job('work', queue_name := 'q')") == 1
    assert again.value("select id from :schema._private_tasks") == 1
    assert again.value("select id from :schema._private_job_queues") == 1
    assert given_back(databases, again) is None
    cluster.drop_database(fresh)


def test_a_sequence_restarts_without_a_row_too(databases, cluster, schema, template, taken):
    draw = "select nextval(pg_get_serial_sequence($1, 'id'))"
    tasks = taken.text(":schema._private_tasks").decode()
    assert taken.value(draw, tasks) == 1
    assert given_back(databases, taken) is None

    again = Sql(cluster.dsn(databases.acquire(template)), schema)
    assert again.value(draw, tasks) == 1
    given_back(databases, again)


@pytest.mark.parametrize("alteration", ALTERATIONS.values(), ids=ALTERATIONS)
def test_an_altered_database_is_dropped(databases, cluster, taken, alteration):
    taken.run(alteration)
    name = taken.connection.info.dbname

    assert given_back(databases, taken) == "altered"
    assert not exists(cluster, name)


def test_a_database_with_a_setting_is_dropped(databases, taken):
    name = taken.value("select current_database()")
    taken.run(f"alter database {name} set work_mem = '8MB'")

    assert given_back(databases, taken) == "altered"


def test_a_session_that_is_left_ends_with_its_database(databases, taken):
    left = taken.another()

    assert given_back(databases, taken) == "a session is left"
    with pytest.raises(psycopg.OperationalError):
        left.run("select 1")
    left.close()


def test_a_database_without_the_session_of_the_pool_is_dropped(databases, taken):
    taken.run(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity "
        "where datname = current_database() and application_name = $1",
        APPLICATION_NAME,
    )

    assert "AdminShutdown" in (given_back(databases, taken) or "")


@pytest.mark.usefixtures("fresh_database")
def test_a_fresh_database_has_no_session_of_the_pool(sql):
    sessions = """
    select pid = pg_backend_pid() from pg_stat_activity
    where datname = $1 and backend_type = 'client backend'
    """
    assert sql.run(sessions, sql.connection.info.dbname) == [(True,)]


def exists(cluster: Cluster, name: str) -> bool:
    with psycopg.connect(cluster.dsn()) as connection:
        found = connection.execute("select from pg_database where datname = %s", [name])
        return found.fetchone() is not None
