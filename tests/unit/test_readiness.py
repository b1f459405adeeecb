"""The diagnosis for `/readyz?verbose`: its pauses, its errors, and clients that disconnect."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.errors import LockNotAvailable, QueryCanceled

from graphile_worker._cli import readiness
from graphile_worker._cli.readiness import MIN_INTERVAL_SECONDS, TIMEOUT_SECONDS, QueueProbe
from graphile_worker._cli.settings.layers import Settings, SettingSource, SettingValue
from graphile_worker._cli.worker_endpoints import locate_queue
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.query import Query
from graphile_worker.errors import ConfigurationError
from graphile_worker.ops.snapshot import MAX_PAUSE_SECONDS

SCHEMAS = Schemas.from_names("graphile_worker")
UNFINISHED = "verdict: unknown\nwarning check-unfinished"
UNREACHABLE = "verdict: unknown\ncritical unreachable"


async def do_nothing() -> None:
    pass


async def wait_forever() -> None:
    await asyncio.get_running_loop().create_future()


def fail_with(error: Exception) -> Callable[[], Awaitable[None]]:
    async def fail() -> None:
        raise error

    return fail


class FakeDatabase:
    """A database that runs one function on each connection, and another one on each query."""

    def __init__(self) -> None:
        self.connect: Callable[[], Awaitable[None]] = do_nothing
        self.answer: Callable[[], Awaitable[None]] = do_nothing
        self.connections = 0
        self.closed = 0
        self.queries: list[Query[Any]] = []

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["FakeDatabase"]:
        self.connections += 1
        await self.connect()
        yield self

    async def run(self, query: Query[Any]) -> None:
        self.queries.append(query)
        await self.answer()

    async def close(self) -> None:
        self.closed += 1


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> FakeDatabase:
    database = FakeDatabase()
    monkeypatch.setattr(readiness, "PsycopgDatabase", lambda *_, **__: database)
    return database


async def test_after_an_error_the_next_diagnosis_waits_for_the_longest_pause(database):
    now = 1000.0
    database.answer = fail_with(LockNotAvailable())
    probe = QueueProbe(None, SCHEMAS, clock=lambda: now)

    assert await probe.describe() == UNFINISHED
    now += MAX_PAUSE_SECONDS - 1
    assert now > 1000.0 + MIN_INTERVAL_SECONDS
    assert await probe.describe() == UNFINISHED
    assert database.connections == 1

    now += 1
    await probe.describe()
    assert (database.connections, database.closed) == (2, 2)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (LockNotAvailable(), UNFINISHED),
        (QueryCanceled(), UNFINISHED),
        (ZeroDivisionError("a mistake"), UNFINISHED),
        (psycopg.OperationalError("the connection is lost"), UNREACHABLE),
        (psycopg.errors.UndefinedTable(), "verdict: unknown\ncritical schema-missing"),
        (psycopg.errors.InsufficientPrivilege(), "verdict: unknown\ncritical privileges-missing"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_an_error_of_a_statement_has_the_severity_that_doctor_gives_it(database, error, text):
    database.answer = fail_with(error)

    assert await QueueProbe(None, SCHEMAS).describe() == text


async def test_a_timeout_is_critical_only_before_the_connection_is_open(database):
    database.answer = wait_forever
    assert await QueueProbe(None, SCHEMAS, timeout_seconds=0.01).describe() == UNFINISHED

    database.connect = wait_forever
    assert await QueueProbe(None, SCHEMAS, timeout_seconds=0.01).describe() == UNREACHABLE


async def test_the_session_has_its_own_name_and_ends_statements_before_the_client_does(database):
    database.answer = fail_with(LockNotAvailable())

    await QueueProbe(None, SCHEMAS).describe()

    [limits] = database.queries
    milliseconds, program = limits.args
    assert (limits.statement, program) == ("set_limits", "graphile-worker readyz")
    assert 0 < milliseconds < TIMEOUT_SECONDS * 1000


async def test_a_wrong_connection_string_has_no_verdict_and_is_logged(monkeypatch, caplog):
    def reject(*_: object, **__: object) -> None:
        raise ConfigurationError("the connection string is empty")

    monkeypatch.setattr(readiness, "PsycopgDatabase", reject)

    assert await QueueProbe(" ", SCHEMAS).describe() == UNFINISHED
    assert [record.getMessage() for record in caplog.records] == [
        "diagnosis failed, next in 60 s: ConfigurationError: the connection string is empty"
    ]


async def test_an_error_of_a_rule_has_no_verdict(database, monkeypatch):
    async def take_snapshot(*_: object) -> Any:
        return None

    monkeypatch.setattr(QueueProbe, "_take_snapshot", take_snapshot)

    assert await QueueProbe(None, SCHEMAS).describe() == UNFINISHED


async def test_a_diagnosis_continues_without_its_client_for_later_requests(database):
    is_connected, may_answer = asyncio.Event(), asyncio.Event()

    async def connect() -> None:
        is_connected.set()
        await may_answer.wait()
        raise psycopg.OperationalError("connection refused")

    database.connect = connect
    probe = QueueProbe(None, SCHEMAS)
    first = asyncio.create_task(probe.describe())
    await is_connected.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    others = [asyncio.create_task(probe.describe()) for _ in range(3)]
    await asyncio.sleep(0)
    may_answer.set()

    assert await asyncio.gather(*others) == [UNREACHABLE] * 3
    assert (database.connections, database.closed) == (1, 1)


def test_a_supervisor_has_no_verdict_if_an_app_may_set_another_database(
    empty_environment: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DATABASE_URL", "postgres:///shop")
    app = SettingValue("shop.jobs:app", SettingSource.FLAG, "--app")

    assert locate_queue(Settings.collect({})) is not None
    assert locate_queue(Settings.collect({"app": app})) is None
