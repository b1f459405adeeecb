"""Diagnose a queue, its workers and its database.

Each check reads in a short read-only transaction, or from a snapshot, and returns findings. `top`,
`doctor` and `/readyz?verbose` use the same rules and the same thresholds.
"""

from graphile_worker.ops.diagnostics.context import DoctorOptions
from graphile_worker.ops.diagnostics.findings import (
    Finding,
    FindingId,
    QueueHealth,
    Report,
    Severity,
    Subject,
    SubjectKind,
)
from graphile_worker.ops.diagnostics.run import examine
from graphile_worker.ops.diagnostics.thresholds import Thresholds

__all__ = [
    "DoctorOptions",
    "Finding",
    "FindingId",
    "QueueHealth",
    "Report",
    "Severity",
    "Subject",
    "SubjectKind",
    "Thresholds",
    "examine",
]
