"""A clock that tests move by hand, and delays that take no time."""

from types import ModuleType
from typing import Self

import pytest


class ManualClock:
    """Replaces the module `time`; its time changes only when a test changes `now`."""

    def __init__(self) -> None:
        self.now = 1000.0

    @classmethod
    def patch(cls, monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> Self:
        """A clock that these modules read."""
        clock = cls()
        for module in modules:
            monkeypatch.setattr(module, "time", clock)
        return clock

    def monotonic(self) -> float:
        return self.now


def skip_delays(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> list[int]:
    """Let the module retry without delay; the list gets the number of each failed attempt."""
    attempts: list[int] = []

    def delay_after(attempt: int, *longest: float) -> float:
        attempts.append(attempt)
        return 0

    monkeypatch.setattr(module, "compute_backoff", delay_after)
    return attempts
