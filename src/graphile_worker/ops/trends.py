"""Trends between snapshots: rates of added and completed jobs, and counts that grow."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from graphile_worker.ops.snapshot import Snapshot, TaskCount
from graphile_worker.ops.states import JobState

HISTORY_WINDOW = timedelta(minutes=15)

# Busy sessions report their counters about once a second: over a shorter time, rates would jump.
RATE_WINDOW = timedelta(seconds=10)
MIN_RATE_WINDOW = timedelta(milliseconds=500)


@dataclass(frozen=True, slots=True)
class Rates:
    """Jobs per second of all workers, from the counters of the table of jobs."""

    added: float
    completed: float

    @property
    def growth(self) -> float:
        """Jobs per second by which the backlog grows."""
        return self.added - self.completed


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """The counts of an earlier snapshot."""

    now: datetime
    rows_added: int
    rows_deleted: int
    tasks: Mapping[str, TaskCount]

    def count(self, identifier: str, *states: JobState) -> int:
        """Count the jobs of a task in these states."""
        task = self.tasks.get(identifier)
        return 0 if task is None else sum(task[state] for state in states)


class SnapshotHistory:
    """The last snapshot, and the counts of those of the last 15 minutes."""

    def __init__(self, first: Snapshot) -> None:
        self.last = first
        self._points: deque[HistoryPoint] = deque()
        self.add(first)

    def add(self, snapshot: Snapshot) -> None:
        """Add the newest snapshot."""
        self.last = snapshot
        tasks = {task.identifier: task for task in snapshot.tasks}
        self._points.append(_build_point(snapshot, tasks))
        self._remove_old_points()

    def add_counters(self, snapshot: Snapshot) -> None:
        """Add a snapshot of the counters, from after the last snapshot or before the first."""
        newest = self._points[-1]
        self._points.append(_build_point(snapshot, newest.tasks))
        if snapshot.now < newest.now:
            self._points = deque(sorted(self._points, key=lambda point: point.now))
        self._remove_old_points()

    @property
    def rates(self) -> Rates | None:
        """The rates of the last ten seconds, or None if there is only one snapshot."""
        last = self._points[-1]
        first = self._get_point_before(RATE_WINDOW)
        seconds = (last.now - first.now).total_seconds()
        added = last.rows_added - first.rows_added
        completed = last.rows_deleted - first.rows_deleted
        # A crash of the server resets the counters, and its clock may be set back.
        if seconds < MIN_RATE_WINDOW.total_seconds() or added < 0 or completed < 0:
            return None
        return Rates(added / seconds, completed / seconds)

    @property
    def seconds_until_drained(self) -> float | None:
        """Seconds until no job is ready at the current rates, or None if the backlog grows."""
        rates = self.rates
        if rates is None or rates.growth >= 0:
            return None
        return self.last.count(JobState.READY) / -rates.growth

    def completed_within(self, window: timedelta) -> int:
        """Count the jobs that were completed in the window, as far as the history reaches."""
        first = self._get_point_before(window)
        return max(0, self._points[-1].rows_deleted - first.rows_deleted)

    def growth(self, identifier: str, window: timedelta, *states: JobState) -> int:
        """Count by how much the jobs of a task in these states increased in the window."""
        before = self._get_point_before(window)
        return self._points[-1].count(identifier, *states) - before.count(identifier, *states)

    def was_running(self, identifier: str, window: timedelta) -> bool | None:
        """Check whether a job of the task was locked in the window.

        Returns:
            None if the history is shorter than the window and shows no locked job.
        """
        points = list(self._iter_points(window))
        if any(point.count(identifier, JobState.RUNNING, JobState.STALE) for point in points):
            return True
        is_long_enough = points[-1].now - points[0].now >= window * 0.9
        return False if is_long_enough else None

    def _remove_old_points(self) -> None:
        since = self._points[-1].now - HISTORY_WINDOW
        while self._points[0].now < since:
            self._points.popleft()

    def _iter_points(self, window: timedelta) -> Iterator[HistoryPoint]:
        since = self.last.now - window
        return (point for point in self._points if point.now >= since)

    def _get_point_before(self, window: timedelta) -> HistoryPoint:
        until = self._points[-1].now - window
        return next(
            (point for point in reversed(self._points) if point.now <= until), self._points[0]
        )


def _build_point(snapshot: Snapshot, tasks: Mapping[str, TaskCount]) -> HistoryPoint:
    server = snapshot.server
    return HistoryPoint(snapshot.now, server.rows_added, server.rows_deleted, tasks)
