"""Bring the shared schema and our companion up to date, beside any number of others who do so.

The ledger's primary key is the only lock: whoever enters a level first does its work in the same
transaction, everybody else waits on that row, fails, and looks again.
"""

import logging
from enum import Enum, auto
from typing import Any

from graphile_worker.errors import (
    ConfigurationError,
    MigrationBlocked,
    SchemaError,
    SchemaMissing,
    SchemaTooNew,
    SchemaTooOld,
)
from graphile_worker.sql.admin import wait_briefly_for_locks
from graphile_worker.sql.failures import (
    CANCELLED,
    CLASHES,
    IN_TRANSACTION,
    LOCK_NOT_AVAILABLE,
    NOT_ALLOWED,
    REPLACED_MEANWHILE,
    TRANSIENT,
    sqlstate_of,
)
from graphile_worker.sql.identifiers import Schemas, quote_identifier
from graphile_worker.sql.migrations import (
    EXT_STEPS,
    INDEXES,
    LEVEL,
    Body,
    Catalogue,
    ForeignObject,
    Indexes,
    Ledger,
    find_foreign_objects,
    find_jobs,
    get_ext_ledger,
    get_ledger,
    get_ledger_level,
    inspect_database,
    inspect_functions,
    inspect_indexes,
    outdated,
    replacing,
    script,
)
from graphile_worker.sql.query import Atomic, Pause, Plan, Query
from graphile_worker.sql.statements import Style, render, script_text

logger = logging.getLogger("graphile_worker")

OLDEST_SERVER = 140000
OLDEST_LEVEL = 18

# Another installer may be on its way up: only what has not moved for this long stands still.
STILL_SECONDS = 10.0
LOOK_EVERY = 0.25

# The step that a role may leave out, and that is taken whenever what it makes is missing.
INDEX_STEP = "0003_indexes"

# Why building an index beside others may fail, which is no reason not to start: they do the same,
# or hold a lock for too long, or it takes too long, or a lent connection is in a transaction.
IN_THE_WAY = CLASHES | TRANSIENT | {LOCK_NOT_AVAILABLE, CANCELLED, IN_TRANSACTION}

FUNCTIONS = frozenset(
    {
        "add_job",
        "add_jobs",
        "remove_job",
        "complete_jobs",
        "permanently_fail_jobs",
        "reschedule_jobs",
        "force_unlock_workers",
    }
)
RELATIONS = frozenset(
    {
        "_private_jobs",
        "_private_job_queues",
        "_private_tasks",
        "_private_known_crontabs",
        "jobs",
        "migrations",
    }
)


class Move(Enum):
    """What a look at the ledger asks for."""

    MAKE_LEDGER = auto()
    INSTALL = auto()
    WAIT = auto()
    TO_19 = auto()
    TO_20 = auto()
    READY = auto()


def migrating(schemas: Schemas) -> Plan[int]:
    """Install or upgrade both schemas; the level at which the shared one then stands."""
    level = yield from _bring_up_shared(schemas)
    yield from _renew_functions(schemas)
    has_companion = yield from _bring_up_companion(schemas)
    yield from _bring_up_indexes(schemas, has_companion)
    return level


def checking(schemas: Schemas) -> Plan[int]:
    """The level of the shared schema, if it can be used as it is; changes nothing."""
    catalogue, ledger = yield from _look(schemas)
    move = next_move(schemas, catalogue, ledger)
    if move in (Move.MAKE_LEDGER, Move.INSTALL):
        raise SchemaMissing(schemas.shared)
    if move is Move.WAIT:
        raise SchemaTooOld(schemas.shared, ledger.level)
    yield from _check_complete(schemas)
    return ledger.level


def next_move(schemas: Schemas, catalogue: Catalogue, ledger: Ledger) -> Move:
    """What to do about a schema that looks like this."""
    if ledger.breaking_level > LEVEL:
        raise SchemaTooNew(schemas.shared, ledger.breaking_level)
    if not catalogue.has_ledger or (not catalogue.has_breaking and ledger.level == 0):
        return Move.MAKE_LEDGER
    if ledger.level == 0:
        return Move.INSTALL
    if ledger.level < OLDEST_LEVEL:
        return Move.WAIT
    if ledger.level == 18:
        return Move.TO_19
    if ledger.level == 19 and ledger.breaking_19:
        return Move.TO_20
    # Level 19 of the Rust worker is not the reference's: that schema is used as it is.
    return Move.READY


def migration_sql(schema: str, ext_schema: str | None = None, *, from_level: int = 0) -> str:
    """What `migrate` would run, as text for Alembic, Django or a DBA.

    `from_level` is 0 for an empty database, 18 or 19 for one that an older release installed. Run
    it in one transaction.
    """
    schemas = Schemas.named(schema, ext_schema)
    return "\n".join(script_text(path, schemas) for path in _paths(from_level))


def migration_statements(
    schema: str, ext_schema: str | None = None, *, from_level: int = 0
) -> list[str]:
    """`migration_sql`, statement by statement, for drivers that take only one at a time."""
    schemas = Schemas.named(schema, ext_schema)
    names = [query.statement for query in _statements(_paths(from_level))]
    return [render(name, schemas, Style.NATIVE) for name in names]


def _paths(from_level: int) -> tuple[str, ...]:
    if from_level not in _SCRIPTS:
        raise ConfigurationError(f"from_level must be 0, 18 or 19, got {from_level}")
    return _SCRIPTS[from_level] + (
        "ext/schema",
        "ext/owner",
        *(f"ext/{step}" for step in EXT_STEPS),
    )


_SCRIPTS: dict[int, tuple[str, ...]] = {
    0: ("schema/schema", "schema/ledger", "schema/baseline", "schema/add_jobs"),
    18: ("schema/level_19", "schema/level_20", "schema/add_jobs"),
    19: ("schema/level_20", "schema/add_jobs"),
}

_WORK: dict[Move, tuple[str, ...]] = {
    Move.MAKE_LEDGER: ("schema/ledger",),
    Move.INSTALL: ("schema/baseline", "schema/add_jobs"),
    Move.TO_19: ("schema/level_19",),
    Move.TO_20: ("schema/level_20", "schema/add_jobs"),
}


def _bring_up_shared(schemas: Schemas) -> Plan[int]:
    before: tuple[Catalogue, Ledger] | None = None
    looks_alike = 0
    while True:
        catalogue, ledger = now = yield from _look(schemas)
        looks_alike = looks_alike + 1 if now == before else 0
        before = now
        still = looks_alike * LOOK_EVERY >= STILL_SECONDS
        move = next_move(schemas, catalogue, ledger)
        if move is Move.READY:
            yield from _check_complete(schemas)
            return _checked_level(schemas, ledger)
        if move is Move.WAIT and still:
            raise SchemaTooOld(schemas.shared, ledger.level)
        if move is Move.WAIT or not (yield from _work(move, catalogue, give_up=still)):
            yield Pause(LOOK_EVERY)


def _work(move: Move, catalogue: Catalogue, *, give_up: bool) -> Plan[bool]:
    """Do a move; False if somebody else got there first."""
    try:
        yield Atomic(_statements(_scripts(move, catalogue)))
    except Exception as error:
        if sqlstate_of(error) not in CLASHES:
            raise
        if give_up:
            raise MigrationBlocked(
                f"objects are in the way of the installation: {error}"
            ) from error
        return False
    return True


def _scripts(move: Move, catalogue: Catalogue) -> tuple[str, ...]:
    # Even "if not exists" asks for the right to create schemas, which a role that was given its
    # schema may not have.
    if move is Move.MAKE_LEDGER and not catalogue.has_schema:
        return ("schema/schema", "schema/ledger")
    if move is Move.MAKE_LEDGER and catalogue.has_ledger:
        return ("schema/ledger_column",)
    return _WORK[move]


def _renew_functions(schemas: Schemas) -> Plan[None]:
    """Replace functions that an earlier release of this package made; Node's and Rust's stay."""
    found: list[Body] = yield inspect_functions(schemas)
    old = outdated(found, schemas)
    if not all(each.may_be_replaced for each in old):
        logger.warning(
            "functions of schema %r are those of an earlier release, and this role may not replace "
            "them. Let their owner run `graphile-worker migrate`",
            schemas.shared,
        )
    elif old:
        try:
            yield Atomic(replacing(old))
        except Exception as error:
            # Another installer does the same.
            if sqlstate_of(error) != REPLACED_MEANWHILE:
                raise


def _bring_up_companion(schemas: Schemas) -> Plan[bool]:
    """Is it there?"""
    catalogue: Catalogue = yield inspect_database(schemas)
    known = 0
    try:
        if not catalogue.has_ext_schema:
            yield from _unless_blocked("ext/schema")
        yield from _check_owner(schemas)
        if catalogue.has_ext_ledger:
            known = yield get_ext_ledger()
        for step in EXT_STEPS[known:]:
            if step == INDEX_STEP:
                continue
            yield from _unless_blocked(f"ext/{step}")
    except Exception as error:
        if sqlstate_of(error) != NOT_ALLOWED:
            raise
        _warn_of_companion(schemas, known)
        return False
    return True


def _check_owner(schemas: Schemas) -> Plan[None]:
    """Refuse a companion that another role made: its triggers would run as this role."""
    foreign: list[ForeignObject] = yield find_foreign_objects(schemas)
    if not foreign:
        return
    whose = ", ".join(f"{each.name!r} belongs to role {each.owner!r}" for each in foreign)
    raise SchemaError(
        f"schema {schemas.companion!r} is refused: {whose}, not to the owner of schema "
        f"{schemas.shared!r}. Code of that role would run as every role that uses it. Drop it, if "
        f"you do not know why it is there: `drop schema {quote_identifier(schemas.companion)} "
        "cascade`. Or let it and its tables belong to that owner, if you trust the role. Then run "
        "`graphile-worker migrate` again"
    )


def _warn_of_companion(schemas: Schemas, known: int) -> None:
    """Say that this role may not bring up the companion, which is at level `known`."""
    if known < EXT_STEPS.index("0002_leases") + 1:
        logger.warning(
            "this role may not create or read schema %r: the jobs of a worker that dies wait four "
            "hours. Let the owner run `graphile-worker migrate`",
            schemas.companion,
        )
        return
    logger.warning(
        "schema %r is at level %s of %s and this role may not upgrade it. Let the owner run "
        "`graphile-worker migrate`",
        schemas.companion,
        known,
        len(EXT_STEPS),
    )


def _bring_up_indexes(schemas: Schemas, has_companion: bool) -> Plan[None]:
    """Make what is missing of our indexes. Without them all works, only slower."""
    indexes: Indexes = yield inspect_indexes(schemas)
    if not indexes.missing:
        return
    if not indexes.may_be_made:
        logger.warning(
            "this role does not own the tables of schema %r and makes no indexes there: fetching "
            "gets slower with what else lies in the queue. Let the owner run "
            "`graphile-worker migrate`",
            schemas.shared,
        )
        return
    *making, entering = script(f"ext/{INDEX_STEP}")
    if indexes.unready or (yield find_jobs()):
        is_done = yield from _build_concurrently(schemas)
    else:
        is_done = yield from _build_at_once(schemas, tuple(making))
    if is_done and has_companion:
        yield entering


def _build_at_once(schemas: Schemas, making: tuple[Query[Any], ...]) -> Plan[bool]:
    """Make our indexes on a table that is most likely empty, in a moment.

    That locks out everyone who adds a job, and waits for each transaction that has added one. All
    who come later wait behind it, so it lets go soon.
    """
    try:
        yield Atomic((wait_briefly_for_locks(), *making))
    except Exception as error:
        if sqlstate_of(error) == LOCK_NOT_AVAILABLE:
            return (yield from _build_concurrently(schemas))
        if sqlstate_of(error) not in CLASHES:
            raise
        # Somebody else makes them.
        return False
    return True


def _build_concurrently(schemas: Schemas) -> Plan[bool]:
    """Make our indexes while others use the table, or wait a while for whoever makes them."""
    creating, dropping = script("ext/indexes_concurrently"), script("ext/indexes_drop")
    for _ in range(int(STILL_SECONDS / LOOK_EVERY)):
        indexes: Indexes = yield inspect_indexes(schemas)
        if not indexes.missing:
            return True
        if indexes.are_being_built:
            yield Pause(LOOK_EVERY)
            continue
        at = indexes.missing[0]
        try:
            # What nobody builds any more was left half built.
            if INDEXES[at] in indexes.unready:
                yield dropping[at]
            yield creating[at]
        except Exception as error:
            if sqlstate_of(error) not in IN_THE_WAY:
                raise
            if sqlstate_of(error) not in CLASHES | TRANSIENT:
                break
        yield Pause(LOOK_EVERY)
    logger.warning(
        "the indexes of schema %r are not complete: either somebody else builds them at this "
        "moment, or something is in their way. They are used as soon as they are complete; see "
        "`graphile-worker migrate`",
        schemas.shared,
    )
    return False


def _unless_blocked(path: str) -> Plan[None]:
    """Run a script of the companion, again where somebody else is running it too."""
    for attempt in range(int(STILL_SECONDS / LOOK_EVERY)):
        try:
            yield Atomic(script(path))
            return
        except Exception as error:
            if sqlstate_of(error) not in CLASHES:
                raise
            blocked = error
        yield Pause(LOOK_EVERY if attempt else 0.0)
    raise MigrationBlocked(f"objects are in the way of {path}: {blocked}") from blocked


def _look(schemas: Schemas) -> Plan[tuple[Catalogue, Ledger]]:
    # The catalogue first: asking a ledger that is not there leaves an error in the server's log.
    catalogue: Catalogue = yield inspect_database(schemas)
    if catalogue.server_version < OLDEST_SERVER:
        raise SchemaError(
            f"PostgreSQL {_version(catalogue.server_version)} is too old: 14 or newer is needed"
        )
    ledger = Ledger(0, 0, None)
    if catalogue.has_ledger:
        ledger = yield get_ledger() if catalogue.has_breaking else get_ledger_level()
    return catalogue, ledger


def _checked_level(schemas: Schemas, ledger: Ledger) -> int:
    if ledger.level > LEVEL:
        logger.warning(
            "schema %r is at level %s, newer than the %s that this release knows, but not breaking",
            schemas.shared,
            ledger.level,
            LEVEL,
        )
    return ledger.level


def _check_complete(schemas: Schemas) -> Plan[None]:
    # Looked at after the ledger: another installer may have finished since the look before it.
    catalogue: Catalogue = yield inspect_database(schemas)
    missing = (FUNCTIONS - catalogue.functions) | (RELATIONS - catalogue.relations)
    if missing:
        names = ", ".join(sorted(missing))
        raise SchemaError(f"schema {schemas.shared!r} is incomplete, it lacks: {names}")


def _statements(paths: tuple[str, ...]) -> tuple[Query[Any], ...]:
    return tuple(query for path in paths for query in script(path))


def _version(number: int) -> str:
    return f"{number // 10000}.{number % 10000}"
