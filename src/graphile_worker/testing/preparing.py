"""Which connection a test has, and a queue on it that is ready to be used."""

import sys
from typing import Any

from graphile_worker.db.migrate import checking, migrating
from graphile_worker.errors import ConfigurationError, SchemaMissing
from graphile_worker.sql.identifiers import Schemas
from graphile_worker.sql.query import Plan
from graphile_worker.sql.testing import clear_jobs

# More than that are not what other tests have left behind.
MOST_JOBS = 1000


def preparing(schemas: Schemas) -> Plan[bool]:
    """Install the schema where it is missing, to be rolled back with the test; was it there?"""
    try:
        yield from checking(schemas)
    except SchemaMissing:
        yield from migrating(schemas)
        return False
    return True


def starting_empty(schemas: Schemas) -> Plan[bool]:
    """The same where only we roll back, and hide the jobs of others, which a drain would run."""
    yield from preparing(schemas)
    count: int = yield clear_jobs(MOST_JOBS)
    if count > MOST_JOBS:
        raise ConfigurationError(
            f"there are more than {MOST_JOBS} jobs in schema {schemas.shared!r}: this does not "
            "look like a database for tests. Name one by the fixture gw_dsn, or lend a connection "
            "by gw_connection"
        )
    return True


def as_it_is(schemas: Schemas) -> Plan[bool]:
    """Nothing, on a connection that the tested code has used already."""
    yield from ()
    return True


def django_connection() -> Any:
    """Django's, where it is set up for PostgreSQL; otherwise None."""
    conf = sys.modules.get("django.conf")
    if conf is None or not conf.settings.configured:
        return None
    from django.db import connection

    return connection if connection.vendor == "postgresql" else None
