"""Durations as people write them: `500ms`, `2s`, `1m30s`, `1h`, `1d`."""

import re
from datetime import timedelta

NUMBER_PATTERN = r"([0-9]{1,15}(?:\.[0-9]{1,6})?)"
UNIT_NAMES = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds", "ms": "milliseconds"}
DURATION_PATTERN = re.compile("".join(rf"(?:{NUMBER_PATTERN}{unit}\s*)?" for unit in UNIT_NAMES))


def parse_duration(text: str) -> timedelta | None:
    """Parse a duration, for example `1m30s`. Return None if it is invalid."""
    match = DURATION_PATTERN.fullmatch(text)
    if match is None or not any(match.groups()):
        return None
    parts = zip(UNIT_NAMES.values(), match.groups(), strict=True)
    try:
        return timedelta(**{unit: float(number) for unit, number in parts if number is not None})
    except OverflowError:
        return None


def format_exact_duration(duration: timedelta) -> str:
    """Format a duration without rounding, as `parse_duration` reads it."""
    if duration < timedelta(0):
        return f"-{format_exact_duration(-duration)}"
    return _join_units(_split_units(duration), duration.microseconds / 1000) or "0s"


def format_duration(duration: timedelta) -> str:
    """Format the two largest units, for people: `2m40s`. Below 10 s there is one decimal."""
    if duration < timedelta(0):
        return f"-{format_duration(-duration)}"
    if duration < timedelta(seconds=10):
        return f"{duration.total_seconds():.1f}s"
    counts = _split_units(timedelta(seconds=round(duration.total_seconds())))
    first = next(position for position, count in enumerate(counts) if count)
    return _join_units([0] * first + counts[first : first + 2])


def to_seconds(duration: timedelta | None) -> float | None:
    if duration is not None and not isinstance(duration, timedelta):
        raise TypeError(f"expected a timedelta, got {duration!r}")
    return None if duration is None else duration.total_seconds()


def _split_units(duration: timedelta) -> list[int]:
    """Return the days, hours, minutes and seconds."""
    minutes, seconds = divmod(duration.seconds, 60)
    return [duration.days, *divmod(minutes, 60), seconds]


def _join_units(counts: list[int], milliseconds: float = 0.0) -> str:
    named = zip(UNIT_NAMES, [*counts, milliseconds], strict=False)
    return "".join(f"{count:g}{unit}" for unit, count in named if count)
