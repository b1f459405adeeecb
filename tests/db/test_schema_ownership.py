"""A schema that another role has installed is handed over, and the roles of deploy/sql work."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from psycopg import errors

from graphile_worker import JobSucceeded, sync
from tests.conftest import TestDatabase
from tests.support.recorder import open_runners
from tests.support.roles import (
    as_role,
    grant_permissions,
    open_administered_database,
    owners,
    run_script,
)
from tests.support.sql import Sql


@pytest.fixture
def queue(cluster, schema) -> Iterator[TestDatabase]:
    """A database whose schema belongs to `queue_former`."""
    with open_administered_database(cluster, schema, "handed_over") as database:
        run_as(database, "postgres", "create role queue_former login")
        run_as(database, "queue_dba", "grant create on database handed_over to queue_former")
        with sync.Client(as_role(database, "queue_former"), schema=schema) as client:
            client.migrate()
        yield database


def run_as(database: TestDatabase, role: str, *statements: str) -> None:
    with closing(Sql(as_role(database, role), database.schema)) as sql:
        for each in statements:
            sql.run(each)


def hand_over(database: TestDatabase) -> None:
    """As the page says, on a server where nobody here is a superuser."""
    run_script(database, "roles.sql", user="queue_dba")
    run_as(database, "queue_dba", "grant queue_owner to queue_former")
    run_script(database, "hand-over.sql", user="queue_former")


@pytest.mark.parametrize("has_companion", [True, False], ids=["ours", "from elsewhere"])
def test_all_of_both_schemas_then_belongs_to_the_owner(queue, has_companion):
    if not has_companion:
        run_as(queue, "queue_former", "drop schema :ext_schema cascade")
    run_as(queue, "queue_former", "create type :schema.mood as enum ()")

    hand_over(queue)
    # A second time does no harm.
    run_script(queue, "hand-over.sql", user="queue_former")
    grant_permissions(queue)

    with closing(Sql(queue.dsn, queue.schema)) as sql:
        assert owners(sql) == {"queue_owner"}


async def test_jobs_of_before_are_run_by_the_role_for_workers(queue, recorder):
    async def greet(payload: Any) -> None: ...

    run_as(queue, "queue_former", "select :schema.add_job('greet')")
    hand_over(queue)
    grant_permissions(queue)

    async with open_runners(queue, recorder.hooks) as start:
        await start({"greet": greet}, on=as_role(queue, "queue_worker"))
        await recorder.wait_for(JobSucceeded)


def test_the_former_owner_keeps_access_while_it_is_a_member(queue):
    hand_over(queue)
    grant_permissions(queue)

    run_as(queue, "queue_former", "select :schema.add_job('greet')")
    run_as(queue, "queue_dba", "revoke queue_owner from queue_former")

    with pytest.raises(errors.InsufficientPrivilege):
        run_as(queue, "queue_former", "select :schema.add_job('greet')")
