"""WorkerPool: all workers of one process. They start together and stop in steps."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from graphile_worker._lease.lease import Lease
from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._worker.completion_batcher import CompletionBatchers
from graphile_worker._worker.context import Cancellation
from graphile_worker._worker.sources.direct import JobSource
from graphile_worker._worker.worker import RELEASE_TIMEOUT_SECONDS, Worker
from graphile_worker.errors import JobsLeftLocked
from graphile_worker.events import (
    PoolCreated,
    PoolForcefulShutdown,
    PoolForcefulShutdownCompleted,
    PoolForcefulShutdownError,
    PoolGracefulShutdown,
    PoolGracefulShutdownCompleted,
    PoolGracefulShutdownError,
    PoolGracefulShutdownWorkerError,
    PoolReleased,
    WorkerCreated,
    WorkerFatalError,
    WorkerReleased,
    WorkerRestarted,
    WorkerStopped,
)
from graphile_worker.hooks import Hooks
from graphile_worker.jobs import Job

# A cancelled task may tidy up for so long, and a write may take so long, before a stop goes on
# without them. Together they leave an orchestrator that kills after 30 seconds no reason to.
CLEANUP_TIMEOUT_SECONDS = 2.0
WRITE_TIMEOUT_SECONDS = 2.0


class WorkerPool:
    """Runs until `stop_gracefully` or `stop_forcefully`, or until its source has no more jobs.

    A graceful stop takes no more jobs and waits for those that run: after `cancel_after` it asks
    them to give up, at `shutdown_timeout` it cancels them, and their jobs are handed back. What
    cannot be cancelled still runs when `run` returns; `release_remaining` is for the very end.
    """

    def __init__(
        self,
        lease: Lease,
        source: JobSource,
        workers: list[Worker],
        batchers: CompletionBatchers,
        cancellation: Cancellation,
        hooks: Hooks,
        *,
        tasks: Iterable[str],
        cancel_after: timedelta | None,
        shutdown_timeout: timedelta | None,
    ) -> None:
        self._lease = lease
        self._source = source
        self._workers = workers
        self._batchers = batchers
        self._write_tasks: list[asyncio.Task[None]] = []
        self._cancellation = cancellation
        self._hooks = hooks
        self._tasks = tuple(tasks)
        self._cancel_after = _to_seconds(cancel_after)
        self._shutdown_timeout = _to_seconds(shutdown_timeout)
        self._stop = asyncio.Event()
        self._is_finishing = False
        self.forced = asyncio.Event()
        self._fetch_task: asyncio.Task[None] | None = None
        self._main_task: asyncio.Task[Any] | None = None
        self._running: dict[asyncio.Task[None], Worker] = {}
        self._fatal_error: BaseException | None = None

    @property
    def id(self) -> str:
        return self._lease.pool_id

    @property
    def job_count(self) -> int:
        """How many jobs were run."""
        return sum(worker.job_count for worker in self._workers)

    @property
    def is_ready(self) -> bool:
        """Does it take jobs, and does the database answer?"""
        return not self._stop.is_set() and not self._is_finishing and not self._source.is_failing

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    @property
    def has_claimed_jobs(self) -> bool:
        return any(worker.claimed for worker in self._workers) or bool(self._batchers.pending_jobs)

    @property
    def claimed_ids(self) -> list[int]:
        # The heartbeat asks from another thread, where `claimed` may change between two looks.
        by_workers = [held for worker in self._workers if (held := worker.claimed)]
        return [held.job.id for held in by_workers + self._batchers.pending_jobs]

    @property
    def started_ids(self) -> list[int]:
        """Those whose task runs, or has run and its end is not written yet."""
        started = [worker for worker in self._workers if worker.has_started]
        by_workers = [held for worker in started if (held := worker.claimed)]
        return [held.job.id for held in by_workers + self._batchers.pending_jobs]

    def wake(self, count: int | None = None) -> None:
        """So many jobs may be there to take; None: who knows."""
        if not self._stop.is_set() and not self._is_finishing:
            self._source.wake(count)

    def revoke_jobs(self, predicate: Callable[[ClaimedJob], bool]) -> tuple[int, ...]:
        """Cancel the runs of jobs that others have or may take; which those were."""
        given_up = [
            held.job.id
            for worker in self._workers
            if (held := worker.claimed) and predicate(held) and worker.revoke()
        ]
        self._cancellation.recheck()
        return tuple(given_up)

    def discard_run(self, claimed: ClaimedJob) -> None:
        """This pool has taken that job again: end its older run, and write nothing about it."""
        for worker in self._workers:
            if worker.claimed is claimed:
                worker.revoke(is_discarded=True)
        self._cancellation.recheck()

    def stop_on_error(self, error: BaseException) -> None:
        """Begin to stop because this makes it impossible to go on; `run` will raise it."""
        self._fatal_error = self._fatal_error or error
        self.stop_gracefully(str(error))

    def finish(self) -> None:
        """Take no more jobs; `run` returns once those that run have ended, in their own time."""
        self._is_finishing = True
        self._source.stop()

    def stop_gracefully(self, message: str) -> None:
        """Begin to stop; `run` returns when that is done."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._hooks.emit(PoolGracefulShutdown(pool_id=self.id, message=message))
        self._source.stop()
        for worker in self._workers:
            self._hooks.emit(WorkerReleased(pool_id=self.id, worker_id=worker.id))

    def stop_forcefully(self, message: str) -> None:
        """Stop without waiting for running tasks; `run` returns when that is done."""
        self.stop_gracefully(message)
        if not self.forced.is_set():
            self.forced.set()
            self._hooks.emit(PoolForcefulShutdown(pool_id=self.id, message=message))

    def start(self) -> None:
        """Let all workers begin."""
        self._hooks.emit(PoolCreated(pool_id=self.id))
        self._fetch_task = asyncio.create_task(self._source.run())
        self._write_tasks = [asyncio.create_task(batch.run()) for batch in self._batchers.batchers]
        for task in self._write_tasks:
            task.add_done_callback(self._on_writer_done)
        self._running = {self._start_worker(worker): worker for worker in self._workers}

    async def run(self) -> None:
        """Work until told to stop, and stop; raises what made it impossible to go on."""
        if self._fetch_task is None:
            self.start()
        assert self._fetch_task is not None
        fetching = self._fetch_task
        self._main_task = asyncio.current_task()
        try:
            await self._wait_until_stopping(fetching)
            await self._shut_down_workers()
            await self._stop_fetching(fetching)
        except asyncio.CancelledError:
            self._source.stop()
            await self._cancel_workers()
            # It hands back what it may still bring.
            await _wait_then_cancel(fetching, RELEASE_TIMEOUT_SECONDS, CLEANUP_TIMEOUT_SECONDS / 4)
            raise
        if self._fatal_error is not None:
            raise self._fatal_error

    async def release_remaining(self) -> None:
        """Return the jobs of tasks that nobody can stop; raises if anything stays locked."""
        left = [worker for worker in self._workers if worker.claimed]
        locked = [held for held in await asyncio.gather(*map(self._release_job, left)) if held]
        for task, worker in self._running.items():
            # One without a job may be handing back what it was given too late, for as long as there
            # is no database.
            if worker.claimed is None:
                task.cancel()
        locked += await self._flush()
        error = JobsLeftLocked(held.job.id for held in locked) if locked else None
        self._emit_shutdown_result(error)
        if error is not None:
            raise error

    def _start_worker(self, worker: Worker) -> asyncio.Task[None]:
        created = WorkerCreated(pool_id=self.id, worker_id=worker.id, tasks=self._tasks)
        self._hooks.emit(created)
        task = asyncio.create_task(worker.run(), name=worker.id)
        task.add_done_callback(self._on_worker_done)
        return task

    def _on_worker_done(self, task: asyncio.Task[None]) -> None:
        worker = self._running.pop(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._hooks.emit(
                WorkerFatalError(
                    pool_id=self.id, worker_id=worker.id, error=error, job_error=worker.job_error
                )
            )
            self.stop_on_error(error)
        self._hooks.emit(WorkerStopped(pool_id=self.id, worker_id=worker.id, error=error))
        if task.cancelled() and self._is_active:
            # Otherwise this pool would have fewer workers from here on, or none.
            self._hooks.emit(WorkerRestarted(pool_id=self.id, worker_id=worker.id))
            self._running[self._start_worker(worker)] = worker

    @property
    def _is_active(self) -> bool:
        """Are there more jobs to run? Not if this pool stops, or the program around it ends."""
        if (
            self._stop.is_set()
            or self._is_finishing
            or self._main_task is None
            or self._fetch_task is None
        ):
            return False
        return not self._main_task.cancelling() and not self._fetch_task.done()

    async def _wait_until_stopping(self, fetch_task: asyncio.Task[None]) -> None:
        """Until told to stop, or until there is nothing left to do."""
        stop = asyncio.create_task(self._stop.wait())
        try:
            waiting: set[asyncio.Task[Any]] = {stop, fetch_task}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
        self._check_fetch_task(fetch_task)

    async def _stop_fetching(self, fetch_task: asyncio.Task[None]) -> None:
        self._source.stop()
        # A server that says nothing any more is not waited for.
        await _wait_then_cancel(
            fetch_task, CLEANUP_TIMEOUT_SECONDS / 2, CLEANUP_TIMEOUT_SECONDS / 2
        )
        self._check_fetch_task(fetch_task)

    def _check_fetch_task(self, fetch_task: asyncio.Task[None]) -> None:
        if fetch_task.done() and not fetch_task.cancelled() and (error := fetch_task.exception()):
            self.stop_on_error(error)

    async def _shut_down_workers(self) -> None:
        cancel_after, shutdown_timeout = self._cancel_after, self._shutdown_timeout
        if not self._stop.is_set():
            # There are no more jobs: that is no reason to hurry those that run.
            await self._wait_for_workers(None, unless=self._stop)
        if cancel_after is not None and (
            shutdown_timeout is None or cancel_after < shutdown_timeout
        ):
            await self._wait_for_workers(cancel_after, unless=self.forced)
            shutdown_timeout = None if shutdown_timeout is None else shutdown_timeout - cancel_after
            self._cancellation.request()
        await self._wait_for_workers(shutdown_timeout, unless=self.forced)
        self._cancellation.request()
        interrupted = [task for task, worker in self._running.items() if worker.interrupt()]
        if interrupted:
            await asyncio.wait(interrupted, timeout=CLEANUP_TIMEOUT_SECONDS)

    async def _cancel_workers(self) -> None:
        """The program ends around us: what can be handed back is."""
        for task, worker in self._running.items():
            if not worker.is_writing:
                task.cancel()
        await self._wait_for_workers(RELEASE_TIMEOUT_SECONDS, unless=None)
        for task in self._running:
            task.cancel()

    async def _wait_for_workers(
        self, timeout_seconds: float | None, *, unless: asyncio.Event | None
    ) -> None:
        """Until all workers have ended, that much time has passed, or something happened."""
        waiting = [asyncio.create_task(self._wait_for_all_workers())]
        if unless is not None:
            waiting.append(asyncio.create_task(_wait_for_event(unless)))
        try:
            await asyncio.wait(
                waiting, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for each in waiting:
                each.cancel()

    async def _wait_for_all_workers(self) -> None:
        while self._running:
            await asyncio.wait(self._running)

    async def _release_job(self, worker: Worker) -> ClaimedJob | None:
        """Write that the job of this worker is free again; the job if that cannot be done."""
        held = worker.claimed
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
                await worker.release()
        except TimeoutError as error:
            self._emit_left_locked(None if held is None else held.job, error)
            worker.abandon()
            return held
        return None

    async def _flush(self) -> list[ClaimedJob]:
        """Write what is gathered; the jobs of which that cannot be done."""
        with suppress(TimeoutError):
            async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
                for batch in self._batchers.batchers:
                    await batch.close()
        for task in self._write_tasks:
            task.cancel()
        for batch in self._batchers.batchers:
            batch.abandon()
        left = self._batchers.pending_jobs
        for held in left:
            self._emit_left_locked(held.job, TimeoutError())
        return left

    def _emit_left_locked(self, job: Job | None, error: BaseException) -> None:
        self._hooks.emit(PoolGracefulShutdownWorkerError(pool_id=self.id, error=error, job=job))

    def _on_writer_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self.stop_on_error(error)

    def _emit_shutdown_result(self, error: Exception | None) -> None:
        forced = self.forced.is_set()
        if error is not None:
            failed = PoolForcefulShutdownError if forced else PoolGracefulShutdownError
            self._hooks.emit(failed(pool_id=self.id, error=error))
        elif self._stop.is_set():
            done = PoolForcefulShutdownCompleted if forced else PoolGracefulShutdownCompleted
            self._hooks.emit(done(pool_id=self.id))
        self._hooks.emit(PoolReleased(pool_id=self.id))


async def _wait_then_cancel(fetch_task: asyncio.Task[None], *timeouts: float) -> None:
    """Return once it has ended, by itself or cancelled.

    Cancelled, it may want to hand back what waits in it, for as long as there is no database.
    """
    for seconds in (*timeouts, None):
        await asyncio.wait([fetch_task], timeout=seconds)
        fetch_task.cancel()


async def _wait_for_event(event: asyncio.Event) -> None:
    await event.wait()


def _to_seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()
