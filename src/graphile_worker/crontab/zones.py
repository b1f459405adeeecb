"""Time zones: the minutes that an item matches, also on days with a clock change.

- An item of every hour follows elapsed time: it runs in both of two equal hours, and skipped times
  are not backfilled. The same applies to a function, which is called for each minute.
- An item of certain hours runs once for each time of day: in the first of two equal hours. If the
  clocks skip its time, it runs at the minute after the skipped period, once.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from graphile_worker.crontab.patterns import CronPattern, TimestampDigest

Matcher = Callable[[TimestampDigest], bool]

MINUTE = timedelta(minutes=1)


def is_due(match: Matcher, zone: ZoneInfo | None, minute: datetime) -> bool:
    """Return whether the item matches this minute of UTC, converted to local time."""
    if zone is None:
        return match(TimestampDigest.from_datetime(minute))
    local = minute.astimezone(zone)
    if not isinstance(match, CronPattern) or match.is_every_hour:
        return match(TimestampDigest.from_datetime(local))
    if local.fold:
        return False
    times = (local.replace(tzinfo=None), *_iter_skipped_times(zone, minute))
    return any(match(TimestampDigest.from_datetime(each)) for each in times)


def _iter_skipped_times(zone: ZoneInfo, minute: datetime) -> Iterator[datetime]:
    """Yield the local times that clocks skip between the previous minute and this one."""
    before = (minute - MINUTE).astimezone(zone).replace(tzinfo=None)
    current = minute.astimezone(zone).replace(tzinfo=None)
    skipped = before + MINUTE
    while skipped < current:
        yield skipped
        skipped += MINUTE


def iter_upcoming_minutes(
    match: Matcher, zone: ZoneInfo | None, after: datetime
) -> Iterator[datetime]:
    """Yield the matching minutes after a time. Stop after a long period without one."""
    next_minute = after.astimezone(UTC).replace(second=0, microsecond=0) + MINUTE
    return iter_due_minutes(match, zone, next_minute)


def iter_due_minutes(
    match: Matcher, zone: ZoneInfo | None, minute: datetime, before: datetime | None = None
) -> Iterator[datetime]:
    """Yield the matching minutes from this one on."""
    last = _find_search_end(match, minute, before)
    while minute < last:
        if isinstance(match, CronPattern) and not _may_match_day(match, zone, minute):
            minute = (minute + timedelta(days=1)).replace(hour=0, minute=0)
        elif zone is None and isinstance(match, CronPattern) and minute.hour not in match.hours:
            minute = (minute + timedelta(hours=1)).replace(minute=0)
        else:
            if is_due(match, zone, minute):
                yield minute
                last = _find_search_end(match, minute, before)
            minute += MINUTE


def _find_search_end(match: Matcher, minute: datetime, before: datetime | None) -> datetime:
    # February 29 may be eight years away. A function is called for each minute, so less.
    days = 366 * 9 if isinstance(match, CronPattern) else 400
    try:
        far = minute + timedelta(days=days)
    except OverflowError:
        far = datetime.max.replace(tzinfo=UTC) - timedelta(days=2)
    return far if before is None else min(far, before)


def _may_match_day(pattern: CronPattern, zone: ZoneInfo | None, minute: datetime) -> bool:
    """Return whether the pattern matches this day of UTC, or in a zone a day next to it.

    The local date is one of these, or skips one of them.
    """
    days = (0,) if zone is None else (-1, 0, 1)
    return any(pattern.matches_day(minute.date() + timedelta(days=each)) for each in days)
