"""Get what is known of one job, and what happened last."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.ended_jobs import (
    can_read_history,
    can_read_results,
    get_job_attempts,
    get_job_outcomes,
    get_job_progress,
    get_job_results,
)
from graphile_worker._sql.queries.history import get_history
from graphile_worker._sql.queries.outcomes import StoredStatus, get_status
from graphile_worker._sql.queries.search import set_query_limits
from graphile_worker._sql.query import Atomic, Plan, Query, Row
from graphile_worker._sql.sqlstate import INSUFFICIENT_PRIVILEGE, get_sqlstate
from graphile_worker.jobs import parse_timestamp
from graphile_worker.ops.filters import Filter
from graphile_worker.ops.history.access import plan_require_history
from graphile_worker.ops.history.ended_jobs import EndedJob, plan_read_outcomes, read_ended_job
from graphile_worker.ops.search import (
    DEFAULT_LIMITS,
    QueryLimits,
    _raise_query_error,
    limit_plan,
    plan_get_dead_pools,
    with_limits,
)
from graphile_worker.ops.states import JobState
from graphile_worker.results import Attempt, Progress

# What is read of one job.
MAX_OUTCOMES = 100

MAX_ATTEMPTS = 1_000

# The error of a standby, which has no unlogged tables.
FEATURE_NOT_SUPPORTED = "0A000"


@dataclass(frozen=True, kw_only=True, slots=True)
class JobHistory:
    """What is known of a job.

    Attributes:
        job_id: Id of the job.
        now: The time of the database.
        outcomes: Its outcomes, the newest first. A job that was retried by hand has several.
        attempts: The attempts that ended, oldest first, if its task keeps them.
        state: Its state, if the job is still in the table of jobs.
        task_identifier: Name of its task, None if nothing is known of the job.
        created_at: When it was added.
        progress: The progress that it reported last, if it is locked.
    """

    job_id: int
    now: datetime
    outcomes: tuple[EndedJob, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    state: JobState | None = None
    task_identifier: str | None = None
    created_at: datetime | None = None
    progress: Progress | None = None

    @property
    def is_known(self) -> bool:
        """Whether the job exists, or left something."""
        return bool(self.outcomes or self.attempts or self.state)


@dataclass(frozen=True, slots=True)
class RecentHistory:
    """The jobs that ended last, and the progress of running jobs by their ids."""

    ended: tuple[EndedJob, ...] = ()
    progress: Mapping[int, Progress] = field(default_factory=dict)


def plan_get_recent_history(
    schemas: Schemas,
    running_ids: Sequence[int],
    *,
    limit: int = 50,
    limits: QueryLimits = DEFAULT_LIMITS,
) -> Plan[RecentHistory | None]:
    """Get the jobs that ended last, and the progress of running jobs.

    Args:
        schemas: The schemas of the queue.
        running_ids: The ids of running jobs.
        limit: The number of ended jobs.
        limits: The timeouts of each statement.

    Returns:
        A plan for both, or for None if this role cannot read the tables.

    Raises:
        QueryTimeoutError: A statement took too long or waited too long for a lock.
    """
    if not (yield from with_limits(can_read_history(schemas), schemas, limits)):
        return None
    page = yield from limit_plan(plan_read_outcomes(Filter(), limit=limit), schemas, limits)
    progress: Mapping[int, Progress] = {}
    if running_ids:
        progress = yield from _plan_get_progress(list(running_ids), schemas, limits)
    return RecentHistory(tuple(page.jobs), progress)


def plan_get_job_history(
    job_id: int, schemas: Schemas, *, limits: QueryLimits = DEFAULT_LIMITS
) -> Plan[JobHistory]:
    """Get what is known of a job: its outcomes, its attempts, and its state if it exists.

    Args:
        job_id: The id of the job.
        schemas: The schemas of the queue.
        limits: The timeouts of each statement.

    Returns:
        A plan for the history. `is_known` is false if the job does not exist and left nothing.

    Raises:
        HistoryMissing: The tables do not exist, or this role may not read them.
        QueryTimeoutError: A statement took too long or waited too long for a lock.
    """
    yield from plan_require_history(schemas, limits)
    dead = yield from plan_get_dead_pools(schemas, limits)
    # The row first: if the job ends meanwhile, its outcome is there afterwards.
    queries = (
        get_status(dead, job_id),
        get_history(),
        get_job_outcomes(job_id, MAX_OUTCOMES),
        get_job_attempts(job_id, MAX_ATTEMPTS),
        can_read_results(schemas),
    )
    row, ring, outcomes, attempts, has_results = yield from _plan_all(queries, schemas, limits)
    results: Mapping[str, tuple[str | None, str | None]] = {}
    if outcomes and has_results:
        query = get_job_results(job_id, MAX_OUTCOMES)
        results = yield from with_limits(query, schemas, limits)
    progress: Mapping[int, Progress] = {}
    if row is not None:
        progress = yield from _plan_get_progress([job_id], schemas, limits)
    assert ring is not None
    history = JobHistory(
        job_id=job_id,
        now=ring.now,
        outcomes=tuple(read_ended_job(each, is_listed=False, results=results) for each in outcomes),
        attempts=tuple(_read_attempt(each) for each in attempts),
        progress=progress.get(job_id),
    )
    return _add_job(history, row)


def _plan_all(
    queries: Sequence[Query[Any]], schemas: Schemas, limits: QueryLimits
) -> Plan[list[Any]]:
    """Run queries with timeouts, in one transaction."""
    timeouts = (limits.statement_timeout, limits.lock_timeout)
    milliseconds = (max(1, each // timedelta(milliseconds=1)) for each in timeouts)
    try:
        results: list[Any] = yield Atomic((set_query_limits(*milliseconds), *queries))
    except Exception as error:
        _raise_query_error(error, schemas, limits)
    return results[1:]


def _add_job(history: JobHistory, row: StoredStatus | None) -> JobHistory:
    if row is not None:
        return replace(
            history,
            state=JobState(row.state),
            task_identifier=row.task_identifier,
            created_at=row.created_at,
        )
    if history.outcomes:
        last = history.outcomes[0]
        return replace(history, task_identifier=last.task_identifier, created_at=last.created_at)
    return history


def _read_attempt(row: Row) -> Attempt:
    number, started, seconds, worker, error, error_class = row
    return Attempt(
        number=number,
        started_at=parse_timestamp(started),
        duration=timedelta(seconds=seconds),
        worker=worker,
        error=error,
        error_class=error_class,
    )


def _plan_get_progress(
    job_ids: list[int], schemas: Schemas, limits: QueryLimits
) -> Plan[Mapping[int, Progress]]:
    try:
        rows = yield from with_limits(get_job_progress(job_ids), schemas, limits)
    except Exception as error:
        if get_sqlstate(error) not in (FEATURE_NOT_SUPPORTED, INSUFFICIENT_PRIVILEGE):
            raise
        return {}
    return _read_progress(rows)


def _read_progress(rows: Iterable[Row]) -> Mapping[int, Progress]:
    return {
        job_id: Progress(fraction=fraction, message=message, updated_at=parse_timestamp(updated))
        for job_id, fraction, message, updated in rows
    }


def format_progress(progress: Progress) -> str:
    """Format the progress of a job: `40 %, page 4 of 10`.

    Args:
        progress: The progress.
    """
    fraction = None if progress.fraction is None else f"{progress.fraction:.0%}".replace("%", " %")
    return ", ".join(part for part in (fraction, progress.message) if part)
