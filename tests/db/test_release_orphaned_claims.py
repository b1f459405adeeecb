"""What a pool locked by a fetch whose answer got lost is handed back, and nothing else."""

from datetime import UTC, datetime, timedelta

import pytest

from graphile_worker._sql.queries.claim import (
    ClaimedJob,
    find_orphaned_claims,
    release_orphaned_claims,
)
from tests.support.pools import (
    Pool,
    payloads,
    queue_ids,
    queue_lock,
    read_job_row,
    update_job,
)

# What the statements do: test_statements.py runs each of them on the oldest pair too.
pytestmark = pytest.mark.single_version

HOUR = timedelta(hours=1)


@pytest.fixture
def client(blocking_client):
    return blocking_client


def return_unheld(pool: Pool, *held: ClaimedJob) -> set[int]:
    """The pool knows of these jobs and of no others."""
    known, queues = [each.job.id for each in held], queue_ids(held)
    found = pool.connection.run(find_orphaned_claims(pool.id, known, queues))
    return pool.connection.run(release_orphaned_claims(pool.id, found, known, queues))


# As it was


@pytest.mark.feature("F215")
def test_an_orphaned_claim_is_undone(pool, client, sql):
    added = client.add_job("task", {"a": 1}, queue_name="queue", job_key="k", flags=["x"])
    update_job(sql, added, "attempts = 3, last_error = 'before', run_at = now() - interval '1 h'")
    before = read_job_row(sql, added)
    pool.claim_one()

    assert return_unheld(pool) == {added.id}

    assert read_job_row(sql, added) == before
    assert queue_lock(sql, "queue") == (None, True)


def test_the_job_of_an_orphaned_claim_can_be_claimed_at_once(pool, client):
    client.add_job("task")

    for _ in range(3):
        assert pool.claim_one().job.attempts == 1
        return_unheld(pool)


@pytest.mark.parametrize("key", [None, "k"])
def test_a_job_at_its_last_attempt_gets_it_back(pool, client, sql, key):
    added = client.add_job("task", max_attempts=1, job_key=key)
    pool.claim_one()

    return_unheld(pool)

    assert (read_job_row(sql, added)["attempts"], read_job_row(sql, added)["is_available"]) == (
        0,
        True,
    )


def test_attempts_do_not_fall_below_zero(pool, client, sql):
    added = client.add_job("task")
    pool.claim_one()
    update_job(sql, added, "attempts = 0")

    return_unheld(pool)

    assert read_job_row(sql, added)["attempts"] == 0


# Ended meanwhile


@pytest.mark.parametrize("attempts", [0, 1, 2], ids=["first", "middle", "last"])
@pytest.mark.parametrize("mode", ["replace", "preserve_run_at"])
def test_a_job_superseded_by_its_key_stays_dead(pool, client, sql, attempts, mode):
    added = client.add_job("task", "old", queue_name="queue", job_key="k", max_attempts=3)
    update_job(sql, added, f"attempts = {attempts}")
    pool.claim_one()
    client.add_job("task", "new", job_key="k", job_key_mode=mode)

    assert return_unheld(pool) == {added.id}

    job = read_job_row(sql, added)
    assert (job["attempts"], job["locked_by"], job["is_available"]) == (3, None, False)
    assert queue_lock(sql, "queue") == (None, True)
    assert payloads(pool.claim(10)) == ["new"]


@pytest.mark.parametrize("attempts", [0, 2], ids=["first", "last"])
def test_a_job_removed_by_its_key_stays_dead(pool, client, sql, attempts):
    added = client.add_job("task", job_key="k", max_attempts=3)
    update_job(sql, added, f"attempts = {attempts}")
    pool.claim_one()
    client.remove_job("k")

    return_unheld(pool)

    assert (read_job_row(sql, added)["attempts"], read_job_row(sql, added)["is_available"]) == (
        3,
        False,
    )


@pytest.mark.parametrize("max_attempts", [1, 25], ids=["last attempt", "first of many"])
def test_a_deduplicated_add_does_not_end_the_job(pool, client, sql, max_attempts):
    added = client.add_job("task", job_key="k", max_attempts=max_attempts)
    pool.claim_one()
    client.add_job("task", job_key="k", job_key_mode="unsafe_dedupe")

    return_unheld(pool)

    assert (read_job_row(sql, added)["attempts"], read_job_row(sql, added)["is_available"]) == (
        0,
        True,
    )


def test_a_clock_that_is_late_does_not_end_the_job(pool, client, sql):
    an_hour_ago = datetime.now(UTC) - HOUR
    added = client.add_job("task", run_at=an_hour_ago, max_attempts=1)
    # With use_local_time a lock is dated by a clock that may differ from the database's.
    pool.claim(now=an_hour_ago)

    return_unheld(pool)

    assert (read_job_row(sql, added)["attempts"], read_job_row(sql, added)["is_available"]) == (
        0,
        True,
    )


# Only what the pool does not know of


def test_what_the_pool_knows_of_stays_locked(pool, client, sql):
    known = client.add_job("task", queue_name="known")
    client.add_job("task", queue_name="lost")
    held, lost = pool.claim(2)
    before = read_job_row(sql, known)

    assert return_unheld(pool, held) == {lost.job.id}

    assert read_job_row(sql, known) == before
    assert queue_lock(sql, "known") == ("pool", False)
    assert queue_lock(sql, "lost") == (None, True)


def test_a_known_job_without_a_queue_does_not_keep_any_queue(pool, client, sql):
    client.add_job("task")
    client.add_job("task", queue_name="lost")
    held, lost = pool.claim(2)

    assert return_unheld(pool, held) == {lost.job.id}

    assert queue_lock(sql, "lost") == (None, True)


def test_what_others_hold_is_left_alone(pool, client, sql):
    added = client.add_job("task", queue_name="queue")
    pool.with_id("other").claim_one()
    before = read_job_row(sql, added)

    assert return_unheld(pool) == set()

    assert read_job_row(sql, added) == before
    assert queue_lock(sql, "queue") == ("other", False)


def test_a_queue_without_its_job_is_freed_all_the_same(pool, client, sql):
    client.add_job("task", queue_name="queue")
    pool.claim_one()
    sql.run("delete from :schema._private_jobs")

    assert return_unheld(pool) == set()

    assert queue_lock(sql, "queue") == (None, True)


def test_where_nothing_is_lost_nothing_changes(pool, client, sql):
    waiting = client.add_job("task", queue_name="queue")
    before = read_job_row(sql, waiting)

    assert return_unheld(pool) == set()

    assert read_job_row(sql, waiting) == before
