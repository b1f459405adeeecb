"""Which connection a test has, and a queue on it that is ready to be used."""

import sys
from typing import Any

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.migration import plan_check_schema, plan_migrate
from graphile_worker._sql.queries.testing import clear_jobs
from graphile_worker._sql.query import Plan
from graphile_worker.errors import ConfigurationError, SchemaMissing

# More than that are not what other tests have left behind.
MAX_LEFTOVER_JOBS = 1000


def plan_prepare_schema(schemas: Schemas) -> Plan[bool]:
    """Install the schema where it is missing, to be rolled back with the test; was it there?"""
    try:
        yield from plan_check_schema(schemas)
    except SchemaMissing:
        yield from plan_migrate(schemas)
        return False
    return True


def plan_prepare_empty_schema(schemas: Schemas) -> Plan[bool]:
    """The same where only we roll back, and hide the jobs of others, which a drain would run."""
    yield from plan_prepare_schema(schemas)
    count: int = yield clear_jobs(MAX_LEFTOVER_JOBS)
    if count > MAX_LEFTOVER_JOBS:
        raise ConfigurationError(
            f"there are more than {MAX_LEFTOVER_JOBS} jobs in schema {schemas.shared!r}: this does "
            "not "
            "look like a database for tests. Name one by the fixture gw_dsn, or lend a connection "
            "by gw_connection"
        )
    return True


def plan_keep_schema(schemas: Schemas) -> Plan[bool]:
    """Nothing, on a connection that the tested code has used already."""
    yield from ()
    return True


def get_django_connection() -> Any:
    """Django's, where it is set up for PostgreSQL; otherwise None."""
    conf = sys.modules.get("django.conf")
    if conf is None or not conf.settings.configured:
        return None
    from django.db import connection

    return connection if connection.vendor == "postgresql" else None
