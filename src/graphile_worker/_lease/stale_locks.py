"""StaleLocks: releases locks older than 4 hours, as Graphile Worker for Node does."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
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
    """Releases stale locks at random intervals, so that pools do not do it at the same time."""

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
        clean_up: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._db = database
        self._lease = lease
        self._hooks = hooks
        self._min_interval = min_interval
        self._max_interval = max_interval
        self._clock = clock
        self._claimed = claimed
        # What else is due as rarely.
        self._clean_up = clean_up

    async def run(self) -> None:
        delay = random.random() * min(MAX_FIRST_DELAY, self._max_interval)
        while True:
            await asyncio.sleep(delay.total_seconds())
            delay = self._min_interval + random.random() * (self._max_interval - self._min_interval)
            await self.unlock_once(next_after=delay)
            if self._clean_up is not None:
                await self._clean_up()

    async def unlock_once(self, next_after: timedelta | None = None) -> int:
        """Release stale locks and return the number of jobs. A failure is an event."""
        pool_id = self._lease.pool_id
        self._hooks.emit(ResetLockedStarted(pool_id=pool_id))
        now = None if self._clock is None else self._clock.now()
        try:
            # Locks of this pool on jobs that it no longer holds are stale, too.
            claimed = list(self._claimed.values())
            query = unlock_stale_jobs(
                now,
                except_pool_id=pool_id,
                except_job_ids=[each.job.id for each in claimed],
                except_queue_ids=[each.queue_id for each in claimed if each.queue_id is not None],
            )
            count = await self._db.run(query)
        except Exception as error:
            self._hooks.emit(ResetLockedFailed(pool_id=pool_id, error=error, delay=next_after))
            return 0
        self._hooks.emit(ResetLockedSucceeded(pool_id=pool_id, delay=next_after))
        return count
