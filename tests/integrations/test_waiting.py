"""Waiting in the caller's open transaction is rejected, on every kind of connection."""

from datetime import timedelta
from typing import Any

import pytest

from graphile_worker import App, Job, OpenTransactionError, Retention
from graphile_worker._db.external_connections import OpenTransaction
from tests.conftest import TestDatabase
from tests.integrations.kinds import AUTOCOMMIT_KINDS, BLOCKING_KINDS, KINDS


@pytest.fixture(scope="module")
def database(shared_database: TestDatabase) -> TestDatabase:
    return shared_database


@pytest.fixture
def app(database) -> App[None]:
    return App(database.dsn, schema=database.schema)


async def get_result(kind: str, job: Job[Any], limit: timedelta | None) -> Any:
    # In the thread of the test: connections of Django and sessions belong to it.
    return job.result(limit) if kind in BLOCKING_KINDS else await job.aresult(limit)


@pytest.mark.parametrize("kind", KINDS)
async def test_waiting_in_an_open_transaction_is_rejected(kind, app, database):
    @app.task(retention=Retention(results=True))
    async def task(value: int) -> int:
        return value

    async with KINDS[kind](database) as lent:
        await lent.begin()
        lending = task.using(conn=lent.conn)
        job = lending.enqueue(1) if kind in BLOCKING_KINDS else await lending.aenqueue(1)
        with pytest.raises(OpenTransactionError, match=f"job {job.id} has not ended: commit"):
            await get_result(kind, job, None)
        with (
            app.using_connection(lent.conn),
            pytest.raises(OpenTransactionError, match=f"job {job.id} has not ended: end the tran"),
        ):
            await get_result(kind, job, None)
        await lent.execute("select 1")  # the transaction is still usable
        transaction = OpenTransaction.find(lent.conn)
        assert transaction is not None
        await lent.commit()

        with pytest.raises(TimeoutError):
            await get_result(kind, job, timedelta(0))
        await app.worker().run_once()
        assert await get_result(kind, job, timedelta(seconds=30)) == 1
        assert not transaction.is_open()
    # The connection is closed, or back in its pool.
    assert not transaction.is_open()
    await app.close()


@pytest.mark.parametrize("kind", AUTOCOMMIT_KINDS)
async def test_a_connection_in_autocommit_mode_has_no_open_transaction(kind, database):
    async with KINDS[kind](database) as lent:
        await lent.use_autocommit()
        await lent.execute("select 1")

        assert OpenTransaction.find(lent.conn) is None


def test_other_objects_have_no_open_transaction():
    assert OpenTransaction.find(None) is None
    assert OpenTransaction.find(object()) is None
