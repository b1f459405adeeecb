"""Write the tables of docs/reference/metrics.md from the definitions of the metrics."""

from graphile_worker._metrics.definitions import LABELS, QUEUE_METRICS, WORKER_METRICS, Metric
from tools.reference.tables import code, table

METRICS = {"worker": WORKER_METRICS, "queue": QUEUE_METRICS}


def metric_table(scope: str) -> str:
    """Return the table of the metrics of a worker or of the queue, or of their labels."""
    if scope == "labels":
        rows = [[code(label), values] for label, values in LABELS.items()]
        return table(["label", "values"], rows)
    return table(["metric", "type", "labels", "meaning"], map(_build_row, METRICS[scope]))


def _build_row(metric: Metric) -> list[str]:
    return [code(metric.name), metric.type.value, code(*metric.labels), metric.help.rstrip(".")]
