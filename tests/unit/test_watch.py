"""What changes from look to look."""

from datetime import timedelta

import pytest

from graphile_worker.administration.snapshot import LONGEST_PAUSE, SHARE, Pace, pause_after
from graphile_worker.administration.states import State
from graphile_worker.administration.watch import MEMORY, Watch
from tests.support.snapshots import make_snapshot, make_task

MINUTE = timedelta(minutes=1)


def watched(*snapshots) -> Watch:
    watch = Watch(snapshots[0])
    for each in snapshots[1:]:
        watch.add(each)
    return watch


def test_one_look_says_nothing_about_rates():
    assert watched(make_snapshot(added=100)).rates is None


def test_rates_are_what_the_counters_grew_by_in_a_second():
    watch = watched(
        make_snapshot(added=100, deleted=50), make_snapshot(after=5, added=200, deleted=60)
    )

    assert watch.rates is not None
    assert (watch.rates.added, watch.rates.done) == (20.0, 2.0)


def test_rates_are_of_the_last_ten_seconds():
    watch = watched(
        make_snapshot(added=0),
        make_snapshot(after=60, added=60_000),
        make_snapshot(after=70, added=60_010),
    )

    assert watch.rates is not None
    assert watch.rates.added == 1.0


def test_counters_that_began_anew_say_nothing():
    watch = watched(make_snapshot(added=100), make_snapshot(after=5, added=3))

    assert watch.rates is None


def test_counters_between_two_looks_keep_rates_up_to_date():
    watch = watched(make_snapshot(make_task(ready=5), added=0))

    watch.add_counters(make_snapshot(after=10, added=100))

    assert watch.rates is not None
    assert watch.rates.added == 10.0
    assert watch.last.count(State.READY) == 5
    assert watch.growth("resize", MINUTE, State.READY) == 0


def test_counters_from_before_the_first_look_make_its_rates():
    watch = watched(make_snapshot(make_task(failed=5), after=10, added=100))

    watch.add_counters(make_snapshot(after=5, added=0))

    assert watch.rates is not None
    assert watch.rates.added == 20.0
    assert watch.growth("resize", MINUTE, State.FAILED) == 0


@pytest.mark.parametrize(
    ("added", "done", "expected"), [(0, 100, 90.0), (100, 100, None), (200, 100, None)]
)
def test_a_backlog_drains_if_more_is_done_than_added(added, done, expected):
    watch = watched(
        make_snapshot(), make_snapshot(make_task(ready=900), after=10, added=added, deleted=done)
    )

    assert watch.drains_in == expected


def test_what_grew_is_counted_from_a_time_on():
    looks = [make_snapshot(make_task(failed=n), after=n * 30) for n in range(10)]

    assert watched(*looks).growth("resize", MINUTE, State.FAILED) == 2
    assert watched(*looks).growth("unheard", MINUTE, State.FAILED) == 0


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
        watch.add(make_snapshot(make_task(failed=5), after=MEMORY.total_seconds() + n))

    assert watch.growth("resize", MEMORY, State.FAILED) == 5 - 5


@pytest.mark.parametrize("took", [0.0001, 0.01, 0.3, 0.59])
def test_a_look_costs_less_than_one_part_in_a_hundred(took):
    assert took / (took + pause_after(took, interval=0.5)) < 1 / SHARE


def test_nobody_waits_longer_than_a_minute_for_the_next_look():
    assert pause_after(10.0, interval=2.0) == LONGEST_PAUSE
    assert pause_after(0.001, interval=2.0) == 2.0
    assert pause_after(10.0, interval=300.0) == 300.0


def test_a_look_that_was_kept_waiting_does_not_make_the_next_ones_late():
    pace = Pace(2.0)

    assert [pace.pause_after(took) for took in (0.3, 0.03, 0.5, 0.5, 0.5)] == [
        30.0,
        3.0,
        3.0,
        3.0,
        50.0,
    ]
