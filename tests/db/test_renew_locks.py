"""Locks of jobs that take long are renewed, and a pool that lost one goes on under another id."""

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from graphile_worker import JobContext, RecoveryOptions, SyncJobContext
from graphile_worker._lease.heartbeat import HeartbeatTimings
from graphile_worker._lease.service import LeaseTimings
from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._sql.queries.workers import renew_locks, unlock_stale_jobs
from graphile_worker._worker.claimer import ClaimTimings
from graphile_worker._worker_config import WorkerTimings
from graphile_worker.events import (
    JobInterrupted,
    JobLockLost,
    JobStarted,
    JobSucceeded,
    LeaseExpired,
    LeaseLost,
)
from tests.support.pools import Pool, open_pool, queue_ids, queue_lock, read_job_row, update_job
from tests.support.recorder import Start, open_runners, wait_until
from tests.support.sql import Sql
from tests.support.tasks import endless

# Logic of the worker, which test_polling.py runs on the oldest pair too.
pytestmark = pytest.mark.single_version

HOUR = timedelta(hours=1)

# So long that a busy machine does not let it lapse, with heartbeats that need not be waited for.
OFTEN = RecoveryOptions(
    lease_duration=timedelta(seconds=30), heartbeat_interval=timedelta(milliseconds=50)
)

POOLS = "select id from :ext_schema.pools where swept_at is null"
UNLOCK = "update :schema._private_jobs set locked_by = null, locked_at = null where id = $1"
FRESH = "select now() - locked_at < interval '1 minute' from :schema._private_jobs where id = $1"
FRESH_QUEUES = """
select queue_name from :schema._private_job_queues
where now() - locked_at < interval '1 minute'
order by queue_name
"""


@pytest.fixture
def pool(database):
    # What waits for somebody else's lock does not pass for one that does not.
    with open_pool(database, statement_timeout="20s") as pool:
        yield pool


@pytest.fixture
def client(blocking_client):
    return blocking_client


def renew(pool: Pool, *held: ClaimedJob) -> set[int]:
    job_ids = [each.job.id for each in held]
    return pool.connection.run(renew_locks([pool.id], job_ids, queue_ids(held)))


def grow_old(sql: Sql, age: str = "1 hour") -> None:
    """All locks look as if they had been taken so long ago."""
    for table in ("jobs", "job_queues"):
        sql.run(
            f"update :schema._private_{table} set locked_at = now() - interval '{age}' "
            "where locked_by is not null"
        )


def fresh(sql: Sql, held: ClaimedJob) -> Any:
    return sql.value(FRESH, held.job.id)


# What is renewed


def test_the_locks_of_jobs_and_their_queues_are_as_if_taken_now(pool, client, sql):
    client.add_job("task", queue_name="queue")
    held = pool.claim_one()
    grow_old(sql)
    before = read_job_row(sql, held.job)

    assert renew(pool, held) == {held.job.id}

    after = read_job_row(sql, held.job)
    assert before.pop("locked_at") + HOUR - timedelta(minutes=1) < after.pop("locked_at")
    assert after == before
    assert sql.run(FRESH_QUEUES) == [("queue",)]


@pytest.mark.feature("F217")
def test_what_is_renewed_is_not_taken_by_the_four_hour_rule(pool, client, sql):
    client.add_job("task", queue_name="queue")
    held = pool.claim_one()
    grow_old(sql, "5 hours")

    renew(pool, held)

    assert pool.connection.run(unlock_stale_jobs()) == 0
    assert queue_lock(sql, "queue") == ("pool", False)


def test_only_the_jobs_and_queues_that_were_named_are_renewed(pool, client, sql):
    for n in range(4):
        client.add_job("task", queue_name=f"queue {n}" if n < 2 else None)
    held = pool.claim(4)
    grow_old(sql)

    named = [each for each in held if each.job.queue_name in ("queue 1", None)][:2]
    renew(pool, *named)

    assert [each for each in held if fresh(sql, each)] == named
    assert sql.run(FRESH_QUEUES) == [
        (each.job.queue_name,) for each in named if each.queue_id is not None
    ]


def test_a_pool_renews_under_all_the_ids_that_it_has_had(pool, client, sql):
    for _ in range(2):
        client.add_job("task")
    held = [pool.with_id("old").claim_one(), pool.with_id("new").claim_one()]
    grow_old(sql)

    job_ids = [each.job.id for each in held]
    assert pool.connection.run(renew_locks(["new", "old"], job_ids, [])) == set(job_ids)

    assert all(fresh(sql, each) for each in held)


# What is held


def test_renew_locks_returns_the_jobs_that_the_pool_still_holds(pool, client, sql):
    for _ in range(4):
        client.add_job("task")
    kept, unlocked, taken, gone = pool.claim(4)
    update_job(sql, unlocked.job, "locked_by = null, locked_at = null")
    update_job(sql, taken.job, "locked_by = 'other'")
    sql.run("delete from :schema._private_jobs where id = $1", gone.job.id)
    grow_old(sql)

    assert renew(pool, kept, unlocked, taken, gone) == {kept.job.id}

    assert fresh(sql, kept)
    assert not fresh(sql, taken)
    assert read_job_row(sql, unlocked.job)["locked_at"] is None


def test_a_queue_that_another_pool_holds_is_not_renewed(pool, client, sql):
    client.add_job("task", queue_name="queue")
    held = pool.claim_one()
    grow_old(sql)
    sql.run("update :schema._private_job_queues set locked_by = 'other'")

    assert renew(pool, held) == {held.job.id}

    assert sql.run(FRESH_QUEUES) == []


@pytest.mark.parametrize("table", ["jobs", "job_queues"])
def test_a_row_that_another_session_locks_is_skipped(pool, client, sql, table):
    client.add_job("task", queue_name="queue")
    client.add_job("task")
    held = pool.claim(2)
    queued = next(each for each in held if each.queue_id is not None)
    other = next(each for each in held if each.queue_id is None)
    grow_old(sql)
    busy = sql.another()
    busy.run("begin")
    row_id = queued.job.id if table == "jobs" else queued.queue_id
    busy.run(f"select from :schema._private_{table} where id = $1 for update", row_id)

    assert renew(pool, *held) == {queued.job.id, other.job.id}

    busy.close()
    assert fresh(sql, other)
    assert fresh(sql, queued) == (table == "job_queues")
    assert sql.run(FRESH_QUEUES) == ([("queue",)] if table == "jobs" else [])


# Superseded by its key


@pytest.mark.parametrize("how", ["replace", "remove"])
def test_a_superseded_job_is_renewed_and_stays_superseded(pool, client, sql, how):
    """That it changed after it was locked tells a superseded job from one at its last attempt."""
    client.add_job("task", queue_name="queue", job_key="k")
    held = pool.claim_one()
    grow_old(sql)
    if how == "remove":
        client.remove_job("k")
    else:
        client.add_job("task", job_key="k")

    assert renew(pool, held) == {held.job.id}

    assert fresh(sql, held)
    assert sql.run(FRESH_QUEUES) == [("queue",)]
    found = read_job_row(sql, held.job)
    assert found["updated_at"] > found["locked_at"]
    assert found["attempts"] == found["max_attempts"]


@pytest.mark.parametrize("key", [None, "k"])
def test_a_job_at_its_last_attempt_is_renewed(pool, client, sql, key):
    client.add_job("task", job_key=key, max_attempts=1)
    held = pool.claim_one()
    # Before it was taken, not since.
    update_job(sql, held.job, "updated_at = now() - interval '2 hours'")
    grow_old(sql)

    renew(pool, held)

    assert fresh(sql, held)


def test_a_job_that_a_deduplicated_add_has_touched_is_renewed(pool, client, sql):
    client.add_job("task", job_key="k", max_attempts=1)
    held = pool.claim_one()
    grow_old(sql)
    client.add_job("task", job_key="k", job_key_mode="unsafe_dedupe")
    assert read_job_row(sql, held.job)["updated_at"] > read_job_row(sql, held.job)["locked_at"]

    renew(pool, held)

    assert fresh(sql, held)


# A worker


def make_timings(**heartbeat: Any) -> WorkerTimings:
    return WorkerTimings(
        lease=LeaseTimings(
            heartbeat=HeartbeatTimings(**{"lock_renewal_interval_seconds": 0.1, **heartbeat})
        ),
        # An id is kept as long as a fetch may lock something under it; here the answers do come.
        claim=ClaimTimings(unconfirmed_claim_seconds=0.0, orphan_check_interval_seconds=0.0),
    )


# A claim shows that a lock was lost, not the renewal.
NO_RENEWAL = make_timings(lock_renewal_interval_seconds=3600.0)


@pytest.fixture
async def start(database, recorder) -> AsyncIterator[Start]:
    async with open_runners(database, recorder.hooks, make_timings()) as start:
        yield start


async def test_a_worker_renews_the_locks_of_jobs_that_run_long(start, recorder, sql):
    runner = await start({"endless": endless}, concurrency=2, recovery=OFTEN)
    jobs = [await runner.add_job("endless", queue_name=name) for name in ("queue", None)]
    await recorder.wait_for(JobStarted, count=2)

    await asyncio.to_thread(grow_old, sql)

    await wait_until(lambda: all(sql.value(FRESH, job.id) for job in jobs))
    await wait_until(lambda: sql.run(FRESH_QUEUES) == [("queue",)])
    assert recorder.events_of(JobLockLost) == []


async def test_a_worker_without_recovery_renews_locks_too(start, recorder, sql):
    """Nobody takes them before four hours, but then somebody would."""
    timings = make_timings(max_interval=timedelta(milliseconds=50))
    runner = await start({"endless": endless}, recovery=None, timings=timings)
    job = await runner.add_job("endless")
    await recorder.wait_for(JobStarted)

    await asyncio.to_thread(grow_old, sql, "3 hours 59 minutes")

    await wait_until(lambda: sql.value(FRESH, job.id))


async def test_a_forced_unlock_is_noticed_and_the_pool_goes_on_under_a_new_id(start, recorder, sql):
    ran: list[str] = []

    async def linger(payload: Any, ctx: JobContext) -> None:
        if payload == "first":
            await asyncio.Event().wait()
        ran.append(ctx.pool_id)

    runner = await start({"linger": linger}, recovery=OFTEN)
    job = await runner.add_job("linger", "first")
    (event,) = await recorder.wait_for(JobStarted)
    old = event.pool_id

    with sql.connection.transaction():
        sql.run("select :schema.force_unlock_workers($1::text[])", [old])
        update_job(sql, job, "locked_by = 'somebody else', locked_at = now()")
    await recorder.wait_for(JobLockLost, job_id=job.id)

    await wait_until(lambda: len(sql.run(POOLS)) == 1 and sql.value(POOLS) != old)
    await runner.add_job("linger", "second")
    await recorder.wait_for(JobSucceeded)
    assert ran == [sql.value(POOLS)]
    assert old not in ran
    # Nobody swept it, and its lease never lapsed.
    assert recorder.events_of(LeaseLost) == []
    assert recorder.events_of(LeaseExpired) == []


async def test_of_two_jobs_the_one_that_was_not_unlocked_goes_on_under_the_old_id(
    start, recorder, sql
):
    done = asyncio.Event()

    async def linger(payload: object) -> None:
        await done.wait()

    runner = await start({"linger": linger}, concurrency=2, recovery=OFTEN)
    kept, lost = [await runner.add_job("linger") for _ in range(2)]
    (event, _) = await recorder.wait_for(JobStarted, count=2)
    old = event.pool_id

    await asyncio.to_thread(update_job, sql, lost, "locked_by = 'somebody else'")
    await recorder.wait_for(JobLockLost, job_id=lost.id)
    # Both ids are heard of, as long as a job is held under the old one.
    await wait_until(lambda: len(sql.run(POOLS)) == 2)
    done.set()
    (event,) = await recorder.wait_for(JobSucceeded)

    assert (event.job.id, event.pool_id) == (kept.id, old)
    await wait_until(lambda: len(sql.run(POOLS)) == 1)
    assert sql.run(POOLS) != [(old,)]
    assert read_job_row(sql, lost)["locked_by"] == "somebody else"


async def test_a_plain_function_whose_job_was_unlocked_is_asked_to_give_up(start, recorder, sql):
    asked = threading.Event()

    def linger(payload: object, ctx: SyncJobContext) -> None:
        ctx.wait_cancelled()
        asked.set()

    runner = await start({"linger": linger}, recovery=OFTEN)
    job = await runner.add_job("linger")
    await recorder.wait_for(JobStarted)

    await asyncio.to_thread(update_job, sql, job, "locked_by = 'somebody else'")

    await recorder.wait_for(JobLockLost, job_id=job.id)
    assert asked.is_set()
    assert read_job_row(sql, job)["locked_by"] == "somebody else"


# Claimed again


async def test_a_job_that_is_claimed_again_ends_its_older_run_and_drops_its_result(
    start, recorder, sql
):
    runs: list[asyncio.Event] = []
    ended: list[str] = []

    async def linger(payload: object) -> None:
        done = asyncio.Event()
        runs.append(done)
        try:
            await done.wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        ended.append("done")

    runner = await start(
        {"linger": linger},
        concurrency=2,
        recovery=OFTEN,
        poll_interval=timedelta(milliseconds=50),
        timings=NO_RENEWAL,
    )
    job = await runner.add_job("linger", queue_name="queue")
    await recorder.wait_for(JobStarted)
    await asyncio.to_thread(
        sql.run, "update :schema._private_job_queues set locked_by = null, locked_at = null"
    )
    await asyncio.to_thread(sql.run, UNLOCK, job.id)
    await recorder.wait_for(JobLockLost, job_id=job.id)
    await wait_until(lambda: len(runs) == 2)

    assert ended == ["cancelled"]
    assert read_job_row(sql, job)["locked_by"] is not None
    assert read_job_row(sql, job)["attempts"] == 2
    runs[1].set()
    (event,) = await recorder.wait_for(JobSucceeded)
    assert (event.job.attempts, ended) == (2, ["cancelled", "done"])
    assert recorder.events_of(JobInterrupted) == []
    assert read_job_row(sql, job) == {}
    assert queue_lock(sql, "queue") == (None, True)


async def test_a_plain_function_whose_job_is_claimed_again_writes_nothing(start, recorder, sql):
    runs: list[threading.Event] = []

    def linger(payload: object) -> None:
        done = threading.Event()
        runs.append(done)
        done.wait(20)

    runner = await start(
        {"linger": linger},
        concurrency=2,
        recovery=OFTEN,
        poll_interval=timedelta(milliseconds=50),
        timings=NO_RENEWAL,
    )
    job = await runner.add_job("linger")
    # The thread of the first run may start late, and must not be taken for the second.
    await wait_until(lambda: len(runs) == 1)
    await asyncio.to_thread(sql.run, UNLOCK, job.id)
    await wait_until(lambda: len(runs) == 2)
    runs[0].set()
    await recorder.wait_for(JobLockLost)

    assert read_job_row(sql, job)["locked_by"] is not None
    runs[1].set()
    (event,) = await recorder.wait_for(JobSucceeded)
    assert event.job.attempts == 2
    assert read_job_row(sql, job) == {}
