"""Backfill: which past minutes are owed?"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from graphile_worker.crontab import ParsedCronItem
from graphile_worker.sql.cron import KnownCrontab

MINUTE = timedelta(minutes=1)


def floor_minute(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0)


def ceil_minute(moment: datetime) -> datetime:
    """The minute that begins then, or else the next."""
    floor = floor_minute(moment)
    return floor if floor == moment else floor + MINUTE


def first_owed(
    item: ParsedCronItem, known: Mapping[str, KnownCrontab], start: datetime
) -> datetime | None:
    """From which minute on this item's past is made up for; None: it is not."""
    about = known.get(item.identifier)
    if about is None or not item.backfill:
        return None
    if (about.last_execution or about.known_since) >= start:
        return None
    if about.last_execution is not None:
        first = floor_minute(about.last_execution) + MINUTE
    else:
        first = ceil_minute(about.known_since)
    # A period may reach back beyond the calendar.
    return first if start - first <= item.backfill else ceil_minute(start - item.backfill)


def owed_minutes(
    items: Sequence[ParsedCronItem],
    known: Mapping[str, KnownCrontab],
    start: datetime,
    *,
    until: datetime | None = None,
    is_due: Callable[[ParsedCronItem, datetime], bool] = ParsedCronItem.is_due,
) -> Iterator[tuple[datetime, list[ParsedCronItem]]]:
    """The minutes before `start` at which items should have run, in order, and which ones.

    With `until`, those before that alone.
    """
    end = start if until is None else min(start, until)
    firsts = [(first_owed(item, known, start), item) for item in items]
    owed = [(first, item) for first, item in firsts if first is not None]
    minute = min((first for first, _ in owed), default=end)
    while minute < end:
        due = [item for first, item in owed if first <= minute and is_due(item, minute)]
        if due:
            yield minute, due
        minute += MINUTE
