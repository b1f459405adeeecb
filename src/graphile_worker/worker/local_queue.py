"""LocalQueue: a JobSource that fetches many jobs at once and gives them out one by one."""

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from enum import StrEnum

from graphile_worker.db.retry import delay_after
from graphile_worker.events import (
    GetJobEmpty,
    GetJobErrored,
    GetJobStarted,
    LocalQueueCreated,
    LocalQueueFetched,
    LocalQueueModeChanged,
    LocalQueueRefetchDelayAborted,
    LocalQueueRefetchDelayExpired,
    LocalQueueRefetchDelayStarted,
    LocalQueueReturned,
)
from graphile_worker.hooks import Hooks
from graphile_worker.options import LocalQueueOptions, RefetchDelayOptions
from graphile_worker.sql.holding import HeldJob
from graphile_worker.worker.asks import Ask, announce, announce_failure, is_being_cancelled
from graphile_worker.worker.claims import Claims
from graphile_worker.worker.settle import Settler
from graphile_worker.worker.source import LONGEST_PAUSE, ONCE

# The first fetch tells how large payloads are; each may ask for so many times the one before.
FIRST = 100
GROWTH = 4


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
        self._jobs: deque[HeldJob] = deque()
        self._asking: deque[Ask] = deque()
        self._limit = min(options.size, FIRST)
        # Announced since the last fetch began.
        self._pulses = 0
        self._failures = 0
        self._error: BaseException | None = None
        self._stopped = False
        self._changed = asyncio.Event()

    # For workers and the pool

    async def next(self, worker_id: str) -> HeldJob | None:
        while True:
            if self._error is not None:
                raise self._error
            if self._stopped:
                return None
            if not self._jobs:
                return await self._ask(worker_id)
            held = self._jobs.popleft()
            if not self._jobs:
                self._changed.set()
            if await self._may_run(held, worker_id):
                return held

    def pulse(self, count: int | None = None) -> None:
        self._pulses += 1 if count is None else count
        self._changed.set()

    def done(self, held: HeldJob) -> None:
        self._claims.let_go(held)
        if held.queue_id is not None:
            # The next job of its named queue can be fetched, and nobody announces that.
            self.pulse()

    def stop(self) -> None:
        self._stopped = True
        self._changed.set()
        self._answer_all(None)

    async def run(self) -> None:
        self._hooks.emit(LocalQueueCreated(pool_id=self._claims.pool_id))
        self._enter(Mode.POLLING)
        try:
            while not self._stopped:
                await self.step_once()
        finally:
            self.stop()
            self._enter(Mode.RELEASED)
            await self._hand_back(self._take_all())

    async def step_once(self) -> None:
        """What its mode asks for, until that may change."""
        match self.mode:
            case Mode.POLLING:
                await self._poll()
            case Mode.WAITING:
                await self._serve()
            case _:
                await self._until(lambda: bool(self._asking))
                self._leave_to(Mode.POLLING)

    # Each mode

    async def _poll(self) -> None:
        limit, alone = self._limit, not self._claims.held
        taken = await self._fetch(limit)
        if taken is None:
            return
        self._give_out(taken)
        if self._jobs:
            self._leave_to(Mode.WAITING)
        elif self._once and alone and not taken:
            self.stop()
        elif len(taken) < limit and not _may_hide_others(taken):
            await self._rest(len(taken))

    async def _serve(self) -> None:
        await self._until(lambda: not self._jobs, within=self._options.ttl.total_seconds())
        if self._jobs and not self._stopped:
            self._leave_to(Mode.TTL_EXPIRED)
            await self._hand_back(self._take_all())
        else:
            self._leave_to(Mode.POLLING)

    async def _rest(self, fetched: int) -> None:
        """There was little to do: wait until more is announced or it is time to look again."""
        announce(self._hooks, GetJobEmpty, self._claims.pool_id, self._asking)
        delay = self._options.refetch_delay
        poll_at = time.monotonic() + self._poll_seconds
        if delay is not None and fetched <= delay.threshold:
            await self._gather(fetched, delay)
        await self._until(lambda: self._pulses > 0, within=poll_at - time.monotonic())

    async def _gather(self, fetched: int, delay: RefetchDelayOptions) -> None:
        """Let jobs come together before the next fetch, unless many do at once."""
        seconds = (0.5 + random.random()) * delay.duration.total_seconds()
        enough = random.random() * delay.most(self._options.size) or math.inf
        self._announce_delay(fetched, seconds, enough)
        await self._until(lambda: self._pulses >= enough, within=seconds)
        self._announce_delay_over(enough)

    # Fetching

    async def _fetch(self, limit: int) -> list[HeldJob] | None:
        """What a fetch brings, None if it failed."""
        self._asking = deque(ask for ask in self._asking if ask.is_open)
        announce(self._hooks, GetJobStarted, self._claims.pool_id, self._asking)
        self._pulses = 0
        try:
            taken = await self._claims.take(limit)
        except (Exception, asyncio.CancelledError) as error:
            if is_being_cancelled():
                raise
            await self._failed(error)
            return None
        self.failing = False
        self._failures = 0
        self._limit = next_limit(limit, self._options, taken)
        pool_id, jobs = self._claims.pool_id, tuple(held.job for held in taken)
        self._hooks.emit(LocalQueueFetched(pool_id=pool_id, jobs=jobs))
        return taken

    def _give_out(self, taken: list[HeldJob]) -> None:
        """To those who ask first; the rest is kept, unless there is nobody left to run it."""
        self._jobs.extend(taken)
        while self._jobs and self._asking and not self._stopped:
            ask = self._asking.popleft()
            if ask.is_open:
                ask.answer(self._jobs.popleft())

    async def _failed(self, error: BaseException) -> None:
        self.failing = True
        announce_failure(self._hooks, self._claims.pool_id, self._asking, error)
        if self._once:
            self._error = error
            for ask in self._asking:
                ask.refuse(error)
            self.stop()
            return
        # Who knows what was added meanwhile.
        self._pulses += 1
        pause = delay_after(self._failures, LONGEST_PAUSE)
        self._failures += 1
        await self._until(lambda: False, within=pause)

    # Letting go

    async def _may_run(self, held: HeldJob, worker_id: str) -> bool:
        """A job that waited here: others may have taken it, or it may have to be left alone now."""
        is_ours = held.pool_id == self._claims.pool_id
        is_wanted = is_ours and not await self._is_forbidden(held, worker_id)
        # Asking may have taken its time.
        if is_wanted and not self._stopped:
            return True
        await self._hand_back([held])
        return False

    async def _is_forbidden(self, held: HeldJob, worker_id: str) -> bool:
        if not self._claims.flags_may_change or not held.job.flags:
            return False
        try:
            forbidden = await self._claims.flags_to_skip()
        except (Exception, asyncio.CancelledError) as error:
            if is_being_cancelled():
                raise
            # Nobody knows whether it may run; the fetch that brings it again asks again.
            pool_id = self._claims.pool_id
            self._hooks.emit(GetJobErrored(pool_id=pool_id, worker_id=worker_id, error=error))
            return True
        return not held.job.flags.isdisjoint(forbidden or ())

    async def _hand_back(self, unstarted: list[HeldJob]) -> None:
        if not unstarted:
            return
        await self._settler.hand_back(unstarted)
        for held in unstarted:
            self._claims.let_go(held)
        pool_id, jobs = self._claims.pool_id, tuple(held.job for held in unstarted)
        self._hooks.emit(LocalQueueReturned(pool_id=pool_id, jobs=jobs))

    def _take_all(self) -> list[HeldJob]:
        jobs, self._jobs = list(self._jobs), deque()
        return jobs

    # Waiting

    async def _ask(self, worker_id: str) -> HeldJob | None:
        ask = Ask(worker_id)
        self._asking.append(ask)
        self._changed.set()
        return await ask.wait()

    def _answer_all(self, held: HeldJob | None) -> None:
        while self._asking:
            self._asking.popleft().answer(held)

    async def _until(self, is_so: Callable[[], bool], *, within: float | None = None) -> None:
        """Until something is so, the time is over, or this stops."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None if within is None else max(0.0, within)):
                while not self._stopped and not is_so():
                    self._changed.clear()
                    await self._changed.wait()

    def _leave_to(self, mode: Mode) -> None:
        if not self._stopped:
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


def next_limit(limit: int, options: LocalQueueOptions, taken: list[HeldJob]) -> int:
    """How many jobs to fetch next: no more than fit, by the size of those that came."""
    size = sum(len(held.job.payload_text) for held in taken)
    if not size:
        return limit
    fits = options.max_bytes * len(taken) // size
    return max(1, min(options.size, fits, limit * GROWTH))
