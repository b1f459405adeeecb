"""Each prepared statement of a worker is planned once per connection."""

from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from graphile_worker import WorkerOptions
from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._db.worker_connections import open_worker_connections
from graphile_worker._sql.queries.claim import claim_jobs
from tests.conftest import TestDatabase
from tests.rules.test_statements import _sample_query
from tests.support.pools import Pool
from tests.support.rows import count_pages
from tests.support.statements import JOBS

MANY_JOBS = 1_000_000


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


# What a worker runs for each job, for each fetch or at intervals, and what its client runs.
STATEMENTS = (
    "add_job",
    "add_jobs",
    "check_ready_jobs",
    "claim_first_job",
    "claim_jobs",
    "claim_plain_jobs",
    "claim_soonest_jobs",
    "complete_and_keep_jobs",
    "complete_claimed_jobs",
    "complete_jobs",
    "fail_and_keep_jobs",
    "fail_claimed_jobs",
    "find_waiting_tasks",
    "get_job",
    "get_payload",
    "permanently_fail_jobs",
    "record_start",
    "recover_jobs",
    "release_claimed_jobs",
    "release_orphaned_claims",
    "remove_job",
    "reschedule_jobs",
    "schedule_jobs",
)


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_generic_plan_reads_about_as_many_pages_as_a_custom_one(sql, database, figure):
    sql.run("insert into :schema._private_tasks (identifier) select 't' || generate_series(1, 20)")
    sql.run(
        "insert into :schema._private_job_queues (queue_name) select 'q' || generate_series(1, 500)"
    )
    sql.run(
        "insert into :schema._private_jobs (task_id, job_queue_id, priority, run_at, key) "
        "select 1 + n % 20, case when n % 5 = 0 then 1 + n % 500 end, n % 3, "
        "now() + (n - $1::int / 2) * interval '1 second', case when n % 9 = 0 then 'key' || n end "
        "from generate_series(1, $1::int) as n",
        MANY_JOBS,
    )
    sql.run("vacuum analyze :schema._private_jobs")
    pages: dict[str, list[int]] = {}
    for mode in ("force_custom_plan", "force_generic_plan"):
        sql.run("select set_config('plan_cache_mode', $1, false)", mode)
        for name in STATEMENTS:
            args = JOBS.get(name) or _sample_query(name).args
            pages.setdefault(name, []).append(count_pages(sql, name, *args))

    figure("pages by plan: " + ", ".join(f"{name} {found}" for name, found in pages.items()))
    assert {name: found for name, found in pages.items() if found[1] > 2 * found[0] + 50} == {}
