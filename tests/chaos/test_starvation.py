"""Tasks that hold all the connections they can get: the worker goes on beside them."""

import asyncio
import threading

import pytest

from graphile_worker import JobContext, JobSpec, SyncJobContext, WorkerOptions
from graphile_worker.events import JobStarted, JobSucceeded, ListenNotified, ListenStarted
from tests.support.recorder import Recorder
from tests.support.rows import count_worker_sessions as connections

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
