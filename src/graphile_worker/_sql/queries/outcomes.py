"""Queries that read what became of jobs."""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.query import Query, Row
from graphile_worker._support.lazy_dataclass import LazyDataclass, LazyKeywordDataclass
from graphile_worker.jobs import parse_timestamp
from graphile_worker.results import Attempt, Progress


class HistoryAccess(LazyDataclass):
    """Which tables of the history exist, and which this role may read.

    `has_hidden_jobs` is true if row level security hides all jobs from this role.
    """

    has_outcomes: bool
    can_read_outcomes: bool
    can_read_results: bool
    can_read_attempts: bool
    can_read_progress: bool
    has_hidden_jobs: bool


class StoredStatus(LazyDataclass):
    """The row of a job, without its payload."""

    task_identifier: str | None
    state: str
    attempt_count: int
    error: str | None
    created_at: datetime
    locked_by: str | None


class StoredOutcome(LazyDataclass):
    """The outcome of a job, without its result."""

    task_identifier: str
    succeeded: bool
    attempt_count: int
    error: str | None
    created_at: datetime
    started_at: datetime
    finished_at: datetime


class JobRow(LazyKeywordDataclass):
    """The row of a job, with its payload as JSON text."""

    task_identifier: str | None
    payload: str
    priority: int
    has_no_attempts: bool
    error: str | None
    attempts: int
    created_at: datetime
    run_at: datetime
    locked_at: datetime | None
    locked_by: str | None
    changed_at: datetime
    """Not after the time at which a job failed permanently, if that is its state."""


class OutcomeRow(LazyKeywordDataclass):
    """The outcome of a job. The payload and the result are JSON text, or None if not kept."""

    task_identifier: str
    payload: str | None
    priority: int | None
    succeeded: bool
    error: str | None
    error_class: str | None
    attempts: int
    created_at: datetime
    run_at: datetime
    started_at: datetime
    finished_at: datetime
    pool_id: str
    result: str | None


class JobRecord(LazyDataclass):
    """What one look at the tables finds of a job."""

    row: JobRow | None
    outcome: OutcomeRow | None
    attempts: tuple[Attempt, ...]


def inspect_history_access(schemas: Schemas) -> Query[HistoryAccess]:
    args = (schemas.companion, schemas.shared)
    return Query("inspect_history_access", args, lambda rows: HistoryAccess(*rows[0]))


def find_ended_jobs(job_ids: list[int]) -> Query[list[Row]]:
    return Query("find_ended_jobs", (job_ids,), list)


def find_deleted_jobs(job_ids: list[int]) -> Query[list[Row]]:
    return Query("find_deleted_jobs", (job_ids,), list)


def get_status(dead_pool_ids: list[str], job_id: int) -> Query[StoredStatus | None]:
    return Query("get_status", (dead_pool_ids, job_id), _read_status)


def get_status_outcome(job_id: int) -> Query[StoredOutcome | None]:
    return Query("get_status_outcome", (job_id,), _read_outcome)


def get_status_attempts(job_id: int) -> Query[tuple[Attempt, ...]]:
    return Query("get_status_attempts", (job_id,), _read_attempts)


def get_status_progress(job_id: int, pool_id: str) -> Query[Progress | None]:
    return Query("get_status_progress", (job_id, pool_id), _read_progress)


def get_job_record(job_id: int) -> Query[JobRecord]:
    """Return what is known of a job, with its payload and its result."""
    return Query("get_job_record", (job_id,), _read_record)


def _read_record(rows: Sequence[Row]) -> JobRecord:
    values = list(rows[0])
    row, outcome, attempts = values[:11], values[11:24], values[24]
    found = None
    if row[2] is not None:
        task, payload, priority, has_no_attempts, error, count, *rest = row
        created, run, locked, locked_by, changed = rest
        found = JobRow(
            task_identifier=task,
            payload=payload,
            priority=priority,
            has_no_attempts=has_no_attempts,
            error=error,
            attempts=count,
            created_at=parse_timestamp(created),
            run_at=parse_timestamp(run),
            locked_at=None if locked is None else parse_timestamp(locked),
            locked_by=locked_by,
            changed_at=parse_timestamp(changed),
        )
    kept = None
    if outcome[0] is not None:
        task, payload, priority, succeeded, error, error_class, count, *rest = outcome
        *times, pool_id, result = rest
        created_at, run_at, started_at, finished_at = map(parse_timestamp, times)
        kept = OutcomeRow(
            task_identifier=task,
            payload=payload,
            priority=priority,
            succeeded=succeeded,
            error=error,
            error_class=error_class,
            attempts=count,
            created_at=created_at,
            run_at=run_at,
            started_at=started_at,
            finished_at=finished_at,
            pool_id=pool_id,
            result=result,
        )
    return JobRecord(found, kept, _read_attempts(json.loads(attempts or "[]")))


def _read_status(rows: Sequence[Row]) -> StoredStatus | None:
    if not rows:
        return None
    task, state, attempts, error, created_at, locked_by = rows[0]
    return StoredStatus(task, state, attempts, error, parse_timestamp(created_at), locked_by)


def _read_outcome(rows: Sequence[Row]) -> StoredOutcome | None:
    if not rows:
        return None
    task, succeeded, attempts, error, *times = rows[0]
    return StoredOutcome(task, succeeded, attempts, error, *map(parse_timestamp, times))


def _read_attempts(rows: Sequence[Row]) -> tuple[Attempt, ...]:
    return tuple(
        Attempt(
            number=number,
            started_at=parse_timestamp(started_at),
            duration=timedelta(seconds=duration),
            worker=pool_id,
            error=error,
            error_class=error_class,
        )
        for number, started_at, duration, pool_id, error, error_class in rows
    )


def _read_progress(rows: Sequence[Row]) -> Progress | None:
    if not rows:
        return None
    fraction, message, updated_at = rows[0]
    return Progress(fraction=fraction, message=message, updated_at=parse_timestamp(updated_at))
