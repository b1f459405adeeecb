"""Django's own runner, without pytest."""

from django.db import connection
from django.test import TestCase, TransactionTestCase

from graphile_worker.testing import Harness
from shop.models import Order
from shop.tasks import app, charge, double, place_order


class OrderTests(TestCase):
    def setUp(self) -> None:
        self.gw = self.enterContext(Harness(app))

    def test_the_harness_works_in_a_test_case(self) -> None:
        order_id = place_order()
        self.gw.assert_enqueued(charge, order_id=order_id)
        self.gw.assert_not_enqueued(double)
        self.gw.drain()
        assert Order.objects.get(id=order_id).paid

    def test_jobs_of_other_tests_are_not_visible(self) -> None:
        self.gw.assert_not_enqueued()


class CommittedOrderTests(TransactionTestCase):
    """Each test adds a job and must not find that of the other."""

    def setUp(self) -> None:
        self.gw = self.enterContext(Harness(app))

    def test_committed_jobs_are_cleared(self) -> None:
        self._check_and_commit_a_job()

    def test_committed_jobs_of_other_tests_are_not_visible(self) -> None:
        self._check_and_commit_a_job()

    def _check_and_commit_a_job(self) -> None:
        assert not connection.in_atomic_block
        self.gw.assert_not_enqueued()
        charge.enqueue(Order.objects.create().id)
        self.gw.assert_enqueued(charge)
