"""Install and upgrade the companion schema, and the indexes of this package on the jobs."""

import logging
from collections.abc import Iterable
from typing import Any

from graphile_worker._sql.identifiers import Schemas, quote_identifier
from graphile_worker._sql.queries.cleanup import set_short_lock_timeout
from graphile_worker._sql.queries.migrations import (
    EXT_STEPS,
    INDEXES,
    CatalogState,
    ForeignObject,
    IndexState,
    find_foreign_objects,
    get_ext_ledger,
    has_jobs,
    inspect_database,
    inspect_indexes,
    load_script,
)
from graphile_worker._sql.query import Atomic, Pause, Plan, Query
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
from graphile_worker.errors import MigrationBlocked, SchemaError

logger = logging.getLogger("graphile_worker")

# Interval between two checks of the objects that another installer creates.
CHECK_INTERVAL_SECONDS = 0.25

# A role without permission may skip this step, and it is repeated while an index is missing.
INDEX_STEP = "0003_indexes"

# Errors of a concurrent index build that do not keep a worker from starting: another installer
# builds the index, a lock or the build takes too long, or an external connection is in a
# transaction.
INDEX_BUILD_CONFLICTS = (
    CREATE_CONFLICTS | TRANSIENT | {LOCK_NOT_AVAILABLE, QUERY_CANCELED, ACTIVE_SQL_TRANSACTION}
)


def plan_upgrade_companion(schemas: Schemas, max_checks: int) -> Plan[bool]:
    """Install or upgrade the companion schema. Return False if this role may not."""
    catalog: CatalogState = yield inspect_database(schemas)
    level = 0
    try:
        if not catalog.has_ext_schema:
            yield from _plan_run_companion_script("ext/schema", max_checks)
        yield from _plan_check_owner(schemas)
        if catalog.has_ext_ledger:
            level = yield get_ext_ledger()
        for step in EXT_STEPS[level:]:
            if step != INDEX_STEP:
                yield from _plan_run_companion_script(f"ext/{step}", max_checks)
    except Exception as error:
        if get_sqlstate(error) != INSUFFICIENT_PRIVILEGE:
            raise
        _warn_companion_outdated(schemas, level)
        return False
    return True


def _plan_run_companion_script(path: str, max_checks: int) -> Plan[None]:
    for attempt in range(max_checks):
        conflict = yield from plan_try_scripts(path)
        if conflict is None:
            return
        yield Pause(CHECK_INTERVAL_SECONDS if attempt else 0.0)
    raise MigrationBlocked(f"existing objects block {path}: {conflict}") from conflict


def _plan_check_owner(schemas: Schemas) -> Plan[None]:
    """Reject a companion that another role created: its triggers would run as this role."""
    foreign: list[ForeignObject] = yield find_foreign_objects(schemas)
    if not foreign:
        return
    owners = ", ".join(f"{each.name!r} belongs to role {each.owner!r}" for each in foreign)
    raise SchemaError(
        f"schema {schemas.companion!r} is rejected: {owners}, not to the owner of schema "
        f"{schemas.shared!r}. Code of that role would run as every role that uses it. If you do "
        f"not know why it exists, drop it: `drop schema {quote_identifier(schemas.companion)} "
        "cascade`. If you trust the role, make that owner the owner of the schema and its "
        "tables. Then run `graphile-worker migrate` again."
    )


def _warn_companion_outdated(schemas: Schemas, level: int) -> None:
    if level < EXT_STEPS.index("0002_leases") + 1:
        logger.warning(
            "schema %r not available to this role, jobs of a dead worker stay locked for 4 "
            "hours: run `graphile-worker migrate` as the owner",
            schemas.companion,
        )
        return
    logger.warning(
        "schema %r is at level %s of %s, and this role may not upgrade it: run `graphile-worker "
        "migrate` as the owner",
        schemas.companion,
        level,
        len(EXT_STEPS),
    )


def plan_create_indexes(schemas: Schemas, has_companion: bool, max_checks: int) -> Plan[None]:
    """Create missing indexes. Without them everything works, but slower."""
    indexes: IndexState = yield inspect_indexes(schemas)
    if not indexes.missing:
        return
    if not indexes.can_create:
        logger.warning(
            "indexes of schema %r are missing and this role may not create them, claims get "
            "slower as the queue grows: run `graphile-worker migrate` as the owner",
            schemas.shared,
        )
        return
    *create_indexes, record_step = load_script(f"ext/{INDEX_STEP}")
    if indexes.incomplete or (yield has_jobs()):
        is_done = yield from _plan_build_concurrently(schemas, max_checks)
    else:
        is_done = yield from _plan_build_locked(schemas, create_indexes, max_checks)
    if is_done and has_companion:
        yield record_step


def _plan_build_locked(
    schemas: Schemas, statements: list[Query[Any]], max_checks: int
) -> Plan[bool]:
    """Create the indexes on a table that is probably empty.

    That blocks sessions that add jobs and waits for their transactions. Later sessions queue
    behind it, so it gives up soon.
    """
    try:
        yield Atomic((set_short_lock_timeout(), *statements))
    except Exception as error:
        if get_sqlstate(error) == LOCK_NOT_AVAILABLE:
            return (yield from _plan_build_concurrently(schemas, max_checks))
        if get_sqlstate(error) not in CREATE_CONFLICTS:
            raise
        # Another installer creates them.
        return False
    return True


def _plan_build_concurrently(schemas: Schemas, max_checks: int) -> Plan[bool]:
    """Create the indexes on a table in use, or wait a while for another installer that does."""
    creating, dropping = load_script("ext/indexes_concurrently"), load_script("ext/indexes_drop")
    for _ in range(max_checks):
        indexes: IndexState = yield inspect_indexes(schemas)
        if not indexes.missing:
            return True
        if not indexes.are_being_built:
            position = indexes.missing[0]
            try:
                # An incomplete index that no session builds was left by an aborted build.
                if INDEXES[position] in indexes.incomplete:
                    yield dropping[position]
                yield creating[position]
            except Exception as error:
                if get_sqlstate(error) not in INDEX_BUILD_CONFLICTS:
                    raise
                if get_sqlstate(error) not in CREATE_CONFLICTS | TRANSIENT:
                    break
        yield Pause(CHECK_INTERVAL_SECONDS)
    logger.warning(
        "indexes of schema %r are incomplete (another session builds them, or a lock blocks the "
        "build), continuing without them: `graphile-worker migrate` completes them",
        schemas.shared,
    )
    return False


def plan_try_scripts(*paths: str) -> Plan[Exception | None]:
    """Run scripts in one transaction. Return the error if another installer creates the objects."""
    try:
        yield Atomic(load_scripts(paths))
    except Exception as error:
        if get_sqlstate(error) not in CREATE_CONFLICTS | {CONCURRENT_REPLACE}:
            raise
        return error
    return None


def load_scripts(paths: Iterable[str]) -> tuple[Query[Any], ...]:
    return tuple(query for path in paths for query in load_script(path))
