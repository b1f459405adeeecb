"""claim_first_job claims what claim_jobs would claim first, or nothing."""

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest

from graphile_worker import JobSpec, sync
from graphile_worker._sql.queries.claim import (
    claim_first_job,
    claim_jobs,
    claim_jobs_unindexed,
)
from tests.support.pools import (
    Pool,
    in_one_transaction,
    open_pool,
    open_session,
    payloads,
    read_job_row,
)
from tests.support.sql import Sql

LONG_AGO = datetime(2001, 2, 3, tzinfo=UTC)
HOUR = timedelta(hours=1)
FLAG = "no"

# From this number of jobs on, the statement does not count those that are ready.
MANY_JOBS = 50


@pytest.fixture
def pool_database(either_database):
    return either_database


@pytest.fixture
def client(blocking_client):
    return blocking_client


def add(payload: object, **options: Any) -> JobSpec:
    return JobSpec("task", payload, **options)


class Case(NamedTuple):
    """The jobs in the table, a change to them, the options of the claim and its result."""

    jobs: list[JobSpec]
    claimed: object = None
    is_all_ready: bool = False
    change: str | None = None
    options: dict[str, Any] = {}


CASES = {
    "no job": Case([]),
    "a ready job": Case([add("a")], "a", is_all_ready=True),
    "the best priority": Case([add("a"), add("b", priority=-1)], "b"),
    "the earliest of a priority": Case([add("a"), add("b", run_at=LONG_AGO)], "b"),
    "a job of a named queue": Case([add("a", queue_name="queue")]),
    "a job behind one of a named queue": Case(
        [add("a", queue_name="queue", priority=-1), add("b")]
    ),
    "a job before one of a named queue": Case([add("a"), add("b", queue_name="queue")], "a"),
    "a job of another task": Case([JobSpec("other")]),
    "a job behind one of another task": Case([JobSpec("other", priority=-1), add("a")]),
    "a job before one of another task": Case([add("a"), JobSpec("other", priority=1)], "a"),
    "a forbidden flag": Case([add("a", flags=["x", FLAG])]),
    "a job behind one with a forbidden flag": Case([add("a", flags=[FLAG], priority=-1), add("b")]),
    "another flag": Case([add("a", flags=["x"])], "a", is_all_ready=True),
    "a scheduled job": Case([add("a", run_at=HOUR)]),
    "a job before a scheduled job": Case([add("a"), add("b", run_at=HOUR)], "a", is_all_ready=True),
    "a job behind a scheduled job of a better priority": Case(
        [add("a", run_at=HOUR, priority=-1), add("b")]
    ),
    "a job that another pool has locked": Case([add("a")], change="locked_at = now()"),
    "a permanently failed job": Case([add("a")], change="attempts = max_attempts"),
    "few scheduled jobs": Case(
        [add("a"), *[add("b", run_at=HOUR)] * (MANY_JOBS - 2)], "a", is_all_ready=True
    ),
    "many scheduled jobs": Case([add("a"), *[add("b", run_at=HOUR)] * (MANY_JOBS - 1)], "a"),
    "many ready jobs": Case([add("a", priority=-1), *[add("b")] * MANY_JOBS], "a"),
    "no tasks": Case([add("a")], options={"tasks": {}}),
    "a limit of 0": Case([add("a")], options={"limit": 0}),
    "a limit of 100": Case([add("a"), add("b", priority=1)], "a", options={"limit": 100}),
    "a position": Case(
        [add("a", priority=-1), add("b", priority=1)], "b", options={"since": (0, LONG_AGO)}
    ),
}

# By the clock of a worker, at this time.
NOW = datetime(2040, 2, 29, 4, 30, tzinfo=UTC)


def by_clock(*delays: timedelta, claimed: object = None, is_all_ready: bool = False) -> Case:
    jobs = [add(number, run_at=NOW + delay) for number, delay in enumerate(delays)]
    return Case(jobs, claimed, is_all_ready, options={"now": NOW})


MS = timedelta(milliseconds=1)
CASES |= {
    "a job that is due by the clock of the worker": by_clock(0 * MS, claimed=0, is_all_ready=True),
    "a job that is not yet due by the clock of the worker": by_clock(MS),
    "another job that is due within 20 ms": by_clock(-HOUR, 20 * MS, claimed=0),
    "another job that is due later": by_clock(-HOUR, 21 * MS, claimed=0, is_all_ready=True),
}


def prepare(case: Case, client: sync.Client, sql: Sql) -> None:
    sql.run("truncate :schema._private_jobs, :schema._private_job_queues cascade")
    for spec in case.jobs:
        client.add_jobs([spec])
    if case.change is not None:
        sql.run(f"update :schema._private_jobs set {case.change}")


def build_options(case: Case, pool: Pool) -> dict[str, Any]:
    return {"limit": 1, "skip_flags": [FLAG], "tasks": pool.tasks, **case.options}


def test_the_first_job_is_claimed_if_it_is_plain(pool, client, sql):
    full_scan = claim_jobs if pool.has_indexes else claim_jobs_unindexed
    for name, case in CASES.items():
        prepare(case, client, sql)
        options = build_options(case, pool)

        claimed = pool.connection.run(claim_first_job(pool.id, **options))

        assert payloads(claimed) == ([] if case.claimed is None else [case.claimed]), name
        assert any(each.is_all_ready for each in claimed) is case.is_all_ready, name
        pool.release(*claimed)
        # claim_jobs takes no position.
        if claimed and "since" not in options:
            expected = pool.connection.run(full_scan(pool.id, **{**options, "limit": 1}))
            assert [each.job.id for each in claimed] == [each.job.id for each in expected], name


def test_a_job_row_of_an_open_transaction_is_not_waited_for(client, sql, either_database):
    job, _ = client.add_job("task", "a"), client.add_job("task", "b")
    sql.run("begin")
    sql.run("select from :schema._private_jobs where id = $1 for update", job.id)

    with open_pool(either_database, lock_timeout="1ms") as impatient:
        assert impatient.claim_by(claim_first_job) == []
        sql.run("rollback")
        assert payloads(impatient.claim_by(claim_first_job)) == ["a"]


def test_a_claim_that_is_not_over_hides_nothing_else(pool, client, sql, either_database):
    free = "select payload::text from :schema._private_jobs order by id for update skip locked"
    for name, case in CASES.items():
        prepare(case, client, sql)
        options = build_options(case, pool)

        with open_session(either_database) as other, other.transaction() as unfinished:
            claimed = unfinished.run(claim_first_job("first", **options))
            rows = sql.run(free)

        # A job that it did not claim is not locked.
        assert len(rows) == len(case.jobs) - len(claimed), name


def test_a_claim_notes_who_and_when(pool, client, sql):
    added = client.add_job("task", run_at=NOW)
    slow = added.created_at - HOUR

    for now, locked_at in ((NOW, NOW), (slow, None)):
        sql.run("update :schema._private_jobs set run_at = $1", min(now, slow))
        [claimed] = pool.claim_by(claim_first_job, now=now)

        row = read_job_row(sql, added)
        assert (row["attempts"], row["locked_by"]) == (1, pool.id)
        # A change does not seem to come after the claim.
        assert row["locked_at"] == (locked_at or row["updated_at"])
        assert (claimed.job.attempts, claimed.job.locked_by) == (1, pool.id)
        assert claimed.job.locked_at == now
        pool.release(claimed)


def test_pools_that_claim_the_first_job_at_once_share_the_jobs(client, either_database):
    client.add_jobs([JobSpec("task", number, priority=number) for number in range(3)])

    with open_pool(either_database) as pool, in_one_transaction(pool) as unfinished:
        [mine] = unfinished.claim_by(claim_first_job)
        with open_pool(either_database) as other:
            # The row is locked, so that the other pool claims the others in its next statement.
            assert other.claim_by(claim_first_job) == []
            assert payloads(other.claim(10)) == [1, 2]

    assert mine.job.payload == 0
