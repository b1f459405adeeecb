"""What a project's own tests use: JobsMixin, and the pytest fixture gw without a conftest."""

from typing import Any, ClassVar

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections, transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase, override_settings
from django.test.utils import CaptureQueriesContext

from graphile_worker import Job
from graphile_worker._sql.identifiers import quote_identifier
from graphile_worker.contrib.django import app, app_for
from graphile_worker.contrib.django.testing import JobsMixin
from graphile_worker.testing import Harness
from shop.models import Order
from shop.tasks import apay, pay, pay_in_process

TASKS = (pay, apay, pay_in_process)


def count_queries(call: Any) -> int:
    with CaptureQueriesContext(connection) as queries:
        call()
    return len(queries)


def count_rows(table: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(f"select count(*) from {table}")
        count: int = cursor.fetchone()[0]
        return count


class InTransaction(JobsMixin, TestCase):
    job: ClassVar[Job]

    @classmethod
    def setUpTestData(cls) -> None:
        cls.order = Order.objects.create()
        cls.job = pay.enqueue(cls.order.id)

    def test_jobs_of_set_up_test_data_are_visible(self) -> None:
        assert self.jobs.assert_enqueued(pay, order_id=self.order.id).id == self.job.id
        assert [job.id for job in self.jobs.drain()] == [self.job.id]
        self.order.refresh_from_db()
        assert self.order.is_paid

    def test_drain_runs_every_kind_of_task(self) -> None:
        orders = [Order.objects.create() for _ in TASKS]
        for task, order in zip(TASKS, orders, strict=True):
            task.enqueue(order.id)
        assert len(self.jobs.drain()) == 4
        assert Order.objects.filter(is_paid=True).count() == 4
        self.jobs.assert_not_enqueued()

    def test_inline_runs_jobs_when_they_are_added(self) -> None:
        order = Order.objects.create()
        with self.jobs.inline():
            apay.enqueue(order.id)
            pay.using(conn=connection).enqueue(order.id)
            pay.using(conn="default").enqueue(order.id)
        assert len(self.jobs.enqueued()) == 1
        order.refresh_from_db()
        assert order.is_paid

    def test_jobs_are_rolled_back_to_a_savepoint(self) -> None:
        with transaction.atomic():
            self.jobs.drain()
            transaction.set_rollback(True)
        self.jobs.assert_enqueued(pay)

    async def test_async_tests_have_the_same_queue(self) -> None:
        await self.jobs.aassert_enqueued(pay)
        order = await Order.objects.acreate()
        for task in TASKS:
            await task.aenqueue(order.id)
        assert len(await self.jobs.adrain()) == 4
        with self.jobs.inline():
            await apay.aenqueue(order.id)
        await self.jobs.aassert_not_enqueued()
        await order.arefresh_from_db()
        assert order.is_paid

    def test_the_first_use_costs_one_query_in_each_process(self) -> None:
        def look() -> None:
            with Harness(app) as harness:
                harness.assert_enqueued(pay)

        first, second = count_queries(look), count_queries(look)
        assert second == 1
        assert first <= 2

    def test_queries_of_a_drain_can_be_counted(self) -> None:
        assert count_queries(self.jobs.drain) > 3


class TemporarySchema(JobsMixin, TestCase):
    """The transaction of the class installs a schema, and its rollback removes that again."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.enterClassContext(override_settings(GRAPHILE_WORKER={"SCHEMA": "temporary"}))
        super().setUpClass()

    @classmethod
    def setUpTestData(cls) -> None:
        with Harness(app) as harness:
            harness.assert_not_enqueued()

    def test_jobs_can_be_added(self) -> None:
        with Harness(app) as harness:
            harness.assert_not_enqueued()
        with transaction.atomic():
            self.jobs.assert_not_enqueued()
            transaction.set_rollback(True)
        pay.enqueue(1)
        self.jobs.assert_enqueued(pay)


class TemporarySchemaAgain(TemporarySchema):
    def test_the_harness_installs_after_a_rollback(self) -> None:
        with transaction.atomic():
            self.jobs.assert_not_enqueued()
            with connection.cursor() as cursor:
                cursor.execute("drop schema temporary cascade; drop schema temporary_ext cascade")
        self.jobs.assert_not_enqueued()


class Committing(JobsMixin, TransactionTestCase):
    def look_and_leave_jobs(self) -> None:
        self.jobs.assert_not_enqueued()
        order = Order.objects.create()
        for task in TASKS:
            task.enqueue(order.id)
        assert len(self.jobs.drain()) == 3
        order.refresh_from_db()
        assert order.is_paid
        pay.enqueue(1)

    # Twice, so that one runs after the other.
    test_a_test_begins_with_an_empty_queue = look_and_leave_jobs
    test_a_test_begins_with_an_empty_queue_again = look_and_leave_jobs

    async def test_async_tests_begin_with_an_empty_queue(self) -> None:
        await self.jobs.aassert_not_enqueued()
        await apay.aenqueue(1)
        await self.jobs.adrain()
        await apay.aenqueue(1)


class WithoutSignal(JobsMixin, TransactionTestCase):
    """Django sends no signal after its tests, so that JobsMixin alone clears the queue."""

    available_apps: ClassVar[list[str]] = ["shop"]
    test_a_test_begins_with_an_empty_queue = Committing.look_and_leave_jobs
    test_a_test_begins_with_an_empty_queue_again = Committing.look_and_leave_jobs


class WithSignal(TransactionTestCase):
    """No harness, so that the receiver alone clears the queue."""

    def look_and_leave_jobs(self) -> None:
        companion = quote_identifier(app.database.schemas.companion)
        tables = (
            f"{quote_identifier(app.schema)}._private_jobs",
            *(f"{companion}.{name}" for name in ("outcomes", "attempts", "progress")),
        )
        for table in tables:
            assert count_rows(table) == 0, table
        job = pay.enqueue(1)
        with connection.cursor() as cursor:
            values = f"{job.id}, 'pool', 0.5, 'half', now()"
            cursor.execute(f"insert into {companion}.progress values ({values})")

    test_a_test_begins_with_an_empty_queue = look_and_leave_jobs
    test_a_test_begins_with_an_empty_queue_again = look_and_leave_jobs


class OtherDatabase(JobsMixin, TestCase):
    databases: ClassVar[set[str]] = {"default", "other"}
    jobs_app = app_for("other")

    def test_the_harness_uses_the_database_of_the_app(self) -> None:
        self.jobs_app.add_job("pay", {"order_id": 1})
        self.jobs.assert_enqueued(pay)
        pay.enqueue(2)
        assert len(self.jobs.enqueued()) == 1
        with Harness(app) as harness:
            assert len(harness.enqueued()) == 1
            pay.using(conn="other").enqueue(3)
            assert len(harness.enqueued()) == 1
        assert len(self.jobs.enqueued()) == 2

    async def test_async_code_can_name_an_alias(self) -> None:
        with Harness(app) as harness:
            await apay.using(conn="other").aenqueue(3)
            await apay.using(conn="default").aenqueue(3)
            assert len(await harness.aenqueued()) == 1
        assert len(await self.jobs.aenqueued()) == 1


class ForbiddenDatabase(JobsMixin, TestCase):
    jobs_app = app_for("other")

    def test_django_rejects_a_database_that_the_test_does_not_name(self) -> None:
        with pytest.raises(AssertionError, match="Database queries to 'other' are not allowed"):
            self.jobs.assert_not_enqueued()


class NoDatabase(JobsMixin, SimpleTestCase):
    def test_django_rejects_a_test_without_a_database(self) -> None:
        with pytest.raises(AssertionError, match="not allowed in SimpleTestCase"):
            self.jobs.assert_not_enqueued()


def test_the_fixture_has_the_app_of_the_project(gw: Harness) -> None:
    assert gw.app is app
    order = Order.objects.create()
    pay.enqueue(order.id)
    gw.assert_enqueued(pay, order_id=order.id)
    gw.drain()
    order.refresh_from_db()
    assert order.is_paid
    pay.enqueue(order.id)


def test_jobs_of_other_tests_are_not_visible(gw: Harness) -> None:
    gw.assert_not_enqueued()


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.django_db(transaction=True)
def test_the_fixture_clears_the_queue_where_tests_commit(gw: Harness, number: int) -> None:
    gw.assert_not_enqueued()
    pay.enqueue(1)
    assert len(gw.enqueued()) == 1


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.django_db(transaction=True)
def test_the_queue_is_cleared_without_the_fixture(number: int) -> None:
    assert count_rows(f"{quote_identifier(app.schema)}._private_jobs") == 0
    pay.enqueue(1)


@pytest.mark.django_db(transaction=True)
async def test_coroutines_add_jobs_to_the_test_database() -> None:
    await apay.aenqueue(1)
    name = await sync_to_async(lambda: connections["default"].settings_dict["NAME"])()
    assert name.startswith("test_")
    # Otherwise the test database cannot be dropped: nothing ends the thread of asgiref.
    await sync_to_async(connections.close_all)()
