"""LimitedJobs: which group of tasks claims a job for a worker, and when permits are given back."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from graphile_worker._lease import lease as lease_module
from graphile_worker._lease.lease import Lease
from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._sql.queries.limits import RentedSlot, TakenTokens
from graphile_worker._sql.query import Query
from graphile_worker._worker import limited_jobs as limited_jobs_module
from graphile_worker._worker import permits as permits_module
from graphile_worker._worker.limited_jobs import LimitedJobs
from graphile_worker.limits import ConcurrencyLimit, Limit, RateLimit
from tests.support.clocks import ManualClock
from tests.support.fake_database import FakeDatabase, FakeDatabaseError
from tests.support.jobs import make_job

SLOTS = ConcurrencyLimit(5, name="slots")
MORE_SLOTS = ConcurrencyLimit(5, name="more")
TOKENS = RateLimit(2, per=timedelta(seconds=1), burst=100, name="tokens")


class LimitTables(FakeDatabase):
    """Free slots and tokens, of which pools get all that they ask for."""

    def __init__(self) -> None:
        super().__init__()
        self.rental = 0
        self.taken = 0
        self.restored = 0
        self.rented: set[RentedSlot] = set()
        self.limits: list[Any] = []
        self.errors: dict[str, Exception] = {}

    def answer(self, query: Query[Any]) -> Any:
        if query.statement in self.errors:
            return self.errors[str(query.statement)]
        args: Any = query.args
        match query.statement:
            case "rent_slots":
                return [self._rent(*args[:2]) for _ in range(args[2])]
            case "take_tokens":
                self.taken += args[1]
                return TakenTokens(args[1], str(self.taken), 0.5)
            case "restore_tokens":
                self.restored += args[1]
            case "get_rented_slots":
                return set(self.rented)
            case "watch_limits":
                return self.limits
        return None

    def _rent(self, name: str, pool_id: str) -> RentedSlot:
        self.rental += 1
        slot = RentedSlot(name, self.rental, self.rental, pool_id)
        self.rented.add(slot)
        return slot


class FakeLimitedClaimer:
    """A backlog of each task that is ready."""

    def __init__(self, clock: ManualClock) -> None:
        self.ready: set[str] = set()
        self.claims: list[str] = []
        self.claimed_jobs: dict[int, ClaimedJob] = {}
        self.searches = 0
        self.paused_tasks: Sequence[str] = ()
        self.has_dynamic_flags = False
        self.error: Exception | None = None
        self._clock = clock

    def build_fetcher(self) -> Any:
        return SimpleNamespace(next_fetch_at=None)

    async def find_ready_tasks(self) -> set[str]:
        self.searches += 1
        return set(self.ready)

    async def claim_limited(
        self, fetcher: Any, tasks: frozenset[str], limit: int
    ) -> list[ClaimedJob]:
        if self.error is not None:
            raise self.error
        claimed_jobs = []
        for task in sorted(tasks & self.ready):
            for _ in range(limit):
                self.claims.append(task)
                job = make_job(id=len(self.claims), task_identifier=task, locked_by="p1")
                claimed_jobs.append(ClaimedJob(job, None, claimed_at=self._clock.now))
        return claimed_jobs


class FakeSource:
    """Workers that wait for a job of any kind, and the jobs that they get."""

    def __init__(self) -> None:
        self.waiting_count = 0
        self.delivered: list[ClaimedJob] = []
        self.released: list[ClaimedJob] = []
        self.recoveries = 0

    def deliver(self, claimed: ClaimedJob) -> None:
        self.waiting_count -= 1
        self.delivered.append(claimed)

    async def release(self, claimed: ClaimedJob) -> None:
        self.released.append(claimed)

    def report_limited_error(self, error: Exception) -> bool:
        return True

    def report_limited_recovery(self) -> None:
        self.recoveries += 1


class Scene:
    """The limited jobs of a registered pool, whose tasks all have many ready jobs."""

    def __init__(self, clock: ManualClock, limits: Mapping[str, Sequence[Limit]]) -> None:
        self.clock = clock
        self.database = LimitTables()
        self.source = FakeSource()
        self.claimer = FakeLimitedClaimer(clock)
        self.claimer.ready = set(limits)
        lease = Lease(timedelta(days=1), pool_id="p1")
        lease.renew(clock.now)
        self.warnings: list[str] = []
        logger: Any = SimpleNamespace(
            warning=lambda text, *args: self.warnings.append(text % args),
            info=lambda *args: None,
            debug=lambda *args: None,
        )
        claimer: Any = self.claimer
        source: Any = self.source
        self.jobs = LimitedJobs(
            claimer,
            source,
            self.database,
            lease,
            logger,
            limits,
            poll_interval=timedelta(days=1),
        )

    async def ask(self) -> ClaimedJob | None:
        """Ask for a job as a worker without one does."""
        asking = asyncio.create_task(self.jobs.ask())
        await asyncio.sleep(0)
        await self.jobs.step_once()
        self.jobs._answer_asking()
        return await asking

    async def run_for(self, seconds: float) -> ClaimedJob | None:
        """Start a job for a worker that asks, and end it after this time."""
        claimed = await self.ask()
        await self.pass_time(seconds)
        if claimed is not None:
            self.jobs.end(claimed)
        return claimed

    async def run_workers(self, count: int, jobs: int) -> list[str]:
        """Run jobs of 10 ms for each worker, one of which ends at a time. Return their tasks."""
        tasks: list[str] = []
        self.source.waiting_count = count
        await self.jobs.step_once()
        for _ in range(jobs):
            await self.pass_time(0.01 / count)
            ended = self.source.delivered.pop(0)
            tasks.append(ended.job.task_identifier)
            self.jobs.end(ended)
            if (claimed := self.jobs.take()) is not None:
                self.source.delivered.append(claimed)
                self.jobs.request()
            else:
                self.source.waiting_count += 1
        return tasks

    async def pass_time(self, seconds: float) -> None:
        for _ in range(max(1, round(seconds / 0.01))):
            self.clock.now += min(seconds, 0.01)
            await self.jobs.step_once()


@pytest.fixture
def clock(monkeypatch) -> ManualClock:
    return ManualClock.patch(monkeypatch, lease_module, limited_jobs_module, permits_module)


def get_task(claimed: ClaimedJob | None) -> str | None:
    return None if claimed is None else claimed.job.task_identifier


async def test_one_asking_worker_makes_one_group_claim_a_job(clock):
    it = Scene(clock, {"a": [SLOTS], "b": [TOKENS], "c": [MORE_SLOTS]})

    assert await it.ask() is not None

    assert len(it.claimer.claims) == 1


async def test_one_request_makes_one_group_claim_a_job(clock):
    it = Scene(clock, {"a": [SLOTS], "b": [TOKENS], "c": [MORE_SLOTS]})
    it.jobs.request()

    await it.jobs.step_once()

    assert len(it.claimer.claims) == 1


async def test_each_waiting_worker_gets_a_job_of_another_group_or_the_same(clock):
    it = Scene(clock, {"a": [SLOTS], "b": [TOKENS]})
    it.source.waiting_count = 3

    await it.jobs.step_once()

    assert len(it.source.delivered) == len(it.claimer.claims) == 3


async def test_a_rate_limited_task_starts_beside_long_jobs_of_another_limit(clock):
    it = Scene(clock, {"a": [SLOTS], "b": [TOKENS]})

    tasks = [get_task(await it.run_for(0.3)) for _ in range(8)]

    assert tasks == ["a", "b"] * 4
    assert (it.database.taken, it.source.released) == (4, [])


async def test_the_tokens_of_a_released_job_are_restored_before_its_release(clock):
    it = Scene(clock, {"b": [TOKENS]})
    it.jobs.request()
    await it.jobs.step_once()
    assert it.database.taken == 1
    restored_at_release: list[int] = []

    async def release(claimed: ClaimedJob) -> None:
        restored_at_release.append(it.database.restored)

    it.source.release = release  # type: ignore[method-assign]
    await it.pass_time(0.2)

    assert restored_at_release == [1]


async def test_a_job_is_released_although_its_tokens_cannot_be_restored(clock):
    it = Scene(clock, {"b": [TOKENS]})
    it.jobs.request()
    await it.jobs.step_once()
    it.database.errors["restore_tokens"] = FakeDatabaseError("57014")

    with pytest.raises(FakeDatabaseError):
        await it.pass_time(0.2)

    assert len(it.source.released) == 1


async def test_the_group_whose_last_start_is_the_longest_ago_starts_the_next_job(clock):
    it = Scene(clock, {"a": [TOKENS], "b": [SLOTS]})
    it.claimer.ready = {"a"}
    assert get_task(await it.ask()) == "a"
    it.jobs.request()
    await it.jobs.step_once()
    it.claimer.ready = {"a", "b"}
    clock.now += 0.03
    it.jobs.wake()
    it.jobs.request()
    await it.jobs.step_once()

    started = [get_task(it.jobs.take()) for _ in range(2)]

    assert started == ["b", "a"]


async def test_short_jobs_of_one_limit_do_not_keep_those_of_another_from_starting(clock):
    it = Scene(clock, {"a": [SLOTS], "b": [MORE_SLOTS]})

    tasks = await it.run_workers(4, 1000)

    assert 0.2 < tasks.count("a") / len(tasks) < 0.8
