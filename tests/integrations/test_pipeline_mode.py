"""psycopg's pipeline mode: `execute()` queues a statement, and the fetch gets its result."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from graphile_worker import JobSpec, JobSpecError
from graphile_worker._db.external_connections import adapt_connection, adapt_sync_connection
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.jobs import create_names
from tests.conftest import TestDatabase
from tests.integrations.kinds import Lent, LentAsyncPsycopg, LentPsycopg, done
from tests.support.sql import Sql

pytestmark = [
    pytest.mark.feature("F39"),
    pytest.mark.parametrize("kind", ["blocking", "async"]),
    pytest.mark.parametrize("autocommit", [False, True], ids=["transaction", "autocommit"]),
]


@pytest.fixture(scope="module")
def database(shared_database: TestDatabase) -> TestDatabase:
    return shared_database


@pytest.fixture
def sql(shared_sql: Sql) -> Iterator[Sql]:
    yield shared_sql
    shared_sql.run("delete from :schema._private_jobs")


@asynccontextmanager
async def open_pipeline(kind: str, autocommit: bool, database: TestDatabase) -> AsyncIterator[Lent]:
    """Open a connection in pipeline mode. Its end commits."""
    if kind == "blocking":
        with psycopg.connect(database.dsn, autocommit=autocommit) as conn, conn.pipeline():
            yield LentPsycopg(conn, database)
    else:
        async with (
            await psycopg.AsyncConnection.connect(database.dsn, autocommit=autocommit) as opened,
            opened.pipeline(),
        ):
            yield LentAsyncPsycopg(opened, database)


def read_identifiers(sql: Sql) -> dict[int, str]:
    return dict(sql.run("select id, task_identifier from :schema.jobs"))


async def test_each_job_is_added_once_in_pipeline_mode(kind, autocommit, database, sql):
    async with open_pipeline(kind, autocommit, database) as lent:
        jobs = [
            await lent.ask("add_job", "plain"),
            await lent.ask("add_job", "keyed", job_key="a"),
            *await lent.ask("add_jobs", [JobSpec("batch 1"), JobSpec("batch 2")]),
            *await lent.ask("add_jobs", [JobSpec("keyed 1", job_key="b"), JobSpec("keyed 2")]),
            await lent.ask("add_spec", JobSpec("plain")),
        ]
        found = [await lent.ask("get_job", job.id) for job in jobs]

    names = ["plain", "keyed", "batch 1", "batch 2", "keyed 1", "keyed 2", "plain"]
    assert [job.task_identifier for job in jobs] == names
    assert found == jobs
    assert read_identifiers(sql) == dict(zip([job.id for job in jobs], names, strict=True))


async def test_a_statement_without_columns_runs_in_pipeline_mode(kind, autocommit, database, sql):
    adapt: Any = adapt_sync_connection if kind == "blocking" else adapt_connection
    schemas = Schemas.from_names(database.schema)
    async with open_pipeline(kind, autocommit, database) as lent:
        connection = adapt(lent.conn, schemas)
        nothing = await done(connection.run(create_names(["task"], [])))
        job = await lent.ask("add_job", "task", job_key="key")
        removed = await lent.ask("remove_job", "key")
        missing = await lent.ask("get_job", job.id)

    assert (nothing, removed.id, missing) == (None, job.id, None)
    assert read_identifiers(sql) == {}


async def test_a_rejected_job_leaves_the_pipeline_to_its_owner(kind, autocommit, database, sql):
    async with open_pipeline(kind, autocommit, database) as lent:
        with pytest.raises(JobSpecError) as caught:
            await lent.ask("add_job", "x" * 129)
        await lent.rollback()
        job = await lent.ask("add_job", "task")

    assert caught.value.argument == "identifier"
    assert read_identifiers(sql) == {job.id: "task"}
