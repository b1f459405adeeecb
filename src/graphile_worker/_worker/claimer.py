"""Take jobs for one pool, and know which ones it holds."""

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
from graphile_worker._worker.fetch_strategy import JobFetcher
from graphile_worker._worker.payload_budget import PayloadBudget
from graphile_worker.errors import ConfigurationError, LeaseExpiredError

Flags = Collection[str] | None
ForbiddenFlags = Flags | Callable[[], Flags | Awaitable[Flags]]

# The row of a task may be deleted and made anew, under another id, while we run.
TASK_CHECK_INTERVAL_SECONDS = 10.0

# Limits for entering the names of tasks: to wait for a transaction that is adding one of them, and
# for all names. Before that transaction ends there is no job of the name to be seen, so a pool goes
# on without it.
REGISTER_LOCK_TIMEOUT_MILLISECONDS = 100
REGISTER_TASKS_TIMEOUT_SECONDS = 0.5

# Seconds for which a fetch that we gave up may still be carried out by its server, and between two
# looks at what it has locked, each of which may read the whole table.
UNCONFIRMED_CLAIM_SECONDS = 60.0
ORPHAN_CHECK_INTERVAL_SECONDS = 10.0

# After so many fetches in a row that brought nothing, the next one comes so many seconds after the
# last: anybody may announce jobs that are not there, as often as he likes.
EMPTY_FETCHES_BEFORE_DELAY = 10
EMPTY_FETCH_DELAY_SECONDS = 0.02

# Seconds: a fetch that takes longer has brought as much as the line to the database carries.
QUICK_FETCH_SECONDS = 1.0


class Claimer:
    """One fetch at a time: `take` must not be called again before it has answered."""

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
    ) -> None:
        self.claimed_jobs: dict[int, ClaimedJob] = {}
        self._payload_budget = payload_budget or PayloadBudget(database)
        # Locked during a fetch: the jobs that it claims are not in `held` yet.
        self.fetch_lock = asyncio.Lock()
        self._claimed_at = -math.inf
        # Told of a job that is held when it is claimed again: somebody must have unlocked it.
        self.on_reclaimed: Callable[[ClaimedJob], None] = ignore_reclaimed
        # Called with the number of jobs that were locked without this pool's knowledge and are
        # ready again.
        self.on_released: Callable[[int], None] = ignore_released
        self._lease = lease
        self._db = database
        # For finding jobs that may be locked: that may take longer than a fetch.
        self._slow_db = slow_database or database
        # The same at the end, when there is not the time to open another connection.
        self._slow_db_at_shutdown = slow_database_at_shutdown or database
        self._identifiers = list(identifiers)
        self._forbidden_flags = forbidden_flags
        self._clock = clock
        self._register_lock_timeout = (
            None if waits_for_register_lock else REGISTER_LOCK_TIMEOUT_MILLISECONDS
        )
        self._task_ids: dict[int, str] = {}
        self._fetcher = JobFetcher(database, self.claimed_jobs)
        self._tasks_checked_at = -math.inf
        # The id of a fetch whose answer has not come, and until when such ids are looked after.
        self._unconfirmed_claim: str | None = None
        self._unconfirmed_until: dict[str, float] = {}
        self._orphans_checked_at = 0.0
        # Ids under which a server that lost commits may show jobs as locked: looked at once.
        self._orphaned_pool_ids: set[str] = set()
        self._orphan_check_needed = asyncio.Event()
        # How many fetches in a row brought nothing, and when the last of them did.
        self._empty_fetches = 0
        self._last_empty_at = 0.0
        # So many at once, as larger answers did not come in time.
        self._max_fetch = math.inf
        # Tasks of which no job is taken for now.
        self.paused_tasks: Collection[str] = ()
        # Were fewer asked for than wanted, the last time? Then there may be more.
        self.was_truncated = False

    @property
    def pool_id(self) -> str:
        return self._lease.pool_id

    @property
    def has_dynamic_flags(self) -> bool:
        """Is there a function to ask, which may answer otherwise the next time?"""
        return callable(self._forbidden_flags)

    @property
    def next_fetch_at(self) -> float | None:
        """When to ask again, where the last fetch took too few and did not look everywhere."""
        return self._fetcher.next_fetch_at

    @property
    def has_unconfirmed_claims(self) -> bool:
        """May jobs be locked for this pool without its knowledge?"""
        return (
            self._unconfirmed_claim is not None
            or bool(self._unconfirmed_until)
            or bool(self._orphaned_pool_ids)
        )

    @property
    def pool_ids_in_use(self) -> set[str]:
        """The ids under which jobs are held, or may be."""
        in_doubt = set() if self._unconfirmed_claim is None else {self._unconfirmed_claim}
        held = {each.pool_id for each in list(self.claimed_jobs.values())}
        return held | set(self._unconfirmed_until) | set(self._orphaned_pool_ids) | in_doubt

    async def claim(self, limit: int) -> list[ClaimedJob]:
        """Up to so many jobs that are ready, locked for this pool."""
        if not self._identifiers:
            return []
        await self._delay_after_empty()
        self._check_lease()
        self._mark_unconfirmed_claim()
        await self._refresh_task_ids()
        flags = await self.get_forbidden_flags()
        async with self.fetch_lock:
            # Again: all that may have taken its time.
            self._check_lease()
            now = None if self._clock is None else self._clock.now()
            pool_id = self.pool_id
            failpoint("before_claim")
            # Whatever ends this but an answer may come after the database has committed.
            self._unconfirmed_claim = pool_id
            with self._payload_budget.reserve_fetch(limit) as share:
                taken = await self._fetch_limited(
                    pool_id, limit, skip_flags=flags, now=now, max_bytes=share
                )
                failpoint("claim_sent")
                self._unconfirmed_claim = None
                if pool_id != self.pool_id:
                    # Another pool swept this one meanwhile, so no lease covers that id any more.
                    # These jobs are released. That does not take long: the answer is there, so
                    # nothing more will be locked.
                    self._mark_unconfirmed(pool_id, seconds=-math.inf)
                    return []
                self._count_empty_fetches(taken)
                self._record_claimed(taken)
                return taken

    def forget(self, claimed: ClaimedJob) -> None:
        """That job is settled, or was handed back."""
        if self.claimed_jobs.get(claimed.job.id) is claimed:
            del self.claimed_jobs[claimed.job.id]
            self._payload_budget.forget(claimed)

    def forget_all_but(self, job_ids: Collection[int]) -> None:
        """At the end: nobody runs the others, so they can be handed back."""
        for job_id in self.claimed_jobs.keys() - set(job_ids):
            self._mark_unconfirmed(self.claimed_jobs.pop(job_id).pool_id)

    def mark_orphaned(self) -> None:
        """The server may have lost commits: look for jobs that it shows as locked by this pool."""
        self._orphaned_pool_ids |= self.pool_ids_in_use | {self.pool_id}
        self._orphan_check_needed.set()

    async def run(self) -> None:
        """Release what is locked without this pool's knowledge, beside fetching."""
        failures = 0
        while True:
            await self._orphan_check_needed.wait()
            self._orphan_check_needed.clear()
            try:
                await self.release_orphaned_claims()
            except Exception:
                # The database is unreachable, or the look took too long; fetches report the former.
                failures += 1
                await asyncio.sleep(compute_backoff(failures))
                self._orphan_check_needed.set()
                continue
            failures = 0
            if self._unconfirmed_until or self._orphaned_pool_ids:
                with suppress(TimeoutError):
                    async with asyncio.timeout(ORPHAN_CHECK_INTERVAL_SECONDS):
                        await self._orphan_check_needed.wait()
                self._orphan_check_needed.set()

    async def release_orphaned_claims(self, *, at_once: bool = False) -> None:
        """Release what a fetch may have locked whose answer never came, and what is suspected."""
        if not self.fetch_lock.locked():
            self._mark_unconfirmed_claim()
        now = time.monotonic()
        is_time = at_once or now - self._orphans_checked_at >= ORPHAN_CHECK_INTERVAL_SECONDS
        doubts = dict(self._unconfirmed_until) if is_time else {}
        if doubts:
            self._orphans_checked_at = now
        in_use = {each.pool_id for each in self.claimed_jobs.values()}
        for pool_id in list(doubts) + sorted(self._orphaned_pool_ids - doubts.keys()):
            database = self._slow_db_at_shutdown if at_once else self._slow_db
            if not await self._release_orphaned(pool_id, database):
                continue
            self._orphaned_pool_ids.discard(pool_id)
            # Only now, that the database has answered after all that time; and not if jobs were
            # held under that id, which a fetch may have locked again.
            if pool_id in doubts and now > doubts[pool_id] and pool_id not in in_use:
                del self._unconfirmed_until[pool_id]

    async def _release_orphaned(self, pool_id: str, database: QueryRunner) -> bool:
        """Find the jobs in their own time; release them while no fetch can lock others.

        False if another session has locked some of the rows.
        """
        held_ids, queue_ids = self._claimed_ids()
        found = await database.run(find_orphaned_claims(pool_id, held_ids, queue_ids))
        if not found.job_ids and not found.queue_ids:
            return True
        async with self.fetch_lock:
            held_ids, queue_ids = self._claimed_ids()
            query = release_orphaned_claims(pool_id, found, held_ids, queue_ids)
            released = await self._db.run(query)
        if released:
            self.on_released(len(released))
        return released >= found.job_ids - self.claimed_jobs.keys()

    def _claimed_ids(self) -> tuple[list[int], list[int]]:
        """The jobs that this pool holds, and their named queues."""
        queues = [each.queue_id for each in self.claimed_jobs.values() if each.queue_id is not None]
        return list(self.claimed_jobs), queues

    def _mark_unconfirmed_claim(self) -> None:
        if self._unconfirmed_claim is not None:
            self._mark_unconfirmed(self._unconfirmed_claim)
            self._unconfirmed_claim = None

    async def _delay_after_empty(self) -> None:
        left = self._last_empty_at + EMPTY_FETCH_DELAY_SECONDS - time.monotonic()
        if self._empty_fetches >= EMPTY_FETCHES_BEFORE_DELAY and left > 0:
            await asyncio.sleep(left)

    def _count_empty_fetches(self, claimed_jobs: list[ClaimedJob]) -> None:
        self._empty_fetches = 0 if claimed_jobs else self._empty_fetches + 1
        if not claimed_jobs:
            self._last_empty_at = time.monotonic()

    async def _fetch_limited(self, pool_id: str, limit: int, **options: Any) -> list[ClaimedJob]:
        """Fewer than the last time, if that was too much for the line to the database."""
        self.was_truncated = self._max_fetch < limit
        limit = int(min(limit, self._max_fetch))
        began = time.monotonic()
        try:
            taken = await self._fetcher.fetch(
                pool_id, self._get_active_task_ids(), limit=limit, **options
            )
        except TimeoutError:
            self._max_fetch = max(1.0, limit // 2)
            raise
        # An empty answer fits through any line.
        if taken and time.monotonic() - began < QUICK_FETCH_SECONDS:
            self._max_fetch *= 2
        return taken

    def _get_active_task_ids(self) -> dict[int, str]:
        if not self.paused_tasks:
            return self._task_ids
        return {id: name for id, name in self._task_ids.items() if name not in self.paused_tasks}

    def _check_lease(self) -> None:
        if not self._lease.can_claim:
            raise LeaseExpiredError(
                f"no heartbeat was heard for {self._lease.seconds_since_heartbeat:.1f} s, or "
                "others took this "
                "pool for dead"
            )

    def _record_claimed(self, claimed_jobs: list[ClaimedJob]) -> None:
        # Always later than the last time, also by a clock that ticks rarely: see
        # find_releasable_queues.
        now = self._claimed_at = max(time.monotonic(), math.nextafter(self._claimed_at, math.inf))
        self._payload_budget.add_claimed(claimed_jobs)
        for each in claimed_jobs:
            each.claimed_at = now
            older = self.claimed_jobs.get(each.job.id)
            self.claimed_jobs[each.job.id] = each
            if older is not None:
                self._payload_budget.forget(older)
                self.on_reclaimed(older)

    def _mark_unconfirmed(self, pool_id: str, seconds: float = UNCONFIRMED_CLAIM_SECONDS) -> None:
        until = time.monotonic() + seconds
        self._unconfirmed_until[pool_id] = max(until, self._unconfirmed_until.get(pool_id, until))
        self._orphans_checked_at = -math.inf
        self._orphan_check_needed.set()

    async def _refresh_task_ids(self) -> None:
        now = time.monotonic()
        is_due = now - self._tasks_checked_at >= TASK_CHECK_INTERVAL_SECONDS
        if self._has_all_task_ids and not is_due:
            return
        # Of many tasks, each fetch finds the ids that it needs.
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
        """Make rows for these tasks, but for those that another transaction is adding."""
        if await self._try_register_tasks(list(names)):
            return
        until = time.monotonic() + REGISTER_TASKS_TIMEOUT_SECONDS
        # In any order: if there is not the time for all, others come first with the next look.
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
        """Jobs that have one of these are left alone."""
        flags = self._forbidden_flags
        if callable(flags):
            answer = flags()
            flags = await answer if inspect.isawaitable(answer) else answer
        return _check_flags(flags)


def ignore_reclaimed(claimed: ClaimedJob) -> None:
    """Nobody wants to know."""


def ignore_released(count: int) -> None:
    """Released jobs are found by the next poll."""


def _check_flags(flags: object) -> list[str] | None:
    if flags is None:
        return None
    if isinstance(flags, str) or not isinstance(flags, Collection):
        raise ConfigurationError(f"forbidden_flags must be a list or set of text, got {flags!r}")
    return list(flags) or None
