"""The clock, which tests can replace."""

from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """A clock. Its time is aware and in UTC."""

    def now(self) -> datetime: ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)
