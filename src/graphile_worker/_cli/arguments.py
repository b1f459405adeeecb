"""Arguments of commands: numbers, lengths of time and moments, as people write them."""

import math
from datetime import datetime, timedelta
from typing import Any

import click

from graphile_worker._support.durations import parse_duration

POSITIVE_INT = click.IntRange(min=1)


class FactorParam(click.FloatRange):
    """A number that can be multiplied by, and not below 0."""

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> float:
        factor: float = super().convert(value, parameter, context)
        # No range keeps nan out, nor one without an end infinity.
        if not math.isfinite(factor):
            self.fail(f"expected a number such as 0.5, got {value!r}.", parameter, context)
        return factor


class DurationParam(click.ParamType):  # type: ignore[type-arg]  # generic in newer ones only
    """`10s`, `1m30s`."""

    name = "duration"

    def __init__(self, *, allows_zero: bool) -> None:
        self._allows_zero = allows_zero

    def convert(
        self, value: object, parameter: click.Parameter | None, context: click.Context | None
    ) -> timedelta:
        if isinstance(value, timedelta):
            return value
        span = parse_duration(str(value))
        if span is None or not (span or self._allows_zero):
            self.fail(f"expected a time such as 500ms, 2s or 1m30s, got {value!r}.")
        return span


class WhenParam(click.ParamType):  # type: ignore[type-arg]
    """A length of time from now on, or a moment with its zone."""

    name = "when"

    def convert(
        self, value: object, parameter: click.Parameter | None, context: click.Context | None
    ) -> datetime | timedelta:
        if isinstance(value, datetime | timedelta):
            return value
        if (span := parse_duration(str(value))) is not None:
            return span
        try:
            moment = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"expected 10m from now, or 2026-08-01T10:00Z, got {value!r}.")
        if moment.tzinfo is None:
            self.fail(f"{value} by which clock? Add a Z for UTC, or +02:00 and the like.")
        return moment


DURATION, POSITIVE_DURATION, WHEN = (
    DurationParam(allows_zero=True),
    DurationParam(allows_zero=False),
    WhenParam(),
)
FACTOR = FactorParam(min=0)
