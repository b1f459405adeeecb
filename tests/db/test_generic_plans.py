"""Each prepared statement of a worker is planned once per connection."""

from typing import Any

from psycopg.conninfo import make_conninfo

from graphile_worker import WorkerOptions
from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._db.worker_connections import open_worker_connections
from graphile_worker._sql.queries.claim import claim_jobs
from tests.conftest import TestDatabase
from tests.support.pools import Pool


async def read_plan_mode(database: PsycopgDatabase) -> str:
    async with database.connection() as connection:
        cursor = await connection.raw.execute("show plan_cache_mode")
        (mode,) = await cursor.fetchone() or ("",)
    return str(mode)


async def read_worker_modes(dsn: str, database: TestDatabase, **more: Any) -> tuple[str, str]:
    """Return the mode of the worker's own connections, and of those for tasks."""
    options = WorkerOptions(schema=database.schema, **more)
    connections = open_worker_connections(dsn, options, [])
    assert isinstance(connections.own, PsycopgDatabase)
    assert isinstance(connections.tasks, PsycopgDatabase)
    modes = await read_plan_mode(connections.own), await read_plan_mode(connections.tasks)
    await connections.close()
    return modes


async def test_only_the_workers_own_connections_use_generic_plans(database):
    modes = await read_worker_modes(database.dsn, database)

    assert modes == ("force_generic_plan", "auto")


async def test_without_prepared_statements_the_setting_stays_as_it_is(database):
    modes = await read_worker_modes(database.dsn, database, prepared_statements=False)

    assert modes == ("auto", "auto")


async def test_a_setting_of_the_connection_or_the_role_has_precedence(database):
    mode = "force_custom_plan"
    dsn = make_conninfo(database.dsn, options=f"-c plan_cache_mode={mode}")

    assert await read_worker_modes(dsn, database) == (mode, mode)


async def test_a_statement_is_planned_once(database, pool: Pool):
    connections = open_worker_connections(database.dsn, WorkerOptions(schema=database.schema), [])
    for _ in range(3):
        await connections.own.run(claim_jobs("pool", pool.tasks))

    async with connections.own.connection() as connection:
        cursor = await connection.raw.execute(
            "select sum(generic_plans), sum(custom_plans) from pg_prepared_statements "
            "where statement like %s",
            ("%claim_time%",),
        )
        assert await cursor.fetchone() == (3, 0)
    await connections.close()
