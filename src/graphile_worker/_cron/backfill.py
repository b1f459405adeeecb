"""Find the past minutes that cron items have to backfill."""

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
    """Round up to a full minute."""
    floor = floor_minute(timestamp)
    return floor if floor == timestamp else floor + MINUTE


def find_first_missed(
    item: ParsedCronItem, known: Mapping[str, KnownCrontab], start: datetime
) -> datetime | None:
    """Return the first minute of this item to backfill, or None."""
    crontab = known.get(item.identifier)
    if crontab is None or not item.backfill:
        return None
    if (crontab.last_execution or crontab.known_since) >= start:
        return None
    if crontab.last_execution is not None:
        first = floor_minute(crontab.last_execution) + MINUTE
    else:
        first = ceil_minute(crontab.known_since)
    # Subtracted only if needed, because a long period would be out of range.
    return first if start - first <= item.backfill else ceil_minute(start - item.backfill)


def iter_missed_minutes(
    items: Sequence[ParsedCronItem],
    known: Mapping[str, KnownCrontab],
    start: datetime,
    *,
    until: datetime,
    on_error: Callable[[ParsedCronItem, Exception], None],
) -> Iterator[tuple[datetime, list[ParsedCronItem]]]:
    """Yield the minutes before `start` and `until` at which items should have run, with the items.

    If the function of an item raises, `on_error` is called and the item is skipped.
    """
    end = min(start, until)
    minutes = [
        _iter_item_minutes(position, item, first, end, on_error)
        for position, item in enumerate(items)
        if (first := find_first_missed(item, known, start)) is not None
    ]
    for minute, group in groupby(merge(*minutes, key=itemgetter(0, 1)), key=itemgetter(0)):
        yield minute, [item for _, _, item in group]


def _iter_item_minutes(
    position: int,
    item: ParsedCronItem,
    first: datetime,
    end: datetime,
    on_error: Callable[[ParsedCronItem, Exception], None],
) -> Iterator[tuple[datetime, int, ParsedCronItem]]:
    try:
        for minute in item.due_between(first, end):
            yield minute, position, item
    except Exception as error:
        on_error(item, error)
