"""Heartbeat: registration, renewal, lost leases, and failures."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest

from graphile_worker._lease import heartbeat as heartbeat_module
from graphile_worker._lease import lease as lease_module
from graphile_worker._lease.heartbeat import Heartbeat, HeartbeatTimings, PoolCallbacks
from graphile_worker._lease.lease import Lease
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._sql.query import Query
from graphile_worker._support.logs import Logger
from graphile_worker._worker import progress as progress_module
from graphile_worker._worker.progress import RETRY_INTERVAL_SECONDS, ProgressBuffer
from tests.support.clocks import ManualClock, skip_delays
from tests.support.fake_database import FakeDatabase, FakeDatabaseError
from tests.support.jobs import make_job
from tests.support.recorder import wait_until

SCHEMAS = Schemas("shared", "companion")
THRESHOLD = timedelta(seconds=30)
AT_ONCE = timedelta(milliseconds=1)
DETAILS = {"host": "here"}
TIMINGS = HeartbeatTimings()


class Registries(FakeDatabase):
    """Two registries and the locks of jobs, as a heartbeat sees them."""

    def __init__(self) -> None:
        super().__init__()
        # Seconds of the server's clock.
        self.time = 50_000.0
        self.server_started = 40_000.0
        self.has_registry = True
        self.has_rust = False
        self.pools: dict[str, list[int]] = {}
        self.rust: dict[str, str] = {}
        self.stopped: list[str] = []
        self.locks: dict[int, str] = {}
        self.progress: dict[int, float | None] = {}
        # Errors of the next executions of a statement.
        self.errors: dict[str, list[Exception]] = {}
        self.meanwhile: Callable[[str], None] = lambda statement: None

    def answer(self, query: Query[Any]) -> Any:
        self.meanwhile(str(query.statement))
        if errors := self.errors.get(str(query.statement)):
            raise errors.pop(0)
        answer = getattr(self, f"_{query.statement}")
        return query.read(answer(*query.args))

    def forget(self) -> None:
        """Forget the statements so far."""
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

    def _write_progress(self, reports: str, ended: list[int], pool_ids: list[str]) -> list[Any]:
        self.progress |= {each["id"]: each["fraction"] for each in json.loads(reports)}
        for each in ended:
            self.progress.pop(each, None)
        return []

    def _delete_orphaned_progress(self) -> list[Any]:
        return []


class Scene:
    """A heartbeat, its pool, and the reports to the pool."""

    def __init__(
        self,
        *,
        threshold: timedelta | None = THRESHOLD,
        every: timedelta | None = AT_ONCE,
        timings: HeartbeatTimings = TIMINGS,
        limits: Mapping[str, list[str]] | None = None,
    ) -> None:
        self.database = Registries()
        self.lease = Lease(threshold, pool_id="p1")
        self.started: list[int] = []
        self.claimed: list[ClaimedJob] = []
        self.reports: list[object] = []
        self.errors: list[tuple[str, int]] = []
        self.recoveries: list[int] = []
        self.logged: list[str] = []
        self.progress = ProgressBuffer(
            Logger(lambda scope: lambda level, message, meta: self.logged.append(message))
        )
        database: Any = self.database
        self.heartbeat = Heartbeat(
            database,
            SCHEMAS,
            self.lease,
            PoolCallbacks(
                started_ids=lambda: self.started,
                claimed=lambda: list(self.claimed),
                ids_in_use=lambda: {each.pool_id for each in self.claimed},
                on_lease_lost=lambda old, new: self.reports.append(("swept", old, new)),
                on_jobs_lost=lambda job_ids: self.reports.append(("lost", job_ids)),
                on_error=lambda error, count: self.errors.append((str(error), count)),
                on_reconnected=lambda: self.reports.append("reconnected"),
                on_recovered=lambda: self.recoveries.append(len(self.errors)),
            ),
            lease_duration=threshold,
            interval=every,
            details=DETAILS if limits is None else {**DETAILS, "limits": limits},
            progress=self.progress,
            timings=timings,
        )

    def claim(self, job_id: int, queue_id: int | None = None) -> ClaimedJob:
        """Claim a job under the current id of the pool."""
        pool_id = self.lease.pool_id
        self.database.locks[job_id] = pool_id
        claimed = ClaimedJob(make_job(id=job_id, locked_by=pool_id), queue_id)
        self.claimed.append(claimed)
        return claimed

    async def beat(self, times: int = 1) -> None:
        for _ in range(times):
            await self.heartbeat.beat_once()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Let the heartbeat run, and raise an error that ends it."""
        running = asyncio.create_task(self.heartbeat.run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.wait([running])
        assert running.cancelled(), running.exception()


@pytest.fixture
def clock(monkeypatch) -> ManualClock:
    return ManualClock.patch(monkeypatch, lease_module, heartbeat_module, progress_module)


@pytest.fixture
async def it(clock) -> Scene:
    """A registered pool."""
    it = Scene()
    await it.heartbeat.register()
    it.database.forget()
    return it


@pytest.fixture
async def with_rust(clock) -> Scene:
    """A pool that is also in the registry of Rust workers."""
    it = Scene()
    it.database.has_rust = True
    await it.heartbeat.register()
    it.database.forget()
    return it


@pytest.fixture(autouse=True)
def pauses(monkeypatch) -> list[int]:
    return skip_delays(monkeypatch, heartbeat_module)


# Registration


@pytest.mark.feature("F220")
async def test_a_pool_is_entered_with_its_lease_and_what_people_want_to_know(clock):
    it = Scene()

    await it.heartbeat.register()

    registered = next(each for each in it.database.queries if each.statement == "register_pool")
    pool_id, lease, details = registered.args
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

    clock.now += TIMINGS.registry_check_interval_seconds
    await it.beat()
    assert it.database.pools == {}

    clock.now += 1
    await it.beat()
    assert list(it.database.pools) == ["p1"]
    assert it.lease.is_registered


async def test_a_failed_registration_in_a_late_registry_is_not_a_lost_lease(clock):
    it = Scene()
    it.database.has_registry = False
    await it.heartbeat.register()
    it.database.has_registry = True
    it.database.errors["register_pool"] = [OSError("gone")]
    clock.now += TIMINGS.registry_check_interval_seconds + 1
    with pytest.raises(OSError, match="gone"):
        await it.beat()

    await it.beat()

    assert it.reports == []
    assert it.lease.pool_id == "p1"


# Heartbeats


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


async def test_a_heartbeat_returns_the_time_of_the_server(it, clock):
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
async def test_the_query_timeout_is_a_third_of_the_lease_within_limits(
    clock, monkeypatch, threshold, seconds
):
    limits: list[float] = []

    def timeout(limit: float) -> asyncio.Timeout:
        limits.append(limit)
        return asyncio.timeout(limit)

    fake_asyncio = type("asyncio", (), {"timeout": staticmethod(timeout)})
    monkeypatch.setattr(heartbeat_module, "asyncio", fake_asyncio)
    it = Scene(threshold=None if threshold is None else timedelta(seconds=threshold))
    await it.heartbeat.register()
    # There is no lease yet that could expire.
    assert set(limits) == {TIMINGS.max_query_timeout_seconds}

    limits.clear()
    await it.beat()
    # Without a registry it sends no heartbeat.
    assert set(limits) == ({seconds} if threshold else set())


async def test_a_heartbeat_without_an_answer_times_out():
    it = Scene(timings=HeartbeatTimings(max_query_timeout_seconds=0.01))
    it.database.answering.clear()

    with pytest.raises(TimeoutError, match=r"no answer within 0\.01 s"):
        await it.heartbeat.register()


# Lost leases


@pytest.mark.feature("F220")
async def test_a_pool_with_a_lost_lease_continues_under_an_id_that_is_registered_first(it):
    under: list[str] = []

    def record_id(statement: str) -> None:
        if statement == "register_pool":
            under.append(it.lease.pool_id)
            # The pool knows of its loss by now.
            assert len(it.reports) == 1

    it.database.meanwhile = record_id
    it.database.pools.clear()
    await it.beat()

    # Jobs that are claimed under an unregistered id would never be recovered.
    assert under == ["p1"]
    assert it.lease.pool_id != "p1"
    assert list(it.database.pools) == [it.lease.pool_id]


@pytest.mark.parametrize("has_limits", [True, False])
async def test_a_pool_with_limits_registers_a_new_id_with_its_first_start(clock, has_limits):
    it = Scene(limits={"task": ["api"]} if has_limits else None)
    await it.heartbeat.register()
    clock.now += 5
    await it.beat()
    for _ in range(2):
        it.database.pools.clear()
        clock.now += 100
        it.database.time += 100
        await it.beat()

    first, *others = [
        json.loads(str(each.args[2]))
        for each in it.database.queries
        if each.statement == "register_pool"
    ]

    assert "first_started_at" not in first
    first_start = it.database.time - 200 - 5 if has_limits else None
    assert [each.get("first_started_at") for each in others] == [first_start] * 2


async def test_a_lost_lease_is_reported_once_with_the_new_id(it):
    it.database.pools.clear()

    await it.beat(5)

    assert it.reports == [("swept", "p1", it.lease.pool_id)]
    assert it.lease.pool_ids == {"p1", it.lease.pool_id}


async def test_a_lease_starts_again_under_the_new_id(it, clock):
    it.database.pools.clear()
    clock.now += 1000

    await it.beat()

    assert it.lease.seconds_since_heartbeat == 0


async def test_a_pool_gets_a_new_id_each_time_its_lease_is_lost(it):
    for _ in range(5):
        it.database.pools.clear()
        await it.beat()

    assert len(it.reports) == 5
    assert len(it.lease.pool_ids) == 6


async def test_while_the_new_id_cannot_be_entered_nothing_goes_on_under_it(it):
    it.database.pools.clear()
    it.database.errors["register_pool"] = [OSError("gone")] * 3

    for _ in range(3):
        with pytest.raises(OSError, match="gone"):
            await it.beat()
        assert it.lease.pool_id == "p1"
        assert not it.lease.can_claim

    # Its jobs are lost all the same, so this was reported at once.
    await it.beat()
    assert it.lease.can_claim
    assert it.reports == [("swept", "p1", it.lease.pool_id)]


async def test_rust_workers_get_the_new_id_at_once_and_the_old_one_is_removed(with_rust):
    with_rust.database.pools.clear()

    await with_rust.beat()

    assert list(with_rust.database.rust) == [with_rust.lease.pool_id]


async def test_a_lost_lease_is_reported_even_if_the_rust_registry_fails(with_rust):
    with_rust.database.pools.clear()
    with_rust.database.errors["rust_heartbeat"] = [OSError("gone")]

    with suppress(OSError):
        await with_rust.beat()
    await with_rust.beat()

    assert with_rust.reports == [("swept", "p1", with_rust.lease.pool_id)]


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

    # No pool can recover these jobs, so this pool keeps its jobs and its id.
    assert not it.lease.is_registered
    assert it.lease.can_claim
    assert not it.heartbeat.has_registry
    assert it.reports == []
    assert it.lease.pool_id == "p1"


async def test_a_registry_that_may_not_be_written_to_any_more_costs_the_id_and_its_jobs(it, clock):
    it.database.errors["heartbeat"] = [FakeDatabaseError("42501")]

    async with it.running():
        await wait_until(lambda: len(it.errors) == 1)

    # Other pools still see this one in the registry, without heartbeats.
    assert it.lease.pool_id != "p1"
    assert it.reports == [("swept", "p1", it.lease.pool_id)]
    assert not it.lease.is_registered
    assert not it.heartbeat.has_registry


async def test_a_registry_that_vanished_is_checked_at_intervals(it, clock):
    it.database.errors["heartbeat"] = [FakeDatabaseError("42P01")]
    async with it.running():
        await wait_until(lambda: len(it.errors) == 1)
    it.database.pools.clear()
    it.database.forget()

    clock.now += TIMINGS.registry_check_interval_seconds
    await it.beat()
    assert it.database.statements == []

    clock.now += 1
    await it.beat(2)
    assert it.database.statements[:2] == ["has_registry", "register_pool"]
    assert it.lease.is_registered
    assert it.reports == []


# Rust workers


@pytest.mark.feature("F220")
async def test_rust_workers_get_a_heartbeat_at_once_and_then_periodically(with_rust, clock):
    assert with_rust.database.rust == {"p1": '{"host": "here"}'}

    times: list[float] = []
    for _ in range(60):
        clock.now += 1
        with_rust.database.forget()
        await with_rust.beat()
        times += [clock.now] * with_rust.database.statements.count("rust_heartbeat")

    gaps = {later - sooner for sooner, later in zip(times, times[1:], strict=False)}
    assert gaps == {TIMINGS.rust_heartbeat_interval_seconds + 1}


@pytest.mark.feature("F220")
async def test_a_registry_of_rust_workers_that_comes_later_is_found(it, clock):
    it.database.has_rust = True

    clock.now += TIMINGS.registry_check_interval_seconds
    await it.beat()
    assert it.database.rust == {}

    clock.now += 1
    await it.beat()
    clock.now += TIMINGS.rust_heartbeat_interval_seconds
    await it.beat()
    assert list(it.database.rust) == ["p1"]


async def test_a_registry_of_rust_workers_that_went_is_not_written_to(with_rust, clock):
    with_rust.database.has_rust = False

    clock.now += TIMINGS.registry_check_interval_seconds + 1
    await with_rust.beat(3)

    assert "rust_heartbeat" not in with_rust.database.statements


async def test_a_pool_with_a_lost_lease_claims_again_though_its_registry_is_dropped_meanwhile(it):
    await it.heartbeat.register()
    it.database.pools.clear()
    it.database.errors["register_pool"] = [FakeDatabaseError("42P01")]

    with pytest.raises(FakeDatabaseError):
        await it.beat()

    assert it.lease.pool_id != "p1"
    assert it.lease.can_claim


@pytest.mark.parametrize("state", ["42883", "42P01", "42501"])
async def test_an_error_of_the_rust_registry_does_not_end_the_lease(with_rust, clock, state):
    with_rust.database.errors["rust_heartbeat"] = [FakeDatabaseError(state)]
    clock.now += TIMINGS.rust_heartbeat_interval_seconds + 1

    async with with_rust.running():
        await wait_until(
            lambda: with_rust.errors or with_rust.database.statements.count("heartbeat") > 1
        )

    assert with_rust.lease.is_registered
    assert with_rust.heartbeat.has_registry


async def test_a_pool_begins_although_rust_workers_do_not_allow_it_to_speak(clock):
    it = Scene()
    it.database.has_rust = True
    it.database.errors["rust_heartbeat"] = [FakeDatabaseError("42501")]

    await it.heartbeat.register()

    assert it.lease.is_registered


# Locks of long jobs


def renewals(it: Scene) -> list[tuple[object, ...]]:
    return [each.args for each in it.database.queries if each.statement == "renew_locks"]


async def test_only_locks_that_were_held_at_the_last_renewal_are_renewed(it):
    it.claim(1, queue_id=11)
    it.claim(2)
    await it.heartbeat.renew_once()
    assert renewals(it) == []

    it.claim(3, queue_id=13)
    await it.heartbeat.renew_once()
    assert renewals(it) == [(["p1"], [1, 2], [11])]

    await it.heartbeat.renew_once()
    assert renewals(it)[1:] == [(["p1"], [1, 2, 3], [11, 13])]


async def test_a_lock_that_was_let_go_is_not_renewed(it):
    short = it.claim(1)
    it.claim(2)
    await it.heartbeat.renew_once()

    it.claimed.remove(short)
    await it.heartbeat.renew_once()

    assert renewals(it) == [(["p1"], [2], [])]


async def test_a_job_that_was_claimed_again_is_not_a_long_job(it):
    first = it.claim(1)
    await it.heartbeat.renew_once()

    it.claimed.remove(first)
    it.claim(1)
    await it.heartbeat.renew_once()

    assert renewals(it) == []


async def test_a_pool_without_jobs_renews_nothing(it):
    for _ in range(3):
        await it.heartbeat.renew_once()

    assert it.database.queries == []


async def test_jobs_that_were_unlocked_are_reported(it):
    for job_id in (1, 2, 3):
        it.claim(job_id)
    await it.heartbeat.renew_once()
    del it.database.locks[1]
    it.database.locks[3] = "somebody else"

    await it.heartbeat.renew_once()

    assert it.reports == [("lost", {1, 3})]


async def test_jobs_that_are_still_locked_are_not_reported(it):
    it.claim(1)

    for _ in range(3):
        await it.heartbeat.renew_once()

    assert it.reports == []


async def test_locks_are_renewed_every_minute_whether_or_not_there_is_a_registry(clock):
    it = Scene()
    it.database.has_registry = False
    await it.heartbeat.register()
    it.claim(1)

    for _ in range(200):
        clock.now += TIMINGS.lock_renewal_interval_seconds / 20
        await it.beat()

    # Once in 21 heartbeats. The first one only reads the claimed jobs.
    assert len(renewals(it)) == 8


async def test_a_heartbeat_is_sent_before_a_slow_renewal(it, clock):
    it.claim(1)
    clock.now += TIMINGS.lock_renewal_interval_seconds + 1
    await it.beat()
    it.database.forget()

    clock.now += TIMINGS.lock_renewal_interval_seconds + 1
    await it.beat()

    assert it.database.statements[0] == "heartbeat"
    assert it.database.statements[-1] == "renew_locks"


# A new id after jobs were unlocked


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
    it.claim(1)

    it.heartbeat.request_new_id()
    await it.beat(3)

    assert it.lease.pool_id != "p1"
    assert len(it.lease.pool_ids) == 2
    assert it.database.pools == {}
    assert it.reports == []


async def test_a_former_id_gets_heartbeats_while_it_holds_jobs(it):
    it.started = [1]
    it.claim(1)
    it.heartbeat.request_new_id()

    await it.beat(3)

    assert set(it.database.pools) == {"p1", it.lease.pool_id}
    assert it.database.pools["p1"] == [1]
    assert it.reports == []


async def test_an_id_that_was_changed_is_signed_off_with_its_last_job(it):
    claimed = it.claim(1)
    it.heartbeat.request_new_id()
    await it.beat()
    it.claim(2)

    it.claimed.remove(claimed)
    await it.beat(2)

    assert list(it.database.pools) == [it.lease.pool_id]
    heartbeats = [each for each in it.database.queries if each.statement == "heartbeat"]
    assert heartbeats[-1].args[0] == [it.lease.pool_id]
    assert it.reports == []


async def test_locks_under_both_ids_are_renewed(it):
    it.claim(1)
    it.heartbeat.request_new_id()
    await it.beat()
    it.claim(2)

    await it.heartbeat.renew_once()
    await it.heartbeat.renew_once()

    assert renewals(it) == [(sorted(it.lease.pool_ids), [1, 2], [])]
    assert it.reports == []


async def test_rust_workers_get_both_ids(with_rust):
    with_rust.claim(1)
    with_rust.heartbeat.request_new_id()

    await with_rust.beat()

    assert set(with_rust.database.rust) == with_rust.lease.pool_ids


async def test_an_unused_id_is_removed_from_the_rust_registry(with_rust, clock):
    claimed = with_rust.claim(1)
    with_rust.heartbeat.request_new_id()
    await with_rust.beat()

    with_rust.claimed.remove(claimed)
    await with_rust.beat()
    clock.now += TIMINGS.rust_heartbeat_interval_seconds + 1
    await with_rust.beat()

    assert list(with_rust.database.rust) == [with_rust.lease.pool_id]


async def test_a_former_id_that_was_recovered_loses_its_jobs_and_not_the_current_id(it):
    it.claim(1)
    it.heartbeat.request_new_id()
    await it.beat()
    present = it.lease.pool_id

    del it.database.pools["p1"]
    await it.beat(3)

    assert it.reports == [("swept", "p1", present)]
    assert it.lease.pool_id == present


async def test_an_id_that_could_not_be_changed_is_changed_later(it):
    it.claim(1)
    it.heartbeat.request_new_id()
    it.database.errors["register_pool"] = [OSError("gone")]

    with pytest.raises(OSError, match="gone"):
        await it.beat()
    assert it.lease.pool_id == "p1"

    await it.beat(2)
    assert set(it.database.pools) == it.lease.pool_ids
    assert len(it.lease.pool_ids) == 2


async def test_all_lost_ids_are_reported_even_if_the_new_one_is_registered_late(it):
    it.claim(1)
    it.heartbeat.request_new_id()
    await it.beat()
    present = it.lease.pool_id
    it.database.pools.clear()
    it.database.errors["register_pool"] = [OSError("gone")]

    with pytest.raises(OSError, match="gone"):
        await it.beat()
    await it.beat()

    new = it.lease.pool_id
    assert sorted(it.reports, key=str) == sorted(
        [("swept", "p1", new), ("swept", present, new)], key=str
    )


# Shutdown


@pytest.mark.feature("F146")
async def test_a_pool_signs_off_under_all_its_ids_and_everywhere(with_rust):
    claimed = with_rust.claim(1)
    with_rust.heartbeat.request_new_id()
    await with_rust.beat()
    with_rust.claimed.remove(claimed)

    await with_rust.heartbeat.unregister()

    assert with_rust.database.pools == {}
    assert with_rust.database.rust == {}
    assert not with_rust.lease.is_registered


async def test_a_pool_signs_off_the_ids_too_that_it_has_not_used_for_a_while(with_rust):
    claimed = with_rust.claim(1)
    with_rust.heartbeat.request_new_id()
    await with_rust.beat()
    with_rust.claimed.remove(claimed)
    await with_rust.beat()
    assert "p1" in with_rust.database.rust

    await with_rust.heartbeat.unregister()

    assert with_rust.database.rust == {}


async def test_the_row_of_an_id_whose_fetch_may_still_lock_jobs_stays_and_is_marked(with_rust):
    with_rust.claim(1)
    with_rust.heartbeat.request_new_id()
    await with_rust.beat()

    await with_rust.heartbeat.unregister()

    assert with_rust.database.stopped == list(with_rust.database.pools) == ["p1"]
    assert list(with_rust.database.rust) == ["p1"]
    assert not with_rust.lease.is_registered


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
    assert it.reports == []

    it.database.server_started += 60
    await it.beat(2)

    assert it.reports == ["reconnected"]


async def test_a_server_that_was_unreachable_is_reported():
    it = Scene()
    await it.heartbeat.register()
    await it.beat()
    it.database.errors["heartbeat"] = [OSError("gone")] * 3
    for _ in range(5):
        await it.heartbeat._beat_and_report()

    assert it.reports == ["reconnected"]


# Progress


async def beat_and_report(it: Scene, times: int = 1) -> None:
    for _ in range(times):
        await it.heartbeat._beat_and_report()


async def test_progress_is_written_with_the_next_heartbeat_and_deleted_with_one_after_the_end(it):
    claimed = it.claim(7)
    await beat_and_report(it)
    assert it.database.statements == ["heartbeat"]

    for fraction in (0.1, 0.2, 0.3):
        it.progress.add(claimed, fraction, None)
    await beat_and_report(it, 2)
    assert it.database.progress == {7: 0.3}
    # The first write also deletes the progress of dead processes.
    assert it.database.statements[1:] == [
        "heartbeat",
        "write_progress",
        "delete_orphaned_progress",
        "heartbeat",
    ]

    it.claimed.remove(claimed)
    it.database.forget()
    await beat_and_report(it, 2)
    assert it.database.progress == {}
    assert it.database.statements == ["heartbeat", "write_progress", "heartbeat"]


async def test_progress_of_a_job_that_ended_before_the_heartbeat_is_not_written(it):
    claimed = it.claim(7)
    it.progress.add(claimed, 0.1, None)
    it.claimed.remove(claimed)

    await beat_and_report(it)

    assert it.database.statements == ["heartbeat"]


@pytest.mark.parametrize(
    "error", [OSError("gone"), FakeDatabaseError("42P01"), FakeDatabaseError("25006")], ids=str
)
async def test_heartbeats_go_on_while_progress_cannot_be_written(it, clock, error):
    claimed = it.claim(7)
    it.database.errors["write_progress"] = [error] * 2
    for fraction in (0.1, 0.2):
        it.progress.add(claimed, fraction, None)
        await beat_and_report(it, 3)
        clock.now += RETRY_INTERVAL_SECONDS

    assert it.database.statements.count("heartbeat") == 6
    assert it.database.statements.count("write_progress") == 2
    assert [each.partition(":")[0] for each in it.logged] == [
        "writing progress failed, retrying every 30 s"
    ]
    await beat_and_report(it)
    assert it.database.progress == {7: 0.2}
    assert (it.errors, it.reports) == ([], [])


@pytest.mark.parametrize("error", [OSError("gone"), FakeDatabaseError("57014")], ids=str)
async def test_progress_is_written_and_deleted_while_that_of_dead_processes_cannot_be_deleted(
    it, clock, error
):
    claimed = it.claim(7)
    it.database.errors["delete_orphaned_progress"] = [error]
    for fraction in (0.1, 0.2):
        it.progress.add(claimed, fraction, None)
        await beat_and_report(it)
        assert it.database.progress == {7: fraction}
    assert it.database.statements.count("delete_orphaned_progress") == 1
    assert [each.partition(":")[0] for each in it.logged] == [
        "deleting progress of dead processes failed, retrying in 30 s"
    ]

    clock.now += RETRY_INTERVAL_SECONDS
    it.claimed.remove(claimed)
    await beat_and_report(it)
    assert it.database.progress == {}
    assert it.database.statements.count("delete_orphaned_progress") == 2


async def test_progress_waits_for_a_heartbeat_that_succeeds(it):
    claimed = it.claim(7)
    it.progress.add(claimed, 0.1, None)
    it.database.errors["heartbeat"] = [OSError("gone")]

    await beat_and_report(it)
    assert "write_progress" not in it.database.statements
    await beat_and_report(it)

    assert it.database.progress == {7: 0.1}


async def test_without_recovery_progress_is_written_too(clock):
    it = Scene(threshold=None)
    await it.heartbeat.register()
    it.progress.add(it.claim(7), 0.1, None)

    await beat_and_report(it)

    assert it.database.progress == {7: 0.1}


async def test_a_write_of_progress_may_take_half_of_the_interval(clock):
    for every, seconds in ((30, 5), (6, 3), (1, 1)):
        it = Scene(every=timedelta(seconds=every))
        await it.heartbeat.register()
        limits: list[float | None] = []

        async def run(query: Query[Any], limit: float | None, limits: Any = limits) -> None:
            limits.append(limit)

        it.heartbeat._run_query = run  # type: ignore[method-assign,assignment]
        it.progress.add(it.claim(7), 0.1, None)
        await it.heartbeat.flush_progress()

        assert limits == [seconds, seconds]
