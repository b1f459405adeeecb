"""The test harness on a connection that it never commits."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from graphile_worker import (
    App,
    ConfigurationError,
    Discard,
    JobContext,
    JobErrored,
    JobFailed,
    JobSpec,
    JobSpecError,
    JobSucceeded,
    PartialFailure,
    Retry,
    RunningJob,
    Snooze,
    SyncJobContext,
    sync,
)
from graphile_worker.testing import Harness
from tests.conftest import TestDatabase
from tests.support.processes import eventually
from tests.support.sql import Sql

# What Python does: test_statements.py runs each statement on the oldest pair too.
pytestmark = pytest.mark.single_version

NEW_YEAR = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Shop:
    """An app with tasks of every kind, and what they did."""

    def __init__(self, dsn: str, schema: str) -> None:
        self.done: list[Any] = []
        self.app: App[Any] = App(dsn, schema=schema, lifespan=self.lifespan)
        app, done = self.app, self.done

        @app.task
        async def send(to: str, on: date | None = None) -> None:
            done.append(("send", to, on))

        @app.task
        def count(number: int) -> None:
            done.append(("count", number))

        @app.task
        async def fail(ctx: JobContext, what: str = "boom") -> None:
            raise ValueError(what)

        @app.task
        def chain(ctx: SyncJobContext, left: int) -> None:
            done.append(left)
            if left:
                ctx.add_job("chain", {"left": left - 1})

        @app.batch_task
        def track(items: list[int]) -> list[BaseException | None]:
            return [ValueError(item) if item < 0 else None for item in items]

        self.send, self.count, self.fail, self.chain, self.track = send, count, fail, chain, track

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[str]:
        self.done.append("begin")
        yield "deps"
        self.done.append("end")

    @property
    def ran(self) -> list[Any]:
        return [each for each in self.done if each not in ("begin", "end")]


@pytest.fixture
def shop(database: TestDatabase) -> Shop:
    return Shop(database.dsn, database.schema)


@pytest.fixture
def gw(shop: Shop) -> Iterator[Harness]:
    with Harness(shop.app) as harness:
        yield harness


# Enqueued jobs


def test_assert_enqueued_finds_a_job_by_some_keys_of_its_payload(gw: Harness, shop: Shop):
    added = shop.send.enqueue(to="ada", on=date(2030, 1, 2))

    assert gw.assert_enqueued(shop.send) == added
    assert gw.assert_enqueued(shop.send, to="ada") == added
    assert gw.assert_enqueued("send", on=date(2030, 1, 2)) == added
    gw.assert_not_enqueued(shop.send, to="bob")
    gw.assert_not_enqueued(shop.count)


def test_assert_enqueued_lists_the_enqueued_jobs_when_it_fails(gw: Harness, shop: Shop):
    shop.send.using(queue_name="mail", job_key="k").enqueue(to="ada")

    with pytest.raises(AssertionError) as error:
        gw.assert_enqueued(shop.send, to="bob", options={"priority": 3})

    assert "send, to='bob', with priority=3" in str(error.value)
    assert 'send {"to":"ada"}' in str(error.value)
    assert "queue_name='mail', job_key='k'" in str(error.value)


def test_assert_not_enqueued_lists_the_jobs_that_it_finds(gw: Harness, shop: Shop):
    shop.send.enqueue(to="ada")

    with pytest.raises(AssertionError, match='send {"to":"ada"}'):
        gw.assert_not_enqueued(shop.send)
    with pytest.raises(AssertionError, match="any task"):
        gw.assert_not_enqueued()


def test_enqueued_finds_a_job_by_its_options(gw: Harness, shop: Shop):
    shop.send.using(
        queue_name="mail",
        priority=3,
        max_attempts=7,
        job_key="k",
        flags=["slow"],
        run_at=NEW_YEAR,
    ).enqueue(to="ada")

    gw.assert_enqueued(shop.send.using(queue_name="mail", job_key="k"), to="ada")
    gw.assert_enqueued(shop.send.using(run_at=NEW_YEAR, priority=3, flags=["slow"]))
    gw.assert_enqueued("send", options={"max_attempts": 7, "attempts": 0, "last_error": None})
    gw.assert_not_enqueued(shop.send.using(queue_name="other"))
    gw.assert_not_enqueued("send", options={"flags": ["fast"]})


def test_unique_windows_follow_the_clock_of_the_test(gw: Harness, shop: Shop):
    report = shop.send.using(unique="report", unique_for=HOUR)
    other = shop.send.using(unique="other", unique_for=HOUR)
    first = report.enqueue(to="ada")

    assert report.enqueue(to="bob").is_duplicate
    gw.travel(HOUR - timedelta(minutes=1))
    assert report.enqueue(to="bob").is_duplicate
    assert gw.assert_enqueued(report) == first
    assert gw.assert_enqueued("send", options={"unique": "report"}) == first
    gw.assert_not_enqueued(other)
    gw.travel(timedelta(minutes=1))
    assert not report.enqueue(to="bob").is_duplicate
    gw.assert_enqueued(report, to="bob")
    gw.assert_not_enqueued(report, to="ada")


def test_inline_runs_a_unique_job_once(gw: Harness, shop: Shop):
    count = shop.count.using(unique="count", unique_for=HOUR)

    with gw.inline():
        first, second = count.enqueue(1), count.enqueue(2)

    assert (first.is_duplicate, second.is_duplicate, second.id) == (False, True, first.id)
    gw.assert_not_enqueued(shop.count)


def test_a_delay_in_options_counts_from_now(gw: Harness, shop: Shop):
    shop.send.using(run_at=HOUR).enqueue(to="ada")

    gw.assert_enqueued(shop.send.using(run_at=HOUR))
    gw.assert_not_enqueued(shop.send.using(run_at=2 * HOUR))


def test_a_whole_payload_is_compared_as_json(gw: Harness, shop: Shop):
    identity = UUID(int=7)
    shop.app.add_job("of_node", {"id": identity, "having": 1})
    shop.track.enqueue([1, 2])

    gw.assert_enqueued("of_node", id=identity)
    gw.assert_enqueued("of_node", options={"payload": {"id": str(identity), "having": 1}})
    gw.assert_enqueued(shop.track, options={"payload": (1, 2)})


@pytest.mark.parametrize("method", ["assert_enqueued", "assert_not_enqueued", "enqueued"])
def test_a_keyword_that_is_not_a_parameter_raises(gw: Harness, shop: Shop, method: str):
    call = getattr(gw, method)

    with pytest.raises(TypeError, match=r"'too', did you mean 'to'\? Known parameters: to, on"):
        call(shop.send, too="ada")
    with pytest.raises(TypeError, match="no parameter 'too'"):
        call("send", too="ada")
    with pytest.raises(TypeError, match="a job has no option 'queue'"):
        call(shop.send, options={"queue": "mail"})
    with pytest.raises(TypeError, match="takes a list"):
        call(shop.track, items=[1])
    with pytest.raises(TypeError, match="expected a task"):
        call(print)


def test_assert_enqueued_returns_the_newest_job_and_enqueued_lists_all_in_order(
    gw: Harness, shop: Shop
):
    late = shop.count.using(run_at=HOUR).enqueue(1)
    soon = shop.count.enqueue(2)

    assert gw.assert_enqueued(shop.count) == soon
    assert gw.enqueued(shop.count) == [soon, late]
    assert gw.enqueued() == [soon, late]


def test_permanently_failed_jobs_are_not_enqueued(gw: Harness, shop: Shop):
    shop.fail.using(max_attempts=1).enqueue()

    gw.drain(raise_errors=False)

    gw.assert_not_enqueued(shop.fail)


# Running


@pytest.mark.feature("F305")
def test_drain_runs_due_jobs_and_the_jobs_that_they_add(gw: Harness, shop: Shop):
    shop.chain.enqueue(2)
    shop.send.using(priority=-1).enqueue("ada")
    shop.count.using(run_at=HOUR).enqueue(1)

    drained = gw.drain()

    assert [job.task_identifier for job in drained] == ["send", "chain", "chain", "chain"]
    assert shop.ran == [("send", "ada", None), 2, 1, 0]
    assert [job.task_identifier for job in gw.enqueued()] == ["count"]


def test_plain_tasks_run_in_the_thread_of_the_test_and_async_ones_in_a_loop(gw, shop):
    seen: dict[str, Any] = {}

    @shop.app.task
    def plain() -> None:
        seen["plain"] = threading.current_thread(), asyncio._get_running_loop()

    @shop.app.task(run_in="loop")
    def plain_on_loop() -> None:
        seen["on loop"] = threading.current_thread(), asyncio._get_running_loop()

    @shop.app.task
    async def waits() -> None:
        await asyncio.sleep(0)
        seen["async"] = asyncio.get_running_loop()

    for task in (plain, plain_on_loop, waits):
        task.enqueue()
    gw.drain()

    assert seen.pop("async")
    assert seen == dict.fromkeys(["plain", "on loop"], (threading.current_thread(), None))


def heavy() -> None:
    done_here.append(1)


done_here: list[int] = []


def test_a_process_task_runs_in_the_process_of_the_test(gw, shop):
    task = shop.app.task(run_in="process")(heavy)
    task.enqueue()

    gw.drain()

    assert done_here == [1]


def test_drain_records_the_first_error_and_raises_it(gw: Harness, shop: Shop):
    shop.fail.enqueue("first")
    shop.fail.enqueue("second")

    with pytest.raises(ValueError, match="first"):
        gw.drain()

    job = gw.assert_enqueued(shop.fail, what="first")
    assert (job.attempts, job.locked_by) == (1, None)
    assert "first" in (job.last_error or "")
    gw.assert_enqueued(shop.fail, what="second", options={"attempts": 0})


def test_drain_collects_errors_without_raise_errors(gw: Harness, shop: Shop):
    bad = shop.fail.enqueue("first")
    shop.count.enqueue(1)

    drained = gw.drain(raise_errors=False)

    assert [job.task_identifier for job in drained] == ["fail", "count"]
    [(job, error)] = drained.errors
    assert (job.id, str(error)) == (bad.id, "first")


@pytest.mark.parametrize(
    ("signal", "attempts", "delay"),
    [
        (ValueError(), 1, timedelta(seconds=2.718282)),
        (Retry(HOUR), 1, HOUR),
        (Snooze(2 * HOUR), 0, 2 * HOUR),
    ],
)
def test_retry_and_snooze_use_the_clock_of_the_test(
    gw: Harness, shop: Shop, signal: Exception, attempts: int, delay: timedelta
):
    @shop.app.task
    async def raises() -> None:
        raise signal

    gw.freeze(NEW_YEAR)
    raises.enqueue()
    drained = gw.drain(raise_errors=False)

    assert len(drained.errors) == attempts
    job = gw.assert_enqueued(raises)
    assert (job.attempts, job.run_at) == (attempts, NEW_YEAR + delay)
    gw.travel(delay)
    assert len(gw.drain(raise_errors=False)) == 1


def test_discard_is_an_error_of_a_drain(gw: Harness, shop: Shop):
    @shop.app.task
    async def drop() -> None:
        raise Discard("no such order")

    drop.enqueue()

    with pytest.raises(Discard, match="no such order"):
        gw.drain()
    gw.assert_not_enqueued(drop)


def test_failed_items_of_a_batch_stay_enqueued(gw: Harness, shop: Shop):
    shop.track.enqueue([1, -2, 3])

    with pytest.raises(PartialFailure):
        gw.drain()

    gw.assert_enqueued(shop.track, options={"payload": [-2]})


def test_include_delayed_runs_jobs_to_their_last_attempt(gw: Harness, shop: Shop):
    shop.fail.using(max_attempts=3).enqueue()
    shop.count.using(run_at=HOUR).enqueue(1)

    drained = gw.drain(include_delayed=True, raise_errors=False)

    assert sorted(job.attempts for job in drained) == [1, 1, 2, 3]
    assert shop.ran == [("count", 1)]
    gw.assert_not_enqueued()


def test_drain_raises_if_a_task_keeps_adding_itself(gw: Harness, shop: Shop):
    shop.chain.enqueue(1_000_000)

    with pytest.raises(RuntimeError, match="20 jobs ran and there are more"):
        gw.drain(at_most=20)

    assert gw.assert_enqueued(shop.chain).attempts == 0


def test_jobs_of_a_named_queue_run_in_order(gw: Harness, shop: Shop):
    for number in range(3):
        shop.count.using(queue_name="q").enqueue(number)

    gw.drain()

    assert shop.ran == [("count", number) for number in range(3)]


def test_drain_leaves_jobs_of_unknown_tasks(gw: Harness, shop: Shop):
    shop.app.add_job("of_node", {"a": 1})

    assert gw.drain() == []
    gw.assert_enqueued("of_node", a=1)


def test_the_lifespan_is_open_while_jobs_run_and_gives_deps(gw: Harness, shop: Shop):
    @shop.app.task
    async def look(ctx: JobContext) -> None:
        shop.done.append(ctx.deps)

    gw.drain()
    assert shop.done == []

    look.enqueue()
    look.enqueue()
    gw.drain()
    assert shop.done == ["begin", "deps", "deps", "end"]


def test_deps_of_a_test_replace_the_lifespan(gw: Harness, shop: Shop):
    @shop.app.task
    def look(ctx: SyncJobContext) -> None:
        shop.done.append(ctx.deps)

    gw.deps = "fake"
    look.enqueue()
    gw.drain()

    assert shop.done == ["fake"]


def test_drain_emits_the_events_and_runs_the_hooks_of_a_worker(gw: Harness, shop: Shop):
    heard: list[str] = []

    @shop.app.on(JobErrored)
    async def errored(event: JobErrored) -> None:
        await asyncio.sleep(0)
        heard.append("errored")

    @shop.app.on(JobFailed)
    def failed(event: JobFailed) -> None:
        heard.append("failed")

    @shop.app.on(JobSucceeded)
    def succeeded(event: JobSucceeded) -> None:
        heard.append("succeeded")

    @shop.app.around(RunningJob)
    @asynccontextmanager
    async def around(event: RunningJob) -> AsyncIterator[None]:
        heard.append("around")
        yield

    shop.count.enqueue(1)
    shop.fail.using(max_attempts=1).enqueue()
    gw.drain(raise_errors=False)

    assert sorted(heard) == ["around", "around", "errored", "failed", "succeeded"]


def test_a_payload_that_does_not_fit_raises(gw: Harness, shop: Shop):
    # Without the task, as another program adds it, so the payload is not checked.
    shop.app.enqueue(JobSpec("count", {"number": "many"}))

    with pytest.raises(ValueError, match="number"):
        gw.drain()


def test_drain_in_an_event_loop_raises_and_names_adrain(gw: Harness):
    async def test() -> None:
        gw.drain()

    with pytest.raises(RuntimeError, match="Await adrain"):
        asyncio.run(test())


# The contexts of tasks


def test_both_kinds_of_tasks_use_the_connection_of_the_test(gw: Harness, shop: Shop, sql: Sql):
    @shop.app.task
    def plain(ctx: SyncJobContext) -> None:
        with ctx.connection() as conn:
            conn.execute("create table seen (what text)")
            with conn.cursor() as cursor:
                cursor.execute("insert into seen values (%s)", ["plain"])
        shop.done.append(ctx.query("select what from seen"))

    @shop.app.task
    async def waits(ctx: JobContext) -> None:
        async with ctx.connection() as conn:
            async with conn.transaction(), conn.cursor() as cursor:
                await cursor.execute("insert into seen values (%s)", ["async"])
            cursor = await conn.execute("select what from seen")
            shop.done.append([row async for row in cursor])
            shop.done.append(await (await conn.execute("select 7")).fetchone())
        await ctx.add_job("count", {"number": 1})

    plain.enqueue()
    waits.enqueue()
    gw.drain()

    assert shop.ran == [
        [{"what": "plain"}],
        [("plain",), ("async",)],
        (7,),
        ("count", 1),
    ]
    assert sql.run("select to_regclass('seen')") == [(None,)]


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_ctx_transaction_completes_the_job(gw: Harness, shop: Shop, kind: str):
    def plain(ctx: SyncJobContext) -> None:
        with ctx.transaction() as conn:
            conn.execute("create table seen ()")

    async def waits(ctx: JobContext) -> None:
        async with ctx.transaction() as conn:
            await conn.execute("create table seen ()")

    task = shop.app.task(plain) if kind == "plain" else shop.app.task(waits)
    task.enqueue()
    gw.drain()

    gw.assert_not_enqueued()
    assert gw.context(shop.chain).query("select from seen") == []


def test_changes_before_an_error_stay(gw: Harness, shop: Shop):
    @shop.app.task
    def half(ctx: SyncJobContext) -> None:
        ctx.add_job("count", {"number": 1})
        raise ValueError

    half.enqueue()

    gw.drain(raise_errors=False)

    assert shop.ran == [("count", 1)]


def test_a_failed_statement_rolls_back_only_its_job(gw: Harness, shop: Shop):
    @shop.app.task
    def breaks(ctx: SyncJobContext) -> None:
        ctx.add_job("count", {"number": 1})
        ctx.query("select * from nowhere")

    shop.send.using(priority=1).enqueue("ada")
    breaks.enqueue()

    with pytest.raises(psycopg.errors.UndefinedTable):
        gw.drain()

    gw.assert_enqueued(breaks, options={"attempts": 1})
    gw.assert_enqueued(shop.send, to="ada")
    gw.assert_not_enqueued(shop.count)


def test_a_suppressed_statement_error_fails_only_its_job(gw, shop):
    @shop.app.task
    def suppresses(ctx: SyncJobContext) -> None:
        with suppress(psycopg.Error):
            ctx.query("select * from nowhere")

    shop.send.using(priority=1).enqueue("ada")
    suppresses.enqueue()

    with pytest.raises(RuntimeError, match="a statement of the task failed and the task continued"):
        gw.drain()

    gw.assert_enqueued(suppresses, options={"attempts": 1})
    assert [job.task_identifier for job in gw.drain()] == ["send"]


def test_a_completion_that_was_rolled_back_leaves_the_job_enqueued(gw: Harness, shop: Shop):
    @shop.app.task
    def breaks_late(ctx: SyncJobContext) -> None:
        with ctx.transaction():
            ctx.add_job("count", {"number": 1})
        ctx.query("select * from nowhere")

    breaks_late.enqueue()

    with pytest.raises(psycopg.errors.UndefinedTable):
        gw.drain()

    gw.assert_enqueued(breaks_late, options={"attempts": 1})
    assert len(gw.drain(include_delayed=True, raise_errors=False)) > 1


@pytest.mark.parametrize("method", ["commit", "rollback"])
def test_commit_and_rollback_of_a_task_are_ignored(gw, shop, sql, method):
    sql.run("select :schema.add_job('count', '{\"number\": 1}')")

    @shop.app.task
    def ends_transaction(ctx: SyncJobContext) -> None:
        with ctx.connection() as connection:
            getattr(connection, method)()
        ctx.add_job("send", {"to": "ada"})

    ends_transaction.enqueue()
    ends_transaction.fn(gw.context(ends_transaction))
    gw.drain()

    assert shop.ran == [("send", "ada", None)] * 2
    # Only the job that was there before the test.
    assert sql.run("select count(*) from :schema._private_jobs") == [(1,)]


def test_threads_end_with_the_test(shop: Shop):
    async def run_plain() -> None:
        with Harness(shop.app) as gw:
            await shop.count.aenqueue(1)
            await gw.adrain()

    before = threading.active_count()
    asyncio.run(run_plain())

    eventually(lambda: threading.active_count() <= before, "threads end")


# Inline


def test_inline_runs_a_job_before_the_adding_call_returns(gw: Harness, shop: Shop):
    with gw.inline():
        shop.send.enqueue("ada", on=date(2030, 1, 2))
        assert shop.ran == [("send", "ada", date(2030, 1, 2))]
        shop.count.enqueue(1)
        shop.app.add_jobs([shop.count.spec(2), shop.count.spec(3), JobSpec("of_node")])

    assert shop.ran[1:] == [("count", 1), ("count", 2), ("count", 3)]
    assert [job.task_identifier for job in gw.enqueued()] == ["of_node"]
    shop.count.enqueue(4)
    assert len(shop.ran) == 4


def test_inline_runs_jobs_that_a_job_adds_after_it(gw: Harness, shop: Shop):
    with gw.inline():
        shop.chain.enqueue(2)

    assert shop.ran == [2, 1, 0]
    gw.assert_not_enqueued()


def test_inline_raises_errors_where_the_job_is_added(gw: Harness, shop: Shop):
    with gw.inline(), pytest.raises(ValueError, match="boom"):
        shop.fail.enqueue()

    gw.assert_enqueued(shop.fail, options={"attempts": 1})


def test_inline_rejects_payloads_without_a_json_form(gw: Harness, shop: Shop):
    with gw.inline(), pytest.raises(JobSpecError):
        shop.app.add_job("count", {"number": object()})


def test_inline_runs_jobs_that_an_async_listener_adds(gw: Harness, shop: Shop):
    @shop.app.on(JobSucceeded)
    async def add_another(event: JobSucceeded) -> None:
        if event.job.task_identifier == "send":
            await shop.app.aadd_job("count", {"number": 7})

    with gw.inline():
        shop.send.enqueue("ada")

    assert ("count", 7) in shop.ran


def test_inline_leaves_delayed_jobs(gw: Harness, shop: Shop):
    with gw.inline():
        shop.send.using(run_at=HOUR).enqueue("ada")

    assert shop.ran == []
    gw.travel(HOUR)
    gw.drain()
    assert shop.ran == [("send", "ada", None)]


def test_inline_during_a_drain_runs_jobs_once(gw: Harness, shop: Shop):
    shop.chain.enqueue(2)

    with gw.inline():
        gw.drain()

    assert shop.ran == [2, 1, 0]


# Time


def test_the_clock_of_the_test_decides_when_a_job_is_due(gw: Harness, shop: Shop):
    shop.count.using(run_at=HOUR).enqueue(1)

    assert gw.drain() == []
    gw.travel(HOUR - timedelta(minutes=1))
    assert gw.drain() == []
    gw.travel(timedelta(minutes=1))
    assert len(gw.drain()) == 1


def test_jobs_get_the_frozen_time(gw: Harness, shop: Shop):
    gw.freeze(NEW_YEAR)
    shop.count.enqueue(1)
    shop.count.using(run_at=HOUR).enqueue(2)

    assert [job.run_at for job in gw.enqueued()] == [NEW_YEAR, NEW_YEAR + HOUR]
    gw.assert_enqueued(shop.count.using(run_at=HOUR), number=2)
    gw.assert_not_enqueued(shop.count.using(run_at=HOUR + timedelta(microseconds=1)))
    assert len(gw.drain()) == 1
    gw.travel(NEW_YEAR + HOUR)
    assert gw.now() == NEW_YEAR + HOUR
    assert len(gw.drain()) == 1


def test_time_can_be_frozen_in_the_past(gw: Harness, shop: Shop):
    gw.freeze(datetime(2000, 1, 1, tzinfo=UTC))
    shop.count.enqueue(1)

    assert len(gw.drain()) == 1


def test_the_clock_is_restored_after_a_block(gw: Harness):
    with gw.freeze(NEW_YEAR):
        with gw.travel(HOUR):
            assert gw.now() == NEW_YEAR + HOUR
        assert gw.now() == NEW_YEAR

    assert abs(gw.now() - datetime.now(UTC)) < timedelta(minutes=1)


@pytest.mark.parametrize("when", [7, datetime(2030, 1, 1), "2030-01-01"])
def test_an_invalid_time_raises(gw: Harness, when: Any):
    with pytest.raises(ConfigurationError):
        gw.freeze(when)
    with pytest.raises(ConfigurationError):
        gw.travel(when)


# A context for a unit test


@pytest.mark.feature("F130")
async def test_a_test_can_call_a_task_with_a_context(gw: Harness, shop: Shop):
    @shop.app.task
    async def charge(ctx: JobContext[Any], order: int) -> Any:
        await ctx.add_job("count", {"number": order})
        async with ctx.transaction() as conn:
            await conn.execute("create table charged ()")
        return ctx.deps, ctx.job.attempts, ctx.job.payload, ctx.queue_name, ctx.cancelled

    ctx = gw.context(
        charge.using(queue_name="q"), {"order": 7}, deps="fake", attempts=3, cancelled=True
    )
    found = await charge.fn(ctx, order=7)

    assert found == ("fake", 3, {"order": 7}, "q", True)
    gw.assert_enqueued(shop.count, number=7)
    assert await ctx.query("select to_regclass('charged')::text as it") == [{"it": "charged"}]


@pytest.mark.feature("F130")
def test_a_plain_task_gets_a_plain_context(gw: Harness, shop: Shop):
    shop.chain.fn(gw.context(shop.chain), 2)

    gw.assert_enqueued(shop.chain, left=1)
    assert gw.context(shop.chain).query("select 1 as it") == [{"it": 1}]


def test_a_context_can_be_built_for_a_job(gw: Harness, shop: Shop):
    job = shop.chain.using(queue_name="q").enqueue(3)

    ctx = gw.context(job)

    assert (ctx.job.payload, ctx.queue_name) == ({"left": 3}, "q")


@pytest.mark.feature("F130")
def test_a_context_connects_only_when_it_is_used(monkeypatch):
    monkeypatch.delenv("DATABASE_URL", raising=False)
    app = App()

    @app.task
    def greet(ctx: SyncJobContext, name: str) -> str:
        ctx.logger.info("hello %s", name)
        return f"{ctx.job.task_identifier} {name} {ctx.wait_cancelled(timedelta(0))}"

    with Harness(app) as gw:
        assert greet.fn(gw.context(greet), "ada") == "greet ada False"


# The connection


def test_the_harness_leaves_no_jobs_behind(shop: Shop, sql: Sql):
    with Harness(shop.app) as gw:
        shop.count.enqueue(1)
        gw.drain()
        shop.count.enqueue(2)
        connection = gw._session.runtime.connection.sync_database.get_driver_connection()

    assert connection.closed
    assert sql.run("select count(*) from :schema._private_jobs") == [(0,)]


def test_leftover_jobs_are_neither_listed_nor_run(shop: Shop, sql: Sql):
    sql.run("select :schema.add_job('count', '{\"number\": 1}', queue_name => 'q')")
    sql.run(
        "update :schema._private_job_queues set locked_at = now(), locked_by = 'another-worker'"
    )

    with Harness(shop.app) as gw:
        gw.assert_not_enqueued()
        assert gw.drain() == []
        shop.count.using(queue_name="q").enqueue(2)
        assert len(gw.drain()) == 1

    assert sql.run("select count(*) from :schema._private_jobs") == [(1,)]


def test_leftover_windows_are_closed_for_the_test(shop: Shop, sql: Sql):
    sql.run("select :ext_schema.add_unique_job('count', '{}', 'count', '1 day')")

    with Harness(shop.app):
        assert not shop.count.using(unique="count", unique_for=HOUR).enqueue(2).is_duplicate

    assert sql.run("select count(*) from :ext_schema.unique_keys") == [(1,)]


def test_clear_deletes_jobs_and_windows(shop: Shop, sql: Sql):
    with Harness(shop.app) as gw:
        count = shop.count.using(unique="count", unique_for=HOUR)
        count.enqueue(1)
        gw.clear()
        assert not count.enqueue(2).is_duplicate


def test_a_database_with_many_jobs_is_rejected(shop: Shop, sql: Sql):
    sql.run("select :schema.add_job('count') from generate_series(1, 1001)")

    with Harness(shop.app) as gw:
        for call in (gw.enqueued, gw.drain, lambda: shop.count.enqueue(1)):
            with pytest.raises(ConfigurationError, match="database for tests"):
                call()


def test_a_missing_schema_is_installed_for_the_test(empty_database: TestDatabase):
    shop = Shop(empty_database.dsn, empty_database.schema)

    with Harness(shop.app):
        shop.count.enqueue(1)

    with psycopg.connect(empty_database.dsn) as conn:
        found = conn.execute(
            "select count(*) from pg_namespace where nspname = %s", [shop.app.schema]
        )
        assert found.fetchone() == (0,)


def test_the_app_gets_its_own_clients_back(shop: Shop, sql: Sql):
    with Harness(shop.app):
        shop.count.enqueue(1)
    shop.count.enqueue(2)

    assert sql.run("select payload::text from :schema._private_jobs") == [('{"number":2}',)]
    assert isinstance(shop.app._get_sync_client(), sync.Client)
    shop.app._get_sync_client().close()


def test_dsn_names_another_database(shop: Shop, database: TestDatabase):
    shop.app.dsn = "postgres://user@127.0.0.1:1/nothing"

    with Harness(shop.app, dsn=database.dsn) as gw:
        shop.count.enqueue(1)
        assert len(gw.drain()) == 1


def test_the_harness_accepts_only_an_app():
    with pytest.raises(ConfigurationError, match="expected an App"):
        Harness({"task": print})  # type: ignore[arg-type]


def test_other_threads_add_jobs_on_the_same_connection(gw: Harness, shop: Shop):
    thread = threading.Thread(target=shop.count.enqueue, args=(1,))
    thread.start()
    thread.join()

    asyncio.run(shop.count.aenqueue(2))

    assert [job.payload["number"] for job in gw.enqueued(shop.count)] == [1, 2]


# In a loop, on a blocking connection


async def test_every_method_has_an_async_form(gw: Harness, shop: Shop):
    await shop.chain.aenqueue(1)
    await shop.send.aenqueue("ada")

    await gw.aassert_enqueued(shop.send, to="ada")
    await gw.aassert_not_enqueued(shop.count)
    with pytest.raises(AssertionError):
        await gw.aassert_not_enqueued(shop.send)
    with pytest.raises(AssertionError):
        await gw.aassert_enqueued(shop.count)
    assert len(await gw.aenqueued()) == 2
    assert len(await gw.adrain()) == 3
    with gw.inline():
        await shop.count.aenqueue(7)
        await shop.app.aadd_jobs([shop.count.spec(8)])
    assert shop.ran == [1, ("send", "ada", None), 0, ("count", 7), ("count", 8)]

    await shop.fail.aenqueue()
    with pytest.raises(ValueError, match="boom"):
        await gw.adrain()
    assert len((await gw.adrain(include_delayed=True, raise_errors=False)).errors) == 24


async def test_blocking_calls_work_in_an_async_test_on_a_blocking_connection(gw, shop):
    shop.count.enqueue(1)

    gw.assert_enqueued(shop.count, number=1)
    with gw.inline():
        shop.send.enqueue("ada")
    assert shop.ran == [("send", "ada", None)]
