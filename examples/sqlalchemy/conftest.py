"""Sessions that may commit, inside a transaction that is rolled back."""

from collections.abc import AsyncIterator, Iterator

import pytest
from graphile_worker import App
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, sessionmaker

from shop import database
from shop.models import Base
from shop.tasks import app


@pytest.fixture
def gw_app() -> App[None]:
    return app


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    with database.engine.connect() as connection, connection.begin() as transaction:
        Base.metadata.create_all(connection)
        sessions = sessionmaker(connection, join_transaction_mode="create_savepoint")
        monkeypatch.setattr(database, "new_session", sessions)  # tasks use it too
        with sessions() as session:
            yield session
        transaction.rollback()


@pytest.fixture
async def async_session() -> AsyncIterator[AsyncSession]:
    async with database.async_engine.connect() as connection:
        transaction = await connection.begin()
        await connection.run_sync(Base.metadata.create_all)
        async with AsyncSession(connection, join_transaction_mode="create_savepoint") as session:
            yield session
        await transaction.rollback()
    await database.async_engine.dispose()


@pytest.fixture
def gw_connection(request: pytest.FixtureRequest) -> object:
    is_async = "async_session" in request.fixturenames
    return request.getfixturevalue("async_session" if is_async else "session")
