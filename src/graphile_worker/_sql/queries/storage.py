"""Queries about how the tables are stored and vacuumed, and about what stands in the way."""

from collections.abc import Sequence
from dataclasses import dataclass

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.cleanup import read_bool
from graphile_worker._sql.query import Query, Row, read_nothing


@dataclass(frozen=True, slots=True)
class TableStorage:
    """What is set for a table, and who may change it."""

    settings: dict[str, str]
    can_change: bool
    owner: str


@dataclass(frozen=True, slots=True)
class ServerSetting:
    """A setting of the server, as a plain number or word and as it is shown.

    `change` is how a statement begins that changes it, for this database alone if that can be.
    """

    value: str
    display_value: str
    change_prefix: str


@dataclass(frozen=True, slots=True)
class VacuumBlocker:
    """Something that may still look at rows as they were; until it ends, no dead row can go."""

    kind: str
    name: str
    state: str | None
    seconds: int | None
    transactions: int


def get_storage(schemas: Schemas, tables: list[str]) -> Query[dict[str, TableStorage]]:
    return Query("get_storage", (schemas.shared, tables), _read_storage)


def get_server_settings(names: list[str]) -> Query[dict[str, ServerSetting]]:
    return Query("get_server_settings", (names,), _read_settings)


def get_vacuum_blockers(min_seconds: int) -> Query[list[VacuumBlocker]]:
    return Query(
        "get_vacuum_blockers", (min_seconds,), lambda rows: [VacuumBlocker(*row) for row in rows]
    )


def can_read_all_stats() -> Query[bool]:
    return Query("can_read_all_stats", (), read_bool)


def set_vacuum_lock_timeout() -> Query[None]:
    return Query("set_vacuum_lock_timeout", (), read_nothing)


def tune_jobs() -> Query[None]:
    return Query("tune_jobs", (), read_nothing)


def tune_queues() -> Query[None]:
    return Query("tune_queues", (), read_nothing)


def _read_storage(rows: Sequence[Row]) -> dict[str, TableStorage]:
    return {
        name: TableStorage(dict(each.split("=", 1) for each in options), may_change, owner)
        for name, options, may_change, owner in rows
    }


def _read_settings(rows: Sequence[Row]) -> dict[str, ServerSetting]:
    return {name: ServerSetting(*rest) for name, *rest in rows}
