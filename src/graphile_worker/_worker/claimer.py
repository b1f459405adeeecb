"""Claimer: claims jobs for one pool, and keeps track of them."""

import asyncio
import inspect
import math
import random
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Any

from graphile_worker._db.database import QueryRunner
from graphile_worker._db.retry import compute_backoff
from graphile_worker._lease.lease import Lease
from graphile_worker._metrics.definitions import FetchResult
from graphile_worker._metrics.recorder import Recorder
from graphile_worker._sql.queries.claim import (
    ClaimedJob,
    find_orphaned_claims,
    get_task_ids,
    has_fetch_indexes,
    register_tasks,
    release_orphaned_claims,
)
from graphile_worker._sql.sqlstate import LOCK_NOT_AVAILABLE, get_sqlstate
from graphile_worker._support.clock import Clock
from graphile_worker._support.failpoints import failpoint
from graphile_worker._support.lazy_dataclass import LazyKeywordDataclass
from graphile_worker._worker.fetch_strategy import JobFetcher
from graphile_worker._worker.job_metrics import record_claimed_jobs
from graphile_worker._worker.payload_budget import PayloadBudget
from graphile_worker._worker.scan_cursor import SLOW_SCAN_SECONDS
from graphile_worker.errors import ConfigurationError, LeaseExpiredError

Flags = Collection[str] | None
ForbiddenFlags = Flags | Callable[[], Flags | Awaitable[Flags]]

# Milliseconds to wait for a transaction that adds the name of a task. No job of that name is
# visible before that transaction ends, so the pool can go on without it.
REGISTER_LOCK_TIMEOUT_MILLISECONDS = 100

# After this many empty fetches in a row, the next one waits: any role can send notifications
# without adding jobs.
EMPTY_FETCHES_BEFORE_DELAY = 10
EMPTY_FETCH_DELAY_SECONDS = 0.02

# Seconds: after a fetch that takes longer, the next one requests no more jobs than this one.
QUICK_FETCH_SECONDS = 1.0

# Seconds for which an id is checked if its fetch has answered: one check is enough.
CHECK_ONCE = -math.inf


class ClaimTimings(LazyKeywordDataclass):
    """Intervals and time limits of a claimer."""

    task_check_interval_seconds: float = 10.0
    """The row of a task may be deleted and created again, under another id, while a worker runs."""
    register_tasks_timeout_seconds: float = 0.5
    """Time to register the names of all tasks, one by one."""
    unconfirmed_claim_seconds: float = 60.0
    """Time in which the server may still execute an abandoned fetch."""
    orphan_check_interval_seconds: float = 10.0
    """Between two checks for jobs that such a fetch locked. Each may read the whole table."""
    slow_scan_seconds: float = SLOW_SCAN_SECONDS


DEFAULT_TIMINGS = ClaimTimings()


class Claimer:
    """Claims jobs, one fetch at a time: call `claim` again only after it returned."""

    def __init__(
        self,
        database: QueryRunner,
        lease: Lease,
        identifiers: Collection[str],
        *,
        forbidden_flags: ForbiddenFlags = None,
        clock: Clock | None = None,
        slow_database: QueryRunner | None = None,
        slow_database_at_shutdown: QueryRunner | None = None,
        waits_for_register_lock: bool = False,
        payload_budget: PayloadBudget | None = None,
        timings: ClaimTimings = DEFAULT_TIMINGS,
        recorder: Recorder | None = None,
        shard: str | None = None,
    ) -> None:
        self._recorder = recorder
        self._shard = shard
        self.claimed_jobs: dict[int, ClaimedJob] = {}
        self._timings = timings
        self._payload_budget = payload_budget or PayloadBudget(database)
        # Locked during a fetch, whose jobs are not in `claimed_jobs` yet.
        self.fetch_lock = asyncio.Lock()
        self._claimed_at = -math.inf
        # Called with the older claim when a job is claimed again, because its lock was released.
        self.on_reclaimed: Callable[[ClaimedJob], None] = lambda claimed: None
        # Called with the number of orphaned claims that were released.
        self.on_released: Callable[[int], None] = lambda count: None
        self._lease = lease
        self._db = database
        # For finding orphaned claims, which may take longer than a fetch.
        self._slow_db = slow_database or database
        # The same at shutdown, without time to open another connection.
        self._slow_db_at_shutdown = slow_database_at_shutdown or database
        self._identifiers = list(identifiers)
        self._forbidden_flags = forbidden_flags
        self._clock = clock
        self._register_lock_timeout = (
            None if waits_for_register_lock else REGISTER_LOCK_TIMEOUT_MILLISECONDS
        )
        self._task_ids: dict[int, str] = {}
        self._fetcher = JobFetcher(
            database, self.claimed_jobs, slow_scan_seconds=timings.slow_scan_seconds
        )
        self._task_check_interval_seconds = timings.task_check_interval_seconds
        self._tasks_checked_at = -math.inf
        # The id of a fetch without an answer yet, and until when earlier such ids are checked.
        self._unconfirmed_claim: str | None = None
        self._unconfirmed_until: dict[str, float] = {}
        self._orphans_checked_at = 0.0
        # Ids to check once, because a server that lost commits may show their jobs as locked.
        self._orphaned_pool_ids: set[str] = set()
        self._orphan_marks = 0
        self._orphan_check_needed = asyncio.Event()
        # Upper bound on the batch size after a timed-out fetch.
        self._max_fetch = math.inf
        # Tasks whose jobs are not claimed for now.
        self.paused_tasks: Collection[str] = ()
        # Whether the last fetch requested fewer jobs than its limit, so that there may be more.
        self.was_truncated = False

    @property
    def pool_id(self) -> str:
        return self._lease.pool_id

    @property
    def has_dynamic_flags(self) -> bool:
        """Return whether a function returns the forbidden flags, so that they may change."""
        return callable(self._forbidden_flags)

    @property
    def next_fetch_at(self) -> float | None:
        """Return when to fetch again, if there may be jobs that the last fetch did not find.

        Infinity means at the next poll.
        """
        fetch_at = self._fetcher.next_fetch_at
        # Jobs that a fetch locked under a recovered id are ready again when `run` releases them.
        if fetch_at is None and CHECK_ONCE in self._unconfirmed_until.values():
            return math.inf
        return fetch_at

    @property
    def pool_ids_in_use(self) -> set[str]:
        """Return the ids under which this pool holds jobs, or may hold them."""
        unconfirmed = set() if self._unconfirmed_claim is None else {self._unconfirmed_claim}
        claimed = {each.pool_id for each in list(self.claimed_jobs.values())}
        return claimed | set(self._unconfirmed_until) | set(self._orphaned_pool_ids) | unconfirmed

    async def claim(self, limit: int) -> list[ClaimedJob]:
        """Lock up to `limit` jobs that are ready for this pool."""
        if not self._identifiers or self._are_all_paused:
            self._current_fetcher.next_fetch_at = None
            self.was_truncated = False
            if self._lease.can_claim:
                # The last fetch before the pause may have locked jobs without an answer.
                self._mark_unconfirmed_claim()
            return []
        try:
            return await self._claim(limit)
        except Exception:
            if self._recorder is not None:
                self._recorder.record_fetch(FetchResult.ERROR, 0.0)
            raise

    async def _claim(self, limit: int) -> list[ClaimedJob]:
        await self._delay_after_empty(self._current_fetcher)
        self._check_lease()
        self._mark_unconfirmed_claim()
        await self._refresh_task_ids()
        flags = await self.get_forbidden_flags()
        async with self.fetch_lock:
            # Checked again, because the calls above may have taken long.
            self._check_lease()
            now = None if self._clock is None else self._clock.now()
            pool_id = self.pool_id
            failpoint("before_claim")
            # The database may commit even if this call raises or is cancelled.
            self._unconfirmed_claim = pool_id
            with self._payload_budget.reserve_fetch(limit) as share:
                claimed_jobs = await self._fetch_limited(
                    pool_id, limit, skip_flags=flags, now=now, max_bytes=share
                )
                failpoint("claim_sent")
                self._unconfirmed_claim = None
                if pool_id != self.pool_id:
                    # Another pool recovered the old id meanwhile, so no lease covers these jobs.
                    # They are released.
                    self._mark_unconfirmed(pool_id, CHECK_ONCE)
                    return []
                self._count_empty_fetches(claimed_jobs)
                self._record_claimed(claimed_jobs)
                return claimed_jobs

    def forget(self, claimed: ClaimedJob) -> None:
        """Forget a job after its outcome was written, or after it was released."""
        if self.claimed_jobs.get(claimed.job.id) is claimed:
            del self.claimed_jobs[claimed.job.id]
            self._payload_budget.forget(claimed)

    def forget_all_but(self, job_ids: Collection[int]) -> None:
        """Treat all other jobs as orphaned at shutdown, because no worker runs them."""
        for job_id in self.claimed_jobs.keys() - set(job_ids):
            self._mark_unconfirmed(
                self.claimed_jobs.pop(job_id).pool_id, self._timings.unconfirmed_claim_seconds
            )

    def mark_orphaned(self) -> None:
        """Let `run` check all ids of this pool, because the server may have lost commits."""
        self._orphaned_pool_ids |= self.pool_ids_in_use | {self.pool_id}
        self._orphan_marks += 1
        self._orphan_check_needed.set()

    async def run(self) -> None:
        """Release orphaned claims while fetches continue."""
        failures = 0
        while True:
            await self._orphan_check_needed.wait()
            self._orphan_check_needed.clear()
            try:
                await self.release_orphaned_claims()
            except Exception:
                # The database is unreachable, which fetches report, or the query took too long.
                failures += 1
                await asyncio.sleep(compute_backoff(failures))
                self._orphan_check_needed.set()
                continue
            failures = 0
            if self._unconfirmed_until or self._orphaned_pool_ids:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._timings.orphan_check_interval_seconds):
                        await self._orphan_check_needed.wait()
                self._orphan_check_needed.set()

    async def release_orphaned_claims(self, *, at_once: bool = False) -> None:
        """Release jobs that abandoned fetches locked, and unknown jobs of the ids to check."""
        if not self.fetch_lock.locked():
            self._mark_unconfirmed_claim()
        now = time.monotonic()
        elapsed = now - self._orphans_checked_at
        is_time = at_once or elapsed >= self._timings.orphan_check_interval_seconds
        unconfirmed = dict(self._unconfirmed_until) if is_time else {}
        if unconfirmed:
            self._orphans_checked_at = now
        in_use = {each.pool_id for each in self.claimed_jobs.values()}
        for pool_id in list(unconfirmed) + sorted(self._orphaned_pool_ids - unconfirmed.keys()):
            database = self._slow_db_at_shutdown if at_once else self._slow_db
            marks = self._orphan_marks
            if not await self._release_orphaned(pool_id, database):
                continue
            if self._orphan_marks == marks:
                self._orphaned_pool_ids.discard(pool_id)
            # The check goes on until the abandoned fetch cannot run any more, also one that was
            # abandoned meanwhile, and while the id has other jobs, which it may have locked again.
            until = unconfirmed.get(pool_id, math.inf)
            is_last = now > until and self._unconfirmed_until.get(pool_id) == until
            if is_last and pool_id not in in_use:
                del self._unconfirmed_until[pool_id]

    async def _release_orphaned(self, pool_id: str, database: QueryRunner) -> bool:
        """Find orphaned claims, then release them while no fetch is under way.

        Returns False if another session has locked some of the rows.
        """
        orphans = await database.run(find_orphaned_claims(pool_id, *self._claimed_ids()))
        if not orphans.job_ids and not orphans.queue_ids:
            return True
        async with self.fetch_lock:
            query = release_orphaned_claims(pool_id, orphans, *self._claimed_ids())
            released = await self._db.run(query)
        if released:
            self.on_released(len(released))
        return released >= orphans.job_ids - self.claimed_jobs.keys()

    def _claimed_ids(self) -> tuple[list[int], list[int]]:
        """Return the ids of the jobs that this pool holds, and of their named queues."""
        queues = [each.queue_id for each in self.claimed_jobs.values() if each.queue_id is not None]
        return list(self.claimed_jobs), queues

    def _mark_unconfirmed_claim(self) -> None:
        if self._unconfirmed_claim is not None:
            self._mark_unconfirmed(self._unconfirmed_claim, self._timings.unconfirmed_claim_seconds)
            self._unconfirmed_claim = None

    async def _delay_after_empty(self, fetcher: JobFetcher) -> None:
        seconds_left = fetcher.last_empty_at + EMPTY_FETCH_DELAY_SECONDS - time.monotonic()
        if fetcher.empty_fetches >= EMPTY_FETCHES_BEFORE_DELAY and seconds_left > 0:
            await asyncio.sleep(seconds_left)

    def _count_empty_fetches(self, claimed_jobs: list[ClaimedJob]) -> None:
        fetcher = self._current_fetcher
        fetcher.empty_fetches = 0 if claimed_jobs else fetcher.empty_fetches + 1
        if not claimed_jobs:
            fetcher.last_empty_at = time.monotonic()

    async def _fetch_limited(self, pool_id: str, limit: int, **options: Any) -> list[ClaimedJob]:
        """Fetch up to `limit` jobs, or fewer after a fetch that timed out."""
        self.was_truncated = self._max_fetch < limit
        limit = int(min(limit, self._max_fetch))
        began = time.monotonic()
        try:
            claimed_jobs = await self._fetch(pool_id, limit=limit, **options)
        except TimeoutError:
            self._max_fetch = max(1.0, limit // 2)
            raise
        seconds = time.monotonic() - began
        if self._recorder is not None:
            result = FetchResult.HIT if claimed_jobs else FetchResult.EMPTY
            self._recorder.record_fetch(result, seconds)
            if claimed_jobs:
                record_claimed_jobs(self._recorder, claimed_jobs)
        # An empty result is always quick, so it does not raise the limit.
        if claimed_jobs and seconds < QUICK_FETCH_SECONDS:
            self._max_fetch *= 2
        return claimed_jobs

    @property
    def _current_fetcher(self) -> JobFetcher:
        """Return the fetcher of the claim that is under way."""
        return self._fetcher

    async def _fetch(self, pool_id: str, **options: Any) -> list[ClaimedJob]:
        return await self._current_fetcher.fetch(pool_id, self._get_active_task_ids(), **options)

    @property
    def _are_all_paused(self) -> bool:
        return bool(self.paused_tasks) and all(
            name in self.paused_tasks for name in self._identifiers
        )

    def _get_active_task_ids(self) -> dict[int, str]:
        if not self.paused_tasks:
            return self._task_ids
        return {id: name for id, name in self._task_ids.items() if name not in self.paused_tasks}

    def _check_lease(self) -> None:
        if not self._lease.can_claim:
            raise LeaseExpiredError(
                f"no heartbeat for {self._lease.seconds_since_heartbeat:.1f} s, or another worker "
                "recovered the jobs of this pool"
            )

    def _record_claimed(self, claimed_jobs: list[ClaimedJob]) -> None:
        # Unique even if the clock did not tick, because find_releasable_queues compares these.
        now = self._claimed_at = max(time.monotonic(), math.nextafter(self._claimed_at, math.inf))
        self._payload_budget.add_claimed(claimed_jobs)
        if self._shard is not None:
            for each in claimed_jobs:
                each.job._shard = self._shard
        for each in claimed_jobs:
            each.claimed_at = now
            older = self.claimed_jobs.get(each.job.id)
            self.claimed_jobs[each.job.id] = each
            if older is not None:
                self._payload_budget.forget(older)
                self.on_reclaimed(older)

    def _mark_unconfirmed(self, pool_id: str, seconds: float) -> None:
        until = time.monotonic() + seconds
        self._unconfirmed_until[pool_id] = max(until, self._unconfirmed_until.get(pool_id, until))
        self._orphans_checked_at = -math.inf
        self._orphan_check_needed.set()

    async def _refresh_task_ids(self) -> None:
        now = time.monotonic()
        is_due = now - self._tasks_checked_at >= self._task_check_interval_seconds
        if self._has_all_task_ids and not is_due:
            return
        # With many tasks, each fetch finds the ids that it needs.
        finds_ids = self._has_all_task_ids and self._fetcher.has_too_many_tasks(self._task_ids)
        if not finds_ids:
            self._task_ids = await self._db.run(get_task_ids(self._identifiers))
        if not is_due:
            return
        if not self._has_all_task_ids:
            await self._register_missing_tasks(
                set(self._identifiers) - set(self._task_ids.values())
            )
            self._task_ids = await self._db.run(get_task_ids(self._identifiers))
        self._fetcher.has_indexes = await self._db.run(has_fetch_indexes())
        self._tasks_checked_at = now

    @property
    def _has_all_task_ids(self) -> bool:
        return len(self._task_ids) == len(self._identifiers)

    async def _register_missing_tasks(self, names: set[str]) -> None:
        """Insert rows for these tasks, except those that another transaction is adding."""
        if await self._try_register_tasks(list(names)):
            return
        until = time.monotonic() + self._timings.register_tasks_timeout_seconds
        # In random order, so that each name gets its chance if the time is too short for all.
        for name in random.sample(sorted(names), len(names)):
            if time.monotonic() < until:
                await self._try_register_tasks([name])

    async def _try_register_tasks(self, names: list[str]) -> bool:
        try:
            await self._db.run(register_tasks(names, self._register_lock_timeout))
        except Exception as error:
            if self._register_lock_timeout is None or get_sqlstate(error) != LOCK_NOT_AVAILABLE:
                raise
            return False
        return True

    async def get_forbidden_flags(self) -> list[str] | None:
        """Return the flags of jobs that this pool must not claim."""
        flags = self._forbidden_flags
        if callable(flags):
            result = flags()
            flags = await result if inspect.isawaitable(result) else result
        return _check_flags(flags)


def _check_flags(flags: object) -> list[str] | None:
    if flags is None:
        return None
    if isinstance(flags, str) or not isinstance(flags, Collection):
        raise ConfigurationError(f"forbidden_flags must be a list or set of text, got {flags!r}")
    return list(flags) or None
