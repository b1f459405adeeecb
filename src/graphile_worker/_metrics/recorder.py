"""Recorder: the cells in which a process counts, without I/O.

A worker spends about 20 µs per job, so counting must cost less than one. Each task has one
cell with plain attributes. Exporters read the cells when they are asked.

The event loop and threads of tasks write, and the thread of an exporter reads. Reads copy, and a
value that is read while it changes is at most one observation old.
"""

import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from graphile_worker._metrics import definitions
from graphile_worker._metrics.definitions import (
    JOB_BUCKETS,
    OTHER_LABEL,
    AddMode,
    FetchResult,
    JobResult,
    Metric,
    WriteKind,
)
from graphile_worker._metrics.values import (
    Families,
    HistogramValue,
    Labels,
    Samples,
    add_shard,
    merge_families,
)

# Distinct values of a label. Further ones share one, so that a process cannot create an unlimited
# number of time series.
MAX_LABEL_VALUES = 100

# Longer values are cut, for example an identifier of a cron item.
MAX_LABEL_LENGTH = 128

# The largest lag of this time is reported: of the current and the previous half.
LAG_WINDOW_SECONDS = 60.0

RESULT_INDEX = {result: index for index, result in enumerate(JobResult)}
SUCCESS = RESULT_INDEX[JobResult.SUCCESS]
FIRST_BOUND = JOB_BUCKETS[0]

# All shards of a process share its event loop and its concurrency.
PROCESS_METRICS = (definitions.EVENT_LOOP_LAG, definitions.CONCURRENCY)

GaugeSource = Callable[[], Families]


class Histogram:
    """Counts of observations in fixed buckets."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def read(self) -> HistogramValue:
        return HistogramValue(tuple(self.counts), self.sum)


class TaskCell:
    """The counters and histograms of one task."""

    __slots__ = ("duration", "finished", "started", "wait")

    def __init__(self, duration: Histogram, wait: Histogram) -> None:
        self.started = 0
        # By RESULT_INDEX: an integer is a faster key than a member of an enumeration.
        self.finished = [0] * len(JobResult)
        self.duration = duration
        self.wait = wait

    def record_success(self, seconds: float) -> None:
        """Count a completed job. Written out, because this is called for nearly every job."""
        self.finished[SUCCESS] += 1
        duration = self.duration
        # The cost of counting matters only when jobs are this short.
        bucket = 0 if seconds <= FIRST_BOUND else bisect_left(JOB_BUCKETS, seconds)
        duration.counts[bucket] += 1
        duration.sum += seconds


class Recorder:
    """Counts the work of one process."""

    # Whether an instrumentor set it for all hooks. Then the recorder of an app takes precedence.
    is_automatic = False

    def __init__(self) -> None:
        # Whether each task has its own histograms, or all share one.
        self.has_task_histograms = True
        self._shared_duration = Histogram(JOB_BUCKETS)
        self._shared_wait = Histogram(JOB_BUCKETS)
        # By identifier, and by label: several identifiers may share a label.
        self._tasks: dict[str, TaskCell] = {}
        self._cells: dict[str, TaskCell] = {}
        self._task_labels = LabelSet()
        self._counters: dict[Metric, dict[Labels, float]] = {}
        self._histograms: dict[Metric, dict[Labels, Histogram]] = {}
        self._gauges: dict[Metric, dict[Labels, float]] = {}
        self._identifier_labels = LabelSet()
        self._gauge_sources: list[GaugeSource] = []
        # Threads add jobs too. Each has its own entries, because a fork could copy a lock in its
        # locked state.
        self._added: dict[tuple[str, str, int], int] = {}
        self._lag = LagWindow()
        self._shards: dict[str, Recorder] = {}

    # The hot path

    def get_cell(self, task_identifier: str) -> TaskCell:
        """Return the cell of a task, or the one of all further tasks beyond the limit."""
        cell = self._tasks.get(task_identifier)
        return cell if cell is not None else self._create_cell(task_identifier)

    def record_fetch(self, result: FetchResult, seconds: float) -> None:
        self.add(definitions.FETCHES, (result.value,))
        if result is not FetchResult.ERROR:
            self.observe(definitions.FETCH_DURATION, (), seconds)

    def record_write(self, kind: WriteKind, seconds: float) -> None:
        self.observe(definitions.WRITE_DURATION, (kind.value,), seconds)

    def record_added(self, identifiers: Iterable[str], mode: AddMode) -> None:
        thread_id = threading.get_ident()
        for identifier in identifiers:
            key = (self._task_labels.get(identifier), mode.value, thread_id)
            self._added[key] = self._added.get(key, 0) + 1

    # Everything else

    def register_tasks(self, identifiers: Iterable[str]) -> None:
        """Reserve labels for the tasks of a worker, before other names use them up."""
        for identifier in identifiers:
            self.get_cell(identifier)

    def share_histograms(self) -> None:
        """Let all tasks share their histograms from now on. Earlier observations are dropped."""
        self.has_task_histograms = False
        for cell in self._cells.copy().values():
            cell.duration, cell.wait = self._shared_duration, self._shared_wait
        for recorder in self._shards.copy().values():
            recorder.share_histograms()

    def add(self, metric: Metric, labels: Labels = (), amount: float = 1) -> None:
        """Increase a counter."""
        counters = self._counters.get(metric)
        if counters is None:
            counters = self._counters.setdefault(metric, {})
        counters[labels] = counters.get(labels, 0) + amount

    def observe(self, metric: Metric, labels: Labels, value: float) -> None:
        """Add an observation to a histogram."""
        histograms = self._histograms.get(metric)
        if histograms is None:
            histograms = self._histograms.setdefault(metric, {})
        histogram = histograms.get(labels)
        if histogram is None:
            histogram = histograms.setdefault(labels, Histogram(metric.buckets))
        histogram.observe(value)

    def set(self, metric: Metric, labels: Labels, value: float) -> None:
        """Set a gauge."""
        self._gauges.setdefault(metric, {})[labels] = value

    def get_task_label(self, identifier: str) -> str:
        return self._task_labels.get(identifier)

    def get_identifier_label(self, identifier: str) -> str:
        """Return the label of a cron item."""
        return self._identifier_labels.get(identifier)

    def record_lag(self, seconds: float) -> None:
        self._lag.add(seconds)

    def add_gauges(self, source: GaugeSource) -> None:
        """Read gauges from this function at each collection, until `remove_gauges`."""
        self._gauge_sources = [*self._gauge_sources, source]

    def remove_gauges(self, source: GaugeSource) -> None:
        self._gauge_sources = [each for each in self._gauge_sources if each != source]

    def get_shard(self, name: str) -> "Recorder":
        """Return the recorder of a shard, whose values `collect` includes with a label."""
        recorder = self._shards.get(name)
        if recorder is None:
            recorder = Recorder()
            recorder._lag = self._lag
            if not self.has_task_histograms:
                recorder.share_histograms()
            recorder = self._shards.setdefault(name, recorder)
        return recorder

    def collect(self) -> Families:
        """Return the current values. Any thread may call this."""
        families: Families = {}
        self._collect_tasks(families)
        added: dict[Labels, float] = defaultdict(float)
        for (task, mode, _), count in self._added.copy().items():
            added[task, mode] += count
        families[definitions.JOBS_ADDED] = dict(added)
        for metric, counters in self._counters.copy().items():
            families[metric] = dict(counters.copy())
        for metric, histograms in self._histograms.copy().items():
            families[metric] = {
                labels: histogram.read() for labels, histogram in histograms.copy().items()
            }
        for metric, gauges in self._gauges.copy().items():
            families[metric] = dict(gauges.copy())
        families[definitions.EVENT_LOOP_LAG] = {(): self._lag.maximum}
        return merge_families(
            [
                families,
                *(source() for source in self._gauge_sources),
                *(
                    add_shard(_drop_process_metrics(each.collect()), name)
                    for name, each in self._shards.copy().items()
                ),
            ]
        )

    def _create_cell(self, task_identifier: str) -> TaskCell:
        label = self._task_labels.get(task_identifier)
        cell = self._cells.get(label)
        if cell is None:
            if self.has_task_histograms:
                cell = TaskCell(Histogram(JOB_BUCKETS), Histogram(JOB_BUCKETS))
            else:
                cell = TaskCell(self._shared_duration, self._shared_wait)
            self._cells[label] = cell
        # A worker has few tasks, so an entry for each name beyond the limit takes little memory.
        self._tasks[task_identifier] = cell
        return cell

    def _collect_tasks(self, families: Families) -> None:
        started: Samples = families.setdefault(definitions.JOBS_STARTED, {})
        finished: Samples = families.setdefault(definitions.JOBS_FINISHED, {})
        durations: Samples = families.setdefault(definitions.JOB_DURATION, {})
        waits: Samples = families.setdefault(definitions.JOB_WAIT, {})
        for label, cell in self._cells.copy().items():
            started[label,] = cell.started
            # A counter that starts at 0 shows its first increase.
            for result, count in zip(JobResult, cell.finished, strict=True):
                finished[label, result.value] = count
            if self.has_task_histograms:
                durations[label,] = cell.duration.read()
                waits[label,] = cell.wait.read()
        if not self.has_task_histograms:
            durations["",] = self._shared_duration.read()
            waits["",] = self._shared_wait.read()


def _drop_process_metrics(families: Families) -> Families:
    return {
        metric: samples for metric, samples in families.items() if metric not in PROCESS_METRICS
    }


class LabelSet:
    """Bounds the number and the length of the values of a label."""

    def __init__(self) -> None:
        self._labels: dict[str, str] = {}

    def get(self, value: str) -> str:
        """Return the label of a value: the value itself, or one for all beyond the limit."""
        label = self._labels.get(value)
        if label is not None:
            return label
        if len(self._labels) >= MAX_LABEL_VALUES:
            return OTHER_LABEL
        # A lone surrogate cannot be encoded, so exporters would fail.
        label = value[:MAX_LABEL_LENGTH].encode("utf-8", "replace").decode()
        self._labels[value] = label
        return label


class LagWindow:
    """The largest lag of the last minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._half_ends_at = 0.0
        self._current = 0.0
        self._previous = 0.0

    def add(self, seconds: float) -> None:
        self._rotate()
        self._current = max(self._current, seconds)

    @property
    def maximum(self) -> float:
        """The maximum. Any thread may read it: only `add` changes the window."""
        late_seconds = self._clock() - self._half_ends_at
        if late_seconds >= LAG_WINDOW_SECONDS / 2:
            return 0.0
        return self._current if late_seconds >= 0 else max(self._current, self._previous)

    def _rotate(self) -> None:
        now, half = self._clock(), LAG_WINDOW_SECONDS / 2
        if now < self._half_ends_at:
            return
        is_adjacent = now < self._half_ends_at + half
        self._previous = self._current if is_adjacent else 0.0
        self._current = 0.0
        self._half_ends_at = now + half


def build_gauges(values: Mapping[Metric, float]) -> Families:
    """Build families of gauges without labels."""
    return {metric: {(): value} for metric, value in values.items()}
