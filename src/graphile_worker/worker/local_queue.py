"""LocalQueue: a JobSource that fetches many jobs at once and gives them out one by one."""

import asyncio
import math
import random
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from enum import StrEnum

from graphile_worker.db.retry import delay_after
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
from graphile_worker.sql.holding import HeldJob
from graphile_worker.worker.asks import announce, announce_failure, is_being_cancelled
from graphile_worker.worker.claims import Claims
from graphile_worker.worker.settle import Settler
from graphile_worker.worker.shelf import FIRST, Shelf, next_limit
from graphile_worker.worker.source import LONGEST_PAUSE, ONCE


class Mode(StrEnum):
    """What a local queue does; `_enter` is the only way from one to the next."""

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


STEPS = {
    Mode.STARTING: {Mode.POLLING, Mode.RELEASED},
    Mode.POLLING: {Mode.WAITING, Mode.RELEASED},
    Mode.WAITING: {Mode.POLLING, Mode.TTL_EXPIRED, Mode.RELEASED},
    Mode.TTL_EXPIRED: {Mode.POLLING, Mode.RELEASED},
    Mode.RELEASED: set[Mode](),
}


class LocalQueue:
    """Fetches `size` jobs whenever it has none left."""

    def __init__(
        self,
        claims: Claims,
        settler: Settler,
        hooks: Hooks,
        options: LocalQueueOptions,
        *,
        size: int,
        poll_interval: timedelta,
        once: bool = False,
    ) -> None:
        self.failing = False
        self.mode = Mode.STARTING
        self._claims = claims
        self._settler = settler
        self._hooks = hooks
        self._options = options
        # Once, nobody announces what tasks add.
        self._poll_seconds = (min(poll_interval, ONCE) if once else poll_interval).total_seconds()
        self._once = once
        self._size = size
        self._limit = min(size, FIRST)
        # Announced since the last fetch began.
        self._pulses = 0
        self._failures = 0
        self._changed = asyncio.Event()
        self._shelf = Shelf(claims, settler, hooks, self._changed.set)
        # For workers, each many times a millisecond.
        self.take = self._shelf.take
        self.next = self._shelf.next

    # For workers and the pool

    def pulse(self, count: int | None = None) -> None:
        self._pulses += 1 if count is None else count
        self._changed.set()

    def done(self, held: HeldJob) -> None:
        self._claims.let_go(held)
        if held.queue_id is not None:
            # The next job of its named queue can be fetched, and nobody announces that.
            self.pulse()

    def ran(self, seconds: float) -> None:
        """How long jobs take makes no difference to a fixed size."""

    def stop(self) -> None:
        self._shelf.close()
        self._changed.set()

    async def run(self) -> None:
        self._hooks.emit(LocalQueueCreated(pool_id=self._claims.pool_id))
        self._enter(Mode.POLLING)
        try:
            while not self._shelf.is_closed:
                await self.step_once()
        finally:
            self.stop()
            self._enter(Mode.RELEASED)
            await self._shelf.hand_back(self._shelf.take_all())

    async def step_once(self) -> None:
        """What its mode asks for, until that may change."""
        match self.mode:
            case Mode.POLLING:
                await self._poll()
            case Mode.WAITING:
                await self._serve()
            case _:
                await self._until(lambda: bool(self._shelf.asking))
                self._leave_to(Mode.POLLING)

    # Each mode

    async def _poll(self) -> None:
        limit, alone = self._limit, not self._claims.held
        taken = await self._fetch(limit)
        if taken is None:
            return
        self._shelf.put(taken)
        if self._shelf.jobs:
            self._leave_to(Mode.WAITING)
        elif self._once and alone and not taken and self._claims.again_at is None:
            self.stop()
        elif len(taken) < limit and not self._claims.was_cut and not _may_hide_others(taken):
            await self._rest(len(taken))

    async def _serve(self) -> None:
        await self._until(lambda: not self._shelf.jobs, within=self._options.ttl.total_seconds())
        if self._shelf.jobs and not self._shelf.is_closed:
            self._leave_to(Mode.TTL_EXPIRED)
            await self._shelf.hand_back(self._shelf.take_all())
        else:
            self._leave_to(Mode.POLLING)

    async def _rest(self, fetched: int) -> None:
        """There was little to do: wait until more is announced or it is time to look again."""
        announce(self._hooks, GetJobEmpty, self._claims.pool_id, self._shelf.asking)
        delay = self._options.refetch_delay
        poll_at = time.monotonic() + self._poll_seconds
        if self._claims.again_at is not None:
            poll_at = min(poll_at, self._claims.again_at)
        if delay is not None and fetched <= delay.threshold:
            await self._gather(fetched, delay)
        await self._until(lambda: self._pulses > 0, within=poll_at - time.monotonic())

    async def _gather(self, fetched: int, delay: RefetchDelayOptions) -> None:
        """Let jobs come together before the next fetch, unless many do at once."""
        seconds = (0.5 + random.random()) * delay.duration.total_seconds()
        enough = random.random() * delay.most(self._size) or math.inf
        self._announce_delay(fetched, seconds, enough)
        await self._until(lambda: self._pulses >= enough, within=seconds)
        self._announce_delay_over(enough)

    # Fetching

    async def _fetch(self, limit: int) -> list[HeldJob] | None:
        """What a fetch brings, None if it failed."""
        announce(self._hooks, GetJobStarted, self._claims.pool_id, self._shelf.open_asks())
        self._pulses = 0
        try:
            taken = await self._claims.take(limit)
        except (Exception, asyncio.CancelledError) as error:
            if is_being_cancelled():
                raise
            await self._failed(error)
            return None
        if self.failing:
            self.failing = False
            self._failures = 0
            self._hooks.emit(GetJobRecovered(pool_id=self._claims.pool_id))
        self._limit = next_limit(limit, self._size, self._options.max_bytes, taken)
        return taken

    async def _failed(self, error: BaseException) -> None:
        self.failing = True
        announce_failure(self._hooks, self._claims.pool_id, self._shelf.asking, error)
        if self._once:
            self._shelf.close(error)
            return
        # Who knows what was added meanwhile.
        self._pulses += 1
        pause = delay_after(self._failures, LONGEST_PAUSE)
        self._failures += 1
        await self._until(lambda: False, within=pause)

    # Waiting

    async def _until(self, is_so: Callable[[], bool], *, within: float | None = None) -> None:
        """Until something is so, the time is over, or this stops."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None if within is None else max(0.0, within)):
                while not self._shelf.is_closed and not is_so():
                    self._changed.clear()
                    await self._changed.wait()

    def _leave_to(self, mode: Mode) -> None:
        if not self._shelf.is_closed:
            self._enter(mode)

    def _enter(self, mode: Mode) -> None:
        assert mode in STEPS[self.mode], f"{self.mode} does not lead to {mode}"
        old, self.mode = self.mode, mode
        self._hooks.emit(
            LocalQueueModeChanged(pool_id=self._claims.pool_id, old_mode=old, new_mode=mode)
        )

    def _announce_delay(self, fetched: int, seconds: float, enough: float) -> None:
        assert self._options.refetch_delay is not None
        self._hooks.emit(
            LocalQueueRefetchDelayStarted(
                pool_id=self._claims.pool_id,
                job_count=fetched,
                threshold=self._options.refetch_delay.threshold,
                delay=timedelta(seconds=seconds),
                abort_threshold=enough,
            )
        )

    def _announce_delay_over(self, enough: float) -> None:
        pool_id = self._claims.pool_id
        if self._pulses >= enough:
            self._hooks.emit(
                LocalQueueRefetchDelayAborted(
                    pool_id=pool_id, count=self._pulses, abort_threshold=enough
                )
            )
        else:
            self._hooks.emit(LocalQueueRefetchDelayExpired(pool_id=pool_id))


def _may_hide_others(taken: list[HeldJob]) -> bool:
    """A fetch looks at so many jobs and takes one of each named queue: others may come after."""
    return any(held.queue_id is not None for held in taken)
