"""Names and labels in PromQL expressions, found without a parser.

Prometheus itself checks the syntax. This finds what it cannot know: metrics that do not exist.
"""

import re
from collections.abc import Iterator

from graphile_worker._metrics.definitions import (
    METRICS_BY_NAME,
    PREFIX,
    AddMode,
    ConnectionState,
    FetchResult,
    JobResult,
    Metric,
    MetricType,
    WriteKind,
)
from graphile_worker.ops.pools import PoolHealth
from graphile_worker.ops.states import JobState

# Labels that Prometheus and its configuration add.
TARGET_LABELS = {"job", "instance", "pod", "namespace"}

SELECTOR = re.compile(rf"\b({PREFIX}\w+)(\{{[^}}]*\}})?")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")

LABEL_VALUES: dict[str, set[str]] = {
    "outcome": set(JobResult),
    "mode": set(AddMode),
    "result": set(FetchResult),
    "kind": set(WriteKind),
    "state": {*JobState, *ConnectionState},
    "health": set(PoolHealth),
}


def list_mistakes(expression: str) -> list[str]:
    """List the metrics, labels and label values that no metric has."""
    mistakes: list[str] = []
    labels = {*TARGET_LABELS}
    for name, matchers in SELECTOR.findall(expression):
        metric = find_metric(name)
        if metric is None:
            mistakes.append(f"metric {name}")
            continue
        labels |= _list_labels(metric)
        mistakes += _check_matchers(metric, matchers)
    for names in GROUPING.findall(expression):
        used = {each.strip() for each in names.split(",") if each.strip()}
        mistakes += [f"label {each}" for each in sorted(used - labels)]
    return mistakes


def list_metrics(expression: str) -> Iterator[Metric]:
    """Yield the metrics of an expression."""
    for name, _ in SELECTOR.findall(expression):
        metric = find_metric(name)
        if metric is not None:
            yield metric


def find_metric(name: str) -> Metric | None:
    """Find the metric of a series: those of a histogram have a suffix."""
    metric = METRICS_BY_NAME.get(name)
    if metric is not None:
        return None if metric.type is MetricType.HISTOGRAM else metric
    metric = METRICS_BY_NAME.get(re.sub(r"_(bucket|sum|count)$", "", name))
    return metric if metric is not None and metric.type is MetricType.HISTOGRAM else None


def _list_labels(metric: Metric) -> set[str]:
    return {*metric.labels, *(("le",) if metric.type is MetricType.HISTOGRAM else ())}


def _check_matchers(metric: Metric, matchers: str) -> Iterator[str]:
    for label, value in MATCHER.findall(matchers):
        if label not in _list_labels(metric) | TARGET_LABELS:
            yield f"label {label} of {metric.name}"
        elif label in LABEL_VALUES and not {*value.split("|")} <= LABEL_VALUES[label]:
            yield f"value {value} of {label} of {metric.name}"
