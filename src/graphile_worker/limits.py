"""Limits: how many jobs of a task run at the same time, or start in a period, on all workers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from graphile_worker._support.durations import format_exact_duration
from graphile_worker.errors import ConfigurationError, JobSpecError
from graphile_worker.jobs import check_name

# A slot is a row that workers rent.
MAX_SLOTS = 10_000

# The shortest time between two starts, and the longest period.
MICROSECOND = timedelta(microseconds=1)
MAX_PERIOD = timedelta(days=366)
MAX_STARTS = 1_000_000_000
MAX_BURST = 1_000_000
# The longest time in which the starts of a burst are due, so that PostgreSQL can compute with it.
MAX_BURST_TIME = timedelta(days=36525)


@dataclass(frozen=True, slots=True)
class ConcurrencyLimit:
    """Limit how many jobs run at the same time on all Python workers of a database.

    `@app.task(limit=ConcurrencyLimit(20))`

    Args:
        slots: Number of jobs that run at the same time.
        name: Tasks with the same name share the limit (default: the task's identifier).

    Raises:
        ConfigurationError: `slots` is not a number from 1 to 10,000, or the name is not valid.
    """

    slots: int
    name: str | None = None

    def __post_init__(self) -> None:
        _check_number("slots", self.slots, MAX_SLOTS)
        _check_limit_name(self.name)

    def __str__(self) -> str:
        return f"{self.slots} at a time"


@dataclass(frozen=True, slots=True)
class RateLimit:
    """Limit how many jobs start in a period on all Python workers of a database.

    Each start counts, those of retries too. In any window of time, at most `rate * window + burst`
    jobs start, and as many more as the rate allows in 250 ms.

    `@app.task(limit=RateLimit(100, per=timedelta(minutes=1), burst=20, name="stripe"))`

    Args:
        starts: Number of starts in each period, at even intervals.
        per: The period.
        burst: Number of starts that may follow each other at once after a pause.
        name: Tasks with the same name share the limit (default: the task's identifier).

    Raises:
        ConfigurationError: A value is out of range, or the name is not valid.
    """

    starts: int
    per: timedelta
    burst: int = 1
    name: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.per, timedelta):
            raise ConfigurationError(f"per must be a timedelta, got {self.per!r}")
        if not MICROSECOND <= self.per <= MAX_PERIOD:
            raise ConfigurationError(f"per must be from 1 µs to 366 days, got {self.per}")
        # At least a microsecond between two starts, the resolution of PostgreSQL.
        _check_number("starts", self.starts, min(self.per // MICROSECOND, MAX_STARTS))
        longest = MAX_BURST_TIME // MICROSECOND * self.starts // (self.per // MICROSECOND)
        _check_number("burst", self.burst, min(longest, MAX_BURST))
        _check_limit_name(self.name)

    def __str__(self) -> str:
        burst = "" if self.burst == 1 else f", burst {self.burst}"
        return f"{self.starts} per {format_exact_duration(self.per)}{burst}"


Limit = ConcurrencyLimit | RateLimit


def list_limits(limit: object) -> tuple[Limit, ...]:
    """Return the limits of a task option, or raise ConfigurationError."""
    if limit is None:
        return ()
    limits = (limit,) if isinstance(limit, Limit) else limit
    if not isinstance(limits, Iterable) or isinstance(limits, str | bytes):
        limits = (limits,)
    chosen = tuple(limits)
    for each in chosen:
        if not isinstance(each, Limit):
            raise ConfigurationError(
                f"limit must be a ConcurrencyLimit, a RateLimit or several of them, got {each!r}"
            )
    names = [each.name for each in chosen]
    for name in names:
        if names.count(name) > 1:
            which = "without a name" if name is None else f"named {name!r}"
            raise ConfigurationError(
                f"a task has two limits {which}. Pass another name to one of them, with name=."
            )
    return chosen


def name_limits(limits: Sequence[Limit], identifier: str) -> tuple[Limit, ...]:
    """Return the limits of a task, each with its name: without one, it is that of the task."""
    return tuple(replace(each, name=each.name or identifier) for each in limits)


def check_definitions(limits: Mapping[str, Sequence[Limit]]) -> dict[str, Limit]:
    """Return the limits of these tasks by name.

    Raises:
        ConfigurationError: Two tasks define a limit of the same name differently.
    """
    known: dict[str, tuple[Limit, str]] = {}
    for task, chosen in limits.items():
        for limit in chosen:
            assert limit.name is not None
            other, other_task = known.setdefault(limit.name, (limit, task))
            if other != limit:
                raise ConfigurationError(
                    f"limit {limit.name!r} has two definitions: {other} in task {other_task!r}, "
                    f"{limit} in task {task!r}. Share one object, or choose another name."
                )
    return {name: limit for name, (limit, _) in known.items()}


def _check_number(what: str, value: object, maximum: int) -> None:
    if type(value) is not int:
        raise ConfigurationError(f"{what} must be an integer, got {value!r}")
    if not 1 <= value <= maximum:
        raise ConfigurationError(f"{what} must be from 1 to {maximum:,}, got {value:,}")


def _check_limit_name(name: object) -> None:
    if name is None:
        return
    if not isinstance(name, str) or not name:
        raise ConfigurationError(f"name of a limit must be a text, got {name!r}")
    try:
        check_name("name", name, 128, "GWBID")
    except JobSpecError as error:
        raise ConfigurationError(f"name of a limit: {error}") from error
