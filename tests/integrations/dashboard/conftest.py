"""Fixtures that the tests of the dashboard share."""

from collections.abc import Iterator

import pytest

from tests.conftest import TestDatabase
from tests.support.cluster import Cluster
from tests.support.dashboard import Board, Caller, open_dashboard
from tests.support.database_pool import DatabasePool


@pytest.fixture(scope="module")
def module_database(
    databases: DatabasePool, cluster: Cluster, schema: str, template: str
) -> Iterator[TestDatabase]:
    """A migrated database for all tests of a module."""
    name = databases.acquire(template)
    yield TestDatabase(name, cluster, schema)
    databases.release(name)


@pytest.fixture
def dashboard(database: TestDatabase) -> Iterator[Board]:
    """A dashboard of `database` behind uvicorn."""
    with open_dashboard(database) as board:
        yield board


@pytest.fixture
def admin(dashboard: Board) -> Caller:
    """A caller that has signed in to `dashboard` and may do everything."""
    return dashboard.sign_in()
