"""The test harness: results and outcomes of the jobs that it runs, and what tasks report."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from graphile_worker import (
    App,
    JobContext,
    JobFailedError,
    OpenTransactionError,
    ResultError,
    Retention,
    SchemaError,
    Snooze,
    SyncJobContext,
)
from graphile_worker._sql.identifiers import derive_companion_schema, quote_identifier
from graphile_worker.testing import Harness
from tests.support.sql import Sql

KEPT = Retention(results=True, attempts=True)


def multiply(a: int, b: int) -> int:
    return a * b


@pytest.fixture
def app(database) -> App[Any]:
    return App(database.dsn, schema=database.schema)


@pytest.fixture
def gw(app: App[Any]) -> Iterator[Harness]:
    with Harness(app) as harness:
        yield harness


class Outcomes:
    """The outcomes in the transaction of the test."""

    def __init__(self, gw: Harness) -> None:
        self._gw = gw
        self._schema = quote_identifier(derive_companion_schema(gw.app.schema or ""))

    def list(self) -> list[tuple[Any, ...]]:
        rows = self._query("task_identifier, succeeded, result", "outcomes")
        return [(row["task_identifier"], row["succeeded"], row["result"]) for row in rows]

    def count_attempts(self) -> int:
        return len(self._query("attempt", "attempts"))

    def _query(self, columns: str, table: str) -> Any:
        statement = f"select {columns} from {self._schema}.{table} order by job_id, started_at"
        connection = self._gw._session.runtime.connection.sync_database
        with connection.connection() as session:
            cursor = session.raw.execute(statement)
            names = [each.name for each in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]


@pytest.fixture
def outcomes(gw: Harness) -> Outcomes:
    return Outcomes(gw)


def test_drain_returns_what_each_task_returned(gw: Harness, app: App[Any], outcomes: Outcomes):
    @app.task
    async def double(number: int) -> int:
        return 2 * number

    @app.task
    def shout(text: str) -> type[str]:
        # JSON cannot represent this result, so a task could not keep it.
        return str

    @app.task
    def later() -> None:
        raise Snooze(timedelta(hours=1))

    @app.task
    def fail() -> None:
        raise ValueError("boom")

    jobs = [
        double.enqueue(3),
        shout.enqueue("a"),
        app.task(run_in="process")(multiply).enqueue(6, 7),
    ]
    later.enqueue()
    failed = fail.enqueue()

    drained = gw.drain(raise_errors=False)

    assert [(job.id, result) for job, result in drained.results] == [
        (jobs[0].id, 6),
        (jobs[1].id, str),
        (jobs[2].id, 42),
    ]
    assert [(job.id, str(error)) for job, error in drained.errors] == [(failed.id, "boom")]
    assert len(drained) == 5
    assert outcomes.list() == []


def test_tasks_with_retention_keep_outcomes_in_the_transaction_of_the_test(app: App[Any], sql: Sql):
    @app.task(retention=KEPT)
    async def double(number: int) -> int:
        return 2 * number

    @app.task(retention=KEPT, max_attempts=2)
    def fail() -> None:
        raise ValueError("boom")

    with Harness(app) as gw:
        double.enqueue(3)
        fail.enqueue()
        gw.drain(include_delayed=True, raise_errors=False)
        with gw.inline():
            double.enqueue(4)

        outcomes = Outcomes(gw)
        assert outcomes.list() == [("double", True, 6), ("fail", False, None), ("double", True, 8)]
        assert outcomes.count_attempts() == 4
    assert sql.run("select 1 from :ext_schema.outcomes") == []


def test_the_retention_of_the_app_applies(database):
    app = App[Any](database.dsn, schema=database.schema, retention=Retention())

    @app.task
    def double(number: int) -> int:
        return 2 * number

    with Harness(app) as gw:
        double.enqueue(3)
        gw.drain()

        assert Outcomes(gw).list() == [("double", True, None)]


def test_a_result_that_cannot_be_stored_is_an_error_of_a_drain(gw: Harness, app: App[Any]):
    @app.task(retention=KEPT)
    def unstorable() -> object:
        return object()

    unstorable.enqueue()

    with pytest.raises(ResultError):
        gw.drain()
    gw.assert_not_enqueued()


def test_set_result_in_a_transaction_of_the_task_is_its_result(
    gw: Harness, app: App[Any], outcomes: Outcomes
):
    @app.task(retention=KEPT)
    async def waits(ctx: JobContext) -> None:
        async with ctx.transaction():
            ctx.set_result({"size": 1})

    @app.task(retention=KEPT)
    def blocks(ctx: SyncJobContext) -> None:
        with ctx.transaction():
            ctx.set_result({"size": 2})

    waits.enqueue()
    blocks.enqueue()
    drained = gw.drain()

    assert [result for _, result in drained.results] == [{"size": 1}, {"size": 2}]
    assert outcomes.list() == [("waits", True, {"size": 1}), ("blocks", True, {"size": 2})]


def test_a_rolled_back_completion_keeps_a_failure(gw: Harness, app: App[Any], outcomes: Outcomes):
    @app.task(retention=KEPT, max_attempts=1)
    def charge(ctx: SyncJobContext) -> None:
        with ctx.transaction():
            ctx.set_result(1)
        with ctx.connection() as connection, pytest.raises(Exception, match="no_table"):
            connection.execute("select from no_table")

    charge.enqueue()
    drained = gw.drain(raise_errors=False)

    assert (len(drained.errors), drained.results) == (1, [])
    assert outcomes.list() == [("charge", False, None)]


async def test_async_tests_get_results_too(gw: Harness, app: App[Any], outcomes: Outcomes):
    @app.task(retention=KEPT)
    async def double(number: int) -> int:
        return 2 * number

    await double.aenqueue(3)
    drained = await gw.adrain()
    with gw.inline():
        await double.aenqueue(4)

    assert [result for _, result in drained.results] == [6]
    assert outcomes.list() == [("double", True, 6), ("double", True, 8)]


def test_a_database_that_is_not_migrated_raises(app: App[Any], sql: Sql):
    @app.task(retention=KEPT)
    def keep() -> int:
        return 1

    sql.run("alter table :ext_schema.outcomes rename to hidden")
    with Harness(app) as gw:
        keep.enqueue()
        with pytest.raises(SchemaError, match="'keep' keeps outcomes, and schema .* migrate"):
            gw.drain()


async def test_a_context_records_what_its_task_reports(gw: Harness, app: App[Any]):
    @app.task
    async def waits(ctx: JobContext, pages: int) -> None:
        for page in range(pages):
            ctx.progress(page / pages, f"page {page}")
        ctx.set_result({"pages": pages})

    @app.task
    def blocks(ctx: SyncJobContext) -> None:
        ctx.progress(None, "counting")
        ctx.progress(1)
        with ctx.transaction():
            ctx.set_result("done")

    ctx = gw.context(waits)
    await waits.fn(ctx, 2)
    assert ctx.reported_progress == [(0.0, "page 0"), (0.5, "page 1")]
    assert ctx.result == {"pages": 2}

    plain = gw.context(blocks)
    assert (plain.reported_progress, plain.result) == ([], None)
    blocks.fn(plain)
    assert plain.reported_progress == [(None, "counting"), (1.0, None)]
    assert plain.result == "done"

    with pytest.raises(ValueError, match="fraction must be from 0 to 1, got 1.5"):
        ctx.progress(1.5)
    with pytest.raises(ResultError):
        ctx.set_result(object())


def test_tasks_report_progress_in_a_drain(gw: Harness, app: App[Any]):
    @app.task
    def report(ctx: SyncJobContext, fraction: float) -> None:
        ctx.progress(fraction, "half")

    report.enqueue(0.5)
    report.enqueue(5.0)

    drained = gw.drain(raise_errors=False)

    assert [str(error) for _, error in drained.errors] == ["fraction must be from 0 to 1, got 5.0"]


def test_results_and_statuses_can_be_read_after_a_drain(gw: Harness, app: App[Any]):
    @app.task(retention=KEPT)
    async def double(number: int) -> int:
        return 2 * number

    @app.task(retention=KEPT, max_attempts=1)
    def fail() -> None:
        raise ValueError("boom")

    job, failed = double.enqueue(3), fail.enqueue()
    waiting = double.using(run_at=timedelta(hours=1)).enqueue(4)
    gw.drain(raise_errors=False)

    assert job.result() == 6
    assert app.status(job.id).state == "succeeded"
    assert len(app.status(job.id).attempts) == 1
    with pytest.raises(JobFailedError, match="boom"):
        failed.result()
    assert app.status(failed.id).state == "failed"
    assert app.status(waiting.id).state == "scheduled"
    with pytest.raises(OpenTransactionError, match="run it with drain"):
        waiting.result(timeout=timedelta(seconds=20))
    with gw.inline():
        assert double.enqueue(5).result() == 10


async def test_async_tests_read_results_and_statuses_too(gw: Harness, app: App[Any]):
    @app.task(retention=KEPT)
    async def double(number: int) -> int:
        return 2 * number

    job = await double.aenqueue(3)
    await gw.adrain()

    assert await job.aresult() == 6
    assert (await app.astatus(job.id)).state == "succeeded"
