"""JobRescuer: when a pool looks for dead ones, what it takes from them, and what it says of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from graphile_worker._lease import lease as lease_module
from graphile_worker._lease.lease import Lease
from graphile_worker._lease.rescuer import JobRescuer
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.workers import RecoveredJob, RescueLockHolder
from graphile_worker._sql.query import Query
from graphile_worker._support.logs import Logger
from graphile_worker.events import JobRecovered, PoolEvent, RecoveryFailed
from graphile_worker.hooks import Hooks
from graphile_worker.options import RecoveryOptions
from tests.support.clocks import ManualClock
from tests.support.jobs import make_job
from tests.support.recorder import wait_until

LOOK = "get_dead_pools"
TAKE = "recover_jobs"


class DatabaseOfDeadPools:
    """Answers each statement with what is said here; an error is raised."""

    schemas = Schemas("shared", "companion")

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.args: dict[str, tuple[object, ...]] = {}
        self.answers: dict[str, Any] = {
            "get_dead_pools": [],
            "begin_rescue": True,
            "has_rescue_lock": True,
            "try_lock_rescue": True,
            "get_rescue_lock_holders": [RescueLockHolder(4711, "analyst\x1b", "psql", None)],
            "recover_jobs": [],
            "delete_dead_pools": [],
        }

    async def run(self, query: Query[Any]) -> Any:
        self.args[query.name] = query.args
        return self._answer(query.name)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["DatabaseOfDeadPools"]:
        self._answer("begin")
        yield self
        self._answer("commit")

    def order(self, *statements: str) -> bool:
        """Were these asked, one after the other?"""
        return [each for each in self.asked if each in statements] == list(statements)

    def _answer(self, statement: str) -> Any:
        self.asked.append(statement)
        answer = self.answers.get(statement)
        if isinstance(answer, Exception):
            raise answer
        return list(answer) if isinstance(answer, list) else answer


class Scene:
    """A pool that is known and has been heard all the time, and what it did."""

    def __init__(self, clock: ManualClock, **options: Any) -> None:
        self.database = DatabaseOfDeadPools()
        self.lease = Lease(timedelta(seconds=30), pool_id="p1")
        self.lease.renew(clock.now)
        self.events: list[PoolEvent] = []
        self.nudged: list[int] = []
        self.said: list[str] = []
        hooks = Hooks()
        hooks.on(PoolEvent)(self.events.append)
        database: Any = self.database
        self.sweeper = JobRescuer(
            database,
            self.lease,
            hooks,
            Logger(lambda scope: lambda level, message, meta: self.said.append(message)),
            RecoveryOptions(**options),
            on_recovered=self.nudged.append,
            retry_interval_seconds=0.001,
        )

    def dead(self, *recoveries: RecoveredJob) -> None:
        """Pools that are silent now, and what they left."""
        self.database.answers["get_dead_pools"] = ["dead1", "dead2"]
        self.database.answers["recover_jobs"] = list(recoveries)


def recovery(job_id: int, **given: Any) -> RecoveredJob:
    usual: dict[str, Any] = {
        "pool_id": "dead1",
        "was_started": True,
        "crash_count": 1,
        "is_quarantined": False,
    }
    return RecoveredJob(make_job(id=job_id), **{**usual, **given})


@pytest.fixture
def clock(monkeypatch) -> ManualClock:
    return ManualClock.patch(monkeypatch, lease_module)


@pytest.fixture
def it(clock) -> Scene:
    return Scene(clock)


# Whether


async def test_a_pool_that_is_not_registered_does_not_look_for_dead_pools(it):
    it.lease.mark_unregistered()
    it.dead(recovery(1))

    assert await it.sweeper.rescue_once() == 0

    assert it.database.asked == []


async def test_a_pool_without_heartbeats_does_not_look_for_dead_pools(it, clock):
    it.dead(recovery(1))
    clock.now += 15

    assert await it.sweeper.rescue_once() == 0

    assert it.database.asked == []


async def test_after_a_gap_in_its_own_heartbeats_a_pool_waits_for_those_of_others(it, clock):
    it.dead(recovery(1))
    clock.now += 20
    for _ in range(6):
        it.lease.renew(clock.now)
        assert await it.sweeper.rescue_once() == 0
        clock.now += 5

    it.lease.renew(clock.now + 1)
    clock.now += 1

    assert await it.sweeper.rescue_once() == 1


@pytest.mark.feature("F221")
async def test_without_dead_pools_only_one_query_runs(it):
    assert await it.sweeper.rescue_once() == 0

    assert it.database.asked == [LOOK]
    assert it.events == []
    assert it.nudged == []


# What keeps a pool from its turn: a Rust worker sweeps, or another pool does.
MISSED = ("begin_rescue", "try_lock_rescue")


@pytest.mark.feature("F221")
async def test_one_pool_sweeps_at_a_time(clock):
    for statement in MISSED:
        it = Scene(clock)
        it.dead(recovery(1))
        it.database.answers[statement] = False

        assert await it.sweeper.rescue_once() == 0

        assert TAKE not in it.database.asked
        assert (it.events, it.said) == ([], [])


async def test_a_turn_missed_three_times_in_a_row_is_held_by_a_session_that_the_log_names(clock):
    for statement in MISSED:
        it = Scene(clock)
        it.dead(recovery(1))
        it.database.answers[statement] = False

        assert [await it.sweeper.rescue_once() for _ in range(4)] == [0, 0, 1, 1]

        assert it.said[0] == (
            "rescue lock not available 3 times in a row, recovering without it: held by "
            "pid=4711 role=analyst\\x1b application=psql"
        )


async def test_turns_are_missed_in_a_row_while_no_turn_was_had_and_some_pool_is_silent(it):
    missed, had = {"try_lock_rescue": False}, {"try_lock_rescue": True}
    it.dead(recovery(1))

    others: list[dict[str, Any]] = [had, {LOOK: []}]
    for between in others:
        for _ in range(2):
            it.database.answers |= {LOOK: ["dead1"], **missed}
            assert await it.sweeper.rescue_once() == 0
        it.database.answers |= between
        await it.sweeper.rescue_once()

    assert it.said == []


async def test_a_pool_without_the_table_of_turns_sweeps_as_rust_workers_let_it(it):
    it.dead(recovery(1))
    it.database.answers |= {"has_rescue_lock": False, "try_lock_rescue": OSError("not there")}

    assert await it.sweeper.rescue_once() == 1


async def test_a_program_that_does_not_stay_tries_three_times_to_have_its_turn(it):
    it.dead(recovery(1))
    it.database.answers["begin_rescue"] = False

    await it.sweeper.rescue_at_start()

    assert it.nudged == [1]
    assert it.database.asked.count("begin_rescue") == 3


# What


@pytest.mark.feature("F221", "F225")
async def test_silent_pools_lose_their_jobs_in_one_transaction(clock):
    it = Scene(clock, crash_retry_delay=timedelta(seconds=2), max_crashes=5)
    it.dead(recovery(1), recovery(2))

    assert await it.sweeper.rescue_once() == 2

    assert it.database.order(LOOK, "begin", "try_lock_rescue", TAKE, "delete_dead_pools", "commit")
    # Whether they are silent is asked again there, as nobody has said that they are dead.
    assert it.database.args["recover_jobs"] == (["dead1", "dead2"], 2_000_000, 5, False)


async def test_the_source_is_woken_with_the_number_of_recovered_jobs(it):
    it.dead(recovery(1), recovery(2), recovery(3))

    await it.sweeper.rescue_once()

    assert it.nudged == [3]


async def test_dead_pools_without_jobs_wake_no_worker(it):
    it.dead()

    assert await it.sweeper.rescue_once() == 0

    assert it.nudged == []
    assert it.database.asked[-1] == "commit"


async def test_a_pool_of_which_something_is_left_is_swept_again(it):
    it.dead(recovery(1))
    it.database.answers["delete_dead_pools"] = ["dead2"]
    await it.sweeper.rescue_once()

    it.database.answers |= {LOOK: [], "delete_dead_pools": []}
    await it.sweeper.rescue_once()
    assert it.database.args[TAKE][0] == ["dead2"]

    it.database.asked.clear()
    await it.sweeper.rescue_once()
    assert it.database.asked == [LOOK]


async def test_dead_pools_are_read_under_the_current_id(it):
    it.lease.rotate_id("p2")

    await it.sweeper.rescue_once()

    assert it.database.args[LOOK] == ("p2",)


# What is said


@pytest.mark.feature("F188")
async def test_each_recovered_job_is_announced_with_what_became_of_it(it):
    found = [
        recovery(1, was_started=True, crash_count=2),
        recovery(2, was_started=False, crash_count=0, pool_id="dead2"),
        recovery(3, was_started=True, crash_count=3, is_quarantined=True),
    ]
    it.dead(*found)

    await it.sweeper.rescue_once()

    assert it.events == [
        JobRecovered(
            pool_id="p1",
            job=each.job,
            dead_pool_id=each.pool_id,
            was_started=bool(each.was_started),
            crashes=each.crash_count,
            is_quarantined=each.is_quarantined,
        )
        for each in found
    ]


@pytest.mark.parametrize("statement", [LOOK, "begin", "try_lock_rescue", TAKE, "commit"])
async def test_a_sweep_that_fails_is_announced_and_nothing_else_is(it, statement):
    error = OSError("gone")
    it.dead(recovery(1))
    it.database.answers[statement] = error

    assert await it.sweeper.rescue_once() == 0

    # Not even what was taken, for all of that is undone.
    assert it.events == [RecoveryFailed(pool_id="p1", error=error)]
    assert it.nudged == []


async def test_a_sweep_that_takes_too_long_is_given_up(it, monkeypatch):
    it.sweeper._rescue_timeout_seconds = 0.01

    async def never(query: Query[Any]) -> Any:
        if query.statement == TAKE:
            await asyncio.Event().wait()
        return await DatabaseOfDeadPools.run(it.database, query)

    it.dead(recovery(1))
    monkeypatch.setattr(it.database, "run", never)
    assert await it.sweeper.rescue_once() == 0

    [failed] = it.events
    assert isinstance(failed, RecoveryFailed)
    assert isinstance(failed.error, TimeoutError)


# Again and again


async def test_a_pool_looks_for_dead_pools_periodically(clock):
    it = Scene(clock, rescue_interval=timedelta(milliseconds=1))
    it.database.answers["get_dead_pools"] = OSError("gone")

    running = asyncio.create_task(it.sweeper.run())
    await wait_until(lambda: len(it.events) > 2)
    it.dead(recovery(1))
    await wait_until(lambda: len(it.nudged) > 2)
    running.cancel()
    await asyncio.wait([running])

    assert running.cancelled()
    assert {type(each) for each in it.events} == {RecoveryFailed, JobRecovered}


async def test_pools_that_start_together_sweep_at_different_times(clock, monkeypatch):
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) % 3 == 0:
            raise asyncio.CancelledError

    it = Scene(clock)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    for _ in range(10):
        with pytest.raises(asyncio.CancelledError):
            await it.sweeper.run()

    first, every = waited[::3], waited[1::3] + waited[2::3]
    assert all(0 <= each <= 10 for each in first)
    assert len(set(first)) == 10
    assert set(every) == {10}
