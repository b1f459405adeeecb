"""Options, tiers, and the fixtures that all folders share: databases, programs, proxies."""

import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
from hypothesis import strategies

from graphile_worker import App, sync
from graphile_worker.hooks import Hooks
from tests.support import tiers
from tests.support.cluster import NEW_DATA_FOLDER, Cluster, kept_new_data
from tests.support.database_pool import DatabasePool
from tests.support.node import node_install
from tests.support.pages import counts
from tests.support.proxy import Proxy
from tests.support.recorder import Recorder
from tests.support.sql import Sql

if TYPE_CHECKING:
    from tests.support.processes import Programs

# jsonschema would compile grammars for formats that no test uses: 2 s of each process.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

# Contains all that needs quoting: quotes, a placeholder, a percent sign, colons, the quotes of
# function bodies, letters of several bytes. It has the maximum length of PostgreSQL.
ODD_SCHEMA = "we\"i'rd $1 %s :schema ::x $gw$ ünï-çødé-Ω-名-01234567890"
assert len(ODD_SCHEMA.encode()) == 63

# Tests of the command run on one pair of versions, except for one test of each behavior.
COMMANDS = os.path.join(os.path.dirname(__file__), "e2e", "")

# Tests with random input run on one pair too. Separate tests list their edge cases.
UNIT = os.path.join(os.path.dirname(__file__), "unit", "")

# The number of processes that begin with the longest tests.
LONG_IN_PROCESSES = 3

# Signals that a program started by a test must find at its default.
DEFAULT_SIGNALS = (signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pg", type=int, default=18, help="PostgreSQL major version, 12 to 18")
    parser.addoption("--gw-schema", default="graphile_worker", help="worker schema, or odd")
    parser.addoption("--tier", choices=("gate", "nightly"), default="gate", help="sizes of tests")


def pytest_configure(config: pytest.Config) -> None:
    # Collected tests stay, so the garbage collector would look at all of them again and again.
    gc.disable()
    tiers.select(config)
    _reset_signals()
    if NEW_DATA_FOLDER not in os.environ:
        # Before the processes of pytest-xdist start, which share the folder.
        keeping = ExitStack()
        keeping.enter_context(kept_new_data())
        config.add_cleanup(keeping.close)
    # The gate draws the same examples in every run. A busy machine makes any example slow.
    hypothesis.settings.register_profile("tier", deadline=None, derandomize=not tiers.is_nightly())
    hypothesis.settings.load_profile("tier")


@hypothesis.settings(max_examples=1, database=None)
@hypothesis.given(strategies.none())
def _start_hypothesis(nothing: None) -> None:
    """Let Hypothesis look for references to its random generator, before those are frozen."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    _start_hypothesis()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        path = str(item.path)
        is_limited = path.startswith(COMMANDS) or (path.startswith(UNIT) and _is_random(item))
        if is_limited and not item.get_closest_marker("every_version"):
            item.add_marker(pytest.mark.single_version)
    # The tests with the longest time limits come first, so that none of them runs alone at the end.
    items.sort(key=_time_limit, reverse=True)
    if tiers.is_nightly():
        for item in filter(tiers.is_larger, items):
            item.add_marker(pytest.mark.sized)
        return
    config.hook.pytest_deselected(items=[item for item in items if tiers.is_later(item)])
    items[:] = _spread([item for item in items if not tiers.is_later(item)])


def _reset_signals() -> None:
    """Undo what a shell sets for background jobs: it ignores SIGINT, and programs inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in DEFAULT_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    # As Python sets it when it starts; subprocess restores the default in programs.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _spread(items: list[pytest.Item]) -> list[pytest.Item]:
    """Start the longest tests in several processes; most of them spend their time waiting.

    Each process of pytest-xdist gets a share of the list, in order. When it is done, it takes tests
    from the end of the share of another process.
    """
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if processes < LONG_IN_PROCESSES:
        return items
    long = [item for item in items if _time_limit(item)[1] > 0]
    short = [item for item in items if _time_limit(item)[1] == 0]
    spread: list[pytest.Item] = []
    for process in range(LONG_IN_PROCESSES):
        first = long[process::LONG_IN_PROCESSES]
        rest = max(0, len(items) // processes - len(first))
        spread += first + short[:rest]
        short = short[rest:]
    return spread + short


def _is_random(item: pytest.Item) -> bool:
    # The plugin of Hypothesis adds its mark later.
    return isinstance(item, pytest.Function) and hypothesis.is_hypothesis_test(item.obj)


def _time_limit(item: pytest.Item) -> tuple[bool, float]:
    timeout = item.get_closest_marker("timeout")
    limit = timeout.args[0] if timeout else 0.0
    return item.get_closest_marker("single_version") is not None, limit


@dataclass(frozen=True)
class TestDatabase:
    """The address of a test's database, in the forms that programs take."""

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
    """The name of a database with the schema of Python."""
    cluster.create_database("template_python")
    with sync.Client(cluster.dsn("template_python"), schema=schema) as client:
        client.migrate()
    return "template_python"


@pytest.fixture(scope="session")
def node_template(cluster: Cluster, schema: str) -> str:
    """The name of a database with the schema of Node 0.18."""
    cluster.create_database("template_node")
    node_install(cluster.url("template_node"), schema=schema)
    return "template_node"


@pytest.fixture(scope="session")
def databases(cluster: Cluster) -> Iterator[DatabasePool]:
    """The databases of this run, used by one test after another."""
    pool = DatabasePool(cluster)
    yield pool
    pool.close()


@pytest.fixture
def empty_database(
    databases: DatabasePool, cluster: Cluster, schema: str
) -> Iterator[TestDatabase]:
    """An empty database."""
    name = databases.clone("template0")
    yield TestDatabase(name, cluster, schema)
    cluster.drop_database(name)


@pytest.fixture
def database(
    request: pytest.FixtureRequest,
    databases: DatabasePool,
    cluster: Cluster,
    schema: str,
    template: str,
) -> Iterator[TestDatabase]:
    """A migrated database without rows; a test may change it in any way.

    The pool keeps a session in it, unless the test asks for `fresh_database`.
    """
    if "fresh_database" in request.fixturenames:
        name = databases.clone(template)
        yield TestDatabase(name, cluster, schema)
        cluster.drop_database(name)
    else:
        name = databases.acquire(template)
        yield TestDatabase(name, cluster, schema)
        databases.release(name)


@pytest.fixture
def fresh_database(database: TestDatabase) -> TestDatabase:
    """The `database` of this test as a new clone, in which all sessions are those of the test."""
    return database


@pytest.fixture
def node_database(
    databases: DatabasePool, cluster: Cluster, schema: str, node_template: str
) -> Iterator[TestDatabase]:
    """A database that Node 0.18 installed, otherwise like `database`."""
    name = databases.acquire(node_template)
    yield TestDatabase(name, cluster, schema)
    databases.release(name)


@pytest.fixture(params=["python", "node"])
def either_database(request: pytest.FixtureRequest) -> TestDatabase:
    """The test runs twice: on an install by Python and on one by Node."""
    fixture = "database" if request.param == "python" else "node_database"
    found: TestDatabase = request.getfixturevalue(fixture)
    return found


@pytest.fixture
def sql(database: TestDatabase) -> Iterator[Sql]:
    """A connection to `database`, past the library."""
    connection = Sql(database.dsn, database.schema)
    yield connection
    connection.close()


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Print a measured figure in the summary of the run."""
    return lambda text: record_property("figure", text)


@pytest.fixture
def programs(database: TestDatabase, tmp_path: Path) -> Iterator["Programs"]:
    """Programs that run in an empty folder; their environment variables name `database`."""
    # Imported here because that module imports this one.
    from tests.support.processes import Programs

    with Programs.for_database(database, tmp_path) as programs:
        yield programs


@pytest.fixture
async def app(database: TestDatabase) -> AsyncIterator[App[None]]:
    """An app on `database`, open for the test."""
    async with App(database.dsn, schema=database.schema) as app:
        yield app


@pytest.fixture
def own_cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """A server that a test may stop; its acknowledged commits survive that."""
    server = Cluster(pytestconfig.getoption("--pg"), ["synchronous_commit=on"]).start()
    yield server
    server.stop()


@pytest.fixture
def hooks() -> Hooks:
    return Hooks()


@pytest.fixture
def recorder() -> Recorder:
    """The events of the workers that a test starts in its process."""
    return Recorder()


@pytest.fixture
def behind(empty_database: TestDatabase) -> Iterator[Sql]:
    """A connection of the test itself to `empty_database`."""
    with closing(Sql(empty_database.dsn, empty_database.schema)) as connection:
        yield connection


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[Proxy]:
    """A proxy between the test's programs and the server."""
    with Proxy(cluster.port) as proxy:
        yield proxy


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print measured figures, and how many blocks of the documentation were run."""
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    for name, text in (each for report in reports for each in report.user_properties):
        if name == "figure":
            terminalreporter.write_line(f"measured: {text}")
    passed = (each.user_properties for each in terminalreporter.getreports("passed"))
    pages = [Path(text) for each in passed for name, text in each if name == "page"]
    if pages:
        found = ", ".join(f"{count} {kind}" for kind, count in sorted(counts(pages).items()))
        terminalreporter.write_line(f"documentation blocks run: {found}, on {len(pages)} pages")
