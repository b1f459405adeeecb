"""Metrics: instruments that read the cells of recorders, and the histograms of durations.

The names of the messaging conventions are literals, because their status is "development" and the
package with the constants changes them.
"""

import inspect
import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation

from graphile_worker._metrics import definitions
from graphile_worker._metrics.definitions import (
    JOB_BUCKETS,
    PREFIX,
    WORKER_METRICS,
    AddMode,
    Merge,
    Metric,
    MetricType,
)
from graphile_worker._metrics.recorder import LabelSet, Recorder
from graphile_worker._metrics.values import (
    Families,
    HistogramValue,
    Labels,
    merge_families,
    name_labels,
)

SYSTEM = "graphile_worker"

# The value of `error.type` for all classes of errors beyond the limit.
OTHER_ERROR = "_OTHER"
MAX_ERROR_TYPES = 32

# The units of metrics by the suffix of their names.
UNITS = {"_seconds": "s", "_bytes": "By", "_ratio": "1"}

# The values of a collection are read once, and all instruments observe them. An older reading is
# from a collection that has ended.
MAX_READING_SECONDS = 1.0

ADD_OPERATIONS = {
    AddMode.SINGLE.value: "add_job",
    AddMode.BATCH.value: "add_jobs",
    AddMode.CRON.value: "cron",
}

Attributes = dict[str, str]
AttributeBuilder = Callable[[Metric, Labels], Attributes]


class MetricExporter:
    """The instruments of one meter, which observe the sum of all attached recorders.

    An SDK ignores an instrument that is created twice, with its callbacks. So each meter provider
    has one exporter, and callbacks read the recorders that are attached at the time.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._recorders: tuple[Recorder, ...] = ()
        self._reading: Families = {}
        self._read_at = -math.inf
        self._observed: set[Metric] = set()
        self._durations: Durations | None = None
        for metric in WORKER_METRICS:
            self._create_instrument(metric)

    def attach(self, recorder: Recorder) -> None:
        if recorder not in self._recorders:
            self._recorders = (*self._recorders, recorder)

    def detach(self, recorder: Recorder) -> None:
        self._recorders = tuple(each for each in self._recorders if each is not recorder)

    def get_durations(self) -> "Durations":
        """Return the histograms, created at the first call."""
        if self._durations is None:
            self._durations = Durations(self._meter)
        return self._durations

    def _create_instrument(self, metric: Metric) -> None:
        match metric:
            # Only a synchronous instrument can be a histogram.
            case Metric(type=MetricType.HISTOGRAM):
                return
            case definitions.JOBS_ADDED:
                name, unit, build = "messaging.client.sent.messages", "{message}", _build_sent
            case definitions.JOBS_STARTED:
                name, unit = "messaging.client.consumed.messages", "{message}"
                build = _build_consumed
            case _:
                name, unit = derive_name(metric)
                build = _build_labels
        create = self._choose_kind(metric)
        create(name, [self._build_callback(metric, build)], unit, metric.help)

    def _choose_kind(self, metric: Metric) -> Callable[..., object]:
        if metric.type is MetricType.COUNTER:
            return self._meter.create_observable_counter
        # Values whose sum over processes is useful are not gauges in OpenTelemetry.
        if metric.merge is Merge.SUM:
            return self._meter.create_observable_up_down_counter
        return self._meter.create_observable_gauge

    def _build_callback(
        self, metric: Metric, build: AttributeBuilder
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(options: CallbackOptions) -> Iterator[Observation]:
            for labels, value in self._read(metric).get(metric, {}).items():
                if not isinstance(value, HistogramValue) and math.isfinite(value):
                    yield Observation(value, build(metric, labels))

        return observe

    def _read(self, metric: Metric) -> Families:
        """Return the values of the current collection, which asks once for each metric.

        Without a lock, which a fork could copy in its locked state: at worst, two readers in
        threads read twice.
        """
        now = time.monotonic()
        if metric in self._observed or now - self._read_at > MAX_READING_SECONDS:
            self._reading = merge_families(each.collect() for each in self._recorders)
            self._read_at = now
            self._observed = set()
        self._observed.add(metric)
        return self._reading


class Durations:
    """The two histograms of the messaging conventions."""

    def __init__(self, meter: Meter) -> None:
        self._process = _create_histogram(
            meter, "messaging.process.duration", "Run time of the task of a job."
        )
        self._operation = _create_histogram(
            meter, "messaging.client.operation.duration", "Duration of a call that adds jobs."
        )
        self._processed_tasks = LabelSet()
        # Clients may add jobs of any name, which must not use up the labels of tasks that run.
        self._sent_tasks = LabelSet()
        self._errors: set[str] = set()

    def record_process(self, task: str, seconds: float, error_type: str | None) -> None:
        attributes = _build_operation("process")
        attributes["messaging.destination.name"] = self._processed_tasks.get(task)
        self._add_error_type(attributes, error_type)
        self._process.record(seconds, attributes)

    def record_send(
        self, operation: str, task: str | None, seconds: float, error_type: str | None
    ) -> None:
        """Record how long it took to add jobs: of one task, or of None if there are several."""
        attributes = _build_operation(operation)
        attributes["messaging.operation.type"] = "send"
        if task is not None:
            attributes["messaging.destination.name"] = self._sent_tasks.get(task)
        self._add_error_type(attributes, error_type)
        self._operation.record(seconds, attributes)

    def _add_error_type(self, attributes: Attributes, error_type: str | None) -> None:
        if error_type is None:
            return
        if error_type not in self._errors:
            if len(self._errors) >= MAX_ERROR_TYPES:
                error_type = OTHER_ERROR
            else:
                self._errors.add(error_type)
        attributes["error.type"] = error_type


_exporters: WeakKeyDictionary[MeterProvider, MetricExporter] = WeakKeyDictionary()


def get_exporter(version: str, provider: MeterProvider | None) -> MetricExporter:
    """Return the exporter of a provider (default: the global one), created at the first call."""
    current = metrics.get_meter_provider()
    if provider is None:
        provider = current
    if provider is current:
        _follow_global_provider(current)
    exporter = _exporters.get(provider)
    if exporter is None:
        exporter = _exporters[provider] = MetricExporter(
            metrics.get_meter("graphile_worker", version, provider)
        )
    return exporter


def detach_recorder(recorder: Recorder, *, keep: MetricExporter | None = None) -> None:
    """Detach a recorder from all exporters but one."""
    for exporter in list(_exporters.values()):
        if exporter is not keep:
            exporter.detach(recorder)


def derive_name(metric: Metric) -> tuple[str, str]:
    """Return the name of an instrument and its unit.

    A collector that writes Prometheus's format derives the name of the metric from these again.
    """
    name = metric.name.removeprefix(PREFIX).removesuffix("_total")
    unit = ""
    for suffix, of_suffix in UNITS.items():
        if name.endswith(suffix):
            name, unit = name.removesuffix(suffix), of_suffix
    return f"{SYSTEM}.{name.replace('_', '.')}", unit


def _follow_global_provider(current: MeterProvider) -> None:
    """Keep the exporter of the API's placeholder when the program sets its provider.

    The API creates the instruments of the placeholder again with that provider.
    """
    for provider in list(_exporters):
        if provider is not current and type(provider).__name__ == "_ProxyMeterProvider":
            _exporters.setdefault(current, _exporters.pop(provider))


def _create_histogram(meter: Meter, name: str, description: str) -> metrics.Histogram:
    options: dict[str, Any] = {}
    # Since 1.30. Before, a view sets the buckets.
    option = "explicit_bucket_boundaries_advisory"
    if option in inspect.signature(meter.create_histogram).parameters:
        options[option] = JOB_BUCKETS
    return meter.create_histogram(name, "s", description, **options)


def _build_operation(name: str) -> Attributes:
    return {"messaging.system": SYSTEM, "messaging.operation.name": name}


def _build_sent(metric: Metric, labels: Labels) -> Attributes:
    named = _build_labels(metric, labels)
    operation, task = _build_operation(ADD_OPERATIONS[named.pop("mode")]), named.pop("task", "")
    return {**operation, "messaging.destination.name": task, **named}


def _build_consumed(metric: Metric, labels: Labels) -> Attributes:
    named = _build_labels(metric, labels)
    task = named.pop("task", "")
    return {**_build_operation("get_jobs"), "messaging.destination.name": task, **named}


def _build_labels(metric: Metric, labels: Labels) -> Attributes:
    return dict(name_labels(metric, labels))
