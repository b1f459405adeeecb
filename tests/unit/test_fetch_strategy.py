"""Fetch: which statement is tried, and when all of the table is looked at."""

from typing import Any

import pytest

from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._sql.query import Query
from graphile_worker._worker import fetch_strategy as fetch_module
from graphile_worker._worker import scan_cursor as beginning_module
from graphile_worker._worker.fetch_strategy import (
    CHEAPER_RETRY_SECONDS,
    FULL_SCAN_DELAY_RANGE_SECONDS,
    MAX_MISSES,
    JobFetcher,
)
from graphile_worker._worker.scan_cursor import MAX_SCAN_DELAY_SECONDS, MIN_SLOW_SCANS
from tests.support.clocks import ManualClock
from tests.support.jobs import make_job

PLAIN, SOONEST, EVERYWHERE = "claim_plain_jobs", "claim_soonest_jobs", "claim_jobs"


class Scene:
    """A fetch, and for each statement the queues of the jobs that it finds."""

    def __init__(self, clock: ManualClock) -> None:
        self.held: dict[int, ClaimedJob] = {}
        self.finds: dict[str, list[int | None]] = {}
        self.asked: list[str] = []
        self.since: list[object] = []
        # How long the server searches for each answer, and how long it travels.
        self.search_seconds = 0.0
        self.travel_seconds = 0.0
        database: Any = self
        self.fetch = JobFetcher(database, self.held)
        self.fetch.has_indexes = True
        self._clock = clock

    async def run(self, query: Query[Any]) -> list[ClaimedJob]:
        self.asked.append(query.name)
        self.since.append(query.args[5])
        self._clock.now += self.search_seconds + self.travel_seconds
        found = self.finds.get(query.name, [])[: int(str(query.args[3]))]
        return [
            ClaimedJob(make_job(id=n), queue, search_seconds=self.search_seconds)
            for n, queue in enumerate(found)
        ]

    async def take(self, limit: int = 1, *, times: int = 1, after: float = 0.0) -> list[str]:
        """With which statements."""
        before = len(self.asked)
        for _ in range(times):
            self._clock.now += after
            self.taken = await self.fetch.fetch("p1", {1: "task"}, limit=limit)
        return self.asked[before:]

    def hold(self, queue: int) -> None:
        self.held[queue] = ClaimedJob(make_job(id=queue), queue)


@pytest.fixture
def clock(monkeypatch) -> ManualClock:
    return ManualClock.patch(monkeypatch, fetch_module, beginning_module)


@pytest.fixture
def it(clock) -> Scene:
    return Scene(clock)


@pytest.fixture
async def by_queue(it: Scene) -> Scene:
    """Where the soonest jobs were found to be of named queues."""
    it.finds = {SOONEST: [5], EVERYWHERE: [5]}
    await it.take(times=MAX_MISSES)
    assert await it.take() == [SOONEST]
    return it


# Which one


async def test_plain_jobs_are_looked_for_first_and_alone_if_there_are_some(it):
    it.finds = {PLAIN: [None] * 10}

    assert await it.take(times=3) == [PLAIN] * 3


async def test_only_an_empty_full_scan_means_that_no_job_is_ready(it):
    assert await it.take() == [PLAIN, EVERYWHERE]
    assert it.taken == []
    assert it.fetch.next_fetch_at is None


async def test_without_our_indexes_everywhere_is_another_statement(it):
    it.fetch.has_indexes = False

    assert await it.take() == [PLAIN, "claim_jobs_unindexed"]


async def test_a_way_that_misses_again_and_again_is_left_for_the_next_dearer_one(it):
    it.finds = {EVERYWHERE: [None]}

    assert await it.take(times=MAX_MISSES) == [PLAIN, EVERYWHERE] * MAX_MISSES
    assert await it.take(times=MAX_MISSES) == [SOONEST, EVERYWHERE] * MAX_MISSES
    assert await it.take(times=MAX_MISSES) == [EVERYWHERE] * MAX_MISSES


async def test_a_way_that_misses_now_and_then_stays_the_usual_one(it):
    for _ in range(10):
        it.finds = {EVERYWHERE: [None]}
        assert await it.take(times=MAX_MISSES - 1) == [PLAIN, EVERYWHERE] * (MAX_MISSES - 1)
        it.finds = {PLAIN: [None]}
        assert await it.take() == [PLAIN]


async def test_an_empty_table_is_not_a_miss(it):
    assert await it.take(times=3 * MAX_MISSES) == [PLAIN, EVERYWHERE] * (3 * MAX_MISSES)


async def test_the_next_cheaper_way_is_tried_once_in_a_while(it):
    it.finds = {EVERYWHERE: [None]}
    await it.take(times=2 * MAX_MISSES)

    assert await it.take(after=CHEAPER_RETRY_SECONDS) == [SOONEST, EVERYWHERE]
    assert await it.take() == [EVERYWHERE]


async def test_the_cheaper_way_is_the_usual_one_again_as_soon_as_it_finds_jobs(it):
    it.finds = {EVERYWHERE: [None]}
    await it.take(times=2 * MAX_MISSES)
    it.finds = {PLAIN: [None], SOONEST: [None], EVERYWHERE: [None]}

    assert await it.take(after=CHEAPER_RETRY_SECONDS) == [SOONEST]
    assert await it.take() == [SOONEST]
    assert await it.take(after=CHEAPER_RETRY_SECONDS) == [PLAIN]
    assert await it.take() == [PLAIN]


# When to look everywhere


async def test_a_short_answer_of_the_soonest_lets_all_be_looked_at_a_little_later(by_queue, clock):
    it = by_queue

    assert await it.take(limit=10) == [SOONEST]
    assert it.fetch.next_fetch_at == pytest.approx(
        clock.now + FULL_SCAN_DELAY_RANGE_SECONDS[0], abs=FULL_SCAN_DELAY_RANGE_SECONDS[1]
    )
    assert await it.take(limit=10) == [SOONEST]
    assert await it.take(limit=10, after=FULL_SCAN_DELAY_RANGE_SECONDS[1]) == [EVERYWHERE]
    assert it.fetch.next_fetch_at is None
    assert await it.take(limit=10) == [SOONEST]


async def test_where_everywhere_finds_more_it_becomes_the_usual_way(by_queue):
    it = by_queue
    it.finds[EVERYWHERE] = [5, None, None]

    await it.take(limit=10)
    assert await it.take(limit=10, after=FULL_SCAN_DELAY_RANGE_SECONDS[1]) == [EVERYWHERE]
    assert await it.take(limit=10) == [EVERYWHERE]


async def test_the_longer_nothing_else_is_found_the_rarer_all_is_looked_at(by_queue):
    it = by_queue
    it.finds = {}
    it.hold(5)
    first, longest = FULL_SCAN_DELAY_RANGE_SECONDS

    assert await it.take(after=first) == [SOONEST, EVERYWHERE]
    assert await it.take(after=first) == [SOONEST]
    for _ in range(3):
        assert await it.take(after=longest) == [SOONEST, EVERYWHERE]
    assert await it.take(after=longest * 0.9) == [SOONEST]
    assert await it.take(after=longest * 0.2) == [SOONEST, EVERYWHERE]


async def test_while_a_queue_of_the_pool_is_busy_an_empty_answer_sets_the_next_fetch(by_queue):
    it = by_queue
    it.hold(5)
    it.finds = {}
    assert await it.take() == [SOONEST]

    assert it.taken == []
    assert it.fetch.next_fetch_at is not None
    assert await it.take(after=FULL_SCAN_DELAY_RANGE_SECONDS[1]) == [SOONEST, EVERYWHERE]
    assert it.fetch.next_fetch_at is None


async def test_the_next_job_of_a_busy_queue_is_not_a_miss(by_queue):
    it = by_queue
    it.hold(5)
    it.finds = {EVERYWHERE: [5]}

    for _ in range(2 * MAX_MISSES):
        assert await it.take(after=FULL_SCAN_DELAY_RANGE_SECONDS[1]) == [SOONEST, EVERYWHERE]


async def test_jobs_behind_a_busy_queue_are_found_by_each_fetch_in_the_end(by_queue):
    it = by_queue
    it.hold(5)
    it.finds = {EVERYWHERE: [None]}
    while await it.take(after=FULL_SCAN_DELAY_RANGE_SECONDS[0]) != [EVERYWHERE]:
        pass

    assert await it.take(times=3) == [EVERYWHERE] * 3


# Where it takes long to look from the first job on


@pytest.fixture
async def dear(it: Scene) -> Scene:
    """Where looks at plain jobs were dear."""
    it.finds = {PLAIN: [None] * 10}
    it.search_seconds = 0.1
    await it.take(10, times=MIN_SLOW_SCANS)
    it.search_seconds = 0.0
    it.since.clear()
    return it


async def test_after_a_dear_look_the_next_ones_begin_where_it_found_jobs(dear):
    assert await dear.take(10, times=3) == [PLAIN] * 3

    assert dear.since == [0, 0, 0]


async def test_after_a_while_all_is_looked_at_again(dear):
    await dear.take(10, after=MAX_SCAN_DELAY_SECONDS)
    await dear.take(10)

    assert dear.since == [None, None]


async def test_jobs_of_queues_are_found_from_there_on_too(dear):
    dear.finds = {SOONEST: [5]}

    assert await dear.take(10) == [PLAIN, SOONEST]
    assert dear.since == [0, 0]
    assert len(dear.taken) == 1


async def test_a_round_trip_does_not_make_a_look_dear(it):
    it.finds = {PLAIN: [None] * 10}
    it.travel_seconds = 0.2

    assert await it.take(10, times=9) == [PLAIN] * 9

    assert it.since == [None] * 9


async def test_an_idle_pool_looks_at_all_at_once_if_there_is_nothing_from_there_on(dear):
    dear.finds = {EVERYWHERE: [None]}

    assert await dear.take(10) == [PLAIN, SOONEST, EVERYWHERE]
    assert dear.since == [0, 0, None]
    assert len(dear.taken) == 1
    assert dear.fetch.next_fetch_at is None


async def test_an_idle_pool_rests_between_two_such_looks_for_as_long_as_one_takes(dear, clock):
    dear.finds = {}
    assert await dear.take(10) == [PLAIN, SOONEST, EVERYWHERE]

    assert await dear.take(10) == [PLAIN, SOONEST]
    assert dear.fetch.next_fetch_at == pytest.approx(clock.now + 0.1)
    assert await dear.take(10, after=0.1) == [PLAIN, SOONEST, EVERYWHERE]
    assert dear.fetch.next_fetch_at is None
