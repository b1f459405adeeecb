"""Clients with `notify="coalesced"` announce jobs after their commits, and never in them."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from graphile_worker import App, Client, JobSpec, sync
from graphile_worker._announcer import LoopSender
from graphile_worker.errors import ConfigurationError
from tests.support.announcements import Announcements
from tests.support.catalog import read_everything
from tests.support.clients import open_client, unwrap
from tests.support.processes import Programs
from tests.support.recorder import wait_until

# No test waits for it, so each announcement but the first is one that `close` sends.
LONG = timedelta(hours=1)

ANNOUNCERS = """
select pid from pg_stat_activity
where datname = current_database() and query like '%pg_notify%jobs:insert%' and pid <> all ($1)
"""


@pytest.fixture
def announcements(database) -> Iterator[Announcements]:
    with closing(Announcements(database.dsn)) as announcements:
        yield announcements


@pytest.fixture
def programs(database, tmp_path: Path) -> Iterator[Programs]:
    with Programs.for_database(database, tmp_path) as programs:
        yield programs


async def test_coalesced_jobs_are_announced_once_per_interval(kind, database, announcements):
    async with open_client(kind, database, notify="coalesced", notify_interval=LONG) as client:
        await client.add_job("task")
        first = announcements.wait_for(1)
        for number in range(5):
            await client.add_job("task", number)
        await client.add_job("task", job_key="key")
        await client.add_job("task", job_key="key", job_key_mode="unsafe_dedupe")
        await client.add_job("new task", queue_name="new queue")
        await client.add_jobs([JobSpec("task"), JobSpec("another", job_key="key")])
        meanwhile = announcements.read()

    assert (first, meanwhile) == ([1], [])
    # The rest in one notification, when the client is closed.
    assert announcements.read() == [10]


async def test_coalesced_jobs_are_announced_again_after_the_interval(kind, database, announcements):
    interval = timedelta(milliseconds=20)
    async with open_client(kind, database, notify="coalesced", notify_interval=interval) as client:
        for _ in range(3):
            await client.add_job("task")
            announcements.wait_for(1)


async def test_never_announces_nothing(kind, database, announcements):
    async with open_client(kind, database, notify="never") as client:
        await client.add_job("task")
        await client.add_job("task", job_key="key", queue_name="queue")
        await client.add_jobs([JobSpec("task"), JobSpec("new")])

    assert announcements.read() == []


async def test_on_commit_is_the_default(kind, database, announcements):
    async with open_client(kind, database) as client:
        await client.add_job("task")
        assert announcements.read() == [1]


async def test_a_closed_client_announces_nothing_until_it_adds_again(
    kind, database, conn, announcements
):
    async with open_client(kind, database, notify="coalesced", notify_interval=LONG) as client:
        await client.add_job("task")
        announcements.wait_for(1)
        await client.add_job("task", conn=unwrap(conn))
        await client.close()
        assert announcements.read() == [2]
        await conn.commit()
        assert announcements.read() == []

        await client.add_job("task")
        announcements.wait_for(1)


async def test_a_rolled_back_job_is_announced_without_harm(kind, database, conn, sql, start):
    seen: list[Any] = []
    await start({"task": lambda payload, ctx: seen.append(payload)})
    async with open_client(kind, database, notify="coalesced") as client:
        await client.add_job("task", "lost", conn=unwrap(conn))
        await conn.rollback()
        await client.add_job("task", "kept")
        await wait_until(lambda: seen)

    assert seen == ["kept"]
    assert sql.value("select count(*) from :schema._private_jobs where payload::text = 'lost'") == 0


async def test_an_announcer_connects_again_after_its_connection_is_lost(
    kind, database, sql, announcements
):
    interval = timedelta(milliseconds=1)
    async with open_client(kind, database, notify="coalesced", notify_interval=interval) as client:
        await client.add_job("task")
        announcements.wait_for(1)
        [(pid,)] = sql.run(ANNOUNCERS, [sql.connection.info.backend_pid])
        sql.run("select pg_terminate_backend($1)", pid)
        await client.add_job("task")
        announcements.wait_for(1)


@pytest.mark.timeout(300)
def test_jobs_are_announced_when_a_program_exits(programs, announcements):
    program = programs.python(
        """
        from datetime import timedelta
        from graphile_worker import App

        app = App(notify="coalesced", notify_interval=timedelta(hours=1))
        app.add_job("task")
        app.add_job("task")
        app.add_job("task")
        """
    )
    assert program.end() == 0, program.err
    assert sum(announcements.read()) == 3


@pytest.mark.timeout(300)
def test_a_forked_process_has_its_own_announcer(programs, announcements):
    program = programs.python(
        """
        import os
        from datetime import timedelta
        from graphile_worker import App

        app = App(notify="coalesced", notify_interval=timedelta(hours=1))
        app.add_job("task")
        app.add_job("task")
        if os.fork() == 0:
            app.add_job("task")
            app.add_job("task")
            app._get_sync_client().close()
            os._exit(0)
        os.wait()
        app._get_sync_client().close()
        """
    )
    assert program.end() == 0, program.err
    assert sum(announcements.read()) == 4


@pytest.mark.timeout(300)
async def test_a_job_of_a_killed_announcer_runs_within_the_poll_interval(
    programs, announcements, start
):
    seen: list[Any] = []
    await start(
        {"task": lambda payload, ctx: seen.append(payload)}, poll_interval=timedelta(seconds=1)
    )
    program = programs.python(
        """
        import os, signal
        import psycopg
        from graphile_worker import sync

        client = sync.Client(notify="coalesced")
        with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
            client.add_job("task", "added", conn=connection)
            connection.commit()
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    assert program.end() == -9, program.err

    await wait_until(lambda: seen == ["added"])
    assert announcements.read() == []


async def test_the_worker_option_applies_to_jobs_that_tasks_add(
    database, blocking_client, announcements, start
):
    async def from_loop(payload, ctx):
        await ctx.add_job("child")

    def from_thread(payload, ctx):
        ctx.add_job("child")

    seen: list[Any] = []
    runner = await start(
        {
            "from_loop": from_loop,
            "from_thread": from_thread,
            "child": lambda payload, ctx: seen.append(1),
        },
        notify="coalesced",
        notify_interval=LONG,
        poll_interval=LONG,
        concurrency=2,
    )
    blocking_client.add_jobs([JobSpec("from_loop"), JobSpec("from_thread")])

    # In a thread, because the worker runs in this loop.
    assert await asyncio.to_thread(announcements.wait_for, 4) == [2, 1, 1]
    await wait_until(lambda: len(seen) == 2)
    await runner.stop()
    assert announcements.read() == []


async def test_quiet_adds_leave_the_catalog_of_the_schema_as_it_is(kind, database):
    before = read_everything(database)
    for notify in ("coalesced", "never"):
        async with open_client(kind, database, notify=notify) as client:
            await client.add_jobs([JobSpec("task"), JobSpec("task", job_key="key")])

    assert read_everything(database) == before


def test_the_options_are_checked():
    for options in ({"notify": "soon"}, {"notify_interval": timedelta(0)}, {"notify_interval": 1}):
        [name] = options
        for make in (App, Client, sync.Client):
            with pytest.raises(ConfigurationError, match=f"^{name} must be"):
                make("postgres:///x", **options)


async def test_closing_a_client_needs_no_thread_of_the_loop(database, announcements):
    release = threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    blocked = loop.run_in_executor(None, release.wait)
    client = Client(database.dsn, schema=database.schema, notify="coalesced")
    await client.add_job("task")

    await asyncio.wait_for(client.close(), 5)

    assert announcements.wait_for(1) == [1]
    release.set()
    await blocked


class NeverAnswering:
    """A database that does not answer until it is cancelled."""

    def __init__(self) -> None:
        self.is_cancelled = asyncio.Event()

    async def run(self, query: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.is_cancelled.set()


async def test_an_announcement_in_the_loop_of_a_client_has_a_time_limit():
    database: Any = NeverAnswering()
    sender = LoopSender(database, timeout_seconds=0.05)
    sender.use_running_loop()

    with pytest.raises(TimeoutError):
        await asyncio.to_thread(sender, 1)

    await asyncio.wait_for(database.is_cancelled.wait(), 5)
