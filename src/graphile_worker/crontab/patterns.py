"""Patterns: the five time fields of an item, and the minutes that they match."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime
from typing import NamedTuple, Self

from graphile_worker.crontab.problems import Problems

# The characters of a time field.
FIELD_CHARACTERS = frozenset("0123456789*/,-")


@dataclass(frozen=True, slots=True)
class TimestampDigest:
    """The parts of a minute, for a function in place of a cron pattern.

    Args:
        min: Minute, from 0 to 59.
        hour: Hour, from 0 to 23.
        date: Day of the month, from 1 to 31.
        month: Month, from 1 to 12.
        dow: Day of the week, from 0 for Sunday to 6 for Saturday.
    """

    min: int
    hour: int
    date: int
    month: int
    dow: int

    @classmethod
    def from_datetime(cls, timestamp: datetime) -> Self:
        """Split a time into its parts.

        Args:
            timestamp: The time.

        Returns:
            Its minute, hour, day, month and day of the week.
        """
        dow = timestamp.isoweekday() % 7
        return cls(timestamp.minute, timestamp.hour, timestamp.day, timestamp.month, dow)


class PatternField(NamedTuple):
    """One of the five fields and its range. `alias` is another number for the minimum."""

    name: str
    minimum: int
    maximum: int
    alias: int | None = None

    @property
    def expected(self) -> str:
        return f"{self.name} from {self.minimum} to {self.alias or self.maximum}"

    @property
    def expected_form(self) -> str:
        return f"{self.expected}, a range a-b, * or */n"

    def contains(self, value: int) -> bool:
        return self.minimum <= value <= self.maximum or value == self.alias


FIELDS = (
    PatternField("a minute", 0, 59),
    PatternField("an hour", 0, 23),
    PatternField("a day of the month", 1, 31),
    PatternField("a month", 1, 12),
    PatternField("a day of the week", 0, 6, alias=7),
)


@dataclass(frozen=True, slots=True)
class CronPattern:
    """A pattern. It matches a minute if all fields match, with one exception: see `matches_day`."""

    minutes: frozenset[int]
    hours: frozenset[int]
    dates: frozenset[int]
    months: frozenset[int]
    dows: frozenset[int]

    def __call__(self, digest: TimestampDigest) -> bool:
        return (
            digest.min in self.minutes
            and digest.hour in self.hours
            and digest.month in self.months
            and self._matches_day(digest.date, digest.dow)
        )

    @property
    def is_every_hour(self) -> bool:
        return len(self.hours) == 24

    def matches_day(self, day: date) -> bool:
        """Return whether the pattern matches a day.

        If both day fields are restricted, one match is enough, as in every cron.
        """
        return day.month in self.months and self._matches_day(day.day, day.isoweekday() % 7)

    def _matches_day(self, date: int, dow: int) -> bool:
        if len(self.dates) < 31 and len(self.dows) < 7:
            return date in self.dates or dow in self.dows
        return date in self.dates and dow in self.dows


def read_pattern(fields: Iterable[tuple[int, str]], problems: Problems) -> CronPattern:
    """Parse five fields, each with its column, and record problems."""
    values = [
        _read_field(field, column, text, problems)
        for field, (column, text) in zip(FIELDS, fields, strict=True)
    ]
    return CronPattern(*values)


def _read_field(field: PatternField, column: int, text: str, problems: Problems) -> frozenset[int]:
    values: set[int] = set()
    for part in text.split(","):
        part_values = _read_part(field, part)
        if isinstance(part_values, str):
            problems.record(column, part, part_values)
        else:
            if part.startswith("*/") and len(part_values) == 1:
                problems.record_warning(
                    column, part, f"only {field.minimum}: the next value exceeds {field.maximum}"
                )
            values.update(field.minimum if value == field.alias else value for value in part_values)
        column += len(part) + 1
    return frozenset(values)


def _read_part(field: PatternField, text: str) -> range | str:
    """Return the values of one part, or a text that describes the expected form."""
    if text == "*":
        return range(field.minimum, field.maximum + 1)
    if text.startswith("*/"):
        return _read_steps(field, text[2:])
    first, dash, last = text.partition("-")
    if not _is_number(first) or (dash and not _is_number(last)):
        return field.expected_form
    return _read_range(field, _parse_number(first), _parse_number(last) if dash else None)


def _read_steps(field: PatternField, text: str) -> range | str:
    """Return the values of `*/n`, from the minimum as in Graphile Worker for Node.

    For example, */2 days are 1, 3, 5.
    """
    if not _is_number(text) or _parse_number(text) == 0:
        return "a step of 1 or more after */"
    return range(field.minimum, field.maximum + 1, _parse_number(text))


def _read_range(field: PatternField, first: int, last: int | None) -> range | str:
    if last is not None and last <= first:
        return "a range whose end is larger than its beginning"
    if not field.contains(first) or (last is not None and not field.contains(last)):
        return field.expected
    return range(first, (first if last is None else last) + 1)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _parse_number(text: str) -> int:
    # Six digits are enough to find that a number is too large.
    return int(text.lstrip("0")[:6] or "0")


def format_pattern(pattern: CronPattern) -> str:
    """Format a pattern as five fields that every cron reads alike."""
    minute, hour, date, month, dow = FIELDS
    return " ".join(
        [
            _format_steps(minute, pattern.minutes) or _format_ranges(minute, pattern.minutes),
            _format_steps(hour, pattern.hours) or _format_ranges(hour, pattern.hours),
            # Without steps: other parsers combine days that start with * differently.
            _format_ranges(date, pattern.dates),
            _format_ranges(month, pattern.months),
            _format_ranges(dow, pattern.dows),
        ]
    )


def _format_steps(field: PatternField, values: frozenset[int]) -> str | None:
    """Format values in equal steps as */n, or return None."""
    for step in range(2, (field.maximum + 1) // 2 + 1):
        if values == {*range(field.minimum, field.maximum + 1, step)}:
            return f"*/{step}"
    return None


def _format_ranges(field: PatternField, values: frozenset[int]) -> str:
    """Format values as * or as ranges."""
    if len(values) == field.maximum - field.minimum + 1:
        return "*"
    ranges: list[list[int]] = []
    for value in sorted(values):
        if ranges and value == ranges[-1][-1] + 1:
            ranges[-1].append(value)
        else:
            ranges.append([value])
    return ",".join(str(each[0]) if len(each) == 1 else f"{each[0]}-{each[-1]}" for each in ranges)
