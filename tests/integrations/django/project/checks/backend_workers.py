"""Results of `django.tasks` beside workers of manage.py, which the tests stop and kill."""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from django.db import connection
from django.test import TransactionTestCase
from psycopg.sql import Identifier

from graphile_worker.contrib.django import app
from shop import django_tasks as tasks
from shop.models import Order

try:
    from django.tasks import TaskResultStatus, default_task_backend
except ImportError:
    from django_tasks import TaskResultStatus, default_task_backend

READY, RUNNING = TaskResultStatus.READY, TaskResultStatus.RUNNING
SUCCESSFUL, FAILED = TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED

QUICK = ("--lease-duration", "3s", "--heartbeat-interval", "200ms", "--rescue-interval", "200ms")


def run_statement(statement: str) -> list[tuple]:
    names = {":schema": app.schema, ":ext": app.database.schemas.companion}
    for name, value in names.items():
        statement = statement.replace(name, Identifier(value).as_string(None))
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


def wait_until(is_true: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def start_worker(*arguments: str) -> subprocess.Popen:
    """Start a worker on the test database."""
    settings = json.loads(os.environ["ACME"])
    settings["DATABASES"]["default"]["NAME"] = connection.settings_dict["NAME"]
    return subprocess.Popen(
        [sys.executable, "manage.py", "graphile_worker", "--skip-checks", *arguments],
        env={**os.environ, "ACME": json.dumps(settings)},
    )


@contextmanager
def run_worker(*arguments: str) -> Iterator[subprocess.Popen]:
    """Run a worker, which the block may have killed, until the end of the block."""
    worker = start_worker(*arguments)
    try:
        yield worker
    finally:
        stop(worker)


def stop(worker: subprocess.Popen) -> None:
    if worker.poll() is None:
        worker.send_signal(signal.SIGCONT)
        worker.terminate()
        try:
            worker.wait(60)
        finally:
            worker.kill()


class Workers(TransactionTestCase):
    def setUp(self) -> None:
        run_statement("delete from :schema._private_jobs")
        run_statement("truncate :ext.outcomes, :ext.attempts")
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_a_worker_runs_the_queues_that_the_command_names(self) -> None:
        path = self.folder / "counted"
        results = [
            tasks.count.enqueue(f"{path}", "a"),
            tasks.nothing.using(queue_name="low").enqueue(),
            tasks.count.using(queue_name="default").enqueue(f"{path}", "b"),
            tasks.nothing.enqueue(),
        ]

        def list_statuses() -> list[str]:
            return [default_task_backend.get_result(each.id).status for each in results]

        assert start_worker("--once", "--queue", "low").wait(60) == 0
        assert list_statuses() == [SUCCESSFUL, SUCCESSFUL, READY, READY]
        results[0] = tasks.count.enqueue(f"{path}", "c")
        assert start_worker("--once", "--exclude-queue", "low").wait(60) == 0
        assert list_statuses() == [READY, SUCCESSFUL, SUCCESSFUL, SUCCESSFUL]
        assert path.read_text() == "ab"

    def test_jobs_run_again_after_a_kill_and_a_zombie_writes_nothing(self) -> None:
        # Two jobs of one queue run at the same time. A third one kills the worker.
        names = ("first", "second")
        pairs = [
            tasks.meet.enqueue(f"{self.folder}", name, other)
            for name, other in itertools.permutations(names)
        ]
        worker = start_worker("-j", "2", *QUICK)
        for each in pairs:
            wait_until(lambda each=each: default_task_backend.get_result(each.id).is_finished)
        killing = tasks.kill_once.enqueue(f"{self.folder / 'killed'}")
        assert worker.wait(60) == -signal.SIGKILL
        for each, name in zip(pairs, names, strict=True):
            each.refresh()
            assert (each.status, each.return_value, each.attempts) == (SUCCESSFUL, name, 1)
        killing.refresh()
        assert (killing.status, killing.errors, killing.attempts) == (RUNNING, [], 1)
        (dead,) = killing.worker_ids

        held = tasks.wait_for_file.enqueue(f"{self.folder / 'go'}", f"{self.folder / 'started'}")
        with run_worker("-j", "2", *QUICK) as zombie:
            wait_until(lambda: default_task_backend.get_result(killing.id).is_finished)
            killing.refresh()
            assert (killing.status, killing.return_value) == (SUCCESSFUL, "alive")
            assert (killing.attempts, killing.errors) == (1, [])
            assert dead not in killing.worker_ids

            wait_until((self.folder / "started").exists)
            held.refresh()
            assert held.status == RUNNING
            (first_worker,) = held.worker_ids
            zombie.send_signal(signal.SIGSTOP)
            with run_worker("-j", "2", *QUICK):
                wait_until(
                    lambda: (
                        default_task_backend.get_result(held.id).worker_ids != [first_worker]
                        and default_task_backend.get_result(held.id).status == RUNNING
                    )
                )
                (self.folder / "go").touch()
                wait_until(lambda: default_task_backend.get_result(held.id).is_finished)
                held.refresh()
                zombie.send_signal(signal.SIGCONT)
                zombie.terminate()
                assert zombie.wait(60) == 0
        before = held.worker_ids, held.finished_at
        held.refresh()
        assert (held.status, held.return_value, held.attempts) == (SUCCESSFUL, "done", 1)
        assert (held.worker_ids, held.finished_at) == before
        assert held.worker_ids != [first_worker]
        for table in ("outcomes", "attempts"):
            rows = run_statement(f"select count(*) from :ext.{table} where job_id = {held.id}")
            assert rows == [(1,)]

    def test_a_storm_of_kills_leaves_one_outcome_of_each_job(self) -> None:
        choice = random.Random(6)
        count = 1_000
        results = {tasks.note.enqueue(number).id: number for number in range(count)}
        failing = {tasks.fail.enqueue().id for _ in range(count // 10)}
        flags = ("-j", "10", *QUICK, "--max-crashes", "1000")
        workers = [start_worker(*flags) for _ in range(2)]
        kills = 0
        try:
            while run_statement(
                "select 1 from :schema._private_jobs"
                " where attempts < max_attempts or locked_at is not null limit 1"
            ):
                time.sleep(choice.uniform(0, 0.3))
                victim = choice.randrange(len(workers))
                # Only after the last kill the workers did something.
                if kills < 12 and Order.objects.count() > (kills + 1) * 60:
                    workers[victim].kill()
                    workers[victim].wait()
                    workers[victim] = start_worker(*flags)
                    kills += 1
        finally:
            for each in workers:
                stop(each)
        assert kills >= 10
        statuses = Counter(default_task_backend.get_result(each).status for each in results)
        assert statuses == {SUCCESSFUL: count}
        statuses = Counter(default_task_backend.get_result(each).status for each in failing)
        assert statuses == {FAILED: len(failing)}
        assert run_statement(
            "select count(*), count(distinct job_id), count(*) filter (where succeeded)"
            " from :ext.outcomes"
        ) == [(count + len(failing), count + len(failing), count)]
        ran = {int(email) for email in Order.objects.values_list("email", flat=True)}
        assert ran == set(range(count))
        for result_id in (*results, *failing):
            result = default_task_backend.get_result(result_id)
            assert result.attempts >= max(1, len(result.errors))
            assert result.enqueued_at <= result.started_at <= result.finished_at
