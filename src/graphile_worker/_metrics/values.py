"""Values of metrics: merge those of several processes, and send them as JSON.

`Families` maps each metric to its samples: the values of the labels, in the order of
`Metric.labels`, and a number or, for a histogram, a `HistogramValue`. A sample of a shard has the
name of the shard after its other labels.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from graphile_worker._metrics.definitions import (
    METRICS_BY_NAME,
    SHARD_LABEL,
    Merge,
    Metric,
    MetricType,
)


@dataclass(frozen=True, slots=True)
class HistogramValue:
    """The number of observations in each bucket, not cumulative, and their sum."""

    counts: tuple[int, ...]
    sum: float

    def __add__(self, other: "HistogramValue") -> "HistogramValue":
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return HistogramValue(counts, self.sum + other.sum)


Value = float | HistogramValue
Labels = tuple[str, ...]
Samples = dict[Labels, Value]
Families = dict[Metric, Samples]


def name_labels(metric: Metric, labels: Labels) -> dict[str, str]:
    """Return the values of labels by name. A label without a value does not exist."""
    names = (*metric.labels, SHARD_LABEL)
    return {name: value for name, value in zip(names, labels, strict=False) if value}


def add_shard(families: Families, shard: str) -> Families:
    """Return the families with the name of a shard as the last label of each sample."""
    return {
        metric: {(*labels, shard): value for labels, value in samples.items()}
        for metric, samples in families.items()
    }


def merge_families(parts: Iterable[Families]) -> Families:
    """Add counters and histograms, and combine gauges by `Metric.merge`."""
    merged: Families = {}
    for part in parts:
        for metric, samples in part.items():
            into = merged.setdefault(metric, {})
            for labels, value in samples.items():
                into[labels] = (
                    value if labels not in into else _merge_value(metric, into[labels], value)
                )
    return merged


def drop_gauges(families: Families) -> Families:
    """Return only counters and histograms, which stay when their process ends."""
    return {
        metric: samples
        for metric, samples in families.items()
        if metric.type is not MetricType.GAUGE
    }


def encode_families(families: Families) -> bytes:
    """Encode families as JSON."""
    content = [
        [metric.name, [[list(labels), _encode_value(value)] for labels, value in samples.items()]]
        for metric, samples in families.items()
    ]
    return json.dumps(content, separators=(",", ":")).encode()


def decode_families(content: bytes | str) -> Families:
    """Decode `encode_families`, also of another version.

    Metrics that this version does not know, and samples that do not fit its metrics, are left out.
    """
    rows: list[Any] = json.loads(content)
    return {
        METRICS_BY_NAME[name]: {
            tuple(labels): _decode_value(value)
            for labels, value in samples
            if _fits(METRICS_BY_NAME[name], labels, value)
        }
        for name, samples in rows
        if name in METRICS_BY_NAME
    }


def _fits(metric: Metric, labels: Any, value: Any) -> bool:
    if len(labels) - len(metric.labels) not in (0, 1):
        return False
    if metric.type is MetricType.HISTOGRAM:
        return isinstance(value, list) and len(value[0]) == len(metric.buckets) + 1
    return isinstance(value, int | float)


def _merge_value(metric: Metric, first: Value, second: Value) -> Value:
    if isinstance(first, HistogramValue) or isinstance(second, HistogramValue):
        assert isinstance(first, HistogramValue)
        assert isinstance(second, HistogramValue)
        return first + second
    if metric.type is MetricType.GAUGE and metric.merge is Merge.MAX:
        return max(first, second)
    if metric.type is MetricType.GAUGE and metric.merge is Merge.MIN:
        return min(first, second)
    return first + second


def _encode_value(value: Value) -> object:
    if isinstance(value, HistogramValue):
        return [list(value.counts), value.sum]
    return value


def _decode_value(value: Any) -> Value:
    if isinstance(value, list):
        return HistogramValue(tuple(value[0]), value[1])
    number: float = value
    return number
