"""JobBuffer: which worker gets a job, in which order, and when more jobs are requested."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphile_worker._lease.lease import Lease
from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._worker import completer as completer_module
from graphile_worker._worker.completer import Completer
from graphile_worker._worker.sources.buffer import (
    FETCH_LIMIT_GROWTH,
    JOBS_BEFORE_YIELD,
    JobBuffer,
    compute_fetch_limit,
)
from graphile_worker.events import LocalQueueFetched, LocalQueueReturned, PoolEvent
from graphile_worker.hooks import Hooks
from tests.support.clocks import ManualClock, skip_delays
from tests.support.fake_database import FakeDatabase
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
    """A buffer with fakes for its claimer and completer."""

    def __init__(self, flags: Callable[[], Any] | None = None) -> None:
        self.clock = ManualClock()
        self.claimer = FakeClaimer(self.clock, flags)
        self.completer = FakeCompleter()
        self.hooks = Hooks()
        self.low_calls: list[int] = []
        claimer: Any = self.claimer
        completer: Any = self.completer
        self.buffer = JobBuffer(claimer, completer, self.hooks, self._on_low)

    def _on_low(self) -> None:
        self.low_calls.append(len(self.buffer.jobs))

    def put(self, *job_ids: int, **more: Any) -> None:
        """Add jobs that a fetch brought."""
        jobs = [make_job(**{"id": each, "locked_by": "p1", **more}) for each in job_ids]
        claimed_jobs = [ClaimedJob(job, None) for job in jobs]
        self.claimer.hold(claimed_jobs)
        self.buffer.put(claimed_jobs)

    async def start_waiting(self, *workers: str) -> WaitingTasks:
        waiting_tasks = [asyncio.create_task(self.buffer.wait_for_job(each)) for each in workers]
        await run_until_idle()
        return waiting_tasks

    @property
    def waiting(self) -> list[int]:
        return [claimed.job.id for claimed in self.buffer.jobs]


@pytest.fixture
async def it() -> Scene:
    return Scene()


# Order


@pytest.mark.feature("F98")
async def test_jobs_of_one_priority_leave_in_the_order_in_which_they_came(it):
    it.put(5, 3)
    it.put(9, 1)

    assert get_results(await it.start_waiting("a", "b", "c", "d")) == [5, 3, 9, 1]


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
            it.buffer.put([ClaimedJob(job, None) for job in jobs])
        return list(it.buffer.jobs)

    jobs = [claimed.job for claimed in asyncio.run(waiting())]

    assert len(jobs) == sum(map(len, batches))
    assert jobs == sorted(jobs, key=lambda job: (job.priority, job.id))


# Waiting workers


@pytest.mark.feature("F98")
async def test_those_who_wait_are_served_first_come_first_served_and_the_rest_is_kept(it):
    waiting_tasks = await it.start_waiting("a", "b")

    it.put(1, 2, 3)
    await run_until_idle()

    assert get_results(waiting_tasks) == [1, 2]
    assert it.waiting == [3]


async def test_a_job_that_is_here_can_be_had_without_waiting(it):
    assert it.buffer.take_buffered() is None
    it.put(1, 2)

    assert [
        claimed.job.id
        for claimed in (it.buffer.take_buffered(), it.buffer.take_buffered())
        if claimed
    ] == [1, 2]
    assert it.buffer.take_buffered() is None


async def test_one_who_no_longer_waits_is_passed_over(it):
    waiting_tasks = await it.start_waiting("a", "b", "c")
    waiting_tasks[0].cancel()
    waiting_tasks[2].cancel()
    await run_until_idle()
    assert [waiter.worker_id for waiter in it.buffer.prune_waiters()] == ["b"]

    it.put(1, 2)
    await run_until_idle()

    assert get_results(waiting_tasks) == ["cancelled", 1, "cancelled"]
    assert it.waiting == [2]


async def test_what_comes_for_those_who_no_longer_wait_is_kept(it):
    waiting_tasks = await it.start_waiting("a", "b")
    for task in waiting_tasks:
        task.cancel()

    await run_until_idle()
    it.put(1)

    assert get_results(await it.start_waiting("c")) == [1]


# Yielding to the event loop


@pytest.mark.feature("F98")
async def test_after_many_jobs_without_a_wait_the_event_loop_runs(it):
    it.put(*range(2 * JOBS_BEFORE_YIELD))
    others: list[int] = []
    asyncio.get_running_loop().call_soon(others.append, 1)

    claimed_jobs = [it.buffer.take_buffered() for _ in range(JOBS_BEFORE_YIELD)]
    assert None not in claimed_jobs
    assert it.buffer.take_buffered() is None
    assert others == []

    claimed = await it.buffer.wait_for_job("a")
    assert claimed is not None
    assert claimed.job.id == JOBS_BEFORE_YIELD
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
        assert it.buffer.take_buffered() or await it.buffer.wait_for_job("a")
    counting.cancel()

    assert turns == 9


async def test_after_its_turn_as_many_can_be_had_again(it):
    it.put(*range(3 * JOBS_BEFORE_YIELD))
    for _ in range(JOBS_BEFORE_YIELD):
        it.buffer.take_buffered()

    await it.buffer.wait_for_job("a")

    assert [it.buffer.take_buffered() is not None for _ in range(JOBS_BEFORE_YIELD)] == [True] * (
        JOBS_BEFORE_YIELD - 1
    ) + [False]


# Calls of a source


@pytest.mark.feature("F98")
async def test_on_low_is_called_below_the_low_watermark(it):
    it.buffer.low_watermark = 3
    it.put(1, 2, 3, 4, 5)

    for _ in range(5):
        it.buffer.take_buffered()

    assert it.low_calls == [2, 1, 0]


async def test_on_low_is_called_when_a_worker_has_to_wait(it):
    await it.start_waiting("a", "b")

    assert it.low_calls == [0, 0]


async def test_on_low_is_called_for_the_last_job_by_default(it):
    it.put(1, 2)

    await it.start_waiting("a")
    assert it.low_calls == []
    await it.start_waiting("b")

    assert it.low_calls == [0]


async def test_take_older_removes_only_older_jobs(it):
    it.put(1, 2)
    it.clock.now += 1
    it.put(3)

    assert [claimed.job.id for claimed in it.buffer.take_older(it.clock.now)] == [1, 2]
    assert it.waiting == [3]
    assert it.buffer.take_older(it.clock.now) == []
    assert [claimed.job.id for claimed in it.buffer.take_all()] == [3]
    assert it.waiting == []


async def test_released_jobs_are_written_then_notified_then_forgotten_then_reported(it):
    it.put(1, 2)
    events: list[PoolEvent] = []
    it.hooks.on(LocalQueueReturned)(events.append)
    it.completer.answering.clear()

    releasing = asyncio.create_task(it.buffer.release(it.buffer.take_all()))
    await run_until_idle()
    assert (it.completer.writes, it.completer.offered) == ([[1, 2]], [])
    assert (sorted(it.claimer.claimed_jobs), events) == ([1, 2], [])
    it.completer.answering.set()
    await releasing

    assert it.completer.offered == [2]
    assert (it.claimer.claimed_jobs, len(events)) == ({}, 1)


async def test_the_end_waits_for_a_job_that_cannot_be_released_at_first(it):
    it.put(1, 2)
    it.completer.blocked = {2}
    ending = asyncio.create_task(it.buffer.release_all())
    await run_until_idle()
    assert (ending.done(), sorted(it.claimer.claimed_jobs)) == (False, [2])

    it.completer.blocked = set()
    await ending
    assert (it.completer.writes, it.claimer.claimed_jobs) == ([[1], [2]], {})

    it.put(3)
    it.completer.blocked = {3}
    ending = asyncio.create_task(it.buffer.release_all())
    await run_until_idle()
    ending.cancel()
    await asyncio.wait([ending])
    it.completer.blocked = set()
    await run_until_idle()
    assert (it.completer.writes, sorted(it.claimer.claimed_jobs)) == ([[1], [2]], [3])


class ReleasingDatabase(FakeDatabase):
    """Releases the jobs that it is asked to release, unless it is unreachable."""

    def __init__(self) -> None:
        super().__init__()
        self.is_reachable = True

    def answer(self, query: Any) -> Any:
        if not self.is_reachable:
            return OSError("gone")
        return set(self.list_ids(query)) if query.statement == "release_claimed_jobs" else None

    @property
    def released(self) -> list[list[int]]:
        """Return the ids of the jobs of each write."""
        writes = [each for each in self.queries if each.statement == "release_claimed_jobs"]
        return [self.list_ids(each) for each in writes]

    @staticmethod
    def list_ids(query: Any) -> list[int]:
        return [each["id"] for each in json.loads(query.args[0])]


class ReleasingScene(Scene):
    """A buffer with a real completer."""

    def __init__(self) -> None:
        super().__init__()
        self.database = ReleasingDatabase()
        self.events: list[LocalQueueReturned] = []
        self.hooks.on(LocalQueueReturned)(self.events.append)
        claimer: Any = self.claimer
        database: Any = self.database
        completer = Completer(
            database, Lease(None), self.hooks, claimed_jobs=self.claimer.claimed_jobs
        )
        self.buffer = JobBuffer(claimer, completer, self.hooks, self._on_low)
        self.wakes: list[list[list[int]]] = []
        self.buffer.on_released = lambda: self.wakes.append(self.database.released)

    async def release(self) -> None:
        await self.buffer.release(self.buffer.take_all())
        await run_until_idle()

    async def unblock(self, *job_ids: int) -> None:
        self.database.blocked = self.database.blocked.difference(job_ids)
        await run_until_idle()

    @property
    def reported(self) -> list[list[int]]:
        return [[job.id for job in each.jobs] for each in self.events]


async def test_a_job_is_released_when_its_row_is_free_although_another_row_stays_locked(
    monkeypatch,
):
    skip_delays(monkeypatch, completer_module)
    it = ReleasingScene()
    it.put(1, 2)
    it.database.blocked = {1, 2}
    await it.release()
    assert (it.database.released, it.wakes) == ([], [])

    await it.unblock(1)
    assert it.database.released == it.reported == [[1]]
    assert it.wakes == [[[1]]]
    assert it.claimer.claimed_jobs.keys() == {2}

    await it.unblock(2)
    assert it.database.released == it.reported == [[1], [2]]
    assert it.claimer.claimed_jobs == {}


async def test_jobs_of_a_release_that_failed_do_not_wait_for_a_locked_row(monkeypatch):
    skip_delays(monkeypatch, completer_module)
    it = ReleasingScene()
    it.put(1, 2, 3)
    it.database.blocked = {2}
    it.database.is_reachable = False
    await it.release()
    assert it.reported == []

    it.database.is_reachable = True
    await run_until_idle()
    assert it.reported == [[1, 3]]

    await it.unblock(2)
    assert it.reported == [[1, 3], [2]]


async def test_a_locked_row_does_not_delay_the_release_of_jobs_of_another_pool_id(monkeypatch):
    skip_delays(monkeypatch, completer_module)
    it = ReleasingScene()
    it.put(1, locked_by="p0")
    it.put(2)
    it.database.blocked = {1, 2}
    await it.release()

    await it.unblock(2)
    assert it.reported == [[2]]

    await it.unblock(1)
    assert it.reported == [[2], [1]]


async def test_releases_are_retried_until_the_end_of_the_pool(it):
    await it.buffer.release_all()
    it.completer.blocked = {1, 2, 3}
    for job_id in (1, 2):
        it.put(job_id)
        await it.buffer.release(it.buffer.take_all())
    await run_until_idle()
    assert it.completer.writes == []

    # Tasks of workers may still run for hours, and no other pool may run the job meanwhile.
    it.completer.blocked = {2, 3}
    await run_until_idle()
    assert it.completer.writes == [[1]]

    it.buffer.stop_late_releases()
    it.put(3)
    await it.buffer.release(it.buffer.take_all())
    it.completer.blocked = set()
    await run_until_idle()
    assert it.completer.writes == [[1]]
    # The shutdown releases them.
    assert it.claimer.claimed_jobs.keys() == {2, 3}


async def test_after_the_end_of_the_pool_a_release_is_tried_once(it):
    it.buffer.stop_late_releases()
    it.put(1, 2)
    it.completer.blocked = {2}

    await it.buffer.release_all()

    assert it.completer.writes == [[1]]
    assert it.claimer.claimed_jobs.keys() == {2}


async def test_nothing_to_release_is_not_written(it):
    await it.buffer.release([])

    assert (it.completer.writes, it.completer.offered) == ([], [])


async def test_what_was_fetched_is_announced_if_anybody_listens(it):
    it.put(1)
    events: list[LocalQueueFetched] = []
    it.hooks.on(LocalQueueFetched)(events.append)

    it.put(2, 3)

    assert [[job.id for job in each.jobs] for each in events] == [[2, 3]]


# Closing


async def test_a_closed_one_sends_all_away_and_gives_out_nothing(it):
    waiting_tasks = await it.start_waiting("a")
    it.buffer.close()
    it.put(1)

    assert get_results(await it.start_waiting("b") + waiting_tasks) == [None, None]
    assert it.buffer.take_buffered() is None
    assert it.waiting == [1]


async def test_one_that_is_closed_with_an_error_raises_it(it):
    waiting_tasks = await it.start_waiting("a")
    error = OSError("gone")

    it.buffer.close(error)
    it.buffer.close()
    waiting_tasks += await it.start_waiting("b")

    assert [task.exception() for task in waiting_tasks] == [error, error]


# Before a job starts


@pytest.mark.feature("F98")
async def test_a_job_under_another_pool_id_is_released(it):
    it.put(1)
    it.put(2, locked_by="p2")
    it.claimer.pool_id = "p2"

    assert it.buffer.take_buffered() is None
    assert get_results(await it.start_waiting("a")) == [2]
    assert it.completer.writes == [[1]]


@pytest.mark.feature("F237")
async def test_with_dynamic_flags_no_job_is_taken_without_a_check():
    it = Scene(flags=make_flags_function(["slow"], None))
    it.put(1, 2, flags='{"slow": true}')

    assert it.buffer.take_buffered() is None
    assert get_results(await it.start_waiting("a")) == [2]
    assert it.completer.writes == [[1]]


@pytest.mark.feature("F237")
async def test_a_job_is_released_if_the_source_stops_during_the_flags_function():
    decided = asyncio.Event()

    async def flags() -> None:
        await decided.wait()

    it = Scene(flags=flags)
    it.put(1, flags='{"slow": true}')
    waiting_tasks = await it.start_waiting("a")

    it.buffer.close()
    decided.set()
    await run_until_idle()

    assert get_results(waiting_tasks) == [None]
    assert it.completer.writes == [[1]]


# The limit of the next fetch


def make_claimed(*sizes: int) -> list[ClaimedJob]:
    return [
        ClaimedJob(make_job(id=n, payload_text="x" * size), None) for n, size in enumerate(sizes)
    ]


@pytest.mark.feature("F98")
@pytest.mark.parametrize(
    ("sizes", "limit"),
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
def test_a_fetch_brings_no_more_than_fits_by_the_size_of_the_last_one(sizes, limit):
    assert compute_fetch_limit(10, 500, 1000, make_claimed(*sizes)) == limit


@pytest.mark.feature("F98")
def test_a_fetch_brings_no_more_than_the_most():
    assert compute_fetch_limit(200, 500, 10**9, make_claimed(1)) == 500
