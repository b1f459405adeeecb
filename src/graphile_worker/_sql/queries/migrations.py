"""Queries about the two ledgers, and the scripts that bring them up."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from graphile_worker._sql.identifiers import Schemas, quote_identifier
from graphile_worker._sql.query import Query, Row, read_nothing
from graphile_worker._sql.render import list_script_statements

LATEST_LEVEL = 20

# Our companion's steps, in order; the first one makes the ledger in which all of them enter
# themselves.
EXT_STEPS = ("0001_ledger", "0002_leases", "0003_indexes", "0004_turns")

# In the order of their scripts. Whether they are there says the catalogue, not the ledger: they can
# be missing though their step was taken, and be made by another role than the one that took it.
INDEXES = ("gwpy_free_jobs", "gwpy_queued_jobs", "gwpy_jobs_of_queues", "gwpy_locked_jobs")

# Those that a fetch needs; the last one is for finding the jobs that a worker has locked.
FETCH_INDEXES = INDEXES[:3]

# The functions of the shared schema: the statement that makes each, and the checksums of all bodies
# that releases of this package have given it, the newest last. A body with another checksum comes
# from Node or Rust and is never replaced.
FUNCTION_BODIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "add_jobs": ("schema/add_jobs:0", ("f82648ffb7667493", "b40e1f4301de421e")),
    "add_job": ("schema/add_jobs:1", ("480fae25158fb4ec", "952c103a25c279dc")),
    "remove_job": ("schema/baseline:13", ("f3c3c2a7681b0083", "f25e187de7a6789c")),
    "complete_jobs": ("schema/baseline:14", ("5a5cbf83f881d7d3", "5ac1706e09d617b7")),
    "permanently_fail_jobs": ("schema/baseline:15", ("a66be4a36e194777", "76626d167c24abdb")),
    "reschedule_jobs": ("schema/baseline:16", ("de8ac22f1aa59480", "bd083b178086ebb9")),
    "force_unlock_workers": ("schema/baseline:17", ("1b3c73bba3dd4db6",)),
}
CHECKSUM_DIGITS = 16


@dataclass(frozen=True, slots=True)
class CatalogState:
    """What the catalogue says, before any table of ours is touched."""

    server_version: int
    has_schema: bool
    has_ledger: bool
    has_breaking_column: bool
    functions: frozenset[str]
    relations: frozenset[str]
    has_ext_schema: bool
    has_ext_ledger: bool


@dataclass(frozen=True, slots=True)
class IndexState:
    """Which of our indexes there are; those not ready are being built, or were left half built."""

    can_create: bool
    are_being_built: bool
    ready: frozenset[str]
    incomplete: frozenset[str]

    @property
    def missing(self) -> list[int]:
        """Which of `INDEXES` have to be made, by position."""
        return [at for at, name in enumerate(INDEXES) if name not in self.ready]


@dataclass(frozen=True, slots=True)
class ForeignObject:
    """The companion schema or a table in it that belongs to a role which may not own it."""

    name: str
    owner: str


@dataclass(frozen=True, slots=True)
class FunctionBody:
    """The text of a function of the shared schema, and whether this role may replace it."""

    function: str
    text: str
    can_replace: bool


@dataclass(frozen=True, slots=True)
class Ledger:
    """How far the shared schema is; levels are 0 while it is empty."""

    level: int
    breaking_level: int
    # Only the reference marks 19 as breaking; the Rust worker means something else by it.
    breaking_19: bool | None


def inspect_database(schemas: Schemas) -> Query[CatalogState]:
    return Query("inspect_database", (schemas.shared, schemas.companion), _read_catalog)


def inspect_indexes(schemas: Schemas) -> Query[IndexState]:
    return Query("inspect_indexes", (schemas.shared,), _read_indexes)


def find_foreign_objects(schemas: Schemas) -> Query[list[ForeignObject]]:
    args = (schemas.companion, schemas.shared)
    return Query("find_foreign_objects", args, lambda rows: [ForeignObject(*row) for row in rows])


def inspect_functions(schemas: Schemas) -> Query[list[FunctionBody]]:
    args = (schemas.shared, list(FUNCTION_BODIES))
    return Query("inspect_functions", args, lambda rows: [FunctionBody(*row) for row in rows])


def has_jobs() -> Query[bool]:
    return Query("has_jobs", (), lambda rows: bool(rows[0][0]))


def get_ledger() -> Query[Ledger]:
    return Query("get_ledger", (), _read_ledger)


def get_ext_ledger() -> Query[int]:
    return Query("get_ext_ledger", (), lambda rows: rows[0][0] or 0)


def get_ledger_level() -> Query[Ledger]:
    return Query("get_ledger_level", (), lambda rows: Ledger(rows[0][0] or 0, 0, None))


def drop_schemas() -> Query[None]:
    return Query("drop_schemas", (), read_nothing)


def load_script(path: str) -> tuple[Query[Any], ...]:
    """Every statement of a script of schema/ or ext/, in order."""
    return tuple(Query(name, (), read_nothing) for name in list_script_statements(path))


def find_outdated(bodies: Iterable[FunctionBody], schemas: Schemas) -> list[FunctionBody]:
    """Those that an earlier release of this package has made."""
    return [
        each
        for each in bodies
        if compute_checksum(each.text, schemas) in FUNCTION_BODIES[each.function][1][:-1]
    ]


def compute_checksum(body: str, schemas: Schemas) -> str:
    """A checksum of the body of a function, the same for any name of the schema."""
    plain = body.replace(quote_identifier(schemas.shared), ":schema")
    return sha256(plain.encode()).hexdigest()[:CHECKSUM_DIGITS]


def build_replacements(bodies: Iterable[FunctionBody]) -> tuple[Query[Any], ...]:
    """The statements that give functions the bodies that this release has for them."""
    return tuple(Query(FUNCTION_BODIES[each.function][0], (), read_nothing) for each in bodies)


def _read_catalog(rows: Sequence[Row]) -> CatalogState:
    version, has_schema, has_ledger, has_breaking, functions, relations, *ext = rows[0]
    return CatalogState(
        version,
        has_schema,
        has_ledger,
        has_breaking,
        frozenset(functions),
        frozenset(relations),
        *ext,
    )


def _read_indexes(rows: Sequence[Row]) -> IndexState:
    may_be_made, are_being_built, ready, unready = rows[0]
    return IndexState(may_be_made, are_being_built, frozenset(ready), frozenset(unready))


def _read_ledger(rows: Sequence[Row]) -> Ledger:
    level, breaking_level, breaking_19 = rows[0]
    return Ledger(level or 0, breaking_level or 0, breaking_19)
