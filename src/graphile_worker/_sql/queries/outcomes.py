"""Queries that read what became of jobs."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.query import Query, Row
from graphile_worker.jobs import parse_timestamp
from graphile_worker.results import Attempt, Progress


@dataclass(frozen=True, slots=True)
class HistoryAccess:
    """Which tables of the history exist, and which this role may read.

    `has_hidden_jobs` is true if row level security hides all jobs from this role.
    """

    has_outcomes: bool
    can_read_outcomes: bool
    can_read_results: bool
    can_read_attempts: bool
    can_read_progress: bool
    has_hidden_jobs: bool


@dataclass(frozen=True, slots=True)
class StoredStatus:
    """The row of a job, without its payload."""

    task_identifier: str | None
    state: str
    attempt_count: int
    error: str | None
    created_at: datetime
    locked_by: str | None


@dataclass(frozen=True, slots=True)
class StoredOutcome:
    """The outcome of a job, without its result."""

    task_identifier: str
    succeeded: bool
    attempt_count: int
    error: str | None
    created_at: datetime
    started_at: datetime
    finished_at: datetime


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
        )
        for number, started_at, duration, pool_id, error in rows
    )


def _read_progress(rows: Sequence[Row]) -> Progress | None:
    if not rows:
        return None
    fraction, message, updated_at = rows[0]
    return Progress(fraction=fraction, message=message, updated_at=parse_timestamp(updated_at))
