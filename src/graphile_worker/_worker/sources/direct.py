"""Where a worker's next job comes from."""

import asyncio
import time
from collections import deque
from contextlib import suppress
from datetime import timedelta
from typing import Protocol

from graphile_worker._db.retry import compute_backoff
from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._worker.claimer import Claimer
from graphile_worker._worker.completer import Completer
from graphile_worker._worker.fetch_strategy import get_busy_queue_ids
from graphile_worker._worker.outcomes import Interrupted
from graphile_worker._worker.sources.waiters import (
    Waiter,
    emit_fetch_error,
    emit_for_waiters,
    is_being_cancelled,
)
from graphile_worker.events import GetJobEmpty, GetJobRecovered, GetJobStarted
from graphile_worker.hooks import Hooks

# The first job must run soon after a database is back.
MAX_BACKOFF_SECONDS = 0.6

# How often idle workers look while others still work and nobody listens.
ONCE_POLL_INTERVAL = timedelta(milliseconds=100)


class JobSource(Protocol):
    """Gives jobs that this pool has locked, one at a time."""

    is_failing: bool
    """Did the last attempt to get jobs fail?"""

    async def run(self) -> None:
        """Get jobs for those who ask, until stopped."""
        ...

    def take_buffered(self) -> ClaimedJob | None:
        """A job to run, if one is here; None: ask `wait_for_job`."""
        ...

    async def wait_for_job(self, worker_id: str) -> ClaimedJob | None:
        """A job to run; None when there will be no more."""
        ...

    def record_duration(self, seconds: float) -> None:
        """A job took so long."""
        ...

    def wake(self, count: int | None = None) -> None:
        """So many jobs may be there to take; None: who knows."""
        ...

    def forget(self, claimed: ClaimedJob) -> None:
        """That job is settled, and its named queue free."""
        ...

    def stop(self) -> None:
        """Take no more; whoever waits is sent away."""
        ...


class DirectSource:
    """Fetches for the workers that ask, one fetch in flight, never more jobs than workers.

    A worker that asks and gets nothing falls idle. An idle one asks again when a job is announced,
    when a named queue became free that nobody took from, or when it is polled for. With `once`
    there is no waiting: all are sent away when nothing is ready and nothing runs.
    """

    def __init__(
        self,
        claimer: Claimer,
        completer: Completer,
        hooks: Hooks,
        *,
        poll_interval: timedelta,
        once: bool = False,
    ) -> None:
        self.is_failing = False
        self._claimer = claimer
        self._completer = completer
        self._hooks = hooks
        # Once, nobody announces what tasks add.
        interval = min(poll_interval, ONCE_POLL_INTERVAL) if once else poll_interval
        self._poll_seconds = interval.total_seconds()
        self._once = once
        self._waiters: deque[Waiter] = deque()
        self._idle_waiters: deque[Waiter] = deque()
        self._freed_queue_ids: set[int] = set()
        self._failures = 0
        self._error: BaseException | None = None
        self._stopping = asyncio.Event()
        # A job may be announced while a fetch that cannot see it is under way.
        self._missed_wakes = 0
        # There may be more than was announced: whoever gets a job sends the next one.
        self._may_have_more = False
        self._wake_event = asyncio.Event()
        self._poll_at = 0.0

    def take_buffered(self) -> ClaimedJob | None:
        """There is never a job here that nobody asked for."""

    def record_duration(self, seconds: float) -> None:
        """How long jobs take makes no difference."""

    async def wait_for_job(self, worker_id: str) -> ClaimedJob | None:
        if self._error is not None:
            raise self._error
        if self._is_stopped:
            return None
        ask = Waiter(worker_id)
        self._waiters.append(ask)
        self._wake_event.set()
        return await ask.wait()

    def wake(self, count: int | None = None) -> None:
        if count is None:
            self._may_have_more = True
            count = 1
        woken = self._wake_idle(count)
        self._missed_wakes += count - woken

    def forget(self, claimed: ClaimedJob) -> None:
        self._claimer.forget(claimed)
        if claimed.queue_id is not None:
            self._freed_queue_ids.add(claimed.queue_id)
            self._wake_event.set()

    def stop(self) -> None:
        self._stopping.set()
        self._wake_event.set()
        for ask in self._idle_waiters:
            ask.deliver(None)
        self._idle_waiters.clear()

    @property
    def _is_stopped(self) -> bool:
        return self._stopping.is_set()

    async def run(self) -> None:
        self._poll_at = time.monotonic() + self._poll_seconds
        try:
            while not self._is_stopped:
                await self._wait_for_wake()
                await self._wake_for_freed_queues()
                if self._waiters and not self._is_stopped:
                    await self.fetch_once()
        finally:
            self.stop()
            for ask in self._waiters:
                ask.deliver(None)
            self._waiters.clear()

    async def fetch_once(self) -> None:
        """One fetch for all that ask."""
        asking = [ask for ask in self._waiters if ask.is_waiting]
        self._waiters.clear()
        if not asking:
            return
        self._missed_wakes = 0
        # What ends while the fetch is under way may have come too late for it.
        freed, self._freed_queue_ids = self._freed_queue_ids, set()
        eager, self._may_have_more = self._may_have_more, False
        alone = not self._claimer.claimed_jobs
        busy = get_busy_queue_ids(self._claimer.claimed_jobs) if eager else set()
        emit_for_waiters(self._hooks, GetJobStarted, self._claimer.pool_id, asking)
        taken = await self._claim(asking)
        if taken is None:
            return
        await self._deliver_jobs(asking, taken)
        self._wake_for_unclaimed_queues(freed, taken)
        # The next job of a queue that was ours is one that its worker would have taken.
        if eager and len(taken) == len(asking) and any(each.queue_id not in busy for each in taken):
            self._may_have_more = True
            self._wake_idle(2 * len(taken))
        if (again_at := self._claimer.next_fetch_at) is not None:
            self._poll_at = min(self._poll_at, again_at)
        elif self._once and alone and not taken:
            self.stop()

    async def _claim(self, waiters: list[Waiter]) -> list[ClaimedJob] | None:
        """What a fetch brings, None if it failed."""
        try:
            taken = await self._claimer.claim(len(waiters))
        except (Exception, asyncio.CancelledError) as error:
            if is_being_cancelled():
                for ask in waiters:
                    ask.deliver(None)
                raise
            await self._handle_fetch_error(waiters, error)
            return None
        if self.is_failing:
            self.is_failing = False
            self._failures = 0
            self._hooks.emit(GetJobRecovered(pool_id=self._claimer.pool_id))
        return taken

    async def _deliver_jobs(self, waiters: list[Waiter], claimed_jobs: list[ClaimedJob]) -> None:
        waiting = deque(ask for ask in waiters if ask.is_waiting)
        left = deque(claimed_jobs)
        while left and waiting and not self._is_stopped:
            waiting.popleft().deliver(left.popleft())
        try:
            if left:
                await self._release(list(left))
        finally:
            # Whatever ends that: who asked must be answered, if only when all is over.
            self._requeue_waiters(waiting, found_jobs=bool(claimed_jobs))

    def _requeue_waiters(self, unserved: deque[Waiter], *, found_jobs: bool) -> None:
        """Those who got nothing ask again, at once or soon, if others got some; or fall idle."""
        if not unserved:
            return
        if found_jobs and self._claimer.next_fetch_at is None:
            self._waiters.extend(unserved)
            self._wake_event.set()
            return
        if not found_jobs:
            emit_for_waiters(self._hooks, GetJobEmpty, self._claimer.pool_id, unserved)
        missed, self._missed_wakes = self._missed_wakes, 0
        self._idle_waiters.extend(unserved)
        self._wake_idle(missed)

    async def _wake_for_freed_queues(self) -> None:
        """Queues became free: if those who ran their jobs asked before that, others must."""
        if self._freed_queue_ids and not self._waiters:
            # Or they are about to.
            await asyncio.sleep(0)
            if not self._waiters:
                self._wake_idle(len(self._freed_queue_ids))

    def _wake_for_unclaimed_queues(
        self, freed_queue_ids: set[int], claimed_jobs: list[ClaimedJob]
    ) -> None:
        # Most often the worker that freed a queue takes its next job itself.
        if claimed_jobs:
            self._wake_idle(len(freed_queue_ids - {each.queue_id for each in claimed_jobs}))

    def _wake_idle(self, count: int) -> int:
        woken = 0
        while self._idle_waiters and woken < count:
            self._waiters.append(self._idle_waiters.popleft())
            woken += 1
        if woken:
            self._wake_event.set()
        return woken

    async def _wait_for_wake(self) -> None:
        """Until somebody asks or it is time to poll."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self._poll_at - time.monotonic())):
                await self._wake_event.wait()
        self._wake_event.clear()
        if time.monotonic() >= self._poll_at:
            self._poll_at = time.monotonic() + self._poll_seconds
            self.wake()

    async def _handle_fetch_error(self, waiters: list[Waiter], error: BaseException) -> None:
        self.is_failing = True
        emit_fetch_error(self._hooks, self._claimer.pool_id, waiters, error)
        if self._once:
            self._error = error
            for ask in waiters:
                ask.fail(error)
            self.stop()
            return
        self._waiters.extendleft(reversed(waiters))
        self._wake_event.set()
        # Who knows what was added meanwhile.
        self._may_have_more = True
        pause = compute_backoff(self._failures, MAX_BACKOFF_SECONDS)
        self._failures += 1
        await self._back_off(pause)

    async def _back_off(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _release(self, unwanted: list[ClaimedJob]) -> None:
        for held in unwanted:
            await self._completer.complete(Interrupted(held))
            self._claimer.forget(held)
