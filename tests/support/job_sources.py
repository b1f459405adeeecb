"""Fakes around a job source without a database: a claimer, a completer and a scene."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._worker.sources.base import FetchOptions
from graphile_worker.events import Event
from graphile_worker.hooks import Hooks
from tests.support.clocks import ManualClock
from tests.support.jobs import make_job

# Only a source that hangs takes longer.
STOP_TIMEOUT_SECONDS = 20

WaitingTasks = list[asyncio.Task[ClaimedJob | None]]


class FakeClaimer:
    """A table of ready jobs: a fetch sees the jobs that were there when it started."""

    def __init__(self, clock: ManualClock, flags: Callable[[], Any] | None = None) -> None:
        self.pool_id = "p1"
        self.ready: list[ClaimedJob] = []
        self.claimed_jobs: dict[int, ClaimedJob] = {}
        self.errors: list[BaseException] = []
        self.requested_limits: list[int] = []
        self.next_fetch_at: float | None = None
        self.was_truncated = False
        # Whether a fetch says that it claimed all ready jobs, if it did.
        self.knows_all_ready = False
        self.answering = asyncio.Event()
        self.answering.set()
        self.has_dynamic_flags = flags is not None
        self._flags = flags
        self._clock = clock

    async def claim(self, limit: int) -> list[ClaimedJob]:
        self.requested_limits.append(limit)
        taken = self.ready[:limit]
        is_all_ready = self.knows_all_ready and len(taken) == len(self.ready)
        await self.answering.wait()
        if self.errors:
            raise self.errors.pop(0)
        del self.ready[: len(taken)]
        self.hold(taken)
        if taken:
            taken[0].is_all_ready = is_all_ready
        return taken

    def hold(self, taken: list[ClaimedJob]) -> None:
        for each in taken:
            each.claimed_at = self._clock.now
            self.claimed_jobs[each.job.id] = each

    async def get_forbidden_flags(self) -> list[str] | None:
        assert self._flags is not None
        answer: list[str] | None = await self._flags()
        return answer

    def forget(self, held: ClaimedJob) -> None:
        # Twice would be a bug.
        del self.claimed_jobs[held.job.id]


class FakeCompleter:
    """Records each release by the ids of its jobs, and the notifications after it."""

    def __init__(self) -> None:
        self.writes: list[list[int]] = []
        self.offered: list[int] = []
        self.blocked: set[int] = set()
        self.answering = asyncio.Event()
        self.answering.set()

    async def try_release(
        self, unstarted: list[ClaimedJob], *, attempt: int = 0
    ) -> list[ClaimedJob]:
        if free := [each.job.id for each in unstarted if each.job.id not in self.blocked]:
            self.writes.append(free)
            await self.answering.wait()
        return [each for each in unstarted if each.job.id not in free]

    async def wait_for_retry(self, attempt: int) -> None:
        await asyncio.sleep(0)

    async def notify_jobs_available(self, count: int) -> None:
        self.offered.append(count)


class SourceScene:
    """A job source that a subclass makes, with its fakes and its events."""

    source: Any

    def __init__(
        self, clock: ManualClock | None = None, flags: Callable[[], Any] | None = None
    ) -> None:
        self.clock = clock or ManualClock()
        # Seconds until the next fetch after one that failed, and how many failed before each.
        self.backoff_seconds = 0.0
        self.failures: list[int] = []
        self.claimer: Any = FakeClaimer(self.clock, flags)
        self.completer: Any = FakeCompleter()
        self.hooks = Hooks()
        self.events: list[Any] = []
        self.hooks.on(Event)(self.events.append)

    def build_options(self, **options: Any) -> FetchOptions:
        return FetchOptions(backoff=self._back_off, **options)

    def _back_off(self, failures: int) -> float:
        self.failures.append(failures)
        return self.backoff_seconds

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
        await run_until_idle()
        yield
        self.claimer.answering.set()
        self.completer.answering.set()
        await self.stop()

    def ready(self, *job_ids: int, queue: int | None = None, **more: Any) -> None:
        jobs = [make_job(**{"id": each, "locked_by": "p1", **more}) for each in job_ids]
        self.claimer.ready.extend(ClaimedJob(job, queue) for job in jobs)

    async def wait_for_jobs(self, *workers: str) -> WaitingTasks:
        """Let workers wait for jobs, and return their tasks."""
        asks = [asyncio.create_task(self.source.wait_for_job(each)) for each in workers]
        await run_until_idle()
        return asks

    async def wake(self, count: int | None = None) -> None:
        self.source.wake(count)
        await run_until_idle()

    async def finish_fetch(self) -> None:
        """Let the database answer the fetch that is in progress."""
        self.claimer.answering.set()
        await run_until_idle()

    def events_of(self, *kinds: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kinds)]


async def run_until_idle() -> None:
    """Run the event loop until no callback is left; nothing here takes time."""
    for _ in range(200):
        await asyncio.sleep(0)


def get_results(asks: WaitingTasks) -> list[int | str | None]:
    """Return the job that each worker got; None if it was dismissed."""
    return [_get_result(each) for each in asks]


def _get_result(ask: asyncio.Task[ClaimedJob | None]) -> int | str | None:
    if not ask.done():
        return "waits"
    if ask.cancelled():
        return "cancelled"
    held = ask.result()
    return None if held is None else held.job.id


def make_flags_function(*each: Any) -> Callable[[], Any]:
    """Return a function for flags with these answers; the last one repeats, errors are raised."""
    left = list(each)

    async def answer() -> Any:
        now = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(now, BaseException):
            raise now
        return now

    return answer


def poll_again_soon(claims: FakeClaimer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each fetch set the next one to 20 ms later."""
    take = claims.claim

    async def take_and_say_when(limit: int) -> list[ClaimedJob]:
        claims.next_fetch_at = time.monotonic() + 0.02
        return await take(limit)

    monkeypatch.setattr(claims, "claim", take_and_say_when)
