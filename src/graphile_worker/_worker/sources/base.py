"""JobSource: fetches jobs for the workers of a pool. A subclass decides when, and how many."""

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from datetime import timedelta

from graphile_worker._db.retry import compute_backoff
from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._support.cancellation import is_being_cancelled
from graphile_worker._support.lazy_dataclass import LazyKeywordDataclass
from graphile_worker._worker.claimer import Claimer
from graphile_worker._worker.completer import Completer
from graphile_worker._worker.sources.buffer import JobBuffer, Waiter
from graphile_worker.events import GetJobEmpty, GetJobErrored, GetJobRecovered, GetJobStarted
from graphile_worker.hooks import Hooks

# The first job must run soon after a database outage.
MAX_BACKOFF_SECONDS = 0.6

# With `once` a pool does not listen: idle workers look this often while other jobs run.
ONCE_POLL_INTERVAL = timedelta(milliseconds=100)


def read_monotonic() -> float:
    # Looked up at each call, because a test may replace the clock of this module.
    return time.monotonic()


def compute_fetch_backoff(failures: int) -> float:
    return compute_backoff(failures, MAX_BACKOFF_SECONDS)


class FetchOptions(LazyKeywordDataclass):
    """When a source fetches; tests replace `clock` and `backoff`."""

    poll_interval: timedelta
    once: bool = False
    clock: Callable[[], float] = read_monotonic
    backoff: Callable[[int], float] = compute_fetch_backoff


class JobSource(ABC):
    """Delivers jobs that this pool has claimed, one at a time.

    One fetch is under way at a time. A fetch that fails is retried after a backoff. With `once` the
    source stops when nothing is ready and nothing runs, or when a fetch fails.
    """

    # Direct fetches are not events of a local queue.
    emits_buffer_events = True

    def __init__(
        self,
        claimer: Claimer,
        completer: Completer,
        hooks: Hooks,
        options: FetchOptions,
    ) -> None:
        self.is_failing = False
        # Called when the source stops, perhaps several times.
        self.on_stop: Callable[[], None] = lambda: None
        self._claimer = claimer
        self._hooks = hooks
        self._once = options.once
        self._clock = options.clock
        self._backoff = options.backoff
        interval = options.poll_interval
        if options.once:
            interval = min(interval, ONCE_POLL_INTERVAL)
        self._poll_seconds = interval.total_seconds()
        self._poll_at = self._clock() + self._poll_seconds
        self._failures = 0
        self._changed = asyncio.Event()
        self._buffer = JobBuffer(
            claimer, completer, hooks, self._changed.set, emits_events=self.emits_buffer_events
        )
        self._buffer.on_released = self.wake
        # Bound once, because workers call these for each job.
        self.take_buffered = self._buffer.take_buffered
        self.wait_for_job = self._buffer.wait_for_job

    @abstractmethod
    def wake(self, count: int | None = None) -> None:
        """Fetch soon, because `count` jobs may be ready. None if the number is unknown."""

    @abstractmethod
    async def step_once(self) -> None:
        """Fetch jobs if needed, or wait for a change."""

    def record_duration(self, seconds: float) -> None:  # noqa: B027
        """Record how long a job ran."""

    @property
    def buffered_count(self) -> int:
        """Return the number of fetched jobs that wait for a worker."""
        return len(self._buffer.jobs)

    @property
    def waiting_count(self) -> int:
        """Return the number of workers that wait for a job."""
        return 0 if self._buffer.is_closed else len(self._buffer.prune_waiters())

    def list_waiters(self) -> list[Waiter]:
        """Return the workers that wait for a job."""
        return list(self._buffer.prune_waiters())

    def deliver(self, claimed: ClaimedJob) -> None:
        """Start a job on a worker that waits."""
        self._buffer.prune_waiters().popleft().deliver(claimed)

    def forget(self, claimed: ClaimedJob, *, may_run_again: bool = False) -> None:
        """Forget a job after its outcome was written, which freed its named queue."""
        self._claimer.forget(claimed)
        if claimed.queue_id is not None:
            # No notification reports that the next job of the queue is ready.
            self.wake()

    def put_back(self, claimed: ClaimedJob) -> None:
        """Deliver a job to another worker, because the one that took it cannot run it."""
        self._buffer.jobs.appendleft(claimed)
        self._changed.set()

    async def release(self, claimed: ClaimedJob) -> None:
        """Release a job that a worker took and cannot run."""
        await self._buffer.release([claimed])

    def stop(self) -> None:
        """Stop fetching. Waiting workers get None."""
        self._buffer.close()
        self.on_stop()
        self._changed.set()

    def fail(self, error: BaseException) -> None:
        """Stop fetching. Waiting workers raise this error, and so does each that waits later."""
        self._buffer.close(error)
        self._changed.set()

    def report_limited_error(self, error: BaseException) -> bool:
        """Report that limited jobs could not be claimed. Return whether a worker waits for one."""
        waiters = self.list_waiters()
        self._emit_error(waiters, error)
        return bool(waiters)

    def report_limited_recovery(self) -> None:
        """Report that limited jobs can be claimed again."""
        if not self.is_failing:
            self._hooks.emit(GetJobRecovered(pool_id=self._claimer.pool_id))

    async def release_tasks(self, names: Collection[str]) -> None:
        """Release fetched jobs of these tasks, because they are paused."""
        taken = self._buffer.take_tasks(names)
        self._changed.set()
        await self._buffer.release(taken)

    def stop_late_releases(self) -> None:
        """Stop retrying releases, because the worker ends. Its shutdown releases those jobs."""
        self._buffer.stop_late_releases()

    async def run(self) -> None:
        """Fetch jobs until stopped, then release those that no worker took."""
        try:
            while not self._buffer.is_closed:
                await self.step_once()
        finally:
            self.stop()
            await self._release_buffered()

    async def _release_buffered(self) -> None:
        await self._buffer.release_all()

    # Fetching

    async def _claim(self, limit: int) -> list[ClaimedJob] | None:
        """Fetch up to `limit` jobs. If that fails, wait for the backoff and return None."""
        if self._hooks.has_listeners(GetJobStarted):
            self._emit_for_waiters(GetJobStarted, self._buffer.prune_waiters())
        try:
            claimed_jobs = await self._claimer.claim(limit)
        except (Exception, asyncio.CancelledError) as error:
            if is_being_cancelled():
                raise
            await self._handle_fetch_error(error)
            return None
        if self.is_failing:
            self.is_failing = False
            self._failures = 0
            self._hooks.emit(GetJobRecovered(pool_id=self._claimer.pool_id))
        return claimed_jobs

    async def _handle_fetch_error(self, error: BaseException) -> None:
        self.is_failing = True
        self._emit_error(list(self._buffer.waiters), error)
        if self._once and not self._can_retry_once(error):
            self._buffer.close(error)
            return
        # Notifications may have been lost meanwhile.
        self.wake()
        pause = self._backoff(self._failures)
        self._failures += 1
        await self._wait_until(lambda: False, timeout_seconds=pause)

    def _emit_error(self, waiters: Iterable[Waiter], error: BaseException) -> None:
        # A listener may stop the source, which empties the deques.
        pool_id = self._claimer.pool_id
        for waiter in waiters:
            self._hooks.emit(
                GetJobErrored(pool_id=pool_id, worker_id=waiter.worker_id, error=error)
            )

    def _can_retry_once(self, error: BaseException) -> bool:
        """Return whether to retry a fetch after this error, if the source runs once."""
        return False

    def _emit_for_waiters(
        self, event: type[GetJobStarted] | type[GetJobEmpty], waiters: Iterable[Waiter]
    ) -> None:
        if self._hooks.has_listeners(event):
            pool_id = self._claimer.pool_id
            for waiter in list(waiters):
                self._hooks.emit(event(pool_id=pool_id, worker_id=waiter.worker_id))

    # Waiting

    def _poll_by(self, timestamp: float | None) -> None:
        """Poll at this time at the latest."""
        if timestamp is not None:
            self._poll_at = min(self._poll_at, timestamp)

    def _wake_if_poll_is_due(self) -> None:
        now = self._clock()
        if now >= self._poll_at:
            self._poll_at = now + self._poll_seconds
            self.wake()

    async def _wait_for_change(self, timeout_seconds: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(
                None if timeout_seconds is None else max(0.0, timeout_seconds)
            ):
                await self._changed.wait()
        self._changed.clear()

    async def _wait_until(
        self, condition: Callable[[], bool], *, timeout_seconds: float = math.inf
    ) -> None:
        """Wait until the condition holds, the timeout expires or this source stops."""
        ends_at = time.monotonic() + timeout_seconds
        seconds_left = max(0.0, timeout_seconds)
        while seconds_left >= 0 and not self._buffer.is_closed and not condition():
            await self._wait_for_change(None if seconds_left == math.inf else seconds_left)
            seconds_left = ends_at - time.monotonic()
