"""Sessions in an outer transaction, which is rolled back even if the program commits."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from datetime import timedelta

import pytest
from sqlalchemy import create_engine, func, select, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import shop
from graphile_worker.testing import Harness

URL = os.environ["DATABASE_URL"].partition("://")[2]
DAY = timedelta(days=1)


@pytest.fixture(params=["psycopg", "psycopg2"])
def session(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    engine = create_engine(f"postgresql+{request.param}://{URL}")
    with engine.connect() as connection:
        transaction = connection.begin()
        shop.Base.metadata.create_all(connection)
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            monkeypatch.setattr(shop, "new_session", lambda: nullcontext(session))
            yield session
        transaction.rollback()
    engine.dispose()


@pytest.fixture(params=["psycopg", "asyncpg"])
async def async_session(request: pytest.FixtureRequest) -> AsyncIterator[AsyncSession]:
    engine = create_async_engine(f"postgresql+{request.param}://{URL}")
    async with engine.connect() as connection:
        transaction = await connection.begin()
        await connection.run_sync(shop.Base.metadata.create_all)
        async with AsyncSession(
            connection, join_transaction_mode="create_savepoint", expire_on_commit=False
        ) as session:
            yield session
        await transaction.rollback()
    await engine.dispose()


@pytest.fixture
def gw_connection(request: pytest.FixtureRequest) -> object:
    is_async = "async_session" in request.fixturenames
    return request.getfixturevalue("async_session" if is_async else "session")


def test_assert_enqueued_finds_jobs(gw: Harness, session: Session) -> None:
    order_id = shop.place_order(session)

    gw.assert_enqueued(shop.charge, order_id=order_id)
    gw.assert_enqueued(shop.remind.using(run_at=DAY))
    gw.assert_not_enqueued("of_node")
    assert len(gw.enqueued()) == 2


def test_drain_runs_jobs(gw: Harness, session: Session) -> None:
    order_id = shop.place_order(session)

    gw.drain()

    assert session.get_one(shop.Order, order_id).paid


def test_drain_raises_errors_and_the_session_stays_usable(gw: Harness, session: Session) -> None:
    shop.charge.enqueue(-1)

    with pytest.raises(LookupError, match="no order -1"):
        gw.drain()

    gw.assert_enqueued(shop.charge, options={"attempts": 1})
    assert session.scalar(select(func.count()).select_from(shop.Order)) == 0


def test_jobs_that_the_program_rolls_back_are_not_enqueued(gw: Harness, session: Session) -> None:
    gw.assert_not_enqueued()
    with session.begin_nested() as nested:
        shop.charge.using(conn=session).enqueue(1)
        gw.assert_enqueued(shop.charge)
        nested.rollback()

    gw.assert_not_enqueued()


def test_inline_runs_jobs_when_they_are_added(gw: Harness, session: Session) -> None:
    with gw.inline():
        order_id = shop.place_order(session)

    assert session.get_one(shop.Order, order_id).paid
    gw.assert_enqueued(shop.remind, order_id=order_id)


def test_time_can_be_moved_and_frozen(gw: Harness, session: Session) -> None:
    gw.freeze()
    if session.get_bind().dialect.driver == "psycopg":
        order_id = shop.place_order(session)
        gw.travel(DAY)
        gw.drain()
        gw.assert_enqueued("of_node", order_id=order_id)


def test_a_task_can_be_called_with_a_context(gw: Harness, session: Session) -> None:
    assert gw.context(shop.remind, {"order_id": 1}).job.payload == {"order_id": 1}


async def test_async_sessions(gw: Harness, async_session: AsyncSession) -> None:
    order_id = await shop.place_order_async(async_session)

    await gw.aassert_enqueued(shop.remind, order_id=order_id)
    await gw.aassert_not_enqueued(shop.charge)
    assert len(await gw.adrain()) == 1
    await gw.aassert_enqueued("of_node", order_id=order_id)

    with gw.inline():
        await shop.place_order_async(async_session)
    assert len(await gw.aenqueued("of_node")) == 2

    await shop.remind.using(run_at=DAY).aenqueue(3)
    assert await gw.adrain() == []
    gw.travel(DAY)
    assert len(await gw.adrain()) == 1

    await shop.remind.fn(gw.context(shop.remind), 4)
    await gw.aassert_enqueued("of_node", order_id=4)


async def test_adrain_raises_errors_and_the_session_stays_usable(
    gw: Harness, async_session: AsyncSession
) -> None:
    # SQL does not check payloads.
    wrong = """select graphile_worker.add_job('remind', '{"order_id": "none"}')"""
    await async_session.execute(text(wrong.replace(":", r"\:")))

    with pytest.raises(ValueError, match="order_id"):
        await gw.adrain()

    await gw.aassert_enqueued(shop.remind, options={"attempts": 1})
