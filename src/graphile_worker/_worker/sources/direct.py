"""DirectSource: fetches a job when a worker needs one."""

import asyncio
from collections import deque

from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._worker.claimer import Claimer
from graphile_worker._worker.completer import Completer
from graphile_worker._worker.fetch_strategy import get_busy_queue_ids
from graphile_worker._worker.sources.base import FetchOptions, JobSource
from graphile_worker._worker.sources.buffer import Waiter
from graphile_worker.events import GetJobEmpty
from graphile_worker.hooks import Hooks


class DirectSource(JobSource):
    """Fetches for the waiting workers, never more jobs than workers.

    A worker that gets no job becomes idle. It waits again when a job is announced, when a named
    queue becomes free and no other worker took its next job, or at the next poll.
    """

    emits_buffer_events = False

    def __init__(
        self, claimer: Claimer, completer: Completer, hooks: Hooks, options: FetchOptions
    ) -> None:
        super().__init__(claimer, completer, hooks, options)
        self._idle_waiters: deque[Waiter] = deque()
        self._freed_queue_ids: set[int] = set()
        # A job may be announced while a fetch that cannot see it is under way.
        self._missed_wakes = 0
        # Whether there may be more jobs than announced: a worker that gets one wakes the next.
        self._may_have_more = False

    def wake(self, count: int | None = None) -> None:
        if count is None:
            self._may_have_more = True
            count = 1
        self._missed_wakes += count - self._wake_idle(count)

    @property
    def waiting_count(self) -> int:
        while self._idle_waiters and not self._idle_waiters[0].is_waiting:
            self._idle_waiters.popleft()
        return super().waiting_count + len(self._idle_waiters)

    def list_waiters(self) -> list[Waiter]:
        idle = [each for each in self._idle_waiters if each.is_waiting]
        return super().list_waiters() + idle

    def deliver(self, claimed: ClaimedJob) -> None:
        idle = self._idle_waiters
        while idle:
            if (waiter := idle.popleft()).is_waiting:
                waiter.deliver(claimed)
                return
        super().deliver(claimed)

    def forget(self, claimed: ClaimedJob, *, may_run_again: bool = False) -> None:
        self._claimer.forget(claimed)
        if claimed.queue_id is not None:
            self._freed_queue_ids.add(claimed.queue_id)
            self._changed.set()

    def fail(self, error: BaseException) -> None:
        self._wake_idle(len(self._idle_waiters))
        super().fail(error)

    def stop(self) -> None:
        super().stop()
        while self._idle_waiters:
            self._idle_waiters.popleft().deliver(None)

    async def step_once(self) -> None:
        if not self._buffer.prune_waiters():
            await self._wait_for_change(self._poll_at - self._clock())
        self._wake_if_poll_is_due()
        await self._wake_for_freed_queues()
        if self._buffer.prune_waiters() and not self._buffer.is_closed:
            await self._fetch()

    async def _fetch(self) -> None:
        """Fetch once for all waiting workers."""
        waiters = list(self._buffer.waiters)
        self._missed_wakes = 0
        # The fetch may miss queues that become free while it runs.
        freed, self._freed_queue_ids = self._freed_queue_ids, set()
        is_eager, self._may_have_more = self._may_have_more, False
        had_jobs = bool(self._claimer.claimed_jobs)
        busy = get_busy_queue_ids(self._claimer.claimed_jobs) if is_eager else set()
        claimed_jobs = await self._claim(len(waiters))
        if claimed_jobs is None:
            return
        self._buffer.put(claimed_jobs)
        is_done = not claimed_jobs or claimed_jobs[0].is_all_ready
        self._set_idle([each for each in waiters if each.is_waiting], is_done=is_done)
        await self._buffer.release(self._buffer.take_all())
        if claimed_jobs:
            # Usually the worker that freed a queue takes the next job of that queue itself.
            self._wake_idle(len(freed - {each.queue_id for each in claimed_jobs}))
        # A job of a queue that was busy here does not count: its worker would have claimed it.
        if (
            is_eager
            and not is_done
            and len(claimed_jobs) == len(waiters)
            and any(each.queue_id not in busy for each in claimed_jobs)
        ):
            self._may_have_more = True
            self._wake_idle(2 * len(claimed_jobs))
        self._poll_by(self._claimer.next_fetch_at)
        if self._once and not had_jobs and not claimed_jobs and self._claimer.next_fetch_at is None:
            self.stop()

    def _set_idle(self, unserved: list[Waiter], *, is_done: bool) -> None:
        """Make workers without a job idle, unless there may be more jobs: then they wait on."""
        if not unserved or (not is_done and self._claimer.next_fetch_at is None):
            return
        if is_done:
            self._emit_for_waiters(GetJobEmpty, unserved)
        # The workers of this fetch precede those that started to wait later.
        waiters = self._buffer.prune_waiters()
        for waiter in unserved:
            # A listener may have stopped the source.
            if waiter.is_waiting:
                waiters.remove(waiter)
                self._idle_waiters.append(waiter)
        missed, self._missed_wakes = self._missed_wakes, 0
        self._wake_idle(missed)

    async def _wake_for_freed_queues(self) -> None:
        """Wake an idle worker for a freed queue, unless the worker that freed it fetches next."""
        if self._freed_queue_ids and not self._buffer.waiters:
            # That worker may be about to wait.
            await asyncio.sleep(0)
            if not self._buffer.waiters:
                self._wake_idle(len(self._freed_queue_ids))

    def _wake_idle(self, count: int) -> int:
        woken = min(count, len(self._idle_waiters))
        for _ in range(woken):
            self._buffer.waiters.append(self._idle_waiters.popleft())
        if woken:
            self._changed.set()
        return woken
