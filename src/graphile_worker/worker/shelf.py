"""Shelf: jobs that were fetched ahead and wait for a worker, and workers that wait for a job."""

import asyncio
from collections import deque
from collections.abc import Callable

from graphile_worker.events import GetJobErrored, LocalQueueFetched, LocalQueueReturned
from graphile_worker.failpoints import failpoint
from graphile_worker.hooks import Hooks
from graphile_worker.sql.holding import HeldJob
from graphile_worker.worker.asks import Ask, is_being_cancelled
from graphile_worker.worker.claims import Claims
from graphile_worker.worker.settle import Settler

# After so many jobs that never waited for anything, the event loop gets its turn.
TURN = 100

# The first fetch tells how large payloads are; each may ask for so many times the one before.
FIRST = 100
GROWTH = 4


class Shelf:
    """Jobs leave it by priority, and those of one priority in the order in which they came.

    Whoever fills it is told by `on_low` when fewer than `low` jobs are left, or when somebody asks
    and there is none.
    """

    def __init__(
        self, claims: Claims, settler: Settler, hooks: Hooks, on_low: Callable[[], None]
    ) -> None:
        self.low = 1
        self.is_closed = False
        self.jobs: deque[HeldJob] = deque()
        self.asking: deque[Ask] = deque()
        self._claims = claims
        self._settler = settler
        self._hooks = hooks
        self._on_low = on_low
        self._turn = TURN
        self._error: BaseException | None = None

    # For workers

    def take(self) -> HeldJob | None:
        """The next job, if it can be had without waiting for anything."""
        if not self.jobs or self.is_closed or self._turn <= 0 or self._claims.flags_may_change:
            return None
        if self.jobs[0].job.locked_by != self._claims.pool_id:
            return None
        return self._next()

    async def next(self, worker_id: str) -> HeldJob | None:
        """The next job; None when there will be no more."""
        while True:
            if self._turn <= 0:
                await asyncio.sleep(0)
                self._turn = TURN
            if self._error is not None:
                raise self._error
            if self.is_closed:
                return None
            if not self.jobs:
                return await self._ask(worker_id)
            held = self._next()
            if await self._may_run(held, worker_id):
                return held

    # For whoever fills it

    def put(self, taken: list[HeldJob]) -> None:
        """Give jobs to those who ask; the rest is kept, unless there is nobody left to run it."""
        if self._hooks.hears(LocalQueueFetched):
            jobs = tuple(held.job for held in taken)
            self._hooks.emit(LocalQueueFetched(pool_id=self._claims.pool_id, jobs=jobs))
        self._merge(taken)
        while self.jobs and self.asking and not self.is_closed:
            ask = self.asking.popleft()
            if ask.is_open:
                ask.answer(self.jobs.popleft())
        failpoint("job_prefetched")

    def close(self, error: BaseException | None = None) -> None:
        """Give out no more; whoever asks is sent away, or told of the error."""
        self._error = self._error or error
        self.is_closed = True
        while self.asking:
            ask = self.asking.popleft()
            if error is None:
                ask.answer(None)
            else:
                ask.refuse(error)

    def open_asks(self) -> deque[Ask]:
        """Those who wait; a worker may have been cancelled meanwhile."""
        if any(not ask.is_open for ask in self.asking):
            self.asking = deque(ask for ask in self.asking if ask.is_open)
        return self.asking

    def take_all(self) -> list[HeldJob]:
        jobs, self.jobs = list(self.jobs), deque()
        return jobs

    def take_older(self, than: float) -> list[HeldJob]:
        """Those that were fetched before that time."""
        older = [held for held in self.jobs if held.taken_at < than]
        if older:
            self.jobs = deque(held for held in self.jobs if held.taken_at >= than)
        return older

    async def hand_back(self, unstarted: list[HeldJob]) -> None:
        """Return jobs to the database, and say that others can take them."""
        if not unstarted:
            return
        await self._settler.hand_back(unstarted)
        await self._settler.offer(len(unstarted))
        for held in unstarted:
            self._claims.let_go(held)
        pool_id, jobs = self._claims.pool_id, tuple(held.job for held in unstarted)
        self._hooks.emit(LocalQueueReturned(pool_id=pool_id, jobs=jobs))

    def _merge(self, taken: list[HeldJob]) -> None:
        is_urgent = self.jobs and taken and taken[0].job.priority < self.jobs[-1].job.priority
        self.jobs.extend(taken)
        if is_urgent:
            self.jobs = deque(sorted(self.jobs, key=lambda held: held.job.priority))

    def _next(self) -> HeldJob:
        self._turn -= 1
        held = self.jobs.popleft()
        if len(self.jobs) < self.low:
            self._on_low()
        return held

    async def _ask(self, worker_id: str) -> HeldJob | None:
        ask = Ask(worker_id)
        self.asking.append(ask)
        self._on_low()
        return await ask.wait()

    async def _may_run(self, held: HeldJob, worker_id: str) -> bool:
        """A job that waited here: others may have taken it, or it may have to be left alone now."""
        is_ours = held.pool_id == self._claims.pool_id
        is_wanted = is_ours and not await self._is_forbidden(held, worker_id)
        # Asking may have taken its time.
        if is_wanted and not self.is_closed:
            return True
        await self.hand_back([held])
        return False

    async def _is_forbidden(self, held: HeldJob, worker_id: str) -> bool:
        if not self._claims.flags_may_change or not held.job.flags:
            return False
        try:
            forbidden = await self._claims.flags_to_skip()
        except (Exception, asyncio.CancelledError) as error:
            if is_being_cancelled():
                raise
            # Nobody knows whether it may run; the fetch that brings it again asks again.
            pool_id = self._claims.pool_id
            self._hooks.emit(GetJobErrored(pool_id=pool_id, worker_id=worker_id, error=error))
            return True
        return not held.job.flags.isdisjoint(forbidden or ())


def next_limit(limit: int, most: int, max_bytes: int, taken: list[HeldJob]) -> int:
    """How many jobs to fetch next: no more than fit, by the size of those that came."""
    size = sum(held.size for held in taken)
    if not size:
        return limit
    fits = max_bytes * len(taken) // size
    return max(1, min(most, fits, limit * GROWTH))
