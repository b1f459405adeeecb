"""Groups of tasks with the same limits, and when each may start its next job."""

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from graphile_worker._db.retry import compute_backoff
from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._support.lazy_dataclass import LazyKeywordDataclass
from graphile_worker._worker.fetch_strategy import JobFetcher
from graphile_worker._worker.permits import Permit, Permits, PermitTimings, Slots, Tokens
from graphile_worker._worker.sources.base import MAX_BACKOFF_SECONDS
from graphile_worker.limits import Limit


class LimitTimings(LazyKeywordDataclass):
    """Intervals of limited jobs."""

    watch_interval_seconds: float = 5.0
    """Between two reads of the limits: a change takes effect within seconds."""
    min_search_interval_seconds: float = 0.02
    """Between two searches for ready jobs, because notifications of other tasks are frequent."""
    short_job_seconds: float = 0.1
    """Jobs that take longer are not claimed before a slot is free."""
    ahead_seconds: float = 0.05
    """Work that is claimed ahead while jobs are short, at least one job for each slot."""
    max_waiting_seconds: float = 0.11
    """Time after which a claimed job without a worker is released for other pools."""
    max_asking_seconds: float = 0.25
    """Longest time for which an idle worker waits for an answer about limited jobs alone."""
    once_wait_seconds: float = 1.0
    """Longest time for which a worker that runs once waits for a permit."""
    turn_seconds: float = 0.05
    """Time without a start after which a task that shares a limit gets its next free slot."""
    mean_weight: float = 0.1
    """Weight of the last job in the mean duration."""
    permits: PermitTimings = PermitTimings()


DEFAULT_TIMINGS = LimitTimings()


class Group:
    """The tasks with the same limits: they are claimed together."""

    def __init__(
        self, tasks: frozenset[str], permits: Sequence[Permits], fetcher: JobFetcher
    ) -> None:
        self.tasks = tasks
        # Slots before tokens, because unused tokens are lost. Each kind by name.
        self.permits = permits
        self.fetcher = fetcher
        # Groups that share a limit with this one, and when this one last started a job among all.
        self.rivals: list[Group] = []
        self.turn = 0
        self.started_at = float("-inf")
        # Claimed jobs that wait for a permit or a worker.
        self.next: deque[ClaimedJob] = deque()
        # Whether more jobs may be ready, and since when there was no permit for one.
        self.may_have_more = False
        self.blocked_since: float | None = None
        self.search_at = float("inf")
        self.running = 0
        # Errors in a row, and when to try again after the last one.
        self.failures = 0
        self._failed_until = 0.0
        self._mean_seconds: float | None = None

    @property
    def free_permits(self) -> int:
        """Return how many jobs may start now."""
        return min(each.free_count for each in self.permits)

    @property
    def startable_count(self) -> int:
        """Return how many claimed jobs may start now."""
        return min(len(self.next), self.free_permits) if self.next else 0

    @property
    def has_jobs(self) -> bool:
        """Return whether jobs are claimed or may be ready."""
        return bool(self.next) or self.may_have_more

    @property
    def retry_at(self) -> float:
        """Return when to ask for the permits without which no job starts.

        A limit whose permits other jobs use all the time does not count while one of them is free.
        """
        missing = [each.retry_at for each in self.permits if not each.free_count]
        return max(self._failed_until, *missing, 0.0)

    def can_try(self, now: float) -> bool:
        """Return whether jobs may be ready, and whether it is time to get permits for them."""
        return self.may_have_more and now >= self.retry_at

    def can_acquire(self, count: int, now: float) -> bool:
        """Return whether to ask the database for permits of `count` jobs."""
        return now >= self.retry_at and any(
            each.free_count < count and now >= each.retry_at for each in self.permits
        )

    def must_yield(self, now: float, turn_seconds: float) -> bool:
        """Return whether the last free permit belongs to a group whose last start is longer ago.

        That group may need permits of other limits too, for which it has to ask the database. This
        one could start its jobs meanwhile, and would take every permit that they share. A permit is
        idle during the question, so it is only one, and not for each start of the other group.
        """
        return any(
            each.turn < self.turn
            and each.has_jobs
            and now >= max(each.retry_at, each.started_at + turn_seconds)
            and any(permits.free_count == 1 for permits in self.permits if permits in each.permits)
            for each in self.rivals
        )

    def is_paused(self, now: float) -> bool:
        """Return whether to wait after an error."""
        return now < self._failed_until

    def record_failure(self) -> None:
        """Claim no jobs for a time that grows with each error."""
        self._failed_until = time.monotonic() + compute_backoff(self.failures, MAX_BACKOFF_SECONDS)
        self.failures += 1

    def may_start_within(self, seconds: float, now: float) -> bool:
        """Return whether jobs may be ready that may start soon."""
        if not self.may_have_more or self.blocked_since is None:
            return self.may_have_more
        return self.retry_at <= now + seconds and now <= self.blocked_since + seconds

    def count_ahead(self, timings: LimitTimings) -> int:
        """Return how many jobs to claim for the slots of running ones, if jobs are short.

        0 with a rate limit, whose tokens do not become free when a job ends.
        """
        mean = self._mean_seconds
        if mean is None or mean > timings.short_job_seconds:
            return 0
        if not all(isinstance(each, Slots) for each in self.permits):
            return 0
        return self.running * max(1, int(timings.ahead_seconds / max(mean, 0.001)))

    def record_permits(self, *, is_needed: bool) -> None:
        """Record whether there is a permit for a worker that needs one."""
        if self.free_permits:
            self.blocked_since = None
        elif is_needed and self.blocked_since is None:
            self.blocked_since = time.monotonic()

    def record_duration(self, seconds: float, weight: float) -> None:
        mean = self._mean_seconds
        self._mean_seconds = seconds if mean is None else mean + (seconds - mean) * weight

    def record_late(self) -> None:
        """Claim fewer jobs ahead, because the last ones waited for too long.

        Jobs take longer than the mean, or this process was stalled. The next jobs to end correct
        the mean. If none ends, it soon exceeds that of short jobs.
        """
        if self._mean_seconds is not None:
            self._mean_seconds *= 2

    def take_permits(self) -> tuple[Permit, ...]:
        return tuple(each.take() for each in self.permits)


class Start:
    """A limited job that starts, with its permits."""

    __slots__ = ("claimed", "group", "permits", "started_at")

    def __init__(self, claimed: ClaimedJob, group: Group, permits: tuple[Permit, ...]) -> None:
        self.claimed = claimed
        self.group = group
        self.permits = permits
        self.started_at = time.monotonic()


def group_tasks(
    limits: Mapping[str, Iterable[Limit]], permits: Mapping[str, Permits]
) -> list[tuple[frozenset[str], list[Permits]]]:
    """Return the tasks of each set of limits, with the permits of these limits in order."""
    groups: dict[frozenset[str], set[str]] = {}
    for task, some in limits.items():
        groups.setdefault(frozenset(each.name or "" for each in some), set()).add(task)
    return [
        (
            frozenset(tasks),
            sorted(
                (permits[name] for name in names),
                key=lambda each: (isinstance(each, Tokens), each.name),
            ),
        )
        for names, tasks in groups.items()
    ]
