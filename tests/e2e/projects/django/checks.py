"""pytest-django: functions, test cases and async tests, all in Django's own transaction."""

from datetime import timedelta

import pytest
from django.db import IntegrityError, connection
from django.test import TestCase

from graphile_worker.testing import Harness
from shop.models import Order
from shop.tasks import charge, double, place_order, remind

DAY = timedelta(days=1)


def test_assert_enqueued_finds_jobs(gw: Harness) -> None:
    order_id = place_order()

    gw.assert_enqueued(charge, order_id=order_id)
    gw.assert_enqueued(remind.using(run_at=DAY))
    gw.assert_not_enqueued(double)
    assert len(gw.enqueued()) == 2


def test_drain_runs_jobs(gw: Harness) -> None:
    order_id = place_order()

    gw.drain()

    assert Order.objects.get(id=order_id).paid


def test_time_can_be_moved_for_async_tasks(gw: Harness) -> None:
    order = Order.objects.create()
    remind.using(run_at=DAY).enqueue(order.id)

    assert gw.drain() == []
    gw.travel(DAY)
    gw.drain()

    order.refresh_from_db()
    assert order.paid


def test_errors_of_the_database_leave_the_transaction_usable(gw: Harness) -> None:
    order = Order.objects.create()
    double.enqueue(order.id)

    with pytest.raises(IntegrityError):
        gw.drain()

    gw.assert_enqueued(double, options={"attempts": 1})
    assert Order.objects.count() == 1


def test_inline_runs_jobs_when_they_are_added(gw: Harness) -> None:
    with gw.inline():
        order_id = place_order()

    assert Order.objects.get(id=order_id).paid
    gw.assert_enqueued(remind, order_id=order_id)


def test_a_task_can_be_called_with_a_context(gw: Harness) -> None:
    ctx = gw.context(remind, {"order_id": 7})

    assert ctx.job.payload == {"order_id": 7}


def test_jobs_of_other_tests_are_not_visible(gw: Harness) -> None:
    gw.assert_not_enqueued()
    assert not Order.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_drain_runs_jobs_where_each_statement_commits(gw: Harness) -> None:
    order_id = place_order()
    assert not connection.in_atomic_block

    gw.drain()

    assert Order.objects.get(id=order_id).paid
    gw.drain(include_delayed=True)
    gw.assert_not_enqueued()


class TestCaseWithFixture(TestCase):
    gw: Harness

    @pytest.fixture(autouse=True)
    def take_gw(self, gw: Harness) -> None:
        self.gw = gw

    @classmethod
    def setUpTestData(cls) -> None:
        cls.order = Order.objects.create()

    def test_the_harness_works_in_a_test_case(self) -> None:
        charge.enqueue(self.order.id)
        self.gw.assert_enqueued(charge, order_id=self.order.id)
        self.gw.assert_not_enqueued(remind)
        self.gw.drain()
        self.order.refresh_from_db()
        assert self.order.paid
        with self.gw.inline():
            charge.enqueue(self.order.id)
        self.gw.assert_not_enqueued()

    async def test_the_harness_works_in_an_async_test_case(self) -> None:
        await remind.using(run_at=DAY).aenqueue(self.order.id)
        await self.gw.aassert_enqueued(remind, order_id=self.order.id)
        await self.gw.aassert_not_enqueued(charge)
        assert await self.gw.adrain() == []
        self.gw.travel(DAY)
        assert len(await self.gw.adrain()) == 2
        await self.order.arefresh_from_db()
        assert self.order.paid
        with self.gw.inline():
            await charge.aenqueue(self.order.id)
        assert await self.gw.aenqueued() == []
