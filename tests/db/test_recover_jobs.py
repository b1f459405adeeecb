"""What becomes of the jobs of a pool that fell silent, and of no others."""

import asyncio
import itertools
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo
from psycopg.errors import InsufficientPrivilege

from graphile_worker import JobContext, RecoveryOptions
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._sql.queries.workers import (
    RecoveredJob,
    begin_rescue,
    delete_orphaned_recoveries,
    get_rescue_lock_holders,
    heartbeat,
    record_start,
    recover_jobs,
    register_pool,
    renew_locks,
    try_lock_rescue,
    unregister_pools,
)
from graphile_worker.events import (
    GetJobEmpty,
    JobInterrupted,
    JobRecovered,
    JobStarted,
    JobSucceeded,
    ListenStarted,
    PoolFatalError,
    RecoveryFailed,
)
from tests.support.fetch_locks import wait_for_lock
from tests.support.pools import Pool, open_session, payloads, queue_lock, read_job_row, update_job
from tests.support.recorder import wait_until
from tests.support.sql import Sql
from tests.support.tasks import nothing

# What the statements do: test_statements.py runs each of them on the oldest pair too.
pytestmark = pytest.mark.single_version

HOUR = timedelta(hours=1)
NOW = timedelta(0)
NUMBERS = itertools.count(1)
INTERRUPTED = "Job recovered after worker interruption: "
LIVING = "select id from :ext_schema.pools where swept_at is null order by id"

# So long that a busy machine does not let it lapse, with sweeps that need not be waited for.
OFTEN: dict[str, Any] = {
    "lease_duration": timedelta(seconds=30),
    "heartbeat_interval": timedelta(seconds=1),
    "rescue_interval": timedelta(milliseconds=50),
}


@pytest.fixture
def client(blocking_client):
    return blocking_client


def die(pool: Pool, sql: Sql, *started: ClaimedJob, lease: str = "50 ms") -> None:
    """The pool says which of its jobs have started, and is not heard of again."""
    pool.connection.run(register_pool(pool.id, HOUR, {}))
    pool.connection.run(heartbeat([pool.id], [each.job.id for each in started]))
    sql.run(
        "update :ext_schema.pools set seen_at = now() - interval '1 hour', "
        f"lease = '{lease}' where id = $1",
        pool.id,
    )


def recover(
    pool: Pool, *pool_ids: str, delay: timedelta = NOW, most: int = 3
) -> list[RecoveredJob]:
    return pool.connection.run(recover_jobs(list(pool_ids or [pool.id]), delay, most))


def lose(pool: Pool, sql: Sql, *, started: bool = True, **more: Any) -> RecoveredJob:
    """A pool takes the job that is there, perhaps begins to run it, and dies."""
    # Nobody goes on under the id of a pool that was swept.
    dead = pool.with_id(f"dead {next(NUMBERS)}")
    held = dead.claim_one()
    die(dead, sql, *[held] * started)
    (recovery,) = recover(dead, **more)
    return recovery


def counted(sql: Sql) -> Any:
    """How often the one job of the test was running when its pool died."""
    return sql.value("select count from :ext_schema.recoveries")


# Attempts


@pytest.mark.feature("F223")
def test_a_job_that_had_started_keeps_its_attempt_spent(pool, client, sql):
    job = client.add_job("task")
    held = pool.claim_one()
    die(pool, sql, held)

    (recovery,) = recover(pool)

    found = read_job_row(sql, job)
    assert (found["attempts"], found["is_available"]) == (1, True)
    assert (recovery.was_started, recovery.crash_count, recovery.is_quarantined) == (True, 1, False)


@pytest.mark.feature("F223")
@pytest.mark.parametrize(("before", "most", "after"), [(0, 1, 0), (2, 3, 2), (1, 3, 2)])
def test_recovery_alone_never_ends_a_job_that_had_started(pool, client, sql, before, most, after):
    job = client.add_job("task", max_attempts=most)
    update_job(sql, job, f"attempts = {before}")
    lose(pool, sql)

    found = read_job_row(sql, job)
    assert (found["attempts"], found["is_available"]) == (after, True)
    assert pool.claim_one().job.attempts == after + 1


@pytest.mark.feature("F223")
@pytest.mark.parametrize("most", [1, 25], ids=["its last attempt", "one of many"])
def test_a_job_that_had_not_started_gets_its_attempt_back_and_counts_no_recovery(
    pool, client, sql, most
):
    job = client.add_job("task", max_attempts=most)
    pool.claim_one()
    die(pool, sql)

    (recovery,) = recover(pool)

    assert (read_job_row(sql, job)["attempts"], read_job_row(sql, job)["is_available"]) == (0, True)
    assert (recovery.was_started, recovery.crash_count, recovery.is_quarantined) == (
        False,
        0,
        False,
    )
    assert counted(sql) == 0


@pytest.mark.parametrize("started", [True, False])
def test_attempts_do_not_fall_below_zero(pool, client, sql, started):
    job = client.add_job("task")
    held = pool.claim_one()
    update_job(sql, job, "attempts = 0")
    die(pool, sql, *[held] * started)

    recover(pool)

    assert read_job_row(sql, job)["attempts"] == 0


@pytest.mark.feature("F223")
def test_jobs_that_had_not_started_are_distinguished_from_the_one_that_had(pool, client, sql):
    for n in range(5):
        client.add_job("task", n)
    held = pool.claim(5)
    die(pool, sql, held[2])

    found = recover(pool)

    assert [each.was_started for each in found] == [False, False, True, False, False]
    assert [each.job.attempts for each in found] == [0, 0, 1, 0, 0]
    assert [each.crash_count for each in found] == [0, 0, 1, 0, 0]


# What had started


@pytest.mark.feature("F223")
@pytest.mark.parametrize(
    ("by", "attempt", "started"),
    [("pool", 1, True), ("pool", 2, False), ("pool", 0, False), ("other", 1, False)],
)
def test_a_noted_start_counts_for_the_same_pool_and_attempt_only(
    pool, client, sql, by, attempt, started
):
    """One that was recovered before is noted as it starts, as the next heartbeat may not come."""
    job = client.add_job("task", max_attempts=3)
    pool.claim_one()
    sql.run(
        "insert into :ext_schema.recoveries (job_id, count, started_by, started_attempt) "
        "values ($1, 0, $2, $3)",
        job.id,
        by,
        attempt,
    )
    die(pool, sql)

    (recovery,) = recover(pool)

    assert (recovery.was_started, recovery.crash_count) == (started, int(started))
    assert read_job_row(sql, job)["attempts"] == int(started)


def test_a_start_is_noted_beside_the_count(pool, client, sql):
    job = client.add_job("task")
    lose(pool, sql)
    pool.claim_one()

    assert pool.connection.run(record_start(job.id, pool.id, 2)) == 1

    found = sql.run("select count, started_by, started_attempt from :ext_schema.recoveries")
    assert found == [(1, "pool", 2)]


def test_a_start_of_a_job_that_was_never_recovered_here_is_noted_too(pool, client, sql):
    """A Rust worker may have recovered it, who keeps no count."""
    job = client.add_job("task")
    pool.claim_one()

    assert pool.connection.run(record_start(job.id, "pool", 1)) == 0

    found = sql.run("select job_id, count, started_by from :ext_schema.recoveries")
    assert found == [(job.id, 0, "pool")]


@pytest.mark.parametrize(("by", "attempt"), [("other", 1), ("pool", 2)])
def test_only_who_holds_a_job_can_note_that_it_starts(pool, client, sql, by, attempt):
    job = client.add_job("task")
    pool.claim_one()

    assert pool.connection.run(record_start(job.id, by, attempt)) is None

    assert sql.value("select count(*) from :ext_schema.recoveries") == 0


@pytest.mark.parametrize(("limit", "answer"), [(3, 2), (2, None), (1, None)])
def test_a_start_is_not_noted_if_there_were_too_many_recoveries_for_it(
    pool, client, sql, limit, answer
):
    job = client.add_job("task")
    for _ in range(2):
        lose(pool, sql)
    pool.claim_one()

    found = pool.connection.run(record_start(job.id, pool.id, 3, max_crashes=limit))

    assert found == answer
    started_by = "pool" if answer else None
    assert sql.run("select started_by from :ext_schema.recoveries") == [(started_by,)]


def test_a_recovery_forgets_who_had_started_the_job(pool, client, sql):
    job = client.add_job("task")
    pool.claim_one()
    pool.connection.run(record_start(job.id, pool.id, 1))
    die(pool, sql)
    assert recover(pool)[0].was_started

    found = sql.run("select count, started_by, started_attempt from :ext_schema.recoveries")

    assert found == [(1, None, None)]


# Too often


@pytest.mark.feature("F223")
def test_a_job_that_was_running_at_three_crashes_is_quarantined_with_a_message(pool, client, sql):
    job = client.add_job("task", max_attempts=25)

    found = [lose(pool, sql) for _ in range(3)]

    assert [each.crash_count for each in found] == [1, 2, 3]
    assert [each.is_quarantined for each in found] == [False, False, True]
    after = read_job_row(sql, job)
    assert (after["attempts"], after["locked_by"], after["is_available"]) == (25, None, False)
    assert after["last_error"] == (
        INTERRUPTED
        + f"quarantined, as it was running at 3 recoveries, last in pool {found[2].pool_id}"
    )
    assert found[2].job.last_error == after["last_error"]


def test_a_quarantined_job_that_is_retried_counts_from_zero(pool, client, sql):
    job = client.add_job("task")
    assert lose(pool, sql, most=1).is_quarantined
    assert counted(sql) == 0

    client.reschedule_jobs([job.id], attempts=0)

    assert [lose(pool, sql).crash_count for _ in range(3)] == [1, 2, 3]


def test_a_recovery_that_does_not_count_neither_adds_to_the_others_nor_parks(pool, client, sql):
    client.add_job("task")
    for _ in range(2):
        lose(pool, sql)

    found = [lose(pool, sql, started=False) for _ in range(5)]

    assert {(each.crash_count, each.is_quarantined) for each in found} == {(2, False)}
    assert lose(pool, sql).is_quarantined


def test_jobs_of_one_pool_are_parked_one_by_one(pool, client, sql):
    poison = client.add_job("task", "poison")
    for _ in range(2):
        lose(pool, sql)
    for _ in range(3):
        client.add_job("task", "neighbour")
    held = pool.claim(4)
    die(pool, sql, *held)

    quarantined = [each.job.id for each in recover(pool) if each.is_quarantined]

    assert quarantined == [poison.id]
    assert payloads(pool.claim(10)) == ["neighbour"] * 3


# All else


@pytest.mark.feature("F224")
def test_the_job_is_free_and_otherwise_as_it_was(pool, client, sql):
    job = client.add_job("task", {"a": 1}, queue_name="queue", job_key="k", priority=3, flags=["x"])
    before = read_job_row(sql, job)
    dead = lose(pool, sql).pool_id

    changed = {"attempts": 1, "last_error": INTERRUPTED + f"it was held by pool {dead}"}
    assert read_job_row(sql, job) == {**before, **changed}
    assert before["is_available"]


@pytest.mark.feature("F224")
def test_all_named_queues_of_the_pool_are_free(pool, client, sql):
    client.add_job("task", queue_name="held")
    held = pool.claim_one()
    # One whose job is gone, and those that others hold.
    for name, holder in (("left", "pool"), ("of another", "other"), ("free", None)):
        sql.run(
            "insert into :schema._private_job_queues (queue_name, locked_by, locked_at) "
            "values ($1, $2::text, case when $2::text is not null then now() end)",
            name,
            holder,
        )
    die(pool, sql, held)

    recover(pool)

    free = {name: queue_lock(sql, name) for name in ("held", "left", "of another", "free")}
    assert free == {
        "held": (None, True),
        "left": (None, True),
        "of another": ("other", False),
        "free": (None, True),
    }


def test_recovered_jobs_are_returned_in_their_new_state(pool, client, sql):
    one = client.add_job("task", "one", queue_name="queue")
    two = client.add_job("task", "two")
    die(pool, sql, *pool.claim(2))

    found = recover(pool)

    assert [each.job for each in found] == [client.get_job(one.id), client.get_job(two.id)]
    assert [each.job.queue_name for each in found] == ["queue", None]
    assert [each.pool_id for each in found] == ["pool", "pool"]


@pytest.mark.parametrize(
    ("started", "words"),
    [
        (True, "it was held by pool pool"),
        (False, "it was fetched, not started, by pool pool"),
    ],
)
def test_the_error_of_a_recovered_job_describes_the_crash(pool, client, sql, started, words):
    job = client.add_job("task")
    held = pool.claim_one()
    die(pool, sql, *[held] * started)

    recover(pool)

    assert read_job_row(sql, job)["last_error"] == INTERRUPTED + words


# When


@pytest.mark.parametrize("started", [True, False])
def test_without_a_delay_the_job_keeps_its_time_and_its_place(pool, client, sql, started):
    left = client.add_job("task", "left", run_at=datetime.now(UTC) - HOUR)
    before = read_job_row(sql, left)["run_at"]
    client.add_job("task", "waiting")
    held = pool.claim_one()
    die(pool, sql, *[held] * started)

    recover(pool)

    assert read_job_row(sql, left)["run_at"] == before
    assert payloads(pool.claim() + pool.claim()) == ["left", "waiting"]


@pytest.mark.feature("F225")
def test_with_a_delay_the_recovered_job_waits(pool, client, sql):
    job = client.add_job("task", run_at=datetime.now(UTC) - HOUR)
    lose(pool, sql, delay=HOUR)

    wait = sql.value("select run_at - now() from :schema._private_jobs where id = $1", job.id)
    assert HOUR - timedelta(minutes=1) < wait <= HOUR
    assert pool.claim() == []


@pytest.mark.feature("F225")
def test_a_delay_does_not_bring_a_job_forward(pool, client, sql):
    job = client.add_job("task")
    die(pool, sql, pool.claim_one())
    update_job(sql, job, "run_at = now() + interval '2 hours'")
    before = read_job_row(sql, job)["run_at"]

    recover(pool, delay=HOUR)

    assert read_job_row(sql, job)["run_at"] == before


# Superseded by its key while it was held


@pytest.mark.parametrize("started", [True, False], ids=["started", "not started"])
@pytest.mark.parametrize("attempts", [0, 2], ids=["first", "last"])
@pytest.mark.parametrize("how", ["replace", "preserve_run_at", "remove"])
def test_a_superseded_job_has_failed_if_it_had_started_and_is_gone_if_not(
    pool, client, sql, how, attempts, started
):
    job = client.add_job("task", "old", queue_name="queue", job_key="k", max_attempts=3)
    update_job(sql, job, f"attempts = {attempts}")
    held = pool.claim_one()
    if how == "remove":
        client.remove_job("k")
    else:
        client.add_job("task", "new", job_key="k", job_key_mode=how)
    die(pool, sql, *[held] * started)

    assert [each.job.id for each in recover(pool)] == [job.id] * started

    found = read_job_row(sql, job)
    if started:
        assert (found["attempts"], found["locked_by"], found["is_available"]) == (3, None, False)
        assert found["last_error"].startswith(INTERRUPTED)
    else:
        assert found == {}
        assert sql.run("select from :ext_schema.recoveries") == []
    assert queue_lock(sql, "queue") == (None, True)
    assert payloads(pool.claim(10)) == ([] if how == "remove" else ["new"])


@pytest.mark.parametrize("key", [None, "k"])
def test_a_job_at_its_last_attempt_is_not_taken_for_a_superseded_one(pool, client, sql, key):
    job = client.add_job("task", max_attempts=2, job_key=key)
    pool.fail(pool.claim_one())
    update_job(sql, job, "run_at = now()")

    lose(pool, sql)

    assert (read_job_row(sql, job)["attempts"], read_job_row(sql, job)["is_available"]) == (1, True)


def test_a_job_that_was_changed_before_it_was_taken_is_not_taken_for_a_superseded_one(
    pool, client, sql
):
    job = client.add_job("task", max_attempts=1)
    client.reschedule_jobs([job.id], priority=3)
    found = read_job_row(sql, job)
    assert found["updated_at"] > found["created_at"]

    lose(pool, sql)

    assert (read_job_row(sql, job)["attempts"], read_job_row(sql, job)["is_available"]) == (0, True)


def test_a_deduplicated_add_does_not_end_the_job(pool, client, sql):
    job = client.add_job("task", job_key="k", max_attempts=1)
    held = pool.claim_one()
    client.add_job("task", job_key="k", job_key_mode="unsafe_dedupe")
    die(pool, sql, held)

    recover(pool)

    assert (read_job_row(sql, job)["attempts"], read_job_row(sql, job)["is_available"]) == (0, True)


# Only from the dead


def test_a_pool_that_was_seen_in_time_keeps_what_it_has(pool, client, sql):
    job = client.add_job("task", queue_name="queue")
    pool.connection.run(register_pool(pool.id, HOUR, {}))
    pool.claim_one()
    before = read_job_row(sql, job)

    assert recover(pool) == []

    assert read_job_row(sql, job) == before
    assert queue_lock(sql, "queue") == ("pool", False)
    assert sql.run(LIVING) == [("pool",)]


@pytest.mark.feature("F222")
def test_locks_of_unregistered_workers_are_not_recovered(pool, client, sql):
    job = client.add_job("task", queue_name="queue")
    node = pool.with_id("pool-0123456789abcdef01")
    node.claim_one()
    update_job(sql, job, "locked_at = now() - interval '3 hours 50 minutes'")
    before = read_job_row(sql, job)

    assert recover(pool, node.id) == []

    assert read_job_row(sql, job) == before
    assert queue_lock(sql, "queue") == (node.id, False)


def test_only_the_pools_that_were_named_are_swept(pool, client, sql):
    for name in ("a", "b", "c"):
        client.add_job("task", name)
        other = pool.with_id(name)
        die(other, sql, other.claim_one())

    found = recover(pool, "a", "c", "unknown")

    assert {(each.pool_id, each.job.payload) for each in found} == {("a", "a"), ("c", "c")}
    assert sql.run(LIVING) == [("b",)]


@pytest.mark.feature("F221")
def test_a_second_sweep_changes_nothing(pool, client, sql):
    job = client.add_job("task", queue_name="queue")
    die(pool, sql, pool.claim_one())
    recover(pool)
    before = read_job_row(sql, job)

    assert recover(pool) == []

    assert read_job_row(sql, job) == before
    assert counted(sql) == 1
    assert sql.run(LIVING) == []


def test_a_swept_pool_is_marked_with_when_that_was_first(pool, client, sql):
    die(pool, sql)
    recover(pool)
    before = sql.value("select swept_at from :ext_schema.pools")

    assert recover(pool) == []

    assert sql.value("select swept_at from :ext_schema.pools") == before
    assert before is not None


def test_what_a_pool_locks_after_it_was_swept_is_taken_the_next_time(pool, client, sql):
    """Its last fetch may have reached the server late."""
    die(pool, sql)
    recover(pool)
    job = client.add_job("task", queue_name="queue", max_attempts=1)
    pool.claim_one()

    (recovery,) = recover(pool)

    assert (recovery.job.id, recovery.was_started) == (job.id, False)
    assert read_job_row(sql, job)["is_available"]
    assert queue_lock(sql, "queue") == (None, True)


# At the same moment


@pytest.fixture
def threads():
    with ThreadPoolExecutor() as threads:
        yield threads


@pytest.fixture
def other_session(database):
    with open_session(database) as connection:
        yield connection


@pytest.mark.feature("F221")
async def test_a_pool_with_a_concurrent_heartbeat_is_not_recovered(
    pool, client, sql, other_session, threads
):
    job = client.add_job("task", queue_name="queue")
    die(pool, sql, pool.claim_one(), lease="10 minutes")
    before = read_job_row(sql, job)

    with other_session.transaction() as zombie:
        zombie.run(heartbeat([pool.id], [job.id]))
        sweeping = threads.submit(recover, pool)
        await wait_for_lock(sql)

    assert sweeping.result() == []
    assert read_job_row(sql, job) == before
    assert queue_lock(sql, "queue") == ("pool", False)
    assert sql.run(LIVING) == [("pool",)]


async def test_a_pool_that_speaks_up_too_late_learns_that_it_was_swept(
    pool, client, sql, other_session, threads
):
    client.add_job("task")
    die(pool, sql, pool.claim_one())

    with other_session.transaction() as sweeper:
        sweeper.run(recover_jobs([pool.id], NOW, 3))
        beating = threads.submit(pool.connection.run, heartbeat([pool.id], []))
        await wait_for_lock(sql)

    assert beating.result().server_times == {}
    assert sql.run(LIVING) == []


ENDS: dict[str, dict[str, Any]] = {
    "finish": {},
    "fail": {"attempts": 1, "last_error": "boom", "locked_by": None},
    "release": {"attempts": 0, "last_error": None, "locked_by": None},
}


@pytest.mark.parametrize("end", ENDS)
def test_a_job_that_its_zombie_ends_at_the_same_moment_is_ended_once(
    pool, client, sql, other_session, end
):
    ended = client.add_job("task", "ended", queue_name="queue")
    client.add_job("task", "other")
    held = pool.claim(2)
    die(pool, sql, *held)

    with other_session.transaction() as connection:
        zombie = pool.with_id(pool.id, connection)
        assert getattr(zombie, end)(held[0]) == {ended.id}
        # It does not wait for who has the job in hand.
        assert [each.job.payload for each in recover(pool)] == ["other"]

    assert recover(pool) == []
    found = read_job_row(sql, ended)
    assert {name: found[name] for name in found.keys() & ENDS[end].keys()} == ENDS[end]
    assert bool(found) == bool(ENDS[end])
    assert queue_lock(sql, "queue") == (None, True)


async def test_a_late_completion_of_a_recovered_job_is_rejected(
    pool, client, sql, other_session, threads
):
    job = client.add_job("task", queue_name="queue")
    held = pool.claim_one()
    die(pool, sql, held)

    with other_session.transaction() as sweeper:
        sweeper.run(recover_jobs([pool.id], NOW, 3))
        finishing = threads.submit(pool.finish, held)
        await wait_for_lock(sql)

    assert finishing.result() == set()
    assert read_job_row(sql, job)["is_available"]


def test_a_job_that_its_zombie_renews_at_the_same_moment_is_taken_the_next_time(
    pool, client, sql, other_session
):
    job = client.add_job("task")
    die(pool, sql, pool.claim_one())

    with other_session.transaction() as zombie:
        zombie.run(renew_locks([pool.id], [job.id], []))
        assert recover(pool) == []
    (recovery,) = recover(pool)

    assert recovery.was_started
    assert (read_job_row(sql, job)["attempts"], read_job_row(sql, job)["is_available"]) == (1, True)


def test_a_producer_that_has_locked_one_job_holds_up_no_other(pool, client, sql):
    client.add_job("task", "busy", job_key="k")
    client.add_job("task", "free")
    die(pool, sql, *pool.claim(2))
    producer = sql.another()
    producer.run("begin")
    producer.run("select :schema.add_job('task', job_key := 'k', job_key_mode := 'unsafe_dedupe')")

    first = recover(pool)
    producer.run("commit")
    producer.close()
    then = recover(pool)

    assert [each.job.payload for each in first] == ["free"]
    assert [(each.job.payload, each.was_started) for each in then] == [("busy", True)]


@pytest.mark.feature("F221")
async def test_of_two_sweeps_at_the_same_moment_one_recovers_each_job(
    pool, client, sql, other_session, threads
):
    job = client.add_job("task")
    die(pool, sql, pool.claim_one())

    with other_session.transaction() as first:
        recovered = first.run(recover_jobs([pool.id], NOW, 3))
        second = threads.submit(recover, pool)
        await wait_for_lock(sql)

    assert [each.job.id for each in recovered] == [job.id]
    assert second.result() == []
    assert counted(sql) == 1


async def test_a_pool_that_signs_off_at_the_same_moment_is_not_swept(
    pool, client, sql, other_session, threads
):
    client.add_job("task")
    held = pool.claim_one()
    die(pool, sql, held)
    pool.release(held)

    with other_session.transaction() as leaving:
        leaving.run(unregister_pools([pool.id]))
        sweeping = threads.submit(recover, pool)
        await wait_for_lock(sql)

    assert sweeping.result() == []
    assert sql.run("select id from :ext_schema.pools") == []


# Counts of jobs that are gone


def test_counts_are_kept_as_long_as_their_jobs(pool, client, sql):
    gone, kept = client.add_job("task"), client.add_job("task")
    die(pool, sql, *pool.claim(2))
    recover(pool)
    client.complete_jobs([gone.id])

    pool.connection.run(delete_orphaned_recoveries())

    assert sql.run("select job_id, count from :ext_schema.recoveries") == [(kept.id, 1)]


# The sweep of a worker


@pytest.mark.feature("F188", "F221")
async def test_each_recovery_is_one_event_in_one_pool(
    start, recorder, sql, pool, client, caplog, statements
):
    caplog.set_level(logging.WARNING, logger="graphile_worker")
    jobs = [client.add_job("task", n) for n in range(20)]
    dead = pool.with_id("dead")
    held = dead.claim(20)
    die(dead, sql, *held[:7])

    for _ in range(3):
        await start({"other": nothing}, recovery=RecoveryOptions(**OFTEN))
    events = await recorder.wait_for(JobRecovered, count=20)
    await wait_until(lambda: statements.count("get_dead_pools") > 20)

    announced = sorted(event.job.id for event in recorder.events_of(JobRecovered))
    assert announced == [job.id for job in jobs]
    assert len({event.pool_id for event in events}) == 1
    assert {event.dead_pool_id for event in events} == {"dead"}
    started = {event.job.payload for event in events if event.was_started}
    assert started == set(range(7))
    assert {event.crashes for event in events if event.was_started} == {1}
    assert {event.crashes for event in events if not event.was_started} == {0}
    assert not any(event.is_quarantined or event.job.locked_by for event in events)
    lines = [each.getMessage() for each in caplog.records if "dead pool dead" in each.getMessage()]
    assert len(lines) == 20
    assert len([line for line in lines if "not started" in line]) == 13


@pytest.mark.feature("F188")
async def test_a_parked_job_is_announced_as_such(start, recorder, sql, pool, client, caplog):
    job = client.add_job("task")
    for _ in range(2):
        lose(pool, sql)
    die(pool, sql, pool.claim_one())

    await start({"task": nothing}, recovery=RecoveryOptions(**OFTEN))
    (event,) = await recorder.wait_for(JobRecovered)

    assert (event.is_quarantined, event.crashes, event.was_started) == (True, 3, True)
    (line,) = [each for each in caplog.records if f"quarantined job {job.id}" in each.getMessage()]
    assert line.levelno == logging.ERROR


async def test_max_recoveries_decides_when_a_job_is_parked(start, recorder, sql, pool, client):
    client.add_job("task")
    die(pool, sql, pool.claim_one())

    await start({"task": nothing}, recovery=RecoveryOptions(**OFTEN, max_crashes=1))
    (event,) = await recorder.wait_for(JobRecovered)

    assert event.is_quarantined


@pytest.mark.feature("F219")
async def test_the_rescuer_pool_runs_recovered_jobs_at_once(start, recorder, sql, pool, client):
    """Nobody announces such jobs, and the next poll may be far away."""
    job = client.add_job("task")
    pool.connection.run(register_pool(pool.id, HOUR, {}))
    pool.claim_one()
    recovery = RecoveryOptions(**OFTEN)
    await start({"task": nothing}, poll_interval=HOUR, recovery=recovery)
    await recorder.wait_for(ListenStarted)
    await recorder.wait_for(GetJobEmpty)

    sql.run("update :ext_schema.pools set lease = '50 ms' where id = $1", pool.id)

    await recorder.wait_for(JobRecovered, job_id=job.id)
    await recorder.wait_for(JobSucceeded, job_id=job.id)


@pytest.mark.feature("F225")
async def test_recovered_jobs_wait_for_crash_retry_delay(start, recorder, sql, pool, client):
    job = client.add_job("task")
    die(pool, sql, pool.claim_one())
    client.add_job("task", run_at=timedelta(milliseconds=500))

    recovery = RecoveryOptions(**OFTEN, crash_retry_delay=HOUR)
    await start({"task": nothing}, recovery=recovery, poll_interval=timedelta(milliseconds=100))
    (event,) = await recorder.wait_for(JobRecovered)
    await recorder.wait_for(JobSucceeded)

    assert event.job.run_at > datetime.now(UTC) + HOUR - timedelta(minutes=1)
    assert read_job_row(sql, job)["is_available"]
    assert job.id not in {each.job.id for each in recorder.events_of(JobStarted)}


@pytest.mark.feature("F221")
def test_one_sweeps_at_a_time_and_rust_workers_count(sql, database, other_session):
    with open_session(database) as another:
        with other_session.transaction() as first, another.transaction() as second:
            assert first.run(try_lock_rescue())
            assert not second.run(try_lock_rescue())
        rust = sql.another()
        rust.run("begin")
        rust.run("select pg_advisory_xact_lock(1196905043, 1398228304)")
        with another.transaction() as second:
            assert not second.run(begin_rescue())
            assert second.run(try_lock_rescue())
        rust.close()


def test_the_session_that_has_the_turn_is_named(sql, database, other_session):
    schemas = Schemas.from_names(database.schema)
    rust = sql.another()
    rust.run("select pg_advisory_lock(1196905043, 1398228304)")

    with other_session.transaction() as sweeper:
        sweeper.run(try_lock_rescue())
        with open_session(database) as asking:
            holders = asking.run(get_rescue_lock_holders(schemas))
        [seen_by_itself] = sweeper.run(get_rescue_lock_holders(schemas))

    assert len(holders) == 2
    assert {each.role for each in holders} == {"postgres"}
    assert "graphile-worker" in {each.application for each in holders}
    assert seen_by_itself.pid == rust.value("select pg_backend_pid()")
    rust.close()


async def test_a_role_that_may_only_connect_does_not_stop_recovery(
    start, recorder, sql, database, pool, client, caplog
):
    caplog.set_level(logging.WARNING, logger="graphile_worker")
    role = f"stranger_{database.name}"
    sql.run(f"create role {role} login")
    dsn = make_conninfo(database.dsn, user=role, application_name="lunch")
    stranger = Sql(dsn, database.schema)
    stranger.run("select pg_advisory_lock(1196905043, 1398228304)")
    with pytest.raises(InsufficientPrivilege):
        stranger.run("select name from :ext_schema.turns for update")
    pid = stranger.value("select pg_backend_pid()")
    job = client.add_job("task")
    die(pool, sql, pool.claim_one())

    await start({"other": nothing}, recovery=RecoveryOptions(**OFTEN))
    await recorder.wait_for(JobRecovered, job_id=job.id)
    stranger.close()
    sql.run(f"drop role {role}")

    assert f"held by pid={pid} role={role} application=lunch" in caplog.text


async def test_a_companion_without_turns_is_swept_all_the_same(start, recorder, sql, pool, client):
    """An older release made it, or its owner has not granted the table to this role."""
    sql.run("drop table :ext_schema.turns")
    job = client.add_job("task")
    die(pool, sql, pool.claim_one())

    await start({"other": nothing}, recovery=RecoveryOptions(**OFTEN))

    await recorder.wait_for(JobRecovered, job_id=job.id)


@pytest.mark.feature("F221")
async def test_without_dead_pools_the_table_of_jobs_is_not_read(
    start, sql, pool, client, statements
):
    client.add_job("task")
    pool.connection.run(register_pool(pool.id, HOUR, {}))
    pool.claim_one()

    await start({"other": nothing}, recovery=RecoveryOptions(**OFTEN))
    await wait_until(lambda: statements.count("get_dead_pools") > 5)

    assert {"try_lock_rescue", "recover_jobs", "delete_orphaned_recoveries"}.isdisjoint(statements)


async def test_a_failed_recovery_is_reported_rolled_back_and_retried(
    start, recorder, sql, pool, client, caplog
):
    job = client.add_job("task")
    die(pool, sql, pool.claim_one())
    sql.run("alter table :ext_schema.recoveries add constraint stumble check (count < 0)")

    runner = await start({"task": nothing}, recovery=RecoveryOptions(**OFTEN))
    await recorder.wait_for(RecoveryFailed)
    assert runner.is_ready
    assert read_job_row(sql, job)["locked_by"] == "pool"
    assert sql.value("select count(*) from :ext_schema.pools where id = 'pool'") == 1
    undo = "alter table :ext_schema.recoveries drop constraint stumble"
    await asyncio.to_thread(sql.run, undo)

    await recorder.wait_for(JobRecovered, job_id=job.id)
    assert [each for each in caplog.records if "recovery failed" in each.getMessage()]


@pytest.mark.feature("F223")
async def test_a_recovered_job_is_noted_as_started_before_its_task_runs(
    start, recorder, sql, pool, client
):
    seen: list[Any] = []

    async def look(payload: object, ctx: JobContext) -> None:
        noted = "select started_by, started_attempt from :ext_schema.recoveries where job_id = $1"
        seen.append((ctx.pool_id, await asyncio.to_thread(sql.run, noted, ctx.job.id)))

    client.add_job("task")
    lose(pool, sql)
    await start({"task": look}, recovery=RecoveryOptions(**OFTEN))
    (event,) = await recorder.wait_for(JobSucceeded)

    assert seen == [(event.pool_id, [(event.pool_id, 2)])]


STUMBLE = """
create function :ext_schema.stumble() returns trigger language plpgsql as $body$
begin
  raise exception using errcode = '{code}', message = 'stand-in';
end
$body$
"""


def let_notes_fail(sql: Sql, code: str) -> None:
    sql.run(STUMBLE.format(code=code))
    sql.run("""
      create trigger stumble before insert or update on :ext_schema.recoveries
      for each row when (new.started_by is not null) execute function :ext_schema.stumble()
    """)


async def test_a_recovered_job_whose_start_cannot_be_written_is_released(
    start, recorder, sql, pool, client
):
    job = client.add_job("task")
    lose(pool, sql)
    let_notes_fail(sql, "53300")

    await start({"task": nothing}, recovery=RecoveryOptions(**OFTEN))
    await recorder.wait_for(PoolFatalError, action="startJob")
    await recorder.wait_for(JobInterrupted, job_id=job.id)
    assert recorder.events_of(JobStarted) == []
    await asyncio.to_thread(sql.run, "drop trigger stumble on :ext_schema.recoveries")

    (event,) = await recorder.wait_for(JobSucceeded, job_id=job.id)
    assert event.job.attempts == 2


async def test_a_start_that_cannot_be_noted_now_is_not_tried_all_the_time(
    start, recorder, sql, pool, client
):
    client.add_job("task")
    lose(pool, sql)
    let_notes_fail(sql, "53300")

    await start({"task": nothing}, recovery=RecoveryOptions(**OFTEN))
    began = time.monotonic()
    await recorder.wait_for(PoolFatalError)
    await asyncio.sleep(1)

    assert len(recorder.events_of(PoolFatalError)) < 30 * (time.monotonic() - began)


async def test_a_recovered_job_whose_start_can_never_be_noted_runs_all_the_same(
    start, recorder, sql, pool, client
):
    job = client.add_job("task")
    lose(pool, sql)
    let_notes_fail(sql, "23514")

    await start({"task": nothing}, recovery=RecoveryOptions(**OFTEN))

    await recorder.wait_for(JobSucceeded, job_id=job.id)
    assert len(recorder.events_of(PoolFatalError, action="startJob")) == 1


async def test_of_jobs_that_the_next_recovery_would_park_one_runs_at_a_time(
    start, recorder, sql, pool, client
):
    """Whichever of two killed the process, both would be quarantined."""
    running: list[object] = []
    together: list[int] = []

    async def note(payload: object) -> None:
        running.append(payload)
        together.append(len(running))
        await asyncio.sleep(0.2)
        running.remove(payload)

    jobs = [client.add_job("task", n) for n in range(3)]
    for name in ("first", "second"):
        dead = pool.with_id(name)
        die(dead, sql, *dead.claim(3))
        recover(dead)
    poll = timedelta(milliseconds=100)

    recovery = RecoveryOptions(**OFTEN)
    await start({"task": note}, concurrency=3, poll_interval=poll, recovery=recovery)
    done = await recorder.wait_for(JobSucceeded, count=3)

    assert {event.job.id for event in done} == {job.id for job in jobs}
    assert together == [1, 1, 1]
    # To be handed back costs no attempt.
    assert {event.job.attempts for event in done} == {3}


async def test_a_job_that_was_never_recovered_is_not_noted(start, recorder, statements):
    runner = await start({"task": nothing}, recovery=RecoveryOptions(**OFTEN))
    await runner.add_job("task")
    await recorder.wait_for(JobSucceeded)

    assert "record_start" not in statements


async def test_a_sweep_forgets_counts_of_jobs_that_are_gone(start, recorder, sql, pool, client):
    gone = client.add_job("task")
    lose(pool, sql)
    client.complete_jobs([gone.id])
    left = client.add_job("task")
    die(pool, sql, pool.claim_one())

    await start({"other": nothing}, recovery=RecoveryOptions(**OFTEN))
    await recorder.wait_for(JobRecovered)

    assert sql.run("select job_id from :ext_schema.recoveries") == [(left.id,)]
