"""PrefetchSource: buffers about as many jobs as end within 100 ms.

That is hundreds of short jobs, and none when jobs are slow. So no job waits longer here while
another pool could run it.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from graphile_worker._db.retry import is_temporary
from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._support.lazy_dataclass import LazyKeywordDataclass
from graphile_worker._worker.claimer import Claimer
from graphile_worker._worker.completer import Completer
from graphile_worker._worker.sources.base import FetchOptions, JobSource, read_monotonic
from graphile_worker._worker.sources.buffer import FIRST_FETCH_LIMIT, compute_fetch_limit
from graphile_worker.events import GetJobEmpty
from graphile_worker.hooks import Hooks

# Seconds of work that may wait here.
BUFFER_SECONDS = 0.1

# A fetch that brings this many times fewer jobs than requested has brought nearly all. Seconds
# until the next one, if no job is announced before. See also claim_plain_jobs.
SHORT_FETCH_DIVISOR = 8
SHORT_FETCH_POLL_SECONDS = 0.02

# Jobs of one fetch. At most three fetches wait: one is under way while fewer than two do.
MAX_FETCH = 2000


class PrefetchTimings(LazyKeywordDataclass):
    """When jobs that wait for a worker are released."""

    max_buffered_seconds: float = 0.11
    """Time after which a waiting job is released."""
    late_check_interval_seconds: float = 0.02
    """Between two checks for such jobs."""


DEFAULT_TIMINGS = PrefetchTimings()


class ThroughputEstimate:
    """Estimates how many jobs end within `BUFFER_SECONDS`, from the last ones."""

    # How far back it looks, the weight of the last job in the mean duration, and the shortest time
    # between two samples.
    WINDOW_SECONDS = 0.2
    LAST_JOB_WEIGHT = 0.05
    MIN_SAMPLES = 1 / LAST_JOB_WEIGHT
    MIN_SAMPLE_SECONDS = 0.002

    def __init__(self, clock: Callable[[], float] = read_monotonic) -> None:
        self._clock = clock
        self._job_count = 0
        self._mean_seconds = 0.0
        self._samples: deque[tuple[float, int]] = deque()
        self._jobs_per_second = 0.0

    def record_duration(self, seconds: float) -> None:
        """Record how long a job ran."""
        self._job_count += 1
        # The first jobs have equal weights.
        weight = self.LAST_JOB_WEIGHT if self._job_count > self.MIN_SAMPLES else 1 / self._job_count
        self._mean_seconds += (seconds - self._mean_seconds) * weight

    def reset(self) -> None:
        """Drop all samples, because the estimate was wrong."""
        self._samples.clear()

    def estimate_jobs(self) -> int:
        """Return how many jobs will end. 0 if jobs take longer, because their end is unknown."""
        self._update_rate(self._clock())
        return (
            int(self._jobs_per_second * BUFFER_SECONDS)
            if self._mean_seconds < BUFFER_SECONDS
            else 0
        )

    def estimate_max_jobs(self, concurrency: int) -> int:
        """Return how many jobs can end if `concurrency` of them run at once."""
        if not self._job_count:
            return 0
        return int(concurrency * BUFFER_SECONDS / max(self._mean_seconds, 1e-6))

    def _update_rate(self, now: float) -> None:
        samples = self._samples
        while samples and samples[0][0] < now - self.WINDOW_SECONDS:
            samples.popleft()
        if not samples:
            self._jobs_per_second = 0.0
        elif now - samples[0][0] > self.MIN_SAMPLE_SECONDS:
            since, job_count = samples[0]
            self._jobs_per_second = (self._job_count - job_count) / (now - since)
        if not samples or now - samples[-1][0] > self.MIN_SAMPLE_SECONDS:
            samples.append((now, self._job_count))


class PrefetchSource(JobSource):
    """Fetches for waiting workers, and ahead of them while jobs are short.

    After an empty fetch it fetches again when a job is announced, when a named queue becomes free,
    or at the next poll.
    """

    def __init__(
        self,
        claimer: Claimer,
        completer: Completer,
        hooks: Hooks,
        options: FetchOptions,
        *,
        max_bytes: int,
        timings: PrefetchTimings = DEFAULT_TIMINGS,
    ) -> None:
        super().__init__(claimer, completer, hooks, options)
        self._max_buffered_seconds = timings.max_buffered_seconds
        self._late_check_interval_seconds = timings.late_check_interval_seconds
        self._throughput = ThroughputEstimate(self._clock)
        self._max_bytes = max_bytes
        self._late_check_at = 0.0
        self._fetch_limit = FIRST_FETCH_LIMIT
        # The size of the last fetch if it was full, else 0.
        self._last_full_fetch = 0
        # Whether there may be jobs to fetch, and how often `wake` was called.
        self._may_have_more = True
        self._wakes = 0
        # Bound once, because workers call it for each job.
        self.record_duration = self._throughput.record_duration  # type: ignore[method-assign]

    def wake(self, count: int | None = None) -> None:
        self._wakes += 1
        self._may_have_more = True
        self._changed.set()

    def forget(self, claimed: ClaimedJob, *, may_run_again: bool = False) -> None:
        super().forget(claimed)
        if may_run_again:
            # Its delay may be short, and no notification reports its end.
            self._poll_by(self._clock() + SHORT_FETCH_POLL_SECONDS)
            self._changed.set()
        # With `once` a pool gets no notification of jobs that the last job added.
        if self._once and not self._claimer.claimed_jobs:
            self.wake()

    async def step_once(self) -> None:
        await self._release_late()
        limit = self._compute_fetch_limit()
        if limit:
            await self._fetch(limit)
            return
        await self._wait_for_change(
            self._late_check_interval_seconds
            if self._buffer.jobs
            else self._poll_at - self._clock()
        )
        self._wake_if_poll_is_due()

    def _compute_fetch_limit(self) -> int:
        if not self._may_have_more or self._buffer.is_closed:
            return 0
        batch = min(self._throughput.estimate_jobs() // 3, self._fetch_limit)
        waiting = len(self._buffer.prune_waiters())
        self._buffer.low_watermark = max(1, 2 * batch)
        if waiting:
            # Workers wait although the last fetch was full: request twice as many jobs.
            more = min(2 * self._last_full_fetch, self._throughput.estimate_max_jobs(waiting))
            return max(1, min(max(waiting, self._fetch_limit), max(waiting + batch, more)))
        return batch if len(self._buffer.jobs) < self._buffer.low_watermark else 0

    async def _fetch(self, limit: int) -> None:
        wakes, had_jobs = self._wakes, bool(self._claimer.claimed_jobs)
        claimed_jobs = await self._claim(limit)
        if claimed_jobs is None:
            return
        self._last_full_fetch = limit if len(claimed_jobs) == limit else 0
        if claimed_jobs:
            # The buffer must have room for three such fetches.
            self._fetch_limit = compute_fetch_limit(
                max(limit, self._fetch_limit), MAX_FETCH, self._max_bytes // 3, claimed_jobs
            )
            self._buffer.put(claimed_jobs)
            if claimed_jobs[0].is_all_ready:
                # A job that the fetch could not see is announced after its start.
                self._emit_for_waiters(GetJobEmpty, self._buffer.waiters)
                self._may_have_more = self._wakes > wakes
            elif len(claimed_jobs) * SHORT_FETCH_DIVISOR <= limit:
                # There are probably no more jobs, so the next fetch can wait.
                self._may_have_more = self._wakes > wakes
                self._poll_by(self._clock() + SHORT_FETCH_POLL_SECONDS)
            if not self._buffer.jobs:
                # Let the jobs start before the next fetch is sent.
                await asyncio.sleep(0)
            return
        self._emit_for_waiters(GetJobEmpty, self._buffer.waiters)
        self._may_have_more = self._wakes > wakes
        self._poll_by(self._claimer.next_fetch_at)
        if self._once and not had_jobs and self._claimer.next_fetch_at is None:
            self.stop()

    def _can_retry_once(self, error: BaseException) -> bool:
        # While jobs run there is time to retry.
        return is_temporary(error) and bool(self._claimer.claimed_jobs)

    async def _release_late(self) -> None:
        """Release jobs that waited for too long, because another pool may run them now."""
        now = self._clock()
        if now < self._late_check_at:
            return
        self._late_check_at = now + self._late_check_interval_seconds
        late = self._buffer.take_older(now - self._max_buffered_seconds)
        if late:
            self._throughput.reset()
            await self._buffer.release(late)
            # The next fetch may find them again.
            self._may_have_more = True
