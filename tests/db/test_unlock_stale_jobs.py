"""Locks older than four hours are released, whoever left them; younger ones are not."""

from datetime import UTC, datetime, timedelta

import pytest

from graphile_worker import Job
from graphile_worker._sql.queries.workers import unlock_stale_jobs
from tests.support.pools import (
    Pool,
    payloads,
    queue_ids,
    queue_lock,
    read_job_row,
    update_job,
)
from tests.support.sql import Sql

# What the statements do: test_statements.py runs each of them on the oldest pair too.
pytestmark = pytest.mark.single_version

HOUR = timedelta(hours=1)
LOCKED_QUEUE = """
insert into :schema._private_job_queues (queue_name, locked_by, locked_at)
values ($1, 'dead', now() - $2::text::interval)
"""


# Every rule holds on our install and on the reference's.


@pytest.fixture
def pool_database(either_database):
    return either_database


@pytest.fixture
def client(blocking_client):
    return blocking_client


def unlock(pool: Pool, now: datetime | None = None) -> int:
    return pool.connection.run(unlock_stale_jobs(now))


def locked_for(sql: Sql, job: Job, age: str, more: str = "attempts = 1") -> None:
    """Let it look as if a pool had taken the job and died."""
    update_job(sql, job, f"locked_by = 'dead', locked_at = now() - interval '{age}', {more}")


@pytest.mark.parametrize("age", ["4 hours 1 second", "5 days"])
def test_a_job_locked_for_more_than_four_hours_is_released(pool, client, sql, age):
    job = client.add_job("task")
    locked_for(sql, job, age)

    assert unlock(pool) == 1

    found = read_job_row(sql, job)
    assert (found["locked_by"], found["locked_at"], found["is_available"]) == (None, None, True)


@pytest.mark.parametrize("age", ["0 s", "3 hours 59 minutes"])
def test_a_younger_lock_is_left_alone(pool, client, sql, age):
    job = client.add_job("task")
    locked_for(sql, job, age)
    before = read_job_row(sql, job)

    assert unlock(pool) == 0

    assert read_job_row(sql, job) == before


def test_a_lock_of_four_hours_to_the_microsecond_is_left_alone(pool, client, sql):
    job = client.add_job("task")
    pool.claim_one()
    locked_at = read_job_row(sql, job)["locked_at"]

    assert unlock(pool, locked_at + 4 * HOUR) == 0
    assert unlock(pool, locked_at + 4 * HOUR + timedelta(microseconds=1)) == 1


def test_the_attempt_and_the_error_stay(pool, client, sql):
    job = client.add_job("task", max_attempts=3)
    locked_for(sql, job, "5 hours", "attempts = 2, last_error = 'before'")

    unlock(pool)

    found = read_job_row(sql, job)
    assert (found["attempts"], found["last_error"]) == (2, "before")


def test_a_job_without_attempts_left_is_released_and_stays_dead(pool, client, sql):
    job = client.add_job("task", max_attempts=3)
    locked_for(sql, job, "5 hours", "attempts = 3")

    assert unlock(pool) == 1

    assert (read_job_row(sql, job)["locked_by"], read_job_row(sql, job)["is_available"]) == (
        None,
        False,
    )
    assert pool.claim(10) == []


def test_a_released_job_goes_behind_what_is_ready_by_now(pool, client, sql):
    stale = client.add_job("task", "stale", run_at=datetime.now(UTC) - 9 * HOUR)
    locked_for(sql, stale, "5 hours")
    client.add_job("task", "ready")

    unlock(pool)

    assert payloads(pool.claim() + pool.claim()) == ["ready", "stale"]


def test_a_released_job_is_not_brought_forward(pool, client, sql):
    job = client.add_job("task", run_at=HOUR)
    locked_for(sql, job, "5 hours")
    before = read_job_row(sql, job)["run_at"]

    unlock(pool)

    assert read_job_row(sql, job)["run_at"] == before


@pytest.mark.parametrize(("age", "holder"), [("4 hours 1 second", None), ("3 hours", "dead")])
def test_a_named_queue_is_released_by_the_age_of_the_queue_lock(pool, client, sql, age, holder):
    sql.run(LOCKED_QUEUE, "queue", age)

    unlock(pool)

    assert queue_lock(sql, "queue") == (holder, holder is None)


def test_only_jobs_are_counted(pool, client, sql):
    sql.run(LOCKED_QUEUE, "queue", "5 hours")
    for _ in range(3):
        locked_for(sql, client.add_job("task"), "5 hours")

    assert unlock(pool) == 3
    assert unlock(pool) == 0


def test_stale_locks_of_any_worker_are_released(pool, client, sql):
    own, foreign = client.add_job("task"), client.add_job("task")
    pool.claim(2)
    for job in (own, foreign):
        update_job(sql, job, "locked_at = now() - interval '5 hours'")
    update_job(sql, foreign, "locked_by = 'worker-of-another-kind'")

    assert unlock(pool) == 2


@pytest.mark.feature("F104")
def test_use_local_time_applies_to_stale_locks(pool, client, sql):
    job = client.add_job("task")
    locked_for(sql, job, "0 s")
    later = datetime.now(UTC) + 5 * HOUR

    assert unlock(pool, datetime.now(UTC) - HOUR) == 0
    assert unlock(pool, later) == 1

    assert read_job_row(sql, job)["run_at"] == later


def test_what_is_not_locked_stays_as_it_is(pool, client, sql):
    job = client.add_job("task", run_at=datetime.now(UTC) - 9 * HOUR, queue_name="queue")
    before = read_job_row(sql, job)

    assert unlock(pool) == 0

    assert read_job_row(sql, job) == before
    assert queue_lock(sql, "queue") == (None, True)


def test_a_pool_that_is_alive_keeps_its_own_locks(pool, client, sql):
    client.add_job("task", queue_name="queue")
    held = pool.claim_one()
    update_job(sql, held.job, "locked_at = now() - interval '5 hours'")
    sql.run("update :schema._private_job_queues set locked_at = now() - interval '5 hours'")

    own = unlock_stale_jobs(
        except_pool_id=pool.id, except_job_ids=[held.job.id], except_queue_ids=queue_ids((held,))
    )
    assert pool.connection.run(own) == 0

    assert read_job_row(sql, held.job)["locked_by"] == pool.id
    assert queue_lock(sql, "queue") == (pool.id, False)
