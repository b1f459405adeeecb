"""JobBuffer: fetched jobs that wait for a worker, and workers that wait for a job."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection

from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._support.cancellation import is_being_cancelled
from graphile_worker._support.failpoints import failpoint
from graphile_worker._worker.claimer import Claimer
from graphile_worker._worker.completer import Completer
from graphile_worker.events import GetJobErrored, LocalQueueFetched, LocalQueueReturned
from graphile_worker.hooks import Hooks

# Jobs that are given out before the event loop may run other tasks.
JOBS_BEFORE_YIELD = 100

# The first fetch shows how large payloads are. Each fetch may be this many times the last one.
FIRST_FETCH_LIMIT = 100
FETCH_LIMIT_GROWTH = 4


class Waiter:
    """A worker that waits for a job. It gets None if the source stops."""

    __slots__ = ("_future", "worker_id")

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id
        self._future: asyncio.Future[ClaimedJob | None] = asyncio.get_running_loop().create_future()

    @property
    def is_waiting(self) -> bool:
        """Return False after the delivery, or if the worker was cancelled."""
        return not self._future.done()

    async def wait(self) -> ClaimedJob | None:
        return await self._future

    def deliver(self, claimed: ClaimedJob | None) -> None:
        if self.is_waiting:
            self._future.set_result(claimed)

    def fail(self, error: BaseException) -> None:
        if self.is_waiting:
            self._future.set_exception(error)


class JobBuffer:
    """Delivers jobs by priority, and jobs of one priority in the order of their arrival.

    It calls `on_low` when fewer than `low_watermark` jobs are left, or when a worker has to wait.
    """

    def __init__(
        self,
        claimer: Claimer,
        completer: Completer,
        hooks: Hooks,
        on_low: Callable[[], None],
        *,
        emits_events: bool = True,
    ) -> None:
        self.low_watermark = 1
        self.is_closed = False
        self.jobs: deque[ClaimedJob] = deque()
        self.waiters: deque[Waiter] = deque()
        self._claimer = claimer
        self._completer = completer
        self._hooks = hooks
        self._on_low = on_low
        self._emits_events = emits_events
        self._jobs_until_yield = JOBS_BEFORE_YIELD
        self._error: BaseException | None = None
        # Called after a job was released that could not be released at first.
        self.on_released: Callable[[], None] = lambda: None
        self._late_releases: set[asyncio.Task[None]] = set()
        self._may_release_later = True

    # For workers

    def take_buffered(self) -> ClaimedJob | None:
        """Return the next job if it can start without a wait, else None."""
        if (
            not self.jobs
            or self.is_closed
            or self._jobs_until_yield <= 0
            or self._claimer.has_dynamic_flags
        ):
            return None
        if self.jobs[0].job.locked_by != self._claimer.pool_id:
            return None
        return self._pop()

    async def wait_for_job(self, worker_id: str) -> ClaimedJob | None:
        """Wait for the next job. Return None if the buffer is closed."""
        while True:
            if self._jobs_until_yield <= 0:
                await asyncio.sleep(0)
                self._jobs_until_yield = JOBS_BEFORE_YIELD
            if self._error is not None:
                raise self._error
            if self.is_closed:
                return None
            if not self.jobs:
                return await self._wait_for_fetch(worker_id)
            claimed = self._pop()
            if await self._can_run(claimed, worker_id):
                return claimed

    # For the source that fills it

    def put(self, claimed_jobs: list[ClaimedJob]) -> None:
        """Deliver jobs to waiting workers, and keep the rest."""
        if self._emits_events and self._hooks.has_listeners(LocalQueueFetched):
            jobs = tuple(each.job for each in claimed_jobs)
            self._hooks.emit(LocalQueueFetched(pool_id=self._claimer.pool_id, jobs=jobs))
        self._merge(claimed_jobs)
        while self.jobs and self.waiters and not self.is_closed:
            waiter = self.waiters.popleft()
            if waiter.is_waiting:
                waiter.deliver(self.jobs.popleft())
        failpoint("job_prefetched")

    def close(self, error: BaseException | None = None) -> None:
        """Stop delivering jobs. Waiting workers get None or the error."""
        self._error = self._error or error
        self.is_closed = True
        while self.waiters:
            waiter = self.waiters.popleft()
            if error is None:
                waiter.deliver(None)
            else:
                waiter.fail(error)

    def prune_waiters(self) -> deque[Waiter]:
        """Remove waiters whose worker was cancelled, and return the others."""
        if any(not waiter.is_waiting for waiter in self.waiters):
            self.waiters = deque(waiter for waiter in self.waiters if waiter.is_waiting)
        return self.waiters

    def take_all(self) -> list[ClaimedJob]:
        jobs, self.jobs = list(self.jobs), deque()
        return jobs

    def take_older(self, cutoff: float) -> list[ClaimedJob]:
        """Take the jobs that were fetched before that time."""
        older = [each for each in self.jobs if each.claimed_at < cutoff]
        if older:
            self.jobs = deque(each for each in self.jobs if each.claimed_at >= cutoff)
        return older

    def take_tasks(self, names: Collection[str]) -> list[ClaimedJob]:
        """Take the jobs of these tasks."""
        taken = [each for each in self.jobs if each.job.task_identifier in names]
        if taken:
            self.jobs = deque(each for each in self.jobs if each.job.task_identifier not in names)
        return taken

    async def release(self, unstarted: list[ClaimedJob]) -> None:
        """Release jobs that did not start, and notify other workers.

        A job that cannot be released now is released later, because the next fetch waits for this
        call. Until then, or until the shutdown releases it, this pool holds the job.
        """
        if not unstarted:
            return
        left = await self._try_release(unstarted, attempt=0)
        if left and self._may_release_later:
            releasing = asyncio.create_task(self._release_later(left))
            self._late_releases.add(releasing)
            releasing.add_done_callback(self._late_releases.discard)

    async def release_all(self) -> None:
        """Release all jobs, and wait until that is done."""
        try:
            await self.release(self.take_all())
            while self._late_releases:
                await asyncio.wait(self._late_releases)
        finally:
            self._cancel_late_releases()

    def stop_late_releases(self) -> None:
        """Release no job later from now on. The shutdown releases the jobs that are left."""
        self._may_release_later = False
        self._cancel_late_releases()

    def _cancel_late_releases(self) -> None:
        for each in self._late_releases:
            each.cancel()

    async def _release_later(self, left: list[ClaimedJob]) -> None:
        attempt = 1
        # Not only until it is cancelled: a driver that waits for its server can swallow that.
        while self._may_release_later:
            still_left = await self._try_release(left, attempt=attempt)
            if len(still_left) < len(left):
                self.on_released()
            left = still_left
            if not left:
                return
            await self._completer.wait_for_retry(attempt)
            attempt += 1

    async def _try_release(self, unstarted: list[ClaimedJob], *, attempt: int) -> list[ClaimedJob]:
        """Release jobs, report them, and return those that could not be released."""
        left = await self._completer.try_release(unstarted, attempt=attempt)
        left_ids = {id(each) for each in left}
        await self._report_released([each for each in unstarted if id(each) not in left_ids])
        return left

    async def _report_released(self, released: list[ClaimedJob]) -> None:
        if not released:
            return
        await self._completer.notify_jobs_available(len(released))
        for each in released:
            self._claimer.forget(each)
        if self._emits_events:
            jobs = tuple(each.job for each in released)
            self._hooks.emit(LocalQueueReturned(pool_id=self._claimer.pool_id, jobs=jobs))

    def _merge(self, claimed_jobs: list[ClaimedJob]) -> None:
        is_urgent = (
            self.jobs and claimed_jobs and claimed_jobs[0].job.priority < self.jobs[-1].job.priority
        )
        self.jobs.extend(claimed_jobs)
        if is_urgent:
            self.jobs = deque(sorted(self.jobs, key=lambda each: each.job.priority))

    def _pop(self) -> ClaimedJob:
        self._jobs_until_yield -= 1
        claimed = self.jobs.popleft()
        if len(self.jobs) < self.low_watermark:
            self._on_low()
        return claimed

    async def _wait_for_fetch(self, worker_id: str) -> ClaimedJob | None:
        waiter = Waiter(worker_id)
        self.waiters.append(waiter)
        self._on_low()
        return await waiter.wait()

    async def _can_run(self, claimed: ClaimedJob, worker_id: str) -> bool:
        """Return whether a buffered job may still run, and release it if not.

        Its lease may be lost, or its flags may be forbidden meanwhile.
        """
        is_allowed = claimed.pool_id == self._claimer.pool_id and not await self._is_forbidden(
            claimed, worker_id
        )
        # The buffer may have been closed meanwhile.
        if is_allowed and not self.is_closed:
            return True
        await self.release([claimed])
        return False

    async def _is_forbidden(self, claimed: ClaimedJob, worker_id: str) -> bool:
        if not self._claimer.has_dynamic_flags or not claimed.job.flags:
            return False
        try:
            forbidden = await self._claimer.get_forbidden_flags()
        except (Exception, asyncio.CancelledError) as error:
            if is_being_cancelled():
                raise
            # The flags are unknown: release the job. The next fetch calls the function again.
            pool_id = self._claimer.pool_id
            self._hooks.emit(GetJobErrored(pool_id=pool_id, worker_id=worker_id, error=error))
            return True
        return not claimed.job.flags.isdisjoint(forbidden or ())


def compute_fetch_limit(
    limit: int, max_limit: int, max_bytes: int, claimed_jobs: list[ClaimedJob]
) -> int:
    """Return how many jobs to fetch next: as many as fit if they are as large as the last."""
    size = sum(each.size for each in claimed_jobs)
    if not size:
        return limit
    fits = max_bytes * len(claimed_jobs) // size
    return max(1, min(max_limit, fits, limit * FETCH_LIMIT_GROWTH))
