"""What the database refuses means the same on every kind of connection."""

from collections.abc import Iterator

import pytest

from graphile_worker import JobSpec, JobSpecError, SchemaMissing
from tests.conftest import TestDatabase
from tests.integrations.kinds import KINDS
from tests.support.cluster import Cluster
from tests.support.database_pool import DatabasePool
from tests.support.sql import Sql

every_kind = pytest.mark.parametrize("kind", KINDS)

# Refuses with the code and constraint that the identifier names; a sequence counts the calls, since
# a rollback does not reset it.
STAND_IN = """
create or replace function :schema.add_job(
  identifier text, payload json default null, queue_name text default null,
  run_at timestamptz default null, max_attempts integer default null, job_key text default null,
  priority integer default null, flags text[] default null, job_key_mode text default 'replace'
) returns :schema._private_jobs language plpgsql as $body$
begin
  perform nextval('calls');
  raise exception 'refused' using
    errcode = split_part(identifier, ' ', 1), constraint = split_part(identifier, ' ', 2);
end
$body$
"""


@pytest.fixture(scope="module")
def database(shared_database: TestDatabase, shared_sql: Sql) -> TestDatabase:
    shared_sql.run("create sequence calls")
    shared_sql.run(STAND_IN)
    shared_sql.run("alter table :schema._private_tasks drop constraint tasks_identifier_check")
    shared_sql.run(
        "alter table :schema._private_tasks add constraint tasks_identifier_check "
        "check (identifier <> 'bad')"
    )
    return shared_database


@pytest.fixture(scope="module")
def empty_database(
    databases: DatabasePool, cluster: Cluster, schema: str
) -> Iterator[TestDatabase]:
    name = databases.clone("template0")
    yield TestDatabase(name, cluster, schema)
    cluster.drop_database(name)


@pytest.fixture(scope="module")
def sql(shared_sql: Sql) -> Sql:
    return shared_sql


def calls(sql: Sql) -> int:
    count: int = sql.value("select case when is_called then last_value else 0 end from calls")
    return count


@pytest.mark.single_version
@every_kind
async def test_a_rejected_job_raises_job_spec_error(kind: str, database: TestDatabase) -> None:
    refusals = [
        ("23514 tasks_identifier_check", "identifier", "GWBID"),
        ("23514 job_queues_queue_name_check", "queue_name", "GWBQN"),
        ("23514 jobs_key_check", "job_key", "GWBJK"),
        ("23514 jobs_max_attempts_check", "max_attempts", "GWBMA"),
        ("GWBKM", "job_key_mode", "GWBKM"),
        ("22P02", "payload", "22P02"),
    ]
    async with KINDS[kind](database) as lent:
        for refusal, argument, code in refusals:
            await lent.begin()

            with pytest.raises(JobSpecError) as caught:
                await lent.ask("add_job", refusal)
            await lent.rollback()

            assert (caught.value.argument, caught.value.code) == (argument, code)
            assert isinstance(caught.value.__cause__, lent.error)


@pytest.mark.single_version
@every_kind
async def test_a_rejected_batch_raises_the_same_error(kind: str, database: TestDatabase) -> None:
    async with KINDS[kind](database) as lent:
        await lent.begin()

        with pytest.raises(JobSpecError) as caught:
            await lent.ask("add_jobs", [JobSpec("good"), JobSpec("bad")])
        await lent.rollback()

    assert (caught.value.argument, caught.value.code) == ("identifier", "GWBID")


@pytest.mark.single_version
@every_kind
async def test_other_database_errors_pass_through(kind: str, database: TestDatabase) -> None:
    async with KINDS[kind](database) as lent:
        for refusal in ("23514 a_constraint_of_theirs", "P0001", "23503", "57014"):
            await lent.begin()

            with pytest.raises(lent.error) as caught:
                await lent.ask("add_job", refusal)
            await lent.rollback()

            library = lent.error.__module__.split(".")[0]
            assert type(caught.value).__module__.startswith(library)
            # What it was caused by is the library's to say.
            assert caught.value.__cause__ is not caught.value


@pytest.mark.single_version
@every_kind
async def test_a_transient_error_is_raised_since_the_transaction_is_lost(
    kind: str, database: TestDatabase, sql: Sql
) -> None:
    async with KINDS[kind](database) as lent:
        for transient in ("40001", "40P01"):
            before = calls(sql)
            await lent.begin()

            with pytest.raises(lent.error):
                await lent.ask("add_job", transient)
            await lent.rollback()

            assert calls(sql) == before + 1


@every_kind
async def test_a_missing_schema_is_named(kind: str, empty_database: TestDatabase) -> None:
    async with KINDS[kind](empty_database) as lent:
        await lent.begin()

        with pytest.raises(SchemaMissing) as caught:
            await lent.ask("add_job", "task")
        await lent.rollback()

    assert caught.value.schema == empty_database.schema


@pytest.mark.single_version
@every_kind
async def test_a_rejected_job_leaves_the_savepoint_to_its_owner(
    kind: str, database: TestDatabase, sql: Sql
) -> None:
    sql.run("drop table if exists owners")
    async with KINDS[kind](database) as lent:
        await lent.begin()
        await lent.execute("create table owners ()")
        await lent.savepoint()
        with pytest.raises(JobSpecError):
            await lent.ask("add_job", "GWBKM")

        await lent.rollback_to_savepoint()
        await lent.commit()

    assert sql.value("select to_regclass('owners') is not null")
