"""JobRescuer: releases the jobs of dead pools, so that other pools run them."""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress

from graphile_worker._db.database import QueryRunner, TransactionalRunner
from graphile_worker._lease.lease import Lease
from graphile_worker._sql.queries.limits import check_limits, free_dead_slots
from graphile_worker._sql.queries.progress import delete_orphaned_progress
from graphile_worker._sql.queries.workers import (
    RecoveredJob,
    begin_rescue,
    delete_dead_pools,
    delete_orphaned_recoveries,
    get_dead_pools,
    get_rescue_lock_holders,
    has_rescue_lock,
    recover_jobs,
    try_lock_rescue,
)
from graphile_worker._support.error_format import make_printable
from graphile_worker._support.failpoints import failpoint
from graphile_worker._support.logs import Logger
from graphile_worker.events import JobRecovered, RecoveryFailed
from graphile_worker.hooks import Hooks
from graphile_worker.options import RecoveryOptions

# Seconds that one round may take: it reads the table of jobs, and writes those of dead pools.
RESCUE_TIMEOUT_SECONDS = 60.0

# After this many rounds without the rescue lock, a round goes on without it. The lock only saves
# work: the statements of a round skip rows that another transaction has locked.
MAX_MISSED_LOCKS = 3
RETRY_INTERVAL_SECONDS = 1.0


class JobRescuer:
    """Checks for dead pools at intervals, and reads the table of jobs only if there are any."""

    def __init__(
        self,
        database: TransactionalRunner,
        lease: Lease,
        hooks: Hooks,
        logger: Logger,
        options: RecoveryOptions,
        *,
        on_recovered: Callable[[int], None],
        retry_interval_seconds: float = RETRY_INTERVAL_SECONDS,
        rescue_timeout_seconds: float = RESCUE_TIMEOUT_SECONDS,
    ) -> None:
        self._retry_interval_seconds = retry_interval_seconds
        self._rescue_timeout_seconds = rescue_timeout_seconds
        self._db = database
        self._lease = lease
        self._hooks = hooks
        self._logger = logger
        self._options = options
        self._on_recovered = on_recovered
        # Dead pools with rows that another session had locked.
        self._incomplete_pool_ids: list[str] = []
        self._missed_locks = 0

    async def run(self) -> None:
        interval = self._options.effective_rescue_interval.total_seconds()
        # A random delay, so that pools do not check at the same time.
        await asyncio.sleep(random.random() * interval)
        while True:
            await self.rescue_once()
            await asyncio.sleep(interval)

    async def rescue_at_start(self) -> None:
        """Run one round for a short program, and retry while another pool has the rescue lock."""
        await self.rescue_once()
        for _ in range(MAX_MISSED_LOCKS - 1):
            if not self._missed_locks:
                return
            await asyncio.sleep(self._retry_interval_seconds)
            await self.rescue_once()

    async def rescue_once(self) -> int:
        """Release the jobs of dead pools and return their number. A failure is an event."""
        if not self._lease.is_registered or not self._lease.is_stable:
            return 0
        try:
            recovered = await self._rescue()
        except Exception as error:
            self._hooks.emit(RecoveryFailed(pool_id=self._lease.pool_id, error=error))
            return 0
        for each in recovered:
            self._emit_recovered(each)
        if recovered:
            self._on_recovered(len(recovered))
        return len(recovered)

    async def _rescue(self) -> list[RecoveredJob]:
        dead_pools = await self._db.run(get_dead_pools(self._lease.pool_id))
        dead_pools += self._incomplete_pool_ids
        if not dead_pools:
            self._missed_locks = 0
            return []
        async with (
            asyncio.timeout(self._rescue_timeout_seconds),
            self._db.transaction() as connection,
        ):
            if not await self._can_rescue(connection):
                return []
            recovered = await connection.run(
                recover_jobs(dead_pools, self._options.crash_retry_delay, self._options.max_crashes)
            )
            await connection.run(delete_orphaned_recoveries())
            # After the jobs: until then these count as running.
            if (await connection.run(check_limits(self._db.schemas))).can_write:
                await connection.run(free_dead_slots())
            incomplete = await connection.run(delete_dead_pools())
            failpoint("rescuing")
        self._incomplete_pool_ids = incomplete
        # The table is missing in an older companion schema, and a role may lack privileges on it.
        with suppress(Exception):
            await self._db.run(delete_orphaned_progress())
        return recovered

    async def _can_rescue(self, connection: QueryRunner) -> bool:
        """Take the rescue lock, and return whether to continue.

        After too many rounds without the lock, the round continues without it.
        """
        if await self._try_rescue_lock(connection):
            self._missed_locks = 0
            return True
        self._missed_locks += 1
        if self._missed_locks < MAX_MISSED_LOCKS:
            return False
        holders = await connection.run(get_rescue_lock_holders(self._db.schemas))
        self._logger.warning(
            "rescue lock not available %s times in a row, recovering without it: held by %s",
            self._missed_locks,
            make_printable("; ".join(map(str, holders))) or "a session that has just ended",
        )
        return True

    async def _try_rescue_lock(self, connection: QueryRunner) -> bool:
        is_free = await connection.run(begin_rescue())
        # An older companion schema has no such lock, and a role may lack privileges on it.
        if await connection.run(has_rescue_lock(self._db.schemas)):
            is_free = await connection.run(try_lock_rescue()) and is_free
        return is_free

    def _emit_recovered(self, recovery: RecoveredJob) -> None:
        self._hooks.emit(
            JobRecovered(
                pool_id=self._lease.pool_id,
                job=recovery.job,
                dead_pool_id=recovery.pool_id,
                was_started=bool(recovery.was_started),
                crashes=recovery.crash_count,
                is_quarantined=recovery.is_quarantined,
            )
        )
