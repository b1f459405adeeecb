"""What is locked for a pool without its knowledge is released, and delays no fetch."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from graphile_worker import _assembly
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.claim import find_orphaned_claims
from graphile_worker._sql.queries.search import set_query_limits
from graphile_worker._sql.queries.workers import recover_jobs, unlock_stale_jobs
from graphile_worker._sql.query import Query
from graphile_worker._sql.render import render_bytes
from graphile_worker.events import GetJobEmpty, GetJobErrored, JobSucceeded
from tests.support.pools import Pool, queue_ids, queue_lock
from tests.support.proxy import CutAfterRequest
from tests.support.recorder import wait_until

# What the statements do: test_statements.py runs each of them on the oldest pair too.
pytestmark = pytest.mark.single_version

HOUR = timedelta(hours=1)

# Rows that a scan of the table would read.
MANY = 20_000

# Pages that a look by an index reads at most; a scan reads hundreds.
FEW_PAGES = 60


async def run_it(payload: object) -> None:
    pass


class NeverAnswering:
    """A database on which a look at the whole table never comes to its end."""

    def __init__(self, database: object) -> None:
        pass

    async def run(self, query: Query[Any]) -> Any:
        await asyncio.Event().wait()


async def test_a_fetch_does_not_wait_for_the_release_of_unconfirmed_claims(
    start, recorder, database, proxy, async_client, monkeypatch
):
    monkeypatch.setattr(_assembly, "SlowQueryDatabase", NeverAnswering)
    runner = await start(
        {"task": run_it}, on=make_conninfo(database.dsn, port=proxy.port), poll_interval=HOUR
    )
    await recorder.wait_for(GetJobEmpty)
    proxy.put(cut := CutAfterRequest(b"are_plain"))
    await async_client.add_job("task")
    await recorder.wait_for(GetJobErrored)
    assert cut.losses

    # The first job may have run, if it was claimed before the statement that was cut.
    job = await async_client.add_job("task")

    await wait_until(lambda: job.id in {e.job.id for e in recorder.events_of(JobSucceeded)})
    assert runner.is_ready


async def test_unconfirmed_claims_are_released_and_run(
    start, recorder, database, proxy, async_client
):
    await start(
        {"task": run_it}, on=make_conninfo(database.dsn, port=proxy.port), poll_interval=HOUR
    )
    await recorder.wait_for(GetJobEmpty)
    proxy.put(CutAfterRequest(b"are_plain"))
    await async_client.add_job("task", queue_name="queue")

    await recorder.wait_for(GetJobErrored)
    [done] = await recorder.wait_for(JobSucceeded)

    assert done.job.attempts == 1


# By an index


def pages_read(sql, query: Query[Any], schemas: Schemas) -> int:
    text = b"explain (analyze, buffers, format json) " + render_bytes(query.statement, schemas)
    with sql.connection.transaction():
        limits = set_query_limits(0, 0, prefer_indexes=True)
        sql.connection.execute(render_bytes(limits.statement, schemas), limits.args)
        [[found]] = sql.connection.execute(text, query.args).fetchall()
    plan = found[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def test_looking_for_locked_jobs_does_not_read_the_whole_table(
    pool: Pool, blocking_client, sql, database
):
    sql.run(
        "insert into :schema._private_jobs (task_id, run_at) "
        "select tasks.id, now() + interval '1 day' "
        "from :schema._private_tasks as tasks, generate_series(1, $1::int)",
        MANY,
    )
    schemas = Schemas.from_names(database.schema, None)
    sql.run("vacuum analyze :schema._private_jobs")
    blocking_client.add_job("task")
    [held] = pool.claim(1)

    find = find_orphaned_claims("pool", [], [])
    assert pool.connection.run(find).job_ids == {held.job.id}
    recover = recover_jobs(["pool"], timedelta(0), 3, is_confirmed_dead=True)
    for query in (find, unlock_stale_jobs(except_pool_id="pool"), recover):
        assert pages_read(sql, query, schemas) < FEW_PAGES, query.statement


# Locks that are old


def test_the_4_hour_rule_includes_orphaned_locks_of_the_same_pool(pool: Pool, blocking_client, sql):
    kept = blocking_client.add_job("task", queue_name="kept")
    lost = blocking_client.add_job("task", queue_name="lost")
    held = {each.job.id: each for each in pool.claim(2)}
    for table in ("_private_jobs", "_private_job_queues"):
        sql.run(f"update :schema.{table} set locked_at = now() - interval '5 hours'")

    queues = queue_ids((held[kept.id],))
    unlocked = pool.connection.run(
        unlock_stale_jobs(except_pool_id=pool.id, except_job_ids=[kept.id], except_queue_ids=queues)
    )

    assert unlocked == 1
    assert queue_lock(sql, "kept") == ("pool", False)
    assert queue_lock(sql, "lost") == (None, True)
    [(still,)] = sql.run("select id from :schema._private_jobs where locked_by is not null")
    assert still == kept.id != lost.id
