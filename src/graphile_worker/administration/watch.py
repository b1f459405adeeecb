"""Watch: what changes from look to look; how fast jobs come and go, and what grows."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from graphile_worker.administration.snapshot import Snapshot, TaskCount
from graphile_worker.administration.states import State

# For so long it is remembered what was seen.
MEMORY = timedelta(minutes=15)

# Sessions that work tell the server about once a second what they did: over less, rates would jump.
RATE_WINDOW = timedelta(seconds=10)
SHORTEST = timedelta(milliseconds=500)


@dataclass(frozen=True, slots=True)
class Rates:
    """Jobs per second, by whatever worker, from the counters of the table."""

    added: float
    done: float

    @property
    def growth(self) -> float:
        return self.added - self.done


@dataclass(frozen=True, slots=True)
class Trace:
    """What is remembered of a look."""

    now: datetime
    added: int
    deleted: int
    tasks: Mapping[str, TaskCount]


class Watch:
    """The last look and traces of those before it; `add` each look as it comes."""

    def __init__(self, first: Snapshot) -> None:
        self.last = first
        self._traces: deque[Trace] = deque()
        self.add(first)

    def add(self, snapshot: Snapshot) -> None:
        self.last = snapshot
        self._traces.append(_trace(snapshot))
        while self._traces[0].now < snapshot.now - MEMORY:
            self._traces.popleft()

    def add_counters(self, snapshot: Snapshot) -> None:
        """What came after the last look, or before the first, of the counters alone."""
        self._traces.append(replace(_trace(snapshot), tasks=self._traces[-1].tasks))
        self._traces = deque(sorted(self._traces, key=lambda trace: trace.now))

    @property
    def rates(self) -> Rates | None:
        """How fast jobs come and go; None until that can be said."""
        last = self._traces[-1]
        first = self._before(RATE_WINDOW)
        seconds = (last.now - first.now).total_seconds()
        added, done = last.added - first.added, last.deleted - first.deleted
        # The counters begin anew after a crash, and the clock may be set.
        if seconds < SHORTEST.total_seconds() or added < 0 or done < 0:
            return None
        return Rates(added / seconds, done / seconds)

    @property
    def drains_in(self) -> float | None:
        """Seconds until nothing is ready if it goes on like this; None if it never ends so."""
        rates = self.rates
        if rates is None or rates.growth >= 0:
            return None
        return self.last.count(State.READY) / -rates.growth

    def done_within(self, span: timedelta) -> int:
        """How many jobs were done in that time, as far as it was watched."""
        return max(0, self._traces[-1].deleted - self._before(span).deleted)

    def growth(self, identifier: str, span: timedelta, *states: State) -> int:
        """How many more jobs of a task are in these states than so long ago, or than at first."""
        before = self._before(span).tasks.get(identifier)
        now = self._traces[-1].tasks.get(identifier)
        return sum(_count(now, state) - _count(before, state) for state in states)

    def was_running(self, identifier: str, span: timedelta) -> bool | None:
        """Was a job of that task locked at a look in that time? None if it was watched for less."""
        traces = list(self._within(span))
        tasks = [trace.tasks.get(identifier) for trace in traces]
        if any(task is not None and task.running for task in tasks):
            return True
        is_long_enough = traces[-1].now - traces[0].now >= span * 0.9
        return False if is_long_enough else None

    def _within(self, span: timedelta) -> Iterator[Trace]:
        since = self.last.now - span
        return (trace for trace in self._traces if trace.now >= since)

    def _before(self, span: timedelta) -> Trace:
        """The last trace that is at least so old, or the first that there is."""
        until = self._traces[-1].now - span
        found = self._traces[0]
        for trace in self._traces:
            if trace.now > until:
                break
            found = trace
        return found


def _trace(snapshot: Snapshot) -> Trace:
    tasks = {task.identifier: task for task in snapshot.tasks}
    return Trace(snapshot.now, snapshot.server.added, snapshot.server.deleted, tasks)


def _count(task: TaskCount | None, state: State) -> int:
    return 0 if task is None else task[state]
