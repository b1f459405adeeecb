"""Heartbeat: renews the lease of a pool and the locks of its long jobs."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeVar

from graphile_worker._db.database import QueryRunner
from graphile_worker._db.retry import compute_backoff
from graphile_worker._lease.lease import Lease, generate_pool_id
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._sql.queries.workers import (
    CRONTAB_KEY,
    FIRST_START_KEY,
    LIMITS_KEY,
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
from graphile_worker._support.lazy_dataclass import LazyDataclass, LazyKeywordDataclass

T = TypeVar("T")


class HeartbeatTimings(LazyKeywordDataclass):
    """Intervals and time limits of a heartbeat."""

    max_interval: timedelta = timedelta(seconds=10)
    """Upper bound for Rust workers, which recover the jobs of a pool after minutes without a
    heartbeat."""
    rust_heartbeat_interval_seconds: float = 9.0
    """Rust workers expect a heartbeat every 30 s."""
    registry_check_interval_seconds: float = 30.0
    """Another program may install a registry later."""
    lock_renewal_interval_seconds: float = 60.0
    """A lock would be stale after 4 hours, or after 5 minutes where Rust workers run."""
    min_query_timeout_seconds: float = 1.0
    """A query may take a third of the lease duration, between this and the maximum."""
    max_query_timeout_seconds: float = 10.0
    """The limit before the registration, which may have to connect."""


DEFAULT_TIMINGS = HeartbeatTimings()


class PoolCallbacks(LazyDataclass):
    """Functions that the heartbeat calls to read from its pool and report to it, thread-safe."""

    started_ids: Callable[[], list[int]]
    claimed: Callable[[], Collection[ClaimedJob]]
    ids_in_use: Callable[[], set[str]]
    """Ids under which the pool holds jobs, or may hold jobs of a fetch without an answer."""
    on_lease_lost: Callable[[str, str], None]
    """Other pools recovered all jobs of the first id. The pool continues as the second one."""
    on_jobs_lost: Callable[[set[int]], None]
    """These jobs were unlocked by another session."""
    on_error: Callable[[Exception, int], None]
    """A heartbeat failed. The number counts failures in a row."""
    on_recovered: Callable[[], None]
    """A heartbeat succeeded after failures."""
    on_reconnected: Callable[[], None] = lambda: None
    """The server restarted or was unreachable: it may have lost its last commits."""


class ProgressFlusher(Protocol):
    """Writes what running tasks reported. It raises nothing if that fails."""

    async def flush(
        self,
        run: Callable[[Query[None]], Awaitable[None]],
        list_claimed: Callable[[], Collection[ClaimedJob]],
    ) -> None: ...


class Heartbeat:
    """Sends heartbeats. Run it in an event loop that tasks cannot block."""

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
        progress: ProgressFlusher | None = None,
        timings: HeartbeatTimings = DEFAULT_TIMINGS,
    ) -> None:
        self.has_registry = False
        self._db = database
        self._schemas = schemas
        self._lease = lease
        self._pool = pool
        self._lease_duration = lease_duration
        self._timings = timings
        longest = timings.max_interval
        self._interval_seconds = min(interval or longest, longest).total_seconds()
        self._details = details
        # Sent with each heartbeat, so without what only Python tools read.
        self._rust_details = {
            name: value for name, value in details.items() if name not in (CRONTAB_KEY, LIMITS_KEY)
        }
        self._progress = progress
        self._query_timeout_seconds = timings.max_query_timeout_seconds
        self._has_rust = False
        self._registries_checked_at = 0.0
        self._rust_heartbeat_at = 0.0
        self._locks_renewed_at = time.monotonic()
        self._previously_claimed: dict[int, ClaimedJob] = {}
        # Former ids, under which the pool still holds jobs.
        self._previous_ids: set[str] = set()
        # Ids without jobs that are still in the registry of Rust workers.
        self._retired_ids: set[str] = set()
        self._failures = 0
        self._server_started_at: float | None = None
        # When this pool first registered, by the clocks of this process and of the server.
        self._registered_at: float | None = None
        self._first_started_at: float | None = None
        self._must_rotate_id = False
        self._next_id: str | None = None
        self._lost_ids: set[str] = set()

    async def register(self) -> None:
        """Add the pool to the registries before its first claim."""
        await self._check_registries()
        await self._send_rust_heartbeat()
        if self._lease_duration is not None:
            third = self._lease_duration.total_seconds() / 3
            self._query_timeout_seconds = max(
                self._timings.min_query_timeout_seconds,
                min(self._timings.max_query_timeout_seconds, third),
            )

    async def run(self) -> None:
        while True:
            seconds = await self._beat_and_report()
            await asyncio.sleep(seconds)

    async def beat_once(self) -> None:
        """Send one heartbeat, and check registries and renew locks if that is due."""
        await self._beat()
        now = time.monotonic()
        if now - self._registries_checked_at > self._timings.registry_check_interval_seconds:
            await self._check_registries()
        if now - self._rust_heartbeat_at > self._timings.rust_heartbeat_interval_seconds:
            await self._send_rust_heartbeat()
        if now - self._locks_renewed_at > self._timings.lock_renewal_interval_seconds:
            self._locks_renewed_at = now
            await self.renew_once()

    async def renew_once(self) -> None:
        """Renew the locks of jobs that this pool already held at the last renewal."""
        claimed = {each.job.id: each for each in self._pool.claimed()}
        previous, self._previously_claimed = self._previously_claimed, claimed
        long_held = {id: each for id, each in claimed.items() if previous.get(id) is each}
        if not long_held:
            return
        queues = [each.queue_id for each in long_held.values() if each.queue_id is not None]
        pool_ids = {each.pool_id for each in long_held.values()}
        renewed_ids = await self._run_query(renew_locks(sorted(pool_ids), list(long_held), queues))
        lost_ids = long_held.keys() - renewed_ids
        if lost_ids:
            self._pool.on_jobs_lost(lost_ids)

    def request_new_id(self) -> None:
        """Change the pool id with the next heartbeat, because jobs of this pool were unlocked."""
        self._must_rotate_id = True

    async def unregister(self) -> None:
        """Remove the pool from the registries at the end, when it holds no job.

        A fetch without an answer may still lock jobs. So the row of its id is only marked as
        stopped: other pools treat this pool as dead and release the jobs.
        """
        used_ids = self._get_ids() & self._pool.ids_in_use()
        unused_ids = self._get_ids() - used_ids
        if self.has_registry:
            self._lease.mark_unregistered()
            if used_ids:
                await self._run_query(mark_pools_stopped(sorted(used_ids)))
            if unused_ids:
                await self._run_query(unregister_pools(sorted(unused_ids)))
        if self._has_rust:
            await self._run_query(rust_unregister(sorted(self._retired_ids | unused_ids)))

    async def flush_progress(self) -> None:
        """Write the progress of running jobs, and delete that of ended ones."""
        if self._progress is not None:
            await self._progress.flush(self._run_progress_query, self._pool.claimed)

    async def _beat_and_report(self) -> float:
        """Send a heartbeat, and return the seconds until the next one."""
        started_at = time.monotonic()
        try:
            await self.beat_once()
        except Exception as error:
            self._failures += 1
            self._pool.on_error(error, self._failures)
            return min(self._interval_seconds, compute_backoff(self._failures))
        if self._failures:
            self._failures = 0
            self._pool.on_recovered()
        await self.flush_progress()
        return max(0.0, started_at + self._interval_seconds - time.monotonic())

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
        sent_at = time.monotonic()
        failpoint("heartbeat")
        answer = await self._run_query(heartbeat(sorted(ids), self._pool.started_ids()))
        if self._lease.pool_id in answer.server_times:
            server_time = answer.server_times[self._lease.pool_id]
            self._lease.renew(sent_at, server_time)
            if self._first_started_at is None and self._registered_at is not None:
                self._first_started_at = server_time - (sent_at - self._registered_at)
        self._detect_server_restart(answer.server_started_at)
        await self._handle_lost_ids(ids - answer.server_times.keys())

    def _detect_server_restart(self, started_at: float | None) -> None:
        """Report that the server restarted, changed or was unreachable."""
        if started_at is None:
            return
        has_restarted = self._server_started_at not in (None, started_at)
        self._server_started_at = started_at
        if has_restarted or self._failures:
            self._pool.on_reconnected()

    async def _handle_lost_ids(self, lost_ids: set[str]) -> None:
        """Handle ids that other pools recovered: this pool no longer holds jobs under them."""
        is_current = self._lease.pool_id in lost_ids
        if is_current:
            self._lease.mark_lost()
            self._next_id = self._next_id or generate_pool_id()
        # Before the registration of a new id, which may fail.
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
        sent_at = time.monotonic()
        # `doctor` compares this clock with the time of the database.
        details = {**self._details, "clock": datetime.now(UTC).timestamp()}
        if LIMITS_KEY in details and self._first_started_at is not None:
            # A pool with a new id is not the one that started last, whose limits are in force.
            details[FIRST_START_KEY] = self._first_started_at
        await self._run_query(register_pool(pool_id, self._lease_duration, details))
        if self._registered_at is None:
            self._registered_at = sent_at
        self._lease.renew(sent_at)

    async def _unregister_previous_ids(self) -> None:
        unused = self._previous_ids - self._pool.ids_in_use()
        if unused and self.has_registry:
            await self._run_query(unregister_pools(sorted(unused)))
        self._previous_ids -= unused
        self._retired_ids |= unused

    async def _check_registries(self) -> None:
        """Find the registries, because another program may install one later."""
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
            await self._run_query(rust_heartbeat(sorted(self._get_ids()), self._rust_details))
            if self._retired_ids:
                await self._run_query(rust_unregister(sorted(self._retired_ids)))
                self._retired_ids.clear()
        except Exception as error:
            if get_sqlstate(error) not in MISSING_OBJECT | {INSUFFICIENT_PRIVILEGE}:
                raise
            # `_check_registries` checks again whether it exists.
            self._has_rust = False

    def _handle_missing_registry(self, error: Exception) -> None:
        """Continue without heartbeats after the registry, or the privilege on it, was removed."""
        state = get_sqlstate(error)
        if state not in MISSING_OBJECT | {INSUFFICIENT_PRIVILEGE}:
            return
        self.has_registry = False
        # If only the privilege is missing, other pools recover the jobs of this one.
        lost = self._get_ids() - self._lost_ids if state == INSUFFICIENT_PRIVILEGE else set()
        if lost or self._next_id:
            new_id = self._next_id or generate_pool_id()
            self._next_id = None
            self._previous_ids.clear()
            self._lease.rotate_id(new_id)
            for pool_id in sorted(lost):
                self._pool.on_lease_lost(pool_id, new_id)
        self._lease.mark_unregistered()

    def _get_ids(self) -> set[str]:
        return {self._lease.pool_id} | self._previous_ids

    async def _run_progress_query(self, query: Query[None]) -> None:
        # Shorter than the interval, so that the next heartbeat is not late.
        longest = max(self._timings.min_query_timeout_seconds, self._interval_seconds / 2)
        await self._run_query(query, min(longest, self._query_timeout_seconds))

    async def _run_query(self, query: Query[T], timeout_seconds: float | None = None) -> T:
        seconds = self._query_timeout_seconds if timeout_seconds is None else timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._db.run(query)
        except TimeoutError as error:
            # The TimeoutError of asyncio has no message.
            raise TimeoutError(f"no answer within {seconds:g} s") from error
