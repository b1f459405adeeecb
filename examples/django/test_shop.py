from django.core import mail
from django.http import HttpResponse
from django.test import TestCase
from graphile_worker.contrib.django.testing import JobsMixin

from shop.models import Order
from shop.tasks import send_receipt

TEA = {"email": "ada@example.com", "product": "tea"}


class OrderTests(JobsMixin, TestCase):
    def order(self) -> HttpResponse:
        return self.client.post("/orders", TEA, content_type="application/json")

    def test_an_order_is_answered_with_its_job(self) -> None:
        answer = self.order()

        assert answer.status_code == 202
        job = self.jobs.assert_enqueued(send_receipt, order_id=answer.json()["order_id"])
        assert answer.json()["job_id"] == job.id

    def test_the_receipt_is_sent_once(self) -> None:
        order_id = self.order().json()["order_id"]

        self.jobs.drain()
        send_receipt.enqueue(order_id)
        self.jobs.drain()

        assert Order.objects.get(id=order_id).receipt_sent_at is not None
        assert [each.to for each in mail.outbox] == [["ada@example.com"]]

    def test_an_order_that_cannot_be_served_leaves_no_job(self) -> None:
        answers = [self.order().status_code for _ in range(3)]

        assert answers == [202, 202, 409]
        assert len(self.jobs.enqueued()) == 2
