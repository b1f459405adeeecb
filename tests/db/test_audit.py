"""The audit: who changed which jobs, with which command and filter."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from graphile_worker import CleanupTask, JobSpec, JobSpecError, QueueBusy, SchemaError, sync
from graphile_worker._db.database import run_plan_sync_on
from graphile_worker._db.sync import SyncPsycopgConnection
from graphile_worker._sql.identifiers import quote_identifier
from graphile_worker._sql.plans.audit import AuditLabel, plan_audit, plan_audited
from graphile_worker._sql.plans.limits import plan_set_slots
from graphile_worker._sql.plans.pauses import (
    plan_pause_queue,
    plan_pause_task,
    plan_resume_queue,
    plan_resume_task,
)
from graphile_worker._sql.queries.audit import AuditAccess
from graphile_worker._sql.queries.jobs import complete_jobs
from graphile_worker._sql.queries.workers import register_pool
from graphile_worker.ops.adding import plan_add_for_person
from graphile_worker.ops.audit import AuditEntry, format_for_audit, plan_list_audit
from graphile_worker.ops.bulk import (
    CompleteAction,
    FailAction,
    RescheduleAction,
    RetryAction,
    UnlockAction,
    plan_bulk_change,
    plan_bulk_preview,
)
from graphile_worker.ops.filters import Filter, parse_filter
from tests.support.clients import open_client, record_statements, unwrap
from tests.support.job_table import JobTable
from tests.support.pools import open_session
from tests.support.roles import as_role
from tests.support.rows import fail_job, lock_job
from tests.support.shell import Shell
from tests.support.sql import Sql

# What the statements do: test_statements.py runs each of them on the oldest pair too.
pytestmark = pytest.mark.single_version

NO_TIME = timedelta(0)
UNIQUE_SPEC = JobSpec("task", unique="a", unique_for=timedelta(hours=1))
DEAD_POOL = "pypool-00000000000000dead"


def list_entries(sql: Sql) -> list[tuple[Any, ...]]:
    return sql.run(
        "select actor, action, filter, job_ids, count, note from :ext_schema.audit order by id"
    )


def change(table: JobTable, action: Any, job_filter: Filter, **options: Any) -> None:
    found = table.run_plan(plan_bulk_preview(action, job_filter, table.schemas))
    table.run_plan(plan_bulk_change(found, table.schemas, throttle=0, **options))


# The administrative API


async def test_each_administrative_call_adds_an_entry(kind, database, sql):
    async with open_client(kind, database, actor="ada") as client:
        a, b, c = [await client.add_job("task", job_key=key, queue_name=key) for key in "abc"]
        await client.permanently_fail_jobs([a.id, 12345], "wrong address")
        await client.reschedule_jobs(
            [a.id], run_at=timedelta(hours=1), priority=5, attempts=0, max_attempts=3
        )
        await client.complete_jobs([a.id])
        lock_job(sql, b, by="dead")
        sql.run("update :schema._private_job_queues set locked_by = 'dead' where queue_name = 'b'")
        await client.recover_workers(["dead", "other"])
        lock_job(sql, c, by="dead")
        await client.force_unlock_workers(["dead"])
        fail_job(sql, b, attempts=25)
        deleted = await client.cleanup(list(CleanupTask), task_identifiers_to_keep=["task"])
        # Jobs that the application adds and removes are not audited.
        await client.remove_job("c")

    assert list_entries(sql) == [
        ("ada", "jobs fail", f"id:{a.id},12345", [a.id], 1, "wrong address"),
        (
            *("ada", "jobs reschedule", f"id:{a.id}", [a.id], 1),
            "run_at=now+1h priority=5 attempts=0 max_attempts=3",
        ),
        ("ada", "jobs complete", f"id:{a.id}", [a.id], 1, None),
        ("ada", "workers recover", "worker:dead,other", [b.id], 1, "1 named queue"),
        ("ada", "workers unlock", "worker:dead", [c.id], 1, "1 named queue"),
        ("ada", "cleanup", "DELETE_PERMAFAILED_JOBS", [b.id], 1, None),
        ("ada", "cleanup", "GC_JOB_QUEUES", [], 2, None),
    ]
    assert deleted[CleanupTask.DELETE_PERMAFAILED_JOBS] == 1
    assert sql.value("select bool_and(role = session_user) from :ext_schema.audit")


async def test_a_change_that_changes_nothing_leaves_no_entry(client, sql):
    await client.permanently_fail_jobs([1], "no such job")
    await client.reschedule_jobs([1], priority=1)
    await client.complete_jobs([])
    await client.recover_workers(["none"])
    await client.force_unlock_workers(["none"])
    await client.cleanup(list(CleanupTask))

    assert list_entries(sql) == []


async def test_without_an_actor_only_the_role_is_recorded(client, sql):
    job = await client.add_job("task")
    await client.complete_jobs([job.id])

    assert sql.run("select actor, role = session_user from :ext_schema.audit") == [(None, True)]


async def test_the_entry_is_part_of_the_transaction_of_the_change(client, conn, sql):
    job = await client.add_job("task")

    assert await client.complete_jobs([job.id], conn=unwrap(conn))
    await conn.rollback()
    assert (list_entries(sql), await client.get_job(job.id)) == ([], job)

    await client.complete_jobs([job.id], conn=unwrap(conn))
    await conn.commit()
    assert [entry[3] for entry in list_entries(sql)] == [[job.id]]


def test_a_change_that_fails_leaves_no_entry(blocking_client, sql):
    job = blocking_client.add_job("task")
    sql.run(
        "create function :schema.fail() returns trigger language plpgsql as"
        " 'begin raise exception ''no entries''; end'"
    )
    sql.run(
        "create trigger fail before insert on :ext_schema.audit"
        " for each row execute function :schema.fail()"
    )

    with pytest.raises(psycopg.Error, match="no entries"):
        blocking_client.complete_jobs([job.id])

    # Neither happens without the other.
    assert blocking_client.get_job(job.id) == job
    assert list_entries(sql) == []


async def test_a_call_sends_at_most_two_more_statements(client, monkeypatch):
    job = await client.add_job("task")
    sent = record_statements(monkeypatch)
    await client.permanently_fail_jobs([job.id])
    assert sent == ["begin_audit", "permanently_fail_jobs", "add_audit_entry"]

    sent.clear()
    await client.permanently_fail_jobs([12345])
    assert sent == ["begin_audit", "permanently_fail_jobs", "end_audit"]

    sent.clear()
    await client.recover_workers(["dead"])
    assert sent == ["has_registry", "begin_recovery_audit", "recover_jobs", "end_audit"]


def test_an_entry_has_at_most_1000_jobs(database, sql):
    sql.run("select :schema.add_job('task') from generate_series(1, 2001)")
    ids = [id for (id,) in sql.run("select id from :schema._private_jobs order by id")]
    with sync.Client(database.dsn, schema=database.schema) as client:
        client.permanently_fail_jobs(ids, "all")
        client.cleanup([CleanupTask.DELETE_PERMAFAILED_JOBS])

    entries = list_entries(sql)
    parts = [ids[:1000], ids[1000:2000], ids[2000:]]
    assert [entry[3] for entry in entries] == parts * 2
    assert [entry[4] for entry in entries] == [1000, 1000, 1] * 2
    # A long filter is cut.
    assert {len(entry[2]) for entry in entries[:3]} == {1000}


# Names that could do harm


@pytest.mark.parametrize(
    ("given", "recorded"),
    [
        ("Zoë", "Zoë"),
        ("  ada ", "ada"),
        (" ", None),
        ("ada\nbob\x1b[2J", "ada\\nbob\\x1b[2J"),
        ("a\x00b\ud800", "a\\x00b\\ud800"),
        ("x" * 300, "x" * 200),
    ],
    ids=["letters", "spaces", "empty", "control", "unstorable", "long"],
)
def test_an_actor_is_one_printable_line_of_at_most_200_characters(database, sql, given, recorded):
    with sync.Client(database.dsn, schema=database.schema, actor=given) as client:
        client.complete_jobs([client.add_job("task").id])

    assert [entry[0] for entry in list_entries(sql)] == [recorded]


def test_a_name_that_the_database_cannot_store_is_escaped():
    label = AuditLabel(action="jobs fail", actor="Łukasz", note="…")
    query = label.build_entry(AuditAccess(True, False), [1])

    assert query.args == ("\\u0141ukasz", "jobs fail", None, [1], 1, "\\u2026")


# Where there is no audit


def test_without_the_table_the_change_happens_unaudited(blocking_client, table, sql):
    sql.run("drop table :ext_schema.audit")
    first, second, third = [blocking_client.add_job("task").id for _ in range(3)]

    assert blocking_client.permanently_fail_jobs([first])
    assert blocking_client.recover_workers(["dead"]) == []
    blocking_client.force_unlock_workers(["dead"])
    assert blocking_client.cleanup(list(CleanupTask))[CleanupTask.DELETE_PERMAFAILED_JOBS] == 1
    change(table, CompleteAction(), parse_filter(f"id:{second}"))

    assert set(table.rows()) == {third}


def test_a_role_without_the_privilege_changes_jobs_unaudited(database, sql, role):
    quoted = quote_identifier(role)
    sql.run(f"grant usage on schema :schema, :ext_schema to {quoted}")
    sql.run(f"grant all on all tables in schema :schema to {quoted}")
    sql.run(f"alter role {quoted} bypassrls")
    with sync.Client(as_role(database, role), schema=database.schema) as client:
        job = client.add_job("task")
        assert client.complete_jobs([job.id])
        assert list_entries(sql) == []

        sql.run(
            f"grant insert (actor, action, filter, job_ids, count, note) on "
            f":ext_schema.audit to {quoted}"
        )
        job = client.add_job("task")
        assert client.complete_jobs([job.id])

    # The identity column needs no privilege on its sequence.
    assert sql.run("select role, job_ids from :ext_schema.audit") == [(role, [job.id])]


# Bulk changes


def test_each_batch_of_a_bulk_change_adds_an_entry(table, sql):
    ids = [table.add_job_in_state("failed") for _ in range(5)]
    locked = table.add_job_in_state("running")

    change(table, RetryAction(), parse_filter("task:*"), batch_size=2, actor="ada")

    entries = list_entries(sql)
    assert {entry[:3] for entry in entries} == {("ada", "jobs retry", "task:*")}
    assert sorted(id for entry in entries for id in entry[3]) == ids
    assert sum(entry[4] for entry in entries) == 5
    assert all(locked not in entry[3] for entry in entries)


def test_entries_of_bulk_actions_have_the_words_of_their_command(table, sql):
    actions: list[tuple[Any, str, str | None]] = [
        (RescheduleAction(priority=7), "jobs reschedule", "priority=7"),
        (FailAction("because"), "jobs fail", "because"),
        (RetryAction(), "jobs retry", None),
        (CompleteAction(), "jobs complete", None),
        (UnlockAction(), "jobs unlock", None),
        (UnlockAction(force=True), "jobs unlock", "force"),
    ]
    for action, *_ in actions:
        table.add_job_in_state(action.states[0])
        change(table, action, Filter())
        sql.run("delete from :schema._private_jobs")

    assert [(each[1], each[2], each[5]) for each in list_entries(sql)] == [
        (name, "all", note) for _, name, note in actions
    ]


def test_values_of_payloads_are_hidden_in_filters():
    job_filter = parse_filter('task:send -payload.card.number:"4111",null state:failed')

    assert format_for_audit(job_filter) == 'task:send -payload."card"."number":… state:failed'
    assert format_for_audit(Filter()) == "all"


# For other parts


def test_a_plan_of_several_queries_is_audited(table, sql):
    job_id = table.add_job_in_state("ready")
    label = AuditLabel(action="history set", actor="ada", note="keep=7d")

    def plan_change() -> Any:
        yield complete_jobs([12345])
        return (yield complete_jobs([job_id]))

    jobs = table.run_plan(plan_audited(plan_change, lambda jobs: len(jobs), table.schemas, label))
    table.run_plan(plan_audit(3, table.schemas, AuditLabel(action="history prune")))
    table.run_plan(plan_audit(0, table.schemas, AuditLabel(action="history prune")))

    assert [job.id for job in jobs] == [job_id]
    assert list_entries(sql) == [
        ("ada", "history set", None, [], 1, "keep=7d"),
        (None, "history prune", None, [], 3, None),
    ]


@pytest.mark.parametrize(
    ("build_plan", "error"),
    [
        (lambda schemas: plan_pause_queue("busy", schemas, wait=NO_TIME), QueueBusy),
        (lambda schemas: plan_resume_queue("paused", schemas, wait=NO_TIME), QueueBusy),
        (lambda schemas: plan_pause_task("task", schemas), SchemaError),
        (lambda schemas: plan_resume_task("task", schemas), SchemaError),
        (lambda schemas: plan_set_slots("no such limit", 1, schemas), JobSpecError),
        (lambda schemas: plan_add_for_person(UNIQUE_SPEC, None, schemas), SchemaError),
    ],
    ids=["pause queue", "resume queue", "pause task", "resume task", "limit", "unique"],
)
def test_after_an_error_without_a_failed_statement_the_trigger_records_changes_again(
    database, table, sql, build_plan, error
):
    sql.run("drop table :ext_schema.pauses, :ext_schema.unique_keys")
    table.add_queue("busy", locked_at="now()", locked_by="'worker'")
    queue_id = table.add_queue("paused", locked_at="'9999-01-01'", locked_by="'paused:ada'")
    table.add_job_in_state("running", job_queue_id=queue_id)

    with psycopg.connect(database.dsn) as conn:
        connection = SyncPsycopgConnection(conn, table.schemas)
        with pytest.raises(error):
            run_plan_sync_on(connection, build_plan(table.schemas))
        [setting] = conn.execute("select current_setting('gwpy.audited', true)").fetchall()

    # With "on", the trigger of deploy/sql/audit-trigger.sql ignores changes.
    assert setting == ("",)


def test_entries_are_listed_newest_first_with_filters(table, sql):
    for actor, action, ids in [("ada", "jobs fail", "{1,2}"), (None, "jobs retry", "{2}")]:
        sql.run(
            "insert into :ext_schema.audit (actor, action, job_ids, count, note, filter)"
            " values ($1, $2, $3::bigint[], 1, 'why', 'all')",
            actor,
            action,
            ids,
        )

    def found(**options: Any) -> list[AuditEntry]:
        entries: list[AuditEntry] = table.run_plan(plan_list_audit(table.schemas, **options))
        return entries

    newest, oldest = found()
    assert (newest.action, oldest.action) == ("jobs retry", "jobs fail")
    assert (oldest.actor, oldest.job_ids, oldest.count) == ("ada", (1, 2), 1)
    assert abs(oldest.at - datetime.now(UTC)) < timedelta(minutes=1)
    assert found(limit=1) == [newest]
    assert found(before=newest.id) == [oldest]
    assert found(actor="ada") == [oldest]
    assert found(actor=newest.role) == [newest, oldest]
    assert found(action="jobs retry") == [newest]
    assert found(job_id=1) == [oldest]
    assert found(job_id=3) == []


# The commands


@pytest.fixture
def shell(database, tmp_path, monkeypatch, capsys) -> Shell:
    monkeypatch.setenv("GRAPHILE_WORKER_ACTOR", "")
    monkeypatch.setenv("LOGNAME", "grace")
    return Shell(database, tmp_path, monkeypatch, capsys)


def test_commands_that_change_jobs_add_entries(database, shell, table, sql, tmp_path):
    ids = [table.add_job_in_state("failed", key=f"'{key}'") for key in "abcd"]
    a, b, c, d = ids
    running = table.add_job_in_state("running", key="'r'")
    stale = table.add_job_in_state("stale")
    with open_session(database) as session:
        session.run(register_pool(DEAD_POOL, timedelta(seconds=1), {}))
    sql.run("update :ext_schema.pools set seen_at = seen_at - interval '1 hour'")
    (tmp_path / "crontab").write_text("0 0 * * * nightly\n")

    commands: list[tuple[str, ...]] = [
        ("jobs", "retry", str(a), "--actor", "ada"),
        ("jobs", "fail", "--where", f"id:{a},{b}", "--reason", "wrong", "--yes"),
        ("jobs", "reschedule", str(b), "--priority", "3"),
        ("jobs", "complete", str(b), "--yes"),
        ("jobs", "remove", "c", "--yes"),
        ("jobs", "remove", "r", "--running", "--yes"),
        ("jobs", "unlock", str(stale), "--yes"),
        ("cron", "run", "nightly"),
        ("--cleanup", "DELETE_PERMAFAILED_JOBS"),
    ]
    for command in commands:
        result = shell(*command)
        assert (result.code, result.err) == (0, ""), command
    sql.run(
        "update :schema._private_jobs set locked_by = $1, locked_at = now() where id = $2",
        DEAD_POOL,
        stale,
    )
    assert shell("workers", "recover", "--all-dead", "--yes").code == 0

    added = sql.value("select jobs.id from :schema.jobs where jobs.task_identifier = 'nightly'")
    assert list_entries(sql) == [
        ("ada", "jobs retry", f"id:{a}", [a], 1, None),
        ("grace", "jobs fail", f"id:{a},{b}", [a], 1, "wrong"),
        ("grace", "jobs reschedule", f"id:{b}", [b], 1, "priority=3"),
        ("grace", "jobs complete", f"id:{b}", [b], 1, None),
        ("grace", "jobs remove", "key:c", [c], 1, None),
        ("grace", "jobs remove", "key:r", [running], 1, None),
        ("grace", "jobs unlock", f"id:{stale}", [stale], 1, None),
        ("grace", "cron run", "nightly", [added], 1, None),
        ("grace", "cleanup", "DELETE_PERMAFAILED_JOBS", [a, d], 2, None),
        ("grace", "workers recover", f"worker:{DEAD_POOL}", [stale], 1, None),
    ]


def test_commands_that_change_the_history_add_entries(shell, sql):
    sql.run(
        "insert into :ext_schema.outcomes (job_id, created_at, run_at, started_at, finished_at,"
        " expires_at, slot, succeeded, attempts, task_identifier, pool_id)"
        " select 1, now(), now(), now(), now(), now() - interval '1 hour', 0, true, 1, 'a', 'p'"
    )
    for command in (["set", "--keep", "14d", "--max-rows", "9"], ["prune"], ["prune"]):
        result = shell("history", *command)
        assert (result.code, result.err) == (0, "")

    assert list_entries(sql) == [
        ("grace", "history set", None, [], 1, "keep=14d max_rows=9"),
        ("grace", "history prune", None, [], 1, "emptied 0 slots, deleted 1 row"),
    ]


def test_the_actor_of_the_command_is_a_setting(shell, table, sql, monkeypatch):
    monkeypatch.setenv("GRAPHILE_WORKER_ACTOR", "deploy-bot")
    shell("jobs", "retry", table.add_job_in_state("failed"))

    assert [entry[0] for entry in list_entries(sql)] == ["deploy-bot"]


def test_previews_and_rejected_commands_leave_no_entry(shell, table, sql):
    job_id = table.add_job_in_state("failed")

    assert shell("jobs", "retry", job_id, "--dry-run").code == 0
    assert shell("jobs", "fail", job_id, "--yes").code == 1
    assert shell("jobs", "remove", "none", "--yes").code == 1
    assert list_entries(sql) == []


def test_the_command_audit_prints_entries(shell, sql):
    empty = shell("audit")
    sql.run(
        "insert into :ext_schema.audit (actor, action, job_ids, count, note, filter) values"
        " (e'ada\\x1b[2J', 'jobs fail', '{1,2,3,4,5,6,7}', 7, e'why\\nnot', repeat('x', 100))"
    )
    shown, listed = shell("audit", "--job", 7), shell("audit", "--action", "jobs fail", "--json")
    none = shell("audit", "--actor", "bob", "--json")

    assert (empty.code, empty.out, empty.err) == (0, "", "no entries\n")
    head, line = shown.out.splitlines()
    assert head.split() == [
        "id",
        "at",
        "actor",
        "role",
        "action",
        "count",
        "jobs",
        "filter",
        "note",
    ]
    assert "\x1b" not in shown.out
    assert "ada\\x1b[2J" in line
    assert "1,2,3,4,5,…" in line
    assert line.endswith("…  why\\nnot")
    (entry,) = json.loads(listed.out)["entries"]
    assert entry["job_ids"] == [1, 2, 3, 4, 5, 6, 7]
    assert (entry["count"], entry["filter"]) == (7, "x" * 100)
    assert json.loads(none.out) == {"entries": []}


def test_without_the_table_the_command_audit_names_the_migration(shell, sql):
    sql.run("drop table :ext_schema.audit")

    result = shell("audit")

    assert result.code == 1
    assert "graphile-worker migrate" in result.err
