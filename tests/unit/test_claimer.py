"""Claims: when a pool may take jobs, which ones it holds, and what becomes of fetches in doubt."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from graphile_worker._lease import lease as lease_module
from graphile_worker._lease.lease import Lease
from graphile_worker._sql.queries.claim import ClaimedJob, OrphanedClaims, find_releasable_queues
from graphile_worker._sql.query import Query
from graphile_worker._worker import claimer as claims_module
from graphile_worker._worker.claimer import (
    EMPTY_FETCH_DELAY_SECONDS,
    EMPTY_FETCHES_BEFORE_DELAY,
    ORPHAN_CHECK_INTERVAL_SECONDS,
    QUICK_FETCH_SECONDS,
    TASK_CHECK_INTERVAL_SECONDS,
    UNCONFIRMED_CLAIM_SECONDS,
    Claimer,
)
from graphile_worker.errors import LeaseExpiredError
from tests.support.clocks import ManualClock
from tests.support.fake_database import FakeDatabase, FakeDatabaseError
from tests.support.jobs import make_job
from tests.support.recorder import wait_until

HAND_BACK = "release_orphaned_claims"


class JobTable(FakeDatabase):
    """Gives the jobs that a test made ready, locked for the pool that fetches them."""

    def __init__(self) -> None:
        super().__init__()
        self.ready: list[tuple[int, int | None]] = []
        self.errors: list[BaseException] = []
        self.has_indexes = True
        # What happens between a fetch and its answer.
        self.meanwhile: Callable[[], None] = lambda: None

    def answer(self, query: Query[Any]) -> Any:
        match query.statement:
            case "get_task_ids":
                return {1: "resize"}
            case "has_fetch_indexes":
                return self.has_indexes
            case "claim_plain_jobs" | "claim_soonest_jobs":
                return []
            case "claim_jobs" | "claim_jobs_unindexed":
                return self._taken(str(query.args[0]))
            case "find_orphaned_claims":
                return OrphanedClaims({99}, set())
            case _:
                assert query.statement == HAND_BACK
                return {99}

    def _taken(self, pool_id: str) -> list[ClaimedJob]:
        self.meanwhile()
        if self.errors:
            raise self.errors.pop(0)
        taken, self.ready = self.ready, []
        return [ClaimedJob(make_job(id=each, locked_by=pool_id), queue) for each, queue in taken]

    @property
    def handed_back(self) -> list[tuple[object, ...]]:
        """For each time: under which id, but which jobs, and but which queues."""
        asked = [each.args for each in self.queries if each.statement == HAND_BACK]
        return [(args[0], *args[3:]) for args in asked]


class Scene:
    """The claims of a pool that is known, and what it was told."""

    def __init__(self, clock: ManualClock) -> None:
        self.database = JobTable()
        self.lease = Lease(timedelta(seconds=30), pool_id="p1")
        self.lease.renew(clock.now)
        database: Any = self.database
        self.claims = Claimer(database, self.lease, ["resize"])

    def ready(self, *job_ids: int, queue: int | None = None) -> None:
        self.database.ready += [(each, queue) for each in job_ids]

    async def take(self, limit: int = 10) -> list[int]:
        return [each.job.id for each in await self.claims.claim(limit)]

    async def take_one(self, job_id: int, queue: int | None = None) -> ClaimedJob:
        self.ready(job_id, queue=queue)
        [held] = await self.claims.claim(1)
        return held


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
    return ManualClock.patch(monkeypatch, lease_module, claims_module)


@pytest.fixture
def it(clock) -> Scene:
    return Scene(clock)


# Whether


async def test_what_is_taken_is_held(it):
    it.ready(1, 2)

    assert await it.take() == [1, 2]

    assert sorted(it.claims.claimed_jobs) == [1, 2]
    assert {each.pool_id for each in it.claims.claimed_jobs.values()} == {"p1"}


async def test_the_later_of_two_jobs_of_a_queue_frees_it_with_a_stopped_clock(it):
    earlier = await it.take_one(1, queue=5)
    later = await it.take_one(2, queue=5)

    assert find_releasable_queues([earlier], it.claims.claimed_jobs) == []
    assert find_releasable_queues([later], it.claims.claimed_jobs) == [5]


async def test_a_pool_without_heartbeats_claims_nothing(it, clock):
    it.ready(1)
    clock.now += 16.3

    with pytest.raises(LeaseExpiredError, match=r"no heartbeat for 16\.3 s"):
        await it.take()

    assert it.database.queries == []


async def test_a_pool_that_was_swept_takes_nothing_until_it_has_another_id(it):
    it.ready(1)
    it.lease.mark_lost()
    with pytest.raises(LeaseExpiredError, match="another worker recovered the jobs"):
        await it.take()
    assert it.database.queries == []

    it.lease.rotate_id("p2")

    assert await it.take() == [1]
    assert it.claims.claimed_jobs[1].pool_id == "p2"


async def test_a_pool_claims_jobs_again_after_a_heartbeat(it, clock):
    it.ready(1)
    clock.now += 1000
    with pytest.raises(LeaseExpiredError):
        await it.take()

    it.lease.renew(clock.now)

    assert await it.take() == [1]


async def test_after_many_empty_fetches_the_next_ones_are_delayed(it, clock, monkeypatch):
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)
        clock.now += seconds

    monkeypatch.setattr(claims_module, "asyncio", SimpleNamespace(sleep=rest))
    for _ in range(EMPTY_FETCHES_BEFORE_DELAY):
        await it.take()
    assert rests == []

    clock.now += EMPTY_FETCH_DELAY_SECONDS / 4
    await it.take()
    assert rests == [pytest.approx(EMPTY_FETCH_DELAY_SECONDS * 3 / 4)]

    # Whoever comes later than that does not wait, nor does one after a fetch that brought a job.
    clock.now += EMPTY_FETCH_DELAY_SECONDS
    await it.take_one(1)
    await it.take()
    assert len(rests) == 1


async def test_after_a_fetch_without_an_answer_fewer_are_asked_for_until_they_come_quickly(
    it, clock
):
    def slowly() -> None:
        clock.now += QUICK_FETCH_SECONDS

    async def limit_of(wanted: int, *ready: int) -> object:
        it.ready(*ready)
        with suppress(TimeoutError):
            await it.take(wanted)
        return it.database.queries[-1].args[3]

    it.database.errors = [TimeoutError(), TimeoutError()]
    assert [await limit_of(20), await limit_of(20)] == [20, 10]
    # An empty answer says nothing about the line.
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

    assert await it.take() == [1]


async def test_a_pool_without_tasks_asks_nothing(it):
    database: Any = it.database
    claims = Claimer(database, it.lease, [])

    assert await claims.claim(1) == []

    assert it.database.queries == []


async def test_a_heartbeat_that_is_missed_while_a_fetch_is_prepared_is_noticed(it, clock):
    def think() -> list[str]:
        clock.now += 16
        return ["slow"]

    database: Any = it.database
    claims = Claimer(database, it.lease, ["resize"], forbidden_flags=think)

    with pytest.raises(LeaseExpiredError):
        await claims.claim(1)

    assert "claim_jobs" not in it.database.statements
    assert not claims.has_unconfirmed_claims


@pytest.mark.parametrize(
    ("has_indexes", "statement"), [(True, "claim_jobs"), (False, "claim_jobs_unindexed")]
)
async def test_a_schema_without_our_indexes_is_asked_in_another_way(it, has_indexes, statement):
    it.database.has_indexes = has_indexes
    it.ready(1)

    assert await it.take() == [1]

    assert it.database.statements == [
        "get_task_ids",
        "has_fetch_indexes",
        "claim_plain_jobs",
        statement,
    ]


async def test_indexes_that_were_made_meanwhile_are_used(it, clock):
    it.database.has_indexes = False
    await it.take()
    it.database.has_indexes = True

    clock.now += TASK_CHECK_INTERVAL_SECONDS + 1
    await it.take()

    assert it.database.statements[-1] == "claim_jobs"


# Names of tasks


class NameTable(JobTable):
    """Keeps the names that are entered; another transaction is adding those that are `locked`."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.locked: set[str] = set()

    def answer(self, query: Query[Any]) -> Any:
        match query.statement:
            case "get_task_ids":
                return dict(enumerate(self.names))
            case "register_tasks":
                given: Any = query.args[0]
                if self.locked & set(given):
                    return FakeDatabaseError("55P03")
                self.names += given
                return None
            case _:
                return super().answer(query)


async def test_names_that_another_transaction_is_adding_are_entered_later(it, clock):
    table: Any = NameTable()
    table.locked = {"b"}
    claims = Claimer(table, it.lease, ["a", "b", "c"])

    await claims.claim(1)
    assert sorted(table.names) == ["a", "c"]
    assert table.statements[-1] == "claim_jobs"

    table.queries.clear()
    await claims.claim(1)
    assert table.statements[0] == "get_task_ids"
    assert "register_tasks" not in table.statements

    table.locked = set()
    clock.now += TASK_CHECK_INTERVAL_SECONDS
    it.lease.renew(clock.now)
    await claims.claim(1)
    assert sorted(table.names) == ["a", "b", "c"]


async def test_names_are_entered_in_the_time_that_there_is_for_it(it, clock, monkeypatch):
    monkeypatch.setattr(claims_module, "REGISTER_TASKS_TIMEOUT_SECONDS", -1.0)
    table: Any = NameTable()
    table.locked = {"b"}

    await Claimer(table, it.lease, ["a", "b", "c"]).claim(1)

    assert table.statements.count("register_tasks") == 1
    assert table.statements[-1] == "claim_jobs"


async def test_in_a_callers_transaction_names_are_waited_for(it):
    table: Any = NameTable()
    table.locked = {"a"}
    claims = Claimer(table, it.lease, ["a"], waits_for_register_lock=True)

    with pytest.raises(FakeDatabaseError):
        await claims.claim(1)

    assert [each.args for each in table.queries if each.statement == "register_tasks"] == [
        (["a"], None)
    ]


# Another id


async def test_what_was_fetched_under_an_id_that_was_swept_meanwhile_is_not_handed_out(it):
    it.database.meanwhile = lambda: it.lease.rotate_id("p2")
    it.ready(1, 2)

    assert await it.take() == []

    assert it.claims.claimed_jobs == {}


async def test_jobs_fetched_under_the_old_id_are_released_under_it(it):
    it.database.meanwhile = lambda: it.lease.rotate_id("p2")
    it.ready(1)
    await it.take()
    it.database.meanwhile = lambda: None
    await it.claims.release_orphaned_claims()

    it.ready(2)
    assert await it.take() == [2]

    assert it.database.handed_back == [("p1", [], [])]
    assert it.claims.claimed_jobs[2].pool_id == "p2"


async def test_jobs_that_run_under_the_old_id_are_not_released_with_the_others(it):
    await it.take_one(1, queue=5)
    it.database.meanwhile = lambda: it.lease.rotate_id("p2")
    it.ready(2)
    await it.take()

    await it.claims.release_orphaned_claims()

    assert it.database.handed_back == [("p1", [1], [5])]


async def test_a_pool_that_loses_its_lease_repeatedly_releases_under_each_id(it):
    for each in ("p2", "p3", "p4"):
        it.database.meanwhile = lambda each=each: it.lease.rotate_id(each)
        await it.take()

    await it.claims.release_orphaned_claims()

    assert [args[0] for args in it.database.handed_back[-3:]] == ["p1", "p2", "p3"]


async def test_an_id_that_was_swept_stays_in_doubt_while_jobs_are_held_under_it(it):
    taken = await it.take_one(1)
    it.database.meanwhile = lambda: it.lease.rotate_id("p2")
    await it.take()

    # The fetch may have locked that job again, under the id that nobody vouches for.
    await it.claims.release_orphaned_claims(at_once=True)
    assert it.claims.has_unconfirmed_claims

    it.claims.forget(taken)
    await it.claims.release_orphaned_claims(at_once=True)
    assert not it.claims.has_unconfirmed_claims
    assert it.database.handed_back[-2:] == [("p1", [taken.job.id], []), ("p1", [], [])]


# An answer that never came


@pytest.mark.parametrize("error", [OSError("gone"), TimeoutError(), asyncio.CancelledError()])
async def test_what_a_fetch_without_an_answer_locked_is_released_beside_the_next(it, error):
    it.database.errors = [error]
    with pytest.raises(type(error)):
        await it.take()

    # The next fetch does not wait for that.
    await it.take()
    assert it.database.handed_back == []

    async with running(it.claims.run()):
        await wait_until(lambda: it.database.handed_back)
    assert it.database.handed_back == [("p1", [], [])]


async def test_jobs_that_a_fetch_brings_meanwhile_are_not_released(it):
    """A look found a job that a fetch had locked whose answer was still on its way."""
    it.database.meanwhile = lambda: None
    it.claims.mark_orphaned()
    await it.claims.fetch_lock.acquire()
    settling = asyncio.create_task(it.claims.release_orphaned_claims())
    await wait_until(lambda: "find_orphaned_claims" in it.database.statements)

    it.claims._record_claimed([ClaimedJob(make_job(id=99, locked_by="p1"), 5)])
    it.claims.fetch_lock.release()
    await settling

    assert it.database.handed_back == [("p1", [99], [5])]
    assert not it.claims.has_unconfirmed_claims


async def test_after_a_restart_of_the_server_locks_under_each_id_in_use_are_looked_at_once(it):
    await it.take_one(1)
    it.lease.rotate_id("p2")
    told: list[int] = []
    it.claims.on_released = told.append

    it.claims.mark_orphaned()
    async with running(it.claims.run()):
        await wait_until(lambda: not it.claims.has_unconfirmed_claims)

    assert [args[0] for args in it.database.handed_back] == ["p1", "p2"]
    assert told == [1, 1]
    assert it.claims.pool_ids_in_use == {"p1"}


async def test_rows_that_another_session_has_locked_are_looked_at_again(it):
    it.claims.mark_orphaned()
    answer, it.database.answer = (
        it.database.answer,
        lambda query: set() if query.statement == HAND_BACK else answer(query),
    )

    await it.claims.release_orphaned_claims()
    assert it.claims.has_unconfirmed_claims

    it.database.answer = answer
    await it.claims.release_orphaned_claims()
    assert not it.claims.has_unconfirmed_claims


async def test_such_a_fetch_is_in_doubt_for_a_while_as_its_server_may_be_slow(it, clock):
    it.database.errors = [OSError("gone")]
    with pytest.raises(OSError, match="gone"):
        await it.take()

    times: list[float] = []
    began = clock.now
    while clock.now - began < 2 * UNCONFIRMED_CLAIM_SECONDS:
        it.lease.renew(clock.now)
        before = len(it.database.handed_back)
        await it.take()
        await it.claims.release_orphaned_claims()
        times += [clock.now - began] * (len(it.database.handed_back) - before)
        clock.now += 1

    # At once, now and then, and once more when its time is over.
    assert times[0] == 0
    assert {later - sooner for sooner, later in zip(times, times[1:], strict=False)} == {
        ORPHAN_CHECK_INTERVAL_SECONDS
    }
    assert (
        UNCONFIRMED_CLAIM_SECONDS
        < times[-1]
        <= UNCONFIRMED_CLAIM_SECONDS + ORPHAN_CHECK_INTERVAL_SECONDS
    )


async def test_a_fetch_with_an_answer_is_in_no_doubt(it):
    for _ in range(3):
        await it.take()

    await it.claims.release_orphaned_claims(at_once=True)

    assert it.database.handed_back == []


async def test_a_doubt_ends_when_the_database_has_answered_after_all_that_time(it, clock):
    assert not it.claims.has_unconfirmed_claims

    it.database.errors = [OSError("gone")]
    with pytest.raises(OSError, match="gone"):
        await it.take()
    assert it.claims.has_unconfirmed_claims

    await it.claims.release_orphaned_claims()
    clock.now += UNCONFIRMED_CLAIM_SECONDS + 1
    assert it.claims.has_unconfirmed_claims

    await it.claims.release_orphaned_claims()
    assert not it.claims.has_unconfirmed_claims


async def test_an_id_is_in_use_while_jobs_are_held_under_it_or_may_be(it, clock):
    first = await it.take_one(1)
    assert it.claims.pool_ids_in_use == {"p1"}

    it.lease.rotate_id("p2")
    it.database.meanwhile = lambda: it.lease.rotate_id("p3")
    await it.take()
    assert it.claims.pool_ids_in_use == {"p1", "p2"}

    it.claims.forget(first)
    # Its answer came: what it locked is handed back, and it will lock no more.
    await it.claims.release_orphaned_claims()
    assert it.claims.pool_ids_in_use == set()

    it.database.meanwhile = lambda: None
    it.database.errors = [OSError("gone")]
    with pytest.raises(OSError, match="gone"):
        await it.take()
    await it.claims.release_orphaned_claims()
    assert it.claims.pool_ids_in_use == {"p3"}

    clock.now += UNCONFIRMED_CLAIM_SECONDS + 1
    await it.claims.release_orphaned_claims()
    assert it.claims.pool_ids_in_use == set()


async def test_a_fetch_is_in_doubt_until_its_answer_is_there(it):
    seen: list[bool] = []
    it.database.meanwhile = lambda: seen.append(it.claims.has_unconfirmed_claims)

    await it.take()

    assert seen == [True]
    assert not it.claims.has_unconfirmed_claims


# A job that is taken again


async def test_a_job_that_is_claimed_again_is_reported(it):
    told: list[ClaimedJob] = []
    it.claims.on_reclaimed = told.append
    older = await it.take_one(1)

    newer = await it.take_one(1)

    assert len(told) == 1
    assert told[0] is older
    assert it.claims.claimed_jobs[1] is newer


async def test_the_newer_claim_is_recorded_before_the_report(it):
    held: list[ClaimedJob] = []
    it.claims.on_reclaimed = lambda older: held.append(it.claims.claimed_jobs[1])
    older = await it.take_one(1)

    newer = await it.take_one(1)

    assert held[0] is newer
    assert held[0] is not older


async def test_letting_go_of_the_older_run_leaves_the_newer_one_held(it):
    older = await it.take_one(1)
    newer = await it.take_one(1)

    it.claims.forget(older)
    assert it.claims.claimed_jobs == {1: newer}

    it.claims.forget(newer)
    assert it.claims.claimed_jobs == {}


async def test_to_let_go_twice_does_no_harm(it):
    held = await it.take_one(1)

    it.claims.forget(held)
    it.claims.forget(held)

    assert it.claims.claimed_jobs == {}


async def test_a_job_that_ended_before_it_was_claimed_again_is_not_reported(it):
    told: list[ClaimedJob] = []
    it.claims.on_reclaimed = told.append
    it.claims.forget(await it.take_one(1))

    await it.take_one(1)

    assert told == []


# At the end


async def test_jobs_without_a_worker_are_released_at_shutdown(it):
    await it.take_one(1, queue=5)
    await it.take_one(2, queue=6)

    it.claims.forget_all_but([1])
    await it.claims.release_orphaned_claims(at_once=True)

    assert list(it.claims.claimed_jobs) == [1]
    assert it.database.handed_back == [("p1", [1], [5])]


async def test_forgotten_jobs_are_released_under_the_id_of_their_claim(it):
    await it.take_one(1)
    it.lease.rotate_id("p2")
    await it.take_one(2)

    it.claims.forget_all_but([])
    await it.claims.release_orphaned_claims(at_once=True)

    assert sorted(args[0] for args in it.database.handed_back) == ["p1", "p2"]


async def test_without_forgotten_jobs_nothing_is_released(it):
    await it.take_one(1)

    it.claims.forget_all_but([1, 2])
    await it.claims.release_orphaned_claims(at_once=True)

    assert it.database.handed_back == []


async def test_at_shutdown_orphaned_claims_are_checked_again(it):
    it.database.errors = [OSError("gone")]
    with pytest.raises(OSError, match="gone"):
        await it.take()
    await it.claims.release_orphaned_claims()
    await it.claims.release_orphaned_claims()
    assert len(it.database.handed_back) == 1

    await it.claims.release_orphaned_claims(at_once=True)
    assert len(it.database.handed_back) == 2
