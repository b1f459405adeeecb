"""Throughput, run times and waits over time, from the outcomes of jobs.

Up to 100,000 outcomes are read exactly. Of more, a part of the pages is read and the counts are
extrapolated, so that a long history takes no longer than a short one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.ended_jobs import (
    SlotRow,
    encode_time,
    inspect_slots,
    list_kept_tasks,
    sample_outcomes,
    summarize_outcomes,
)
from graphile_worker._sql.queries.history import NEVER, SLOT_COUNT, HistoryRing, get_history
from graphile_worker._sql.queries.search import list_task_names
from graphile_worker._sql.query import Plan, Query, Row
from graphile_worker._sql.statement import Clause, Condition
from graphile_worker.errors import QueryTimeoutError
from graphile_worker.ops.history.access import plan_require_history
from graphile_worker.ops.search import DEFAULT_LIMITS, QueryLimits, with_limits

# Outcomes to read exactly.
MAX_OUTCOMES = 100_000

# Outcomes to read if there are more.
SAMPLE_OUTCOMES = 50_000

# The fewest percent of the pages to read.
MIN_PERCENT = 0.01

# Names to count for the coverage.
MAX_TASKS = 1_000


class SeriesRange(StrEnum):
    """How far back a series goes."""

    HOUR = "1h"
    SIX_HOURS = "6h"
    DAY = "24h"
    WEEK = "7d"

    @property
    def duration(self) -> timedelta:
        """Return the length of the range."""
        return _DURATIONS[self]

    @property
    def step(self) -> timedelta:
        """Return the length of a bucket."""
        return _STEPS[self]


_DURATIONS: Mapping[str, timedelta] = {
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
}
_STEPS: Mapping[str, timedelta] = {
    "1h": timedelta(minutes=1),
    "6h": timedelta(minutes=5),
    "24h": timedelta(minutes=15),
    "7d": timedelta(hours=2),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesPoint:
    """The jobs that ended in a bucket of time. Percentiles are in seconds, None without jobs."""

    at: datetime
    succeeded: int = 0
    failed: int = 0
    run_p50: float | None = None
    run_p95: float | None = None
    wait_p50: float | None = None
    wait_p95: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """How many tasks keep outcomes, of the tasks that the queue knows."""

    kept: int
    seen: int


@dataclass(frozen=True, kw_only=True, slots=True)
class OutcomeSeries:
    """What ended in each bucket of a range of time, the oldest first.

    Attributes:
        now: The time of the database.
        period: How far back the series goes.
        points: One point for each bucket. The last bucket has not ended.
        sampled_percent: The part of the outcomes that was read, or None if all of them were. Counts
            of a sample are estimates.
        coverage: How many tasks keep outcomes.
    """

    now: datetime
    period: SeriesRange
    points: tuple[SeriesPoint, ...]
    sampled_percent: float | None
    coverage: Coverage


def plan_get_series(
    schemas: Schemas,
    period: SeriesRange,
    *,
    task: str | None = None,
    max_outcomes: int = MAX_OUTCOMES,
    sample_size: int = SAMPLE_OUTCOMES,
    limits: QueryLimits = DEFAULT_LIMITS,
) -> Plan[OutcomeSeries]:
    """Get throughput, run times and waits of the jobs that ended in a range of time.

    Args:
        schemas: The schemas of the queue.
        period: How far back.
        task: Only jobs of this task.
        max_outcomes: Read up to this number of outcomes exactly.
        sample_size: Read about this number if there are more.
        limits: The timeouts of each statement.

    Returns:
        A plan for the series.

    Raises:
        HistoryMissing: The tables do not exist, or this role may not read them.
        QueryTimeoutError: A statement took too long or waited too long for a lock.
    """
    yield from plan_require_history(schemas, limits)
    ring = yield from with_limits(get_history(), schemas, limits)
    assert ring is not None
    starts = _list_starts(ring.now, period)
    since, until = encode_time(starts[0]), encode_time(ring.now + period.step)
    step = int(period.step.total_seconds())
    clauses = () if task is None else (Clause((Condition("ended_task_name", (task,)),)),)
    slot_rows = yield from with_limits(inspect_slots(schemas), schemas, limits)
    rows, percent = None, None
    # A task has an index. An estimate of all tasks may be too high by half.
    if task is not None or _estimate_rows(ring, slot_rows, starts[0]) <= 2 * max_outcomes:
        query = summarize_outcomes(since, until, step, max_outcomes + 1, clauses)
        rows = yield from _plan_summarize(query, max_outcomes, schemas, limits)
    if rows is None:
        slots = _find_slots(ring, starts[0])
        percent = _choose_percent(slot_rows, slots, sample_size)
        query = sample_outcomes(since, until, step, f"{percent:.6f}", slots, clauses)
        rows = yield from with_limits(query, schemas, limits)
    kept = yield from with_limits(list_kept_tasks(MAX_TASKS), schemas, limits)
    seen = yield from with_limits(list_task_names(MAX_TASKS), schemas, limits)
    return OutcomeSeries(
        now=ring.now,
        period=period,
        points=_build_points(starts, rows, percent),
        sampled_percent=percent,
        coverage=Coverage(kept=len(kept), seen=len({*kept, *seen})),
    )


def _plan_summarize(
    query: Query[list[Row]], max_outcomes: int, schemas: Schemas, limits: QueryLimits
) -> Plan[list[Row] | None]:
    """Summarize outcomes exactly, or return None if there are too many."""
    try:
        rows = yield from with_limits(query, schemas, limits)
    except QueryTimeoutError:
        return None
    return rows if sum(row[1] + row[2] for row in rows) <= max_outcomes else None


def _estimate_rows(ring: HistoryRing, rows: Sequence[SlotRow], since: datetime) -> float:
    """Estimate the number of outcomes since a time, as if each slot were filled evenly."""
    total = 0.0
    for row in rows:
        start = ring.started_at[row.slot]
        end = ring.now if row.slot == ring.slot else ring.get_end(row.slot)
        if start == NEVER or end <= since:
            continue
        length = max(1.0, (end - start).total_seconds())
        total += row.rows * min(1.0, (end - max(start, since)).total_seconds() / length)
    return total


def _list_starts(now: datetime, period: SeriesRange) -> list[datetime]:
    """List the starts of the buckets, which are multiples of the step since 1970."""
    step = int(period.step.total_seconds())
    last = int(now.timestamp()) // step * step
    count = period.duration // period.step
    return [datetime.fromtimestamp(last - step * each, UTC) for each in range(count - 1, -1, -1)]


def _find_slots(ring: HistoryRing, since: datetime) -> list[int]:
    """List the slots that may have outcomes since a time."""
    return [
        slot
        for slot in range(SLOT_COUNT)
        if slot == ring.slot or (ring.started_at[slot] != NEVER and ring.get_end(slot) >= since)
    ]


def _choose_percent(rows: Sequence[SlotRow], slots: Sequence[int], sample_size: int) -> float:
    total = sum(row.rows for row in rows if row.slot in slots)
    return min(100.0, max(MIN_PERCENT, 100.0 * sample_size / max(1, total)))


def _build_points(
    starts: Sequence[datetime], rows: Sequence[Row], percent: float | None
) -> tuple[SeriesPoint, ...]:
    by_start = {int(row[0]): row for row in rows}
    factor = 1.0 if percent is None else 100.0 / percent
    return tuple(
        _build_point(start, by_start.get(int(start.timestamp())), factor) for start in starts
    )


def _build_point(start: datetime, row: Row | None, factor: float) -> SeriesPoint:
    if row is None:
        return SeriesPoint(at=start)
    _, succeeded, failed, run, wait = row
    run_p50, run_p95 = _read_percentiles(run)
    wait_p50, wait_p95 = _read_percentiles(wait)
    return SeriesPoint(
        at=start,
        succeeded=round(succeeded * factor),
        failed=round(failed * factor),
        run_p50=run_p50,
        run_p95=run_p95,
        wait_p50=wait_p50,
        wait_p95=wait_p95,
    )


def _read_percentiles(text: str) -> list[float]:
    """Read an array of PostgreSQL: drivers of callers read arrays in different ways."""
    return [float(each) for each in text.strip("{}").split(",")]
