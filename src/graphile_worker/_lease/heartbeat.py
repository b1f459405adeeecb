"""This pool is alive: said every few seconds, as others take the jobs of one that does not."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from graphile_worker._db.database import QueryRunner
from graphile_worker._db.retry import compute_backoff
from graphile_worker._lease.lease import Lease, generate_pool_id
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._sql.queries.workers import (
    has_registry,
    has_rust_registry,
    heartbeat,
    mark_pools_stopped,
    register_pool,
    renew_locks,
    rust_heartbeat,
    rust_unregister,
    unregister_pools,
)
from graphile_worker._sql.query import Query
from graphile_worker._sql.sqlstate import INSUFFICIENT_PRIVILEGE, MISSING_OBJECT, get_sqlstate
from graphile_worker._support.failpoints import failpoint

T = TypeVar("T")

# Rust workers are told too, whatever our own lease is, and they take a pool for dead after minutes.
MAX_INTERVAL = timedelta(seconds=10)

# Seconds: Rust workers want to hear of us every half minute, and may install their registry later.
RUST_HEARTBEAT_INTERVAL_SECONDS = 9.0
REGISTRY_CHECK_INTERVAL_SECONDS = 30.0

# Seconds after which a lock is renewed: four hours old, or five minutes where Rust workers sweep,
# it would count as left behind.
LOCK_RENEWAL_INTERVAL_SECONDS = 60.0

# Seconds that an answer may take: a third of the lease, but in these limits; the longest before
# there is one.
MIN_QUERY_TIMEOUT_SECONDS = 1.0
MAX_QUERY_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class PoolCallbacks:
    """What the heartbeat must know of its pool, and tell it, each safe in any thread."""

    started_ids: Callable[[], list[int]]
    claimed: Callable[[], Collection[ClaimedJob]]
    ids_in_use: Callable[[], set[str]]
    """Those under which it holds jobs, or may without knowing."""
    on_lease_lost: Callable[[str, str], None]
    """Others took all jobs of the first id; it goes on under the second."""
    on_jobs_lost: Callable[[set[int]], None]
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
        database: QueryRunner,
        schemas: Schemas,
        lease: Lease,
        pool: PoolCallbacks,
        *,
        lease_duration: timedelta | None,
        interval: timedelta | None,
        details: Mapping[str, Any],
    ) -> None:
        self.has_registry = False
        self._db = database
        self._schemas = schemas
        self._lease = lease
        self._pool = pool
        self._lease_duration = lease_duration
        self._interval_seconds = min(interval or MAX_INTERVAL, MAX_INTERVAL).total_seconds()
        self._details = details
        # Nobody has to be heard in time before the first sign of life, which may have to connect.
        self._query_timeout_seconds = MAX_QUERY_TIMEOUT_SECONDS
        self._has_rust = False
        self._registries_checked_at = 0.0
        self._rust_heartbeat_at = 0.0
        self._locks_renewed_at = time.monotonic()
        self._previously_claimed: dict[int, ClaimedJob] = {}
        # Ids that this pool went on without, while jobs are held under them.
        self._previous_ids: set[str] = set()
        # Ids that mean nothing any more; Rust workers have not been told.
        self._retired_ids: set[str] = set()
        self._failures = 0
        self._server_started_at: float | None = None
        self._must_rotate_id = False
        self._next_id: str | None = None
        self._lost_ids: set[str] = set()

    async def register(self) -> None:
        """Before the first job is taken; raises if the database is out of reach."""
        await self._check_registries()
        await self._send_rust_heartbeat()
        if self._lease_duration is not None:
            third = self._lease_duration.total_seconds() / 3
            self._query_timeout_seconds = max(
                MIN_QUERY_TIMEOUT_SECONDS, min(MAX_QUERY_TIMEOUT_SECONDS, third)
            )

    async def run(self) -> None:
        while True:
            next_after = await self._beat_and_report()
            await asyncio.sleep(next_after)

    async def beat_once(self) -> None:
        """One sign of life."""
        await self._beat()
        now = time.monotonic()
        if now - self._registries_checked_at > REGISTRY_CHECK_INTERVAL_SECONDS:
            await self._check_registries()
        if now - self._rust_heartbeat_at > RUST_HEARTBEAT_INTERVAL_SECONDS:
            await self._send_rust_heartbeat()
        if now - self._locks_renewed_at > LOCK_RENEWAL_INTERVAL_SECONDS:
            self._locks_renewed_at = now
            await self.renew_once()

    async def renew_once(self) -> None:
        """Renew the locks that this pool held at the last look already."""
        held = {each.job.id: each for each in self._pool.claimed()}
        old = [each for each in held.values() if self._previously_claimed.get(each.job.id) is each]
        self._previously_claimed = held
        if not old:
            return
        queues = [each.queue_id for each in old if each.queue_id is not None]
        pool_ids = {each.pool_id for each in old}
        still = await self._run_query(
            renew_locks(sorted(pool_ids), [each.job.id for each in old], queues)
        )
        lost = {each.job.id for each in old} - still
        if lost:
            self._pool.on_jobs_lost(lost)

    def request_new_id(self) -> None:
        """With the next heartbeat: somebody unlocked jobs of this pool."""
        self._must_rotate_id = True

    async def unregister(self) -> None:
        """At the very end, when nothing is locked any more.

        A fetch whose answer never came may still lock jobs. The row of its id stays, hidden, so
        that others find this pool silent and release them.
        """
        unsure = self._get_ids() & self._pool.ids_in_use()
        sure = self._get_ids() - unsure
        if self.has_registry:
            self._lease.mark_unregistered()
            if unsure:
                await self._run_query(mark_pools_stopped(sorted(unsure)))
            if sure:
                await self._run_query(unregister_pools(sorted(sure)))
        if self._has_rust:
            await self._run_query(rust_unregister(sorted(self._retired_ids | sure)))

    async def _beat_and_report(self) -> float:
        """Beat; after how many seconds the next is due."""
        began = time.monotonic()
        try:
            await self.beat_once()
        except Exception as error:
            self._failures += 1
            self._pool.on_error(error, self._failures)
            return min(self._interval_seconds, compute_backoff(self._failures))
        if self._failures:
            self._failures = 0
            self._pool.on_recovered()
        return max(0.0, began + self._interval_seconds - time.monotonic())

    async def _beat(self) -> None:
        if self.has_registry:
            try:
                await self._send_heartbeat()
            except Exception as error:
                self._handle_missing_registry(error)
                raise
        if self._must_rotate_id:
            self._previous_ids.add(self._lease.pool_id)
            await self._rotate_id()
        await self._unregister_previous_ids()

    async def _send_heartbeat(self) -> None:
        ids = self._get_ids()
        sent = time.monotonic()
        failpoint("heartbeat")
        heard = await self._run_query(heartbeat(sorted(ids), self._pool.started_ids()))
        if self._lease.pool_id in heard.server_times:
            self._lease.renew(sent, heard.server_times[self._lease.pool_id])
        self._detect_server_restart(heard.server_started_at)
        await self._handle_lost_ids(ids - heard.server_times.keys())

    def _detect_server_restart(self, started_at: float | None) -> None:
        """Say if this is another server than before, or one that was unreachable meanwhile."""
        if started_at is None:
            return
        is_other = self._server_started_at not in (None, started_at)
        self._server_started_at = started_at
        if is_other or self._failures:
            self._pool.on_reconnected()

    async def _handle_lost_ids(self, lost_ids: set[str]) -> None:
        """Ids that others took for dead: whatever was locked under them is not ours any more."""
        is_current = self._lease.pool_id in lost_ids
        if is_current:
            self._lease.mark_lost()
            self._next_id = self._next_id or generate_pool_id()
        # First of all, as what follows may fail.
        for pool_id in lost_ids - self._lost_ids:
            self._pool.on_lease_lost(pool_id, self._next_id or self._lease.pool_id)
        self._lost_ids = lost_ids
        self._previous_ids -= lost_ids
        self._retired_ids |= lost_ids
        if is_current:
            await self._rotate_id()

    async def _rotate_id(self) -> None:
        pool_id = self._next_id or generate_pool_id()
        if self.has_registry:
            await self._register_pool(pool_id)
        self._lease.rotate_id(pool_id)
        self._must_rotate_id = False
        self._next_id = None
        self._rust_heartbeat_at = 0.0

    async def _register_pool(self, pool_id: str) -> None:
        assert self._lease_duration is not None
        sent = time.monotonic()
        # Beside the database's own time, which is entered with it: `doctor` compares them.
        details = {**self._details, "clock": datetime.now(UTC).timestamp()}
        await self._run_query(register_pool(pool_id, self._lease_duration, details))
        self._lease.renew(sent)

    async def _unregister_previous_ids(self) -> None:
        unused = self._previous_ids - self._pool.ids_in_use()
        if unused and self.has_registry:
            await self._run_query(unregister_pools(sorted(unused)))
        self._previous_ids -= unused
        self._retired_ids |= unused

    async def _check_registries(self) -> None:
        """What registries are there? One may come later, by another's migration."""
        is_wanted = self._lease_duration is not None and not self.has_registry
        if is_wanted and await self._run_query(has_registry(self._schemas)):
            await self._register_pool(self._lease.pool_id)
            self.has_registry = True
        self._has_rust = await self._run_query(has_rust_registry(self._schemas))
        self._registries_checked_at = time.monotonic()

    async def _send_rust_heartbeat(self) -> None:
        self._rust_heartbeat_at = time.monotonic()
        if not self._has_rust:
            return
        try:
            await self._run_query(rust_heartbeat(sorted(self._get_ids()), self._details))
            if self._retired_ids:
                await self._run_query(rust_unregister(sorted(self._retired_ids)))
                self._retired_ids.clear()
        except Exception as error:
            if get_sqlstate(error) not in MISSING_OBJECT | {INSUFFICIENT_PRIVILEGE}:
                raise
            # Looked for again, in a while.
            self._has_rust = False

    def _handle_missing_registry(self, error: Exception) -> None:
        """Our registry was dropped, or our right to it: from here on nobody hears of us."""
        state = get_sqlstate(error)
        if state not in MISSING_OBJECT | {INSUFFICIENT_PRIVILEGE}:
            return
        self.has_registry = False
        # Where only the right is gone, others still find us, silent, and take what we have locked.
        doomed = self._get_ids() - self._lost_ids if state == INSUFFICIENT_PRIVILEGE else set()
        if doomed or self._next_id:
            new = self._next_id or generate_pool_id()
            self._next_id = None
            self._previous_ids.clear()
            self._lease.rotate_id(new)
            for pool_id in sorted(doomed):
                self._pool.on_lease_lost(pool_id, new)
        self._lease.mark_unregistered()

    def _get_ids(self) -> set[str]:
        return {self._lease.pool_id} | self._previous_ids

    async def _run_query(self, query: Query[T]) -> T:
        try:
            async with asyncio.timeout(self._query_timeout_seconds):
                return await self._db.run(query)
        except TimeoutError as error:
            # By itself it has no words.
            raise TimeoutError(f"no answer within {self._query_timeout_seconds:g} s") from error
