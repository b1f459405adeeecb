"""What changes from look to look."""

from datetime import timedelta

import pytest

from graphile_worker.ops.snapshot import MAX_PAUSE_SECONDS, PAUSE_FACTOR, PollPacer, compute_pause
from graphile_worker.ops.states import JobState
from graphile_worker.ops.trends import HISTORY_WINDOW, SnapshotHistory
from tests.support.snapshots import make_snapshot, make_task

MINUTE = timedelta(minutes=1)


def watched(*snapshots) -> SnapshotHistory:
    watch = SnapshotHistory(snapshots[0])
    for each in snapshots[1:]:
        watch.add(each)
    return watch


def test_one_look_says_nothing_about_rates():
    assert watched(make_snapshot(rows_added=100)).rates is None


def test_rates_are_what_the_counters_grew_by_in_a_second():
    watch = watched(
        make_snapshot(rows_added=100, rows_deleted=50),
        make_snapshot(after=5, rows_added=200, rows_deleted=60),
    )

    assert watch.rates is not None
    assert (watch.rates.added, watch.rates.completed) == (20.0, 2.0)


def test_rates_are_of_the_last_ten_seconds():
    watch = watched(
        make_snapshot(rows_added=0),
        make_snapshot(after=60, rows_added=60_000),
        make_snapshot(after=70, rows_added=60_010),
    )

    assert watch.rates is not None
    assert watch.rates.added == 1.0


def test_counters_that_began_anew_say_nothing():
    watch = watched(make_snapshot(rows_added=100), make_snapshot(after=5, rows_added=3))

    assert watch.rates is None


def test_counters_between_two_looks_keep_rates_up_to_date():
    watch = watched(make_snapshot(make_task(ready=5), rows_added=0))

    watch.add_counters(make_snapshot(after=10, rows_added=100))

    assert watch.rates is not None
    assert watch.rates.added == 10.0
    assert watch.last.count(JobState.READY) == 5
    assert watch.growth("resize", MINUTE, JobState.READY) == 0


def test_counters_from_before_the_first_look_make_its_rates():
    watch = watched(make_snapshot(make_task(failed=5), after=10, rows_added=100))

    watch.add_counters(make_snapshot(after=5, rows_added=0))

    assert watch.rates is not None
    assert watch.rates.added == 20.0
    assert watch.growth("resize", MINUTE, JobState.FAILED) == 0


@pytest.mark.parametrize(
    ("added", "done", "expected"), [(0, 100, 90.0), (100, 100, None), (200, 100, None)]
)
def test_a_backlog_drains_if_more_is_done_than_added(added, done, expected):
    watch = watched(
        make_snapshot(),
        make_snapshot(make_task(ready=900), after=10, rows_added=added, rows_deleted=done),
    )

    assert watch.seconds_until_drained == expected


def test_what_grew_is_counted_from_a_time_on():
    looks = [make_snapshot(make_task(failed=n), after=n * 30) for n in range(10)]

    assert watched(*looks).growth("resize", MINUTE, JobState.FAILED) == 2
    assert watched(*looks).growth("unheard", MINUTE, JobState.FAILED) == 0


def test_a_task_that_was_not_watched_for_so_long_may_have_run():
    briefly = watched(*[make_snapshot(make_task(ready=1), after=n) for n in range(30)])
    long = watched(*[make_snapshot(make_task(ready=1), after=n) for n in range(90)])

    assert briefly.was_running("resize", MINUTE) is None
    assert long.was_running("resize", MINUTE) is False


def test_a_task_that_was_seen_to_run_did():
    watch = watched(make_snapshot(make_task(running=1)), make_snapshot(make_task(), after=5))

    assert watch.was_running("resize", MINUTE) is True


def test_what_is_old_is_forgotten():
    watch = watched(make_snapshot(make_task(failed=0)))
    for n in range(5):
        watch.add(make_snapshot(make_task(failed=5), after=HISTORY_WINDOW.total_seconds() + n))

    assert watch.growth("resize", HISTORY_WINDOW, JobState.FAILED) == 5 - 5


@pytest.mark.parametrize("took", [0.0001, 0.01, 0.3, 0.59])
def test_a_look_costs_less_than_one_part_in_a_hundred(took):
    assert took / (took + compute_pause(took, interval=0.5)) < 1 / PAUSE_FACTOR


def test_nobody_waits_longer_than_a_minute_for_the_next_look():
    assert compute_pause(10.0, interval=2.0) == MAX_PAUSE_SECONDS
    assert compute_pause(0.001, interval=2.0) == 2.0
    assert compute_pause(10.0, interval=300.0) == 300.0


def test_a_look_that_was_kept_waiting_does_not_make_the_next_ones_late():
    pace = PollPacer(2.0)

    assert [pace.compute_pause(took) for took in (0.3, 0.03, 0.5, 0.5, 0.5)] == [
        30.0,
        3.0,
        3.0,
        3.0,
        50.0,
    ]
