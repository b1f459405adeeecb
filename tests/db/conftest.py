"""Each rule about clients runs twice, async and blocking; workers run in the test's process."""

from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from typing import Any

import pytest

from graphile_worker import Client, sync
from tests.conftest import TestDatabase
from tests.support.clients import KINDS, open_client, open_connection, record_statements
from tests.support.job_table import JobTable
from tests.support.pools import Pool, open_pool
from tests.support.recorder import Start, open_runners
from tests.support.roles import temporary_role
from tests.support.sql import Sql
from tests.support.tasks import Gate


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    name: str = request.param
    return name


@pytest.fixture
async def client(kind, database) -> AsyncIterator[Any]:
    async with open_client(kind, database) as client:
        yield client


@pytest.fixture
def pool_database(database: TestDatabase) -> TestDatabase:
    """The database of `pool`, `sql` and both clients; a file may override it."""
    return database


@pytest.fixture
def sql(pool_database: TestDatabase) -> Iterator[Sql]:
    with closing(Sql(pool_database.dsn, pool_database.schema)) as connection:
        yield connection


@pytest.fixture
def role(database: TestDatabase, sql: Sql) -> Iterator[str]:
    """A role that owns nothing."""
    with temporary_role(sql, f"role_{database.name}") as name:
        yield name


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def blocking_client(pool_database) -> Iterator[sync.Client]:
    with sync.Client(pool_database.dsn, schema=pool_database.schema) as client:
        yield client


@pytest.fixture
async def async_client(pool_database) -> AsyncIterator[Client]:
    async with Client(pool_database.dsn, schema=pool_database.schema) as client:
        yield client


@pytest.fixture
def pool(pool_database) -> Iterator[Pool]:
    """A pool that knows the task "task"."""
    with open_pool(pool_database) as pool:
        yield pool


@pytest.fixture
def table(database: TestDatabase, sql: Sql) -> Iterator[JobTable]:
    with closing(JobTable(database, sql)) as table:
        yield table


@pytest.fixture
def shard_databases(databases, cluster, schema, template) -> Iterator[dict[str, TestDatabase]]:
    """Three databases of one server as shards: a, b and c."""
    names = {each: databases.acquire(template) for each in "abc"}
    yield {each: TestDatabase(name, cluster, schema) for each, name in names.items()}
    for name in names.values():
        databases.release(name)


@pytest.fixture
async def conn(kind, database) -> AsyncIterator[Any]:
    async with open_connection(kind, database) as connection:
        yield connection


@pytest.fixture
def statements(monkeypatch) -> list[str]:
    """The names of the statements that clients send after this call."""
    return record_statements(monkeypatch)


@pytest.fixture
async def start(database, recorder) -> AsyncIterator[Start]:
    """Start workers in this process; they stop at the end of the test."""
    async with open_runners(database, recorder.hooks) as start:
        yield start
