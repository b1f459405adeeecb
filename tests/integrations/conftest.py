"""Fixtures that the tests of integrations share."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from graphile_worker import App, WorkerOptions
from graphile_worker.runner import run_once
from tests.conftest import TestDatabase
from tests.support.cluster import Cluster
from tests.support.database_pool import DatabasePool
from tests.support.sql import Sql

Run = Callable[..., Awaitable[int]]


@pytest.fixture
def run(database: TestDatabase, app: App[None]) -> Run:
    """Run the jobs of the app that are ready, and return their number."""

    async def run(**more: Any) -> int:
        options = WorkerOptions(schema=database.schema)
        return await run_once(database.dsn, app, options=options, **more)

    return run


@pytest.fixture(scope="module")
def shared_database(
    databases: DatabasePool, cluster: Cluster, schema: str, template: str
) -> Iterator[TestDatabase]:
    """A migrated database for a module whose tests roll back or remove what they add."""
    name = databases.clone(template)
    yield TestDatabase(name, cluster, schema)
    cluster.drop_database(name)


@pytest.fixture(scope="module")
def shared_sql(shared_database: TestDatabase) -> Iterator[Sql]:
    """A connection to `shared_database`, past the library."""
    with closing(Sql(shared_database.dsn, shared_database.schema)) as sql:
        yield sql
