"""Rules about the clocks of this machine and of the workers."""

import time
from collections.abc import Iterator

from graphile_worker._sql.queries.cron import get_server_time
from graphile_worker.ops.diagnostics.context import (
    DiagnosticContext,
    DoctorContext,
    FindingsPlan,
    QueueContext,
)
from graphile_worker.ops.diagnostics.findings import Finding, FindingId, Severity
from graphile_worker.ops.snapshot import compute_clock_offset
from graphile_worker.ops.text import format_seconds, limit_lines


def check_local_clock(context: QueueContext) -> Iterator[Finding]:
    """Report that the local clock differs from the database's."""
    return _report_offset(context.snapshot.server.clock_offset, context)


def plan_check_local_clock(context: DoctorContext) -> FindingsPlan:
    """Report the same without a snapshot."""
    before = time.time()
    server_time = yield get_server_time()
    offset = compute_clock_offset(server_time.timestamp(), before)
    return list(_report_offset(offset, context))


def _report_offset(offset: float, context: DiagnosticContext) -> Iterator[Finding]:
    limits = context.thresholds
    if abs(offset) < limits.clock_warning.total_seconds():
        return
    is_critical = abs(offset) >= limits.clock_critical.total_seconds()
    yield Finding(
        id=FindingId.CLOCK_OFFSET,
        severity=Severity.CRITICAL if is_critical else Severity.WARNING,
        title=f"the clock of this machine is {_format_offset(offset)} the database's",
        evidence=(
            "jobs run by the database's clock; programs on this machine use the local clock",
        ),
        advice="Synchronize both clocks with NTP. To see the state of the local clock:",
        shell="timedatectl status",
    )


def check_pool_clocks(context: QueueContext) -> Iterator[Finding]:
    """Report that clocks of workers were wrong when they started."""
    limit = context.thresholds.pool_clock_warning.total_seconds()
    wrong = [
        f"{pool.id}{f' on {pool.host}' if pool.host else ''}: "
        f"{_format_offset(pool.clock_offset)} the database's"
        for pool in context.snapshot.pools
        if abs(pool.clock_offset) >= limit and not pool.is_rescued
    ]
    if wrong:
        yield Finding(
            id=FindingId.POOL_CLOCK_OFFSET,
            severity=Severity.WARNING,
            title="clocks of workers were wrong when they started",
            evidence=limit_lines(wrong),
            advice="Synchronize the clocks of these machines with NTP, then restart the workers. "
            "To see the state of a clock, run this on its machine:",
            shell="timedatectl status",
        )


def _format_offset(offset: float) -> str:
    return f"{format_seconds(abs(offset))} {'behind' if offset > 0 else 'ahead of'}"
