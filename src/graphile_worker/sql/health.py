"""Queries about what may be wrong with a queue. None of them writes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from graphile_worker.sql.identifiers import Schemas
from graphile_worker.sql.query import Query, Row, read_nothing

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Session:
    """Which server this is, and as whom we are there."""

    version_number: int
    version: str
    database: str
    role: str
    is_standby: bool
    only_reads: bool
    sees_all_sessions: bool
    backend_pid: int


@dataclass(frozen=True, slots=True)
class Access:
    """What a role lacks to use a table or a function.

    `hides_rows`: it would see none of its rows, and no error either. `has_policies`: some role has
    a policy on it.
    """

    is_companion: bool
    name: str
    owner: str
    owner_is_superuser: bool
    may_use_schema: bool
    lacks: tuple[str, ...]
    hides_rows: bool
    has_policies: bool

    @property
    def is_readable(self) -> bool:
        return self.may_use_schema and "select" not in self.lacks and not self.hides_rows


@dataclass(frozen=True, slots=True)
class Level:
    """One row of the shared ledger; `at` in seconds since 1970."""

    id: int
    at: float
    breaking: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One row of the companion's ledger."""

    id: int
    at: float
    by: str


@dataclass(frozen=True, slots=True)
class JobGroup:
    """Jobs that have in common what is lost, and who has locked them."""

    lost_task_id: int | None
    lost_queue_id: int | None
    locked_by: str | None
    count: int
    stale: int
    first_id: int
    oldest_lock: float | None


@dataclass(frozen=True, slots=True)
class QueueGroup:
    """Named queues that somebody has locked."""

    locked_by: str | None
    count: int
    stale: int
    first_name: str
    oldest_lock: float | None


@dataclass(frozen=True, slots=True)
class PoolRow:
    """A pool of our registry; times in seconds."""

    id: str
    silence: float
    lease: float
    is_swept: bool
    server_up: float
    started_at: float
    host: str | None
    pid: str | None
    clock: str | None


@dataclass(frozen=True, slots=True)
class DeadRows:
    """What a vacuum has to do in a table; `since` is seconds since the last one, None if none."""

    table: str
    live: int
    dead: int
    since: float | None
    is_off: bool


@dataclass(frozen=True, slots=True)
class IdSequence:
    """How far the ids of a table are."""

    table: str
    sequence: str
    last: int
    most: int

    @property
    def fill(self) -> float:
        return self.last / self.most


@dataclass(frozen=True, slots=True)
class FreeIds:
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Connections:
    used: int
    usable: int


@dataclass(frozen=True, slots=True)
class PathRight:
    """A role that may create functions in a schema on the search path.

    `comes_first`: PostgreSQL searches that schema before its own, pg_catalog.
    """

    schema: str
    role: str
    owns_schema: bool
    comes_first: bool


def limit_statements(timeout: timedelta) -> Query[None]:
    milliseconds = max(1, timeout // timedelta(milliseconds=1))
    return Query("limit_statements", (milliseconds,), read_nothing)


def inspect_session() -> Query[Session]:
    return Query("inspect_session", (), lambda rows: Session(*rows[0]))


def inspect_access(schemas: Schemas) -> Query[list[Access]]:
    return Query("inspect_access", (schemas.shared, schemas.companion), _read_access)


def inspect_path(schemas: Schemas) -> Query[list[PathRight]]:
    return Query("inspect_path", (schemas.shared,), _all(PathRight))


def get_ledger_history() -> Query[list[Level]]:
    return Query("get_ledger_history", (), _all(Level))


def get_ext_history() -> Query[list[Step]]:
    return Query("get_ext_history", (), _all(Step))


def survey_jobs() -> Query[list[JobGroup]]:
    return Query("survey_jobs", (), _all(JobGroup))


def survey_queues() -> Query[list[QueueGroup]]:
    return Query("survey_queues", (), _all(QueueGroup))


def survey_pools() -> Query[list[PoolRow]]:
    return Query("survey_pools", (), _all(PoolRow))


def get_dead_rows(schemas: Schemas) -> Query[list[DeadRows]]:
    return Query("get_dead_rows", (schemas.shared,), _all(DeadRows))


def get_sequences(schemas: Schemas) -> Query[list[IdSequence]]:
    return Query("get_sequences", (schemas.shared,), _all(IdSequence))


def find_free_task_ids() -> Query[FreeIds]:
    return Query("find_free_task_ids", (), lambda rows: FreeIds(*rows[0]))


def find_free_queue_ids() -> Query[FreeIds]:
    return Query("find_free_queue_ids", (), lambda rows: FreeIds(*rows[0]))


def get_notify_usage() -> Query[float]:
    return Query("get_notify_usage", (), lambda rows: float(rows[0][0]))


def count_connections() -> Query[Connections]:
    return Query("count_connections", (), lambda rows: Connections(*rows[0]))


def _all(kind: Callable[..., T]) -> Callable[[Sequence[Row]], list[T]]:
    return lambda rows: [kind(*row) for row in rows]


def _read_access(rows: Sequence[Row]) -> list[Access]:
    return [
        Access(is_companion, name, owner, is_superuser, may_use, tuple(lacks), hides, policies)
        for is_companion, name, owner, is_superuser, may_use, lacks, hides, policies in rows
    ]
