"""Which database a client uses: one that it is told, or a pool or engine that stays its owner's."""

import inspect
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from typing import Any

import asyncpg
import psycopg
import psycopg_pool
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import create_async_engine

from graphile_worker import Client, ConfigurationError, JobSpec, sync
from tests.conftest import TestDatabase
from tests.integrations.kinds import (
    customize_asyncpg,
    customize_psycopg,
    done,
    owners_dumps,
    owners_loads,
)
from tests.support.cluster import Cluster
from tests.support.database_pool import DatabasePool
from tests.support.sql import Sql


class Source:
    """What a caller gives to a client, and how the caller uses it too."""

    def __init__(self, lent: Any, client_class: Any, ask: Callable[[Any], Any]) -> None:
        self.lent = lent
        self.client_class = client_class
        self._ask = ask

    async def still_works(self) -> bool:
        """Can its owner go on using it?"""
        return bool(await done(self._ask(self.lent)))


def psycopg_async(**how: Any) -> Any:
    @asynccontextmanager
    async def lend(database: TestDatabase) -> AsyncIterator[Source]:
        async with psycopg_pool.AsyncConnectionPool(
            database.dsn, min_size=1, open=False, kwargs=how, configure=_configure
        ) as pool:
            yield Source(pool, Client, _ask_async_psycopg)

    return lend


async def _configure(connection: Any) -> None:
    customize_psycopg(connection)


async def _ask_async_psycopg(pool: Any) -> Any:
    async with pool.connection() as connection:
        return await (await connection.execute("select true as up")).fetchone()


@asynccontextmanager
async def asyncpg_pool(database: TestDatabase) -> AsyncIterator[Source]:
    async with asyncpg.create_pool(database.url, min_size=1, init=customize_asyncpg) as pool:
        yield Source(pool, Client, lambda pool: pool.fetchval("select true"))


def async_engine(driver: str, **how: Any) -> Any:
    @asynccontextmanager
    async def lend(database: TestDatabase) -> AsyncIterator[Source]:
        engine = create_async_engine(
            database.sqlalchemy_url(driver),
            **how,
            json_serializer=owners_dumps,
            json_deserializer=owners_loads,
        )
        yield Source(engine, Client, _ask_async_engine)
        await engine.dispose()

    return lend


async def _ask_async_engine(engine: Any) -> Any:
    async with engine.connect() as connection:
        return await connection.scalar(sqlalchemy.text("select true"))


def psycopg_blocking(**how: Any) -> Any:
    @asynccontextmanager
    async def lend(database: TestDatabase) -> AsyncIterator[Source]:
        with psycopg_pool.ConnectionPool(
            database.dsn, min_size=1, kwargs=how, configure=customize_psycopg
        ) as pool:
            yield Source(pool, sync.Client, _ask_psycopg)

    return lend


def _ask_psycopg(pool: Any) -> Any:
    with pool.connection() as connection:
        return connection.execute("select true as up").fetchone()


def engine(driver: str, **how: Any) -> Any:
    @asynccontextmanager
    async def lend(database: TestDatabase) -> AsyncIterator[Source]:
        engine = sqlalchemy.create_engine(
            database.sqlalchemy_url(driver),
            **how,
            json_serializer=owners_dumps,
            json_deserializer=owners_loads,
        )
        yield Source(engine, sync.Client, _ask_engine)
        engine.dispose()

    return lend


def _ask_engine(engine: Any) -> Any:
    with engine.connect() as connection:
        return connection.scalar(sqlalchemy.text("select true"))


SOURCES = {
    "psycopg AsyncConnectionPool": psycopg_async(),
    "psycopg AsyncConnectionPool, autocommit": psycopg_async(autocommit=True),
    "psycopg AsyncConnectionPool, dict rows": psycopg_async(row_factory=dict_row),
    "asyncpg Pool": asyncpg_pool,
    "SQLAlchemy AsyncEngine, psycopg": async_engine("psycopg"),
    "SQLAlchemy AsyncEngine, asyncpg": async_engine("asyncpg"),
    "psycopg ConnectionPool": psycopg_blocking(),
    "psycopg ConnectionPool, autocommit": psycopg_blocking(autocommit=True),
    "psycopg ConnectionPool, dict rows": psycopg_blocking(row_factory=dict_row),
    "SQLAlchemy Engine, psycopg": engine("psycopg"),
    "SQLAlchemy Engine, psycopg2": engine("psycopg2"),
    "SQLAlchemy Engine, autocommit": engine("psycopg", isolation_level="AUTOCOMMIT"),
    "SQLAlchemy AsyncEngine, autocommit": async_engine("asyncpg", isolation_level="AUTOCOMMIT"),
}

every_source = pytest.mark.parametrize("source", SOURCES)


@asynccontextmanager
async def client_on(source: str, database: TestDatabase) -> AsyncIterator[tuple[Any, Source]]:
    async with SOURCES[source](database) as lent:
        yield lent.client_class(lent.lent, schema=database.schema), lent


@pytest.fixture(scope="module")
def database(shared_database: TestDatabase) -> TestDatabase:
    return shared_database


@pytest.fixture(autouse=True)
def sql(shared_sql: Sql) -> Iterator[Sql]:
    yield shared_sql
    shared_sql.run("delete from :schema._private_jobs")


def identifiers(sql: Sql) -> list[str]:
    rows = sql.run("select task_identifier from :schema.jobs order by id")
    return [name for (name,) in rows]


@pytest.mark.feature("F49")
@every_source
async def test_each_call_commits_by_itself(source: str, database: TestDatabase, sql: Sql) -> None:
    async with client_on(source, database) as (client, _):
        one = await done(client.add_job("one %s :x $1", {"a": "%s :x $1"}))
        committed = identifiers(sql)
        two, three = await done(client.add_jobs([JobSpec("two"), JobSpec("three")]))

        assert committed == ["one %s :x $1"]
        assert identifiers(sql) == ["one %s :x $1", "two", "three"]
        assert await done(client.get_job(one.id)) == one
        assert [job.id for job in await done(client.complete_jobs([two.id, three.id]))] == [
            two.id,
            three.id,
        ]
        assert identifiers(sql) == ["one %s :x $1"]


@pytest.mark.feature("F49")
@every_source
async def test_migrations_run_on_what_was_lent(source: str, empty_database: TestDatabase) -> None:
    async with client_on(source, empty_database) as (client, _):
        level = await done(client.migrate())

        assert await done(client.migrate()) == level
        assert await done(client.check_schema()) == level
        assert (await done(client.add_job("task"))).task_identifier == "task"


@pytest.mark.feature("F49")
@every_source
async def test_cleanups_run_on_what_was_lent(source: str, database: TestDatabase, sql: Sql) -> None:
    async with client_on(source, database) as (client, _):
        job = await done(client.add_job("task", queue_name="queue"))
        await done(client.permanently_fail_jobs([job.id]))

        everything = ["DELETE_PERMAFAILED_JOBS", "GC_TASK_IDENTIFIERS", "GC_JOB_QUEUES"]
        await done(client.cleanup(everything))

        assert identifiers(sql) == []
        assert sql.value("select count(*) from :schema._private_tasks") == 0
        assert sql.value("select count(*) from :schema._private_job_queues") == 0


@pytest.mark.feature("F49", "F51")
@every_source
@pytest.mark.parametrize("ending", ["close", "release"])
async def test_what_was_lent_stays_open(source: str, ending: str, database: TestDatabase) -> None:
    async with client_on(source, database) as (client, lent):
        await done(client.add_job("task"))

        await done(getattr(client, ending)())

        assert await lent.still_works()
        assert (await done(client.add_job("task"))).task_identifier == "task"


@every_source
async def test_a_connection_that_takes_no_writes_is_not_used_again(
    source: str, database: TestDatabase, sql: Sql, request: pytest.FixtureRequest
) -> None:
    setting = f"alter database {database.name} set default_transaction_read_only"
    sql.run(f"{setting} = on")
    request.addfinalizer(lambda: sql.run(f"{setting} = off"))
    async with client_on(source, database) as (client, lent):
        assert await lent.still_works()
        # In new sessions alone: the one that is there stays as it is.
        sql.run(f"{setting} = off")
        with pytest.raises(Exception, match="in a read-only transaction"):
            await done(client.add_job("task"))

        assert (await done(client.add_job("task"))).task_identifier == "task"
        assert await lent.still_works()


@pytest.mark.skipif(
    "close_returns" not in inspect.signature(psycopg_pool.ConnectionPool).parameters,
    reason="psycopg_pool before 3.3",
)
def test_a_connection_that_takes_no_writes_leaves_a_pool_that_gets_it_back_by_close(
    database: TestDatabase,
) -> None:
    read_only = {"options": "-c default_transaction_read_only=on"}
    with psycopg_pool.ConnectionPool(
        database.dsn, min_size=1, max_size=1, close_returns=True, kwargs=read_only
    ) as pool:
        with pool.connection() as connection:
            before = connection.info.backend_pid

        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            sync.Client(pool, schema=database.schema).add_job("task")

        with pool.connection() as connection:
            assert connection.info.backend_pid != before


# Fails twice with the code that it is made for; a rollback does not reset the sequence.
STAND_IN = """
create or replace function :schema.add_job(
  identifier text, payload json default null, queue_name text default null,
  run_at timestamptz default null, max_attempts integer default null, job_key text default null,
  priority integer default null, flags text[] default null, job_key_mode text default 'replace'
) returns :schema._private_jobs language plpgsql as $body$
declare
  added :schema._private_jobs;
begin
  if nextval('calls') < 3 then
    raise exception 'try again' using errcode = 'CODE';
  end if;
  select jobs.* into added from :schema.add_jobs(
    array[cast(row(identifier, payload, null, null, null, null, null, null) as :schema.job_spec)]
  ) as jobs;
  return added;
end
$body$
"""


@pytest.fixture(scope="module")
def flaky_sql(
    databases: DatabasePool, cluster: Cluster, schema: str, template: str
) -> Iterator[Sql]:
    """A connection to a database in which tests replace a function of the schema."""
    name = databases.clone(template)
    with closing(Sql(cluster.dsn(name), schema)) as sql:
        sql.run("create sequence calls")
        yield sql
    cluster.drop_database(name)


@pytest.fixture
def flaky_database(flaky_sql: Sql, cluster: Cluster, schema: str) -> TestDatabase:
    return TestDatabase(flaky_sql.value("select current_database()"), cluster, schema)


def make_flaky(sql: Sql, code: str) -> None:
    """Let the first two calls of add_job fail with that code."""
    sql.run("alter sequence calls restart")
    sql.run(STAND_IN.replace("CODE", code))


@every_source
@pytest.mark.parametrize("code", ["40001", "40P01"])
async def test_transient_errors_are_retried(
    source: str, code: str, flaky_database: TestDatabase, flaky_sql: Sql
) -> None:
    make_flaky(flaky_sql, code)
    async with client_on(source, flaky_database) as (client, _):
        job = await done(client.add_job("task"))

    assert job.task_identifier == "task"
    assert flaky_sql.value("select last_value from calls") == 3


@every_source
async def test_other_errors_are_not_retried(
    source: str, flaky_database: TestDatabase, flaky_sql: Sql
) -> None:
    make_flaky(flaky_sql, "P0001")
    async with client_on(source, flaky_database) as (client, lent):
        with pytest.raises(Exception, match="try again"):
            await done(client.add_job("task"))

        assert flaky_sql.value("select last_value from calls") == 1
        assert await lent.still_works()


@pytest.mark.feature("F49")
@pytest.mark.parametrize("client_class", [Client, sync.Client])
@pytest.mark.parametrize("stranger", [object(), 5432, b"postgres://here", ["dbname=x"]])
def test_an_unsupported_database_is_rejected_with_its_class(
    client_class: Any, stranger: object
) -> None:
    with pytest.raises(ConfigurationError, match=f"a {type(stranger).__name__} is not"):
        client_class(stranger)


@pytest.mark.feature("F49")
@every_source
async def test_a_pool_for_the_other_client_is_rejected(source: str, database: TestDatabase) -> None:
    async with SOURCES[source](database) as lent:
        other: Any = sync.Client if lent.client_class is Client else Client

        with pytest.raises(ConfigurationError, match=type(lent.lent).__name__):
            other(lent.lent)


@pytest.mark.parametrize("client_class", [Client, sync.Client])
class TestWhichDatabase:
    """The connection string, or what stands in the environment instead of one."""

    @pytest.fixture(autouse=True)
    def environment(self, database: TestDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("DATABASE_URL", raising=False)
        monkeypatch.delenv("PGDATABASE", raising=False)
        monkeypatch.setenv("PGHOST", "127.0.0.1")
        monkeypatch.setenv("PGPORT", str(database.cluster.port))
        monkeypatch.setenv("PGUSER", "postgres")

    @pytest.mark.feature("F49")
    async def test_a_missing_database_is_an_error_of_the_first_call(
        self, client_class: Any
    ) -> None:
        client = client_class()

        with pytest.raises(ConfigurationError, match="DATABASE_URL or PGDATABASE"):
            await done(client.add_job("work"))

    @pytest.mark.feature("F49")
    async def test_an_empty_variable_is_none_at_all(
        self, client_class: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DATABASE_URL", "")

        with pytest.raises(ConfigurationError, match="DATABASE_URL or PGDATABASE"):
            await done(client_class().add_job("work"))

    @pytest.mark.feature("F49")
    def test_an_empty_string_is_a_mistake(self, client_class: Any) -> None:
        with pytest.raises(ConfigurationError, match="empty"):
            client_class("")

    async def test_a_connection_string_comes_before_the_environment(
        self,
        client_class: Any,
        database: TestDatabase,
        sql: Sql,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("DATABASE_URL", "postgres://nobody@127.0.0.1:1/nowhere")
        monkeypatch.setenv("PGDATABASE", "nowhere")

        await add_and_close(client_class(database.url, schema=database.schema))

        assert identifiers(sql) == ["task"]

    async def test_database_url_comes_before_pgdatabase(
        self,
        client_class: Any,
        database: TestDatabase,
        sql: Sql,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("DATABASE_URL", database.url)
        monkeypatch.setenv("PGDATABASE", "nowhere")

        await add_and_close(client_class(schema=database.schema))

        assert identifiers(sql) == ["task"]

    async def test_pgdatabase_means_libpqs_own_settings(
        self,
        client_class: Any,
        database: TestDatabase,
        sql: Sql,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("PGDATABASE", database.name)

        await add_and_close(client_class(schema=database.schema))

        assert identifiers(sql) == ["task"]

    async def test_a_bare_word_is_the_name_of_a_database(
        self, client_class: Any, database: TestDatabase, sql: Sql
    ) -> None:
        await add_and_close(client_class(database.name, schema=database.schema))

        assert identifiers(sql) == ["task"]

    @pytest.mark.parametrize(
        "unreadable",
        [
            "postgres://user:s3cret@[half/database",
            "postgres://user:s3cret@host/database?nonsense=1",
            "password=s3cret nonsense=1",
            "password=s3cret dbname",
            "postgres://user:s3cret%zz@host/database",
            "mysql://user:s3cret@host/database",
        ],
    )
    def test_a_connection_string_that_cannot_be_read_keeps_its_password(
        self, client_class: Any, unreadable: str
    ) -> None:
        with pytest.raises(ConfigurationError) as caught:
            client_class(unreadable)

        assert "s3cret" not in "".join(traceback.format_exception(caught.value))


async def add_and_close(client: Any) -> None:
    await done(client.add_job("task"))
    await done(client.close())
