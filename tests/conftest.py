"""A fresh database per test, cloned from a migrated template on a cluster of this run's own."""

import itertools
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest

from graphile_worker import sync
from tests.support import tiers
from tests.support.cluster import Cluster
from tests.support.node import node_install
from tests.support.pages import counts
from tests.support.sql import Sql

# Everything that could be taken for something else: quotes, a placeholder, a percent sign, colons,
# the quotes of function bodies, letters of several bytes; as long as PostgreSQL allows.
ODD_SCHEMA = "we\"i'rd $1 %s :schema ::x $gw$ ünï-çødé-Ω-名-01234567890"
assert len(ODD_SCHEMA.encode()) == 63

_numbers = itertools.count(1)

# Signals that a program started by a test must find at its default.
DEFAULT_SIGNALS = (signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pg", type=int, default=18, help="PostgreSQL major version, 12 to 18")
    parser.addoption("--gw-schema", default="graphile_worker", help="worker schema, or odd")
    parser.addoption("--tier", choices=("gate", "nightly"), default="gate", help="sizes of tests")


def pytest_configure(config: pytest.Config) -> None:
    tiers.select(config)
    _reset_signals()
    # The gate draws the same examples in every run. A busy machine makes any example slow.
    hypothesis.settings.register_profile("tier", deadline=None, derandomize=not tiers.is_nightly())
    hypothesis.settings.load_profile("tier")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # The tests with the longest time limits come first, so that none of them runs alone at the end.
    items.sort(key=_time_limit, reverse=True)
    if tiers.is_nightly():
        return
    later = [item for item in items if item.get_closest_marker("nightly")]
    config.hook.pytest_deselected(items=later)
    items[:] = [item for item in items if not item.get_closest_marker("nightly")]


def _reset_signals() -> None:
    """Undo what a shell sets for background jobs: it ignores SIGINT, and programs inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in DEFAULT_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    # As Python sets it when it starts; subprocess restores the default in programs.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _time_limit(item: pytest.Item) -> tuple[bool, float]:
    timeout = item.get_closest_marker("timeout")
    limit = timeout.args[0] if timeout else 0.0
    return item.get_closest_marker("single_version") is not None, limit


@dataclass(frozen=True)
class TestDatabase:
    """Where a test's own database is, in the forms that programs want."""

    __test__ = False

    name: str
    cluster: Cluster
    schema: str

    @property
    def dsn(self) -> str:
        return self.cluster.dsn(self.name)

    @property
    def url(self) -> str:
        return self.cluster.url(self.name)

    def sqlalchemy_url(self, driver: str) -> str:
        return self.cluster.url(self.name, scheme=f"postgresql+{driver}")


@pytest.fixture(scope="session")
def schema(pytestconfig: pytest.Config) -> str:
    """The worker schema of this run."""
    name: str = pytestconfig.getoption("--gw-schema")
    return ODD_SCHEMA if name == "odd" else name


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    server = Cluster(pytestconfig.getoption("--pg")).start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def template(cluster: Cluster, schema: str) -> str:
    """The name of a database with our schema."""
    cluster.create_database("template_python")
    with sync.Client(cluster.dsn("template_python"), schema=schema) as client:
        client.migrate()
    return "template_python"


@pytest.fixture(scope="session")
def node_template(cluster: Cluster, schema: str) -> str:
    """The name of a database with the schema of the reference 0.18."""
    cluster.create_database("template_node")
    node_install(cluster.url("template_node"), schema=schema)
    return "template_node"


@pytest.fixture
def empty_database(cluster: Cluster, schema: str) -> Iterator[TestDatabase]:
    """A database with nothing in it."""
    yield from _database(cluster, schema, "template0")


@pytest.fixture
def database(cluster: Cluster, schema: str, template: str) -> Iterator[TestDatabase]:
    """A database with our schema."""
    yield from _database(cluster, schema, template)


@pytest.fixture
def node_database(cluster: Cluster, schema: str, node_template: str) -> Iterator[TestDatabase]:
    """A database with the schema of the reference 0.18."""
    yield from _database(cluster, schema, node_template)


@pytest.fixture(params=["python", "node"])
def either_database(request: pytest.FixtureRequest) -> TestDatabase:
    """The test runs twice: on our install and on the reference's."""
    fixture = "database" if request.param == "python" else "node_database"
    found: TestDatabase = request.getfixturevalue(fixture)
    return found


@pytest.fixture
def sql(database: TestDatabase) -> Iterator[Sql]:
    """A connection for looking behind the scenes of `database`."""
    connection = Sql(database.dsn, database.schema)
    yield connection
    connection.close()


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Say a measured figure in the summary of the run."""
    return lambda text: record_property("figure", text)


def _database(cluster: Cluster, schema: str, template: str) -> Iterator[TestDatabase]:
    name = f"test_{next(_numbers)}"
    cluster.create_database(name, template)
    yield TestDatabase(name, cluster, schema)
    cluster.drop_database(name)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was measured, and how much of the documentation was run."""
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    for name, text in (each for report in reports for each in report.user_properties):
        if name == "figure":
            terminalreporter.write_line(f"measured: {text}")
    passed = (each.user_properties for each in terminalreporter.getreports("passed"))
    pages = [Path(text) for each in passed for name, text in each if name == "page"]
    if pages:
        found = ", ".join(f"{count} {kind}" for kind, count in sorted(counts(pages).items()))
        terminalreporter.write_line(f"documentation blocks run: {found}, on {len(pages)} pages")
