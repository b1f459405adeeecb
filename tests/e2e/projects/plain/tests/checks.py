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


def test_assert_enqueued_finds_jobs(gw: Harness) -> None:
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


def test_drain_runs_jobs(gw: Harness) -> None:
    shop.charge.enqueue(7)

    gw.drain()

    assert shop.sent == [("ada", "Order 7")]


def test_drain_raises_errors(gw: Harness) -> None:
    shop.charge.enqueue(-1)

    with pytest.raises(LookupError, match="no order -1"):
        gw.drain()

    gw.assert_enqueued(shop.charge, options={"attempts": 1})
    assert len(gw.drain(include_delayed=True, raise_errors=False).errors) == 2
    gw.assert_not_enqueued()


def test_inline_runs_jobs_when_they_are_added(gw: Harness) -> None:
    with gw.inline():
        shop.charge.enqueue(8)

    assert shop.sent == [("ada", "Order 8")]


def test_time_can_be_moved_and_frozen(gw: Harness) -> None:
    gw.freeze(datetime(2030, 1, 1, tzinfo=UTC))
    shop.sign_up("ada")

    gw.drain()
    gw.travel(DAY)
    gw.drain()

    assert shop.sent == [("ada", "Hello"), ("ada", "Still there?")]


def test_a_task_can_be_called_with_a_context(gw: Harness) -> None:
    shop.charge.fn(gw.context(shop.charge), 9)

    gw.assert_enqueued(shop.send_email, subject="Order 9")


def test_jobs_of_other_tests_are_not_visible(gw: Harness) -> None:
    gw.assert_not_enqueued()
