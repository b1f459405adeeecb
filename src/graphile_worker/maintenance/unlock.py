"""Release locks older than four hours, whoever left them: the reference's own rule."""

import asyncio
import random
from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType

from graphile_worker.clock import Clock
from graphile_worker.db.database import Answering
from graphile_worker.events import ResetLockedFailed, ResetLockedStarted, ResetLockedSucceeded
from graphile_worker.hooks import Hooks
from graphile_worker.lease import Lease
from graphile_worker.sql.holding import HeldJob
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
        held: Mapping[int, HeldJob] = MappingProxyType({}),
    ) -> None:
        self._db = database
        self._lease = lease
        self._hooks = hooks
        self._least = least
        self._most = most
        self._clock = clock
        self._held = held

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
            # Locks of this pool on jobs that it does not hold are stale like those of any other.
            held = list(self._held.values())
            queues = [each.queue_id for each in held if each.queue_id is not None]
            query = unlock_stale_jobs(
                now, but_of=self._lease.pool_id, jobs=[each.job.id for each in held], queues=queues
            )
            count = await self._db.run(query)
        except Exception as error:
            self._hooks.emit(ResetLockedFailed(**where, error=error, delay=next_after))
            return 0
        self._hooks.emit(ResetLockedSucceeded(**where, delay=next_after))
        return count
