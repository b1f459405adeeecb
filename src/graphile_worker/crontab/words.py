"""Cron patterns in words, for the common ones: `every 5 minutes`, `at 04:30 on Monday`."""

from collections.abc import Sequence

from graphile_worker.crontab.patterns import CronPattern

DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
WEEKDAYS = frozenset(range(1, 6))
WEEKEND = frozenset({0, 6})

# Longer lists are harder to read than the pattern.
MAX_LISTED = 4


def describe_pattern(pattern: CronPattern, zone: str | None = None) -> str | None:
    """Describe a pattern in words.

    Args:
        pattern: The pattern.
        zone: The name of the time zone, or None for UTC.

    Returns:
        The words, or None if the pattern itself is clearer.
    """
    days = _describe_days(pattern)
    times = _describe_times(pattern)
    if days is None or times is None:
        return None
    has_hours = not pattern.is_every_hour
    suffix = f" {zone or 'UTC'}" if has_hours or days else ""
    return f"{times}{days}{suffix}"


def _describe_times(pattern: CronPattern) -> str | None:
    """Describe the minutes and hours."""
    minutes, hours = sorted(pattern.minutes), sorted(pattern.hours)
    minute_step, hour_step = _find_step(minutes, 60), _find_step(hours, 24)
    if minute_step is not None:
        interval = "every minute" if minute_step == 1 else f"every {minute_step} minutes"
        if pattern.is_every_hour:
            return interval
        hour_range = _describe_hour_range(hours)
        return None if hour_range is None else f"{interval} {hour_range}"
    if len(minutes) > MAX_LISTED:
        return None
    if hour_step is not None:
        interval = "every hour" if hour_step == 1 else f"every {hour_step} hours"
        return f"{interval} at {_join([f':{minute:02}' for minute in minutes])}"
    if len(hours) * len(minutes) > MAX_LISTED:
        return None
    return f"at {_join([f'{hour:02}:{minute:02}' for hour in hours for minute in minutes])}"


def _describe_hour_range(hours: Sequence[int]) -> str | None:
    if len(hours) == 1:
        return f"from {hours[0]:02}:00 to {hours[0]:02}:59"
    is_range = list(hours) == [*range(hours[0], hours[-1] + 1)]
    return f"from {hours[0]:02}:00 to {hours[-1]:02}:59" if is_range else None


def _describe_days(pattern: CronPattern) -> str | None:
    """Describe the days and months, as an empty text for every day."""
    is_every_date = len(pattern.dates) == 31
    is_every_dow = len(pattern.dows) == 7
    months = sorted(pattern.months)
    if not is_every_date and not is_every_dow:
        return None
    if len(months) == 12:
        month_words = ""
    elif len(months) <= MAX_LISTED:
        month_words = _join([MONTHS[month - 1] for month in months])
    else:
        return None
    if not is_every_dow:
        days = _describe_dows(pattern.dows)
        return f" on {days}{f' in {month_words}' if month_words else ''}"
    if is_every_date:
        return f" in {month_words}" if month_words else ""
    dates = sorted(pattern.dates)
    if len(dates) > MAX_LISTED:
        return None
    if not month_words:
        return f" on day {_join(list(map(str, dates)))} of the month"
    if len(months) == 1 and len(dates) == 1:
        return f" on {month_words} {dates[0]}"
    return f" on day {_join(list(map(str, dates)))} of {month_words}"


def _describe_dows(dows: frozenset[int]) -> str:
    if dows == WEEKDAYS:
        return "Monday to Friday"
    if dows == WEEKEND:
        return "Saturday and Sunday"
    # From Monday on, Sunday last.
    return _join([DAYS[day] for day in sorted(dows, key=lambda day: (day - 1) % 7)])


def _find_step(values: Sequence[int], count: int) -> int | None:
    """Return the step of values that are equally spaced over all of `count`, or None."""
    if len(values) < 2 or count % len(values):
        return None
    step = count // len(values)
    return step if list(values) == [*range(0, count, step)] else None


def _join(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
