"""Zones: which minutes an item of a time zone means, on the days that clocks are changed too.

- An item of every hour follows the time that passes: it runs in both of two equal hours, and what
  the clocks jump over is not made up for. So does a function, which is asked about each minute.
- An item of certain hours runs once for each time of day: in the first of two equal hours only; and
  if clocks jump over it, in the minute to which they jump, once for all that was jumped over.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from graphile_worker.crontab.patterns import CronPattern, TimestampDigest

Matcher = Callable[[TimestampDigest], bool]

MINUTE = timedelta(minutes=1)


def is_due(match: Matcher, zone: ZoneInfo | None, minute: datetime) -> bool:
    """Does it mean this minute of UTC, as clocks of the zone show it?"""
    if zone is None:
        return match(TimestampDigest.from_datetime(minute))
    local = minute.astimezone(zone)
    if not isinstance(match, CronPattern) or match.is_every_hour:
        return match(TimestampDigest.from_datetime(local))
    if local.fold:
        return False
    readings = (local.replace(tzinfo=None), *_iter_skipped_times(zone, minute))
    return any(match(TimestampDigest.from_datetime(each)) for each in readings)


def _iter_skipped_times(zone: ZoneInfo, minute: datetime) -> Iterator[datetime]:
    """What clocks did not show between the minute before and this one."""
    before = (minute - MINUTE).astimezone(zone).replace(tzinfo=None)
    here = minute.astimezone(zone).replace(tzinfo=None)
    reading = before + MINUTE
    while reading < here:
        yield reading
        reading += MINUTE


def iter_upcoming_minutes(
    match: Matcher, zone: ZoneInfo | None, after: datetime
) -> Iterator[datetime]:
    """The minutes that it means after this moment; ends when there was none for a long time."""
    next_minute = after.astimezone(UTC).replace(second=0, microsecond=0) + MINUTE
    return iter_due_minutes(match, zone, next_minute)


def iter_due_minutes(
    match: Matcher, zone: ZoneInfo | None, minute: datetime, before: datetime | None = None
) -> Iterator[datetime]:
    """The minutes that it means from this one on."""
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
    # A 29th of February may be eight years away; a function is asked about each minute.
    days = 366 * 9 if isinstance(match, CronPattern) else 400
    try:
        far = minute + timedelta(days=days)
    except OverflowError:
        far = datetime.max.replace(tzinfo=UTC) - timedelta(days=2)
    return far if before is None else min(far, before)


def _may_match_day(pattern: CronPattern, zone: ZoneInfo | None, minute: datetime) -> bool:
    """Is this day of UTC one of the pattern? Or, for a zone, the day before or after it.

    Its clocks show one of them, or have jumped over one of them.
    """
    days = (0,) if zone is None else (-1, 0, 1)
    return any(pattern.matches_day(minute.date() + timedelta(days=each)) for each in days)
