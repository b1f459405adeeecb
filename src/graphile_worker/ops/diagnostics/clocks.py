"""Clocks: how far those of this machine and of the workers are from the database's."""

import time
from collections.abc import Iterable, Iterator

from graphile_worker._sql.queries import diagnostics
from graphile_worker._sql.queries.cron import get_server_time
from graphile_worker._sql.queries.diagnostics import PoolRow
from graphile_worker.ops.diagnostics.context import (
    DiagnosticContext,
    FindingsPlan,
    format_duration,
    limit_lines,
)
from graphile_worker.ops.diagnostics.findings import Finding, FindingId, Severity

# Seconds: what one notices, and what moves a job into another minute.
WARNING_OFFSET_SECONDS = 5.0
CRITICAL_OFFSET_SECONDS = 60.0

# A pool says its time when it registers, which may take as long as ten seconds.
POOL_WARNING_OFFSET_SECONDS = 15.0

CLOCK_SAMPLES = 3


def plan_check_local_clock(context: DiagnosticContext) -> FindingsPlan:
    """The offset of this machine: the database's time less ours, as of the quickest answer."""
    answers = []
    for _ in range(CLOCK_SAMPLES):
        before, began = time.time(), time.monotonic()
        theirs = yield get_server_time()
        took = time.monotonic() - began
        answers.append((took, theirs.timestamp() - (before + took / 2)))
    _, offset = min(answers)
    return list(check_local_clock(offset))


def plan_check_pool_clocks(context: DiagnosticContext) -> FindingsPlan:
    pools = yield diagnostics.diagnose_pools()
    return list(check_pool_clocks(pools))


def check_local_clock(offset: float) -> Iterator[Finding]:
    if abs(offset) < WARNING_OFFSET_SECONDS:
        return
    behind = "behind" if offset > 0 else "ahead of"
    yield Finding(
        id=FindingId.CLOCK_OFFSET,
        severity=Severity.CRITICAL if abs(offset) >= CRITICAL_OFFSET_SECONDS else Severity.WARNING,
        title=f"the clock of this machine is {format_duration(abs(offset))} {behind} the "
        "database's",
        evidence=("jobs go by the database's clock; times that programs here work out do not",),
        advice="Let both machines set their clocks by NTP; here, see:",
        shell="timedatectl status",
    )


def check_pool_clocks(pools: Iterable[PoolRow]) -> Iterator[Finding]:
    offsets = [(each, _compute_offset(each)) for each in pools if not each.is_rescued]
    wrong = [
        _format_offset(each, by) for each, by in offsets if abs(by) >= POOL_WARNING_OFFSET_SECONDS
    ]
    if wrong:
        yield Finding(
            id=FindingId.POOL_CLOCK_OFFSET,
            severity=Severity.WARNING,
            title="clocks of workers were wrong when they started",
            evidence=limit_lines(wrong),
            advice="Let these machines set their clocks by NTP, then restart the workers; there, "
            "see:",
            shell="timedatectl status",
        )


def _compute_offset(pool: PoolRow) -> float:
    try:
        return pool.started_at - float(pool.clock or pool.started_at)
    except ValueError:
        return 0.0


def _format_offset(pool: PoolRow, offset: float) -> str:
    where = f" on {pool.host}" if pool.host else ""
    behind = "behind" if offset > 0 else "ahead of"
    return f"{pool.id}{where}: {format_duration(abs(offset))} {behind} the database"
