"""Heartbeat: what a pool says of itself, what it learns by it, and what follows from silence."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest

from graphile_worker._lease import heartbeat as heartbeat_module
from graphile_worker._lease import lease as lease_module
from graphile_worker._lease.heartbeat import (
    LOCK_RENEWAL_INTERVAL_SECONDS,
    REGISTRY_CHECK_INTERVAL_SECONDS,
    RUST_HEARTBEAT_INTERVAL_SECONDS,
    Heartbeat,
    PoolCallbacks,
)
from graphile_worker._lease.lease import Lease
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._sql.query import Query
from tests.support.clocks import ManualClock, skip_delays
from tests.support.fake_database import FakeDatabase, FakeDatabaseError
from tests.support.jobs import make_job
from tests.support.recorder import wait_until

SCHEMAS = Schemas("shared", "companion")
THRESHOLD = timedelta(seconds=30)
AT_ONCE = timedelta(milliseconds=1)
DETAILS = {"host": "here"}


class Registries(FakeDatabase):
    """Two registries and the locks of jobs, as far as a heartbeat sees them."""

    def __init__(self) -> None:
        super().__init__()
        # Seconds, by the server's clock.
        self.time = 50_000.0
        self.server_started = 40_000.0
        self.has_registry = True
        self.has_rust = False
        self.pools: dict[str, list[int]] = {}
        self.rust: dict[str, str] = {}
        self.stopped: list[str] = []
        self.locks: dict[int, str] = {}
        # What becomes of a statement, so many times.
        self.errors: dict[str, list[Exception]] = {}
        self.meanwhile: Callable[[str], None] = lambda statement: None

    def answer(self, query: Query[Any]) -> Any:
        self.meanwhile(query.name)
        if errors := self.errors.get(query.name):
            raise errors.pop(0)
        answer = getattr(self, f"_{query.statement}")
        return query.read(answer(*query.args))

    def forget(self) -> None:
        """Count from here."""
        self.queries.clear()

    def _has_registry(self, schema: str, shared: str) -> list[Any]:
        assert schema == SCHEMAS.companion
        return [(self.has_registry,)]

    def _has_rust_registry(self, schema: str) -> list[Any]:
        assert schema == SCHEMAS.shared
        return [(self.has_rust,)]

    def _register_pool(self, pool_id: str, lease: int, details: str) -> list[Any]:
        self.pools[pool_id] = []
        return []

    def _heartbeat(self, pool_ids: list[str], started: list[int]) -> list[Any]:
        known = [each for each in pool_ids if each in self.pools]
        self.pools |= dict.fromkeys(known, started)
        return [(each, self.time, self.server_started) for each in known]

    def _unregister_pools(self, pool_ids: list[str]) -> list[Any]:
        for each in pool_ids:
            self.pools.pop(each, None)
        return []

    def _mark_pools_stopped(self, pool_ids: list[str]) -> list[Any]:
        self.stopped += pool_ids
        return []

    def _rust_heartbeat(self, pool_ids: list[str], details: str) -> list[Any]:
        self.rust |= dict.fromkeys(pool_ids, details)
        return []

    def _rust_unregister(self, pool_ids: list[str]) -> list[Any]:
        for each in pool_ids:
            self.rust.pop(each, None)
        return []

    def _renew_locks(self, pool_ids: list[str], jobs: list[int], queues: list[int]) -> list[Any]:
        return [(each,) for each in jobs if self.locks.get(each) in pool_ids]


class Scene:
    """A heartbeat, the pool that it speaks for, and what that was told."""

    def __init__(
        self, *, threshold: timedelta | None = THRESHOLD, every: timedelta | None = AT_ONCE
    ) -> None:
        self.database = Registries()
        self.lease = Lease(threshold, pool_id="p1")
        self.started: list[int] = []
        self.held: list[ClaimedJob] = []
        self.told: list[object] = []
        self.errors: list[tuple[str, int]] = []
        self.recoveries: list[int] = []
        database: Any = self.database
        self.heartbeat = Heartbeat(
            database,
            SCHEMAS,
            self.lease,
            PoolCallbacks(
                started_ids=lambda: self.started,
                claimed=lambda: list(self.held),
                ids_in_use=lambda: {each.pool_id for each in self.held},
                on_lease_lost=lambda old, new: self.told.append(("swept", old, new)),
                on_jobs_lost=lambda job_ids: self.told.append(("lost", job_ids)),
                on_error=lambda error, count: self.errors.append((str(error), count)),
                on_reconnected=lambda: self.told.append("reconnected"),
                on_recovered=lambda: self.recoveries.append(len(self.errors)),
            ),
            lease_duration=threshold,
            interval=every,
            details=DETAILS,
        )

    def hold(self, job_id: int, queue_id: int | None = None) -> ClaimedJob:
        """Take a job under the id that the pool has now."""
        pool_id = self.lease.pool_id
        self.database.locks[job_id] = pool_id
        held = ClaimedJob(make_job(id=job_id, locked_by=pool_id), queue_id)
        self.held.append(held)
        return held

    async def beat(self, times: int = 1) -> None:
        for _ in range(times):
            await self.heartbeat.beat_once()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Let it beat by itself; an error that ends it is raised."""
        running = asyncio.create_task(self.heartbeat.run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.wait([running])
        assert running.cancelled(), running.exception()


@pytest.fixture
def clock(monkeypatch) -> ManualClock:
    return ManualClock.patch(monkeypatch, lease_module, heartbeat_module)


@pytest.fixture
async def it(clock) -> Scene:
    """A pool that is registered."""
    it = Scene()
    await it.heartbeat.register()
    it.database.forget()
    return it


@pytest.fixture
async def rusty(clock) -> Scene:
    """A pool that is registered with Rust workers too."""
    it = Scene()
    it.database.has_rust = True
    await it.heartbeat.register()
    it.database.forget()
    return it


@pytest.fixture(autouse=True)
def pauses(monkeypatch) -> list[int]:
    return skip_delays(monkeypatch, heartbeat_module)


# The beginning


@pytest.mark.feature("F220")
async def test_a_pool_is_entered_with_its_lease_and_what_people_want_to_know(clock):
    it = Scene()

    await it.heartbeat.register()

    entered = next(each for each in it.database.queries if each.statement == "register_pool")
    pool_id, lease, details = entered.args
    assert (pool_id, lease) == ("p1", 30_000_000)
    assert json.loads(str(details)).keys() == {"host", "clock"}
    assert it.lease.is_registered
    assert it.heartbeat.has_registry


async def test_a_pool_whose_registry_is_not_there_has_no_lease_to_lose(clock):
    it = Scene()
    it.database.has_registry = False

    await it.heartbeat.register()
    await it.beat()

    assert not it.heartbeat.has_registry
    assert not it.lease.is_registered
    assert it.database.statements == ["has_registry", "has_rust_registry"]


@pytest.mark.feature("F219")
async def test_without_recovery_only_rust_workers_get_heartbeats(clock):
    it = Scene(threshold=None)
    it.database.has_rust = True

    await it.heartbeat.register()
    await it.beat()

    assert it.database.statements == ["has_rust_registry", "rust_heartbeat"]
    assert list(it.database.rust) == ["p1"]
    assert not it.lease.is_registered


@pytest.mark.parametrize("statement", ["has_registry", "register_pool", "has_rust_registry"])
async def test_a_pool_that_cannot_be_entered_does_not_begin(clock, statement):
    it = Scene()
    it.database.errors[statement] = [OSError("gone")]

    with pytest.raises(OSError, match="gone"):
        await it.heartbeat.register()


async def test_a_registry_that_comes_later_is_found_now_and_then(clock):
    it = Scene()
    it.database.has_registry = False
    await it.heartbeat.register()
    it.database.has_registry = True

    clock.now += REGISTRY_CHECK_INTERVAL_SECONDS
    await it.beat()
    assert it.database.pools == {}

    clock.now += 1
    await it.beat()
    assert list(it.database.pools) == ["p1"]
    assert it.lease.is_registered


async def test_a_pool_that_could_not_be_entered_in_a_late_registry_was_not_swept(clock):
    it = Scene()
    it.database.has_registry = False
    await it.heartbeat.register()
    it.database.has_registry = True
    it.database.errors["register_pool"] = [OSError("gone")]
    clock.now += REGISTRY_CHECK_INTERVAL_SECONDS + 1
    with pytest.raises(OSError, match="gone"):
        await it.beat()

    await it.beat()

    assert it.told == []
    assert it.lease.pool_id == "p1"


# A heartbeat


@pytest.mark.feature("F220")
async def test_a_heartbeat_contains_the_started_jobs(it):
    it.started = [7, 8]

    await it.beat()

    assert it.database.statements == ["heartbeat"]
    assert it.database.pools == {"p1": [7, 8]}


async def test_a_heartbeat_renews_the_lease_from_when_it_was_sent(it, clock):
    def answer_late(statement: str) -> None:
        clock.now += 3

    clock.now += 5
    it.database.meanwhile = answer_late
    await it.beat()

    assert it.lease.seconds_since_heartbeat == pytest.approx(3)


async def test_a_heartbeat_brings_the_servers_time_which_others_are_judged_by(it, clock):
    await it.beat()
    assert it.lease.is_stable

    clock.now += 5
    it.database.time += 3605
    await it.beat()

    assert not it.lease.is_stable


@pytest.mark.parametrize(("every", "seconds"), [(2, 2), (10, 10), (60, 10), (None, 10)])
async def test_heartbeats_come_as_often_as_wanted_and_often_enough_for_rust_workers(
    clock, monkeypatch, every, seconds
):
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        raise asyncio.CancelledError

    it = Scene(every=None if every is None else timedelta(seconds=every))
    await it.heartbeat.register()
    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await it.heartbeat.run()

    assert pauses == [seconds]


async def test_a_heartbeat_that_failed_renews_nothing(it, clock):
    it.database.errors["heartbeat"] = [OSError("gone")]
    clock.now += 5

    with pytest.raises(OSError, match="gone"):
        await it.beat()

    assert it.lease.seconds_since_heartbeat == pytest.approx(5)


@pytest.mark.parametrize(
    ("threshold", "seconds"), [(1, 1), (3, 1), (6, 2), (30, 10), (300, 10), (None, None)]
)
async def test_an_answer_may_take_a_third_of_the_lease_but_neither_too_short_nor_too_long(
    clock, monkeypatch, threshold, seconds
):
    limits: list[float] = []

    def timeout(limit: float) -> asyncio.Timeout:
        limits.append(limit)
        return asyncio.timeout(limit)

    stand_in = type("asyncio", (), {"timeout": staticmethod(timeout)})
    monkeypatch.setattr(heartbeat_module, "asyncio", stand_in)
    it = Scene(threshold=None if threshold is None else timedelta(seconds=threshold))
    await it.heartbeat.register()
    # As there is no lease yet that could end.
    assert set(limits) == {heartbeat_module.MAX_QUERY_TIMEOUT_SECONDS}

    limits.clear()
    await it.beat()
    # Without one it says that it lives to nobody.
    assert set(limits) == ({seconds} if threshold else set())


async def test_a_database_without_an_answer_is_given_up():
    it = Scene()
    it.heartbeat._query_timeout_seconds = 0.01
    it.database.answering.clear()

    with pytest.raises(TimeoutError, match=r"no answer within 0\.01 s"):
        await it.heartbeat.register()


# Others took it for dead


@pytest.mark.feature("F220")
async def test_a_pool_that_was_swept_goes_on_under_an_id_that_was_entered_before(it):
    under: list[str] = []

    def note_id(statement: str) -> None:
        if statement == "register_pool":
            under.append(it.lease.pool_id)
            # It knows of its loss by now.
            assert len(it.told) == 1

    it.database.meanwhile = note_id
    it.database.pools.clear()
    await it.beat()

    # Nobody would sweep jobs that are taken under an id which is not entered.
    assert under == ["p1"]
    assert it.lease.pool_id != "p1"
    assert list(it.database.pools) == [it.lease.pool_id]


async def test_a_lost_lease_is_reported_once_with_the_new_id(it):
    it.database.pools.clear()

    await it.beat(5)

    assert it.told == [("swept", "p1", it.lease.pool_id)]
    assert it.lease.pool_ids == {"p1", it.lease.pool_id}


async def test_a_lease_starts_again_under_the_new_id(it, clock):
    it.database.pools.clear()
    clock.now += 1000

    await it.beat()

    assert it.lease.seconds_since_heartbeat == 0


async def test_a_pool_that_is_swept_again_gets_another_id_each_time(it):
    for _ in range(5):
        it.database.pools.clear()
        await it.beat()

    assert len(it.told) == 5
    assert len(it.lease.pool_ids) == 6


async def test_while_the_new_id_cannot_be_entered_nothing_goes_on_under_it(it):
    it.database.pools.clear()
    it.database.errors["register_pool"] = [OSError("gone")] * 3

    for _ in range(3):
        with pytest.raises(OSError, match="gone"):
            await it.beat()
        assert it.lease.pool_id == "p1"
        assert not it.lease.can_claim

    # Its jobs are lost all the same, so that was told at once.
    await it.beat()
    assert it.lease.can_claim
    assert it.told == [("swept", "p1", it.lease.pool_id)]


async def test_rust_workers_get_the_new_id_at_once_and_the_old_one_is_removed(rusty):
    rusty.database.pools.clear()

    await rusty.beat()

    assert list(rusty.database.rust) == [rusty.lease.pool_id]


async def test_a_lost_lease_is_reported_even_if_the_rust_registry_fails(rusty):
    rusty.database.pools.clear()
    rusty.database.errors["rust_heartbeat"] = [OSError("gone")]

    with suppress(OSError):
        await rusty.beat()
    await rusty.beat()

    assert rusty.told == [("swept", "p1", rusty.lease.pool_id)]


# Failures


@pytest.mark.feature("F220")
async def test_a_failed_heartbeat_is_reported_with_its_count_and_retried(it, pauses):
    it.database.errors["heartbeat"] = [OSError(f"no {each}") for each in range(50)]

    async with it.running():
        await wait_until(lambda: it.database.statements.count("heartbeat") > 50)

    assert it.errors == [(f"no {each}", each + 1) for each in range(50)]
    assert pauses == list(range(1, 51))


async def test_failures_are_counted_from_the_last_success(it):
    fails = [True, True, False, True]

    def fail(statement: str) -> None:
        if fails and fails.pop(0):
            raise OSError("gone")

    it.database.meanwhile = fail
    async with it.running():
        await wait_until(lambda: len(it.errors) == 3)

    assert [count for _, count in it.errors] == [1, 2, 1]


async def test_a_heartbeat_that_succeeds_after_failures_is_reported_once(it):
    it.database.errors["heartbeat"] = [OSError("gone"), OSError("gone")]

    async with it.running():
        await wait_until(lambda: it.database.statements.count("heartbeat") > 5)

    assert it.recoveries == [2]


@pytest.mark.parametrize(
    "error", [TimeoutError(), FakeDatabaseError("57P01"), FakeDatabaseError("53300")]
)
async def test_a_database_outage_does_not_end_the_registration(it, clock, error):
    it.database.errors["heartbeat"] = [error]

    async with it.running():
        await wait_until(lambda: len(it.errors) == 1)
        await wait_until(lambda: it.database.statements.count("heartbeat") > 1)

    assert it.lease.is_registered
    assert it.heartbeat.has_registry


@pytest.mark.parametrize("state", ["3F000", "42P01"])
async def test_a_registry_that_vanishes_ends_the_lease(it, clock, state):
    it.database.errors["heartbeat"] = [FakeDatabaseError(state)]
    clock.now += 20

    async with it.running():
        await wait_until(lambda: len(it.errors) == 1)

    # Nobody can miss this pool, so it keeps its jobs, and its id.
    assert not it.lease.is_registered
    assert it.lease.can_claim
    assert not it.heartbeat.has_registry
    assert it.told == []
    assert it.lease.pool_id == "p1"


async def test_a_registry_that_may_not_be_written_to_any_more_costs_the_id_and_its_jobs(it, clock):
    it.database.errors["heartbeat"] = [FakeDatabaseError("42501")]

    async with it.running():
        await wait_until(lambda: len(it.errors) == 1)

    # Others still see this pool there, and that it is silent.
    assert it.lease.pool_id != "p1"
    assert it.told == [("swept", "p1", it.lease.pool_id)]
    assert not it.lease.is_registered
    assert not it.heartbeat.has_registry


async def test_a_registry_that_vanished_is_looked_for_now_and_then(it, clock):
    it.database.errors["heartbeat"] = [FakeDatabaseError("42P01")]
    async with it.running():
        await wait_until(lambda: len(it.errors) == 1)
    it.database.pools.clear()
    it.database.forget()

    clock.now += REGISTRY_CHECK_INTERVAL_SECONDS
    await it.beat()
    assert it.database.statements == []

    clock.now += 1
    await it.beat(2)
    assert it.database.statements[:2] == ["has_registry", "register_pool"]
    assert it.lease.is_registered
    assert it.told == []


# Rust workers


@pytest.mark.feature("F220")
async def test_rust_workers_get_a_heartbeat_at_once_and_then_periodically(rusty, clock):
    assert rusty.database.rust == {"p1": '{"host": "here"}'}

    times: list[float] = []
    for _ in range(60):
        clock.now += 1
        rusty.database.forget()
        await rusty.beat()
        times += [clock.now] * rusty.database.statements.count("rust_heartbeat")

    gaps = {later - sooner for sooner, later in zip(times, times[1:], strict=False)}
    assert gaps == {RUST_HEARTBEAT_INTERVAL_SECONDS + 1}


@pytest.mark.feature("F220")
async def test_a_registry_of_rust_workers_that_comes_later_is_found(it, clock):
    it.database.has_rust = True

    clock.now += REGISTRY_CHECK_INTERVAL_SECONDS
    await it.beat()
    assert it.database.rust == {}

    clock.now += 1
    await it.beat()
    clock.now += RUST_HEARTBEAT_INTERVAL_SECONDS
    await it.beat()
    assert list(it.database.rust) == ["p1"]


async def test_a_registry_of_rust_workers_that_went_is_not_written_to(rusty, clock):
    rusty.database.has_rust = False

    clock.now += REGISTRY_CHECK_INTERVAL_SECONDS + 1
    await rusty.beat(3)

    assert "rust_heartbeat" not in rusty.database.statements


async def test_a_swept_pool_takes_jobs_again_though_its_registry_is_dropped_meanwhile(it):
    await it.heartbeat.register()
    it.database.pools.clear()
    it.database.errors["register_pool"] = [FakeDatabaseError("42P01")]

    with pytest.raises(FakeDatabaseError):
        await it.beat()

    assert it.lease.pool_id != "p1"
    assert it.lease.can_claim


@pytest.mark.parametrize("state", ["42883", "42P01", "42501"])
async def test_an_error_of_the_rust_registry_does_not_end_the_lease(rusty, clock, state):
    rusty.database.errors["rust_heartbeat"] = [FakeDatabaseError(state)]
    clock.now += RUST_HEARTBEAT_INTERVAL_SECONDS + 1

    async with rusty.running():
        await wait_until(lambda: rusty.errors or rusty.database.statements.count("heartbeat") > 1)

    assert rusty.lease.is_registered
    assert rusty.heartbeat.has_registry


async def test_a_pool_begins_although_rust_workers_do_not_allow_it_to_speak(clock):
    it = Scene()
    it.database.has_rust = True
    it.database.errors["rust_heartbeat"] = [FakeDatabaseError("42501")]

    await it.heartbeat.register()

    assert it.lease.is_registered


# Locks on jobs that take long


def renewals(it: Scene) -> list[tuple[object, ...]]:
    return [each.args for each in it.database.queries if each.statement == "renew_locks"]


async def test_only_locks_that_were_held_at_the_last_look_too_are_renewed(it):
    it.hold(1, queue_id=11)
    it.hold(2)
    await it.heartbeat.renew_once()
    assert renewals(it) == []

    it.hold(3, queue_id=13)
    await it.heartbeat.renew_once()
    assert renewals(it) == [(["p1"], [1, 2], [11])]

    await it.heartbeat.renew_once()
    assert renewals(it)[1:] == [(["p1"], [1, 2, 3], [11, 13])]


async def test_a_lock_that_was_let_go_is_not_renewed(it):
    short = it.hold(1)
    it.hold(2)
    await it.heartbeat.renew_once()

    it.held.remove(short)
    await it.heartbeat.renew_once()

    assert renewals(it) == [(["p1"], [2], [])]


async def test_a_job_that_was_taken_again_is_not_one_that_takes_long(it):
    first = it.hold(1)
    await it.heartbeat.renew_once()

    it.held.remove(first)
    it.hold(1)
    await it.heartbeat.renew_once()

    assert renewals(it) == []


async def test_a_pool_without_jobs_renews_nothing(it):
    for _ in range(3):
        await it.heartbeat.renew_once()

    assert it.database.queries == []


async def test_jobs_that_were_unlocked_are_reported(it):
    for job_id in (1, 2, 3):
        it.hold(job_id)
    await it.heartbeat.renew_once()
    del it.database.locks[1]
    it.database.locks[3] = "somebody else"

    await it.heartbeat.renew_once()

    assert it.told == [("lost", {1, 3})]


async def test_jobs_that_are_still_locked_are_not_reported(it):
    it.hold(1)

    for _ in range(3):
        await it.heartbeat.renew_once()

    assert it.told == []


async def test_locks_are_renewed_every_minute_whether_or_not_there_is_a_registry(clock):
    it = Scene()
    it.database.has_registry = False
    await it.heartbeat.register()
    it.hold(1)

    for _ in range(200):
        clock.now += LOCK_RENEWAL_INTERVAL_SECONDS / 20
        await it.beat()

    # Once in 21 heartbeats, of which the first only looked.
    assert len(renewals(it)) == 8


async def test_a_heartbeat_comes_before_the_renewal_that_may_take_long(it, clock):
    it.hold(1)
    clock.now += LOCK_RENEWAL_INTERVAL_SECONDS + 1
    await it.beat()
    it.database.forget()

    clock.now += LOCK_RENEWAL_INTERVAL_SECONDS + 1
    await it.beat()

    assert it.database.statements[0] == "heartbeat"
    assert it.database.statements[-1] == "renew_locks"


# Another id, because somebody unlocked jobs


async def test_the_id_is_changed_with_the_next_heartbeat(it):
    it.heartbeat.request_new_id()
    assert it.lease.pool_id == "p1"

    await it.beat()
    assert it.lease.pool_id != "p1"
    assert it.lease.pool_id in it.database.pools

    await it.beat(3)
    assert len(it.lease.pool_ids) == 2


async def test_the_id_is_changed_without_a_registry_too(clock):
    it = Scene()
    it.database.has_registry = False
    await it.heartbeat.register()
    it.hold(1)

    it.heartbeat.request_new_id()
    await it.beat(3)

    assert it.lease.pool_id != "p1"
    assert len(it.lease.pool_ids) == 2
    assert it.database.pools == {}
    assert it.told == []


async def test_an_id_that_was_changed_is_vouched_for_while_jobs_are_held_under_it(it):
    it.started = [1]
    it.hold(1)
    it.heartbeat.request_new_id()

    await it.beat(3)

    assert set(it.database.pools) == {"p1", it.lease.pool_id}
    assert it.database.pools["p1"] == [1]
    assert it.told == []


async def test_an_id_that_was_changed_is_signed_off_with_its_last_job(it):
    held = it.hold(1)
    it.heartbeat.request_new_id()
    await it.beat()
    it.hold(2)

    it.held.remove(held)
    await it.beat(2)

    assert list(it.database.pools) == [it.lease.pool_id]
    heartbeats = [each for each in it.database.queries if each.statement == "heartbeat"]
    assert heartbeats[-1].args[0] == [it.lease.pool_id]
    assert it.told == []


async def test_locks_under_both_ids_are_renewed(it):
    it.hold(1)
    it.heartbeat.request_new_id()
    await it.beat()
    it.hold(2)

    await it.heartbeat.renew_once()
    await it.heartbeat.renew_once()

    assert renewals(it) == [(sorted(it.lease.pool_ids), [1, 2], [])]
    assert it.told == []


async def test_rust_workers_get_both_ids(rusty):
    rusty.hold(1)
    rusty.heartbeat.request_new_id()

    await rusty.beat()

    assert set(rusty.database.rust) == rusty.lease.pool_ids


async def test_an_unused_id_is_removed_from_the_rust_registry(rusty, clock):
    held = rusty.hold(1)
    rusty.heartbeat.request_new_id()
    await rusty.beat()

    rusty.held.remove(held)
    await rusty.beat()
    clock.now += RUST_HEARTBEAT_INTERVAL_SECONDS + 1
    await rusty.beat()

    assert list(rusty.database.rust) == [rusty.lease.pool_id]


async def test_an_older_id_that_was_swept_costs_its_jobs_and_not_the_present_id(it):
    it.hold(1)
    it.heartbeat.request_new_id()
    await it.beat()
    present = it.lease.pool_id

    del it.database.pools["p1"]
    await it.beat(3)

    assert it.told == [("swept", "p1", present)]
    assert it.lease.pool_id == present


async def test_an_id_that_could_not_be_changed_is_changed_later(it):
    it.hold(1)
    it.heartbeat.request_new_id()
    it.database.errors["register_pool"] = [OSError("gone")]

    with pytest.raises(OSError, match="gone"):
        await it.beat()
    assert it.lease.pool_id == "p1"

    await it.beat(2)
    assert set(it.database.pools) == it.lease.pool_ids
    assert len(it.lease.pool_ids) == 2


async def test_all_lost_ids_are_reported_even_if_the_new_one_is_registered_late(it):
    it.hold(1)
    it.heartbeat.request_new_id()
    await it.beat()
    present = it.lease.pool_id
    it.database.pools.clear()
    it.database.errors["register_pool"] = [OSError("gone")]

    with pytest.raises(OSError, match="gone"):
        await it.beat()
    await it.beat()

    new = it.lease.pool_id
    assert sorted(it.told, key=str) == sorted(
        [("swept", "p1", new), ("swept", present, new)], key=str
    )


# The end


@pytest.mark.feature("F146")
async def test_a_pool_signs_off_under_all_its_ids_and_everywhere(rusty):
    held = rusty.hold(1)
    rusty.heartbeat.request_new_id()
    await rusty.beat()
    rusty.held.remove(held)

    await rusty.heartbeat.unregister()

    assert rusty.database.pools == {}
    assert rusty.database.rust == {}
    assert not rusty.lease.is_registered


async def test_a_pool_signs_off_the_ids_too_that_it_has_not_used_for_a_while(rusty):
    held = rusty.hold(1)
    rusty.heartbeat.request_new_id()
    await rusty.beat()
    rusty.held.remove(held)
    await rusty.beat()
    assert "p1" in rusty.database.rust

    await rusty.heartbeat.unregister()

    assert rusty.database.rust == {}


async def test_the_row_of_an_id_whose_fetch_may_still_lock_jobs_stays_and_is_marked(rusty):
    rusty.hold(1)
    rusty.heartbeat.request_new_id()
    await rusty.beat()

    await rusty.heartbeat.unregister()

    assert rusty.database.stopped == list(rusty.database.pools) == ["p1"]
    assert list(rusty.database.rust) == ["p1"]
    assert not rusty.lease.is_registered


async def test_a_pool_that_is_not_registered_is_not_unregistered(clock):
    it = Scene()
    it.database.has_registry = False
    await it.heartbeat.register()
    it.database.forget()

    await it.heartbeat.unregister()

    assert it.database.queries == []


# A server that may have lost commits


async def test_a_server_that_started_later_than_the_last_one_is_reported():
    it = Scene()
    await it.heartbeat.register()
    await it.beat(2)
    assert it.told == []

    it.database.server_started += 60
    await it.beat(2)

    assert it.told == ["reconnected"]


async def test_a_server_that_was_unreachable_is_reported():
    it = Scene()
    await it.heartbeat.register()
    await it.beat()
    it.database.errors["heartbeat"] = [OSError("gone")] * 3
    for _ in range(5):
        await it.heartbeat._beat_and_report()

    assert it.told == ["reconnected"]
