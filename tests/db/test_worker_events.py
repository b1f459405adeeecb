"""What a worker announces, under which names, in which order, and when it may be relied upon."""

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from graphile_worker import (
    Hooks,
    JobsLeftLocked,
    Runner,
    WorkerOptions,
    make_worker_utils,
    run,
    run_migrations,
    run_once,
    run_task_list,
    run_task_list_once,
)
from graphile_worker._worker.completer import CompletionTimings
from graphile_worker._worker_config import WorkerTimings
from graphile_worker.events import (
    Event,
    ForcefulShutdown,
    GetJobEmpty,
    GetJobErrored,
    GetJobStarted,
    GracefulShutdown,
    JobErrored,
    JobEvent,
    JobFailed,
    JobFinished,
    JobInterrupted,
    JobLockLost,
    JobStarted,
    JobSucceeded,
    ListenConnecting,
    ListenFailed,
    ListenNotified,
    ListenReleased,
    ListenStarted,
    Migrating,
    PoolCreated,
    PoolEvent,
    PoolFatalError,
    PoolForcefulShutdown,
    PoolForcefulShutdownCompleted,
    PoolForcefulShutdownError,
    PoolGracefulShutdown,
    PoolGracefulShutdownCompleted,
    PoolGracefulShutdownError,
    PoolGracefulShutdownWorkerError,
    PoolReleased,
    ResetLockedFailed,
    ResetLockedStarted,
    ResetLockedSucceeded,
    RunnerStarted,
    RunnerStopped,
    WorkerCreated,
    WorkerEvent,
    WorkerReleased,
    WorkerStopped,
)
from tests.support.recorder import Recorder, Start
from tests.support.sql import Sql
from tests.support.tasks import endless, nothing

# Logic of the worker, which test_polling.py runs on the oldest pair too.
pytestmark = pytest.mark.single_version

HOUR = timedelta(hours=1)
SOON = timedelta(milliseconds=20)
JOBS = "select attempts, locked_by, last_error from :schema._private_jobs"


async def fail(payload: object) -> None:
    raise ValueError("no good")


def named(recorder: Recorder, *prefixes: str) -> list[str]:
    """The names that begin with one of these, in the order of their events."""
    return [name for name in recorder.names if name.startswith(prefixes)]


async def run_one(start: Start, recorder: Recorder, task: Any, **job: Any) -> list[str]:
    """The names of what happens to one job, from its fetch to its end."""
    runner = await start({"work": task}, poll_interval=HOUR)
    await recorder.wait_for(GetJobEmpty)
    await recorder.wait_for(ListenStarted)
    await runner.add_job("work", **job)
    await recorder.wait_for(JobFinished)
    return named(recorder, "job:")


# One job


@pytest.mark.feature("F163", "F174", "F178", "F179", "F182")
async def test_a_job_that_succeeds_starts_succeeds_and_is_complete(start, recorder, sql):
    sql.run("select :schema.add_job('work')")

    await start({"work": nothing}, poll_interval=HOUR, complete_batch_delay=None)
    await recorder.wait_for(JobFinished)

    names = named(recorder, "worker:getJob", "job:")
    assert names[:4] == ["worker:getJob:start", "job:start", "job:success", "job:complete"]


@pytest.mark.feature("F180", "F182")
async def test_a_job_that_fails_starts_errs_and_is_complete(start, recorder):
    assert await run_one(start, recorder, fail) == ["job:start", "job:error", "job:complete"]

    [errored], [finished] = recorder.events_of(JobErrored), recorder.events_of(JobFinished)
    assert str(errored.error) == "no good"
    assert finished.error is errored.error


@pytest.mark.feature("F181", "F185")
async def test_the_last_failure_is_announced_both_ways(start, recorder):
    names = await run_one(start, recorder, fail, max_attempts=1)

    assert names == ["job:start", "job:error", "job:failed", "job:complete"]
    assert recorder.events_of(JobFailed)[0].error is recorder.events_of(JobErrored)[0].error


@pytest.mark.feature("F182")
async def test_a_success_has_no_error(start, recorder):
    await run_one(start, recorder, nothing)

    assert recorder.events_of(JobFinished)[0].error is None


@pytest.mark.feature("F119")
async def test_the_duration_is_that_of_the_task(start, recorder):
    async def wait(payload: object) -> None:
        await asyncio.sleep(0.1)

    await run_one(start, recorder, wait)

    assert (
        timedelta(seconds=0.09)
        < recorder.events_of(JobSucceeded)[0].duration
        < timedelta(seconds=20)
    )


async def test_all_events_of_a_job_carry_it_and_where_it_ran(start, recorder):
    await run_one(start, recorder, fail, payload={"a": 1}, max_attempts=1, queue_name="q")

    events = recorder.events_of(JobEvent)
    assert len({(each.pool_id, each.worker_id, each.job.id) for each in events}) == 1
    job = events[0].job
    assert (job.task_identifier, job.payload, job.queue_name) == ("work", {"a": 1}, "q")
    assert (job.attempts, job.locked_by) == (1, events[0].pool_id)


# After the write


@pytest.mark.feature("F179", "F182", "F107")
async def test_at_success_the_row_is_deleted_for_all_sessions(start, recorder, sql):
    rows = []
    for name in ("job:start", "job:success", "job:complete"):
        recorder.hooks.on(name)(lambda event: rows.append(len(sql.run(JOBS))))

    await run_one(start, recorder, nothing)

    assert rows == [1, 0, 0]


@pytest.mark.feature("F180", "F182")
async def test_at_an_error_it_stands_in_the_row(start, recorder, sql):
    rows = []
    for name in ("job:error", "job:failed", "job:complete"):
        recorder.hooks.on(name)(lambda event: rows.extend(sql.run(JOBS)))

    await run_one(start, recorder, fail, max_attempts=1)

    assert [(attempts, locked_by) for attempts, locked_by, _ in rows] == [(1, None)] * 3
    assert all(error.startswith("ValueError: no good") for _, _, error in rows)


@pytest.mark.feature("F211")
@pytest.mark.parametrize("task", [nothing, fail], ids=["success", "failure"])
async def test_a_lost_lock_is_the_only_event_of_the_end(start, recorder, sql, task):
    async def lose(payload: object) -> None:
        sql.run("update :schema._private_jobs set locked_by = 'other', last_error = 'theirs'")
        await task(payload)

    runner = await start({"work": lose}, poll_interval=HOUR)
    await runner.add_job("work")
    await recorder.wait_for(JobLockLost)

    assert named(recorder, "job:") == ["job:start", "job:lockLost"]
    assert sql.run(JOBS) == [(1, "other", "theirs")]


@pytest.mark.feature("F187")
async def test_an_interrupted_job_is_an_event_after_its_release(start, recorder, sql):
    rows = []
    recorder.hooks.on(JobInterrupted)(lambda event: rows.extend(sql.run(JOBS)))
    runner = await start({"work": endless}, poll_interval=HOUR)
    await runner.add_job("work")
    await recorder.wait_for(JobStarted)

    await runner.kill()

    assert named(recorder, "job:") == ["job:start", "job:interrupted"]
    assert rows == [(0, None, None)]


@pytest.mark.feature("F170")
@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_shutdown_that_leaves_jobs_locked_names_them(start, recorder, sql, how):
    runner = await start({"work": nothing}, shutdown_timeout=timedelta(0))
    refuse_endings(sql)
    job = await runner.add_job("work", queue_name="q")
    await recorder.wait_for(PoolFatalError)

    with pytest.raises(JobsLeftLocked, match=f"stay locked: {job.id}"):
        await getattr(runner, how)()

    kind = PoolGracefulShutdownError if how == "stop" else PoolForcefulShutdownError
    [failed], [worker_failed] = (
        recorder.events_of(kind),
        recorder.events_of(PoolGracefulShutdownWorkerError),
    )
    assert isinstance(failed.error, JobsLeftLocked)
    assert worker_failed.job is not None
    assert worker_failed.job.id == job.id
    assert named(recorder, "pool:release", "stop") == ["pool:release", "stop"]


def refuse_endings(sql: Sql) -> None:
    """Let nobody write how a job ended: delete it, or update it so that it is free."""
    sql.run("""
      create function public.refuse() returns trigger language plpgsql as $$
      begin
        raise exception 'not today';
      end
      $$
    """)
    sql.run("""
      create trigger refuse_deletion before delete on :schema._private_jobs
      for each row execute function public.refuse()
    """)
    sql.run("""
      create trigger refuse_unlocking before update on :schema._private_jobs
      for each row when (new.locked_at is null) execute function public.refuse()
    """)


# A worker's life


@pytest.mark.feature("F164", "F168", "F169", "F171", "F172", "F173", "F184", "F186")
async def test_a_worker_is_made_released_and_stopped_in_this_order(start, recorder):
    runner = await start({"one": nothing, "two": nothing}, listen=False)
    await recorder.wait_for(GetJobEmpty)
    await runner.stop("enough")

    names = [name for name in recorder.names if not name.startswith("resetLocked:")]
    assert names == [
        "pool:create",
        "worker:create",
        "runner:started",
        "worker:getJob:start",
        "worker:getJob:empty",
        "pool:gracefulShutdown",
        "worker:release",
        "worker:stop",
        "pool:gracefulShutdown:complete",
        "pool:release",
        "stop",
    ]


@pytest.mark.feature("F171", "F169", "F173", "F186")
async def test_the_events_of_a_worker_say_what_it_is_about(start, recorder):
    runner = await start({"one": nothing, "two": nothing})
    await runner.stop("enough")

    [started], [created] = recorder.events_of(RunnerStarted), recorder.events_of(WorkerCreated)
    assert started.tasks == created.tasks == ("one", "two")
    assert recorder.events_of(PoolGracefulShutdown)[0].message == "enough"
    assert recorder.events_of(WorkerStopped)[0].error is None
    assert len({event.pool_id for event in recorder.events_of(PoolEvent)}) == 1
    assert started.pool_id.startswith("pypool-")


@pytest.mark.feature("F171", "F172", "F173")
async def test_each_slot_has_its_own_events(start, recorder):
    runner = await start({"work": nothing}, concurrency=3)
    await recorder.wait_for(GetJobEmpty, count=3)
    await runner.stop()

    kinds = (WorkerCreated, GetJobStarted, GetJobEmpty, WorkerReleased, WorkerStopped)
    workers = [{event.worker_id for event in recorder.events_of(kind)} for kind in kinds]
    assert len(workers[0]) == 3
    assert all(each == workers[0] for each in workers)
    assert all(event.worker_id.startswith("worker-") for event in recorder.events_of(WorkerEvent))


async def test_a_forceful_shutdown_emits_both_shutdown_events(start, recorder):
    runner = await start({"work": endless}, listen=False)
    await runner.add_job("work")
    await recorder.wait_for(JobStarted)
    recorder.clear()

    await runner.kill("now")

    assert [name for name in recorder.names if not name.startswith("resetLocked:")] == [
        "pool:gracefulShutdown",
        "worker:release",
        "pool:forcefulShutdown",
        "job:interrupted",
        "worker:stop",
        "pool:forcefulShutdown:complete",
        "pool:release",
        "stop",
    ]
    assert recorder.events_of(PoolForcefulShutdown)[0].message == "now"


async def test_what_runs_out_of_jobs_has_not_been_shut_down(database, recorder):
    options = WorkerOptions(schema=database.schema)

    await run_once(database.dsn, {"work": nothing}, options=options, hooks=recorder.hooks)

    assert not recorder.events_of(PoolGracefulShutdown)
    assert not recorder.events_of(PoolGracefulShutdownCompleted)
    assert named(recorder, "worker:stop", "pool:release", "stop") == [
        "worker:stop",
        "pool:release",
        "stop",
    ]


@pytest.mark.feature("F183")
async def test_the_first_signal_is_graceful_and_the_second_is_not(start, recorder):
    runner = await start({"work": endless}, handle_signals=True)
    await runner.add_job("work")
    await recorder.wait_for(JobStarted)

    os.kill(os.getpid(), signal.SIGTERM)
    await recorder.wait_for(PoolGracefulShutdown)
    os.kill(os.getpid(), signal.SIGINT)
    await runner.wait()

    assert recorder.events_of(GracefulShutdown)[0].signal == "SIGTERM"
    assert recorder.events_of(ForcefulShutdown)[0].signal == "SIGINT"
    assert recorder.events_of(PoolForcefulShutdownCompleted)
    assert runner.exit_signal == signal.SIGINT


async def test_a_slow_graceful_shutdown_is_not_an_error(start, recorder, caplog):
    runner = await start({"work": endless}, cancel_after=SOON, shutdown_timeout=2 * SOON)
    await runner.add_job("work")
    await recorder.wait_for(JobStarted)

    await runner.stop()
    # Futures that nobody looked at complain when they are thrown away.
    gc.collect()

    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


# Listening


@pytest.mark.feature("F165", "F166")
async def test_it_listens_from_the_start_to_the_end(start, recorder, sql):
    runner = await start({"work": nothing})
    await recorder.wait_for(ListenStarted)
    sql.run("select :schema.add_job('work')")
    await recorder.wait_for(ListenNotified)
    # A job that is handed back is announced too.
    await recorder.wait_for(JobFinished)
    await runner.stop()

    assert named(recorder, "pool:listen") == [
        "pool:listen:connecting",
        "pool:listen:success",
        "pool:listen:notification",
        "pool:listen:release",
    ]
    assert recorder.events_of(ListenConnecting)[0].attempts == 0


@pytest.mark.feature("F166")
async def test_listen_started_is_emitted_after_listen(start, recorder, sql):
    listening = "select count(*) from pg_stat_activity where query ilike 'listen%'"
    counts = []
    recorder.hooks.on(ListenConnecting)(lambda event: counts.append(sql.value(listening)))
    recorder.hooks.on(ListenStarted)(lambda event: counts.append(sql.value(listening)))

    await start({"work": nothing})
    await recorder.wait_for(ListenStarted)

    assert counts == [0, 1]


@pytest.mark.feature("F167", "F165")
async def test_an_error_of_the_listen_connection_is_an_event(start, recorder, sql):
    await start({"work": nothing})
    await recorder.wait_for(ListenStarted)

    sql.run(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where datname = current_database() and query ilike 'listen%'"
    )

    await recorder.wait_for(ListenStarted, count=2)
    assert named(recorder, "pool:listen")[2:4] == ["pool:listen:release", "pool:listen:error"]
    assert isinstance(recorder.events_of(ListenFailed)[0].error, psycopg.OperationalError)
    attempts = [event.attempts for event in recorder.events_of(ListenConnecting)]
    assert attempts[:2] == [0, 1]


async def test_attempts_to_listen_are_counted_until_one_succeeds(start, recorder, database):
    await start({"work": nothing})
    await recorder.wait_for(ListenStarted)
    recorder.clear()

    # Nobody gets in, and whoever is there is thrown out.
    close_to_others(database, closed=True)
    await recorder.wait_for(ListenFailed, count=3)
    close_to_others(database, closed=False)
    await recorder.wait_for(ListenStarted)

    attempts = [event.attempts for event in recorder.events_of(ListenConnecting)]
    assert attempts == list(range(1, len(attempts) + 1))
    assert len(recorder.events_of(ListenReleased)) == 1


def close_to_others(database: Any, *, closed: bool) -> None:
    """Let no session into the database, from another one."""
    with psycopg.connect(database.cluster.dsn(), autocommit=True) as elsewhere:
        allowed = "false" if closed else "true"
        elsewhere.execute(f"alter database {database.name} with allow_connections {allowed}")
        if closed:
            throw_out = "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s"
            elsewhere.execute(throw_out, [database.name])


# Asking


@pytest.mark.feature("F175")
async def test_a_failed_fetch_is_an_event_for_each_waiting_worker(start, recorder, sql):
    await start({"work": nothing}, concurrency=2, poll_interval=SOON)
    await recorder.wait_for(GetJobEmpty, count=2)

    sql.run("alter table :schema._private_jobs rename to gone")
    await recorder.wait_for(GetJobErrored, count=4)
    recorder.events[:] = recorder.events_of(GetJobErrored)
    sql.run("alter table :schema.gone rename to _private_jobs")
    await recorder.wait_for(GetJobEmpty)

    failed = recorder.events_of(GetJobErrored)
    assert {type(event.error) for event in failed} == {psycopg.errors.UndefinedTable}
    assert len({event.worker_id for event in failed}) == 2


@pytest.mark.feature("F176")
async def test_an_idle_worker_emits_an_empty_fetch_at_each_poll(start, recorder):
    await start({"work": nothing}, poll_interval=SOON, listen=False)

    await recorder.wait_for(GetJobEmpty, count=3)

    assert (
        named(recorder, "worker:getJob")[:6]
        == [
            "worker:getJob:start",
            "worker:getJob:empty",
        ]
        * 3
    )


# Writing


@pytest.mark.parametrize(
    ("task", "action"), [(nothing, "completeJob"), (fail, "failJob")], ids=["success", "failure"]
)
async def test_an_end_that_cannot_be_written_is_announced_until_it_is(
    start, recorder, sql, task, action
):
    timings = WorkerTimings(completion=CompletionTimings(report_interval_seconds=0.0))
    runner = await start({"work": task}, poll_interval=HOUR, timings=timings)
    refuse_endings(sql)
    await runner.add_job("work")

    trouble = await recorder.wait_for(PoolFatalError, count=2)
    assert not recorder.events_of(JobFinished)
    sql.run("drop function public.refuse() cascade")

    await recorder.wait_for(JobFinished)
    assert {event.action for event in trouble} == {action}
    assert "not today" in str(trouble[0].error)


# Stale locks


async def test_a_sweep_is_begun_and_done(start, recorder):
    await start({"work": nothing}, min_reset_locked_interval=SOON, max_reset_locked_interval=SOON)

    await recorder.wait_for(ResetLockedSucceeded, count=2)

    assert (
        named(recorder, "resetLocked:")[:4]
        == [
            "resetLocked:started",
            "resetLocked:success",
        ]
        * 2
    )
    assert recorder.events_of(ResetLockedSucceeded)[0].delay == SOON


async def test_a_failed_stale_lock_check_has_its_error_and_delay(start, recorder, sql):
    await start({"work": nothing}, min_reset_locked_interval=SOON, max_reset_locked_interval=SOON)
    await recorder.wait_for(ResetLockedSucceeded)

    sql.run("alter table :schema._private_job_queues rename to gone")

    [failed, *_] = await recorder.wait_for(ResetLockedFailed)
    assert isinstance(failed.error, psycopg.errors.UndefinedTable)
    assert failed.delay == SOON
    assert recorder.events_of(ResetLockedStarted)


async def test_the_only_sweep_of_a_run_has_no_next_one(database, recorder):
    options = WorkerOptions(schema=database.schema)

    async with await psycopg.AsyncConnection.connect(database.dsn) as connection:
        await run_task_list_once(
            {"work": nothing}, connection, options=options, hooks=recorder.hooks
        )

    assert [event.delay for event in recorder.events_of(ResetLockedSucceeded)] == [None]


# Who listens


@pytest.mark.feature("F163")
async def test_listeners_may_be_plain_or_async_and_are_found_by_class_name_or_group(
    start, recorder
):
    heard: list[str] = []
    both = asyncio.Event()

    async def hear_later(event: Event) -> None:
        await asyncio.sleep(0)
        heard.append(f"async {event.name}")
        both.set()

    recorder.hooks.on(JobSucceeded)(lambda event: heard.append(f"plain {event.name}"))
    recorder.hooks.on("job:success")(hear_later)
    await run_one(start, recorder, nothing)

    await asyncio.wait_for(both.wait(), 20)
    assert heard == ["plain job:success", "async job:success"]


async def test_a_stop_waits_for_async_listeners(start, recorder):
    done: list[str] = []

    async def hear(event: Event) -> None:
        await asyncio.sleep(0.05)
        done.append(event.name)

    for name in ("job:success", "pool:release", "stop"):
        recorder.hooks.on(name)(hear)
    runner = await start({"work": nothing})
    await runner.add_job("work")
    await recorder.wait_for(JobSucceeded)

    await runner.stop()

    assert sorted(done) == ["job:success", "pool:release", "stop"]


async def test_a_listener_that_never_ends_does_not_keep_the_worker(start, recorder):
    recorder.hooks.on(RunnerStopped)(endless)
    runner = await start({"work": nothing}, timings=WorkerTimings(listener_drain_timeout=SOON))

    await asyncio.wait_for(runner.stop(), 20)


@pytest.mark.feature("F163")
async def test_errors_of_listeners_do_not_affect_the_worker(start, recorder, sql, caplog):
    def broken(event: Event) -> None:
        raise OSError("a listener of no use")

    async def broken_later(event: Event) -> None:
        raise OSError("a listener of no use")

    recorder.hooks.on(Event)(broken)
    recorder.hooks.on(Event)(broken_later)

    names = await run_one(start, recorder, nothing)

    assert names == ["job:start", "job:success", "job:complete"]
    assert sql.run(JOBS) == []
    assert any("failed on JobSucceeded" in record.getMessage() for record in caplog.records)


@pytest.mark.feature("F156")
@pytest.mark.parametrize("entry", ["run", "run_once", "run_task_list", "run_task_list_once"])
async def test_hooks_are_taken_by_every_way_to_work(database, recorder, entry, sql):
    sql.run("select :schema.add_job('work')")
    tasks = {"work": nothing}
    given: dict[str, Any] = {"options": WorkerOptions(schema=database.schema)}
    given["hooks"] = recorder.hooks

    if entry == "run":
        await _until_done(await run(database.dsn, tasks, **given), recorder)
    elif entry == "run_once":
        await run_once(database.dsn, tasks, **given)
    elif entry == "run_task_list":
        await _until_done(await run_task_list(tasks, database.dsn, **given), recorder)
    else:
        async with await psycopg.AsyncConnection.connect(database.dsn) as connection:
            await run_task_list_once(tasks, connection, **given)

    assert {"pool:create", "worker:create", "job:success", "stop"} < set(recorder.names)


async def _until_done(runner: Runner, recorder: Recorder) -> None:
    await recorder.wait_for(JobFinished)
    await runner.stop()


@pytest.mark.feature("F156")
@pytest.mark.parametrize("entry", ["run", "run_once", "run_migrations", "make_worker_utils"])
async def test_hooks_are_around_the_migration_of_every_entry_that_migrates(database, entry):
    schemas: list[str] = []
    hooks = Hooks()

    @hooks.around(Migrating)
    @contextmanager
    def watch(moment: Migrating) -> Iterator[None]:
        schemas.append(moment.schema)
        yield

    options = WorkerOptions(schema=database.schema)
    if entry == "run":
        await (await run(database.dsn, {"work": nothing}, options=options, hooks=hooks)).stop()
    elif entry == "run_once":
        await run_once(database.dsn, {"work": nothing}, options=options, hooks=hooks)
    elif entry == "run_migrations":
        await run_migrations(database.dsn, options=options, hooks=hooks)
    else:
        schema = database.schema
        await (await make_worker_utils(database.dsn, schema=schema, hooks=hooks)).close()

    assert schemas == [database.schema]


async def test_hooks_get_the_events_of_their_pools(start, recorder):
    others = Recorder(Hooks())
    runner = await start({"work": nothing})
    await start({"elsewhere": nothing}, hooks=others.hooks)
    await runner.add_job("work")

    await recorder.wait_for(JobFinished)

    assert len(recorder.events_of(PoolCreated)) == len(others.events_of(PoolCreated)) == 1
    assert not others.events_of(JobEvent)
    assert not recorder.events_of(PoolReleased)
