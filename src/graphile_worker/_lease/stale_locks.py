"""Release locks older than four hours, whoever left them: the reference's own rule."""

import asyncio
import random
from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType

from graphile_worker._db.database import QueryRunner
from graphile_worker._lease.lease import Lease
from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._sql.queries.workers import unlock_stale_jobs
from graphile_worker._support.clock import Clock
from graphile_worker.events import ResetLockedFailed, ResetLockedStarted, ResetLockedSucceeded
from graphile_worker.hooks import Hooks

MAX_FIRST_DELAY = timedelta(minutes=1)


class StaleLocks:
    """Looks for stale locks every now and then, at times of its own among other pools."""

    def __init__(
        self,
        database: QueryRunner,
        lease: Lease,
        hooks: Hooks,
        *,
        min_interval: timedelta,
        max_interval: timedelta,
        clock: Clock | None = None,
        claimed: Mapping[int, ClaimedJob] = MappingProxyType({}),
    ) -> None:
        self._db = database
        self._lease = lease
        self._hooks = hooks
        self._min_interval = min_interval
        self._max_interval = max_interval
        self._clock = clock
        self._claimed = claimed

    async def run(self) -> None:
        delay = random.random() * min(MAX_FIRST_DELAY, self._max_interval)
        while True:
            await asyncio.sleep(delay.total_seconds())
            delay = self._min_interval + random.random() * (self._max_interval - self._min_interval)
            await self.unlock_once(next_after=delay)

    async def unlock_once(self, next_after: timedelta | None = None) -> int:
        """Release what is stale; how many jobs. A failure is announced, and left to the next."""
        where = {"pool_id": self._lease.pool_id}
        self._hooks.emit(ResetLockedStarted(**where))
        now = None if self._clock is None else self._clock.now()
        try:
            # Locks of this pool on jobs that it does not hold are stale like those of any other.
            held = list(self._claimed.values())
            queues = [each.queue_id for each in held if each.queue_id is not None]
            query = unlock_stale_jobs(
                now,
                except_pool_id=self._lease.pool_id,
                except_job_ids=[each.job.id for each in held],
                except_queue_ids=queues,
            )
            count = await self._db.run(query)
        except Exception as error:
            self._hooks.emit(ResetLockedFailed(**where, error=error, delay=next_after))
            return 0
        self._hooks.emit(ResetLockedSucceeded(**where, delay=next_after))
        return count
