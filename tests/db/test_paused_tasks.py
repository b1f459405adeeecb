"""Paused tasks and workers: no job of such a task starts, and none loses an attempt."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from graphile_worker import App, JobSpec, JobStarted, JobSucceeded, WorkerOptions, run_once
from graphile_worker._worker.pauses import PauseCause, PausedTaskNames, PauseTimings
from graphile_worker._worker_config import WorkerTimings
from graphile_worker.events import JobInterrupted, LocalQueueReturned, PausesChanged
from graphile_worker.options import LocalQueueOptions
from tests.support.clients import record_statements
from tests.support.recorder import wait_until
from tests.support.roles import as_role

# Logic of the worker, which test_polling.py runs on the oldest pair too.
pytestmark = pytest.mark.single_version

HOUR = timedelta(hours=1)

# The three ways in which a worker fetches jobs.
SOURCES: dict[str, Any] = {
    "prefetch": LocalQueueOptions(),
    "local queue": LocalQueueOptions(size=20),
    "direct": None,
}

JOBS = """
select tasks.identifier, jobs.attempts, jobs.locked_by is not null
from :schema._private_jobs as jobs
join :schema._private_tasks as tasks on tasks.id = jobs.task_id
order by jobs.id
"""


@pytest.fixture
def gate() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def tasks(app: App, gate: asyncio.Event) -> App:
    """Tasks that return at once, and one that runs until the gate opens."""

    @app.task
    async def send() -> None: ...

    @app.task
    async def work() -> None: ...

    @app.task
    async def hold() -> None:
        await gate.wait()

    return app


@pytest.mark.parametrize("source", SOURCES)
async def test_no_job_of_a_paused_task_starts_until_it_is_resumed(
    tasks, start, recorder, blocking_client, sql, source
):
    await start(tasks, poll_interval=HOUR, local_queue=SOURCES[source])
    blocking_client.pause_task("send")
    await recorder.wait_for(PausesChanged, paused_tasks=("send",))
    recorder.clear()

    await tasks.aadd_jobs([JobSpec("send")] * 3 + [JobSpec("work")] * 3)
    await recorder.wait_for(JobSucceeded, count=3)

    assert {each.job.task_identifier for each in recorder.events_of(JobStarted)} == {"work"}
    assert sql.run(JOBS) == [("send", 0, False)] * 3
    blocking_client.resume_task("send")
    await recorder.wait_for(JobSucceeded, count=6)


@pytest.mark.parametrize("source", SOURCES)
async def test_fetched_jobs_of_a_paused_task_are_released_without_an_attempt(
    tasks, start, recorder, blocking_client, sql, gate, source
):
    await tasks.aadd_jobs([JobSpec("hold")] + [JobSpec("send")] * 5)
    await start(tasks, concurrency=1, poll_interval=HOUR, local_queue=SOURCES[source])
    await recorder.wait_for(JobStarted)

    blocking_client.pause_task("send")

    # While the worker is busy: another worker may run the task after it is resumed.
    await recorder.wait_for(PausesChanged)
    await wait_until(lambda: sql.run(JOBS)[1:] == [("send", 0, False)] * 5)
    if source == "local queue":
        await recorder.wait_for(LocalQueueReturned)
    gate.set()
    await recorder.wait_for(JobSucceeded)
    assert len(recorder.events_of(JobStarted)) == 1
    assert recorder.events_of(JobInterrupted) == []


async def test_a_worker_that_does_not_listen_reads_the_pauses_at_intervals(
    tasks, start, recorder, blocking_client, sql
):
    often = WorkerTimings(pauses=PauseTimings(read_interval_seconds=0.1))
    await start(tasks, listen=False, timings=often)
    blocking_client.pause_task("send")
    await recorder.wait_for(PausesChanged, paused_tasks=("send",))

    blocking_client.resume_task("send")
    await recorder.wait_for(PausesChanged, paused_tasks=())


def test_a_pause_takes_effect_within_6_s_without_notifications():
    assert PauseTimings().read_interval_seconds < 6


async def test_a_pause_survives_a_restart_of_the_worker(
    tasks, start, recorder, database, blocking_client, sql
):
    blocking_client.pause_task("send")
    await tasks.aadd_jobs([JobSpec("send"), JobSpec("work")])

    for _ in range(2):
        runner = await start(tasks)
        await recorder.wait_for(PausesChanged, paused_tasks=("send",))
        await runner.stop()
    options = WorkerOptions(schema=database.schema)
    await run_once(database.dsn, tasks, options=options, hooks=recorder.hooks)

    assert {each.job.task_identifier for each in recorder.events_of(JobStarted)} <= {"work"}
    assert sql.run(JOBS) == [("send", 0, False)]
    # A crash of the server does not empty the table.
    kind = "select relpersistence::text from pg_class where relname = 'pauses'"
    assert sql.value(kind) == "p"


async def test_a_worker_whose_tasks_are_all_paused_does_not_fetch(
    tasks, start, recorder, blocking_client, sql, monkeypatch
):
    for name in ("send", "work", "hold"):
        blocking_client.pause_task(name)
    sent = record_statements(monkeypatch)
    for options in SOURCES.values():
        runner = await start(tasks, poll_interval=timedelta(milliseconds=20), local_queue=options)
        await tasks.aadd_jobs([JobSpec("send")] * 3)
        await asyncio.sleep(0.5)
        await runner.stop()

    assert [name for name in sent if name.startswith("claim_")] == []
    # One read at the start, one when the worker listens, and one after each pause.
    assert sent.count("get_paused_tasks") < 20


async def test_pauses_of_tasks_and_queues_end_by_themselves(
    tasks, start, recorder, blocking_client, sql
):
    soon = timedelta(milliseconds=500)
    blocking_client.pause_task("send", duration=soon)
    blocking_client.pause_queue("serial", duration=soon)
    await tasks.aadd_jobs([JobSpec("send"), JobSpec("work", queue_name="serial")])

    await start(tasks, poll_interval=HOUR)

    await recorder.wait_for(JobSucceeded, count=2)
    await wait_until(lambda: blocking_client.list_pauses() == [])
    assert sql.run("select name from :ext_schema.pauses") == []


async def test_a_pause_that_cannot_be_ended_does_not_delay_other_pauses(
    tasks, start, recorder, blocking_client, sql
):
    sql.run(
        "create function :ext_schema.reject_end() returns trigger language plpgsql "
        "as 'begin raise ''not now''; end'"
    )
    sql.run(
        "create trigger reject_end before delete on :ext_schema.pauses "
        "for each row execute function :ext_schema.reject_end()"
    )
    blocking_client.pause_queue("serial", duration=timedelta(milliseconds=1))
    await start(tasks, timings=WorkerTimings(pauses=PauseTimings(read_interval_seconds=0.1)))

    blocking_client.pause_task("send")

    await recorder.wait_for(PausesChanged, paused_tasks=("send",))


async def test_without_the_table_of_pauses_a_worker_runs_all_tasks(
    tasks, start, recorder, blocking_client, sql
):
    sql.run("drop table :ext_schema.pauses")
    await start(tasks, migrate=False)
    await tasks.aadd_jobs([JobSpec("send")])
    await recorder.wait_for(JobSucceeded)


async def test_a_worker_goes_on_after_the_table_of_pauses_is_dropped_and_created(
    tasks, start, recorder, blocking_client, sql
):
    often = WorkerTimings(pauses=PauseTimings(read_interval_seconds=0.1))
    await start(tasks, timings=often)
    blocking_client.pause_task("send")
    await recorder.wait_for(PausesChanged, paused_tasks=("send",))

    sql.run("drop table :ext_schema.pauses")
    sql.run("delete from :ext_schema.migrations where id >= 7")

    await recorder.wait_for(PausesChanged, paused_tasks=())
    blocking_client.migrate()
    recorder.clear()
    blocking_client.pause_task("send")
    await recorder.wait_for(PausesChanged, paused_tasks=("send",))


def test_a_task_stays_paused_while_one_of_two_causes_lasts():
    paused = PausedTaskNames()
    names = paused.names
    paused.set(PauseCause.PERSON, ["a", "b"])
    paused.set(PauseCause.RUNAWAYS, ["b"])
    paused.set(PauseCause.PERSON, ["c"])
    assert names == {"b", "c"}
    paused.set(PauseCause.RUNAWAYS, [])
    assert names == {"c"}


async def test_a_worker_whose_role_may_not_read_the_pauses_logs_that_it_ignores_them(
    tasks, start, recorder, database, blocking_client, sql, role, caplog
):
    blocking_client.pause_task("send")
    sql.run(f"grant usage on schema :schema, :ext_schema to {role}")
    sql.run(f"grant all on all tables in schema :schema to {role}")
    sql.run(f"grant all on all sequences in schema :schema to {role}")
    sql.run(f"grant all on :ext_schema.pools, :ext_schema.recoveries to {role}")
    sql.run(f"grant select on :ext_schema.migrations to {role}")
    sql.run(f"alter role {role} bypassrls")

    await start(tasks, on=as_role(database, role), migrate=False)
    await tasks.aadd_jobs([JobSpec("send")])

    await recorder.wait_for(JobSucceeded)
    assert "is not readable for this role, this worker also runs paused tasks" in caplog.text
