"""Jobs are added on Django's connection: in its transaction, and in the test database."""

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import OperationalError, connection, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import (
    LiveServerTestCase,
    SimpleTestCase,
    TestCase,
    TransactionTestCase,
    override_settings,
)
from django.urls import path

from graphile_worker import JobSpec, OpenTransactionError, Retention
from graphile_worker._sql.identifiers import quote_identifier
from graphile_worker._sql.queries.outcomes import get_job_record
from graphile_worker._sql.queries.testing import clear_jobs
from graphile_worker.contrib.django import app, app_for
from graphile_worker.tasks import Task
from shop.models import Order
from shop.tasks import apay, pay

BOTH = {"default", "other"}


def count_jobs(alias: str = "default") -> int:
    with connections[alias].cursor() as cursor:
        cursor.execute(f"select count(*) from {quote_identifier(app.schema)}._private_jobs")
        count: int = cursor.fetchone()[0]
        return count


def lose_connection() -> None:
    """Terminate the session of the current thread, and wait for its end."""
    connection.ensure_connection()
    with connections["other"].cursor() as cursor:
        pid = connection.connection.info.backend_pid
        cursor.execute("select pg_terminate_backend(%s, 60000)", [pid])


@app.task(retention=Retention(results=True))
def double(number: int) -> int:
    return 2 * number


class Rollback(Exception): ...


@contextmanager
def rolled_back(**options: Any) -> Iterator[None]:
    with suppress(Rollback), transaction.atomic(**options):
        yield
        raise Rollback


# Views


def add(request: HttpRequest) -> HttpResponse:
    order = Order.objects.create()
    pay.enqueue(order.id)
    if "fail" in request.GET:
        raise Rollback
    return HttpResponse(json.dumps([order.id]))


async def aadd(request: HttpRequest) -> HttpResponse:
    order = await Order.objects.acreate()
    await apay.aenqueue(order.id)
    return HttpResponse(json.dumps([order.id]))


def add_in_transaction() -> None:
    with transaction.atomic():
        Order.objects.create()
        pay.enqueue(1)
        raise Rollback


async def afail(request: HttpRequest) -> HttpResponse:
    await sync_to_async(add_in_transaction)()
    raise AssertionError


urlpatterns = [path("add", add), path("aadd", aadd), path("afail", afail)]


# Tests


class InTransaction(TestCase):
    def test_a_job_joins_atomic(self) -> None:
        order = Order.objects.create()
        pay.enqueue(order.id)
        assert count_jobs() == 1
        with transaction.atomic():
            pay.enqueue(order.id)
            assert count_jobs() == 2
            transaction.set_rollback(True)
        assert count_jobs() == 1

    def test_jobs_of_other_tests_are_rolled_back(self) -> None:
        assert count_jobs() == 0

    async def test_async_code_adds_jobs_in_the_transaction_of_the_test(self) -> None:
        await apay.aenqueue(7)
        await app.aadd_job("pay", {"order_id": 7}, job_key="seven")
        await app.aadd_jobs([JobSpec("pay", {"order_id": 7})])
        assert await sync_to_async(count_jobs)() == 3
        removed = await app.aremove_job("seven")
        assert removed is not None
        assert (await app.astatus(removed.id)).state == "unknown"
        assert await sync_to_async(count_jobs)() == 2

    def test_the_result_of_a_job_needs_the_end_of_the_transaction(self) -> None:
        job = pay.enqueue(1)
        with pytest.raises(OpenTransactionError, match=r"leave atomic\(\)"):
            job.result(timeout=timedelta(seconds=30))
        with pytest.raises(OpenTransactionError, match=r"leave atomic\(\)"):
            app.result(job.id, timeout=timedelta(seconds=30))

    async def test_the_result_of_a_job_needs_the_end_of_the_transaction_in_async_code(self) -> None:
        job = await apay.aenqueue(1)
        with pytest.raises(OpenTransactionError, match=r"leave atomic\(\)"):
            await job.aresult(timeout=timedelta(seconds=30))
        with pytest.raises(OpenTransactionError, match=r"leave atomic\(\)"):
            await app.aresult(job.id, timeout=timedelta(seconds=30))


class Committing(TransactionTestCase):
    databases = BOTH

    def test_a_job_outside_of_atomic_is_committed(self) -> None:
        job = pay.enqueue(1)
        assert not connection.in_atomic_block
        assert app.status(job.id).state == "ready"

    def test_a_job_is_committed_with_its_transaction(self) -> None:
        for options in ({}, {"durable": True}):
            with transaction.atomic(**options):
                pay.enqueue(1)
        assert count_jobs() == 2

    def test_a_job_is_rolled_back_with_its_transaction(self) -> None:
        for options in ({}, {"durable": True}):
            with rolled_back(**options):
                pay.enqueue(1)
                app.add_jobs([JobSpec("pay", {"order_id": 1}), JobSpec("other")])
        assert count_jobs() == 0

    def test_a_job_is_rolled_back_to_a_savepoint(self) -> None:
        with transaction.atomic():
            kept = pay.enqueue(1)
            with rolled_back():
                lost = pay.enqueue(2)
            app.add_jobs([JobSpec("pay", {"order_id": 3})])
        assert count_jobs() == 2
        assert app.status(kept.id).state == "ready"
        assert app.status(lost.id).state == "unknown"

    def test_jobs_join_a_transaction_without_atomic(self) -> None:
        transaction.set_autocommit(False)
        try:
            for end in (transaction.rollback, transaction.commit):
                pay.enqueue(1)
                app.add_jobs([JobSpec("pay", {"order_id": 2})])
                end()
            pay.enqueue(3)
            transaction.rollback()
        finally:
            transaction.set_autocommit(True)
        assert count_jobs() == 2

    def test_several_jobs_are_all_added_or_none(self) -> None:
        jobs = app.add_jobs([JobSpec("pay", {"order_id": number}) for number in range(3)])
        assert len(jobs) == count_jobs() == 3
        with pytest.raises(Exception, match="order_id"):
            app.add_jobs([JobSpec("pay", {"order_id": 1}), JobSpec("pay", {"order_id": "x"})])
        assert count_jobs() == 3

    def test_conn_can_be_an_alias(self) -> None:
        pay.using(conn="other").enqueue(1)
        app_for("other").add_job("pay", {"order_id": 2})
        assert (count_jobs(), count_jobs("other")) == (0, 2)
        with rolled_back(using="other"):
            pay.using(conn="other").enqueue(3)
            pay.enqueue(4)
        assert (count_jobs(), count_jobs("other")) == (1, 2)
        with rolled_back():
            pay.using(conn="other").enqueue(5)
            pay.enqueue(6)
        assert (count_jobs(), count_jobs("other")) == (1, 3)
        with app.using_connection("other"):
            pay.enqueue(7)
        assert (count_jobs(), count_jobs("other")) == (1, 4)

    async def test_conn_can_be_an_alias_in_async_code(self) -> None:
        await apay.using(conn="other").aenqueue(1)
        await app.aadd_job("pay", {"order_id": 2}, conn="other")
        assert await sync_to_async(count_jobs)("other") == 2
        assert await sync_to_async(count_jobs)() == 0

    def test_a_result_is_looked_for_in_the_database_of_its_job(self) -> None:
        here, there = pay.enqueue(1), pay.using(conn="other").enqueue(1)
        while there.id < here.id:
            there = pay.using(conn="other").enqueue(1)
        while here.id < there.id:
            here = pay.enqueue(1)
        app.database.run(clear_jobs(1000))
        with pytest.raises(TimeoutError):
            there.result(timeout=timedelta(0))

    async def test_waiting_in_async_code_ends_at_the_timeout(self) -> None:
        job = await apay.aenqueue(1)
        with pytest.raises(TimeoutError):
            await job.aresult(timeout=timedelta(milliseconds=30))

    def test_a_worker_in_a_test_runs_the_jobs_of_the_test(self) -> None:
        order = Order.objects.create()
        pay.enqueue(order.id)
        apay.enqueue(order.id)
        job = double.enqueue(21)
        async_to_sync(app.worker().run_once)()
        assert count_jobs() == 0
        order.refresh_from_db()
        assert order.is_paid
        assert job.result() == app.result(job.id) == 42
        with transaction.atomic():
            assert job.result() == 42

    async def test_async_code_waits_for_a_result(self) -> None:
        job = await double.aenqueue(21)
        result = asyncio.create_task(job.aresult(timeout=timedelta(seconds=60)))
        await app.worker().run_once()
        assert await result == await app.aresult(job.id) == 42

    def test_waiting_for_a_result_goes_on_after_a_lost_connection(self) -> None:
        job = double.enqueue(21)
        async_to_sync(app.worker().run_once)()
        for result in (job.result, partial(app.result, job.id)):
            lose_connection()
            assert result(timeout=timedelta(seconds=30)) == 42

    async def test_waiting_in_async_code_goes_on_after_a_lost_connection(self) -> None:
        job = await double.aenqueue(21)
        await app.worker().run_once()
        for result in (job.aresult, partial(app.aresult, job.id)):
            await sync_to_async(lose_connection)()
            assert await result(timeout=timedelta(seconds=30)) == 42

    def test_a_connection_that_is_lost_in_a_transaction_is_not_replaced(self) -> None:
        """Otherwise only the later statements of the transaction would be committed."""
        job = pay.enqueue(1)

        def lose_and_look() -> None:
            Order.objects.create()
            lose_connection()
            for _ in range(2):
                with pytest.raises(OperationalError):
                    app.database.run(get_job_record(job.id))
            with pytest.raises(OperationalError):
                job.result(timeout=timedelta(seconds=30))
            with pytest.raises(OperationalError):
                async_to_sync(job.aresult)(timeout=timedelta(seconds=30))
            Order.objects.create()

        with pytest.raises(OperationalError), transaction.atomic():
            lose_and_look()
        transaction.set_autocommit(False)
        try:
            with pytest.raises(OperationalError):
                lose_and_look()
        finally:
            connection.close()
        assert Order.objects.count() == 0


@override_settings(ROOT_URLCONF=__name__)
class Requests(TransactionTestCase):
    def test_a_view_adds_jobs_under_wsgi(self) -> None:
        assert self.client.get("/add").status_code == 200
        assert count_jobs() == 1
        assert self.client.get("/aadd").status_code == 200
        assert count_jobs() == 2
        with pytest.raises(Rollback):
            self.client.get("/afail")
        assert count_jobs() == Order.objects.count() == 2

    async def test_a_view_adds_jobs_under_asgi(self) -> None:
        assert (await self.async_client.get("/add")).status_code == 200
        assert await sync_to_async(count_jobs)() == 1
        assert (await self.async_client.get("/aadd")).status_code == 200
        assert await sync_to_async(count_jobs)() == 2
        with pytest.raises(Rollback):
            await self.async_client.get("/afail")
        assert await sync_to_async(count_jobs)() == await Order.objects.acount() == 2

    def test_a_job_joins_the_transaction_of_atomic_requests(self) -> None:
        connection.settings_dict["ATOMIC_REQUESTS"] = True
        try:
            with pytest.raises(Rollback):
                self.client.get("/add?fail")
            assert count_jobs() == Order.objects.count() == 0
            self.client.get("/add")
        finally:
            connection.settings_dict["ATOMIC_REQUESTS"] = False
        assert count_jobs() == Order.objects.count() == 1


@override_settings(ROOT_URLCONF=__name__)
class LiveServer(LiveServerTestCase):
    def test_a_live_server_adds_jobs_to_the_test_database(self) -> None:
        for name in ("add", "aadd"):
            with urllib.request.urlopen(f"{self.live_server_url}/{name}") as response:
                assert response.status == 200
        assert count_jobs() == 2


class Forbidden(SimpleTestCase):
    def test_django_rejects_jobs_in_a_test_without_a_database(self) -> None:
        with pytest.raises(AssertionError, match="not allowed in SimpleTestCase"):
            pay.enqueue(1)

    async def test_django_rejects_jobs_of_async_code_in_a_test_without_a_database(self) -> None:
        with pytest.raises(AssertionError, match="not allowed in SimpleTestCase"):
            await apay.aenqueue(1)


class OneDatabase(TestCase):
    def test_django_rejects_jobs_for_a_database_that_the_test_does_not_name(self) -> None:
        with pytest.raises(AssertionError, match="Database queries to 'other' are not allowed"):
            pay.using(conn="other").enqueue(1)


@pytest.mark.parametrize("task", [pay, apay])
def test_pytest_django_rejects_jobs_in_a_test_without_a_database(task: Task[..., Any]) -> None:
    with pytest.raises(RuntimeError, match="Database access not allowed"):
        task.enqueue(1)
