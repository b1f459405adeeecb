"""Queries about pools that are gone, and what they left locked."""

from graphile_worker.jobs import When
from graphile_worker.sql.jobs import when_args
from graphile_worker.sql.query import Query


def unlock_stale_jobs(now: When | None = None, *, but_of: str | None = None) -> Query[int]:
    return Query("unlock_stale_jobs", (when_args(now)[0], but_of), lambda rows: rows[0][0])
