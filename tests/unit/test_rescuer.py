"""JobRescuer: when a pool checks for dead pools, what it recovers, and its events."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from graphile_worker._lease import lease as lease_module
from graphile_worker._lease.lease import Lease
from graphile_worker._lease.rescuer import RESCUE_TIMEOUT_SECONDS, JobRescuer
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.limits import LimitAccess
from graphile_worker._sql.queries.workers import RecoveredJob, RescueLockHolder
from graphile_worker._sql.query import Query
from graphile_worker._support.logs import Logger
from graphile_worker.events import JobRecovered, PoolEvent, RecoveryFailed
from graphile_worker.hooks import Hooks
from graphile_worker.options import RecoveryOptions
from tests.support.clocks import ManualClock
from tests.support.jobs import make_job
from tests.support.recorder import wait_until

GET_DEAD_POOLS = "get_dead_pools"
RECOVER = "recover_jobs"


class DatabaseOfDeadPools:
    """Answers each statement with a value of `answers`, or raises it."""

    schemas = Schemas("shared", "companion")

    def __init__(self) -> None:
        self.statements_run: list[str] = []
        self.args: dict[str, tuple[object, ...]] = {}
        self.answers: dict[str, Any] = {
            "get_dead_pools": [],
            "begin_rescue": True,
            "has_rescue_lock": True,
            "try_lock_rescue": True,
            "get_rescue_lock_holders": [RescueLockHolder(4711, "analyst\x1b", "psql", None)],
            "recover_jobs": [],
            "delete_dead_pools": [],
            "check_limits": LimitAccess(can_read=True, can_write=True),
        }

    async def run(self, query: Query[Any]) -> Any:
        self.args[str(query.statement)] = query.args
        return self._answer(str(query.statement))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["DatabaseOfDeadPools"]:
        self._answer("begin")
        yield self
        self._answer("commit")

    def order(self, *statements: str) -> bool:
        """Return whether these statements ran in this order."""
        return [each for each in self.statements_run if each in statements] == list(statements)

    def _answer(self, statement: str) -> Any:
        self.statements_run.append(statement)
        answer = self.answers.get(statement)
        if isinstance(answer, Exception):
            raise answer
        return list(answer) if isinstance(answer, list) else answer


class Scene:
    """The rescuer of a pool with a stable lease, and its effects."""

    def __init__(
        self,
        clock: ManualClock,
        *,
        rescue_timeout_seconds: float = RESCUE_TIMEOUT_SECONDS,
        **options: Any,
    ) -> None:
        self.database = DatabaseOfDeadPools()
        self.lease = Lease(timedelta(seconds=30), pool_id="p1")
        self.lease.renew(clock.now)
        self.events: list[PoolEvent] = []
        self.recovered_counts: list[int] = []
        self.logged: list[str] = []
        hooks = Hooks()
        hooks.on(PoolEvent)(self.events.append)
        database: Any = self.database
        self.rescuer = JobRescuer(
            database,
            self.lease,
            hooks,
            Logger(lambda scope: lambda level, message, meta: self.logged.append(message)),
            RecoveryOptions(**options),
            on_recovered=self.recovered_counts.append,
            retry_interval_seconds=0.001,
            rescue_timeout_seconds=rescue_timeout_seconds,
        )

    def dead(self, *recoveries: RecoveredJob) -> None:
        """Let pools be dead, with these jobs."""
        self.database.answers["get_dead_pools"] = ["dead1", "dead2"]
        self.database.answers["recover_jobs"] = list(recoveries)


def recovery(job_id: int, **overrides: Any) -> RecoveredJob:
    usual: dict[str, Any] = {
        "pool_id": "dead1",
        "was_started": True,
        "crash_count": 1,
        "is_quarantined": False,
    }
    return RecoveredJob(make_job(id=job_id), **{**usual, **overrides})


@pytest.fixture
def clock(monkeypatch) -> ManualClock:
    return ManualClock.patch(monkeypatch, lease_module)


@pytest.fixture
def it(clock) -> Scene:
    return Scene(clock)


# Conditions


async def test_a_pool_that_is_not_registered_does_not_check_for_dead_pools(it):
    it.lease.mark_unregistered()
    it.dead(recovery(1))

    assert await it.rescuer.rescue_once() == 0

    assert it.database.statements_run == []


async def test_a_pool_without_heartbeats_does_not_check_for_dead_pools(it, clock):
    it.dead(recovery(1))
    clock.now += 15

    assert await it.rescuer.rescue_once() == 0

    assert it.database.statements_run == []


async def test_after_a_gap_in_its_own_heartbeats_a_pool_waits_for_those_of_others(it, clock):
    it.dead(recovery(1))
    clock.now += 20
    for _ in range(6):
        it.lease.renew(clock.now)
        assert await it.rescuer.rescue_once() == 0
        clock.now += 5

    it.lease.renew(clock.now + 1)
    clock.now += 1

    assert await it.rescuer.rescue_once() == 1


@pytest.mark.feature("F221")
async def test_without_dead_pools_only_one_query_runs(it):
    assert await it.rescuer.rescue_once() == 0

    assert it.database.statements_run == [GET_DEAD_POOLS]
    assert it.events == []
    assert it.recovered_counts == []


# Another rescuer has the lock: a Rust worker, or another pool.
MISSED = ("begin_rescue", "try_lock_rescue")


@pytest.mark.feature("F221")
async def test_one_pool_recovers_at_a_time(clock):
    for statement in MISSED:
        it = Scene(clock)
        it.dead(recovery(1))
        it.database.answers[statement] = False

        assert await it.rescuer.rescue_once() == 0

        assert RECOVER not in it.database.statements_run
        assert (it.events, it.logged) == ([], [])


async def test_the_log_names_the_session_that_has_the_rescue_lock_for_three_rounds(clock):
    for statement in MISSED:
        it = Scene(clock)
        it.dead(recovery(1))
        it.database.answers[statement] = False

        assert [await it.rescuer.rescue_once() for _ in range(4)] == [0, 0, 1, 1]

        assert it.logged[0] == (
            "rescue lock not available 3 times in a row, recovering without it: held by "
            "pid=4711 role=analyst\\x1b application=psql"
        )


async def test_missed_locks_are_counted_until_a_round_has_the_lock_or_no_pool_is_dead(it):
    missed, had = {"try_lock_rescue": False}, {"try_lock_rescue": True}
    it.dead(recovery(1))

    others: list[dict[str, Any]] = [had, {GET_DEAD_POOLS: []}]
    for between in others:
        for _ in range(2):
            it.database.answers |= {GET_DEAD_POOLS: ["dead1"], **missed}
            assert await it.rescuer.rescue_once() == 0
        it.database.answers |= between
        await it.rescuer.rescue_once()

    assert it.logged == []


async def test_a_pool_without_the_rescue_lock_table_uses_the_lock_of_rust_workers(it):
    it.dead(recovery(1))
    it.database.answers |= {"has_rescue_lock": False, "try_lock_rescue": OSError("not there")}

    assert await it.rescuer.rescue_once() == 1


async def test_a_short_program_tries_three_times_to_get_the_rescue_lock(it):
    it.dead(recovery(1))
    it.database.answers["begin_rescue"] = False

    await it.rescuer.rescue_at_start()

    assert it.recovered_counts == [1]
    assert it.database.statements_run.count("begin_rescue") == 3


# Recovery


@pytest.mark.feature("F221", "F225")
async def test_jobs_of_dead_pools_are_recovered_in_one_transaction(clock):
    it = Scene(clock, crash_retry_delay=timedelta(seconds=2), max_crashes=5)
    it.dead(recovery(1), recovery(2))

    assert await it.rescuer.rescue_once() == 2

    assert it.database.order(
        GET_DEAD_POOLS, "begin", "try_lock_rescue", RECOVER, "delete_dead_pools", "commit"
    )
    # The statement checks again that the pools are dead.
    assert it.database.args["recover_jobs"] == (["dead1", "dead2"], 2_000_000, 5, False)


async def test_the_source_is_woken_with_the_number_of_recovered_jobs(it):
    it.dead(recovery(1), recovery(2), recovery(3))

    await it.rescuer.rescue_once()

    assert it.recovered_counts == [3]


async def test_dead_pools_without_jobs_wake_no_worker(it):
    it.dead()

    assert await it.rescuer.rescue_once() == 0

    assert it.recovered_counts == []
    assert it.database.statements_run[-2:] == ["commit", "delete_orphaned_progress"]


async def test_a_pool_with_locked_rows_is_recovered_again(it):
    it.dead(recovery(1))
    it.database.answers["delete_dead_pools"] = ["dead2"]
    await it.rescuer.rescue_once()

    it.database.answers |= {GET_DEAD_POOLS: [], "delete_dead_pools": []}
    await it.rescuer.rescue_once()
    assert it.database.args[RECOVER][0] == ["dead2"]

    it.database.statements_run.clear()
    await it.rescuer.rescue_once()
    assert it.database.statements_run == [GET_DEAD_POOLS]


async def test_dead_pools_are_read_under_the_current_id(it):
    it.lease.rotate_id("p2")

    await it.rescuer.rescue_once()

    assert it.database.args[GET_DEAD_POOLS] == ("p2",)


# Events


@pytest.mark.feature("F188")
async def test_each_recovered_job_is_announced_with_what_became_of_it(it):
    recoveries_found = [
        recovery(1, was_started=True, crash_count=2),
        recovery(2, was_started=False, crash_count=0, pool_id="dead2"),
        recovery(3, was_started=True, crash_count=3, is_quarantined=True),
    ]
    it.dead(*recoveries_found)

    await it.rescuer.rescue_once()

    assert it.events == [
        JobRecovered(
            pool_id="p1",
            job=each.job,
            dead_pool_id=each.pool_id,
            was_started=bool(each.was_started),
            crashes=each.crash_count,
            is_quarantined=each.is_quarantined,
        )
        for each in recoveries_found
    ]


@pytest.mark.parametrize(
    "statement", [GET_DEAD_POOLS, "begin", "try_lock_rescue", RECOVER, "commit"]
)
async def test_a_failed_recovery_emits_only_its_event(it, statement):
    error = OSError("gone")
    it.dead(recovery(1))
    it.database.answers[statement] = error

    assert await it.rescuer.rescue_once() == 0

    # Nothing is reported, because the transaction is rolled back.
    assert it.events == [RecoveryFailed(pool_id="p1", error=error)]
    assert it.recovered_counts == []


async def test_a_recovery_that_takes_too_long_is_cancelled(clock, monkeypatch):
    it = Scene(clock, rescue_timeout_seconds=0.01)

    async def never(query: Query[Any]) -> Any:
        if query.statement == RECOVER:
            await asyncio.Event().wait()
        return await DatabaseOfDeadPools.run(it.database, query)

    it.dead(recovery(1))
    monkeypatch.setattr(it.database, "run", never)
    assert await it.rescuer.rescue_once() == 0

    [failed] = it.events
    assert isinstance(failed, RecoveryFailed)
    assert isinstance(failed.error, TimeoutError)


# Repetition


async def test_a_pool_checks_for_dead_pools_periodically(clock):
    it = Scene(clock, rescue_interval=timedelta(milliseconds=1))
    it.database.answers["get_dead_pools"] = OSError("gone")

    running = asyncio.create_task(it.rescuer.run())
    await wait_until(lambda: len(it.events) > 2)
    it.dead(recovery(1))
    await wait_until(lambda: len(it.recovered_counts) > 2)
    running.cancel()
    await asyncio.wait([running])

    assert running.cancelled()
    assert {type(each) for each in it.events} == {RecoveryFailed, JobRecovered}


async def test_pools_that_start_together_recover_at_different_times(clock, monkeypatch):
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) % 3 == 0:
            raise asyncio.CancelledError

    it = Scene(clock)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    for _ in range(10):
        with pytest.raises(asyncio.CancelledError):
            await it.rescuer.run()

    first, every = waited[::3], waited[1::3] + waited[2::3]
    assert all(0 <= each <= 10 for each in first)
    assert len(set(first)) == 10
    assert set(every) == {10}


async def test_jobs_are_recovered_where_the_table_of_progress_is_missing(it):
    it.dead(recovery(1))
    it.database.answers["delete_orphaned_progress"] = OSError("gone")

    assert await it.rescuer.rescue_once() == 1

    assert [type(each) for each in it.events] == [JobRecovered]
