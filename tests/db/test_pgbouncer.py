"""Through a real PgBouncer, 1.18: what the page about it says.

How a worker fares when it is restarted: tests/chaos/test_database_faults.py.
"""

import asyncio
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from graphile_worker import Client, JobSpec, JobSucceeded, LocalQueueOptions, sync
from graphile_worker.events import HeartbeatFailed, ListenStarted
from graphile_worker.ops.diagnostics import FindingId, examine
from tests.conftest import TestDatabase
from tests.db.test_generic_plans import read_worker_modes
from tests.support.pgbouncer import PgBouncer

pytestmark = pytest.mark.single_version


def through(pooler: PgBouncer, database: TestDatabase) -> str:
    return make_conninfo(database.dsn, port=pooler.port)


async def work(payload: Any) -> None: ...


async def test_in_session_mode_a_worker_gets_notifications(database, cluster, start, recorder):
    with PgBouncer(cluster, "session", size=20) as pooler:
        dsn = through(pooler, database)
        runner = await start({"work": work}, on=dsn, poll_interval=timedelta(hours=1))
        async with Client(dsn, schema=database.schema) as client:
            job = await client.add_job("work")

        await recorder.wait_for(JobSucceeded, job_id=job.id)
        await runner.stop()


async def test_in_transaction_mode_a_worker_finds_jobs_by_polling(
    database, cluster, start, recorder
):
    with PgBouncer(cluster) as pooler:
        dsn = through(pooler, database)
        runner = await start(
            {"work": work},
            on=dsn,
            concurrency=10,
            listen=False,
            prepared_statements=False,
            poll_interval=timedelta(milliseconds=100),
        )
        async with Client(dsn, schema=database.schema, prepared_statements=False) as client:
            await asyncio.gather(*(client.add_job("work") for _ in range(50)))

        await recorder.wait_for(JobSucceeded, count=50)
        await runner.stop()
    assert recorder.events_of(HeartbeatFailed) == []


async def test_in_transaction_mode_a_listening_worker_polls_and_the_doctor_warns(
    database, cluster, start, recorder
):
    with PgBouncer(cluster, size=2) as pooler:
        dsn = through(pooler, database)
        runner = await start(
            {"work": work},
            on=dsn,
            prepared_statements=False,
            poll_interval=timedelta(milliseconds=500),
        )
        await runner.add_job("work")

        # By polling, so it works; only later.
        await recorder.wait_for(JobSucceeded)
        report = await examine(dsn, schema=database.schema)
        await runner.stop()
    assert recorder.events_of(ListenStarted)
    assert FindingId.TRANSACTION_POOLING in {each.id for each in report.findings}


def test_programs_that_add_jobs_stay_on_it_without_prepared_statements(database, cluster, sql):
    with PgBouncer(cluster, size=1) as pooler:
        dsn = through(pooler, database)
        options: dict[str, Any] = {"schema": database.schema, "prepared_statements": False}
        with sync.Client(dsn, **options) as one, sync.Client(dsn, **options) as other:
            assert one.migrate() == 20
            for number in range(20):
                one.add_job("work", {"number": number})
                other.add_job("work", {"number": number})

    assert sql.value("select count(*) from :schema._private_jobs") == 40


def test_before_pgbouncer_1_21_prepared_statements_get_mixed_up(database, cluster):
    with PgBouncer(cluster, size=1) as pooler:
        dsn = through(pooler, database)
        clients = [sync.Client(dsn, schema=database.schema) for _ in range(2)]
        with pytest.raises(psycopg.errors.DuplicatePreparedStatement):
            add_in_turns(clients)
        for client in clients:
            client.close()


def add_in_turns(clients: list[sync.Client]) -> None:
    for _ in range(20):
        for client in clients:
            client.add_job("work")


def test_a_transaction_of_the_caller_works_through_pgbouncer(database, cluster, sql):
    client = sync.Client(database.dsn, schema=database.schema)
    with (
        PgBouncer(cluster, size=1) as pooler,
        psycopg.connect(through(pooler, database), prepare_threshold=None) as conn,
    ):
        client.add_job("work", conn=conn)
        conn.rollback()
        client.add_job("work", conn=conn)

    assert sql.value("select count(*) from :schema._private_jobs") == 1


async def test_a_worker_leaves_the_settings_of_shared_sessions_as_they_are(database, cluster):
    for mode in ("session", "transaction"):
        with PgBouncer(cluster, mode, size=2) as pooler:
            modes = await read_worker_modes(through(pooler, database), database)

        assert modes == ("auto", "auto"), mode


async def test_a_worker_needs_few_sessions_of_the_server(database, cluster, start, recorder):
    """Two are enough for fifty jobs at once, if their tasks hold none."""
    with PgBouncer(cluster, size=2) as pooler:
        runner = await start(
            {"work": work},
            on=through(pooler, database),
            concurrency=50,
            listen=False,
            prepared_statements=False,
            poll_interval=timedelta(milliseconds=100),
            local_queue=LocalQueueOptions(size=100),
        )
        await runner.client.add_jobs([JobSpec("work")] * 500)

        await recorder.wait_for(JobSucceeded, count=500)
        await runner.stop()
    assert recorder.events_of(HeartbeatFailed) == []
