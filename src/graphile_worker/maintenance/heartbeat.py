"""This pool is alive: said every few seconds, as others take the jobs of one that does not."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from graphile_worker.db.database import Answering
from graphile_worker.db.retry import delay_after
from graphile_worker.failpoints import failpoint
from graphile_worker.lease import Lease, new_pool_id
from graphile_worker.sql.failures import MISSING, NOT_ALLOWED, sqlstate_of
from graphile_worker.sql.holding import HeldJob
from graphile_worker.sql.identifiers import Schemas
from graphile_worker.sql.query import Query
from graphile_worker.sql.workers import (
    find_registry,
    find_rust_registry,
    heartbeat,
    leave_registry,
    register_pool,
    renew_locks,
    rust_heartbeat,
    rust_sign_off,
    sign_off,
)

T = TypeVar("T")

# Rust workers are told too, whatever our own lease is, and they take a pool for dead after minutes.
LONGEST_EVERY = timedelta(seconds=10)

# Seconds: Rust workers want to hear of us every half minute, and may install their registry later.
TELL_RUST_EVERY = 9.0
LOOK_EVERY = 30.0

# Seconds after which a lock is renewed: four hours old, or five minutes where Rust workers sweep,
# it would count as left behind.
RENEW_EVERY = 60.0

# Seconds that an answer may take: a third of the lease, but in these limits; the longest before
# there is one.
SHORTEST_ANSWER = 1.0
LONGEST_ANSWER = 10.0


@dataclass(frozen=True, slots=True)
class Pool:
    """What the heartbeat must know of its pool, and tell it, each safe in any thread."""

    started_ids: Callable[[], list[int]]
    held: Callable[[], Collection[HeldJob]]
    ids_in_use: Callable[[], set[str]]
    """Those under which it holds jobs, or may without knowing."""
    on_swept: Callable[[str, str], None]
    """Others took all jobs of the first id; it goes on under the second."""
    on_lost: Callable[[set[int]], None]
    """Somebody unlocked these jobs."""
    on_error: Callable[[Exception, int], None]
    """It was not heard, so many times in a row."""
    on_recovered: Callable[[], None]
    """It is heard again, after that failed."""
    on_reconnected: Callable[[], None] = lambda: None
    """The server was restarted or unreachable: it may have lost its last commits."""


class Heartbeat:
    """Renews a lease, and with it the locks on jobs that take long.

    Everything of it runs in one event loop, which should not be the one that tasks can block.
    """

    def __init__(
        self,
        database: Answering,
        schemas: Schemas,
        lease: Lease,
        pool: Pool,
        *,
        threshold: timedelta | None,
        every: timedelta | None,
        details: Mapping[str, Any],
    ) -> None:
        self.has_registry = False
        self._db = database
        self._schemas = schemas
        self._lease = lease
        self._pool = pool
        self._threshold = threshold
        self._every = min(every or LONGEST_EVERY, LONGEST_EVERY).total_seconds()
        self._details = details
        # Nobody has to be heard in time before the first sign of life, which may have to connect.
        self._answer_within = LONGEST_ANSWER
        self._has_rust = False
        self._looked_at = 0.0
        self._told_rust_at = 0.0
        self._renewed_at = time.monotonic()
        self._seen: dict[int, HeldJob] = {}
        # Ids that this pool went on without, while jobs are held under them.
        self._older: set[str] = set()
        # Ids that mean nothing any more; Rust workers have not been told.
        self._left: set[str] = set()
        self._failures = 0
        self._server_started: float | None = None
        self._must_change_id = False
        self._next_id: str | None = None
        self._swept: set[str] = set()

    async def register(self) -> None:
        """Before the first job is taken; raises if the database is out of reach."""
        await self._look()
        await self._tell_rust()
        if self._threshold is not None:
            third = self._threshold.total_seconds() / 3
            self._answer_within = max(SHORTEST_ANSWER, min(LONGEST_ANSWER, third))

    async def run(self) -> None:
        while True:
            next_after = await self._beat_or_fail()
            await asyncio.sleep(next_after)

    async def beat_once(self) -> None:
        """One sign of life."""
        await self._beat()
        now = time.monotonic()
        if now - self._looked_at > LOOK_EVERY:
            await self._look()
        if now - self._told_rust_at > TELL_RUST_EVERY:
            await self._tell_rust()
        if now - self._renewed_at > RENEW_EVERY:
            self._renewed_at = now
            await self.renew_once()

    async def renew_once(self) -> None:
        """Renew the locks that this pool held at the last look already."""
        held = {each.job.id: each for each in self._pool.held()}
        old = [each for each in held.values() if self._seen.get(each.job.id) is each]
        self._seen = held
        if not old:
            return
        queues = [each.queue_id for each in old if each.queue_id is not None]
        pool_ids = {each.pool_id for each in old}
        still = await self._ask(
            renew_locks(sorted(pool_ids), [each.job.id for each in old], queues)
        )
        lost = {each.job.id for each in old} - still
        if lost:
            self._pool.on_lost(lost)

    def change_id(self) -> None:
        """With the next heartbeat: somebody unlocked jobs of this pool."""
        self._must_change_id = True

    async def sign_off(self) -> None:
        """At the very end, when nothing is locked any more.

        A fetch whose answer never came may still lock jobs. The row of its id stays, hidden, so
        that others find this pool silent and release them.
        """
        unsure = self._ids() & self._pool.ids_in_use()
        sure = self._ids() - unsure
        if self.has_registry:
            self._lease.end()
            if unsure:
                await self._ask(leave_registry(sorted(unsure)))
            if sure:
                await self._ask(sign_off(sorted(sure)))
        if self._has_rust:
            await self._ask(rust_sign_off(sorted(self._left | sure)))

    async def _beat_or_fail(self) -> float:
        """Beat; after how many seconds the next is due."""
        began = time.monotonic()
        try:
            await self.beat_once()
        except Exception as error:
            self._failures += 1
            self._pool.on_error(error, self._failures)
            return min(self._every, delay_after(self._failures))
        if self._failures:
            self._failures = 0
            self._pool.on_recovered()
        return max(0.0, began + self._every - time.monotonic())

    async def _beat(self) -> None:
        if self.has_registry:
            try:
                await self._say_so()
            except Exception as error:
                self._forget_what_is_gone(error)
                raise
        if self._must_change_id:
            self._older.add(self._lease.pool_id)
            await self._go_on_as_new()
        await self._sign_off_older()

    async def _say_so(self) -> None:
        ids = self._ids()
        sent = time.monotonic()
        failpoint("heartbeat")
        heard = await self._ask(heartbeat(sorted(ids), self._pool.started_ids()))
        if self._lease.pool_id in heard.times:
            self._lease.renew(sent, heard.times[self._lease.pool_id])
        self._compare_server(heard.server_started)
        await self._part_with(ids - heard.times.keys())

    def _compare_server(self, started: float | None) -> None:
        """Say if this is another server than before, or one that was unreachable meanwhile."""
        if started is None:
            return
        is_other = self._server_started not in (None, started)
        self._server_started = started
        if is_other or self._failures:
            self._pool.on_reconnected()

    async def _part_with(self, swept: set[str]) -> None:
        """Ids that others took for dead: whatever was locked under them is not ours any more."""
        is_current = self._lease.pool_id in swept
        if is_current:
            self._lease.lose()
            self._next_id = self._next_id or new_pool_id()
        # First of all, as what follows may fail.
        for pool_id in swept - self._swept:
            self._pool.on_swept(pool_id, self._next_id or self._lease.pool_id)
        self._swept = swept
        self._older -= swept
        self._left |= swept
        if is_current:
            await self._go_on_as_new()

    async def _go_on_as_new(self) -> None:
        pool_id = self._next_id or new_pool_id()
        if self.has_registry:
            await self._enter(pool_id)
        self._lease.go_on_as(pool_id)
        self._must_change_id = False
        self._next_id = None
        self._told_rust_at = 0.0

    async def _enter(self, pool_id: str) -> None:
        assert self._threshold is not None
        sent = time.monotonic()
        # Beside the database's own time, which is entered with it: `doctor` compares them.
        details = {**self._details, "clock": datetime.now(UTC).timestamp()}
        await self._ask(register_pool(pool_id, self._threshold, details))
        self._lease.renew(sent)

    async def _sign_off_older(self) -> None:
        unused = self._older - self._pool.ids_in_use()
        if unused and self.has_registry:
            await self._ask(sign_off(sorted(unused)))
        self._older -= unused
        self._left |= unused

    async def _look(self) -> None:
        """What registries are there? One may come later, by another's migration."""
        is_wanted = self._threshold is not None and not self.has_registry
        if is_wanted and await self._ask(find_registry(self._schemas)):
            await self._enter(self._lease.pool_id)
            self.has_registry = True
        self._has_rust = await self._ask(find_rust_registry(self._schemas))
        self._looked_at = time.monotonic()

    async def _tell_rust(self) -> None:
        self._told_rust_at = time.monotonic()
        if not self._has_rust:
            return
        try:
            await self._ask(rust_heartbeat(sorted(self._ids()), self._details))
            if self._left:
                await self._ask(rust_sign_off(sorted(self._left)))
                self._left.clear()
        except Exception as error:
            if sqlstate_of(error) not in MISSING | {NOT_ALLOWED}:
                raise
            # Looked for again, in a while.
            self._has_rust = False

    def _forget_what_is_gone(self, error: Exception) -> None:
        """Our registry was dropped, or our right to it: from here on nobody hears of us."""
        state = sqlstate_of(error)
        if state not in MISSING | {NOT_ALLOWED}:
            return
        self.has_registry = False
        # Where only the right is gone, others still find us, silent, and take what we have locked.
        doomed = self._ids() - self._swept if state == NOT_ALLOWED else set()
        if doomed or self._next_id:
            new = self._next_id or new_pool_id()
            self._next_id = None
            self._older.clear()
            self._lease.go_on_as(new)
            for pool_id in sorted(doomed):
                self._pool.on_swept(pool_id, new)
        self._lease.end()

    def _ids(self) -> set[str]:
        return {self._lease.pool_id} | self._older

    async def _ask(self, query: Query[T]) -> T:
        try:
            async with asyncio.timeout(self._answer_within):
                return await self._db.run(query)
        except TimeoutError as error:
            # By itself it has no words.
            raise TimeoutError(f"no answer within {self._answer_within:g} s") from error
