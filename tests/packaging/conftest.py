"""The wheel and the sdist, built once for all tests; a database with the roles of deploy/sql."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import TestDatabase
from tests.support.cluster import Cluster
from tests.support.roles import as_role, open_secured_database
from tests.support.shared_folder import made_once
from tests.support.sql import Sql
from tests.support.wheel import build


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist."""

    def make(folder: Path) -> None:
        build("sdist", folder)
        build("wheel", folder)

    return made_once(tmp_path_factory, "dist", make)


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    return next(dist.glob("*.whl"))


@pytest.fixture(scope="session")
def sdist(dist: Path) -> Path:
    return next(dist.glob("*.tar.gz"))


@pytest.fixture
def secured_database(cluster: Cluster) -> Iterator[TestDatabase]:
    """A database that was set up as on the security page."""
    with open_secured_database(cluster, "graphile_worker", "secured") as database:
        yield database


@pytest.fixture
def owner(secured_database: TestDatabase) -> Iterator[Sql]:
    """A session of a superuser."""
    session = Sql(secured_database.dsn, secured_database.schema)
    yield session
    session.close()


@pytest.fixture
def reader(secured_database: TestDatabase) -> Iterator[Sql]:
    """A session of the read-only role."""
    session = Sql(as_role(secured_database, "queue_reader"), secured_database.schema)
    yield session
    session.close()
