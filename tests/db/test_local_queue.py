"""Jobs that are fetched ahead: they run as if they were not, and are never kept from others."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from graphile_worker import JobContext, JobSpec, RecoveryOptions, WorkerOptions, run_once
from graphile_worker.client import Client
from graphile_worker.events import (
    GetJobErrored,
    JobFinished,
    JobRecovered,
    JobStarted,
    JobSucceeded,
    ListenNotified,
    ListenStarted,
    LocalQueueCreated,
    LocalQueueFetched,
    LocalQueueModeChanged,
    LocalQueueRefetchDelayStarted,
    LocalQueueReturned,
    PoolReleased,
)
from graphile_worker.options import LocalQueueOptions, RefetchDelayOptions
from tests.support.recorder import Recorder, Start
from tests.support.sql import Sql
from tests.support.tasks import Gate, nothing

# Logic of the worker, which test_polling.py runs on the oldest pair too.
pytestmark = pytest.mark.single_version

HOUR = timedelta(hours=1)
SOON = timedelta(milliseconds=20)

JOBS = """
select (payload ->> 'n')::int, attempts, locked_by is not null
from :schema._private_jobs order by 1
"""
KEYED = """
select (payload ->> 'n')::int, key, attempts, is_available from :schema._private_jobs order by 1
"""
# Of jobs, and of named queues.
LOCKS = """
select
  (select count(*)::int from :schema._private_jobs where locked_by is not null),
  (select count(*)::int from :schema._private_job_queues where locked_by is not null)
"""
NOTHING_LOCKED = [(0, 0)]


@pytest.fixture
def client(async_client):
    return async_client


@pytest.fixture
def once(database) -> Callable[..., Any]:
    """Run what is ready with a local queue; how many jobs that were."""

    async def once(tasks: Any, *, concurrency: int = 1, size: int = 100, **live: Any) -> int:
        options = WorkerOptions(
            schema=database.schema,
            concurrency=concurrency,
            local_queue=LocalQueueOptions(size=size),
        )
        return await run_once(database.dsn, tasks, options=options, **live)

    return once


def numbered(count: int, **more: Any) -> list[JobSpec]:
    return [JobSpec("work", {"n": n}, **more) for n in range(count)]


def queue(size: int = 10, **more: Any) -> LocalQueueOptions:
    return LocalQueueOptions(size=size, **more)


async def hold(
    start: Start, gate: Gate, recorder: Recorder, *, ttl: timedelta = HOUR, **options: Any
) -> Any:
    """A worker that runs one job and holds all others that are ready."""
    runner = await start(
        {"work": gate.pass_through}, local_queue=queue(ttl=ttl), poll_interval=HOUR, **options
    )
    await recorder.wait_for(LocalQueueModeChanged, new_mode="WAITING")
    await recorder.wait_for(JobStarted)
    return runner


# All of them, and each once


@pytest.mark.single_version
@pytest.mark.feature("F98", "F99")
@pytest.mark.timeout(180)
async def test_all_jobs_of_many_named_queues_run_and_of_each_queue_one_at_a_time(client, once, sql):
    await client.add_jobs(
        [JobSpec("work", {"n": n}, queue_name=f"queue {n % 500}") for n in range(5000)]
    )
    ran: Counter[int] = Counter()
    running: Counter[int] = Counter()
    most = 0

    async def work(payload: dict[str, int]) -> None:
        nonlocal most
        name = payload["n"] % 500
        running[name] += 1
        most = max(most, running[name])
        await asyncio.sleep(0)
        running[name] -= 1
        ran[payload["n"]] += 1

    assert await once({"work": work}, concurrency=10, size=500) == 5000

    assert ran == Counter(range(5000))
    assert most == 1
    assert sql.run(JOBS) == []
    assert sql.run(LOCKS) == NOTHING_LOCKED


@pytest.mark.feature("F98")
async def test_two_workers_with_local_queues_run_each_job_of_a_named_queue_in_its_turn(
    start, client, recorder
):
    running = most = 0

    async def work(payload: object) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    for _ in range(2):
        await start({"work": work}, concurrency=4, local_queue=queue(), poll_interval=SOON)
    await client.add_jobs(numbered(40, queue_name="one"))

    done = await recorder.wait_for(JobSucceeded, count=40)
    assert most == 1
    assert [each.job.payload["n"] for each in done] == list(range(40))


async def test_behind_many_jobs_of_a_queue_that_is_busy_others_are_found(
    start, client, recorder, gate
):
    # More than one fetch looks at.
    await client.add_jobs(numbered(150, queue_name="slow", priority=-1))
    await client.add_job("quick")

    tasks = {"work": gate.pass_through, "quick": nothing}
    await start(tasks, concurrency=2, local_queue=queue(100), poll_interval=HOUR, listen=False)

    [done] = await recorder.wait_for(JobSucceeded)
    assert done.job.task_identifier == "quick"
    assert gate.began == [0]


@pytest.mark.feature("F99")
async def test_a_job_that_fails_is_written_as_without_a_local_queue(client, once, sql):
    await client.add_jobs(numbered(2, queue_name="q"))

    async def fail(payload: dict[str, int]) -> None:
        if payload["n"] == 0:
            raise ValueError("no")

    assert await once({"work": fail}) == 2

    assert sql.run(JOBS) == [(0, 1, False)]
    assert sql.value("select last_error from :schema._private_jobs").startswith("ValueError: no")
    assert sql.run(LOCKS) == NOTHING_LOCKED


async def test_what_jobs_add_runs_too(client, once, sql):
    ran: list[int] = []
    await client.add_jobs(numbered(3))

    async def work(payload: dict[str, int], ctx: JobContext) -> None:
        ran.append(payload["n"])
        if payload["n"] < 9:
            await ctx.add_job("work", {"n": payload["n"] + 3})

    assert await once({"work": work}, concurrency=2) == 12

    assert sorted(ran) == list(range(12))


# Order


@pytest.mark.feature("F98")
async def test_jobs_leave_a_batch_in_order_of_priority(client, once):
    priorities = [1, 5, 3, 0, 4, 2, -7, 32767, -32768]
    await client.add_jobs([JobSpec("see", {"n": each}, priority=each) for each in priorities])
    seen: list[int] = []

    await once({"see": lambda payload: seen.append(payload["n"])})

    assert seen == sorted(priorities)


async def test_jobs_of_the_same_priority_leave_it_in_order_of_their_time(client, once):
    await client.add_jobs(
        [JobSpec("see", {"n": n}, run_at=timedelta(seconds=-n)) for n in range(20)]
    )
    seen: list[int] = []

    await once({"see": lambda payload: seen.append(payload["n"])})

    assert seen == list(reversed(range(20)))


# Flags


@pytest.mark.feature("F98", "F237")
@pytest.mark.parametrize("kind", ["list", "function"])
async def test_a_job_with_a_forbidden_flag_is_not_even_fetched(start, client, recorder, sql, kind):
    await client.add_jobs([JobSpec("work", {"n": 0}, flags=["slow"]), *numbered(3)[1:]])

    flags: Any = ["slow"] if kind == "list" else lambda: ["slow"]
    await start({"work": nothing}, forbidden_flags=flags, local_queue=queue())

    await recorder.wait_for(JobSucceeded, count=2)
    assert sql.run(JOBS) == [(0, 0, False)]
    fetched = [
        job.payload["n"] for each in recorder.events_of(LocalQueueFetched) for job in each.jobs
    ]
    assert sorted(fetched) == [1, 2]


@pytest.mark.feature("F98")
async def test_a_worker_with_forbidden_flags_gets_notifications(start, client, recorder):
    await start(
        {"work": nothing}, forbidden_flags=["slow"], local_queue=queue(), poll_interval=HOUR
    )
    await asleep(recorder, client)

    await client.add_job("work", {"n": 1})

    await recorder.wait_for(JobSucceeded)


@pytest.mark.feature("F237")
async def test_a_fetched_job_is_released_if_its_flag_is_forbidden_now(
    start, client, recorder, gate, sql
):
    forbidden: set[str] = set()
    await client.add_jobs([*numbered(1), JobSpec("work", {"n": 1}, flags=["slow"])])
    await client.add_job("work", {"n": 2})
    await hold(start, gate, recorder, forbidden_flags=lambda: forbidden)

    forbidden.add("slow")
    gate.open()

    await recorder.wait_for(JobSucceeded, count=2)
    await recorder.wait_for(LocalQueueReturned)
    assert gate.began == [0, 2]
    assert sql.run(JOBS) == [(1, 0, False)]


@pytest.mark.feature("F237")
async def test_an_error_in_the_function_does_not_end_a_worker_that_holds_jobs(
    start, client, recorder, gate
):
    errors: list[Exception] = []

    def flags() -> None:
        if errors:
            raise errors.pop()

    await client.add_jobs(numbered(3, flags=["slow"]))
    runner = await hold(start, gate, recorder, forbidden_flags=flags)

    errors.append(OSError("no answer"))
    gate.open()

    await recorder.wait_for(JobSucceeded, count=2)
    [failed] = recorder.events_of(GetJobErrored)
    assert str(failed.error) == "no answer"
    # The one that it was asked about is fetched again.
    await client.add_job("work", {"n": 3})
    await recorder.wait_for(JobSucceeded, count=4)
    assert runner.is_ready


# Being told of jobs


async def asleep(recorder: Recorder, client: Client) -> None:
    """Until it listens and rests after a fetch that was not full; events count from there."""
    await recorder.wait_for(ListenStarted)
    # Heard after the look that follows the beginning to listen.
    await client.add_job("work", {"n": 0})
    await recorder.wait_for(ListenNotified)
    await recorder.wait_for(JobFinished)
    recorder.clear()


@pytest.mark.feature("F98", "F100")
async def test_an_idle_worker_gets_notifications(start, client, recorder):
    await start({"work": nothing}, concurrency=4, local_queue=queue(), poll_interval=HOUR)
    await asleep(recorder, client)

    await client.add_jobs(numbered(20))

    await recorder.wait_for(JobSucceeded, count=20)


@pytest.mark.feature("F98")
async def test_jobs_that_are_announced_one_by_one_are_fetched_together(start, client, recorder):
    delay = RefetchDelayOptions(
        duration=timedelta(seconds=3), threshold=100, max_abort_threshold=1_000_000
    )
    await start(
        {"work": nothing},
        concurrency=4,
        local_queue=queue(100, refetch_delay=delay),
        poll_interval=HOUR,
    )
    await recorder.wait_for(LocalQueueRefetchDelayStarted)
    await recorder.wait_for(ListenStarted)

    for spec in numbered(30):
        await client.add_jobs([spec])

    await recorder.wait_for(JobSucceeded, count=30)
    fetches = [each for each in recorder.events_of(LocalQueueFetched) if each.jobs]
    assert len(fetches) < 15


# Superseded while it waits


@pytest.mark.feature("F98")
async def test_a_job_that_was_replaced_or_removed_is_gone_when_a_stop_releases_it(
    start, client, recorder, gate, sql
):
    await client.add_jobs(numbered(1))
    await client.add_job("work", {"n": 1}, job_key="k", max_attempts=3)
    await client.add_job("work", {"n": 3}, job_key="removed")
    runner = await hold(start, gate, recorder)

    await client.add_job("work", {"n": 2}, job_key="k")
    assert await client.remove_job("removed") is not None
    stopping = asyncio.create_task(runner.stop())
    await recorder.wait_for(LocalQueueReturned)
    gate.open()
    await stopping

    assert sql.run(KEYED) == [(2, "k", 0, True)]
    assert sql.run(LOCKS) == NOTHING_LOCKED


@pytest.mark.single_version
@pytest.mark.feature("F98")
async def test_a_superseded_job_is_gone_when_it_was_held_for_too_long(
    start, client, recorder, gate, sql
):
    await client.add_jobs(numbered(1))
    await client.add_job("work", {"n": 1}, job_key="k", max_attempts=3)
    await hold(start, gate, recorder, ttl=timedelta(seconds=8))

    await client.add_job("work", {"n": 2}, job_key="k")
    await recorder.wait_for(LocalQueueReturned)

    assert sql.run(KEYED)[1:] == [(2, "k", 0, True)]


# Letting go


@pytest.mark.feature("F98", "F99")
async def test_a_stop_releases_unstarted_jobs_with_their_attempt(
    start, client, recorder, gate, sql
):
    await client.add_jobs([*numbered(5), JobSpec("work", {"n": 5}, queue_name="q")])
    runner = await hold(start, gate, recorder)
    assert sql.run(LOCKS) == [(6, 1)]

    stopping = asyncio.create_task(runner.stop())
    # Before the job ends that runs: others need not wait for it.
    [returned] = await recorder.wait_for(LocalQueueReturned)
    assert sql.run(LOCKS) == [(1, 0)]
    gate.open()
    await stopping

    assert [job.payload["n"] for job in returned.jobs] == [1, 2, 3, 4, 5]
    assert gate.began == [0]
    assert sql.run(JOBS) == [(n, 0, False) for n in range(1, 6)]
    assert sql.run(LOCKS) == NOTHING_LOCKED


@pytest.mark.feature("F98")
async def test_a_forceful_shutdown_releases_all_jobs(start, client, recorder, gate, sql):
    await client.add_jobs([*numbered(5), JobSpec("work", {"n": 5}, queue_name="q")])
    runner = await hold(start, gate, recorder)

    await runner.kill()

    assert sql.run(JOBS) == [(n, 0, False) for n in range(6)]
    assert sql.run(LOCKS) == NOTHING_LOCKED


@pytest.mark.feature("F98")
async def test_what_one_worker_holds_for_too_long_another_runs(
    database, start, client, recorder, gate, sql
):
    await client.add_jobs(numbered(4))
    await hold(start, gate, recorder, ttl=timedelta(milliseconds=500))
    other = Recorder()

    await start({"work": nothing}, hooks=other.hooks, poll_interval=SOON)

    done = await other.wait_for(JobSucceeded, count=3)
    assert [each.job.payload["n"] for each in done] == [1, 2, 3]
    assert {each.job.attempts for each in done} == {1}
    assert gate.began == [0]


@pytest.mark.feature("F98")
async def test_after_that_a_worker_that_is_free_again_fetches_again(start, client, recorder, gate):
    await client.add_jobs(numbered(3))
    await hold(start, gate, recorder, ttl=timedelta(milliseconds=200))
    await recorder.wait_for(LocalQueueReturned)

    gate.open()

    await recorder.wait_for(JobSucceeded, count=3)
    assert gate.began == [0, 1, 2]


# A pool that dies


@pytest.mark.feature("F98", "F223")
@pytest.mark.timeout(60)
async def test_what_a_dead_pool_had_only_fetched_gets_its_attempt_back(
    start, client, recorder, gate, sql
):
    await client.add_jobs([*numbered(3, max_attempts=1), JobSpec("work", {"n": 3}, queue_name="q")])
    await hold(start, gate, recorder, recovery=RecoveryOptions(lease_duration=HOUR))
    [started] = recorder.events_of(JobStarted)
    bury(sql, started.job.id)

    # One that does not have that task: what it recovers stays as it left it.
    other = Recorder()
    sweeps = RecoveryOptions(rescue_interval=timedelta(milliseconds=50))
    await start({"other": nothing}, hooks=other.hooks, recovery=sweeps)

    recovered = await other.wait_for(JobRecovered, count=4)
    found = {each.job.payload["n"]: (each.was_started, each.job.attempts) for each in recovered}
    assert found == {0: (True, 0), 1: (False, 0), 2: (False, 0), 3: (False, 0)}
    assert sql.run(LOCKS) == NOTHING_LOCKED


def bury(sql: Sql, *started: int) -> None:
    """The only pool that there is said that it has started these jobs, and fell silent."""
    sql.run(
        "update :ext_schema.pools "
        "set started_jobs = $1, seen_at = now() - interval '1 hour', lease = '50 ms'",
        list(started),
    )


# What is said


@pytest.mark.feature("F98")
async def test_the_events_of_a_local_queue_come_in_order(start, client, recorder, gate):
    await client.add_jobs(numbered(3))
    # Whoever begins to listen looks again.
    runner = await hold(start, gate, recorder, listen=False)

    gate.open()
    await recorder.wait_for(JobFinished, count=3)
    await recorder.wait_for(LocalQueueFetched, count=2)
    await runner.stop()

    kinds = (LocalQueueCreated, LocalQueueModeChanged, LocalQueueFetched)
    heard = [each for each in recorder.events if isinstance(each, kinds)]
    assert [described(each) for each in heard] == [
        "created",
        "STARTING to POLLING",
        "fetched 3",
        "POLLING to WAITING",
        "WAITING to POLLING",
        "fetched 0",
        "POLLING to RELEASED",
    ]


def described(event: object) -> str:
    if isinstance(event, LocalQueueModeChanged):
        return f"{event.old_mode} to {event.new_mode}"
    return f"fetched {len(event.jobs)}" if isinstance(event, LocalQueueFetched) else "created"


# Setting it up


async def test_a_local_queue_smaller_than_the_concurrency_is_warned_of(start, caplog):
    caplog.set_level(logging.WARNING)

    await start({"work": nothing}, concurrency=4, local_queue=queue(2))

    assert (
        "local_queue.size=2 is less than concurrency=4, raise it to at least concurrency"
        in caplog.text
    )


@pytest.mark.parametrize("is_free_at_shutdown", [True, False])
async def test_no_release_outlives_a_worker_that_was_stopped_while_it_checked_flags(
    start, recorder, sql, is_free_at_shutdown
):
    checking, answer = asyncio.Event(), asyncio.Event()

    async def flags() -> None:
        task = asyncio.current_task()
        if task is not None and task.get_name().startswith("worker-"):
            checking.set()
            await answer.wait()

    sql.run("select :schema.add_job('see', flags := array['x']) from generate_series(1, 2)")
    runner = await start(
        {"see": nothing},
        forbidden_flags=flags,
        concurrency=1,
        local_queue=LocalQueueOptions(size=2),
    )
    await recorder.wait_for(JobSucceeded)
    await checking.wait()
    with closing(sql.another()) as session:
        session.run("begin")
        session.run("select from :schema._private_jobs for update")

        @recorder.hooks.on(PoolReleased)
        def free_row(event: PoolReleased) -> None:
            if is_free_at_shutdown:
                session.run("rollback")

        stopping = asyncio.create_task(runner.stop())
        await recorder.wait_for(LocalQueueModeChanged, new_mode="RELEASED")
        answer.set()
        await stopping

    names = {getattr(each.get_coro(), "__qualname__", "") for each in asyncio.all_tasks()}
    assert not [each for each in names if each.startswith("JobBuffer.")]
    is_locked = sql.value("select locked_by is not null from :schema._private_jobs")
    assert is_locked is not is_free_at_shutdown
