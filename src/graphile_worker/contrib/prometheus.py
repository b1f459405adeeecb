"""A collector for programs that already expose metrics with prometheus_client.

    from prometheus_client import REGISTRY

    from graphile_worker.contrib.prometheus import collector

    REGISTRY.register(collector(app))

The registry then contains the metrics of the jobs that this process adds and runs. The command
`graphile-worker` exposes them without this module.
"""

import math
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, assert_never

try:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )
    from prometheus_client.core import Metric as MetricFamily
    from prometheus_client.registry import Collector
    from prometheus_client.utils import floatToGoString
except ImportError as error:
    raise ImportError(
        'the collector needs prometheus_client: pip install "graphile-worker[prometheus]"'
    ) from error

from graphile_worker._metrics.definitions import SHARD_LABEL, WORKER_METRICS, Metric, MetricType
from graphile_worker._metrics.recorder import Recorder
from graphile_worker._metrics.values import HistogramValue, Labels, Samples
from graphile_worker.app import App
from graphile_worker.errors import ConfigurationError
from graphile_worker.hooks import Hooks


def collector(hooks: Hooks | App[Any]) -> Collector:
    """Create a collector of the metrics of an app, to register with prometheus_client.

    Workers count from their next start, clients at once. All collectors of an app show the same
    metrics, so a registry accepts one of them.

    Args:
        hooks: App or hooks whose work to count.

    Returns:
        A collector for `REGISTRY.register`.

    Raises:
        ConfigurationError: The argument is not an app or hooks.
    """
    target = hooks.hooks if isinstance(hooks, App) else hooks
    if not isinstance(target, Hooks):
        raise ConfigurationError(f"expected an App or Hooks, got {type(hooks).__name__}")
    return _RecorderCollector(target._enable_metrics())


class _RecorderCollector(Collector):
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def describe(self) -> Iterable[MetricFamily]:
        """Return all families without samples: a registry compares names with these."""
        return [_build_family(metric) for metric in WORKER_METRICS]

    def collect(self) -> Iterator[MetricFamily]:
        for metric, samples in self._recorder.collect().items():
            if samples:
                yield _build_family(metric, samples)


def _build_family(metric: Metric, samples: Samples | None = None) -> MetricFamily:
    names = metric.labels
    if any(len(labels) > len(names) for labels in samples or ()):
        names = (*names, SHARD_LABEL)
        # The samples of the process have no shard.
        samples = {(*labels, "")[: len(names)]: value for labels, value in (samples or {}).items()}
    match metric.type:
        case MetricType.COUNTER:
            # prometheus_client adds the suffix to the samples.
            name = metric.name.removesuffix("_total")
            counter = CounterMetricFamily(name, metric.help, labels=names)
            for labels, value in _iter_numbers(samples):
                counter.add_metric(labels, value)
            return counter
        case MetricType.GAUGE:
            gauge = GaugeMetricFamily(metric.name, metric.help, labels=names)
            for labels, value in _iter_numbers(samples):
                gauge.add_metric(labels, value)
            return gauge
        case MetricType.HISTOGRAM:
            histogram = HistogramMetricFamily(metric.name, metric.help, labels=names)
            for labels, observed in (samples or {}).items():
                assert isinstance(observed, HistogramValue)
                histogram.add_metric(labels, _build_buckets(metric, observed), observed.sum)
            return histogram
    assert_never(metric.type)


def _iter_numbers(samples: Samples | None) -> Iterator[tuple[Labels, float]]:
    for labels, value in (samples or {}).items():
        assert not isinstance(value, HistogramValue)
        yield labels, value


def _build_buckets(metric: Metric, value: HistogramValue) -> list[tuple[str, float]]:
    """Return the upper bounds as text, with the number of observations up to each."""
    bounds = map(floatToGoString, (*metric.buckets, math.inf))
    return list(zip(bounds, accumulate(value.counts), strict=True))
