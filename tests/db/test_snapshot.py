"""A snapshot of a queue: every job counted once, in its state, with its lock."""

import asyncio
import math
from collections.abc import AsyncIterator
from datetime import timedelta

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.snapshot import set_limits
from graphile_worker.errors import SchemaMissing
from graphile_worker.jobs import JobSpec
from graphile_worker.ops.pools import PoolHealth
from graphile_worker.ops.snapshot import Snapshot, take_counter_snapshot, take_snapshot
from graphile_worker.ops.states import JobState
from graphile_worker.ops.trends import SnapshotHistory

# What the statements do: test_statements.py runs each of them on the oldest pair too.
pytestmark = pytest.mark.single_version

NODE = "pool-3fa94c1d77e0aa19b2"


@pytest.fixture
def client(blocking_client):
    return blocking_client


@pytest.fixture
async def db(database) -> AsyncIterator[PsycopgDatabase]:
    opened = PsycopgDatabase(database.dsn, Schemas.from_names(database.schema), max_size=1)
    yield opened
    await opened.close()


def lock(sql, job_id: int, pool_id: str, ago: str = "1 minute") -> None:
    sql.run(
        f"update :schema._private_jobs set locked_at = now() - interval '{ago}', locked_by = $2, "
        "attempts = 1 where id = $1",
        job_id,
        pool_id,
    )


def register(sql, pool_id: str, *, silence: str, lease: str = "1 millisecond") -> None:
    sql.run(
        "insert into :ext_schema.pools (id, seen_at, lease, details) "
        f"values ($1, now() - interval '{silence}', interval '{lease}', $2::json)",
        pool_id,
        '{"runtime": "python", "host": "web-1", "pid": 7, "concurrency": 4, "tasks": ["task"]}',
    )


def counts(snapshot: Snapshot, identifier: str = "task") -> dict[str, int]:
    [task] = [task for task in snapshot.tasks if task.identifier == identifier]
    return {str(state): count for state, count in task.counts.items()}


async def test_a_snapshot_of_an_empty_queue(db, database):
    snapshot = await take_snapshot(db)

    assert (snapshot.tasks, snapshot.locked, snapshot.queues, snapshot.pools) == ((), (), (), ())
    assert snapshot.server.database == database.name
    assert snapshot.server.level == 20
    assert snapshot.oldest_ready is None
    assert snapshot.duration > 0


async def test_every_job_is_counted_in_its_state(db, client, sql):
    register(sql, "dead", silence="1 hour")
    jobs = [client.add_job("task", queue_name="q" if n == 1 else None).id for n in range(8)]
    lock(sql, jobs[0], "dead")
    sql.run("update :schema._private_job_queues set locked_at = now(), locked_by = $1", NODE)
    lock(sql, jobs[2], NODE)
    lock(sql, jobs[3], NODE, "5 hours")
    sql.run("update :schema._private_jobs set attempts = 25 where id = $1", jobs[4])
    later = "update :schema._private_jobs set run_at = now() + interval '1 h', attempts = $2 "
    later += "where id = $1"
    sql.run(later, jobs[5], 0)
    sql.run(later, jobs[6], 3)

    snapshot = await take_snapshot(db)

    assert counts(snapshot) == {
        "stale": 2,
        "running": 1,
        "failed": 1,
        "waiting": 1,
        "ready": 1,
        "retrying": 1,
        "scheduled": 1,
    }
    assert snapshot.running == 3
    assert snapshot.count(JobState.READY) == 1


async def test_each_task_has_its_counts_and_its_oldest_job(db, client, sql):
    client.add_jobs([JobSpec("a"), JobSpec("a"), JobSpec("b")])
    sql.run(
        "update :schema._private_jobs set run_at = now() - id * interval '1 minute' where id <= 2"
    )

    tasks = {task.identifier: task for task in (await take_snapshot(db)).tasks}

    assert (tasks["a"][JobState.READY], tasks["b"][JobState.READY]) == (2, 1)
    assert tasks["a"].oldest_ready == pytest.approx(120, abs=30)
    assert tasks["b"].oldest_ready == pytest.approx(0, abs=30)
    assert (tasks["a"].first_ready, tasks["b"].first_ready) == (1, 3)


async def test_locked_jobs_are_listed_the_longest_locked_first(db, client, sql):
    client.add_jobs([JobSpec("task", queue_name="q"), JobSpec("task")])
    lock(sql, 1, "pypool-000000000000000001", "1 minute")
    lock(sql, 2, NODE, "2 minutes")

    first, second = (await take_snapshot(db)).locked

    assert (first.id, first.pool_id, first.queue_name) == (2, NODE, None)
    assert (second.id, second.queue_name, second.attempts, second.max_attempts) == (1, "q", 1, 25)
    assert first.age == pytest.approx(120, abs=30)


async def test_a_locked_queue_has_its_job_and_the_number_of_waiting_jobs(db, client, sql):
    client.add_jobs([JobSpec("task", queue_name="q") for _ in range(4)])
    client.add_job("task", queue_name="q", run_at=timedelta(hours=1))
    client.add_job("task", queue_name="free")
    lock(sql, 1, NODE)
    sql.run(
        "update :schema._private_job_queues set locked_at = now() - interval '1 minute', "
        "locked_by = $1 where queue_name = 'q'",
        NODE,
    )

    snapshot = await take_snapshot(db)

    [queue] = snapshot.queues
    assert (queue.name, queue.pool_id, queue.job_id) == ("q", NODE, 1)
    assert (queue.waiting, queue.first_waiting, queue.is_paused) == (3, 2, False)
    assert queue.age == pytest.approx(60, abs=30)
    assert counts(snapshot) == {"running": 1, "waiting": 3, "scheduled": 1, "ready": 1}


async def test_a_queue_that_is_locked_until_far_in_the_future_is_paused(db, client, sql):
    client.add_job("task", queue_name="q")
    sql.run(
        "update :schema._private_job_queues set locked_at = '9999-01-01', locked_by = 'paused:ana'"
    )

    snapshot = await take_snapshot(db)

    assert (snapshot.queues[0].is_paused, snapshot.queues[0].waiting) == (True, 1)
    assert snapshot.pools == ()


async def test_pools_are_registered_or_hold_locks(db, client, sql):
    client.add_jobs([JobSpec("task"), JobSpec("task")])
    register(sql, "alive", silence="0 seconds", lease="1 hour")
    register(sql, "dead", silence="1 hour")
    lock(sql, 1, NODE)
    lock(sql, 2, "dead")

    pools = {pool.id: pool for pool in (await take_snapshot(db)).pools}

    assert {id: pool.health for id, pool in pools.items()} == {
        "alive": PoolHealth.ALIVE,
        "dead": PoolHealth.DEAD,
        NODE: PoolHealth.UNKNOWN,
    }
    assert (pools["alive"].tasks, pools["alive"].concurrency) == (("task",), 4)
    assert [pools[id].jobs for id in ("alive", "dead", NODE)] == [0, 1, 1]
    assert pools[NODE].runtime == "node"


async def test_after_a_restart_of_the_server_no_pool_is_dead_for_a_lease(db, client, sql):
    client.add_job("task")
    register(sql, "unconfirmed", silence="101 days", lease="100 days")
    lock(sql, 1, "unconfirmed")

    snapshot = await take_snapshot(db)

    assert snapshot.pools[0].health is PoolHealth.UNKNOWN
    assert snapshot.locked[0].state is JobState.RUNNING


async def test_a_task_has_the_error_of_its_newest_failing_job(db, client, sql):
    client.add_jobs([JobSpec("task") for _ in range(3)])
    sql.run(
        "update :schema._private_jobs set attempts = 1, run_at = now() + interval '1 h', "
        "last_error = 'Boom ' || id where id < 3"
    )

    [task] = (await take_snapshot(db)).tasks

    assert (task.newest_failing, task.error, task.failing) == (2, "Boom 2", 2)


async def test_infinite_times_are_counted(db, client, sql):
    client.add_jobs([JobSpec("task"), JobSpec("task"), JobSpec("task")])
    sql.run("update :schema._private_jobs set run_at = '-infinity' where id = 1")
    sql.run("update :schema._private_jobs set run_at = 'infinity' where id = 2")
    sql.run(
        "update :schema._private_jobs set locked_at = '-infinity', locked_by = 'x' where id = 3"
    )

    snapshot = await take_snapshot(db)

    assert counts(snapshot) == {"ready": 1, "scheduled": 1, "stale": 1}
    assert snapshot.oldest_ready == math.inf


async def test_jobs_of_deleted_tasks_and_queues_are_counted_and_not_late(db, client, sql):
    client.add_job("task")
    client.add_job("other", queue_name="q")
    sql.run("delete from :schema._private_tasks where identifier = 'task'")
    sql.run("delete from :schema._private_job_queues")

    snapshot = await take_snapshot(db)

    assert {task.identifier for task in snapshot.tasks} == {"task id 1", "other"}
    assert (snapshot.missing_tasks, snapshot.missing_queues) == ({1: 1}, {1: 1})
    assert (snapshot.count(JobState.READY), snapshot.oldest_ready) == (2, None)


async def test_permanently_failed_jobs_have_the_age_of_their_failure(db, client, sql):
    client.add_jobs([JobSpec("task") for _ in range(3)])
    sql.run(
        "update :schema._private_jobs set attempts = max_attempts, "
        "updated_at = now() - interval '1 day', run_at = case id "
        # Python workers write the time of the failure, others that of a retry after the backoff.
        "when 1 then now() - interval '3 hours' "
        "when 2 then now() - interval '1 hour' + exp(10) * interval '1 second' "
        "else '-infinity' end"
    )

    [task] = (await take_snapshot(db)).tasks

    assert task.newest_failure == pytest.approx(3600, abs=30)
    assert task.oldest_failure == pytest.approx(86_400, abs=30)


async def test_two_snapshots_have_rates(db, client):
    history = SnapshotHistory(await take_snapshot(db))
    client.add_jobs([JobSpec("task") for _ in range(50)])
    client.complete_jobs(range(1, 21))
    client.close()

    # The session reported its counters when it ended; the server may need a moment to add them.
    async with asyncio.timeout(20):
        while history.rates is None or history.rates.completed == 0:
            history.add_counters(await take_counter_snapshot(db))

    assert history.rates.added == pytest.approx(history.rates.completed * 50 / 20)


async def test_hidden_rows_are_reported(database, client, sql):
    client.add_job("task")
    role = f"reader_{database.name}"
    sql.run(f"create role {role} login")
    sql.run(f"grant usage on schema :schema to {role}")
    sql.run(f"grant select on all tables in schema :schema to {role}")
    dsn = make_conninfo(database.dsn, user=role)
    theirs = PsycopgDatabase(dsn, Schemas.from_names(database.schema))

    snapshot = await take_snapshot(theirs)
    await theirs.close()
    sql.run(f"drop owned by {role}")
    sql.run(f"drop role {role}")

    assert (snapshot.tasks, snapshot.pools) == ((), ())
    assert (snapshot.server.has_hidden_rows, snapshot.server.role) == (True, role)


async def test_a_snapshot_can_only_read_and_has_a_time_limit(db):
    async with db.transaction() as connection:
        await connection.run(set_limits(timedelta(milliseconds=50), "test"))
        with pytest.raises(psycopg.errors.QueryCanceled):
            await connection.raw.execute("select pg_sleep(10)")

    async with db.transaction() as connection:
        await connection.run(set_limits(timedelta(seconds=5), "test"))
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            await connection.raw.execute("create table t ()")


async def test_without_the_schema_it_raises_schema_missing(database):
    nowhere = PsycopgDatabase(database.dsn, Schemas.from_names("nowhere"))

    for take in (take_snapshot, take_counter_snapshot):
        with pytest.raises(SchemaMissing):
            await take(nowhere)
    await nowhere.close()
