"""A worker on a pool that its caller lent: connections whose server has vanished are given up.

Half-open connections look idle: the server's end is gone, and the client is not told.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg_pool
import pytest
import sqlalchemy
from packaging.version import Version
from sqlalchemy.ext.asyncio import create_async_engine

from graphile_worker import Runner, WorkerOptions
from graphile_worker._db.cancellable_connection import CancelTimings
from graphile_worker._db.database import Database
from graphile_worker._db.worker_connections import ConnectionTimings, open_worker_connections
from graphile_worker._sql.queries.cron import get_server_time
from graphile_worker._sql.queries.migrations import has_jobs
from graphile_worker._worker.listener import ListenTimings
from graphile_worker._worker_config import WorkerTimings
from graphile_worker.events import GetJobStarted, JobSucceeded, ListenStarted
from tests.conftest import TestDatabase
from tests.support.proxy import Proxy
from tests.support.recorder import Recorder, open_runners, wait_until

pytestmark = pytest.mark.single_version

# A worker keeps one connection for LISTEN, so that many are idle.
SIZE = 5
IDLE = 4

# Seconds: only a program that never ends takes longer, also on a busy machine.
ENDS_WITHIN = 40.0


class Lent:
    """A pool, and how its owner uses one of its connections."""

    def __init__(self, pool: Any, ask: Callable[[], Awaitable[Any]]) -> None:
        self.pool = pool
        self._ask = ask

    async def answers(self) -> None:
        """As many connections as a worker leaves answer, all of them at once."""
        async with asyncio.timeout(ENDS_WITHIN):
            await asyncio.gather(*(self._ask() for _ in range(IDLE)))


Lending = Callable[[str], Any]


def of_psycopg(**how: Any) -> Lending:
    @asynccontextmanager
    async def lend(address: str) -> AsyncIterator[Lent]:
        pool = psycopg_pool.AsyncConnectionPool(
            f"postgresql://{address}", min_size=SIZE, max_size=SIZE, open=False, **how
        )

        async def ask() -> Any:
            async with pool.connection() as connection:
                # Long enough for the others to take another one.
                cursor = await connection.execute("select 1 from pg_sleep(0.1)")
                return await cursor.fetchone()

        await pool.open(wait=True)
        try:
            yield Lent(pool, ask)
        finally:
            await pool.close()

    return lend


def of_asyncpg(**how: Any) -> Lending:
    @asynccontextmanager
    async def lend(address: str) -> AsyncIterator[Lent]:
        url = f"postgresql://{address}"
        pool = await asyncpg.create_pool(url, min_size=SIZE, max_size=SIZE, **how)
        try:
            yield Lent(pool, lambda: pool.fetch("select 1 from pg_sleep(0.1)"))
        finally:
            pool.terminate()

    return lend


def of_sqlalchemy(driver: str, **how: Any) -> Lending:
    @asynccontextmanager
    async def lend(address: str) -> AsyncIterator[Lent]:
        engine = create_async_engine(
            f"postgresql+{driver}://{address}", pool_size=SIZE, max_overflow=0, **how
        )

        async def ask() -> Any:
            async with engine.connect() as connection:
                return await connection.scalar(sqlalchemy.text("select 1 from pg_sleep(0.1)"))

        try:
            yield Lent(engine, ask)
        finally:
            await engine.dispose()

    return lend


async def _look(connection: Any) -> None:
    await connection.execute("select 1")


# Some pools ask a connection whether it is there before they lend it, and wait for its answer.
POOLS: dict[str, Lending] = {
    "psycopg": of_psycopg(),
    "asyncpg": of_asyncpg(),
    "asyncpg with a setup": of_asyncpg(setup=_look),
    "SQLAlchemy, psycopg": of_sqlalchemy("psycopg"),
    "SQLAlchemy, asyncpg": of_sqlalchemy("asyncpg"),
    "SQLAlchemy, psycopg with a ping": of_sqlalchemy("psycopg", pool_pre_ping=True),
    "SQLAlchemy, asyncpg with a ping": of_sqlalchemy("asyncpg", pool_pre_ping=True),
}
# Before 3.3.2, a pool loses the connection whose check is canceled.
if Version(psycopg_pool.__version__) >= Version("3.3.2"):
    POOLS["psycopg with a check"] = of_psycopg(
        check=psycopg_pool.AsyncConnectionPool.check_connection, kwargs={"autocommit": True}
    )


@asynccontextmanager
async def all_pools(proxy: Proxy, database: TestDatabase) -> AsyncIterator[dict[str, Lent]]:
    """One of each kind behind a proxy, with all its connections open."""
    address = f"postgres@127.0.0.1:{proxy.port}/{database.name}"
    async with AsyncExitStack() as stack:
        pools = {
            kind: await stack.enter_async_context(lend(address)) for kind, lend in POOLS.items()
        }
        await asyncio.gather(*(lent.answers() for lent in pools.values()))
        try:
            yield pools
        finally:
            # A pool whose dead connections were not found would wait for them, and never close.
            proxy.reset(lambda connection: connection.has_gap)


# A worker waits for answers as long as a busy machine needs, not for ten seconds.
TIMINGS = WorkerTimings(
    connections=ConnectionTimings(query_timeout=timedelta(seconds=3)),
    listen=ListenTimings(connection_check_seconds=1.0),
)


def own(
    lent: Lent, database: TestDatabase, timings: ConnectionTimings = TIMINGS.connections
) -> Database:
    """What a worker on that pool has to itself."""
    options = WorkerOptions(schema=database.schema)
    return open_worker_connections(lent.pool, options, (), timings).own


async def each(act: Callable[[str, Lent], Awaitable[None]], pools: dict[str, Lent]) -> None:
    """Do the same on all pools at once; says on which it failed."""
    errors = await asyncio.gather(
        *(act(kind, lent) for kind, lent in pools.items()), return_exceptions=True
    )
    failed = {kind: error for kind, error in zip(pools, errors, strict=True) if error}
    assert failed == {}


@asynccontextmanager
async def all_workers(
    pools: dict[str, Lent], database: TestDatabase
) -> AsyncIterator[dict[str, tuple[Runner, Recorder]]]:
    """A worker on each pool, for the task that is called like the pool."""

    async def note(payload: object) -> None: ...

    workers = {}
    async with open_runners(database, Recorder().hooks, TIMINGS) as start:
        for kind, lent in pools.items():
            recorder = Recorder()
            options = {"poll_interval": timedelta(milliseconds=500), "hooks": recorder.hooks}
            workers[kind] = (await start({kind: note}, on=lent.pool, **options), recorder)
            await recorder.wait_for(ListenStarted)
        yield workers


@pytest.mark.timeout(120)
@pytest.mark.feature("F152")
async def test_a_worker_on_a_lent_pool_gives_up_half_open_connections(database, proxy, sql):
    async def run_a_job(kind: str, count: int) -> None:
        _, recorder = workers[kind]
        await asyncio.to_thread(sql.run, "select :schema.add_job($1::text)", kind)
        await recorder.wait_for(JobSucceeded, count=count, timeout=ENDS_WITHIN)

    async def go_on(kind: str, lent: Lent) -> None:
        runner, recorder = workers[kind]
        await run_a_job(kind, 2)
        await recorder.wait_for(ListenStarted, count=2, timeout=ENDS_WITHIN)
        # No dead connection is left in the pool, nor lost to it.
        await lent.answers()
        await runner.stop()
        await lent.answers()

    async with all_pools(proxy, database) as pools, all_workers(pools, database) as workers:
        await each(lambda kind, _: run_a_job(kind, 1), pools)

        proxy.lose_server()

        await each(go_on, pools)


@pytest.mark.timeout(120)
async def test_after_one_statement_without_an_answer_all_half_open_connections_are_given_up(
    database, proxy
):
    async def ask_twice(kind: str, lent: Lent) -> None:
        worker = own(lent, database)
        with pytest.raises(TimeoutError):
            await worker.run(get_server_time())
        assert await worker.run(get_server_time())
        await lent.answers()

    async with all_pools(proxy, database) as pools:
        proxy.lose_server()

        await each(ask_twice, pools)


@pytest.mark.timeout(120)
async def test_a_transaction_on_a_half_open_connection_can_be_given_up(database, proxy):
    working: dict[str, asyncio.Task[None]] = {}
    is_lost = asyncio.Event()

    async def begin(kind: str, lent: Lent) -> None:
        began = asyncio.Event()

        async def work() -> None:
            async with own(lent, database).transaction() as connection:
                await connection.run(get_server_time())
                began.set()
                await is_lost.wait()
                await connection.run(get_server_time())

        working[kind] = asyncio.create_task(work())
        await began.wait()

    async def give_up(kind: str, lent: Lent) -> None:
        working[kind].cancel()
        await asyncio.wait([working[kind]], timeout=ENDS_WITHIN)
        assert working[kind].cancelled()

    async with all_pools(proxy, database) as pools:
        await each(begin, pools)
        proxy.lose_server()
        is_lost.set()
        # The statement waits for its answer, as long as its caller does.
        await asyncio.sleep(0.1)

        await each(give_up, pools)


@pytest.mark.timeout(120)
async def test_a_worker_on_a_half_open_pool_stops(database, proxy):
    async def end(kind: str, lent: Lent) -> None:
        runner, recorder = workers[kind]
        # A fetch is under way, and gets no answer.
        await recorder.wait_for(GetJobStarted, timeout=ENDS_WITHIN)
        async with asyncio.timeout(ENDS_WITHIN):
            await runner.stop()
        await lent.answers()

    async with all_pools(proxy, database) as pools, all_workers(pools, database) as workers:
        proxy.lose_server()
        for _, recorder in workers.values():
            recorder.clear()

        await each(end, pools)


WAITING = """
select count(*)::int from pg_stat_activity
where datname = current_database() and wait_event_type = 'Lock'
"""


@pytest.mark.timeout(120)
async def test_a_statement_that_is_given_up_on_a_lent_pool_keeps_no_session_of_the_server(
    database, proxy, sql
):
    # A busy machine takes its time to deliver the request to stop.
    timings = replace(TIMINGS.connections, cancel=CancelTimings(grace_seconds=20.0))

    async def give_up(kind: str, lent: Lent) -> None:
        with pytest.raises(TimeoutError):
            await own(lent, database, timings).run(has_jobs())

    async with all_pools(proxy, database) as pools:
        locker = sql.another()
        locker.run("begin")
        locker.run("lock table :schema._private_jobs in access exclusive mode")
        try:
            await each(give_up, pools)

            await wait_until(lambda: sql.value(WAITING) == 0)
        finally:
            locker.run("rollback")
            locker.close()
        await each(lambda _, lent: lent.answers(), pools)
