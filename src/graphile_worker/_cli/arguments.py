"""Parameter types of the command: factors, durations and times."""

import math
from datetime import datetime, timedelta
from typing import Any

import click

from graphile_worker._support.durations import parse_duration

POSITIVE_INT = click.IntRange(min=1)


class FactorParam(click.FloatRange):
    """A finite number of at least 0."""

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> float:
        factor: float = super().convert(value, parameter, context)
        # A range without a maximum accepts nan and infinity.
        if not math.isfinite(factor):
            self.fail(f"expected a number, for example 0.5, got {value!r}.", parameter, context)
        return factor


class DurationParam(click.ParamType):  # type: ignore[type-arg]  # generic in newer click only
    """A duration with units, for example `10s` or `1m30s`."""

    name = "duration"

    def __init__(self, *, allows_zero: bool) -> None:
        self._allows_zero = allows_zero

    def convert(
        self, value: object, parameter: click.Parameter | None, context: click.Context | None
    ) -> timedelta:
        if isinstance(value, timedelta):
            return value
        duration = parse_duration(str(value))
        if duration is None or not (duration or self._allows_zero):
            self.fail(f"expected a duration, for example 500ms, 2s or 1m30s, got {value!r}.")
        return duration


class WhenParam(click.ParamType):  # type: ignore[type-arg]
    """A duration from now, or a time with its zone."""

    name = "when"

    def convert(
        self, value: object, parameter: click.Parameter | None, context: click.Context | None
    ) -> datetime | timedelta:
        if isinstance(value, datetime | timedelta):
            return value
        if (duration := parse_duration(str(value))) is not None:
            return duration
        try:
            time = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(
                f"expected a delay or a time, for example 10m or 2026-08-01T10:00Z, got {value!r}."
            )
        if time.tzinfo is None:
            self.fail(f"{value} has no time zone. Add Z for UTC, or an offset, for example +02:00.")
        return time


DURATION = DurationParam(allows_zero=True)
POSITIVE_DURATION = DurationParam(allows_zero=False)
WHEN = WhenParam()
FACTOR = FactorParam(min=0)

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
