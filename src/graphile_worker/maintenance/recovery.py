"""Take their jobs from pools that went silent, so that somebody runs them."""

import asyncio
import random
from collections.abc import Callable

from graphile_worker.db.database import Answering, Transacting
from graphile_worker.events import JobRecovered, SweepFailed
from graphile_worker.failpoints import failpoint
from graphile_worker.hooks import Hooks
from graphile_worker.lease import Lease
from graphile_worker.logs import Logger, printable
from graphile_worker.options import RecoveryOptions
from graphile_worker.sql.workers import (
    Recovery,
    begin_sweep,
    find_turns,
    forget_pools,
    forget_recoveries,
    get_silent_pools,
    get_turn_holders,
    recover_jobs,
    take_sweep_turn,
)

# Seconds that a sweep may take: it reads the table of jobs, and writes those of dead pools.
SWEEP_WITHIN = 60.0

# A sweep that misses its turn this many times in a row goes on without it. Turns only save work:
# the statements of a sweep skip rows that another transaction has locked.
MISSED_TURNS = 3
TRY_AGAIN_SECONDS = 1.0


class Sweeper:
    """Looks for silent pools every now and then; the table of jobs is read if there is one."""

    def __init__(
        self,
        database: Transacting,
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
        self._left_over: list[str] = []
        self._missed_turns = 0

    async def run(self) -> None:
        every = self._options.sweep_every.total_seconds()
        # At times of its own among other pools.
        await asyncio.sleep(random.random() * every)
        while True:
            await self.sweep_once()
            await asyncio.sleep(every)

    async def sweep_at_start(self) -> None:
        """Sweep once for a program that does not stay; try again while another one has the turn."""
        await self.sweep_once()
        for _ in range(MISSED_TURNS - 1):
            if not self._missed_turns:
                return
            await asyncio.sleep(TRY_AGAIN_SECONDS)
            await self.sweep_once()

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
            self._missed_turns = 0
            return []
        async with asyncio.timeout(SWEEP_WITHIN), self._db.transaction() as connection:
            if not await self._may_sweep(connection):
                return []
            recovered = await connection.run(
                recover_jobs(silent, self._options.recovery_delay, self._options.max_recoveries)
            )
            await connection.run(forget_recoveries())
            left_over = await connection.run(forget_pools())
            failpoint("sweeping")
        self._left_over = left_over
        return recovered

    async def _may_sweep(self, connection: Answering) -> bool:
        """Take the turn; sweep without it once it was missed too often."""
        if await self._take_turn(connection):
            self._missed_turns = 0
            return True
        self._missed_turns += 1
        if self._missed_turns < MISSED_TURNS:
            return False
        holders = await connection.run(get_turn_holders(self._db.schemas))
        self._logger.warning(
            "recovery missed its turn %s times in a row, sweeping without it: held by %s",
            self._missed_turns,
            printable("; ".join(map(str, holders))) or "a session that has just ended",
        )
        return True

    async def _take_turn(self, connection: Answering) -> bool:
        is_free = await connection.run(begin_sweep())
        # An older companion schema has no turns, and a role may lack privileges on them.
        if await connection.run(find_turns(self._db.schemas)):
            is_free = await connection.run(take_sweep_turn()) and is_free
        return is_free

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
