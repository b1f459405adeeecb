"""A worker leaves jobs alone that have a flag which is forbidden to it at that moment."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from graphile_worker import ConfigurationError, JobSpec, WorkerOptions, run_once
from graphile_worker.events import GetJobEmpty, GetJobErrored, JobSucceeded
from tests.support.sql import Sql
from tests.support.tasks import nothing

# Logic of the worker, which test_polling.py runs on the oldest pair too.
pytestmark = pytest.mark.single_version

SOON = timedelta(milliseconds=20)


@pytest.fixture
def run(database):
    """Run what is ready; the payloads of the jobs that were run."""

    async def run(**more: Any) -> list[object]:
        seen: list[object] = []
        options = WorkerOptions(schema=database.schema)
        await run_once(database.dsn, {"see": seen.append}, options=options, **more)
        return seen

    return run


def add(sql: Sql, payload: str, *flags: str) -> None:
    sql.run("select :schema.add_job('see', to_json($1::text), flags := $2)", payload, list(flags))


def async_answer(flags: Any) -> Any:
    async def answer() -> Any:
        await asyncio.sleep(0)
        return flags

    return answer


# What may be given


@pytest.mark.feature("F234", "F236")
@pytest.mark.parametrize(
    "forbidden",
    [
        ["slow", "dark"],
        ("slow", "dark"),
        {"slow", "dark"},
        frozenset({"slow", "dark"}),
        {"slow": 1, "dark": 2}.keys(),
        lambda: ["slow", "dark"],
        lambda: {"slow", "dark"},
        async_answer(["slow", "dark"]),
        async_answer({"slow", "dark"}),
    ],
    ids=["list", "tuple", "set", "frozen set", "keys", "function", "set of a function"]
    + ["async function", "set of an async function"],
)
async def test_a_job_with_a_forbidden_flag_waits(run, sql, forbidden):
    add(sql, "plain")
    add(sql, "allowed", "light")
    add(sql, "forbidden", "slow")
    add(sql, "one of its flags", "light", "dark")

    seen = await run(forbidden_flags=forbidden)

    assert seen == ["plain", "allowed"]
    assert sql.run("select attempts, locked_by from :schema.jobs") == [(0, None), (0, None)]


@pytest.mark.feature("F236")
@pytest.mark.parametrize(
    "forbidden",
    [None, [], set(), lambda: None, list, async_answer(None), async_answer([])],
    ids=["none", "empty list", "empty set", "function: none", "function: empty"]
    + ["async function: none", "async function: empty"],
)
async def test_nothing_is_forbidden_by_nothing(run, sql, forbidden):
    add(sql, "flagged", "slow")

    assert await run(forbidden_flags=forbidden) == ["flagged"]


@pytest.mark.parametrize("flag", ['"', "'", "{}", "$1", "%s", "ü", " ", "a,b", "null", "\\"])
async def test_a_flag_may_be_any_text(run, sql, flag):
    add(sql, "other", "other")
    add(sql, "flagged", flag)

    assert await run(forbidden_flags=[flag]) == ["other"]


@pytest.mark.parametrize("wrong", ["slow", 7, lambda: "slow", async_answer(7)])
async def test_forbidden_flags_that_are_not_strings_are_rejected(run, wrong):
    with pytest.raises(ConfigurationError, match="forbidden_flags"):
        await run(forbidden_flags=wrong)


async def test_another_worker_may_run_what_this_one_may_not(start, recorder):
    runner = await start({"see": nothing}, forbidden_flags=["slow"])
    await runner.add_job("see", flags=["slow"])
    await recorder.wait_for(GetJobEmpty)
    pool = recorder.events[0]

    await start({"see": nothing})

    [done] = await recorder.wait_for(JobSucceeded)
    assert done.pool_id != getattr(pool, "pool_id", None)


@pytest.mark.feature("F235")
async def test_a_keyed_add_may_take_the_flag_away(start, recorder):
    runner = await start({"see": nothing}, forbidden_flags=["slow"])
    job = await runner.add_job("see", flags=["slow"], job_key="k")
    await recorder.wait_for(GetJobEmpty)

    await runner.add_job("see", job_key="k")

    [done] = await recorder.wait_for(JobSucceeded)
    assert done.job.id == job.id


# When it is asked


@pytest.mark.feature("F236")
@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_function_is_asked_at_every_fetch(start, recorder, kind):
    forbidden = {"slow"}
    asked = 0

    def flags() -> set[str]:
        nonlocal asked
        asked += 1
        return forbidden

    async def async_flags() -> set[str]:
        return flags()

    chosen = flags if kind == "plain" else async_flags
    runner = await start({"see": nothing}, forbidden_flags=chosen, poll_interval=SOON)
    await runner.add_job("see", flags=["slow"])
    await recorder.wait_for(GetJobEmpty, count=3)
    assert asked >= 3
    assert not recorder.events_of(JobSucceeded)

    forbidden.clear()

    await recorder.wait_for(JobSucceeded)


async def test_jobs_that_run_at_once_are_asked_about_in_one_question(start, recorder):
    asked = 0
    together = asyncio.Barrier(4)

    def flags() -> None:
        nonlocal asked
        asked += 1

    async def meet(payload: object) -> None:
        await together.wait()

    runner = await start({"meet": meet}, concurrency=4, forbidden_flags=flags, listen=False)
    await recorder.wait_for(GetJobEmpty, count=4)

    assert asked == 1
    await runner.stop()


# When it fails


@pytest.mark.feature("F175", "F236")
@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_an_error_in_the_function_does_not_end_the_worker(start, recorder, kind):
    errors = [OSError("no answer"), OSError("no answer")]

    def flags() -> None:
        if errors:
            raise errors.pop()

    async def async_flags() -> None:
        flags()

    chosen = flags if kind == "plain" else async_flags
    runner = await start({"see": nothing}, forbidden_flags=chosen)
    await runner.add_jobs([JobSpec("see"), JobSpec("see")])

    await recorder.wait_for(JobSucceeded, count=2)
    failed = recorder.events_of(GetJobErrored)
    assert [str(event.error) for event in failed] == ["no answer", "no answer"]
    assert runner.is_ready


async def test_a_function_that_gives_nonsense_does_not_end_the_worker(start, recorder):
    answers: list[Any] = ["slow", 7]

    runner = await start(
        {"see": nothing}, forbidden_flags=lambda: answers.pop() if answers else None
    )
    await runner.add_job("see")

    await recorder.wait_for(JobSucceeded)
    assert all(
        isinstance(each.error, ConfigurationError) for each in recorder.events_of(GetJobErrored)
    )


async def test_a_function_that_was_cancelled_does_not_end_the_worker(start, recorder):
    errors = [asyncio.CancelledError()]

    async def flags() -> None:
        # As when a request that it waits for is cancelled by its own library.
        if errors:
            raise errors.pop()

    runner = await start({"see": nothing}, forbidden_flags=flags)
    await runner.add_job("see")

    await recorder.wait_for(JobSucceeded)


async def test_a_worker_that_waits_for_its_flags_can_be_stopped(start):
    asked, answer = asyncio.Event(), asyncio.Event()

    async def flags() -> None:
        asked.set()
        await answer.wait()

    runner = await start({"see": nothing}, forbidden_flags=flags)
    await asked.wait()

    try:
        await asyncio.wait_for(runner.kill(), 15)
    finally:
        answer.set()
