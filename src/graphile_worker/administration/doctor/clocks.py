"""Clocks: how far those of this machine and of the workers are from the database's."""

import time
from collections.abc import Iterable, Iterator

from graphile_worker.administration.doctor.case import Case, Findings, lasting, lines
from graphile_worker.administration.doctor.finding import Finding, FindingId, Severity
from graphile_worker.sql import health
from graphile_worker.sql.cron import get_time
from graphile_worker.sql.health import PoolRow

# Seconds: what one notices, and what moves a job into another minute.
NOTICEABLE = 5.0
GRAVE = 60.0

# A pool says its time when it registers, which may take as long as ten seconds.
NOTICEABLE_OF_POOL = 15.0

TRIES = 3


def measuring(case: Case) -> Findings:
    """The offset of this machine: the database's time less ours, as of the quickest answer."""
    answers = []
    for _ in range(TRIES):
        before, began = time.time(), time.monotonic()
        theirs = yield get_time()
        took = time.monotonic() - began
        answers.append((took, theirs.timestamp() - (before + took / 2)))
    _, offset = min(answers)
    return list(this_machine(offset))


def comparing_pools(case: Case) -> Findings:
    pools = yield health.survey_pools()
    return list(of_pools(pools))


def this_machine(offset: float) -> Iterator[Finding]:
    if abs(offset) < NOTICEABLE:
        return
    behind = "behind" if offset > 0 else "ahead of"
    yield Finding(
        id=FindingId.CLOCK_OFFSET,
        severity=Severity.CRITICAL if abs(offset) >= GRAVE else Severity.WARNING,
        title=f"the clock of this machine is {lasting(abs(offset))} {behind} the database's",
        evidence=("jobs go by the database's clock; times that programs here work out do not",),
        advice="Let both machines set their clocks by NTP; here, see:",
        shell="timedatectl status",
    )


def of_pools(pools: Iterable[PoolRow]) -> Iterator[Finding]:
    offsets = [(each, _offset(each)) for each in pools if not each.is_swept]
    wrong = [_wrong(each, by) for each, by in offsets if abs(by) >= NOTICEABLE_OF_POOL]
    if wrong:
        yield Finding(
            id=FindingId.POOL_CLOCK_OFFSET,
            severity=Severity.WARNING,
            title="clocks of workers were wrong when they started",
            evidence=lines(wrong),
            advice="Let these machines set their clocks by NTP, then restart the workers; there, "
            "see:",
            shell="timedatectl status",
        )


def _offset(pool: PoolRow) -> float:
    try:
        return pool.started_at - float(pool.clock or pool.started_at)
    except ValueError:
        return 0.0


def _wrong(pool: PoolRow, offset: float) -> str:
    where = f" on {pool.host}" if pool.host else ""
    behind = "behind" if offset > 0 else "ahead of"
    return f"{pool.id}{where}: {lasting(abs(offset))} {behind} the database"
