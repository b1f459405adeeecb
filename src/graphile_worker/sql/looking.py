"""Queries for one look at a whole queue. None of them writes, and only one reads all jobs."""

from collections.abc import Sequence
from dataclasses import dataclass

from graphile_worker.sql.identifiers import Schemas
from graphile_worker.sql.query import Query, Row, read_nothing


@dataclass(frozen=True, slots=True)
class JobsRow:
    """The jobs of a task in one state; `apart` is the one that is locked, or their held queue."""

    task_id: int
    state: str
    apart: int | None
    count: int
    due_for: float
    first_id: int
    last_id: int


@dataclass(frozen=True, slots=True)
class LockRow:
    """Who holds a job; `age` in seconds."""

    job_id: int
    queue_id: int | None
    locked_by: str | None
    age: float
    attempts: int
    max_attempts: int


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A named queue that somebody holds."""

    id: int
    name: str
    locked_by: str | None
    age: float


@dataclass(frozen=True, slots=True)
class ServerRow:
    """Where we are, the counters of the table of jobs, and the oldest transaction of others."""

    now: str
    database: str
    role: str
    level: int | None
    added: int
    deleted: int
    live_rows: int
    dead_rows: int
    since_vacuum: float | None
    owner: str
    hides_rows: bool
    holder: str | None
    holder_state: str | None
    held_for: float | None
    up_for: float


def limit_look(milliseconds: int) -> Query[None]:
    return Query("limit_look", (milliseconds,), read_nothing)


def look_at_jobs(dead: list[str], most: int) -> Query[list[JobsRow]]:
    return Query("look_at_jobs", (dead, most), lambda rows: [JobsRow(*row) for row in rows])


def look_at_locks(job_ids: list[int]) -> Query[list[LockRow]]:
    return Query("look_at_locks", (job_ids,), lambda rows: [LockRow(*row) for row in rows])


def look_at_queues(most: int) -> Query[list[QueueRow]]:
    return Query("look_at_queues", (most,), lambda rows: [QueueRow(*row) for row in rows])


def look_at_server(schemas: Schemas) -> Query[ServerRow | None]:
    return Query("look_at_server", (schemas.shared,), _read_server)


def get_last_errors(job_ids: list[int]) -> Query[dict[int, str]]:
    return Query("get_last_errors", (job_ids,), lambda rows: {row[0]: row[1] for row in rows})


def _read_server(rows: Sequence[Row]) -> ServerRow | None:
    return ServerRow(*rows[0]) if rows else None
