"""Fixtures of tests in which languages share a queue."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.database_pool import DatabasePool
from tests.support.languages import Copies


@pytest.fixture
def copies(
    databases: DatabasePool, cluster: Cluster, schema: str, tmp_path: Path
) -> Iterator[Copies]:
    """Copies of databases that languages have installed."""
    made = Copies(databases, cluster, schema, tmp_path)
    yield made
    made.close()
