"""Backfill: which past minutes are owed?"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from heapq import merge
from itertools import groupby
from operator import itemgetter

from graphile_worker._sql.queries.cron import KnownCrontab
from graphile_worker.crontab import ParsedCronItem

MINUTE = timedelta(minutes=1)


def floor_minute(timestamp: datetime) -> datetime:
    return timestamp.replace(second=0, microsecond=0)


def ceil_minute(timestamp: datetime) -> datetime:
    """The minute that begins then, or else the next."""
    floor = floor_minute(timestamp)
    return floor if floor == timestamp else floor + MINUTE


def find_first_missed(
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


def iter_missed_minutes(
    items: Sequence[ParsedCronItem],
    known: Mapping[str, KnownCrontab],
    start: datetime,
    *,
    until: datetime | None = None,
    on_error: Callable[[ParsedCronItem, Exception], None] | None = None,
) -> Iterator[tuple[datetime, list[ParsedCronItem]]]:
    """The minutes before `start` at which items should have run, in order, and which ones.

    With `until`, those before that alone. An item that cannot say so is left out after `on_error`
    was told.
    """
    end = start if until is None else min(start, until)
    each = [
        _iter_missed_by(position, item, first, end, on_error)
        for position, item in enumerate(items)
        if (first := find_first_missed(item, known, start)) is not None
    ]
    for minute, together in groupby(merge(*each, key=itemgetter(0, 1)), key=itemgetter(0)):
        yield minute, [item for _, _, item in together]


def _iter_missed_by(
    position: int,
    item: ParsedCronItem,
    first: datetime,
    end: datetime,
    on_error: Callable[[ParsedCronItem, Exception], None] | None,
) -> Iterator[tuple[datetime, int, ParsedCronItem]]:
    try:
        for minute in item.due_between(first, end):
            yield minute, position, item
    except Exception as error:
        if on_error is None:
            raise
        on_error(item, error)
