"""Prepare the queue on the connection of a test, and clear it."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from graphile_worker._db.database import QueryRunner, SyncQueryRunner, drive, drive_sync
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.migration import (
    REQUIRED_FUNCTIONS,
    REQUIRED_RELATIONS,
    plan_check_schema,
    plan_migrate,
)
from graphile_worker._sql.queries.testing import (
    QueueState,
    can_clear_history,
    clear_history,
    clear_jobs,
    inspect_queue,
)
from graphile_worker._sql.queries.unique_keys import (
    UniqueKeysAccess,
    check_unique_keys,
    clear_unique_keys,
)
from graphile_worker._sql.query import Atomic, Pause, Plan, Query, Step
from graphile_worker.errors import ConfigurationError, SchemaMissing

# Tests leave fewer jobs behind. A schema with more is probably not one for tests.
MAX_LEFTOVER_JOBS = 1000

MAX_JOBS = 2**31 - 2
MAX_JOB_ID = 2**63 - 1

# Returns False if a rollback can undo the preparation.
PreparePlan = Callable[[Schemas], Plan[bool]]


def plan_prepare_schema(schemas: Schemas) -> Plan[bool]:
    """Install the schema if it is missing. The rollback of the test removes it again."""
    try:
        yield from plan_check_schema(schemas)
    except SchemaMissing:
        yield from plan_migrate(schemas)
        return False
    return True


def choose_plan_for_django(connection: Any, schemas: Schemas) -> PreparePlan:
    """Return a plan that looks for the schema once in each database of a run of Django's tests."""
    environment = get_django_test_environment()
    if environment is None:
        return plan_prepare_schema
    database = connection.settings_dict
    key = (database["NAME"], database["HOST"], database["PORT"], schemas.shared)
    if _environments_by_database.get(key) is environment:
        return plan_keep_schema

    def plan_prepare_once(schemas: Schemas) -> Plan[bool]:
        state: QueueState = yield inspect_queue(schemas)
        if not (state.functions >= REQUIRED_FUNCTIONS and state.relations >= REQUIRED_RELATIONS):
            return (yield from plan_prepare_schema(schemas))
        # A schema that this transaction installed, for example for all tests of a class, exists
        # only until its rollback.
        if not state.is_uncommitted:
            _environments_by_database[key] = environment
        return not state.is_uncommitted

    return plan_prepare_once


def plan_prepare_empty_schema(schemas: Schemas) -> Plan[bool]:
    """Install the schema and delete leftover jobs and keys, on a connection of this package."""
    yield from plan_prepare_schema(schemas)
    count: int = yield clear_jobs(MAX_LEFTOVER_JOBS)
    if count > MAX_LEFTOVER_JOBS:
        raise ConfigurationError(
            f"schema {schemas.shared!r} has more than {MAX_LEFTOVER_JOBS} jobs. This does not "
            "look like a database for tests. Name one in the fixture gw_dsn, or return a "
            "connection from gw_connection."
        )
    yield from _plan_clear_unique_keys(schemas)
    return True


def plan_keep_schema(schemas: Schemas) -> Plan[bool]:
    """Do nothing, on a connection that the tested code has used before."""
    yield from ()
    return True


def plan_clear_queue(schemas: Schemas) -> Plan[None]:
    """Delete all jobs, what is kept of ended jobs, and unique keys."""
    yield clear_jobs(MAX_JOBS)
    if (yield can_clear_history(schemas)):
        yield clear_history(MAX_JOB_ID)
    yield from _plan_clear_unique_keys(schemas)


def _plan_clear_unique_keys(schemas: Schemas) -> Plan[None]:
    access: UniqueKeysAccess = yield check_unique_keys(schemas)
    if access.is_usable:
        yield clear_unique_keys(MAX_JOB_ID)


def get_django_test_environment() -> object | None:
    """Return an object for the test environment that a runner set up in Django, or None."""
    utils = sys.modules.get("django.test.utils")
    return None if utils is None else getattr(utils._TestState, "saved_data", None)


# The databases in which the schema is committed, with the environment in which that was seen.
# Another run of tests in the same process may have created the database again.
_environments_by_database: dict[tuple[object, ...], object] = {}


class SchemaPreparation:
    """Run the plan before the first statement, or before each if a rollback can undo it."""

    def __init__(self, plan: PreparePlan, schemas: Schemas) -> None:
        self.is_done = False
        self._plan = plan
        self._schemas = schemas
        self._is_durable = True

    def run_sync(self, connection: SyncQueryRunner) -> None:
        """Prepare the queue on a blocking connection."""
        drive_sync(self._prepare(), partial(_execute_step_sync, connection))

    async def run(self, connection: QueryRunner) -> None:
        """Prepare the queue on an async connection."""
        await drive(self._prepare(), partial(_execute_step, connection))

    def _prepare(self) -> Plan[None]:
        # The tested code may have opened a savepoint before, and may roll back to it at any time.
        self._is_durable &= yield from self._plan(self._schemas)
        self.is_done = self._is_durable


async def _execute_step(connection: QueryRunner, step: Step) -> Any:
    return [await connection.run(query) for query in _flatten_step(step)][-1]


def _execute_step_sync(connection: SyncQueryRunner, step: Step) -> Any:
    return [connection.run(query) for query in _flatten_step(step)][-1]


def _flatten_step(step: Step) -> tuple[Query[Any], ...]:
    # All queries of a test are in one transaction already.
    if isinstance(step, Pause):
        raise RuntimeError("the schema is in the middle of a migration. Finish that first.")
    if isinstance(step, Atomic):
        return step.queries
    assert isinstance(step, Query)
    return (step,)
