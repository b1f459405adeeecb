"""Which pools live: they enter themselves, are heard of in time, and sign off as they end."""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg_pool
import pytest
from psycopg.conninfo import make_conninfo
from sqlalchemy.ext.asyncio import create_async_engine

from graphile_worker import (
    JobContext,
    RecoveryOptions,
    WorkerOptions,
    run_once,
    run_task_list_once,
    sync,
)
from graphile_worker._db.database import run_plan_sync
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.workers import (
    check_registries,
    delete_dead_pools,
    get_dead_pools,
    has_registry,
    heartbeat,
    mark_pools_stopped,
    recover_jobs,
    register_pool,
    unregister_pools,
)
from graphile_worker.events import (
    Event,
    HeartbeatFailed,
    JobInterrupted,
    JobRecovered,
    JobStarted,
    JobSucceeded,
    LeaseLost,
    RunnerStarted,
    RunnerStopped,
)
from graphile_worker.ops.snapshot import plan_snapshot
from tests.support.clients import before_each_statement, record_statements
from tests.support.pools import Pool, open_session, read_job_row
from tests.support.recorder import wait_until
from tests.support.sql import Sql
from tests.support.tasks import endless, nothing
from tests.support.timings import make_heartbeat_timings

# Logic of the worker, which test_polling.py runs on the oldest pair too.
pytestmark = pytest.mark.single_version

HOUR = timedelta(hours=1)
NOW = timedelta(0)

# Shorter than any server of a test has been up.
LEASE = timedelta(milliseconds=50)

POOLS = "select id from :ext_schema.pools where swept_at is null order by id"
SEEN = "select seen_at from :ext_schema.pools where id = $1"

# So long that a busy machine does not let it lapse, with heartbeats that need not be waited for.
OFTEN = RecoveryOptions(
    lease_duration=timedelta(seconds=30),
    heartbeat_interval=timedelta(milliseconds=50),
    rescue_interval=timedelta(milliseconds=50),
)
EARLY_REGISTRY_CHECK = make_heartbeat_timings(registry_check_interval_seconds=0.05)


@pytest.fixture
def client(blocking_client):
    return blocking_client


def enter(pool: Pool, *pool_ids: str, lease: timedelta = LEASE) -> None:
    for pool_id in pool_ids:
        pool.connection.run(register_pool(pool_id, lease, {"runtime": "test"}))


def beat(pool: Pool, *pool_ids: str, started: list[int] | None = None) -> set[str]:
    heard = pool.connection.run(heartbeat(list(pool_ids), started or []))
    return set(heard.server_times)


def silent(pool: Pool, asking: str = "asking") -> list[str]:
    """Who is silent in the eyes of a pool that lives."""
    enter(pool, asking, lease=HOUR)
    found = pool.connection.run(get_dead_pools(asking))
    return sorted(found)


def not_seen_for(sql: Sql, pool_id: str, age: timedelta) -> None:
    sql.run("update :ext_schema.pools set seen_at = now() - $2 where id = $1", pool_id, age)


def entered(sql: Sql) -> list[str]:
    """The pools that live, as far as is known."""
    return [pool_id for (pool_id,) in sql.run(POOLS)]


# Entering


@pytest.mark.feature("F220")
def test_a_pool_enters_itself_with_its_lease_and_details(pool, sql):
    pool.connection.run(register_pool("a", timedelta(seconds=30), {"host": "ada"}))

    found = sql.run("""
      select id, lease, started_jobs, details ->> 'host', seen_at = started_at,
        now() - seen_at < interval '1 minute'
      from :ext_schema.pools
    """)
    assert found == [("a", timedelta(seconds=30), [], "ada", True, True)]


def test_to_enter_twice_is_harmless(pool, sql):
    enter(pool, "a", lease=HOUR)
    not_seen_for(sql, "a", HOUR)
    before = sql.run("select started_at, lease from :ext_schema.pools")

    enter(pool, "a", lease=HOUR)

    assert sql.run("select started_at, lease from :ext_schema.pools") == before
    assert sql.value("select now() - seen_at < interval '1 minute' from :ext_schema.pools")


def test_where_the_registry_is_and_may_be_used_it_is_found(pool, database):
    assert pool.connection.run(has_registry(Schemas.from_names(database.schema))) is True


@pytest.mark.parametrize(
    "missing",
    [
        "drop schema :ext_schema cascade",
        "drop table :ext_schema.pools",
        "drop table :ext_schema.recoveries",
    ],
)
def test_a_registry_that_is_not_whole_is_not_found(pool, database, sql, missing):
    sql.run(missing)

    assert pool.connection.run(has_registry(Schemas.from_names(database.schema))) is False


RIGHTS = {
    "grant usage on schema :ext_schema to {role}": False,
    "grant select, insert, update on all tables in schema :ext_schema to {role}": False,
    "grant delete on :ext_schema.pools to {role}": False,
    "grant delete on :ext_schema.recoveries to {role}": True,
}


def test_a_registry_that_a_role_may_not_use_is_not_found(database, sql):
    role = f"role_{database.name}"
    sql.run(f"create role {role} login")
    found = {}

    with open_session(database, role=role) as connection:
        for right in RIGHTS:
            sql.run(right.format(role=role))
            found[right] = connection.run(has_registry(Schemas.from_names(database.schema)))

    assert found == RIGHTS
    sql.run(f"drop owned by {role}")
    sql.run(f"drop role {role}")


def test_a_registry_that_another_role_owns_is_not_found(pool, database, sql):
    """To use it could run code of that role."""
    role = f"role_{database.name}"
    schemas = Schemas.from_names(database.schema)
    sql.run(f"create role {role}")
    for thing in ("schema :ext_schema", "table :ext_schema.pools"):
        sql.run(f"alter {thing} owner to {role}")
        assert pool.connection.run(has_registry(schemas)) is False
        assert pool.connection.run(check_registries(schemas)) == (False, False)
        sql.run(f"alter {thing} owner to postgres")

    assert pool.connection.run(check_registries(schemas)) == (True, False)
    sql.run(f"drop role {role}")


# Heartbeats


@pytest.mark.feature("F220")
def test_a_heartbeat_records_its_time_and_the_started_jobs(pool, sql):
    enter(pool, "a")
    not_seen_for(sql, "a", HOUR)

    assert beat(pool, "a", started=[7, 8]) == {"a"}

    (found,) = sql.run("""
      select started_jobs, now() - seen_at < interval '1 minute' from :ext_schema.pools
    """)
    assert found == ([7, 8], True)


def test_the_next_heartbeat_replaces_what_was_started(pool, sql):
    enter(pool, "a")
    beat(pool, "a", started=[7, 8])

    beat(pool, "a", started=[9])

    assert sql.value("select started_jobs from :ext_schema.pools") == [9]


def test_a_heartbeat_is_for_as_many_ids_as_a_pool_has_and_for_no_others(pool, sql):
    enter(pool, "a", "b", "c")
    for each in "abc":
        not_seen_for(sql, each, HOUR)

    assert beat(pool, "a", "b") == {"a", "b"}

    assert silent(pool) == ["c"]


def test_a_heartbeat_is_answered_with_the_time_of_the_server(pool, sql):
    enter(pool, "a", "b")

    with pool.connection.transaction() as connection:
        found = connection.run(heartbeat(["a", "b"], []))

    (seen,) = sql.run("select distinct extract(epoch from seen_at)::float8 from :ext_schema.pools")
    assert found.server_times == {"a": seen[0], "b": seen[0]}
    started = sql.value("select extract(epoch from pg_postmaster_start_time())::float8")
    assert found.server_started_at == started


@pytest.mark.feature("F221")
def test_the_heartbeat_of_a_lost_pool_id_has_no_effect(pool, sql):
    enter(pool, "a", "b")
    sweep(pool, sql, "a")
    before = sql.run("select id, seen_at, swept_at from :ext_schema.pools where id = 'a'")

    assert beat(pool, "a", "b") == {"b"}

    assert entered(sql) == ["b"]
    assert sql.run("select id, seen_at, swept_at from :ext_schema.pools where id = 'a'") == before


def test_a_swept_pool_cannot_enter_itself_again(pool, sql):
    enter(pool, "a")
    sweep(pool, sql, "a")

    enter(pool, "a")

    assert entered(sql) == []
    assert beat(pool, "a") == set()
    assert sql.value("select seen_at < now() - interval '59 minutes' from :ext_schema.pools")


def sweep(pool: Pool, sql: Sql, pool_id: str) -> None:
    not_seen_for(sql, pool_id, HOUR)
    pool.connection.run(recover_jobs([pool_id], NOW, 3))


def test_who_signs_off_is_gone_and_others_are_not(pool, sql):
    enter(pool, "a", "b", "c")

    pool.connection.run(unregister_pools(["a", "c", "unknown"]))

    assert entered(sql) == ["b"]


def test_the_jobs_that_a_stopped_pool_locks_late_are_released_as_those_of_a_silent_one(
    pool, client, sql
):
    enter(pool, "living", "stopped")
    job = client.add_job("task")
    beat(pool, "stopped", started=[job.id])

    pool.connection.run(mark_pools_stopped(["stopped"]))

    snapshot = run_plan_sync(pool.connection, plan_snapshot(pool.connection.schemas))
    assert [each.id for each in snapshot.pools] == ["living"]
    # A fetch whose answer never came.
    pool.with_id("stopped").claim_one()
    for each in ("living", "stopped"):
        not_seen_for(sql, each, 2 * LEASE)
    assert silent(pool) == ["living", "stopped"]
    [recovery] = pool.connection.run(recover_jobs(["stopped"], NOW, 3))
    assert recovery.was_started is False


# Silence


def test_a_pool_is_silent_once_it_was_not_seen_for_longer_than_its_lease(pool, sql):
    enter(pool, "a", "b")
    not_seen_for(sql, "a", 2 * LEASE)
    not_seen_for(sql, "b", -HOUR)

    assert silent(pool) == ["a"]


def test_a_pool_without_its_own_heartbeat_finds_no_dead_pools(pool, sql):
    """Then it was the database that could not be reached, or somebody has moved its clock."""
    enter(pool, "silent", "asking")
    not_seen_for(sql, "silent", HOUR)
    asked = get_dead_pools("asking")

    not_seen_for(sql, "asking", LEASE)
    assert pool.connection.run(asked) == []
    sql.run("update :ext_schema.pools set lease = '10 minutes' where id = 'asking'")
    assert pool.connection.run(asked) == ["silent"]
    assert pool.connection.run(get_dead_pools("unknown")) == []


def test_a_swept_pool_comes_up_again_after_another_lease(pool, sql):
    """A fetch that it had sent may have reached the server after the sweep."""
    enter(pool, "a", lease=LEASE)
    sweep(pool, sql, "a")
    sql.run("update :ext_schema.pools set swept_at = now() + interval '1 minute' where id = 'a'")
    assert silent(pool) == []

    sql.run("update :ext_schema.pools set swept_at = now() - 2 * lease where id = 'a'")

    assert silent(pool) == ["a"]


@pytest.mark.parametrize("holds", [True, False])
def test_a_swept_pool_is_forgotten_after_another_lease_if_nothing_is_left_of_it(
    pool, client, sql, holds
):
    for each in ("early", "late", "living"):
        enter(pool, each)
    for each in ("early", "late"):
        sweep(pool, sql, each)
    sql.run("update :ext_schema.pools set swept_at = now() - lease * 2 where id = 'late'")
    sql.run("update :ext_schema.pools set swept_at = now() + '1 hour' where id = 'early'")
    if holds:
        client.add_job("task")
        pool.with_id("late").claim_one()

    assert pool.connection.run(delete_dead_pools()) == ["late"] * holds

    left = {pool_id for (pool_id,) in sql.run("select id from :ext_schema.pools")}
    assert left == {"early", "living", *["late"] * holds}


@pytest.mark.feature("F221")
def test_each_pool_has_its_own_lease_duration(pool, sql):
    enter(pool, "patient", lease=timedelta(seconds=30))
    enter(pool, "hasty", lease=LEASE)
    for each in ("patient", "hasty"):
        not_seen_for(sql, each, timedelta(seconds=10))

    assert silent(pool) == ["hasty"]


@pytest.mark.feature("F217")
def test_by_default_the_dead_are_found_within_45_seconds():
    chosen = RecoveryOptions()

    # Heard of for the last time, and looked for right before it counts as silent.
    assert chosen.lease_duration + chosen.effective_rescue_interval <= timedelta(seconds=45)


def test_no_pool_is_dead_before_the_server_is_up_for_a_lease_duration(pool, sql):
    """Nobody could be seen while it was down, however long ago that began."""
    up = sql.value("select now() - pg_postmaster_start_time()")
    enter(pool, "longer", lease=up + HOUR)
    enter(pool, "shorter", lease=min(up / 2, LEASE))
    for each in ("longer", "shorter"):
        not_seen_for(sql, each, up + 2 * HOUR)

    assert silent(pool) == ["shorter"]


# A worker's life


@pytest.mark.feature("F220")
async def test_a_worker_is_entered_before_it_runs_its_first_job(start, recorder, sql):
    seen: list[Any] = []

    async def look(payload: object, ctx: JobContext) -> None:
        seen.append((ctx.pool_id, await asyncio.to_thread(entered, sql)))

    sql.run("select :schema.add_job('look')")
    await start({"look": look}, concurrency=3)
    (event,) = await recorder.wait_for(JobSucceeded)

    assert seen == [(event.pool_id, [event.pool_id])]
    (found,) = sql.run("select lease, details from :ext_schema.pools")
    assert found[0] == RecoveryOptions().lease_duration
    assert abs(found[1].pop("clock") - time.time()) < 60
    assert found[1] | {"host": "", "version": ""} == {
        "runtime": "python",
        "version": "",
        "host": "",
        "pid": os.getpid(),
        "concurrency": 3,
        "tasks": ["look"],
    }


@pytest.mark.feature("F220")
async def test_a_worker_sends_heartbeats_with_its_started_jobs(start, recorder, sql):
    done = asyncio.Event()

    async def linger(payload: object) -> None:
        await done.wait()

    runner = await start({"linger": linger}, recovery=OFTEN)
    job = await runner.add_job("linger")
    (event,) = await recorder.wait_for(JobStarted)
    await wait_until(lambda: sql.run("select started_jobs from :ext_schema.pools") == [([job.id],)])
    seen = sql.value(SEEN, event.pool_id)

    await wait_until(lambda: sql.value(SEEN, event.pool_id) > seen)
    done.set()
    await wait_until(lambda: sql.run("select started_jobs from :ext_schema.pools") == [([],)])


async def test_workers_of_one_process_are_entered_one_by_one(start, recorder, sql):
    for _ in range(3):
        await start({"work": nothing})

    assert set(entered(sql)) == {event.pool_id for event in recorder.events_of(RunnerStarted)}
    assert len(entered(sql)) == 3


@pytest.mark.feature("F219")
async def test_without_recovery_a_worker_neither_registers_nor_sweeps(
    start, recorder, sql, pool, client, monkeypatch
):
    left = dead_pool_with_a_job(pool, client, sql)
    statements = record_statements(monkeypatch)

    runner = await start({"work": nothing}, recovery=None)
    await runner.add_job("work")
    await recorder.wait_for(JobSucceeded)
    await runner.stop()

    of_leases = {"register_pool", "heartbeat", "unregister_pools", "get_dead_pools", "recover_jobs"}
    assert of_leases.isdisjoint(statements)
    assert entered(sql) == ["dead"]
    assert read_job_row(sql, left)["locked_by"] == "dead"


@pytest.mark.feature("F219")
async def test_recovery_is_on_unless_it_is_turned_off(start, recorder, sql, pool, client):
    assert WorkerOptions().recovery == RecoveryOptions()
    left = dead_pool_with_a_job(pool, client, sql)

    await start({"work": nothing, "task": nothing}, recovery=OFTEN)

    await recorder.wait_for(JobRecovered, job_id=left.id)


def dead_pool_with_a_job(pool: Pool, client: sync.Client, sql: Sql) -> Any:
    job = client.add_job("task")
    enter(pool, "dead")
    pool.with_id("dead").claim_one()
    not_seen_for(sql, "dead", HOUR)
    return job


async def test_a_dead_pool_is_forgotten_in_the_end(start, recorder, sql, pool, client):
    left = dead_pool_with_a_job(pool, client, sql)

    await start({"other": nothing}, recovery=OFTEN)
    await recorder.wait_for(JobRecovered, job_id=left.id)

    await wait_until(lambda: not sql.run("select 1 from :ext_schema.pools where id = 'dead'"))


# Signing off


@pytest.mark.feature("F220")
@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_worker_that_ends_leaves_no_row(start, recorder, sql, how):
    runner = await start({"work": nothing, "endless": endless}, recovery=OFTEN)
    await runner.add_job("work" if how == "stop" else "endless")
    await recorder.wait_for(JobSucceeded if how == "stop" else JobStarted)

    await getattr(runner, how)()

    assert entered(sql) == []
    assert recorder.events_of(LeaseLost) == []


async def test_a_heartbeat_that_comes_as_a_worker_ends_does_not_enter_it_again(
    start, recorder, sql, monkeypatch
):
    loop = asyncio.get_running_loop()

    def be_busy(statement: str) -> None:
        # The program hears late that it has signed off, when the next heartbeats would be due.
        if statement == "unregister_pools":
            loop.call_soon_threadsafe(time.sleep, 0.3)

    before_each_statement(monkeypatch, be_busy)
    runner = await start({"work": nothing}, recovery=OFTEN)

    await runner.stop()

    assert entered(sql) == []
    assert recorder.events_of(LeaseLost) == []


async def test_a_worker_that_cannot_start_leaves_no_row(start, sql):
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        assert len(entered(sql)) == 1
        raise OSError("no such host")
        yield

    with pytest.raises(OSError, match="no such host"):
        await start({"work": nothing}, lifespan=lifespan)

    assert entered(sql) == []


@pytest.mark.feature("F146")
async def test_the_sign_off_comes_after_the_last_job_was_written(start, recorder, sql):
    sql.run("create table public.signed_off (locked bigint, queues bigint, jobs bigint)")
    sql.run("""
      create function public.note_sign_off() returns trigger language plpgsql as $body$
      begin
        insert into public.signed_off
        select
          (select count(*) from :schema._private_jobs where locked_by is not null),
          (select count(*) from :schema._private_job_queues where locked_by is not null),
          (select count(*) from :schema._private_jobs);
        return old;
      end
      $body$
    """)
    sql.run("""
      create trigger note_sign_off after delete on :ext_schema.pools
      for each row execute function public.note_sign_off()
    """)

    async def linger(payload: object, ctx: JobContext) -> None:
        await ctx.wait_cancelled()
        await asyncio.sleep(0.3)

    patience = timedelta(milliseconds=50)
    runner = await start({"linger": linger}, concurrency=4, cancel_after=patience)
    for n in range(4):
        await runner.add_job("linger", queue_name=f"queue {n}")
    await recorder.wait_for(JobStarted, count=4)
    await runner.stop()

    assert len(recorder.events_of(JobSucceeded)) == 4
    assert sql.run("select locked, queues, jobs from public.signed_off") == [(0, 0, 0)]


@pytest.mark.feature("F146")
async def test_a_worker_starts_and_stops_in_this_order(start, recorder, monkeypatch):
    story: list[str] = []
    before_each_statement(monkeypatch, story.append)
    recorder.hooks.on(Event)(lambda event: story.append(event.name))

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        story.append("lifespan begins")
        yield
        story.append("lifespan ends")

    often = RecoveryOptions(rescue_interval=timedelta(milliseconds=10))
    runner = await start({"work": nothing}, lifespan=lifespan, recovery=often)
    await runner.add_job("work")
    await recorder.wait_for(JobSucceeded)
    await wait_until(lambda: "get_dead_pools" in story)
    await runner.stop()

    steps = [
        "register_pool",
        "lifespan begins",
        "runner:started",
        "claim_first_job",
        "job:start",
        "complete_claimed_jobs",
        "job:success",
        "pool:gracefulShutdown",
        "lifespan ends",
        "stop",
        "unregister_pools",
    ]
    assert sorted(steps, key=story.index) == steps
    assert story[-1] == "unregister_pools"
    # It sweeps while it takes jobs, neither before nor after.
    sweeps = [n for n, each in enumerate(story) if each == "get_dead_pools"]
    assert story.index("runner:started") < sweeps[0]
    assert sweeps[-1] < story.index("lifespan ends")


# Once


@pytest.mark.feature("F219", "F221")
async def test_run_once_registers_sweeps_at_its_start_and_signs_off(
    database, recorder, sql, pool, client, monkeypatch
):
    left = dead_pool_with_a_job(pool, client, sql)
    statements = record_statements(monkeypatch)
    options = WorkerOptions(schema=database.schema)

    count = await run_once(database.dsn, {"task": nothing}, options=options, hooks=recorder.hooks)

    assert count == 1
    assert [event.job.id for event in recorder.events_of(JobRecovered)] == [left.id]
    assert entered(sql) == []
    steps = [
        "register_pool",
        "get_dead_pools",
        "recover_jobs",
        "check_ready_jobs",
        "unregister_pools",
    ]
    assert sorted(steps, key=statements.index) == steps
    assert statements.count("get_dead_pools") == 1
    assert statements[-1] == "unregister_pools"


async def test_a_callers_own_transaction_is_entered_nowhere(database, recorder, sql, client):
    """What is locked in it is unlocked with it."""
    client.add_job("work")
    options = WorkerOptions(schema=database.schema)

    async with asyncpg_connection(database) as connection:
        count = await run_task_list_once({"work": nothing}, connection, options=options)

    assert count == 1
    assert entered(sql) == []


@asynccontextmanager
async def asyncpg_connection(database: Any) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(database.url)
    try:
        yield connection
    finally:
        await connection.close()


# Registries that come and go


def companion_back(database: Any, sql: Sql) -> None:
    """Somebody else migrates, who may."""
    with sync.Client(database.dsn, schema=database.schema) as client:
        client.migrate()


async def test_a_worker_without_companion_schema_runs_and_registers_once_it_is_there(
    database, start, recorder, sql, caplog
):
    sql.run("drop schema :ext_schema cascade")

    runner = await start(
        {"work": nothing}, migrate=False, recovery=OFTEN, timings=EARLY_REGISTRY_CHECK
    )
    await runner.add_job("work")
    (event,) = await recorder.wait_for(JobSucceeded)
    warnings = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    await asyncio.to_thread(companion_back, database, sql)

    assert [each for each in warnings if "4 hours" in each]
    assert len(warnings) == 1
    await wait_until(lambda: entered(sql) == [event.pool_id])
    assert recorder.events_of(HeartbeatFailed) == []


@pytest.fixture
def role(role: str, sql: Sql) -> str:
    """A role that may use the shared schema."""
    sql.run(f"alter role {role} bypassrls")
    sql.run(f"grant usage on schema :schema to {role}")
    sql.run(f"grant all on all tables in schema :schema to {role}")
    sql.run(f"grant all on all sequences in schema :schema to {role}")
    return role


async def test_a_worker_that_may_not_use_the_companion_runs_too(
    database, start, recorder, sql, role, caplog
):
    dsn = make_conninfo(database.dsn, user=role)

    runner = await start({"work": nothing}, on=dsn, recovery=OFTEN)
    await runner.add_job("work")
    await recorder.wait_for(JobSucceeded)

    assert [each for each in caplog.records if "4 hours" in each.getMessage()]
    assert entered(sql) == []
    await runner.stop()


async def test_a_worker_that_loses_its_registry_privileges_continues_under_another_id(
    database, start, recorder, sql, role
):
    """Under the old one it stays entered, so others will take it for dead."""
    sql.run(f"grant usage on schema :ext_schema to {role}")
    sql.run(f"grant all on all tables in schema :ext_schema to {role}")
    dsn = make_conninfo(database.dsn, user=role)
    runner = await start({"endless": endless}, on=dsn, recovery=OFTEN)
    job = await runner.add_job("endless")
    (first,) = await recorder.wait_for(JobStarted)
    assert entered(sql) == [first.pool_id]

    revoke = f"revoke update on :ext_schema.pools from {role}"
    await asyncio.to_thread(sql.run, revoke)

    (swept,) = await recorder.wait_for(LeaseLost)
    assert (swept.old_pool_id, swept.job_ids) == (first.pool_id, (job.id,))
    await recorder.wait_for(JobInterrupted, job_id=job.id)
    (_, again) = await recorder.wait_for(JobStarted, count=2)
    assert again.pool_id == swept.pool_id != first.pool_id
    assert read_job_row(sql, job)["locked_by"] == swept.pool_id
    assert entered(sql) == [first.pool_id]
    await runner.kill()


async def test_a_registry_that_is_dropped_does_not_stop_a_worker(database, start, recorder, sql):
    runner = await start({"work": nothing}, recovery=OFTEN, timings=EARLY_REGISTRY_CHECK)

    await asyncio.to_thread(sql.run, "drop schema :ext_schema cascade")
    await recorder.wait_for(HeartbeatFailed)
    await runner.add_job("work")
    (event,) = await recorder.wait_for(JobSucceeded)

    await asyncio.to_thread(companion_back, database, sql)
    await wait_until(lambda: entered(sql) == [event.pool_id])
    seen = sql.value(SEEN, event.pool_id)
    await wait_until(lambda: sql.value(SEEN, event.pool_id) > seen)
    await runner.stop()
    assert entered(sql) == []


# Lent pools


@asynccontextmanager
async def psycopg_pool_of(database: Any) -> AsyncIterator[Any]:
    async with psycopg_pool.AsyncConnectionPool(
        database.dsn, min_size=1, max_size=4, open=False
    ) as pool:
        yield pool


@asynccontextmanager
async def asyncpg_pool_of(database: Any) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(database.url, min_size=1, max_size=4) as pool:
        yield pool


def engine_of(driver: str) -> Callable[[Any], Any]:
    @asynccontextmanager
    async def lend(database: Any) -> AsyncIterator[Any]:
        engine = create_async_engine(database.sqlalchemy_url(driver))
        yield engine
        await engine.dispose()

    return lend


LENT = {
    "psycopg": psycopg_pool_of,
    "asyncpg": asyncpg_pool_of,
    "SQLAlchemy, psycopg": engine_of("psycopg"),
    "SQLAlchemy, asyncpg": engine_of("asyncpg"),
}


@pytest.mark.feature("F220")
@pytest.mark.parametrize("kind", LENT)
async def test_a_worker_on_a_callers_pool_sends_heartbeats_and_recovers_jobs(
    kind, database, start, recorder, sql, pool, client
):
    left = dead_pool_with_a_job(pool, client, sql)

    async with LENT[kind](database) as lent:
        runner = await start({"task": nothing}, on=lent, recovery=OFTEN)
        await recorder.wait_for(JobRecovered, job_id=left.id)
        (event,) = await recorder.wait_for(JobSucceeded, job_id=left.id)
        assert entered(sql) == [event.pool_id]
        seen = sql.value(SEEN, event.pool_id)
        await wait_until(lambda: sql.value(SEEN, event.pool_id) > seen)
        await runner.stop()

    assert entered(sql) == []
    assert recorder.events_of(RunnerStopped)
    assert recorder.events_of(HeartbeatFailed) == []
