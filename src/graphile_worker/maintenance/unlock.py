"""Release locks older than four hours, whoever left them: the reference's own rule."""

import asyncio
import random
from datetime import timedelta

from graphile_worker.clock import Clock
from graphile_worker.db.database import Answering
from graphile_worker.events import ResetLockedFailed, ResetLockedStarted, ResetLockedSucceeded
from graphile_worker.hooks import Hooks
from graphile_worker.lease import Lease
from graphile_worker.sql.workers import unlock_stale_jobs

FIRST_WITHIN = timedelta(minutes=1)


class StaleLocks:
    """Looks for stale locks every now and then, at times of its own among other pools."""

    def __init__(
        self,
        database: Answering,
        lease: Lease,
        hooks: Hooks,
        *,
        least: timedelta,
        most: timedelta,
        clock: Clock | None = None,
    ) -> None:
        self._db = database
        self._lease = lease
        self._hooks = hooks
        self._least = least
        self._most = most
        self._clock = clock

    async def run(self) -> None:
        delay = random.random() * min(FIRST_WITHIN, self._most)
        while True:
            await asyncio.sleep(delay.total_seconds())
            delay = self._least + random.random() * (self._most - self._least)
            await self.unlock_once(next_after=delay)

    async def unlock_once(self, next_after: timedelta | None = None) -> int:
        """Release what is stale; how many jobs. A failure is announced, and left to the next."""
        where = {"pool_id": self._lease.pool_id}
        self._hooks.emit(ResetLockedStarted(**where))
        now = None if self._clock is None else self._clock.now()
        try:
            count = await self._db.run(unlock_stale_jobs(now, but_of=self._lease.pool_id))
        except Exception as error:
            self._hooks.emit(ResetLockedFailed(**where, error=error, delay=next_after))
            return 0
        self._hooks.emit(ResetLockedSucceeded(**where, delay=next_after))
        return count
