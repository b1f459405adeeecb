"""Fixtures of the tests that run whole programs."""

from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster


@pytest.fixture
def own_cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """A server of the test alone, which the test may stop."""
    server = Cluster(pytestconfig.getoption("--pg")).start()
    yield server
    server.stop()
