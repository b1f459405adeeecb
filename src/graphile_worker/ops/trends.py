"""Watch: what changes from look to look; how fast jobs come and go, and what grows."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from graphile_worker.ops.snapshot import Snapshot, TaskCount
from graphile_worker.ops.states import JobState

# For so long it is remembered what was seen.
HISTORY_WINDOW = timedelta(minutes=15)

# Sessions that work tell the server about once a second what they did: over less, rates would jump.
RATE_WINDOW = timedelta(seconds=10)
MIN_RATE_WINDOW = timedelta(milliseconds=500)


@dataclass(frozen=True, slots=True)
class Rates:
    """Jobs per second, by whatever worker, from the counters of the table."""

    added: float
    completed: float

    @property
    def growth(self) -> float:
        return self.added - self.completed


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """What is remembered of a look."""

    now: datetime
    rows_added: int
    rows_deleted: int
    tasks: Mapping[str, TaskCount]


class SnapshotHistory:
    """The last look and traces of those before it; `add` each look as it comes."""

    def __init__(self, first: Snapshot) -> None:
        self.last = first
        self._points: deque[HistoryPoint] = deque()
        self.add(first)

    def add(self, snapshot: Snapshot) -> None:
        self.last = snapshot
        self._points.append(_build_point(snapshot))
        while self._points[0].now < snapshot.now - HISTORY_WINDOW:
            self._points.popleft()

    def add_counters(self, snapshot: Snapshot) -> None:
        """What came after the last look, or before the first, of the counters alone."""
        self._points.append(replace(_build_point(snapshot), tasks=self._points[-1].tasks))
        self._points = deque(sorted(self._points, key=lambda trace: trace.now))

    @property
    def rates(self) -> Rates | None:
        """How fast jobs come and go; None until that can be said."""
        last = self._points[-1]
        first = self._point_before(RATE_WINDOW)
        seconds = (last.now - first.now).total_seconds()
        added, done = last.rows_added - first.rows_added, last.rows_deleted - first.rows_deleted
        # The counters begin anew after a crash, and the clock may be set.
        if seconds < MIN_RATE_WINDOW.total_seconds() or added < 0 or done < 0:
            return None
        return Rates(added / seconds, done / seconds)

    @property
    def seconds_until_drained(self) -> float | None:
        """Seconds until nothing is ready if it goes on like this; None if it never ends so."""
        rates = self.rates
        if rates is None or rates.growth >= 0:
            return None
        return self.last.count(JobState.READY) / -rates.growth

    def completed_within(self, span: timedelta) -> int:
        """How many jobs were done in that time, as far as it was watched."""
        return max(0, self._points[-1].rows_deleted - self._point_before(span).rows_deleted)

    def growth(self, identifier: str, span: timedelta, *states: JobState) -> int:
        """How many more jobs of a task are in these states than so long ago, or than at first."""
        before = self._point_before(span).tasks.get(identifier)
        now = self._points[-1].tasks.get(identifier)
        return sum(_count_in_state(now, state) - _count_in_state(before, state) for state in states)

    def was_running(self, identifier: str, span: timedelta) -> bool | None:
        """Was a job of that task locked at a look in that time? None if it was watched for less."""
        traces = list(self._points_within(span))
        tasks = [trace.tasks.get(identifier) for trace in traces]
        if any(task is not None and task.running for task in tasks):
            return True
        is_long_enough = traces[-1].now - traces[0].now >= span * 0.9
        return False if is_long_enough else None

    def _points_within(self, span: timedelta) -> Iterator[HistoryPoint]:
        since = self.last.now - span
        return (trace for trace in self._points if trace.now >= since)

    def _point_before(self, span: timedelta) -> HistoryPoint:
        """The last trace that is at least so old, or the first that there is."""
        until = self._points[-1].now - span
        found = self._points[0]
        for trace in self._points:
            if trace.now > until:
                break
            found = trace
        return found


def _build_point(snapshot: Snapshot) -> HistoryPoint:
    tasks = {task.identifier: task for task in snapshot.tasks}
    return HistoryPoint(
        snapshot.now, snapshot.server.rows_added, snapshot.server.rows_deleted, tasks
    )


def _count_in_state(task: TaskCount | None, state: JobState) -> int:
    return 0 if task is None else task[state]
