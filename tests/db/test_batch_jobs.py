"""Batches on a real database: only failed items are retried."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from graphile_worker import (
    App,
    Backoff,
    Hooks,
    JobContext,
    JobSpec,
    PartialFailure,
    SyncJobContext,
    WorkerOptions,
)
from graphile_worker.events import JobErrored, JobFailed
from graphile_worker.runner import run_once

# Logic of the worker, which test_polling.py runs on the oldest pair too.
pytestmark = pytest.mark.single_version

ROW = "select payload, attempts, last_error, locked_by from :schema._private_jobs"


@pytest.fixture
def run(database, app):
    async def run(tasks: Any = app, hooks: Hooks | None = None) -> int:
        options = WorkerOptions(schema=database.schema)
        return await run_once(database.dsn, tasks, options=options, hooks=hooks)

    return run


def is_odd(number: int) -> BaseException | None:
    return ValueError(f"{number} is odd") if number % 2 else None


def answering(app: App, form: str) -> Any:
    """The same batch task, written in several ways."""

    async def by_list(items: list[int]) -> list[BaseException | None]:
        return [is_odd(each) for each in items]

    async def by_raising(ctx: JobContext, items: list[int]) -> None:
        raise PartialFailure({at: e for at, n in enumerate(items) if (e := is_odd(n))})

    def in_thread(items: list[int]) -> list[BaseException | None]:
        return [is_odd(each) for each in items]

    def raising_in_thread(ctx: SyncJobContext, items: list[int]) -> None:
        raise PartialFailure({at: e for at, n in enumerate(items) if (e := is_odd(n))})

    return app.batch_task(name="numbers")(locals()[form])


each_form = pytest.mark.parametrize(
    "form", ["by_list", "by_raising", "in_thread", "raising_in_thread"]
)


@pytest.mark.feature("F61", "F120")
@each_form
async def test_only_failed_items_are_retried(app, run, sql, form):
    await answering(app, form).aenqueue([1, 2, 3, 4])

    await run()

    assert sql.run(ROW) == [([1, 3], 1, "Batch failures:\n1 is odd\n3 is odd", None)]


@each_form
async def test_a_batch_without_failures_is_completed(app, run, sql, form):
    await answering(app, form).aenqueue([2, 4])

    await run()

    assert sql.run(ROW) == []


@each_form
async def test_a_batch_that_failed_completely_stays_unchanged(app, run, sql, form):
    await answering(app, form).aenqueue([1, 3])

    await run()

    assert sql.run(ROW) == [([1, 3], 1, "Batch failures:\n1 is odd\n3 is odd", None)]


async def test_another_error_of_a_batch_fails_all_items(app, run, sql):
    @app.batch_task
    async def broken(items: list[int]) -> None:
        raise ValueError("nothing works")

    await broken.aenqueue([1, 2])
    await run()

    [(payload, attempts, error, _)] = sql.run(ROW)
    assert (payload, attempts) == ([1, 2], 1)
    assert error.startswith("ValueError: nothing works\n")


async def test_an_unreadable_item_fails_alone(app, run, sql):
    seen = []

    @app.batch_task
    async def numbers(items: list[int]) -> None:
        seen.extend(items)

    # As a program without this app would add it.
    await app.aenqueue(JobSpec("numbers", [1, "two", 3]))
    await run()

    assert seen == [1, 3]
    error = "Batch failures:\n[1]: expected int, got str"
    assert sql.run(ROW) == [(["two"], 1, error, None)]


async def test_remaining_items_share_the_attempts_of_the_job(app, run, sql):
    seen = []

    @app.batch_task(retry=Backoff(base=timedelta(0)), max_attempts=3)
    async def shrinking(items: list[int]) -> list[BaseException | None]:
        seen.append(list(items))
        return [None if each == items[0] else ValueError("later") for each in items]

    await shrinking.aenqueue([1, 2, 3, 4])
    await run()

    assert seen == [[1, 2, 3, 4], [2, 3, 4], [3, 4]]
    assert sql.run(ROW) == [([4], 3, "Batch failures:\nlater", None)]


async def test_events_carry_the_errors_of_the_items(app, run):
    hooks = Hooks()
    heard: list[JobErrored | JobFailed] = []
    hooks.on(JobErrored)(heard.append)
    hooks.on(JobFailed)(heard.append)
    await answering(app, "by_list").using(max_attempts=1).aenqueue([1, 2, 3])

    await run(hooks=hooks)

    errored, failed = heard
    for event in (errored, failed):
        assert isinstance(event.error, PartialFailure)
        assert [str(each) for each in event.batch_job_errors] == ["1 is odd", "3 is odd"]


@pytest.mark.feature("F120")
async def test_a_task_of_a_mapping_may_return_awaitable_outcomes(app, run, sql):
    async def later(number: int) -> None:
        await asyncio.sleep(0)
        if (error := is_odd(number)) is not None:
            raise error

    async def numbers(payload: list[int]) -> list[Any]:
        return [later(each) for each in payload]

    await app.aadd_job("numbers", [1, 2, 3])
    await run({"numbers": numbers})

    assert sql.run(ROW) == [([1, 3], 1, "Batch failures:\n1 is odd\n3 is odd", None)]


async def test_a_batch_cannot_complete_its_job_in_a_transaction(app, run, sql):
    @app.batch_task
    async def numbers(ctx: JobContext, items: list[int]) -> None:
        async with ctx.transaction():
            pass

    await numbers.aenqueue([1, 2])
    await run()

    [(payload, _, error, _)] = sql.run(ROW)
    assert payload == [1, 2]
    assert "Use ctx.connection() in a batch task" in error


async def test_a_task_of_a_mapping_may_complete_a_job_with_an_array(app, run, sql):
    async def numbers(payload: list[int], ctx: JobContext) -> None:
        async with ctx.transaction():
            pass

    await app.aadd_job("numbers", [1, 2])
    await run({"numbers": numbers})

    assert sql.run(ROW) == []


async def test_changing_the_items_in_a_task_does_not_change_the_retried_items(app, run, sql):
    @app.batch_task
    async def numbers(items: list[dict[str, int]]) -> list[BaseException | None]:
        outcomes = [is_odd(each["n"]) for each in items]
        while items:
            items.pop()["n"] = 99
        return outcomes

    await numbers.aenqueue([{"n": 1}, {"n": 2}])
    await run()

    assert [payload for payload, *_ in sql.run(ROW)] == [[{"n": 1}]]


@pytest.mark.parametrize("errors", [{2: ValueError()}, {-1: ValueError()}])
async def test_a_failure_of_a_missing_item_fails_all_items(app, run, sql, errors):
    @app.batch_task
    async def numbers(items: list[int]) -> None:
        raise PartialFailure(errors)

    await numbers.aenqueue([1, 2])
    await run()

    [(payload, _, error, _)] = sql.run(ROW)
    assert (payload, "no item" in error) == ([1, 2], True)


@pytest.mark.parametrize("by", ["task", "mapping"])
async def test_a_partial_failure_of_an_ordinary_task_is_a_failure(app, run, sql, by):
    async def whole(payload: dict[str, int], /) -> None:
        raise PartialFailure({0: ValueError()})

    app.task(name="whole")(whole)
    await app.aadd_job("whole", {"a": 1})
    await run(app if by == "task" else {"whole": whole})

    [(_, attempts, error, _)] = sql.run(ROW)
    assert (attempts, "PartialFailure is for batches" in error) == (1, True)


async def test_unawaited_outcomes_fail_all_items(app, run, sql):
    async def handle(number: int) -> None: ...

    def numbers(payload: list[int]) -> list[Any]:
        return [handle(each) for each in payload]

    await app.aadd_job("numbers", [1, 2])
    await run({"numbers": numbers})

    [(payload, _, error, _)] = sql.run(ROW)
    assert (payload, "Declare the task with async def." in error) == ([1, 2], True)


async def test_a_system_exit_or_unprintable_outcome_fails_its_item_alone(app, run, sql):
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    async def leave(number: int) -> None:
        if number == 1:
            raise SystemExit(3)
        if number == 2:
            raise Mute

    async def numbers(payload: list[int]) -> tuple[Any, ...]:
        return tuple(leave(each) for each in payload)

    await app.aadd_job("numbers", [1, 2, 3])
    await run({"numbers": numbers})

    assert sql.run(ROW) == [([1, 2], 1, "Batch failures:\n3\nMute", None)]


async def test_a_retry_policy_fails_a_batch_permanently_only_for_all_items(app, run, sql):
    @app.batch_task(retry=Backoff(base=timedelta(0), retry_on=(ConnectionError,)))
    async def numbers(ctx: JobContext, items: list[int]) -> list[BaseException | None]:
        if ctx.job.attempts == 1:
            return [ConnectionError(), ValueError("no")]
        return [None if each == 1 else ValueError("no") for each in items]

    await numbers.aenqueue([1, 2])
    await run()

    [(payload, attempts, error, _)] = sql.run(ROW)
    assert (payload, error) == ([2], "Batch failures:\nno")
    assert attempts == 25


@pytest.mark.feature("F61")
async def test_accumulated_items_wait_in_one_job(app, run, sql):
    seen = []

    @app.batch_task
    async def track(items: list[int]) -> None:
        seen.append(items)

    for number in range(5):
        await track.aaccumulate(number, key="k", delay=timedelta(hours=1))
    assert sql.value("select count(*) from :schema._private_jobs") == 1
    assert sql.value("select run_at > now() + '50 min' from :schema._private_jobs")

    sql.run("update :schema._private_jobs set run_at = now()")
    await run()

    assert seen == [[0, 1, 2, 3, 4]]


@pytest.mark.feature("F81")
@pytest.mark.parametrize("window", ["fixed", "rolling"])
async def test_accumulate_counts_from_the_first_item_and_replace_from_the_last(app, sql, window):
    @app.batch_task
    async def track(items: list[int]) -> None: ...

    hour = timedelta(hours=1)
    jobs = []
    for number in (1, 2):
        if window == "fixed":
            jobs.append(await track.aaccumulate(number, key="k", delay=hour))
        else:
            jobs.append(await track.using(job_key="k", run_at=hour).aenqueue([number]))

    first, second = jobs
    assert (first.id, second.payload) == (second.id, [1, 2])
    assert (second.run_at == first.run_at) == (window == "fixed")
