"""Queries for a snapshot of a queue. None of them writes, and only one reads all jobs."""

from dataclasses import dataclass
from datetime import timedelta

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.query import Query, read_as, read_dict


@dataclass(frozen=True, slots=True)
class JobCountRow:
    """Jobs of a task in one state. `locked_id` is the id of the locked job or queue."""

    task_id: int
    state: str
    locked_id: int | None
    missing_queue_id: int | None
    count: int
    overdue_seconds: float
    first_id: int
    last_id: int
    oldest_failure_seconds: float | None
    newest_failure_seconds: float | None


@dataclass(frozen=True, slots=True)
class LockRow:
    """The lock of a job."""

    job_id: int
    queue_id: int | None
    locked_by: str | None
    age_seconds: float
    attempts: int
    max_attempts: int


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A named queue that is locked."""

    id: int
    name: str
    locked_by: str | None
    age_seconds: float


@dataclass(frozen=True, slots=True)
class ServerRow:
    """The session, the levels of the schema, and the counters of the table of jobs."""

    now: str
    database: str
    role: str
    level: int | None
    breaking_level: int | None
    rows_added: int
    rows_deleted: int
    owner: str
    has_hidden_rows: bool
    uptime_seconds: float


def set_limits(timeout: timedelta, program: str) -> Query[None]:
    milliseconds = max(1, timeout // timedelta(milliseconds=1))
    return Query("set_limits", (milliseconds, f"graphile-worker {program}"))


def snapshot_jobs(dead_pool_ids: list[str], max_rows: int) -> Query[list[JobCountRow]]:
    return Query("snapshot_jobs", (dead_pool_ids, max_rows), read_as(JobCountRow))


def snapshot_locks(job_ids: list[int]) -> Query[list[LockRow]]:
    return Query("snapshot_locks", (job_ids,), read_as(LockRow))


def snapshot_queues(max_rows: int) -> Query[list[QueueRow]]:
    return Query("snapshot_queues", (max_rows,), read_as(QueueRow))


def snapshot_server(schemas: Schemas) -> Query[ServerRow | None]:
    return Query(
        "snapshot_server", (schemas.shared,), lambda rows: ServerRow(*rows[0]) if rows else None
    )


def get_last_errors(job_ids: list[int]) -> Query[dict[int, str]]:
    return Query("get_last_errors", (job_ids,), read_dict)
