"""Prefetch: a JobSource that holds about as many jobs as end within a moment.

Hundreds of tiny ones, none when jobs are slow: so what is fetched waits no longer than that, and
nobody else is kept from running it.
"""

import asyncio
import time
from collections import deque
from contextlib import suppress
from datetime import timedelta

from graphile_worker.db.retry import delay_after, is_passing
from graphile_worker.events import GetJobEmpty, GetJobRecovered, GetJobStarted
from graphile_worker.hooks import Hooks
from graphile_worker.sql.holding import HeldJob
from graphile_worker.worker.asks import announce, announce_failure, is_being_cancelled
from graphile_worker.worker.claims import Claims
from graphile_worker.worker.settle import Settler
from graphile_worker.worker.shelf import FIRST, Shelf, next_limit
from graphile_worker.worker.source import LONGEST_PAUSE, ONCE

# Seconds of work that may wait here, and after which what still waits is handed back. Looked at so
# often.
MOMENT = 0.1
LATE = 0.11
LOOK_EVERY = 0.02

# A fetch that brings so many times fewer than it asked for has brought nearly all there is. Seconds
# until the next one, if nothing is announced before.
FEW = 8
SOON = 0.02

# Jobs of one fetch. At most three fetches wait: one is under way while fewer than two do.
LARGEST = 2000


class Pace:
    """How many jobs will end within a moment, from how they did."""

    # How far back it looks, how much the last job counts, and how finely time is told.
    SPAN = 0.2
    WEIGHT = 0.05
    ENOUGH = 1 / WEIGHT
    GRAIN = 0.002

    def __init__(self) -> None:
        self._ended = 0
        self._mean_seconds = 0.0
        self._marks: deque[tuple[float, int]] = deque()
        self._rate = 0.0

    def ran(self, seconds: float) -> None:
        """A job ran for so long."""
        self._ended += 1
        # Until there are enough of them, each counts as much as the others.
        weight = self.WEIGHT if self._ended > self.ENOUGH else 1 / self._ended
        self._mean_seconds += (seconds - self._mean_seconds) * weight

    def forget(self) -> None:
        """It was wrong: begin anew."""
        self._marks.clear()

    def within_a_moment(self) -> int:
        """So many will end, or none: where one job takes longer, who knows when the next ends?"""
        self._look(time.monotonic())
        return int(self._rate * MOMENT) if self._mean_seconds < MOMENT else 0

    def at_most(self, slots: int) -> int:
        """So many can end within a moment where so many run at once."""
        return int(slots * MOMENT / max(self._mean_seconds, 1e-6)) if self._ended else 0

    def _look(self, now: float) -> None:
        marks = self._marks
        while marks and marks[0][0] < now - self.SPAN:
            marks.popleft()
        if not marks:
            self._rate = 0.0
        elif now - marks[0][0] > self.GRAIN:
            since, ended = marks[0]
            self._rate = (self._ended - ended) / (now - since)
        if not marks or now - marks[-1][0] > self.GRAIN:
            marks.append((now, self._ended))


class Prefetch:
    """Fetches for the workers that ask, and while jobs are short enough before they do.

    There is no more to fetch after an empty answer, until a job is announced, a named queue became
    free, or it is time to look again.
    """

    def __init__(
        self,
        claims: Claims,
        settler: Settler,
        hooks: Hooks,
        *,
        max_bytes: int,
        poll_interval: timedelta,
        once: bool = False,
    ) -> None:
        self.failing = False
        self._claims = claims
        self._hooks = hooks
        self._changed = asyncio.Event()
        self._shelf = Shelf(claims, settler, hooks, self._changed.set)
        self._pace = Pace()
        self._max_bytes = max_bytes
        self._fits = FIRST
        self._once = once
        # Once, nobody announces what tasks add.
        self._poll_seconds = (min(poll_interval, ONCE) if once else poll_interval).total_seconds()
        self._poll_at = 0.0
        self._look_at = 0.0
        self._failures = 0
        # How much the last fetch brought, if that was all it asked for.
        self._last_full = 0
        # There may be jobs to fetch; and how often that was said.
        self._more = True
        self._pulses = 0
        # For workers, each many times a millisecond.
        self.take = self._shelf.take
        self.next = self._shelf.next
        self.ran = self._pace.ran

    # For the pool

    def pulse(self, count: int | None = None) -> None:
        self._pulses += 1
        self._more = True
        self._changed.set()

    def done(self, held: HeldJob) -> None:
        self._claims.let_go(held)
        # The next job of its named queue can be fetched, and nobody announces that; nor, once, what
        # the last one has added.
        if held.queue_id is not None or (self._once and not self._claims.held):
            self.pulse()

    def stop(self) -> None:
        self._shelf.close()
        self._changed.set()

    async def run(self) -> None:
        self._poll_at = time.monotonic() + self._poll_seconds
        try:
            while not self._shelf.is_closed:
                await self.step_once()
        finally:
            self.stop()
            await self._shelf.hand_back(self._shelf.take_all())

    async def step_once(self) -> None:
        """Fetch if that is wanted; otherwise wait until it may be."""
        await self._return_late()
        limit = self._wanted()
        if limit:
            await self._fetch(limit)
        else:
            await self._wait()

    def _wanted(self) -> int:
        """How many jobs to fetch now."""
        if not self._more or self._shelf.is_closed:
            return 0
        batch = min(self._pace.within_a_moment() // 3, self._fits)
        asking = len(self._shelf.open_asks())
        self._shelf.low = max(1, 2 * batch)
        if asking:
            # They had to wait although the last fetch was full: try twice that.
            more = min(2 * self._last_full, self._pace.at_most(asking))
            return max(1, min(max(asking, self._fits), max(asking + batch, more)))
        return batch if len(self._shelf.jobs) < self._shelf.low else 0

    async def _fetch(self, limit: int) -> None:
        pulses, alone = self._pulses, not self._claims.held
        announce(self._hooks, GetJobStarted, self._claims.pool_id, self._shelf.asking)
        taken = await self._take(limit)
        if taken is None:
            return
        self._last_full = limit if len(taken) == limit else 0
        if taken:
            # Three such fetches must fit.
            known = max(limit, self._fits)
            self._fits = next_limit(known, LARGEST, self._max_bytes // 3, taken)
            self._shelf.put(taken)
            if len(taken) * FEW <= limit:
                self._look_soon(pulses)
            if not self._shelf.jobs:
                # They begin before the next fetch is sent.
                await asyncio.sleep(0)
            return
        announce(self._hooks, GetJobEmpty, self._claims.pool_id, self._shelf.asking)
        self._more = self._pulses > pulses
        if (again_at := self._claims.again_at) is not None:
            self._poll_at = min(self._poll_at, again_at)
        elif self._once and alone:
            self.stop()

    def _look_soon(self, pulses: int) -> None:
        """There is hardly more than that, though it is not certain: no need to ask at once."""
        self._more = self._pulses > pulses
        self._poll_at = min(self._poll_at, time.monotonic() + SOON)

    async def _take(self, limit: int) -> list[HeldJob] | None:
        """What a fetch brings, None if it failed."""
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
        return taken

    async def _failed(self, error: BaseException) -> None:
        self.failing = True
        announce_failure(self._hooks, self._claims.pool_id, self._shelf.asking, error)
        # While jobs of ours run there is time for another try.
        if self._once and not (is_passing(error) and self._claims.held):
            self._shelf.close(error)
            return
        # Who knows what was added meanwhile.
        self._more = True
        pause = delay_after(self._failures, LONGEST_PAUSE)
        self._failures += 1
        ends_at = time.monotonic() + pause
        while not self._shelf.is_closed and (left := ends_at - time.monotonic()) > 0:
            await self._change(within=left)

    async def _return_late(self) -> None:
        """Hand back what waited for too long: others may be free to run it."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY
        late = self._shelf.take_older(now - LATE)
        if late:
            self._pace.forget()
            await self._shelf.hand_back(late)
            # They may still be there for whoever asks next.
            self._more = True

    async def _wait(self) -> None:
        """Until something changes or it is time to look."""
        now = time.monotonic()
        if self._shelf.jobs:
            await self._change(within=LOOK_EVERY)
        else:
            await self._change(within=self._poll_at - now)
        if time.monotonic() >= self._poll_at:
            self._poll_at = time.monotonic() + self._poll_seconds
            self.pulse()

    async def _change(self, *, within: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, within)):
                await self._changed.wait()
        self._changed.clear()
