"""Outcomes: what a worker keeps of ended jobs, in the statement that ends them."""

import asyncio
import hashlib
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from graphile_worker import (
    App,
    ConfigurationError,
    Discard,
    JobContext,
    JobSpec,
    RecoveryOptions,
    Retention,
    Retry,
    Runner,
    SchemaError,
    Snooze,
    SyncJobContext,
    WorkerOptions,
    sync,
)
from graphile_worker._db.sync import SyncPsycopgDatabase
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.outcomes import JobRecord, get_job_record
from graphile_worker._sql.render import ParameterStyle, render
from graphile_worker._support.failpoints import install_hook
from graphile_worker._worker.completer import CompletionTimings
from graphile_worker._worker_config import WorkerTimings
from graphile_worker.events import JobErrored, JobFinished, JobStarted, JobSucceeded, PoolFatalError
from graphile_worker.results import MAX_RESULT_BYTES
from tests.conftest import TestDatabase
from tests.support import kept_tasks
from tests.support.clients import record_statements
from tests.support.failpoints import build_hook
from tests.support.recorder import Recorder, open_runners, wait_until
from tests.support.rows import count_jobs
from tests.support.sql import Sql

# What the statements do: test_statements.py runs each of them on the oldest pair too.
pytestmark = pytest.mark.single_version

KEEP_ALL = Retention(results=True, attempts=True)
NOW = timedelta(0)

# An outcome counts as rejected once the database has accepted a heartbeat meanwhile.
OFTEN = RecoveryOptions(heartbeat_interval=timedelta(milliseconds=200))
QUICK = WorkerTimings(completion=CompletionTimings(max_backoff_seconds=0.05))


class Outcome(NamedTuple):
    task: str
    succeeded: bool
    attempts: int
    result: str | None
    error: str | None


def list_outcomes(sql: Sql) -> list[Outcome]:
    """The outcomes in the order of their jobs, with the first line of each error."""
    rows = sql.run(
        "select task_identifier, succeeded, attempts, result::text, split_part(error, e'\\n', 1)"
        " from :ext_schema.outcomes order by job_id, finished_at"
    )
    return [Outcome(*row) for row in rows]


def list_attempts(sql: Sql) -> list[tuple[Any, ...]]:
    return sql.run(
        "select attempt, split_part(error, e'\\n', 1) from :ext_schema.attempts"
        " order by job_id, attempt, started_at"
    )


MakeApp = Callable[..., App[None]]


@pytest.fixture
async def make_app(database) -> AsyncIterator[MakeApp]:
    made: list[App[None]] = []

    def make(**options: Any) -> App[None]:
        made.append(App(**{"dsn": database.dsn, "schema": database.schema, **options}))
        return made[-1]

    yield make
    for each in made:
        await each.close()


@pytest.fixture
def app(make_app: MakeApp) -> App[None]:
    return make_app()


async def run_all(app: App[None], *, migrate: bool = True, **options: Any) -> int:
    assert app.schema is not None
    given = WorkerOptions(schema=app.schema, **options)
    return await Runner(app.dsn, app, options=given, migrate=migrate).run_once()


@contextmanager
def failpoints(text: str) -> Iterator[None]:
    install_hook(build_hook(text))
    try:
        yield
    finally:
        install_hook(None)


# The default path

# Of the texts before tasks could keep outcomes, for schema "graphile_worker".
CHECKSUMS = {
    (
        "complete_claimed_jobs",
        ParameterStyle.NATIVE,
    ): "51a1b95c04a56c8e4cd0b503ce8eadee5c7e82efbc5403972b9538df8931e9d2",
    (
        "complete_claimed_jobs",
        ParameterStyle.PYFORMAT,
    ): "ac54bbc4dc4a8013f3816b281b8f54b25962553f2de208c01a8732b8cb75f85b",
    (
        "complete_claimed_jobs",
        ParameterStyle.SQLALCHEMY,
    ): "26c17142ae1dc2227e407f9e7d83244efe253186c434ca159acfc01dc589e882",
    (
        "fail_claimed_jobs",
        ParameterStyle.NATIVE,
    ): "b122b2ed3aab4c7ad134041ffd8b2b53586dce1efb51b1c646af7f43a218e979",
    (
        "fail_claimed_jobs",
        ParameterStyle.PYFORMAT,
    ): "1932506afb1bbe04ef933bb307ba124ccf61450e52d3c88e61cba6aa5f03837c",
    (
        "fail_claimed_jobs",
        ParameterStyle.SQLALCHEMY,
    ): "1f701cde3ed02dedd93e42146368cb86f7c487d75aea2c2476205084a5b24d1e",
}


def test_the_statements_of_tasks_without_retention_are_byte_identical_to_before():
    schemas = Schemas.from_names("graphile_worker")
    names = ("complete_claimed_jobs", "fail_claimed_jobs")

    assert {
        (name, style): hashlib.sha256(render(name, schemas, style).encode()).hexdigest()
        for name in names
        for style in ParameterStyle
    } == CHECKSUMS


async def test_an_app_without_retention_sends_no_statement_of_the_history(app, sql, monkeypatch):
    sent = record_statements(monkeypatch)

    @app.task(max_attempts=1)
    async def work(fails: bool) -> int:
        if fails:
            raise ValueError("no good")
        return 1

    for n in range(6):
        await work.aenqueue(n % 2 == 0)
    await run_all(app, concurrency=2)

    assert {"complete_claimed_jobs", "fail_claimed_jobs"} <= set(sent)
    assert [each for each in sent if "keep" in each or "history" in each] == []
    assert list_outcomes(sql) == []


async def test_only_a_batch_with_a_kept_run_uses_the_statement_that_keeps(app, sql, monkeypatch):
    sent = record_statements(monkeypatch)

    @app.task(max_attempts=1)
    async def plain(fails: bool) -> None:
        if fails:
            raise ValueError("no good")

    @app.task(retention=KEEP_ALL, max_attempts=1)
    async def kept(fails: bool) -> None:
        if fails:
            raise ValueError("no good")

    def list_written() -> list[str]:
        written = [each for each in sent if each.startswith(("complete_", "fail_"))]
        sent.clear()
        return written

    await plain.aenqueue(False)
    await plain.aenqueue(True)
    await run_all(app)
    assert sorted(list_written()) == ["complete_claimed_jobs", "fail_claimed_jobs"]

    delay = timedelta(seconds=1)
    await app.aadd_jobs(
        [JobSpec(name, {"fails": fails}) for name in ("plain", "kept") for fails in (False, True)]
    )
    await run_all(app, concurrency=4, complete_batch_delay=delay, fail_batch_delay=delay)

    assert sorted(list_written()) == ["complete_and_keep_jobs", "fail_and_keep_jobs"]
    assert list_outcomes(sql) == [
        ("kept", True, 1, "null", None),
        ("kept", False, 1, None, "ValueError: no good"),
    ]
    assert sql.run("select max_attempts = attempts from :schema._private_jobs") == [(True,)] * 3


# Kinds of tasks


async def test_a_task_keeps_its_result_and_attempts(app, sql):
    @app.task(retention=KEEP_ALL)
    async def add(a: int, b: int) -> int:
        return a + b

    @app.task(retention=Retention(results=True))
    def nothing() -> None:
        pass

    @app.task(retention=Retention())
    async def plain() -> int:
        return 1

    @app.task
    async def forgotten() -> int:
        return 1

    for task in (nothing, plain, forgotten):
        await task.aenqueue()
    await add.aenqueue(1, 2)
    await run_all(app)

    assert list_outcomes(sql) == [
        ("nothing", True, 1, "null", None),
        ("plain", True, 1, None, None),
        ("add", True, 1, "3", None),
    ]
    assert list_attempts(sql) == [(1, None)]
    assert sql.value(
        "select bool_and(created_at <= run_at and run_at <= started_at"
        " and started_at <= finished_at and finished_at <= now() and pool_id <> ''"
        " and expires_at is null) from :ext_schema.outcomes"
    )


async def test_a_task_keeps_payloads_priorities_and_classes_of_errors(app, sql):
    class PaymentError(Exception):
        pass

    @app.task(retention=Retention(payloads=True, attempts=True), max_attempts=2)
    async def kept(card: str, fails: bool = False) -> None:
        if fails:
            raise PaymentError("declined")

    @app.task(retention=Retention())
    async def plain(card: str) -> None:
        pass

    await kept.using(priority=-7).aenqueue("4711")
    await plain.aenqueue("4712")
    failing = await kept.aenqueue("4713", fails=True)
    await run_all(app)
    assert sql.run("select payload::text, priority from :ext_schema.outcomes order by job_id") == [
        ('{"card":"4711"}', -7),
        (None, None),
    ]
    path = f"{__name__}.{PaymentError.__qualname__}"
    rows = "select error_class from :ext_schema.attempts order by job_id"
    assert sql.run(rows) == [(None,), (path,)]

    status = await app.astatus(failing.id)
    assert [each.error_class for each in status.attempts] == [path]
    sql.run("update :schema._private_jobs set run_at = now()")
    await run_all(app)
    assert sql.run(
        "select payload::text, priority, error_class from :ext_schema.outcomes where not succeeded"
    ) == [('{"card":"4713","fails":true}', 0, path)]


async def test_get_job_record_finds_the_row_the_newest_outcome_and_attempts(app, database, sql):
    @app.task(retention=Retention(results=True, attempts=True, payloads=True), max_attempts=2)
    async def divide(by: int) -> float:
        return 1 / by

    async def read(job_id: int) -> JobRecord:
        schemas = Schemas.from_names(database.schema)
        own = SyncPsycopgDatabase(database.dsn, schemas)
        try:
            return own.run(get_job_record(job_id))
        finally:
            own.close()

    good, bad = await divide.aenqueue(2), await divide.using(priority=3).aenqueue(0)
    assert await read(10**9) == JobRecord(None, None, ())
    waiting = await read(bad.id)
    assert waiting.row is not None
    assert (waiting.row.task_identifier, waiting.row.payload) == ("divide", '{"by":0}')
    assert (waiting.row.priority, waiting.row.attempts, waiting.row.locked_at) == (3, 0, None)
    assert waiting.row.created_at == waiting.row.run_at == bad.created_at
    assert (waiting.outcome, waiting.attempts) == (None, ())

    for _ in range(2):
        await run_all(app)
        sql.run("update :schema._private_jobs set run_at = now()")
    ended, failed = await read(good.id), await read(bad.id)
    assert ended.row is None
    assert ended.outcome is not None
    assert (ended.outcome.result, ended.outcome.payload) == ("0.5", '{"by":2}')
    assert [each.number for each in ended.attempts] == [1]
    assert failed.row is not None
    assert failed.outcome is not None
    assert failed.row.has_no_attempts
    assert failed.outcome.error == failed.row.error
    assert failed.outcome.error_class == "builtins.ZeroDivisionError"
    assert [each.number for each in failed.attempts] == [1, 2]
    sql.run("update :ext_schema.outcomes set expires_at = now()")
    assert (await read(good.id)).outcome is None


async def test_tasks_of_every_kind_keep_their_results(app, database, sql):
    app.include(kept_tasks.tasks)

    @app.task(retention=KEEP_ALL)
    async def on_loop(n: int) -> int:
        return n

    @app.task(retention=KEEP_ALL)
    def in_thread(n: int) -> dict[str, int]:
        return {"n": n}

    @app.task(retention=KEEP_ALL, run_in="loop")
    def plain_on_loop(n: int) -> str:
        return "é" * n

    @app.task(retention=KEEP_ALL)
    async def sets_result(ctx: JobContext, n: int) -> None:
        ctx.set_result([n])

    @app.task(retention=KEEP_ALL)
    def sets_and_returns(ctx: SyncJobContext, n: int) -> int:
        ctx.set_result("replaced")
        return n

    @app.batch_task(retention=Retention(attempts=True))
    async def batch(items: list[int]) -> None:
        pass

    names = ["on_loop", "in_thread", "plain_on_loop", "sets_result", "sets_and_returns"]
    in_process = ["double_in_process", "awaited_in_process", "not_json_in_process"]
    await app.aadd_jobs([JobSpec(name, {"n": 2}) for name in [*names, *in_process]])
    await batch.aenqueue([1, 2])
    await kept_tasks.batch_in_process.aenqueue([1])
    await run_all(app, concurrency=2)

    assert [each[:4] for each in list_outcomes(sql)] == [
        ("on_loop", True, 1, "2"),
        ("in_thread", True, 1, '{"n":2}'),
        ("plain_on_loop", True, 1, '"éé"'),
        ("sets_result", True, 1, "[2]"),
        ("sets_and_returns", True, 1, "2"),
        ("double_in_process", True, 1, "4"),
        ("awaited_in_process", True, 1, "[2]"),
        ("not_json_in_process", False, 1, None),
        ("batch", True, 1, None),
        ("batch_in_process", True, 1, None),
    ]
    assert len(list_attempts(sql)) == 10
    assert sql.run("select attempts = max_attempts from :schema._private_jobs") == [(True,)]


def test_a_batch_task_cannot_keep_results(app):
    with pytest.raises(ConfigurationError, match="returns the outcomes of its items"):

        @app.batch_task(retention=KEEP_ALL)
        async def batch(items: list[int]) -> None: ...


async def test_a_batch_keeps_an_outcome_when_its_last_items_have_ended(app, sql):
    @app.batch_task(retention=Retention(attempts=True), retry=lambda error, job: NOW)
    async def batch(ctx: JobContext, items: list[int]) -> list[BaseException | None]:
        is_first = ctx.job.attempts == 1
        return [ValueError("no good") if is_first and n == 2 else None for n in items]

    await batch.aenqueue([1, 2])
    await run_all(app)

    assert [each[:3] for each in list_outcomes(sql)] == [("batch", True, 2)]
    assert [attempt for attempt, _ in list_attempts(sql)] == [1, 2]


async def test_the_default_of_the_app_applies_to_tasks_without_their_own(make_app, sql):
    app = make_app(retention=Retention(results=True))

    @app.task
    async def default() -> int:
        return 1

    @app.task(retention=Retention(attempts=True))
    async def own() -> int:
        return 2

    @app.batch_task
    async def batch(items: list[int]) -> None: ...

    await default.aenqueue()
    await own.aenqueue()
    await batch.aenqueue([1])
    await run_all(app)

    assert [(each.task, each.result) for each in list_outcomes(sql)] == [
        ("default", "1"),
        ("own", None),
        ("batch", None),
    ]
    assert list_attempts(sql) == [(1, None)]


async def test_times_are_those_of_the_run_also_in_a_long_transaction(app, sql):
    @app.task(retention=KEEP_ALL)
    async def transfer(ctx: JobContext) -> None:
        async with ctx.transaction() as conn:
            await conn.execute("select pg_sleep(0.3)")

    await transfer.aenqueue()
    before = sql.value("select now()")
    await run_all(app)

    [(started, finished)] = sql.run("select started_at, finished_at from :ext_schema.outcomes")
    assert before <= started
    assert finished - started >= timedelta(seconds=0.3)
    assert sql.value("select duration from :ext_schema.attempts") >= 0.3


# Transactions of tasks


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_result_commits_with_the_transaction_of_the_task(app, sql, kind):
    sql.run("create table paid (n int)")

    if kind == "async":

        @app.task(name="pay", retention=KEEP_ALL, max_attempts=2, retry=lambda error, job: NOW)
        async def pay_async(ctx: JobContext, fails: bool) -> None:
            async with ctx.transaction() as conn:
                await conn.execute("insert into paid values (1)")
                ctx.set_result({"paid": 1})
                if fails:
                    raise ValueError("no funds")

    else:

        @app.task(name="pay", retention=KEEP_ALL, max_attempts=2, retry=lambda error, job: NOW)
        def pay(ctx: SyncJobContext, fails: bool) -> None:
            with ctx.transaction() as conn:
                conn.execute("insert into paid values (1)")
                ctx.set_result({"paid": 1})
                if fails:
                    raise ValueError("no funds")

    await app.aadd_job("pay", {"fails": False})
    await app.aadd_job("pay", {"fails": True})
    await run_all(app)

    assert list_outcomes(sql) == [
        ("pay", True, 1, '{"paid":1}', None),
        ("pay", False, 2, None, "ValueError: no funds"),
    ]
    assert [attempt for attempt, _ in list_attempts(sql)] == [1, 1, 2]
    assert sql.run("select n from paid") == [(1,)]


async def test_a_transaction_that_lost_its_lock_keeps_nothing(app, database, sql, recorder):
    sql.run("create table paid (n int)")

    @app.task(retention=KEEP_ALL)
    async def pay(ctx: JobContext) -> None:
        async with ctx.transaction() as conn:
            await conn.execute("insert into paid values (1)")
            ctx.set_result(1)
            sql.run("update :schema._private_jobs set locked_by = 'other'")

    async with open_runners(database, recorder.hooks) as start:
        runner = await start(app)
        await runner.add_job("pay")
        await wait_until(lambda: "job:lockLost" in recorder.names)

    assert sql.run("select n from paid") == []
    assert (list_outcomes(sql), list_attempts(sql)) == ([], [])


async def test_an_error_after_the_transaction_leaves_the_outcome_of_its_commit(app, sql):
    @app.task(retention=KEEP_ALL)
    async def pay(ctx: JobContext) -> int:
        async with ctx.transaction():
            ctx.set_result("committed")
        raise ValueError("too late")

    await pay.aenqueue()
    await run_all(app)

    assert list_outcomes(sql) == [("pay", True, 1, '"committed"', None)]
    assert count_jobs(sql) == 0


# Results that cannot be stored


class Broken:
    def model_dump(self, **options: Any) -> Any:
        raise RuntimeError("out of order")


BAD_RESULTS: dict[str, tuple[Any, str]] = {
    "too large": ("x" * MAX_RESULT_BYTES, f"larger than {MAX_RESULT_BYTES} bytes"),
    "not a number": ({"n": math.nan}, "cannot be stored"),
    "NUL": (["a\0b"], "NUL"),
    "surrogate": ("\ud800", "lone surrogates"),
    "not JSON": (object(), "has no JSON form"),
    "naive": (datetime(2024, 1, 1), "naive datetime"),
    "not text": ({1: 2}, "keys must be str"),
    "broken": (Broken(), "RuntimeError: out of order"),
}


@pytest.mark.parametrize("way", ["return", "set", "transaction"])
async def test_a_result_that_cannot_be_stored_fails_the_job_permanently(app, sql, way):
    runs: list[str] = []

    @app.task(retention=KEEP_ALL)
    async def work(ctx: JobContext, name: str) -> Any:
        runs.append(name)
        if way == "return":
            return BAD_RESULTS[name][0]
        if way == "set":
            ctx.set_result(BAD_RESULTS[name][0])
            return None
        async with ctx.transaction() as conn:
            await conn.execute("select 1")
            ctx.set_result(BAD_RESULTS[name][0])
        return None

    await app.aadd_jobs([JobSpec("work", {"name": name}) for name in BAD_RESULTS])
    await run_all(app)

    assert sorted(runs) == sorted(BAD_RESULTS)
    found = list_outcomes(sql)
    assert [each[:4] for each in found] == [("work", False, 1, None)] * len(BAD_RESULTS)
    for outcome, (_, reason) in zip(found, BAD_RESULTS.values(), strict=True):
        assert outcome.error is not None
        assert outcome.error.startswith("ResultError: the result of the task cannot be stored: ")
        assert reason in outcome.error
    assert sql.run("select distinct attempts = max_attempts from :schema._private_jobs") == [
        (True,)
    ]


async def test_a_task_that_keeps_no_result_may_return_anything(app, sql):
    @app.task(retention=Retention(attempts=True))
    async def work() -> object:
        return object()

    await work.aenqueue()
    await run_all(app)

    assert list_outcomes(sql) == [("work", True, 1, None, None)]


async def test_a_result_that_the_database_rejects_fails_the_job_permanently(cluster, make_app):
    """LATIN1 has no such character."""
    with psycopg.connect(cluster.dsn(), autocommit=True) as admin:
        admin.execute(
            b"create database in_latin1_outcomes encoding 'LATIN1' template template0 "
            b"lc_collate 'C' lc_ctype 'C'"
        )
    database = TestDatabase("in_latin1_outcomes", cluster, "graphile_worker")
    app = make_app(dsn=database.dsn, schema=database.schema)
    runs = []
    try:
        await app.amigrate()

        @app.task(retention=KEEP_ALL)
        async def returns(n: int) -> str:
            runs.append(n)
            return "é" if n == 0 else "名"

        @app.task(retention=KEEP_ALL)
        async def sets(ctx: JobContext, n: int) -> None:
            runs.append(n)
            async with ctx.transaction():
                ctx.set_result("名")

        @app.task(retention=KEEP_ALL, max_attempts=2, retry=lambda error, job: NOW)
        async def raises(ctx: JobContext, n: int) -> None:
            runs.append(n)
            ctx.set_result(n)
            raise ValueError("名")

        for n in range(2):
            await returns.aenqueue(n)
        await sets.aenqueue(2)
        await raises.aenqueue(3)
        await run_all(app)

        with psycopg.connect(f"{database.dsn} client_encoding=utf8") as connection:
            found = connection.execute(
                "select task_identifier, succeeded, attempts, result::text, error "
                "from graphile_worker_ext.outcomes order by job_id"
            ).fetchall()
    finally:
        cluster.drop_database(database.name)

    assert sorted(runs) == [0, 1, 2, 3, 3]
    assert [row[:4] for row in found] == [
        ("returns", True, 1, '"é"'),
        ("returns", False, 1, None),
        ("sets", False, 1, None),
        ("raises", False, 2, None),
    ]
    assert "has no equivalent" in found[1][4]
    assert found[2][4].startswith("ResultError: the result of the task cannot be stored: ")


# Failures


async def test_each_attempt_and_the_permanent_failure_are_kept(app, sql):
    @app.task(retention=Retention(attempts=True), max_attempts=3, retry=lambda error, job: NOW)
    async def fails(ctx: JobContext) -> None:
        raise ValueError(f"error {ctx.job.attempts}")

    await fails.aenqueue()
    await run_all(app)

    assert list_outcomes(sql) == [("fails", False, 3, None, "ValueError: error 3")]
    assert list_attempts(sql) == [(n, f"ValueError: error {n}") for n in (1, 2, 3)]
    assert sql.value(
        "select run_at <= started_at and started_at <= finished_at and finished_at <= now()"
        " from :ext_schema.outcomes"
    )
    assert sql.value(
        "select bool_and(duration >= 0 and started_at < now()) from :ext_schema.attempts"
    )


async def test_a_job_that_succeeds_after_failures_has_one_outcome(app, sql):
    @app.task(retention=KEEP_ALL, retry=lambda error, job: NOW)
    async def third_time(ctx: JobContext) -> int:
        if ctx.job.attempts < 3:
            raise ValueError("no good")
        return ctx.job.attempts

    await third_time.aenqueue()
    await run_all(app)

    assert list_outcomes(sql) == [("third_time", True, 3, "3", None)]
    assert [attempt for attempt, _ in list_attempts(sql)] == [1, 2, 3]


async def test_retry_snooze_and_discard_keep_what_they_end(app, sql):
    hour = timedelta(hours=1)

    @app.task(retention=KEEP_ALL)
    async def retries() -> None:
        raise Retry(hour)

    @app.task(retention=KEEP_ALL)
    async def snoozes() -> None:
        raise Snooze(hour)

    @app.task(retention=KEEP_ALL)
    async def discards() -> None:
        raise Discard("not wanted")

    @app.task(retention=KEEP_ALL, max_attempts=1)
    async def snoozes_for_ever() -> None:
        raise Snooze(timedelta(days=999_999_999))

    for task in (retries, snoozes, discards, snoozes_for_ever):
        await task.aenqueue()
    await run_all(app)

    found = list_outcomes(sql)
    assert [each[:4] for each in found] == [
        ("discards", False, 1, None),
        ("snoozes_for_ever", False, 1, None),
    ]
    # An attempt that is not counted is not kept.
    ended = sql.run(
        "select task.identifier, attempt from :ext_schema.attempts"
        " join :schema._private_jobs as job on job.id = job_id"
        " join :schema._private_tasks as task on task.id = job.task_id order by job_id"
    )
    assert ended == [("retries", 1), ("discards", 1), ("snoozes_for_ever", 1)]


async def test_a_payload_that_no_run_can_read_keeps_its_failure(app, sql):
    @app.task(retention=KEEP_ALL, max_attempts=1)
    async def add(a: int) -> int:
        return a

    sql.run("select :schema.add_job('add', json_build_object('a', 'x'), max_attempts => 1)")
    await run_all(app)

    [outcome] = list_outcomes(sql)
    assert (outcome.succeeded, outcome.attempts) == (False, 1)


async def test_a_timeout_keeps_its_failure(app, sql):
    @app.task(retention=KEEP_ALL, max_attempts=1, timeout=timedelta(milliseconds=10))
    async def slow() -> None:
        await asyncio.Event().wait()

    await slow.aenqueue()
    await run_all(app)

    [outcome] = list_outcomes(sql)
    assert (outcome.succeeded, outcome.error) == (False, "TimeoutError")


# Exactly one outcome


async def test_a_job_that_was_replaced_while_it_ran_leaves_its_own_outcome(
    app, database, sql, recorder
):
    """Adding a job with its key uses up the attempts of the one that runs."""
    ids: list[int] = []

    @app.task(retention=KEEP_ALL, retry=lambda error, job: NOW)
    async def work(ctx: JobContext, n: int, fails: bool) -> int:
        ids.append(ctx.job.id)
        if n == 1:
            payload = {"n": 2, "fails": False}
            await ctx.add_job("work", payload, job_key=ctx.job.key, max_attempts=7)
        if fails:
            raise ValueError("replaced")
        return n

    await app.aadd_job("work", {"n": 1, "fails": False}, job_key="a", max_attempts=5)
    await run_all(app)
    await app.aadd_job("work", {"n": 1, "fails": True}, job_key="b", max_attempts=5)
    await run_all(app)

    assert len(set(ids)) == 4
    assert sql.run("select job_id from :ext_schema.outcomes order by finished_at") == [
        (each,) for each in ids
    ]
    assert sorted(each[:4] for each in list_outcomes(sql)) == [
        ("work", False, 1, None),
        ("work", True, 1, "1"),
        ("work", True, 1, "2"),
        ("work", True, 1, "2"),
    ]
    assert list_attempts(sql) == [(1, None), (1, None), (1, "ValueError: replaced"), (1, None)]


@pytest.mark.parametrize("batched", [False, True])
async def test_a_write_whose_answer_is_lost_leaves_one_outcome(app, database, sql, batched):
    delay = timedelta(milliseconds=1) if batched else None

    @app.task(retention=KEEP_ALL, max_attempts=2, retry=lambda error, job: NOW)
    async def work(n: int) -> int:
        if n % 2:
            raise ValueError(f"error {n}")
        return n

    await app.aadd_jobs([JobSpec("work", {"n": n}) for n in range(8)])
    with failpoints("completed=raise,failed=raise@2,completing=raise@2,failing=raise"):
        await run_all(app, concurrency=4, complete_batch_delay=delay, fail_batch_delay=delay)

    assert [each[:4] for each in list_outcomes(sql)] == [
        ("work", False, 2, None) if n % 2 else ("work", True, 1, str(n)) for n in range(8)
    ]
    assert [attempt for attempt, _ in list_attempts(sql)] == [1, 1, 2] * 4
    assert count_jobs(sql) == 4


async def test_the_outcome_is_that_of_the_run_that_held_the_lock(app, database, sql, recorder):
    may_end = asyncio.Event()

    @app.task(retention=KEEP_ALL)
    async def work(ctx: JobContext) -> str:
        if ctx.job.attempts == 1:
            await may_end.wait()
        return ctx.pool_id

    async with open_runners(database, recorder.hooks) as start:
        first = await start(app, concurrency=1)
        job = await first.add_job("work")
        await recorder.wait_for(JobStarted)
        # As a recovery does.
        sql.run("update :schema._private_jobs set locked_by = null, locked_at = null")
        other = Recorder()
        second = await start(app, hooks=other.hooks)
        [done] = await other.wait_for(JobSucceeded)
        may_end.set()
        await wait_until(lambda: "job:lockLost" in recorder.names)
        await first.stop()
        await second.stop()

    assert sql.run(
        "select job_id, pool_id, attempts, result #>> '{}' from :ext_schema.outcomes"
    ) == [(job.id, done.pool_id, 2, done.pool_id)]
    assert sql.run("select attempt, pool_id from :ext_schema.attempts") == [(2, done.pool_id)]


async def test_a_job_that_was_retried_by_hand_has_an_outcome_of_each_end(app, sql):
    fails = True

    @app.task(retention=KEEP_ALL, max_attempts=1)
    async def work() -> int:
        if fails:
            raise ValueError("no good")
        return 1

    job = await work.aenqueue()
    await run_all(app)
    fails = False
    sql.run("update :schema._private_jobs set attempts = 0")
    await run_all(app)

    assert sql.run("select job_id, succeeded from :ext_schema.outcomes order by finished_at") == [
        (job.id, False),
        (job.id, True),
    ]


async def test_jobs_that_people_end_leave_no_outcome(app, database, sql):
    @app.task(retention=KEEP_ALL)
    async def work() -> None: ...

    jobs = [await work.aenqueue() for _ in range(3)]
    with sync.Client(database.dsn, schema=database.schema) as client:
        client.complete_jobs([jobs[0].id])
        client.permanently_fail_jobs([jobs[1].id], "by hand")
        client.complete_jobs([jobs[2].id])
    await run_all(app)

    assert list_outcomes(sql) == []


# Rejected writes


def drop_tables(sql, role: str) -> None:
    sql.run("drop table :ext_schema.outcomes, :ext_schema.attempts")


def revoke_insert(sql, role: str) -> None:
    sql.run(f"revoke insert on :ext_schema.outcomes from {role}")


@pytest.mark.parametrize("damage", [drop_tables, revoke_insert])
async def test_jobs_end_without_an_outcome_if_the_history_is_damaged_while_they_run(
    database, make_app, sql, recorder, role, damage
):
    sql.run(f"alter role {role} bypassrls")
    sql.run(f"grant usage on schema :schema, :ext_schema to {role}")
    for schema in (":schema", ":ext_schema"):
        sql.run(f"grant select, insert, update, delete on all tables in schema {schema} to {role}")
        sql.run(f"grant usage on all sequences in schema {schema} to {role}")
    app = make_app(dsn=make_conninfo(database.dsn, user=role))

    @app.task(retention=KEEP_ALL, max_attempts=1)
    async def work(n: int) -> int:
        if n % 2:
            raise ValueError("no good")
        return n

    async with open_runners(database, recorder.hooks, QUICK) as start:
        runner = await start(app, on=make_conninfo(database.dsn, user=role), migrate=False)
        await runner.add_job("work", {"n": 0})
        await recorder.wait_for(JobSucceeded)
        damage(sql, role)
        await runner.add_jobs([JobSpec("work", {"n": n}) for n in range(6)])
        await recorder.wait_for(JobFinished, count=7)
        await runner.stop()

    reported = recorder.events_of(PoolFatalError)
    assert {each.action for each in reported} == {"completeJob", "failJob"}
    assert {type(each.error) for each in reported} <= {
        psycopg.errors.UndefinedTable,
        psycopg.errors.InsufficientPrivilege,
    }
    assert len(recorder.events_of(JobSucceeded)) == 4
    assert (
        sql.run("select last_error like 'ValueError%' from :schema._private_jobs") == [(True,)] * 3
    )
    if damage is revoke_insert:
        assert len(list_outcomes(sql)) == 1


async def test_a_completion_that_the_database_rejects_keeps_its_failure(
    app, database, sql, recorder
):
    """The history is not at fault, so the failure that is written instead is kept."""
    sql.run(
        "create function public.refuse() returns trigger language plpgsql as"
        " $$ begin raise exception 'the archive refuses this job'; end $$"
    )
    sql.run(
        "create trigger refuse before delete on :schema._private_jobs"
        " for each row execute function public.refuse()"
    )

    @app.task(retention=KEEP_ALL, max_attempts=1)
    async def work() -> int:
        return 1

    async with open_runners(database, recorder.hooks, QUICK) as start:
        runner = await start(app, recovery=OFTEN)
        await runner.add_job("work")
        await recorder.wait_for(JobErrored)
        await runner.stop()

    [outcome] = list_outcomes(sql)
    assert outcome[:4] == ("work", False, 1, None)
    assert outcome.error is not None
    assert "the archive refuses this job" in outcome.error


# How long outcomes are kept


async def test_a_shorter_keep_of_a_task_sets_when_its_outcomes_expire(app, sql):
    hour = timedelta(hours=1)

    @app.task(retention=Retention(attempts=True, keep=hour))
    async def short() -> None: ...

    @app.task(retention=Retention())
    async def whole() -> None: ...

    await short.aenqueue()
    await whole.aenqueue()
    await run_all(app)

    found = sql.run(
        "select expires_at - finished_at, expires_at > now() from :ext_schema.outcomes"
        " order by job_id"
    )
    assert found[0][0] - hour < timedelta(seconds=10)
    assert found == [(found[0][0], True), (None, None)]
    assert sql.value("select expires_at > now() from :ext_schema.attempts")


KEEP = "select keep from :ext_schema.history"


async def test_the_schema_keeps_outcomes_as_long_as_the_longest_task_wants(make_app, sql, caplog):
    async def start_with(**keeps: timedelta | None) -> timedelta | None:
        app = make_app()
        for name, keep in keeps.items():
            app.task(name=name, retention=Retention(keep=keep))(asyncio.sleep)
        caplog.clear()
        await run_all(app)
        found: timedelta | None = sql.value(KEEP)
        return found

    day = timedelta(days=1)
    assert await start_with(a=day) == day
    assert caplog.text == ""
    assert await start_with(a=day, b=2 * day) == 2 * day
    assert "keeps outcomes for 1d and tasks want 2d, the longer applies" in caplog.text
    assert await start_with(a=day) == 2 * day
    assert "keeps outcomes for 2d and tasks want 1d, the longer applies" in caplog.text
    # A task without a time relies on the default of 7 days, which is stored.
    assert await start_with(a=day, b=None) == 7 * day
    sql.run("update :ext_schema.history set keep = null")
    assert await start_with(a=None) == 7 * day
    assert await start_with(a=day) == 7 * day


async def test_a_worker_that_does_not_migrate_warns_of_a_schema_that_keeps_less(app, sql, caplog):

    @app.task(retention=Retention(keep=timedelta(days=30)))
    async def work() -> None: ...

    await run_all(app, migrate=False)

    assert sql.value(KEEP) is None
    assert "keeps outcomes for 7d, and tasks want 30d" in caplog.text


# Roles and connections


async def test_a_worker_without_the_tables_does_not_start(database, make_app, sql, role):
    app = make_app(dsn=make_conninfo(database.dsn, user=role))

    @app.task(retention=KEEP_ALL)
    async def work() -> None: ...

    sql.run(f"grant usage on schema :schema, :ext_schema to {role}")
    sql.run(f"grant select, insert, update, delete on all tables in schema :schema to {role}")
    sql.run(f"grant select on :ext_schema.migrations, :ext_schema.history to {role}")

    async def start() -> None:
        await run_all(app, migrate=False)

    message = (
        "task 'work' keeps outcomes, and schema '.*' has no tables for them that this role may "
        "write to. Run `graphile-worker migrate` as the owner, or grant the privileges."
    )
    with pytest.raises(SchemaError, match=message):
        await start()
    sql.run("drop table :ext_schema.outcomes, :ext_schema.attempts")
    with pytest.raises(SchemaError, match=message):
        await start()


async def test_a_worker_in_the_callers_transaction_keeps_outcomes_in_it(app, database, sql):

    @app.task(retention=KEEP_ALL, max_attempts=1)
    async def work(n: int) -> int:
        if n:
            raise ValueError("no good")
        return n

    for n in range(2):
        await work.aenqueue(n)
    async with await psycopg.AsyncConnection.connect(database.dsn) as connection:
        options = WorkerOptions(schema=database.schema)
        assert await Runner(connection, app, options=options).run_on_connection() == 2
        assert list_outcomes(sql) == []

    assert [each[:4] for each in list_outcomes(sql)] == [
        ("work", True, 1, "0"),
        ("work", False, 1, None),
    ]
