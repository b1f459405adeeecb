"""A worker inside a program: start, use, stop, and the databases that it accepts."""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import psycopg
import psycopg_pool
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool

from graphile_worker import (
    App,
    ConfigurationError,
    Hooks,
    JobContext,
    JobSpec,
    Runner,
    SchemaMissing,
    SchemaTooNew,
    Task,
    TaskNotFound,
    TaskRouter,
    WorkerOptions,
    WorkerStoppedError,
    run,
    run_once,
    run_task_list,
    run_task_list_once,
)
from graphile_worker._worker_config import WorkerTimings
from graphile_worker.events import (
    JobErrored,
    JobInterrupted,
    JobStarted,
    JobSucceeded,
    ListenReleased,
    ListenStarted,
    PoolReleased,
    RunnerStarted,
    RunnerStopped,
    WorkerFatalError,
)
from tests.support.recorder import Recorder, open_runners, wait_until
from tests.support.tasks import endless, nothing

# What Python does: test_statements.py runs each statement on the oldest pair too.
pytestmark = pytest.mark.single_version

HOUR = timedelta(hours=1)
JOBS = "select attempts, locked_by, locked_at, last_error from :schema._private_jobs order by id"
OTHER_SESSIONS = """
select pid from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid()
"""
LOCKED_QUEUES = "select 1 from :schema._private_job_queues where locked_by is not null"


@pytest.fixture
def options(database) -> WorkerOptions:
    return WorkerOptions(schema=database.schema)


# Starting


@pytest.mark.feature("F143", "F151", "F114", "F154")
async def test_run_returns_when_the_worker_looks_for_jobs(database, options, recorder, sql):
    seen: list[object] = []
    sql.run("""select :schema.add_job('see', '{"n": 1}')""")

    runner = await run(database.dsn, {"see": seen.append}, options=options, hooks=recorder.hooks)

    try:
        assert runner.is_ready
        assert recorder.events_of(RunnerStarted)[0].tasks == ("see",)
        await recorder.wait_for(JobSucceeded)
        assert seen == [{"n": 1}]
    finally:
        await runner.stop()


@pytest.mark.feature("F16")
async def test_run_installs_the_schema(empty_database, recorder):
    async with open_runners(empty_database, recorder.hooks) as start:
        runner = await start({"work": nothing})

        await runner.add_job("work")

        await recorder.wait_for(JobSucceeded)


@pytest.mark.feature("F154")
async def test_tasks_may_be_a_router_a_folder_or_its_path_as_text(start, sql, tmp_path, recorder):
    (tmp_path / "from_folder.py").write_text("def task(payload): ...\n")
    router: TaskRouter[None] = TaskRouter()
    router.task(name="from_router")(lambda: None)

    for tasks in (router, tmp_path, str(tmp_path)):
        await start(tasks)
    sql.run("select :schema.add_job('from_router'), :schema.add_job('from_folder')")

    await recorder.wait_for(JobSucceeded, count=2)


@pytest.mark.feature("F153")
async def test_the_default_database_comes_from_the_environment(database, monkeypatch, recorder):
    monkeypatch.setenv("DATABASE_URL", database.url)
    options = WorkerOptions(schema=database.schema)

    runner = await run(None, {"work": nothing}, options=options, hooks=recorder.hooks)

    await runner.add_job("work")
    await recorder.wait_for(JobSucceeded)
    await runner.stop()


@pytest.mark.feature("F153")
async def test_a_worker_without_a_database_does_not_start(monkeypatch):
    for name in ("DATABASE_URL", "PGDATABASE"):
        monkeypatch.delenv(name, raising=False)

    with pytest.raises(ConfigurationError, match="DATABASE_URL"):
        await run(None, {"work": nothing})


async def test_a_worker_without_tasks_does_not_start(start):
    with pytest.raises(ConfigurationError, match="no tasks"):
        await start({})


async def test_run_raises_if_the_database_is_unreachable(database, options):
    nowhere = database.cluster.dsn("nowhere")

    with pytest.raises(psycopg.OperationalError, match="nowhere"):
        await run(nowhere, {"work": nothing}, options=options)


async def test_run_raises_if_the_schema_is_too_new(start, sql):
    sql.run("insert into :schema.migrations (id, breaking) values (99, true)")

    with pytest.raises(SchemaTooNew, match="99"):
        await start({"work": nothing})


async def test_run_raises_the_error_of_the_lifespan(start, sql):
    @asynccontextmanager
    async def lifespan():
        raise OSError("no such host")
        yield

    with pytest.raises(OSError, match="no such host"):
        await start({"work": nothing}, lifespan=lifespan)


async def test_an_invalid_database_is_rejected(database, options):
    async with await psycopg.AsyncConnection.connect(database.dsn) as connection:
        with pytest.raises(ConfigurationError, match="AsyncConnection"):
            await run(connection, {"work": nothing}, options=options)


@pytest.mark.usefixtures("fresh_database")
async def test_a_worker_that_did_not_start_leaves_no_connection(database, options, sql):
    @asynccontextmanager
    async def lifespan():
        raise OSError
        yield

    for _ in range(3):
        with pytest.raises(OSError):  # noqa: PT011  # there is nothing to match
            await run(database.dsn, {"work": nothing}, options=options, lifespan=lifespan)

    await wait_until(lambda: sql.run(OTHER_SESSIONS) == [])


async def test_a_cancelled_start_leaves_nothing_running(database, options):
    ends: list[str] = []
    entered = asyncio.Event()

    @asynccontextmanager
    async def lifespan():
        entered.set()
        try:
            await asyncio.Event().wait()
            yield
        finally:
            ends.append("lifespan")

    starting = asyncio.create_task(
        run(database.dsn, {"work": nothing}, options=options, lifespan=lifespan)
    )
    await entered.wait()

    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting

    assert ends == ["lifespan"]


async def test_a_runner_can_be_started_only_once(start):
    runner = await start({"work": nothing})

    with pytest.raises(WorkerStoppedError, match="once"):
        await runner.start()

    await runner.stop()
    with pytest.raises(WorkerStoppedError, match="once"):
        await runner.start()


@pytest.mark.parametrize("ask", ["wait", "stop", "kill"])
async def test_a_runner_that_was_not_started_cannot_be_stopped(database, ask):
    runner = Runner(database.dsn, {"work": nothing})

    with pytest.raises(WorkerStoppedError, match="not started"):
        await getattr(runner, ask)()

    assert not runner.is_ready
    with pytest.raises(WorkerStoppedError, match="not started"):
        _ = runner.client


# Use


@pytest.mark.feature("F160")
async def test_a_runner_adds_jobs_to_its_queue(start, recorder):
    runner = await start({"work": nothing})

    one = await runner.add_job("work", {"n": 1}, queue_name="q", priority=3, flags=["a"])
    two, three = await runner.add_jobs([JobSpec("work"), JobSpec("work")])

    assert (one.queue_name, one.priority, one.flags) == ("q", 3, frozenset({"a"}))
    done = await recorder.wait_for(JobSucceeded, count=3)
    assert {event.job.id for event in done} == {one.id, two.id, three.id}


async def test_a_job_added_on_a_connection_waits_for_its_transaction(start, database, recorder):
    runner = await start({"work": nothing})

    async with await psycopg.AsyncConnection.connect(database.dsn) as connection:
        await runner.add_job("work", conn=connection)
        assert not recorder.events_of(JobStarted)

    await recorder.wait_for(JobSucceeded)


@pytest.mark.feature("F147")
async def test_the_runners_client_shares_its_settings(start, sql):
    runner = await start({"work": nothing})

    job = await runner.client.add_job("elsewhere", job_key="k")

    assert sql.value("select id from :schema.jobs") == job.id
    assert await runner.client.remove_job("k") is not None


@pytest.mark.feature("F162")
async def test_listeners_may_be_added_to_a_running_worker(start):
    heard = asyncio.Event()
    runner = await start({"work": nothing})

    runner.hooks.on(JobSucceeded)(lambda event: heard.set())
    await runner.add_job("work")

    await asyncio.wait_for(heard.wait(), 20)


async def test_the_hooks_of_an_app_are_called_beside_those_that_are_passed(app, start, recorder):
    heard: list[str] = []
    app.task(name="work")(lambda: None)
    app.on(JobSucceeded)(lambda event: heard.append(event.name))
    runner = await start(app)

    await runner.add_job("work")

    await recorder.wait_for(JobSucceeded)
    assert heard == ["job:success"]


@pytest.mark.feature("F148")
async def test_one_job_runs_at_a_time_by_default(start, recorder):
    running: set[int] = set()
    most = 0

    async def work(payload: object, ctx: JobContext) -> None:
        nonlocal most
        running.add(ctx.job.id)
        most = max(most, len(running))
        await asyncio.sleep(0.01)
        running.discard(ctx.job.id)

    runner = await start({"work": work})
    await runner.add_jobs([JobSpec("work") for _ in range(10)])

    await recorder.wait_for(JobSucceeded, count=10)
    assert WorkerOptions().concurrency == 1
    assert most == 1


@pytest.mark.feature("F148", "F91")
async def test_concurrency_is_the_number_of_jobs_that_run_at_the_same_time(start, recorder):
    together = asyncio.Barrier(4)

    async def meet(payload: object) -> None:
        await together.wait()

    runner = await start({"meet": meet}, concurrency=4)
    await runner.add_jobs([JobSpec("meet") for _ in range(8)])

    await recorder.wait_for(JobSucceeded, count=8)


@pytest.mark.feature("F97", "F92")
async def test_jobs_of_a_named_queue_run_one_at_a_time(start, recorder):
    order: list[tuple[str, int]] = []

    async def work(payload: Any) -> None:
        order.append(("begin", payload))
        await asyncio.sleep(0)
        order.append(("end", payload))

    runner = await start({"work": work}, concurrency=4)
    for n in range(10):
        await runner.add_job("work", n, queue_name="q")

    await recorder.wait_for(JobSucceeded, count=10)
    assert order == [(step, n) for n in range(10) for step in ("begin", "end")]


@pytest.mark.feature("F89", "F90")
async def test_the_lowest_priority_runs_first_then_the_earliest(start, sql, recorder):
    order: list[object] = []
    sql.run("""
      select :schema.add_job('see', to_json(n), priority := p, run_at := now() - n * interval '1 s')
      from (values (1, 5), (2, 0), (3, -5), (4, 0)) as job (n, p)
    """)

    await start({"see": order.append})

    await recorder.wait_for(JobSucceeded, count=4)
    assert order == [3, 4, 2, 1]


# Running tasks


@pytest.mark.feature("F106")
async def test_a_plain_function_does_not_block_the_event_loop(start, recorder):
    loop_ran = threading.Event()

    def wait_for_the_loop(payload: object) -> None:
        assert loop_ran.wait(20)

    runner = await start({"wait": wait_for_the_loop})
    await runner.add_job("wait")
    await recorder.wait_for(JobStarted)
    loop_ran.set()

    await recorder.wait_for(JobSucceeded)


@pytest.mark.feature("F107", "F108", "F208", "F209")
async def test_returning_deletes_the_job_and_raising_keeps_its_error(start, recorder, sql):
    async def work(payload: Any) -> None:
        if payload == "bad":
            raise ValueError("no good")

    runner = await start({"work": work})
    await runner.add_job("work", "good")
    await recorder.wait_for(JobSucceeded)
    await runner.add_job("work", "bad", queue_name="q")
    await recorder.wait_for(JobErrored)

    [(attempts, locked_by, locked_at, error)] = sql.run(JOBS)
    assert (attempts, locked_by, locked_at) == (1, None, None)
    assert error.startswith("ValueError: no good\n")
    assert sql.run(LOCKED_QUEUES) == []


@pytest.mark.feature("F118")
@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), asyncio.CancelledError()])
@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_worker_continues_after_any_error_of_a_task(start, recorder, error, kind):
    async def crash(payload: object) -> None:
        raise error

    def crash_in_thread(payload: object) -> None:
        raise error

    crashing = crash if kind == "async" else crash_in_thread
    tasks = {"crash": crashing, "work": nothing}
    runner = await start(tasks)
    await runner.add_job("crash")
    await recorder.wait_for(JobErrored)

    await runner.add_job("work")

    await recorder.wait_for(JobSucceeded)
    assert runner.is_ready


async def test_a_worker_continues_while_a_transaction_adds_a_new_task_name(start, recorder, sql):
    producer = sql.another()
    producer.run("begin")
    producer.run("select :schema.add_job('late')")
    sql.run("select :schema.add_job('known')")

    await start({"late": nothing, "known": nothing, "new": nothing})
    await recorder.wait_for(JobSucceeded)
    names = {name for (name,) in sql.run("select identifier from :schema._private_tasks")}
    producer.run("commit")
    producer.close()

    # The worker has entered the name that no other transaction is adding.
    assert names == {"known", "new"}
    done = await recorder.wait_for(JobSucceeded, count=2)
    assert [each.job.task_identifier for each in done] == ["known", "late"]


@pytest.mark.feature("F117")
async def test_a_job_whose_task_does_not_exist_fails(start, recorder, sql):
    class Shrinking(TaskRouter[None]):
        def tasks(self) -> dict[str, Task[..., Any]]:
            return self._tasks

    router = Shrinking()
    router.task(name="gone")(lambda: None)
    router.task(name="here")(lambda: None)
    runner = await start(router)

    del router.tasks()["gone"]
    await runner.add_job("gone")

    await recorder.wait_for(JobErrored)
    error = sql.value("select last_error from :schema.jobs")
    assert error.startswith("TaskNotFound: no task is called 'gone'. Known tasks: 'here'")


@pytest.mark.feature("F204", "F210")
async def test_a_failing_job_is_retried_until_max_attempts(start, recorder, sql):
    async def fail(payload: object) -> None:
        raise ValueError

    runner = await start({"fail": fail}, poll_interval=timedelta(milliseconds=20))
    await runner.add_job("fail", max_attempts=2)
    await recorder.wait_for(JobErrored)
    # Its delay, taken away.
    sql.run("update :schema._private_jobs set run_at = now()")

    errors = await recorder.wait_for(JobErrored, count=2)
    assert [event.job.attempts for event in errors] == [1, 2]
    assert sql.value("select is_available from :schema._private_jobs") is False


# Stopping


@pytest.mark.feature("F159", "F213")
async def test_stop_waits_for_running_jobs_and_claims_no_more(start, recorder, sql):
    may_end = asyncio.Event()

    async def work(payload: object) -> None:
        await may_end.wait()

    runner = await start({"work": work})
    await runner.add_job("work", "running")
    await recorder.wait_for(JobStarted)
    await runner.add_job("work", "waiting")

    stopping = asyncio.create_task(runner.stop())
    await asyncio.sleep(0)
    assert not runner.is_ready
    assert not stopping.done()
    may_end.set()
    await stopping

    assert len(recorder.events_of(JobSucceeded)) == 1
    assert [row[:3] for row in sql.run(JOBS)] == [(0, None, None)]


@pytest.mark.usefixtures("fresh_database")
async def test_a_stopped_runner_has_no_connection_and_no_thread(start, recorder, sql):
    before = set(threading.enumerate())
    runner = await start({"async": nothing, "plain": lambda payload: None})
    await runner.add_jobs([JobSpec("async"), JobSpec("plain")])
    await recorder.wait_for(JobSucceeded, count=2)

    await runner.stop()

    await wait_until(lambda: sql.run(OTHER_SESSIONS) == [])
    await wait_until(lambda: set(threading.enumerate()) <= before)


async def test_stop_may_be_called_twice(start, recorder):
    runner = await start({"work": nothing})

    await asyncio.gather(runner.stop(), runner.stop())
    await runner.stop()
    await runner.kill()

    assert len(recorder.events_of(RunnerStopped)) == 1
    assert len(recorder.events_of(PoolReleased)) == 1


@pytest.mark.feature("F161")
@pytest.mark.parametrize("how", ["wait", "await"])
async def test_wait_returns_when_the_worker_has_stopped(start, recorder, how):
    runner = await start({"work": nothing})

    async def wait() -> None:
        await (runner.wait() if how == "wait" else runner)
        assert recorder.events_of(RunnerStopped)

    waiting = asyncio.create_task(wait())
    await recorder.wait_for(ListenStarted)
    assert not waiting.done()
    await runner.stop()

    await waiting


async def test_cancelling_wait_does_not_stop_the_worker(start, recorder):
    runner = await start({"work": nothing})

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(runner.wait(), 0.01)

    await runner.add_job("work")
    await recorder.wait_for(JobSucceeded)


@pytest.mark.feature("F215")
async def test_kill_releases_running_jobs_immediately(start, recorder, sql):
    runner = await start({"endless": endless}, concurrency=2)
    await runner.add_jobs([JobSpec("endless", queue_name="q"), JobSpec("endless")])
    await recorder.wait_for(JobStarted, count=2)

    await runner.kill()

    assert len(recorder.events_of(JobInterrupted)) == 2
    assert sql.run(JOBS) == [(0, None, None, None), (0, None, None, None)]
    assert sql.run(LOCKED_QUEUES) == []


async def test_kill_ends_a_graceful_shutdown(start, recorder, sql):
    runner = await start({"endless": endless})
    await runner.add_job("endless")
    await recorder.wait_for(JobStarted)

    stopping = asyncio.create_task(runner.stop())
    await runner.kill()

    await stopping
    assert sql.run(JOBS) == [(0, None, None, None)]


async def test_kill_releases_the_job_of_a_function_that_cannot_be_stopped(start, recorder, sql):
    may_end = threading.Event()

    def stubborn(payload: object) -> None:
        may_end.wait(60)

    runner = await start({"stubborn": stubborn})
    await runner.add_job("stubborn", queue_name="q")
    await recorder.wait_for(JobStarted)

    await runner.kill()

    assert sql.run(JOBS) == [(0, None, None, None)]
    assert sql.run(LOCKED_QUEUES) == []
    may_end.set()


@pytest.mark.feature("F214")
async def test_a_stop_first_sets_cancelled(start, recorder, sql):
    async def polite(payload: object, ctx: JobContext) -> None:
        await ctx.wait_cancelled()

    options = {"cancel_after": timedelta(milliseconds=10), "shutdown_timeout": None}
    runner = await start({"polite": polite}, **options)
    await runner.add_job("polite")
    await recorder.wait_for(JobStarted)

    await runner.stop()

    # It returned: that is a success like any other.
    assert len(recorder.events_of(JobSucceeded)) == 1
    assert sql.run(JOBS) == []


@pytest.mark.feature("F214", "F215", "F187")
async def test_a_stop_cancels_and_releases_jobs_after_the_shutdown_timeout(start, recorder, sql):
    options = {"cancel_after": None, "shutdown_timeout": timedelta(milliseconds=10)}
    runner = await start({"endless": endless}, **options)
    await runner.add_job("endless", queue_name="q")
    await recorder.wait_for(JobStarted)

    await runner.stop()

    assert len(recorder.events_of(JobInterrupted)) == 1
    assert sql.run(JOBS) == [(0, None, None, None)]
    assert sql.run(LOCKED_QUEUES) == []


@pytest.mark.feature("F216")
async def test_a_released_job_may_be_delayed(start, recorder, sql):
    options = {"shutdown_timeout": timedelta(0), "interrupted_job_retry_delay": HOUR}
    runner = await start({"endless": endless}, **options)
    await runner.add_job("endless")
    await recorder.wait_for(JobStarted)

    await runner.stop()

    seconds = sql.value("select extract(epoch from run_at - now())::float8 from :schema.jobs")
    assert 3500 < seconds <= 3600


@pytest.mark.feature("F213")
async def test_a_stop_without_a_timeout_waits_for_all_jobs(start, recorder):
    may_end = asyncio.Event()
    cancelled: list[bool] = []

    async def work(payload: object, ctx: JobContext) -> None:
        await may_end.wait()
        cancelled.append(ctx.cancelled)

    options = {"cancel_after": None, "shutdown_timeout": None}
    runner = await start({"work": work}, **options)
    await runner.add_job("work")
    await recorder.wait_for(JobStarted)

    stopping = asyncio.create_task(runner.stop())
    await asyncio.wait({stopping}, timeout=0.2)
    assert not stopping.done()
    may_end.set()
    await stopping

    assert cancelled == [False]


async def test_a_cancelled_program_releases_its_jobs(start, recorder, sql, app):
    app.task(name="endless")(endless_task)
    app.hooks.include(recorder.hooks)

    async def program() -> None:
        async with app.worker():
            await app.aadd_job("endless")
            await asyncio.Event().wait()

    running = asyncio.create_task(program())
    await recorder.wait_for(JobStarted)
    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 20)
    assert [row[:3] for row in sql.run(JOBS)] == [(0, None, None)]


async def endless_task(ctx: JobContext) -> None:
    await ctx.wait_cancelled()
    raise asyncio.CancelledError


@pytest.mark.feature("F161")
async def test_the_error_that_ends_a_worker_is_raised_by_all_waiters(start, recorder, sql):
    runner = await start({"work": nothing})
    await recorder.wait_for(ListenStarted)

    sql.run("insert into :schema.migrations (id, breaking) values (99, true)")
    sql.run("""notify "worker:migrate", '{}'""")

    for wait in (runner.wait, runner.stop, runner.kill):
        with pytest.raises(SchemaTooNew):
            await wait()


# In your program


@pytest.mark.feature("F4")
async def test_an_app_runs_a_worker_during_the_block(app, recorder):
    seen: list[int] = []
    app.hooks.include(recorder.hooks)

    @app.task
    async def see(n: int) -> None:
        seen.append(n)

    async with app.worker() as runner:
        await see.aenqueue(7)
        await recorder.wait_for(JobSucceeded)
        assert runner.is_ready

    assert seen == [7]
    assert recorder.events_of(RunnerStopped)


async def test_a_started_runner_runs_during_the_block(database, options, recorder):
    hooks = recorder.hooks

    async with await run(database.dsn, {"work": nothing}, options=options, hooks=hooks) as runner:
        await runner.add_job("work")
        await recorder.wait_for(JobSucceeded)

    assert recorder.events_of(RunnerStopped)


async def test_an_error_in_the_block_is_raised(app, recorder):
    app.task(name="work")(lambda: None)
    app.hooks.include(recorder.hooks)

    with pytest.raises(ZeroDivisionError):
        async with app.worker():
            _ = 1 / 0

    assert recorder.events_of(RunnerStopped)


@pytest.mark.feature("F94")
async def test_a_worker_may_run_some_of_the_tasks(app, recorder, sql):
    app.hooks.include(recorder.hooks)
    app.task(name="mine")(lambda: None)
    app.task(name="others")(lambda: None)

    async with app.worker(tasks=["mine"]) as runner:
        await runner.add_jobs([JobSpec("others", priority=-1), JobSpec("mine")])
        [done] = await recorder.wait_for(JobSucceeded)

    assert done.job.task_identifier == "mine"
    assert [row[:2] for row in sql.run(JOBS)] == [(0, None)]


def test_a_worker_for_an_unknown_task_is_rejected(database):
    app = App(database.dsn)
    app.task(name="mine")(lambda: None)

    with pytest.raises(TaskNotFound, match="'yours'.*'mine'"):
        app.worker(tasks=["mine", "yours"])


@pytest.mark.feature("F158")
async def test_app_worker_takes_options(database, recorder, sql):
    app = App(database.dsn, schema=database.schema)
    app.hooks.include(recorder.hooks)
    app.task(name="work")(lambda: None)
    options = WorkerOptions(concurrency=3, schema="of the app, not this one")

    async with app.worker(options, concurrency=2, forbidden_flags=["heavy"]) as runner:
        assert (runner.options.concurrency, runner.options.schema) == (2, database.schema)
        await runner.add_jobs([JobSpec("work", flags=["heavy"], priority=-1), JobSpec("work")])
        await recorder.wait_for(JobSucceeded)

    assert sql.value("select flags from :schema.jobs") == {"heavy": True}


@pytest.mark.feature("F149")
async def test_signals_are_not_handled_by_default(app, start):
    app.task(name="work")(lambda: None)
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]

    async with app.worker():
        await start({"work": nothing}, handle_signals=False)
        assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == before


@pytest.mark.feature("F183")
async def test_a_signal_stops_the_worker_and_its_handler_is_restored(start, recorder):
    before = signal.getsignal(signal.SIGTERM)
    runner = await start({"work": nothing}, handle_signals=True)

    os.kill(os.getpid(), signal.SIGTERM)
    await runner

    assert "gracefulShutdown" in recorder.names
    assert signal.getsignal(signal.SIGTERM) == before


async def test_signals_are_not_handled_in_another_thread(database, options):
    async def work_there() -> None:
        runner = await run(database.dsn, {"work": nothing}, options=options)
        await runner.stop()

    before = signal.getsignal(signal.SIGTERM)

    await asyncio.to_thread(asyncio.run, work_there())

    assert signal.getsignal(signal.SIGTERM) == before


# Lifespan


@pytest.mark.feature("F129")
async def test_a_lifespan_lasts_from_before_the_first_job_to_after_the_last(start, recorder, sql):
    order: list[object] = []

    @asynccontextmanager
    async def lifespan():
        order.append("begin")
        yield {"client": 7}
        order.append("end")

    async def work(payload: object, ctx: JobContext) -> None:
        order.append(ctx.deps)

    sql.run("select :schema.add_job('work')")
    runner = await start({"work": work}, lifespan=lifespan)
    await recorder.wait_for(JobSucceeded)

    await runner.stop()
    assert order == ["begin", {"client": 7}, "end"]


async def test_stop_raises_the_error_of_the_lifespan(start, recorder):
    @asynccontextmanager
    async def lifespan():
        yield
        raise OSError("flush failed")

    runner = await start({"work": nothing}, lifespan=lifespan)

    with pytest.raises(OSError, match="flush failed"):
        await runner.stop()

    assert recorder.events_of(RunnerStopped)


# On an installed schema


@pytest.mark.feature("F145")
async def test_run_task_list_does_not_migrate(database, options, recorder, sql):
    ledger = sql.run("select id, ts from :schema.migrations order by id")

    runner = await run_task_list(
        {"work": nothing}, database.dsn, options=options, hooks=recorder.hooks
    )
    await runner.add_job("work")
    await recorder.wait_for(JobSucceeded)
    await runner.stop()

    assert sql.run("select id, ts from :schema.migrations order by id") == ledger


async def test_run_task_list_raises_if_the_schema_is_missing(empty_database):
    options = WorkerOptions(schema=empty_database.schema)
    starting = run_task_list(
        {"work": nothing}, empty_database.dsn, options=options, handle_signals=False
    )

    with pytest.raises(SchemaMissing):
        await _stopped_again(starting)


async def _stopped_again(starting: Any) -> None:
    await (await starting).stop()


# On your connection


@asynccontextmanager
async def psycopg_connection(database: Any) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(
        database.dsn, row_factory=dict_row
    ) as connection:
        yield connection
        await connection.rollback()


@asynccontextmanager
async def asyncpg_connection(database: Any) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(database.url)
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield connection
        await transaction.rollback()
    finally:
        await connection.close()


def sqlalchemy_connection(driver: str) -> Any:
    @asynccontextmanager
    async def connect(database: Any) -> AsyncIterator[Any]:
        engine = create_async_engine(database.sqlalchemy_url(driver), poolclass=NullPool)
        async with engine.connect() as connection:
            yield connection
            await connection.rollback()

    return connect


def sqlalchemy_session(driver: str) -> Any:
    @asynccontextmanager
    async def connect(database: Any) -> AsyncIterator[Any]:
        engine = create_async_engine(database.sqlalchemy_url(driver), poolclass=NullPool)
        async with AsyncSession(engine) as session:
            yield session
            await session.rollback()

    return connect


CONNECTIONS = {
    "psycopg": psycopg_connection,
    "asyncpg": asyncpg_connection,
    "SQLAlchemy, psycopg": sqlalchemy_connection("psycopg"),
    "SQLAlchemy, asyncpg": sqlalchemy_connection("asyncpg"),
    "SQLAlchemy session, psycopg": sqlalchemy_session("psycopg"),
    "SQLAlchemy session, asyncpg": sqlalchemy_session("asyncpg"),
}
every_connection = pytest.mark.parametrize("kind", CONNECTIONS)


@pytest.mark.feature("F145")
@every_connection
async def test_a_rolled_back_transaction_leaves_no_changes(kind, database, options, recorder, sql):
    seen: list[object] = []

    async def work(payload: Any, ctx: JobContext) -> None:
        seen.append(payload)
        if payload == 2:
            raise ValueError
        if payload < 2:
            await ctx.add_job("work", payload + 1)

    sql.run("select :schema.add_job('work', '0')")
    before = sql.run("select * from :schema._private_jobs")

    async with CONNECTIONS[kind](database) as connection:
        count = await run_task_list_once(
            {"work": work}, connection, options=options, hooks=recorder.hooks
        )

    assert (count, seen) == (3, [0, 1, 2])
    assert [len(recorder.events_of(kind)) for kind in (JobSucceeded, JobErrored)] == [2, 1]
    assert sql.run("select * from :schema._private_jobs") == before


@every_connection
async def test_jobs_added_in_the_callers_transaction_run(kind, database, options, app):
    seen: list[object] = []

    async with CONNECTIONS[kind](database) as connection:
        await app.aadd_job("see", 1, conn=connection)
        await app.aadd_job("see", 2, conn=connection, queue_name="q")
        count = await run_task_list_once({"see": seen.append}, connection, options=options)

    assert (count, seen) == (2, [1, 2])


@every_connection
async def test_a_tasks_own_transaction_is_part_of_the_callers(kind, database, options, sql):
    async def work(payload: object, ctx: JobContext) -> None:
        async with ctx.transaction() as conn:
            assert conn is connection

    sql.run("select :schema.add_job('work')")
    async with CONNECTIONS[kind](database) as connection:
        await run_task_list_once({"work": work}, connection, options=options)
        again = await run_task_list_once({"work": work}, connection, options=options)

    assert again == 0
    assert len(sql.run(JOBS)) == 1


async def test_stale_locks_are_released_first(database, options, sql):
    sql.run("select :schema.add_job('work')")
    sql.run(
        "update :schema._private_jobs "
        "set locked_by = 'dead', locked_at = now() - interval '5 hours'"
    )

    async with CONNECTIONS["psycopg"](database) as connection:
        assert await run_task_list_once({"work": nothing}, connection, options=options) == 1


async def test_a_plain_function_cannot_use_an_async_connection(database, options, recorder, sql):
    def work(payload: object, ctx: Any) -> None:
        ctx.query("select 1")

    sql.run("select :schema.add_job('work')")
    async with CONNECTIONS["psycopg"](database) as connection:
        await run_task_list_once({"work": work}, connection, options=options, hooks=recorder.hooks)

    [event] = recorder.events_of(JobErrored)
    assert isinstance(event.error, ConfigurationError)


@pytest.mark.feature("F177")
async def test_a_transaction_that_a_task_broke_ends_the_run(database, options, recorder, sql):
    async def break_it(payload: object, ctx: JobContext) -> None:
        await ctx.query("select 1 / 0")

    sql.run("select :schema.add_job('break')")
    async with CONNECTIONS["psycopg"](database) as connection:
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            await run_task_list_once(
                {"break": break_it}, connection, options=options, hooks=recorder.hooks
            )

    [event] = recorder.events_of(WorkerFatalError)
    assert isinstance(event.error, psycopg.errors.InFailedSqlTransaction)
    assert isinstance(event.job_error, psycopg.errors.DivisionByZero)


# Run once


@pytest.mark.feature("F144")
async def test_run_once_drains_what_is_ready_named_queues_too(database, options, sql):
    seen: list[object] = []
    sql.run("""
      select :schema.add_job('see', to_json(n), case when n % 2 = 0 then 'q' end)
      from generate_series(1, 10) as n
    """)
    sql.run("select :schema.add_job('see', '0', run_at := now() + interval '1 hour')")

    count = await run_once(database.dsn, {"see": seen.append}, options=options)

    assert count == 10
    assert sorted(map(int, map(str, seen))) == list(range(1, 11))
    assert len(sql.run(JOBS)) == 1


@pytest.mark.feature("F16")
async def test_run_once_installs_the_schema(empty_database):
    options = WorkerOptions(schema=empty_database.schema)

    assert await run_once(empty_database.dsn, {"work": nothing}, options=options) == 0


async def test_run_once_raises_an_error_of_the_fetch(database, options):
    def broken() -> list[str]:
        raise OSError("no flags today")

    with pytest.raises(OSError, match="no flags today"):
        await run_once(database.dsn, {"work": nothing}, options=options, forbidden_flags=broken)


# On your pool or engine


# While such a pool is at work, nothing here may keep the loop waiting for the database: its
# transactions need the loop to commit.


class Watched:
    """A pool that its owner passes to a worker, and how the owner uses it."""

    def __init__(self, lent: Any, ask: Any) -> None:
        self.lent = lent
        self.ask = ask


@asynccontextmanager
async def psycopg_pool_of(database: Any) -> AsyncIterator[Watched]:
    async with psycopg_pool.AsyncConnectionPool(
        database.dsn, min_size=1, max_size=4, open=False
    ) as pool:

        async def ask() -> Any:
            async with pool.connection() as connection:
                return (await (await connection.execute("select 1")).fetchone() or [None])[0]

        yield Watched(pool, ask)


@asynccontextmanager
async def asyncpg_pool_of(database: Any) -> AsyncIterator[Watched]:
    async with asyncpg.create_pool(database.url, min_size=1, max_size=4) as pool:
        yield Watched(pool, lambda: pool.fetchval("select 1"))


def engine_of(driver: str, **how: Any) -> Any:
    @asynccontextmanager
    async def lend(database: Any) -> AsyncIterator[Watched]:
        engine = create_async_engine(database.sqlalchemy_url(driver), **how)

        async def ask() -> Any:
            async with engine.connect() as connection:
                return await connection.scalar(sqlalchemy.text("select 1"))

        try:
            yield Watched(engine, ask)
        finally:
            await engine.dispose()

    return lend


POOLS = {
    "psycopg": psycopg_pool_of,
    "asyncpg": asyncpg_pool_of,
    "SQLAlchemy, psycopg": engine_of("psycopg"),
    "SQLAlchemy, asyncpg": engine_of("asyncpg"),
    "SQLAlchemy, asyncpg, autocommit": engine_of("asyncpg", isolation_level="AUTOCOMMIT"),
}
every_pool = pytest.mark.parametrize("kind", POOLS)


@pytest.mark.feature("F152")
@every_pool
async def test_a_worker_uses_your_pool_and_does_not_close_it(kind, database, start, recorder, sql):
    sql.run("create table seen (n int)")

    async def work(payload: Any, ctx: JobContext) -> None:
        if payload < 3:
            await ctx.add_job("work", payload + 1)
        async with ctx.transaction() as conn:
            await _insert(conn, payload)

    async with POOLS[kind](database) as owner:
        options = {"poll_interval": HOUR, "max_pool_size": 4}
        runner = await start({"work": work}, on=owner.lent, **options)
        await recorder.wait_for(ListenStarted)
        await runner.add_job("work", 0)
        await recorder.wait_for(JobSucceeded, count=4)
        await runner.stop()

        assert await owner.ask() == 1
    assert sql.run("select n from seen order by n") == [(0,), (1,), (2,), (3,)]
    assert sql.run(JOBS) == []


async def _insert(connection: Any, n: int) -> None:
    statement = f"insert into seen values ({n})"
    if hasattr(connection, "exec_driver_sql"):
        await connection.exec_driver_sql(statement)
    else:
        await connection.execute(statement)


@pytest.mark.feature("F152", "F100")
@every_pool
async def test_a_worker_listens_on_your_pool(kind, database, start, recorder, sql):
    async with POOLS[kind](database) as owner:
        runner = await start({"work": nothing}, on=owner.lent, poll_interval=HOUR)
        await recorder.wait_for(ListenStarted)

        for n in range(1, 4):
            await asyncio.to_thread(sql.run, "select :schema.add_job('work')")
            await recorder.wait_for(JobSucceeded, count=n)

        await runner.stop()
        assert recorder.events_of(ListenReleased)
        # The connection that listened is not one that the owner gets.
        assert [await owner.ask() for _ in range(4)] == [1] * 4


@every_pool
async def test_a_worker_listens_again_on_your_pool_after_a_lost_connection(
    kind, database, start, recorder, sql
):
    cut = f"""
      select pg_terminate_backend(pid) from pg_stat_activity
      where pid in ({OTHER_SESSIONS}) and query ilike 'listen%'
    """
    async with POOLS[kind](database) as owner:
        runner = await start({"work": nothing}, on=owner.lent, poll_interval=HOUR)
        await recorder.wait_for(ListenStarted)

        await asyncio.to_thread(sql.run, cut)
        await recorder.wait_for(ListenStarted, count=2)

        await asyncio.to_thread(sql.run, "select :schema.add_job('work')")
        await recorder.wait_for(JobSucceeded)
        await runner.stop()


async def test_a_pool_of_one_connection_is_rejected(database, start):
    """LISTEN takes one: a worker could take no job."""
    async with psycopg_pool.AsyncConnectionPool(
        database.dsn, min_size=1, max_size=1, open=False, timeout=5
    ) as pool:
        with pytest.raises(ConfigurationError, match="connections"):
            await start({"work": nothing}, on=pool)


# Settings


@dataclass
class ShiftedClock:
    """A clock that differs from the database's by this duration."""

    ahead: timedelta

    def now(self) -> datetime:
        return datetime.now(UTC) + self.ahead


@pytest.mark.feature("F104")
@pytest.mark.parametrize(
    ("ahead", "due"), [(HOUR, ["early", "now", "later"]), (-HOUR, ["early"])], ids=["fast", "slow"]
)
async def test_use_local_time_uses_the_clock_of_the_worker(start, recorder, sql, ahead, due):
    for payload, minutes in (("now", 0), ("later", 50), ("early", -70)):
        when = f"now() + {minutes} * interval '1 minute'"
        sql.run(f"select :schema.add_job('work', to_json($1::text), run_at := {when})", payload)

    timings = WorkerTimings(clock=ShiftedClock(ahead))
    await start({"work": nothing}, use_local_time=True, timings=timings)

    done = await recorder.wait_for(JobSucceeded, count=len(due))
    assert [event.job.payload for event in done] == due


@pytest.mark.feature("F88")
async def test_the_clock_of_the_database_decides_by_default(start, recorder, sql):
    sql.run("select :schema.add_job('work')")

    await start({"work": nothing}, timings=WorkerTimings(clock=ShiftedClock(-24 * HOUR)))

    await recorder.wait_for(JobSucceeded)


@pytest.mark.feature("F157")
@pytest.mark.parametrize("prepared", [True, False])
async def test_statements_are_prepared_by_default(start, recorder, database, sql, prepared):
    sql.run(f"alter database {database.name} set log_statement = 'all'")
    # One connection takes and settles all jobs: statements are prepared when used repeatedly.
    runner = await start({"work": nothing}, prepared_statements=prepared, max_pool_size=2)

    for n in range(1, 11):
        await runner.add_job("work")
        await recorder.wait_for(JobSucceeded, count=n)
    sessions = sql.run(f"select pid from ({OTHER_SESSIONS}) _")

    marks = [f"[{pid}]" for (pid,) in sessions]
    lines = database.cluster.log.read_text().splitlines()
    said = [line for line in lines if any(mark in line for mark in marks)]
    assert any("execute <unnamed>: " in line for line in said)
    assert any("execute _gw_" in line for line in said) is prepared


@pytest.mark.feature("F140", "F141")
async def test_a_worker_logs_its_tasks_and_its_jobs(start, recorder, caplog):
    caplog.set_level(logging.INFO, logger="graphile_worker")
    runner = await start({"one": nothing, "two": nothing})

    job = await runner.add_job("one")
    await recorder.wait_for(JobSucceeded)

    lines = [record.getMessage() for record in caplog.records]
    assert any("'one', 'two'" in line for line in lines)
    assert any(f"job {job.id} (one) with success (" in line for line in lines)


@pytest.mark.feature("F141")
async def test_success_is_not_logged_with_no_log_success(start, recorder, caplog, monkeypatch):
    monkeypatch.setenv("NO_LOG_SUCCESS", "1")
    caplog.set_level(logging.INFO, logger="graphile_worker")
    runner = await start({"work": nothing})

    await runner.add_job("work")
    await recorder.wait_for(JobSucceeded)

    assert not [record for record in caplog.records if "success" in record.getMessage()]


async def test_several_workers_run_in_one_process(start, recorder):
    runners = [await start({"work": nothing}) for _ in range(3)]

    jobs = [await runner.add_job("work") for runner in runners]
    done = await recorder.wait_for(JobSucceeded, count=3)

    assert {event.job.id for event in done} == {job.id for job in jobs}
    pools = {event.pool_id for event in recorder.events_of(RunnerStarted)}
    assert len(pools) == 3


async def test_passed_hooks_receive_the_first_event(database, options):
    recorder = Recorder(Hooks())

    await run_once(database.dsn, {"work": nothing}, options=options, hooks=recorder.hooks)

    assert recorder.names[0] == "pool:create"
    assert recorder.names[-1] == "stop"


async def test_a_runner_that_is_stopped_while_it_starts_does_not_start(database, options):
    entered, never = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        entered.set()
        await never.wait()
        yield

    runner = Runner(database.dsn, {"work": nothing}, options=options, lifespan=lifespan)
    starting = asyncio.create_task(runner.start())
    await entered.wait()

    await runner.stop()

    with pytest.raises(WorkerStoppedError, match="while it started"):
        await starting
    assert not runner.is_ready


async def test_a_runner_that_has_stopped_adds_no_jobs(database, options):
    runner = await run(database.dsn, {"work": nothing}, options=options, handle_signals=False)
    await runner.stop()

    with pytest.raises(WorkerStoppedError, match="has stopped"):
        await runner.add_job("work")
