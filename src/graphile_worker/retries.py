"""Outcomes that a task can raise, and Backoff: the delay before the next attempt."""

import copyreg
import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from graphile_worker.errors import ConfigurationError

# The first line of a batch error, as in Graphile Worker for Node. Those of its items follow.
BATCH_FAILURES = "Batch failures:"


class JobOutcomeException(Exception):
    """Base class of the outcomes that a task can raise. A task that returns succeeds."""

    reason: str | None

    def __reduce__(self) -> tuple[Any, ...]:
        # The message does not match the arguments of the constructor.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class Retry(JobOutcomeException):
    """Fail this attempt and retry the job.

    Args:
        delay: Delay or time of the next attempt (default: the backoff of the task).
        reason: Text for `last_error`.
    """

    def __init__(
        self, delay: datetime | timedelta | None = None, *, reason: str | None = None
    ) -> None:
        self.delay = None if delay is None else _check_delay(delay)
        self.reason = reason
        super().__init__(reason or "the task requested a retry")


class PartialFailure(JobOutcomeException):
    """Retry only some items of a batch.

    Args:
        errors: The error of each failed item by its index.

    Attributes:
        reason: Always None. The errors of the items are written to `last_error`.
    """

    def __init__(self, errors: Mapping[int, BaseException]) -> None:
        if not isinstance(errors, Mapping):
            raise ConfigurationError(
                f"PartialFailure takes errors by the index of their item, got {errors!r}"
            )
        for index, error in errors.items():
            if isinstance(index, bool) or not isinstance(index, int):
                raise ConfigurationError(f"PartialFailure takes indexes of items, got {index!r}")
            if not isinstance(error, BaseException):
                raise ConfigurationError(
                    f"PartialFailure takes an exception for item {index}, got {error!r}. "
                    f"Write ValueError({error!r})."
                )
        self.errors = dict(sorted(errors.items()))
        self.reason = None
        super().__init__(self.errors)

    def __str__(self) -> str:
        return "\n".join([BATCH_FAILURES, *map(_format_message, self.errors.values())])


class Snooze(JobOutcomeException):
    """Run the job again later without counting this attempt.

    Args:
        delay: Delay or time of the next run.
        reason: Text for the log.
    """

    def __init__(self, delay: datetime | timedelta, *, reason: str | None = None) -> None:
        self.delay = _check_delay(delay)
        self.reason = reason
        super().__init__(reason or "snoozed")


class Discard(JobOutcomeException):
    """Fail the job permanently.

    Args:
        reason: Text for `last_error`.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delay after attempt n: `base` times `factor` to the power of n - 1, at most `max`.

    Args:
        base: Delay after the first attempt.
        factor: Growth from one attempt to the next.
        max: Longest delay.
        jitter: Random share by which the delay varies, from 0 to 1.
        retry_on: Errors to retry.
        give_up_on: Errors that fail the job permanently.
    """

    base: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    max: timedelta = timedelta(hours=1)
    jitter: float = 0.1
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    give_up_on: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        for name in ("base", "max"):
            value = getattr(self, name)
            if not isinstance(value, timedelta) or value < timedelta(0):
                raise ConfigurationError(f"Backoff.{name} must be a timedelta, got {value!r}")
        if not self.factor >= 1:
            raise ConfigurationError(f"Backoff.factor must be at least 1, got {self.factor}")
        if not 0 <= self.jitter <= 1:
            raise ConfigurationError(f"Backoff.jitter must be from 0 to 1, got {self.jitter}")

    def delay(self, error: BaseException, attempts: int) -> timedelta | None:
        """Compute the delay before the next attempt.

        Args:
            error: The error of the attempt.
            attempts: Number of attempts so far.

        Returns:
            The delay, or None to fail the job permanently.
        """
        # One item of a batch that can be retried is enough.
        errors = error.errors.values() if isinstance(error, PartialFailure) else [error]
        if all(self._is_permanent(each) for each in errors):
            return None
        spread = 1 + self.jitter * (2 * random.random() - 1)
        try:
            return min(min(self._compute_delay(attempts), self.max) * spread, self.max)
        except OverflowError:
            return self.max

    def _is_permanent(self, error: BaseException) -> bool:
        return isinstance(error, self.give_up_on) or not isinstance(error, self.retry_on)

    def _compute_delay(self, attempts: int) -> timedelta:
        return self.base * self.factor ** (attempts - 1) if self.base else self.base


def _format_message(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except BaseException:
        return type(error).__name__


def _check_delay(delay: datetime | timedelta) -> datetime | timedelta:
    """Return the delay if it ends in the range of Python's calendar."""
    try:
        if isinstance(delay, timedelta):
            datetime.now(UTC) + delay
            return delay
        if isinstance(delay, datetime) and delay.utcoffset() is not None:
            delay.astimezone(UTC)
            return delay
    except OverflowError:
        raise ConfigurationError(f"delay ends before year 1 or after 9999: {delay!r}") from None
    raise ConfigurationError(f"delay must be a timedelta or an aware datetime, got {delay!r}")
