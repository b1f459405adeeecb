"""JobFetcher: claims jobs with the cheapest statement that finds them."""

import math
import time
from collections.abc import Mapping
from datetime import datetime
from enum import IntEnum, auto
from typing import Any

from graphile_worker._db.database import QueryRunner
from graphile_worker._sql.queries.claim import (
    ClaimedJob,
    JobPosition,
    ReadyCheck,
    check_ready_jobs,
    claim_first_job,
    claim_jobs,
    claim_jobs_around,
    claim_jobs_unindexed,
    claim_plain_jobs,
    claim_soonest_jobs,
)
from graphile_worker._sql.query import Query
from graphile_worker._worker.many_tasks import MAX_TASKS_PER_FETCH, TaskScanner
from graphile_worker._worker.scan_cursor import SLOW_SCAN_SECONDS, BlockedJobsCursor, ScanCursor
from graphile_worker.jobs import RunAt

# A strategy that misses jobs this many times in a row is replaced by the next one; once or twice a
# job may just have been added. After these seconds the cheaper strategy is used once, and sooner
# after this many results in a row without a job of a named queue.
MAX_MISSES = 3
CHEAPER_RETRY_SECONDS = 1.0
MIN_PLAIN_HITS = 10

# Seconds between two full scans while the soonest jobs are of a few queues, doubled after each scan
# that found nothing else.
FULL_SCAN_DELAY_RANGE_SECONDS = (0.02, 0.1)


class FetchStrategy(IntEnum):
    """The ways to fetch, the cheapest first. Only the last one finds all ready jobs."""

    PLAIN = auto()
    SOONEST = auto()
    FULL_SCAN = auto()


class JobFetcher:
    """Uses the strategy that usually finds jobs, then the one that finds all.

    Before the latter, which is expensive, a cheap query checks whether any job may be ready. That
    query starts after the fetch was requested, so it sees each job of which the pool was notified
    before. A later notification leads to another fetch.

    A pool that found no more than one job before expects one job: it claims the first job alone,
    which is cheaper still.

    If the soonest jobs are of named queues, and this pool keeps one of them busy, an empty or short
    answer is not always followed by a full scan: `next_fetch_at` is the time of the next one. The
    same holds while jobs are found behind others that cannot be claimed.
    """

    def __init__(
        self,
        database: QueryRunner,
        claimed_jobs: Mapping[int, ClaimedJob],
        *,
        slow_scan_seconds: float = SLOW_SCAN_SECONDS,
    ) -> None:
        self.has_indexes = False
        self.next_fetch_at: float | None = None
        # Empty fetches in a row, and the time of the last one.
        self.empty_fetches = 0
        self.last_empty_at = 0.0
        self._db = database
        self._claimed_jobs = claimed_jobs
        self._preferred = FetchStrategy.PLAIN
        self._misses = 0
        self._retry_cheaper_at = 0.0
        self._plain_hits = 0
        self._scan_cursor = ScanCursor(slow_scan_seconds)
        self._blocked_jobs_cursor = BlockedJobsCursor()
        self._task_scanner = TaskScanner(database)
        # Whether the last fetch found no or one job, and when the first job may be claimed alone.
        self._found_several = False
        self._first_misses = 0
        self._claim_first_at = 0.0
        # The size of the last short result, and when to scan for other jobs.
        self._last_short_count = 0
        self._next_full_scan_at = math.inf
        self._full_scan_delay = FULL_SCAN_DELAY_RANGE_SECONDS[0]
        self._full_scanned_at = -math.inf

    def has_too_many_tasks(self, tasks: Mapping[int, str]) -> bool:
        """Return whether there are more tasks than one fetch can name."""
        return self.has_indexes and len(tasks) > MAX_TASKS_PER_FETCH

    async def fetch(
        self, pool_id: str, tasks: Mapping[int, str], *, limit: int, **options: Any
    ) -> list[ClaimedJob]:
        """Claim up to `limit` jobs.

        If it claims none and `next_fetch_at` is None, no job is ready.
        """
        self.next_fetch_at = None
        if not self.has_too_many_tasks(tasks):
            return await self._fetch_by_strategy(pool_id, tasks, limit=limit, **options)
        tasks = await self._task_scanner.find_tasks_with_jobs(
            tasks, limit, now=options.get("now"), since=self._scan_cursor.position
        )
        claimed_jobs = (
            await self._fetch_by_strategy(pool_id, tasks, limit=limit, **options) if tasks else []
        )
        if (scan_at := self._task_scanner.get_next_scan_at(claimed_jobs)) is not None:
            self.next_fetch_at = min(scan_at, self.next_fetch_at or scan_at)
        return claimed_jobs

    async def _fetch_by_strategy(
        self, pool_id: str, tasks: Mapping[int, str], *, limit: int, **options: Any
    ) -> list[ClaimedJob]:
        position = self._blocked_jobs_cursor.get_position(tasks, options.get("skip_flags"))
        if position is not None:
            return await self._fetch_around(position, pool_id, tasks, limit=limit, **options)
        strategy = self._choose_strategy()
        if strategy is FetchStrategy.PLAIN and self._expects_one_job:
            return await self._fetch_first(pool_id, tasks, limit=limit, **options)
        claimed_jobs = await self._fetch_several(strategy, pool_id, tasks, limit=limit, **options)
        self._found_several = len(claimed_jobs) > 1
        return claimed_jobs

    @property
    def _expects_one_job(self) -> bool:
        return (
            not self._found_several
            and self._scan_cursor.position is None
            and time.monotonic() >= self._claim_first_at
        )

    async def _fetch_first(
        self, pool_id: str, tasks: Mapping[int, str], *, limit: int, **options: Any
    ) -> list[ClaimedJob]:
        """Claim the first job, and more in a second query if there may be more."""
        first = await self._db.run(claim_first_job(pool_id, tasks, limit=limit, **options))
        if first:
            self._scan_cursor.record_scan(first)
            if first[0].is_all_ready or limit == 1:
                self._record_hit(FetchStrategy.PLAIN, first, limit)
                self._first_misses = 0
                return first
            limit -= 1
        # Now, in case the next query fails: it must not fail after each claim of the first job.
        self._found_several = bool(first)
        others = await self._fetch_several(
            FetchStrategy.PLAIN, pool_id, tasks, limit=limit, **options
        )
        self._found_several = bool(first) or len(others) > 1
        if first or others:
            self._first_misses += 1
            if self._first_misses >= MAX_MISSES:
                self._claim_first_at = time.monotonic() + CHEAPER_RETRY_SECONDS
        if not first or not others:
            return first or others
        # Of jobs that were added together, the statement may have found any.
        claimed_jobs = sorted(first + others, key=_get_order)
        claimed_jobs[0].is_all_ready = others[0].is_all_ready
        return claimed_jobs

    async def _fetch_several(
        self,
        strategy: FetchStrategy,
        pool_id: str,
        tasks: Mapping[int, str],
        *,
        limit: int,
        **options: Any,
    ) -> list[ClaimedJob]:
        if strategy is FetchStrategy.PLAIN and (since := self._scan_cursor.position) is not None:
            return await self._fetch_since(since, pool_id, tasks, limit=limit, **options)
        # Read before the query, because a job that ends meanwhile may end too late for it.
        busy = (
            get_busy_queue_ids(self._claimed_jobs) if strategy is FetchStrategy.SOONEST else set()
        )
        if strategy < FetchStrategy.FULL_SCAN:
            claimed_jobs = await self._db.run(
                self._build_query(strategy, pool_id, tasks, limit=limit, **options)
            )
            if claimed_jobs:
                self._record_hit(strategy, claimed_jobs, limit)
                if strategy is FetchStrategy.PLAIN:
                    self._scan_cursor.record_scan(claimed_jobs)
                return claimed_jobs
            if busy and time.monotonic() < self._full_scanned_at + self._full_scan_delay:
                self.next_fetch_at = self._full_scanned_at + self._full_scan_delay
                return []
        check = await self._check_ready_jobs(tasks, **options)
        claimed_jobs = []
        if check.may_be_ready:
            if check.are_few and strategy is not FetchStrategy.SOONEST:
                # The cheaper statement reads all of them. It finds none if other sessions have
                # locked their rows.
                claimed_jobs = await self._db.run(
                    self._build_query(FetchStrategy.SOONEST, pool_id, tasks, limit=limit, **options)
                )
            claimed_jobs = claimed_jobs or await self._scan_all(
                pool_id, tasks, limit=limit, **options
            )
        elif strategy < self._preferred:
            # Nothing shows whether the cheaper strategy is enough: use it for the next job.
            self._retry_cheaper_at = 0.0
        self._record_full_scan(strategy, claimed_jobs, busy)
        return claimed_jobs

    async def _check_ready_jobs(
        self,
        tasks: Mapping[int, str],
        *,
        skip_flags: list[str] | None = None,
        now: RunAt | None = None,
        **_options: Any,
    ) -> ReadyCheck:
        return await self._db.run(check_ready_jobs(tasks, skip_flags, now))

    async def _fetch_since(
        self, position: JobPosition, *args: Any, **options: Any
    ) -> list[ClaimedJob]:
        """Scan from the position on, and scan all jobs if that finds none: workers are idle."""
        strategies = [FetchStrategy.PLAIN]
        if self.has_indexes:
            # Without them, the first job of each named queue would be searched among all jobs.
            strategies.append(FetchStrategy.SOONEST)
        for strategy in strategies:
            query = self._build_query(strategy, *args, since=position, **options)
            claimed_jobs = await self._db.run(query)
            if claimed_jobs:
                if strategy is FetchStrategy.PLAIN:
                    self._scan_cursor.advance(claimed_jobs)
                return claimed_jobs
        if time.monotonic() < self._scan_cursor.next_full_scan_at:
            self.next_fetch_at = self._scan_cursor.next_full_scan_at
            return []
        claimed_jobs = await self._scan_all(*args, **options)
        self._scan_cursor.delay_full_scan()
        return claimed_jobs

    async def _fetch_around(
        self, position: JobPosition, *args: Any, limit: int, **options: Any
    ) -> list[ClaimedJob]:
        """Search around the position, and scan all jobs if that finds none for too long."""
        query = claim_jobs_around(*args, limit=limit, since=position, **options)
        claimed_jobs = await self._db.run(query)
        if not _is_short(claimed_jobs, limit):
            return claimed_jobs
        self.next_fetch_at = self._blocked_jobs_cursor.record_short_result()
        if claimed_jobs or time.monotonic() < self.next_fetch_at:
            return claimed_jobs
        self.next_fetch_at = None
        return await self._scan_all(*args, limit=limit, **options)

    async def _scan_all(
        self, pool_id: str, tasks: Mapping[int, str], *, limit: int, **options: Any
    ) -> list[ClaimedJob]:
        query = self._build_query(FetchStrategy.FULL_SCAN, pool_id, tasks, limit=limit, **options)
        claimed_jobs = await self._db.run(query)
        self._blocked_jobs_cursor.record_scan(
            claimed_jobs,
            tasks,
            options.get("skip_flags"),
            is_short=_is_short(claimed_jobs, limit),
        )
        return claimed_jobs

    def _choose_strategy(self) -> FetchStrategy:
        now = time.monotonic()
        if now >= self._next_full_scan_at:
            return FetchStrategy.FULL_SCAN
        if self._preferred > FetchStrategy.PLAIN and now >= self._retry_cheaper_at:
            self._retry_cheaper_at = now + CHEAPER_RETRY_SECONDS
            return FetchStrategy(self._preferred - 1)
        return self._preferred

    def _record_hit(
        self, strategy: FetchStrategy, claimed_jobs: list[ClaimedJob], limit: int
    ) -> None:
        is_cheaper = strategy < self._preferred
        self._preferred = strategy
        self._misses = 0
        if strategy is FetchStrategy.PLAIN:
            return
        self._count_plain_hits(claimed_jobs, is_cheaper=is_cheaper)
        if _is_short(claimed_jobs, limit) and not claimed_jobs[0].is_all_ready:
            # After the jobs of a few queues there may be others.
            self._last_short_count = len(claimed_jobs)
            self._next_full_scan_at = min(
                self._next_full_scan_at, time.monotonic() + self._full_scan_delay
            )
            self.next_fetch_at = self._next_full_scan_at

    def _count_plain_hits(self, claimed_jobs: list[ClaimedJob], *, is_cheaper: bool) -> None:
        """Use a cheaper strategy soon, if the jobs of named queues seem to be gone."""
        if any(each.queue_id is not None for each in claimed_jobs):
            self._plain_hits = 0
            return
        self._plain_hits += 1
        if is_cheaper or self._plain_hits == MIN_PLAIN_HITS:
            self._retry_cheaper_at = 0.0

    def _record_full_scan(
        self, strategy: FetchStrategy, claimed_jobs: list[ClaimedJob], busy_queue_ids: set[int]
    ) -> None:
        is_wider, self._next_full_scan_at = self._next_full_scan_at < math.inf, math.inf
        self._full_scanned_at = time.monotonic()
        if strategy is FetchStrategy.FULL_SCAN:
            if claimed_jobs:
                self._count_plain_hits(claimed_jobs, is_cheaper=False)
            found_more = is_wider and len(claimed_jobs) > self._last_short_count
            if found_more:
                self._prefer(FetchStrategy.FULL_SCAN)
        else:
            found_more = any(each.queue_id not in busy_queue_ids for each in claimed_jobs)
            if found_more and strategy is self._preferred:
                self._record_miss(strategy)
        self._full_scan_delay = (
            FULL_SCAN_DELAY_RANGE_SECONDS[0]
            if found_more
            else min(self._full_scan_delay * 2, FULL_SCAN_DELAY_RANGE_SECONDS[1])
        )

    def _record_miss(self, strategy: FetchStrategy) -> None:
        self._misses += 1
        if self._misses >= MAX_MISSES:
            self._prefer(FetchStrategy(strategy + 1))

    def _prefer(self, strategy: FetchStrategy) -> None:
        self._preferred = strategy
        self._misses = self._plain_hits = 0
        self._retry_cheaper_at = time.monotonic() + CHEAPER_RETRY_SECONDS

    def _build_query(
        self, strategy: FetchStrategy, *args: Any, **options: Any
    ) -> Query[list[ClaimedJob]]:
        match strategy:
            case FetchStrategy.PLAIN:
                return claim_plain_jobs(*args, **options)
            case FetchStrategy.SOONEST:
                return claim_soonest_jobs(*args, **options)
            case _ if self.has_indexes:
                return claim_jobs(*args, **options)
            case _:
                return claim_jobs_unindexed(*args, **options)


def get_busy_queue_ids(claimed_jobs: Mapping[int, ClaimedJob]) -> set[int]:
    """Return the ids of the named queues of these jobs."""
    return {each.queue_id for each in claimed_jobs.values() if each.queue_id is not None}


def _get_order(claimed: ClaimedJob) -> tuple[int, datetime, int]:
    job = claimed.job
    return job.priority, job.run_at, job.id


def _is_short(claimed_jobs: list[ClaimedJob], limit: int) -> bool:
    return len(claimed_jobs) * 2 <= limit
