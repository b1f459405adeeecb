"""Queries about how the tables are stored and vacuumed, and about what stands in the way."""

from collections.abc import Sequence
from dataclasses import dataclass

from graphile_worker.sql.admin import read_truth
from graphile_worker.sql.identifiers import Schemas
from graphile_worker.sql.query import Query, Row, read_nothing


@dataclass(frozen=True, slots=True)
class Storage:
    """What is set for a table, and who may change it."""

    settings: dict[str, str]
    may_change: bool
    owner: str


@dataclass(frozen=True, slots=True)
class ServerSetting:
    """A setting of the server, as a plain number or word and as it is shown.

    `change` is how a statement begins that changes it, for this database alone if that can be.
    """

    value: str
    shown: str
    change: str


@dataclass(frozen=True, slots=True)
class HeldSnapshot:
    """Something that may still look at rows as they were; until it ends, no dead row can go."""

    kind: str
    name: str
    state: str | None
    seconds: int | None
    transactions: int


def get_storage(schemas: Schemas, tables: list[str]) -> Query[dict[str, Storage]]:
    return Query("get_storage", (schemas.shared, tables), _read_storage)


def get_server_settings(names: list[str]) -> Query[dict[str, ServerSetting]]:
    return Query("get_server_settings", (names,), _read_settings)


def get_held_snapshots(seconds: int) -> Query[list[HeldSnapshot]]:
    return Query(
        "get_held_snapshots", (seconds,), lambda rows: [HeldSnapshot(*row) for row in rows]
    )


def find_reading_stats() -> Query[bool]:
    return Query("find_reading_stats", (), read_truth)


def wait_for_vacuum() -> Query[None]:
    return Query("wait_for_vacuum", (), read_nothing)


def tune_jobs() -> Query[None]:
    return Query("tune_jobs", (), read_nothing)


def tune_queues() -> Query[None]:
    return Query("tune_queues", (), read_nothing)


def _read_storage(rows: Sequence[Row]) -> dict[str, Storage]:
    return {
        name: Storage(dict(each.split("=", 1) for each in options), may_change, owner)
        for name, options, may_change, owner in rows
    }


def _read_settings(rows: Sequence[Row]) -> dict[str, ServerSetting]:
    return {name: ServerSetting(*rest) for name, *rest in rows}
