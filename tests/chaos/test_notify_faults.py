"""Notifications that cannot be sent, or that mean nothing: jobs run all the same."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Self

import psycopg
import pytest
from psycopg import errors
from psycopg.conninfo import make_conninfo

from tests.chaos.field import CLAIM, FIRST_JOB_WITHIN, Field, Log, field_with, ran
from tests.conftest import TestDatabase
from tests.support.cluster import Cluster
from tests.support.processes import eventually
from tests.support.tiers import size

USAGE = "select pg_notification_queue_usage()"

# Sessions of the worker that would keep the server from removing old notifications.
IN_TRANSACTION = """
select count(*) from pg_stat_activity
where application_name = 'graphile-worker' and state like 'idle in transaction%'
"""

# So large that each notification fills a page of the queue.
LONG = 7_900
PAGES = 64

# Seconds from the database's return to the first job.
SOON = size(**FIRST_JOB_WITHIN)

# Notifications of a flood for each statement that takes jobs; how fast it is depends on the
# machine.
NOTIFICATIONS_PER_CLAIM = size(gate=0, nightly=2)

# Seconds of a flood in which fetches are counted.
WATCHED = 2.0


@pytest.fixture
def small_queue(pytestconfig, schema, tmp_path) -> Iterator[Field]:
    """A worker and jobs on a server whose queue of notifications has room for half a megabyte."""
    major = pytestconfig.getoption("--pg")
    if major < 17:
        pytest.skip("the size of its queue is fixed at 8 GB")
    cluster = Cluster(major, [f"max_notify_queue_pages={PAGES}"])
    with field_with(cluster, schema, tmp_path) as field:
        yield field


def notify(session: psycopg.Connection, times: int) -> None:
    """Send long notifications, each in its own transaction."""
    for number in range(times):
        session.execute("select pg_notify('noise', %s)", [f"{number:{LONG}}"])


@contextmanager
def deaf_listener(database: TestDatabase) -> Iterator[None]:
    """A session that listens, and stays in a transaction: nothing may be forgotten before it."""
    with psycopg.connect(database.dsn) as session:
        session.execute("listen noise")
        session.commit()
        session.execute("select 1")
        yield
        session.rollback()


@pytest.mark.single_version
@pytest.mark.timeout(120)
def test_polling_finds_jobs_while_notifications_fail(small_queue, figure):
    field = small_queue
    worker = field.start()
    # Due when no notification can be sent any more.
    field.add(5, queues=2, run_at=timedelta(seconds=2))

    with psycopg.connect(field.database.dsn, autocommit=True) as session:
        with deaf_listener(field.database):
            with pytest.raises(errors.ProgramLimitExceeded):
                notify(session, 2 * PAGES)
            with pytest.raises(psycopg.Error, match="too many notifications") as told:
                field.try_to_add()
            assert told.value.sqlstate == "54000"
            field.wait_for_all(worker)
            assert max(ran(worker).values()) == 1

        # PostgreSQL rejects notifications until a listener reads the queue, though none needs it.
        began = time.monotonic()
        eventually(lambda: can_add(field), "jobs can be added again")
        figure(f"queue of notifications full: room {time.monotonic() - began:.1f} s after its end")
        assert field.seconds_to_the_next_job(worker) < SOON
        field.check_alive(worker)


def can_add(field: Field) -> bool:
    try:
        field.try_to_add()
    except errors.ProgramLimitExceeded:
        return False
    return True


@pytest.mark.single_version
def test_a_worker_that_listens_never_blocks_the_cleanup_of_the_notification_queue(small_queue):
    field = small_queue
    worker = field.start()
    field.add(1)
    field.wait_for_all(worker)

    with psycopg.connect(field.database.dsn, autocommit=True) as session:
        # Several times what there is room for.
        for _ in range(10):
            notify(session, PAGES // 2)
            eventually(lambda: field.value(USAGE) < 0.25, "the queue is emptied")
            assert field.value(IN_TRANSACTION) == 0

    field.check_alive(worker)


@pytest.mark.single_version
@pytest.mark.timeout(120)
def test_a_flood_of_notifications_causes_few_fetches_and_delays_no_job(
    pytestconfig, schema, tmp_path, figure
):
    cluster = Cluster(pytestconfig.getoption("--pg"), ["log_statement=all"])
    with field_with(cluster, schema, tmp_path) as field:
        worker = field.start("-j", "5")
        field.add(20)
        field.wait_for_all(worker)

        with Flood(field.database) as flood:
            flood.wait_for(500)
            slowest = max(field.seconds_to_the_next_job(worker) for _ in range(10))
            began, log, before = time.monotonic(), Log(cluster), flood.sent
            time.sleep(WATCHED)
            claims, seconds, sent = log.count(CLAIM), time.monotonic() - began, flood.sent - before

        field.wait_for_all(worker)
        figure(f"{sent} notifications in {seconds:.1f} s: {claims} statements to take jobs")
        assert slowest < SOON
        # A fetch in 20 ms, of two statements; and those at once, before it is known for a flood.
        assert claims < 100 * seconds + 50
        assert sent > NOTIFICATIONS_PER_CLAIM * claims
        assert max(ran(worker).values()) == 1
        field.check_alive(worker)


class Flood:
    """A role that may only connect sends notifications at its highest rate."""

    def __init__(self, database: TestDatabase) -> None:
        self.sent = 0
        with psycopg.connect(database.dsn, autocommit=True) as admin:
            admin.execute("create role stranger login")
        self._dsn = make_conninfo(database.dsn, user="stranger")
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def wait_for(self, number: int) -> None:
        """Wait until this number was sent."""
        eventually(lambda: self.sent >= number, f"{number} notifications are sent")

    def _run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as session:
            while not self._is_over.is_set():
                session.execute(
                    "select pg_notify('jobs:insert', %s)", [f'{{"count": {self.sent}}}']
                )
                self.sent += 1
