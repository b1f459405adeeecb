"""Queries for one look at a whole queue. None of them writes, and only one reads all jobs."""

from collections.abc import Sequence
from dataclasses import dataclass

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.query import Query, Row, read_nothing


@dataclass(frozen=True, slots=True)
class JobCountRow:
    """The jobs of a task in one state; `apart` is the one that is locked, or their held queue."""

    task_id: int
    state: str
    locked_id: int | None
    count: int
    overdue_seconds: float
    first_id: int
    last_id: int


@dataclass(frozen=True, slots=True)
class LockRow:
    """Who holds a job; `age` in seconds."""

    job_id: int
    queue_id: int | None
    locked_by: str | None
    age_seconds: float
    attempts: int
    max_attempts: int


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A named queue that somebody holds."""

    id: int
    name: str
    locked_by: str | None
    age_seconds: float


@dataclass(frozen=True, slots=True)
class ServerRow:
    """Where we are, the counters of the table of jobs, and the oldest transaction of others."""

    now: str
    database: str
    role: str
    level: int | None
    rows_added: int
    rows_deleted: int
    live_rows: int
    dead_rows: int
    seconds_since_vacuum: float | None
    owner: str
    has_hidden_rows: bool
    oldest_transaction: str | None
    oldest_transaction_state: str | None
    oldest_transaction_seconds: float | None
    uptime_seconds: float


def set_limits(milliseconds: int) -> Query[None]:
    return Query("set_limits", (milliseconds,), read_nothing)


def snapshot_jobs(dead_pool_ids: list[str], max_rows: int) -> Query[list[JobCountRow]]:
    return Query(
        "snapshot_jobs", (dead_pool_ids, max_rows), lambda rows: [JobCountRow(*row) for row in rows]
    )


def snapshot_locks(job_ids: list[int]) -> Query[list[LockRow]]:
    return Query("snapshot_locks", (job_ids,), lambda rows: [LockRow(*row) for row in rows])


def snapshot_queues(max_rows: int) -> Query[list[QueueRow]]:
    return Query("snapshot_queues", (max_rows,), lambda rows: [QueueRow(*row) for row in rows])


def snapshot_server(schemas: Schemas) -> Query[ServerRow | None]:
    return Query("snapshot_server", (schemas.shared,), _read_server)


def get_last_errors(job_ids: list[int]) -> Query[dict[int, str]]:
    return Query("get_last_errors", (job_ids,), lambda rows: {row[0]: row[1] for row in rows})


def _read_server(rows: Sequence[Row]) -> ServerRow | None:
    return ServerRow(*rows[0]) if rows else None
