"""Queries about the two ledgers, and the scripts that bring them up."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graphile_worker.sql.identifiers import Schemas
from graphile_worker.sql.query import Query, Row, read_nothing
from graphile_worker.sql.statements import script_statements

LEVEL = 20

# Our companion's steps, in order; the first one makes the ledger in which all of them enter
# themselves.
EXT_STEPS = ("0001_ledger", "0002_leases", "0003_indexes")

# In the order of their scripts. Whether they are there says the catalogue, not the ledger: they can
# be missing though their step was taken, and be made by another role than the one that took it.
INDEXES = ("gwpy_free_jobs", "gwpy_queued_jobs", "gwpy_jobs_of_queues")


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What the catalogue says, before any table of ours is touched."""

    server_version: int
    has_schema: bool
    has_ledger: bool
    has_breaking: bool
    functions: frozenset[str]
    relations: frozenset[str]
    has_ext_schema: bool
    has_ext_ledger: bool


@dataclass(frozen=True, slots=True)
class Indexes:
    """Which of our indexes there are; those not ready are being built, or were left half built."""

    may_be_made: bool
    are_being_built: bool
    ready: frozenset[str]
    unready: frozenset[str]

    @property
    def missing(self) -> list[int]:
        """Which of `INDEXES` have to be made, by position."""
        return [at for at, name in enumerate(INDEXES) if name not in self.ready]


@dataclass(frozen=True, slots=True)
class Ledger:
    """How far the shared schema is; levels are 0 while it is empty."""

    level: int
    breaking_level: int
    # Only the reference marks 19 as breaking; the Rust worker means something else by it.
    breaking_19: bool | None


def inspect_database(schemas: Schemas) -> Query[Catalogue]:
    return Query("inspect_database", (schemas.shared, schemas.companion), _read_catalogue)


def inspect_indexes(schemas: Schemas) -> Query[Indexes]:
    return Query("inspect_indexes", (schemas.shared,), _read_indexes)


def find_jobs() -> Query[bool]:
    return Query("find_jobs", (), lambda rows: bool(rows[0][0]))


def get_ledger() -> Query[Ledger]:
    return Query("get_ledger", (), _read_ledger)


def get_ext_ledger() -> Query[int]:
    return Query("get_ext_ledger", (), lambda rows: rows[0][0] or 0)


def get_ledger_level() -> Query[Ledger]:
    return Query("get_ledger_level", (), lambda rows: Ledger(rows[0][0] or 0, 0, None))


def drop_schemas() -> Query[None]:
    return Query("drop_schemas", (), read_nothing)


def script(path: str) -> tuple[Query[Any], ...]:
    """Every statement of a script of schema/ or ext/, in order."""
    return tuple(Query(name, (), read_nothing) for name in script_statements(path))


def _read_catalogue(rows: Sequence[Row]) -> Catalogue:
    version, has_schema, has_ledger, has_breaking, functions, relations, *ext = rows[0]
    return Catalogue(
        version,
        has_schema,
        has_ledger,
        has_breaking,
        frozenset(functions),
        frozenset(relations),
        *ext,
    )


def _read_indexes(rows: Sequence[Row]) -> Indexes:
    may_be_made, are_being_built, ready, unready = rows[0]
    return Indexes(may_be_made, are_being_built, frozenset(ready), frozenset(unready))


def _read_ledger(rows: Sequence[Row]) -> Ledger:
    level, breaking_level, breaking_19 = rows[0]
    return Ledger(level or 0, breaking_level or 0, breaking_19)
