"""Backfill: which past minutes are owed, and in which order."""

from collections.abc import Callable, Mapping, Sequence
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
    """A moment of the day of START."""
    return START.replace(hour=hour, minute=minute, second=second)


def item(task: str = "a", match: Any = "* * * * *", **given: Any) -> ParsedCronItem:
    options = {"backfill": timedelta(hours=1), **given}
    [parsed] = parse_cron_items([CronItem(task=task, match=match, **options)])
    return parsed


def known(
    identifier: str = "a", since: datetime = LONG_AGO, last: datetime | None = None
) -> dict[str, KnownCrontab]:
    return {identifier: KnownCrontab(identifier, since, last)}


def owed(items: Sequence[ParsedCronItem], known: Known, start: datetime = START) -> list[Any]:
    """Minutes as texts, with the identifiers of what is owed."""
    return [
        (f"{minute:%H:%M}", *(each.identifier for each in due))
        for minute, due in iter_missed_minutes(items, known, start)
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


# What is owed


@pytest.mark.feature("F276")
def test_every_minute_since_the_last_run_is_backfilled():
    assert owed([item()], known(last=at(11, 56))) == [
        ("11:57", "a"),
        ("11:58", "a"),
        ("11:59", "a"),
        ("12:00", "a"),
    ]


@pytest.mark.feature("F276")
def test_the_minute_of_the_last_run_is_not_backfilled():
    assert owed([item()], known(last=at(12))) == []
    assert owed([item()], known(last=at(11, 59))) == [("12:00", "a")]


@pytest.mark.feature("F276")
def test_only_minutes_of_the_pattern_are_backfilled():
    each_quarter = item(match="*/15 * * * *")

    assert owed([each_quarter], known(last=at(11, 15))) == [
        ("11:30", "a"),
        ("11:45", "a"),
        ("12:00", "a"),
    ]


@pytest.mark.feature("F276")
def test_the_period_is_the_limit():
    found = owed([item()], known(last=LONG_AGO))

    # 11:00:30 is an hour before.
    assert found[0] == ("11:01", "a")
    assert found[-1] == ("12:00", "a")
    assert len(found) == 60


@pytest.mark.feature("F276")
@pytest.mark.parametrize(
    ("start", "first"), [(at(12), "11:00"), (at(12, 0, 1), "11:01"), (at(12, 0, 59), "11:01")]
)
def test_a_minute_as_old_as_the_period_is_backfilled_and_none_older(start, first):
    assert owed([item()], known(), start)[0] == (first, "a")


@pytest.mark.feature("F276")
@pytest.mark.parametrize(("start", "last"), [(at(12), "11:59"), (at(12, 0, 1), "12:00")])
def test_the_minute_that_begins_now_is_not_past(start, last):
    # It is the first of the minutes that are waited for.
    assert owed([item()], known(), start)[-1] == (last, "a")


@pytest.mark.feature("F277")
def test_new_items_are_not_backfilled():
    assert owed([item()], {}) == []
    assert owed([item("new"), item("old")], known("old", last=at(11, 59))) == [("12:00", "old")]


@pytest.mark.feature("F277")
def test_an_item_that_never_ran_is_backfilled_since_it_is_known():
    assert owed([item()], known(since=at(11, 58))) == [
        ("11:58", "a"),
        ("11:59", "a"),
        ("12:00", "a"),
    ]
    assert owed([item()], known(since=at(11, 58, 1)))[0] == ("11:59", "a")


@pytest.mark.feature("F277")
def test_an_item_is_known_by_its_identifier():
    assert owed([item("task", identifier="it")], known("task", last=at(11, 59))) == []
    assert owed([item("task", identifier="it")], known("it", last=at(11, 59))) == [("12:00", "it")]


@pytest.mark.feature("F276")
def test_without_a_period_nothing_is_backfilled():
    assert owed([item(backfill=timedelta(0))], known(last=at(9))) == []


@pytest.mark.feature("F276")
@pytest.mark.parametrize(
    ("period", "found"), [(29, []), (30, ["12:00"]), (89, ["12:00"]), (90, ["11:59", "12:00"])]
)
def test_a_period_is_counted_in_seconds(period, found):
    short = item(backfill=timedelta(seconds=period))

    assert owed([short], known()) == [(minute, "a") for minute in found]


@pytest.mark.parametrize("moment", [at(12, 1), at(13), START + timedelta(days=400)])
def test_an_item_that_ran_in_the_future_is_not_backfilled(moment):
    # The clock of whoever wrote that was ahead.
    assert owed([item()], known(last=moment)) == []
    assert owed([item()], known(since=moment)) == []


@pytest.mark.parametrize("moment", [MAX_DATETIME, MAX_DATETIME - timedelta(seconds=30)])
def test_nor_does_who_ran_at_the_end_of_the_calendar(moment):
    # Where PostgreSQL has "infinity".
    assert owed([item()], known(last=moment)) == []
    assert owed([item()], known(since=moment)) == []


@pytest.mark.parametrize("period", [timedelta(days=365 * 9000), timedelta.max])
def test_a_period_may_reach_back_beyond_the_calendar(period):
    endless = item(backfill=period)

    assert owed([endless], known(last=at(11, 58))) == [("11:59", "a"), ("12:00", "a")]
    assert find_first_missed(endless, known(since=MIN_DATETIME), START) == MIN_DATETIME


def test_missed_minutes_are_found_one_by_one():
    # A worker with a long period begins at once, and does not gather a million minutes first.
    first = islice(
        iter_missed_minutes([item(backfill=timedelta.max)], known(since=MIN_DATETIME), START), 2
    )

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

    assert owed(items, known_items) == [
        ("11:00", "b"),
        ("11:30", "b"),
        ("11:40", "a"),
        ("12:00", "a", "b", "d"),
    ]


def test_without_items_nothing_is_backfilled():
    assert owed([], known()) == []


def test_only_minutes_that_may_be_missed_are_checked():
    asked: list[tuple[str, str]] = []

    def asking(name: str) -> Callable[[TimestampDigest], bool]:
        def match(minute: TimestampDigest) -> bool:
            asked.append((name, f"{minute.hour:02}:{minute.min:02}"))
            return False

        return match

    items = [
        item("a", match=asking("a")),
        item("b", match=asking("b"), backfill=timedelta(minutes=1)),
        item("new", match=asking("new")),
    ]
    about = {**known("a", last=at(11, 58)), **known("b")}

    assert list(iter_missed_minutes(items, about, START)) == []
    assert asked == [("a", "11:59"), ("a", "12:00"), ("b", "12:00")]


def test_an_item_whose_function_raises_is_skipped_after_a_report():
    told: list[tuple[str, str]] = []

    def broken(minute: TimestampDigest) -> bool:
        raise ValueError("who knows")

    def tell(item: ParsedCronItem, error: Exception) -> None:
        told.append((item.identifier, str(error)))

    items = [item("a", match=broken), item("b", match="0 12 * * *")]
    about = {**known("a", last=at(11, 50)), **known("b", last=at(11, 50))}

    owed = list(iter_missed_minutes(items, about, START, on_error=tell))

    assert [(minute, [each.identifier for each in due]) for minute, due in owed] == [
        (at(12), ["b"])
    ]
    assert told == [("a", "who knows")]
    with pytest.raises(ValueError, match="who knows"):
        list(iter_missed_minutes(items, about, START))


# Against the definition

moments = st.datetimes(
    min_value=datetime(2024, 3, 1, 8), max_value=datetime(2024, 3, 1, 13), timezones=st.just(UTC)
).map(lambda moment: moment.replace(microsecond=moment.microsecond // 500_000 * 500_000))
# Most rows in a database hold whole minutes.
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


def is_owed(each: ParsedCronItem, about: KnownCrontab | None, start: datetime, t: datetime) -> bool:
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
    # Nothing here is known for longer.
    minute = datetime(2024, 3, 1, 7, 59, tzinfo=UTC)
    while minute < start:
        due = [each for each in items if is_owed(each, about.get(each.identifier), start, minute)]
        if due:
            expected.append((minute, due))
        minute += MINUTE

    assert list(iter_missed_minutes(items, about, start)) == expected
