"""Without any configuration but the name of the app."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

import shop
from graphile_worker.testing import Harness

DAY = timedelta(days=1)


@pytest.fixture(autouse=True)
def nothing_sent() -> Iterator[None]:
    yield
    shop.sent.clear()


def test_what_was_enqueued(gw: Harness) -> None:
    shop.sign_up("ada")

    job = gw.assert_enqueued(shop.send_email, options={"payload": {"to": "ada"}})
    assert job.attempts == 0
    gw.assert_enqueued(shop.send_email.using(queue_name="reminders", run_at=DAY), to="ada")
    gw.assert_not_enqueued(shop.charge)
    assert len(gw.enqueued()) == 2
    with pytest.raises(AssertionError):
        gw.assert_not_enqueued("send_email", to="ada")
    with pytest.raises(AssertionError):
        gw.assert_enqueued(shop.charge)


def test_jobs_run_here(gw: Harness) -> None:
    shop.charge.enqueue(7)

    gw.drain()

    assert shop.sent == [("ada", "Order 7")]


def test_errors_are_raised(gw: Harness) -> None:
    shop.charge.enqueue(-1)

    with pytest.raises(LookupError, match="no order -1"):
        gw.drain()

    gw.assert_enqueued(shop.charge, options={"attempts": 1})
    assert len(gw.drain(include_delayed=True, raise_errors=False).errors) == 2
    gw.assert_not_enqueued()


def test_inline(gw: Harness) -> None:
    with gw.inline():
        shop.charge.enqueue(8)

    assert shop.sent == [("ada", "Order 8")]


def test_time(gw: Harness) -> None:
    gw.freeze(datetime(2030, 1, 1, tzinfo=UTC))
    shop.sign_up("ada")

    gw.drain()
    gw.travel(DAY)
    gw.drain()

    assert shop.sent == [("ada", "Hello"), ("ada", "Still there?")]


def test_a_context(gw: Harness) -> None:
    shop.charge.fn(gw.context(shop.charge), 9)

    gw.assert_enqueued(shop.send_email, subject="Order 9")


def test_tests_do_not_see_each_other(gw: Harness) -> None:
    gw.assert_not_enqueued()
