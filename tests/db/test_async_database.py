"""Async code has a small pool of autocommit connections, opened by its first call."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from graphile_worker import Client, ConfigurationError, JobSpec
from tests.conftest import TestDatabase
from tests.support.rows import count_jobs as jobs
from tests.support.rows import count_waiting_sessions as waiting
from tests.support.sql import Sql
from tests.support.tiers import size

BACKENDS = """
select pid
from pg_stat_activity
where datname = current_database() and application_name = 'graphile-worker'
"""
MOST = 10


def client_on(database: TestDatabase) -> Client:
    return Client(database.dsn, schema=database.schema)


def backends(sql: Sql) -> set[int]:
    """The server's processes for connections of ours."""
    return {pid for (pid,) in sql.run(BACKENDS)}


async def wait_until(condition: Callable[[], bool]) -> None:
    """A server process ends some time after its connection: there is no event to wait for."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def terminate_backends(sql: Sql) -> set[int]:
    gone = backends(sql)
    for pid in gone:
        sql.run("select pg_terminate_backend($1::int)", pid)
    await wait_until(lambda: not backends(sql) & gone)
    return gone


async def add_at_once(client: Client, number: int) -> list[int]:
    """Add that many jobs, all at the same time; their ids."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(client.add_job("task", {"n": n})) for n in range(number)]
    return [task.result().id for task in tasks]


async def test_a_client_that_is_not_used_opens_nothing(database: TestDatabase, sql: Sql) -> None:
    client = client_on(database)

    assert backends(sql) == set()
    del client
    # An unclosed pool or connection would warn, and warnings are errors.
    gc.collect()


async def test_one_call_after_the_other_uses_one_connection(
    database: TestDatabase, sql: Sql
) -> None:
    async with client_on(database) as client:
        await client.add_job("task")
        first = backends(sql)

        await client.add_jobs([JobSpec("task")] * 3)
        await client.get_job(1)

        assert len(first) == 1
        assert backends(sql) == first


@pytest.mark.feature("F50")
async def test_one_client_serves_many_tasks(database: TestDatabase, sql: Sql) -> None:
    async with client_on(database) as client:
        ids = await add_at_once(client, 50)

        assert len(backends(sql)) <= MOST
    assert len(set(ids)) == 50
    assert sql.value("select count(distinct payload::text) from :schema._private_jobs") == 50


@pytest.mark.feature("F50")
async def test_the_first_calls_may_come_at_once_and_open_one_pool(
    database: TestDatabase, sql: Sql
) -> None:
    async with client_on(database) as client:
        await add_at_once(client, 50)

    await wait_until(lambda: not backends(sql))


@pytest.mark.feature("F51")
@pytest.mark.parametrize("ending", ["close", "release"])
async def test_close_ends_all_connections(ending: str, database: TestDatabase, sql: Sql) -> None:
    client = client_on(database)
    await add_at_once(client, 20)

    await getattr(client, ending)()

    await wait_until(lambda: not backends(sql))


@pytest.mark.feature("F51")
async def test_a_with_block_closes_the_client(database: TestDatabase, sql: Sql) -> None:
    async with client_on(database) as client:
        await client.add_job("task")

    await wait_until(lambda: not backends(sql))


@pytest.mark.feature("F51")
async def test_close_leaves_no_task_behind(database: TestDatabase) -> None:
    client = client_on(database)
    before = asyncio.all_tasks()
    await add_at_once(client, 5)

    await client.close()

    assert asyncio.all_tasks() == before


async def test_a_closed_client_opens_again_with_its_next_call(
    database: TestDatabase, sql: Sql
) -> None:
    client = client_on(database)
    await client.add_job("task")
    await client.close()
    await client.close()

    await client.add_job("task")
    await client.close()

    assert jobs(sql) == 2


def test_a_client_may_be_built_where_no_loop_runs(database: TestDatabase, sql: Sql) -> None:
    client = client_on(database)

    asyncio.run(close_after(client, client.add_job("task")))

    assert jobs(sql) == 1


def test_a_closed_client_opens_again_in_another_loop(database: TestDatabase, sql: Sql) -> None:
    client = client_on(database)

    for _ in range(3):
        asyncio.run(close_after(client, add_at_once(client, 20)))

    assert jobs(sql) == 60


def test_a_client_that_was_closed_during_a_call_opens_again_in_another_loop(
    database: TestDatabase, sql: Sql
) -> None:
    client = client_on(database)

    async def close_during_a_call() -> None:
        with psycopg.connect(database.dsn) as other:
            jobs_table = Identifier(database.schema, "_private_jobs")
            other.execute(SQL("lock table {}").format(jobs_table))
            call = asyncio.create_task(client.add_job("task"))
            while not waiting(sql):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await client.close()
        await call

    asyncio.run(close_during_a_call())
    asyncio.run(close_after(client, client.add_job("task")))

    assert jobs(sql) == 2


def test_a_client_that_is_open_in_one_loop_is_rejected_in_another(
    database: TestDatabase, sql: Sql
) -> None:
    client = client_on(database)
    with asyncio.Runner() as first, asyncio.Runner() as second:
        first.run(add_at_once(client, 1))

        with pytest.raises(ConfigurationError, match="another event loop"):
            second.run(client.add_job("task"))

        first.run(close_after(client, add_at_once(client, 1)))
    assert jobs(sql) == 2


async def close_after(client: Client, call: Awaitable[Any]) -> None:
    await call
    await client.close()


async def test_a_connection_that_the_server_ended_is_replaced_unseen(
    database: TestDatabase, sql: Sql
) -> None:
    async with client_on(database) as client:
        await client.add_job("task")
        gone = await terminate_backends(sql)

        await client.add_job("task")

        assert jobs(sql) == 2
        assert len(gone) == 1
        assert not backends(sql) & gone


async def test_all_connections_that_the_server_ended_are_replaced_unseen(
    database: TestDatabase, sql: Sql
) -> None:
    async with client_on(database) as client:
        await add_at_once(client, 50)
        await terminate_backends(sql)

        await add_at_once(client, 50)

    assert jobs(sql) == 100


async def test_migrations_replace_a_connection_too(database: TestDatabase, sql: Sql) -> None:
    async with client_on(database) as client:
        level = await client.migrate()
        await terminate_backends(sql)

        assert await client.migrate() == level


async def test_a_call_that_is_cancelled_gives_its_connection_back(
    database: TestDatabase, sql: Sql
) -> None:
    async with client_on(database) as client:
        with psycopg.connect(database.dsn) as holder:
            holder.execute(sql.text("lock table :schema._private_jobs"))
            calls = [asyncio.create_task(client.add_job("task")) for _ in range(MOST * 2)]
            await wait_until(lambda: waiting(sql) == MOST)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

        await add_at_once(client, MOST * 2)

    assert jobs(sql) == MOST * 2


# Seconds: a pool without a connection gives up after 30.
AT_ONCE = size(gate=20.0, nightly=5.0)


async def test_a_database_that_is_not_there_is_named_at_once(database: TestDatabase) -> None:
    elsewhere = database.cluster.dsn("nowhere")
    async with Client(elsewhere, schema=database.schema) as client, asyncio.timeout(AT_ONCE):
        with pytest.raises(psycopg.OperationalError, match="nowhere"):
            await client.add_job("task")
