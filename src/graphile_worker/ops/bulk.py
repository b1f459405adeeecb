"""Change many jobs in batches, beside running workers.

A preview counts the jobs, and the change affects only jobs of the preview. Each batch is a separate
transaction that checks the filter again, never waits for a lock, and skips jobs of workers.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.admin import format_changed_values
from graphile_worker._sql.plans.audit import AuditLabel, plan_audited
from graphile_worker._sql.queries.audit import AuditAction
from graphile_worker._sql.queries.claim import notify_jobs
from graphile_worker._sql.queries.search import (
    ChangedJobs,
    Clauses,
    complete_chosen_jobs,
    fail_chosen_jobs,
    find_job_ids,
    reschedule_chosen_jobs,
    retry_jobs,
    unlock_chosen_jobs,
)
from graphile_worker._sql.query import Pause, Plan, Query
from graphile_worker.jobs import (
    RunAt,
    check_max_attempts,
    check_run_at,
    check_smallint,
    check_text,
)
from graphile_worker.ops.audit import format_for_audit
from graphile_worker.ops.filters import Filter, filter_by_states
from graphile_worker.ops.search import (
    DEFAULT_LIMITS,
    JobCounts,
    ListedJob,
    QueryLimits,
    build_clauses,
    limit_plan,
    plan_count_jobs,
    plan_get_dead_pools,
    plan_list_jobs,
    with_limits,
)
from graphile_worker.ops.states import LOCKED_STATES, JobState

BATCH_SIZE = 1000

# The number of jobs that one statement checks against the filter.
SCAN_BATCH_SIZE = 20_000

SAMPLE_SIZE = 5

# Batches write, so they get more time than searches.
WRITE_LIMITS = QueryLimits(statement_timeout=timedelta(seconds=30))

# The pause after each statement, as a multiple of its duration.
DEFAULT_THROTTLE = 4.0

UNLOCKED_STATES = tuple(state for state in JobState if state not in LOCKED_STATES)


class BulkAction(Protocol):
    """A change to jobs: one of the actions of this module."""

    @property
    def states(self) -> tuple[JobState, ...]:
        """The states in which the action changes a job."""
        ...

    @property
    def _notifies_workers(self) -> bool: ...

    @property
    def _audit_action(self) -> AuditAction: ...

    @property
    def _note(self) -> str | None: ...

    def _build_query(self, ids: list[int], clauses: Clauses) -> Query[ChangedJobs]: ...


@dataclass(frozen=True, slots=True)
class RetryAction:
    """Run jobs now. The attempts of permanently failed jobs count from 0 again."""

    states = (JobState.FAILED, JobState.RETRYING, JobState.SCHEDULED)
    _notifies_workers = True
    _audit_action = AuditAction.JOBS_RETRY
    _note = None

    def _build_query(self, ids: list[int], clauses: Clauses) -> Query[ChangedJobs]:
        return retry_jobs(ids, clauses)


@dataclass(frozen=True, kw_only=True, slots=True)
class RescheduleAction:
    """Change the time, priority or attempts of jobs. None leaves a value as it is."""

    run_at: RunAt | None = None
    priority: int | None = None
    attempts: int | None = None
    max_attempts: int | None = None

    states = UNLOCKED_STATES
    _notifies_workers = True
    _audit_action = AuditAction.JOBS_RESCHEDULE

    def __post_init__(self) -> None:
        if self.run_at is not None:
            check_run_at("run_at", self.run_at)
        if self.priority is not None:
            check_smallint("priority", self.priority)
        if self.attempts is not None:
            check_smallint("attempts", self.attempts)
        if self.max_attempts is not None:
            check_max_attempts(self.max_attempts)

    @property
    def _note(self) -> str | None:
        return format_changed_values(
            run_at=self.run_at,
            priority=self.priority,
            attempts=self.attempts,
            max_attempts=self.max_attempts,
        )

    def _build_query(self, ids: list[int], clauses: Clauses) -> Query[ChangedJobs]:
        values = (self.run_at, self.priority, self.attempts, self.max_attempts)
        return reschedule_chosen_jobs(ids, *values, clauses)


@dataclass(frozen=True, slots=True)
class FailAction:
    """Fail jobs permanently, with an optional error text."""

    reason: str | None = None

    states = (JobState.WAITING, JobState.READY, JobState.RETRYING, JobState.SCHEDULED)
    _notifies_workers = False
    _audit_action = AuditAction.JOBS_FAIL

    def __post_init__(self) -> None:
        if self.reason is not None:
            check_text("reason", self.reason)

    @property
    def _note(self) -> str | None:
        return self.reason

    def _build_query(self, ids: list[int], clauses: Clauses) -> Query[ChangedJobs]:
        return fail_chosen_jobs(ids, self.reason, clauses)


@dataclass(frozen=True, slots=True)
class CompleteAction:
    """Delete jobs as if they had been completed."""

    states = UNLOCKED_STATES
    _notifies_workers = False
    _audit_action = AuditAction.JOBS_COMPLETE
    _note = None

    def _build_query(self, ids: list[int], clauses: Clauses) -> Query[ChangedJobs]:
        return complete_chosen_jobs(ids, clauses)


@dataclass(frozen=True, slots=True)
class UnlockAction:
    """Release the jobs of dead workers. With `force`, release any job, which may then run twice."""

    force: bool = False

    _notifies_workers = True
    _audit_action = AuditAction.JOBS_UNLOCK

    @property
    def states(self) -> tuple[JobState, ...]:
        """The states in which the action changes a job."""
        return LOCKED_STATES if self.force else (JobState.STALE,)

    @property
    def _note(self) -> str | None:
        return "force" if self.force else None

    def _build_query(self, ids: list[int], clauses: Clauses) -> Query[ChangedJobs]:
        return unlock_chosen_jobs(ids, clauses)


@dataclass(frozen=True, kw_only=True, slots=True)
class BulkPreview:
    """The jobs that a change would affect: their counts and the newest of them.

    Jobs with a higher id than the newest one counted are not changed.
    """

    action: BulkAction
    job_filter: Filter
    count: JobCounts
    sample: list[ListedJob]
    now: datetime | None = None
    limit: int | None = None

    @property
    def total(self) -> int:
        """The number of jobs to change."""
        matching = sum(self.count.by_state.get(state, 0) for state in self.action.states)
        return matching if self.limit is None else min(matching, self.limit)

    @property
    def locked_count(self) -> int:
        """The number of jobs that match but stay as they are, because a worker holds them."""
        states = [state for state in LOCKED_STATES if state not in self.action.states]
        return sum(self.count.by_state.get(state, 0) for state in states)


@dataclass(frozen=True, kw_only=True, slots=True)
class BulkResult:
    """The number of jobs that were changed, skipped as locked, or no longer matched."""

    changed: int = 0
    skipped_locked: int = 0
    gone: int = 0


ProgressCallback = Callable[[BulkResult], object]


def plan_bulk_preview(
    action: BulkAction,
    job_filter: Filter,
    schemas: Schemas,
    *,
    limit: int | None = None,
    max_count: int | None = None,
    limits: QueryLimits = DEFAULT_LIMITS,
) -> Plan[BulkPreview]:
    """Preview a change.

    Args:
        action: The change.
        job_filter: Which jobs.
        schemas: The schemas of the queue.
        limit: Change at most this number of jobs, the oldest first.
        max_count: Count at most this number of the jobs that change, and of those that stay as
            they are. A preview that reaches this number is not complete: do not apply it.
        limits: The timeouts of each statement.

    Returns:
        A plan for the preview.

    Raises:
        QueryTimeoutError: A statement took too long or waited too long for a lock.
    """
    matching = job_filter & filter_by_states(*action.states)
    if max_count is None:
        count = yield from plan_count_jobs(job_filter, schemas, limits=limits)
    else:
        count = JobCounts({})
        others = [state for state in JobState if state not in action.states]
        for part in (matching, job_filter & filter_by_states(*others)):
            count += yield from plan_count_jobs(part, schemas, max_count=max_count, limits=limits)
    page = yield from plan_list_jobs(matching, schemas, limit=SAMPLE_SIZE, limits=limits)
    return BulkPreview(
        action=action,
        job_filter=job_filter,
        count=count,
        sample=page.jobs,
        now=page.now,
        limit=limit,
    )


def plan_bulk_change(
    preview: BulkPreview,
    schemas: Schemas,
    *,
    on_progress: ProgressCallback = lambda result: None,
    throttle: float = DEFAULT_THROTTLE,
    batch_size: int = BATCH_SIZE,
    scan_batch_size: int = SCAN_BATCH_SIZE,
    actor: str | None = None,
    audit_action: str | None = None,
) -> Plan[BulkResult]:
    """Change the jobs of a preview.

    Args:
        preview: The preview.
        schemas: The schemas of the queue.
        on_progress: Called with the result so far after each batch.
        throttle: The pause after each statement, as a multiple of its duration.
        batch_size: The number of jobs that one statement changes.
        scan_batch_size: The number of jobs that one statement checks against the filter.
        actor: Who changes the jobs, for the audit.
        audit_action: The name of the action in the audit, if it is not that of the change.

    Returns:
        A plan for the result.

    Raises:
        QueryTimeoutError: A statement took too long or waited too long for a lock.
    """
    action, result = preview.action, BulkResult()
    if preview.count.first_id is None or preview.count.last_id is None:
        return result
    dead = yield from plan_get_dead_pools(schemas, WRITE_LIMITS)
    # The scan also finds locked jobs, because the result counts them.
    scan_states = filter_by_states(*{*action.states, *LOCKED_STATES})
    scan_clauses = build_clauses(preview.job_filter & scan_states, dead)
    clauses = build_clauses(preview.job_filter & filter_by_states(*action.states), dead)

    label = AuditLabel(
        action=audit_action or action._audit_action,
        actor=actor,
        filter=format_for_audit(preview.job_filter),
        note=action._note,
    )

    def count_remaining() -> int:
        return batch_size if preview.limit is None else preview.limit - result.changed

    def pause_since(started: float) -> Plan[None]:
        if throttle:
            yield Pause((time.monotonic() - started) * throttle)

    after: int | None = preview.count.first_id - 1
    while after is not None and count_remaining():
        started = time.monotonic()
        scan = find_job_ids(after, preview.count.last_id, scan_batch_size, scan_clauses)
        after, ids = yield from with_limits(scan, schemas, WRITE_LIMITS)
        yield from pause_since(started)
        while ids and (size := min(batch_size, count_remaining())):
            started = time.monotonic()
            batch, ids = ids[:size], ids[size:]
            query = action._build_query(batch, clauses)
            audited = plan_audited(query, _get_changed_ids, schemas, label)
            changed_ids, locked = yield from limit_plan(audited, schemas, WRITE_LIMITS)
            changed = len(changed_ids)
            if changed and action._notifies_workers:
                yield notify_jobs(changed)
            result = BulkResult(
                changed=result.changed + changed,
                skipped_locked=result.skipped_locked + locked,
                gone=result.gone + len(batch) - changed - locked,
            )
            on_progress(result)
            yield from pause_since(started)
    return result


def _get_changed_ids(changed: ChangedJobs) -> list[int]:
    return changed[0]
