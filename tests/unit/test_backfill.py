"""Backfill: which past minutes are backfilled, and in which order."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphile_worker import CronItem, ParsedCronItem, TimestampDigest, parse_cron_items
from graphile_worker._cron.backfill import (
    ceil_minute,
    find_first_missed,
    floor_minute,
    iter_missed_minutes,
)
from graphile_worker._sql.queries.cron import KnownCrontab
from graphile_worker.jobs import MAX_DATETIME, MIN_DATETIME

MINUTE = timedelta(minutes=1)
START = datetime(2024, 3, 1, 12, 0, 30, tzinfo=UTC)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)

Known = Mapping[str, KnownCrontab]


def at(hour: int, minute: int = 0, second: int = 0) -> datetime:
    """Return a time on the day of START."""
    return START.replace(hour=hour, minute=minute, second=second)


def item(task: str = "a", match: Any = "* * * * *", **overrides: Any) -> ParsedCronItem:
    options = {"backfill": timedelta(hours=1), **overrides}
    [parsed] = parse_cron_items([CronItem(task=task, match=match, **options)])
    return parsed


def known(
    identifier: str = "a", since: datetime = LONG_AGO, last: datetime | None = None
) -> dict[str, KnownCrontab]:
    return {identifier: KnownCrontab(identifier, since, last)}


def fail_on_error(item: ParsedCronItem, error: Exception) -> None:
    raise error


def iter_missed(
    items: Sequence[ParsedCronItem], known: Known, start: datetime = START
) -> Iterator[tuple[datetime, list[ParsedCronItem]]]:
    return iter_missed_minutes(items, known, start, until=start, on_error=fail_on_error)


def missed(items: Sequence[ParsedCronItem], known: Known, start: datetime = START) -> list[Any]:
    """Return the minutes to backfill as text, each with the identifiers of its items."""
    return [
        (f"{minute:%H:%M}", *(each.identifier for each in due))
        for minute, due in iter_missed(items, known, start)
    ]


# Minutes


@pytest.mark.parametrize(
    ("moment", "floor", "ceil"),
    [
        (at(12, 5), at(12, 5), at(12, 5)),
        (at(12, 5, 1), at(12, 5), at(12, 6)),
        (at(12, 5, 59), at(12, 5), at(12, 6)),
        (at(12, 59, 59), at(12, 59), at(13, 0)),
        (at(12, 5).replace(microsecond=1), at(12, 5), at(12, 6)),
        (at(23, 59, 1), at(23, 59), at(0) + timedelta(days=1)),
    ],
)
def test_a_moment_lies_between_two_minutes_or_on_one(moment, floor, ceil):
    assert (floor_minute(moment), ceil_minute(moment)) == (floor, ceil)


# Missed minutes


@pytest.mark.feature("F276")
def test_every_minute_since_the_last_run_is_backfilled():
    assert missed([item()], known(last=at(11, 56))) == [
        ("11:57", "a"),
        ("11:58", "a"),
        ("11:59", "a"),
        ("12:00", "a"),
    ]


@pytest.mark.feature("F276")
def test_the_minute_of_the_last_run_is_not_backfilled():
    assert missed([item()], known(last=at(12))) == []
    assert missed([item()], known(last=at(11, 59))) == [("12:00", "a")]


@pytest.mark.feature("F276")
def test_only_minutes_of_the_pattern_are_backfilled():
    each_quarter = item(match="*/15 * * * *")

    assert missed([each_quarter], known(last=at(11, 15))) == [
        ("11:30", "a"),
        ("11:45", "a"),
        ("12:00", "a"),
    ]


@pytest.mark.feature("F276")
def test_the_period_is_the_limit():
    minutes_found = missed([item()], known(last=LONG_AGO))

    # 11:00:30 is an hour before.
    assert minutes_found[0] == ("11:01", "a")
    assert minutes_found[-1] == ("12:00", "a")
    assert len(minutes_found) == 60


@pytest.mark.feature("F276")
@pytest.mark.parametrize(
    ("start", "first"), [(at(12), "11:00"), (at(12, 0, 1), "11:01"), (at(12, 0, 59), "11:01")]
)
def test_a_minute_as_old_as_the_period_is_backfilled_and_none_older(start, first):
    assert missed([item()], known(), start)[0] == (first, "a")


@pytest.mark.feature("F276")
@pytest.mark.parametrize(("start", "last"), [(at(12), "11:59"), (at(12, 0, 1), "12:00")])
def test_the_minute_that_begins_now_is_not_past(start, last):
    # The scheduler waits for the minute of START, so it is not backfilled.
    assert missed([item()], known(), start)[-1] == (last, "a")


@pytest.mark.feature("F277")
def test_new_items_are_not_backfilled():
    assert missed([item()], {}) == []
    assert missed([item("new"), item("old")], known("old", last=at(11, 59))) == [("12:00", "old")]


@pytest.mark.feature("F277")
def test_an_item_that_never_ran_is_backfilled_since_it_is_known():
    assert missed([item()], known(since=at(11, 58))) == [
        ("11:58", "a"),
        ("11:59", "a"),
        ("12:00", "a"),
    ]
    assert missed([item()], known(since=at(11, 58, 1)))[0] == ("11:59", "a")


@pytest.mark.feature("F277")
def test_an_item_is_known_by_its_identifier():
    assert missed([item("task", identifier="it")], known("task", last=at(11, 59))) == []
    assert missed([item("task", identifier="it")], known("it", last=at(11, 59))) == [
        ("12:00", "it")
    ]


@pytest.mark.feature("F276")
def test_without_a_period_nothing_is_backfilled():
    assert missed([item(backfill=timedelta(0))], known(last=at(9))) == []


@pytest.mark.feature("F276")
@pytest.mark.parametrize(
    ("period", "minutes_found"),
    [(29, []), (30, ["12:00"]), (89, ["12:00"]), (90, ["11:59", "12:00"])],
)
def test_a_period_is_counted_in_seconds(period, minutes_found):
    short = item(backfill=timedelta(seconds=period))

    assert missed([short], known()) == [(minute, "a") for minute in minutes_found]


@pytest.mark.parametrize("moment", [at(12, 1), at(13), START + timedelta(days=400)])
def test_an_item_that_ran_in_the_future_is_not_backfilled(moment):
    # Written by a machine with a fast clock.
    assert missed([item()], known(last=moment)) == []
    assert missed([item()], known(since=moment)) == []


@pytest.mark.parametrize("moment", [MAX_DATETIME, MAX_DATETIME - timedelta(seconds=30)])
def test_nor_does_who_ran_at_the_end_of_the_calendar(moment):
    # PostgreSQL has "infinity" there.
    assert missed([item()], known(last=moment)) == []
    assert missed([item()], known(since=moment)) == []


@pytest.mark.parametrize("period", [timedelta(days=365 * 9000), timedelta.max])
def test_a_period_may_reach_back_beyond_the_calendar(period):
    endless = item(backfill=period)

    assert missed([endless], known(last=at(11, 58))) == [("11:59", "a"), ("12:00", "a")]
    assert find_first_missed(endless, known(since=MIN_DATETIME), START) == MIN_DATETIME


def test_missed_minutes_are_found_one_by_one():
    # A worker with a long period starts at once, and does not collect a million minutes first.
    first = islice(iter_missed([item(backfill=timedelta.max)], known(since=MIN_DATETIME)), 2)

    assert [minute for minute, _ in first] == [MIN_DATETIME, MIN_DATETIME + MINUTE]


# Several items


@pytest.mark.feature("F276")
def test_minutes_come_in_order_and_those_of_several_items_together():
    items = [
        item("a", match="*/20 * * * *"),
        item("b", match="*/30 * * * *", backfill=timedelta(hours=2)),
        item("c", match="0 * * * *", backfill=timedelta(0)),
        item("d", match="0 * * * *", backfill=timedelta(minutes=5)),
        item("e"),
    ]
    known_items = {
        **known("a", last=at(11, 20)),
        **known("b", last=at(10, 30)),
        **known("c", last=at(9)),
        **known("d", last=at(9)),
    }

    assert missed(items, known_items) == [
        ("11:00", "b"),
        ("11:30", "b"),
        ("11:40", "a"),
        ("12:00", "a", "b", "d"),
    ]


def test_without_items_nothing_is_backfilled():
    assert missed([], known()) == []


def test_only_minutes_that_may_be_missed_are_checked():
    checked: list[tuple[str, str]] = []

    def record_checks(name: str) -> Callable[[TimestampDigest], bool]:
        def match(minute: TimestampDigest) -> bool:
            checked.append((name, f"{minute.hour:02}:{minute.min:02}"))
            return False

        return match

    items = [
        item("a", match=record_checks("a")),
        item("b", match=record_checks("b"), backfill=timedelta(minutes=1)),
        item("new", match=record_checks("new")),
    ]
    about = {**known("a", last=at(11, 58)), **known("b")}

    assert list(iter_missed(items, about)) == []
    assert checked == [("a", "11:59"), ("a", "12:00"), ("b", "12:00")]


def test_an_item_whose_function_raises_is_skipped_after_a_report():
    reported: list[tuple[str, str]] = []

    def broken(minute: TimestampDigest) -> bool:
        raise ValueError("who knows")

    def report(item: ParsedCronItem, error: Exception) -> None:
        reported.append((item.identifier, str(error)))

    items = [item("a", match=broken), item("b", match="0 12 * * *")]
    about = {**known("a", last=at(11, 50)), **known("b", last=at(11, 50))}

    minutes = list(iter_missed_minutes(items, about, START, until=START, on_error=report))

    assert [(minute, [each.identifier for each in due]) for minute, due in minutes] == [
        (at(12), ["b"])
    ]
    assert reported == [("a", "who knows")]


def test_minutes_from_until_on_are_not_backfilled():
    minutes = iter_missed_minutes(
        [item()], known(last=at(11, 57)), START, until=at(11, 59), on_error=fail_on_error
    )

    assert [minute for minute, _ in minutes] == [at(11, 58)]


# Against the definition

moments = st.datetimes(
    min_value=datetime(2024, 3, 1, 8), max_value=datetime(2024, 3, 1, 13), timezones=st.just(UTC)
).map(lambda moment: moment.replace(microsecond=moment.microsecond // 500_000 * 500_000))
# Most rows in a database have whole minutes.
minutes = moments.map(floor_minute)
patterns = st.sampled_from(["* * * * *", "*/7 * * * *", "0 * * * *", "30 9-11 * * *", "0 0 1 1 *"])
periods = st.one_of(
    st.just(timedelta(0)),
    st.integers(0, 5 * 3600).map(lambda seconds: timedelta(seconds=seconds)),
    st.just(timedelta.max),
)


@st.composite
def scenes(draw: st.DrawFn) -> tuple[list[ParsedCronItem], dict[str, KnownCrontab], datetime]:
    items: list[ParsedCronItem] = []
    about: dict[str, KnownCrontab] = {}
    for name in "abc"[: draw(st.integers(0, 3))]:
        items.append(item(name, match=draw(patterns), backfill=draw(periods)))
        if draw(st.booleans()):
            last = draw(st.none() | moments | minutes)
            about |= known(name, since=draw(moments | minutes), last=last)
    return items, about, draw(moments | minutes)


def is_missed(
    each: ParsedCronItem, about: KnownCrontab | None, start: datetime, t: datetime
) -> bool:
    if about is None or not each.backfill or t >= start or each.backfill < start - t:
        return False
    if about.last_execution is None:
        return t >= about.known_since and each.is_due(t)
    return t > about.last_execution and each.is_due(t)


@pytest.mark.feature("F276", "F277")
@settings(max_examples=60)
@given(scenes())
def test_missed_minutes_match_the_definition(scene):
    items, about, start = scene
    expected = []
    # No item here is known for longer.
    minute = datetime(2024, 3, 1, 7, 59, tzinfo=UTC)
    while minute < start:
        due = [each for each in items if is_missed(each, about.get(each.identifier), start, minute)]
        if due:
            expected.append((minute, due))
        minute += MINUTE

    assert list(iter_missed(items, about, start)) == expected
