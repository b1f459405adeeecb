"""The roles of deploy/sql and the page of security: what each may do, and what it may not."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import errors

from graphile_worker import (
    App,
    CleanupTask,
    Client,
    JobContext,
    JobRecovered,
    JobSucceeded,
    RecoveryOptions,
    ResultUnknownError,
    Retention,
    TaskRouter,
    sync,
)
from graphile_worker._db.database import run_plan_sync
from graphile_worker._db.sync import SyncPsycopgDatabase
from graphile_worker._metrics import definitions
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.history import plan_prune_history, plan_rotate_history
from graphile_worker.errors import SchemaError
from graphile_worker.events import CronBackfillDue
from graphile_worker.ops.diagnostics import FindingId, examine
from graphile_worker.ops.filters import Filter
from graphile_worker.ops.history import (
    plan_get_history_status,
    plan_get_job_history,
    plan_list_outcomes,
    plan_prune,
)
from graphile_worker.ops.queue_monitor import QueueMonitor, RunnableCounter
from tests.conftest import TestDatabase
from tests.support.recorder import Start, open_runners, wait_until
from tests.support.roles import as_role, open_secured_database, owners, run_script
from tests.support.sql import Sql

TABLES = ("_private_jobs", "_private_job_queues", "_private_tasks", "_private_known_crontabs")
FUNCTIONS = (
    "add_job",
    "add_jobs",
    "remove_job",
    "complete_jobs",
    "permanently_fail_jobs",
    "reschedule_jobs",
    "force_unlock_workers",
)


@pytest.fixture(scope="module")
def secured_template(cluster, schema) -> Iterator[str]:
    """The name of a database with all roles; they live as long as this module's tests."""
    with open_secured_database(cluster, schema, "template_secured") as database:
        yield database.name


@pytest.fixture
def queue(cluster, schema, secured_template) -> Iterator[TestDatabase]:
    cluster.create_database("secured", secured_template)
    yield TestDatabase("secured", cluster, schema)
    cluster.drop_database("secured")


@pytest.fixture
def owner(queue) -> Iterator[Sql]:
    """A session of a superuser, to prepare and to look."""
    yield from session(queue, "postgres")


@pytest.fixture
def worker(queue) -> Iterator[Sql]:
    yield from session(queue, "queue_worker")


@pytest.fixture
def reader(queue) -> Iterator[Sql]:
    yield from session(queue, "queue_reader")


@pytest.fixture
def cleaner(queue) -> Iterator[Sql]:
    yield from session(queue, "queue_cleaner")


@pytest.fixture
def enqueuer(queue, owner) -> Iterator[Sql]:
    """One who may add jobs of `send_email` only."""
    allow(owner, "queue_enqueuer", "send_email")
    yield from session(queue, "queue_enqueuer")


@pytest.fixture
async def start(queue, recorder) -> AsyncIterator[Start]:
    """Run workers as the role that is for them."""
    dsn = as_role(queue, "queue_worker")
    async with open_runners(queue, recorder.hooks) as start:
        yield lambda tasks, **given: start(tasks, on=dsn, **given)


def session(database: TestDatabase, role: str) -> Iterator[Sql]:
    sql = Sql(as_role(database, role), database.schema)
    yield sql
    sql.close()


def allow(owner: Sql, caller: str, task: str, **bounds: Any) -> None:
    names = ["caller", "task_identifier", *bounds]
    values = [caller, task, *bounds.values()]
    holders = ", ".join(f"${n}" for n in range(1, len(values) + 1))
    owner.run(
        f"insert into graphile_worker_api.allowed_tasks ({', '.join(names)}) values ({holders})",
        *values,
    )


def enqueue(sql: Sql, arguments: str = "'send_email'") -> int:
    found: int = sql.value(f"select graphile_worker_api.enqueue({arguments})")
    return found


def job(owner: Sql, id: int) -> dict[str, Any]:
    """The row of a job, with the name of its queue."""
    [row] = owner.run(
        """
        select row_to_json(jobs)::jsonb || jsonb_build_object('queue_name', job_queues.queue_name)
        from :schema._private_jobs as jobs
        left join :schema._private_job_queues as job_queues on job_queues.id = jobs.job_queue_id
        where jobs.id = $1
        """,
        id,
    )
    found: dict[str, Any] = row[0]
    return found


def denied(sql: Sql, statement: str) -> bool:
    """Does PostgreSQL refuse it for want of rights?"""
    try:
        sql.run(statement)
    except errors.InsufficientPrivilege:
        return True
    return False


def allowed(sql: Sql, statements: Sequence[str]) -> list[str]:
    """Those of them that PostgreSQL does not refuse for want of rights."""
    return [each for each in statements if not denied(sql, each)]


# Who owns it


@pytest.mark.feature("F40")
def test_all_of_both_schemas_belongs_to_the_owner_and_not_to_who_migrated(queue, owner):
    assert owners(owner) == {"queue_owner"}


@pytest.mark.feature("F40")
def test_functions_run_with_the_privileges_of_the_caller(queue, owner):
    allowed = owner.run(
        "select proname from pg_proc where prosecdef and pronamespace = $1::regnamespace",
        owner.text(":schema").decode(),
    )
    owner.run("grant usage on schema :schema to queue_enqueuer")
    owner.run("grant execute on all functions in schema :schema to queue_enqueuer")

    with sync.Client(as_role(queue, "queue_enqueuer"), schema=queue.schema) as client:
        with pytest.raises(errors.InsufficientPrivilege, match="permission denied for table"):
            client.add_job("send_email")
        owner.run("grant all on all tables in schema :schema to queue_enqueuer")
        with pytest.raises(errors.InsufficientPrivilege, match="row-level security"):
            client.add_job("send_email")
    with sync.Client(as_role(queue, "queue_migrator"), schema=queue.schema) as client:
        assert client.add_job("send_email").id
    assert allowed == []


def test_a_role_with_privileges_and_without_policies_sees_an_empty_queue(queue, owner, enqueuer):
    owner.run("select :schema.add_job('send_email')")
    owner.run("grant usage on schema :schema to queue_enqueuer")
    owner.run("grant select on all tables in schema :schema to queue_enqueuer")

    assert enqueuer.value("select count(*) from :schema._private_jobs") == 0
    # The view looks with its owner's eyes.
    assert enqueuer.value("select count(*) from :schema.jobs") == 1


def test_the_scripts_may_be_run_again(queue, owner, enqueuer):
    run_script(queue, "rights.sql", user="queue_migrator")
    run_script(queue, "enqueue.sql")

    assert enqueue(enqueuer)


def test_no_policy_is_missing_while_privileges_are_granted_again(queue, owner, worker):
    """What is dropped and made again would need a lock, for which this one would have to end."""
    policies = "select oid, polname from pg_policy order by oid"
    before = owner.run(policies)
    worker.run("begin")
    worker.run("select id from :schema._private_jobs for update")

    run_script(queue, "rights.sql", user="queue_migrator")

    assert owner.run(policies) == before
    worker.run("rollback")


# Workers


async def test_a_worker_runs_jobs_and_queues_and_adds_more(queue, start, recorder, owner, caplog):
    tasks = TaskRouter()

    @tasks.task
    async def first(ctx: JobContext) -> None:
        await ctx.add_job("second", queue_name="one by one")

    @tasks.task
    def second() -> None: ...

    owner.run("select :schema.add_job('first', queue_name => 'serial')")
    await start(tasks, concurrency=5)

    await recorder.wait_for(JobSucceeded, count=2)
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == []
    assert owner.value("select count(*) from :schema._private_jobs") == 0


async def test_a_worker_adds_what_recurs(queue, start, recorder, owner):
    tasks = TaskRouter()

    @tasks.cron("* * * * *", backfill=timedelta(minutes=5))
    @tasks.task
    async def often() -> None: ...

    owner.run(
        "insert into :schema._private_known_crontabs values ('often', now() - interval '1 hour', "
        "now() - interval '4 minutes')"
    )
    await start(tasks)

    await recorder.wait_for(CronBackfillDue)
    await recorder.wait_for(JobSucceeded)


async def test_a_worker_recovers_the_jobs_of_a_dead_one(queue, start, recorder, owner):
    owner.run("select :schema.add_job('work')")
    owner.run(
        "insert into :ext_schema.pools (id, seen_at, lease, details) "
        "values ('dead', now() - interval '1 hour', '1 second', '{}')"
    )
    owner.run("update :schema._private_jobs set locked_by = 'dead', locked_at = now()")

    async def work(payload: Any) -> None: ...

    sweeps = RecoveryOptions(rescue_interval=timedelta(milliseconds=100))
    await start({"work": work}, recovery=sweeps)

    await recorder.wait_for(JobRecovered)
    await recorder.wait_for(JobSucceeded)
    await wait_until(lambda: owner.run("select id from :ext_schema.pools where id <> 'dead'"))


async def test_the_doctor_finds_nothing_wrong_with_a_worker(queue):
    report = await examine(as_role(queue, "queue_worker"), schema=queue.schema)

    # The servers of the tests write nothing to disk: true, and told.
    assert {each.id for each in report.findings} == {FindingId.UNSAFE_SERVER}


async def test_a_worker_looks_after_jobs(queue, owner):
    async with Client(as_role(queue, "queue_worker"), schema=queue.schema) as client:
        a, b, c = [await client.add_job("work", job_key=key) for key in "abc"]

        assert await client.permanently_fail_jobs([a.id], "why not")
        assert await client.reschedule_jobs([a.id], attempts=0)
        assert await client.complete_jobs([a.id])
        assert await client.remove_job("b")
        assert await client.get_job(c.id) == c
        assert await client.check_schema() == await client.migrate() == 20
    assert owner.value("select count(*) from :schema.jobs") == 1


NOT_FOR_WORKERS = (
    "create table :schema.mine ()",
    "create function :schema.mine() returns int language sql as 'select 1'",
    "create or replace function :schema.add_job(identifier text, payload json default null, "
    "queue_name text default null, run_at timestamptz default null, max_attempts int default "
    "null, job_key text default null, priority int default null, flags text[] default null, "
    "job_key_mode text default 'replace') returns :schema._private_jobs "
    "language sql as 'select null'",
    "alter function :schema.add_job security definer",
    "drop function :schema.remove_job",
    "alter table :schema._private_jobs disable row level security",
    "create trigger mine before insert on :schema._private_jobs "
    "execute function suppress_redundant_updates_trigger()",
    "truncate :schema._private_jobs",
    "drop policy queue_worker_all on :schema._private_jobs",
    "create table :ext_schema.mine ()",
    "insert into :schema.migrations (id) values (21)",
    "insert into :ext_schema.migrations (id, name) values (9, 'mine')",
    "delete from :schema._private_tasks",
    "insert into :ext_schema.turns (name) values ('mine')",
    "delete from :ext_schema.turns",
    "delete from :ext_schema.samples",
    "insert into :ext_schema.history (name, started_at) values ('mine', '{}')",
    "delete from :ext_schema.history",
    "update :ext_schema.outcomes set result = 'null'",
    "delete from :ext_schema.outcomes",
    "update :ext_schema.attempts set error = null",
    "delete from :ext_schema.attempts",
    "truncate :ext_schema.outcomes",
    "select result from :ext_schema.outcomes_0",
    "truncate :ext_schema.progress",
    "update :schema._private_tasks set identifier = 'mine'",
    "create table public.mine ()",
    "create schema mine",
    "select graphile_worker_api.enqueue('send_email')",
    "insert into graphile_worker_api.allowed_tasks values ('queue_worker', 'any')",
    "set role queue_owner",
    "set role queue_api",
)


def test_a_worker_cannot_change_the_schema_or_what_others_may(worker):
    assert allowed(worker, NOT_FOR_WORKERS) == []


def test_a_worker_does_not_start_on_a_schema_that_is_behind(queue, owner):
    owner.run("delete from :schema.migrations where id = 20")

    with (
        sync.Client(as_role(queue, "queue_worker"), schema=queue.schema) as client,
        pytest.raises(errors.InsufficientPrivilege),
    ):
        client.migrate()


def test_a_worker_fetches_by_the_same_plan_as_the_owner(worker, owner):
    """Policies that are always true leave no trace in it."""
    fetch = """
      explain (costs off)
      select id from :schema._private_jobs
      where is_available and task_id = 1 and job_queue_id is null and (flags ?| '{a}') is not true
      order by priority, run_at, id limit 1 for update skip locked
    """
    for each in (worker, owner):
        each.run("set enable_seqscan = off")

    assert worker.run(fetch) == owner.run(fetch)
    assert "gwpy_free_jobs" in str(worker.run(fetch))


# Readers


def test_a_reader_reads_the_view_and_who_works(reader, owner):
    owner.run("select :schema.add_job('send_email', '{\"secret\": 1}')")

    assert reader.run("select task_identifier from :schema.jobs") == [("send_email",)]
    assert reader.run("select id from :ext_schema.pools") == []
    assert "secret" not in str(reader.run("select * from :schema.jobs"))


NOT_FOR_READERS = (
    "select payload from :schema._private_jobs",
    "select * from :schema._private_jobs",
    "select jobs from :schema._private_jobs as jobs",
    "update :schema._private_jobs set attempts = 0",
    "delete from :schema._private_jobs",
    "update :schema._private_job_queues set locked_at = null",
    "delete from :ext_schema.pools",
    "select name from :ext_schema.turns for update",
    "select name from :ext_schema.samples for update",
    "update :ext_schema.samples set body = '[]'",
    "select nextval(seqrelid::regclass) from pg_sequence",
    "select :schema.add_job('send_email')",
    "select :schema.complete_jobs('{1}')",
    "select :schema.force_unlock_workers('{a}')",
    "select id from :schema._private_jobs for update",
    "copy :schema._private_jobs to stdout",
    "select result from :ext_schema.outcomes",
    "select payload from :ext_schema.outcomes",
    "select * from :ext_schema.outcomes",
    "select outcomes from :ext_schema.outcomes as outcomes",
    "select result from :ext_schema.outcomes_0",
    "copy :ext_schema.outcomes to stdout",
    "delete from :ext_schema.outcomes",
    "truncate :ext_schema.outcomes_0",
    "update :ext_schema.history set slot = 0",
    "delete from :ext_schema.progress",
    "insert into :ext_schema.pauses (kind, name, paused_by) values ('task', 'mine', 'me')",
    "delete from :ext_schema.pauses",
    "delete from :ext_schema.unique_keys",
    "select :ext_schema.add_unique_job('send_email', null, 'mine', '1 day')",
    "insert into :ext_schema.audit (action) values ('mine')",
    "select graphile_worker_api.enqueue('send_email')",
)


def test_a_reader_sees_no_payload_and_changes_nothing(reader):
    assert allowed(reader, NOT_FOR_READERS) == []


async def test_a_reader_uses_the_sample_of_a_worker_or_takes_its_own(queue, owner):
    owner.run("select :schema.add_job('send_email')")
    schemas = Schemas.from_names(queue.schema)
    shared, counts = [], []

    for role in ("queue_reader", "queue_worker", "queue_reader"):
        families = await QueueMonitor(as_role(queue, role), schemas).collect()
        shared.append(families[definitions.SNAPSHOT_SHARED][()])
        counts.append(families[definitions.QUEUE_JOBS]["send_email", "ready"])
        assert families[definitions.QUEUE_RUNNABLE] == {(): 1}
        assert families[definitions.SNAPSHOT_ERRORS] == {(): 0}
        assert definitions.SEQUENCE_USAGE in families

    assert shared == [0, 1, 1]
    assert counts == [1, 1, 1]
    counter = RunnableCounter(as_role(queue, "queue_reader"), schemas)
    assert await counter.count(["send_email"]) == 1


async def test_the_doctor_advises_no_role_to_become_the_owner(queue):
    """Neither one that reads, nor one that deletes, nor one that calls a function."""
    found = {}
    for role in ("queue_reader", "queue_cleaner", "queue_enqueuer"):
        report = await examine(as_role(queue, role), schema=queue.schema)
        found[role] = {each.id for each in report.findings} - {FindingId.UNSAFE_SERVER}
        assert not [each for each in report.findings if "grant" in (each.sql or "")]

    assert found == {
        "queue_reader": {FindingId.LIMITED_ROLE},
        "queue_cleaner": {FindingId.LIMITED_ROLE},
        "queue_enqueuer": {FindingId.PRIVILEGES_MISSING},
    }


# Cleaners


def test_only_the_cleaner_and_the_owner_may_clean_up(queue, owner):
    owner.run("select :schema.add_job('old', queue_name => 'gone')")
    owner.run("update :schema._private_jobs set attempts = max_attempts")

    with sync.Client(as_role(queue, "queue_worker"), schema=queue.schema) as client:
        for step in (CleanupTask.GC_TASK_IDENTIFIERS, CleanupTask.GC_JOB_QUEUES):
            owner.run("select :schema.add_job('unused', queue_name => 'unused')")
            owner.run("delete from :schema._private_jobs where attempts = 0")
            with pytest.raises(errors.InsufficientPrivilege):
                client.cleanup([step])
    with sync.Client(as_role(queue, "queue_cleaner"), schema=queue.schema) as client:
        client.cleanup(list(CleanupTask))

    for table in ("_private_jobs", "_private_tasks", "_private_job_queues"):
        assert owner.value(f"select count(*) from :schema.{table}") == 0


def test_a_cleaner_deletes_no_job_that_may_still_run(cleaner, owner):
    owner.run(
        """
        insert into :schema._private_jobs (task_id, key, attempts, max_attempts, locked_at)
        values
          (1, 'ready', 0, 2, null),
          (1, 'in its last attempt', 2, 2, now()),
          (1, 'failed for good', 2, 2, null)
        """
    )

    cleaner.run("delete from :schema._private_jobs")

    left = {key for (key,) in owner.run("select key from :schema._private_jobs")}
    assert left == {"ready", "in its last attempt"}


NOT_FOR_CLEANERS = (
    "select payload from :schema._private_jobs",
    "select last_error from :schema._private_jobs",
    "update :schema._private_jobs set attempts = 0",
    "insert into :schema._private_tasks (identifier) values ('mine')",
    "select :schema.add_job('send_email')",
    "select id from :ext_schema.pools",
    "truncate :schema._private_jobs",
    "select result from :ext_schema.outcomes",
    "select payload from :ext_schema.outcomes",
    "select error from :ext_schema.outcomes",
    "select error from :ext_schema.attempts",
    "insert into :ext_schema.outcomes select * from :ext_schema.outcomes",
    "select * from :ext_schema.progress",
    "select * from :ext_schema.pauses",
    "select * from :ext_schema.unique_keys",
    "select :ext_schema.add_unique_job('send_email', null, 'mine', '1 day')",
    "select * from :ext_schema.audit",
)


def test_a_cleaner_neither_reads_payloads_nor_adds(cleaner):
    assert allowed(cleaner, NOT_FOR_CLEANERS) == []


# History and progress


async def test_a_worker_keeps_outcomes_and_rotates_the_history(queue, owner, reader):
    app = App(as_role(queue, "queue_worker"), schema=queue.schema)

    @app.task(retention=Retention(results=True, attempts=True, keep=timedelta(days=30)))
    async def add(a: int, b: int) -> int:
        return a + b

    @app.task(retention=Retention(attempts=True), max_attempts=1)
    async def fail() -> None:
        raise ValueError("secret")

    await add.aenqueue(1, 2)
    await fail.aenqueue()
    await app.worker().run_once()
    await app.close()

    assert reader.run(
        "select task_identifier, succeeded from :ext_schema.outcomes order by succeeded"
    ) == [("fail", False), ("add", True)]
    assert reader.value("select count(*) from :ext_schema.attempts") == 2
    assert owner.value("select result::text from :ext_schema.outcomes where succeeded") == "3"

    later = datetime.now(UTC) + timedelta(days=365)
    database = SyncPsycopgDatabase(as_role(queue, "queue_worker"), Schemas.from_names(queue.schema))
    slots = []
    while rotation := run_plan_sync(database, plan_rotate_history(later)):
        slots.append(rotation.emptied_slots)
    database.close()
    assert (0,) in slots
    assert owner.value("select count(*) from :ext_schema.outcomes") == 0


def test_the_cleaner_prunes_the_history(queue, owner):
    owner.run(
        "insert into :ext_schema.outcomes (job_id, created_at, run_at, started_at, finished_at,"
        " expires_at, slot, succeeded, attempts, task_identifier, pool_id)"
        " select n, now(), now(), now(), now(), now() - interval '1 hour' * n, 0, true, 1, 'a', 'p'"
        " from generate_series(-1, 1) as n"
    )
    database = SyncPsycopgDatabase(
        as_role(queue, "queue_cleaner"), Schemas.from_names(queue.schema)
    )
    for now, left in ((None, [-1]), (datetime.now(UTC) + timedelta(days=365), [])):
        run_plan_sync(database, plan_prune_history(now))
        run_plan_sync(database, plan_prune(database.schemas))
        assert run_plan_sync(database, plan_get_history_status(database.schemas)).can_rotate
        found = owner.run("select job_id from :ext_schema.outcomes where expires_at > now()")
        assert [id for (id,) in found] == left
    database.close()


def test_a_reader_sees_outcomes_without_their_results(queue, owner):
    owner.run(
        "insert into :ext_schema.outcomes (job_id, created_at, run_at, started_at, finished_at,"
        " slot, succeeded, has_result, result, payload, attempts, task_identifier, pool_id)"
        " select 7, now(), now(), now(), now(), 0, true, true, '1', '{}', 1, 'a', 'p'"
    )
    schemas = Schemas.from_names(queue.schema)
    database = SyncPsycopgDatabase(as_role(queue, "queue_reader"), schemas)
    (listed,) = run_plan_sync(database, plan_list_outcomes(Filter(), schemas)).jobs
    (shown,) = run_plan_sync(database, plan_get_job_history(7, schemas)).outcomes
    status = run_plan_sync(database, plan_get_history_status(schemas))
    database.close()
    with sync.Client(as_role(queue, "queue_reader"), schema=queue.schema) as client:
        state = client.status(7).state
        with pytest.raises(ResultUnknownError, match="may not read results"):
            client.result(7)

    assert listed == shown
    assert (shown.has_result, shown.result_text, shown.payload_text) == (True, None, None)
    assert state == "succeeded"
    assert not status.can_rotate


def test_a_worker_writes_progress_that_readers_see(worker, reader):
    worker.run(
        "insert into :ext_schema.progress (job_id, pool_id, fraction, updated_at)"
        " values (1, 'p', 0.5, now())"
    )
    worker.run("update :ext_schema.progress set fraction = 0.6")
    assert reader.value("select count(*) from :ext_schema.progress") == 1

    worker.run("delete from :ext_schema.progress")
    assert reader.value("select slot from :ext_schema.history") == 0


# Pauses


async def test_a_worker_role_pauses_and_obeys_and_a_reader_lists_pauses(queue):
    with sync.Client(as_role(queue, "queue_worker"), schema=queue.schema) as client:
        client.pause_task("send_email", duration=timedelta(hours=1))
        client.pause_queue("imports")
        with sync.Client(as_role(queue, "queue_reader"), schema=queue.schema) as reader:
            assert reader.list_pauses() == client.list_pauses()
            assert len(reader.list_pauses()) == 2
            with pytest.raises(SchemaError, match="cannot store pauses"):
                reader.pause_task("resize")
        app = App(as_role(queue, "queue_worker"), schema=queue.schema)

        @app.task
        async def send_email() -> None: ...

        client.add_job("send_email")
        assert await app.worker().run_once() == 0
        client.resume_task("send_email")
        client.resume_queue("imports")
        assert await app.worker().run_once() == 1
        await app.close()


# Unique windows


async def test_a_worker_role_adds_unique_jobs_and_a_reader_sees_their_keys(queue, worker, reader):
    call = "select is_duplicate from :ext_schema.add_unique_job('send_email', null, 'k', '1 day')"
    assert not worker.value(call)
    assert worker.value(call)
    assert reader.run("select key from :ext_schema.unique_keys") == [("k",)]

    day = timedelta(days=1)
    with sync.Client(as_role(queue, "queue_worker"), schema=queue.schema) as client:
        assert client.add_job("send_email", unique="k", unique_for=day).is_duplicate
    for role in ("queue_reader", "queue_cleaner"):
        with (
            sync.Client(as_role(queue, role), schema=queue.schema) as client,
            pytest.raises(SchemaError, match="may not use the unique keys"),
        ):
            client.add_job("send_email", unique="k", unique_for=day)


# The audit


def test_roles_that_change_jobs_add_entries_that_readers_see(queue, owner, reader):
    for role in ("queue_worker", "queue_cleaner"):
        owner.run("select :schema.add_job('old')")
        owner.run("update :schema._private_jobs set attempts = max_attempts")
        with sync.Client(as_role(queue, role), schema=queue.schema, actor="ada") as client:
            client.cleanup([CleanupTask.DELETE_PERMAFAILED_JOBS])

    entries = reader.run("select actor, role, action, count from :ext_schema.audit order by id")
    assert entries == [
        ("ada", "queue_worker", "cleanup", 1),
        ("ada", "queue_cleaner", "cleanup", 1),
    ]


NOT_FOR_ANY_ROLE = (
    "update :ext_schema.audit set actor = 'bob'",
    "delete from :ext_schema.audit",
    "truncate :ext_schema.audit",
    "insert into :ext_schema.audit (action, role) values ('mine', 'bob')",
    "insert into :ext_schema.audit (action, at) values ('mine', now())",
    "insert into :ext_schema.audit (id, action) overriding system value values (1, 'mine')",
    "alter table :ext_schema.audit add column mine int",
    "drop table :ext_schema.audit",
    "create trigger mine before insert on :ext_schema.audit "
    "execute function suppress_redundant_updates_trigger()",
)


def test_only_the_owner_changes_entries_of_the_audit(queue, worker, reader, cleaner, enqueuer):
    for sql in (worker, reader, cleaner, enqueuer):
        assert allowed(sql, NOT_FOR_ANY_ROLE) == []


@pytest.fixture
def person(queue, owner) -> Iterator[Sql]:
    """A person with a login of their own and the privileges of a worker."""
    run_script(queue, "audit-trigger.sql", user="queue_migrator")
    owner.run("create role person login")
    owner.run("grant queue_worker to person")
    yield from session(queue, "person")
    owner.run("drop role person")


def list_entries(owner: Sql) -> list[tuple[Any, ...]]:
    return owner.run(
        "select actor, role, action, job_ids, count, filter, note from :ext_schema.audit"
        " order by id"
    )


def test_the_trigger_records_direct_changes_and_no_payloads(queue, owner, person):
    run_script(queue, "audit-trigger.sql", user="queue_migrator")
    ids = [
        owner.value("select (:schema.add_job('task', '{\"secret\": 1}')).id") for _ in range(1002)
    ]
    first, last = ids[0], ids[-1]
    owner.run("truncate :ext_schema.audit")

    person.run("update :schema._private_jobs set priority = 1 where id = $1", first)
    person.run("update :schema._private_jobs set priority = 1 where id = 0")
    person.run("select :schema.reschedule_jobs($1::bigint[], priority => 2)", [first, last])
    person.run("delete from :schema._private_jobs where id <> $1", first)
    owner.run("truncate :schema._private_jobs")

    assert list_entries(owner) == [
        (None, "person", "direct update", [first], 1, None, None),
        (None, "person", "direct update", [first, last], 2, None, None),
        (None, "person", "direct delete", ids[1:1001], 1000, None, None),
        (None, "person", "direct delete", [last], 1, None, None),
        (None, "postgres", "direct truncate", [], 0, None, None),
    ]


async def test_the_trigger_does_not_record_workers_and_enqueuers(
    queue, start, recorder, owner, person, enqueuer
):
    async def send_email(payload: Any) -> None: ...

    enqueue(enqueuer, "'send_email', job_key => 'a', run_at => now() + interval '1 hour'")
    enqueue(enqueuer, "'send_email', job_key => 'a'")
    await start({"send_email": send_email})
    await recorder.wait_for(JobSucceeded)

    assert list_entries(owner) == []


def test_the_trigger_does_not_record_changes_of_this_package_twice(queue, owner, person):
    dsn = as_role(queue, "person")
    with sync.Client(dsn, schema=queue.schema, actor="ada") as client, psycopg.connect(dsn) as conn:
        first, second = [client.add_job("task").id for _ in range(2)]
        client.permanently_fail_jobs([first])
        client.cleanup([CleanupTask.DELETE_PERMAFAILED_JOBS])

        # After the call, direct changes in the same transaction are recorded again.
        client.reschedule_jobs([second], priority=1, conn=conn)
        client.complete_jobs([12345], conn=conn)
        conn.execute(owner.text("delete from :schema._private_jobs"))

    assert [(each[0], each[2], each[3]) for each in list_entries(owner)] == [
        ("ada", "jobs fail", [first]),
        ("ada", "cleanup", [first]),
        ("ada", "jobs reschedule", [second]),
        (None, "direct delete", [second]),
    ]


def test_the_function_of_the_trigger_is_the_owners_and_has_a_fixed_path(owner, person):
    [(is_definer, settings, whose, granted)] = owner.run("""
      select prosecdef, proconfig, proowner::regrole::text, proacl::text
      from pg_proc where proname = 'audit_direct_change'
    """)

    assert (is_definer, settings) == (True, ["search_path=pg_catalog, pg_temp"])
    assert (whose, granted) == ("queue_owner", "{queue_owner=X/queue_owner}")
    assert denied(person, "alter table :schema._private_jobs disable trigger gwpy_audit_delete")
    assert denied(person, "drop trigger gwpy_audit_delete on :schema._private_jobs")


# Enqueuers


@pytest.mark.feature("F41")
def test_an_enqueuer_adds_a_job_through_the_function_and_gets_only_its_id(enqueuer, owner):
    id = enqueue(enqueuer, "'send_email', '{\"to\": \"ada\"}'")

    row = job(owner, id)
    assert (row["payload"], row["priority"], row["max_attempts"]) == ({"to": "ada"}, 0, 25)
    assert (row["key"], row["queue_name"], row["flags"]) == (None, None, None)


def test_an_enqueuer_adds_a_unique_job_once_within_its_own_keys(enqueuer, owner, worker):
    call = "'send_email', unique_key => 'k', unique_for => '99 years', queue_name => 'q'"
    worker.run("select :ext_schema.add_unique_job('send_email', null, 'k', '1 day')")

    first, second = enqueue(enqueuer, call), enqueue(enqueuer, call)

    assert first == second
    assert job(owner, first)["queue_name"] == "queue_enqueuer:q"
    [(key, days)] = owner.run(
        "select key, extract(day from until - since)::int from :ext_schema.unique_keys"
        " where job_id = $1",
        first,
    )
    assert (key, days) == ("queue_enqueuer:k", 30)
    for wrong in ("unique_key => 'k'", "unique_key => 'a', unique_for => '1 s', job_key => 'b'"):
        with pytest.raises(errors.InvalidParameterValue):
            enqueue(enqueuer, f"'send_email', {wrong}")


@pytest.mark.feature("F41")
async def test_a_worker_is_notified_of_jobs_of_an_enqueuer_and_runs_them(
    queue, start, recorder, enqueuer
):
    async def send_email(payload: Any) -> None: ...

    await start({"send_email": send_email}, poll_interval=timedelta(hours=1))
    id = await asyncio.to_thread(enqueue, enqueuer)

    await recorder.wait_for(JobSucceeded, job_id=id)


NOT_FOR_ENQUEUERS = (
    *(f"select :schema.{name}" + "('send_email')" for name in ("add_job", "remove_job")),
    "select :schema.add_jobs('{}')",
    "select * from :schema.jobs",
    *(f"select count(*) from :schema.{table}" for table in TABLES),
    "insert into :schema._private_jobs (task_id) values (1)",
    "select * from :schema.migrations",
    "select * from :ext_schema.pools",
    "select * from :ext_schema.unique_keys",
    "select :ext_schema.add_unique_job('send_email', null, 'mine', '1 day')",
    "select * from graphile_worker_api.allowed_tasks",
    "insert into graphile_worker_api.allowed_tasks values ('queue_enqueuer', 'any')",
    "create function graphile_worker_api.mine() returns int language sql as 'select 1'",
    "alter function graphile_worker_api.enqueue reset search_path",
    "create table public.mine ()",
    "set role queue_api",
    "set session authorization queue_api",
)


@pytest.mark.feature("F41")
def test_an_enqueuer_may_do_nothing_else(enqueuer):
    assert allowed(enqueuer, NOT_FOR_ENQUEUERS) == []


@pytest.mark.feature("F41")
def test_only_tasks_that_are_allowed_for_the_caller_are_added(queue, enqueuer, owner):
    allow(owner, "somebody_else", "delete_customer")

    with pytest.raises(errors.InsufficientPrivilege, match="role queue_enqueuer may not"):
        enqueue(enqueuer, "'delete_customer'")
    assert owner.value("select count(*) from :schema._private_jobs") == 0


@pytest.mark.feature("F41")
def test_an_entry_in_the_list_makes_the_name_of_its_task_and_an_enqueuer_makes_none(
    queue, owner, enqueuer
):
    names = "select identifier from :schema._private_tasks"
    made = owner.run(names)
    owner.run("delete from :schema._private_tasks")

    with pytest.raises(errors.UndefinedObject, match="run enqueue.sql again"):
        enqueue(enqueuer)
    assert owner.run(names) == []

    run_script(queue, "enqueue.sql", user="queue_dba")
    assert owner.run(names) == made == [("send_email",)]
    assert enqueue(enqueuer)


@pytest.mark.feature("F41")
async def test_an_enqueuer_with_an_open_transaction_keeps_no_worker_from_its_tasks(
    queue, start, recorder, owner, enqueuer
):
    async def nothing(payload: Any) -> None: ...

    enqueuer.run("begin")
    enqueue(enqueuer)
    owner.run("select :schema.add_job('other')")

    await start({"send_email": nothing, "other": nothing})
    await recorder.wait_for(JobSucceeded)
    enqueuer.run("commit")

    await recorder.wait_for(JobSucceeded, count=2)


@pytest.mark.feature("F41")
def test_the_function_that_makes_names_is_for_its_owner_and_has_a_fixed_path(owner):
    [(is_definer, settings, whose, granted)] = owner.run("""
      select prosecdef, proconfig, proowner::regrole::text, proacl::text
      from pg_proc
      where proname = 'create_task' and pronamespace = 'graphile_worker_api'::regnamespace
    """)

    assert (is_definer, settings) == (True, ["search_path=pg_catalog, pg_temp"])
    assert (whose, granted) == ("queue_api", "{queue_api=X/queue_api}")


@pytest.mark.feature("F41")
def test_who_has_become_another_role_is_still_who_logged_in(queue, owner, enqueuer):
    owner.run("create role other nologin")
    owner.run("grant other to queue_enqueuer")
    owner.run("grant usage on schema graphile_worker_api to other")
    owner.run("grant execute on function graphile_worker_api.enqueue to other")
    enqueuer.run("set role other")

    id = enqueue(enqueuer, "'send_email', job_key => 'a'")

    assert job(owner, id)["key"] == "queue_enqueuer:a"
    enqueuer.close()
    owner.run("drop owned by other")
    owner.run("drop role other")


REFUSED = {
    "a large payload": "'send_email', json_build_object('x', repeat('x', 70000))",
    "a long key": "'send_email', job_key => repeat('k', 600)",
    "a long queue": "'send_email', queue_name => repeat('q', 200)",
    "an array with a key": "'send_email', '[1]', job_key => 'a'",
    "a mode that there is not": "'send_email', job_key => 'a', job_key_mode => 'mine'",
}


@pytest.mark.feature("F41")
@pytest.mark.parametrize("arguments", REFUSED.values(), ids=REFUSED.keys())
def test_arguments_that_are_too_large_are_rejected(enqueuer, owner, arguments):
    with pytest.raises(psycopg.Error) as refused:
        enqueue(enqueuer, arguments)

    # Errors go into logs: nothing of the payload does.
    assert "xxx" not in str(refused.value)
    assert owner.value("select count(*) from :schema._private_jobs") == 0


@pytest.mark.feature("F41")
def test_numbers_and_times_are_clamped(enqueuer, owner):
    low = enqueue(
        enqueuer,
        "'send_email', priority => -32768, max_attempts => -5, run_at => '-infinity'",
    )
    high = enqueue(
        enqueuer,
        "'send_email', priority => 2000000000, max_attempts => 2000000000, run_at => 'infinity'",
    )

    [(low_time, high_time)] = owner.run(
        """
        select
          now() - (select run_at from :schema.jobs where id = $1) between '0' and '1 minute',
          (select run_at from :schema.jobs where id = $2) - now() between '29 days' and '30 days'
        """,
        low,
        high,
    )
    assert (low_time, high_time) == (True, True)
    assert (job(owner, low)["priority"], job(owner, low)["max_attempts"]) == (0, 1)
    assert (job(owner, high)["priority"], job(owner, high)["max_attempts"]) == (32767, 25)


@pytest.mark.feature("F41")
def test_keys_and_queues_are_the_callers_own(queue, owner, enqueuer):
    owner.run("select :schema.add_job('send_email', job_key => 'welcome', queue_name => 'mail')")
    owner.run('create role "queue_enqueuer:x" login')
    owner.run('grant queue_enqueuer to "queue_enqueuer:x"')
    allow(owner, "queue_enqueuer:x", "send_email")
    other = Sql(as_role(queue, "queue_enqueuer:x"), queue.schema)

    ids = [
        enqueue(enqueuer, "'send_email', job_key => 'welcome', queue_name => 'mail'"),
        enqueue(enqueuer, "'send_email', job_key => 'x:welcome'"),
        # A name that would look like the others' prefix, were it not quoted.
        enqueue(other, "'send_email', job_key => 'welcome'"),
    ]
    again = enqueue(enqueuer, "'send_email', job_key => 'welcome'")

    assert len({*ids}) == 3
    assert again == ids[0]
    assert owner.value("select count(*) from :schema.jobs where key = 'welcome'") == 1
    assert job(owner, ids[2])["key"] == '"queue_enqueuer:x":welcome'
    other.close()
    owner.run('drop role "queue_enqueuer:x"')


def test_a_job_that_runs_gives_its_key_to_the_next(enqueuer, owner):
    first = enqueue(enqueuer, "'send_email', job_key => 'a'")
    owner.run("update :schema._private_jobs set locked_by = 'x', locked_at = now()")

    assert enqueue(enqueuer, "'send_email', job_key => 'a'") != first


# Attacks on the function


TRAPS = {
    "a function": "create function trap.octet_length(text) returns int language sql as "
    "'select trap.spring(); select 1'",
    "a function that fits better": "create function trap.quote_ident(name) returns text "
    "language sql as 'select trap.spring(); select ''x'''",
    "an operator": "create function trap.more(int, int) returns boolean language sql as "
    "'select trap.spring(); select false'; "
    "create operator trap.> (leftarg = int, rightarg = int, function = trap.more)",
    "a concatenation": "create function trap.glue(text, text) returns text language sql as "
    "'select trap.spring(); select ''x'''; "
    "create operator trap.|| (leftarg = text, rightarg = text, function = trap.glue)",
}


@pytest.fixture
def trap(owner: Sql, enqueuer: Sql) -> Sql:
    """The enqueuer has a schema of its own, whose functions tell as whom they were called."""
    owner.run("create schema trap authorization queue_enqueuer")
    owner.run("grant usage on schema trap to public")
    enqueuer.run("create table trap.caught (role name)")
    enqueuer.run("grant all on trap.caught to public")
    enqueuer.run(
        "create function trap.spring() returns void language sql as "
        "'insert into trap.caught values (current_user)'"
    )
    return enqueuer


@pytest.mark.feature("F41")
@pytest.mark.parametrize("thing", TRAPS.values(), ids=TRAPS.keys())
@pytest.mark.parametrize("is_fixed", [True, False], ids=["fixed", "not fixed"])
def test_nothing_of_the_callers_is_found_as_the_path_is_fixed(trap, owner, thing, is_fixed):
    """The same attack works on the same function without that line, so it is one.

    Calls of functions are safe without it too: the body names their schema.
    """
    if not is_fixed:
        owner.run("alter function graphile_worker_api.enqueue reset search_path")
    trap.connection.execute(thing.encode())
    trap.run("set search_path = trap, pg_catalog")

    enqueue(trap, "'send_email', job_key => 'a'")

    caught = {role for (role,) in owner.run("select role from trap.caught")}
    is_operator = "create operator" in thing
    assert caught == ({"queue_api"} if is_operator and not is_fixed else set())


@pytest.mark.feature("F41")
def test_a_temporary_table_or_type_is_not_taken_for_ours(enqueuer, owner):
    for statement in (
        "create temporary table allowed_tasks (caller name, task_identifier text)",
        "insert into allowed_tasks values ('queue_enqueuer', 'delete_customer')",
        "create temporary table _private_jobs (id int)",
        "create temporary table text (x int)",
        "set search_path = pg_temp, public",
    ):
        enqueuer.run(statement)

    with pytest.raises(errors.InsufficientPrivilege):
        enqueue(enqueuer, "'delete_customer'")
    assert job(owner, enqueue(enqueuer))["task_id"] == 1


@pytest.mark.feature("F41")
@pytest.mark.parametrize(
    "setting",
    ["standard_conforming_strings = off", "DateStyle = 'SQL, DMY'", "TimeZone = 'Asia/Tokyo'"],
)
def test_settings_of_the_caller_change_nothing(enqueuer, owner, setting):
    enqueuer.run(f"set {setting}")

    assert enqueue(enqueuer, "'send_email', '{\"a\": 1}', job_key => 'a'")


@pytest.mark.feature("F41")
def test_only_roles_with_a_grant_may_call_the_function(queue, owner):
    run_script(queue, "enqueue.sql")
    [(is_definer, settings, whose, is_super, granted)] = owner.run("""
      select prosecdef, proconfig, rolname, rolsuper,
        array(
          select coalesce(nullif(grantee, 0)::regrole::text, 'public')
          from aclexplode(proacl) order by 1
        )
      from pg_proc join pg_roles on pg_roles.oid = proowner
      where pronamespace = 'graphile_worker_api'::regnamespace
        and proname = 'enqueue'
    """)

    assert (is_definer, settings) == (True, ["search_path=pg_catalog, pg_temp"])
    assert (whose, is_super) == ("queue_api", False)
    assert granted == ["queue_api", "queue_enqueuer"]


@pytest.mark.feature("F41")
def test_a_function_that_is_created_again_is_not_public_either(queue, owner):
    """`create or replace` keeps the grants, `drop` and `create` do not."""
    owner.run("drop function graphile_worker_api.enqueue")
    run_script(queue, "enqueue.sql")
    owner.run("create role stranger login")
    owner.run("grant usage on schema graphile_worker_api, :schema to stranger")
    stranger = Sql(as_role(queue, "stranger"), queue.schema)

    assert denied(stranger, "select graphile_worker_api.enqueue('send_email')")
    for name in FUNCTIONS:
        assert not owner.value(
            "select bool_or(has_function_privilege('stranger', oid, 'execute')) from pg_proc "
            "where proname = $1 and pronamespace = $2::regnamespace",
            name,
            owner.text(":schema").decode(),
        )
    stranger.close()
    owner.run("drop owned by stranger")
    owner.run("drop role stranger")


def test_functions_of_later_migrations_are_not_public(queue, owner):
    owner.run("set role queue_owner")
    owner.run("create function :schema.later() returns int language sql as 'select 1'")

    assert owner.value("select proacl::text from pg_proc where proname = 'later'") == (
        "{queue_owner=X/queue_owner}"
    )
