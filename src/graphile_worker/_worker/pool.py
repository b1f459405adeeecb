"""WorkerPool: all workers of one process, which start together and stop in steps."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from graphile_worker._lease.background_loop import cancel_until_done
from graphile_worker._lease.lease import Lease
from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._support.durations import to_seconds
from graphile_worker._support.lazy_dataclass import LazyKeywordDataclass
from graphile_worker._worker.cancellation import Cancellation
from graphile_worker._worker.completion_batcher import CompletionBatchers
from graphile_worker._worker.limited_jobs import LimitedJobs
from graphile_worker._worker.sources.base import JobSource
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


class ShutdownTimings(LazyKeywordDataclass):
    """Time limits of the steps of a shutdown, which goes on without those that take longer.

    With the default `shutdown_timeout`, cleanup and write take less than the 30 s after which
    orchestrators kill.
    """

    cleanup_timeout_seconds: float = 2.0
    """Time for a cancelled task to clean up."""
    write_timeout_seconds: float = 2.0
    """Time for the write of an outcome."""
    release_timeout_seconds: float = RELEASE_TIMEOUT_SECONDS
    """Time to release the jobs of a program that was cancelled."""


DEFAULT_TIMINGS = ShutdownTimings()


class WorkerPool:
    """Runs until `stop_gracefully` or `stop_forcefully`, or until its source has no more jobs.

    A graceful shutdown claims no more jobs and waits for those that run. After `cancel_after` it
    asks their tasks to stop. At `shutdown_timeout` it cancels them and releases their jobs. A
    task that cannot be cancelled still runs when `run` returns; `release_remaining` releases its
    job.
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
        limited: LimitedJobs | None = None,
        timings: ShutdownTimings = DEFAULT_TIMINGS,
    ) -> None:
        self._lease = lease
        self._source = source
        # The jobs of tasks with limits, which do not come from the source.
        self._limited = limited
        self._workers = workers
        self._batchers = batchers
        self._write_tasks: list[asyncio.Task[None]] = []
        self._cancellation = cancellation
        self._hooks = hooks
        self._tasks = tuple(tasks)
        self._cancel_after = to_seconds(cancel_after)
        self._shutdown_timeout = to_seconds(shutdown_timeout)
        self._timings = timings
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
        """Return the number of jobs that ran."""
        return sum(worker.job_count for worker in self._workers)

    @property
    def concurrency(self) -> int:
        return len(self._workers)

    @property
    def running_count(self) -> int:
        """Return the number of jobs that run. Any thread may read this."""
        return sum(worker.has_started for worker in self._workers)

    @property
    def buffered_count(self) -> int:
        """Return the number of claimed jobs that wait for a worker."""
        return self._source.buffered_count

    @property
    def is_database_reachable(self) -> bool:
        """Return whether the last fetch succeeded."""
        return not self._is_failing

    @property
    def is_ready(self) -> bool:
        """Return whether the pool claims jobs and the database is reachable."""
        return not self._stop.is_set() and not self._is_finishing and not self._is_failing

    @property
    def _is_failing(self) -> bool:
        limited = self._limited
        return self._source.is_failing or (limited is not None and limited.is_failing)

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    @property
    def has_claimed_jobs(self) -> bool:
        return any(worker.claimed for worker in self._workers) or bool(self._batchers.pending_jobs)

    @property
    def claimed_ids(self) -> list[int]:
        return self._get_job_ids(self._workers)

    @property
    def started_ids(self) -> list[int]:
        """Return the ids of jobs whose task started, until their outcome is written."""
        return self._get_job_ids([worker for worker in self._workers if worker.has_started])

    def _get_job_ids(self, workers: list[Worker]) -> list[int]:
        # The heartbeat calls this from its thread, while `claimed` may change.
        by_workers = [claimed for worker in workers if (claimed := worker.claimed)]
        return [claimed.job.id for claimed in by_workers + self._batchers.pending_jobs]

    def wake(self, count: int | None = None) -> None:
        """Fetch soon, because `count` jobs may be ready. None if the number is unknown."""
        if not self._stop.is_set() and not self._is_finishing:
            self._source.wake(count)
            if self._limited is not None:
                self._limited.wake()

    def revoke_jobs(self, predicate: Callable[[ClaimedJob], bool]) -> tuple[int, ...]:
        """Stop the tasks of jobs that other pools may claim, and return the ids of those jobs."""
        job_ids = tuple(
            claimed.job.id
            for worker in self._workers
            if (claimed := worker.claimed) and predicate(claimed) and worker.revoke()
        )
        self._cancellation.recheck()
        return job_ids

    def discard_run(self, claimed: ClaimedJob) -> None:
        """End the older run of a job that this pool claimed again, and write nothing about it."""
        for worker in self._workers:
            if worker.claimed is claimed:
                worker.discard()
        self._cancellation.recheck()

    def stop_on_error(self, error: BaseException) -> None:
        """Shut down gracefully; `run` then raises this error."""
        self._fatal_error = self._fatal_error or error
        self.stop_gracefully(str(error))

    def stop_on_task_error(self, task: asyncio.Task[None]) -> None:
        """Shut down if this task, which has ended, raised an error."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.stop_on_error(error)

    def finish(self) -> None:
        """Claim no more jobs; `run` returns when the running ones have ended, without a timeout."""
        self._is_finishing = True
        self._source.stop()

    def stop_gracefully(self, message: str) -> None:
        """Shut down gracefully; `run` returns when that is done."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._hooks.emit(PoolGracefulShutdown(pool_id=self.id, message=message))
        self._source.stop()
        for worker in self._workers:
            self._hooks.emit(WorkerReleased(pool_id=self.id, worker_id=worker.id))

    def stop_forcefully(self, message: str) -> None:
        """Shut down without waiting for tasks; `run` returns when that is done."""
        self.stop_gracefully(message)
        if not self.forced.is_set():
            self.forced.set()
            self._hooks.emit(PoolForcefulShutdown(pool_id=self.id, message=message))

    def start(self) -> None:
        """Start all workers."""
        self._hooks.emit(PoolCreated(pool_id=self.id))
        self._fetch_task = asyncio.create_task(self._source.run())
        self._write_tasks = [asyncio.create_task(each.run()) for each in self._batchers.batchers]
        for task in self._write_tasks:
            task.add_done_callback(self.stop_on_task_error)
        self._running = {self._start_worker(worker): worker for worker in self._workers}

    async def run(self) -> None:
        """Run jobs until the pool is shut down, and raise the error that stopped it."""
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
            # The source releases the jobs that its last fetch brings.
            await _wait_then_cancel(
                fetching,
                self._timings.release_timeout_seconds,
                self._timings.cleanup_timeout_seconds / 4,
            )
            raise
        if self._fatal_error is not None:
            raise self._fatal_error

    async def release_remaining(self) -> None:
        """Release the jobs of tasks that cannot be stopped.

        Raises:
            JobsLeftLocked: Some outcomes could not be written.
        """
        self._source.stop_late_releases()
        busy = [worker for worker in self._workers if worker.claimed]
        locked = [each for each in await asyncio.gather(*map(self._release_job, busy)) if each]
        for task, worker in self._running.items():
            # A worker without a job may be releasing one that came too late, which can take as long
            # as a database outage.
            if worker.claimed is None:
                task.cancel()
        locked += await self._flush()
        error = JobsLeftLocked(each.job.id for each in locked) if locked else None
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
            # Otherwise this pool would have fewer workers from now on.
            self._hooks.emit(WorkerRestarted(pool_id=self.id, worker_id=worker.id))
            self._running[self._start_worker(worker)] = worker

    @property
    def _is_active(self) -> bool:
        """Return False if this pool shuts down or its program ends."""
        if (
            self._stop.is_set()
            or self._is_finishing
            or self._main_task is None
            or self._fetch_task is None
        ):
            return False
        return not self._main_task.cancelling() and not self._fetch_task.done()

    async def _wait_until_stopping(self, fetch_task: asyncio.Task[None]) -> None:
        """Wait for a shutdown, or until the source has no more jobs."""
        stop = asyncio.create_task(self._stop.wait())
        try:
            waiting: set[asyncio.Task[Any]] = {stop, fetch_task}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
        if fetch_task.done():
            self.stop_on_task_error(fetch_task)

    async def _stop_fetching(self, fetch_task: asyncio.Task[None]) -> None:
        self._source.stop()
        # Cancelled, because the server may not answer.
        half = self._timings.cleanup_timeout_seconds / 2
        await _wait_then_cancel(fetch_task, half, half)
        self.stop_on_task_error(fetch_task)

    async def _shut_down_workers(self) -> None:
        cancel_after, shutdown_timeout = self._cancel_after, self._shutdown_timeout
        if not self._stop.is_set():
            # The source has no more jobs: wait for the running ones without a timeout.
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
            await asyncio.wait(interrupted, timeout=self._timings.cleanup_timeout_seconds)

    async def _cancel_workers(self) -> None:
        """Cancel the workers, which release their jobs if they can, because the program ends."""
        for task, worker in self._running.items():
            if not worker.is_writing:
                task.cancel()
        await self._wait_for_workers(self._timings.release_timeout_seconds, unless=None)
        for task in self._running:
            task.cancel()

    async def _wait_for_workers(
        self, timeout_seconds: float | None, *, unless: asyncio.Event | None
    ) -> None:
        """Wait until all workers have ended, the timeout expires or the event is set."""
        waiting: list[asyncio.Task[Any]] = [asyncio.create_task(self._wait_for_all_workers())]
        if unless is not None:
            waiting.append(asyncio.create_task(unless.wait()))
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
        """Release the job of a worker, and return the job if that fails."""
        claimed = worker.claimed
        try:
            async with asyncio.timeout(self._timings.write_timeout_seconds):
                await worker.release()
        except TimeoutError as error:
            self._emit_left_locked(None if claimed is None else claimed.job, error)
            worker.cancel()
            return claimed
        return None

    async def _flush(self) -> list[ClaimedJob]:
        """Write the collected outcomes, and return the jobs for which that fails."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timings.write_timeout_seconds):
                for batcher in self._batchers.batchers:
                    await batcher.close()
        for task in self._write_tasks:
            task.cancel()
        for batcher in self._batchers.batchers:
            batcher.abandon()
        unwritten = self._batchers.pending_jobs
        for claimed in unwritten:
            self._emit_left_locked(claimed.job, TimeoutError())
        return unwritten

    def _emit_left_locked(self, job: Job | None, error: BaseException) -> None:
        self._hooks.emit(PoolGracefulShutdownWorkerError(pool_id=self.id, error=error, job=job))

    def _emit_shutdown_result(self, error: Exception | None) -> None:
        forced = self.forced.is_set()
        if error is not None:
            failed = PoolForcefulShutdownError if forced else PoolGracefulShutdownError
            self._hooks.emit(failed(pool_id=self.id, error=error))
        elif self._stop.is_set():
            done = PoolForcefulShutdownCompleted if forced else PoolGracefulShutdownCompleted
            self._hooks.emit(done(pool_id=self.id))
        self._hooks.emit(PoolReleased(pool_id=self.id))


async def _wait_then_cancel(
    fetch_task: asyncio.Task[None], timeout_seconds: float, retry_seconds: float
) -> None:
    """Wait until the task has ended. After the timeout, cancel it repeatedly.

    After a cancellation it releases its jobs, which can take as long as a database outage. A driver
    that waits for its server can swallow a cancellation.
    """
    await asyncio.wait([fetch_task], timeout=timeout_seconds)
    await cancel_until_done([fetch_task], retry_seconds=retry_seconds)
