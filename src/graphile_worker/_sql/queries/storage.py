"""Queries about storage parameters, server settings, and what keeps vacuum from removing rows."""

from collections.abc import Sequence
from datetime import timedelta

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.query import Query, Row, read_as, read_bool
from graphile_worker._support.lazy_dataclass import LazyDataclass

# A transaction that is open for longer is reported: by then dead rows slow down every fetch.
MAX_TRANSACTION_AGE = timedelta(minutes=5)


class TableStorage(LazyDataclass):
    """The storage parameters of a table, and who may change them."""

    settings: dict[str, str]
    can_change: bool
    owner: str


class ServerSetting(LazyDataclass):
    """A setting of the server, as a number or word and as `show` prints it."""

    value: str
    display_value: str
    change_prefix: str
    """The start of a statement that changes it, for this database alone where possible."""


class VacuumBlocker(LazyDataclass):
    """A session, prepared transaction, slot or standby that keeps dead rows from being removed."""

    kind: str
    name: str
    state: str | None
    seconds: int | None
    transactions: int


def get_storage(schemas: Schemas, tables: list[str]) -> Query[dict[str, TableStorage]]:
    return Query("get_storage", (schemas.shared, tables), _read_storage)


def get_server_settings(names: list[str]) -> Query[dict[str, ServerSetting]]:
    return Query("get_server_settings", (names,), _read_settings)


def get_vacuum_blockers(min_age: timedelta) -> Query[list[VacuumBlocker]]:
    return Query("get_vacuum_blockers", (int(min_age.total_seconds()),), read_as(VacuumBlocker))


def can_read_all_stats() -> Query[bool]:
    return Query("can_read_all_stats", (), read_bool)


def set_vacuum_lock_timeout() -> Query[None]:
    return Query("set_vacuum_lock_timeout")


def tune_jobs() -> Query[None]:
    return Query("tune_jobs")


def tune_queues() -> Query[None]:
    return Query("tune_queues")


def _read_storage(rows: Sequence[Row]) -> dict[str, TableStorage]:
    return {
        name: TableStorage(dict(each.split("=", 1) for each in options), can_change, owner)
        for name, options, can_change, owner in rows
    }


def _read_settings(rows: Sequence[Row]) -> dict[str, ServerSetting]:
    return {name: ServerSetting(*rest) for name, *rest in rows}
