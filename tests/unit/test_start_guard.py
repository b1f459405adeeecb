"""StartGuard: whether a job may start, and what is recorded before."""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from graphile_worker._lease.lease import Lease
from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._sql.queries.workers import RECOVERED_MESSAGE
from graphile_worker._sql.query import Query
from graphile_worker._worker.outcomes import Failed, Interrupted
from graphile_worker._worker.start_guard import RETRY_START_DELAY, StartGuard
from graphile_worker.events import PoolEvent, PoolFatalError
from graphile_worker.hooks import Hooks
from tests.support.fake_database import FakeDatabase, FakeDatabaseError
from tests.support.jobs import make_job

# With three crashes allowed: a job with this number is quarantined after the next.
LAST_CHANCE = 2


class CrashCounts(FakeDatabase):
    """Counts the crashes of each job. None if another pool holds the job now."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[int, int | None] = {}
        self.error: Exception | None = None
        # Called before the answer.
        self.meanwhile: Callable[[], None] = lambda: None

    def answer(self, query: Query[Any]) -> Any:
        assert query.statement == "record_start"
        self.meanwhile()
        if self.error is not None:
            raise self.error
        args: Any = query.args
        job_id, _, _, fewer_than = args
        count = self.counts.get(job_id, 0)
        is_rejected = count is None or (fewer_than is not None and count >= fewer_than)
        return query.read([] if is_rejected else [(count,)])


class Scene:
    """The start guard of a registered pool, and its events."""

    def __init__(self) -> None:
        self.database = CrashCounts()
        self.lease = Lease(timedelta(seconds=30), pool_id="p1")
        self.lease.renew(time.monotonic())
        self.events: list[PoolEvent] = []
        hooks = Hooks()
        hooks.on(PoolEvent)(self.events.append)
        database: Any = self.database
        self.paused: set[str] = set()
        self.start_guard = StartGuard(
            database, self.lease, hooks, max_crashes=LAST_CHANCE + 1, paused_tasks=self.paused
        )

    async def begin(self, claimed: ClaimedJob) -> Interrupted | Failed | None:
        return await self.start_guard.check_start(claimed)


def make_recovered(job_id: int = 7) -> ClaimedJob:
    """Return a job that a dead pool held."""
    last_error = f"{RECOVERED_MESSAGE}: it was held by pool p0"
    return make_claimed(id=job_id, last_error=last_error)


def make_claimed(**overrides: Any) -> ClaimedJob:
    return ClaimedJob(make_job(**{"attempts": 3, "locked_by": "p1", **overrides}), None)


@pytest.fixture
async def it() -> Scene:
    return Scene()


# Paused tasks


async def test_a_job_of_a_paused_task_is_released_without_a_recorded_start(it):
    it.paused.add("resize")

    for job in (make_claimed(), make_recovered()):
        assert it.start_guard.needs_check(job)
        assert await it.begin(job) == Interrupted(job)
    assert it.database.queries == []

    it.paused.clear()
    assert not it.start_guard.needs_check(make_claimed())


# Recorded starts


@pytest.mark.feature("F223")
async def test_that_a_job_starts_which_a_dead_pool_left_is_written_first(it):
    assert await it.begin(make_recovered()) is None

    [written] = it.database.queries
    assert written.args[:3] == (7, "p1", 3)


@pytest.mark.parametrize("last_error", [None, "boom", f"LookupError: {RECOVERED_MESSAGE}"])
async def test_nothing_is_written_before_other_jobs_start(it, last_error):
    assert await it.begin(make_claimed(last_error=last_error)) is None

    assert it.database.queries == []


async def test_without_recovery_no_start_is_written(it):
    it.lease.mark_unregistered()

    assert await it.begin(make_recovered()) is None

    assert it.database.queries == []


@pytest.mark.parametrize("error", [OSError("gone"), TimeoutError(), FakeDatabaseError("57P01")])
async def test_a_job_does_not_start_while_that_cannot_be_written(it, error):
    job = make_recovered()
    it.database.error = error

    assert await it.begin(job) == Interrupted(job, RETRY_START_DELAY)

    assert it.events == [PoolFatalError(pool_id="p1", error=error, action="startJob")]


async def test_a_job_starts_if_that_can_never_be_written(it):
    # Otherwise the job would be fetched and released forever.
    it.database.error = error = FakeDatabaseError("42501")

    assert await it.begin(make_recovered()) is None

    assert it.events == [PoolFatalError(pool_id="p1", error=error, action="startJob")]


# Lost leases


async def test_a_job_that_another_pool_holds_does_not_start(it):
    job = make_recovered()
    it.database.counts[7] = None

    assert await it.begin(job) == Interrupted(job, RETRY_START_DELAY)

    assert it.events == []


@pytest.mark.parametrize("job", [make_claimed(), make_recovered()])
async def test_a_job_that_was_fetched_before_a_lost_lease_does_not_start(it, job):
    it.lease.rotate_id("p2")

    assert await it.begin(job) == Interrupted(job)


@pytest.mark.parametrize("job", [make_claimed(), make_recovered()])
async def test_a_job_does_not_start_with_an_expired_lease(it, job):
    it.lease.renew(time.monotonic() - 26)

    assert await it.begin(job) == Interrupted(job)


async def test_a_job_does_not_start_with_a_lost_lease(it):
    job = make_claimed()
    it.lease.mark_lost()

    assert await it.begin(job) == Interrupted(job)


async def test_a_job_starts_before_the_expiry_though_no_more_are_claimed(it):
    it.lease.renew(time.monotonic() - 16)
    assert not it.lease.can_claim

    assert await it.begin(make_claimed()) is None


@pytest.mark.parametrize("happens", ["swept", "silent"])
async def test_what_happens_while_its_start_is_written_keeps_it_from_starting(it, happens):
    def happen() -> None:
        if happens == "swept":
            it.lease.rotate_id("p2")
        else:
            it.lease.renew(time.monotonic() - 26)

    it.database.meanwhile = happen
    job = make_recovered()

    assert await it.begin(job) == Interrupted(job)


# Jobs at their last chance


@pytest.fixture
def suspects(it) -> list[ClaimedJob]:
    """Jobs that the next crash would quarantine."""
    it.database.counts = dict.fromkeys(range(1, 4), LAST_CHANCE)
    return [make_recovered(each) for each in range(1, 4)]


async def test_of_jobs_that_would_be_quarantined_one_runs_at_a_time(it, suspects):
    first, second, third = suspects
    assert await it.begin(first) is None

    assert await it.begin(second) == Interrupted(second, RETRY_START_DELAY)
    assert await it.begin(third) == Interrupted(third, RETRY_START_DELAY)

    it.start_guard.forget(first)
    assert await it.begin(second) is None
    assert await it.begin(third) == Interrupted(third, RETRY_START_DELAY)


async def test_the_end_of_another_job_lets_none_of_them_run(it, suspects):
    first, second, _ = suspects
    await it.begin(first)

    it.start_guard.forget(make_claimed(id=100))
    it.start_guard.forget(second)

    assert await it.begin(second) == Interrupted(second, RETRY_START_DELAY)


async def test_other_jobs_run_at_the_same_time_as_one_at_its_last_chance(it, suspects):
    await it.begin(suspects[0])

    assert await it.begin(make_claimed(id=100)) is None
    assert await it.begin(make_recovered(100)) is None


async def test_no_suspect_runs_at_the_same_time_as_a_job_at_its_last_chance(it, suspects):
    suspect, other = suspects[0], make_recovered(100)
    it.database.counts[100] = LAST_CHANCE - 1
    await it.begin(suspect)
    assert await it.begin(other) == Interrupted(other, RETRY_START_DELAY)

    it.start_guard.forget(suspect)
    assert await it.begin(other) is None
    assert await it.begin(suspect) == Interrupted(suspect, RETRY_START_DELAY)

    it.start_guard.forget(other)
    assert await it.begin(suspect) is None


async def test_a_job_at_its_last_chance_runs_at_the_same_time_as_other_jobs(it, suspects):
    await it.begin(make_recovered(100))

    assert await it.begin(suspects[0]) is None


async def test_suspects_before_their_last_chance_run_at_the_same_time(it):
    it.database.counts = dict.fromkeys(range(10), LAST_CHANCE - 1)

    assert [await it.begin(make_recovered(each)) for each in range(10)] == [None] * 10


async def test_of_two_that_begin_together_one_runs(it, suspects):
    it.database.answering.clear()
    beginning = [asyncio.create_task(it.begin(each)) for each in suspects[:2]]
    await asyncio.sleep(0)

    it.database.answering.set()

    assert [await each for each in beginning] == [Interrupted(suspects[0], RETRY_START_DELAY), None]


@pytest.mark.parametrize("error", [OSError("gone"), FakeDatabaseError("42501")])
async def test_a_job_whose_start_was_not_written_blocks_no_other_job(it, suspects, error):
    it.database.error = error
    await it.begin(suspects[0])

    it.database.error = None
    assert await it.begin(suspects[1]) is None


async def test_a_job_that_another_pool_holds_blocks_no_other_job(it, suspects):
    it.database.counts[1] = None
    await it.begin(suspects[0])

    assert await it.begin(suspects[1]) is None
