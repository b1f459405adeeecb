"""Queries of the checks of `graphile-worker doctor`. None of them writes."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.query import Query, Row, read_as, read_count


@dataclass(frozen=True, slots=True)
class ServerSession:
    """The server, and the role and privileges of this session."""

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
    """The privileges that a role lacks on a table or a function.

    `has_hidden_rows`: row level security hides all rows from the role, without an error.
    `has_policies`: the table has a policy for some role.
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
    """One row of the shared ledger. `applied_at` is in seconds since 1970."""

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
class DeadRows:
    """The live and dead rows of a table. `seconds_since_vacuum` is None without a vacuum."""

    table: str
    live_rows: int
    dead_rows: int
    seconds_since_vacuum: float | None
    is_autovacuum_off: bool


@dataclass(frozen=True, slots=True)
class IdSequence:
    """A sequence of ids and the last id that it gave out."""

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

    With `is_before_catalog` PostgreSQL searches that schema before pg_catalog.
    """

    schema: str
    role: str
    is_schema_owner: bool
    is_before_catalog: bool


def inspect_session() -> Query[ServerSession]:
    return Query("inspect_session", (), lambda rows: ServerSession(*rows[0]))


def inspect_access(schemas: Schemas) -> Query[list[ObjectAccess]]:
    return Query("inspect_access", (schemas.shared, schemas.companion), _read_access)


def inspect_search_path(schemas: Schemas) -> Query[list[SearchPathGrant]]:
    return Query("inspect_search_path", (schemas.shared,), read_as(SearchPathGrant))


def get_ledger_history() -> Query[list[SharedMigration]]:
    return Query("get_ledger_history", (), read_as(SharedMigration))


def get_ext_history() -> Query[list[CompanionMigration]]:
    return Query("get_ext_history", (), read_as(CompanionMigration))


def get_dead_rows(schemas: Schemas) -> Query[list[DeadRows]]:
    return Query("get_dead_rows", (schemas.shared,), read_as(DeadRows))


def get_sequences(schemas: Schemas) -> Query[list[IdSequence]]:
    return Query("get_sequences", (schemas.shared,), read_as(IdSequence))


def find_free_task_ids() -> Query[FreeIds]:
    return Query("find_free_task_ids", (), lambda rows: FreeIds(*rows[0]))


def find_free_queue_ids() -> Query[FreeIds]:
    return Query("find_free_queue_ids", (), lambda rows: FreeIds(*rows[0]))


def get_notify_usage() -> Query[float]:
    return Query("get_notify_usage", (), lambda rows: float(rows[0][0]))


def count_notify_waiters(delay: timedelta) -> Query[int]:
    return Query("count_notify_waiters", (delay // timedelta(milliseconds=1),), read_count)


def count_connections() -> Query[ConnectionUsage]:
    return Query("count_connections", (), lambda rows: ConnectionUsage(*rows[0]))


def _read_access(rows: Sequence[Row]) -> list[ObjectAccess]:
    return [ObjectAccess(*_with_tuples(row)) for row in rows]


def _with_tuples(row: Row) -> Row:
    return [tuple(each) if isinstance(each, list) else each for each in row]
