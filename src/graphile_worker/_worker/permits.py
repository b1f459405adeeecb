"""Permits of limits: the slots that this pool rents, and the tokens that it has taken.

A job of a limited task starts with one permit of each of its limits.
"""

import random
import time
from abc import ABC, abstractmethod
from collections import deque
from typing import NamedTuple

from graphile_worker._db.database import QueryRunner
from graphile_worker._lease.lease import Lease
from graphile_worker._sql.queries.limits import (
    RentedSlot,
    rent_slots,
    restore_tokens,
    take_tokens,
    want_slot,
)
from graphile_worker._support.lazy_dataclass import LazyKeywordDataclass
from graphile_worker.limits import ConcurrencyLimit, Limit


class PermitTimings(LazyKeywordDataclass):
    """When a pool asks for permits, and how long it keeps those that no job uses."""

    rent_interval_seconds: float = 0.05
    """Until the next try to rent slots while other pools rent all of them, doubled each time."""
    max_rent_interval_seconds: float = 0.5
    """The maximum: with many pools, one of them tries soon anyway."""
    idle_slot_seconds: float = 0.02
    """Time for which a slot without a job is kept, because the next job may come soon."""
    yield_seconds: float = 1.0
    """Time for which a pool rents no slots, after it returned some for a pool without any."""
    token_seconds: float = 0.25
    """Time after which an unused token is lost."""
    max_token_wait_seconds: float = 5.0
    """Longest time until the next question for tokens, because a person may raise the rate."""


DEFAULT_TIMINGS = PermitTimings()


class Token(NamedTuple):
    """A start that a rate limit allows, until this time of `time.monotonic`."""

    expires_at: float


Permit = RentedSlot | Token


class Permits(ABC):
    """The permits of one limit that this pool has."""

    def __init__(self, limit: Limit, database: QueryRunner, lease: Lease, timings: PermitTimings):
        assert limit.name is not None
        self.name = limit.name
        # When to ask for permits again, after none was free.
        self.retry_at = 0.0
        self._db = database
        self._lease = lease
        self._timings = timings

    @property
    @abstractmethod
    def free_count(self) -> int:
        """Return how many jobs may start now."""

    @abstractmethod
    async def acquire(self, count: int) -> None:
        """Ask the database for up to `count` permits."""

    @abstractmethod
    async def reduce(self, count: int) -> None:
        """Give back free permits until `count` are left, because another limit allows no more."""

    @abstractmethod
    def take(self) -> Permit:
        """Take a free permit for a job that starts."""


class Slots(Permits):
    """The slots of a concurrency limit that this pool rents.

    A slot stays rented while it has a next job. Then it is used again without a write.
    """

    def __init__(
        self,
        limit: ConcurrencyLimit,
        database: QueryRunner,
        lease: Lease,
        timings: PermitTimings = DEFAULT_TIMINGS,
    ) -> None:
        super().__init__(limit, database, lease, timings)
        # Slots with a higher number do not exist any more.
        self.amount = limit.slots
        self.in_use: set[RentedSlot] = set()
        # Slots to return with the next write.
        self.returning: list[RentedSlot] = []
        # Slots to return as soon as they have no job, because another pool waits for one.
        self._surplus = 0
        # Slots to return for the same reason, because the limit was lowered since their rental.
        self._outdated: set[RentedSlot] = set()
        self._free: deque[tuple[RentedSlot, float]] = deque()
        self._wanted_at = 0.0
        # Tries in a row that rented no slot.
        self._misses = 0

    @property
    def rented(self) -> list[RentedSlot]:
        """Return all slots that the database may show as rented. Any thread may read this."""
        return [slot for slot, _ in list(self._free)] + list(self.in_use) + list(self.returning)

    @property
    def free_count(self) -> int:
        self._drop_unusable()
        return len(self._free) if self._lease.can_start else 0

    @property
    def idle_since(self) -> float | None:
        """Return since when the slot that was freed first has no job."""
        return self._free[0][1] if self._free else None

    async def acquire(self, count: int) -> None:
        now = time.monotonic()
        missing = count - self.free_count
        # Other pools free the slots of dead ones by the registry.
        if missing <= 0 or now < self.retry_at:
            return
        if not self._lease.is_registered or not self._lease.can_claim:
            self._delay_retry(now)
            return
        rented = await self._db.run(rent_slots(self.name, self._lease.pool_id, missing))
        for slot in rented:
            self._free.append((slot, time.monotonic()))
        if rented:
            self._misses = 0
            # The limit was raised since it was read. Otherwise this pool would return the slot and
            # rent it again, without a pause.
            self.amount = max(self.amount, *(slot.number for slot in rented))
        if len(rented) < missing:
            self._delay_retry(now)
            await self._want()

    async def reduce(self, count: int) -> None:
        while len(self._free) > count:
            self.returning.append(self._free.pop()[0])

    def take(self) -> RentedSlot:
        # The one that was used last, so that the others can be returned.
        slot, _ = self._free.pop()
        self.in_use.add(slot)
        return slot

    def end(self, slot: RentedSlot) -> None:
        """Free the slot of a job that ended."""
        if slot not in self.in_use:
            # It was freed meanwhile, because this pool seemed dead.
            return
        self.in_use.discard(slot)
        if slot in self._outdated:
            self._outdated.discard(slot)
            self.returning.append(slot)
        elif self._surplus > 0:
            self._surplus -= 1
            self.returning.append(slot)
        else:
            self._free.append((slot, time.monotonic()))
            self._drop_unusable()

    def set_amount(self, amount: int) -> None:
        """Change the limit. If it is lower, return all slots as their jobs end.

        Too many jobs may run now, which the database knows when it rents the slots again.
        """
        if amount > self.amount:
            self.retry_at = 0.0
        elif amount < self.amount:
            self._outdated = set(self.in_use)
            self.return_all()
        self.amount = amount

    def share(self) -> None:
        """Return half of the slots, as soon as they have no job, to a pool without any."""
        self._surplus = (len(self._free) + len(self.in_use) + 1) // 2
        while self._free and self._surplus > 0:
            self._surplus -= 1
            self.returning.append(self._free.popleft()[0])
        self.retry_at = time.monotonic() + self._timings.yield_seconds

    def return_idle(self, now: float) -> None:
        """Return slots that had no job for a while."""
        while self._free and now - self._free[0][1] >= self._timings.idle_slot_seconds:
            self.returning.append(self._free.popleft()[0])

    def return_all(self) -> None:
        """Return all slots without a job."""
        while self._free:
            self.returning.append(self._free.popleft()[0])

    def reconcile(self, rented: set[RentedSlot]) -> None:
        """Compare with the slots that the database shows as rented by this pool."""
        known = set(self.rented)
        # The answer to their rental was lost.
        self.returning += [each for each in rented - known if each.limit == self.name]
        # They were freed, because this pool seemed dead.
        self._free = deque(each for each in self._free if each[0] in rented)
        self.in_use &= rented
        self._outdated &= rented

    def _delay_retry(self, now: float) -> None:
        timings = self._timings
        seconds = min(
            timings.rent_interval_seconds * 2**self._misses, timings.max_rent_interval_seconds
        )
        self._misses = min(self._misses + 1, 10)
        self.retry_at = now + seconds * (0.5 + random.random())

    async def _want(self) -> None:
        now = time.monotonic()
        if self._free or self.in_use or now < self._wanted_at:
            return
        self._wanted_at = now + 2.0
        await self._db.run(want_slot(self.name, self._lease.pool_id))

    def _drop_unusable(self) -> None:
        """Return slots of an earlier pool id, and those above a lower limit."""
        if all(
            slot.pool_id == self._lease.pool_id and slot.number <= self.amount
            for slot, _ in self._free
        ):
            return
        free, self._free = self._free, deque()
        for slot, since in free:
            if slot.pool_id == self._lease.pool_id and slot.number <= self.amount:
                self._free.append((slot, since))
            else:
                self.returning.append(slot)


class Tokens(Permits):
    """The tokens of a rate limit that this pool has taken. The database's clock decides."""

    def __init__(
        self,
        limit: Limit,
        database: QueryRunner,
        lease: Lease,
        timings: PermitTimings = DEFAULT_TIMINGS,
    ) -> None:
        super().__init__(limit, database, lease, timings)
        self._tokens: deque[Token] = deque()
        self._due_at: str | None = None

    @property
    def free_count(self) -> int:
        now = time.monotonic()
        while self._tokens and self._tokens[0].expires_at <= now:
            self._tokens.popleft()
        return len(self._tokens)

    async def acquire(self, count: int) -> None:
        missing = count - self.free_count
        # Taken before the question is sent, so that a token never lasts longer than it may.
        asked_at = time.monotonic()
        if missing <= 0 or asked_at < self.retry_at:
            return
        answer = await self._db.run(take_tokens(self.name, missing))
        if answer is None:
            # The limit is of another kind now, or deleted.
            self.retry_at = asked_at + self._timings.rent_interval_seconds
            return
        if answer.due_at is not None:
            self._due_at = answer.due_at
        token = Token(asked_at + self._timings.token_seconds)
        self._tokens.extend([token] * answer.taken)
        if answer.taken < missing:
            seconds = min(answer.seconds_until_next, self._timings.max_token_wait_seconds)
            self.retry_at = time.monotonic() + seconds

    async def reduce(self, count: int) -> None:
        unused = self.free_count - count
        if unused <= 0 or self._due_at is None:
            return
        for _ in range(unused):
            self._tokens.pop()
        # Only if no other pool took tokens since. Otherwise these are lost.
        due_at, self._due_at = self._due_at, None
        await self._db.run(restore_tokens(self.name, unused, due_at))

    def take(self) -> Token:
        return self._tokens.popleft()


def build_permits(
    limit: Limit, database: QueryRunner, lease: Lease, timings: PermitTimings = DEFAULT_TIMINGS
) -> Permits:
    """Return the permits of a limit, of which this pool has none yet."""
    if isinstance(limit, ConcurrencyLimit):
        return Slots(limit, database, lease, timings)
    return Tokens(limit, database, lease, timings)
