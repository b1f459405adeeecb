"""WorkerPool: all workers of one process. They start together and stop in steps."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any

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
from graphile_worker.lease import Lease
from graphile_worker.sql.holding import HeldJob
from graphile_worker.worker.batches import Batches
from graphile_worker.worker.context import Cancellation
from graphile_worker.worker.source import JobSource
from graphile_worker.worker.worker import HAND_BACK_WITHIN, Worker

# A cancelled task may tidy up for so long, and a write may take so long, before a stop goes on
# without them. Together they leave an orchestrator that kills after 30 seconds no reason to.
TIDY_UP_WITHIN = 2.0
WRITE_WITHIN = 2.0


class WorkerPool:
    """Runs until `stop_gracefully` or `stop_forcefully`, or until its source has no more jobs.

    A graceful stop takes no more jobs and waits for those that run: after `abort_after` it asks
    them to give up, at `stop_after` it cancels them, and their jobs are handed back. What cannot be
    cancelled still runs when `run` returns; `hand_back_the_rest` is for the very end.
    """

    def __init__(
        self,
        lease: Lease,
        source: JobSource,
        workers: list[Worker],
        batches: Batches,
        cancellation: Cancellation,
        hooks: Hooks,
        *,
        tasks: Iterable[str],
        abort_after: timedelta | None,
        stop_after: timedelta | None,
    ) -> None:
        self._lease = lease
        self._source = source
        self._workers = workers
        self._batches = batches
        self._writing: list[asyncio.Task[None]] = []
        self._cancellation = cancellation
        self._hooks = hooks
        self._tasks = tuple(tasks)
        self._abort_after = _seconds(abort_after)
        self._stop_after = _seconds(stop_after)
        self._stop = asyncio.Event()
        self._finishing = False
        self.forced = asyncio.Event()
        self._fetching: asyncio.Task[None] | None = None
        self._main: asyncio.Task[Any] | None = None
        self._running: dict[asyncio.Task[None], Worker] = {}
        self._fatal: BaseException | None = None

    @property
    def id(self) -> str:
        return self._lease.pool_id

    @property
    def count(self) -> int:
        """How many jobs were run."""
        return sum(worker.count for worker in self._workers)

    @property
    def is_ready(self) -> bool:
        """Does it take jobs, and does the database answer?"""
        return not self._stop.is_set() and not self._finishing and not self._source.failing

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    @property
    def holds_jobs(self) -> bool:
        return any(worker.holds for worker in self._workers) or bool(self._batches.pending)

    @property
    def held_ids(self) -> list[int]:
        # The heartbeat asks from another thread, where `holds` may change between two looks.
        by_workers = [held for worker in self._workers if (held := worker.holds)]
        return [held.job.id for held in by_workers + self._batches.pending]

    @property
    def started_ids(self) -> list[int]:
        """Those whose task runs, or has run and its end is not written yet."""
        started = [worker for worker in self._workers if worker.has_started]
        by_workers = [held for worker in started if (held := worker.holds)]
        return [held.job.id for held in by_workers + self._batches.pending]

    def nudge(self, count: int | None = None) -> None:
        """So many jobs may be there to take; None: who knows."""
        if not self._stop.is_set() and not self._finishing:
            self._source.pulse(count)

    def give_up_jobs(self, which: Callable[[HeldJob], bool]) -> tuple[int, ...]:
        """Cancel the runs of jobs that others have or may take; which those were."""
        given_up = [
            held.job.id
            for worker in self._workers
            if (held := worker.holds) and which(held) and worker.lose_job()
        ]
        self._cancellation.look_again()
        return tuple(given_up)

    def drop(self, held: HeldJob) -> None:
        """This pool has taken that job again: end its older run, and write nothing about it."""
        for worker in self._workers:
            if worker.holds is held:
                worker.lose_job(dropped=True)
        self._cancellation.look_again()

    def stop_because_of(self, error: BaseException) -> None:
        """Begin to stop because this makes it impossible to go on; `run` will raise it."""
        self._fatal = self._fatal or error
        self.stop_gracefully(str(error))

    def finish(self) -> None:
        """Take no more jobs; `run` returns once those that run have ended, in their own time."""
        self._finishing = True
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
        self._fetching = asyncio.create_task(self._source.run())
        self._writing = [asyncio.create_task(batch.run()) for batch in self._batches.all]
        for task in self._writing:
            task.add_done_callback(self._must_not_end)
        self._running = {self._start(worker): worker for worker in self._workers}

    async def run(self) -> None:
        """Work until told to stop, and stop; raises what made it impossible to go on."""
        if self._fetching is None:
            self.start()
        assert self._fetching is not None
        fetching = self._fetching
        self._main = asyncio.current_task()
        try:
            await self._until_stopping(fetching)
            await self._let_finish()
            await self._end_fetching(fetching)
        except asyncio.CancelledError:
            self._source.stop()
            await self._cancel_all()
            # It hands back what it may still bring.
            await _end(fetching, HAND_BACK_WITHIN, TIDY_UP_WITHIN / 4)
            raise
        if self._fatal is not None:
            raise self._fatal

    async def hand_back_the_rest(self) -> None:
        """Return the jobs of tasks that nobody can stop; raises if anything stays locked."""
        left = [worker for worker in self._workers if worker.holds]
        locked = [held for held in await asyncio.gather(*map(self._hand_back, left)) if held]
        for task, worker in self._running.items():
            # One without a job may be handing back what it was given too late, for as long as there
            # is no database.
            if worker.holds is None:
                task.cancel()
        locked += await self._flush()
        error = JobsLeftLocked(held.job.id for held in locked) if locked else None
        self._announce_end(error)
        if error is not None:
            raise error

    def _start(self, worker: Worker) -> asyncio.Task[None]:
        created = WorkerCreated(pool_id=self.id, worker_id=worker.id, tasks=self._tasks)
        self._hooks.emit(created)
        task = asyncio.create_task(worker.run(), name=worker.id)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        worker = self._running.pop(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._hooks.emit(
                WorkerFatalError(
                    pool_id=self.id, worker_id=worker.id, error=error, job_error=worker.job_error
                )
            )
            self.stop_because_of(error)
        self._hooks.emit(WorkerStopped(pool_id=self.id, worker_id=worker.id, error=error))
        if task.cancelled() and self._goes_on:
            # Otherwise this pool would have fewer workers from here on, or none.
            self._hooks.emit(WorkerRestarted(pool_id=self.id, worker_id=worker.id))
            self._running[self._start(worker)] = worker

    @property
    def _goes_on(self) -> bool:
        """Are there more jobs to run? Not if this pool stops, or the program around it ends."""
        if self._stop.is_set() or self._finishing or self._main is None or self._fetching is None:
            return False
        return not self._main.cancelling() and not self._fetching.done()

    async def _until_stopping(self, fetching: asyncio.Task[None]) -> None:
        """Until told to stop, or until there is nothing left to do."""
        stop = asyncio.create_task(self._stop.wait())
        try:
            waiting: set[asyncio.Task[Any]] = {stop, fetching}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
        self._look_at(fetching)

    async def _end_fetching(self, fetching: asyncio.Task[None]) -> None:
        self._source.stop()
        # A server that says nothing any more is not waited for.
        await _end(fetching, TIDY_UP_WITHIN / 2, TIDY_UP_WITHIN / 2)
        self._look_at(fetching)

    def _look_at(self, fetching: asyncio.Task[None]) -> None:
        if fetching.done() and not fetching.cancelled() and (error := fetching.exception()):
            self.stop_because_of(error)

    async def _let_finish(self) -> None:
        abort_after, stop_after = self._abort_after, self._stop_after
        if not self._stop.is_set():
            # There are no more jobs: that is no reason to hurry those that run.
            await self._workers_end(None, unless=self._stop)
        if abort_after is not None and (stop_after is None or abort_after < stop_after):
            await self._workers_end(abort_after, unless=self.forced)
            stop_after = None if stop_after is None else stop_after - abort_after
            self._cancellation.request()
        await self._workers_end(stop_after, unless=self.forced)
        self._cancellation.request()
        interrupted = [task for task, worker in self._running.items() if worker.interrupt()]
        if interrupted:
            await asyncio.wait(interrupted, timeout=TIDY_UP_WITHIN)

    async def _cancel_all(self) -> None:
        """The program ends around us: what can be handed back is."""
        for task, worker in self._running.items():
            if not worker.is_writing:
                task.cancel()
        await self._workers_end(HAND_BACK_WITHIN, unless=None)
        for task in self._running:
            task.cancel()

    async def _workers_end(self, within: float | None, *, unless: asyncio.Event | None) -> None:
        """Until all workers have ended, that much time has passed, or something happened."""
        waiting = [asyncio.create_task(self._all_end())]
        if unless is not None:
            waiting.append(asyncio.create_task(_happens(unless)))
        try:
            await asyncio.wait(waiting, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()

    async def _all_end(self) -> None:
        while self._running:
            await asyncio.wait(self._running)

    async def _hand_back(self, worker: Worker) -> HeldJob | None:
        """Write that the job of this worker is free again; the job if that cannot be done."""
        held = worker.holds
        try:
            async with asyncio.timeout(WRITE_WITHIN):
                await worker.hand_back()
        except TimeoutError as error:
            self._announce_left(None if held is None else held.job, error)
            worker.give_up()
            return held
        return None

    async def _flush(self) -> list[HeldJob]:
        """Write what is gathered; the jobs of which that cannot be done."""
        with suppress(TimeoutError):
            async with asyncio.timeout(WRITE_WITHIN):
                for batch in self._batches.all:
                    await batch.close()
        for task in self._writing:
            task.cancel()
        for batch in self._batches.all:
            batch.abandon()
        left = self._batches.pending
        for held in left:
            self._announce_left(held.job, TimeoutError())
        return left

    def _announce_left(self, job: Job | None, error: BaseException) -> None:
        self._hooks.emit(PoolGracefulShutdownWorkerError(pool_id=self.id, error=error, job=job))

    def _must_not_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self.stop_because_of(error)

    def _announce_end(self, error: Exception | None) -> None:
        forced = self.forced.is_set()
        if error is not None:
            failed = PoolForcefulShutdownError if forced else PoolGracefulShutdownError
            self._hooks.emit(failed(pool_id=self.id, error=error))
        elif self._stop.is_set():
            done = PoolForcefulShutdownCompleted if forced else PoolGracefulShutdownCompleted
            self._hooks.emit(done(pool_id=self.id))
        self._hooks.emit(PoolReleased(pool_id=self.id))


async def _end(fetching: asyncio.Task[None], *patience: float) -> None:
    """Return once it has ended, by itself or cancelled.

    Cancelled, it may want to hand back what waits in it, for as long as there is no database.
    """
    for seconds in (*patience, None):
        await asyncio.wait([fetching], timeout=seconds)
        fetching.cancel()


async def _happens(event: asyncio.Event) -> None:
    await event.wait()


def _seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()
