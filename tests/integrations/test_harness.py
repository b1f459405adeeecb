"""The test harness on every supported kind of connection."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from graphile_worker import App, JobContext, SyncJobContext
from graphile_worker.testing import Harness
from tests.conftest import TestDatabase
from tests.integrations.kinds import AUTOCOMMIT_KINDS, Lent
from tests.integrations.kinds import BLOCKING_KINDS as ALL_BLOCKING_KINDS
from tests.integrations.kinds import KINDS as ALL_KINDS
from tests.support.sql import Sql

pytestmark = pytest.mark.single_version

HOUR = timedelta(hours=1)
JOBS = "select count(*) from :schema._private_jobs"

# One kind for each pair of library and driver.
KINDS = {
    name: ALL_KINDS[name]
    for name in (
        "psycopg",
        "psycopg2",
        "SQLAlchemy Connection, psycopg",
        "SQLAlchemy Session, psycopg",
        "SQLAlchemy Session, psycopg2",
        "SQLAlchemy scoped_session, psycopg",
        "Django proxy",
        "Django wrapper, server-side binding",
        "psycopg async",
        "asyncpg",
        "asyncpg pool",
        "SQLAlchemy AsyncConnection, psycopg",
        "SQLAlchemy AsyncSession, psycopg",
        "SQLAlchemy AsyncSession, asyncpg",
        "SQLAlchemy async_scoped_session, asyncpg",
    )
}
BLOCKING_KINDS = [name for name in KINDS if name in ALL_BLOCKING_KINDS]
ASYNC_KINDS = [name for name in KINDS if name not in ALL_BLOCKING_KINDS]

# Django's connection belongs to the thread of the test. tests/e2e/projects/django has async tests.
IN_A_LOOP = [name for name in KINDS if not name.startswith("Django")]

# Here tasks get the psycopg connection below the connection of the test.
ON_PSYCOPG = [name for name in KINDS if "psycopg2" not in name and "asyncpg" not in name]


class Shop:
    """An app with a plain and an async task, and what they did."""

    def __init__(self, schema: str) -> None:
        self.app = App("postgres://user@127.0.0.1:1/nothing", schema=schema)
        self.done: list[Any] = []
        app, done = self.app, self.done

        @app.task
        def plain(ctx: SyncJobContext, left: int) -> None:
            done.append(("plain", left))
            if left:
                ctx.add_job("waits", {"left": left - 1})

        @app.task
        async def waits(ctx: JobContext, left: int) -> None:
            await asyncio.sleep(0)
            done.append(("waits", left))
            if left:
                await ctx.add_job("plain", {"left": left - 1})

        self.plain, self.waits = plain, waits


@contextmanager
def open_in_transaction(kind: str, database: TestDatabase) -> Iterator[Lent]:
    """Open a blocking connection and begin a transaction, without an event loop."""
    with open_connection(kind, database) as owner:
        run_without_loop(owner.begin())
        yield owner
        run_without_loop(owner.rollback())


@contextmanager
def open_connection(kind: str, database: TestDatabase) -> Iterator[Lent]:
    manager = KINDS[kind](database)
    yield run_without_loop(manager.__aenter__())
    run_without_loop(manager.__aexit__(None, None, None))


def run_without_loop(coroutine: Any) -> Any:
    """Return the result of a coroutine that never waits, without an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("the coroutine waits")


@pytest.fixture(scope="module")
def database(shared_database: TestDatabase) -> TestDatabase:
    return shared_database


@pytest.fixture
def sql(shared_sql: Sql) -> Iterator[Sql]:
    yield shared_sql
    shared_sql.run("delete from :schema._private_jobs")


@pytest.fixture
def shop(database: TestDatabase) -> Shop:
    return Shop(database.schema)


@pytest.mark.parametrize("kind", BLOCKING_KINDS)
def test_the_harness_works_on_a_blocking_connection(
    kind, database: TestDatabase, shop: Shop, sql: Sql
):
    with open_in_transaction(kind, database) as owner, Harness(shop.app, owner.conn) as gw:
        shop.plain.enqueue(2)
        gw.assert_enqueued(shop.plain, left=2)
        gw.assert_not_enqueued(shop.waits)
        gw.drain()
        assert shop.done == [("plain", 2), ("waits", 1), ("plain", 0)]

        shop.waits.using(run_at=HOUR).enqueue(0)
        assert gw.drain() == []
        with gw.travel(HOUR):
            assert len(gw.drain()) == 1

        with gw.inline():
            shop.waits.enqueue(1)
            shop.plain.using(conn=owner.conn).enqueue(7)
        assert shop.done[4:7] == [("waits", 1), ("plain", 0), ("plain", 7)]
        shop.plain.fn(gw.context(shop.plain), 1)
        assert len(gw.drain()) == 1
        assert gw.enqueued() == []

    assert sql.run(JOBS) == [(0,)]


@pytest.mark.parametrize("kind", IN_A_LOOP)
async def test_the_harness_works_in_an_async_test(
    kind, database: TestDatabase, shop: Shop, sql: Sql
):
    async with KINDS[kind](database) as owner:
        await owner.begin()
        with Harness(shop.app, owner.conn) as gw:
            await shop.plain.aenqueue(2)
            await gw.aassert_enqueued(shop.plain, left=2)
            await gw.aassert_not_enqueued(shop.waits)
            await gw.adrain()
            assert shop.done == [("plain", 2), ("waits", 1), ("plain", 0)]

            await shop.waits.using(run_at=HOUR).aenqueue(0)
            assert await gw.adrain() == []
            with gw.travel(HOUR):
                assert len(await gw.adrain()) == 1

            with gw.inline():
                await shop.waits.aenqueue(1)
                if kind in ASYNC_KINDS:
                    await shop.plain.using(conn=owner.conn).aenqueue(7)
            assert shop.done[4:6] == [("waits", 1), ("plain", 0)]
            await shop.waits.fn(gw.context(shop.waits), 1)
            assert len(await gw.adrain()) == 1
            assert await gw.aenqueued() == []
        await owner.rollback()

    assert sql.run(JOBS) == [(0,)]


@pytest.mark.parametrize("kind", BLOCKING_KINDS)
def test_a_failed_statement_does_not_abort_the_transaction_of_the_test(kind, database, shop):
    add_broken_task(shop, kind)

    with open_in_transaction(kind, database) as owner, Harness(shop.app, owner.conn) as gw:
        shop.plain.using(priority=9).enqueue(0)
        shop.app.add_job("broken")
        with pytest.raises(Exception, match="nowhere"):
            gw.drain()
        gw.assert_enqueued("broken", options={"attempts": 1})
        assert len(gw.enqueued(shop.plain)) == 1
        assert len(gw.drain()) == 1


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_a_failed_statement_does_not_abort_the_transaction_of_an_async_connection(
    kind, database, shop
):
    add_broken_task(shop, kind)

    async with KINDS[kind](database) as owner:
        await owner.begin()
        with Harness(shop.app, owner.conn) as gw:
            await shop.plain.using(priority=9).aenqueue(0)
            await shop.app.aadd_job("broken")
            with pytest.raises(Exception, match="nowhere"):
                await gw.adrain()
            await gw.aassert_enqueued("broken", options={"attempts": 1})
            assert len(await gw.aenqueued(shop.plain)) == 1
            assert len(await gw.adrain()) == 1
        await owner.rollback()


def add_broken_task(shop: Shop, kind: str) -> None:
    """Add a task whose second statement fails, on the connection of the driver."""
    statement = "select * from nowhere"

    async def on_async(ctx: JobContext) -> None:
        await ctx.add_job("plain", {"left": 0})
        async with ctx.connection() as conn:
            await conn.execute(statement)

    def on_blocking(ctx: SyncJobContext) -> None:
        ctx.add_job("plain", {"left": 0})
        with ctx.connection() as conn, conn.cursor() as cursor:
            cursor.execute(statement)

    shop.app.task(name="broken")(on_async if kind in ASYNC_KINDS else on_blocking)


@pytest.mark.parametrize("kind", ON_PSYCOPG)
async def test_async_and_plain_tasks_get_a_psycopg_connection_if_the_test_uses_psycopg(
    kind, database, shop
):
    @shop.app.task
    def plainly(ctx: SyncJobContext) -> None:
        with ctx.transaction() as conn:
            shop.plain.using(conn=conn).enqueue(0)
            with conn.transaction(), conn.cursor() as cursor:
                cursor.execute("select %s::int", [7])
                shop.done.append([*cursor])
            shop.done.append(conn.execute("select 8").fetchone()[0])

    @shop.app.task
    async def later(ctx: JobContext) -> None:
        async with ctx.transaction() as conn:
            await shop.plain.using(conn=conn).aenqueue(0)
            async with conn.transaction(), conn.cursor() as cursor:
                await cursor.execute("select %s::int", [7])
                shop.done.append([row async for row in cursor])
            shop.done.append((await (await conn.execute("select 8")).fetchone())[0])

    if kind in ASYNC_KINDS:
        async with KINDS[kind](database) as owner:
            await owner.begin()
            with Harness(shop.app, owner.conn) as gw:
                await plainly.aenqueue()
                await later.aenqueue()
                assert len(await gw.adrain()) == 4
    else:
        await asyncio.to_thread(drain_both, kind, database, shop, plainly, later)

    assert shop.done == [[(7,)], 8, [(7,)], 8, ("plain", 0), ("plain", 0)]


def drain_both(kind, database, shop, plainly, later) -> None:
    with open_in_transaction(kind, database) as owner, Harness(shop.app, owner.conn) as gw:
        plainly.enqueue()
        later.enqueue()
        assert len(gw.drain()) == 4


@pytest.mark.parametrize("kind", [name for name in AUTOCOMMIT_KINDS if name in BLOCKING_KINDS])
def test_jobs_are_committed_where_each_statement_commits(kind, database, shop, sql):
    with open_connection(kind, database) as owner:
        run_without_loop(owner.use_autocommit())
        with Harness(shop.app, owner.conn) as gw:
            shop.plain.enqueue(0)
            assert sql.run(JOBS) == [(1,)]
            gw.drain()
            assert sql.run(JOBS) == [(0,)]


@pytest.mark.parametrize("kind", ["psycopg", "psycopg async", "asyncpg", "Django proxy"])
async def test_ctx_transaction_opens_a_transaction_where_each_statement_commits(
    kind, database, shop, sql
):
    @shop.app.task
    async def half(ctx: JobContext, to_the_end: bool) -> None:
        async with ctx.transaction():
            await ctx.add_job("of_node")
            if not to_the_end:
                raise ValueError("half")

    if kind in ASYNC_KINDS:
        async with KINDS[kind](database) as owner:
            await owner.use_autocommit()
            with Harness(shop.app, owner.conn) as gw:
                await half.aenqueue(False)
                await half.aenqueue(True)
                await gw.adrain(raise_errors=False)
    else:
        await asyncio.to_thread(drain_halves, kind, database, shop, half)

    found = "select identifier from :schema._private_jobs join :schema._private_tasks as tasks "
    assert sorted(sql.run(f"{found} on tasks.id = task_id")) == [("half",), ("of_node",)]


def drain_halves(kind, database, shop, half) -> None:
    with open_connection(kind, database) as owner:
        run_without_loop(owner.use_autocommit())
        with Harness(shop.app, owner.conn) as gw:
            half.enqueue(False)
            half.enqueue(True)
            gw.drain(raise_errors=False)


async def test_blocking_calls_on_an_async_connection_raise_and_name_the_async_methods(
    database, shop
):
    async with KINDS["psycopg async"](database) as owner:
        with Harness(shop.app, owner.conn) as gw:
            for call in (gw.enqueued, lambda: shop.plain.enqueue(0)):
                with pytest.raises(RuntimeError, match="aenqueue, adrain or aassert_enqueued"):
                    call()
            with pytest.raises(RuntimeError, match="Await adrain"):
                gw.drain()


async def test_an_object_that_is_not_a_connection_is_rejected(shop):
    with Harness(shop.app, object()) as gw, pytest.raises(TypeError, match="not an async"):
        gw.enqueued()


@pytest.mark.parametrize("kind", ["psycopg", "SQLAlchemy Session, psycopg2", "Django proxy"])
def test_a_missing_schema_is_installed_in_the_transaction_of_the_test(kind, empty_database):
    shop = Shop(empty_database.schema)

    with open_in_transaction(kind, empty_database) as owner, Harness(shop.app, owner.conn) as gw:
        shop.plain.enqueue(1)
        assert len(gw.drain()) == 2

    with psycopg.connect(empty_database.dsn) as conn:
        found = conn.execute("select from pg_namespace where nspname = %s", [shop.app.schema])
        assert found.fetchall() == []


@pytest.mark.parametrize("kind", ["psycopg async", "asyncpg", "SQLAlchemy AsyncSession, asyncpg"])
async def test_a_missing_schema_is_installed_on_an_async_connection(kind, empty_database):
    shop = Shop(empty_database.schema)

    async with KINDS[kind](empty_database) as owner:
        await owner.begin()
        with Harness(shop.app, owner.conn) as gw:
            await shop.plain.aenqueue(1)
            assert len(await gw.adrain()) == 2
        await owner.rollback()


def test_a_schema_that_the_tested_code_rolled_back_is_installed_again(empty_database):
    shop = Shop(empty_database.schema)

    with psycopg.connect(empty_database.dsn) as conn, Harness(shop.app, conn) as gw:
        conn.execute("select 1")
        with conn.transaction():
            shop.plain.enqueue(0)
            gw.assert_enqueued(shop.plain)
            raise psycopg.Rollback
        gw.assert_not_enqueued()
        shop.plain.enqueue(0)
        gw.drain()
        conn.rollback()

    assert shop.done == [("plain", 0)]


async def test_a_schema_that_async_code_rolled_back_is_installed_again(empty_database):
    shop = Shop(empty_database.schema)

    async with await psycopg.AsyncConnection.connect(empty_database.dsn) as conn:
        with Harness(shop.app, conn) as gw:
            await conn.execute("select 1")
            async with conn.transaction():
                await shop.waits.aenqueue(0)
                await gw.aassert_enqueued(shop.waits)
                raise psycopg.Rollback
            await gw.aassert_not_enqueued()
            await shop.waits.aenqueue(0)
            await gw.adrain()
        await conn.rollback()

    assert shop.done == [("waits", 0)]
