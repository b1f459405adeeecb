"""Tasks with all connections, or a session with the row of a job: the worker runs other jobs."""

import asyncio
import threading
from contextlib import closing
from datetime import timedelta

import pytest

from graphile_worker import Client, JobContext, JobSpec, SyncJobContext, WorkerOptions
from graphile_worker._db.worker_connections import ConnectionTimings
from graphile_worker._worker.sources.prefetch import PrefetchTimings
from graphile_worker._worker_config import WorkerTimings
from graphile_worker.events import (
    JobFinished,
    JobStarted,
    JobSucceeded,
    ListenNotified,
    ListenStarted,
)
from tests.support.recorder import Recorder, open_runners, wait_until
from tests.support.rows import count_worker_sessions as connections

LOCKED = """
select array_agg(tasks.identifier order by tasks.identifier)
from :schema._private_jobs as jobs
join :schema._private_tasks as tasks on tasks.id = jobs.task_id
where jobs.locked_by is not null
"""

TASKS = 50
# By docs/operations/running-workers.md#database-connections a worker opens `max_pool_size`
# connections, and five more when it needs them. The client that adds the jobs has another one.
POOL_SIZE = 2
MAX_CONNECTIONS = POOL_SIZE + 5 + 1


@pytest.mark.feature("F125")
@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_50_tasks_that_hold_connections_starve_only_each_other(app, database, sql, kind):
    let_go = asyncio.Event()
    let_go_in_threads = threading.Event()
    recorder = Recorder(app.hooks)

    @app.task(name="async")
    async def hold(ctx: JobContext) -> None:
        async with ctx.connection() as connection:
            await connection.execute("select 1")
            await let_go.wait()

    @app.task(name="plain")
    def hold_in_thread(ctx: SyncJobContext) -> None:
        with ctx.connection() as connection:
            connection.execute("select 1")
            let_go_in_threads.wait()

    @app.task
    async def work(ctx: JobContext) -> None:
        await ctx.add_job("note")

    @app.task
    async def note() -> None:
        pass

    options = WorkerOptions(schema=database.schema, concurrency=TASKS + 5, max_pool_size=POOL_SIZE)
    async with app.worker(options):
        await recorder.wait_for(ListenStarted)
        await app.aadd_jobs([JobSpec(kind)] * TASKS)
        await recorder.wait_for(JobStarted, count=TASKS)

        # Fetched on a notification, run, settled, and jobs added meanwhile.
        await app.aadd_jobs([JobSpec("work")] * 20)
        await recorder.wait_for(JobSucceeded, count=40)
        assert ListenNotified in {type(event) for event in recorder.events}
        assert connections(sql) <= MAX_CONNECTIONS

        let_go.set()
        let_go_in_threads.set()
        await recorder.wait_for(JobSucceeded, count=40 + TASKS)


@pytest.mark.timeout(180)
async def test_a_session_that_keeps_the_row_of_a_job_starves_no_other_job(database, sql):
    """Its transaction removes a running job by its key, and stays open."""
    timings = WorkerTimings(connections=ConnectionTimings(query_timeout=timedelta(seconds=4)))
    recorder, gate = Recorder(), asyncio.Event()

    async def kept(payload: object) -> None:
        await gate.wait()

    async def other(payload: object) -> None: ...

    async with (
        open_runners(database, recorder.hooks, timings) as start,
        Client(database.dsn, schema=database.schema) as client,
    ):
        await client.add_job("kept", job_key="k")
        await start({"kept": kept, "other": other}, concurrency=4)
        await recorder.wait_for(JobStarted)
        with closing(sql.another()) as session:
            session.run("begin")
            session.run("select :schema.remove_job('k')")
            gate.set()
            # Each repeated write would wait for 4 s, and many of these jobs for one of them.
            async with asyncio.timeout(50):
                for count in range(1, 41):
                    await client.add_job("other")
                    await recorder.wait_for(JobSucceeded, count=count, timeout=50)
                    await asyncio.sleep(0.3)
            session.run("commit")
        await recorder.wait_for(JobFinished, count=41, timeout=20)

    assert sql.value("select count(*) from :schema._private_jobs") == 0


@pytest.mark.timeout(120)
async def test_a_prefetched_job_that_is_removed_while_it_waits_does_not_run(database, sql):
    # Long enough for a machine that stalls between the claim and the removal.
    timings = WorkerTimings(prefetch=PrefetchTimings(max_buffered_seconds=3.0))
    recorder, gate, ran = Recorder(), asyncio.Event(), []

    async def short(payload: object) -> None: ...

    async def kept(payload: object) -> None:
        await gate.wait()

    async def removed(payload: object) -> None:
        ran.append(payload)

    tasks = {"short": short, "kept": kept, "removed": removed}
    async with (
        open_runners(database, recorder.hooks, timings) as start,
        Client(database.dsn, schema=database.schema) as client,
    ):
        specs = [JobSpec("short")] * 300 + [JobSpec("kept"), JobSpec("removed", job_key="k")]
        with closing(sql.another()) as session:
            session.run("begin")
            session.run("select now()")
            await client.add_jobs(specs)
            await start(tasks, concurrency=1)
            await wait_until(lambda: sql.value(LOCKED) == ["kept", "removed"])
            session.run("select :schema.remove_job('k')")
            # The job is late before this transaction ends.
            await asyncio.sleep(4)
            session.run("commit")
        await wait_until(lambda: sql.value(LOCKED) == ["kept"])
        assert sql.value("select count(*) from :schema._private_jobs") == 1
        gate.set()
        await recorder.wait_for(JobSucceeded, count=301)

    assert ran == []
