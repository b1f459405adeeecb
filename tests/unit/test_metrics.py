"""Cells count, several processes merge, and Prometheus reads the text."""

import json
import math

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

from graphile_worker._metrics import definitions
from graphile_worker._metrics.definitions import (
    METRICS_BY_NAME,
    OTHER_LABEL,
    QUEUE_METRICS,
    WORKER_METRICS,
    AddMode,
    FetchResult,
    MetricType,
    WriteKind,
)
from graphile_worker._metrics.exposition import accepts_openmetrics, write_metrics
from graphile_worker._metrics.recorder import (
    LAG_WINDOW_SECONDS,
    MAX_LABEL_LENGTH,
    MAX_LABEL_VALUES,
    LagWindow,
    Recorder,
    build_gauges,
)
from graphile_worker._metrics.values import (
    Families,
    HistogramValue,
    decode_families,
    drop_gauges,
    encode_families,
    merge_families,
)
from graphile_worker.hooks import Hooks
from tests.support.hostile import HOSTILE_NAMES


def build_recorder(*tasks: str, has_task_histograms: bool = True) -> Recorder:
    recorder = Recorder()
    if not has_task_histograms:
        recorder.share_histograms()
    recorder.register_tasks(tasks)
    for number, task in enumerate(tasks):
        cell = recorder.get_cell(task)
        cell.started += 1
        cell.wait.observe(number)
        recorder.get_cell(task).record_success(0.02)
    recorder.record_fetch(FetchResult.HIT, 0.001)
    recorder.record_fetch(FetchResult.ERROR, 9.0)
    recorder.record_write(WriteKind.COMPLETE, 0.002)
    recorder.record_added(tasks, AddMode.BATCH)
    return recorder


def read_samples(families: Families, *, openmetrics: bool) -> dict[tuple[str, ...], float]:
    text = write_metrics(families, openmetrics=openmetrics)
    # Prometheus reads UTF-8.
    text = text.encode().decode()
    parse = parse_openmetrics if openmetrics else parse_text
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def test_each_metric_has_a_help_text_and_the_suffix_of_its_type():
    for metric in METRICS_BY_NAME.values():
        assert metric.help.endswith("."), metric.name
        assert metric.name.startswith("graphile_worker_")
        assert metric.name.endswith("_total") == (metric.type is MetricType.COUNTER)
        assert bool(metric.buckets) == (metric.type is MetricType.HISTOGRAM)
    assert len(METRICS_BY_NAME) == len(WORKER_METRICS) + len(QUEUE_METRICS)


@pytest.mark.parametrize("openmetrics", [False, True])
def test_prometheus_parses_the_text(openmetrics):
    families = build_recorder("send_email").collect()
    samples = read_samples(families, openmetrics=openmetrics)
    assert samples["graphile_worker_jobs_started_total", "send_email"] == 1
    assert samples["graphile_worker_jobs_finished_total", "success", "send_email"] == 1
    assert samples["graphile_worker_jobs_finished_total", "failed", "send_email"] == 0
    assert samples["graphile_worker_job_duration_seconds_count", "send_email"] == 1
    assert samples["graphile_worker_job_duration_seconds_sum", "send_email"] == 0.02
    assert samples["graphile_worker_job_duration_seconds_bucket", "0.01", "send_email"] == 0
    assert samples["graphile_worker_job_duration_seconds_bucket", "0.025", "send_email"] == 1
    assert samples["graphile_worker_job_duration_seconds_bucket", "+Inf", "send_email"] == 1
    assert samples["graphile_worker_fetches_total", "error"] == 1
    # A fetch that failed has no duration.
    assert samples["graphile_worker_fetch_duration_seconds_count",] == 1
    assert samples["graphile_worker_jobs_added_total", "batch", "send_email"] == 1


@pytest.mark.parametrize("openmetrics", [False, True])
def test_hostile_names_are_parsed_as_they_are(openmetrics):
    samples = read_samples(build_recorder(*HOSTILE_NAMES).collect(), openmetrics=openmetrics)
    for name in HOSTILE_NAMES:
        label = name[:MAX_LABEL_LENGTH].replace("\ud800", "?")
        assert samples["graphile_worker_jobs_started_total", label] == 1, name[:20]


def test_a_job_of_a_long_name_counts_once_at_the_limit_of_names():
    names = [f"task {number}" for number in range(MAX_LABEL_VALUES - 1)]

    started = build_recorder(*names, "x" * 300).collect()[definitions.JOBS_STARTED]

    assert started == dict.fromkeys([(name,) for name in (*names, "x" * MAX_LABEL_LENGTH)], 1)


def test_histograms_are_shared_on_request_also_after_an_app_enabled_metrics():
    hooks = Hooks()
    recorder = hooks._enable_metrics()
    recorder.register_tasks(["send_email"])

    assert hooks._enable_metrics(has_task_histograms=False) is recorder
    for task in ("send_email", "resize"):
        recorder.get_cell(task).record_success(0.02)

    # A later exporter without a wish changes nothing.
    assert hooks._enable_metrics() is recorder
    durations = recorder.collect()[definitions.JOB_DURATION]
    assert isinstance(durations["",], HistogramValue)
    assert sum(durations["",].counts) == 2
    assert len(durations) == 1


def test_the_number_of_label_values_is_bounded():
    recorder = build_recorder(*(f"task {number}" for number in range(1000)))
    recorder.record_added((f"other {number}" for number in range(1000)), AddMode.SINGLE)
    for number in range(1000):
        label = recorder.get_identifier_label(f"cron {number}")
        recorder.add(definitions.CRON_ADDED, (label,))
    families = recorder.collect()
    started = families[definitions.JOBS_STARTED]
    assert len(started) == MAX_LABEL_VALUES + 1
    assert started[OTHER_LABEL,] == 1000 - MAX_LABEL_VALUES
    assert len(families[definitions.CRON_ADDED]) == MAX_LABEL_VALUES + 1
    assert sum(map(float, families[definitions.JOBS_ADDED].values())) == 2000  # type: ignore[arg-type]
    # 1 and 2 labels more for the metrics of two labels.
    assert len(write_metrics(families).splitlines()) < 60 * (MAX_LABEL_VALUES + 1)


def test_tasks_can_share_their_histograms():
    families = build_recorder("a", "b", has_task_histograms=False).collect()
    samples = read_samples(families, openmetrics=True)
    assert samples["graphile_worker_job_duration_seconds_count",] == 2
    assert samples["graphile_worker_jobs_started_total", "b"] == 1


def test_processes_merge_counters_and_gauges():
    def collect(running: int, age: float, reachable: int) -> Families:
        recorder = build_recorder("a")
        recorder.add_gauges(
            lambda: build_gauges(
                {
                    definitions.JOBS_RUNNING: running,
                    definitions.HEARTBEAT_AGE: age,
                    definitions.DATABASE_REACHABLE: reachable,
                }
            )
        )
        return recorder.collect()

    first, second = collect(3, 1.5, 1), collect(4, 0.5, 0)
    merged = merge_families([first, second])
    assert merged[definitions.JOBS_STARTED]["a",] == 2
    duration = merged[definitions.JOB_DURATION]["a",]
    assert isinstance(duration, HistogramValue)
    assert sum(duration.counts) == 2
    assert merged[definitions.JOBS_RUNNING][()] == 7
    assert merged[definitions.HEARTBEAT_AGE][()] == 1.5
    assert merged[definitions.DATABASE_REACHABLE][()] == 0
    # The counters of a process that ended stay.
    left = merge_families([drop_gauges(first), second])
    assert left[definitions.JOBS_STARTED]["a",] == 2
    assert left[definitions.JOBS_RUNNING][()] == 4


def test_samples_of_another_version_that_do_not_fit_are_left_out():
    duration = definitions.JOB_DURATION.name
    for name, labels, value in (
        (duration, ["a"], [[1, 2], 0.5]),
        (duration, ["a"], 3),
        (definitions.JOBS_STARTED.name, ["a", "shard", "c"], 3),
        (definitions.JOBS_STARTED.name, ["a"], [[1], 0.5]),
    ):
        families = decode_families(json.dumps([[name, [[labels, value]]]]))
        assert list(families.values()) == [{}]
        merge_families([families, build_recorder("a").collect()])


def test_a_recorder_of_all_hooks_gives_way_to_that_of_an_app():
    app_hooks, own_hooks = Hooks(), Hooks()
    own_hooks._recorder = Recorder()
    own_hooks._recorder.is_automatic = True
    recorder = app_hooks._enable_metrics()
    own_hooks.include(app_hooks)
    assert own_hooks._recorder is recorder


def test_families_travel_as_json():
    families = build_recorder(*HOSTILE_NAMES).collect()
    assert decode_families(encode_families(families)) == families
    # A newer process may send metrics that this one does not know.
    assert decode_families('[["graphile_worker_unknown", [[[], 1]]]]') == {}


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        # Prometheus 2 and 3 prefer OpenMetrics.
        (
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            True,
        ),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.9", False),
        ("application/openmetrics-text;q=broken", False),
    ],
)
def test_the_accept_header_chooses_the_format(accept, expected):
    assert accepts_openmetrics(accept) is expected


def test_the_lag_of_the_event_loop_is_the_largest_of_the_last_minute():
    now = 1000.0
    window = LagWindow(lambda: now)
    assert window.maximum == 0
    window.add(0.2)
    window.add(3.0)
    window.add(0.1)
    now += LAG_WINDOW_SECONDS / 2 + 1
    window.add(0.4)
    assert window.maximum == 3.0
    now += LAG_WINDOW_SECONDS / 2 + 1
    assert window.maximum == 0.4
    now += LAG_WINDOW_SECONDS * 5
    assert window.maximum == 0


def test_numbers_are_written_as_prometheus_reads_them():
    gauge = definitions.JOBS_RUNNING
    for value in (0, 1.5, -2.0, 1e300, 2.0**60, math.inf, -math.inf):
        for openmetrics in (False, True):
            samples = read_samples({gauge: {(): value}}, openmetrics=openmetrics)
            assert samples[gauge.name,] == value


def test_included_hooks_share_their_recorder():
    app_hooks, own_hooks = Hooks(), Hooks()
    recorder = app_hooks._enable_metrics()
    assert app_hooks._enable_metrics() is recorder
    own_hooks.include(app_hooks)
    assert own_hooks._recorder is recorder
