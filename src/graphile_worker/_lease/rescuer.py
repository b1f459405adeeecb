"""Take their jobs from pools that went silent, so that somebody runs them."""

import asyncio
import random
from collections.abc import Callable

from graphile_worker._db.database import QueryRunner, TransactionalRunner
from graphile_worker._lease.lease import Lease
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
from graphile_worker._support.failpoints import failpoint
from graphile_worker._support.logs import Logger, make_printable
from graphile_worker.events import JobRecovered, RecoveryFailed
from graphile_worker.hooks import Hooks
from graphile_worker.options import RecoveryOptions

# Seconds that a sweep may take: it reads the table of jobs, and writes those of dead pools.
RESCUE_TIMEOUT_SECONDS = 60.0

# A sweep that misses its turn this many times in a row goes on without it. Turns only save work:
# the statements of a sweep skip rows that another transaction has locked.
MAX_MISSED_LOCKS = 3
RETRY_INTERVAL_SECONDS = 1.0


class JobRescuer:
    """Looks for silent pools every now and then; the table of jobs is read if there is one."""

    def __init__(
        self,
        database: TransactionalRunner,
        lease: Lease,
        hooks: Hooks,
        logger: Logger,
        options: RecoveryOptions,
        *,
        on_recovered: Callable[[int], None],
    ) -> None:
        self._db = database
        self._lease = lease
        self._hooks = hooks
        self._logger = logger
        self._options = options
        self._on_recovered = on_recovered
        # Swept pools of which something could not be taken: somebody had locked it.
        self._incomplete_pool_ids: list[str] = []
        self._missed_locks = 0

    async def run(self) -> None:
        every = self._options.effective_rescue_interval.total_seconds()
        # At times of its own among other pools.
        await asyncio.sleep(random.random() * every)
        while True:
            await self.rescue_once()
            await asyncio.sleep(every)

    async def rescue_at_start(self) -> None:
        """Sweep once for a program that does not stay; try again while another one has the turn."""
        await self.rescue_once()
        for _ in range(MAX_MISSED_LOCKS - 1):
            if not self._missed_locks:
                return
            await asyncio.sleep(RETRY_INTERVAL_SECONDS)
            await self.rescue_once()

    async def rescue_once(self) -> int:
        """Recover what silent pools held; how many jobs. A failure is announced."""
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
        silent = await self._db.run(get_dead_pools(self._lease.pool_id))
        silent += self._incomplete_pool_ids
        if not silent:
            self._missed_locks = 0
            return []
        async with asyncio.timeout(RESCUE_TIMEOUT_SECONDS), self._db.transaction() as connection:
            if not await self._can_rescue(connection):
                return []
            recovered = await connection.run(
                recover_jobs(silent, self._options.crash_retry_delay, self._options.max_crashes)
            )
            await connection.run(delete_orphaned_recoveries())
            left_over = await connection.run(delete_dead_pools())
            failpoint("sweeping")
        self._incomplete_pool_ids = left_over
        return recovered

    async def _can_rescue(self, connection: QueryRunner) -> bool:
        """Take the turn; sweep without it once it was missed too often."""
        if await self._try_rescue_lock(connection):
            self._missed_locks = 0
            return True
        self._missed_locks += 1
        if self._missed_locks < MAX_MISSED_LOCKS:
            return False
        holders = await connection.run(get_rescue_lock_holders(self._db.schemas))
        self._logger.warning(
            "recovery missed its turn %s times in a row, sweeping without it: held by %s",
            self._missed_locks,
            make_printable("; ".join(map(str, holders))) or "a session that has just ended",
        )
        return True

    async def _try_rescue_lock(self, connection: QueryRunner) -> bool:
        is_free = await connection.run(begin_rescue())
        # An older companion schema has no turns, and a role may lack privileges on them.
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
