"""Take jobs for one pool, and know which ones it holds."""

import asyncio
import inspect
import math
import random
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Any

from graphile_worker.clock import Clock
from graphile_worker.db.database import Answering
from graphile_worker.db.retry import delay_after
from graphile_worker.errors import ConfigurationError, LeaseLapsed
from graphile_worker.failpoints import failpoint
from graphile_worker.lease import Lease
from graphile_worker.sql.failures import LOCK_NOT_AVAILABLE, sqlstate_of
from graphile_worker.sql.holding import (
    HeldJob,
    find_indexes,
    find_unheld_jobs,
    get_task_ids,
    register_tasks,
    return_unheld_jobs,
)
from graphile_worker.worker.fetch import Fetch
from graphile_worker.worker.payloads import Payloads

Flags = Collection[str] | None
ForbiddenFlags = Flags | Callable[[], Flags | Awaitable[Flags]]

# The row of a task may be deleted and made anew, under another id, while we run.
LOOK_AT_TASKS_EVERY = 10.0

# Limits for entering the names of tasks: to wait for a transaction that is adding one of them, and
# for all names. Before that transaction ends there is no job of the name to be seen, so a pool goes
# on without it.
NAME_LOCK_MILLISECONDS = 100
ENTER_NAMES_SECONDS = 0.5

# Seconds for which a fetch that we gave up may still be carried out by its server, and between two
# looks at what it has locked, each of which may read the whole table.
DOUBT_LASTS = 60.0
SETTLE_EVERY = 10.0

# After so many fetches in a row that brought nothing, the next one comes so many seconds after the
# last: anybody may announce jobs that are not there, as often as he likes.
IN_VAIN = 10
REST = 0.02

# Seconds: a fetch that takes longer has brought as much as the line to the database carries.
QUICK = 1.0


class Claims:
    """One fetch at a time: `take` must not be called again before it has answered."""

    def __init__(
        self,
        database: Answering,
        lease: Lease,
        identifiers: Collection[str],
        *,
        forbidden_flags: ForbiddenFlags = None,
        clock: Clock | None = None,
        patient_database: Answering | None = None,
        patient_at_end: Answering | None = None,
        waits_for_names: bool = False,
        payloads: Payloads | None = None,
    ) -> None:
        self.held: dict[int, HeldJob] = {}
        self._payloads = payloads or Payloads(database)
        # Locked during a fetch: the jobs that it claims are not in `held` yet.
        self.fetching = asyncio.Lock()
        self._taken_at = -math.inf
        # Told of a job that is held when it is claimed again: somebody must have unlocked it.
        self.on_reclaimed: Callable[[HeldJob], None] = ignore
        # Called with the number of jobs that were locked without this pool's knowledge and are
        # ready again.
        self.on_released: Callable[[int], None] = ignore_count
        self._lease = lease
        self._db = database
        # For finding jobs that may be locked: that may take longer than a fetch.
        self._patient_db = patient_database or database
        # The same at the end, when there is not the time to open another connection.
        self._patient_at_end = patient_at_end or database
        self._identifiers = list(identifiers)
        self._forbidden_flags = forbidden_flags
        self._clock = clock
        self._name_lock = None if waits_for_names else NAME_LOCK_MILLISECONDS
        self._task_ids: dict[int, str] = {}
        self._fetch = Fetch(database, self.held)
        self._looked_at = -math.inf
        # The id of a fetch whose answer has not come, and until when such ids are looked after.
        self._in_doubt: str | None = None
        self._doubts: dict[str, float] = {}
        self._settled_at = 0.0
        # Ids under which a server that lost commits may show jobs as locked: looked at once.
        self._suspects: set[str] = set()
        self._has_doubts = asyncio.Event()
        # How many fetches in a row brought nothing, and when the last of them did.
        self._in_vain = 0
        self._empty_at = 0.0
        # So many at once, as larger answers did not come in time.
        self._most = math.inf
        # Tasks of which no job is taken for now.
        self.paused: Collection[str] = ()
        # Were fewer asked for than wanted, the last time? Then there may be more.
        self.was_cut = False

    @property
    def pool_id(self) -> str:
        return self._lease.pool_id

    @property
    def flags_may_change(self) -> bool:
        """Is there a function to ask, which may answer otherwise the next time?"""
        return callable(self._forbidden_flags)

    @property
    def again_at(self) -> float | None:
        """When to ask again, where the last fetch took too few and did not look everywhere."""
        return self._fetch.again_at

    @property
    def in_doubt(self) -> bool:
        """May jobs be locked for this pool without its knowledge?"""
        return self._in_doubt is not None or bool(self._doubts) or bool(self._suspects)

    @property
    def ids_in_use(self) -> set[str]:
        """The ids under which jobs are held, or may be."""
        in_doubt = set() if self._in_doubt is None else {self._in_doubt}
        held = {each.pool_id for each in list(self.held.values())}
        return held | set(self._doubts) | set(self._suspects) | in_doubt

    async def take(self, limit: int) -> list[HeldJob]:
        """Up to so many jobs that are ready, locked for this pool."""
        if not self._identifiers:
            return []
        await self._rest()
        self._check_lease()
        self._note_doubt()
        await self._look_at_tasks()
        flags = await self.flags_to_skip()
        async with self.fetching:
            # Again: all that may have taken its time.
            self._check_lease()
            now = None if self._clock is None else self._clock.now()
            pool_id = self.pool_id
            failpoint("before_claim")
            # Whatever ends this but an answer may come after the database has committed.
            self._in_doubt = pool_id
            with self._payloads.fetching(limit) as share:
                taken = await self._fetch_in_time(
                    pool_id, limit, skip_flags=flags, now=now, max_bytes=share
                )
                failpoint("claim_sent")
                self._in_doubt = None
                if pool_id != self.pool_id:
                    # Another pool swept this one meanwhile, so no lease covers that id any more.
                    # These jobs are released. That does not take long: the answer is there, so
                    # nothing more will be locked.
                    self._doubt(pool_id, lasts=-math.inf)
                    return []
                self._count(taken)
                self._hold(taken)
                return taken

    def let_go(self, held: HeldJob) -> None:
        """That job is settled, or was handed back."""
        if self.held.get(held.job.id) is held:
            del self.held[held.job.id]
            self._payloads.let_go(held)

    def forget_all_but(self, job_ids: Collection[int]) -> None:
        """At the end: nobody runs the others, so they can be handed back."""
        for job_id in self.held.keys() - set(job_ids):
            self._doubt(self.held.pop(job_id).pool_id)

    def suspect(self) -> None:
        """The server may have lost commits: look for jobs that it shows as locked by this pool."""
        self._suspects |= self.ids_in_use | {self.pool_id}
        self._has_doubts.set()

    async def run(self) -> None:
        """Release what is locked without this pool's knowledge, beside fetching."""
        failures = 0
        while True:
            await self._has_doubts.wait()
            self._has_doubts.clear()
            try:
                await self.settle_doubts()
            except Exception:
                # The database is unreachable, or the look took too long; fetches report the former.
                failures += 1
                await asyncio.sleep(delay_after(failures))
                self._has_doubts.set()
                continue
            failures = 0
            if self._doubts or self._suspects:
                with suppress(TimeoutError):
                    async with asyncio.timeout(SETTLE_EVERY):
                        await self._has_doubts.wait()
                self._has_doubts.set()

    async def settle_doubts(self, *, at_once: bool = False) -> None:
        """Release what a fetch may have locked whose answer never came, and what is suspected."""
        if not self.fetching.locked():
            self._note_doubt()
        now = time.monotonic()
        is_time = at_once or now - self._settled_at >= SETTLE_EVERY
        doubts = dict(self._doubts) if is_time else {}
        if doubts:
            self._settled_at = now
        in_use = {each.pool_id for each in self.held.values()}
        for pool_id in list(doubts) + sorted(self._suspects - doubts.keys()):
            database = self._patient_at_end if at_once else self._patient_db
            if not await self._release_unheld(pool_id, database):
                continue
            self._suspects.discard(pool_id)
            # Only now, that the database has answered after all that time; and not if jobs were
            # held under that id, which a fetch may have locked again.
            if pool_id in doubts and now > doubts[pool_id] and pool_id not in in_use:
                del self._doubts[pool_id]

    async def _release_unheld(self, pool_id: str, database: Answering) -> bool:
        """Find the jobs in their own time; release them while no fetch can lock others.

        False if another session has locked some of the rows.
        """
        held_ids, queue_ids = self._held_ids()
        found = await database.run(find_unheld_jobs(pool_id, held_ids, queue_ids))
        if not found.job_ids and not found.queue_ids:
            return True
        async with self.fetching:
            held_ids, queue_ids = self._held_ids()
            query = return_unheld_jobs(pool_id, found, held_ids, queue_ids)
            released = await self._db.run(query)
        if released:
            self.on_released(len(released))
        return released >= found.job_ids - self.held.keys()

    def _held_ids(self) -> tuple[list[int], list[int]]:
        """The jobs that this pool holds, and their named queues."""
        queues = [each.queue_id for each in self.held.values() if each.queue_id is not None]
        return list(self.held), queues

    def _note_doubt(self) -> None:
        if self._in_doubt is not None:
            self._doubt(self._in_doubt)
            self._in_doubt = None

    async def _rest(self) -> None:
        left = self._empty_at + REST - time.monotonic()
        if self._in_vain >= IN_VAIN and left > 0:
            await asyncio.sleep(left)

    def _count(self, taken: list[HeldJob]) -> None:
        self._in_vain = 0 if taken else self._in_vain + 1
        if not taken:
            self._empty_at = time.monotonic()

    async def _fetch_in_time(self, pool_id: str, limit: int, **given: Any) -> list[HeldJob]:
        """Fewer than the last time, if that was too much for the line to the database."""
        self.was_cut = self._most < limit
        limit = int(min(limit, self._most))
        began = time.monotonic()
        try:
            taken = await self._fetch.take(pool_id, self._wanted_ids(), limit=limit, **given)
        except TimeoutError:
            self._most = max(1.0, limit // 2)
            raise
        # An empty answer fits through any line.
        if taken and time.monotonic() - began < QUICK:
            self._most *= 2
        return taken

    def _wanted_ids(self) -> dict[int, str]:
        if not self.paused:
            return self._task_ids
        return {id: name for id, name in self._task_ids.items() if name not in self.paused}

    def _check_lease(self) -> None:
        if not self._lease.lets_take:
            raise LeaseLapsed(
                f"no heartbeat was heard for {self._lease.silence:.1f} s, or others took this "
                "pool for dead"
            )

    def _hold(self, taken: list[HeldJob]) -> None:
        # Always later than the last time, also by a clock that ticks rarely: see queues_to_free.
        now = self._taken_at = max(time.monotonic(), math.nextafter(self._taken_at, math.inf))
        self._payloads.hold(taken)
        for each in taken:
            each.taken_at = now
            older = self.held.get(each.job.id)
            self.held[each.job.id] = each
            if older is not None:
                self._payloads.let_go(older)
                self.on_reclaimed(older)

    def _doubt(self, pool_id: str, lasts: float = DOUBT_LASTS) -> None:
        until = time.monotonic() + lasts
        self._doubts[pool_id] = max(until, self._doubts.get(pool_id, until))
        self._settled_at = -math.inf
        self._has_doubts.set()

    async def _look_at_tasks(self) -> None:
        now = time.monotonic()
        is_due = now - self._looked_at >= LOOK_AT_TASKS_EVERY
        if self._knows_all_tasks and not is_due:
            return
        # Of many tasks, each fetch finds the ids that it needs.
        finds_ids = self._knows_all_tasks and self._fetch.finds_ids_of(self._task_ids)
        if not finds_ids:
            self._task_ids = await self._db.run(get_task_ids(self._identifiers))
        if not is_due:
            return
        if not self._knows_all_tasks:
            await self._enter_names(set(self._identifiers) - set(self._task_ids.values()))
            self._task_ids = await self._db.run(get_task_ids(self._identifiers))
        self._fetch.has_indexes = await self._db.run(find_indexes())
        self._looked_at = now

    @property
    def _knows_all_tasks(self) -> bool:
        return len(self._task_ids) == len(self._identifiers)

    async def _enter_names(self, names: set[str]) -> None:
        """Make rows for these tasks, but for those that another transaction is adding."""
        if await self._enter(list(names)):
            return
        until = time.monotonic() + ENTER_NAMES_SECONDS
        # In any order: if there is not the time for all, others come first with the next look.
        for name in random.sample(sorted(names), len(names)):
            if time.monotonic() < until:
                await self._enter([name])

    async def _enter(self, names: list[str]) -> bool:
        try:
            await self._db.run(register_tasks(names, self._name_lock))
        except Exception as error:
            if self._name_lock is None or sqlstate_of(error) != LOCK_NOT_AVAILABLE:
                raise
            return False
        return True

    async def flags_to_skip(self) -> list[str] | None:
        """Jobs that have one of these are left alone."""
        flags = self._forbidden_flags
        if callable(flags):
            answer = flags()
            flags = await answer if inspect.isawaitable(answer) else answer
        return _checked(flags)


def ignore(held: HeldJob) -> None:
    """Nobody wants to know."""


def ignore_count(count: int) -> None:
    """Released jobs are found by the next poll."""


def _checked(flags: object) -> list[str] | None:
    if flags is None:
        return None
    if isinstance(flags, str) or not isinstance(flags, Collection):
        raise ConfigurationError(f"forbidden_flags must be a list or set of text, got {flags!r}")
    return list(flags) or None
