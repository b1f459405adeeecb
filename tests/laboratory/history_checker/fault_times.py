"""When processes were killed, and when the server was unreachable."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable

from tests.laboratory.history_checker.history import Fault


class FaultTimes:
    """The faults of a run, by time."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        # Per process, in order.
        self.kills: dict[str, list[float]] = defaultdict(list)
        # When the server was back after each of its faults.
        self.server_returns: list[float] = []
        self._starts: list[float] = []
        # Until when all faults that had begun by then were over.
        self._ends: list[float] = []
        for fault in sorted(faults, key=lambda fault: fault.at):
            if fault.kind == "SIGKILL" and fault.process is not None:
                self.kills[fault.process].append(fault.at)
            if fault.process is None and fault.until is not None:
                self.server_returns.append(fault.until)
                self._starts.append(fault.at)
                self._ends.append(max(fault.until, self._ends[-1] if self._ends else fault.until))

    def over_at(self, at: float) -> float:
        """Return when all faults of the server that began before this time were over."""
        which = bisect_right(self._starts, at) - 1
        return self._ends[which] if which >= 0 else 0.0

    def killed_after(self, process: str, at: float) -> float:
        """Return when a process was killed next; the same time if it was not."""
        kills = self.kills.get(process, ())
        which = bisect_left(kills, at)
        return kills[which] if which < len(kills) else at
