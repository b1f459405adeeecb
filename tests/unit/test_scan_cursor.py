"""ScanCursor and BlockedJobsCursor: the position after slow scans, and how long it is used."""

from datetime import UTC, datetime, timedelta

import pytest

from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._worker import scan_cursor as scan_cursor_module
from graphile_worker._worker.scan_cursor import (
    MAX_SCAN_DELAY_SECONDS,
    MIN_SLOW_SCANS,
    SCAN_DELAY_FACTOR,
    SLOW_SCAN_SECONDS,
    SLOW_SCAN_SECONDS_PER_JOB,
    BlockedJobsCursor,
    ScanCursor,
)
from tests.support.clocks import ManualClock
from tests.support.jobs import make_job

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


@pytest.fixture
def clock(monkeypatch) -> ManualClock:
    return ManualClock.patch(monkeypatch, scan_cursor_module)


def jobs(*minutes: int, priority: int = 0, seconds: float = 0.05) -> list[ClaimedJob]:
    """Return jobs due that many minutes after noon, with the search time of the server."""
    times = [(NOON + timedelta(minutes=each)).timestamp() for each in minutes]
    claimed_jobs = [
        ClaimedJob(make_job(run_at=f"{each:.6f}", priority=priority), None) for each in times
    ]
    claimed_jobs[0].search_seconds = seconds
    return claimed_jobs


def record_slow_scans(it: ScanCursor, claimed_jobs: list[ClaimedJob]) -> None:
    """Record enough slow scans in a row."""
    for _ in range(MIN_SLOW_SCANS):
        it.record_scan(claimed_jobs)


def test_at_first_scans_begin_with_the_first_job(clock):
    assert ScanCursor().position is None


@pytest.mark.parametrize("count", [1, 1000])
def test_a_fast_scan_begins_with_the_first_job_each_time(clock, count):
    it = ScanCursor()

    record_slow_scans(
        it, jobs(*[1] * count, seconds=SLOW_SCAN_SECONDS + SLOW_SCAN_SECONDS_PER_JOB * count)
    )

    assert it.position is None


def test_after_slow_scans_the_position_is_used_for_a_while(clock):
    it = ScanCursor()

    record_slow_scans(it, jobs(1, 2, priority=-3))

    assert it.position == (-3, NOON + timedelta(minutes=1))
    assert it.valid_until == clock.now + SCAN_DELAY_FACTOR * 0.05
    clock.now += SCAN_DELAY_FACTOR * 0.05
    assert it.position is None


def test_a_few_slow_scans_do_not_set_the_cursor(clock):
    it = ScanCursor()

    for _ in range(MIN_SLOW_SCANS):
        it.record_scan(jobs(1, seconds=0.0))
        for _ in range(MIN_SLOW_SCANS - 1):
            it.record_scan(jobs(1))
        assert it.position is None


def test_one_more_slow_scan_sets_the_position_again(clock):
    it = ScanCursor()
    record_slow_scans(it, jobs(1))
    clock.now += 10

    it.record_scan(jobs(9))

    assert it.position == (0, NOON + timedelta(minutes=9))


def test_the_use_of_the_position_is_limited(clock):
    it = ScanCursor()

    record_slow_scans(it, jobs(1, seconds=60.0))

    assert it.valid_until == clock.now + MAX_SCAN_DELAY_SECONDS


def test_a_full_scan_is_delayed_by_the_duration_of_a_scan(clock):
    it = ScanCursor()
    record_slow_scans(it, jobs(1))
    assert it.next_full_scan_at < clock.now

    it.delay_full_scan()

    assert it.next_full_scan_at == clock.now + 0.05


def test_the_position_advances_with_claimed_jobs(clock):
    it = ScanCursor()
    record_slow_scans(it, jobs(1))
    until = it.valid_until

    clock.now += 0.01
    it.advance(jobs(7, 8))

    assert it.position == (0, NOON + timedelta(minutes=7))
    assert it.valid_until == until


def test_a_fast_scan_resets_the_count(clock):
    it = ScanCursor()
    record_slow_scans(it, jobs(1))
    clock.now += 10

    it.record_scan(jobs(9, seconds=0.0))

    assert it.position is None


# Jobs behind others that cannot be claimed


def behind(*minutes: int, soonest: int = 0, seconds: float = 0.05) -> list[ClaimedJob]:
    """Return jobs that a full scan found, all but the first ones behind the soonest jobs."""
    claimed_jobs = jobs(*minutes, seconds=seconds)
    for each in claimed_jobs[soonest:]:
        each.is_behind_soonest = True
    return claimed_jobs


def scan(it: BlockedJobsCursor, claimed_jobs: list[ClaimedJob], *, is_short: bool = False) -> None:
    it.record_scan(claimed_jobs, [1], ["flag"], is_short=is_short)


def test_the_search_starts_at_the_first_job_behind_the_soonest(clock):
    it = BlockedJobsCursor()
    assert it.get_position([1], ["flag"]) is None

    scan(it, behind(1, 2, 7, 8, soonest=2))

    assert it.get_position([1], ["flag"]) == (0, NOON + timedelta(minutes=7))


def test_soonest_jobs_that_are_enough_leave_the_cursor_without_a_position(clock):
    it = BlockedJobsCursor()
    scan(it, behind(1))

    scan(it, jobs(1, 2))

    assert it.get_position([1], ["flag"]) is None


def test_with_other_tasks_or_forbidden_flags_a_full_scan_is_due(clock):
    it = BlockedJobsCursor()

    scan(it, behind(1))

    assert it.get_position([1], ["flag"]) is not None
    for tasks, flags in (([1, 2], ["flag"]), ([2], ["flag"]), ([1], ["other"]), ([1], None)):
        assert it.get_position(tasks, flags) is None


def test_full_scans_take_at_most_a_tenth_of_the_time(clock):
    it = BlockedJobsCursor()
    for seconds, limit in ((0.05, SCAN_DELAY_FACTOR * 0.05), (60.0, MAX_SCAN_DELAY_SECONDS)):
        scan(it, behind(1, seconds=seconds))

        clock.now += limit * 0.9
        assert it.get_position([1], ["flag"]) is not None
        clock.now += limit * 0.2
        assert it.get_position([1], ["flag"]) is None


def test_after_a_short_result_a_full_scan_is_due_sooner(clock):
    it = BlockedJobsCursor()
    scan(it, behind(1))

    assert it.record_short_result() == pytest.approx(clock.now + 0.05)
    clock.now += 0.06
    assert it.get_position([1], ["flag"]) is None


def test_full_scans_become_rarer_while_they_find_few_jobs(clock):
    it = BlockedJobsCursor()
    scan(it, behind(1))
    for factor in (2, 4, 8, SCAN_DELAY_FACTOR, SCAN_DELAY_FACTOR):
        scan(it, [], is_short=True)

        assert it.get_position([1], ["flag"]) is not None
        assert it.record_short_result() == pytest.approx(clock.now + factor * 0.05)

    scan(it, behind(1))
    assert it.record_short_result() == pytest.approx(clock.now + 0.05)
