"""Trends between snapshots."""

from datetime import timedelta

import pytest

from graphile_worker.ops.snapshot import MAX_PAUSE_SECONDS, PAUSE_FACTOR, PollPacer
from graphile_worker.ops.states import JobState
from graphile_worker.ops.trends import HISTORY_WINDOW
from tests.support.snapshots import make_history, make_snapshot, make_task

pytestmark = pytest.mark.single_version

MINUTE = timedelta(minutes=1)


def test_one_snapshot_has_no_rates():
    assert make_history(make_snapshot(rows_added=100)).rates is None


def test_rates_are_the_growth_of_the_counters_per_second():
    history = make_history(
        make_snapshot(rows_added=100, rows_deleted=50),
        make_snapshot(after=5, rows_added=200, rows_deleted=60),
    )

    assert history.rates is not None
    assert (history.rates.added, history.rates.completed) == (20.0, 2.0)


def test_rates_are_of_the_last_ten_seconds():
    history = make_history(
        make_snapshot(rows_added=0),
        make_snapshot(after=60, rows_added=60_000),
        make_snapshot(after=70, rows_added=60_010),
    )

    assert history.rates is not None
    assert history.rates.added == 1.0


def test_reset_counters_have_no_rates():
    history = make_history(make_snapshot(rows_added=100), make_snapshot(after=5, rows_added=3))

    assert history.rates is None


def test_counters_between_two_snapshots_keep_rates_up_to_date():
    history = make_history(make_snapshot(make_task(ready=5), rows_added=0))

    history.add_counters(make_snapshot(after=10, rows_added=100))

    assert history.rates is not None
    assert history.rates.added == 10.0
    assert history.last.count(JobState.READY) == 5
    assert history.growth("resize", MINUTE, JobState.READY) == 0


def test_counters_from_before_the_first_snapshot_make_its_rates():
    history = make_history(make_snapshot(make_task(failed=5), after=10, rows_added=100))

    history.add_counters(make_snapshot(after=5, rows_added=0))

    assert history.rates is not None
    assert history.rates.added == 20.0
    assert history.growth("resize", MINUTE, JobState.FAILED) == 0


@pytest.mark.parametrize(
    ("added", "done", "expected"), [(0, 100, 90.0), (100, 100, None), (200, 100, None)]
)
def test_a_backlog_drains_if_more_jobs_are_completed_than_added(added, done, expected):
    history = make_history(
        make_snapshot(),
        make_snapshot(make_task(ready=900), after=10, rows_added=added, rows_deleted=done),
    )

    assert history.seconds_until_drained == expected


def test_growth_is_counted_within_a_window():
    snapshots = [make_snapshot(make_task(failed=n), after=n * 30) for n in range(10)]

    assert make_history(*snapshots).growth("resize", MINUTE, JobState.FAILED) == 2
    assert make_history(*snapshots).growth("other", MINUTE, JobState.FAILED) == 0


def test_a_history_shorter_than_the_window_does_not_show_that_a_task_did_not_run():
    briefly = make_history(*[make_snapshot(make_task(ready=1), after=n) for n in range(30)])
    long = make_history(*[make_snapshot(make_task(ready=1), after=n) for n in range(90)])

    assert briefly.was_running("resize", MINUTE) is None
    assert long.was_running("resize", MINUTE) is False


def test_a_task_with_a_locked_job_was_running():
    history = make_history(make_snapshot(make_task(running=1)), make_snapshot(make_task(), after=5))

    assert history.was_running("resize", MINUTE) is True


def test_old_snapshots_are_removed():
    history = make_history(make_snapshot(make_task(failed=0)))
    for n in range(5):
        history.add(make_snapshot(make_task(failed=5), after=HISTORY_WINDOW.total_seconds() + n))

    assert history.growth("resize", HISTORY_WINDOW, JobState.FAILED) == 5 - 5


def test_old_counters_are_removed_while_full_snapshots_time_out():
    history = make_history(make_snapshot())
    for minute in range(1, 61):
        history.add_counters(make_snapshot(after=60 * minute, rows_deleted=minute))

    assert history.completed_within(timedelta(hours=1)) == HISTORY_WINDOW / MINUTE


@pytest.mark.parametrize("duration", [0.0001, 0.01, 0.3, 0.59])
def test_a_snapshot_takes_less_than_a_hundredth_of_the_time(duration):
    pause = PollPacer(0.5).compute_pause(duration)

    assert duration / (duration + pause) < 1 / PAUSE_FACTOR


def test_the_pause_is_at_most_a_minute():
    assert PollPacer(2.0).compute_pause(10.0) == MAX_PAUSE_SECONDS
    assert PollPacer(2.0).compute_pause(0.001) == 2.0
    assert PollPacer(300.0).compute_pause(10.0) == 300.0


def test_the_shortest_of_three_durations_sets_the_pause():
    pacer = PollPacer(2.0)

    assert [pacer.compute_pause(duration) for duration in (0.3, 0.03, 0.5, 0.5, 0.5)] == [
        30.0,
        3.0,
        3.0,
        3.0,
        50.0,
    ]
