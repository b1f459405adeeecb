"""The backend of `django.tasks`: what its interface says, and what this queue adds to it."""

import dataclasses
import json
import logging
import pickle
from datetime import UTC, datetime, timedelta
from unittest import mock

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase, override_settings
from django.utils import timezone
from psycopg.sql import Identifier

from graphile_worker import Retention
from graphile_worker.contrib.django import GraphileBackend, app, job_options
from graphile_worker.contrib.django._backend import GraphileTask
from graphile_worker.contrib.django.testing import JobsMixin
from graphile_worker.errors import ConfigurationError, JobFailedError
from shop import django_tasks as tasks
from shop.models import Order

try:
    from django.tasks import TaskResultStatus, default_task_backend, task, task_backends
    from django.tasks.exceptions import (
        InvalidTask,
        InvalidTaskBackend,
        TaskResultDoesNotExist,
        TaskResultMismatch,
    )
    from django.tasks.signals import task_enqueued, task_finished, task_started

    LOGGER = "django.tasks"
except ImportError:
    from django_tasks import TaskResultStatus, default_task_backend, task, task_backends
    from django_tasks.exceptions import (
        InvalidTaskBackendError as InvalidTaskBackend,
    )
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
    from django_tasks.signals import task_enqueued, task_finished, task_started

    LOGGER = "django_tasks"

READY, RUNNING = TaskResultStatus.READY, TaskResultStatus.RUNNING
SUCCESSFUL, FAILED = TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED
BACKEND = "graphile_worker.contrib.django.GraphileBackend"


def run_jobs() -> None:
    """Run the jobs that are ready, with a worker on its own connections."""
    async_to_sync(app.worker().run_once)()


def run_statement(statement: str) -> list[tuple]:
    with connection.cursor() as cursor:
        cursor.execute(statement.replace(":schema", Identifier(app.schema).as_string(None)))
        return cursor.fetchall() if cursor.description else []


def use_backend(**params: object) -> override_settings:
    return override_settings(TASKS={"default": {"BACKEND": BACKEND, **params}})


class Enqueue(TestCase):
    def test_the_backend_is_that_of_the_settings(self) -> None:
        assert default_task_backend == task_backends["default"]
        assert isinstance(task_backends["default"], GraphileBackend)
        assert (default_task_backend.alias, default_task_backend.options) == ("default", {})
        assert isinstance(tasks.nothing, GraphileTask)
        assert isinstance(tasks.nothing.get_backend(), GraphileBackend)
        flags = ("defer", "async_task", "get_result", "priority")
        assert all(getattr(default_task_backend, f"supports_{flag}") for flag in flags)

    def test_a_result_is_ready_after_enqueue(self) -> None:
        for each in (tasks.nothing, tasks.anothing):
            result = each.enqueue(1, two=3)
            assert (result.status, result.is_finished, result.attempts) == (READY, False, 0)
            assert result.started_at is result.last_attempted_at is result.finished_at is None
            assert abs(timezone.now() - result.enqueued_at) < timedelta(minutes=1)
            with pytest.raises(ValueError, match="Task has not finished yet"):
                _ = result.return_value
            assert (result.task, result.args, result.kwargs) == (each, [1], {"two": 3})
            assert (result.errors, result.worker_ids, result.backend) == ([], [], "default")
            assert default_task_backend.get_result(result.id) == result
            assert each.get_result(result.id) == result

    async def test_async_code_enqueues_and_reads(self) -> None:
        for each in (tasks.nothing, tasks.anothing):
            result = await each.aenqueue()
            assert (result.status, result.args, result.kwargs) == (READY, [], {})
            assert await each.aget_result(result.id) == result
            assert await default_task_backend.aget_result(result.id) == result
            before = dataclasses.asdict(result)
            await result.arefresh()
            assert dataclasses.asdict(result) == before

    def test_refresh_reads_the_status(self) -> None:
        result = tasks.give_answer.enqueue()
        before = dataclasses.asdict(result)
        result.refresh()
        assert dataclasses.asdict(result) == before
        run_statement(
            f"update :schema._private_jobs set locked_at = now(), locked_by = 'x'"
            f" where id = {result.id}"
        )
        result.refresh()
        assert (result.status, result.worker_ids) == (RUNNING, ["x"])
        assert result.started_at == result.last_attempted_at is not None

    def test_a_result_that_does_not_exist(self) -> None:
        texts = ("123456789", "abc", "", "-1", "١", "9" * 30, "9" * 5_000, 7, "1; drop table jobs")
        for missing in texts:
            with pytest.raises(TaskResultDoesNotExist):
                default_task_backend.get_result(missing)
        result = tasks.anothing.enqueue()
        with pytest.raises(TaskResultMismatch, match="Task does not match"):
            tasks.nothing.get_result(result.id)
        app.add_job("unknown.task")
        job_id = app.add_job("os.system", {"_args": ["true"]}).id
        with pytest.raises(TaskResultDoesNotExist, match=r"identifier 'os\.system'"):
            default_task_backend.get_result(str(job_id))

    def test_values_that_json_cannot_represent_are_rejected_before_anything_is_sent(self) -> None:
        for value in (datetime.now(UTC), object(), {1, 2}):
            with pytest.raises(TypeError, match="Unsupported type"):
                tasks.nothing.enqueue(value)
            with pytest.raises(TypeError, match="Unsupported type"):
                async_to_sync(tasks.nothing.aenqueue)(value)
        deep: list = []
        for _ in range(100_000):
            deep = [deep]
        for value, words in (
            (float("nan"), "JSON compliant|NaN|nan"),
            ("\ud800", "surrogate"),
            ("a\x00b", "NUL|u0000"),
        ):
            with pytest.raises(ValueError, match=words):
                tasks.nothing.enqueue(value)
        with pytest.raises((ValueError, RecursionError)):
            tasks.nothing.enqueue(deep)
        assert run_statement("select count(*) from :schema._private_jobs") == [(0,)]
        assert tasks.nothing.enqueue(b"text", (1, 2)).args == ["text", [1, 2]]

    def test_arguments_are_keys_of_the_payload(self) -> None:
        for args, kwargs, payload in (
            ([], {}, {}),
            ([], {"order_id": 7}, {"order_id": 7}),
            ([1], {"order_id": 7}, {"order_id": 7, "_args": [1]}),
            ([1], {"_private": 7}, {"_args": [1], "_kwargs": {"_private": 7}}),
        ):
            result = tasks.nothing.enqueue(*args, **kwargs)
            ((stored,),) = run_statement(
                f"select payload::text from :schema._private_jobs where id = {result.id}"
            )
            assert json.loads(stored) == payload
            read = tasks.nothing.get_result(result.id)
            assert (read.args, read.kwargs) == (args, kwargs)
        job = app.add_job("shop.django_tasks.nothing", {"order_id": 7, "_cron": {"ts": "x"}})
        read = tasks.nothing.get_result(str(job.id))
        assert (read.args, read.kwargs) == ([], {"order_id": 7})
        job = app.add_job("shop.django_tasks.nothing", [1, 2])
        assert tasks.nothing.get_result(str(job.id)).args == []

    def test_options_become_those_of_the_job(self) -> None:
        later = timezone.now() + timedelta(hours=1)
        jobs = {
            tasks.nothing.enqueue().id: ("shop.django_tasks.nothing", 0, 1, None, None),
            tasks.nothing.using(priority=5, max_attempts=3).enqueue().id: (
                "shop.django_tasks.nothing",
                -5,
                3,
                None,
                None,
            ),
            tasks.nothing.using(queue_name="low", priority=-100).enqueue().id: (
                "shop.django_tasks.nothing:low",
                100,
                1,
                None,
                None,
            ),
            tasks.charge.enqueue(1).id: ("billing.charge", 0, 1, None, "billing"),
            tasks.charge.using(queue_name="low", serial="x").enqueue(1).id: (
                "billing.charge:low",
                0,
                1,
                None,
                "x",
            ),
            tasks.daily.enqueue(1).id: ("shop.django_tasks.daily", 0, 4, "daily", None),
            tasks.daily.using(job_key="k", max_attempts=9).enqueue(1).id: (
                "shop.django_tasks.daily",
                0,
                9,
                "k",
                None,
            ),
        }
        rows = run_statement(
            "select id::text, task_identifier, priority, max_attempts, key, queue_name"
            " from :schema.jobs order by id"
        )
        assert {row[0]: row[1:] for row in rows} == jobs
        for result_id in jobs:
            default_task_backend.get_result(result_id)
        deferred = tasks.nothing.using(run_after=later, priority=7, queue_name="low").enqueue()
        assert run_statement(f"select run_at from :schema.jobs where id = {deferred.id}") == [
            (later,)
        ]
        assert tasks.nothing.get_result(deferred.id) == deferred

    def test_a_job_key_replaces_the_job(self) -> None:
        first, second = tasks.daily.enqueue(1), tasks.daily.enqueue(2)
        assert first.id == second.id
        first.refresh()
        assert default_task_backend.get_result(first.id).args == [2]
        kept = tasks.daily.using(job_key_mode="unsafe_dedupe").enqueue(3)
        assert default_task_backend.get_result(kept.id).args == [2]

    def test_a_unique_job_is_enqueued_once_per_window(self) -> None:
        weekly = tasks.nothing.using(unique="weekly", unique_for=timedelta(days=7))
        first, second = weekly.enqueue(), weekly.enqueue()
        assert (first.id, tasks.weekly.enqueue().id) == (second.id, first.id)
        with transaction.atomic():
            monthly = tasks.nothing.using(unique="monthly", unique_for=timedelta(days=30))
            rolled_back = monthly.enqueue()
            transaction.set_rollback(True)
        assert monthly.enqueue().id != rolled_back.id

    def test_a_job_of_the_same_name_gets_the_options_of_its_task(self) -> None:
        job = app.add_job("billing.charge", {"amount": 1})
        assert (job.queue_name, job.max_attempts) == ("billing", 1)
        assert default_task_backend.get_result(str(job.id)).task == tasks.charge

    def test_enqueue_joins_atomic(self) -> None:
        with transaction.atomic():
            rolled_back = tasks.nothing.enqueue()
            assert rolled_back.enqueued_at is not None
            assert tasks.nothing.get_result(rolled_back.id) == rolled_back
            transaction.set_rollback(True)
        with pytest.raises(TaskResultDoesNotExist, match=rolled_back.id):
            tasks.nothing.get_result(rolled_back.id)
        with self.captureOnCommitCallbacks(execute=True):
            transaction.on_commit(tasks.nothing.enqueue)
        assert run_statement("select count(*) from :schema._private_jobs") == [(1,)]

    def test_get_result_sends_one_query(self) -> None:
        result = tasks.nothing.enqueue()
        with self.assertNumQueries(1):
            tasks.nothing.get_result(result.id)
        with self.assertNumQueries(1):
            tasks.nothing.enqueue()

    def test_enqueue_logs_and_sends_a_signal(self) -> None:
        received = []

        def receive(sender: type, task_result: object, **_: object) -> None:
            received.append((sender, task_result, connection.in_atomic_block))

        task_enqueued.connect(receive)
        try:
            with self.assertLogs(LOGGER, level="DEBUG") as logs:
                result = tasks.nothing.enqueue()
        finally:
            task_enqueued.disconnect(receive)
        assert received == [(GraphileBackend, result, True)]
        (line,) = logs.output
        assert "enqueued" in line
        assert result.id in line


class Definitions(TestCase):
    def test_using_changes_a_copy(self) -> None:
        now = timezone.now()
        original = tasks.nothing
        for name, value in (
            ("priority", 1),
            ("queue_name", "low"),
            ("run_after", now),
            ("max_attempts", 3),
            ("job_key", "k"),
            ("job_key_mode", "preserve_run_at"),
            ("serial", "s"),
        ):
            changed = original.using(**{name: value})
            assert getattr(changed, name) == value != getattr(original, name)
            assert getattr(changed.using(), name) == value
        copy = original.using()
        assert copy == original
        assert copy is not original
        chained = original.using(run_after=now).using(priority=10)
        assert (chained.run_after, chained.priority) == (now, 10)
        with pytest.raises(TypeError, match="colour"):
            original.using(colour="red")

    def test_a_backend_that_does_not_exist(self) -> None:
        with pytest.raises(InvalidTaskBackend, match="The connection 'unknown' doesn't exist"):
            tasks.nothing.using(backend="unknown")
        entries = {"default": {"BACKEND": BACKEND}, "missing": {"BACKEND": "does.not.exist"}}
        with (
            override_settings(TASKS=entries),
            pytest.raises(InvalidTaskBackend, match="Could not find backend 'does.not.exist'"),
        ):
            tasks.nothing.using(backend="missing")
        only_other = override_settings(TASKS={"other": {"BACKEND": BACKEND}})
        with only_other, pytest.raises(InvalidTaskBackend):
            tasks.nothing.enqueue()

    def test_tasks_that_the_backend_rejects(self) -> None:
        for changes, words in (
            ({"run_after": datetime(2030, 1, 1)}, "run_after must be an aware datetime"),
            ({"priority": -101}, "priority must be a whole number between -100 and 100"),
            ({"priority": 101}, "priority must be a whole number"),
            ({"priority": 3.1}, "priority must be a whole number"),
            ({"queue_name": "unknown"}, "Queue 'unknown' is not valid for backend"),
            ({"max_attempts": 0}, "max_attempts"),
            ({"max_attempts": "3"}, "max_attempts"),
            ({"job_key": "x" * 600}, "job_key"),
            ({"job_key_mode": "sometimes"}, "job_key_mode"),
            ({"serial": "x" * 200}, "queue_name"),
            ({"unique": "u"}, "needs unique_for"),
            ({"unique": "u", "unique_for": timedelta(1), "job_key": "k"}, "not together"),
        ):
            with pytest.raises(InvalidTask, match=words):
                tasks.nothing.using(**changes)
        for priority in (100, -100, 0, 3.0):
            tasks.nothing.using(priority=priority).enqueue()

        def local() -> None: ...

        for function in (any, self.test_tasks_that_the_backend_rejects, local):
            with pytest.raises(InvalidTask, match="must be defined at a module level"):
                task()(function)
        with pytest.raises(InvalidTask, match="does not have a first argument of 'context'"):
            task(takes_context=True)(tasks.give_answer.func)
        with (
            mock.patch.multiple(GraphileBackend, supports_async_task=False),
            pytest.raises(InvalidTask, match="does not support async [Tt]asks"),
        ):
            default_task_backend.validate_task(tasks.anothing)

    def test_enqueue_validates_again(self) -> None:
        low = tasks.nothing.using(queue_name="low")
        with use_backend(QUEUES=["queue-1"]):
            with pytest.raises(InvalidTask, match="Queue 'low' is not valid for backend"):
                low.enqueue()
            with pytest.raises(InvalidTask, match="Queue 'low' is not valid for backend"):
                async_to_sync(low.aenqueue)()
        with use_backend(QUEUES=[]):
            unlisted = tasks.nothing.using(queue_name="anything: at all")
            result = unlisted.enqueue()
            assert unlisted.get_result(result.id) == result

    def test_tasks_can_be_called(self) -> None:
        assert tasks.give_answer.call() == 42
        assert async_to_sync(tasks.give_answer.acall)() == 42
        assert tasks.anothing.call() is None
        assert async_to_sync(tasks.anothing.acall)() is None
        assert tasks.nothing.name == "nothing"
        assert tasks.nothing.module_path == "shop.django_tasks.nothing"

    def test_tasks_and_results_can_be_pickled(self) -> None:
        if not hasattr(type(tasks.nothing), "_reconstruct"):
            pytest.skip("Django 6.1 has this")
        for each in (tasks.nothing, tasks.nothing.using(serial="x", max_attempts=3)):
            assert pickle.loads(pickle.dumps(each)) == each
        result = tasks.nothing.enqueue()
        assert pickle.loads(pickle.dumps(result)) == result

    def test_options_in_the_decorator_where_django_passes_them_on(self) -> None:
        try:
            each = task(max_attempts=5, serial="x")(tasks.nothing.func)
        except TypeError:
            assert not hasattr(type(tasks.nothing), "_reconstruct")
            return
        assert (each.max_attempts, each.serial) == (5, "x")

    def test_job_options_are_portable_and_checked(self) -> None:
        with override_settings(
            TASKS={"default": {"BACKEND": BACKEND}, "dummy": {"BACKEND": DUMMY}}
        ):
            result = task(backend="dummy")(tasks.charge.func).enqueue(1)
            assert task_backends["dummy"].results == [result]
        with pytest.raises(TypeError, match="below @task"):
            job_options(max_attempts=3)(tasks.nothing)
        for options, error in (
            ({"max_attempts": 0}, Exception),
            ({"timeout": 3}, ConfigurationError),
            ({"retry": 3}, ConfigurationError),
            ({"run_in": "moon"}, ConfigurationError),
            ({"name": "a:b"}, ConfigurationError),
            ({"colour": "red"}, TypeError),
        ):
            with pytest.raises(error):
                job_options(**options)

    def test_options_of_the_backend_are_checked(self) -> None:
        for options, words in (
            ({"DATABAZE": "default"}, "unknown key 'DATABAZE', did you mean 'DATABASE'?"),
            ({"RETENTION": True}, "must be of type Retention or NoneType, got True"),
            ({"MAX_ATTEMPTS": "3"}, "must be of type int"),
            ({"MAX_ATTEMPTS": 0}, "max_attempts"),
            ({"DATABASE": 3}, "must be of type str"),
        ):
            with use_backend(OPTIONS=options), pytest.raises(InvalidTaskBackend) as caught:
                task_backends["default"]
            assert words in str(caught.value)

    def test_flags_follow_the_retention(self) -> None:
        for retention, flag in (
            (None, False),
            (Retention(attempts=True), False),
            (Retention(results=True), True),
        ):
            with use_backend(OPTIONS={"RETENTION": retention}):
                assert default_task_backend.supports_get_result is flag
                result = tasks.nothing.enqueue()
                if not flag:
                    for read in (
                        lambda: default_task_backend.get_result("1"),
                        lambda: async_to_sync(default_task_backend.aget_result)("1"),
                        result.refresh,
                        async_to_sync(result.arefresh),
                    ):
                        with pytest.raises(NotImplementedError, match="does not support"):
                            read()

    def test_the_worker_has_the_tasks_of_the_database(self) -> None:
        names = app.tasks()
        for name in ("shop.django_tasks.nothing", "shop.django_tasks.nothing:low"):
            assert name in names
            assert app.find(name) is names[name]
        assert "shop.django_tasks.charge" not in names
        assert "billing.charge" in names
        assert names["billing.charge"].options.timeout == timedelta(hours=1)
        assert "pay" in names
        with override_settings(TASKS={"default": {"BACKEND": DUMMY}}):
            assert "shop.django_tasks.nothing" not in app.tasks()
            assert "pay" in app.tasks()

    def test_checks_of_the_backend(self) -> None:
        assert list(default_task_backend.check()) == []

        def find(**params: object) -> list[str]:
            with use_backend(**params):
                return sorted({each.id[-4:] for each in default_task_backend.check()})

        assert find(QUEUES=[]) == ["W003"]
        assert find(QUEUES=["q" * 120]) == ["E004"]
        entries = {"default": {"BACKEND": BACKEND}, "other": {"BACKEND": BACKEND}}
        with override_settings(TASKS=entries):
            assert task_backends["default"].check() == []
            (error,) = task_backends["other"].check()
            assert error.id == "graphile_worker.E005"
        for function, expected in (
            (named_twice, "E004"),
            (named_as_app_task, "E004"),
            (in_process, "E006"),
        ):
            with forget_tasks():
                task(function)
                (message,) = default_task_backend.check()
                assert message.id == f"graphile_worker.{expected}"
                assert function.__name__ in str(message)
                assert app.tasks()


@job_options(name="billing.charge")
def named_twice() -> None: ...


@job_options(name="pay")
def named_as_app_task() -> None: ...


@job_options(run_in="process")
def in_process() -> None: ...


class forget_tasks:
    """Forget the tasks that are defined in the block."""

    def __enter__(self) -> None:
        from graphile_worker.contrib.django import _registry

        self.registry, self.before = _registry, dict(_registry._tasks)

    def __exit__(self, *_: object) -> None:
        self.registry._tasks.clear()
        self.registry._tasks.update(self.before)
        self.registry._change()


DUMMY = f"{LOGGER}.backends.dummy.DummyBackend"


class Runs(TransactionTestCase):
    def setUp(self) -> None:
        run_statement("delete from :schema._private_jobs")

    def check_times(self, result: object) -> None:
        assert result.enqueued_at <= result.started_at <= result.last_attempted_at
        assert result.last_attempted_at <= result.finished_at
        assert result.finished_at <= timezone.now() + timedelta(seconds=5)

    def test_successful_tasks(self) -> None:
        order = Order.objects.create(email="ada@example.com")
        wanted = {}
        for each, args, value in (
            (tasks.nothing, [1, "ä", None], None),
            (tasks.anothing, [], None),
            (tasks.give_answer, [], 42),
            (tasks.give_order, [order.id], "ada@example.com"),
            (tasks.agive_order, [order.id], "ada@example.com"),
            (tasks.return_bytes, [], {"bytes": "text", "tuple": [1, 2]}),
            (tasks.charge, [7], 7),
            (tasks.nothing.using(queue_name="low", priority=3), [], None),
        ):
            result = each.enqueue(*args)
            wanted[result.id] = (result, each, args, value)
        run_jobs()
        for result_id, (result, each, args, value) in wanted.items():
            result.refresh()
            assert result == default_task_backend.get_result(result_id)
            assert (result.status, result.is_finished) == (SUCCESSFUL, True)
            assert result.return_value == value
            assert (result.task, result.args, result.kwargs) == (each, args, {})
            assert (result.attempts, result.errors) == (1, [])
            assert all(each.startswith("pypool-") for each in result.worker_ids)
            self.check_times(result)
        assert run_statement("select count(*) from :schema._private_jobs") == [(0,)]

    def test_failed_tasks(self) -> None:
        cases = (
            (tasks.fail, ValueError, "ValueError: no good\n"),
            (tasks.afail, ValueError, "ValueError: no good\n"),
            (tasks.leave, SystemExit, "SystemExit: no good\n"),
            (tasks.fail_with_error, ValueError, "ValueError: no good\n"),
            (tasks.return_function, TypeError, "Unsupported type: <class 'function'>\n"),
        )
        results = [each.enqueue() for each, *_ in cases]
        run_jobs()
        for result, (each, error, end) in zip(results, cases, strict=True):
            result.refresh()
            assert (result.status, result.is_finished) == (FAILED, True)
            with pytest.raises(ValueError, match="Task failed"):
                _ = result.return_value
            assert result._return_value is None
            (only,) = result.errors
            assert only.exception_class is error
            assert only.traceback.startswith("Traceback (most recent call last):\n")
            assert only.traceback.endswith(end)
            assert (result.task, result.args, result.attempts) == (each, [], 1)
            self.check_times(result)

    def test_the_context_has_the_job(self) -> None:
        first, second = tasks.get_id.enqueue(), tasks.describe_context.enqueue(prefix="x")
        third = tasks.adescribe_context.enqueue()
        run_jobs()
        for each in (first, second, third):
            each.refresh()
        assert first.return_value == first.id
        assert second.return_value == ["x", 1, int(second.id), "RUNNING", 1]
        assert third.return_value == [1, int(third.id), third.worker_ids]

    def test_a_task_that_is_retried(self) -> None:
        path = f"{connection.settings_dict['NAME']}.txt"
        result = tasks.fail_twice.enqueue(path)
        seen = []
        for _ in range(3):
            run_jobs()
            result.refresh()
            seen.append((result.status, result.attempts, len(result.errors)))
            assert result.last_attempted_at >= result.started_at
            run_statement("update :schema._private_jobs set run_at = now()")
        assert seen == [(READY, 1, 1), (READY, 2, 2), (SUCCESSFUL, 3, 2)]
        assert result.return_value == 3
        assert {each.exception_class for each in result.errors} == {tasks.PaymentError}
        assert [each.traceback[-11:] for each in result.errors] == ["declined 1\n", "declined 2\n"]
        assert len(set(result.worker_ids)) == 3

    def test_exceptions_of_the_queue_pass_through(self) -> None:
        path = f"{connection.settings_dict['NAME']}.snooze"
        discarded, later = tasks.discard.enqueue(), tasks.retry_later.enqueue()
        snoozed = tasks.snooze_once.enqueue(path)
        run_jobs()
        for each in (discarded, later, snoozed):
            each.refresh()
        assert (discarded.status, discarded.attempts) == (FAILED, 1)
        assert discarded.errors[0].exception_class.__name__ == "Discard"
        assert (later.status, later.attempts) == (READY, 1)
        assert (snoozed.status, snoozed.return_value, snoozed.attempts) == (SUCCESSFUL, "awake", 1)

    def test_jobs_that_people_end(self) -> None:
        failed, completed, retried = (tasks.fail.enqueue() for _ in range(3))
        run_statement(
            f"select :schema.permanently_fail_jobs(array[{failed.id}]::bigint[], 'by hand')"
        )
        run_statement(f"select :schema.complete_jobs(array[{completed.id}]::bigint[])")
        failed.refresh()
        assert failed.status == FAILED
        (error,) = failed.errors
        assert (error.exception_class, error.traceback) == (JobFailedError, "by hand")
        assert failed.finished_at >= failed.enqueued_at
        with pytest.raises(TaskResultDoesNotExist, match=completed.id):
            completed.refresh()
        run_jobs()
        retried.refresh()
        assert (retried.status, len(retried.errors)) == (FAILED, 1)
        run_statement(
            "select :schema.reschedule_jobs"
            f"(array[{retried.id}]::bigint[], run_at := now(), attempts := 0)"
        )
        retried.refresh()
        assert (retried.status, retried.finished_at, retried.attempts) == (READY, None, 1)
        run_jobs()
        retried.refresh()
        assert (retried.status, len(retried.errors), retried.attempts) == (FAILED, 2, 2)

    def test_what_is_left_without_attempts_and_payloads(self) -> None:
        with use_backend(QUEUES=["default"], OPTIONS={"RETENTION": Retention(results=True)}):
            done, failed = tasks.nothing.enqueue(1), tasks.fail.using(max_attempts=2).enqueue()
            run_jobs()
            failed.refresh()
            assert (failed.status, failed.errors, failed.attempts) == (READY, [], 0)
            run_statement("update :schema._private_jobs set run_at = now()")
            run_jobs()
            read = default_task_backend.get_result(done.id)
            assert (read.status, read.args, read.attempts) == (SUCCESSFUL, [], 1)
            failed.refresh()
            assert (failed.status, failed.attempts) == (FAILED, 1)
            assert failed.errors[0].exception_class is ValueError

    def test_times_are_naive_without_use_tz(self) -> None:
        with override_settings(USE_TZ=False, TIME_ZONE="Asia/Tokyo"):
            before = timezone.now()
            result = tasks.nothing.enqueue()
            later = tasks.nothing.using(run_after=before + timedelta(hours=1)).enqueue()
            assert before - timedelta(seconds=5) <= result.enqueued_at
            assert tasks.nothing.get_result(later.id) == later
            run_jobs()
            result.refresh()
            assert result.status == SUCCESSFUL
            assert result.enqueued_at <= result.started_at <= result.finished_at
            assert result.finished_at <= timezone.now() + timedelta(seconds=5)
            later.refresh()
            assert later.status == READY
        (run_at,) = run_statement(f"select run_at from :schema.jobs where id = {later.id}")[0]
        assert abs(run_at - timezone.now() - timedelta(hours=1)) < timedelta(minutes=5)

    def test_jobs_of_a_larger_priority_run_first(self) -> None:
        path = f"{connection.settings_dict['NAME']}.order"
        for priority in (0, 100, -100, 50):
            tasks.count.using(priority=priority).enqueue(path, f"{priority} ")
        run_jobs()
        with open(path) as file:
            assert file.read() == "100 50 0 -100 "

    def test_jobs_of_an_unlisted_queue_run_if_the_command_names_it(self) -> None:
        from graphile_worker.contrib.django._registry import serve_queues

        with use_backend(QUEUES=[]):
            result = tasks.nothing.using(queue_name="weekly").enqueue()
            static = tasks.count.enqueue("/dev/null", "x")
            run_jobs()
            result.refresh()
            static.refresh()
            assert (result.status, static.status) == (READY, SUCCESSFUL)
            serve_queues(["weekly"])
            run_jobs()
            result.refresh()
            assert result.status == SUCCESSFUL

    def test_tasks_in_a_second_database_belong_to_its_backend(self) -> None:
        entries = {
            "default": {"BACKEND": BACKEND},
            "second": {"BACKEND": BACKEND, "OPTIONS": {"DATABASE": "other"}},
        }
        from graphile_worker.contrib.django import app_for

        with override_settings(TASKS=entries):
            assert task_backends["second"].app.alias == "other"
            names = app_for("other").tasks()
            assert "shop.django_tasks.nothing" in names
            moved = tasks.nothing.using(backend="second")
            assert isinstance(moved.get_backend(), GraphileBackend)
            assert moved.get_backend().check() == []


class Helpers(JobsMixin, TestCase):
    def test_a_task_that_cannot_run_in_a_process_fails_its_job(self) -> None:
        with forget_tasks():
            result = task(in_process).enqueue()
            self.jobs.drain(raise_errors=False)
            result.refresh()
        assert (result.status, result.errors[0].exception_class) == (FAILED, ConfigurationError)

    def test_a_test_runs_tasks_in_its_transaction(self) -> None:
        order = Order.objects.create(email="bo@example.com")
        received: list[tuple] = []

        def receive(task_result: object, **_: object) -> None:
            received.append((task_result.id, task_result.status, Order.objects.count()))

        results = [tasks.give_order.enqueue(order.id), tasks.agive_order.enqueue(order.id)]
        failed = tasks.fail.enqueue()
        self.jobs.assert_enqueued("shop.django_tasks.fail")
        task_finished.connect(receive)
        try:
            self.jobs.drain(raise_errors=False)
        finally:
            task_finished.disconnect(receive)
        for each in results:
            each.refresh()
            assert (each.status, each.return_value) == (SUCCESSFUL, "bo@example.com")
        failed.refresh()
        assert (failed.status, failed.errors[0].exception_class) == (FAILED, ValueError)
        assert received == [
            *((each.id, SUCCESSFUL, 1) for each in results),
            (failed.id, FAILED, 1),
        ]


class Signals(TransactionTestCase):
    def setUp(self) -> None:
        run_statement("delete from :schema._private_jobs")
        self.received: list[tuple] = []
        for name, sent in (("started", task_started), ("finished", task_finished)):
            receiver = self.build_receiver(name)
            sent.connect(receiver, weak=False)
            self.addCleanup(sent.disconnect, receiver)

    def build_receiver(self, name: str):
        def receive(sender: type, task_result: object, **_: object) -> None:
            stored = default_task_backend.get_result(task_result.id)
            self.received.append((name, sender, task_result.id, task_result.status, stored.status))
            assert stored.worker_ids == task_result.worker_ids
            assert (stored.args, stored.kwargs) == (task_result.args, task_result.kwargs)
            assert stored.task == task_result.task
            if task_result.status == SUCCESSFUL:
                assert stored.return_value == task_result.return_value
            paths = [each.exception_class_path for each in task_result.errors]
            assert [each.exception_class_path for each in stored.errors] == paths
            traces = [each.traceback for each in task_result.errors]
            assert [each.traceback for each in stored.errors] == traces
            raise RuntimeError("a receiver that raises")

        return receive

    def test_signals_are_sent_once_in_order_by_the_class(self) -> None:
        for each, end in (
            (tasks.give_answer, SUCCESSFUL),
            (tasks.anothing, SUCCESSFUL),
            (tasks.fail, FAILED),
            (tasks.afail, FAILED),
        ):
            self.received.clear()
            with self.assertLogs("django.dispatch", "ERROR") as logs:
                result = each.enqueue()
                run_jobs()
            # The outcome is stored before the signal is sent.
            assert self.received == [
                ("started", GraphileBackend, result.id, RUNNING, RUNNING),
                ("finished", GraphileBackend, result.id, end, end),
            ]
            assert all("a receiver that raises" in line for line in logs.output), logs.output
            result.refresh()
            assert (result.status, result.attempts) == (end, 1)

    def test_finished_is_sent_after_the_last_attempt_only(self) -> None:
        result = tasks.fail.using(max_attempts=2).enqueue()
        run_jobs()
        assert [each[0] for each in self.received] == ["started"]
        run_statement("update :schema._private_jobs set run_at = now()")
        received: list = []

        def receive(task_result: object, **_: object) -> None:
            received.append((task_result.id, task_result.status))

        task_finished.connect(receive)
        try:
            run_jobs()
        finally:
            task_finished.disconnect(receive)
        assert received == [(result.id, FAILED)]

    def test_log_lines_have_the_error(self) -> None:
        with self.assertLogs(LOGGER, level="DEBUG") as logs:
            failed, done = tasks.fail.enqueue(), tasks.give_answer.enqueue()
            run_jobs()
        lines = {
            each.id: [record for record in logs.records if f"id={each.id} " in record.getMessage()]
            for each in (failed, done)
        }
        for each, state in ((failed, "FAILED"), (done, "SUCCESSFUL")):
            texts = [record.getMessage() for record in lines[each.id]]
            assert "enqueued" in texts[0]
            assert [text.rpartition("=")[2] for text in texts[1:]] == ["RUNNING", state]
            assert not any("None" in text for text in texts)
        last = lines[failed.id][-1]
        assert last.levelno == logging.ERROR
        assert "ValueError: no good" in logging.Formatter().format(last)
        assert all(record.exc_info is None for record in lines[done.id])
