"""Tasks in processes of their own: whatever one does there, its own job fails and no other."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from graphile_worker import Job, TaskProcessOptions, TaskRouter, WorkerOptions
from graphile_worker._support.logs import Logger
from graphile_worker.errors import ConfigurationError, TaskProcessDied, TaskProcessError
from graphile_worker.events import JobErrored, JobFinished, JobInterrupted, RunningJob
from graphile_worker.runner import Runner, run_once
from tests.support import process_tasks, wrapped_tasks
from tests.support.processes import is_process_alive as lives
from tests.support.recorder import Recorder, wait_until
from tests.support.sql import Sql

ALL = process_tasks.tasks

# Heavy: the nightly tier runs it on the other versions.
pytestmark = [pytest.mark.single_version, pytest.mark.timeout(90)]


@pytest.fixture
def said(tmp_path) -> Path:
    path: Path = tmp_path / "said"
    return path


@pytest.fixture
def client(async_client):
    return async_client


@pytest.fixture
def worker(database, recorder):
    """Start a worker; nothing that it started may be left after it."""

    @asynccontextmanager
    async def worker(**given: Any) -> AsyncIterator[Runner]:
        logger = given.pop("logger", None)
        options = WorkerOptions(schema=database.schema, **given)
        runner = Runner(database.dsn, ALL, options=options, hooks=recorder.hooks, logger=logger)
        async with runner:
            yield runner
        assert list(descendants(os.getpid(), "worker.child")) == []

    return worker


def descendants(of: int, word: str) -> Iterator[int]:
    """Processes of that parent whose command has the word in it."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_text()
        except OSError:
            continue
        if parent == of and word in command:
            yield int(entry.name)


def lines(said: Path) -> list[list[str]]:
    return [line.split() for line in said.read_text().splitlines()] if said.exists() else []


async def finished(recorder: Recorder, job: Job) -> JobFinished:
    return (await recorder.wait_for(JobFinished, job_id=job.id))[0]


class Row(NamedTuple):
    attempts: int
    last_error: str
    locked_by: str | None
    payload: Any
    minutes: int


def row(sql: Sql, job: Job) -> Row:
    (found,) = sql.run(
        "select attempts, last_error, locked_by, payload, "
        "round(extract(epoch from run_at - now()) / 60)::int "
        "from :schema._private_jobs where id = $1",
        job.id,
    )
    return Row(*found)


@pytest.mark.feature("F106", "F304")
async def test_a_task_runs_in_a_spawned_process_that_is_kept_for_the_next_job(
    client, worker, recorder, said
):
    async with worker():
        for _ in range(3):
            await finished(recorder, await client.add_job("where", {"path": str(said)}))

    (first, *others) = lines(said)
    assert int(first[0]) != os.getpid()
    assert first[1:] == [str(os.getpid()), "1", "False"], "started by us, not a copy of us"
    assert [each[0] for each in others] == [first[0]] * 2
    assert [each[2] for each in others] == ["2", "3"]


async def test_as_many_processes_run_as_jobs_at_once(client, worker, recorder, said):
    jobs = [await client.add_job("waits_for_ever", {"path": str(said)}) for _ in range(3)]

    async with worker(concurrency=3, shutdown_timeout=timedelta(0)):
        await wait_until(lambda: len(lines(said)) == 3)

    assert len({each[0] for each in lines(said)}) == 3
    assert len(jobs) == 3


async def test_async_functions_and_whole_payloads_travel(client, worker, recorder, said):
    async with worker():
        for count, name in enumerate(("awaits", "whole"), 1):
            job = await client.add_job(name, {"path": str(said), "more": [1, None, "é"]})
            assert (await finished(recorder, job)).error is None, name
            assert len(lines(said)) == count, name


async def test_a_process_is_replaced_after_max_jobs(client, worker, recorder, said):
    async with worker(task_processes=TaskProcessOptions(max_jobs=2)):
        for _ in range(5):
            await finished(recorder, await client.add_job("where", {"path": str(said)}))

    pids = [each[0] for each in lines(said)]
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]


async def test_a_process_that_holds_too_much_after_a_job_is_replaced(
    client, worker, recorder, said
):
    async with worker(task_processes=TaskProcessOptions(max_memory=200)):
        for megabytes in (1, 300, 1, 1):
            payload = {"path": str(said), "megabytes": megabytes}
            job = await client.add_job("keeps_memory", payload)
            assert (await finished(recorder, job)).error is None

    pids = [each[0] for each in lines(said)]
    assert pids[0] == pids[1] != pids[2] == pids[3]


async def test_the_error_of_a_task_has_its_traceback(client, worker, recorder, sql):
    async with worker():
        job = await client.add_job("raises")
        error = (await finished(recorder, job)).error

    assert isinstance(error, TaskProcessError)
    assert (error.kind, str(error)) == ("LookupError", "nothing there")
    kept = row(sql, job).last_error
    assert kept.startswith("LookupError: nothing there\n\nTraceback (most recent call last)")
    assert "process_tasks.py" in kept
    assert 'raise LookupError("nothing there")' in kept


async def test_a_retry_policy_is_asked_about_the_error_itself(client, worker, recorder, sql):
    async with worker():
        jobs = [await client.add_job("by_policy", {"key": key}) for key in (True, False)]
        for job in jobs:
            await finished(recorder, job)

    found = [(row(sql, job).attempts, row(sql, job).minutes) for job in jobs]
    assert found == [(1, 60), (25, 0)]


async def test_a_backoff_gives_up_by_the_class_of_the_error(client, worker, recorder, sql):
    async with worker():
        job = await client.add_job("gives_up")
        await finished(recorder, job)

    assert row(sql, job).attempts == 25


async def test_outcome_exceptions_work_in_a_process(client, worker, sql):
    outcomes = [
        ("retry", 1, 120, "Retry: not yet"),
        ("snooze", 0, 180, None),
        ("discard", 25, 0, "Discard: no use"),
        ("subclass", 25, 0, "Discard: away"),
        ("error", 25, 0, "Discard: no such row"),
        # An invalid one fails only its job, which is retried.
        ("blank", 1, 0, "AttributeError: 'Blank' object has no attribute 'delay'"),
    ]

    async with worker():
        for what, attempts, minutes, reason in outcomes:
            job = await client.add_job("says", {"what": what})
            await wait_until(partial(has_outcome, sql, job, attempts, minutes))
            assert reason is None or row(sql, job).last_error.startswith(reason)


def has_outcome(sql: Sql, job: Job, attempts: int, minutes: int) -> bool:
    found = row(sql, job)
    is_released = found.locked_by is None
    return is_released and found.minutes >= minutes and found.attempts == attempts


async def test_of_a_batch_only_what_failed_is_left(client, worker, recorder, sql):
    async with worker():
        jobs = [await client.add_job(name, [1, 2, 3, 4]) for name in ("numbers", "some_numbers")]
        for job in jobs:
            await finished(recorder, job)

    assert [(row(sql, job).payload, row(sql, job).last_error) for job in jobs] == [
        ([1, 3], "Batch failures:\n1 is odd\n3 is odd"),
        ([1], "Batch failures:\nthe first"),
    ]


async def test_what_it_prints_is_logged_with_the_job(client, worker, recorder):
    heard: list[tuple[Any, str]] = []
    logger = Logger(lambda scope: lambda level, text, meta: heard.append((scope, text)))

    async with worker(logger=logger):
        job = await client.add_job("speaks", {"text": "a\x1b[31mb"})
        await finished(recorder, job)
        await wait_until(lambda: sum("x1b" in text for _, text in heard) == 2)

    scopes = [scope for scope, text in heard if text == "a\\x1b[31mb"]
    assert [scope["job_id"] for scope in scopes] == [job.id] * 2


# What cannot be waited for

BAD = [
    ("loops_for_ever", "TimeoutError"),
    ("eats_memory", "MemoryError"),
    ("forks_and_waits", "TimeoutError"),
    ("aborts", "SIGABRT"),
    ("exits", "exit code 3"),
    ("closes_everything", "the process of the task ended"),
    ("asks_to_end_the_program", "SystemExit: enough"),
]


def payload_of(name: str, said: Path) -> Any:
    return {"path": str(said)} if name in ("loops_for_ever", "forks_and_waits") else {}


@pytest.mark.timeout(180)
async def test_a_task_that_misbehaves_fails_its_own_job_and_the_pool_goes_on(
    client, worker, recorder, sql, said
):
    other = said.with_suffix(".other")

    async with worker(concurrency=2, task_processes=TaskProcessOptions(memory_limit=400)):
        for count, (name, error) in enumerate(BAD, 1):
            bad = await client.add_job(name, payload_of(name, said), max_attempts=1)
            good = [await client.add_job("where", {"path": str(other)}) for _ in range(3)]
            assert (await finished(recorder, bad)).error is not None, name
            await asyncio.gather(*(finished(recorder, job) for job in good))
            await finished(recorder, await client.add_job("where", {"path": str(other)}))
            # Not at the end of the worker, but of the job.
            await wait_until(lambda: not any(lives(int(pid)) for (pid,) in lines(said)))
            assert error in row(sql, bad).last_error, name
            assert len(lines(other)) == 4 * count, name


async def test_all_of_them_at_once_beside_good_jobs(client, worker, recorder, sql, said):
    other = said.with_suffix(".other")

    async with worker(concurrency=4, task_processes=TaskProcessOptions(memory_limit=400)):
        bad = [
            await client.add_job(name, payload_of(name, said), max_attempts=1) for name, _ in BAD
        ]
        good = [await client.add_job("where", {"path": str(other)}) for _ in range(20)]
        await asyncio.gather(*(finished(recorder, job) for job in [*bad, *good]))

    assert sql.value("select count(*) from :schema._private_jobs where locked_by is not null") == 0
    for job, (name, error) in zip(bad, BAD, strict=True):
        assert error in row(sql, job).last_error, name
    assert len(lines(other)) == 20
    await wait_until(lambda: not any(lives(int(pid)) for (pid,) in lines(said)))


async def test_the_last_output_of_a_process_is_kept_with_its_exit(client, worker, recorder, sql):
    async with worker():
        job = await client.add_job("aborts")
        error = (await finished(recorder, job)).error

    assert isinstance(error, TaskProcessDied)
    kept = row(sql, job).last_error
    assert "signal SIGABRT" in kept
    assert "the last words" in kept
    assert "Fatal Python error: Aborted" in kept


async def test_processes_that_a_task_left_behind_end_with_its_job(client, worker, recorder, said):
    async with worker():
        job = await client.add_job("leaves_processes", {"path": str(said)})
        assert (await finished(recorder, job)).error is None
        await wait_until(lambda: not any(lives(int(pid)) for (pid,) in lines(said)))

    assert len(lines(said)) == 3


async def test_a_fork_that_returns_from_a_task_sends_no_response(client, worker, recorder, said):
    async with worker():
        for _ in range(2):
            job = await client.add_job("lets_a_copy_return", {"path": str(said)})
            assert (await finished(recorder, job)).error is None

    assert len(lines(said)) == 4
    assert len(recorder.events_of(JobFinished)) == 2


async def test_a_stop_kills_what_still_runs_and_hands_its_job_back(
    client, worker, recorder, sql, said
):
    async with worker(shutdown_timeout=timedelta(milliseconds=100)):
        job = await client.add_job("waits_for_ever", {"path": str(said)})
        await wait_until(lambda: lines(said))

    assert len(recorder.events_of(JobInterrupted)) == 1
    assert (row(sql, job).attempts, row(sql, job).locked_by) == (0, None)
    assert not lives(int(lines(said)[0][0]))


async def test_a_process_that_ended_between_two_jobs_is_not_asked(client, worker, recorder, said):
    async with worker():
        await finished(recorder, await client.add_job("where", {"path": str(said)}))
        pid = lines(said)[0][0]
        os.kill(int(pid), 9)
        # A process is a zombie before its other threads have closed its socket.
        await wait_until(lambda: not Path("/proc", pid).exists())
        job = await client.add_job("where", {"path": str(said)})
        assert (await finished(recorder, job)).error is None

    assert recorder.events_of(JobErrored) == []


async def test_hooks_are_around_it(client, worker, recorder, said):
    entered: list[int] = []

    @asynccontextmanager
    async def around(event: RunningJob) -> AsyncIterator[None]:
        entered.append(event.job.id)
        yield

    recorder.hooks.around(RunningJob)(around)
    async with worker():
        job = await client.add_job("where", {"path": str(said)})
        await finished(recorder, job)

    assert entered == [job.id]


@pytest.fixture
def wrapped(database, recorder):
    """Start a worker of the app with wrappers."""

    @asynccontextmanager
    async def wrapped() -> AsyncIterator[Runner]:
        options = WorkerOptions(schema=database.schema)
        async with Runner(
            database.dsn, wrapped_tasks.app, options=options, hooks=recorder.hooks
        ) as runner:
            yield runner

    return wrapped


def steps(path: Path) -> list[str]:
    return path.read_text().splitlines()


async def test_plain_wrappers_are_entered_in_the_worker_and_in_the_process_of_the_task(
    client, wrapped, recorder, said
):
    in_worker = ["plain in process worker", "async process worker"]
    cases = {
        "work": [
            *in_worker,
            "plain in process process",
            "task",
            "plain out process process",
            "plain out process worker",
        ],
        # Included after its tasks are defined.
        "of_router": [
            *in_worker,
            "plain in process process",
            "plain out process process",
            "plain out process worker",
        ],
        "in_thread": ["async thread worker", "plain in thread worker", "plain out thread worker"],
        "on_loop": ["plain in loop worker", "async loop worker", "plain out loop worker"],
    }

    async with wrapped():
        for name, expected in cases.items():
            path = said.with_suffix(f".{name}")
            job = await client.add_job(name, {"path": str(path)})
            assert (await finished(recorder, job)).error is None, name
            assert [each.split("task ")[0] or "task" for each in steps(path)] == expected, name


async def test_errors_in_a_process_pass_through_the_wrappers_there_and_in_the_worker(
    client, wrapped, recorder, sql, said
):
    def payload(**values: str) -> Any:
        return {"path": str(said), **values}

    async with wrapped():
        failed = await client.add_job("work", payload(fails_in="process"))
        assert isinstance((await finished(recorder, failed)).error, TaskProcessError)
        for what, attempts, minutes in (("retry", 1, 120), ("snooze", 0, 180)):
            job = await client.add_job("raises", payload(what=what))
            await wait_until(partial(has_outcome, sql, job, attempts, minutes))
        # A wrapper suppresses the error, which counts as success.
        suppressed = await client.add_job("raises", payload(what="suppressed"))
        assert (await finished(recorder, suppressed)).error is None
        # The arguments are read first.
        invalid = await client.add_job("raises", payload())
        assert (await finished(recorder, invalid)).error is not None

    assert row(sql, failed).last_error.startswith("LookupError: no connection in process process")
    ends = [each for each in steps(said) if not each.startswith(("plain in", "async"))]
    assert ends == [
        "TaskProcessError process worker",
        "Retry process process",
        "Retry process worker",
        "Snooze process process",
        "Snooze process worker",
        "suppressed process process",
        "plain out process process",
        "plain out process worker",
        "TaskProcessError process worker",
    ]


async def test_a_task_that_a_process_cannot_import_is_rejected_at_start(database):
    hidden = TaskRouter[Any]()
    hidden.task(name="hidden", run_in="process")(process_tasks.plain)

    with pytest.raises(ConfigurationError, match="process_tasks.plain: decorate the function"):
        await run_once(database.dsn, hidden, options=WorkerOptions(schema=database.schema))
