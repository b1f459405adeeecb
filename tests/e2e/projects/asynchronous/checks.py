"""Async tests, on a connection that gw opens and on an async one of their own."""

import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

import shop
from graphile_worker.testing import Harness

DAY = timedelta(days=1)


@pytest.fixture
async def connection() -> AsyncIterator[psycopg.AsyncConnection]:
    async with await psycopg.AsyncConnection.connect(os.environ["DATABASE_URL"]) as conn:
        yield conn
        await conn.rollback()


@pytest.fixture(params=["its own", "async"])
def gw_connection(request: pytest.FixtureRequest) -> object:
    return None if request.param == "its own" else request.getfixturevalue("connection")


@pytest.fixture
def mailer(gw: Harness) -> shop.Mailer:
    gw.deps = shop.Mailer()
    return gw.deps


async def test_assert_enqueued_finds_jobs(gw: Harness) -> None:
    await shop.sign_up("ada")

    job = await gw.aassert_enqueued(shop.send_email, to="ada")
    assert job.attempts == 0
    await gw.aassert_enqueued(shop.send_email.using(run_at=DAY), to="ada again")
    await gw.aassert_not_enqueued(shop.resize)
    assert len(await gw.aenqueued()) == 2
    with pytest.raises(AssertionError):
        await gw.aassert_not_enqueued()


async def test_drain_runs_jobs(gw: Harness, mailer: shop.Mailer) -> None:
    await shop.resize.aenqueue(7)

    await gw.adrain()

    assert mailer.sent == ["7 wide"]


async def test_drain_raises_errors(gw: Harness) -> None:
    await shop.resize.using(max_attempts=3).aenqueue(-1)

    with pytest.raises(ValueError, match="a width of -1"):
        await gw.adrain()

    await gw.aassert_enqueued(shop.resize, options={"attempts": 1})
    assert len((await gw.adrain(include_delayed=True, raise_errors=False)).errors) == 2


async def test_inline_runs_jobs_when_they_are_added(gw: Harness, mailer: shop.Mailer) -> None:
    with gw.inline():
        await shop.sign_up("ada")

    assert mailer.sent == ["ada"]


async def test_time_can_be_moved_and_frozen(gw: Harness, mailer: shop.Mailer) -> None:
    gw.freeze(datetime(2030, 1, 1, tzinfo=UTC))
    await shop.sign_up("ada")

    await gw.adrain()
    gw.travel(DAY)
    await gw.adrain()

    assert mailer.sent == ["ada", "ada again"]


async def test_a_task_can_be_called_with_a_context(gw: Harness) -> None:
    mailer = shop.Mailer()

    await shop.send_email.fn(gw.context(shop.send_email, deps=mailer), to="ada")

    assert mailer.sent == ["ada"]


async def test_the_lifespan_gives_deps_that_the_test_does_not_set(gw: Harness) -> None:
    await shop.send_email.aenqueue(to="ada")

    assert len(await gw.adrain()) == 1


async def test_jobs_of_other_tests_are_not_visible(gw: Harness) -> None:
    await gw.aassert_not_enqueued()
