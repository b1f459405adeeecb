"""A server that crashes may lose its last commits: completed jobs then appear as locked again."""

import asyncio
import signal
from collections.abc import Iterator
from datetime import timedelta

import pytest

from graphile_worker import Hooks, RecoveryOptions, sync
from graphile_worker.events import GetJobEmpty, JobSucceeded
from tests.conftest import TestDatabase
from tests.support.cluster import Cluster
from tests.support.recorder import Recorder, open_runners, wait_until
from tests.support.sql import Sql

pytestmark = [pytest.mark.single_version, pytest.mark.timeout(120)]

# Commits are acknowledged before they are written, and stay in memory for this long.
SETTINGS = ("synchronous_commit=off", "wal_writer_delay=10s")

LOCKS = """
select
  (select count(*) from :schema._private_jobs where locked_by is not null),
  (select count(*) from :schema._private_job_queues where locked_by is not null)
"""


@pytest.fixture
def forgetful(pytestconfig, schema) -> Iterator[TestDatabase]:
    cluster = Cluster(pytestconfig.getoption("--pg"), SETTINGS).start()
    cluster.create_database("test")
    database = TestDatabase("test", cluster, schema)
    with sync.Client(database.dsn, schema=schema) as client:
        client.migrate()
    yield database
    cluster.stop()


class Held:
    """A task that runs until it may end."""

    def __init__(self) -> None:
        self.started, self.may_end = asyncio.Event(), asyncio.Event()

    async def task(self, payload: object) -> None:
        self.started.set()
        await self.may_end.wait()


async def test_jobs_whose_completion_a_crash_lost_run_again_after_the_next_heartbeat(forgetful):
    held = Held()
    recorder = Recorder(Hooks())
    sql = Sql(forgetful.dsn, forgetful.schema)
    async with open_runners(forgetful, recorder.hooks) as start:
        runner = await start(
            {"task": held.task},
            # Only a heartbeat can notice it.
            poll_interval=timedelta(hours=1),
            recovery=RecoveryOptions(heartbeat_interval=timedelta(seconds=1)),
        )
        job = await runner.add_job("task", queue_name="queue")
        await held.started.wait()
        sql.run("set synchronous_commit = on")
        sql.run("create table all_so_far_is_written ()")
        held.may_end.set()
        await recorder.wait_for(JobSucceeded)
        assert sql.value("select count(*) from :schema._private_jobs") == 0
        sql.close()

        forgetful.cluster.halt(signal.SIGQUIT)
        forgetful.cluster.launch()

        done = await recorder.wait_for(JobSucceeded, count=2, timeout=60)
        assert [each.job.id for each in done] == [job.id, job.id]
        again = Sql(forgetful.dsn, forgetful.schema)
        await wait_until(lambda: again.run(LOCKS) == [(0, 0)])
        again.close()


async def test_a_lock_that_a_crash_brought_back_is_released_without_a_fetch(forgetful):
    held = Held()
    recorder = Recorder(Hooks())
    sql = Sql(forgetful.dsn, forgetful.schema)
    sql.run("select :schema.add_job('task', queue_name := 'queue')")
    async with open_runners(forgetful, recorder.hooks) as start:
        await start(
            {"task": held.task},
            # No fetch is lost with the server: only heartbeats are sent.
            listen=False,
            poll_interval=timedelta(hours=1),
            recovery=RecoveryOptions(heartbeat_interval=timedelta(seconds=1)),
        )
        await held.started.wait()
        sql.run("set synchronous_commit = on")
        sql.run("create table all_so_far_is_written ()")
        held.may_end.set()
        await recorder.wait_for(JobSucceeded)
        await recorder.wait_for(GetJobEmpty)
        sql.close()

        forgetful.cluster.halt(signal.SIGQUIT)
        forgetful.cluster.launch()

        again = Sql(forgetful.dsn, forgetful.schema)
        assert again.value("select count(*) from :schema._private_jobs") == 1
        await wait_until(lambda: again.run(LOCKS) == [(0, 0)])
        again.close()
