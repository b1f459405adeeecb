"""Arguments of commands: numbers, lengths of time and moments, as people write them."""

import math
from datetime import datetime, timedelta
from typing import Any

import click

from graphile_worker.durations import read_duration

AT_LEAST_1 = click.IntRange(min=1)


class Factor(click.FloatRange):
    """A number that can be multiplied by, and not below 0."""

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> float:
        factor: float = super().convert(value, parameter, context)
        # No range keeps nan out, nor one without an end infinity.
        if not math.isfinite(factor):
            self.fail(f"expected a number such as 0.5, got {value!r}.", parameter, context)
        return factor


class Span(click.ParamType):  # type: ignore[type-arg]  # generic in newer ones only
    """`10s`, `1m30s`."""

    name = "duration"

    def __init__(self, *, may_be_none: bool) -> None:
        self._may_be_none = may_be_none

    def convert(
        self, value: object, parameter: click.Parameter | None, context: click.Context | None
    ) -> timedelta:
        if isinstance(value, timedelta):
            return value
        span = read_duration(str(value))
        if span is None or not (span or self._may_be_none):
            self.fail(f"expected a time such as 500ms, 2s or 1m30s, got {value!r}.")
        return span


class When(click.ParamType):  # type: ignore[type-arg]
    """A length of time from now on, or a moment with its zone."""

    name = "when"

    def convert(
        self, value: object, parameter: click.Parameter | None, context: click.Context | None
    ) -> datetime | timedelta:
        if isinstance(value, datetime | timedelta):
            return value
        if (span := read_duration(str(value))) is not None:
            return span
        try:
            moment = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"expected 10m from now, or 2026-08-01T10:00Z, got {value!r}.")
        if moment.tzinfo is None:
            self.fail(f"{value} by which clock? Add a Z for UTC, or +02:00 and the like.")
        return moment


SPAN, SOME_TIME, WHEN = Span(may_be_none=True), Span(may_be_none=False), When()
FACTOR = Factor(min=0)
