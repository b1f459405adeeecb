"""Fixtures that the tests of the dashboard share."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.conftest import TestDatabase
from tests.support.browser import chromium
from tests.support.cluster import Cluster
from tests.support.dashboard import Board, Caller, open_dashboard
from tests.support.database_pool import DatabasePool

# How long an element may take to appear on a busy machine, and the default.
WAIT_MS = 30_000
DEFAULT_WAIT_MS = 5_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser whose expectations wait long enough for a busy machine."""
    expect.set_options(timeout=WAIT_MS)
    with chromium() as opened:
        yield opened
    expect.set_options(timeout=DEFAULT_WAIT_MS)


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
