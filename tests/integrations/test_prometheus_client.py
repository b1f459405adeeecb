"""The collector of metrics, in a registry of the real prometheus_client."""

import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

from graphile_worker import App, ConfigurationError, Hooks, JobSpec, Snooze
from graphile_worker._metrics.definitions import WORKER_METRICS, AddMode, FetchResult, WriteKind
from graphile_worker._metrics.exposition import write_metrics
from graphile_worker._metrics.recorder import MAX_LABEL_VALUES, Recorder
from graphile_worker.contrib.prometheus import collector
from tests.integrations.conftest import Run
from tests.support.hostile import HOSTILE_NAMES

pytestmark = pytest.mark.single_version

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(text: str, *, openmetrics: bool = False) -> Samples:
    """Return samples by name and labels. A label without a value is the same as none."""
    families = (parse_openmetrics if openmetrics else parse_text)(text)
    return {
        (sample.name, frozenset(pair for pair in sample.labels.items() if pair[1])): sample.value
        for family in families
        for sample in family.samples
    }


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return f"graphile_worker_{name}", frozenset(labels.items())


async def test_samples_agree_with_the_jobs_that_a_worker_ran(app: App[None], run: Run) -> None:
    registry = CollectorRegistry()
    registry.register(collector(app))
    during: Samples = {}

    @app.task
    async def greet() -> None:
        during.update(read(generate_latest(registry).decode()))

    @app.task(max_attempts=1)
    def fail() -> None:
        raise ValueError

    @app.task
    async def snooze() -> None:
        raise Snooze(timedelta(hours=1))

    await app.aadd_jobs([JobSpec(name) for name in ("greet", "greet", "fail", "snooze")])
    await run()

    after = read(generate_latest(registry).decode())
    assert after[key("jobs_added_total", task="greet", mode="batch")] == 2
    assert after[key("jobs_started_total", task="greet")] == 2
    assert after[key("jobs_finished_total", task="greet", outcome="success")] == 2
    assert after[key("jobs_finished_total", task="fail", outcome="failed")] == 1
    assert after[key("jobs_finished_total", task="snooze", outcome="snoozed")] == 1
    assert after[key("jobs_finished_total", task="snooze", outcome="success")] == 0
    assert after[key("job_duration_seconds_count", task="greet")] == 2
    assert during[key("jobs_running")] == 1
    assert key("jobs_running") not in after


def build_recorder(hooks: Hooks, *, has_task_histograms: bool) -> Recorder:
    recorder = hooks._enable_metrics(has_task_histograms=has_task_histograms)
    for name in [*HOSTILE_NAMES, *(f"task {number}" for number in range(120))]:
        cell = recorder.get_cell(name)
        cell.started += 1
        cell.duration.observe(0.3)
        cell.wait.observe(7200.0)
        recorder.record_added([name], AddMode.SINGLE)
    recorder.record_fetch(FetchResult.HIT, 0.002)
    recorder.record_write(WriteKind.COMPLETE, 0.003)
    return recorder


@pytest.mark.parametrize("has_task_histograms", [True, False])
def test_the_registry_shows_the_same_as_the_health_port_also_for_hostile_names(
    has_task_histograms: bool,
) -> None:
    hooks, registry = Hooks(), CollectorRegistry()
    recorder = build_recorder(hooks, has_task_histograms=has_task_histograms)
    registry.register(collector(hooks))

    expected = read(write_metrics(recorder.collect()))
    started = [name for name, labels in expected if name.endswith("jobs_started_total")]
    assert len(started) == MAX_LABEL_VALUES + 1
    assert read(generate_latest(registry).decode()) == expected
    text = generate_openmetrics(registry).decode()
    assert read(text, openmetrics=True) == expected


def test_collectors_of_an_app_share_its_counts_and_a_registry_accepts_one() -> None:
    app: App[None] = App()
    first, second, registry = collector(app), collector(app.hooks), CollectorRegistry()
    registry.register(first)

    app.hooks._enable_metrics().record_fetch(FetchResult.HIT, 0.002)
    other = CollectorRegistry()
    other.register(second)

    found = read(generate_latest(other).decode())
    assert found == read(generate_latest(registry).decode())
    assert found[key("fetches_total", result="hit")] == 1
    with pytest.raises(ValueError, match="graphile_worker_jobs_started"):
        registry.register(second)


def test_the_collector_describes_every_metric_of_a_worker() -> None:
    described: Any = collector(Hooks())
    names = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in described.describe()
    }

    assert names == {metric.name for metric in WORKER_METRICS}


def test_an_argument_other_than_an_app_or_hooks_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="expected an App or Hooks, got str"):
        collector("app")  # type: ignore[arg-type]  # what it is about


def test_without_prometheus_client_the_error_names_the_package_to_install() -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None; import graphile_worker;"
        "import graphile_worker.contrib.prometheus"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert 'prometheus_client: pip install "graphile-worker[prometheus]"' in done.stderr
