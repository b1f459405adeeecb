"""PrefetchSource: how far ahead it fetches, when it fetches, and what it releases."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from graphile_worker._worker.sources.buffer import FIRST_FETCH_LIMIT
from graphile_worker._worker.sources.prefetch import (
    BUFFER_SECONDS,
    MAX_FETCH,
    SHORT_FETCH_POLL_SECONDS,
    PrefetchSource,
    PrefetchTimings,
    ThroughputEstimate,
)
from graphile_worker.events import (
    GetJobEmpty,
    GetJobErrored,
    GetJobRecovered,
    GetJobStarted,
    LocalQueueFetched,
    LocalQueueReturned,
)
from tests.support.clocks import ManualClock
from tests.support.job_sources import SourceScene, get_results, make_flags_function, run_until_idle

HOUR = timedelta(hours=1)
# Only a bug takes that long.
PATIENCE = 20
# Longer than a job may wait. Sums of this number need no rounding.
TOO_LONG = 0.125
NOT_YET = PrefetchTimings().max_buffered_seconds / 2


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


# ThroughputEstimate


class EndedJobs:
    """An estimate, and the jobs that it counts."""

    def __init__(self, clock: ManualClock) -> None:
        self.throughput = ThroughputEstimate(clock.monotonic)
        self._clock = clock
        self.estimate()

    def estimate(self) -> int:
        return self.throughput.estimate_jobs()

    def end(self, count: int, *, took: float = 0.001, over: float = TOO_LONG) -> int:
        """Let jobs end in that time, and return the estimate afterwards."""
        self._clock.now += over
        for _ in range(count):
            self.throughput.record_duration(took)
        return self.estimate()


@pytest.fixture
def runs(clock) -> EndedJobs:
    return EndedJobs(clock)


@pytest.mark.feature("F98")
def test_nothing_is_expected_before_any_job_has_run():
    assert ThroughputEstimate().estimate_jobs() == 0


@pytest.mark.feature("F98")
@pytest.mark.parametrize("count", [0, 1, 5, 500, 5000])
def test_as_many_jobs_are_expected_in_a_moment_as_ended_in_one(runs, count):
    assert runs.end(count) == int(count * BUFFER_SECONDS / TOO_LONG)


@pytest.mark.feature("F98")
def test_the_pace_is_that_of_the_last_moments(runs):
    for _ in range(10):
        runs.end(500, over=0.0625)
    for _ in range(10):
        slower = runs.end(5, over=0.0625)

    assert slower == int(5 * BUFFER_SECONDS / 0.0625)


@pytest.mark.feature("F98")
@pytest.mark.parametrize("took", [BUFFER_SECONDS, 0.15, 1, 60])
def test_the_estimate_is_zero_if_a_job_takes_longer_than_the_buffer_time(runs, took):
    assert [runs.end(100, took=took) for _ in range(20)] == [0] * 20


@pytest.mark.feature("F98")
@pytest.mark.parametrize("took", [0.15, 1])
def test_the_first_slow_jobs_are_known_to_be_slow(runs, took):
    # They end shortly after each other, which looks like a high rate.
    assert [runs.end(1, took=took, over=0.004) for _ in range(20)] == [0] * 20


@pytest.mark.feature("F98")
def test_jobs_are_short_when_most_of_them_are(runs):
    for number in range(100):
        expected = runs.end(10, took=0.3 if number % 10 == 0 else 0.001, over=0.004)

    assert expected > 0


@pytest.mark.feature("F98")
def test_one_slow_job_at_the_start_loses_its_weight(runs):
    runs.end(1, took=60)

    for _ in range(100):
        runs.end(10, over=0.004)

    assert runs.estimate() > 0


@pytest.mark.feature("F98")
def test_jobs_that_become_slow_are_noticed_and_jobs_that_become_short_too(runs):
    runs.end(1000)
    assert runs.end(100, took=1) == 0

    assert runs.end(100) == int(100 * BUFFER_SECONDS / TOO_LONG)


def test_what_ended_long_ago_is_not_expected_again(runs, clock):
    assert runs.end(500) > 0

    clock.now += 1

    assert runs.estimate() == 0


def test_jobs_before_a_pause_do_not_count_after_it(runs, clock):
    runs.end(500)
    clock.now += 1
    runs.estimate()

    assert runs.end(5) == int(5 * BUFFER_SECONDS / TOO_LONG)


def test_who_forgets_expects_nothing_until_more_jobs_end(runs):
    runs.end(500)

    runs.throughput.reset()

    assert runs.estimate() == 0
    assert runs.end(500) == int(500 * BUFFER_SECONDS / TOO_LONG)


@pytest.mark.feature("F98")
@pytest.mark.parametrize(
    ("took", "max_jobs"),
    [(0.001, 400), (0.01, 40), (0.05, 8), (BUFFER_SECONDS, 4), (0.2, 2), (60, 0)],
)
def test_the_maximum_is_what_the_workers_can_run_in_that_time(runs, took, max_jobs):
    runs.end(100, took=took)

    # Floats are not exact.
    assert runs.throughput.estimate_max_jobs(4) in (max_jobs - 1, max_jobs)


def test_before_the_first_job_the_maximum_is_unknown():
    assert ThroughputEstimate().estimate_max_jobs(24) == 0


def test_jobs_without_a_duration_give_a_large_estimate(runs):
    runs.end(10, took=0.0)

    assert runs.throughput.estimate_max_jobs(1) > MAX_FETCH


def test_two_estimates_at_the_same_time_are_equal(runs):
    expected = runs.end(500)

    assert [runs.estimate(), runs.estimate()] == [expected, expected]


# PrefetchSource


class FakeThroughput:
    """Estimates a fixed number of jobs."""

    def __init__(self) -> None:
        self.jobs = 0
        self.max_jobs = 0
        self.was_reset = 0

    def estimate_jobs(self) -> int:
        return self.jobs

    def estimate_max_jobs(self, slots: int) -> int:
        return self.max_jobs

    def reset(self) -> None:
        self.was_reset += 1
        self.jobs = 0


class Scene(SourceScene):
    """A prefetching source with a fixed estimate."""

    def __init__(
        self,
        clock: ManualClock,
        *,
        throughput: int = 0,
        max_bytes: int = 1_000_000,
        poll: timedelta = HOUR,
        once: bool = False,
        flags: Callable[[], Any] | None = None,
    ) -> None:
        super().__init__(clock, flags)
        self.throughput = FakeThroughput()
        self.throughput.jobs = throughput
        self.source = PrefetchSource(
            self.claimer,
            self.completer,
            self.hooks,
            self.build_options(poll_interval=poll, once=once, clock=clock.monotonic),
            max_bytes=max_bytes,
            timings=PrefetchTimings(late_check_interval_seconds=0.0),
        )
        self.source._throughput = self.throughput

    async def advance_clock(self, seconds: float) -> None:
        self.clock.now += seconds
        await run_until_idle()

    @property
    def waiting(self) -> list[int]:
        """Return the ids of the buffered jobs."""
        return [claimed.job.id for claimed in self.source._buffer.jobs]


@pytest.fixture
def scene(clock) -> Callable[..., Any]:
    @asynccontextmanager
    async def scene(*ready: int, **options: Any) -> AsyncIterator[Scene]:
        """A running source, with these jobs."""
        it = Scene(clock, **options)
        async with it.run_with(*ready):
            yield it

    return scene


def ids(jobs: Any) -> list[int]:
    return [job.id for job in jobs]


# Size of a fetch


@pytest.mark.feature("F98")
async def test_before_it_runs_it_fetches_nothing(clock):
    it = Scene(clock)
    it.ready(1)

    waiting_tasks = await it.wait_for_jobs("a")

    assert (get_results(waiting_tasks), it.claimer.requested_limits) == (["waits"], [])
    it.source.stop()
    assert get_results(waiting_tasks + await it.wait_for_jobs("b")) == [None, None]


@pytest.mark.feature("F98")
async def test_it_fetches_for_those_who_ask(scene):
    async with scene(1, 2, 3, 4) as it:
        assert it.claimer.requested_limits == []

        waiting_tasks = await it.wait_for_jobs("a", "b", "c")

        assert get_results(waiting_tasks) == [1, 2, 3]
        assert it.claimer.requested_limits == [3]


@pytest.mark.feature("F98")
async def test_with_slow_jobs_it_fetches_only_for_waiting_workers(scene):
    async with scene(*range(100)) as it:
        for workers in ("abc", "a", "bc"):
            await it.wait_for_jobs(*workers)

        assert it.claimer.requested_limits == [3, 1, 2]
        assert it.waiting == []


@pytest.mark.feature("F98")
async def test_with_short_jobs_it_fetches_before_workers_wait(scene):
    async with scene(*range(100), throughput=30) as it:
        assert it.claimer.requested_limits == [10, 10]
        assert len(it.waiting) == 20
        assert get_results(await it.wait_for_jobs("a", "b")) == [0, 1]


@pytest.mark.feature("F98")
async def test_it_fetches_again_when_fewer_than_two_batches_wait_and_not_before(scene):
    async with scene(*range(100), throughput=30) as it:
        await it.wait_for_jobs("a")
        # Nineteen, and ten more.
        assert it.claimer.requested_limits == [10, 10, 10]
        assert len(it.waiting) == 29

        await it.wait_for_jobs(*"abcdefghi")
        assert len(it.waiting) == 20
        assert it.claimer.requested_limits == [10, 10, 10]

        await it.wait_for_jobs("a")
        assert it.claimer.requested_limits == [10, 10, 10, 10]


@pytest.mark.feature("F98")
async def test_a_buffered_job_that_is_taken_causes_a_fetch(scene):
    async with scene(*range(100), throughput=30) as it:
        claimed = it.source.take_buffered()
        await run_until_idle()

        assert claimed is not None
        assert claimed.job.id == 0
        assert it.claimer.requested_limits == [10, 10, 10]


@pytest.mark.feature("F98")
async def test_one_fetch_is_in_flight_at_a_time(scene):
    async with scene(*range(100), throughput=30) as it:
        it.claimer.answering.clear()

        await it.wait_for_jobs("a", "b", "c")
        await it.wake()

        assert it.claimer.requested_limits == [10, 10, 10]
        assert len(it.waiting) == 17


@pytest.mark.feature("F98")
async def test_a_fetch_covers_waiting_workers_and_the_batch(scene):
    async with scene() as it:
        waiting_tasks = await it.wait_for_jobs("a", "b", "c")
        it.ready(*range(100))
        it.throughput.jobs = 30

        await it.wake()

        assert get_results(waiting_tasks) == [0, 1, 2]
        assert it.claimer.requested_limits == [3, 13, 10]


@pytest.mark.feature("F98")
async def test_who_had_to_ask_again_after_a_full_fetch_gets_twice_as_many(scene):
    async with scene(*range(100)) as it:
        it.throughput.max_jobs = 1000

        for _ in range(7):
            await it.wait_for_jobs("a", "b")

        # Each batch is used up before the next fetch.
        assert it.claimer.requested_limits == [2, 4, 8]
        assert it.waiting == []


@pytest.mark.feature("F98")
async def test_but_no_more_than_can_end_in_a_moment(scene):
    async with scene(*range(100)) as it:
        it.throughput.max_jobs = 3

        for _ in range(3):
            await it.wait_for_jobs("a", "b")

        assert it.claimer.requested_limits == [2, 3, 3]


async def test_nor_after_a_fetch_that_was_not_full(scene):
    async with scene(1, 2, 3) as it:
        it.throughput.max_jobs = 1000
        await it.wait_for_jobs("a", "b")
        await it.wait_for_jobs("a", "b")
        assert it.claimer.requested_limits == [2, 4, 1]

        it.ready(*range(10, 50))
        await it.wake()

        assert it.claimer.requested_limits == [2, 4, 1, 1]


@pytest.mark.feature("F98")
async def test_when_the_throughput_drops_it_waits_for_a_worker(scene):
    async with scene(*range(100), throughput=30) as it:
        it.throughput.jobs = 0

        await it.wait_for_jobs(*(["a"] * 20))
        assert it.claimer.requested_limits == [10, 10]

        assert get_results(await it.wait_for_jobs("b")) == [20]
        assert it.claimer.requested_limits == [10, 10, 1]


@pytest.mark.feature("F98")
async def test_batches_grow_to_the_largest_and_two_of_them_wait(scene):
    async with scene(*range(10_000), throughput=1_000_000) as it:
        assert it.claimer.requested_limits == [
            FIRST_FETCH_LIMIT,
            4 * FIRST_FETCH_LIMIT,
            16 * FIRST_FETCH_LIMIT,
            MAX_FETCH,
        ]
        assert len(it.waiting) >= 2 * MAX_FETCH

        it.source._buffer._jobs_until_yield = MAX_FETCH
        while len(it.waiting) >= 2 * MAX_FETCH:
            it.source.take_buffered()
        await run_until_idle()

        assert len(it.waiting) == 3 * MAX_FETCH - 1


@pytest.mark.feature("F98")
async def test_no_more_waits_than_fits_by_the_size_of_the_payloads(scene):
    async with scene(throughput=1_000_000, max_bytes=30_000) as it:
        it.ready(*range(1000), payload_text="x" * 1000)
        await it.wake()
        assert it.claimer.requested_limits == [FIRST_FETCH_LIMIT, FIRST_FETCH_LIMIT]

        for _ in range(300):
            it.source.take_buffered()
            await run_until_idle()

        # Three such batches fill the buffer.
        assert set(it.claimer.requested_limits[2:]) == {10}
        assert len(it.waiting) <= 30


async def test_one_payload_that_is_larger_than_all_that_may_be_here_comes_alone(scene):
    async with scene() as it:
        waiting_tasks = await it.wait_for_jobs("a")
        it.ready(*range(10), payload_text="x" * 2_000_000)
        await it.wake()
        it.throughput.jobs = 300

        waiting_tasks += await it.wait_for_jobs("b")

        assert get_results(waiting_tasks) == [0, 1]
        assert it.claimer.requested_limits == [1, 1, 1, 1, 1]
        assert it.waiting == [2, 3]


async def test_those_who_ask_are_served_however_large_payloads_are(scene):
    async with scene(max_bytes=1) as it:
        it.ready(*range(20))

        assert get_results(await it.wait_for_jobs("a") + await it.wait_for_jobs(*"bcdef")) == [
            0,
            1,
            2,
            3,
            4,
            5,
        ]
        assert it.claimer.requested_limits == [1, 5]


# Empty and short fetches


@pytest.mark.feature("F98")
async def test_after_an_empty_fetch_waiting_workers_lead_to_no_fetch(scene):
    async with scene() as it:
        waiting_tasks = (
            await it.wait_for_jobs("a")
            + await it.wait_for_jobs("b")
            + await it.wait_for_jobs("c", "d")
        )

        assert get_results(waiting_tasks) == ["waits"] * 4
        assert it.claimer.requested_limits == [1]


async def test_after_an_empty_answer_nothing_is_fetched_ahead(scene):
    async with scene(1, 2, throughput=30) as it:
        assert it.claimer.requested_limits == [10, 10]

        await it.wait_for_jobs("a")

        assert it.claimer.requested_limits == [10, 10]


async def test_a_short_answer_is_not_an_empty_one(scene):
    async with scene(1) as it:
        waiting_tasks = await it.wait_for_jobs("a", "b", "c")

        assert get_results(waiting_tasks) == [1, "waits", "waits"]
        assert it.claimer.requested_limits == [3, 2]


@pytest.mark.feature("F98")
async def test_a_notification_leads_to_a_fetch_for_all_waiting_workers(scene):
    async with scene() as it:
        waiting_tasks = await it.wait_for_jobs("a", "b")
        it.ready(1, 2)

        await it.wake()

        assert get_results(waiting_tasks) == [1, 2]
        assert it.claimer.requested_limits == [2, 2]


async def test_a_notification_while_all_workers_run_slow_jobs_leads_to_no_fetch(scene):
    async with scene(1) as it:
        await it.wake()

        assert it.claimer.requested_limits == []


@pytest.mark.feature("F98")
async def test_a_job_that_is_announced_during_a_fetch_is_fetched_by_the_next(scene):
    async with scene() as it:
        it.claimer.answering.clear()
        waiting_tasks = await it.wait_for_jobs("a")

        it.ready(1)
        await it.wake()
        await it.finish_fetch()

        assert it.claimer.requested_limits == [1, 1]
        assert get_results(waiting_tasks) == [1]


async def test_after_a_fetch_that_claims_all_ready_jobs_no_other_fetch_follows(scene):
    async with scene() as it:
        it.claimer.knows_all_ready = True
        waiting_tasks = await it.wait_for_jobs("a", "b")
        it.ready(1)
        await it.wake()
        assert get_results(waiting_tasks) == [1, "waits"]
        assert it.claimer.requested_limits == [2, 2]

        await it.advance_clock(HOUR.total_seconds() / 2)
        it.ready(2)
        await it.wake()

        assert get_results(waiting_tasks) == [1, 2]
        assert it.claimer.requested_limits == [2, 2, 1]
        # The workers that got no job of each fetch.
        empty = it.events_of(GetJobEmpty)
        assert [event.worker_id for event in empty] == ["a", "b", "b"]


async def test_a_job_announced_during_a_fetch_that_claims_all_ready_jobs_is_fetched(scene):
    async with scene() as it:
        it.claimer.knows_all_ready = True
        it.ready(1)
        it.claimer.answering.clear()
        waiting_tasks = await it.wait_for_jobs("a", "b")

        it.ready(2)
        await it.wake()
        await it.finish_fetch()

        assert get_results(waiting_tasks) == [1, 2]
        assert it.claimer.requested_limits == [2, 1]


async def test_jobs_announced_before_a_fetch_cause_no_other_fetch(scene):
    async with scene() as it:
        await it.wake()
        await it.wake()

        await it.wait_for_jobs("a")

        assert it.claimer.requested_limits == [1]


@pytest.mark.feature("F98")
async def test_a_job_without_a_notification_is_found_by_polling(scene):
    async with scene() as it:
        waiting_tasks = await it.wait_for_jobs("a")
        it.ready(1, 2)
        waiting_tasks += await it.wait_for_jobs("b")
        assert it.claimer.requested_limits == [1]

        it.clock.now += HOUR.total_seconds()
        waiting_tasks += await it.wait_for_jobs("c")

        assert get_results(waiting_tasks) == [1, 2, "waits"]
        assert it.claimer.requested_limits == [1, 3, 1]


async def test_each_poll_comes_after_the_same_time(clock):
    # Real time passes here.
    it = Scene(clock, poll=timedelta(milliseconds=1))
    it.run()
    waiting_tasks = await it.wait_for_jobs("a")
    it.ready(1)

    async def advance() -> None:
        while not waiting_tasks[0].done():
            clock.now += 0.001
            await asyncio.sleep(0.001)

    await asyncio.wait_for(advance(), PATIENCE)

    assert get_results(waiting_tasks) == [1]
    await it.stop()


@pytest.mark.feature("F98")
async def test_a_freed_named_queue_causes_a_fetch(scene):
    async with scene() as it:
        it.ready(1, queue=5)
        waiting_tasks = await it.wait_for_jobs("a", "b")
        assert it.claimer.requested_limits == [2, 1]
        it.ready(2, queue=5)

        it.source.forget(it.claimer.claimed_jobs[1])
        await run_until_idle()

        assert get_results(waiting_tasks) == [1, 2]


async def test_a_named_queue_that_is_freed_during_a_fetch_causes_another(scene):
    async with scene() as it:
        it.ready(1, queue=5)
        waiting_tasks = await it.wait_for_jobs("a", "b")
        it.claimer.answering.clear()
        await it.wake()

        # The fetch under way does not see that the queue is free.
        it.source.forget(it.claimer.claimed_jobs[1])
        it.ready(2, queue=5)
        await it.finish_fetch()

        assert get_results(waiting_tasks) == [1, 2]


async def test_after_the_end_of_a_job_that_may_run_again_a_fetch_follows_soon(scene):
    async with scene() as it:
        it.claimer.knows_all_ready = True
        it.ready(1)
        waiting_tasks = await it.wait_for_jobs("a", "b")

        it.source.forget(it.claimer.claimed_jobs[1], may_run_again=True)
        it.ready(1)
        await it.advance_clock(SHORT_FETCH_POLL_SECONDS / 2)
        assert get_results(waiting_tasks) == [1, "waits"]
        await it.advance_clock(SHORT_FETCH_POLL_SECONDS)
        waiting_tasks += await it.wait_for_jobs("c")

        assert get_results(waiting_tasks) == [1, 1, "waits"]


async def test_the_end_of_a_job_without_a_queue_leads_to_no_fetch(scene):
    async with scene(1) as it:
        await it.wait_for_jobs("a", "b")

        it.source.forget(it.claimer.claimed_jobs[1])
        await run_until_idle()

        assert it.claimer.claimed_jobs == {}
        assert it.claimer.requested_limits == [2, 1]


# Jobs that wait for too long


@pytest.mark.feature("F98")
async def test_late_jobs_are_released_in_one_write_and_notified(scene):
    async with scene(*range(5), throughput=30) as it:
        await it.advance_clock(TOO_LONG)

        assert it.completer.writes == [[0, 1, 2, 3, 4]]
        assert it.completer.offered == [5]
        assert it.claimer.claimed_jobs == {}
        [returned] = it.events_of(LocalQueueReturned)
        assert ids(returned.jobs) == [0, 1, 2, 3, 4]


async def test_fetches_go_on_although_a_late_job_cannot_be_released(scene):
    async with scene(1, 2, throughput=30) as it:
        it.completer.blocked = {2}
        await it.advance_clock(TOO_LONG)

        assert (it.completer.writes, it.completer.offered) == ([[1]], [1])
        assert it.claimer.claimed_jobs.keys() == {2}
        it.ready(3)
        [ask] = await it.wait_for_jobs("a")
        assert get_results([ask]) == [3]
        assert it.claimer.claimed_jobs.keys() == {2, 3}

        it.completer.blocked = set()
        await run_until_idle()
        assert (it.completer.writes, it.completer.offered) == ([[1], [2]], [1, 1])
        assert it.claimer.claimed_jobs.keys() == {3}


@pytest.mark.feature("F98")
async def test_what_did_not_wait_for_too_long_is_kept(scene):
    async with scene(*range(5), throughput=30) as it:
        await it.advance_clock(NOT_YET)

        assert it.completer.writes == []
        assert it.waiting == [0, 1, 2, 3, 4]


@pytest.mark.feature("F98")
async def test_younger_jobs_are_kept_when_late_ones_are_released(scene):
    async with scene(1, 2, throughput=30) as it:
        await it.advance_clock(TOO_LONG - NOT_YET)
        it.ready(3, 4)
        await it.wake()

        await it.advance_clock(NOT_YET)

        assert it.completer.writes == [[1, 2]]
        assert it.waiting == [3, 4]


async def test_a_running_job_is_never_released_as_late(scene):
    async with scene(1, 2, throughput=30) as it:
        await it.wait_for_jobs("a")

        await it.advance_clock(TOO_LONG)

        assert it.completer.writes == [[2]]
        assert list(it.claimer.claimed_jobs) == [1]


@pytest.mark.feature("F98")
async def test_after_that_nothing_is_fetched_ahead_until_jobs_are_known_to_be_short_again(scene):
    async with scene(*range(100), throughput=30) as it:
        await it.advance_clock(TOO_LONG)
        assert it.throughput.was_reset == 1
        assert it.claimer.requested_limits == [10, 10]

        await it.wake()
        assert it.claimer.requested_limits == [10, 10]

        it.throughput.jobs = 30
        await it.wake()
        assert it.claimer.requested_limits == [10, 10, 10, 10]


@pytest.mark.feature("F98")
async def test_a_worker_gets_a_released_job_without_a_notification(scene):
    async with scene(1, 2, throughput=30) as it:
        assert it.claimer.requested_limits == [10, 10]
        await it.advance_clock(TOO_LONG)
        # Other pools can claim them.
        it.ready(1, 2)

        waiting_tasks = await it.wait_for_jobs("a")

        assert get_results(waiting_tasks) == [1]


async def test_late_jobs_stay_claimed_until_their_release_is_written(scene):
    async with scene(1, 2, throughput=30) as it:
        it.completer.answering.clear()

        await it.advance_clock(TOO_LONG)

        assert (it.completer.writes, it.completer.offered) == ([[1, 2]], [])
        assert sorted(it.claimer.claimed_jobs) == [1, 2]
        assert get_results(await it.wait_for_jobs("a")) == ["waits"]


# Order


@pytest.mark.feature("F98")
async def test_more_urgent_jobs_of_a_later_fetch_leave_first(scene):
    async with scene(throughput=30) as it:
        it.ready(1, 2, 3, priority=5)
        await it.wake()
        it.ready(4, 5, priority=0)
        it.ready(6, priority=5)
        it.ready(7, priority=9)

        await it.wake()

        assert get_results(await it.wait_for_jobs(*"abcdefg")) == [4, 5, 1, 2, 3, 6, 7]


async def test_the_first_waiting_worker_gets_the_first_job(scene):
    async with scene() as it:
        waiting_tasks = await it.wait_for_jobs("a") + await it.wait_for_jobs("b")
        it.ready(7, 3)

        await it.wake()

        assert get_results(waiting_tasks) == [7, 3]


# Flags


@pytest.mark.feature("F237")
async def test_the_flags_function_is_called_again_before_a_job_with_flags_starts(scene):
    async with scene(throughput=30, flags=make_flags_function(["slow"])) as it:
        it.ready(1, flags='{"slow": true}')
        it.ready(2, flags='{"fast": true}')
        it.ready(3)
        await it.wake()

        assert it.source.take_buffered() is None
        waiting_tasks = await it.wait_for_jobs("a", "b")

        assert sorted(map(str, get_results(waiting_tasks))) == ["2", "3"]
        assert it.completer.writes == [[1]]
        assert it.completer.offered == [1]
        assert sorted(it.claimer.claimed_jobs) == [2, 3]


@pytest.mark.feature("F237")
async def test_the_flags_function_is_not_called_for_a_job_without_flags(scene):
    async with scene(1, throughput=30, flags=make_flags_function(AssertionError("asked"))) as it:
        assert get_results(await it.wait_for_jobs("a")) == [1]
        assert it.events_of(GetJobErrored) == []


@pytest.mark.feature("F237")
async def test_a_list_of_flags_is_not_checked_again(scene):
    # The fetch excluded forbidden flags, which do not change.
    async with scene(throughput=30) as it:
        it.ready(1, flags='{"slow": true}')
        await it.wake()

        claimed = it.source.take_buffered()

        assert claimed is not None
        assert claimed.job.id == 1


@pytest.mark.feature("F237")
@pytest.mark.parametrize("error", [OSError("no answer"), asyncio.CancelledError()], ids=repr)
async def test_a_function_that_fails_keeps_its_job_from_starting_and_ends_no_worker(scene, error):
    async with scene(throughput=30, flags=make_flags_function(error, None)) as it:
        it.ready(1, 2, flags='{"slow": true}')
        await it.wake()

        waiting_tasks = await it.wait_for_jobs("a")

        assert get_results(waiting_tasks) == [2]
        assert it.completer.writes == [[1]]
        [failed] = it.events_of(GetJobErrored)
        assert (failed.worker_id, failed.error) == ("a", error)


# Rotated pool ids


@pytest.mark.feature("F98")
async def test_jobs_that_wait_when_the_pool_gets_another_id_do_not_start(scene):
    async with scene(1, 2, throughput=30) as it:
        it.claimer.pool_id = "p2"
        assert it.source.take_buffered() is None
        it.ready(3, locked_by="p2")
        await it.wake()

        waiting_tasks = await it.wait_for_jobs("a")

        assert get_results(waiting_tasks) == [3]
        assert it.completer.writes == [[1], [2]]
        assert list(it.claimer.claimed_jobs) == [3]


# Once


@pytest.mark.feature("F98")
async def test_once_sends_all_away_when_nothing_is_ready_and_nothing_runs(scene):
    async with scene(once=True) as it:
        waiting_tasks = await it.wait_for_jobs("a", "b")

        assert get_results(waiting_tasks) == [None, None]
        assert it.running.done()


@pytest.mark.feature("F98")
async def test_once_waits_for_what_the_last_job_adds(scene):
    async with scene(1, once=True) as it:
        busy, idle = await it.wait_for_jobs("a", "b")
        assert get_results([busy, idle]) == [1, "waits"]

        # No notification announces it.
        it.ready(2)
        it.source.forget(it.claimer.claimed_jobs[1])
        await run_until_idle()
        assert get_results([idle]) == [2]

        it.source.forget(it.claimer.claimed_jobs[2])
        assert get_results(await it.wait_for_jobs("a")) == [None]
        assert it.running.done()


async def test_once_what_any_other_job_adds_is_found_by_polling(scene):
    async with scene(1, 2, once=True) as it:
        waiting_tasks = await it.wait_for_jobs("a", "b", "c")
        it.ready(3)
        it.source.forget(it.claimer.claimed_jobs[1])
        await run_until_idle()
        assert get_results(waiting_tasks) == [1, 2, "waits"]

        it.clock.now += 1
        waiting_tasks += await it.wait_for_jobs("a")

        assert get_results(waiting_tasks) == [1, 2, 3, "waits"]
        assert not it.running.done()


@pytest.mark.feature("F98")
async def test_once_does_not_end_while_jobs_wait(scene):
    async with scene(1, throughput=30, once=True) as it:
        await it.wake()

        assert not it.running.done()
        assert get_results(await it.wait_for_jobs("a")) == [1]


async def test_once_does_not_end_during_the_release_of_late_jobs(scene):
    async with scene(1, 2, throughput=30, once=True) as it:
        busy = await it.wait_for_jobs("a")
        await it.advance_clock(TOO_LONG)
        assert it.completer.writes == [[2]]
        it.ready(2)

        it.source.forget(it.claimer.claimed_jobs[1])

        assert get_results(busy + await it.wait_for_jobs("a")) == [1, 2]


@pytest.mark.feature("F175")
async def test_once_a_failed_fetch_is_raised_to_the_waiting_workers(scene):
    async with scene(once=True) as it:
        error = OSError("gone")
        it.claimer.errors = [error]

        waiting_tasks = await it.wait_for_jobs("a", "b") + await it.wait_for_jobs("c")

        assert [each.exception() for each in waiting_tasks] == [error, error, error]
        assert it.running.done()


async def test_once_waiting_jobs_are_released_when_a_fetch_fails_permanently(scene):
    async with scene(1, 2, throughput=30, once=True) as it:
        it.claimer.errors = [LookupError("gone")]

        await it.wake()

        assert it.completer.writes == [[1, 2]]
        assert it.running.done()


# Errors


@pytest.mark.feature("F175")
async def test_a_failed_fetch_is_retried_until_all_waiting_workers_have_a_job(scene):
    async with scene(1, 2) as it:
        it.claimer.errors = [OSError(str(each)) for each in range(5)]

        waiting_tasks = await it.wait_for_jobs("a", "b")

        assert get_results(waiting_tasks) == [1, 2]
        assert it.claimer.requested_limits == [2] * 6
        assert [(each.worker_id, str(each.error)) for each in it.events_of(GetJobErrored)] == [
            (worker, str(error)) for error in range(5) for worker in "ab"
        ]


async def test_a_fetch_that_raises_a_cancellation_is_retried(scene):
    # Not a cancellation of the source: a flags function may await a cancelled task.
    async with scene(1) as it:
        it.claimer.errors = [asyncio.CancelledError()]

        assert get_results(await it.wait_for_jobs("a")) == [1]
        assert not it.running.done()


async def test_each_pause_is_longer_until_a_fetch_succeeds(scene):
    async with scene() as it:
        await it.wait_for_jobs("a")
        it.claimer.errors = [OSError(), OSError(), OSError()]
        await it.wake()
        it.claimer.errors = [OSError()]
        await it.wake()

        assert it.failures == [0, 1, 2, 0]


async def test_announcements_do_not_cut_the_pause_after_an_error_short(scene):
    async with scene() as it:
        it.backoff_seconds = 3600
        it.claimer.errors = [OSError()]
        await it.wait_for_jobs("a")

        await it.wake()

        assert it.claimer.requested_limits == [1]
        assert it.source.is_failing


async def test_a_stop_does_not_wait_for_the_pause_after_an_error(scene):
    async with scene() as it:
        it.backoff_seconds = 3600
        it.claimer.errors = [OSError()]
        waiting_tasks = await it.wait_for_jobs("a")

        await it.stop()

        assert get_results(waiting_tasks) == [None]


async def test_it_is_failing_from_an_error_to_the_next_answer(scene):
    async with scene() as it:
        waiting_states: list[bool] = []
        it.hooks.on(GetJobErrored)(lambda event: waiting_states.append(it.source.is_failing))
        it.hooks.on(GetJobRecovered)(lambda event: waiting_states.append(it.source.is_failing))
        it.claimer.errors = [OSError()]
        assert not it.source.is_failing

        await it.wait_for_jobs("a")

        assert waiting_states == [True, False]
        assert not it.source.is_failing


async def test_who_knows_what_was_added_while_fetches_failed(scene):
    async with scene() as it:
        waiting_tasks = await it.wait_for_jobs("a")
        it.claimer.answering.clear()
        await it.wake()
        it.claimer.errors = [OSError()]

        # The notification is lost, because the listening connection is lost, too.
        it.ready(1)
        await it.finish_fetch()

        assert get_results(waiting_tasks) == [1]


# Stop


async def test_a_stop_before_it_runs_leaves_nothing_to_do(clock):
    it = Scene(clock, throughput=30)
    it.ready(1)
    it.source.stop()

    await it.source.run()

    assert it.claimer.requested_limits == []


async def test_a_stop_sends_those_away_who_wait_and_those_who_come_later(scene):
    async with scene() as it:
        waiting_tasks = await it.wait_for_jobs("a", "b")

        await it.stop()

        assert get_results(waiting_tasks + await it.wait_for_jobs("c")) == [None, None, None]
        assert it.completer.writes == []


@pytest.mark.feature("F98")
async def test_a_stop_releases_all_waiting_jobs_in_one_write(scene):
    async with scene(1, 2, 3, throughput=30) as it:
        waiting_tasks = await it.wait_for_jobs("a")

        await it.stop()

        assert get_results(waiting_tasks + await it.wait_for_jobs("b")) == [1, None]
        assert it.source.take_buffered() is None
        assert it.completer.writes == [[2, 3]]
        assert it.completer.offered == [2]
        assert list(it.claimer.claimed_jobs) == [1]


@pytest.mark.feature("F98")
async def test_jobs_fetched_after_the_stop_are_released(scene):
    async with scene() as it:
        it.claimer.answering.clear()
        it.ready(1)
        waiting_tasks = await it.wait_for_jobs("a", "b")

        it.source.stop()
        await run_until_idle()
        assert get_results(waiting_tasks) == [None, None]
        assert not it.running.done()
        await it.finish_fetch()

        assert it.running.done()
        assert it.completer.writes == [[1]]
        assert it.claimer.claimed_jobs == {}


async def test_a_fetch_that_fails_after_the_stop_ends_it(scene):
    async with scene() as it:
        it.claimer.answering.clear()
        it.claimer.errors = [OSError("gone")]
        await it.wait_for_jobs("a")

        it.source.stop()
        await it.finish_fetch()

        assert it.running.done()
        assert it.running.exception() is None


async def test_a_cancelled_source_releases_the_waiting_jobs(scene):
    async with scene(1, 2, throughput=30) as it:
        it.running.cancel()
        await run_until_idle()

        assert it.running.cancelled()
        assert it.completer.writes == [[1, 2]]
        assert get_results(await it.wait_for_jobs("a")) == [None]


async def test_one_that_is_cancelled_while_it_fetches_sends_all_away(scene):
    async with scene() as it:
        it.claimer.answering.clear()
        waiting_tasks = await it.wait_for_jobs("a")

        it.running.cancel()
        await run_until_idle()

        assert it.running.cancelled()
        assert get_results(waiting_tasks) == [None]


# Cancelled workers


@pytest.mark.feature("F98")
async def test_the_job_of_one_who_no_longer_waits_goes_to_another(scene):
    async with scene(1) as it:
        it.claimer.answering.clear()
        waiting_tasks = await it.wait_for_jobs("a", "b")

        waiting_tasks[0].cancel()
        await it.finish_fetch()

        assert get_results(waiting_tasks) == ["cancelled", 1]
        assert it.completer.writes == []


@pytest.mark.feature("F98")
async def test_the_job_of_a_cancelled_worker_is_kept_or_released(scene):
    async with scene(1, 2) as it:
        it.claimer.answering.clear()
        waiting_tasks = await it.wait_for_jobs("a", "b")
        for task in waiting_tasks:
            task.cancel()
        await it.finish_fetch()
        assert it.waiting == [1, 2]

        assert get_results(await it.wait_for_jobs("c")) == [1]
        await it.advance_clock(TOO_LONG)

        assert it.completer.writes == [[2]]
        assert list(it.claimer.claimed_jobs) == [1]


async def test_nothing_is_fetched_for_one_who_no_longer_waits(scene):
    async with scene() as it:
        waiting_tasks = await it.wait_for_jobs("a", "b")
        waiting_tasks[0].cancel()
        await run_until_idle()

        await it.wake()

        assert it.claimer.requested_limits == [2, 1]


# Events


@pytest.mark.feature("F98", "F174", "F176")
async def test_all_is_announced_in_the_order_in_which_it_happens(scene):
    async with scene(throughput=30) as it:
        await it.wait_for_jobs("a")
        it.ready(1, 2)
        await it.wake()

        await it.advance_clock(TOO_LONG)

        assert [type(event) for event in it.events] == [
            GetJobStarted,
            LocalQueueFetched,
            LocalQueueReturned,
        ]
        assert {event.pool_id for event in it.events} == {"p1"}


@pytest.mark.feature("F176")
async def test_an_empty_fetch_is_an_event(scene):
    async with scene() as it:
        await it.wait_for_jobs("a", "b")

        assert [(type(event), event.worker_id) for event in it.events] == [
            (GetJobStarted, "a"),
            (GetJobStarted, "b"),
            (GetJobEmpty, "a"),
            (GetJobEmpty, "b"),
        ]


# Fetches without a full scan


async def test_the_next_fetch_is_at_next_fetch_at(scene, clock):
    async with scene() as it:
        it.claimer.next_fetch_at = clock.now + 0.02
        waiting_tasks = await it.wait_for_jobs("a")
        it.claimer.next_fetch_at = None
        it.ready(1)
        clock.now += 0.03

        await asyncio.wait(waiting_tasks, timeout=PATIENCE)

        assert get_results(waiting_tasks) == [1]


async def test_with_once_it_does_not_end_before_a_full_scan(scene, clock):
    async with scene(once=True) as it:
        it.claimer.next_fetch_at = clock.now + 3600
        waiting_tasks = await it.wait_for_jobs("a")
        assert get_results(waiting_tasks) == ["waits"]

        it.claimer.next_fetch_at = None
        await it.wake()

        assert get_results(waiting_tasks) == [None]
