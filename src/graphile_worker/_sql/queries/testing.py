"""Queries of `graphile_worker.testing`, on the connection of a test."""

from collections.abc import Sequence

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._sql.queries.jobs import JOB_COLUMNS, encode_when, read_job, read_jobs
from graphile_worker._sql.query import Query, Row, read_bool, read_count
from graphile_worker._support.lazy_dataclass import LazyDataclass
from graphile_worker.jobs import Job, RunAt


class QueueState(LazyDataclass):
    """Which objects of the shared schema exist."""

    functions: frozenset[str]
    relations: frozenset[str]
    is_uncommitted: bool
    """Whether a rollback of the open transaction removes tables of the schema."""


def inspect_queue(schemas: Schemas) -> Query[QueueState]:
    return Query("inspect_queue", (schemas.shared,), _read_queue)


def get_enqueued_jobs(identifier: str | None) -> Query[list[Job]]:
    return Query("get_enqueued_jobs", (identifier,), read_jobs)


def claim_job(pool_id: str, job_id: int, now: RunAt | None) -> Query[ClaimedJob | None]:
    return Query("claim_job", (pool_id, job_id, encode_when(now)[0]), _read_claimed_job)


def clear_jobs(max_jobs: int) -> Query[int]:
    return Query("clear_jobs", (max_jobs,), read_count)


def can_clear_history(schemas: Schemas) -> Query[bool]:
    return Query("can_clear_history", (schemas.companion,), read_bool)


def clear_history(max_job_id: int) -> Query[None]:
    # With an argument: SQLAlchemy sessions cannot run statements without one.
    return Query("clear_history", (max_job_id,))


def probe() -> Query[int]:
    # With an argument: SQLAlchemy sessions cannot run statements without one.
    return Query("probe", (1,), read_count)


def _read_queue(rows: Sequence[Row]) -> QueueState:
    functions, relations, is_uncommitted = rows[0]
    return QueueState(frozenset(functions), frozenset(relations), is_uncommitted)


def _read_claimed_job(rows: Sequence[Row]) -> ClaimedJob | None:
    return ClaimedJob(read_job(rows[0]), rows[0][JOB_COLUMNS]) if rows else None
