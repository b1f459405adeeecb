"""A job that is handed back is as before it was taken, unless somebody ended it meanwhile."""

import asyncio
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from graphile_worker._sql.queries.claim import (
    ReleasedJob,
    find_blocked_jobs,
    release_claimed_jobs,
)
from tests.support.fetch_locks import commit_when_blocking
from tests.support.pools import (
    in_one_transaction,
    open_session,
    payloads,
    queue_ids,
    queue_lock,
    read_job_row,
    update_job,
)

# What the statements do: test_statements.py runs each of them on the oldest pair too.
pytestmark = pytest.mark.single_version

MOMENT = datetime(2035, 6, 7, 8, 9, 10, 123456, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def client(blocking_client):
    return blocking_client


def test_only_own_jobs_whose_rows_another_session_has_locked_are_blocked(pool, client, sql):
    for key in ("a", "b", None):
        client.add_job("task", job_key=key)
    ids = [pool.claim_one().job.id for _ in range(3)]

    def find_blocked(pool_id: str, job_ids: list[int]) -> set[int]:
        blocked: set[int] = pool.connection.run(find_blocked_jobs(pool_id, job_ids))
        return blocked

    with closing(sql.another()) as other:
        other.run("begin")
        other.run("select :schema.remove_job('b')")
        assert find_blocked(pool.id, ids) == {ids[1]}
        assert find_blocked(pool.id, ids[:1]) == set()
        assert find_blocked("another", ids) == set()
        other.run("rollback")
    assert find_blocked(pool.id, ids) == set()


# As it was


@pytest.mark.feature("F215")
def test_a_returned_job_is_as_it_was_before_it_was_taken(pool, client, sql):
    added = client.add_job("task", {"a": 1}, queue_name="queue", job_key="k", flags=["x"])
    update_job(sql, added, "attempts = 3, last_error = 'before', run_at = now() - interval '1 h'")
    before = read_job_row(sql, added)
    held = pool.claim_one()

    assert pool.release(held) == {held.job.id}

    assert read_job_row(sql, added) == before
    assert queue_lock(sql, "queue") == (None, True)


@pytest.mark.feature("F215")
def test_a_returned_job_can_be_taken_at_once(pool, client):
    client.add_job("task")

    for _ in range(3):
        held = pool.claim_one()
        assert held.job.attempts == 1
        pool.release(held)


@pytest.mark.feature("F215")
def test_attempts_do_not_fall_below_zero(pool, client, sql):
    client.add_job("task")
    held = pool.claim_one()
    update_job(sql, held.job, "attempts = 0")

    pool.release(held)

    assert read_job_row(sql, held.job)["attempts"] == 0


@pytest.mark.feature("F215")
@pytest.mark.parametrize("key", [None, "k"])
def test_a_job_at_its_last_attempt_gets_it_back(pool, client, sql, key):
    update_job(sql, client.add_job("task", max_attempts=3, job_key=key), "attempts = 2")
    held = pool.claim_one()

    pool.release(held)

    assert (
        read_job_row(sql, held.job)["attempts"],
        read_job_row(sql, held.job)["is_available"],
    ) == (2, True)


@pytest.mark.feature("F216")
def test_a_job_can_be_returned_for_a_given_moment(pool, client, sql):
    client.add_job("task")
    held = pool.claim_one()

    pool.release(held, when=MOMENT.astimezone())

    assert (read_job_row(sql, held.job)["run_at"], read_job_row(sql, held.job)["attempts"]) == (
        MOMENT,
        0,
    )


@pytest.mark.feature("F216")
def test_a_job_can_be_returned_for_later_by_the_databases_clock(pool, client, sql):
    client.add_job("task")

    with in_one_transaction(pool) as still:
        held = still.claim_one()
        still.release(held, when=HOUR)

    assert read_job_row(sql, held.job)["run_at"] - held.job.locked_at == HOUR


# Ended meanwhile


CLAIMS = pytest.mark.parametrize("attempts", [0, 1, 2], ids=["first", "middle", "last"])


@pytest.mark.feature("F75")
@CLAIMS
@pytest.mark.parametrize("mode", ["replace", "preserve_run_at"])
def test_a_job_that_was_replaced_by_its_key_is_gone_when_it_is_released(
    pool, client, sql, attempts, mode
):
    added = client.add_job("task", "old", queue_name="queue", job_key="k", max_attempts=3)
    update_job(sql, added, f"attempts = {attempts}")
    held = pool.claim_one()
    client.add_job("task", "new", job_key="k", job_key_mode=mode)

    assert pool.release(held) == {held.job.id}

    assert read_job_row(sql, held.job) == {}
    assert queue_lock(sql, "queue") == (None, True)
    assert payloads(pool.claim(10)) == ["new"]


@CLAIMS
@pytest.mark.feature("F84")
def test_a_job_that_was_removed_by_its_key_is_gone_when_it_is_released(pool, client, sql, attempts):
    added = client.add_job("task", job_key="k", max_attempts=3)
    update_job(sql, added, f"attempts = {attempts}")
    held = pool.claim_one()
    client.remove_job("k")

    assert pool.release(held) == {held.job.id}

    assert read_job_row(sql, held.job) == {}
    assert pool.release(held, again=True) == set()


async def test_a_job_that_is_removed_while_it_is_released_is_gone(database, pool, client, sql):
    client.add_job("task", queue_name="queue", job_key="k")
    held = pool.claim_one()
    with closing(sql.another()) as remover:
        remover.run("begin")
        remover.run("select :schema.remove_job('k')")
        with open_session(database) as connection:
            releaser = pool.with_id(pool.id, connection)
            releasing = asyncio.create_task(asyncio.to_thread(releaser.release, held))
            await commit_when_blocking(remover, sql)
            assert await releasing == {held.job.id}

    assert read_job_row(sql, held.job) == {}
    assert queue_lock(sql, "queue") == (None, True)


def test_a_job_permanently_failed_by_hand_stays_dead(pool, client, sql):
    client.add_job("task", max_attempts=3)
    held = pool.claim_one()
    # Administrators may touch a job whose lock is older than four hours.
    update_job(sql, held.job, "locked_at = now() - interval '5 hours'")
    client.permanently_fail_jobs([held.job.id], "by hand")

    pool.release(held)

    job = read_job_row(sql, held.job)
    assert (job["attempts"], job["last_error"], job["is_available"]) == (3, "by hand", False)


def test_a_deduplicated_add_does_not_end_the_job(pool, client, sql):
    client.add_job("task", job_key="k")
    held = pool.claim_one()
    client.add_job("task", job_key="k", job_key_mode="unsafe_dedupe")

    pool.release(held)

    assert (
        read_job_row(sql, held.job)["attempts"],
        read_job_row(sql, held.job)["is_available"],
    ) == (0, True)


@pytest.mark.parametrize("attempts", [0, 2, 5])
def test_attempts_changed_by_hand_do_not_end_the_job(pool, client, sql, attempts):
    client.add_job("task", max_attempts=9)
    held = pool.claim_one()
    update_job(sql, held.job, f"attempts = {attempts}")

    pool.release(held)

    assert read_job_row(sql, held.job)["is_available"]


# Only what the pool holds


def test_each_of_a_batch_is_returned_in_its_own_way(pool, client, sql):
    for n in range(5):
        client.add_job("task", n, queue_name=f"q{n}" if n % 2 else None, job_key=f"k{n}")
    plain, moment, superseded, lost, kept = pool.claim(5)
    client.add_job("task", "new", job_key="k2", run_at=HOUR)
    update_job(sql, lost.job, "locked_by = 'other'")
    returns = [
        ReleasedJob(plain.job),
        ReleasedJob(moment.job, when=MOMENT),
        ReleasedJob(superseded.job),
        ReleasedJob(lost.job),
    ]

    ids = pool.connection.run(
        release_claimed_jobs("pool", returns, queue_ids((plain, moment, superseded, lost)))
    )

    assert ids == {plain.job.id, moment.job.id, superseded.job.id}
    assert read_job_row(sql, moment.job)["run_at"] == MOMENT
    assert [read_job_row(sql, each.job)["attempts"] for each in (plain, moment)] == [0, 0]
    assert read_job_row(sql, superseded.job) == {}
    assert [read_job_row(sql, each.job)["locked_by"] for each in (lost, kept)] == ["other", "pool"]


def test_a_zombies_return_changes_nothing(pool, client, sql):
    client.add_job("task", queue_name="queue")
    lost = pool.claim_one()
    client.force_unlock_workers(["pool"])
    held = pool.with_id("holder").claim_one()
    before = read_job_row(sql, held.job)

    assert pool.release(lost, when=MOMENT) == set()

    assert read_job_row(sql, held.job) == before
    assert queue_lock(sql, "queue") == ("holder", False)


def test_returning_twice_is_returning_once(pool, client, sql):
    client.add_job("task", queue_name="queue")
    held = pool.claim_one()
    pool.release(held)
    pool.with_id("other").claim_one()
    before = read_job_row(sql, held.job)

    assert pool.release(held) == set()

    assert read_job_row(sql, held.job) == before
    assert queue_lock(sql, "queue") == ("other", False)


def test_the_queue_is_unlocked_even_if_the_job_was_deleted(pool, client, sql):
    client.add_job("task", queue_name="queue")
    held = pool.claim_one()
    sql.run("delete from :schema._private_jobs")

    assert pool.release(held) == set()

    assert queue_lock(sql, "queue") == (None, True)
