"""The text formats of Prometheus: version 0.0.4, and OpenMetrics for clients that accept it."""

import math
from collections.abc import Iterator

from graphile_worker._metrics.definitions import Metric, MetricType
from graphile_worker._metrics.values import Families, HistogramValue, Labels, Value, name_labels

TEXT_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})
HELP_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n"})


def accepts_openmetrics(accept: str) -> bool:
    """Return whether a client prefers OpenMetrics, by its `Accept` header."""
    best = {"openmetrics": 0.0, "plain": 0.0}
    for part in accept.lower().split(","):
        media_type, *parameters = (each.strip() for each in part.split(";"))
        quality = _read_quality(parameters)
        if media_type == "application/openmetrics-text":
            best["openmetrics"] = max(best["openmetrics"], quality)
        elif media_type in ("text/plain", "text/*", "*/*"):
            best["plain"] = max(best["plain"], quality)
    return best["openmetrics"] > 0 and best["openmetrics"] >= best["plain"]


def write_metrics(families: Families, *, openmetrics: bool = False) -> str:
    """Write the samples of all metrics as text."""
    lines: list[str] = []
    for metric, samples in families.items():
        if not samples:
            continue
        name = _get_family_name(metric, openmetrics)
        lines.append(f"# HELP {name} {metric.help.translate(HELP_ESCAPES)}")
        lines.append(f"# TYPE {name} {metric.type.value}")
        for labels, value in samples.items():
            lines.extend(_write_sample(metric, labels, value))
    if openmetrics:
        lines.append("# EOF")
    return "\n".join([*lines, ""])


def _get_family_name(metric: Metric, openmetrics: bool) -> str:
    # In OpenMetrics the family of a counter has the name of its samples without the suffix.
    is_counter = metric.type is MetricType.COUNTER
    return metric.name.removesuffix("_total") if openmetrics and is_counter else metric.name


def _write_sample(metric: Metric, labels: Labels, value: Value) -> Iterator[str]:
    named = name_labels(metric, labels)
    text = ",".join(f'{name}="{_escape(value)}"' for name, value in named.items())
    if not isinstance(value, HistogramValue):
        yield (
            f"{metric.name}{{{text}}} {_format(value)}"
            if text
            else (f"{metric.name} {_format(value)}")
        )
        return
    prefix = f"{text}," if text else ""
    total = 0
    for bound, count in zip((*metric.buckets, math.inf), value.counts, strict=True):
        total += count
        yield f'{metric.name}_bucket{{{prefix}le="{_format_bound(bound)}"}} {total}'
    suffix = f"{{{text}}}" if text else ""
    yield f"{metric.name}_sum{suffix} {_format(value.sum)}"
    yield f"{metric.name}_count{suffix} {total}"


def _escape(value: str) -> str:
    # A lone surrogate cannot be encoded.
    return value.encode("utf-8", "replace").decode().translate(ESCAPES)


def _format(value: float) -> str:
    if math.isinf(value) or math.isnan(value):
        return _format_bound(value)
    # Counts without a fraction are easier to read.
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))


def _format_bound(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))


def _read_quality(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0
