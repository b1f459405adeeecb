"""Take jobs for one pool, and know which ones it holds."""

import asyncio
import inspect
import math
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from graphile_worker.clock import Clock
from graphile_worker.db.database import Answering
from graphile_worker.errors import ConfigurationError, LeaseLapsed
from graphile_worker.failpoints import failpoint
from graphile_worker.lease import Lease
from graphile_worker.sql.holding import (
    HeldJob,
    find_indexes,
    get_task_ids,
    register_tasks,
    return_unheld_jobs,
)
from graphile_worker.worker.fetch import Fetch

Flags = Collection[str] | None
ForbiddenFlags = Flags | Callable[[], Flags | Awaitable[Flags]]

# The row of a task may be deleted and made anew, under another id, while we run.
LOOK_AT_TASKS_EVERY = 10.0

# Seconds for which a fetch that we gave up may still be carried out by its server, and between two
# looks at what it has locked, each of which reads the whole table.
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
    ) -> None:
        self.held: dict[int, HeldJob] = {}
        # Locked during a fetch: the jobs that it claims are not in `held` yet.
        self.fetching = asyncio.Lock()
        self._taken_at = -math.inf
        # Told of a job that is held when it is claimed again: somebody must have unlocked it.
        self.on_reclaimed: Callable[[HeldJob], None] = ignore
        self._lease = lease
        self._db = database
        self._identifiers = list(identifiers)
        self._forbidden_flags = forbidden_flags
        self._clock = clock
        self._task_ids: dict[int, str] = {}
        self._fetch = Fetch(database, self.held)
        self._looked_at = 0.0
        # The id of a fetch whose answer has not come, and until when such ids are looked after.
        self._in_doubt: str | None = None
        self._doubts: dict[str, float] = {}
        self._settled_at = 0.0
        # How many fetches in a row brought nothing, and when the last of them did.
        self._in_vain = 0
        self._empty_at = 0.0
        # So many at once, as larger answers did not come in time.
        self._most = math.inf
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
        """May a fetch still lock jobs whose answer never came?"""
        return self._in_doubt is not None or bool(self._doubts)

    @property
    def ids_in_use(self) -> set[str]:
        """The ids under which jobs are held, or may be."""
        in_doubt = set() if self._in_doubt is None else {self._in_doubt}
        return {each.pool_id for each in list(self.held.values())} | set(self._doubts) | in_doubt

    async def take(self, limit: int) -> list[HeldJob]:
        """Up to so many jobs that are ready, locked for this pool."""
        if not self._identifiers:
            return []
        await self._rest()
        self._check_lease()
        await self.settle_doubts()
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
            taken = await self._fetch_in_time(pool_id, limit, skip_flags=flags, now=now)
            failpoint("claim_sent")
            self._in_doubt = None
            if pool_id != self.pool_id:
                # Swept meanwhile: nobody vouches for that id any more. They are handed back, and
                # that does not take long: the answer is there, so nothing more will be locked.
                self._doubt(pool_id, lasts=-math.inf)
                return []
            self._count(taken)
            self._hold(taken)
            return taken

    def let_go(self, held: HeldJob) -> None:
        """That job is settled, or was handed back."""
        if self.held.get(held.job.id) is held:
            del self.held[held.job.id]

    def forget_all_but(self, job_ids: Collection[int]) -> None:
        """At the end: nobody runs the others, so they can be handed back."""
        for job_id in self.held.keys() - set(job_ids):
            self._doubt(self.held.pop(job_id).pool_id)

    async def settle_doubts(self, *, at_once: bool = False) -> None:
        """Hand back what a fetch may have locked whose answer never came."""
        if self._in_doubt is not None:
            self._doubt(self._in_doubt)
            self._in_doubt = None
        now = time.monotonic()
        if not self._doubts or (now - self._settled_at < SETTLE_EVERY and not at_once):
            return
        self._settled_at = now
        queues = [each.queue_id for each in self.held.values() if each.queue_id is not None]
        in_use = {each.pool_id for each in self.held.values()}
        for pool_id, until in list(self._doubts.items()):
            await self._db.run(return_unheld_jobs(pool_id, list(self.held), queues))
            # Only now, that the database has answered after all that time; and not if jobs were
            # held under that id, which a fetch may have locked again.
            if now > until and pool_id not in in_use:
                del self._doubts[pool_id]

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
            taken = await self._fetch.take(pool_id, self._task_ids, limit=limit, **given)
        except TimeoutError:
            self._most = max(1.0, limit // 2)
            raise
        if time.monotonic() - began < QUICK:
            self._most *= 2
        return taken

    def _check_lease(self) -> None:
        if not self._lease.lets_take:
            raise LeaseLapsed(
                f"no heartbeat was heard for {self._lease.silence:.1f} s, or others took this "
                "pool for dead"
            )

    def _hold(self, taken: list[HeldJob]) -> None:
        # Always later than the last time, also by a clock that ticks rarely: see queues_to_free.
        now = self._taken_at = max(time.monotonic(), math.nextafter(self._taken_at, math.inf))
        for each in taken:
            each.taken_at = now
            older = self.held.get(each.job.id)
            self.held[each.job.id] = each
            if older is not None:
                self.on_reclaimed(older)

    def _doubt(self, pool_id: str, lasts: float = DOUBT_LASTS) -> None:
        until = time.monotonic() + lasts
        self._doubts[pool_id] = max(until, self._doubts.get(pool_id, until))
        self._settled_at = -math.inf

    async def _look_at_tasks(self) -> None:
        now = time.monotonic()
        if self._task_ids and now - self._looked_at < LOOK_AT_TASKS_EVERY:
            return
        found = await self._db.run(get_task_ids(self._identifiers))
        if len(found) < len(self._identifiers):
            await self._db.run(register_tasks(self._identifiers))
            found = await self._db.run(get_task_ids(self._identifiers))
        self._task_ids = found
        self._fetch.has_indexes = await self._db.run(find_indexes())
        self._looked_at = now

    async def flags_to_skip(self) -> list[str] | None:
        """Jobs that have one of these are left alone."""
        flags = self._forbidden_flags
        if callable(flags):
            answer = flags()
            flags = await answer if inspect.isawaitable(answer) else answer
        return _checked(flags)


def ignore(held: HeldJob) -> None:
    """Nobody wants to know."""


def _checked(flags: object) -> list[str] | None:
    if flags is None:
        return None
    if isinstance(flags, str) or not isinstance(flags, Collection):
        raise ConfigurationError(f"forbidden_flags must be a list or set of text, got {flags!r}")
    return list(flags) or None
