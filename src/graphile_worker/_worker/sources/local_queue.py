"""LocalQueue: a source that fetches many jobs at once and delivers them one by one."""

import math
import random
from datetime import timedelta
from enum import StrEnum

from graphile_worker._worker.claimer import Claimer
from graphile_worker._worker.completer import Completer
from graphile_worker._worker.sources.base import FetchOptions, JobSource
from graphile_worker._worker.sources.buffer import FIRST_FETCH_LIMIT, compute_fetch_limit
from graphile_worker.events import (
    GetJobEmpty,
    LocalQueueCreated,
    LocalQueueModeChanged,
    LocalQueueRefetchDelayAborted,
    LocalQueueRefetchDelayExpired,
    LocalQueueRefetchDelayStarted,
)
from graphile_worker.hooks import Hooks
from graphile_worker.options import LocalQueueOptions, RefetchDelayOptions


class LocalQueueMode(StrEnum):
    """The mode of a local queue. Only `_set_mode` changes it."""

    STARTING = "STARTING"
    """Has no jobs and waits for `run`. Changes to POLLING."""
    POLLING = "POLLING"
    """Has no jobs and fetches. Changes to WAITING when a fetch brings more jobs than needed."""
    WAITING = "WAITING"
    """Has jobs and waits for workers. Changes to POLLING when it is empty, to TTL_EXPIRED when it
    had them for too long."""
    TTL_EXPIRED = "TTL_EXPIRED"
    """Has no jobs, because it released all of them. Changes to POLLING when a worker waits."""
    RELEASED = "RELEASED"
    """Has no jobs and does not fetch any more."""


ALLOWED_TRANSITIONS = {
    LocalQueueMode.STARTING: {LocalQueueMode.POLLING, LocalQueueMode.RELEASED},
    LocalQueueMode.POLLING: {LocalQueueMode.WAITING, LocalQueueMode.RELEASED},
    LocalQueueMode.WAITING: {
        LocalQueueMode.POLLING,
        LocalQueueMode.TTL_EXPIRED,
        LocalQueueMode.RELEASED,
    },
    LocalQueueMode.TTL_EXPIRED: {LocalQueueMode.POLLING, LocalQueueMode.RELEASED},
    LocalQueueMode.RELEASED: set[LocalQueueMode](),
}


class LocalQueue(JobSource):
    """Fetches `size` jobs whenever it has none left."""

    def __init__(
        self,
        claimer: Claimer,
        completer: Completer,
        hooks: Hooks,
        options: FetchOptions,
        queue_options: LocalQueueOptions,
        *,
        size: int,
    ) -> None:
        super().__init__(claimer, completer, hooks, options)
        self.mode = LocalQueueMode.STARTING
        self._options = queue_options
        self._size = size
        self._fetch_limit = min(size, FIRST_FETCH_LIMIT)
        # Jobs that were announced since the start of the last fetch.
        self._announced_jobs = 0

    def wake(self, count: int | None = None) -> None:
        self._announced_jobs += 1 if count is None else count
        self._changed.set()

    async def run(self) -> None:
        self._hooks.emit(LocalQueueCreated(pool_id=self._claimer.pool_id))
        self._set_mode(LocalQueueMode.POLLING)
        await super().run()

    async def step_once(self) -> None:
        match self.mode:
            case LocalQueueMode.POLLING:
                await self._poll()
            case LocalQueueMode.WAITING:
                await self._wait_until_empty()
            case _:
                await self._wait_until(lambda: bool(self._buffer.waiters))
                self._set_mode_unless_closed(LocalQueueMode.POLLING)

    async def _release_buffered(self) -> None:
        self._set_mode(LocalQueueMode.RELEASED)
        await super()._release_buffered()

    async def _poll(self) -> None:
        limit, had_jobs = self._fetch_limit, bool(self._claimer.claimed_jobs)
        self._announced_jobs = 0
        claimed_jobs = await self._claim(limit)
        if claimed_jobs is None:
            return
        self._fetch_limit = compute_fetch_limit(
            limit, self._size, self._options.max_bytes, claimed_jobs
        )
        self._buffer.put(claimed_jobs)
        if self._buffer.jobs:
            self._set_mode_unless_closed(LocalQueueMode.WAITING)
        elif (
            self._once and not had_jobs and not claimed_jobs and self._claimer.next_fetch_at is None
        ):
            self.stop()
        elif (
            len(claimed_jobs) < limit
            and not self._claimer.was_truncated
            # A fetch claims one job of each named queue, so there may be more.
            and all(each.queue_id is None for each in claimed_jobs)
        ):
            await self._wait_before_refetch(len(claimed_jobs))

    async def _wait_until_empty(self) -> None:
        await self._wait_until(
            lambda: not self._buffer.jobs, timeout_seconds=self._options.ttl.total_seconds()
        )
        if self._buffer.jobs and not self._buffer.is_closed:
            self._set_mode(LocalQueueMode.TTL_EXPIRED)
            await self._buffer.release(self._buffer.take_all())
        else:
            self._set_mode_unless_closed(LocalQueueMode.POLLING)

    async def _wait_before_refetch(self, fetched_count: int) -> None:
        """Wait for a new job or the next poll, because the last fetch found few jobs."""
        self._emit_for_waiters(GetJobEmpty, self._buffer.waiters)
        delay = self._options.refetch_delay
        self._poll_at = self._clock() + self._poll_seconds
        self._poll_by(self._claimer.next_fetch_at)
        if delay is not None and fetched_count <= delay.threshold:
            await self._delay_refetch(fetched_count, delay)
        await self._wait_until(
            lambda: self._announced_jobs > 0, timeout_seconds=self._poll_at - self._clock()
        )

    async def _delay_refetch(self, fetched_count: int, delay: RefetchDelayOptions) -> None:
        """Wait for more jobs before the next fetch, unless many are announced."""
        seconds = (0.5 + random.random()) * delay.duration.total_seconds()
        abort_threshold = random.random() * delay.resolve_max_abort_threshold(self._size)
        abort_threshold = abort_threshold or math.inf
        pool_id = self._claimer.pool_id
        self._hooks.emit(
            LocalQueueRefetchDelayStarted(
                pool_id=pool_id,
                job_count=fetched_count,
                threshold=delay.threshold,
                delay=timedelta(seconds=seconds),
                abort_threshold=abort_threshold,
            )
        )
        await self._wait_until(
            lambda: self._announced_jobs >= abort_threshold, timeout_seconds=seconds
        )
        if self._announced_jobs < abort_threshold:
            self._hooks.emit(LocalQueueRefetchDelayExpired(pool_id=pool_id))
            return
        self._hooks.emit(
            LocalQueueRefetchDelayAborted(
                pool_id=pool_id, count=self._announced_jobs, abort_threshold=abort_threshold
            )
        )

    def _set_mode_unless_closed(self, mode: LocalQueueMode) -> None:
        if not self._buffer.is_closed:
            self._set_mode(mode)

    def _set_mode(self, mode: LocalQueueMode) -> None:
        assert mode in ALLOWED_TRANSITIONS[self.mode], f"{self.mode} does not lead to {mode}"
        old, self.mode = self.mode, mode
        self._hooks.emit(
            LocalQueueModeChanged(pool_id=self._claimer.pool_id, old_mode=old, new_mode=mode)
        )
