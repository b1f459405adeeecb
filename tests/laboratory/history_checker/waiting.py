"""Jobs that wait, in the order in which workers take them."""

from collections.abc import Callable
from heapq import heappop, heappush

from tests.laboratory.history_checker.history import JobRow

# Priority, time and id: jobs are claimed in this order.
Position = tuple[int, float, int]

# The number of jobs that may be skipped because they are not ready yet.
_MAX_SKIPPED = 20


def is_at(row: JobRow, position: Position) -> bool:
    """Return whether a job waits at this position."""
    return row.is_available and (row.priority, row.run_at) == position[:2]


class WaitingJobs:
    """The jobs of one named queue, or of none, best first."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[Position] = []

    def add(self, row: JobRow) -> None:
        heappush(self._heap, (row.priority, row.run_at, row.id))

    def best_before(
        self, bound: Position, is_ready: Callable[[Position], bool | None]
    ) -> Position | None:
        """Return the best position that is ready, if it comes before the bound.

        Where `is_ready` returns None, the job does not wait there any more: it is forgotten.
        """
        skipped: list[Position] = []
        found = None
        while self._heap and self._heap[0] < bound and len(skipped) < _MAX_SKIPPED:
            position = self._heap[0]
            ready = is_ready(position)
            if ready:
                found = position
                break
            heappop(self._heap)
            if ready is False:
                skipped.append(position)
        for position in skipped:
            heappush(self._heap, position)
        return found
