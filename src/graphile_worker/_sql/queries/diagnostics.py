"""Queries about what may be wrong with a queue. None of them writes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.query import Query, Row, read_nothing

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServerSession:
    """Which server this is, and as whom we are there."""

    version_number: int
    version: str
    database: str
    role: str
    is_standby: bool
    is_read_only: bool
    can_see_all_sessions: bool
    backend_pid: int


@dataclass(frozen=True, slots=True)
class ObjectAccess:
    """What a role lacks to use a table or a function.

    `has_hidden_rows`: it would see none of its rows, and no error either. `has_policies`: some
    role has a policy on it.
    """

    is_companion: bool
    name: str
    owner: str
    is_owner_superuser: bool
    can_use_schema: bool
    missing_privileges: tuple[str, ...]
    has_hidden_rows: bool
    has_policies: bool

    @property
    def is_readable(self) -> bool:
        return (
            self.can_use_schema
            and "select" not in self.missing_privileges
            and not self.has_hidden_rows
        )


@dataclass(frozen=True, slots=True)
class SharedMigration:
    """One row of the shared ledger; `at` in seconds since 1970."""

    id: int
    applied_at: float
    is_breaking: bool


@dataclass(frozen=True, slots=True)
class CompanionMigration:
    """One row of the companion's ledger."""

    id: int
    applied_at: float
    applied_by: str


@dataclass(frozen=True, slots=True)
class JobGroup:
    """Jobs that have in common what is lost, and who has locked them."""

    missing_task_id: int | None
    missing_queue_id: int | None
    locked_by: str | None
    count: int
    stale_count: int
    first_id: int
    oldest_lock_seconds: float | None


@dataclass(frozen=True, slots=True)
class QueueGroup:
    """Named queues that somebody has locked."""

    locked_by: str | None
    count: int
    stale_count: int
    first_name: str
    oldest_lock_seconds: float | None


@dataclass(frozen=True, slots=True)
class PoolRow:
    """A pool of our registry; times in seconds."""

    id: str
    seconds_since_heartbeat: float
    lease: float
    is_rescued: bool
    server_uptime: float
    started_at: float
    host: str | None
    pid: str | None
    clock: str | None


@dataclass(frozen=True, slots=True)
class DeadRows:
    """What a vacuum has to do in a table; `since` is seconds since the last one, None if none."""

    table: str
    live_rows: int
    dead_rows: int
    seconds_since_vacuum: float | None
    is_autovacuum_off: bool


@dataclass(frozen=True, slots=True)
class IdSequence:
    """How far the ids of a table are."""

    table: str
    sequence: str
    last_value: int
    max_value: int

    @property
    def fill_ratio(self) -> float:
        return self.last_value / self.max_value


@dataclass(frozen=True, slots=True)
class FreeIds:
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class ConnectionUsage:
    used: int
    max_usable: int


@dataclass(frozen=True, slots=True)
class SearchPathGrant:
    """A role that may create functions in a schema on the search path.

    `is_before_catalog`: PostgreSQL searches that schema before its own, pg_catalog.
    """

    schema: str
    role: str
    is_schema_owner: bool
    is_before_catalog: bool


def set_diagnostic_limits(timeout: timedelta) -> Query[None]:
    milliseconds = max(1, timeout // timedelta(milliseconds=1))
    return Query("set_diagnostic_limits", (milliseconds,), read_nothing)


def inspect_session() -> Query[ServerSession]:
    return Query("inspect_session", (), lambda rows: ServerSession(*rows[0]))


def inspect_access(schemas: Schemas) -> Query[list[ObjectAccess]]:
    return Query("inspect_access", (schemas.shared, schemas.companion), _read_access)


def inspect_search_path(schemas: Schemas) -> Query[list[SearchPathGrant]]:
    return Query("inspect_search_path", (schemas.shared,), _read_all(SearchPathGrant))


def get_ledger_history() -> Query[list[SharedMigration]]:
    return Query("get_ledger_history", (), _read_all(SharedMigration))


def get_ext_history() -> Query[list[CompanionMigration]]:
    return Query("get_ext_history", (), _read_all(CompanionMigration))


def diagnose_jobs() -> Query[list[JobGroup]]:
    return Query("diagnose_jobs", (), _read_all(JobGroup))


def diagnose_queues() -> Query[list[QueueGroup]]:
    return Query("diagnose_queues", (), _read_all(QueueGroup))


def diagnose_pools() -> Query[list[PoolRow]]:
    return Query("diagnose_pools", (), _read_all(PoolRow))


def get_dead_rows(schemas: Schemas) -> Query[list[DeadRows]]:
    return Query("get_dead_rows", (schemas.shared,), _read_all(DeadRows))


def get_sequences(schemas: Schemas) -> Query[list[IdSequence]]:
    return Query("get_sequences", (schemas.shared,), _read_all(IdSequence))


def find_free_task_ids() -> Query[FreeIds]:
    return Query("find_free_task_ids", (), lambda rows: FreeIds(*rows[0]))


def find_free_queue_ids() -> Query[FreeIds]:
    return Query("find_free_queue_ids", (), lambda rows: FreeIds(*rows[0]))


def get_notify_usage() -> Query[float]:
    return Query("get_notify_usage", (), lambda rows: float(rows[0][0]))


def count_connections() -> Query[ConnectionUsage]:
    return Query("count_connections", (), lambda rows: ConnectionUsage(*rows[0]))


def _read_all(kind: Callable[..., T]) -> Callable[[Sequence[Row]], list[T]]:
    return lambda rows: [kind(*row) for row in rows]


def _read_access(rows: Sequence[Row]) -> list[ObjectAccess]:
    return [
        ObjectAccess(
            is_companion, name, owner, is_superuser, may_use, tuple(lacks), hides, policies
        )
        for is_companion, name, owner, is_superuser, may_use, lacks, hides, policies in rows
    ]
