"""What is left when a pool says that its jobs are done, and when it no longer held them."""

import pytest

from graphile_worker._sql.queries.claim import ClaimedJob, complete_claimed_jobs
from tests.support.pools import Pool, payloads, queue_lock, read_job_row
from tests.support.sql import Sql

# What the statements do: test_statements.py runs each of them on the oldest pair too.
pytestmark = pytest.mark.single_version


@pytest.fixture
def client(blocking_client):
    return blocking_client


def lose(sql: Sql, held: ClaimedJob, pool: Pool) -> ClaimedJob:
    """Let the locks of a job run out, and let another pool take it."""
    sql.run("update :schema._private_jobs set locked_at = null, locked_by = null")
    sql.run("update :schema._private_job_queues set locked_at = null, locked_by = null")
    taken = pool.claim_one()
    assert taken.job.id == held.job.id
    return taken


@pytest.mark.feature("F107", "F211")
def test_a_finished_job_is_deleted_and_its_queue_free(pool, client, sql):
    client.add_job("task", queue_name="queue")
    held = pool.claim_one()

    assert pool.finish(held) == {held.job.id}

    assert read_job_row(sql, held.job) == {}
    assert queue_lock(sql, "queue") == (None, True)


@pytest.mark.feature("F107")
def test_a_batch_is_finished_at_once_and_others_stay(pool, client, sql):
    for n in range(5):
        client.add_job("task", n, queue_name=f"q{n}" if n % 2 else None)
    *done, kept = pool.claim(4)

    assert pool.finish(*done) == {each.job.id for each in done}

    assert read_job_row(sql, kept.job)["locked_by"] == "pool"
    assert [queue_lock(sql, name)[0] for name in ("q1", "q3")] == [None, "pool"]
    assert payloads(pool.claim(10)) == [4]


@pytest.mark.feature("F107")
def test_only_jobs_that_the_pool_holds_are_deleted(pool, client, sql):
    free = client.add_job("task", "free", queue_name="free")
    held = pool.with_id("other").claim_one()
    waiting = client.add_job("task", "waiting")

    query = complete_claimed_jobs("pool", [free.id, waiting.id, 12345], [held.queue_id, 12345])

    assert pool.connection.run(query) == set()
    assert read_job_row(sql, free)["locked_by"] == "other"
    assert read_job_row(sql, waiting)["is_available"]
    assert queue_lock(sql, "free") == ("other", False)


def test_finishing_twice_is_finishing_once(pool, client, sql):
    client.add_job("task", 1, queue_name="queue")
    client.add_job("task", 2, queue_name="queue")
    held = pool.claim_one()
    pool.finish(held)
    other = pool.with_id("other").claim_one()

    assert pool.finish(held) == set()

    assert read_job_row(sql, other.job)["locked_by"] == "other"
    assert queue_lock(sql, "queue") == ("other", False)


@pytest.mark.feature("F211")
def test_a_zombies_finish_changes_nothing_and_the_holders_frees_the_queue(pool, client, sql):
    client.add_job("task", queue_name="queue")
    lost = pool.claim_one()
    holder = pool.with_id("holder")
    held = lose(sql, lost, holder)

    assert pool.finish(lost) == set()
    assert read_job_row(sql, held.job)["locked_by"] == "holder"
    assert queue_lock(sql, "queue") == ("holder", False)

    assert holder.finish(held) == {held.job.id}
    assert queue_lock(sql, "queue") == (None, True)


@pytest.mark.feature("F211")
def test_the_queue_is_unlocked_even_if_the_job_was_deleted(pool, client, sql):
    client.add_job("task", queue_name="queue")
    held = pool.claim_one()
    sql.run("delete from :schema._private_jobs")

    assert pool.finish(held) == set()

    assert queue_lock(sql, "queue") == (None, True)


@pytest.mark.feature("F75")
def test_finishing_a_job_superseded_by_its_key_leaves_the_new_one(pool, client, sql):
    client.add_job("task", "old", job_key="k")
    held = pool.claim_one()
    new = client.add_job("task", "new", job_key="k")

    assert pool.finish(held) == {held.job.id}

    assert (read_job_row(sql, held.job), read_job_row(sql, new)["key"]) == ({}, "k")


@pytest.mark.feature("F92")
@pytest.mark.parametrize("write", ["finish", "fail", "release"])
def test_a_write_that_is_repeated_does_not_free_the_queue_of_the_next_job(pool, client, sql, write):
    for n in range(3):
        client.add_job("task", n, queue_name="queue", max_attempts=1)
    first = pool.claim_one()
    getattr(pool, write)(first)
    sql.run("delete from :schema._private_jobs where id = $1", first.job.id)
    pool.claim_one()

    repeated = getattr(pool, write)(first, again=True)

    assert repeated == set()
    assert queue_lock(sql, "queue") == (pool.id, False)
    assert pool.claim() == []


def test_a_write_that_is_repeated_because_it_never_arrived_frees_the_queue(pool, client, sql):
    client.add_job("task", queue_name="queue")
    held = pool.claim_one()

    assert pool.finish(held, again=True) == {held.job.id}
    assert queue_lock(sql, "queue") == (None, True)


def test_nothing_to_finish_is_fine(pool):
    assert pool.finish() == set()
