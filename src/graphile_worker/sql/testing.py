"""Queries of the helpers for tests, on the connection of a test."""

from collections.abc import Sequence

from graphile_worker.jobs import Job, When
from graphile_worker.sql.admin import read_count
from graphile_worker.sql.holding import HeldJob
from graphile_worker.sql.jobs import JOB_COLUMNS, read_job, read_jobs, when_args
from graphile_worker.sql.query import Query, Row


def get_enqueued_jobs(identifier: str | None) -> Query[list[Job]]:
    return Query("get_enqueued_jobs", (identifier,), read_jobs)


def take_job(pool_id: str, job_id: int, now: When | None) -> Query[HeldJob | None]:
    return Query("take_job", (pool_id, job_id, when_args(now)[0]), _read_held)


def clear_jobs(at_most: int) -> Query[int]:
    return Query("clear_jobs", (at_most,), read_count)


def probe() -> Query[int]:
    # With an argument, as sessions of SQLAlchemy cannot be asked without.
    return Query("probe", (1,), read_count)


def _read_held(rows: Sequence[Row]) -> HeldJob | None:
    return HeldJob(read_job(rows[0]), rows[0][JOB_COLUMNS]) if rows else None
