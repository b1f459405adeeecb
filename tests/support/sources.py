"""What is around a source of jobs that has no database: what it takes from, and gives back to."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from graphile_worker.events import Event
from graphile_worker.hooks import Hooks
from graphile_worker.sql.holding import HeldJob
from tests.support.clocks import ManualClock
from tests.support.jobs import make_job

# Only a source that hangs takes longer.
STOP_TIMEOUT_SECONDS = 20

Asks = list[asyncio.Task[HeldJob | None]]


class FakeClaims:
    """A table of ready jobs: a fetch sees what was there when it began."""

    def __init__(self, clock: ManualClock, flags: Callable[[], Any] | None = None) -> None:
        self.pool_id = "p1"
        self.ready: list[HeldJob] = []
        self.held: dict[int, HeldJob] = {}
        self.errors: list[BaseException] = []
        self.asked: list[int] = []
        self.again_at: float | None = None
        self.was_cut = False
        self.answering = asyncio.Event()
        self.answering.set()
        self.flags_may_change = flags is not None
        self._flags = flags
        self._clock = clock

    async def take(self, limit: int) -> list[HeldJob]:
        self.asked.append(limit)
        taken = self.ready[:limit]
        await self.answering.wait()
        if self.errors:
            raise self.errors.pop(0)
        del self.ready[: len(taken)]
        self.hold(taken)
        return taken

    def hold(self, taken: list[HeldJob]) -> None:
        for each in taken:
            each.taken_at = self._clock.now
            self.held[each.job.id] = each

    async def flags_to_skip(self) -> list[str] | None:
        assert self._flags is not None
        answer: list[str] | None = await self._flags()
        return answer

    def let_go(self, held: HeldJob) -> None:
        # Twice would be a bug.
        del self.held[held.job.id]


class FakeSettler:
    """Each write, by the ids of its jobs, and how many were offered to others after it."""

    def __init__(self) -> None:
        self.writes: list[list[int]] = []
        self.offered: list[int] = []
        self.answering = asyncio.Event()
        self.answering.set()

    async def hand_back(self, unstarted: list[HeldJob]) -> None:
        self.writes.append([held.job.id for held in unstarted])
        await self.answering.wait()

    async def offer(self, count: int) -> None:
        self.offered.append(count)


class SourceScene:
    """A source of jobs that a subclass makes, what it works with, and the events that it sends."""

    source: Any

    def __init__(
        self, clock: ManualClock | None = None, flags: Callable[[], Any] | None = None
    ) -> None:
        self.claims: Any = FakeClaims(clock or ManualClock(), flags)
        self.settler: Any = FakeSettler()
        self.hooks = Hooks()
        self.events: list[Any] = []
        self.hooks.on(Event)(self.events.append)

    def run(self) -> None:
        self.running = asyncio.create_task(self.source.run())

    async def stop(self) -> None:
        self.source.stop()
        await asyncio.wait([self.running], timeout=STOP_TIMEOUT_SECONDS)
        assert self.running.done()

    @asynccontextmanager
    async def run_with(self, *ready: int) -> AsyncIterator[None]:
        """Let the source run, with these jobs to fetch; stop it at the end."""
        self.ready(*ready)
        self.run()
        await settled()
        yield
        self.claims.answering.set()
        self.settler.answering.set()
        await self.stop()

    def ready(self, *job_ids: int, queue: int | None = None, **more: Any) -> None:
        jobs = [make_job(**{"id": each, "locked_by": "p1", **more}) for each in job_ids]
        self.claims.ready.extend(HeldJob(job, queue) for job in jobs)

    async def ask(self, *workers: str) -> Asks:
        """Let workers ask, and see what comes of it."""
        asks = [asyncio.create_task(self.source.next(each)) for each in workers]
        await settled()
        return asks

    async def pulse(self, count: int | None = None) -> None:
        self.source.pulse(count)
        await settled()

    async def answer(self) -> None:
        """Let the database answer the fetch that is under way."""
        self.claims.answering.set()
        await settled()

    def heard(self, *kinds: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kinds)]


async def settled() -> None:
    """Until nothing more happens by itself, for nothing here takes time."""
    for _ in range(200):
        await asyncio.sleep(0)


def got(asks: Asks) -> list[int | str | None]:
    """Which job each one got; None if it was sent away."""
    return [_got(each) for each in asks]


def _got(ask: asyncio.Task[HeldJob | None]) -> int | str | None:
    if not ask.done():
        return "waits"
    if ask.cancelled():
        return "cancelled"
    held = ask.result()
    return None if held is None else held.job.id


def answers(*each: Any) -> Callable[[], Any]:
    """A function for flags that gives these answers, the last one for ever; an error is raised."""
    left = list(each)

    async def answer() -> Any:
        now = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(now, BaseException):
            raise now
        return now

    return answer


def look_again_soon(claims: FakeClaims, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fetch says that the next one is due after 20 ms."""
    take = claims.take

    async def take_and_say_when(limit: int) -> list[HeldJob]:
        claims.again_at = time.monotonic() + 0.02
        return await take(limit)

    monkeypatch.setattr(claims, "take", take_and_say_when)
