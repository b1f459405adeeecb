"""Lengths of time as people write them: `500ms`, `2s`, `1m30s`, `1h`, `1d`."""

import re
from datetime import timedelta

NUMBER_PATTERN = r"([0-9]{1,15}(?:\.[0-9]{1,6})?)"
UNIT_NAMES = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds", "ms": "milliseconds"}
DURATION_PATTERN = re.compile("".join(rf"(?:{NUMBER_PATTERN}{unit}\s*)?" for unit in UNIT_NAMES))


def parse_duration(text: str) -> timedelta | None:
    """The time that `1m30s` and the like say; None if it is no such text."""
    found = DURATION_PATTERN.fullmatch(text)
    if found is None or not any(found.groups()):
        return None
    given = zip(UNIT_NAMES.values(), found.groups(), strict=True)
    try:
        return timedelta(**{unit: float(number) for unit, number in given if number is not None})
    except OverflowError:
        return None


def format_exact_duration(duration: timedelta) -> str:
    """`1m30s`, as short as it can be said."""
    if duration < timedelta(0):
        return f"-{format_exact_duration(-duration)}"
    minutes, seconds = divmod(duration.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    counts = (duration.days, hours, minutes, seconds, duration.microseconds / 1000)
    said = "".join(
        f"{count:g}{unit}" for unit, count in zip(UNIT_NAMES, counts, strict=True) if count
    )
    return said or "0s"


def format_duration(duration: timedelta) -> str:
    """`2m40s`: as much of it as people read, which is two units, or a tenth of a short second."""
    if duration < timedelta(0):
        return f"-{format_duration(-duration)}"
    if duration < timedelta(seconds=10):
        return f"{duration.total_seconds():.1f}s"
    seconds = round(duration.total_seconds())
    counts = {"d": seconds // 86400, "h": seconds // 3600 % 24, "m": seconds // 60 % 60}
    counts["s"] = seconds % 60
    units = list(counts)
    first = next(unit for unit in units if counts[unit])
    two = units[units.index(first) :][:2]
    return "".join(f"{counts[unit]}{unit}" for unit in two if counts[unit])
