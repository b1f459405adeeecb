"""JobFetcher: which statement is used, and when the whole table is scanned."""

from datetime import UTC, datetime
from typing import Any

import pytest

from graphile_worker._sql.queries.claim import ClaimedJob, ReadyCheck
from graphile_worker._sql.query import Query
from graphile_worker._worker import fetch_strategy as fetch_strategy_module
from graphile_worker._worker import scan_cursor as scan_cursor_module
from graphile_worker._worker.fetch_strategy import (
    CHEAPER_RETRY_SECONDS,
    FULL_SCAN_DELAY_RANGE_SECONDS,
    MAX_MISSES,
    MIN_PLAIN_HITS,
    JobFetcher,
)
from graphile_worker._worker.scan_cursor import MAX_SCAN_DELAY_SECONDS, MIN_SLOW_SCANS
from tests.support.clocks import ManualClock
from tests.support.jobs import make_job

PLAIN, SOONEST, FULL_SCAN = "claim_plain_jobs", "claim_soonest_jobs", "claim_jobs"
AROUND = "claim_jobs_around"
FIRST = "claim_first_job"


class Scene:
    """A fetcher, and for each statement the queues of the jobs that it finds.

    A test that is not about a lone job does not see the statement that claims it: that finds
    nothing, as if another session had locked the first job.
    """

    def __init__(self, clock: ManualClock) -> None:
        self.claimed_jobs: dict[int, ClaimedJob] = {}
        self.ready: dict[str, list[int | None]] = {}
        self.statements: list[str] = []
        self.sees_first = False
        # Whether no other job is ready, for the lone job and for the plain jobs.
        self.is_lone = self.are_all_plain = False
        self.first_id = 0
        # Whether the cheap check finds that a job may be ready, and how often it ran.
        self.may_have_jobs = True
        self.failing = ""
        self.are_few = False
        self.checks = 0
        self.since: list[object] = []
        # How long the server searches, and how long the answer travels.
        self.search_seconds = 0.0
        self.travel_seconds = 0.0
        # Whether other jobs precede those that a full scan finds.
        self.is_behind = False
        database: Any = self
        self.fetch = JobFetcher(database, self.claimed_jobs)
        self.fetch.has_indexes = True
        self._clock = clock

    async def run(self, query: Query[Any]) -> list[ClaimedJob] | ReadyCheck:
        if query.statement == "check_ready_jobs":
            self.checks += 1
            return ReadyCheck(self.may_have_jobs, self.are_few)
        if query.statement == self.failing:
            raise TimeoutError
        if query.statement != FIRST or self.sees_first:
            self.statements.append(str(query.statement))
            self.since.append(query.args[5])
        self._clock.now += self.search_seconds + self.travel_seconds
        queue_ids = self.ready.get(str(query.statement), [])[: int(str(query.args[3]))]
        return [
            ClaimedJob(
                make_job(id=self.first_id if query.statement == FIRST else n),
                queue,
                search_seconds=self.search_seconds,
                is_all_ready=self.is_lone if query.statement == FIRST else self.are_all_plain,
                is_behind_soonest=self.is_behind,
            )
            for n, queue in enumerate(queue_ids, 1)
        ]

    async def fetch_statements(
        self, limit: int = 1, *, times: int = 1, after: float = 0.0
    ) -> list[str]:
        """Fetch, and return the statements that were used."""
        before = len(self.statements)
        for _ in range(times):
            self._clock.now += after
            self.fetched = await self.fetch.fetch("p1", {1: "task"}, limit=limit)
        return self.statements[before:]

    def claim_queue(self, queue: int) -> None:
        self.claimed_jobs[queue] = ClaimedJob(make_job(id=queue), queue)


@pytest.fixture
def clock(monkeypatch) -> ManualClock:
    return ManualClock.patch(monkeypatch, fetch_strategy_module, scan_cursor_module)


@pytest.fixture
def it(clock) -> Scene:
    return Scene(clock)


@pytest.fixture
async def by_queue(it: Scene) -> Scene:
    """A fetcher that found the soonest jobs in named queues."""
    it.ready = {SOONEST: [5], FULL_SCAN: [5]}
    await it.fetch_statements(times=MAX_MISSES)
    assert await it.fetch_statements() == [SOONEST]
    return it


# A lone job


@pytest.fixture
def lone(it: Scene) -> Scene:
    """A fetcher with one ready job, of a test that sees each statement."""
    it.sees_first = it.is_lone = True
    it.ready = {FIRST: [None], PLAIN: [None], FULL_SCAN: [None]}
    return it


async def test_a_pool_that_expects_one_job_claims_the_first_alone(lone):
    assert await lone.fetch_statements(10, times=3) == [FIRST] * 3

    assert [each.is_all_ready for each in lone.fetched] == [True]
    assert lone.checks == 0
    assert lone.fetch.next_fetch_at is None


async def test_if_there_may_be_more_jobs_the_others_follow_in_the_same_fetch(lone):
    lone.is_lone = False
    lone.ready[PLAIN] = [None] * 20

    assert await lone.fetch_statements(10) == [FIRST, PLAIN]
    assert [each.job.id for each in lone.fetched] == list(range(10))


async def test_if_the_statement_for_the_others_fails_the_next_fetch_begins_with_it(lone):
    lone.is_lone, lone.failing = False, PLAIN
    lone.ready[PLAIN] = [None] * 20

    with pytest.raises(TimeoutError):
        await lone.fetch_statements(10)
    lone.failing, lone.statements = "", []

    assert await lone.fetch_statements(10) == [PLAIN]


async def test_if_the_first_job_cannot_be_claimed_the_others_follow_in_the_same_fetch(lone):
    lone.ready = {FULL_SCAN: [5]}

    assert await lone.fetch_statements(10) == [FIRST, PLAIN, FULL_SCAN]
    assert [each.queue_id for each in lone.fetched] == [5]


@pytest.mark.parametrize(("others", "is_all"), [(True, True), (False, False), (None, False)])
async def test_the_second_statement_shows_whether_other_jobs_are_ready(lone, others, is_all):
    lone.is_lone = lone.may_have_jobs = False
    lone.ready[PLAIN] = [] if others is None else [None]
    lone.are_all_plain = bool(others)

    await lone.fetch_statements(10)

    assert lone.fetched[0].is_all_ready is is_all


async def test_jobs_that_were_added_together_are_in_the_order_of_their_ids(lone):
    lone.is_lone, lone.are_all_plain, lone.first_id = False, True, 3
    lone.ready[PLAIN] = [None, None]

    await lone.fetch_statements(10)

    assert [each.job.id for each in lone.fetched] == [1, 2, 3]
    assert lone.fetched[0].is_all_ready


async def test_after_several_jobs_a_pool_expects_several_until_it_finds_no_more_than_one(lone):
    lone.is_lone = False
    lone.ready[PLAIN] = [None] * 10

    assert await lone.fetch_statements(10) == [FIRST, PLAIN]
    assert await lone.fetch_statements(10, times=2) == [PLAIN] * 2
    lone.ready[PLAIN], lone.is_lone = [None], True
    assert await lone.fetch_statements(10) == [PLAIN]
    assert await lone.fetch_statements(10, times=2) == [FIRST] * 2


async def test_a_fetch_of_one_job_claims_the_first_one_also_if_there_are_more(lone):
    lone.is_lone = False
    lone.ready[PLAIN] = [None] * 10

    assert await lone.fetch_statements(1, times=3 * MAX_MISSES) == [FIRST] * (3 * MAX_MISSES)


@pytest.mark.parametrize("limit", [1, 10])
async def test_after_repeated_misses_the_first_job_is_not_claimed_alone_for_a_while(lone, limit):
    lone.ready[FIRST] = []

    assert await lone.fetch_statements(limit, times=MAX_MISSES) == [FIRST, PLAIN] * MAX_MISSES
    assert await lone.fetch_statements(limit, times=9) == [PLAIN] * 9
    # Then once.
    assert await lone.fetch_statements(limit, after=CHEAPER_RETRY_SECONDS) == [FIRST, PLAIN]
    assert await lone.fetch_statements(limit, times=9) == [PLAIN] * 9
    lone.ready[FIRST] = [None]
    assert await lone.fetch_statements(limit, after=CHEAPER_RETRY_SECONDS) == [FIRST]
    assert await lone.fetch_statements(limit, times=9) == [FIRST] * 9


async def test_that_there_are_more_jobs_is_a_miss(lone):
    for n in range(MAX_MISSES):
        lone.is_lone, lone.ready[PLAIN] = False, [None] * 10
        assert await lone.fetch_statements(10) == [FIRST, PLAIN], n
        lone.ready[PLAIN] = [None]
        assert await lone.fetch_statements(10) == [PLAIN]
    lone.is_lone = True
    assert await lone.fetch_statements(10, times=3) == [PLAIN] * 3
    assert await lone.fetch_statements(10, after=CHEAPER_RETRY_SECONDS) == [FIRST]


async def test_misses_between_lone_jobs_do_not_add_up(lone):
    for _ in range(10):
        lone.ready[FIRST] = []
        assert await lone.fetch_statements(times=MAX_MISSES - 1) == [FIRST, PLAIN] * (
            MAX_MISSES - 1
        )
        lone.ready[FIRST] = [None]
        assert await lone.fetch_statements() == [FIRST]


async def test_a_fetch_without_a_ready_job_is_not_a_miss(lone):
    lone.ready, lone.may_have_jobs = {}, False

    assert await lone.fetch_statements(times=3 * MAX_MISSES) == [FIRST, PLAIN] * (3 * MAX_MISSES)
    assert lone.checks == 3 * MAX_MISSES
    assert lone.fetched == []
    assert lone.fetch.next_fetch_at is None


async def test_a_lone_job_is_a_hit_of_the_plain_statement(lone):
    for _ in range(10):
        lone.ready = {FULL_SCAN: [None]}
        assert await lone.fetch_statements(times=MAX_MISSES - 1) == [FIRST, PLAIN, FULL_SCAN] * (
            MAX_MISSES - 1
        )
        lone.ready = {FIRST: [None]}
        assert await lone.fetch_statements() == [FIRST]


async def test_the_plain_statement_is_the_usual_one_again_after_a_lone_job(lone):
    lone.ready = {SOONEST: [5], FULL_SCAN: [5]}
    while await lone.fetch_statements() != [SOONEST]:
        pass
    lone.ready = {FIRST: [None], SOONEST: [None]}

    assert await lone.fetch_statements(after=CHEAPER_RETRY_SECONDS) == [FIRST]
    assert await lone.fetch_statements(times=3) == [FIRST] * 3


async def test_after_slow_scans_the_first_job_is_not_claimed_alone(lone):
    lone.search_seconds = 0.1
    assert await lone.fetch_statements(10, times=MIN_SLOW_SCANS) == [FIRST] * MIN_SLOW_SCANS
    lone.search_seconds = 0.0
    lone.since.clear()

    assert await lone.fetch_statements(10, times=3) == [PLAIN] * 3
    assert lone.since == [0, 0, 0]
    assert await lone.fetch_statements(10, after=MAX_SCAN_DELAY_SECONDS) == [FIRST]
    assert lone.since[3:] == [None]


# Strategies


async def test_plain_jobs_are_fetched_first_and_alone_if_there_are_some(it):
    it.ready = {PLAIN: [None] * 10}

    assert await it.fetch_statements(times=3) == [PLAIN] * 3


async def test_an_empty_full_scan_means_that_no_job_is_ready(it):
    assert await it.fetch_statements() == [PLAIN, FULL_SCAN]
    assert it.fetched == []
    assert it.fetch.next_fetch_at is None


async def test_no_full_scan_follows_if_the_check_finds_that_no_job_is_ready(it):
    it.may_have_jobs = False

    assert await it.fetch_statements(times=3) == [PLAIN] * 3
    assert it.checks == 3
    assert it.fetched == []
    assert it.fetch.next_fetch_at is None


async def test_if_there_are_few_jobs_the_soonest_are_all_of_them(it):
    it.are_few = True
    it.ready = {SOONEST: [5], FULL_SCAN: [5]}

    assert await it.fetch_statements(times=MAX_MISSES) == [PLAIN, SOONEST] * MAX_MISSES
    assert await it.fetch_statements() == [SOONEST]


async def test_if_other_sessions_have_locked_the_few_jobs_a_full_scan_follows(it):
    it.are_few = True
    it.ready = {FULL_SCAN: [None]}

    assert await it.fetch_statements() == [PLAIN, SOONEST, FULL_SCAN]
    assert len(it.fetched) == 1


async def test_a_fetch_that_claims_jobs_needs_no_check(it):
    it.ready = {PLAIN: [None]}

    await it.fetch_statements(times=3)

    assert it.checks == 0


async def test_the_check_gets_the_tasks_flags_and_time_of_the_fetch(it, monkeypatch):
    queries = []
    run = it.run

    async def record(query):
        queries.append(query)
        return await run(query)

    monkeypatch.setattr(it, "run", record)
    now = datetime(2024, 2, 29, 4, 30, tzinfo=UTC)
    await it.fetch.fetch("p1", {1: "task", 3: "other"}, limit=1, skip_flags=["no"], now=now)

    [check] = [each for each in queries if each.statement == "check_ready_jobs"]
    [full_scan] = [each for each in queries if each.statement == FULL_SCAN]
    assert check.args == (full_scan.args[1], full_scan.args[2], full_scan.args[4])


async def test_without_our_indexes_everywhere_is_another_statement(it):
    it.fetch.has_indexes = False

    assert await it.fetch_statements() == [PLAIN, "claim_jobs_unindexed"]


async def test_a_strategy_that_misses_repeatedly_is_replaced_by_the_next(it):
    it.ready = {FULL_SCAN: [None]}

    assert await it.fetch_statements(times=MAX_MISSES) == [PLAIN, FULL_SCAN] * MAX_MISSES
    assert await it.fetch_statements(times=MAX_MISSES) == [SOONEST, FULL_SCAN] * MAX_MISSES
    assert await it.fetch_statements(times=MAX_MISSES) == [FULL_SCAN] * MAX_MISSES


async def test_a_way_that_misses_now_and_then_stays_the_usual_one(it):
    for _ in range(10):
        it.ready = {FULL_SCAN: [None]}
        assert await it.fetch_statements(times=MAX_MISSES - 1) == [PLAIN, FULL_SCAN] * (
            MAX_MISSES - 1
        )
        it.ready = {PLAIN: [None]}
        assert await it.fetch_statements() == [PLAIN]


async def test_an_empty_table_is_not_a_miss(it):
    assert await it.fetch_statements(times=3 * MAX_MISSES) == [PLAIN, FULL_SCAN] * (3 * MAX_MISSES)


async def test_the_next_cheaper_way_is_tried_once_in_a_while(it):
    it.ready = {FULL_SCAN: [None]}
    await it.fetch_statements(times=2 * MAX_MISSES)

    assert await it.fetch_statements(after=CHEAPER_RETRY_SECONDS) == [SOONEST, FULL_SCAN]
    assert await it.fetch_statements() == [FULL_SCAN]


async def test_the_cheaper_way_is_the_usual_one_again_as_soon_as_it_finds_jobs(it):
    it.ready = {FULL_SCAN: [None]}
    await it.fetch_statements(times=2 * MAX_MISSES)
    it.ready = {PLAIN: [None], SOONEST: [None], FULL_SCAN: [None]}

    assert await it.fetch_statements(after=CHEAPER_RETRY_SECONDS) == [SOONEST]
    assert await it.fetch_statements(times=3) == [PLAIN] * 3


async def test_the_try_of_a_cheaper_way_is_kept_for_the_next_job_if_none_is_ready(it):
    it.ready = {FULL_SCAN: [None]}
    await it.fetch_statements(times=2 * MAX_MISSES)
    it.ready, it.may_have_jobs = {}, False

    assert await it.fetch_statements(after=CHEAPER_RETRY_SECONDS, times=3) == [SOONEST] * 3
    it.ready = {PLAIN: [None], SOONEST: [None], FULL_SCAN: [None]}
    assert await it.fetch_statements(times=3) == [SOONEST, PLAIN, PLAIN]


async def test_after_the_jobs_of_named_queues_are_gone_the_plain_statement_is_used_again(it):
    for way in (SOONEST, FULL_SCAN):
        it.ready = {way: [5], FULL_SCAN: [5]}
        while await it.fetch_statements() != [way]:
            pass
        it.ready = {PLAIN: [None], SOONEST: [None], FULL_SCAN: [None]}

        # No time passes.
        used = await it.fetch_statements(times=MIN_PLAIN_HITS + 3)

        assert used[:MIN_PLAIN_HITS] == [way] * MIN_PLAIN_HITS
        assert used[-1] == PLAIN
        assert await it.fetch_statements(times=9) == [PLAIN] * 9


async def test_jobs_with_and_without_a_named_queue_do_not_change_the_way(by_queue):
    for _ in range(3 * MIN_PLAIN_HITS):
        for queue in (None, 5):
            by_queue.ready[SOONEST] = [queue]
            assert await by_queue.fetch_statements() == [SOONEST]


# Full scans


async def test_a_short_answer_of_the_soonest_is_followed_by_a_full_scan(by_queue, clock):
    it = by_queue

    assert await it.fetch_statements(limit=10) == [SOONEST]
    assert it.fetch.next_fetch_at == pytest.approx(
        clock.now + FULL_SCAN_DELAY_RANGE_SECONDS[0], abs=FULL_SCAN_DELAY_RANGE_SECONDS[1]
    )
    assert await it.fetch_statements(limit=10) == [SOONEST]
    assert await it.fetch_statements(limit=10, after=FULL_SCAN_DELAY_RANGE_SECONDS[1]) == [
        FULL_SCAN
    ]
    assert it.fetch.next_fetch_at is None
    assert await it.fetch_statements(limit=10) == [SOONEST]


async def test_where_everywhere_finds_more_it_becomes_the_usual_way(by_queue):
    it = by_queue
    it.ready[FULL_SCAN] = [5, None, None]

    await it.fetch_statements(limit=10)
    assert await it.fetch_statements(limit=10, after=FULL_SCAN_DELAY_RANGE_SECONDS[1]) == [
        FULL_SCAN
    ]
    assert await it.fetch_statements(limit=10) == [FULL_SCAN]


async def test_full_scans_become_rarer_while_they_find_nothing_else(by_queue):
    it = by_queue
    it.ready = {}
    it.claim_queue(5)
    first, longest = FULL_SCAN_DELAY_RANGE_SECONDS

    assert await it.fetch_statements(after=first) == [SOONEST, FULL_SCAN]
    assert await it.fetch_statements(after=first) == [SOONEST]
    for _ in range(3):
        assert await it.fetch_statements(after=longest) == [SOONEST, FULL_SCAN]
    assert await it.fetch_statements(after=longest * 0.9) == [SOONEST]
    assert await it.fetch_statements(after=longest * 0.2) == [SOONEST, FULL_SCAN]


async def test_while_a_queue_of_the_pool_is_busy_an_empty_answer_sets_the_next_fetch(by_queue):
    it = by_queue
    it.claim_queue(5)
    it.ready = {}
    assert await it.fetch_statements() == [SOONEST]

    assert it.fetched == []
    assert it.fetch.next_fetch_at is not None
    assert await it.fetch_statements(after=FULL_SCAN_DELAY_RANGE_SECONDS[1]) == [SOONEST, FULL_SCAN]
    assert it.fetch.next_fetch_at is None


async def test_the_next_job_of_a_busy_queue_is_not_a_miss(by_queue):
    it = by_queue
    it.claim_queue(5)
    it.ready = {FULL_SCAN: [5]}

    for _ in range(2 * MAX_MISSES):
        assert await it.fetch_statements(after=FULL_SCAN_DELAY_RANGE_SECONDS[1]) == [
            SOONEST,
            FULL_SCAN,
        ]


async def test_jobs_behind_a_busy_queue_are_found_by_each_fetch_in_the_end(by_queue):
    it = by_queue
    it.claim_queue(5)
    it.ready = {FULL_SCAN: [None]}
    while await it.fetch_statements(after=FULL_SCAN_DELAY_RANGE_SECONDS[0]) != [FULL_SCAN]:
        pass

    assert await it.fetch_statements(times=3) == [FULL_SCAN] * 3


# Slow scans from the first job


@pytest.fixture
async def slow(it: Scene) -> Scene:
    """A fetcher whose scans for plain jobs were slow."""
    it.ready = {PLAIN: [None] * 10}
    it.search_seconds = 0.1
    await it.fetch_statements(10, times=MIN_SLOW_SCANS)
    it.search_seconds = 0.0
    it.since.clear()
    return it


async def test_after_slow_scans_the_next_ones_begin_at_their_position(slow):
    assert await slow.fetch_statements(10, times=3) == [PLAIN] * 3

    assert slow.since == [0, 0, 0]


async def test_after_a_while_the_scan_begins_with_the_first_job_again(slow):
    await slow.fetch_statements(10, after=MAX_SCAN_DELAY_SECONDS)
    await slow.fetch_statements(10)

    assert slow.since == [None, None]


async def test_jobs_of_queues_are_found_from_there_on_too(slow):
    slow.ready = {SOONEST: [5]}

    assert await slow.fetch_statements(10) == [PLAIN, SOONEST]
    assert slow.since == [0, 0]
    assert len(slow.fetched) == 1


async def test_a_round_trip_does_not_make_a_scan_slow(it):
    it.ready = {PLAIN: [None] * 10}
    it.travel_seconds = 0.2

    assert await it.fetch_statements(10, times=9) == [PLAIN] * 9

    assert it.since == [None] * 9


async def test_an_idle_pool_scans_all_jobs_if_there_are_none_after_the_position(slow):
    slow.ready = {FULL_SCAN: [None]}

    assert await slow.fetch_statements(10) == [PLAIN, SOONEST, FULL_SCAN]
    assert slow.since == [0, 0, None]
    assert len(slow.fetched) == 1
    assert slow.fetch.next_fetch_at is None


async def test_an_idle_pool_pauses_between_full_scans_for_the_duration_of_one(slow, clock):
    slow.ready = {}
    assert await slow.fetch_statements(10) == [PLAIN, SOONEST, FULL_SCAN]

    assert await slow.fetch_statements(10) == [PLAIN, SOONEST]
    assert slow.fetch.next_fetch_at == pytest.approx(clock.now + 0.1)
    assert await slow.fetch_statements(10, after=0.1) == [PLAIN, SOONEST, FULL_SCAN]
    assert slow.fetch.next_fetch_at is None


# Jobs behind others that cannot be claimed


@pytest.fixture
async def behind(it: Scene) -> Scene:
    """A fetcher whose full scan found jobs behind others, in 100 ms."""
    it.ready = {FULL_SCAN: [None] * 10, AROUND: [None] * 10}
    it.search_seconds, it.is_behind = 0.1, True
    assert await it.fetch_statements(10) == [PLAIN, FULL_SCAN]
    it.search_seconds = 0.0
    it.since.clear()
    return it


async def test_jobs_behind_others_are_then_searched_around_their_position(behind):
    assert await behind.fetch_statements(10, times=5) == [AROUND] * 5

    assert behind.since == [0] * 5
    assert behind.fetch.next_fetch_at is None


async def test_after_ten_times_the_duration_of_a_full_scan_the_next_one_is_due(behind):
    assert await behind.fetch_statements(10, after=0.9) == [AROUND]
    assert await behind.fetch_statements(10, after=0.2) == [PLAIN, FULL_SCAN]


async def test_a_short_result_around_the_position_brings_the_full_scan_forward(behind, clock):
    behind.ready[AROUND] = [None]

    assert await behind.fetch_statements(10) == [AROUND]
    assert behind.fetch.next_fetch_at == pytest.approx(clock.now + 0.1)
    assert len(behind.fetched) == 1
    assert await behind.fetch_statements(10, after=0.11) == [PLAIN, FULL_SCAN]


async def test_without_jobs_around_the_position_nothing_is_ready_only_after_a_full_scan(behind):
    behind.ready = {}

    assert await behind.fetch_statements(10) == [AROUND]
    assert behind.fetch.next_fetch_at is not None
    assert await behind.fetch_statements(10, after=0.09) == [AROUND]
    assert await behind.fetch_statements(10, after=0.02) == [PLAIN, FULL_SCAN]
    assert behind.fetch.next_fetch_at is None


async def test_without_jobs_around_the_position_a_full_scan_that_is_due_follows_at_once(behind):
    behind.ready = {FULL_SCAN: [None]}

    assert await behind.fetch_statements(10, after=0.5) == [AROUND, FULL_SCAN]
    assert behind.since == [0, None]
    assert len(behind.fetched) == 1
    assert behind.fetch.next_fetch_at is None


async def test_with_other_tasks_all_jobs_are_scanned(behind):
    before = len(behind.statements)

    await behind.fetch.fetch("p1", {1: "task", 2: "other"}, limit=10)

    assert behind.statements[before:] == [PLAIN, FULL_SCAN]
