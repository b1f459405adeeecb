"""check_ready_jobs, and the column of claim_plain_jobs about other ready jobs."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from graphile_worker import JobSpec, sync
from graphile_worker._sql.queries.claim import (
    check_ready_jobs,
    claim_first_job,
    claim_jobs,
    claim_jobs_unindexed,
    claim_plain_jobs,
    claim_soonest_jobs,
)
from graphile_worker._sql.query import Query
from graphile_worker._worker.fetch_strategy import JobFetcher
from tests.support.pools import Pool
from tests.support.sql import Sql

HOUR = timedelta(hours=1)
FLAG = "no"

# More due jobs, and more priorities, than the check reads.
MANY_JOBS = 60
MANY_PRIORITIES = 25

Prepare = Callable[[sync.Client, Sql], None]


@pytest.fixture
def pool_database(either_database):
    return either_database


@pytest.fixture
def client(blocking_client):
    return blocking_client


def add(task: str = "task", count: int = 1, **options: Any) -> Prepare:
    def prepare(client: sync.Client, _sql: Sql) -> None:
        client.add_jobs([JobSpec(task, number, **options) for number in range(count)])

    return prepare


def do_both(first: Prepare, second: Prepare) -> Prepare:
    def prepare(client: sync.Client, sql: Sql) -> None:
        first(client, sql)
        second(client, sql)

    return prepare


def add_priorities(client: sync.Client, _sql: Sql) -> None:
    client.add_jobs(
        [JobSpec("task", run_at=HOUR, priority=number) for number in range(MANY_PRIORITIES)]
    )


def lock_job(client: sync.Client, sql: Sql) -> None:
    add()(client, sql)
    sql.run("update :schema._private_jobs set locked_at = now(), locked_by = 'another'")


def fail_job(client: sync.Client, sql: Sql) -> None:
    client.permanently_fail_jobs([client.add_job("task").id])


def lock_queue(client: sync.Client, sql: Sql) -> None:
    add(count=2, queue_name="queue")(client, sql)
    sql.run("update :schema._private_job_queues set locked_at = now(), locked_by = 'another'")


# What is in the table, whether the check returns true, and whether a job is ready.
CASES: dict[str, tuple[Prepare, bool, bool]] = {
    "no job": (add(count=0), False, False),
    "a ready job": (add(), True, True),
    "a ready job of an unlocked queue": (add(queue_name="queue"), True, True),
    "a ready job after 1,000 future jobs of a better priority": (
        do_both(add(count=1000, run_at=HOUR, priority=-3), add()),
        True,
        True,
    ),
    "1,000 future jobs": (add(count=1000, run_at=HOUR), False, False),
    "a job that another pool holds": (lock_job, False, False),
    "a permanently failed job": (fail_job, False, False),
    "jobs of a locked queue": (lock_queue, False, False),
    "a job of another task": (add("other"), False, False),
    "a job with a forbidden flag": (add(flags=[FLAG, "more"]), False, False),
    "many jobs of another task": (add("other", MANY_JOBS), True, False),
    "many priorities of future jobs": (add_priorities, True, False),
}


def test_false_means_that_no_job_is_ready(pool, client, sql):
    full_scan = claim_jobs if pool.has_indexes else claim_jobs_unindexed
    for name, (prepare, may_have_jobs, has_jobs) in CASES.items():
        sql.run("truncate :schema._private_jobs, :schema._private_job_queues cascade")
        prepare(client, sql)

        answer, _ = pool.connection.run(check_ready_jobs(pool.tasks, [FLAG]))
        claimed = pool.claim_by(full_scan, skip_flags=[FLAG])

        assert (answer, bool(claimed)) == (may_have_jobs, has_jobs), name


def test_the_time_of_the_worker_decides_what_is_ready(pool, client):
    run_at = datetime(2040, 2, 29, 4, 30, tzinfo=UTC)
    client.add_job("task", run_at=run_at)

    for now, is_ready in ((None, False), (run_at - HOUR, False), (run_at, True)):
        check = pool.connection.run(check_ready_jobs(pool.tasks, now=now))
        assert check.may_be_ready is is_ready, now


def test_few_jobs_are_fewer_than_the_soonest_that_a_claim_reads(pool, client, sql):
    client.add_jobs([JobSpec("task", run_at=HOUR, priority=-3)] * 19)
    client.add_job("task", queue_name="queue")
    assert pool.connection.run(check_ready_jobs(pool.tasks)) == (True, True)

    claimed = pool.claim_by(claim_soonest_jobs)
    assert len(claimed) == 1
    pool.release(*claimed)
    client.add_jobs([JobSpec("task", run_at=HOUR, priority=-3)] * 2)

    assert pool.connection.run(check_ready_jobs(pool.tasks)) == (True, False)
    assert pool.claim_by(claim_soonest_jobs) == []


class AddingDatabase:
    """Runs queries, and adds a job before a statement."""

    def __init__(self, pool: Pool, statement: str, add_job: Callable[[], object]) -> None:
        self.statements: list[str] = []
        self._pool = pool
        self._statement = statement
        self._add_job = add_job

    async def run(self, query: Query[Any]) -> Any:
        self.statements.append(str(query.statement))
        if query.statement == self._statement:
            self._add_job()
        return self._pool.connection.run(query)


async def test_a_fetch_finds_a_job_that_is_added_before_the_check(pool, client):
    for queue in (None, "queue"):
        adding: Any = AddingDatabase(
            pool, "check_ready_jobs", partial(client.add_job, "task", queue_name=queue)
        )
        fetcher = JobFetcher(adding, {})
        fetcher.has_indexes = pool.has_indexes

        claimed = await fetcher.fetch("pool", pool.tasks, limit=1)

        assert len(claimed) == 1, adding.statements


def test_a_claim_reports_whether_another_job_is_ready(pool, client, sql):
    # The jobs in the table, how many to claim, and whether these are all.
    cases: dict[str, tuple[Prepare, dict[str, Any], bool]] = {
        "one job": (add(), {"limit": 24}, True),
        "as many as requested": (add(count=3), {"limit": 3}, True),
        "more than requested": (add(count=4), {"limit": 3}, False),
        "more than the search reads": (add(count=200), {"limit": 24}, False),
        "future jobs": (do_both(add(), add(run_at=HOUR)), {"limit": 24}, True),
        "more future jobs than the search reads": (
            do_both(add(), add(count=200, run_at=HOUR)),
            {"limit": 24},
            False,
        ),
        "a position to start from": (
            add(count=3),
            {"limit": 24, "since": (-9, datetime(2001, 2, 3, tzinfo=UTC))},
            False,
        ),
    }
    for name, (prepare, options, is_all) in cases.items():
        sql.run("truncate :schema._private_jobs, :schema._private_job_queues cascade")
        prepare(client, sql)

        for way in (claim_plain_jobs, claim_soonest_jobs):
            claimed = pool.claim_by(way, **options)

            assert claimed, name
            assert claimed[0].is_all_ready is is_all, name
            assert not any(each.is_all_ready for each in claimed[1:]), name
            pool.release(*claimed)


def test_a_claim_of_a_named_queue_reports_whether_another_job_is_ready(pool, client):
    for name, is_all in (("first", True), ("second", False), ("second", False)):
        client.add_job("task", queue_name=name)
        claimed = pool.claim_by(claim_soonest_jobs, 1)

        assert claimed[0].is_all_ready is is_all, name
        pool.release(*claimed)


def test_a_job_that_is_ready_within_20_ms_is_not_left_to_the_next_poll(pool, client):
    now = datetime.now(UTC)
    client.add_job("task", run_at=now - HOUR)
    client.add_job("task", run_at=now + timedelta(milliseconds=15))

    for way in (claim_first_job, claim_plain_jobs, claim_soonest_jobs):
        (claimed,) = pool.claim_by(way, 24, now=now)
        assert not claimed.is_all_ready
        pool.release(claimed)


def test_a_job_that_another_session_has_locked_may_be_ready_soon(pool, client, sql):
    first, _ = client.add_job("task"), client.add_job("task")
    sql.run("begin")
    sql.run("select from :schema._private_jobs where id = $1 for update", first.id)
    (claimed,) = pool.claim_by(claim_plain_jobs, 24)
    sql.run("commit")

    assert not claimed.is_all_ready
