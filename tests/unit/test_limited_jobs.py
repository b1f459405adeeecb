"""LimitedJobs: which group of tasks claims a job for a worker, and when permits are given back."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from graphile_worker._lease import lease as lease_module
from graphile_worker._lease.lease import Lease
from graphile_worker._sql.queries.claim import ClaimedJob, ReadyCheck
from graphile_worker._sql.queries.limits import (
    RentedSlot,
    TakenTokens,
    WatchedLimit,
    get_kind,
)
from graphile_worker._sql.query import Query
from graphile_worker._worker import claimer as claimer_module
from graphile_worker._worker import limit_groups as limit_groups_module
from graphile_worker._worker import limited_jobs as limited_jobs_module
from graphile_worker._worker import permits as permits_module
from graphile_worker._worker.claimer import EMPTY_FETCHES_BEFORE_DELAY
from graphile_worker._worker.limit_groups import DEFAULT_TIMINGS, LimitTimings
from graphile_worker._worker.limited_claimer import LimitedClaimer
from graphile_worker._worker.limited_jobs import LimitedJobs
from graphile_worker._worker.limited_seat import LimitedSeat
from graphile_worker._worker.shared_concurrency import SharedConcurrency
from graphile_worker.limits import ConcurrencyLimit, Limit, RateLimit
from tests.support.clocks import ManualClock
from tests.support.fake_database import FakeDatabase, FakeDatabaseError
from tests.support.jobs import make_job
from tests.support.recorder import wait_until

SLOTS = ConcurrencyLimit(5, name="slots")
MORE_SLOTS = ConcurrencyLimit(5, name="more")
TOKENS = RateLimit(2, per=timedelta(seconds=1), burst=100, name="tokens")


class LimitTables(FakeDatabase):
    """Free slots and tokens, of which pools get all that they ask for, but `amounts` of slots."""

    def __init__(self) -> None:
        super().__init__()
        self.rental = 0
        self.taken = 0
        self.restored = 0
        self.has_tokens = True
        self.rented: set[RentedSlot] = set()
        self.amounts: dict[str, int] = {}
        self.limits: list[Any] = []
        # The limits for which the pool is the newest one.
        self.newest: list[str] = []
        self.registered: list[str] = []
        self.created: list[list[str]] = []
        self.errors: dict[str, BaseException] = {}

    def answer(self, query: Query[Any]) -> Any:
        if query.statement in self.errors:
            return self.errors[str(query.statement)]
        args: Any = query.args
        match query.statement:
            case "rent_slots":
                used = sum(each.limit == args[0] for each in self.rented)
                free = self.amounts.get(args[0], 1000) - used
                return [self._rent(*args[:2]) for _ in range(min(args[2], free))]
            case "take_tokens" if not self.has_tokens:
                return TakenTokens(0, None, 0.5)
            case "take_tokens":
                self.taken += args[1]
                return TakenTokens(args[1], str(self.taken), 0.5)
            case "restore_tokens":
                self.restored += args[1]
            case "return_slots":
                self.rented -= {RentedSlot(*row) for row in zip(*args, strict=True)}
            case "get_rented_slots":
                return set(self.rented)
            case "find_newest_limits":
                return self.newest
            case "create_limit_rows":
                self.created.append(args[0])
            case "register_limits":
                self.registered.append(args[0])
            case "watch_limits":
                return self.limits
        return None

    def _rent(self, name: str, pool_id: str) -> RentedSlot:
        self.rental += 1
        used = {each.number for each in self.rented if each.limit == name}
        number = next(each for each in range(1, 1000) if each not in used)
        slot = RentedSlot(name, number, self.rental, pool_id)
        self.rented.add(slot)
        return slot


class FakeLimitedClaimer:
    """A backlog of each task that is ready."""

    def __init__(self, clock: ManualClock) -> None:
        self.ready: set[str] = set()
        self.claims: list[str] = []
        self.claimed_jobs: dict[int, ClaimedJob] = {}
        self.searches = 0
        self.answering = asyncio.Event()
        self.answering.set()
        self.paused_tasks: Sequence[str] = ()
        self.has_dynamic_flags = False
        self.error: Exception | None = None
        self.may_start_limited: Callable[[], bool] = lambda: False
        self._clock = clock

    def build_fetcher(self) -> Any:
        return SimpleNamespace(next_fetch_at=None)

    async def find_ready_tasks(self) -> set[str]:
        self.searches += 1
        await self.answering.wait()
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
        self.errors: list[BaseException] = []
        self.recoveries = 0

    def deliver(self, claimed: ClaimedJob) -> None:
        self.waiting_count -= 1
        self.delivered.append(claimed)

    async def wait_for_job(self, worker_id: str) -> ClaimedJob | None:
        await asyncio.Event().wait()
        return None

    async def release(self, claimed: ClaimedJob) -> None:
        self.released.append(claimed)

    def report_limited_error(self, error: BaseException) -> bool:
        self.errors.append(error)
        return True

    def report_limited_recovery(self) -> None:
        self.recoveries += 1


class JobTable(FakeDatabase):
    """A table without a ready job."""

    def answer(self, query: Query[Any]) -> Any:
        match query.statement:
            case "get_task_ids":
                return {1: "limited", 2: "normal"}
            case "has_fetch_indexes":
                return False
            case "check_ready_jobs":
                return ReadyCheck(may_be_ready=False, are_few=False)
        return []


class Scene:
    """The limited jobs of a registered pool, whose tasks all have many ready jobs."""

    def __init__(
        self,
        clock: ManualClock,
        limits: Mapping[str, Sequence[Limit]],
        *,
        once: bool = False,
        timings: LimitTimings = DEFAULT_TIMINGS,
    ) -> None:
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
            once=once,
            timings=timings,
        )
        self.database.limits = self.build_limits()

    def build_limits(self) -> list[WatchedLimit]:
        """Return the limits of the app as they are in force."""
        return [
            WatchedLimit(name, get_kind(limit), get_amount(limit), False, limit)
            for name, limit in self.jobs._definitions.items()
        ]

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


class StallingClock(ManualClock):
    """Moves by a second after as many looks as `looks_left`."""

    looks_left: int | None = None

    def monotonic(self) -> float:
        if self.looks_left is not None:
            if self.looks_left == 0:
                self.now += 1
            self.looks_left -= 1
        return self.now


@pytest.fixture
def clock(monkeypatch) -> StallingClock:
    # Delays are random, and the share of each task depends on them.
    monkeypatch.setattr(permits_module, "random", random.Random(1))
    modules = lease_module, limit_groups_module, limited_jobs_module, permits_module
    return StallingClock.patch(monkeypatch, *modules)


def get_amount(limit: Limit) -> int:
    return limit.slots if isinstance(limit, ConcurrencyLimit) else limit.starts


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


async def test_a_token_that_expires_while_its_job_starts_is_not_used(clock):
    for looks in range(20):
        it = Scene(clock, {"a": [TOKENS], "b": [TOKENS, SLOTS]})
        it.jobs.request()
        await it.jobs.step_once()
        [group] = [each for each in it.jobs._groups if each.next]
        # The other group waits longer, so the last token belongs to that one.
        group.turn = 1
        clock.looks_left = looks

        assert it.jobs.take() is None
        assert len(group.next) == 1
        clock.looks_left = None


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


async def test_tasks_that_share_a_limit_take_turns_although_one_has_another_limit_too(clock):
    for _ in range(5):
        it = Scene(clock, {"a": [SLOTS], "b": [SLOTS, MORE_SLOTS]})
        it.database.amounts = {"slots": 5}

        tasks = await it.run_workers(10, 600)

        # While the pool rents its slots, jobs start in another order.
        for first in range(100, 600, 100):
            assert 1 / 3 < tasks[first : first + 100].count("b") / 100 < 2 / 3


async def test_a_task_that_needs_tokens_gets_its_turn_every_50_ms(clock):
    it = Scene(clock, {"a": [SLOTS], "b": [SLOTS, TOKENS]})
    it.database.amounts = {"slots": 5}

    # One job ends each millisecond.
    tasks = await it.run_workers(10, 1000)

    assert 18 <= tasks.count("b") <= 22


async def test_a_task_that_waits_for_a_token_leaves_its_slots_to_other_tasks(clock):
    it = Scene(clock, {"a": [SLOTS], "b": [SLOTS, TOKENS]})
    it.database.amounts = {"slots": 5}
    it.database.has_tokens = False

    tasks = await it.run_workers(10, 600)

    assert tasks == ["a"] * 600
    # It asks for a token every 500 ms, and no slot is returned meanwhile.
    assert it.database.statements.count("take_tokens") == 2
    assert "return_slots" not in it.database.statements


async def test_a_search_that_is_due_does_not_wake_a_busy_pool_again_and_again(clock):
    it = Scene(clock, {"a": [SLOTS]})
    [group] = it.jobs._groups
    group.search_at = clock.now + 1
    await it.jobs.step_once()

    clock.now += 2
    await it.jobs.step_once()

    assert it.jobs._compute_next_step() > clock.now + 1
    it.jobs.request()
    clock.now += 0.03
    await it.jobs.step_once()
    assert it.claimer.claims == ["a"]


async def test_a_failed_claim_is_forgotten_when_the_database_answers_and_no_worker_needs_a_job(
    clock,
):
    it = Scene(clock, {"a": [SLOTS]})
    it.claimer.error = FakeDatabaseError("57014")
    it.source.waiting_count = 1
    await it.jobs.step_once()
    it.jobs._report_recovery()
    assert it.jobs.is_failing

    it.source.waiting_count = 0
    await it.pass_time(6)
    it.jobs._report_recovery()

    assert not it.jobs.is_failing
    assert it.source.recoveries == 1


async def test_a_slow_statement_about_limits_does_not_keep_workers_from_other_jobs(clock):
    timings = LimitTimings(max_asking_seconds=0.01)
    it = Scene(clock, {"a": [SLOTS]}, timings=timings)
    it.database.answering.clear()
    running = asyncio.create_task(it.jobs.run())

    async with asyncio.timeout(10):
        assert await it.jobs.ask() is None
        # Until the statement ends, workers ask only once.
        it.jobs._timings = LimitTimings(max_asking_seconds=1000.0)
        assert await it.jobs.ask() is None
        # Then the worker that waits for a job of any kind gets a limited one.
        it.source.waiting_count = 1
        it.jobs.notice_waiting()
        it.database.answering.set()
        await wait_until(lambda: len(it.source.delivered) == 1)
        assert it.claimer.claims == ["a"]
        await asyncio.sleep(0.01)
        assert get_task(await it.jobs.ask()) == "a"

    assert len(it.claimer.claims) == len(it.jobs._starts) == 2
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize("statement", ["watch_limits", "rent_slots"])
async def test_a_cancellation_that_comes_from_a_library_is_a_failure_that_is_retried(
    clock, statement
):
    it = Scene(clock, {"a": [SLOTS]})
    it.source.waiting_count = 1
    it.database.errors[statement] = asyncio.CancelledError()
    running = asyncio.create_task(it.jobs.run())
    await wait_until(lambda: len(it.source.errors) > 0)
    assert isinstance(it.source.errors[0], asyncio.CancelledError)
    del it.database.errors[statement]
    clock.now += 10

    await wait_until(lambda: len(it.source.delivered) == 1)

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_failed_claim_is_not_forgotten_while_a_worker_needs_a_job(clock):
    it = Scene(clock, {"a": [SLOTS]})
    it.claimer.error = FakeDatabaseError("57014")
    it.source.waiting_count = 1

    await it.pass_time(12)
    it.jobs._report_recovery()

    assert it.jobs.is_failing


@pytest.mark.parametrize("once", [False, True])
async def test_only_a_pool_that_runs_once_waits_for_its_limited_jobs(clock, once):
    it = Scene(clock, {"a": [SLOTS]}, once=once)
    it.claimer.ready = set()

    assert it.claimer.may_start_limited() is once


async def test_a_pool_that_runs_once_does_not_end_while_it_searches_limited_jobs(clock):
    it = Scene(clock, {"a": [TOKENS]}, once=True)
    it.claimer.answering.clear()
    searching = asyncio.create_task(it.jobs.step_once())
    await wait_until(lambda: it.claimer.searches)

    assert it.claimer.may_start_limited()

    it.claimer.ready = set()
    it.claimer.answering.set()
    await searching
    assert not it.claimer.may_start_limited()


async def test_empty_claims_of_limited_jobs_do_not_delay_normal_fetches(clock, monkeypatch):
    pauses: list[float] = []

    async def record_pause(seconds: float) -> None:
        pauses.append(seconds)

    fake_asyncio = SimpleNamespace(sleep=record_pause, CancelledError=asyncio.CancelledError)
    monkeypatch.setattr(claimer_module, "asyncio", fake_asyncio)
    lease = Lease(timedelta(days=1))
    database: Any = JobTable()
    monkeypatch.setattr(fake_asyncio, "Lock", asyncio.Lock, raising=False)
    monkeypatch.setattr(fake_asyncio, "Event", asyncio.Event, raising=False)
    claimer = LimitedClaimer(database, lease, ["limited", "normal"], limited_tasks=["limited"])
    fetcher = claimer.build_fetcher()
    for _ in range(EMPTY_FETCHES_BEFORE_DELAY):
        assert await claimer.claim_limited(fetcher, frozenset({"limited"}), 1) == []

    await claimer.claim(1)
    assert pauses == []

    await claimer.claim_limited(fetcher, frozenset({"limited"}), 1)
    assert pauses


async def test_a_job_whose_token_expires_while_it_waits_for_a_slot_of_the_process_is_released(
    clock,
):
    it = Scene(clock, {"b": [TOKENS]})
    shared = SharedConcurrency(1, 2, clock=clock.monotonic)
    gate = shared.open_gate()
    seat = LimitedSeat(it.jobs, it.source, gate)  # type: ignore[arg-type]
    waiting = asyncio.create_task(seat.wait("w"))
    for _ in range(3):
        # Other workers come first, then it asks for a job.
        await asyncio.sleep(0)
    # A worker of another shard takes the slot before the job is claimed.
    assert await gate.acquire()
    await it.jobs.step_once()
    it.jobs._answer_asking()
    await asyncio.sleep(0)
    clock.now += 0.3

    shared.release()
    for _ in range(5):
        await asyncio.sleep(0)

    assert len(it.source.released) == 1
    assert not waiting.done()
    waiting.cancel()
    assert shared.free == 1


async def test_slots_are_returned_after_their_job_when_the_limit_was_lowered(clock):
    it = Scene(clock, {"a": [SLOTS]})
    it.source.waiting_count = 3
    await it.jobs.step_once()
    [limit] = it.database.limits
    it.database.limits = [limit._replace(amount=2)]
    it.jobs.watch()
    await it.jobs.step_once()

    # The last one has slot 1, which is not above the limit.
    it.jobs.end(it.source.delivered[-1])
    assert it.jobs.take() is None
    await it.jobs.step_once()
    assert {each.number for each in it.database.rented} == {2, 3}

    # A slot that is rented since then stays rented.
    assert await it.run_for(0.01) is not None
    assert {each.number for each in it.database.rented} == {1, 2, 3}


@pytest.mark.parametrize(
    ("other", "effect"),
    [
        (ConcurrencyLimit(9, name="slots"), "it applies to this worker too"),
        (RateLimit(9, per=timedelta(hours=1), name="slots"), "this worker starts none of its jobs"),
    ],
)
async def test_an_older_pool_warns_once_of_each_other_definition(clock, other, effect):
    it = Scene(clock, {"a": [SLOTS]})
    it.database.limits = [WatchedLimit("slots", get_kind(other), 9, False, other)]

    await it.pass_time(11)

    warning = f"limit 'slots' is {other} in another version of the app, and 5 at a time here: "
    assert it.warnings == [warning + effect]
    assert it.database.registered == []
    it.database.limits = it.build_limits()
    await it.pass_time(6)
    it.database.limits = [WatchedLimit("slots", get_kind(other), 9, False, other)]
    await it.pass_time(6)
    assert len(it.warnings) == 2


async def test_the_pool_that_started_last_registers_its_definition_again(clock):
    it = Scene(clock, {"a": [SLOTS], "b": [TOKENS]})
    other = ConcurrencyLimit(9, name="slots")
    await it.jobs.step_once()
    it.database.limits = [
        each if each.name == "tokens" else each._replace(amount=9, defined=other)
        for each in it.database.limits
    ]
    it.database.newest = ["slots"]

    await it.pass_time(6)

    [registered] = it.database.registered
    assert '"slots"' in registered
    assert '"tokens"' not in registered
    assert "registers its own" in it.warnings[0]


async def test_a_pool_creates_the_rows_of_a_limit_again_after_an_error(clock):
    it = Scene(clock, {"a": [SLOTS], "b": [TOKENS]})
    await it.jobs.step_once()
    other = ConcurrencyLimit(9, name="slots")
    complete = it.database.limits
    it.database.limits = [
        each._replace(amount=9, defined=other) if each.name == "slots" else each
        for each in it.database.limits
    ]
    it.database.newest = ["slots"]
    it.database.errors["create_limit_rows"] = FakeDatabaseError("57014")
    with pytest.raises(FakeDatabaseError):
        await it.pass_time(6)
    # The definition is that of this pool now.
    it.database.limits = complete

    del it.database.errors["create_limit_rows"]
    await it.pass_time(12)

    assert it.database.created == [["slots"]]


async def test_a_pool_registers_a_limit_whose_row_was_deleted_and_no_other_one(clock):
    it = Scene(clock, {"a": [SLOTS], "b": [TOKENS]})
    await it.jobs.step_once()
    it.database.limits = [each for each in it.database.limits if each.name == "tokens"]

    await it.pass_time(6)

    [registered] = it.database.registered
    assert '"slots"' in registered
    assert '"tokens"' not in registered
    assert it.database.created == [["slots"]]


async def test_a_pool_uses_the_slots_of_a_raised_limit_before_it_reads_the_limit(clock):
    it = Scene(clock, {"a": [SLOTS]})
    await it.jobs.step_once()
    it.database.amounts = {"slots": 20}
    it.source.waiting_count = 8

    await it.pass_time(0.1)

    assert len(it.source.delivered) == 8
    assert it.database.statements.count("rent_slots") == 1
    assert "return_slots" not in it.database.statements
