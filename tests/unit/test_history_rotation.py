"""The ring of history slots: when it rotates, and which slots are emptied."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from graphile_worker._sql.plans.history import (
    Rotation,
    compute_check_interval,
    decide_rotation,
    find_longest_keep,
)
from graphile_worker._sql.queries.history import NEVER, SLOT_COUNT, HistoryRing
from graphile_worker.results import DEFAULT_KEEP, Retention

START = datetime(2024, 2, 29, tzinfo=UTC)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def make_ring(*, slot: int = 0, ages: dict[int, timedelta] | None = None) -> HistoryRing:
    """A ring that keeps outcomes for 8 hours, so that a slot takes 1 hour.

    `ages` are the times since the starts of the slots.
    """
    starts = [NEVER] * SLOT_COUNT
    for number, age in (ages or {0: timedelta(0)}).items():
        starts[number] = START - age
    return HistoryRing(slot=slot, started_at=tuple(starts), keep=8 * HOUR, max_rows=None, now=START)


def steady_ring(*, extra: timedelta = timedelta(0)) -> HistoryRing:
    """A ring whose 9 slots were written to for an hour each, the current one for `extra` more."""
    ages = {(4 - n) % SLOT_COUNT: (n + 1) * HOUR + extra for n in range(SLOT_COUNT)}
    return make_ring(slot=4, ages=ages)


def test_a_slot_is_written_to_for_an_eighth_of_the_time():
    assert decide_rotation(make_ring(ages={0: HOUR - timedelta(seconds=1)})) is None

    rotation = decide_rotation(make_ring(ages={0: HOUR}))

    assert rotation is not None
    assert (rotation.emptied_slots, rotation.ring.slot) == ((), 1)
    assert rotation.ring.started_at[:3] == (START - HOUR, START, NEVER)


def test_a_full_ring_empties_its_oldest_slot_and_moves_on_to_it():
    ring = steady_ring()

    rotation = decide_rotation(ring)

    assert rotation is not None
    assert (rotation.emptied_slots, rotation.ring.slot) == ((5,), 5)
    assert rotation.ring.started_at[5] == START
    assert decide_rotation(rotation.ring) is None


def test_a_slot_that_started_in_the_future_is_left_at_once():
    """The clock of the server was 3 days ahead."""
    ring = make_ring(slot=2, ages={0: 2 * HOUR, 1: -2 * DAY, 2: -3 * DAY})

    rotation = decide_rotation(ring)

    assert ring.is_due
    assert rotation is not None
    assert (rotation.emptied_slots, rotation.ring.slot) == ((), 3)
    # No slot ends in the future, or its rows would be kept too long.
    assert rotation.ring.started_at[:4] == (START - 2 * HOUR, START, START, START)
    assert decide_rotation(rotation.ring) is None


def test_starts_in_the_future_are_corrected_while_the_next_slot_is_in_use():
    ring = steady_ring(extra=-HOUR / 2).with_start(4, START + 3 * DAY)

    rotation = decide_rotation(ring)

    assert rotation == Rotation((), ring.with_start(4, START))
    assert decide_rotation(rotation.ring) is None


def test_a_slot_stays_until_its_last_row_is_too_old():
    ring = steady_ring(extra=-timedelta(seconds=1))

    assert decide_rotation(ring) is None


def test_a_slot_with_young_rows_is_not_emptied_and_the_ring_waits():
    assert decide_rotation(steady_ring(), young_slots=[5]) is None


def test_a_full_slot_moves_on_at_once_and_empties_the_oldest_slot():
    ring = steady_ring(extra=-HOUR / 2)

    rotation = decide_rotation(ring, is_full=True)

    assert rotation == Rotation((5,), replace(ring, slot=5).with_start(5, START), lost_slot=5)


def test_a_slot_that_was_not_rotated_for_long_ends_at_its_last_write():
    ring = make_ring(ages={0: 3 * DAY})

    rotation = decide_rotation(ring, last_write=START - 2 * DAY)

    assert rotation is not None
    assert rotation.ring.started_at[1] == START - 2 * DAY
    # The next round empties the slot that was left.
    following = decide_rotation(rotation.ring, last_write=None)
    assert following is not None
    assert (following.emptied_slots, following.ring.slot) == ((0,), 2)
    assert following.ring.started_at[2] == START
    assert decide_rotation(following.ring) is None


def test_a_last_write_outside_of_its_slot_is_limited_to_it():
    ring = make_ring(ages={0: 3 * HOUR})

    for last_write, start in (
        (START + HOUR, START),
        (START - 4 * HOUR, START - 3 * HOUR),
        (None, START),
    ):
        rotation = decide_rotation(ring, last_write=last_write)
        assert rotation is not None
        assert rotation.ring.started_at[1] == start


def test_all_old_slots_are_emptied_after_a_long_pause():
    ring = replace(steady_ring(), now=START + 30 * DAY)

    rotation = decide_rotation(ring, last_write=START)

    assert rotation is not None
    assert set(rotation.emptied_slots) == set(range(SLOT_COUNT)) - {4}
    assert rotation.ring.slot == 5


def test_the_schema_keeps_outcomes_for_7_days_by_default():
    ring = replace(make_ring(), keep=None)

    assert (ring.effective_keep, ring.slot_duration) == (7 * DAY, 21 * HOUR)


def test_the_ring_is_checked_several_times_for_each_slot():
    assert compute_check_interval(7 * DAY) == timedelta(seconds=30)
    assert compute_check_interval(timedelta(minutes=10)) == timedelta(minutes=10) / 64
    assert compute_check_interval(timedelta(seconds=1)) == timedelta(seconds=1)


def test_a_task_without_a_time_relies_on_the_default():
    for keeps, longest in (
        ([], None),
        ([None], None),
        ([HOUR, DAY], DAY),
        ([HOUR, None], DEFAULT_KEEP),
        ([30 * DAY, None], 30 * DAY),
    ):
        assert find_longest_keep(Retention(keep=keep) for keep in keeps) == longest
