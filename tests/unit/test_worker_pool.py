"""WorkerPool: its start, its shutdown in steps, and running jobs at shutdown."""

import asyncio
import gc
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from graphile_worker import Job, TaskRouter
from graphile_worker._discovery.discovery import build_tasks
from graphile_worker._lease.lease import Lease
from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._support.logs import resolve_logger
from graphile_worker._worker.cancellation import Cancellation
from graphile_worker._worker.completion_batcher import CompletionBatchers
from graphile_worker._worker.context import PoolResources
from graphile_worker._worker.outcomes import (
    Completed,
    CompletedInTransaction,
    Failed,
    Interrupted,
    Outcome,
)
from graphile_worker._worker.pool import ShutdownTimings, WorkerPool
from graphile_worker._worker.process_pool import ProcessPool
from graphile_worker._worker.run_job import Executors
from graphile_worker._worker.run_state import RunStep
from graphile_worker._worker.threads import ThreadPool
from graphile_worker._worker.worker import Worker
from graphile_worker.errors import JobsLeftLocked
from graphile_worker.events import (
    Event,
    JobErrored,
    JobInterrupted,
    JobLockLost,
    JobStarted,
    JobSucceeded,
    PoolCreated,
    PoolForcefulShutdown,
    PoolForcefulShutdownCompleted,
    PoolGracefulShutdown,
    PoolGracefulShutdownCompleted,
    PoolGracefulShutdownWorkerError,
    PoolReleased,
    WorkerCreated,
    WorkerFatalError,
    WorkerReleased,
    WorkerRestarted,
    WorkerStopped,
)
from graphile_worker.hooks import Hooks
from graphile_worker.options import TaskProcessOptions
from tests.support.jobs import make_job
from tests.support.recorder import TIMEOUT_SECONDS, wait_until

SOON = timedelta(milliseconds=1)
MANY = timedelta(hours=1)

# A busy machine may take longer than the 2 s of the worker.
PATIENT = ShutdownTimings(cleanup_timeout_seconds=20, write_timeout_seconds=20)

# For tasks that do not end when they are cancelled.
IMPATIENT = replace(PATIENT, cleanup_timeout_seconds=0.01)

KNOWN = (
    "slow",
    "stubborn",
    "polite",
    "tidy",
    "ending",
    "committed",
    "watching",
    "plain",
    "polite_plain",
)


class FakeSource:
    """Has one job for each of these tasks."""

    is_failing = False

    def __init__(self, *identifiers: str) -> None:
        self.pulses: list[int | None] = []
        self.written: list[ClaimedJob] = []
        self.stopping = asyncio.Event()
        self.drained = asyncio.Event()
        self.error: BaseException | None = None
        self.retries_releases = True
        numbered = enumerate(identifiers, start=1)
        self._jobs = deque(
            ClaimedJob(make_job(id=n, task_identifier=each, locked_by="p1"), None)
            for n, each in numbered
        )

    async def run(self) -> None:
        ends = [asyncio.create_task(each.wait()) for each in (self.stopping, self.drained)]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for each in ends:
            each.cancel()

    def take_buffered(self) -> ClaimedJob | None:
        return None

    def record_duration(self, seconds: float) -> None:
        pass

    async def wait_for_job(self, worker_id: str) -> ClaimedJob | None:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        if self.stopping.is_set() or self.drained.is_set():
            return None
        if self._jobs:
            return self._jobs.popleft()
        await self.stopping.wait()
        return None

    def wake(self, count: int | None = None) -> None:
        self.pulses.append(count)

    def forget(self, claimed: ClaimedJob, *, may_run_again: bool = False) -> None:
        self.written.append(claimed)

    def stop(self) -> None:
        self.stopping.set()

    def stop_late_releases(self) -> None:
        self.retries_releases = False


class FakeCompleter:
    """Records outcomes, and answers while an event is set."""

    def __init__(self) -> None:
        self.is_still_owned = True
        self.written: list[Outcome] = []
        self.started = asyncio.Event()
        self.answering = asyncio.Event()
        self.answering.set()

    async def complete(self, outcome: Outcome, *, is_uncertain: bool = False) -> Outcome | None:
        self.started.set()
        await self.answering.wait()
        self.written.append(outcome)
        return outcome if self.is_still_owned else None

    async def complete_all(self, outcomes: Sequence[Outcome]) -> list[Outcome | None]:
        return [await self.complete(each) for each in outcomes]


class FakeStartGuard:
    """Lets jobs start while an event is set."""

    def __init__(self) -> None:
        self.rejection: timedelta | None = None
        self.error: Exception | None = None
        self.ended: list[int] = []
        self.started = asyncio.Event()
        self.answering = asyncio.Event()
        self.answering.set()

    def needs_check(self, claimed: ClaimedJob) -> bool:
        return True

    async def check_start(self, claimed: ClaimedJob) -> Interrupted | None:
        self.started.set()
        await self.answering.wait()
        if self.error is not None:
            raise self.error
        return None if self.rejection is None else Interrupted(claimed, self.rejection)

    def forget(self, claimed: ClaimedJob, *, may_run_again: bool = False) -> None:
        self.ended.append(claimed.job.id)


class Scene:
    """A started pool with real workers, and its events."""

    def __init__(
        self,
        source: Any,
        tasks: dict[str, Callable[..., Any]],
        *,
        workers: int = 1,
        cancel_after: timedelta | None = None,
        shutdown_timeout: timedelta | None = None,
        complete_batch_delay: timedelta | None = None,
        timings: ShutdownTimings = PATIENT,
    ) -> None:
        self.source = source
        self.completer = FakeCompleter()
        self.start_guard = FakeStartGuard()
        completer: Any = self.completer
        self.batches = CompletionBatchers(completer, complete_delay=complete_batch_delay)
        self.hooks = Hooks()
        self.events: list[Event] = []
        self.hooks.on(Event)(self.events.append)
        self.cancellation = Cancellation()
        self.threads = ThreadPool()
        self.workers = [self._worker(tasks) for _ in range(workers)]
        self.pool = WorkerPool(
            Lease(pool_id="p1"),
            source,
            self.workers,
            self.batches,
            self.cancellation,
            self.hooks,
            tasks=tasks,
            cancel_after=cancel_after,
            shutdown_timeout=shutdown_timeout,
            timings=timings,
        )
        self.running = asyncio.create_task(self.pool.run())

    def _worker(self, tasks: dict[str, Callable[..., Any]]) -> Worker:
        nothing: Any = None
        completer: Any = self.completer
        start_guard: Any = self.start_guard
        resources = PoolResources(
            deps=None,
            logger=resolve_logger(None),
            cancellation=self.cancellation,
            database=nothing,
            client=nothing,
            sync_database=None,
            sync_client=None,
        )
        return Worker(
            source=self.source,
            completer=completer,
            batchers=self.batches,
            start_guard=start_guard,
            tasks=build_tasks(tasks),
            resources=resources,
            executors=Executors(self.threads, ProcessPool(TaskProcessOptions())),
            hooks=self.hooks,
        )

    async def end(self) -> None:
        await self.running
        await self.pool.release_remaining()

    @property
    def outcomes(self) -> list[tuple[type[Outcome], str]]:
        return [(type(each), each.claimed.job.task_identifier) for each in self.completer.written]

    @property
    def kinds(self) -> list[type[Event]]:
        return [type(event) for event in self.events]


class Functions:
    """Tasks that record their start, and end when a test lets them."""

    def __init__(self) -> None:
        self.begun = asyncio.Semaphore(0)
        self.release = asyncio.Event()
        self.release_thread = threading.Event()
        # Whether a task saw the request to stop.
        self.cancelled_states: list[bool] = []
        self._loop = asyncio.get_running_loop()

    async def slow(self, payload: object) -> None:
        self.begun.release()
        await self.release.wait()

    async def stubborn(self, payload: object) -> None:
        """Suppress the cancellation."""
        self.begun.release()
        while not self.release.is_set():
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                continue

    async def polite(self, payload: object, ctx: Any) -> None:
        """End when asked to stop."""
        self.begun.release()
        await ctx.wait_cancelled()

    async def tidy(self, payload: object, ctx: Any) -> None:
        """Clean up for some time after a cancellation, and count cancellations."""
        self.begun.release()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled_states.append(ctx.cancelled)
            await self.release.wait()
            raise

    async def ending(self, payload: object, ctx: Any) -> None:
        """Start to complete the job in its own transaction."""
        ctx.advance(RunStep.BEGIN_COMMIT)
        await self.slow(payload)

    def committed(self, payload: object, ctx: Any) -> None:
        """Run on after its own transaction completed the job."""
        ctx.advance(RunStep.BEGIN_COMMIT)
        ctx.advance(RunStep.CONFIRM_COMMIT)
        self.plain(payload, ctx)

    async def watching(self, payload: object, ctx: Any) -> None:
        """Wait in its own asyncio task for the request to stop."""
        waiting = asyncio.create_task(ctx.wait_cancelled(timedelta(seconds=20)))
        self.begun.release()
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError:
            self.cancelled_states.append(await waiting)
            raise

    def plain(self, payload: object, ctx: Any) -> None:
        self._loop.call_soon_threadsafe(self.begun.release)
        self.release_thread.wait(20)
        self.cancelled_states.append(ctx.cancelled)

    def polite_plain(self, payload: object, ctx: Any) -> None:
        self._loop.call_soon_threadsafe(self.begun.release)
        assert ctx.wait_cancelled(timedelta(minutes=1))


@pytest.fixture
async def tasks() -> Any:
    tasks = Functions()
    yield tasks
    tasks.release.set()
    tasks.release_thread.set()


@pytest.fixture
def scene(tasks: Functions) -> Callable[..., Any]:
    """Start a pool, and wait until its jobs run."""

    async def start(*jobs: str, workers: int | None = None, **limits: Any) -> Scene:
        functions = {name: getattr(tasks, name) for name in KNOWN}
        count = len(jobs) if workers is None else workers
        it = Scene(FakeSource(*jobs), functions, workers=max(1, count), **limits)
        for _ in range(min(count, len(jobs))):
            await tasks.begun.acquire()
        return it

    return start


async def run_until_idle() -> None:
    """Let the event loop run until nothing changes."""
    for _ in range(50):
        await asyncio.sleep(0)


def task_named(name: str) -> "asyncio.Task[Any]":
    [found] = [each for each in asyncio.all_tasks() if each.get_name() == name]
    return found


# Running jobs


@pytest.mark.feature("F164", "F171")
async def test_a_pool_and_its_workers_are_announced_with_the_tasks_they_know(scene):
    it = await scene(workers=2)

    await run_until_idle()

    assert it.kinds == [PoolCreated, WorkerCreated, WorkerCreated]
    created = [event for event in it.events if isinstance(event, WorkerCreated)]
    assert [event.worker_id for event in created] == [worker.id for worker in it.workers]
    assert {event.tasks for event in created} == {KNOWN}


async def test_each_worker_runs_a_job_and_they_are_counted(scene, tasks):
    it = await scene("slow", "slow", "slow")
    assert (it.pool.job_count, it.pool.has_claimed_jobs) == (0, True)

    tasks.release.set()
    await run_until_idle()

    assert (it.pool.job_count, it.pool.has_claimed_jobs) == (3, False)
    assert it.outcomes == [(Completed, "slow")] * 3


async def test_a_nudge_reaches_the_source_until_the_pool_stops(scene):
    it = await scene()

    it.pool.wake(3)
    it.pool.wake()
    it.pool.stop_gracefully("bye")
    it.pool.wake(4)

    assert it.source.pulses == [3, None]


async def test_a_pool_is_ready_while_its_source_answers_and_it_does_not_stop(scene):
    it = await scene()
    assert it.pool.is_ready

    it.source.is_failing = True
    assert not it.pool.is_ready

    it.source.is_failing = False
    it.pool.stop_gracefully("bye")
    assert not it.pool.is_ready
    assert it.pool.is_stopping


# Graceful shutdown


@pytest.mark.feature("F159", "F213")
async def test_a_graceful_shutdown_claims_no_more_jobs_and_waits_for_running_ones(scene, tasks):
    it = await scene("slow", "slow", workers=1)

    it.pool.stop_gracefully("bye")
    await run_until_idle()
    assert not it.running.done()

    tasks.release.set()
    await it.end()
    assert it.outcomes == [(Completed, "slow")]


@pytest.mark.feature("F168", "F169", "F172", "F173")
async def test_a_stop_is_announced_step_by_step(scene):
    it = await scene(workers=1)
    await run_until_idle()
    it.events.clear()

    it.pool.stop_gracefully("bye")
    await it.end()

    assert it.kinds == [
        PoolGracefulShutdown,
        WorkerReleased,
        WorkerStopped,
        PoolGracefulShutdownCompleted,
        PoolReleased,
    ]
    assert it.events[0] == PoolGracefulShutdown(pool_id="p1", message="bye")
    assert it.events[2] == WorkerStopped(pool_id="p1", worker_id=it.workers[0].id, error=None)


async def test_to_stop_twice_is_to_stop_once(scene):
    it = await scene()

    it.pool.stop_gracefully("bye")
    it.pool.stop_gracefully("bye again")
    await it.end()

    assert it.kinds.count(PoolGracefulShutdown) == 1


@pytest.mark.parametrize("task", ["polite", "polite_plain"])
async def test_after_cancel_after_tasks_are_asked_to_stop(scene, task):
    it = await scene(task, cancel_after=SOON, shutdown_timeout=MANY)
    assert not it.cancellation.is_requested

    it.pool.stop_gracefully("bye")
    await it.end()

    assert it.outcomes == [(Completed, task)]


async def test_no_task_is_asked_to_stop_before_cancel_after(scene, tasks):
    it = await scene("slow", cancel_after=MANY, shutdown_timeout=None)

    it.pool.stop_gracefully("bye")
    await run_until_idle()
    assert not it.cancellation.is_requested

    tasks.release.set()
    await it.end()


@pytest.mark.feature("F187", "F214")
@pytest.mark.parametrize("cancel_after", [None, SOON, MANY])
async def test_at_shutdown_timeout_tasks_are_cancelled_and_their_jobs_released(scene, cancel_after):
    it = await scene("slow", "slow", cancel_after=cancel_after, shutdown_timeout=2 * SOON)

    it.pool.stop_gracefully("bye")
    await it.end()

    assert it.outcomes == [(Interrupted, "slow")] * 2
    assert it.kinds.count(JobInterrupted) == 2
    assert it.cancellation.is_requested
    assert it.pool.has_claimed_jobs is False


async def test_a_task_that_ends_well_when_it_is_cancelled_has_ended_well(scene, tasks):
    it = await scene("stubborn", shutdown_timeout=SOON)
    tasks.release.set()

    it.pool.stop_gracefully("bye")
    await it.end()

    assert it.outcomes == [(Completed, "stubborn")]


async def test_without_timeouts_a_shutdown_waits_forever(scene, tasks):
    it = await scene("slow", cancel_after=None, shutdown_timeout=None)

    it.pool.stop_gracefully("bye")
    await run_until_idle()
    assert not it.running.done()

    tasks.release.set()
    await it.end()


async def test_a_slow_shutdown_leaves_no_unretrieved_exception(scene, caplog):
    # Garbage that other tests left on purpose does not matter here.
    gc.collect()
    caplog.clear()
    it = await scene("slow", cancel_after=SOON, shutdown_timeout=2 * SOON)

    it.pool.stop_gracefully("bye")
    await it.end()
    # asyncio logs an exception that was never retrieved when its task is deleted.
    gc.collect()

    assert [each.getMessage() for each in caplog.records if each.name == "asyncio"] == []


async def test_running_jobs_have_time_when_no_more_jobs_come(scene, tasks):
    it = await scene("slow", cancel_after=timedelta(0), shutdown_timeout=timedelta(0))

    it.source.drained.set()
    await run_until_idle()
    assert not it.cancellation.is_requested
    assert not it.running.done()

    tasks.release.set()
    await it.end()
    assert it.outcomes == [(Completed, "slow")]
    assert PoolGracefulShutdown not in it.kinds
    assert it.kinds[-1] is PoolReleased


# Tasks that cannot be cancelled


@pytest.mark.parametrize("task", ["plain", "stubborn"])
async def test_jobs_that_cannot_be_cancelled_are_released_last(scene, task):
    it = await scene(task, shutdown_timeout=SOON, timings=IMPATIENT)

    it.pool.stop_gracefully("bye")
    await it.running
    assert it.outcomes == []
    assert it.pool.has_claimed_jobs

    assert it.source.retries_releases

    await it.pool.release_remaining()
    assert it.outcomes == [(Interrupted, task)]
    assert not it.pool.has_claimed_jobs
    assert not it.source.retries_releases
    assert JobInterrupted in it.kinds


@pytest.mark.parametrize("task", ["plain", "stubborn"])
async def test_the_outcome_of_a_released_job_is_not_written(scene, tasks, task):
    it = await scene(task, shutdown_timeout=SOON, timings=IMPATIENT)
    it.pool.stop_gracefully("bye")
    await it.end()

    tasks.release.set()
    tasks.release_thread.set()
    await it.threads.run(lambda: None)
    await run_until_idle()

    assert it.outcomes == [(Interrupted, task)]
    assert JobSucceeded not in it.kinds
    assert WorkerStopped in it.kinds


async def test_a_plain_function_that_ends_in_time_has_ended_well(scene, tasks):
    it = await scene("plain", shutdown_timeout=MANY)

    it.pool.stop_gracefully("bye")
    tasks.release_thread.set()
    await it.end()

    assert it.outcomes == [(Completed, "plain")]


@pytest.mark.parametrize("task", ["plain", "slow"])
async def test_a_job_whose_end_cannot_be_written_is_named(scene, task):
    timings = replace(IMPATIENT, write_timeout_seconds=0.01)
    it = await scene(task, shutdown_timeout=SOON, timings=timings)
    it.completer.answering.clear()

    it.pool.stop_gracefully("bye")
    with pytest.raises(JobsLeftLocked) as raised_error:
        await it.end()

    assert raised_error.value.job_ids == [1]
    [event] = [each for each in it.events if isinstance(each, PoolGracefulShutdownWorkerError)]
    assert event.job is not None
    assert event.job.id == 1
    assert it.kinds[-1] is PoolReleased


@pytest.fixture
def writing(scene):
    """A pool that has stopped while outcomes are still being written."""

    async def start(*jobs: str) -> Scene:
        it: Scene = await scene(*jobs, shutdown_timeout=SOON, timings=IMPATIENT)
        it.completer.answering.clear()
        it.pool.stop_gracefully("bye")
        await it.running
        await it.completer.started.wait()
        return it

    return start


async def test_a_job_whose_end_is_written_late_is_not_left_locked(writing):
    it = await writing("slow")

    releasing = asyncio.create_task(it.pool.release_remaining())
    await run_until_idle()
    it.completer.answering.set()
    await releasing

    assert it.outcomes == [(Interrupted, "slow")]


async def test_a_job_whose_end_is_written_at_that_moment_is_not_left_locked(writing):
    it = await writing("slow")

    # The answer has arrived, but its worker has not run yet.
    it.completer.answering.set()
    await it.pool.release_remaining()

    assert it.outcomes == [(Interrupted, "slow")]


async def test_a_job_whose_end_is_written_does_not_wait_for_what_never_ends(writing):
    it = await writing("slow", "stubborn")

    releasing = asyncio.create_task(it.pool.release_remaining())
    await run_until_idle()
    it.completer.answering.set()

    # The endless task keeps its worker, and the job of the other one must not count as locked.
    await releasing
    assert sorted(it.outcomes, key=str) == [(Interrupted, "slow"), (Interrupted, "stubborn")]


# Forceful shutdown


@pytest.mark.feature("F212")
async def test_a_forceful_stop_cancels_at_once(scene):
    it = await scene("slow", cancel_after=MANY, shutdown_timeout=None)

    it.pool.stop_forcefully("bye")
    await it.end()

    assert it.outcomes == [(Interrupted, "slow")]
    stops = [kind for kind in it.kinds if "Shutdown" in kind.__name__]
    assert stops == [PoolGracefulShutdown, PoolForcefulShutdown, PoolForcefulShutdownCompleted]


@pytest.mark.parametrize("cancel_after", [None, SOON, MANY])
async def test_a_graceful_stop_may_be_made_a_forceful_one(scene, cancel_after):
    it = await scene("slow", cancel_after=cancel_after, shutdown_timeout=None)
    it.pool.stop_gracefully("bye")
    await run_until_idle()

    it.pool.stop_forcefully("now")
    it.pool.stop_forcefully("really")
    await it.end()

    assert it.outcomes == [(Interrupted, "slow")]
    assert it.kinds.count(PoolForcefulShutdown) == 1


# Fatal errors


@pytest.mark.feature("F161", "F177")
async def test_the_error_of_a_worker_stops_the_pool_and_is_raised_at_the_end(scene, tasks):
    it = await scene("slow", "plain")
    it.source.error = error = LookupError("boom")

    tasks.release.set()
    await run_until_idle()
    assert it.pool.is_stopping
    assert not it.running.done()

    tasks.release_thread.set()
    with pytest.raises(LookupError) as raised:
        await it.running
    assert raised.value is error
    assert it.outcomes == [(Completed, "slow"), (Completed, "plain")]


@pytest.mark.feature("F173", "F177")
async def test_a_worker_that_fails_is_announced_with_its_error(scene, tasks):
    it = await scene("slow")
    it.source.error = error = LookupError("boom")

    tasks.release.set()
    await asyncio.wait([it.running])

    where = {"pool_id": "p1", "worker_id": it.workers[0].id}
    assert WorkerFatalError(**where, error=error) in it.events
    assert WorkerStopped(**where, error=error) in it.events
    assert it.running.exception() is error


async def test_a_worker_that_fails_also_fails_its_job(tasks):
    it = Scene(FakeSource("slow"), {"slow": tasks.slow})
    it.start_guard.error = error = LookupError("boom")

    with pytest.raises(LookupError):
        await it.end()

    [outcome] = it.completer.written
    assert isinstance(outcome, Failed)
    assert outcome.error is error
    assert not it.pool.has_claimed_jobs
    assert JobErrored in it.kinds
    assert [claimed.job.id for claimed in it.source.written] == [1]


@pytest.mark.parametrize("job", ["slow", "plain", None])
async def test_a_worker_that_ends_while_its_pool_runs_starts_again(scene, tasks, job):
    it = await scene(*([] if job is None else [job, "slow"]), workers=1)
    await run_until_idle()

    task_named(it.workers[0].id).cancel()
    await run_until_idle()

    if job is not None:
        assert it.outcomes == [(Interrupted, job)]
        await tasks.begun.acquire()
    assert it.kinds.count(WorkerRestarted) == 1
    assert it.kinds.count(WorkerCreated) == 2
    assert it.pool.is_ready
    tasks.release.set()
    it.pool.stop_gracefully("bye")
    await it.end()
    assert it.pool.job_count == (0 if job is None else 1)


async def test_a_loop_that_cancels_all_its_tasks_ends_the_pool(scene):
    it = await scene("slow", workers=2)

    # As asyncio.run does at the end.
    for each in asyncio.all_tasks() - {asyncio.current_task()}:
        each.cancel()
    await asyncio.wait([it.running])
    await run_until_idle()

    assert it.running.cancelled()
    assert it.outcomes == [(Interrupted, "slow")]
    assert WorkerRestarted not in it.kinds


async def test_a_retry_policy_that_raises_does_not_end_the_worker():
    router = TaskRouter[None]()

    def broken(error: BaseException, job: Job) -> timedelta:
        raise ValueError("the policy itself")

    @router.task(retry=broken)
    async def failing() -> None:
        raise LookupError("boom")

    it = Scene(FakeSource("failing", "failing"), {"failing": failing})
    await run_until_idle()

    assert it.outcomes == [(Failed, "failing")] * 2
    assert not it.pool.is_stopping


async def test_a_source_that_fails_ends_the_pool_and_is_raised(scene, tasks, monkeypatch):
    error = LookupError("boom")

    async def broken(self: FakeSource) -> None:
        await self.drained.wait()
        raise error

    monkeypatch.setattr(FakeSource, "run", broken)
    it = await scene("slow", shutdown_timeout=SOON)
    it.source.drained.set()

    with pytest.raises(LookupError) as raised:
        await it.running

    assert raised.value is error
    assert it.outcomes == [(Interrupted, "slow")]


async def test_what_ends_a_pool_from_outside_is_raised_by_it(scene, tasks):
    it = await scene("slow")
    error = LookupError("boom")

    it.pool.stop_on_error(error)
    it.pool.stop_on_error(ValueError("later"))
    tasks.release.set()
    with pytest.raises(LookupError):
        await it.running

    assert PoolGracefulShutdown(pool_id="p1", message="boom") in it.events
    assert it.outcomes == [(Completed, "slow")]


# The end of the program


async def test_a_cancelled_pool_releases_its_jobs(scene):
    it = await scene("slow", "slow")

    it.running.cancel()
    await asyncio.wait([it.running])

    assert it.running.cancelled()
    assert it.outcomes == [(Interrupted, "slow")] * 2
    await it.pool.release_remaining()
    assert len(it.completer.written) == 2


async def test_a_pool_that_is_cancelled_during_a_shutdown_releases_its_jobs(scene):
    it = await scene("slow")
    it.pool.stop_gracefully("bye")
    await run_until_idle()

    it.running.cancel()
    await asyncio.wait([it.running])

    assert it.running.cancelled()
    assert it.outcomes == [(Interrupted, "slow")]


async def test_the_job_of_a_plain_function_of_a_cancelled_pool_is_released_last(scene):
    it = await scene("plain")

    it.running.cancel()
    await asyncio.wait([it.running])
    assert it.outcomes == []

    await it.pool.release_remaining()
    assert it.outcomes == [(Interrupted, "plain")]


async def test_a_cancelled_pool_releases_the_jobs_of_its_last_fetch(scene, monkeypatch):
    released_claims: list[str] = []

    async def fetching(self: FakeSource) -> None:
        await self.stopping.wait()
        await run_until_idle()
        released_claims.append("what came too late")

    monkeypatch.setattr(FakeSource, "run", fetching)
    it = await scene("slow")

    it.running.cancel()
    await asyncio.wait([it.running])

    assert it.running.cancelled()
    assert released_claims == ["what came too late"]


async def test_a_pool_that_is_cancelled_does_not_wait_for_a_fetch_without_an_answer(
    scene, monkeypatch
):
    async def fetching(self: FakeSource) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(FakeSource, "run", fetching)
    it = await scene(timings=replace(PATIENT, release_timeout_seconds=0.01))
    it.pool.stop_gracefully("bye")
    await run_until_idle()

    # All workers have ended, only the last fetch has not.
    it.running.cancel()
    await asyncio.wait([it.running])

    assert it.running.cancelled()


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_fetch_that_swallows_two_cancellations_does_not_block_the_shutdown(
    scene, monkeypatch, is_cancelled
):
    async def fetching(self: FakeSource) -> None:
        try:
            for _ in range(2):
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
        finally:
            # Its jobs are released when the database is reachable again.
            await asyncio.Event().wait()

    monkeypatch.setattr(FakeSource, "run", fetching)
    timings = replace(PATIENT, release_timeout_seconds=0.01, cleanup_timeout_seconds=0.02)
    it = await scene(timings=timings)

    it.pool.stop_gracefully("bye")
    if is_cancelled:
        await run_until_idle()
        it.running.cancel()
    await asyncio.wait([it.running], timeout=TIMEOUT_SECONDS)

    assert it.running.done()
    assert it.running.cancelled() == is_cancelled


# Revoked jobs


def match_all(claimed: ClaimedJob) -> bool:
    return True


async def test_a_revoked_job_is_cancelled_and_released(scene, tasks):
    it = await scene("slow", "slow", workers=1)

    assert it.pool.revoke_jobs(match_all) == (1,)
    await tasks.begun.acquire()

    assert it.outcomes == [(Interrupted, "slow")]
    assert JobInterrupted in it.kinds
    # The worker continues with the next job.
    assert it.pool.claimed_ids == [2]
    tasks.release.set()
    await run_until_idle()
    assert it.outcomes[1:] == [(Completed, "slow")]
    assert not it.pool.is_stopping


async def test_only_matching_jobs_are_revoked(scene, tasks):
    it = await scene("slow", "slow", "slow")

    assert it.pool.revoke_jobs(lambda claimed: claimed.job.id == 2) == (2,)
    await run_until_idle()

    assert [outcome.claimed.job.id for outcome in it.completer.written] == [2]
    assert it.pool.claimed_ids == [1, 3]


async def test_a_pool_without_jobs_revokes_none(scene):
    it = await scene(workers=2)

    assert it.pool.revoke_jobs(match_all) == ()
    assert it.pool.claimed_ids == []


async def test_a_task_that_is_cancelled_sees_why(scene, tasks):
    it = await scene("tidy", "slow")

    it.pool.revoke_jobs(lambda claimed: claimed.job.id == 1)
    await run_until_idle()

    assert tasks.cancelled_states == [True]
    assert not it.cancellation.is_requested


async def test_a_task_that_waits_for_the_request_to_stop_is_woken(scene, tasks):
    it = await scene("watching")

    it.pool.revoke_jobs(match_all)
    await run_until_idle()

    assert tasks.cancelled_states == [True]
    assert it.outcomes == [(Interrupted, "watching")]


async def test_a_revoked_job_wakes_no_other_task(scene, tasks):
    it = await scene("polite", "slow")

    it.pool.revoke_jobs(lambda claimed: claimed.job.id == 2)
    await run_until_idle()

    assert it.pool.claimed_ids == [1]
    assert it.outcomes == [(Interrupted, "slow")]


async def test_a_plain_function_is_asked_to_stop_and_not_cancelled(scene, tasks):
    it = await scene("plain")

    assert it.pool.revoke_jobs(match_all) == (1,)
    await run_until_idle()
    assert it.pool.claimed_ids == [1]
    assert it.outcomes == []

    tasks.release_thread.set()
    await it.completer.started.wait()
    assert tasks.cancelled_states == [True]
    assert it.outcomes == [(Completed, "plain")]


async def test_a_plain_function_that_waits_for_the_request_to_stop_is_woken(scene):
    it = await scene("polite_plain")

    it.pool.revoke_jobs(match_all)
    await it.completer.started.wait()

    assert it.outcomes == [(Completed, "polite_plain")]


async def test_a_task_that_does_not_want_to_be_cancelled_ends_as_it_ends(scene, tasks):
    it = await scene("stubborn")

    it.pool.revoke_jobs(match_all)
    await run_until_idle()
    assert it.pool.claimed_ids == [1]

    tasks.release.set()
    await run_until_idle()
    assert it.outcomes == [(Completed, "stubborn")]


async def test_a_job_that_another_pool_claimed_emits_a_lost_lock(scene):
    it = await scene("slow")
    it.completer.is_still_owned = False

    it.pool.revoke_jobs(match_all)
    await run_until_idle()

    assert it.kinds[-1] is JobLockLost
    assert JobInterrupted not in it.kinds


@pytest.mark.parametrize("again", ["revoke", "discard", "stop"])
async def test_a_stopping_task_is_not_cancelled_a_second_time(scene, tasks, again):
    it = await scene("tidy")
    it.pool.revoke_jobs(match_all)
    await run_until_idle()

    match again:
        case "revoke":
            # The job was revoked before, so this is not reported again.
            assert it.pool.revoke_jobs(match_all) == ()
        case "discard":
            it.pool.discard_run(it.workers[0].claimed)
        case _:
            it.pool.stop_forcefully("now")
    await run_until_idle()
    assert it.outcomes == []

    tasks.release.set()
    it.pool.stop_gracefully("bye")
    await it.end()
    assert tasks.cancelled_states == [True]
    assert it.outcomes == ([] if again == "discard" else [(Interrupted, "tidy")])


async def test_a_worker_with_a_revoked_job_can_still_be_stopped(scene, tasks):
    it = await scene("slow", "slow", workers=1)
    it.pool.revoke_jobs(match_all)
    await tasks.begun.acquire()

    it.pool.stop_forcefully("now")
    await it.end()

    assert it.outcomes == [(Interrupted, "slow")] * 2


async def test_a_job_that_is_committing_is_not_revoked(scene, tasks):
    it = await scene("ending")

    assert it.pool.revoke_jobs(match_all) == ()
    await run_until_idle()
    assert it.pool.claimed_ids == [1]

    # The transaction decides whether the pool still held the job.
    tasks.release.set()
    await run_until_idle()
    assert it.outcomes == [(Completed, "ending")]


async def test_a_job_whose_end_is_being_written_is_left_alone(scene, tasks):
    it = await scene("slow")
    it.completer.answering.clear()
    tasks.release.set()
    await it.completer.started.wait()

    assert it.pool.revoke_jobs(match_all) == ()
    it.completer.answering.set()
    await run_until_idle()

    assert it.outcomes == [(Completed, "slow")]
    assert JobSucceeded in it.kinds


# Jobs that this pool claimed again


async def test_nothing_is_written_about_a_discarded_run(scene, tasks):
    it = await scene("slow")
    claimed = it.workers[0].claimed

    it.pool.discard_run(claimed)
    await run_until_idle()

    # A write would end the newer run of the job.
    assert it.outcomes == []
    assert it.kinds[-1] is JobLockLost
    assert it.source.written == [claimed]
    assert it.pool.claimed_ids == []


async def test_a_plain_function_whose_run_is_discarded_is_asked_to_stop(scene, tasks):
    it = await scene("polite_plain")

    it.pool.discard_run(it.workers[0].claimed)
    await wait_until(lambda: JobLockLost in it.kinds)

    assert it.outcomes == []


async def test_a_revoked_run_that_is_discarded_writes_nothing(scene, tasks):
    it = await scene("plain")
    it.pool.revoke_jobs(match_all)

    it.pool.discard_run(it.workers[0].claimed)
    tasks.release_thread.set()
    await wait_until(lambda: JobLockLost in it.kinds)

    assert it.outcomes == []


async def test_a_discarded_run_that_is_revoked_writes_nothing(scene, tasks):
    it = await scene("plain")
    it.pool.discard_run(it.workers[0].claimed)

    it.pool.revoke_jobs(match_all)
    tasks.release_thread.set()
    await wait_until(lambda: JobLockLost in it.kinds)

    assert it.outcomes == []


@pytest.mark.parametrize("task", ["plain", "stubborn"])
async def test_the_job_of_a_discarded_run_is_not_released_at_the_end(scene, tasks, task):
    # A release would unlock the job for other pools while the newer run still has it.
    it = await scene(task, shutdown_timeout=SOON, timings=IMPATIENT)
    it.pool.discard_run(it.workers[0].claimed)

    it.pool.stop_gracefully("test")
    await it.end()
    tasks.release.set()
    await run_until_idle()

    assert it.outcomes == []
    assert it.kinds.count(JobLockLost) == 1


async def test_a_task_that_runs_on_after_its_own_transaction_has_succeeded(scene, tasks):
    it = await scene("committed", shutdown_timeout=SOON, timings=IMPATIENT)

    it.pool.stop_gracefully("test")
    await it.end()

    assert it.outcomes == [(CompletedInTransaction, "committed")]
    assert it.kinds.count(JobSucceeded) == 1


async def test_only_the_older_run_of_a_job_is_discarded(scene, tasks):
    it = await scene("slow", "slow")
    same_job = ClaimedJob(make_job(id=1, locked_by="p1"), None)

    it.pool.discard_run(same_job)
    await run_until_idle()

    assert it.pool.claimed_ids == [1, 2]
    assert it.outcomes == []


# Before a job starts


async def test_a_job_that_must_not_start_is_released(tasks):
    it = Scene(FakeSource("slow"), {"slow": tasks.slow})
    it.start_guard.rejection = MANY

    await run_until_idle()

    [outcome] = it.completer.written
    assert isinstance(outcome, Interrupted)
    assert outcome.when == MANY
    assert JobStarted not in it.kinds
    assert tasks.begun.locked()
    assert not it.pool.is_stopping


async def test_a_job_has_started_from_when_it_may_begin_until_its_end_is_written(tasks):
    it = Scene(FakeSource("slow", "slow"), {"slow": tasks.slow})
    it.start_guard.answering.clear()
    await it.start_guard.started.wait()
    assert (it.pool.claimed_ids, it.pool.started_ids) == ([1], [])

    it.start_guard.answering.set()
    await tasks.begun.acquire()
    assert (it.pool.claimed_ids, it.pool.started_ids) == ([1], [1])

    it.completer.answering.clear()
    tasks.release.set()
    await it.completer.started.wait()
    assert (it.pool.claimed_ids, it.pool.started_ids) == ([1], [1])
    assert it.start_guard.ended == []

    # It is unknown yet whether the next job may start.
    it.start_guard.answering.clear()
    it.completer.answering.set()
    await run_until_idle()
    assert (it.pool.claimed_ids, it.pool.started_ids) == ([2], [])
    assert it.start_guard.ended == [1]


async def test_a_job_counts_as_running_until_the_batch_with_its_completion_is_written(tasks):
    # If this process died before, the job would be recovered as a running one.
    it = Scene(FakeSource("slow"), {"slow": tasks.slow}, complete_batch_delay=timedelta(0))
    it.completer.answering.clear()
    tasks.release.set()
    await it.completer.started.wait()
    assert (it.pool.claimed_ids, it.pool.started_ids) == ([1], [1])
    assert it.start_guard.ended == []

    it.completer.answering.set()
    await run_until_idle()
    assert it.start_guard.ended == [1]


async def test_a_run_that_is_discarded_before_its_start_never_starts(tasks):
    it = Scene(FakeSource("slow"), {"slow": tasks.slow})
    it.start_guard.answering.clear()
    await it.start_guard.started.wait()

    claimed = it.workers[0].claimed
    assert claimed is not None
    it.pool.discard_run(claimed)
    it.start_guard.answering.set()
    await run_until_idle()

    assert it.outcomes == []
    assert it.kinds[-1] is JobLockLost
    assert tasks.begun.locked()
