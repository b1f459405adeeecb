"""Jobs of workers that somebody knows are dead: found and recovered by a call."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from graphile_worker import Job, JobContext, JobSpec, JobSpecError, RecoveryOptions
from graphile_worker._sql.queries.workers import heartbeat, register_pool
from graphile_worker.errors import SchemaMissing
from graphile_worker.events import (
    JobInterrupted,
    JobLockLost,
    JobStarted,
    JobSucceeded,
    LeaseLost,
)
from tests.support.clients import KINDS, open_client, unwrap
from tests.support.pools import Pool, queue_lock, read_job_row, update_job
from tests.support.recorder import wait_until
from tests.support.tasks import endless

# What the statements do: test_statements.py runs each of them on the oldest pair too.
pytestmark = pytest.mark.single_version

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
NODE = "pool-0123456789abcdef01"
RUST = "graphile_worker_0123456789abcdef01"
INTERRUPTED = "Job recovered after worker interruption: "
POOLS = "select id from :ext_schema.pools where swept_at is null order by id"


async def held_by(client: Any, pool: Pool, holder: str, **spec: Any) -> Job:
    """A job that some worker has locked."""
    job: Job = await client.add_job("task", **spec)
    assert pool.with_id(holder).claim_one().job.id == job.id
    return job


def enter(pool: Pool, pool_id: str, *started: Job) -> None:
    """One of our pools, which was heard of a moment ago."""
    pool.connection.run(register_pool(pool_id, HOUR, {}))
    pool.connection.run(heartbeat([pool_id], [job.id for job in started]))


# Looking


@pytest.mark.feature("F226")
async def test_the_jobs_that_given_workers_hold_are_listed(client, pool):
    node = await held_by(client, pool, NODE, queue_name="queue")
    await held_by(client, pool, "other")
    ours = await held_by(client, pool, "ours")
    await client.add_job("task")

    found = await client.list_locked_jobs([NODE, "ours", "unknown"])

    assert found == [await client.get_job(node.id), await client.get_job(ours.id)]
    assert [(job.locked_by, job.queue_name) for job in found] == [(NODE, "queue"), ("ours", None)]


async def test_no_worker_ids_recover_nothing(client, pool):
    await held_by(client, pool, NODE)

    assert await client.list_locked_jobs([]) == []
    assert await client.list_locked_jobs(["unknown"]) == []


async def test_a_look_sees_the_transaction_that_it_is_lent(client, conn, pool, sql):
    await held_by(client, pool, NODE)
    await client.recover_workers([NODE], conn=unwrap(conn))

    assert await client.list_locked_jobs([NODE], conn=unwrap(conn)) == []
    assert len(await client.list_locked_jobs([NODE])) == 1


# Strangers


@pytest.mark.feature("F226")
@pytest.mark.parametrize("stranger", [NODE, RUST])
@pytest.mark.parametrize(
    ("before", "most", "after"), [(0, 25, 1), (0, 1, 0), (2, 3, 2)], ids=["first", "only", "last"]
)
async def test_a_strangers_job_keeps_its_attempt_spent_but_is_never_ended(
    client, pool, sql, stranger, before, most, after
):
    job = await client.add_job("task", queue_name="queue", max_attempts=most)
    update_job(sql, job, f"attempts = {before}")
    pool.with_id(stranger).claim_one()

    (recovered,) = await client.recover_workers([stranger])

    assert recovered == await client.get_job(job.id)
    assert (recovered.attempts, recovered.locked_by) == (after, None)
    assert recovered.last_error == INTERRUPTED + f"it was held by pool {stranger}"
    assert read_job_row(sql, job)["is_available"]
    assert queue_lock(sql, "queue") == (None, True)


async def test_a_strangers_job_counts_no_recovery_and_is_never_parked(client, pool, sql):
    await client.add_job("task")

    for _ in range(5):
        pool.with_id(NODE).claim_one()
        await client.recover_workers([NODE])

    assert sql.run("select count from :ext_schema.recoveries") == [(0,)]
    assert len(pool.claim()) == 1


async def test_named_twice_a_stranger_is_recovered_once(client, pool):
    job = await held_by(client, pool, NODE)

    found = await client.recover_workers([NODE, NODE])

    assert [each.id for each in found] == [job.id]


# Our own


@pytest.mark.feature("F226", "F223")
async def test_of_our_own_pools_it_is_known_what_had_started(client, pool, sql):
    started = await held_by(client, pool, "ours", max_attempts=1)
    fetched = await held_by(client, pool, "ours", max_attempts=1)
    enter(pool, "ours", started)

    found = await client.recover_workers(["ours"])

    errors = {job.id: job.last_error for job in found}
    assert errors[started.id].endswith("it was held by pool ours")
    assert errors[fetched.id].endswith("it was fetched, not started, by pool ours")
    assert [job.attempts for job in found] == [0, 0]
    counts = dict(sql.run("select job_id, count from :ext_schema.recoveries"))
    assert counts == {started.id: 1, fetched.id: 0}
    assert sql.run(POOLS) == []


@pytest.mark.feature("F226")
async def test_it_is_not_asked_whether_the_pool_is_silent(client, pool, sql):
    job = await held_by(client, pool, "ours")
    enter(pool, "ours", job)

    assert [each.id for each in await client.recover_workers(["ours"])] == [job.id]

    assert read_job_row(sql, job)["is_available"]


async def test_the_third_time_that_a_job_was_running_it_is_parked(client, pool, sql):
    job = await client.add_job("task")

    for name in ("first", "second", "third"):
        pool.with_id(name).claim_one()
        enter(pool, name, job)
        (found,) = await client.recover_workers([name])

    assert (found.attempts, found.locked_by) == (25, None)
    assert "quarantined, as it was running at 3 recoveries" in found.last_error


async def test_what_others_hold_is_left_alone(client, pool, sql):
    ours = await held_by(client, pool, "ours", queue_name="queue")
    node = await held_by(client, pool, NODE)
    enter(pool, "ours", ours)
    before = [read_job_row(sql, job) for job in (ours, node)]

    assert await client.recover_workers(["somebody", "pool-"]) == []
    assert await client.recover_workers([]) == []

    assert [read_job_row(sql, job) for job in (ours, node)] == before
    assert queue_lock(sql, "queue") == ("ours", False)
    assert sql.run(POOLS) == [("ours",)]


@pytest.mark.parametrize("stranger", [True, False])
async def test_a_superseded_job_stays_dead(client, pool, sql, stranger):
    job = await held_by(client, pool, "holder", job_key="k")
    if not stranger:
        enter(pool, "holder", job)
    await client.remove_job("k")

    (found,) = await client.recover_workers(["holder"])

    assert (found.attempts, found.locked_by) == (25, None)


# Later


@pytest.mark.feature("F225", "F226")
@pytest.mark.parametrize("stranger", [True, False])
async def test_a_delay_lets_the_jobs_wait(client, pool, sql, stranger):
    job = await held_by(client, pool, "holder")
    if not stranger:
        enter(pool, "holder", job)

    (found,) = await client.recover_workers(["holder"], crash_retry_delay=HOUR)

    assert HOUR - MINUTE < found.run_at - datetime.now(UTC) < HOUR + MINUTE
    assert pool.claim() == []


async def test_without_a_delay_the_jobs_keep_their_time(client, pool):
    job = await held_by(client, pool, NODE, run_at=datetime(2020, 1, 1, tzinfo=UTC))

    (found,) = await client.recover_workers([NODE])

    assert found.run_at == job.run_at


# In the caller's transaction


@pytest.mark.feature("F226")
@pytest.mark.parametrize("stranger", [True, False])
async def test_a_recovery_that_rolls_back_never_was(client, conn, pool, sql, stranger):
    job = await held_by(client, pool, "holder", queue_name="queue")
    if not stranger:
        enter(pool, "holder", job)
    before = read_job_row(sql, job), sql.run(POOLS)

    (found,) = await client.recover_workers(["holder"], conn=unwrap(conn))
    assert (found.id, found.locked_by) == (job.id, None)
    await conn.rollback()

    assert (read_job_row(sql, job), sql.run(POOLS)) == before
    assert queue_lock(sql, "queue") == ("holder", False)
    assert sql.value("select count(*) from :ext_schema.recoveries") == 0


async def test_a_recovery_that_is_committed_is_there_for_all(client, conn, pool, sql):
    job = await held_by(client, pool, NODE)

    await client.recover_workers([NODE], conn=unwrap(conn))
    await conn.commit()

    assert read_job_row(sql, job)["is_available"]


# Without the companion schema


@pytest.mark.parametrize("within", ["its own", "the caller's"])
async def test_without_companion_schema_jobs_are_recovered_all_the_same(
    client, conn, pool, sql, within
):
    job = await held_by(client, pool, "holder", queue_name="queue", max_attempts=1)
    sql.run("drop schema :ext_schema cascade")

    given = unwrap(conn) if within == "the caller's" else None
    (found,) = await client.recover_workers(["holder"], crash_retry_delay=HOUR, conn=given)
    await conn.commit()

    assert found == await client.get_job(job.id)
    assert (found.attempts, found.locked_by) == (0, None)
    assert found.last_error == INTERRUPTED + "it was held by pool holder"
    assert found.run_at > datetime.now(UTC) + HOUR - MINUTE
    assert queue_lock(sql, "queue") == (None, True)
    assert not sql.run("select 1 from pg_namespace where nspname ~ '_ext$'")


async def test_without_companion_schema_a_superseded_job_stays_dead(client, pool, sql):
    job = await held_by(client, pool, "holder", job_key="k")
    await client.add_jobs([JobSpec("task", job_key="k")])
    sql.run("drop schema :ext_schema cascade")

    (found,) = await client.recover_workers(["holder", "holder"])

    assert (found.id, found.attempts, found.locked_by) == (job.id, 25, None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("within", ["its own", "the caller's"])
async def test_a_role_that_may_not_use_the_companion_schema_recovers_jobs_all_the_same(
    kind, within, database, conn, pool, sql
):
    role = f"role_{database.name}"
    sql.run(f"create role {role} login bypassrls")
    sql.run(f"grant usage on schema :schema to {role}")
    sql.run(f"grant all on all tables in schema :schema to {role}")
    async with open_client(kind, database) as client:
        job = await held_by(client, pool, "holder")

    dsn = make_conninfo(database.dsn, user=role)
    async with open_client(kind, Reached(database, dsn)) as client:
        if within == "its own":
            (found,) = await client.recover_workers(["holder"])
        else:
            await conn.execute(f"set role {role}".encode())
            (found,) = await client.recover_workers(["holder"], conn=unwrap(conn))
            await conn.commit()

    assert (found.id, found.attempts) == (job.id, 1)
    assert read_job_row(sql, job)["is_available"]
    sql.run(f"drop owned by {role}")
    sql.run(f"drop role {role}")


class Reached:
    """A test's database by another way."""

    def __init__(self, database: Any, dsn: str) -> None:
        self.schema = database.schema
        self.dsn = dsn


@pytest.mark.parametrize("kind", KINDS)
async def test_without_a_schema_the_error_names_it(kind, empty_database):
    async with open_client(kind, empty_database) as client:
        with pytest.raises(SchemaMissing):
            await client.list_locked_jobs(["pool"])
        with pytest.raises(SchemaMissing):
            await client.recover_workers(["pool"])


# What makes no sense


@pytest.mark.parametrize("ids", ["pool", [7], [None], ["a\0b"], ["\ud800"]])
async def test_a_value_that_is_not_a_list_of_ids_is_rejected(client, ids):
    for call in (client.list_locked_jobs, client.recover_workers):
        with pytest.raises(JobSpecError, match="pool_ids"):
            await call(ids)


@pytest.mark.parametrize("delay", [-MINUTE, timedelta.max, 30, 1.5, None, "1 hour"])
async def test_a_value_that_is_not_a_delay_is_rejected(client, pool, sql, delay):
    job = await held_by(client, pool, NODE)

    with pytest.raises(JobSpecError, match="crash_retry_delay"):
        await client.recover_workers([NODE], crash_retry_delay=delay)

    assert read_job_row(sql, job)["locked_by"] == NODE


async def test_any_iterable_of_ids_will_do(client, pool):
    job = await held_by(client, pool, NODE)

    assert len(await client.list_locked_jobs({NODE})) == 1
    assert [each.id for each in await client.recover_workers(iter([NODE]))] == [job.id]


# A pool that lives after all


@pytest.mark.feature("F226")
async def test_a_living_pool_that_is_recovered_loses_its_job_and_goes_on_under_a_new_id(
    client, start, recorder, sql
):
    often = RecoveryOptions(
        lease_duration=timedelta(seconds=30), heartbeat_interval=timedelta(milliseconds=50)
    )
    ran: list[tuple[str, Any]] = []

    async def linger(payload: Any, ctx: JobContext) -> None:
        if payload == "first":
            await asyncio.Event().wait()
        ran.append((ctx.pool_id, payload))

    await start({"linger": linger}, recovery=often)
    job = await client.add_job("linger", "first", queue_name="queue")
    (started,) = await recorder.wait_for(JobStarted)
    old = started.pool_id
    # Or nobody would know that the job runs.
    begun = "select started_jobs from :ext_schema.pools where id = $1"
    await wait_until(lambda: sql.value(begun, old) == [job.id])

    await client.recover_workers([old], crash_retry_delay=HOUR)

    (lost,) = await recorder.wait_for(JobLockLost)
    (swept,) = await recorder.wait_for(LeaseLost)
    assert (lost.job.id, lost.pool_id) == (job.id, old)
    assert (swept.old_pool_id, swept.job_ids) == (old, (job.id,))
    assert swept.pool_id != old
    await wait_until(lambda: sql.run(POOLS) == [(swept.pool_id,)])
    # What it had begun is left to whoever takes it.
    assert read_job_row(sql, job)["is_available"]
    assert read_job_row(sql, job)["attempts"] == 1
    await client.add_job("linger", "second", queue_name="queue")
    await recorder.wait_for(JobSucceeded)
    assert ran == [(swept.pool_id, "second")]


async def test_a_job_that_a_pool_claims_after_it_lost_its_lease_is_released(
    client, start, recorder, sql
):
    rarely = RecoveryOptions(
        lease_duration=timedelta(seconds=30), heartbeat_interval=timedelta(seconds=1)
    )
    release = asyncio.Event()

    async def linger(payload: object) -> None:
        await release.wait()

    await start({"linger": linger}, recovery=rarely)
    old = sql.value(POOLS)
    await client.recover_workers([old])
    job = await client.add_job("linger")
    (first,) = await recorder.wait_for(JobStarted)
    assert first.pool_id == old

    await recorder.wait_for(LeaseLost)
    await recorder.wait_for(JobInterrupted, job_id=job.id)
    release.set()
    (event,) = await recorder.wait_for(JobSucceeded, job_id=job.id)

    # The attempt that it had taken in between is not counted.
    assert event.job.attempts == 1


async def test_a_swept_pool_runs_nothing_under_the_old_id_while_it_enters_the_new_one(
    database, start, recorder, sql
):
    """Nobody hears of the old one, so whatever is locked under it will be taken from it."""
    often = RecoveryOptions(
        lease_duration=timedelta(seconds=30), heartbeat_interval=timedelta(milliseconds=50)
    )
    runner = await start({"endless": endless}, recovery=often)
    job = await runner.add_job("endless")
    (first,) = await recorder.wait_for(JobStarted)
    old = first.pool_id
    await asyncio.to_thread(sql.run, SLOW_FUNCTION)
    await asyncio.to_thread(sql.run, SLOW_ENTRIES)

    await runner.client.recover_workers([old])
    await recorder.wait_for(LeaseLost)
    await wait_until(lambda: sql.run(POOLS) not in ([], [(old,)]))
    new = sql.value(POOLS)

    await wait_until(lambda: read_job_row(sql, job)["locked_by"] == new)


SLOW_FUNCTION = """
create function public.be_slow() returns trigger language plpgsql as $body$
begin
  perform pg_sleep(0.5);
  return new;
end
$body$
"""
SLOW_ENTRIES = """
create trigger be_slow before insert on :ext_schema.pools
for each row execute function public.be_slow()
"""
