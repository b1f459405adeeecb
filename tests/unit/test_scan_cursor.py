"""Beginning: from where on a dear look is spared, and for how long."""

from datetime import UTC, datetime, timedelta

import pytest

from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._worker import scan_cursor as beginning_module
from graphile_worker._worker.scan_cursor import (
    MAX_SCAN_DELAY_SECONDS,
    MIN_SLOW_SCANS,
    SCAN_DELAY_FACTOR,
    SLOW_SCAN_SECONDS,
    SLOW_SCAN_SECONDS_PER_JOB,
    ScanCursor,
)
from tests.support.clocks import ManualClock
from tests.support.jobs import make_job

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


@pytest.fixture
def clock(monkeypatch) -> ManualClock:
    return ManualClock.patch(monkeypatch, beginning_module)


def jobs(*minutes: int, priority: int = 0, seconds: float = 0.05) -> list[ClaimedJob]:
    """Due so many minutes after noon, for which the server searched for some seconds."""
    times = [(NOON + timedelta(minutes=each)).timestamp() for each in minutes]
    taken = [ClaimedJob(make_job(run_at=f"{each:.6f}", priority=priority), None) for each in times]
    taken[0].search_seconds = seconds
    return taken


def dear(it: ScanCursor, taken: list[ClaimedJob]) -> None:
    """Looks were dear for as long as it takes to believe it."""
    for _ in range(MIN_SLOW_SCANS):
        it.record_scan(taken)


def test_at_first_it_is_the_first_job_of_all(clock):
    assert ScanCursor().position is None


@pytest.mark.parametrize("count", [1, 1000])
def test_a_fast_scan_begins_with_the_first_job_each_time(clock, count):
    it = ScanCursor()

    dear(it, jobs(*[1] * count, seconds=SLOW_SCAN_SECONDS + SLOW_SCAN_SECONDS_PER_JOB * count))

    assert it.position is None


def test_a_dear_look_is_not_made_again_for_a_while(clock):
    it = ScanCursor()

    dear(it, jobs(1, 2, priority=-3))

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


def test_the_next_dear_look_is_reason_enough(clock):
    it = ScanCursor()
    dear(it, jobs(1))
    clock.now += 10

    it.record_scan(jobs(9))

    assert it.position == (0, NOON + timedelta(minutes=9))


def test_that_while_is_not_long(clock):
    it = ScanCursor()

    dear(it, jobs(1, seconds=60.0))

    assert it.valid_until == clock.now + MAX_SCAN_DELAY_SECONDS


def test_an_idle_pool_rests_for_as_long_as_a_look_takes(clock):
    it = ScanCursor()
    dear(it, jobs(1))
    assert it.next_full_scan_at < clock.now

    it.delay_full_scan()

    assert it.next_full_scan_at == clock.now + 0.05


def test_it_moves_on_with_what_is_taken(clock):
    it = ScanCursor()
    dear(it, jobs(1))
    until = it.valid_until

    clock.now += 0.01
    it.advance(jobs(7, 8))

    assert it.position == (0, NOON + timedelta(minutes=7))
    assert it.valid_until == until


def test_a_cheap_look_ends_it(clock):
    it = ScanCursor()
    dear(it, jobs(1))
    clock.now += 10

    it.record_scan(jobs(9, seconds=0.0))

    assert it.position is None
