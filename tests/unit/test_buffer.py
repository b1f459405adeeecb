"""JobBuffer: who gets a job and when, in which order, and who is told that few are left."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._worker.sources.buffer import (
    FETCH_LIMIT_GROWTH,
    JOBS_BEFORE_YIELD,
    JobBuffer,
    compute_fetch_limit,
)
from graphile_worker.events import LocalQueueFetched, LocalQueueReturned, PoolEvent
from graphile_worker.hooks import Hooks
from tests.support.clocks import ManualClock
from tests.support.job_sources import (
    FakeClaimer,
    FakeCompleter,
    WaitingTasks,
    get_results,
    make_flags_function,
    run_until_idle,
)
from tests.support.jobs import make_job


class Scene:
    """A shelf, and all that is around it."""

    def __init__(self, flags: Callable[[], Any] | None = None) -> None:
        self.clock = ManualClock()
        self.claims = FakeClaimer(self.clock, flags)
        self.settler = FakeCompleter()
        self.hooks = Hooks()
        self.lows: list[int] = []
        claims: Any = self.claims
        settler: Any = self.settler
        self.shelf = JobBuffer(claims, settler, self.hooks, self._low)

    def _low(self) -> None:
        self.lows.append(len(self.shelf.jobs))

    def put(self, *job_ids: int, **more: Any) -> None:
        """What a fetch has brought."""
        jobs = [make_job(**{"id": each, "locked_by": "p1", **more}) for each in job_ids]
        taken = [ClaimedJob(job, None) for job in jobs]
        self.claims.hold(taken)
        self.shelf.put(taken)

    async def ask(self, *workers: str) -> WaitingTasks:
        asks = [asyncio.create_task(self.shelf.wait_for_job(each)) for each in workers]
        await run_until_idle()
        return asks

    @property
    def waiting(self) -> list[int]:
        return [held.job.id for held in self.shelf.jobs]


@pytest.fixture
async def it() -> Scene:
    return Scene()


# Order


@pytest.mark.feature("F98")
async def test_jobs_of_one_priority_leave_in_the_order_in_which_they_came(it):
    it.put(5, 3)
    it.put(9, 1)

    assert get_results(await it.ask("a", "b", "c", "d")) == [5, 3, 9, 1]


@pytest.mark.feature("F98")
async def test_more_urgent_jobs_leave_before_those_that_came_earlier(it):
    it.put(1, 2, priority=5)
    it.put(3, priority=-1)
    it.put(4, priority=5)
    it.put(5, priority=0)

    assert it.waiting == [3, 5, 1, 2, 4]


@given(st.lists(st.lists(st.integers(-3, 3), max_size=6).map(sorted), max_size=6))
def test_jobs_leave_by_priority_and_then_by_arrival(batches):
    async def waiting() -> list[ClaimedJob]:
        it = Scene()
        for number, batch in enumerate(batches):
            jobs = [
                make_job(id=100 * number + place, priority=each) for place, each in enumerate(batch)
            ]
            it.shelf.put([ClaimedJob(job, None) for job in jobs])
        return list(it.shelf.jobs)

    jobs = [held.job for held in asyncio.run(waiting())]

    assert len(jobs) == sum(map(len, batches))
    assert jobs == sorted(jobs, key=lambda job: (job.priority, job.id))


# Asking


@pytest.mark.feature("F98")
async def test_those_who_wait_are_served_first_come_first_served_and_the_rest_is_kept(it):
    asks = await it.ask("a", "b")

    it.put(1, 2, 3)
    await run_until_idle()

    assert get_results(asks) == [1, 2]
    assert it.waiting == [3]


async def test_a_job_that_is_here_can_be_had_without_waiting(it):
    assert it.shelf.take_buffered() is None
    it.put(1, 2)

    assert [
        held.job.id for held in (it.shelf.take_buffered(), it.shelf.take_buffered()) if held
    ] == [1, 2]
    assert it.shelf.take_buffered() is None


async def test_one_who_no_longer_waits_is_passed_over(it):
    asks = await it.ask("a", "b", "c")
    asks[0].cancel()
    asks[2].cancel()
    await run_until_idle()
    assert [ask.worker_id for ask in it.shelf.prune_waiters()] == ["b"]

    it.put(1, 2)
    await run_until_idle()

    assert get_results(asks) == ["cancelled", 1, "cancelled"]
    assert it.waiting == [2]


async def test_what_comes_for_those_who_no_longer_wait_is_kept(it):
    asks = await it.ask("a", "b")
    for ask in asks:
        ask.cancel()

    await run_until_idle()
    it.put(1)

    assert get_results(await it.ask("c")) == [1]


# The turn of the event loop


@pytest.mark.feature("F98")
async def test_after_many_jobs_without_a_wait_the_event_loop_runs(it):
    it.put(*range(2 * JOBS_BEFORE_YIELD))
    others: list[int] = []
    asyncio.get_running_loop().call_soon(others.append, 1)

    taken = [it.shelf.take_buffered() for _ in range(JOBS_BEFORE_YIELD)]
    assert None not in taken
    assert it.shelf.take_buffered() is None
    assert others == []

    held = await it.shelf.wait_for_job("a")
    assert held is not None
    assert held.job.id == JOBS_BEFORE_YIELD
    assert others == [1]


@pytest.mark.feature("F98")
async def test_workers_that_ask_and_never_wait_let_the_event_loop_have_its_turn_too(it):
    it.put(*range(10 * JOBS_BEFORE_YIELD))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    for _ in range(10 * JOBS_BEFORE_YIELD):
        assert it.shelf.take_buffered() or await it.shelf.wait_for_job("a")
    counting.cancel()

    assert turns == 9


async def test_after_its_turn_as_many_can_be_had_again(it):
    it.put(*range(3 * JOBS_BEFORE_YIELD))
    for _ in range(JOBS_BEFORE_YIELD):
        it.shelf.take_buffered()

    await it.shelf.wait_for_job("a")

    assert [it.shelf.take_buffered() is not None for _ in range(JOBS_BEFORE_YIELD)] == [True] * (
        JOBS_BEFORE_YIELD - 1
    ) + [False]


# Whoever fills it


@pytest.mark.feature("F98")
async def test_on_low_is_called_below_the_low_watermark(it):
    it.shelf.low_watermark = 3
    it.put(1, 2, 3, 4, 5)

    for _ in range(5):
        it.shelf.take_buffered()

    assert it.lows == [2, 1, 0]


async def test_on_low_is_called_when_a_worker_has_to_wait(it):
    await it.ask("a", "b")

    assert it.lows == [0, 0]


async def test_on_low_is_called_for_the_last_job_by_default(it):
    it.put(1, 2)

    await it.ask("a")
    assert it.lows == []
    await it.ask("b")

    assert it.lows == [0]


async def test_the_older_ones_are_taken_away_and_the_others_stay(it):
    it.put(1, 2)
    it.clock.now += 1
    it.put(3)

    assert [held.job.id for held in it.shelf.take_older(it.clock.now)] == [1, 2]
    assert it.waiting == [3]
    assert it.shelf.take_older(it.clock.now) == []
    assert [held.job.id for held in it.shelf.take_all()] == [3]
    assert it.waiting == []


async def test_released_jobs_are_written_then_notified_then_forgotten_then_reported(it):
    it.put(1, 2)
    told: list[PoolEvent] = []
    it.hooks.on(LocalQueueReturned)(told.append)
    it.settler.answering.clear()

    handing = asyncio.create_task(it.shelf.release(it.shelf.take_all()))
    await run_until_idle()
    assert (it.settler.writes, it.settler.offered) == ([[1, 2]], [])
    assert (sorted(it.claims.claimed_jobs), told) == ([1, 2], [])
    it.settler.answering.set()
    await handing

    assert it.settler.offered == [2]
    assert (it.claims.claimed_jobs, len(told)) == ({}, 1)


async def test_nothing_to_release_is_not_written(it):
    await it.shelf.release([])

    assert (it.settler.writes, it.settler.offered) == ([], [])


async def test_what_was_fetched_is_announced_if_anybody_listens(it):
    it.put(1)
    told: list[LocalQueueFetched] = []
    it.hooks.on(LocalQueueFetched)(told.append)

    it.put(2, 3)

    assert [[job.id for job in each.jobs] for each in told] == [[2, 3]]


# Closing


async def test_a_closed_one_sends_all_away_and_gives_out_nothing(it):
    asks = await it.ask("a")
    it.shelf.close()
    it.put(1)

    assert get_results(await it.ask("b") + asks) == [None, None]
    assert it.shelf.take_buffered() is None
    assert it.waiting == [1]


async def test_one_that_is_closed_with_an_error_raises_it(it):
    asks = await it.ask("a")
    error = OSError("gone")

    it.shelf.close(error)
    it.shelf.close()
    asks += await it.ask("b")

    assert [ask.exception() for ask in asks] == [error, error]


# Before a job starts


@pytest.mark.feature("F98")
async def test_a_job_under_another_pool_id_is_released(it):
    it.put(1)
    it.put(2, locked_by="p2")
    it.claims.pool_id = "p2"

    assert it.shelf.take_buffered() is None
    assert get_results(await it.ask("a")) == [2]
    assert it.settler.writes == [[1]]


@pytest.mark.feature("F237")
async def test_who_must_ask_about_flags_takes_nothing_without_asking():
    it = Scene(flags=make_flags_function(["slow"], None))
    it.put(1, 2, flags='{"slow": true}')

    assert it.shelf.take_buffered() is None
    assert get_results(await it.ask("a")) == [2]
    assert it.settler.writes == [[1]]


@pytest.mark.feature("F237")
async def test_a_job_is_released_if_the_source_stops_during_the_flags_function():
    thinks = asyncio.Event()

    async def flags() -> None:
        await thinks.wait()

    it = Scene(flags=flags)
    it.put(1, flags='{"slow": true}')
    asks = await it.ask("a")

    it.shelf.close()
    thinks.set()
    await run_until_idle()

    assert get_results(asks) == [None]
    assert it.settler.writes == [[1]]


# How many the next fetch may bring


def held(*sizes: int) -> list[ClaimedJob]:
    return [
        ClaimedJob(make_job(id=n, payload_text="x" * size), None) for n, size in enumerate(sizes)
    ]


@pytest.mark.feature("F98")
@pytest.mark.parametrize(
    ("taken", "limit"),
    [
        ([], 10),
        ([0, 0], 10),
        ([1], 10 * FETCH_LIMIT_GROWTH),
        ([100], 10),
        ([50, 150], 10),
        ([10, 10, 970], 3),
        ([5000], 1),
    ],
)
def test_a_fetch_brings_no_more_than_fits_by_the_size_of_the_last_one(taken, limit):
    assert compute_fetch_limit(10, 500, 1000, held(*taken)) == limit


@pytest.mark.feature("F98")
def test_a_fetch_brings_no_more_than_the_most():
    assert compute_fetch_limit(200, 500, 10**9, held(1)) == 500
