"""A clock that tests move by hand."""

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
