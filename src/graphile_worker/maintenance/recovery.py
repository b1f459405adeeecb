"""Take their jobs from pools that went silent, so that somebody runs them."""

import asyncio
import random
from collections.abc import Callable

from graphile_worker.db.database import Transacting
from graphile_worker.events import JobRecovered, SweepFailed
from graphile_worker.failpoints import failpoint
from graphile_worker.hooks import Hooks
from graphile_worker.lease import Lease
from graphile_worker.options import RecoveryOptions
from graphile_worker.sql.workers import (
    Recovery,
    forget_pools,
    forget_recoveries,
    get_silent_pools,
    recover_jobs,
    take_sweep_turn,
)

# Seconds that a sweep may take: it reads the table of jobs, and writes those of dead pools.
SWEEP_WITHIN = 60.0


class Sweeper:
    """Looks for silent pools every now and then; the table of jobs is read if there is one."""

    def __init__(
        self,
        database: Transacting,
        lease: Lease,
        hooks: Hooks,
        options: RecoveryOptions,
        *,
        on_recovered: Callable[[int], None],
    ) -> None:
        self._db = database
        self._lease = lease
        self._hooks = hooks
        self._options = options
        self._on_recovered = on_recovered
        # Swept pools of which something could not be taken: somebody had locked it.
        self._left_over: list[str] = []

    async def run(self) -> None:
        every = self._options.sweep_every.total_seconds()
        # At times of its own among other pools.
        await asyncio.sleep(random.random() * every)
        while True:
            await self.sweep_once()
            await asyncio.sleep(every)

    async def sweep_once(self) -> int:
        """Recover what silent pools held; how many jobs. A failure is announced."""
        if not self._lease.is_registered or not self._lease.is_steady:
            return 0
        try:
            recovered = await self._sweep()
        except Exception as error:
            self._hooks.emit(SweepFailed(pool_id=self._lease.pool_id, error=error))
            return 0
        for each in recovered:
            self._announce(each)
        if recovered:
            self._on_recovered(len(recovered))
        return len(recovered)

    async def _sweep(self) -> list[Recovery]:
        silent = await self._db.run(get_silent_pools(self._lease.pool_id))
        silent += self._left_over
        if not silent:
            return []
        async with asyncio.timeout(SWEEP_WITHIN), self._db.transaction() as connection:
            if not await connection.run(take_sweep_turn()):
                return []
            recovered = await connection.run(
                recover_jobs(silent, self._options.recovery_delay, self._options.max_recoveries)
            )
            await connection.run(forget_recoveries())
            left_over = await connection.run(forget_pools())
            failpoint("sweeping")
        self._left_over = left_over
        return recovered

    def _announce(self, recovery: Recovery) -> None:
        self._hooks.emit(
            JobRecovered(
                pool_id=self._lease.pool_id,
                job=recovery.job,
                dead_pool_id=recovery.pool_id,
                was_started=bool(recovery.was_started),
                recoveries=recovery.count,
                is_parked=recovery.is_parked,
            )
        )
