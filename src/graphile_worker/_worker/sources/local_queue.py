"""LocalQueue: a JobSource that fetches many jobs at once and gives them out one by one."""

import asyncio
import math
import random
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from enum import StrEnum

from graphile_worker._db.retry import compute_backoff
from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._worker.claimer import Claimer
from graphile_worker._worker.completer import Completer
from graphile_worker._worker.sources.buffer import FIRST_FETCH_LIMIT, JobBuffer, compute_fetch_limit
from graphile_worker._worker.sources.direct import MAX_BACKOFF_SECONDS, ONCE_POLL_INTERVAL
from graphile_worker._worker.sources.waiters import (
    emit_fetch_error,
    emit_for_waiters,
    is_being_cancelled,
)
from graphile_worker.events import (
    GetJobEmpty,
    GetJobRecovered,
    GetJobStarted,
    LocalQueueCreated,
    LocalQueueModeChanged,
    LocalQueueRefetchDelayAborted,
    LocalQueueRefetchDelayExpired,
    LocalQueueRefetchDelayStarted,
)
from graphile_worker.hooks import Hooks
from graphile_worker.options import LocalQueueOptions, RefetchDelayOptions


class LocalQueueMode(StrEnum):
    """What a local queue does; `_set_mode` is the only way from one to the next."""

    STARTING = "STARTING"
    """Holds nothing, waits for `run`. Leaves to POLLING."""
    POLLING = "POLLING"
    """Holds nothing, fetches. Leaves to WAITING when that brought more than workers asked for."""
    WAITING = "WAITING"
    """Holds jobs, waits for workers to ask. Leaves to POLLING when it is empty, to TTL_EXPIRED when
    it has held them for too long."""
    TTL_EXPIRED = "TTL_EXPIRED"
    """Holds nothing, as it has handed all back. Leaves to POLLING when a worker asks."""
    RELEASED = "RELEASED"
    """Holds nothing and never will."""


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


class LocalQueue:
    """Fetches `size` jobs whenever it has none left."""

    def __init__(
        self,
        claimer: Claimer,
        completer: Completer,
        hooks: Hooks,
        options: LocalQueueOptions,
        *,
        size: int,
        poll_interval: timedelta,
        once: bool = False,
    ) -> None:
        self.is_failing = False
        self.mode = LocalQueueMode.STARTING
        self._claimer = claimer
        self._completer = completer
        self._hooks = hooks
        self._options = options
        # Once, nobody announces what tasks add.
        self._poll_seconds = (
            min(poll_interval, ONCE_POLL_INTERVAL) if once else poll_interval
        ).total_seconds()
        self._once = once
        self._size = size
        self._fetch_limit = min(size, FIRST_FETCH_LIMIT)
        # Announced since the last fetch began.
        self._announced_jobs = 0
        self._failures = 0
        self._changed = asyncio.Event()
        self._buffer = JobBuffer(claimer, completer, hooks, self._changed.set)
        # For workers, each many times a millisecond.
        self.take_buffered = self._buffer.take_buffered
        self.wait_for_job = self._buffer.wait_for_job

    # For workers and the pool

    def wake(self, count: int | None = None) -> None:
        self._announced_jobs += 1 if count is None else count
        self._changed.set()

    def forget(self, claimed: ClaimedJob) -> None:
        self._claimer.forget(claimed)
        if claimed.queue_id is not None:
            # The next job of its named queue can be fetched, and nobody announces that.
            self.wake()

    def record_duration(self, seconds: float) -> None:
        """How long jobs take makes no difference to a fixed size."""

    def stop(self) -> None:
        self._buffer.close()
        self._changed.set()

    async def run(self) -> None:
        self._hooks.emit(LocalQueueCreated(pool_id=self._claimer.pool_id))
        self._set_mode(LocalQueueMode.POLLING)
        try:
            while not self._buffer.is_closed:
                await self.step_once()
        finally:
            self.stop()
            self._set_mode(LocalQueueMode.RELEASED)
            await self._buffer.release(self._buffer.take_all())

    async def step_once(self) -> None:
        """What its mode asks for, until that may change."""
        match self.mode:
            case LocalQueueMode.POLLING:
                await self._poll()
            case LocalQueueMode.WAITING:
                await self._wait_until_empty()
            case _:
                await self._wait_until(lambda: bool(self._buffer.waiters))
                self._set_mode_unless_closed(LocalQueueMode.POLLING)

    # Each mode

    async def _poll(self) -> None:
        limit, alone = self._fetch_limit, not self._claimer.claimed_jobs
        taken = await self._fetch(limit)
        if taken is None:
            return
        self._buffer.put(taken)
        if self._buffer.jobs:
            self._set_mode_unless_closed(LocalQueueMode.WAITING)
        elif self._once and alone and not taken and self._claimer.next_fetch_at is None:
            self.stop()
        elif (
            len(taken) < limit
            and not self._claimer.was_truncated
            and not _has_named_queue_jobs(taken)
        ):
            await self._wait_before_refetch(len(taken))

    async def _wait_until_empty(self) -> None:
        await self._wait_until(
            lambda: not self._buffer.jobs, timeout_seconds=self._options.ttl.total_seconds()
        )
        if self._buffer.jobs and not self._buffer.is_closed:
            self._set_mode_unless_closed(LocalQueueMode.TTL_EXPIRED)
            await self._buffer.release(self._buffer.take_all())
        else:
            self._set_mode_unless_closed(LocalQueueMode.POLLING)

    async def _wait_before_refetch(self, fetched_count: int) -> None:
        """There was little to do: wait until more is announced or it is time to look again."""
        emit_for_waiters(self._hooks, GetJobEmpty, self._claimer.pool_id, self._buffer.waiters)
        delay = self._options.refetch_delay
        poll_at = time.monotonic() + self._poll_seconds
        if self._claimer.next_fetch_at is not None:
            poll_at = min(poll_at, self._claimer.next_fetch_at)
        if delay is not None and fetched_count <= delay.threshold:
            await self._delay_refetch(fetched_count, delay)
        await self._wait_until(
            lambda: self._announced_jobs > 0, timeout_seconds=poll_at - time.monotonic()
        )

    async def _delay_refetch(self, fetched_count: int, delay: RefetchDelayOptions) -> None:
        """Let jobs come together before the next fetch, unless many do at once."""
        seconds = (0.5 + random.random()) * delay.duration.total_seconds()
        enough = random.random() * delay.resolve_max_abort_threshold(self._size) or math.inf
        self._emit_delay_started(fetched_count, seconds, enough)
        await self._wait_until(lambda: self._announced_jobs >= enough, timeout_seconds=seconds)
        self._emit_delay_ended(enough)

    # Fetching

    async def _fetch(self, limit: int) -> list[ClaimedJob] | None:
        """What a fetch brings, None if it failed."""
        emit_for_waiters(
            self._hooks, GetJobStarted, self._claimer.pool_id, self._buffer.prune_waiters()
        )
        self._announced_jobs = 0
        try:
            taken = await self._claimer.claim(limit)
        except (Exception, asyncio.CancelledError) as error:
            if is_being_cancelled():
                raise
            await self._handle_fetch_error(error)
            return None
        if self.is_failing:
            self.is_failing = False
            self._failures = 0
            self._hooks.emit(GetJobRecovered(pool_id=self._claimer.pool_id))
        self._fetch_limit = compute_fetch_limit(limit, self._size, self._options.max_bytes, taken)
        return taken

    async def _handle_fetch_error(self, error: BaseException) -> None:
        self.is_failing = True
        emit_fetch_error(self._hooks, self._claimer.pool_id, self._buffer.waiters, error)
        if self._once:
            self._buffer.close(error)
            return
        # Who knows what was added meanwhile.
        self._announced_jobs += 1
        pause = compute_backoff(self._failures, MAX_BACKOFF_SECONDS)
        self._failures += 1
        await self._wait_until(lambda: False, timeout_seconds=pause)

    # Waiting

    async def _wait_until(
        self, condition: Callable[[], bool], *, timeout_seconds: float | None = None
    ) -> None:
        """Until something is so, the time is over, or this stops."""
        with suppress(TimeoutError):
            async with asyncio.timeout(
                None if timeout_seconds is None else max(0.0, timeout_seconds)
            ):
                while not self._buffer.is_closed and not condition():
                    self._changed.clear()
                    await self._changed.wait()

    def _set_mode_unless_closed(self, mode: LocalQueueMode) -> None:
        if not self._buffer.is_closed:
            self._set_mode(mode)

    def _set_mode(self, mode: LocalQueueMode) -> None:
        assert mode in ALLOWED_TRANSITIONS[self.mode], f"{self.mode} does not lead to {mode}"
        old, self.mode = self.mode, mode
        self._hooks.emit(
            LocalQueueModeChanged(pool_id=self._claimer.pool_id, old_mode=old, new_mode=mode)
        )

    def _emit_delay_started(
        self, fetched_count: int, seconds: float, abort_threshold: float
    ) -> None:
        assert self._options.refetch_delay is not None
        self._hooks.emit(
            LocalQueueRefetchDelayStarted(
                pool_id=self._claimer.pool_id,
                job_count=fetched_count,
                threshold=self._options.refetch_delay.threshold,
                delay=timedelta(seconds=seconds),
                abort_threshold=abort_threshold,
            )
        )

    def _emit_delay_ended(self, abort_threshold: float) -> None:
        pool_id = self._claimer.pool_id
        if self._announced_jobs >= abort_threshold:
            self._hooks.emit(
                LocalQueueRefetchDelayAborted(
                    pool_id=pool_id, count=self._announced_jobs, abort_threshold=abort_threshold
                )
            )
        else:
            self._hooks.emit(LocalQueueRefetchDelayExpired(pool_id=pool_id))


def _has_named_queue_jobs(claimed_jobs: list[ClaimedJob]) -> bool:
    """A fetch looks at so many jobs and takes one of each named queue: others may come after."""
    return any(held.queue_id is not None for held in claimed_jobs)
