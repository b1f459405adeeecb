"""Queries about the two ledgers, and the scripts of their migrations."""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any

from graphile_worker._sql.identifiers import Schemas, quote_identifier
from graphile_worker._sql.query import Query, Row, read_as, read_bool, read_column
from graphile_worker._sql.render import list_script_statements
from graphile_worker._sql.statement import Statement
from graphile_worker._support.lazy_dataclass import LazyDataclass

LATEST_LEVEL = 20

# The migrations of the companion schema, in order. The first one creates the ledger in which each
# of them records itself.
EXT_STEPS = (
    "0001_ledger",
    "0002_leases",
    "0003_indexes",
    "0004_turns",
    "0005_samples",
    "0006_history",
    "0007_pauses",
    "0008_limits",
    "0009_unique",
)

# In the order of their scripts. The catalog shows which exist, not the ledger: an index can be
# missing after its migration, and another role may create it.
INDEXES = ("gwpy_free_jobs", "gwpy_queued_jobs", "gwpy_jobs_of_queues", "gwpy_locked_jobs")

# A claim needs these. The last index finds the jobs that a worker has locked.
FETCH_INDEXES = INDEXES[:3]

# The functions of the shared schema: the statement that creates each, and the checksums of all
# bodies that releases of this package gave it, the newest last. A body with another checksum comes
# from Node or Rust and is never replaced.
FUNCTION_BODIES: dict[str, tuple[Statement, tuple[str, ...]]] = {
    "add_jobs": (
        Statement("schema/add_jobs", position=0),
        ("f82648ffb7667493", "b40e1f4301de421e"),
    ),
    "add_job": (Statement("schema/add_jobs", position=1), ("480fae25158fb4ec", "952c103a25c279dc")),
    "remove_job": (
        Statement("schema/baseline", position=13),
        ("f3c3c2a7681b0083", "f25e187de7a6789c"),
    ),
    "complete_jobs": (
        Statement("schema/baseline", position=14),
        ("5a5cbf83f881d7d3", "5ac1706e09d617b7"),
    ),
    "permanently_fail_jobs": (
        Statement("schema/baseline", position=15),
        ("a66be4a36e194777", "76626d167c24abdb"),
    ),
    "reschedule_jobs": (
        Statement("schema/baseline", position=16),
        ("de8ac22f1aa59480", "bd083b178086ebb9"),
    ),
    "force_unlock_workers": (Statement("schema/baseline", position=17), ("1b3c73bba3dd4db6",)),
}
CHECKSUM_DIGITS = 16

# The checksums of the functions with which Graphile Worker for Node adds jobs: those of level 18,
# which the Rust worker also has, and those of level 20.
NODE_FUNCTION_BODIES = {
    "add_jobs": ("4f448040bc5515f0", "bcb852af0eac23b7"),
    "add_job": ("a27c425239179431", "30b38909bf8449e8"),
}


class CatalogState(LazyDataclass):
    """Which objects exist, read before any table of the schemas."""

    server_version: int
    has_schema: bool
    has_ledger: bool
    has_breaking_column: bool
    functions: frozenset[str]
    relations: frozenset[str]
    has_ext_schema: bool
    has_ext_ledger: bool


class IndexState(LazyDataclass):
    """Which of `INDEXES` exist. Incomplete ones are being built, or their build was aborted."""

    can_create: bool
    are_being_built: bool
    ready: frozenset[str]
    incomplete: frozenset[str]

    @property
    def missing(self) -> list[int]:
        """Return the positions of the indexes to create."""
        return [index for index, name in enumerate(INDEXES) if name not in self.ready]


class ForeignObject(LazyDataclass):
    """The companion schema or a table in it with an owner that must not own it."""

    name: str
    owner: str


class FunctionBody(LazyDataclass):
    """The text of a function of the shared schema, and whether this role may replace it."""

    function: str
    text: str
    can_replace: bool


class Ledger(LazyDataclass):
    """The levels of the shared schema, 0 while it is empty."""

    level: int
    breaking_level: int
    breaking_19: bool | None
    """Only Graphile Worker for Node marks level 19 as breaking. The Rust worker has another 19."""


def inspect_database(schemas: Schemas) -> Query[CatalogState]:
    return Query("inspect_database", (schemas.shared, schemas.companion), _read_catalog)


def inspect_indexes(schemas: Schemas) -> Query[IndexState]:
    return Query("inspect_indexes", (schemas.shared,), _read_indexes)


def find_foreign_objects(schemas: Schemas) -> Query[list[ForeignObject]]:
    args = (schemas.companion, schemas.shared)
    return Query("find_foreign_objects", args, read_as(ForeignObject))


def inspect_functions(schemas: Schemas) -> Query[list[FunctionBody]]:
    args = (schemas.shared, list(FUNCTION_BODIES))
    return Query("inspect_functions", args, read_as(FunctionBody))


def has_jobs() -> Query[bool]:
    return Query("has_jobs", (), read_bool)


def get_ledger() -> Query[Ledger]:
    return Query("get_ledger", (), _read_ledger)


def get_ext_ledger() -> Query[int]:
    return Query("get_ext_ledger", (), lambda rows: rows[0][0] or 0)


def has_levels_above(level: int) -> Query[bool]:
    return Query("has_levels_above", (level,), read_bool)


def get_ledger_level() -> Query[Ledger]:
    return Query("get_ledger_level", (), lambda rows: Ledger(rows[0][0] or 0, 0, None))


def list_schemas(prefix: str) -> Query[list[str]]:
    """List the schemas with this prefix that the role may drop."""
    return Query("list_schemas", (prefix,), read_column)


def try_lock_schema(name: str) -> Query[bool]:
    """Lock the name of a schema until the session ends. False if another session has the lock."""
    return Query("try_lock_schema", (name,), read_bool)


def drop_schemas() -> Query[None]:
    return Query("drop_schemas")


def load_script(path: str) -> tuple[Query[Any], ...]:
    """Return the statements of a script of schema/ or ext/, in order."""
    return tuple(map(Query, list_script_statements(path)))


def find_outdated(bodies: Iterable[FunctionBody], schemas: Schemas) -> list[FunctionBody]:
    """Return the functions that an earlier release of this package created."""
    return [
        each
        for each in bodies
        if compute_checksum(each.text, schemas) in FUNCTION_BODIES[each.function][1][:-1]
    ]


def compute_checksum(body: str, schemas: Schemas) -> str:
    """Compute the checksum of a function's body, the same for every name of the schema."""
    plain = body.replace(quote_identifier(schemas.shared), ":schema")
    return sha256(plain.encode()).hexdigest()[:CHECKSUM_DIGITS]


def is_known_body(function: str, body: str, schemas: Schemas) -> bool:
    """Return whether a body of add_job or add_jobs is from this package or from Node."""
    known = FUNCTION_BODIES[function][1] + NODE_FUNCTION_BODIES[function]
    return compute_checksum(body, schemas) in known


def build_replacements(bodies: Iterable[FunctionBody]) -> tuple[Query[Any], ...]:
    """Build the statements that give functions the bodies of this release."""
    return tuple(Query(FUNCTION_BODIES[each.function][0]) for each in bodies)


def _read_catalog(rows: Sequence[Row]) -> CatalogState:
    return CatalogState(*_with_sets(rows[0]))


def _read_indexes(rows: Sequence[Row]) -> IndexState:
    return IndexState(*_with_sets(rows[0]))


def _with_sets(row: Row) -> Row:
    return [frozenset(each) if isinstance(each, list) else each for each in row]


def _read_ledger(rows: Sequence[Row]) -> Ledger:
    level, breaking_level, breaking_19 = rows[0]
    return Ledger(level or 0, breaking_level or 0, breaking_19)
