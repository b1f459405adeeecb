"""Queries that add, get and change jobs."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from graphile_worker._sql.query import Query, Row
from graphile_worker.jobs import Job, JobSpec, RunAt

# The columns of a Job in a row: id, two names, and those of fragments/job_columns.sql.
JOB_COLUMNS = 16

MICROSECOND = timedelta(microseconds=1)


def add_job(spec: JobSpec, payload: str | None) -> Query[list[Row]]:
    flags = list(spec.flags) if spec.flags else None
    args = (
        spec.identifier,
        payload,
        spec.queue_name,
        *encode_when(spec.run_at),
        spec.max_attempts,
        spec.job_key,
        spec.priority,
        flags,
        str(spec.job_key_mode or "replace"),
    )
    return Query("add_job", args, list)


def add_jobs(specs_json: str, expected: int | None) -> Query[list[Row]]:
    return Query("add_jobs", (specs_json, expected), list)


def get_task_and_queue_names(task_ids: list[int], queue_ids: list[int]) -> Query[list[Row]]:
    return Query("get_task_and_queue_names", (task_ids, queue_ids), list)


def get_job(job_id: int) -> Query[Job | None]:
    return Query("get_job", (job_id,), read_one_job)


def get_job_by_key(job_key: str) -> Query[Job | None]:
    return Query("get_job_by_key", (job_key,), read_one_job)


def remove_job(job_key: str) -> Query[Job | None]:
    return Query("remove_job", (job_key,), read_one_job)


def complete_jobs(job_ids: list[int]) -> Query[list[Job]]:
    return Query("complete_jobs", (job_ids,), read_jobs)


def permanently_fail_jobs(job_ids: list[int], reason: str | None) -> Query[list[Job]]:
    return Query("permanently_fail_jobs", (job_ids, reason), read_jobs)


def reschedule_jobs(
    job_ids: list[int],
    *,
    run_at: RunAt | None,
    priority: int | None,
    attempts: int | None,
    max_attempts: int | None,
) -> Query[list[Job]]:
    args = (job_ids, *encode_when(run_at), priority, attempts, max_attempts)
    return Query("reschedule_jobs", args, read_jobs)


def force_unlock_workers(pool_ids: list[str]) -> Query[tuple[list[int], int]]:
    """Return the ids of the unlocked jobs, and the number of unlocked queues."""
    return Query("force_unlock_workers", (pool_ids,), lambda rows: (rows[0][0], rows[0][1]))


def encode_when(when: RunAt | None) -> tuple[str | None, int | None]:
    """Encode a time for every driver: ISO text in UTC, or microseconds from the server's now()."""
    if isinstance(when, datetime):
        return when.astimezone(UTC).isoformat(), None
    if isinstance(when, timedelta):
        return None, when // MICROSECOND
    return None, None


def read_ids(rows: Sequence[Row]) -> set[int]:
    return {row[0] for row in rows}


def read_jobs(rows: Sequence[Row]) -> list[Job]:
    return [read_job(row) for row in rows]


def read_one_job(rows: Sequence[Row]) -> Job | None:
    return read_job(rows[0]) if rows else None


def read_job(row: Row) -> Job:
    return Job(*row[:JOB_COLUMNS])
