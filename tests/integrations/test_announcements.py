"""Jobs that are added in your transaction are announced when it commits."""

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg
import psycopg_pool
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from graphile_worker import Client, sync
from tests.conftest import TestDatabase
from tests.integrations.kinds import KINDS, done
from tests.support.announcements import Announcements
from tests.support.processes import eventually

# These libraries report a commit, so nothing is announced before it.
REPORTING_KINDS = (
    "SQLAlchemy Connection, psycopg2",
    "SQLAlchemy Session, psycopg",
    "SQLAlchemy scoped_session, psycopg",
    "Django proxy",
    "Django wrapper, server-side binding",
    "SQLAlchemy AsyncConnection, asyncpg",
    "SQLAlchemy AsyncSession, psycopg",
    "SQLAlchemy async_scoped_session, asyncpg",
)
OTHER_KINDS = ("psycopg", "psycopg2", "psycopg async", "asyncpg", "asyncpg pool")

SHORT = timedelta(milliseconds=1)


@pytest.fixture(scope="module")
def database(shared_database: TestDatabase) -> TestDatabase:
    return shared_database


@pytest.fixture
def announcements(database: TestDatabase) -> Iterator[Announcements]:
    with closing(Announcements(database.dsn)) as announcements:
        yield announcements


async def test_jobs_are_announced_after_the_commit_that_a_library_reports(
    database: TestDatabase, announcements: Announcements
) -> None:
    for kind in REPORTING_KINDS:
        async with KINDS[kind](database) as lent:
            lent.client = lent.client_class(
                database.dsn, schema=database.schema, notify="coalesced", notify_interval=SHORT
            )
            await lent.begin()
            await lent.ask("add_job", "task", job_key="key")
            await lent.ask("add_job", "task")
            await lent.savepoint()
            await lent.ask("add_job", "task")
            await lent.rollback_to_savepoint()
            # Longer than both hints that other libraries need.
            assert announcements.wait_quietly(0.6) == [], kind

            await lent.commit()
            announcements.wait_for(2)
            await done(lent.client.close())
            announcements.read()


async def test_with_autocommit_of_sqlalchemy_jobs_are_announced_at_once(
    database: TestDatabase, announcements: Announcements
) -> None:
    options: dict[str, Any] = {
        "schema": database.schema,
        "notify": "coalesced",
        "notify_interval": SHORT,
    }
    autocommit = {"isolation_level": "AUTOCOMMIT"}
    with sync.Client(database.dsn, **options) as blocking:
        for driver in ("psycopg", "psycopg2"):
            engine = sqlalchemy.create_engine(database.sqlalchemy_url(driver), **autocommit)
            with engine.connect() as connection, Session(engine) as session:
                for conn in (connection, session):
                    blocking.add_job("task", conn=conn)
                    announcements.wait_for(1)
            engine.dispose()
    async_engine = create_async_engine(database.sqlalchemy_url("asyncpg"), **autocommit)
    async with (
        Client(database.dsn, **options) as client,
        async_engine.connect() as async_connection,
        AsyncSession(async_engine) as async_session,
    ):
        for async_conn in (async_connection, async_session):
            await client.add_job("task", conn=async_conn)
            announcements.wait_for(1)
    await async_engine.dispose()

    assert announcements.read() == []


def test_a_session_with_several_engines_announces_jobs_after_its_commit(
    database: TestDatabase, announcements: Announcements
) -> None:
    leader, follower = (
        sqlalchemy.create_engine(database.sqlalchemy_url("psycopg")) for _ in range(2)
    )

    class RoutingSession(Session):
        def get_bind(self, mapper: Any = None, *, clause: Any = None, **_: Any) -> Any:
            return follower if clause is None else leader

    options: dict[str, Any] = {"notify": "coalesced", "notify_interval": SHORT}
    with (
        sync.Client(database.dsn, schema=database.schema, **options) as client,
        RoutingSession() as session,
    ):
        client.add_job("task", conn=session)
        assert announcements.wait_quietly(0.6) == []
        # The library opens no connection for its check.
        assert isinstance(follower.pool, sqlalchemy.QueuePool)
        assert follower.pool.checkedin() + follower.pool.checkedout() == 0

        session.commit()
        announcements.wait_for(1)
    leader.dispose()
    follower.dispose()


def test_a_client_without_a_database_logs_that_its_jobs_are_not_announced(
    database: TestDatabase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    client = sync.Client(schema=database.schema, notify="coalesced", notify_interval=SHORT)
    with client, psycopg.connect(database.dsn) as connection:
        client.add_job("task", conn=connection)
        eventually(lambda: caplog.records, "a warning")
        client.add_job("task", conn=connection)

    # Only once, although each job has two hints.
    [message] = [each.message for each in caplog.records]
    assert message.startswith("added jobs are not announced: no database configured.")


async def test_a_library_that_reports_no_commits_gets_two_hints(
    database: TestDatabase, announcements: Announcements
) -> None:
    for kind in OTHER_KINDS:
        async with KINDS[kind](database) as lent:
            lent.client = lent.client_class(
                database.dsn, schema=database.schema, notify="coalesced", notify_interval=SHORT
            )
            await lent.begin()
            await lent.ask("add_job", "task")
            await lent.commit()

            assert announcements.wait_for(2) == [1, 1], kind
            await done(lent.client.close())
            assert announcements.read() == [], kind


async def test_jobs_of_your_pool_are_announced_on_it(
    database: TestDatabase, announcements: Announcements
) -> None:
    async with psycopg_pool.AsyncConnectionPool(database.dsn, min_size=1, open=False) as pool:
        async with Client(pool, schema=database.schema, notify="coalesced") as client:
            await client.add_job("task")
        announcements.wait_for(1)
    engine = create_async_engine(database.sqlalchemy_url("asyncpg"))
    async with Client(engine, schema=database.schema, notify="coalesced") as client:
        await client.add_job("task")
    announcements.wait_for(1)
    await engine.dispose()
    blocking_engine = sqlalchemy.create_engine(database.sqlalchemy_url("psycopg"))
    with sync.Client(blocking_engine, schema=database.schema, notify="coalesced") as blocking:
        blocking.add_job("task")
    announcements.wait_for(1)
    blocking_engine.dispose()
