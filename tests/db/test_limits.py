"""Limits of tasks: exact over all pools, with full use of slots, and by the database's clock."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from graphile_worker import (
    App,
    ConcurrencyLimit,
    ConfigurationError,
    JobSpec,
    RateLimit,
    RecoveryOptions,
    RunnerStarted,
    SchemaError,
    WorkerOptions,
    run_task_list_once,
)
from graphile_worker._db.database import run_plan_sync
from graphile_worker._sql.plans.limits import plan_set_rate, plan_set_slots
from graphile_worker._sql.queries.limits import (
    describe_task_limits,
    free_dead_slots,
    register_limits,
)
from graphile_worker._sql.queries.workers import recover_jobs, register_pool
from graphile_worker._worker.limit_groups import LimitTimings
from graphile_worker._worker.permits import PermitTimings
from graphile_worker._worker_config import WorkerTimings
from graphile_worker.events import GetJobErrored, GetJobRecovered, LeaseLost
from graphile_worker.options import LocalQueueOptions
from tests.support.clients import record_statements
from tests.support.pools import open_session
from tests.support.recorder import wait_until
from tests.support.timings import set_timings

# Logic of the worker, which test_polling.py runs on the oldest pair too.
pytestmark = pytest.mark.single_version

# The three ways in which a worker fetches jobs.
SOURCES: dict[str, Any] = {
    "prefetch": LocalQueueOptions(),
    "local queue": LocalQueueOptions(size=20),
    "direct": None,
}

USED_ABOVE_2 = """
select count(*) from :ext_schema.slots where pool_id is not null and slot > 2
"""
COUNT_OF = """
select count(*)::int
from :schema._private_jobs as jobs
join :schema._private_tasks as tasks on tasks.id = jobs.task_id
where tasks.identifier = $1
"""
FREE_SLOTS = """
select count(*) filter (where pool_id is null)::int, count(*)::int from :ext_schema.slots
"""
JOBS = "select count(*)::int from :schema._private_jobs"
FAIL = """
create function public.fail() returns trigger language plpgsql
as $$ begin raise exception 'no tokens today'; end $$
"""
FAIL_TOKENS = """
create trigger fail before update on :ext_schema.rates for each row execute function public.fail()
"""


class Gauge:
    """Counts the jobs that run at the same time."""

    def __init__(self) -> None:
        self.running = 0
        self.peak = 0
        self.ended = 0
        self.busy_seconds = 0.0

    @asynccontextmanager
    async def count(self) -> AsyncIterator[None]:
        began = time.monotonic()
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            yield
        finally:
            self.running -= 1
            self.ended += 1
            self.busy_seconds += time.monotonic() - began


@pytest.fixture
def gauge() -> Gauge:
    return Gauge()


@pytest.mark.parametrize("source", SOURCES)
async def test_no_more_jobs_run_at_the_same_time_than_the_limit_over_all_pools(
    app: App, start, sql, gauge, source
):
    @app.task(limit=ConcurrencyLimit(5))
    async def work() -> None:
        async with gauge.count():
            await asyncio.sleep(0.005)

    @app.task
    async def other() -> None: ...

    await app.aadd_jobs([JobSpec("work"), JobSpec("other")] * 60)
    pools = 8 if source == "prefetch" else 2
    runners = [await start(app, concurrency=4, local_queue=SOURCES[source]) for _ in range(pools)]
    await wait_until(lambda: sql.run(JOBS) == [(0,)])
    await asyncio.gather(*(each.stop() for each in runners))

    assert gauge.peak <= 5
    assert gauge.ended == 60
    assert sql.run(FREE_SLOTS) == [(5, 5)]


async def test_jobs_of_a_rate_limit_start_no_faster_than_rate_and_burst(app: App, start, sql):
    starts: list[float] = []

    @app.task(limit=RateLimit(20, per=timedelta(seconds=1), burst=3))
    async def call() -> None:
        starts.append(time.monotonic())

    await app.aadd_jobs([JobSpec("call")] * 20)
    for _ in range(4):
        await start(app, concurrency=4)
    await wait_until(lambda: sql.run(JOBS) == [(0,)])

    # By the database's clock, tokens are taken at least as far apart. Each lasts 250 ms.
    windows = [(b - a, j - i) for i, a in enumerate(starts) for j, b in enumerate(starts) if j > i]
    assert all(count + 1 <= (seconds + 0.25) * 20 + 3 for seconds, count in windows)


async def test_a_job_with_several_limits_needs_a_permit_of_each(app: App, start, sql, gauge):
    shared = ConcurrencyLimit(3, name="shared")
    gauges = {"a": Gauge(), "b": Gauge()}

    @app.task(limit=[shared, ConcurrencyLimit(2)])
    async def a() -> None:
        async with gauge.count(), gauges["a"].count():
            await asyncio.sleep(0.005)

    @app.task(limit=[ConcurrencyLimit(2), shared])
    async def b() -> None:
        async with gauge.count(), gauges["b"].count():
            await asyncio.sleep(0.005)

    await app.aadd_jobs([JobSpec("a"), JobSpec("b")] * 60)
    for _ in range(4):
        await start(app, concurrency=4)
    await wait_until(lambda: sql.run(JOBS) == [(0,)])

    assert gauge.peak <= 3
    assert all(each.peak <= 2 for each in gauges.values())
    assert gauge.ended == 120


@pytest.mark.parametrize(
    "second",
    [ConcurrencyLimit(5, name="api"), RateLimit(1000, per=timedelta(seconds=1), name="api")],
)
async def test_a_task_with_a_second_limit_gets_its_share_of_a_limit_that_is_always_in_use(
    app: App, start, sql, second
):
    shared = ConcurrencyLimit(5, name="shared")

    @app.task(limit=shared)
    async def a() -> None:
        await asyncio.sleep(0.005)

    @app.task(limit=[shared, second])
    async def b() -> None:
        await asyncio.sleep(0.005)

    await app.aadd_jobs([JobSpec("a")] * 1000 + [JobSpec("b")] * 20)
    await start(app, concurrency=10)
    await wait_until(lambda: sql.value(COUNT_OF, "b") == 0)

    assert sql.value(COUNT_OF, "a") > 0


@pytest.mark.parametrize("source", SOURCES)
async def test_run_once_runs_the_jobs_that_their_limits_allow_now(app: App, sql, source):
    @app.task(limit=ConcurrencyLimit(2))
    async def slots() -> None: ...

    @app.task(limit=RateLimit(1, per=timedelta(hours=1), burst=3))
    async def tokens() -> None: ...

    @app.task
    async def free() -> None: ...

    await app.aadd_jobs([JobSpec("slots"), JobSpec("tokens"), JobSpec("free")] * 20)

    runner = app.worker(WorkerOptions(local_queue=SOURCES[source]))
    # On a busy machine, tokens of 250 ms would be lost.
    permits = PermitTimings(token_seconds=60.0)
    set_timings(runner, WorkerTimings(limits=LimitTimings(permits=permits)))
    count = await runner.run_once()

    assert count == 20 + 3 + 20
    assert sql.run(JOBS) == [(17,)]
    assert sql.run(FREE_SLOTS) == [(2, 2)]


async def test_a_limit_that_a_person_changes_takes_effect_while_workers_run(
    app: App, start, sql, gauge, database
):
    @app.task(limit=ConcurrencyLimit(1))
    async def work() -> None:
        async with gauge.count():
            await asyncio.sleep(0.01)

    def set_slots(slots: int) -> None:
        with open_session(database) as session:
            run_plan_sync(session, plan_set_slots("work", slots, session.schemas))

    await start(app, concurrency=6)
    await app.aadd_jobs([JobSpec("work")] * 10)
    await wait_until(lambda: gauge.ended == 10)
    assert gauge.peak == 1

    set_slots(4)
    await app.aadd_jobs([JobSpec("work")] * 200)
    await wait_until(lambda: gauge.running == 4)

    set_slots(2)
    await wait_until(lambda: sql.value(USED_ABOVE_2) == 0)
    gauge.peak = 0
    await wait_until(lambda: sql.run(JOBS) == [(0,)])
    assert gauge.peak <= 2


async def test_a_rate_that_a_person_raises_takes_effect_although_the_next_start_was_far_away(
    app: App, start, sql, gauge, database
):
    @app.task(limit=RateLimit(1, per=timedelta(days=1)))
    async def work() -> None:
        async with gauge.count():
            pass

    permits = PermitTimings(max_token_wait_seconds=0.1)
    await start(app, timings=WorkerTimings(limits=LimitTimings(permits=permits)))
    await app.aadd_jobs([JobSpec("work")] * 20)
    await wait_until(lambda: gauge.ended == 1)

    with open_session(database) as session:
        change = plan_set_rate("work", 1000, timedelta(seconds=1), session.schemas)
        run_plan_sync(session, change)
    await wait_until(lambda: gauge.ended == 20)


async def test_after_a_limit_is_lowered_no_job_starts_until_enough_have_ended(
    app: App, start, sql, gauge, database
):
    may_end: list[asyncio.Event] = []
    may_all_end = False

    @app.task(limit=ConcurrencyLimit(8))
    async def work() -> None:
        event = asyncio.Event()
        may_end.append(event)
        async with gauge.count():
            if not may_all_end:
                await event.wait()

    timings = WorkerTimings(limits=LimitTimings(watch_interval_seconds=0.05))
    await app.aadd_jobs([JobSpec("work")] * 20)
    for _ in range(2):
        await start(app, concurrency=5, timings=timings)
    await wait_until(lambda: gauge.running == 8)
    with open_session(database) as session:
        run_plan_sync(session, plan_set_slots("work", 3, session.schemas))
    # Both pools read the limit every 50 ms.
    await asyncio.sleep(2)

    # All jobs of the slots up to 3 are among those that started first.
    for event in may_end[:5]:
        event.set()
    await wait_until(lambda: gauge.ended == 5)
    await asyncio.sleep(0.7)
    assert (gauge.running, len(may_end)) == (3, 8)

    may_end[5].set()
    await wait_until(lambda: len(may_end) == 9)
    await asyncio.sleep(0.7)
    assert gauge.running == 3
    may_all_end = True
    for event in may_end:
        event.set()
    await wait_until(lambda: sql.run(JOBS) == [(0,)])


async def test_a_worker_starts_no_job_of_a_limit_that_another_version_of_the_app_made_a_rate_limit(
    app: App, start, sql, gauge, database
):
    @app.task(limit=ConcurrencyLimit(2, name="api"))
    async def work() -> None:
        async with gauge.count():
            await asyncio.sleep(0.005)

    timings = WorkerTimings(limits=LimitTimings(watch_interval_seconds=0.05))
    await app.aadd_jobs([JobSpec("work")] * 2000)
    await start(app, concurrency=2, timings=timings)
    await wait_until(lambda: gauge.ended > 10)
    rate = RateLimit(1, per=timedelta(hours=1), name="api")
    with open_session(database) as session:
        details = {"limits": describe_task_limits({"work": [rate]})}
        session.run(register_pool("newer", timedelta(hours=1), details))
        session.run(register_limits([rate]))

    await wait_until(lambda: sql.run(FREE_SLOTS) == [(2, 2)])

    assert sql.value(JOBS) > 0
    ended = gauge.ended
    # When the other worker has stopped, this one registers its limit again.
    sql.run("delete from :ext_schema.pools where id = 'newer'")
    await wait_until(lambda: gauge.ended > ended)


async def test_a_pool_with_all_slots_shares_them_with_a_pool_that_has_none(
    app: App, start, sql, gauge
):
    both = ConcurrencyLimit(2, name="both")

    @app.task(limit=both)
    async def first() -> None:
        async with gauge.count():
            await asyncio.sleep(0.01)

    @app.task(limit=both)
    async def second() -> None:
        async with gauge.count():
            await asyncio.sleep(0.01)

    timings = WorkerTimings(limits=LimitTimings(watch_interval_seconds=0.1))
    await app.aadd_jobs([JobSpec("first")] * 1500 + [JobSpec("second")] * 5)
    await start(app.subset(["first"]), concurrency=2, timings=timings)
    await wait_until(lambda: gauge.ended > 10)

    await start(app.subset(["second"]), concurrency=2, timings=timings)

    await wait_until(lambda: sql.value(COUNT_OF, "second") == 0)
    assert sql.value(COUNT_OF, "first") > 0
    assert gauge.peak == 2


async def test_a_worker_with_limits_that_it_cannot_keep_does_not_start(
    app: App, start, sql, database, role
):
    @app.task(limit=ConcurrencyLimit(1))
    async def work() -> None: ...

    with pytest.raises(
        ConfigurationError, match="task 'work' has a concurrency limit, which needs"
    ):
        await start(app, recovery=None)
    connection = await psycopg.AsyncConnection.connect(database.dsn)
    async with connection:
        with pytest.raises(ConfigurationError, match="which other workers could not see"):
            await run_task_list_once(app, connection, options=WorkerOptions(schema=database.schema))
    sql.run("drop table :ext_schema.slots")
    with pytest.raises(SchemaError, match="task 'work' has a limit, and schema"):
        await start(app, migrate=False)


async def test_a_pool_whose_jobs_were_recovered_starts_none_before_it_has_new_slots(
    app: App, start, recorder, sql, gauge, database
):
    release = asyncio.Event()

    @app.task(limit=ConcurrencyLimit(1))
    async def work() -> None:
        async with gauge.count():
            await release.wait()

    often = RecoveryOptions(heartbeat_interval=timedelta(milliseconds=50))
    await app.aadd_jobs([JobSpec("work")] * 2)
    runner = await start(app, concurrency=2, recovery=often)
    await wait_until(lambda: gauge.running == 1)
    (started,) = recorder.events_of(RunnerStarted)
    with open_session(database) as session:
        session.run(recover_jobs([started.pool_id], timedelta(0), 3, is_confirmed_dead=True))
        session.run(free_dead_slots())

    await recorder.wait_for(LeaseLost)
    await wait_until(lambda: gauge.ended == 1 and gauge.running == 1)
    release.set()
    await wait_until(lambda: sql.run(JOBS) == [(0,)])

    assert gauge.peak == 1
    await runner.stop()
    assert sql.run(FREE_SLOTS) == [(1, 1)]


@pytest.mark.parametrize("source", SOURCES)
async def test_run_once_raises_an_error_that_keeps_limited_jobs_from_starting(
    app: App, sql, source
):
    @app.task(limit=RateLimit(1, per=timedelta(hours=1)))
    async def tokens() -> None: ...

    sql.run(FAIL)
    sql.run(FAIL_TOKENS)
    await app.aadd_job("tokens")

    async with asyncio.timeout(30):
        with pytest.raises(psycopg.errors.RaiseException, match="no tokens today"):
            await app.worker(WorkerOptions(local_queue=SOURCES[source])).run_once()


async def test_an_error_of_one_limit_is_reported_and_other_limits_go_on(
    app: App, start, recorder, sql, gauge, caplog
):
    @app.task(limit=RateLimit(1, per=timedelta(hours=1)))
    async def tokens() -> None: ...

    @app.task(limit=ConcurrencyLimit(1))
    async def slots() -> None:
        async with gauge.count():
            await asyncio.sleep(0)

    sql.run(FAIL)
    sql.run(FAIL_TOKENS)
    await app.aadd_job("tokens")
    runner = await start(app, concurrency=2)
    await recorder.wait_for(GetJobErrored)
    assert not runner.is_ready
    assert "no tokens today" in caplog.text
    await app.aadd_jobs([JobSpec("slots")] * 20)
    await wait_until(lambda: gauge.ended == 20)
    assert not recorder.events_of(GetJobRecovered)

    sql.run("drop trigger fail on :ext_schema.rates")

    await recorder.wait_for(GetJobRecovered)
    await wait_until(lambda: runner.is_ready)
    await wait_until(lambda: sql.run(JOBS) == [(0,)])


@pytest.mark.parametrize("source", SOURCES)
async def test_a_worker_with_only_limited_tasks_is_not_ready_while_it_cannot_read_limits(
    app: App, start, sql, source
):
    @app.task(limit=ConcurrencyLimit(1))
    async def work() -> None: ...

    timings = WorkerTimings(limits=LimitTimings(watch_interval_seconds=0.05))
    runner = await start(app, local_queue=SOURCES[source], timings=timings)
    assert runner.is_ready

    sql.run("alter table :ext_schema.slots rename to renamed")
    await wait_until(lambda: not runner.is_ready)
    sql.run("alter table :ext_schema.renamed rename to slots")

    await wait_until(lambda: runner.is_ready)


async def test_a_failure_is_logged_once_while_all_workers_are_busy(
    app: App, start, sql, gauge, caplog
):
    caplog.set_level(logging.DEBUG, "graphile_worker")
    release = asyncio.Event()

    @app.task(limit=ConcurrencyLimit(1))
    async def work() -> None:
        async with gauge.count():
            await release.wait()

    timings = WorkerTimings(limits=LimitTimings(watch_interval_seconds=0.05))
    await app.aadd_job("work")
    runner = await start(app, concurrency=1, timings=timings)
    await wait_until(lambda: gauge.running == 1)

    sql.run("alter table :ext_schema.slots rename to renamed")
    await wait_until(lambda: caplog.text.count("claiming limited jobs failed, retrying") >= 3)
    warnings = [each.message for each in caplog.records if each.levelname == "WARNING"]
    sql.run("alter table :ext_schema.renamed rename to slots")
    await wait_until(lambda: "claiming limited jobs succeeds again" in caplog.text)
    release.set()

    assert len(warnings) == 1
    await wait_until(lambda: gauge.ended == 1)
    assert runner.is_ready


async def test_an_app_without_limits_runs_no_statement_about_limits(app: App, start, monkeypatch):
    statements = record_statements(monkeypatch)

    @app.task
    async def work() -> None: ...

    await app.aadd_jobs([JobSpec("work")] * 3)
    await app.worker().run_once()

    words = ("slot", "limit", "token", "ready_tasks")
    found = {each for each in statements if any(word in each for word in words)}
    # Of SlowQueryDatabase.
    assert found <= {"set_query_limits"}
