"""Install and upgrade the shared schema and the companion, beside any number of other installers.

The primary key of the ledger is the only lock. The installer that records a level first does its
work in the same transaction. All others wait for that row, get an error, and inspect the ledger
again.
"""

import logging
from collections.abc import Iterable
from enum import Enum, auto

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.companion import (
    CHECK_INTERVAL_SECONDS,
    load_scripts,
    plan_create_indexes,
    plan_try_scripts,
    plan_upgrade_companion,
)
from graphile_worker._sql.plans.history import plan_extend_history
from graphile_worker._sql.queries.migrations import (
    EXT_STEPS,
    FUNCTION_BODIES,
    LATEST_LEVEL,
    CatalogState,
    FunctionBody,
    Ledger,
    build_replacements,
    find_outdated,
    get_ext_ledger,
    get_ledger,
    get_ledger_level,
    inspect_database,
    inspect_functions,
)
from graphile_worker._sql.query import Atomic, Pause, Plan
from graphile_worker._sql.render import ParameterStyle, render, render_script
from graphile_worker._sql.sqlstate import (
    CONCURRENT_REPLACE,
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
from graphile_worker.results import Retention

logger = logging.getLogger("graphile_worker")

MIN_SERVER_VERSION = 140000
MIN_LEVEL = 18

# How long a migration waits for another installer that makes no progress.
STALL_TIMEOUT_SECONDS = 10.0

REQUIRED_FUNCTIONS = frozenset(FUNCTION_BODIES)
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
    """What to do next about the shared schema."""

    CREATE_LEDGER = auto()
    INSTALL = auto()
    WAIT = auto()
    UPGRADE_TO_19 = auto()
    UPGRADE_TO_20 = auto()
    READY = auto()


_SCRIPTS_BY_STEP: dict[MigrationStep, tuple[str, ...]] = {
    MigrationStep.CREATE_LEDGER: ("schema/ledger",),
    MigrationStep.INSTALL: ("schema/baseline", "schema/add_jobs"),
    MigrationStep.UPGRADE_TO_19: ("schema/level_19",),
    MigrationStep.UPGRADE_TO_20: ("schema/level_20", "schema/add_jobs"),
}

# The steps from each level on, for people who run the scripts themselves.
_STEPS_BY_LEVEL: dict[int, tuple[MigrationStep, ...]] = {
    0: (MigrationStep.CREATE_LEDGER, MigrationStep.INSTALL),
    18: (MigrationStep.UPGRADE_TO_19, MigrationStep.UPGRADE_TO_20),
    19: (MigrationStep.UPGRADE_TO_20,),
}


def plan_migrate(
    schemas: Schemas,
    retentions: Iterable[Retention] = (),
    *,
    stall_timeout_seconds: float = STALL_TIMEOUT_SECONDS,
) -> Plan[int]:
    """Install or upgrade both schemas, and return the new level of the shared one.

    The schema keeps outcomes for at least as long as `retentions` require.
    """
    max_checks = int(stall_timeout_seconds / CHECK_INTERVAL_SECONDS)
    level = yield from _plan_upgrade_shared(schemas, max_checks)
    yield from _plan_replace_functions(schemas)
    has_companion = yield from plan_upgrade_companion(schemas, max_checks)
    yield from plan_create_indexes(schemas, has_companion, max_checks)
    yield from plan_extend_history(retentions, schemas)
    return level


def plan_check_schema(schemas: Schemas) -> Plan[int]:
    """Return the level of the shared schema if this release can use it, without changing it."""
    catalog, ledger = yield from _plan_inspect(schemas)
    step = choose_next_step(schemas, catalog, ledger)
    if step in (MigrationStep.CREATE_LEDGER, MigrationStep.INSTALL):
        raise SchemaMissing(schemas.shared)
    if step is MigrationStep.WAIT:
        raise SchemaTooOld(schemas.shared, ledger.level)
    yield from _plan_check_complete(schemas, catalog)
    return ledger.level


def plan_find_pending_upgrade(schemas: Schemas) -> Plan[str | None]:
    """Return which schema `migrate` would upgrade and from which level, or None if neither.

    A companion that does not exist is not pending: this release works without it.
    """
    level = yield from plan_check_schema(schemas)
    catalog, ledger = yield from _plan_inspect(schemas)
    if choose_next_step(schemas, catalog, ledger) is not MigrationStep.READY:
        return f"schema {schemas.shared!r} is at level {level} of {LATEST_LEVEL}"
    if not catalog.has_ext_ledger:
        return None
    companion_level: int = yield get_ext_ledger()
    if companion_level >= len(EXT_STEPS):
        return None
    return f"schema {schemas.companion!r} is at level {companion_level} of {len(EXT_STEPS)}"


def choose_next_step(schemas: Schemas, catalog: CatalogState, ledger: Ledger) -> MigrationStep:
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
    # Level 19 of the Rust worker is not that of Node: such a schema is used as it is.
    return MigrationStep.READY


def migration_sql(schema: str, ext_schema: str | None = None, *, from_level: int = 0) -> str:
    """Return the SQL that `migrate` would run, as a script for Alembic, Django or a DBA.

    Run it in one transaction.

    Args:
        schema: The name of the shared schema.
        ext_schema: The name of the companion schema, derived from `schema` by default.
        from_level: The present level: 0 for an empty database, 18 or 19 for an older release.

    Returns:
        The script, with comments.

    Raises:
        ConfigurationError: A name or the level is invalid.
    """
    schemas = Schemas.from_names(schema, ext_schema)
    return "\n".join(render_script(path, schemas) for path in _list_scripts(from_level))


def migration_statements(
    schema: str, ext_schema: str | None = None, *, from_level: int = 0
) -> list[str]:
    """Return `migration_sql` as a list, for drivers that take one statement at a time.

    Args:
        schema: The name of the shared schema.
        ext_schema: The name of the companion schema, derived from `schema` by default.
        from_level: The present level: 0 for an empty database, 18 or 19 for an older release.

    Returns:
        The statements, in order.

    Raises:
        ConfigurationError: A name or the level is invalid.
    """
    schemas = Schemas.from_names(schema, ext_schema)
    queries = load_scripts(_list_scripts(from_level))
    return [render(query.statement, schemas, ParameterStyle.NATIVE) for query in queries]


def _list_scripts(from_level: int) -> tuple[str, ...]:
    if from_level not in _STEPS_BY_LEVEL:
        raise ConfigurationError(f"from_level must be 0, 18 or 19, got {from_level}")
    shared = [path for step in _STEPS_BY_LEVEL[from_level] for path in _SCRIPTS_BY_STEP[step]]
    if from_level == 0:
        shared.insert(0, "schema/schema")
    return (*shared, "ext/schema", "ext/owner", *(f"ext/{step}" for step in EXT_STEPS))


def _plan_upgrade_shared(schemas: Schemas, max_checks: int) -> Plan[int]:
    previous: tuple[CatalogState, Ledger] | None = None
    unchanged = 0
    while True:
        catalog, ledger = current = yield from _plan_inspect(schemas)
        unchanged = unchanged + 1 if current == previous else 0
        previous = current
        step = choose_next_step(schemas, catalog, ledger)
        if step is MigrationStep.READY:
            yield from _plan_check_complete(schemas, catalog)
            return _check_level(schemas, ledger)
        if step is MigrationStep.WAIT:
            if unchanged >= max_checks:
                raise SchemaTooOld(schemas.shared, ledger.level)
        else:
            conflict = yield from plan_try_scripts(*_choose_scripts(step, catalog))
            if conflict is None:
                continue
            if unchanged >= max_checks:
                raise MigrationBlocked(
                    f"existing objects block the installation: {conflict}"
                ) from conflict
        yield Pause(CHECK_INTERVAL_SECONDS)


def _plan_inspect(schemas: Schemas) -> Plan[tuple[CatalogState, Ledger]]:
    # Read the catalog first: reading a missing ledger would leave an error in the server's log.
    catalog: CatalogState = yield inspect_database(schemas)
    version = catalog.server_version
    if version < MIN_SERVER_VERSION:
        raise SchemaError(
            f"PostgreSQL {version // 10000}.{version % 10000} is too old: 14 or newer is needed"
        )
    ledger = Ledger(0, 0, None)
    if catalog.has_ledger:
        ledger = yield get_ledger() if catalog.has_breaking_column else get_ledger_level()
    return catalog, ledger


def _choose_scripts(step: MigrationStep, catalog: CatalogState) -> tuple[str, ...]:
    # Even "if not exists" needs the permission to create schemas, which a role with a ready-made
    # schema may lack.
    if step is MigrationStep.CREATE_LEDGER and not catalog.has_schema:
        return ("schema/schema", "schema/ledger")
    if step is MigrationStep.CREATE_LEDGER and catalog.has_ledger:
        return ("schema/ledger_column",)
    return _SCRIPTS_BY_STEP[step]


def _check_level(schemas: Schemas, ledger: Ledger) -> int:
    if ledger.level > LATEST_LEVEL:
        logger.warning(
            "schema %r is at level %s, newer than level %s of this release but compatible, "
            "continuing",
            schemas.shared,
            ledger.level,
            LATEST_LEVEL,
        )
    return ledger.level


def _plan_check_complete(schemas: Schemas, catalog: CatalogState) -> Plan[None]:
    if _find_missing(catalog):
        # Read it again after the ledger: another installer may have finished in between.
        catalog = yield inspect_database(schemas)
    if missing := _find_missing(catalog):
        names = ", ".join(sorted(missing))
        raise SchemaError(f"schema {schemas.shared!r} is incomplete, it lacks: {names}")


def _find_missing(catalog: CatalogState) -> frozenset[str]:
    return (REQUIRED_FUNCTIONS - catalog.functions) | (REQUIRED_RELATIONS - catalog.relations)


def _plan_replace_functions(schemas: Schemas) -> Plan[None]:
    """Replace functions of an earlier release of this package. Those of Node and Rust stay."""
    bodies: list[FunctionBody] = yield inspect_functions(schemas)
    outdated = find_outdated(bodies, schemas)
    if not all(each.can_replace for each in outdated):
        logger.warning(
            "functions of schema %r are outdated and this role may not replace them, continuing: "
            "run `graphile-worker migrate` as their owner",
            schemas.shared,
        )
    elif outdated:
        try:
            yield Atomic(build_replacements(outdated))
        except Exception as error:
            # Another installer replaces them at the same time.
            if get_sqlstate(error) != CONCURRENT_REPLACE:
                raise
