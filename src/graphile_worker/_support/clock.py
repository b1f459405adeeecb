"""What time is it? A value that tests can replace."""

from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Tells the time, always aware and in UTC."""

    def now(self) -> datetime: ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)
