"""Doctor: what is wrong with a queue and its surroundings, each with what to do about it.

Each check asks the database in a short read-only transaction of its own, takes no lock that anybody
waits for, and judges the answers in a plain function.
"""

from graphile_worker.ops.diagnostics.context import DoctorOptions
from graphile_worker.ops.diagnostics.findings import Finding, FindingId, Report, Severity
from graphile_worker.ops.diagnostics.run import examine

__all__ = ["DoctorOptions", "Finding", "FindingId", "Report", "Severity", "examine"]
