"""Inspect and change how long and how many outcomes are kept."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.audit import AuditLabel, plan_audit, plan_audited
from graphile_worker._sql.plans.history import PrunedHistory, decide_rotation, plan_prune_history
from graphile_worker._sql.queries.audit import AuditAction
from graphile_worker._sql.queries.ended_jobs import (
    get_oldest_outcome,
    inspect_slots,
)
from graphile_worker._sql.queries.history import (
    NEVER,
    SLOT_COUNT,
    HistoryRing,
    get_history,
    set_history,
)
from graphile_worker._sql.query import Plan
from graphile_worker._support.durations import format_exact_duration
from graphile_worker._support.text import pluralize
from graphile_worker.ops.history.access import plan_require_history
from graphile_worker.ops.search import (
    DEFAULT_LIMITS,
    QueryLimits,
    limit_plan,
    with_limits,
)
from graphile_worker.results import check_keep


@dataclass(frozen=True, kw_only=True, slots=True)
class HistorySlot:
    """One of the tables that outcomes are written to in turn. Rows are estimated."""

    number: int
    is_current: bool
    started_at: datetime | None
    """When it was written to first, None if it is empty."""
    rows: int
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryStatus:
    """How long and how many outcomes a schema keeps, and what it has.

    Attributes:
        now: The time of the database.
        keep: How long outcomes are kept.
        max_rows: How many are kept, None without a limit.
        slots: The slots, in the order of their numbers.
        oldest_at: When the oldest stored outcome ended.
        can_rotate: Whether this role may empty slots.
        is_overdue: Whether outcomes are kept for too long, because no worker rotates the slots.
    """

    now: datetime
    keep: timedelta
    max_rows: int | None
    slots: tuple[HistorySlot, ...]
    oldest_at: datetime | None
    can_rotate: bool
    is_overdue: bool

    @property
    def rows(self) -> int:
        """The estimated number of outcomes."""
        return sum(slot.rows for slot in self.slots)

    @property
    def bytes(self) -> int:
        """The size of outcomes, attempts and their indexes."""
        return sum(slot.bytes for slot in self.slots)


def plan_get_history_status(
    schemas: Schemas, *, limits: QueryLimits = DEFAULT_LIMITS
) -> Plan[HistoryStatus]:
    """Get how long and how many outcomes are kept, and what the slots contain.

    Args:
        schemas: The schemas of the queue.
        limits: The timeouts of each statement.

    Returns:
        A plan for the status.

    Raises:
        HistoryMissing: The tables do not exist, or this role may not read them.
        QueryTimeoutError: A statement took too long or waited too long for a lock.
    """
    yield from plan_require_history(schemas, limits)
    ring = yield from with_limits(get_history(), schemas, limits)
    rows = yield from with_limits(inspect_slots(schemas), schemas, limits)
    assert ring is not None
    # From the slot that was written to first.
    oldest_at = None
    for number in range(SLOT_COUNT):
        slot = (ring.next_slot + number) % SLOT_COUNT
        oldest_at = yield from with_limits(get_oldest_outcome(slot), schemas, limits)
        if oldest_at is not None:
            break
    # Without starts after that time, which would count as those of a clock that was ahead.
    late_ring = replace(ring, now=ring.now - ring.slot_duration / 2).without_future_starts()
    return HistoryStatus(
        now=ring.now,
        keep=ring.effective_keep,
        max_rows=ring.max_rows,
        slots=tuple(
            HistorySlot(
                number=row.slot,
                is_current=row.slot == ring.slot,
                started_at=_find_start(ring, row.slot),
                rows=row.rows,
                bytes=row.bytes,
            )
            for row in rows
        ),
        oldest_at=oldest_at,
        can_rotate=all(row.can_truncate and row.can_update for row in rows),
        is_overdue=oldest_at is not None and decide_rotation(late_ring) is not None,
    )


def _find_start(ring: HistoryRing, slot: int) -> datetime | None:
    time = ring.started_at[slot]
    return None if time == NEVER else time


def plan_set_history(
    schemas: Schemas,
    *,
    keep: timedelta | None = None,
    max_rows: int | None = None,
    clear_max_rows: bool = False,
    actor: str | None = None,
    limits: QueryLimits = DEFAULT_LIMITS,
) -> Plan[None]:
    """Change how long and how many outcomes a schema keeps. None leaves a value as it is.

    Args:
        schemas: The schemas of the queue.
        keep: How long.
        max_rows: How many, about.
        clear_max_rows: Keep any number of outcomes.
        actor: Who changes it, for the audit.
        limits: The timeouts of each statement.

    Returns:
        A plan without a result.

    Raises:
        ConfigurationError: `keep` is not between a second and ten years.
        HistoryMissing: The tables do not exist, or this role may not read them.
    """
    if keep is not None:
        check_keep(keep)
    yield from plan_require_history(schemas, limits)
    query = set_history(keep, max_rows, clear_max_rows=clear_max_rows)
    values = [
        *([] if keep is None else [f"keep={format_exact_duration(keep)}"]),
        *([] if max_rows is None else [f"max_rows={max_rows}"]),
        *(["no max_rows"] if clear_max_rows else []),
    ]
    label = AuditLabel(action=AuditAction.HISTORY_SET, actor=actor, note=" ".join(values))
    yield from limit_plan(plan_audited(query, lambda _: 1, schemas, label), schemas, limits)


def plan_prune(
    schemas: Schemas, *, actor: str | None = None, limits: QueryLimits = DEFAULT_LIMITS
) -> Plan[PrunedHistory]:
    """Empty old slots now, and delete outcomes and attempts that their task no longer keeps.

    Args:
        schemas: The schemas of the queue.
        actor: Who removes them, for the audit.
        limits: The timeouts of reading.

    Returns:
        A plan for what was removed.

    Raises:
        HistoryMissing: The tables do not exist, or this role may not read them.
    """
    yield from plan_require_history(schemas, limits)
    pruned = yield from plan_prune_history()
    slots = pluralize(len(pruned.emptied_slots), "slot")
    note = f"emptied {slots}, deleted {pluralize(pruned.deleted_rows, 'row')}"
    label = AuditLabel(action=AuditAction.HISTORY_PRUNE, actor=actor, note=note)
    # The slots are emptied in several transactions, so the entry follows them.
    yield from plan_audit(pruned.deleted_rows or len(pruned.emptied_slots), schemas, label)
    return pruned
