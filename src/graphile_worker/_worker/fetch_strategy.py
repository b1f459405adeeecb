"""Fetch: take jobs with the cheapest statement that finds them."""

import math
import time
from collections.abc import Mapping
from enum import IntEnum, auto
from typing import Any

from graphile_worker._db.database import QueryRunner
from graphile_worker._sql.queries.claim import (
    ClaimedJob,
    JobPosition,
    claim_jobs,
    claim_jobs_unindexed,
    claim_plain_jobs,
    claim_soonest_jobs,
)
from graphile_worker._sql.query import Query
from graphile_worker._worker.many_tasks import MAX_TASKS_PER_FETCH, TaskScanner
from graphile_worker._worker.scan_cursor import ScanCursor

# A way that so often in a row found nothing where there was something is the usual one no more:
# once or twice may be because a job came just then. After these seconds the next cheaper way is
# tried again.
MAX_MISSES = 3
CHEAPER_RETRY_SECONDS = 1.0

# Seconds between two looks everywhere, where the soonest jobs are of a few queues: twice as many
# after each that found nothing else.
FULL_SCAN_DELAY_RANGE_SECONDS = (0.02, 0.1)


class FetchStrategy(IntEnum):
    """From the cheapest on; only of the last an empty answer says that there is nothing."""

    PLAIN = auto()
    SOONEST = auto()
    FULL_SCAN = auto()


class JobFetcher:
    """Tries the way that usually finds jobs, then the one that finds all.

    Where the soonest jobs are of named queues, and one of those is ours and busy, an empty answer
    is no reason to look everywhere each time. Nor is a short one: `again_at` says when it is.
    """

    def __init__(self, database: QueryRunner, claimed_jobs: Mapping[int, ClaimedJob]) -> None:
        self.has_indexes = False
        self.next_fetch_at: float | None = None
        self._db = database
        self._claimed_jobs = claimed_jobs
        self._preferred = FetchStrategy.PLAIN
        self._misses = 0
        self._retry_cheaper_at = 0.0
        self._scan_cursor = ScanCursor()
        self._task_scanner = TaskScanner(database)
        # How many the soonest were when they were too few, and when to look behind them.
        self._last_short_count = 0
        self._next_full_scan_at = math.inf
        self._full_scan_delay = FULL_SCAN_DELAY_RANGE_SECONDS[0]
        self._full_scanned_at = -math.inf

    def has_too_many_tasks(self, tasks: Mapping[int, str]) -> bool:
        """Are these so many tasks that a fetch finds out by itself which it has to ask for?"""
        return self.has_indexes and len(tasks) > MAX_TASKS_PER_FETCH

    async def fetch(
        self, pool_id: str, tasks: Mapping[int, str], *, limit: int, **options: Any
    ) -> list[ClaimedJob]:
        """Up to so many jobs; none, and no time to ask again, means that there are no more."""
        self.next_fetch_at = None
        if not self.has_too_many_tasks(tasks):
            return await self._fetch_by_strategy(pool_id, tasks, limit=limit, **options)
        place = self._scan_cursor.position
        tasks = await self._task_scanner.find_tasks_with_jobs(
            tasks, limit, now=options.get("now"), since=place
        )
        taken = (
            await self._fetch_by_strategy(pool_id, tasks, limit=limit, **options) if tasks else []
        )
        if (again_at := self._task_scanner.get_next_scan_at(taken)) is not None:
            self.next_fetch_at = min(again_at, self.next_fetch_at or again_at)
        return taken

    async def _fetch_by_strategy(
        self, pool_id: str, tasks: Mapping[int, str], *, limit: int, **options: Any
    ) -> list[ClaimedJob]:
        tried = self._choose_strategy()
        if tried is FetchStrategy.PLAIN and (place := self._scan_cursor.position) is not None:
            return await self._fetch_since(place, pool_id, tasks, limit=limit, **options)
        # What ends while we ask may have ended too late for the answer.
        busy = get_busy_queue_ids(self._claimed_jobs) if tried is FetchStrategy.SOONEST else set()
        if tried < FetchStrategy.FULL_SCAN:
            taken = await self._db.run(
                self._build_query(tried, pool_id, tasks, limit=limit, **options)
            )
            if taken:
                self._record_hit(tried, len(taken), limit)
                if tried is FetchStrategy.PLAIN:
                    self._scan_cursor.record_scan(taken)
                return taken
            if busy and time.monotonic() < self._full_scanned_at + self._full_scan_delay:
                self.next_fetch_at = self._full_scanned_at + self._full_scan_delay
                return []
        everywhere = self._build_query(
            FetchStrategy.FULL_SCAN, pool_id, tasks, limit=limit, **options
        )
        taken = await self._db.run(everywhere)
        self._record_full_scan(tried, taken, busy)
        return taken

    async def _fetch_since(
        self, position: JobPosition, *args: Any, **options: Any
    ) -> list[ClaimedJob]:
        """From there on; all is looked at if that brings nothing, as there are workers to spare."""
        for way in (FetchStrategy.PLAIN, FetchStrategy.SOONEST):
            taken = await self._db.run(self._build_query(way, *args, since=position, **options))
            if taken:
                if way is FetchStrategy.PLAIN:
                    self._scan_cursor.advance(taken)
                return taken
        if time.monotonic() < self._scan_cursor.next_full_scan_at:
            self.next_fetch_at = self._scan_cursor.next_full_scan_at
            return []
        taken = await self._db.run(self._build_query(FetchStrategy.FULL_SCAN, *args, **options))
        self._scan_cursor.delay_full_scan()
        return taken

    def _choose_strategy(self) -> FetchStrategy:
        now = time.monotonic()
        if now >= self._next_full_scan_at:
            return FetchStrategy.FULL_SCAN
        if self._preferred > FetchStrategy.PLAIN and now >= self._retry_cheaper_at:
            self._retry_cheaper_at = now + CHEAPER_RETRY_SECONDS
            return FetchStrategy(self._preferred - 1)
        return self._preferred

    def _record_hit(self, strategy: FetchStrategy, count: int, limit: int) -> None:
        self._preferred = strategy
        self._misses = 0
        if strategy is FetchStrategy.SOONEST and count * 2 <= limit:
            # Behind those of a few queues there may be others.
            self._last_short_count = count
            self._next_full_scan_at = min(
                self._next_full_scan_at, time.monotonic() + self._full_scan_delay
            )
            self.next_fetch_at = self._next_full_scan_at

    def _record_full_scan(
        self, tried: FetchStrategy, claimed_jobs: list[ClaimedJob], busy_queue_ids: set[int]
    ) -> None:
        is_wider, self._next_full_scan_at = self._next_full_scan_at < math.inf, math.inf
        self._full_scanned_at = time.monotonic()
        if tried is FetchStrategy.FULL_SCAN:
            found_more = is_wider and len(claimed_jobs) > self._last_short_count
            if found_more:
                self._prefer(FetchStrategy.FULL_SCAN)
        else:
            found_more = any(held.queue_id not in busy_queue_ids for held in claimed_jobs)
            if found_more and tried is self._preferred:
                self._record_miss(tried)
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
        self._misses = 0
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
    """The named queues of those jobs."""
    return {each.queue_id for each in claimed_jobs.values() if each.queue_id is not None}
