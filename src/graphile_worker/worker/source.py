"""Where a worker's next job comes from."""

import asyncio
import time
from collections import deque
from contextlib import suppress
from datetime import timedelta
from typing import Protocol

from graphile_worker.db.retry import delay_after
from graphile_worker.events import GetJobEmpty, GetJobRecovered, GetJobStarted
from graphile_worker.hooks import Hooks
from graphile_worker.sql.holding import HeldJob
from graphile_worker.worker.asks import Ask, announce, announce_failure, is_being_cancelled
from graphile_worker.worker.claims import Claims
from graphile_worker.worker.fetch import busy_queues
from graphile_worker.worker.outcomes import Interrupted
from graphile_worker.worker.settle import Settler

# The first job must run soon after a database is back.
LONGEST_PAUSE = 0.6

# How often idle workers look while others still work and nobody listens.
ONCE = timedelta(milliseconds=100)


class JobSource(Protocol):
    """Gives jobs that this pool has locked, one at a time."""

    failing: bool
    """Did the last attempt to get jobs fail?"""

    async def run(self) -> None:
        """Get jobs for those who ask, until stopped."""
        ...

    def take(self) -> HeldJob | None:
        """A job to run, if one is here; None: ask `next`."""
        ...

    async def next(self, worker_id: str) -> HeldJob | None:
        """A job to run; None when there will be no more."""
        ...

    def ran(self, seconds: float) -> None:
        """A job took so long."""
        ...

    def pulse(self, count: int | None = None) -> None:
        """So many jobs may be there to take; None: who knows."""
        ...

    def done(self, held: HeldJob) -> None:
        """That job is settled, and its named queue free."""
        ...

    def stop(self) -> None:
        """Take no more; whoever waits is sent away."""
        ...


class DirectSource:
    """Fetches for the workers that ask, one fetch in flight, never more jobs than workers.

    A worker that asks and gets nothing falls idle. An idle one asks again when a job is announced,
    when a named queue became free that nobody took from, or when it is polled for. With `once`
    there is no waiting: all are sent away when nothing is ready and nothing runs.
    """

    def __init__(
        self,
        claims: Claims,
        settler: Settler,
        hooks: Hooks,
        *,
        poll_interval: timedelta,
        once: bool = False,
    ) -> None:
        self.failing = False
        self._claims = claims
        self._settler = settler
        self._hooks = hooks
        # Once, nobody announces what tasks add.
        interval = min(poll_interval, ONCE) if once else poll_interval
        self._poll_seconds = interval.total_seconds()
        self._once = once
        self._asking: deque[Ask] = deque()
        self._idle: deque[Ask] = deque()
        self._freed: set[int] = set()
        self._failures = 0
        self._error: BaseException | None = None
        self._stopping = asyncio.Event()
        # A job may be announced while a fetch that cannot see it is under way.
        self._missed = 0
        # There may be more than was announced: whoever gets a job sends the next one.
        self._eager = False
        self._wake = asyncio.Event()
        self._poll_at = 0.0

    def take(self) -> HeldJob | None:
        """There is never a job here that nobody asked for."""

    def ran(self, seconds: float) -> None:
        """How long jobs take makes no difference."""

    async def next(self, worker_id: str) -> HeldJob | None:
        if self._error is not None:
            raise self._error
        if self._stopped:
            return None
        ask = Ask(worker_id)
        self._asking.append(ask)
        self._wake.set()
        return await ask.wait()

    def pulse(self, count: int | None = None) -> None:
        if count is None:
            self._eager = True
            count = 1
        woken = self._send_idle(count)
        self._missed += count - woken

    def done(self, held: HeldJob) -> None:
        self._claims.let_go(held)
        if held.queue_id is not None:
            self._freed.add(held.queue_id)
            self._wake.set()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()
        for ask in self._idle:
            ask.answer(None)
        self._idle.clear()

    @property
    def _stopped(self) -> bool:
        return self._stopping.is_set()

    async def run(self) -> None:
        self._poll_at = time.monotonic() + self._poll_seconds
        try:
            while not self._stopped:
                await self._wait()
                await self._send_for_unasked()
                if self._asking and not self._stopped:
                    await self.fetch_once()
        finally:
            self.stop()
            for ask in self._asking:
                ask.answer(None)
            self._asking.clear()

    async def fetch_once(self) -> None:
        """One fetch for all that ask."""
        asking = [ask for ask in self._asking if ask.is_open]
        self._asking.clear()
        if not asking:
            return
        self._missed = 0
        # What ends while the fetch is under way may have come too late for it.
        freed, self._freed = self._freed, set()
        eager, self._eager = self._eager, False
        alone = not self._claims.held
        busy = busy_queues(self._claims.held) if eager else set()
        announce(self._hooks, GetJobStarted, self._claims.pool_id, asking)
        taken = await self._take(asking)
        if taken is None:
            return
        await self._hand_out(asking, taken)
        self._send_for_freed(freed, taken)
        # The next job of a queue that was ours is one that its worker would have taken.
        if eager and len(taken) == len(asking) and any(each.queue_id not in busy for each in taken):
            self._eager = True
            self._send_idle(2 * len(taken))
        if (again_at := self._claims.again_at) is not None:
            self._poll_at = min(self._poll_at, again_at)
        elif self._once and alone and not taken:
            self.stop()

    async def _take(self, asking: list[Ask]) -> list[HeldJob] | None:
        """What a fetch brings, None if it failed."""
        try:
            taken = await self._claims.take(len(asking))
        except (Exception, asyncio.CancelledError) as error:
            if is_being_cancelled():
                for ask in asking:
                    ask.answer(None)
                raise
            await self._failed(asking, error)
            return None
        if self.failing:
            self.failing = False
            self._failures = 0
            self._hooks.emit(GetJobRecovered(pool_id=self._claims.pool_id))
        return taken

    async def _hand_out(self, asking: list[Ask], taken: list[HeldJob]) -> None:
        waiting = deque(ask for ask in asking if ask.is_open)
        left = deque(taken)
        while left and waiting and not self._stopped:
            waiting.popleft().answer(left.popleft())
        try:
            if left:
                await self._hand_back(list(left))
        finally:
            # Whatever ends that: who asked must be answered, if only when all is over.
            self._rest(waiting, found=bool(taken))

    def _rest(self, unserved: deque[Ask], *, found: bool) -> None:
        """Those who got nothing ask again, at once or soon, if others got some; or fall idle."""
        if not unserved:
            return
        if found and self._claims.again_at is None:
            self._asking.extend(unserved)
            self._wake.set()
            return
        if not found:
            announce(self._hooks, GetJobEmpty, self._claims.pool_id, unserved)
        missed, self._missed = self._missed, 0
        self._idle.extend(unserved)
        self._send_idle(missed)

    async def _send_for_unasked(self) -> None:
        """Queues became free: if those who ran their jobs asked before that, others must."""
        if self._freed and not self._asking:
            # Or they are about to.
            await asyncio.sleep(0)
            if not self._asking:
                self._send_idle(len(self._freed))

    def _send_for_freed(self, freed: set[int], taken: list[HeldJob]) -> None:
        # Most often the worker that freed a queue takes its next job itself.
        if taken:
            self._send_idle(len(freed - {each.queue_id for each in taken}))

    def _send_idle(self, count: int) -> int:
        woken = 0
        while self._idle and woken < count:
            self._asking.append(self._idle.popleft())
            woken += 1
        if woken:
            self._wake.set()
        return woken

    async def _wait(self) -> None:
        """Until somebody asks or it is time to poll."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self._poll_at - time.monotonic())):
                await self._wake.wait()
        self._wake.clear()
        if time.monotonic() >= self._poll_at:
            self._poll_at = time.monotonic() + self._poll_seconds
            self.pulse()

    async def _failed(self, asking: list[Ask], error: BaseException) -> None:
        self.failing = True
        announce_failure(self._hooks, self._claims.pool_id, asking, error)
        if self._once:
            self._error = error
            for ask in asking:
                ask.refuse(error)
            self.stop()
            return
        self._asking.extendleft(reversed(asking))
        self._wake.set()
        # Who knows what was added meanwhile.
        self._eager = True
        pause = delay_after(self._failures, LONGEST_PAUSE)
        self._failures += 1
        await self._pause(pause)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _hand_back(self, unwanted: list[HeldJob]) -> None:
        for held in unwanted:
            await self._settler.settle(Interrupted(held))
            self._claims.let_go(held)
