"""JobBuffer: jobs that were fetched ahead and wait for a worker, and workers that wait for one."""

import asyncio
from collections import deque
from collections.abc import Callable

from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._support.failpoints import failpoint
from graphile_worker._worker.claimer import Claimer
from graphile_worker._worker.completer import Completer
from graphile_worker._worker.sources.waiters import Waiter, is_being_cancelled
from graphile_worker.events import GetJobErrored, LocalQueueFetched, LocalQueueReturned
from graphile_worker.hooks import Hooks

# After so many jobs that never waited for anything, the event loop gets its turn.
JOBS_BEFORE_YIELD = 100

# The first fetch tells how large payloads are; each may ask for so many times the one before.
FIRST_FETCH_LIMIT = 100
FETCH_LIMIT_GROWTH = 4


class JobBuffer:
    """Jobs leave it by priority, and those of one priority in the order in which they came.

    Whoever fills it is told by `on_low` when fewer than `low_watermark` jobs are left, or when
    somebody asks and there is none.
    """

    def __init__(
        self, claimer: Claimer, completer: Completer, hooks: Hooks, on_low: Callable[[], None]
    ) -> None:
        self.low_watermark = 1
        self.is_closed = False
        self.jobs: deque[ClaimedJob] = deque()
        self.waiters: deque[Waiter] = deque()
        self._claimer = claimer
        self._completer = completer
        self._hooks = hooks
        self._on_low = on_low
        self._jobs_until_yield = JOBS_BEFORE_YIELD
        self._error: BaseException | None = None

    # For workers

    def take_buffered(self) -> ClaimedJob | None:
        """The next job, if it can be had without waiting for anything."""
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
        """The next job; None when there will be no more."""
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
            held = self._pop()
            if await self._can_run(held, worker_id):
                return held

    # For whoever fills it

    def put(self, claimed_jobs: list[ClaimedJob]) -> None:
        """Give jobs to those who ask; the rest is kept, unless there is nobody left to run it."""
        if self._hooks.has_listeners(LocalQueueFetched):
            jobs = tuple(held.job for held in claimed_jobs)
            self._hooks.emit(LocalQueueFetched(pool_id=self._claimer.pool_id, jobs=jobs))
        self._merge(claimed_jobs)
        while self.jobs and self.waiters and not self.is_closed:
            ask = self.waiters.popleft()
            if ask.is_waiting:
                ask.deliver(self.jobs.popleft())
        failpoint("job_prefetched")

    def close(self, error: BaseException | None = None) -> None:
        """Give out no more; whoever asks is sent away, or told of the error."""
        self._error = self._error or error
        self.is_closed = True
        while self.waiters:
            ask = self.waiters.popleft()
            if error is None:
                ask.deliver(None)
            else:
                ask.fail(error)

    def prune_waiters(self) -> deque[Waiter]:
        """Those who wait; a worker may have been cancelled meanwhile."""
        if any(not ask.is_waiting for ask in self.waiters):
            self.waiters = deque(ask for ask in self.waiters if ask.is_waiting)
        return self.waiters

    def take_all(self) -> list[ClaimedJob]:
        jobs, self.jobs = list(self.jobs), deque()
        return jobs

    def take_older(self, cutoff: float) -> list[ClaimedJob]:
        """Those that were fetched before that time."""
        older = [held for held in self.jobs if held.claimed_at < cutoff]
        if older:
            self.jobs = deque(held for held in self.jobs if held.claimed_at >= cutoff)
        return older

    async def release(self, unstarted: list[ClaimedJob]) -> None:
        """Return jobs to the database, and say that others can take them."""
        if not unstarted:
            return
        await self._completer.release(unstarted)
        await self._completer.notify_jobs_available(len(unstarted))
        for held in unstarted:
            self._claimer.forget(held)
        pool_id, jobs = self._claimer.pool_id, tuple(held.job for held in unstarted)
        self._hooks.emit(LocalQueueReturned(pool_id=pool_id, jobs=jobs))

    def _merge(self, claimed_jobs: list[ClaimedJob]) -> None:
        is_urgent = (
            self.jobs and claimed_jobs and claimed_jobs[0].job.priority < self.jobs[-1].job.priority
        )
        self.jobs.extend(claimed_jobs)
        if is_urgent:
            self.jobs = deque(sorted(self.jobs, key=lambda held: held.job.priority))

    def _pop(self) -> ClaimedJob:
        self._jobs_until_yield -= 1
        held = self.jobs.popleft()
        if len(self.jobs) < self.low_watermark:
            self._on_low()
        return held

    async def _wait_for_fetch(self, worker_id: str) -> ClaimedJob | None:
        ask = Waiter(worker_id)
        self.waiters.append(ask)
        self._on_low()
        return await ask.wait()

    async def _can_run(self, claimed: ClaimedJob, worker_id: str) -> bool:
        """A job that waited here: others may have taken it, or it may have to be left alone now."""
        is_ours = claimed.pool_id == self._claimer.pool_id
        is_wanted = is_ours and not await self._is_forbidden(claimed, worker_id)
        # Asking may have taken its time.
        if is_wanted and not self.is_closed:
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
            # Nobody knows whether it may run; the fetch that brings it again asks again.
            pool_id = self._claimer.pool_id
            self._hooks.emit(GetJobErrored(pool_id=pool_id, worker_id=worker_id, error=error))
            return True
        return not claimed.job.flags.isdisjoint(forbidden or ())


def compute_fetch_limit(
    limit: int, max_limit: int, max_bytes: int, claimed_jobs: list[ClaimedJob]
) -> int:
    """How many jobs to fetch next: no more than fit, by the size of those that came."""
    size = sum(held.size for held in claimed_jobs)
    if not size:
        return limit
    fits = max_bytes * len(claimed_jobs) // size
    return max(1, min(max_limit, fits, limit * FETCH_LIMIT_GROWTH))
