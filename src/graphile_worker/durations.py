"""Lengths of time as people write them: `500ms`, `2s`, `1m30s`, `1h`, `1d`."""

import re
from datetime import timedelta

NUMBER = r"([0-9]{1,15}(?:\.[0-9]{1,6})?)"
UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds", "ms": "milliseconds"}
DURATION = re.compile("".join(rf"(?:{NUMBER}{unit}\s*)?" for unit in UNITS))


def read_duration(text: str) -> timedelta | None:
    """The time that `1m30s` and the like say; None if it is no such text."""
    found = DURATION.fullmatch(text)
    if found is None or not any(found.groups()):
        return None
    given = zip(UNITS.values(), found.groups(), strict=True)
    try:
        return timedelta(**{unit: float(number) for unit, number in given if number is not None})
    except OverflowError:
        return None


def duration_text(span: timedelta) -> str:
    """`1m30s`, as short as it can be said."""
    if span < timedelta(0):
        return f"-{duration_text(-span)}"
    minutes, seconds = divmod(span.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    counts = (span.days, hours, minutes, seconds, span.microseconds / 1000)
    said = "".join(f"{count:g}{unit}" for unit, count in zip(UNITS, counts, strict=True) if count)
    return said or "0s"


def about(span: timedelta) -> str:
    """`2m40s`: as much of it as people read, which is two units, or a tenth of a short second."""
    if span < timedelta(0):
        return f"-{about(-span)}"
    if span < timedelta(seconds=10):
        return f"{span.total_seconds():.1f}s"
    seconds = round(span.total_seconds())
    counts = {"d": seconds // 86400, "h": seconds // 3600 % 24, "m": seconds // 60 % 60}
    counts["s"] = seconds % 60
    units = list(counts)
    first = next(unit for unit in units if counts[unit])
    two = units[units.index(first) :][:2]
    return "".join(f"{counts[unit]}{unit}" for unit in two if counts[unit])
