"""Claimer: when a pool may claim jobs, which ones it holds, and orphaned claims."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from graphile_worker._lease import lease as lease_module
from graphile_worker._lease.lease import Lease
from graphile_worker._sql.queries.claim import (
    ClaimedJob,
    OrphanedClaims,
    ReadyCheck,
    find_releasable_queues,
)
from graphile_worker._sql.query import Query
from graphile_worker._worker import claimer as claimer_module
from graphile_worker._worker.claimer import (
    EMPTY_FETCH_DELAY_SECONDS,
    EMPTY_FETCHES_BEFORE_DELAY,
    QUICK_FETCH_SECONDS,
    Claimer,
    ClaimTimings,
)
from graphile_worker.errors import LeaseExpiredError
from tests.support.clocks import ManualClock
from tests.support.fake_database import FakeDatabase, FakeDatabaseError
from tests.support.jobs import make_job
from tests.support.recorder import wait_until

RELEASE = "release_orphaned_claims"
TIMINGS = ClaimTimings()


class JobTable(FakeDatabase):
    """A table with the ready jobs of a test, locked for the pool that fetches them."""

    def __init__(self) -> None:
        super().__init__()
        self.ready: list[tuple[int, int | None]] = []
        # The id of a job that a fetch claims before the others.
        self.first: int | None = None
        self.errors: list[BaseException] = []
        self.has_indexes = True
        # Called between a fetch and its answer.
        self.meanwhile: Callable[[], None] = lambda: None

    def answer(self, query: Query[Any]) -> Any:
        match query.statement:
            case "get_task_ids":
                return {1: "resize"}
            case "has_fetch_indexes":
                return self.has_indexes
            case "claim_first_job":
                first, self.first = self.first, None
                return [] if first is None else [ClaimedJob(make_job(id=first), None)]
            case "claim_plain_jobs" | "claim_soonest_jobs":
                return []
            case "check_ready_jobs":
                return ReadyCheck(may_be_ready=True, are_few=False)
            case "claim_jobs" | "claim_jobs_unindexed":
                return self._claim(str(query.args[0]))
            case "find_orphaned_claims":
                return OrphanedClaims({99}, set())
            case _:
                assert query.statement == RELEASE
                return {99}

    def _claim(self, pool_id: str) -> list[ClaimedJob]:
        self.meanwhile()
        if self.errors:
            raise self.errors.pop(0)
        fetched, self.ready = self.ready, []
        return [ClaimedJob(make_job(id=each, locked_by=pool_id), queue) for each, queue in fetched]

    @property
    def released_claims(self) -> list[tuple[object, ...]]:
        """Return the arguments of each release: pool id, excluded jobs and excluded queues."""
        argument_lists = [each.args for each in self.queries if each.statement == RELEASE]
        return [(args[0], *args[3:]) for args in argument_lists]


class Scene:
    """The claimer of a registered pool."""

    def __init__(self, clock: ManualClock) -> None:
        self.database = JobTable()
        self.lease = Lease(timedelta(seconds=30), pool_id="p1")
        self.lease.renew(clock.now)
        database: Any = self.database
        self.claimer = Claimer(database, self.lease, ["resize"])

    def ready(self, *job_ids: int, queue: int | None = None) -> None:
        self.database.ready += [(each, queue) for each in job_ids]

    async def claim_ids(self, limit: int = 10) -> list[int]:
        return [each.job.id for each in await self.claimer.claim(limit)]

    async def claim_one(self, job_id: int, queue: int | None = None) -> ClaimedJob:
        self.ready(job_id, queue=queue)
        [claimed] = await self.claimer.claim(1)
        return claimed


def has_unconfirmed_claims(claimer: Claimer) -> bool:
    """Return whether jobs may be locked for the pool that the claimer does not know of."""
    return bool(
        claimer._unconfirmed_claim or claimer._unconfirmed_until or claimer._orphaned_pool_ids
    )


@asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture
def clock(monkeypatch) -> ManualClock:
    return ManualClock.patch(monkeypatch, lease_module, claimer_module)


@pytest.fixture
def it(clock) -> Scene:
    return Scene(clock)


# Claiming


async def test_claimed_jobs_are_tracked(it):
    it.ready(1, 2)

    assert await it.claim_ids() == [1, 2]

    assert sorted(it.claimer.claimed_jobs) == [1, 2]
    assert {each.pool_id for each in it.claimer.claimed_jobs.values()} == {"p1"}


async def test_the_later_of_two_jobs_of_a_queue_frees_it_with_a_stopped_clock(it):
    earlier = await it.claim_one(1, queue=5)
    later = await it.claim_one(2, queue=5)

    assert find_releasable_queues([earlier], it.claimer.claimed_jobs) == []
    assert find_releasable_queues([later], it.claimer.claimed_jobs) == [5]


async def test_a_pool_without_heartbeats_claims_nothing(it, clock):
    it.ready(1)
    clock.now += 16.3

    with pytest.raises(LeaseExpiredError, match=r"no heartbeat for 16\.3 s"):
        await it.claim_ids()

    assert it.database.queries == []


async def test_a_pool_with_a_lost_lease_claims_nothing_until_it_has_a_new_id(it):
    it.ready(1)
    it.lease.mark_lost()
    with pytest.raises(LeaseExpiredError, match="another worker recovered the jobs"):
        await it.claim_ids()
    assert it.database.queries == []

    it.lease.rotate_id("p2")

    assert await it.claim_ids() == [1]
    assert it.claimer.claimed_jobs[1].pool_id == "p2"


async def test_a_pool_claims_jobs_again_after_a_heartbeat(it, clock):
    it.ready(1)
    clock.now += 1000
    with pytest.raises(LeaseExpiredError):
        await it.claim_ids()

    it.lease.renew(clock.now)

    assert await it.claim_ids() == [1]


async def test_after_many_empty_fetches_the_next_ones_are_delayed(it, clock, monkeypatch):
    pauses: list[float] = []

    async def record_pause(seconds: float) -> None:
        pauses.append(seconds)
        clock.now += seconds

    monkeypatch.setattr(claimer_module, "asyncio", SimpleNamespace(sleep=record_pause))
    for _ in range(EMPTY_FETCHES_BEFORE_DELAY):
        await it.claim_ids()
    assert pauses == []

    clock.now += EMPTY_FETCH_DELAY_SECONDS / 4
    await it.claim_ids()
    assert pauses == [pytest.approx(EMPTY_FETCH_DELAY_SECONDS * 3 / 4)]

    # A later fetch does not wait, and neither does one after a fetch that found a job.
    clock.now += EMPTY_FETCH_DELAY_SECONDS
    await it.claim_one(1)
    await it.claim_ids()
    assert len(pauses) == 1


async def test_after_a_timeout_fetches_are_smaller_until_they_are_quick(it, clock):
    def slowly() -> None:
        clock.now += QUICK_FETCH_SECONDS

    async def limit_of(wanted: int, *ready: int) -> object:
        it.ready(*ready)
        with suppress(TimeoutError):
            await it.claim_ids(wanted)
        return it.database.queries[-1].args[3]

    it.database.errors = [TimeoutError(), TimeoutError()]
    assert [await limit_of(20), await limit_of(20)] == [20, 10]
    # An empty answer does not show how fast the connection is.
    assert [await limit_of(20), await limit_of(20)] == [5, 5]
    assert [await limit_of(1, 1), await limit_of(20)] == [1, 10]
    it.database.errors = [TimeoutError()]
    assert await limit_of(20) == 10
    it.database.meanwhile = slowly
    assert [await limit_of(20, 2), await limit_of(20, 3)] == [5, 5]
    it.database.meanwhile = lambda: None
    assert [await limit_of(20, id) for id in (4, 5, 6, 7)] == [5, 10, 20, 20]


async def test_a_pool_that_is_not_registered_claims_jobs_without_heartbeats(it, clock):
    it.lease.mark_unregistered()
    it.ready(1)

    clock.now += 1_000_000

    assert await it.claim_ids() == [1]


async def test_a_pool_without_tasks_sends_no_query(it):
    database: Any = it.database
    claimer = Claimer(database, it.lease, [])

    assert await claimer.claim(1) == []

    assert it.database.queries == []


async def test_a_heartbeat_that_is_missed_while_a_fetch_is_prepared_is_noticed(it, clock):
    def get_flags() -> list[str]:
        clock.now += 16
        return ["slow"]

    database: Any = it.database
    claimer = Claimer(database, it.lease, ["resize"], forbidden_flags=get_flags)

    with pytest.raises(LeaseExpiredError):
        await claimer.claim(1)

    assert "claim_jobs" not in it.database.statements
    assert not has_unconfirmed_claims(claimer)


@pytest.mark.parametrize(
    ("has_indexes", "statement"), [(True, "claim_jobs"), (False, "claim_jobs_unindexed")]
)
async def test_a_schema_without_fetch_indexes_uses_another_statement(it, has_indexes, statement):
    it.database.has_indexes = has_indexes
    it.ready(1)

    assert await it.claim_ids() == [1]

    assert it.database.statements == [
        "get_task_ids",
        "has_fetch_indexes",
        "claim_first_job",
        "claim_plain_jobs",
        "check_ready_jobs",
        statement,
    ]


async def test_indexes_that_were_made_meanwhile_are_used(it, clock):
    it.database.has_indexes = False
    await it.claim_ids()
    it.database.has_indexes = True

    clock.now += TIMINGS.task_check_interval_seconds + 1
    await it.claim_ids()

    assert it.database.statements[-1] == "claim_jobs"


# Names of tasks


class NameTable(JobTable):
    """Keeps registered names. Another transaction is adding those that are `locked`."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.locked: set[str] = set()

    def answer(self, query: Query[Any]) -> Any:
        match query.statement:
            case "get_task_ids":
                return dict(enumerate(self.names))
            case "register_tasks":
                names: Any = query.args[0]
                if self.locked & set(names):
                    return FakeDatabaseError("55P03")
                self.names += names
                return None
            case _:
                return super().answer(query)


async def test_names_that_another_transaction_is_adding_are_entered_later(it, clock):
    table: Any = NameTable()
    table.locked = {"b"}
    claimer = Claimer(table, it.lease, ["a", "b", "c"])

    await claimer.claim(1)
    assert sorted(table.names) == ["a", "c"]
    assert table.statements[-1] == "claim_jobs"

    table.queries.clear()
    await claimer.claim(1)
    assert table.statements[0] == "get_task_ids"
    assert "register_tasks" not in table.statements

    table.locked = set()
    clock.now += TIMINGS.task_check_interval_seconds
    it.lease.renew(clock.now)
    await claimer.claim(1)
    assert sorted(table.names) == ["a", "b", "c"]


async def test_names_are_entered_in_the_time_that_there_is_for_it(it, clock):
    table: Any = NameTable()
    table.locked = {"b"}
    timings = ClaimTimings(register_tasks_timeout_seconds=-1.0)

    await Claimer(table, it.lease, ["a", "b", "c"], timings=timings).claim(1)

    assert table.statements.count("register_tasks") == 1
    assert table.statements[-1] == "claim_jobs"


async def test_in_a_callers_transaction_names_are_waited_for(it):
    table: Any = NameTable()
    table.locked = {"a"}
    claimer = Claimer(table, it.lease, ["a"], waits_for_register_lock=True)

    with pytest.raises(FakeDatabaseError):
        await claimer.claim(1)

    assert [each.args for each in table.queries if each.statement == "register_tasks"] == [
        (["a"], None)
    ]


# Rotated pool ids


async def test_jobs_fetched_under_an_id_that_was_recovered_meanwhile_are_not_returned(it):
    it.database.meanwhile = lambda: it.lease.rotate_id("p2")
    it.ready(1, 2)

    assert await it.claim_ids() == []

    assert it.claimer.claimed_jobs == {}


async def test_jobs_fetched_under_the_old_id_are_released_under_it(it):
    it.database.meanwhile = lambda: it.lease.rotate_id("p2")
    it.ready(1)
    await it.claim_ids()
    it.database.meanwhile = lambda: None
    await it.claimer.release_orphaned_claims()

    it.ready(2)
    assert await it.claim_ids() == [2]

    assert it.database.released_claims == [("p1", [], [])]
    assert it.claimer.claimed_jobs[2].pool_id == "p2"


async def test_jobs_that_run_under_the_old_id_are_not_released_with_the_others(it):
    await it.claim_one(1, queue=5)
    it.database.meanwhile = lambda: it.lease.rotate_id("p2")
    it.ready(2)
    await it.claim_ids()

    await it.claimer.release_orphaned_claims()

    assert it.database.released_claims == [("p1", [1], [5])]


async def test_a_pool_that_loses_its_lease_repeatedly_releases_under_each_id(it):
    for each in ("p2", "p3", "p4"):
        it.database.meanwhile = lambda each=each: it.lease.rotate_id(each)
        await it.claim_ids()

    await it.claimer.release_orphaned_claims()

    assert [args[0] for args in it.database.released_claims[-3:]] == ["p1", "p2", "p3"]


async def test_a_recovered_id_stays_unconfirmed_while_it_holds_jobs(it):
    fetched = await it.claim_one(1)
    it.database.meanwhile = lambda: it.lease.rotate_id("p2")
    await it.claim_ids()

    # The fetch may have locked that job again, under the id that has no lease.
    await it.claimer.release_orphaned_claims(at_once=True)
    assert has_unconfirmed_claims(it.claimer)

    it.claimer.forget(fetched)
    await it.claimer.release_orphaned_claims(at_once=True)
    assert not has_unconfirmed_claims(it.claimer)
    assert it.database.released_claims[-2:] == [("p1", [fetched.job.id], []), ("p1", [], [])]


async def test_there_are_more_jobs_while_those_of_a_recovered_id_are_locked(it):
    it.database.meanwhile = lambda: it.lease.rotate_id("p2")
    it.ready(1)
    await it.claim_ids()
    it.database.meanwhile = lambda: None
    assert it.claimer.next_fetch_at == math.inf

    # With `once`, a pool that finds no job under its new id must wait for those of the old id.
    await it.claim_ids()
    assert it.claimer.next_fetch_at == math.inf

    await it.claimer.release_orphaned_claims()
    assert it.claimer.next_fetch_at is None


# Fetches without an answer


@pytest.mark.parametrize("error", [OSError("gone"), TimeoutError(), asyncio.CancelledError()])
async def test_jobs_of_a_fetch_without_an_answer_are_released_without_delaying_the_next(it, error):
    it.database.errors = [error]
    with pytest.raises(type(error)):
        await it.claim_ids()

    # The next fetch does not wait for the release.
    await it.claim_ids()
    assert it.database.released_claims == []

    async with running(it.claimer.run()):
        await wait_until(lambda: it.database.released_claims)
    assert it.database.released_claims == [("p1", [], [])]


@pytest.mark.parametrize("error", [OSError("gone"), TimeoutError(), asyncio.CancelledError()])
async def test_the_first_job_of_a_fetch_is_released_if_the_others_have_no_answer(it, error):
    it.database.first, it.database.errors = 99, [error]
    with pytest.raises(type(error)):
        await it.claim_ids()

    async with running(it.claimer.run()):
        await it.claim_ids()
        await wait_until(lambda: it.database.released_claims)
    # The job is not excluded, because no worker has it.
    assert it.database.released_claims == [("p1", [], [])]


async def test_jobs_that_a_fetch_brings_meanwhile_are_not_released(it):
    """The check found a job of a fetch whose answer had not arrived yet."""
    it.database.meanwhile = lambda: None
    it.claimer.mark_orphaned()
    await it.claimer.fetch_lock.acquire()
    releasing = asyncio.create_task(it.claimer.release_orphaned_claims())
    await wait_until(lambda: "find_orphaned_claims" in it.database.statements)

    it.claimer._record_claimed([ClaimedJob(make_job(id=99, locked_by="p1"), 5)])
    it.claimer.fetch_lock.release()
    await releasing

    assert it.database.released_claims == [("p1", [99], [5])]
    assert not has_unconfirmed_claims(it.claimer)


async def test_after_a_restart_of_the_server_each_id_in_use_is_checked_once(it):
    await it.claim_one(1)
    it.lease.rotate_id("p2")
    notified: list[int] = []
    it.claimer.on_released = notified.append

    it.claimer.mark_orphaned()
    async with running(it.claimer.run()):
        await wait_until(lambda: not has_unconfirmed_claims(it.claimer))

    assert [args[0] for args in it.database.released_claims] == ["p1", "p2"]
    assert notified == [1, 1]
    assert it.claimer.pool_ids_in_use == {"p1"}


async def test_a_check_does_not_end_one_that_was_requested_meanwhile(it, clock):
    """A fetch that was abandoned during the check may have locked jobs after it read them."""
    it.claimer._mark_unconfirmed("p1", 0.0)
    it.claimer.mark_orphaned()
    clock.now += 1
    await it.claimer.fetch_lock.acquire()
    checking = asyncio.create_task(it.claimer.release_orphaned_claims())
    await wait_until(lambda: "find_orphaned_claims" in it.database.statements)

    it.claimer._mark_unconfirmed("p1", 60.0)
    it.claimer.mark_orphaned()
    it.claimer.fetch_lock.release()
    await checking

    assert it.claimer._unconfirmed_until == {"p1": clock.now + 60}
    assert it.claimer._orphaned_pool_ids == {"p1"}
    clock.now += 61
    await it.claimer.release_orphaned_claims()
    assert not has_unconfirmed_claims(it.claimer)


async def test_rows_that_another_session_has_locked_are_checked_again(it):
    it.claimer.mark_orphaned()
    answer, it.database.answer = (
        it.database.answer,
        lambda query: set() if query.statement == RELEASE else answer(query),
    )

    await it.claimer.release_orphaned_claims()
    assert has_unconfirmed_claims(it.claimer)

    it.database.answer = answer
    await it.claimer.release_orphaned_claims()
    assert not has_unconfirmed_claims(it.claimer)


async def test_a_fetch_without_an_answer_stays_unconfirmed_for_a_while(it, clock):
    it.database.errors = [OSError("gone")]
    with pytest.raises(OSError, match="gone"):
        await it.claim_ids()

    times: list[float] = []
    began = clock.now
    while clock.now - began < 2 * TIMINGS.unconfirmed_claim_seconds:
        it.lease.renew(clock.now)
        before = len(it.database.released_claims)
        await it.claim_ids()
        await it.claimer.release_orphaned_claims()
        times += [clock.now - began] * (len(it.database.released_claims) - before)
        clock.now += 1

    # At once, then at intervals, and a last time after the end of the period.
    assert times[0] == 0
    assert {later - sooner for sooner, later in zip(times, times[1:], strict=False)} == {
        TIMINGS.orphan_check_interval_seconds
    }
    assert (
        TIMINGS.unconfirmed_claim_seconds
        < times[-1]
        <= TIMINGS.unconfirmed_claim_seconds + TIMINGS.orphan_check_interval_seconds
    )


async def test_a_fetch_with_an_answer_is_confirmed(it):
    for _ in range(3):
        await it.claim_ids()

    await it.claimer.release_orphaned_claims(at_once=True)

    assert it.database.released_claims == []


async def test_an_unconfirmed_claim_ends_after_a_late_check(it, clock):
    assert not has_unconfirmed_claims(it.claimer)

    it.database.errors = [OSError("gone")]
    with pytest.raises(OSError, match="gone"):
        await it.claim_ids()
    assert has_unconfirmed_claims(it.claimer)

    await it.claimer.release_orphaned_claims()
    clock.now += TIMINGS.unconfirmed_claim_seconds + 1
    assert has_unconfirmed_claims(it.claimer)

    await it.claimer.release_orphaned_claims()
    assert not has_unconfirmed_claims(it.claimer)


async def test_an_id_is_in_use_while_it_holds_jobs_or_may_hold_them(it, clock):
    first = await it.claim_one(1)
    assert it.claimer.pool_ids_in_use == {"p1"}

    it.lease.rotate_id("p2")
    it.database.meanwhile = lambda: it.lease.rotate_id("p3")
    await it.claim_ids()
    assert it.claimer.pool_ids_in_use == {"p1", "p2"}

    it.claimer.forget(first)
    # The fetch has answered: its jobs are released, and it cannot lock others.
    await it.claimer.release_orphaned_claims()
    assert it.claimer.pool_ids_in_use == set()

    it.database.meanwhile = lambda: None
    it.database.errors = [OSError("gone")]
    with pytest.raises(OSError, match="gone"):
        await it.claim_ids()
    await it.claimer.release_orphaned_claims()
    assert it.claimer.pool_ids_in_use == {"p3"}

    clock.now += TIMINGS.unconfirmed_claim_seconds + 1
    await it.claimer.release_orphaned_claims()
    assert it.claimer.pool_ids_in_use == set()


async def test_a_fetch_is_unconfirmed_until_its_answer(it):
    unconfirmed: list[bool] = []
    it.database.meanwhile = lambda: unconfirmed.append(has_unconfirmed_claims(it.claimer))

    await it.claim_ids()

    assert unconfirmed == [True]
    assert not has_unconfirmed_claims(it.claimer)


async def test_a_fetch_without_an_answer_is_released_while_all_tasks_are_paused(it):
    it.database.errors = [OSError("gone")]
    with pytest.raises(OSError, match="gone"):
        await it.claim_ids()
    it.claimer.paused_tasks = {"resize"}

    async with running(it.claimer.run()):
        assert await it.claim_ids() == []
        await wait_until(lambda: RELEASE in it.database.statements)


# Jobs that are claimed again


async def test_a_job_that_is_claimed_again_is_reported(it):
    notified: list[ClaimedJob] = []
    it.claimer.on_reclaimed = notified.append
    older = await it.claim_one(1)

    newer = await it.claim_one(1)

    assert len(notified) == 1
    assert notified[0] is older
    assert it.claimer.claimed_jobs[1] is newer


async def test_the_newer_claim_is_recorded_before_the_report(it):
    claimed: list[ClaimedJob] = []
    it.claimer.on_reclaimed = lambda older: claimed.append(it.claimer.claimed_jobs[1])
    older = await it.claim_one(1)

    newer = await it.claim_one(1)

    assert claimed[0] is newer
    assert claimed[0] is not older


async def test_forgetting_the_older_run_keeps_the_newer_one(it):
    older = await it.claim_one(1)
    newer = await it.claim_one(1)

    it.claimer.forget(older)
    assert it.claimer.claimed_jobs == {1: newer}

    it.claimer.forget(newer)
    assert it.claimer.claimed_jobs == {}


async def test_to_let_go_twice_does_no_harm(it):
    claimed = await it.claim_one(1)

    it.claimer.forget(claimed)
    it.claimer.forget(claimed)

    assert it.claimer.claimed_jobs == {}


async def test_a_job_that_ended_before_it_was_claimed_again_is_not_reported(it):
    notified: list[ClaimedJob] = []
    it.claimer.on_reclaimed = notified.append
    it.claimer.forget(await it.claim_one(1))

    await it.claim_one(1)

    assert notified == []


# Shutdown


async def test_jobs_without_a_worker_are_released_at_shutdown(it):
    await it.claim_one(1, queue=5)
    await it.claim_one(2, queue=6)

    it.claimer.forget_all_but([1])
    await it.claimer.release_orphaned_claims(at_once=True)

    assert list(it.claimer.claimed_jobs) == [1]
    assert it.database.released_claims == [("p1", [1], [5])]


async def test_forgotten_jobs_are_released_under_the_id_of_their_claim(it):
    await it.claim_one(1)
    it.lease.rotate_id("p2")
    await it.claim_one(2)

    it.claimer.forget_all_but([])
    await it.claimer.release_orphaned_claims(at_once=True)

    assert sorted(args[0] for args in it.database.released_claims) == ["p1", "p2"]


async def test_without_forgotten_jobs_nothing_is_released(it):
    await it.claim_one(1)

    it.claimer.forget_all_but([1, 2])
    await it.claimer.release_orphaned_claims(at_once=True)

    assert it.database.released_claims == []


async def test_at_shutdown_orphaned_claims_are_checked_again(it):
    it.database.errors = [OSError("gone")]
    with pytest.raises(OSError, match="gone"):
        await it.claim_ids()
    await it.claimer.release_orphaned_claims()
    await it.claimer.release_orphaned_claims()
    assert len(it.database.released_claims) == 1

    await it.claimer.release_orphaned_claims(at_once=True)
    assert len(it.database.released_claims) == 2
