"""Bulk: the same done to many jobs, a thousand at a time, beside workers that go on working.

First a look at what would be changed, then the change. Each batch is a transaction of its own that
asks again whether its jobs are meant, never waits for a lock, and leaves alone what a worker holds.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.claim import notify_jobs
from graphile_worker._sql.queries.search import (
    ChangeCounts,
    Clauses,
    complete_chosen_jobs,
    fail_chosen_jobs,
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
from graphile_worker.ops.filters import Filter, filter_by_states
from graphile_worker.ops.search import (
    DEFAULT_LIMITS,
    JobCounts,
    ListedJob,
    QueryLimits,
    build_clauses,
    plan_count_jobs,
    plan_find_job_ids,
    plan_get_dead_pools,
    plan_list_jobs,
    with_limits,
)
from graphile_worker.ops.states import LOCKED_STATES, JobState

T = TypeVar("T")

BATCH_SIZE = 1000

# So many jobs one statement looks at, to find out which are meant.
SCAN_BATCH_SIZE = 20_000

SAMPLE_SIZE = 5

# A batch may take a little longer than a look, as it writes.
WRITE_LIMITS = QueryLimits(statement_timeout=timedelta(seconds=30))

# After each statement, so many times as long as it took nothing is done: others work here.
DEFAULT_THROTTLE = 4.0

UNLOCKED_STATES = tuple(state for state in JobState if state not in LOCKED_STATES)


class BulkAction(Protocol):
    """What is done to jobs, and in which states they must be."""

    @property
    def states(self) -> tuple[JobState, ...]: ...

    @property
    def notifies_workers(self) -> bool:
        """May jobs be ready then, of which workers should hear?"""
        ...

    def build_query(self, ids: list[int], clauses: Clauses) -> Query[ChangeCounts]: ...


@dataclass(frozen=True, slots=True)
class RetryAction:
    """Let them run now; those without attempts left get all of them back."""

    states = (JobState.FAILED, JobState.RETRYING, JobState.SCHEDULED)
    notifies_workers = True

    def build_query(self, ids: list[int], clauses: Clauses) -> Query[ChangeCounts]:
        return retry_jobs(ids, clauses)


@dataclass(frozen=True, kw_only=True, slots=True)
class RescheduleAction:
    """Change what is given, zero included."""

    run_at: RunAt | None = None
    priority: int | None = None
    attempts: int | None = None
    max_attempts: int | None = None

    states = UNLOCKED_STATES
    notifies_workers = True

    def __post_init__(self) -> None:
        if self.run_at is not None:
            check_run_at("run_at", self.run_at)
        if self.priority is not None:
            check_smallint("priority", self.priority)
        if self.attempts is not None:
            check_smallint("attempts", self.attempts)
        if self.max_attempts is not None:
            check_max_attempts(self.max_attempts)

    def build_query(self, ids: list[int], clauses: Clauses) -> Query[ChangeCounts]:
        given = (self.run_at, self.priority, self.attempts, self.max_attempts)
        return reschedule_chosen_jobs(ids, *given, clauses)


@dataclass(frozen=True, slots=True)
class FailAction:
    """Spend all their attempts, for a reason."""

    reason: str | None = None

    states = (JobState.WAITING, JobState.READY, JobState.RETRYING, JobState.SCHEDULED)
    notifies_workers = False

    def __post_init__(self) -> None:
        if self.reason is not None:
            check_text("reason", self.reason)

    def build_query(self, ids: list[int], clauses: Clauses) -> Query[ChangeCounts]:
        return fail_chosen_jobs(ids, self.reason, clauses)


@dataclass(frozen=True, slots=True)
class CompleteAction:
    """Delete them, as if they were done."""

    states = UNLOCKED_STATES
    notifies_workers = False

    def build_query(self, ids: list[int], clauses: Clauses) -> Query[ChangeCounts]:
        return complete_chosen_jobs(ids, clauses)


@dataclass(frozen=True, slots=True)
class UnlockAction:
    """Take them from dead workers; by force from any, and what one still runs may run twice."""

    force: bool = False

    notifies_workers = True

    @property
    def states(self) -> tuple[JobState, ...]:
        return LOCKED_STATES if self.force else (JobState.STALE,)

    def build_query(self, ids: list[int], clauses: Clauses) -> Query[ChangeCounts]:
        return unlock_chosen_jobs(ids, clauses)


@dataclass(frozen=True, kw_only=True, slots=True)
class BulkPreview:
    """What a change would be about: how many jobs, a few of them, and those that it leaves alone.

    Whatever is added later is not meant: the change goes no further than the last of these.
    """

    action: BulkAction
    job_filter: Filter
    count: JobCounts
    sample: list[ListedJob]
    now: datetime | None = None
    limit: int | None = None

    @property
    def total(self) -> int:
        """So many would be changed."""
        fitting = sum(self.count.by_state.get(state, 0) for state in self.action.states)
        return fitting if self.limit is None else min(fitting, self.limit)

    @property
    def locked_count(self) -> int:
        """So many are meant and left alone, as a worker holds them."""
        states = [state for state in LOCKED_STATES if state not in self.action.states]
        return sum(self.count.by_state.get(state, 0) for state in states)


@dataclass(frozen=True, kw_only=True, slots=True)
class BulkResult:
    """How many jobs were changed, left to who holds them, or gone: done, or not what they were."""

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
    limits: QueryLimits = DEFAULT_LIMITS,
) -> Plan[BulkPreview]:
    """What that action would change."""
    count = yield from plan_count_jobs(job_filter, schemas, limits=limits)
    fitting = job_filter & filter_by_states(*action.states)
    page = yield from plan_list_jobs(fitting, schemas, limit=SAMPLE_SIZE, limits=limits)
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
    on_progress: ProgressCallback = lambda outcome: None,
    throttle: float = DEFAULT_THROTTLE,
) -> Plan[BulkResult]:
    """Do what was looked at; what came of it, which is also said after each batch."""
    change = _BulkChange(preview, schemas, on_progress, throttle)
    if preview.count.first_id is not None and preview.count.last_id is not None:
        yield from change.plan_run(preview.count.first_id, preview.count.last_id)
    return change.result


class _BulkChange:
    """One way through the table, from the first of the jobs to the last."""

    def __init__(
        self, preview: BulkPreview, schemas: Schemas, on_progress: ProgressCallback, throttle: float
    ) -> None:
        self.result = BulkResult()
        self._preview = preview
        self._schemas = schemas
        self._on_progress = on_progress
        self._throttle = throttle

    def plan_run(self, first_id: int, last_id: int) -> Plan[None]:
        action, wanted = self._preview.action, self._preview.job_filter
        dead = yield from plan_get_dead_pools(self._schemas, WRITE_LIMITS)
        # What a worker holds is found as well, to be counted.
        found = build_clauses(wanted & filter_by_states(*{*action.states, *LOCKED_STATES}), dead)
        meant = build_clauses(wanted & filter_by_states(*action.states), dead)
        after: int | None = first_id - 1
        while after is not None and self._remaining != 0:
            after, ids = yield from self._plan_throttled(self._plan_find_ids(found, after, last_id))
            while ids and self._remaining != 0:
                batch, ids = ids[: self._next_batch_size], ids[self._next_batch_size :]
                yield from self._plan_throttled(self._plan_change_batch(batch, meant))

    @property
    def _remaining(self) -> int | None:
        """So many may still be changed; None: any number."""
        limit = self._preview.limit
        return None if limit is None else limit - self.result.changed

    @property
    def _next_batch_size(self) -> int:
        return BATCH_SIZE if self._remaining is None else min(BATCH_SIZE, self._remaining)

    def _plan_find_ids(
        self, clauses: Clauses, after: int, last: int
    ) -> Plan[tuple[int | None, list[int]]]:
        return plan_find_job_ids(
            clauses,
            self._schemas,
            after=after,
            until=last,
            scan_limit=SCAN_BATCH_SIZE,
            limits=WRITE_LIMITS,
        )

    def _plan_change_batch(self, batch: list[int], clauses: Clauses) -> Plan[None]:
        query = self._preview.action.build_query(batch, clauses)
        done, left = yield from with_limits(query, self._schemas, WRITE_LIMITS)
        if done and self._preview.action.notifies_workers:
            yield notify_jobs(done)
        before = self.result
        self.result = replace(
            before,
            changed=before.changed + done,
            skipped_locked=before.skipped_locked + left,
            gone=before.gone + len(batch) - done - left,
        )
        self._on_progress(self.result)

    def _plan_throttled(self, plan: Plan[T]) -> Plan[T]:
        """A part of the work, then a while for others."""
        began = time.monotonic()
        answer = yield from plan
        if self._throttle:
            yield Pause((time.monotonic() - began) * self._throttle)
        return answer
