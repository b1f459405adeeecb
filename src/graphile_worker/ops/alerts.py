"""The names under which `graphile-worker top` uses the diagnosis of a queue."""

from graphile_worker.ops.diagnostics.findings import Finding as Alert
from graphile_worker.ops.diagnostics.findings import QueueHealth, Severity, assess_health
from graphile_worker.ops.diagnostics.queue import diagnose_queue as find_alerts
from graphile_worker.ops.text import format_seconds

__all__ = [
    "Alert",
    "QueueHealth",
    "Severity",
    "assess_health",
    "find_alerts",
    "format_seconds",
]
