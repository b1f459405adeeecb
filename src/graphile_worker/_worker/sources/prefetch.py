"""Prefetch: a JobSource that holds about as many jobs as end within a moment.

Hundreds of tiny ones, none when jobs are slow: so what is fetched waits no longer than that, and
nobody else is kept from running it.
"""

import asyncio
import time
from collections import deque
from contextlib import suppress
from datetime import timedelta

from graphile_worker._db.retry import compute_backoff, is_temporary
from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._worker.claimer import Claimer
from graphile_worker._worker.completer import Completer
from graphile_worker._worker.sources.buffer import FIRST_FETCH_LIMIT, JobBuffer, compute_fetch_limit
from graphile_worker._worker.sources.direct import MAX_BACKOFF_SECONDS, ONCE_POLL_INTERVAL
from graphile_worker._worker.sources.waiters import (
    emit_fetch_error,
    emit_for_waiters,
    is_being_cancelled,
)
from graphile_worker.events import GetJobEmpty, GetJobRecovered, GetJobStarted
from graphile_worker.hooks import Hooks

# Seconds of work that may wait here, and after which what still waits is handed back. Looked at so
# often.
BUFFER_SECONDS = 0.1
MAX_BUFFERED_SECONDS = 0.11
LATE_CHECK_INTERVAL_SECONDS = 0.02

# A fetch that brings so many times fewer than it asked for has brought nearly all there is. Seconds
# until the next one, if nothing is announced before.
SHORT_FETCH_DIVISOR = 8
SHORT_FETCH_POLL_SECONDS = 0.02

# Jobs of one fetch. At most three fetches wait: one is under way while fewer than two do.
MAX_FETCH = 2000


class ThroughputEstimate:
    """How many jobs will end within a moment, from how they did."""

    # How far back it looks, how much the last job counts, and how finely time is told.
    WINDOW_SECONDS = 0.2
    LAST_JOB_WEIGHT = 0.05
    MIN_SAMPLES = 1 / LAST_JOB_WEIGHT
    MIN_SAMPLE_SECONDS = 0.002

    def __init__(self) -> None:
        self._job_count = 0
        self._mean_seconds = 0.0
        self._samples: deque[tuple[float, int]] = deque()
        self._jobs_per_second = 0.0

    def record_duration(self, seconds: float) -> None:
        """A job ran for so long."""
        self._job_count += 1
        # Until there are enough of them, each counts as much as the others.
        weight = self.LAST_JOB_WEIGHT if self._job_count > self.MIN_SAMPLES else 1 / self._job_count
        self._mean_seconds += (seconds - self._mean_seconds) * weight

    def reset(self) -> None:
        """It was wrong: begin anew."""
        self._samples.clear()

    def estimate_jobs(self) -> int:
        """So many will end, or none: where one job takes longer, who knows when the next ends?"""
        self._update_rate(time.monotonic())
        return (
            int(self._jobs_per_second * BUFFER_SECONDS)
            if self._mean_seconds < BUFFER_SECONDS
            else 0
        )

    def estimate_max_jobs(self, slots: int) -> int:
        """So many can end within a moment where so many run at once."""
        return int(slots * BUFFER_SECONDS / max(self._mean_seconds, 1e-6)) if self._job_count else 0

    def _update_rate(self, now: float) -> None:
        marks = self._samples
        while marks and marks[0][0] < now - self.WINDOW_SECONDS:
            marks.popleft()
        if not marks:
            self._jobs_per_second = 0.0
        elif now - marks[0][0] > self.MIN_SAMPLE_SECONDS:
            since, ended = marks[0]
            self._jobs_per_second = (self._job_count - ended) / (now - since)
        if not marks or now - marks[-1][0] > self.MIN_SAMPLE_SECONDS:
            marks.append((now, self._job_count))


class PrefetchSource:
    """Fetches for the workers that ask, and while jobs are short enough before they do.

    There is no more to fetch after an empty answer, until a job is announced, a named queue became
    free, or it is time to look again.
    """

    def __init__(
        self,
        claimer: Claimer,
        completer: Completer,
        hooks: Hooks,
        *,
        max_bytes: int,
        poll_interval: timedelta,
        once: bool = False,
    ) -> None:
        self.is_failing = False
        self._claimer = claimer
        self._hooks = hooks
        self._changed = asyncio.Event()
        self._buffer = JobBuffer(claimer, completer, hooks, self._changed.set)
        self._throughput = ThroughputEstimate()
        self._max_bytes = max_bytes
        self._fetch_limit = FIRST_FETCH_LIMIT
        self._once = once
        # Once, nobody announces what tasks add.
        self._poll_seconds = (
            min(poll_interval, ONCE_POLL_INTERVAL) if once else poll_interval
        ).total_seconds()
        self._poll_at = 0.0
        self._late_check_at = 0.0
        self._failures = 0
        # How much the last fetch brought, if that was all it asked for.
        self._last_full_fetch = 0
        # There may be jobs to fetch; and how often that was said.
        self._may_have_more = True
        self._wakes = 0
        # For workers, each many times a millisecond.
        self.take_buffered = self._buffer.take_buffered
        self.wait_for_job = self._buffer.wait_for_job
        self.record_duration = self._throughput.record_duration

    # For the pool

    def wake(self, count: int | None = None) -> None:
        self._wakes += 1
        self._may_have_more = True
        self._changed.set()

    def forget(self, claimed: ClaimedJob) -> None:
        self._claimer.forget(claimed)
        # The next job of its named queue can be fetched, and nobody announces that; nor, once, what
        # the last one has added.
        if claimed.queue_id is not None or (self._once and not self._claimer.claimed_jobs):
            self.wake()

    def stop(self) -> None:
        self._buffer.close()
        self._changed.set()

    async def run(self) -> None:
        self._poll_at = time.monotonic() + self._poll_seconds
        try:
            while not self._buffer.is_closed:
                await self.step_once()
        finally:
            self.stop()
            await self._buffer.release(self._buffer.take_all())

    async def step_once(self) -> None:
        """Fetch if that is wanted; otherwise wait until it may be."""
        await self._release_late()
        limit = self._compute_fetch_limit()
        if limit:
            await self._fetch(limit)
        else:
            await self._wait_for_work()

    def _compute_fetch_limit(self) -> int:
        """How many jobs to fetch now."""
        if not self._may_have_more or self._buffer.is_closed:
            return 0
        batch = min(self._throughput.estimate_jobs() // 3, self._fetch_limit)
        asking = len(self._buffer.prune_waiters())
        self._buffer.low_watermark = max(1, 2 * batch)
        if asking:
            # They had to wait although the last fetch was full: try twice that.
            more = min(2 * self._last_full_fetch, self._throughput.estimate_max_jobs(asking))
            return max(1, min(max(asking, self._fetch_limit), max(asking + batch, more)))
        return batch if len(self._buffer.jobs) < self._buffer.low_watermark else 0

    async def _fetch(self, limit: int) -> None:
        pulses, alone = self._wakes, not self._claimer.claimed_jobs
        emit_for_waiters(self._hooks, GetJobStarted, self._claimer.pool_id, self._buffer.waiters)
        taken = await self._claim(limit)
        if taken is None:
            return
        self._last_full_fetch = limit if len(taken) == limit else 0
        if taken:
            # Three such fetches must fit.
            known = max(limit, self._fetch_limit)
            self._fetch_limit = compute_fetch_limit(known, MAX_FETCH, self._max_bytes // 3, taken)
            self._buffer.put(taken)
            if len(taken) * SHORT_FETCH_DIVISOR <= limit:
                self._schedule_poll(pulses)
            if not self._buffer.jobs:
                # They begin before the next fetch is sent.
                await asyncio.sleep(0)
            return
        emit_for_waiters(self._hooks, GetJobEmpty, self._claimer.pool_id, self._buffer.waiters)
        self._may_have_more = self._wakes > pulses
        if (again_at := self._claimer.next_fetch_at) is not None:
            self._poll_at = min(self._poll_at, again_at)
        elif self._once and alone:
            self.stop()

    def _schedule_poll(self, wakes: int) -> None:
        """There is hardly more than that, though it is not certain: no need to ask at once."""
        self._may_have_more = self._wakes > wakes
        self._poll_at = min(self._poll_at, time.monotonic() + SHORT_FETCH_POLL_SECONDS)

    async def _claim(self, limit: int) -> list[ClaimedJob] | None:
        """What a fetch brings, None if it failed."""
        try:
            taken = await self._claimer.claim(limit)
        except (Exception, asyncio.CancelledError) as error:
            if is_being_cancelled():
                raise
            await self._handle_fetch_error(error)
            return None
        if self.is_failing:
            self.is_failing = False
            self._failures = 0
            self._hooks.emit(GetJobRecovered(pool_id=self._claimer.pool_id))
        return taken

    async def _handle_fetch_error(self, error: BaseException) -> None:
        self.is_failing = True
        emit_fetch_error(self._hooks, self._claimer.pool_id, self._buffer.waiters, error)
        # While jobs of ours run there is time for another try.
        if self._once and not (is_temporary(error) and self._claimer.claimed_jobs):
            self._buffer.close(error)
            return
        # Who knows what was added meanwhile.
        self._may_have_more = True
        pause = compute_backoff(self._failures, MAX_BACKOFF_SECONDS)
        self._failures += 1
        ends_at = time.monotonic() + pause
        while not self._buffer.is_closed and (left := ends_at - time.monotonic()) > 0:
            await self._wait_for_change(timeout_seconds=left)

    async def _release_late(self) -> None:
        """Hand back what waited for too long: others may be free to run it."""
        now = time.monotonic()
        if now < self._late_check_at:
            return
        self._late_check_at = now + LATE_CHECK_INTERVAL_SECONDS
        late = self._buffer.take_older(now - MAX_BUFFERED_SECONDS)
        if late:
            self._throughput.reset()
            await self._buffer.release(late)
            # They may still be there for whoever asks next.
            self._may_have_more = True

    async def _wait_for_work(self) -> None:
        """Until something changes or it is time to look."""
        now = time.monotonic()
        if self._buffer.jobs:
            await self._wait_for_change(timeout_seconds=LATE_CHECK_INTERVAL_SECONDS)
        else:
            await self._wait_for_change(timeout_seconds=self._poll_at - now)
        if time.monotonic() >= self._poll_at:
            self._poll_at = time.monotonic() + self._poll_seconds
            self.wake()

    async def _wait_for_change(self, *, timeout_seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, timeout_seconds)):
                await self._changed.wait()
        self._changed.clear()
