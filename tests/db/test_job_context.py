"""The job context of async tasks and of plain functions."""

import asyncio
import inspect
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import psycopg
import psycopg_pool
import pytest
from psycopg.conninfo import make_conninfo

from graphile_worker import (
    ConfigurationError,
    JobSpec,
    Logger,
    QueueBusy,
    Shards,
    WorkerOptions,
)
from graphile_worker._db.worker_connections import ConnectionTimings
from graphile_worker._worker_config import WorkerTimings
from graphile_worker.events import JobErrored, JobFinished, JobStarted, JobSucceeded
from graphile_worker.runner import build_runner
from tests.support.proxy import CutAfterRequest
from tests.support.recorder import wait_until
from tests.support.tiers import size
from tests.support.timings import set_timings

# What Python does: test_statements.py runs each statement on the oldest pair too.
pytestmark = pytest.mark.single_version

HOUR = timedelta(hours=1)
SOON = timedelta(milliseconds=20)
PID = "select pg_backend_pid() as pid"

both_kinds = pytest.mark.parametrize("kind", ["async", "plain"])


@pytest.fixture
def run(start, recorder) -> Callable[..., Any]:
    """Run one job of a function of its context; the job."""

    async def run(task: Callable[[Any], Any], *, job: Any = None, **options: Any) -> Any:
        runner = await start({"work": taking_context(task)}, **options)
        added = await runner.add_job("work", **(job or {}))
        [ended] = await recorder.wait_for(JobFinished, job_id=added.id)
        await runner.stop()
        assert ended.error is None, ended.error
        return ended.job

    return run


def taking_context(task: Callable[[Any], Any]) -> Callable[..., Any]:
    """The function as it would stand in a mapping of tasks: payload first."""
    if inspect.iscoroutinefunction(task):

        async def call(payload: object, ctx: Any) -> None:
            await task(ctx)

        return call
    return lambda payload, ctx: task(ctx)


def in_both_ways(look: Callable[[Any], object]) -> dict[str, Callable[[Any], Any]]:
    """A plain function of the context, and the same as an async task."""

    async def look_async(ctx: Any) -> None:
        look(ctx)

    return {"async": look_async, "plain": look}


# Attributes


@pytest.mark.feature("F122", "F123")
@both_kinds
async def test_the_job_is_the_whole_row(run, kind):
    seen: list[Any] = []
    options = {
        "payload": {"a": [1, 2]},
        "queue_name": "q",
        "priority": -3,
        "max_attempts": 7,
        "job_key": "k",
        "flags": ["f"],
    }

    await run(in_both_ways(lambda ctx: seen.append(ctx.job))[kind], job=options)

    [job] = seen
    assert (job.task_identifier, job.payload, job.queue_name) == ("work", {"a": [1, 2]}, "q")
    assert (job.priority, job.attempts, job.max_attempts) == (-3, 1, 7)
    assert (job.key, job.flags, job.last_error) == ("k", frozenset({"f"}), None)
    assert job.created_at <= job.locked_at


@both_kinds
async def test_a_second_attempt_has_the_error_of_the_first(start, recorder, sql, kind):
    seen: list[Any] = []

    def look(ctx: Any) -> None:
        seen.append((ctx.job.attempts, ctx.job.last_error))
        if len(seen) == 1:
            raise ValueError("no good")

    task = taking_context(in_both_ways(look)[kind])
    runner = await start({"work": task}, poll_interval=SOON)
    await runner.add_job("work")
    await recorder.wait_for(JobErrored)
    sql.run("update :schema._private_jobs set run_at = now()")
    await recorder.wait_for(JobSucceeded)

    assert seen[0] == (1, None)
    assert seen[1][0] == 2
    assert seen[1][1].startswith("ValueError: no good")


@pytest.mark.feature("F128")
@both_kinds
async def test_the_context_has_the_ids_of_pool_and_worker(run, recorder, database, kind):
    seen: list[Any] = []

    def look(ctx: Any) -> None:
        seen.append((ctx.pool_id, ctx.worker_id, ctx.schema, ctx.queue_name))

    await run(in_both_ways(look)[kind], job={"queue_name": "q"})

    [started] = recorder.events_of(JobStarted)
    assert seen == [(started.pool_id, started.worker_id, database.schema, "q")]


@both_kinds
async def test_a_job_without_a_queue_has_no_queue_name(run, kind):
    seen: list[Any] = []

    await run(in_both_ways(lambda ctx: seen.append(ctx.queue_name))[kind])

    assert seen == [None]


@pytest.mark.feature("F129")
@both_kinds
async def test_deps_are_what_the_lifespan_yielded(run, kind):
    seen: list[Any] = []
    client = object()

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[object]:
        yield client

    await run(in_both_ways(lambda ctx: seen.append(ctx.deps))[kind], lifespan=lifespan)

    assert seen == [client]


@both_kinds
async def test_a_job_of_the_crontab_has_its_minute(run, kind):
    seen: list[Any] = []
    mark = {"ts": "2035-06-07T08:09:00.000Z", "backfilled": True}

    await run(
        in_both_ways(lambda ctx: seen.append(ctx.cron))[kind], job={"payload": {"_cron": mark}}
    )

    [cron] = seen
    assert cron.scheduled_at == datetime(2035, 6, 7, 8, 9, tzinfo=UTC)
    assert cron.backfilled is True


@both_kinds
@pytest.mark.parametrize(
    "payload", [None, [], 7, {"_cron": 1}, {"_cron": {}}, {"_cron": {"ts": 1}}]
)
async def test_any_other_job_has_no_minute(run, kind, payload):
    seen: list[Any] = []

    await run(in_both_ways(lambda ctx: seen.append(ctx.cron))[kind], job={"payload": payload})

    assert seen == [None]


# Logging


@pytest.mark.feature("F124")
@both_kinds
async def test_log_lines_have_the_ids_of_the_job(run, recorder, caplog, kind):
    caplog.set_level(logging.DEBUG, logger="graphile_worker")

    job = await run(in_both_ways(lambda ctx: ctx.logger.info("half of %s done", 10, half=5))[kind])

    [record] = [each for each in caplog.records if "half of 10 done" in each.getMessage()]
    [started] = recorder.events_of(JobStarted)
    facts = vars(record)
    assert (facts["label"], facts["worker_id"]) == ("job", started.worker_id)
    assert (facts["task_identifier"], facts["job_id"], facts["half"]) == ("work", job.id, 5)


@pytest.mark.feature("F124")
@both_kinds
async def test_log_lines_go_to_the_logger_of_the_program(run, kind):
    lines: list[Any] = []

    def factory(scope: Any) -> Any:
        return lambda level, message, meta: lines.append((dict(scope), level, message, dict(meta)))

    def say(ctx: Any) -> None:
        ctx.logger.scope(step=1).warn("careful", why="hot")

    job = await run(in_both_ways(say)[kind], logger=Logger(factory))

    [(scope, level, _, meta)] = [each for each in lines if each[2] == "careful"]
    assert (level, meta) == ("warning", {"why": "hot"})
    assert (scope["job_id"], scope["task_identifier"], scope["step"]) == (job.id, "work", 1)


# Cancellation


@pytest.mark.feature("F214")
async def test_an_async_task_sees_its_cancellation(start, recorder):
    seen: list[bool] = []

    async def task(ctx: Any) -> None:
        seen.append(await ctx.wait_cancelled(within=SOON))
        seen.append(ctx.cancelled)
        seen.append(await ctx.wait_cancelled())
        seen.append(ctx.cancelled)

    runner = await start({"work": taking_context(task)}, cancel_after=SOON)
    await runner.add_job("work")
    await recorder.wait_for(JobStarted)
    await wait_until(lambda: len(seen) == 2)
    await runner.stop()

    assert seen == [False, False, True, True]
    assert recorder.events_of(JobSucceeded)


@pytest.mark.feature("F214")
async def test_a_plain_function_sees_its_cancellation(start, recorder):
    seen: list[bool] = []

    def task(ctx: Any) -> None:
        seen.append(ctx.wait_cancelled(timedelta(milliseconds=1)))
        seen.append(ctx.cancelled)
        seen.append(ctx.wait_cancelled())
        seen.append(ctx.cancelled)

    runner = await start({"work": taking_context(task)}, cancel_after=SOON)
    await runner.add_job("work")
    await recorder.wait_for(JobStarted)
    await wait_until(lambda: len(seen) == 2)
    await runner.stop()

    assert seen == [False, False, True, True]
    assert recorder.events_of(JobSucceeded)


async def test_a_task_that_ends_by_cancellation_is_released(start, recorder, sql):
    async def task(ctx: Any) -> None:
        await ctx.wait_cancelled()
        raise asyncio.CancelledError

    runner = await start({"work": taking_context(task)}, cancel_after=SOON)
    await runner.add_job("work")
    await recorder.wait_for(JobStarted)
    await runner.stop()

    assert sql.run("select attempts, locked_by from :schema.jobs") == [(0, None)]


# Adding jobs


@pytest.mark.feature("F127")
async def test_an_async_task_adds_jobs(run, sql):
    async def task(ctx: Any) -> None:
        one = await ctx.add_job("next", {"n": 1}, queue_name="q", priority=2, run_at=HOUR)
        two, three = await ctx.add_jobs([JobSpec("next"), JobSpec("other")])
        assert [each.task_identifier for each in (one, two, three)] == ["next", "next", "other"]

    await run(task)

    added = sql.run("select task_identifier, queue_name, priority from :schema.jobs order by id")
    assert added == [("next", "q", 2), ("next", None, 0), ("other", None, 0)]


@pytest.mark.feature("F127")
async def test_a_plain_function_adds_jobs(run, sql):
    def task(ctx: Any) -> None:
        one = ctx.add_job("next", {"n": 1}, queue_name="q", priority=2, run_at=HOUR)
        two, three = ctx.add_jobs([JobSpec("next"), JobSpec("other")])
        assert [each.task_identifier for each in (one, two, three)] == ["next", "next", "other"]

    await run(task)

    added = sql.run("select task_identifier, queue_name, priority from :schema.jobs order by id")
    assert added == [("next", "q", 2), ("next", None, 0), ("other", None, 0)]


async def test_a_job_added_on_the_transactions_connection_is_part_of_it(start, recorder, sql):
    async def task(ctx: Any) -> None:
        async with ctx.transaction() as conn:
            await ctx.add_job("inside", conn=conn)
            raise ValueError

    def plain(ctx: Any) -> None:
        with ctx.transaction() as conn:
            ctx.add_job("inside", conn=conn)
            raise ValueError

    tasks = {"async": taking_context(task), "plain": taking_context(plain)}
    runner = await start(tasks)
    await runner.add_jobs([JobSpec("async"), JobSpec("plain")])
    await recorder.wait_for(JobErrored, count=2)

    assert sql.run("select 1 from :schema.jobs where task_identifier = 'inside'") == []


@pytest.mark.feature("F125")
async def test_an_async_task_adds_a_job_while_its_transaction_is_open(run, sql):
    async def task(ctx: Any) -> None:
        async with ctx.transaction():
            await ctx.add_job("beside")
            # Of its own: it is there already.
            assert sql.run("select 1 from :schema.jobs where task_identifier = 'beside'")

    # The only connection for tasks is taken by the transaction.
    assert WorkerOptions(max_pool_size=2).task_connections == 1
    await run(task, max_pool_size=2)


@pytest.mark.feature("F125")
async def test_a_plain_function_adds_a_job_while_its_transaction_is_open(run, sql):
    def task(ctx: Any) -> None:
        with ctx.transaction():
            ctx.add_job("beside")
            assert sql.run("select 1 from :schema.jobs where task_identifier = 'beside'")

    await run(task, max_pool_size=2)


@pytest.mark.feature("F125")
async def test_tasks_that_hold_all_connections_do_not_block_the_worker(start, recorder):
    may_end = asyncio.Event()

    async def hold(payload: object, ctx: Any) -> None:
        async with ctx.connection():
            await may_end.wait()

    async def quick(payload: object) -> None: ...

    runner = await start({"hold": hold, "quick": quick}, concurrency=4, max_pool_size=4)
    await runner.add_jobs([JobSpec("hold") for _ in range(3)])
    await recorder.wait_for(JobStarted, count=3)

    await runner.add_jobs([JobSpec("quick") for _ in range(3)])
    await recorder.wait_for(JobSucceeded, count=3)
    may_end.set()
    await recorder.wait_for(JobSucceeded, count=6)


# Connections


@pytest.mark.feature("F125")
async def test_an_async_task_gets_a_connection_in_autocommit_mode(run, sql):
    sql.run("create table seen (n int)")

    async def task(ctx: Any) -> None:
        async with ctx.connection() as conn:
            assert isinstance(conn, psycopg.AsyncConnection)
            assert conn.autocommit
            await conn.execute("insert into seen values (%s)", [7])
            assert sql.run("select n from seen") == [(7,)]

    await run(task)


@pytest.mark.feature("F125")
async def test_a_plain_function_gets_a_connection_in_autocommit_mode(run, sql):
    sql.run("create table seen (n int)")

    def task(ctx: Any) -> None:
        with ctx.connection() as conn:
            assert isinstance(conn, psycopg.Connection)
            assert conn.autocommit
            conn.execute("insert into seen values (%s)", [7])
            assert sql.run("select n from seen") == [(7,)]

    await run(task)


@pytest.mark.feature("F126")
async def test_an_async_task_runs_one_query(run):
    async def task(ctx: Any) -> None:
        rows = await ctx.query("select %s::int + n as sum from generate_series(1, 2) as n", [10])
        assert rows == [{"sum": 11}, {"sum": 12}]
        assert await ctx.query("create table made (n int)") == []
        assert await ctx.query("select '100 %' as share") == [{"share": "100 %"}]

    await run(task)


@pytest.mark.feature("F126")
async def test_a_plain_function_runs_one_query(run):
    def task(ctx: Any) -> None:
        rows = ctx.query("select %s::int + n as sum from generate_series(1, 2) as n", [10])
        assert rows == [{"sum": 11}, {"sum": 12}]
        assert ctx.query("create table made (n int)") == []
        assert ctx.query("select '100 %' as share") == [{"share": "100 %"}]

    await run(task)


async def test_a_connection_is_reused(run):
    pids: list[int] = []

    async def task(ctx: Any) -> None:
        for _ in range(3):
            pids.extend(row["pid"] for row in await ctx.query(PID))

    await run(task)

    assert len(set(pids)) == 1


async def test_a_connection_that_an_async_task_left_in_a_transaction_is_not_reused(run, sql):
    sql.run("create table seen (n int)")
    pids: list[int] = []

    async def task(ctx: Any) -> None:
        async with ctx.connection() as conn:
            pids.append(conn.info.backend_pid)
            await conn.execute("begin")
            await conn.execute("insert into seen values (1)")
        pids.extend(row["pid"] for row in await ctx.query(PID))

    await run(task)

    assert pids[0] != pids[1]
    assert sql.run("select n from seen") == []


async def test_a_connection_that_a_plain_function_left_in_a_transaction_is_not_reused(run, sql):
    sql.run("create table seen (n int)")
    pids: list[int] = []

    def task(ctx: Any) -> None:
        with ctx.connection() as conn:
            pids.append(conn.info.backend_pid)
            conn.execute("begin")
            conn.execute("insert into seen values (1)")
        pids.extend(row["pid"] for row in ctx.query(PID))

    await run(task)

    assert pids[0] != pids[1]
    assert sql.run("select n from seen") == []


async def test_autocommit_is_restored_after_an_async_task(run, sql):
    sql.run("create table seen (n int)")

    async def task(ctx: Any) -> None:
        async with ctx.connection() as conn:
            await conn.set_autocommit(False)
        await ctx.query("insert into seen values (1)")

    await run(task)

    assert sql.run("select n from seen") == [(1,)]


async def test_autocommit_is_restored_after_a_plain_function(run, sql):
    sql.run("create table seen (n int)")

    def task(ctx: Any) -> None:
        with ctx.connection() as conn:
            conn.autocommit = False
        ctx.query("insert into seen values (1)")

    await run(task)

    assert sql.run("select n from seen") == [(1,)]


async def test_a_connection_that_a_task_closed_is_replaced(run):
    async def task(ctx: Any) -> None:
        async with ctx.connection() as conn:
            await conn.close()
        assert await ctx.query("select 1 as one") == [{"one": 1}]

    await run(task)


async def test_a_connection_that_a_plain_function_closed_is_replaced(run):
    def task(ctx: Any) -> None:
        with ctx.connection() as conn:
            conn.close()
        assert ctx.query("select 1 as one") == [{"one": 1}]

    await run(task)


async def test_tasks_wait_for_a_free_connection(start, recorder):
    most, holding = 0, 0

    async def task(ctx: Any) -> None:
        nonlocal most, holding
        async with ctx.connection() as conn:
            holding += 1
            most = max(most, holding)
            await conn.execute("select pg_sleep(0.01)")
            holding -= 1

    runner = await start({"work": taking_context(task)}, concurrency=8, max_pool_size=5)
    await runner.add_jobs([JobSpec("work") for _ in range(16)])
    await recorder.wait_for(JobSucceeded, count=16)

    assert most <= WorkerOptions(max_pool_size=5).task_connections


# A transaction that completes the job


@pytest.mark.feature("F110")
async def test_the_transaction_of_an_async_task_completes_its_job(run, recorder, sql):
    sql.run("create table paid (n int)")

    async def task(ctx: Any) -> None:
        async with ctx.transaction() as conn:
            await conn.execute("insert into paid values (1)")
            assert sql.run("select n from paid") == []
        assert sql.run("select n from paid") == [(1,)]
        assert sql.run("select 1 from :schema.jobs") == []

    await run(task, job={"queue_name": "q"})

    assert recorder.events_of(JobSucceeded)
    assert sql.value("select locked_by from :schema._private_job_queues") is None


@pytest.mark.feature("F110")
async def test_the_transaction_of_a_plain_function_completes_its_job(run, recorder, sql):
    sql.run("create table paid (n int)")

    def task(ctx: Any) -> None:
        with ctx.transaction() as conn:
            conn.execute("insert into paid values (1)")
            assert sql.run("select n from paid") == []
        assert sql.run("select n from paid") == [(1,)]
        assert sql.run("select 1 from :schema.jobs") == []

    await run(task, job={"queue_name": "q"})

    assert recorder.events_of(JobSucceeded)
    assert sql.value("select locked_by from :schema._private_job_queues") is None


async def test_an_error_after_the_transaction_is_reported_and_changes_nothing(run, recorder, sql):
    async def task(ctx: Any) -> None:
        async with ctx.transaction():
            pass
        raise ValueError("too late")

    await run(task)

    [done] = recorder.events_of(JobSucceeded)
    assert str(done.late_error) == "too late"
    assert sql.run("select 1 from :schema.jobs") == []


@pytest.mark.feature("F110")
@both_kinds
async def test_a_transaction_of_a_lost_job_has_no_effect(start, recorder, sql, kind):
    sql.run("create table paid (n int)")
    lose = "update :schema._private_jobs set locked_by = 'other'"

    async def task(ctx: Any) -> None:
        async with ctx.transaction() as conn:
            await conn.execute("insert into paid values (1)")
            sql.run(lose)

    def plain(ctx: Any) -> None:
        with ctx.transaction() as conn:
            conn.execute("insert into paid values (1)")
            sql.run(lose)

    chosen = task if kind == "async" else plain
    runner = await start({"work": taking_context(chosen)})
    await runner.add_job("work")
    await recorder.wait_for(JobStarted)
    await wait_until(lambda: "job:lockLost" in recorder.names)

    assert sql.run("select n from paid") == []
    assert sql.run("select locked_by from :schema.jobs") == [("other",)]


async def test_a_lost_answer_to_its_commit_does_not_free_the_queue_of_the_next_job(
    start, recorder, sql, database, proxy
):
    """The transaction ended the job; the next job of its named queue runs when that is noticed."""
    began, overlaps = asyncio.Event(), []
    running: set[int] = set()

    async def own(payload: object, ctx: Any) -> None:
        async with ctx.transaction() as conn:
            await conn.execute("select 'the commit of this is lost'")
        pytest.fail("the answer to the commit is lost")

    async def next_one(payload: int, ctx: Any) -> None:
        running.add(payload)
        overlaps.append(set(running))
        began.set()
        await asyncio.sleep(1)
        running.discard(payload)

    through = make_conninfo(database.dsn, port=proxy.port)
    runner = await start({"own": own, "next": next_one}, on=through, concurrency=3)
    lost = CutAfterRequest(b"the commit of this is lost")
    proxy.put(lost)
    await runner.add_jobs(
        [
            JobSpec("own", queue_name="q"),
            JobSpec("next", 1, queue_name="q"),
            JobSpec("next", 2, queue_name="q"),
        ]
    )
    await recorder.wait_for(JobFinished, count=3, timeout=60)

    assert lost.losses
    assert overlaps == [{1}, {2}]
    # The job ended with its transaction: the error came too late.
    [done] = [
        each for each in recorder.events_of(JobSucceeded) if each.job.task_identifier == "own"
    ]
    assert done.late_error is not None


# With a pool of the caller's


async def test_the_context_gives_connections_of_the_callers_pool(run, database):
    seen: list[Any] = []

    async def task(ctx: Any) -> None:
        async with ctx.connection() as conn:
            seen.append(await conn.fetchval("select 7"))

    async with asyncpg.create_pool(database.url) as pool:
        await run(task, on=pool)

    assert seen == [7]


@pytest.mark.parametrize("notify", ["on_commit", "coalesced"])
@pytest.mark.parametrize("on_pool", [False, True], ids=["own", "pool"])
async def test_adds_that_wait_for_the_transaction_of_a_task_do_not_block_the_worker(
    start, recorder, database, async_client, on_pool, notify
):
    opened, waiting, leave = asyncio.Event(), asyncio.Semaphore(0), asyncio.Event()
    errors: list[BaseException] = []

    async def hold(payload: object, ctx: Any) -> None:
        async with ctx.transaction() as conn:
            await ctx.add_job("next", conn=conn, queue_name="new")
            opened.set()
            await leave.wait()

    async def add(payload: object, ctx: Any) -> None:
        waiting.release()
        try:
            await ctx.add_job("next", queue_name="new")
        except TimeoutError as error:
            errors.append(error)

    async def work(payload: object) -> None: ...

    async with psycopg_pool.AsyncConnectionPool(database.dsn, max_size=10, open=False) as pool:
        query_timeout = timedelta(seconds=10)
        await start(
            {"hold": hold, "add": add, "work": work, "next": work},
            concurrency=10,
            notify=notify,
            timings=WorkerTimings(connections=ConnectionTimings(query_timeout=query_timeout)),
            **({"on": pool} if on_pool else {}),
        )
        held = await async_client.add_job("hold")
        await asyncio.wait_for(opened.wait(), 10)
        await async_client.add_jobs([JobSpec("add") for _ in range(6)])
        for _ in range(6):
            await waiting.acquire()
        # Each add has sent its statement, or waits for a connection.
        await asyncio.sleep(0.1)

        began = asyncio.get_running_loop().time()
        added = await async_client.add_job("work")
        await recorder.wait_for(JobSucceeded, job_id=added.id)
        seconds = asyncio.get_running_loop().time() - began
        # If it had to wait, some adds would have failed before.
        assert not errors
        assert seconds < size(gate=10.0, nightly=2.5)
        await wait_until(lambda: errors)
        leave.set()
        await recorder.wait_for(JobSucceeded, job_id=held.id)


@pytest.mark.parametrize("on", ["own", "pool", "shards"])
async def test_the_client_of_a_runner_waits_longer_than_adds_of_tasks(recorder, database, on):
    began, leave = asyncio.Event(), asyncio.Event()

    async def work(payload: object) -> None:
        began.set()
        await leave.wait()

    timings = WorkerTimings(connections=ConnectionTimings(query_timeout=timedelta(seconds=3)))
    async with psycopg_pool.AsyncConnectionPool(database.dsn, max_size=10, open=False) as pool:
        source: Any = {"own": database.dsn, "pool": pool, "shards": Shards({"a": database.dsn})}[on]
        options = WorkerOptions(schema=database.schema)
        runner = build_runner(source, {"work": work}, options=options, hooks=recorder.hooks)
        await set_timings(runner, timings).start()
        try:
            client: Any = runner.client
            client = client.client("a") if on == "shards" else client
            await client.add_job("work", queue_name="q")
            await asyncio.wait_for(began.wait(), 10)

            with pytest.raises(QueueBusy):
                await client.pause_queue("q", wait=timedelta(seconds=4))
        finally:
            leave.set()
            await runner.stop()


async def test_query_works_on_the_callers_psycopg_pool(run, database):
    answers: list[Any] = []

    async def task(ctx: Any) -> None:
        answers.extend(await ctx.query("select %s::int as n", [7]))

    async with psycopg_pool.AsyncConnectionPool(database.dsn, open=False) as pool:
        await run(task, on=pool)

    assert answers == [{"n": 7}]


async def test_query_is_rejected_on_pools_of_other_drivers(run, database):
    async def task(ctx: Any) -> None:
        with pytest.raises(ConfigurationError, match=r"Use connection\(\)"):
            await ctx.query("select 1")

    async with asyncpg.create_pool(database.url) as pool:
        await run(task, on=pool)


async def test_a_plain_function_cannot_use_an_async_pool(run, database):
    refused: list[str] = []

    def task(ctx: Any) -> None:
        for use in (ctx.connection, ctx.transaction):
            with pytest.raises(ConfigurationError, match="async def"), use():
                pass
        with pytest.raises(ConfigurationError, match="async def"):
            ctx.add_job("next")
        refused.append(threading.current_thread().name)

    async with psycopg_pool.AsyncConnectionPool(database.dsn, open=False) as pool:
        await run(task, on=pool)

    assert len(refused) == 1
