"""Metrics of OpenTelemetry: the SDK reads the cells of real workers and clients."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    Gauge,
    HistogramDataPoint,
    InMemoryMetricReader,
    Metric,
    Sum,
)

from graphile_worker import App, Discard, Hooks, JobSpec, JobSpecError, Snooze, parse_crontab
from graphile_worker._cron.scheduler import CronScheduler
from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._metrics import definitions
from graphile_worker._metrics.definitions import (
    JOB_BUCKETS,
    OTHER_LABEL,
    WORKER_METRICS,
    AddMode,
    MetricType,
)
from graphile_worker._metrics.recorder import MAX_LABEL_LENGTH, MAX_LABEL_VALUES
from graphile_worker._sql.identifiers import Schemas
from graphile_worker.contrib.opentelemetry import instrument
from graphile_worker.contrib.opentelemetry._metrics import (
    MAX_ERROR_TYPES,
    Durations,
    derive_name,
)
from tests.conftest import TestDatabase
from tests.integrations.conftest import Run
from tests.support.hostile import HOSTILE_NAMES

pytestmark = pytest.mark.single_version

SENT = "messaging.client.sent.messages"
CONSUMED = "messaging.client.consumed.messages"
PROCESS_DURATION = "messaging.process.duration"
OPERATION_DURATION = "messaging.client.operation.duration"
FINISHED = "graphile_worker.jobs.finished"


class Exported:
    """A meter provider, and what it exports when it is asked."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader], shutdown_on_exit=False)

    def read(self) -> dict[str, Metric]:
        """Return one collection by the names of the instruments."""
        data = self._reader.get_metrics_data()
        resources = data.resource_metrics if data is not None else []
        found = [
            metric
            for resource in resources
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]
        assert len({metric.name for metric in found}) == len(found)
        return {metric.name: metric for metric in found}

    def points(self, name: str) -> dict[tuple[Any, ...], float]:
        """Return the values of an instrument that are not 0, by the values of the attributes."""
        points: Any = metric.data.data_points if (metric := self.read().get(name)) else []
        return {
            tuple(point.attributes.values()): point.value for point in points if point.value != 0
        }

    def histogram(self, name: str) -> list[HistogramDataPoint]:
        metric = self.read().get(name)
        points: Any = metric.data.data_points if metric else []
        return list(points)


@pytest.fixture
def exported() -> Iterator[Exported]:
    exported = Exported()
    yield exported
    exported.provider.shutdown()


class Outcomes:
    """Tasks that succeed, fail, snooze and discard."""

    def __init__(self, app: App[None]) -> None:
        app.task(name="succeed")(self.succeed)
        app.task(name="fail", max_attempts=1)(self.fail)
        app.task(name="snooze")(self.snooze)
        app.task(name="discard")(self.discard)

    async def succeed(self) -> None: ...

    def fail(self) -> None:
        raise ValueError

    async def snooze(self) -> None:
        raise Snooze(timedelta(hours=1))

    async def discard(self) -> None:
        raise Discard("unknown")


async def test_counters_agree_with_the_jobs_that_a_worker_ran(
    app: App[None], database: TestDatabase, run: Run, exported: Exported
) -> None:
    instrument(app, meter_provider=exported.provider)
    Outcomes(app)
    own = PsycopgDatabase(database.dsn, Schemas.from_names(database.schema))

    await app.aadd_job("succeed")
    await asyncio.to_thread(app.add_job, "succeed")
    names = ["succeed", "fail", "snooze", "discard"]
    await app.aadd_jobs([JobSpec(name) for name in names])
    await run()
    # The worker registered a counter of schedules, which stays with the hooks.
    items = parse_crontab("* * * * * succeed ?id=nightly")
    await CronScheduler(own, lambda: items, app.hooks).tick(datetime(2024, 2, 29, tzinfo=UTC))
    await own.close()
    await run()

    system = "graphile_worker"
    assert exported.points(SENT) == {
        (system, "add_job", "succeed"): 2,
        **{(system, "add_jobs", name): 1 for name in names},
        (system, "cron", "succeed"): 1,
    }
    assert exported.points(CONSUMED) == {
        (system, "get_jobs", "succeed"): 4,
        **{(system, "get_jobs", name): 1 for name in names[1:]},
    }
    assert exported.points(FINISHED) == {
        ("succeed", "success"): 4,
        ("fail", "failed"): 1,
        ("snooze", "snoozed"): 1,
        ("discard", "failed"): 1,
    }
    assert exported.points("graphile_worker.cron.added") == {("nightly",): 1}


async def test_gauges_exist_while_the_worker_runs(
    app: App[None], run: Run, exported: Exported
) -> None:
    instrument(app, meter_provider=exported.provider)
    seen: dict[str, Metric] = {}

    @app.task
    async def greet() -> None:
        seen.update(exported.read())

    await greet.aenqueue()
    await run()

    running = seen["graphile_worker.jobs.running"]
    assert isinstance(running.data, Sum)
    assert not running.data.is_monotonic
    assert [point.value for point in running.data.data_points] == [1]
    age = seen["graphile_worker.heartbeat.age"]
    assert isinstance(age.data, Gauge)
    assert age.unit == "s"
    assert "graphile_worker.info" in seen
    assert "graphile_worker.jobs.running" not in exported.read()


def test_every_counter_and_gauge_of_a_worker_has_an_instrument(exported: Exported) -> None:
    hooks = Hooks()
    instrument(hooks, meter_provider=exported.provider)
    recorder = hooks._enable_metrics()
    for metric in WORKER_METRICS:
        # Values of the labels that some metrics check.
        labels = tuple("single" if label == "mode" else label for label in metric.labels)
        if metric.type is MetricType.COUNTER:
            recorder.add(metric, labels, 7)
        elif metric.type is MetricType.GAUGE:
            recorder.set(metric, labels, 7)
    recorder.get_cell("task").started = 7

    found = exported.read()

    expected = [metric for metric in WORKER_METRICS if metric.type is not MetricType.HISTOGRAM]
    assert len(found) == len(expected)
    for metric in expected:
        names = {definitions.JOBS_ADDED: SENT, definitions.JOBS_STARTED: CONSUMED}
        name = names.get(metric) or derive_name(metric)[0]
        data: Any = found[name].data
        is_counter = isinstance(data, Sum) and data.is_monotonic
        assert is_counter == (metric.type is MetricType.COUNTER), name
        assert found[name].description == metric.help
        assert 7 in [point.value for point in data.data_points] or name.endswith("lag"), name


def test_names_and_units_become_the_names_of_prometheus_again() -> None:
    suffixes = {"s": "_seconds", "By": "_bytes", "1": "_ratio", "": ""}
    for metric in definitions.METRICS_BY_NAME.values():
        name, unit = derive_name(metric)
        total = "_total" if metric.type is MetricType.COUNTER else ""
        assert name.replace(".", "_") + suffixes[unit] + total == metric.name


def test_values_that_are_not_finite_are_left_out(
    exported: Exported, caplog: pytest.LogCaptureFixture
) -> None:
    hooks = Hooks()
    instrument(hooks, meter_provider=exported.provider)
    hooks._enable_metrics().set(definitions.HEARTBEAT_AGE, (), float("inf"))

    assert "graphile_worker.heartbeat.age" not in exported.read()
    assert caplog.records == []


def test_hostile_names_are_exported_and_bounded(exported: Exported) -> None:
    hooks = Hooks()
    instrument(hooks, meter_provider=exported.provider, metrics="histograms")
    recorder = hooks._enable_metrics()
    durations = Durations(exported.provider.get_meter("test"))

    names = [*HOSTILE_NAMES, *(f"task {number}" for number in range(120))]
    for number, name in enumerate(names):
        recorder.record_added([name], AddMode.SINGLE)
        recorder.get_cell(name).started += 1
        durations.record_process(name, 0.1, f"Error{number}")

    for instrument_name in (SENT, CONSUMED, PROCESS_DURATION):
        points: Any = exported.read()[instrument_name].data.data_points
        labels = {point.attributes["messaging.destination.name"] for point in points}
        assert len(labels) == MAX_LABEL_VALUES + 1
        assert OTHER_LABEL in labels
        assert max(map(len, labels)) <= MAX_LABEL_LENGTH
        assert all(label.encode() for label in labels)
    points = exported.histogram(PROCESS_DURATION)
    kinds = {point.attributes["error.type"] for point in points}
    assert len(kinds) == MAX_ERROR_TYPES + 1
    assert "_OTHER" in kinds


# Histograms


async def test_durations_are_recorded_only_on_request(
    app: App[None], run: Run, exported: Exported
) -> None:
    instrument(app, meter_provider=exported.provider)
    Outcomes(app)

    await app.aadd_job("succeed")
    await run()

    assert {PROCESS_DURATION, OPERATION_DURATION} & exported.read().keys() == set()


async def test_histograms_contain_each_attempt_and_each_call_that_adds_jobs(
    app: App[None], run: Run, exported: Exported
) -> None:
    instrument(app, meter_provider=exported.provider, metrics="histograms")
    Outcomes(app)

    await app.aadd_job("succeed")
    await app.aadd_jobs([JobSpec(name) for name in ("succeed", "fail", "snooze", "discard")])
    with pytest.raises(JobSpecError):
        await app.aadd_job("resize", {"size": object()})
    await run()

    system = "graphile_worker"
    assert count(exported.histogram(PROCESS_DURATION)) == {
        (system, "process", "succeed"): 2,
        (system, "process", "fail", "ValueError"): 1,
        (system, "process", "snooze"): 1,
        (system, "process", "discard", "graphile_worker.retries.Discard"): 1,
    }
    assert count(exported.histogram(OPERATION_DURATION)) == {
        (system, "add_job", "send", "succeed"): 1,
        (system, "add_jobs", "send"): 1,
        (system, "add_job", "send", "resize", "graphile_worker.errors.JobSpecError"): 1,
    }
    found = exported.read()
    assert found[PROCESS_DURATION].unit == found[OPERATION_DURATION].unit == "s"
    # Consumed and finished jobs are counted as well.
    assert exported.points(CONSUMED)[system, "get_jobs", "succeed"] == 2


def count(points: list[HistogramDataPoint]) -> dict[tuple[Any, ...], int]:
    return {tuple((point.attributes or {}).values()): point.count for point in points}


@pytest.mark.skipif(
    "advisory" not in str(Meter.create_histogram.__kwdefaults__),
    reason="opentelemetry-api cannot set buckets before 1.30",
)
def test_buckets_of_durations_reach_an_hour(exported: Exported) -> None:
    durations = Durations(exported.provider.get_meter("test"))

    durations.record_process("greet", 3000.0, None)

    [point] = exported.histogram(PROCESS_DURATION)
    assert tuple(point.explicit_bounds) == JOB_BUCKETS
    assert point.bucket_counts[-2] == 1


# Instrumenting


async def test_instrumenting_again_counts_once(
    app: App[None], run: Run, exported: Exported, caplog: pytest.LogCaptureFixture
) -> None:
    for metrics in ("counters", "histograms", "off", "histograms"):
        instrument(app, meter_provider=exported.provider, metrics=metrics)
    Outcomes(app)

    await app.aadd_job("succeed")
    await run()

    assert list(exported.points(CONSUMED).values()) == [1]
    assert list(count(exported.histogram(PROCESS_DURATION)).values()) == [1]
    assert not [each for each in caplog.records if each.name.startswith("opentelemetry")]


def test_metrics_off_exports_nothing(exported: Exported) -> None:
    counted, uncounted = Hooks(), Hooks()
    instrument(counted, meter_provider=exported.provider)
    instrument(uncounted, meter_provider=exported.provider, metrics="off")

    counted._enable_metrics().add(definitions.FETCHES, ("hit",))
    assert uncounted._recorder is None
    assert exported.points("graphile_worker.fetches") == {("hit",): 1}

    instrument(counted, meter_provider=exported.provider, metrics="off")
    assert exported.read() == {}


def test_apps_with_one_provider_are_summed_and_another_provider_replaces_it(
    exported: Exported,
) -> None:
    first, second = Hooks(), Hooks()
    for hooks in (first, second):
        instrument(hooks, meter_provider=exported.provider)
        hooks._enable_metrics().add(definitions.FETCHES, ("hit",), 3)
    assert exported.points("graphile_worker.fetches") == {("hit",): 6}

    other = Exported()
    instrument(second, meter_provider=other.provider)
    assert exported.points("graphile_worker.fetches") == {("hit",): 3}
    assert other.points("graphile_worker.fetches") == {("hit",): 3}
    other.provider.shutdown()


def test_a_collection_reads_the_cells_once(exported: Exported) -> None:
    reads = 0

    def count_reads() -> dict[Any, Any]:
        nonlocal reads
        reads += 1
        return {}

    hooks = Hooks()
    instrument(hooks, meter_provider=exported.provider)
    hooks._enable_metrics().add_gauges(count_reads)
    for _ in range(3):
        exported.read()

    assert reads == 3


def test_metrics_reach_a_global_provider_that_is_set_later() -> None:
    code = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from graphile_worker import Hooks
from graphile_worker._metrics.definitions import FETCHES
from graphile_worker.contrib.opentelemetry import instrument

first, second = Hooks(), Hooks()
instrument(first)
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
instrument(first)
instrument(second, meter_provider=metrics.get_meter_provider())
for hooks in (first, second):
    hooks._enable_metrics().add(FETCHES, ("hit",), 3)
[resource] = reader.get_metrics_data().resource_metrics
[found] = [
    metric for metric in resource.scope_metrics[0].metrics if metric.name.endswith("fetches")
]
print(*(point.value for point in found.data.data_points))
"""

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("6\n", "")
