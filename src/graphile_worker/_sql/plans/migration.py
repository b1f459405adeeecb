"""Bring the shared schema and our companion up to date, beside any number of others who do so.

The ledger's primary key is the only lock: whoever enters a level first does its work in the same
transaction, everybody else waits on that row, fails, and looks again.
"""

import logging
from enum import Enum, auto
from typing import Any

from graphile_worker._sql.identifiers import Schemas, quote_identifier
from graphile_worker._sql.queries.cleanup import set_short_lock_timeout
from graphile_worker._sql.queries.migrations import (
    EXT_STEPS,
    INDEXES,
    LATEST_LEVEL,
    CatalogState,
    ForeignObject,
    FunctionBody,
    IndexState,
    Ledger,
    build_replacements,
    find_foreign_objects,
    find_outdated,
    get_ext_ledger,
    get_ledger,
    get_ledger_level,
    has_jobs,
    inspect_database,
    inspect_functions,
    inspect_indexes,
    load_script,
)
from graphile_worker._sql.query import Atomic, Pause, Plan, Query
from graphile_worker._sql.render import ParameterStyle, render, render_script
from graphile_worker._sql.sqlstate import (
    ACTIVE_SQL_TRANSACTION,
    CONCURRENT_REPLACE,
    CREATE_CONFLICTS,
    INSUFFICIENT_PRIVILEGE,
    LOCK_NOT_AVAILABLE,
    QUERY_CANCELED,
    TRANSIENT,
    get_sqlstate,
)
from graphile_worker.errors import (
    ConfigurationError,
    MigrationBlocked,
    SchemaError,
    SchemaMissing,
    SchemaTooNew,
    SchemaTooOld,
)

logger = logging.getLogger("graphile_worker")

MIN_SERVER_VERSION = 140000
MIN_LEVEL = 18

# Another installer may be on its way up: only what has not moved for this long stands still.
STALL_TIMEOUT_SECONDS = 10.0
CHECK_INTERVAL_SECONDS = 0.25

# The step that a role may leave out, and that is taken whenever what it makes is missing.
INDEX_STEP = "0003_indexes"

# Why building an index beside others may fail, which is no reason not to start: they do the same,
# or hold a lock for too long, or it takes too long, or a lent connection is in a transaction.
INDEX_BUILD_CONFLICTS = (
    CREATE_CONFLICTS | TRANSIENT | {LOCK_NOT_AVAILABLE, QUERY_CANCELED, ACTIVE_SQL_TRANSACTION}
)

REQUIRED_FUNCTIONS = frozenset(
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
REQUIRED_RELATIONS = frozenset(
    {
        "_private_jobs",
        "_private_job_queues",
        "_private_tasks",
        "_private_known_crontabs",
        "jobs",
        "migrations",
    }
)


class MigrationStep(Enum):
    """What a look at the ledger asks for."""

    CREATE_LEDGER = auto()
    INSTALL = auto()
    WAIT = auto()
    UPGRADE_TO_19 = auto()
    UPGRADE_TO_20 = auto()
    READY = auto()


def plan_migrate(schemas: Schemas) -> Plan[int]:
    """Install or upgrade both schemas; the level at which the shared one then stands."""
    level = yield from _plan_upgrade_shared(schemas)
    yield from _plan_replace_functions(schemas)
    has_companion = yield from _plan_upgrade_companion(schemas)
    yield from _plan_create_indexes(schemas, has_companion)
    return level


def plan_check_schema(schemas: Schemas) -> Plan[int]:
    """The level of the shared schema, if it can be used as it is; changes nothing."""
    catalogue, ledger = yield from _plan_inspect(schemas)
    move = choose_next_step(schemas, catalogue, ledger)
    if move in (MigrationStep.CREATE_LEDGER, MigrationStep.INSTALL):
        raise SchemaMissing(schemas.shared)
    if move is MigrationStep.WAIT:
        raise SchemaTooOld(schemas.shared, ledger.level)
    yield from _plan_check_complete(schemas)
    return ledger.level


def choose_next_step(schemas: Schemas, catalog: CatalogState, ledger: Ledger) -> MigrationStep:
    """What to do about a schema that looks like this."""
    if ledger.breaking_level > LATEST_LEVEL:
        raise SchemaTooNew(schemas.shared, ledger.breaking_level)
    if not catalog.has_ledger or (not catalog.has_breaking_column and ledger.level == 0):
        return MigrationStep.CREATE_LEDGER
    if ledger.level == 0:
        return MigrationStep.INSTALL
    if ledger.level < MIN_LEVEL:
        return MigrationStep.WAIT
    if ledger.level == 18:
        return MigrationStep.UPGRADE_TO_19
    if ledger.level == 19 and ledger.breaking_19:
        return MigrationStep.UPGRADE_TO_20
    # Level 19 of the Rust worker is not the reference's: that schema is used as it is.
    return MigrationStep.READY


def migration_sql(schema: str, ext_schema: str | None = None, *, from_level: int = 0) -> str:
    """What `migrate` would run, as text for Alembic, Django or a DBA.

    `from_level` is 0 for an empty database, 18 or 19 for one that an older release installed. Run
    it in one transaction.
    """
    schemas = Schemas.from_names(schema, ext_schema)
    return "\n".join(render_script(path, schemas) for path in _list_scripts(from_level))


def migration_statements(
    schema: str, ext_schema: str | None = None, *, from_level: int = 0
) -> list[str]:
    """`migration_sql`, statement by statement, for drivers that take only one at a time."""
    schemas = Schemas.from_names(schema, ext_schema)
    names = [query.statement for query in _load_statements(_list_scripts(from_level))]
    return [render(name, schemas, ParameterStyle.NATIVE) for name in names]


def _list_scripts(from_level: int) -> tuple[str, ...]:
    if from_level not in _SCRIPTS_BY_LEVEL:
        raise ConfigurationError(f"from_level must be 0, 18 or 19, got {from_level}")
    return _SCRIPTS_BY_LEVEL[from_level] + (
        "ext/schema",
        "ext/owner",
        *(f"ext/{step}" for step in EXT_STEPS),
    )


_SCRIPTS_BY_LEVEL: dict[int, tuple[str, ...]] = {
    0: ("schema/schema", "schema/ledger", "schema/baseline", "schema/add_jobs"),
    18: ("schema/level_19", "schema/level_20", "schema/add_jobs"),
    19: ("schema/level_20", "schema/add_jobs"),
}

_SCRIPTS_BY_STEP: dict[MigrationStep, tuple[str, ...]] = {
    MigrationStep.CREATE_LEDGER: ("schema/ledger",),
    MigrationStep.INSTALL: ("schema/baseline", "schema/add_jobs"),
    MigrationStep.UPGRADE_TO_19: ("schema/level_19",),
    MigrationStep.UPGRADE_TO_20: ("schema/level_20", "schema/add_jobs"),
}


def _plan_upgrade_shared(schemas: Schemas) -> Plan[int]:
    before: tuple[CatalogState, Ledger] | None = None
    looks_alike = 0
    while True:
        catalogue, ledger = now = yield from _plan_inspect(schemas)
        looks_alike = looks_alike + 1 if now == before else 0
        before = now
        still = looks_alike * CHECK_INTERVAL_SECONDS >= STALL_TIMEOUT_SECONDS
        move = choose_next_step(schemas, catalogue, ledger)
        if move is MigrationStep.READY:
            yield from _plan_check_complete(schemas)
            return _check_level(schemas, ledger)
        if move is MigrationStep.WAIT and still:
            raise SchemaTooOld(schemas.shared, ledger.level)
        if move is MigrationStep.WAIT or not (
            yield from _plan_run_step(move, catalogue, raise_on_conflict=still)
        ):
            yield Pause(CHECK_INTERVAL_SECONDS)


def _plan_run_step(
    step: MigrationStep, catalog: CatalogState, *, raise_on_conflict: bool
) -> Plan[bool]:
    """Do a move; False if somebody else got there first."""
    try:
        yield Atomic(_load_statements(_choose_scripts(step, catalog)))
    except Exception as error:
        if get_sqlstate(error) not in CREATE_CONFLICTS:
            raise
        if raise_on_conflict:
            raise MigrationBlocked(
                f"objects are in the way of the installation: {error}"
            ) from error
        return False
    return True


def _choose_scripts(step: MigrationStep, catalog: CatalogState) -> tuple[str, ...]:
    # Even "if not exists" asks for the right to create schemas, which a role that was given its
    # schema may not have.
    if step is MigrationStep.CREATE_LEDGER and not catalog.has_schema:
        return ("schema/schema", "schema/ledger")
    if step is MigrationStep.CREATE_LEDGER and catalog.has_ledger:
        return ("schema/ledger_column",)
    return _SCRIPTS_BY_STEP[step]


def _plan_replace_functions(schemas: Schemas) -> Plan[None]:
    """Replace functions that an earlier release of this package made; Node's and Rust's stay."""
    found: list[FunctionBody] = yield inspect_functions(schemas)
    old = find_outdated(found, schemas)
    if not all(each.can_replace for each in old):
        logger.warning(
            "functions of schema %r are those of an earlier release, and this role may not replace "
            "them. Let their owner run `graphile-worker migrate`",
            schemas.shared,
        )
    elif old:
        try:
            yield Atomic(build_replacements(old))
        except Exception as error:
            # Another installer does the same.
            if get_sqlstate(error) != CONCURRENT_REPLACE:
                raise


def _plan_upgrade_companion(schemas: Schemas) -> Plan[bool]:
    """Is it there?"""
    catalogue: CatalogState = yield inspect_database(schemas)
    known = 0
    try:
        if not catalogue.has_ext_schema:
            yield from _plan_run_companion_script("ext/schema")
        yield from _plan_check_owner(schemas)
        if catalogue.has_ext_ledger:
            known = yield get_ext_ledger()
        for step in EXT_STEPS[known:]:
            if step == INDEX_STEP:
                continue
            yield from _plan_run_companion_script(f"ext/{step}")
    except Exception as error:
        if get_sqlstate(error) != INSUFFICIENT_PRIVILEGE:
            raise
        _warn_companion_outdated(schemas, known)
        return False
    return True


def _plan_check_owner(schemas: Schemas) -> Plan[None]:
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


def _warn_companion_outdated(schemas: Schemas, level: int) -> None:
    """Say that this role may not bring up the companion, which is at level `known`."""
    if level < EXT_STEPS.index("0002_leases") + 1:
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
        level,
        len(EXT_STEPS),
    )


def _plan_create_indexes(schemas: Schemas, has_companion: bool) -> Plan[None]:
    """Make what is missing of our indexes. Without them all works, only slower."""
    indexes: IndexState = yield inspect_indexes(schemas)
    if not indexes.missing:
        return
    if not indexes.can_create:
        logger.warning(
            "this role does not own the tables of schema %r and makes no indexes there: fetching "
            "gets slower with what else lies in the queue. Let the owner run "
            "`graphile-worker migrate`",
            schemas.shared,
        )
        return
    *making, entering = load_script(f"ext/{INDEX_STEP}")
    if indexes.incomplete or (yield has_jobs()):
        is_done = yield from _plan_build_concurrently(schemas)
    else:
        is_done = yield from _plan_build_locked(schemas, tuple(making))
    if is_done and has_companion:
        yield entering


def _plan_build_locked(schemas: Schemas, statements: tuple[Query[Any], ...]) -> Plan[bool]:
    """Make our indexes on a table that is most likely empty, in a moment.

    That locks out everyone who adds a job, and waits for each transaction that has added one. All
    who come later wait behind it, so it lets go soon.
    """
    try:
        yield Atomic((set_short_lock_timeout(), *statements))
    except Exception as error:
        if get_sqlstate(error) == LOCK_NOT_AVAILABLE:
            return (yield from _plan_build_concurrently(schemas))
        if get_sqlstate(error) not in CREATE_CONFLICTS:
            raise
        # Somebody else makes them.
        return False
    return True


def _plan_build_concurrently(schemas: Schemas) -> Plan[bool]:
    """Make our indexes while others use the table, or wait a while for whoever makes them."""
    creating, dropping = load_script("ext/indexes_concurrently"), load_script("ext/indexes_drop")
    for _ in range(int(STALL_TIMEOUT_SECONDS / CHECK_INTERVAL_SECONDS)):
        indexes: IndexState = yield inspect_indexes(schemas)
        if not indexes.missing:
            return True
        if indexes.are_being_built:
            yield Pause(CHECK_INTERVAL_SECONDS)
            continue
        at = indexes.missing[0]
        try:
            # What nobody builds any more was left half built.
            if INDEXES[at] in indexes.incomplete:
                yield dropping[at]
            yield creating[at]
        except Exception as error:
            if get_sqlstate(error) not in INDEX_BUILD_CONFLICTS:
                raise
            if get_sqlstate(error) not in CREATE_CONFLICTS | TRANSIENT:
                break
        yield Pause(CHECK_INTERVAL_SECONDS)
    logger.warning(
        "the indexes of schema %r are not complete: either somebody else builds them at this "
        "moment, or something is in their way. They are used as soon as they are complete; see "
        "`graphile-worker migrate`",
        schemas.shared,
    )
    return False


def _plan_run_companion_script(path: str) -> Plan[None]:
    """Run a script of the companion, again where somebody else is running it too."""
    for attempt in range(int(STALL_TIMEOUT_SECONDS / CHECK_INTERVAL_SECONDS)):
        try:
            yield Atomic(load_script(path))
            return
        except Exception as error:
            if get_sqlstate(error) not in CREATE_CONFLICTS:
                raise
            blocked = error
        yield Pause(CHECK_INTERVAL_SECONDS if attempt else 0.0)
    raise MigrationBlocked(f"objects are in the way of {path}: {blocked}") from blocked


def _plan_inspect(schemas: Schemas) -> Plan[tuple[CatalogState, Ledger]]:
    # The catalogue first: asking a ledger that is not there leaves an error in the server's log.
    catalogue: CatalogState = yield inspect_database(schemas)
    if catalogue.server_version < MIN_SERVER_VERSION:
        raise SchemaError(
            f"PostgreSQL {_format_version(catalogue.server_version)} is too old: 14 or newer is "
            "needed"
        )
    ledger = Ledger(0, 0, None)
    if catalogue.has_ledger:
        ledger = yield get_ledger() if catalogue.has_breaking_column else get_ledger_level()
    return catalogue, ledger


def _check_level(schemas: Schemas, ledger: Ledger) -> int:
    if ledger.level > LATEST_LEVEL:
        logger.warning(
            "schema %r is at level %s, newer than the %s that this release knows, but not breaking",
            schemas.shared,
            ledger.level,
            LATEST_LEVEL,
        )
    return ledger.level


def _plan_check_complete(schemas: Schemas) -> Plan[None]:
    # Looked at after the ledger: another installer may have finished since the look before it.
    catalogue: CatalogState = yield inspect_database(schemas)
    missing = (REQUIRED_FUNCTIONS - catalogue.functions) | (
        REQUIRED_RELATIONS - catalogue.relations
    )
    if missing:
        names = ", ".join(sorted(missing))
        raise SchemaError(f"schema {schemas.shared!r} is incomplete, it lacks: {names}")


def _load_statements(paths: tuple[str, ...]) -> tuple[Query[Any], ...]:
    return tuple(query for path in paths for query in load_script(path))


def _format_version(number: int) -> str:
    return f"{number // 10000}.{number % 10000}"
