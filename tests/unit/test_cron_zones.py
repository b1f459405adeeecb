"""Time zones: which minutes an item means on the days that clocks are changed, and on all others.

The rule: an item of every hour, and a function, follows the time that passes. An item of certain
hours runs once for each time of day: in the first of two equal hours, and at the end of the jump
for all that clocks jumped over.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphile_worker import TimestampDigest
from graphile_worker.crontab.items import parse_pattern
from graphile_worker.crontab.zones import Matcher, is_due, iter_upcoming_minutes
from tests.support.tiers import size

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)


@dataclass(frozen=True)
class Change:
    """When clocks are changed, and by how much."""

    zone: str
    at: datetime
    by: timedelta

    @property
    def info(self) -> ZoneInfo:
        return ZoneInfo(self.zone)

    @property
    def shown_before(self) -> datetime:
        """What clocks would show now, had nobody changed them."""
        return self.at.astimezone(self.info).replace(tzinfo=None) - self.by

    @property
    def shown_after(self) -> datetime:
        return self.shown_before + self.by

    def __str__(self) -> str:
        return f"{self.zone} {self.at:%B}"


def change(zone: str, month: int, day: int, hour: int, minute: int, by: int) -> Change:
    at = datetime(2024, month, day, hour, minute, tzinfo=UTC)
    return Change(zone, at, timedelta(minutes=by))


# In Santiago and Beirut clocks jump from midnight, in Lord Howe by half an hour.
SPRING = [
    change("Europe/Paris", 3, 31, 1, 0, 60),
    change("America/New_York", 3, 10, 7, 0, 60),
    change("Australia/Lord_Howe", 10, 5, 15, 30, 30),
    change("America/Santiago", 9, 8, 4, 0, 60),
    change("Asia/Beirut", 3, 30, 22, 0, 60),
]
AUTUMN = [
    change("Europe/Paris", 10, 27, 1, 0, -60),
    change("America/New_York", 11, 3, 6, 0, -60),
    change("Australia/Lord_Howe", 4, 6, 15, 0, -30),
    change("America/Santiago", 4, 7, 3, 0, -60),
    change("Asia/Beirut", 10, 26, 21, 0, -60),
]
ZONES = [each.zone for each in SPRING]

in_spring = pytest.mark.parametrize("change", SPRING, ids=str)
in_autumn = pytest.mark.parametrize("change", AUTUMN, ids=str)
in_each_zone = pytest.mark.parametrize("zone", ZONES)


def minutes(first: datetime, last: datetime) -> Iterator[datetime]:
    """From the first on, without the last."""
    while first < last:
        yield first
        first += MINUTE


def around(change: Change, margin: timedelta = DAY) -> Iterator[datetime]:
    return minutes(change.at - margin, change.at + margin)


def runs(match: str | Matcher, zone: str, over: Iterable[datetime]) -> list[datetime]:
    """When it is due, in UTC."""
    asked = parse_pattern(match) if isinstance(match, str) else match
    info = ZoneInfo(zone)
    return [minute for minute in over if is_due(asked, info, minute)]


def shown_at(minute: int, change: Change) -> list[datetime]:
    """Whenever clocks show that minute of an hour."""
    return [each for each in around(change) if each.astimezone(change.info).minute == minute]


def daily(*readings: datetime) -> str:
    """A pattern of what clocks show, every day; all of it is in one hour."""
    [hour] = {each.hour for each in readings}
    return f"{','.join(str(each.minute) for each in readings)} {hour} * * *"


# What is assumed of the five zones


@pytest.mark.parametrize("change", [*SPRING, *AUTUMN], ids=str)
def test_clocks_are_changed_there_and_then(change):
    before = (change.at - MINUTE).astimezone(change.info).replace(tzinfo=None)
    here = change.at.astimezone(change.info).replace(tzinfo=None)

    assert here - before == MINUTE + change.by


def test_one_zone_jumps_by_half_an_hour_and_two_from_midnight():
    assert {each.zone: str(each.by) for each in SPRING}["Australia/Lord_Howe"] == "0:30:00"
    at_midnight = [each.zone for each in SPRING if f"{each.shown_before:%H:%M}" == "00:00"]
    assert at_midnight == ["America/Santiago", "Asia/Beirut"]


# Spring


@pytest.mark.feature("F249")
@in_spring
@pytest.mark.parametrize("offset", [0, 1, 15, 29])
def test_what_clocks_jump_over_runs_in_the_minute_to_which_they_jump(change, offset):
    skipped = change.shown_before + timedelta(minutes=offset)

    found = runs(daily(skipped), change.zone, around(change))

    assert change.at in found
    assert [each for each in found if abs(each - change.at) < timedelta(hours=20)] == [change.at]


@pytest.mark.feature("F249")
@in_spring
def test_it_runs_once_for_all_that_was_jumped_over(change):
    first = change.shown_before
    skipped = [first, first + 5 * MINUTE, first + 20 * MINUTE]

    found = runs(daily(*skipped), change.zone, around(change, timedelta(hours=12)))

    assert found == [change.at]


@pytest.mark.feature("F249")
@in_spring
def test_it_runs_once_if_the_minute_after_the_jump_is_meant_too(change):
    before, after = change.shown_before, change.shown_after
    pattern = f"{before.minute},{after.minute} {before.hour},{after.hour} * * *"

    found = runs(pattern, change.zone, minutes(change.at - 5 * MINUTE, change.at + 5 * MINUTE))

    assert found == [change.at]


@pytest.mark.feature("F249")
@in_spring
def test_what_was_not_jumped_over_runs_as_ever(change):
    just_before = change.shown_before - MINUTE
    just_after = change.shown_after + MINUTE

    hours = around(change, timedelta(hours=12))
    assert runs(daily(just_before), change.zone, hours) == [change.at - MINUTE]
    hours = around(change, timedelta(hours=12))
    assert runs(daily(just_after), change.zone, hours) == [change.at + MINUTE]


@pytest.mark.feature("F249")
@in_spring
def test_an_item_of_every_hour_does_not_backfill_skipped_times(change):
    minute = (change.shown_before.minute + 5) % 60

    found = runs(f"{minute} * * * *", change.zone, around(change))

    assert change.at not in found
    assert found == shown_at(minute, change)


@pytest.mark.feature("F249")
@in_spring
def test_an_item_of_every_minute_runs_every_minute_of_spring(change):
    found = runs("* * * * *", change.zone, around(change, timedelta(hours=3)))

    assert found == list(around(change, timedelta(hours=3)))


@pytest.mark.feature("F249", "F289")
@in_spring
def test_a_function_is_not_asked_about_what_was_jumped_over(change):
    asked: list[TimestampDigest] = []

    def match(digest: TimestampDigest) -> bool:
        asked.append(digest)
        return True

    found = runs(match, change.zone, around(change, 5 * MINUTE))

    assert len(found) == 10
    shown = [change.shown_before + n * MINUTE for n in range(-5, 0)]
    shown += [change.shown_after + n * MINUTE for n in range(5)]
    assert asked == [TimestampDigest.from_datetime(each) for each in shown]


@pytest.mark.feature("F249")
def test_a_date_that_begins_with_the_jump_is_the_date_of_the_run():
    # On 8 September in Santiago, a Sunday, there is no midnight.
    [santiago] = [each for each in SPRING if each.zone == "America/Santiago"]

    for pattern in ("0 0 8 9 *", "30 0 8 9 *", "0 0 * * 0", "0 0 8 9 0"):
        found = runs(pattern, santiago.zone, around(santiago, timedelta(hours=20)))
        assert found == [santiago.at]
    assert runs("0 0 7 9 *", santiago.zone, around(santiago, timedelta(hours=20))) == []


# Autumn


@pytest.mark.feature("F249")
@in_autumn
@pytest.mark.parametrize("offset", [0, 1, 15, 29])
def test_what_clocks_show_twice_runs_the_first_time(change, offset):
    first = change.at + change.by + timedelta(minutes=offset)
    twice = change.shown_after + timedelta(minutes=offset)

    assert runs(daily(twice), change.zone, around(change, timedelta(hours=12))) == [first]


@pytest.mark.feature("F249")
@in_autumn
def test_what_clocks_show_once_runs_as_ever(change):
    length = -change.by
    before, after = change.shown_after - MINUTE, change.shown_before

    hours = list(around(change, timedelta(hours=12)))
    assert runs(daily(before), change.zone, hours) == [change.at - length - MINUTE]
    assert runs(daily(after), change.zone, hours) == [change.at + length]


@pytest.mark.feature("F249")
@in_autumn
def test_an_item_of_every_hour_runs_in_both_of_two_equal_hours(change):
    minute = (change.shown_after.minute + 5) % 60

    found = runs(f"{minute} * * * *", change.zone, around(change))

    first, second = change.at + change.by + 5 * MINUTE, change.at + 5 * MINUTE
    assert {first, second} <= set(found)
    assert found == shown_at(minute, change)


@pytest.mark.feature("F249")
@in_autumn
def test_an_item_of_every_minute_runs_every_minute_of_autumn(change):
    found = runs("* * * * *", change.zone, around(change, timedelta(hours=3)))

    assert found == list(around(change, timedelta(hours=3)))


@pytest.mark.feature("F249", "F289")
@in_autumn
def test_a_function_is_asked_about_both_of_two_equal_hours(change):
    asked: list[TimestampDigest] = []

    def match(digest: TimestampDigest) -> bool:
        asked.append(digest)
        return True

    found = runs(match, change.zone, minutes(change.at + change.by, change.at - change.by))

    half = len(found) // 2
    assert asked[:half] == asked[half:]
    assert asked[0] == TimestampDigest.from_datetime(change.shown_after)


@pytest.mark.feature("F249")
def test_a_date_that_is_prolonged_has_one_last_hour():
    # On 6 April in Santiago it is 23 o'clock twice.
    [santiago] = [each for each in AUTUMN if each.zone == "America/Santiago"]
    first = santiago.at - timedelta(hours=1)

    for pattern in ("0 23 6 4 *", "0 23 * * 6"):
        assert runs(pattern, santiago.zone, around(santiago, timedelta(hours=20))) == [first]


# Which items are of every hour


@pytest.mark.feature("F249")
@pytest.mark.parametrize("hours", ["*", "*/1", "0-23", "0-11,12-23", "*,5"])
def test_all_hours_are_every_hour_however_they_are_written(hours):
    [paris] = [each for each in AUTUMN if each.zone == "Europe/Paris"]

    found = runs(f"30 {hours} * * *", paris.zone, around(paris, timedelta(hours=1)))

    assert found == [paris.at - 30 * MINUTE, paris.at + 30 * MINUTE]


@pytest.mark.feature("F249")
def test_all_hours_but_one_are_certain_hours():
    [paris] = [each for each in AUTUMN if each.zone == "Europe/Paris"]

    found = runs("30 0-22 * * *", paris.zone, around(paris, timedelta(hours=1)))

    assert found == [paris.at - 30 * MINUTE]


# A day that there was not


@pytest.mark.feature("F249")
def test_a_day_that_was_left_out_runs_once_as_the_next_begins():
    # In Samoa Thursday 29 December 2011 was followed by Saturday the 31st.
    jump = datetime(2011, 12, 30, 10, 0, tzinfo=UTC)
    apia = Change("Pacific/Apia", jump, DAY)
    assert apia.shown_before == datetime(2011, 12, 30)

    found = runs("0,30 8,20 * * *", apia.zone, around(apia, 2 * DAY))

    shown = [f"{each.astimezone(apia.info):%d %H:%M}" for each in found]
    times = ["08:00", "08:30", "20:00", "20:30"]
    assert shown == [
        *(f"28 {each}" for each in times),
        *(f"29 {each}" for each in times),
        "31 00:00",
        *(f"31 {each}" for each in times),
        *(f"01 {each}" for each in times),
    ]


@pytest.mark.feature("F249")
@pytest.mark.parametrize(
    ("pattern", "found"), [("0 8 30 12 *", 1), ("0 8 * * 5", 1), ("0 * 30 12 *", 0)]
)
def test_an_item_of_that_day_alone_runs_as_the_next_begins(pattern, found):
    jump = datetime(2011, 12, 30, 10, 0, tzinfo=UTC)

    assert runs(pattern, "Pacific/Apia", minutes(jump - DAY, jump + DAY)) == [jump] * found
    due = iter_upcoming_minutes(parse_pattern(pattern), ZoneInfo("Pacific/Apia"), jump - DAY)
    assert (next(due) == jump) is bool(found)


# A whole year


def of_year(zone: str, minute: int) -> Iterator[datetime]:
    """All minutes of 2024 that could be meant: those of that minute, by clocks that are at most
    half an hour askew; and every one of the days around the changes."""
    changes = [each.at.date() for each in (*SPRING, *AUTUMN) if each.zone == zone]
    near = {day + n * DAY for day in changes for n in (-1, 0, 1)}
    day = datetime(2023, 12, 30, tzinfo=UTC)
    while day < datetime(2025, 1, 3, tzinfo=UTC):
        if day.date() in near:
            yield from minutes(day, day + DAY)
        else:
            offsets = sorted({minute, (minute + 30) % 60})
            yield from (day + timedelta(minutes=n) for n in range(1440) if n % 60 in offsets)
        day += DAY


DAYS_OF_2024 = [date(2024, 1, 1) + n * DAY for n in range(366)]


@pytest.mark.single_version
@pytest.mark.feature("F249")
@in_each_zone
@settings(max_examples=size(gate=2, nightly=6))
@given(hour=st.integers(0, 23), minute=st.integers(0, 59))
def test_a_daily_item_runs_once_on_each_day_of_the_calendar(zone, hour, minute):
    info = ZoneInfo(zone)

    found = runs(f"{minute} {hour} * * *", zone, of_year(zone, minute))

    days = Counter(each.astimezone(info).date() for each in found)
    assert [days[day] for day in DAYS_OF_2024] == [1] * 366


@pytest.mark.feature("F249")
@pytest.mark.parametrize("change", [*SPRING, *AUTUMN], ids=str)
@pytest.mark.parametrize("time", ["0 0", "30 0", "15 1", "15 2", "45 23"])
def test_so_does_one_of_an_hour_that_changes(change, time):
    found = runs(f"{time} * * *", change.zone, around(change, 2 * DAY))

    days = Counter(each.astimezone(change.info).date() for each in found)
    changed = change.at.astimezone(change.info).date()
    assert [days[changed + n * DAY] for n in (-1, 0, 1)] == [1, 1, 1]


@pytest.mark.feature("F249")
@pytest.mark.parametrize("day", sorted({each.at.date() for each in (*SPRING, *AUTUMN)}), ids=str)
def test_in_utc_no_day_is_longer_than_another(day):
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    every_minute, hourly = parse_pattern("* * * * *"), parse_pattern("30 * * * *")
    over = list(minutes(start, start + DAY))

    assert sum(is_due(every_minute, None, each) for each in over) == 1440
    assert sum(is_due(hourly, None, each) for each in over) == 24


# What comes next


def scanned(
    match: Matcher, zone: ZoneInfo | None, after: datetime, last: datetime
) -> list[datetime]:
    first = after.replace(second=0, microsecond=0) + MINUTE
    return [each for each in minutes(first, last) if is_due(match, zone, each)]


def until(match: Matcher, zone: ZoneInfo | None, after: datetime, last: datetime) -> list[datetime]:
    found = []
    for each in iter_upcoming_minutes(match, zone, after):
        if each >= last:
            break
        found.append(each)
    return found


def lists(least: int, most: int) -> st.SearchStrategy[str]:
    values = st.lists(st.integers(least, most), min_size=1, max_size=3)
    return st.just("*") | values.map(lambda values: ",".join(map(str, values)))


patterns = st.tuples(lists(0, 59), lists(0, 23), lists(1, 31), st.just("*"), lists(0, 6)).map(
    " ".join
)


@pytest.mark.single_version
@settings(max_examples=size(gate=15, nightly=30))
@given(
    text=patterns,
    change=st.sampled_from([*SPRING, *AUTUMN]),
    with_zone=st.booleans(),
    before=st.integers(0, 48 * 60 * 60),
)
def test_what_comes_next_is_what_a_scan_of_all_minutes_finds(text, change, with_zone, before):
    match, zone = parse_pattern(text), change.info if with_zone else None
    after = change.at - timedelta(seconds=before)

    assert until(match, zone, after, after + 3 * DAY) == scanned(
        match, zone, after, after + 3 * DAY
    )


@given(second=st.integers(0, 59), microsecond=st.integers(0, 999_999))
def test_what_comes_next_comes_after_that_moment(second, microsecond):
    after = datetime(2024, 1, 1, 12, 0, second, microsecond, tzinfo=UTC)

    first = next(iter_upcoming_minutes(parse_pattern("* * * * *"), None, after))

    assert first == datetime(2024, 1, 1, 12, 1, tzinfo=UTC)


def test_any_zone_may_say_after_what():
    after = datetime(2024, 1, 1, 12, 0, tzinfo=ZoneInfo("Europe/Paris"))

    [first] = islice(iter_upcoming_minutes(parse_pattern("* * * * *"), None, after), 1)

    assert first == datetime(2024, 1, 1, 11, 1, tzinfo=UTC)
    assert first.tzinfo is UTC


@pytest.mark.parametrize(
    ("after", "year"),
    [(2023, 2024), (2024, 2028), (2096, 2104), (1896, 1904)],
)
@pytest.mark.parametrize("zone", [None, ZoneInfo("Pacific/Kiritimati"), ZoneInfo("Pacific/Niue")])
def test_a_29th_of_february_is_found_however_far_it_is(after, year, zone):
    due = iter_upcoming_minutes(
        parse_pattern("0 12 29 2 *"), zone, datetime(after, 3, 1, tzinfo=UTC)
    )

    first = next(due)
    shown = first if zone is None else first.astimezone(zone)
    assert (shown.year, shown.month, shown.day, shown.hour) == (year, 2, 29, 12)


@pytest.mark.parametrize("text", ["0 0 31 2 *", "0 0 30 2 *", "0 0 31 4,6,9,11 *"])
@pytest.mark.parametrize("zone", [None, ZoneInfo("Europe/Paris")])
def test_a_date_that_no_year_has_ends(text, zone):
    assert (
        list(iter_upcoming_minutes(parse_pattern(text), zone, datetime(2024, 1, 1, tzinfo=UTC)))
        == []
    )


def test_a_date_that_no_month_has_is_found_by_its_day_of_the_week():
    # Where both are restricted, either will do.
    due = iter_upcoming_minutes(parse_pattern("0 0 31 2 1"), None, datetime(2024, 2, 1, tzinfo=UTC))

    assert [each.day for each in islice(due, 4)] == [5, 12, 19, 26]


def test_a_function_is_asked_about_each_minute():
    def match(digest: TimestampDigest) -> bool:
        return digest.hour == digest.min == digest.date == 5

    due = iter_upcoming_minutes(match, None, datetime(2024, 1, 1, tzinfo=UTC))

    assert list(islice(due, 2)) == [
        datetime(2024, 1, 5, 5, 5, tzinfo=UTC),
        datetime(2024, 2, 5, 5, 5, tzinfo=UTC),
    ]


def test_a_function_of_a_zone_is_asked_by_its_clocks():
    def match(digest: TimestampDigest) -> bool:
        return (digest.hour, digest.min) == (2, 30)

    [paris] = [each for each in AUTUMN if each.zone == "Europe/Paris"]

    due = iter_upcoming_minutes(match, paris.info, paris.at - timedelta(hours=2))

    assert list(islice(due, 3)) == [
        paris.at - 30 * MINUTE,
        paris.at + 30 * MINUTE,
        paris.at + 30 * MINUTE + DAY,
    ]


@pytest.mark.single_version
def test_a_function_that_never_matches_is_not_called_forever():
    asked = 0

    def never(digest: TimestampDigest) -> bool:
        nonlocal asked
        asked += 1
        return False

    assert list(iter_upcoming_minutes(never, None, datetime(2024, 1, 1, tzinfo=UTC))) == []
    assert asked >= 366 * 1440


def test_the_calendar_has_an_end():
    late = datetime(9999, 12, 29, 23, 50, tzinfo=UTC)

    found = list(iter_upcoming_minutes(parse_pattern("*/5 * * * *"), None, late))

    assert found == [datetime(9999, 12, 29, 23, 55, tzinfo=UTC)]
