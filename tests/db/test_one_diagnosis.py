"""`top`, `doctor` and `/readyz?verbose` give the same verdict and findings on the same database."""

import asyncio
import json
import shlex
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner, Result
from psycopg.conninfo import make_conninfo

from graphile_worker import ConcurrencyLimit, RateLimit
from graphile_worker._cli.health import describe_queue, health_server
from graphile_worker._cli.main import command
from graphile_worker._db.database import run_plan
from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.tuning import plan_get_tuning
from graphile_worker._sql.queries.limits import (
    create_limit_rows,
    register_limits,
    rent_slots,
    take_tokens,
)
from graphile_worker.limits import Limit
from graphile_worker.ops.diagnostics import DoctorOptions, FindingId, Thresholds, examine
from graphile_worker.ops.diagnostics.findings import QUEUE_FINDINGS
from graphile_worker.ops.diagnostics.queue import diagnose_queue
from graphile_worker.ops.snapshot import plan_snapshot
from graphile_worker.ops.trends import SnapshotHistory
from tests.conftest import TestDatabase
from tests.support.pools import open_session
from tests.support.sql import Sql

# Logic of the worker, which test_polling.py runs on the oldest pair too.
pytestmark = pytest.mark.single_version

NODE = "pool-3fa94c1d77e0aa19b2"
PYTHON = "pypool-0123456789abcdef01"


def add_jobs(sql: Sql, task: str, *, count: int = 1, due: str = "0 s", queue: str = "") -> None:
    """Add jobs that were due some time ago."""
    sql.run(
        "select :schema.add_job($1, queue_name => nullif($2, ''), "
        "run_at => now() - $3::text::interval) from generate_series(1, $4)",
        task,
        queue,
        due,
        count,
    )


def register(
    sql: Sql,
    *,
    silence: str = "0 s",
    lease: str = "1 hour",
    limits: dict[str, list[str]] | None = None,
) -> None:
    """Register a Python worker that runs the task send_email, and those with limits."""
    limits = limits or {}
    tasks = ["send_email", *limits]
    sql.run(
        "insert into :ext_schema.pools (id, seen_at, lease, details) values "
        "($1, now() - $2::text::interval, $3::text::interval, $4::text::json)",
        PYTHON,
        silence,
        lease,
        json.dumps({"runtime": "python", "concurrency": 4, "tasks": tasks, "limits": limits}),
    )


def lock(sql: Sql, table: str, pool_id: str, age: str) -> None:
    sql.run(
        f"update :schema.{table} set locked_by = $1, locked_at = now() - $2::text::interval",
        pool_id,
        age,
    )


def fail_permanently(sql: Sql) -> None:
    sql.run("update :schema._private_jobs set attempts = max_attempts, last_error = 'Boom'")


def prepare_nothing(sql: Sql) -> None:
    """The database as it is after `migrate`."""


def prepare_busy_worker(sql: Sql) -> None:
    register(sql)
    add_jobs(sql, "send_email", count=20)


def prepare_failed_jobs(sql: Sql) -> None:
    add_jobs(sql, "send_email", count=20, due="2 hours")
    add_jobs(sql, "resize", count=6, due="1 hour")
    fail_permanently(sql)


def prepare_mistyped_task(sql: Sql) -> None:
    register(sql)
    add_jobs(sql, "sent_email", due="45 s")


def prepare_no_worker(sql: Sql) -> None:
    add_jobs(sql, "send_email", count=3, due="10 minutes")


def prepare_long_job_of_node(sql: Sql) -> None:
    add_jobs(sql, "encode")
    lock(sql, "_private_jobs", NODE, "5 minutes")
    add_jobs(sql, "encode", due="20 s")


def prepare_paused_queue(sql: Sql) -> None:
    register(sql)
    add_jobs(sql, "send_email", queue="billing", due="1 hour")
    sql.run(
        "update :schema._private_job_queues set locked_by = 'paused:ana', locked_at = '9999-01-01'"
    )


def prepare_late_job(sql: Sql) -> None:
    register(sql)
    add_jobs(sql, "send_email", due="2 minutes")


def prepare_very_late_job(sql: Sql) -> None:
    register(sql)
    add_jobs(sql, "send_email", due="10 minutes")


def prepare_stale_lock(sql: Sql) -> None:
    add_jobs(sql, "send_email")
    lock(sql, "_private_jobs", NODE, "5 hours")


def prepare_lock_of_dead_worker(sql: Sql) -> None:
    register(sql, silence="1 minute", lease="10 ms")
    add_jobs(sql, "send_email")
    lock(sql, "_private_jobs", PYTHON, "2 minutes")


def prepare_blocked_queue(sql: Sql) -> None:
    register(sql)
    add_jobs(sql, "send_email", queue="billing", count=3)
    lock(sql, "_private_job_queues", PYTHON, "10 minutes")


def prepare_dead_worker(sql: Sql) -> None:
    register(sql, silence="1 minute", lease="10 ms")


def prepare_deleted_task(sql: Sql) -> None:
    add_jobs(sql, "send_email", due="1 hour")
    sql.run("delete from :schema._private_tasks")


def prepare_newer_schema(sql: Sql) -> None:
    sql.run("insert into :schema.migrations (id, breaking) values (21, false)")


def prepare_several_problems(sql: Sql) -> None:
    add_jobs(sql, "resize", count=2, due="1 hour")
    fail_permanently(sql)
    prepare_paused_queue(sql)
    add_jobs(sql, "send_email", due="2 minutes")
    add_jobs(sql, "sent_email", due="45 s")


@dataclass(frozen=True, slots=True)
class Scene:
    prepare: Callable[[Sql], None]
    verdict: str
    findings: tuple[str, ...] = ()


SCENES = (
    Scene(prepare_nothing, "healthy"),
    Scene(prepare_busy_worker, "healthy"),
    Scene(prepare_failed_jobs, "degraded", ("warning permanently-failed",)),
    Scene(prepare_mistyped_task, "degraded", ("critical unhandled-task",)),
    Scene(prepare_no_worker, "stalled", ("critical no-workers",)),
    Scene(prepare_long_job_of_node, "healthy"),
    Scene(prepare_paused_queue, "healthy", ("note queue-paused",)),
    Scene(prepare_late_job, "degraded", ("warning late",)),
    Scene(prepare_very_late_job, "degraded", ("critical late",)),
    Scene(prepare_stale_lock, "degraded", ("critical stale-locks",)),
    Scene(prepare_lock_of_dead_worker, "degraded", ("critical dead-pool-locks",)),
    Scene(prepare_blocked_queue, "degraded", ("warning queue-blocked",)),
    Scene(prepare_dead_worker, "degraded", ("warning dead-pools",)),
    Scene(prepare_deleted_task, "degraded", ("critical dangling-tasks",)),
    Scene(prepare_newer_schema, "healthy", ("note schema-newer",)),
    Scene(
        prepare_several_problems,
        "degraded",
        (
            "critical unhandled-task",
            "warning late",
            "warning permanently-failed",
            "note queue-paused",
        ),
    ),
)


def invoke(database: TestDatabase, *arguments: str) -> Result:
    flags = ("-c", database.dsn, "--schema", database.schema)
    return CliRunner().invoke(command, [*arguments, *flags])


def run_top(database: TestDatabase) -> dict[str, Any]:
    found = invoke(database, "top", "--once", "--json", "--interval", "500ms")
    assert found.exit_code == 0, found.output
    return dict(json.loads(found.stdout))


def read_readiness(dsn: str, schema: str) -> tuple[int, list[str]]:
    """The status and the lines of `/readyz?verbose` of a worker that is ready."""

    def get(port: int) -> tuple[int, list[str]]:
        url = f"http://127.0.0.1:{port}/readyz?verbose"
        with urllib.request.urlopen(url, timeout=20) as response:
            return response.status, response.read().decode().splitlines()

    async def serve() -> tuple[int, list[str]]:
        describe = describe_queue(dsn, Schemas.from_names(schema))
        async with health_server(0, lambda: True, describe=describe) as port:
            return await asyncio.to_thread(get, port)

    return asyncio.run(serve())


def list_queue_findings(findings: list[dict[str, Any]]) -> list[str]:
    return [
        f"{each['severity']} {each['id']}" for each in findings if each["id"] in set(QUEUE_FINDINGS)
    ]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.prepare.__name__[8:])
def test_top_doctor_and_readiness_agree(database, sql, scene):
    scene.prepare(sql)

    top = run_top(database)
    doctor = invoke(database, "doctor", "--json")
    report = json.loads(doctor.stdout)
    status, [first, verdict, *lines] = read_readiness(database.dsn, database.schema)

    assert (top["verdict"], report["verdict"], verdict) == (
        scene.verdict,
        scene.verdict,
        f"verdict: {scene.verdict}",
    )
    assert list_queue_findings(top["attention"]) == [*scene.findings]
    assert list_queue_findings(report["findings"]) == [*scene.findings]
    assert [line.partition(":")[0] for line in lines] == [*scene.findings]
    # A worker claims jobs in any state of the queue.
    assert (status, first) == (200, "ok")
    # The servers of the tests run with fsync off, which is a warning.
    is_critical = any(each.startswith("critical") for each in scene.findings)
    assert doctor.exit_code == (3 if is_critical else 1)


def test_26_permanently_failed_jobs_are_reported_alike(database, sql):
    prepare_failed_jobs(sql)

    top = run_top(database)["attention"]
    doctor = json.loads(invoke(database, "doctor", "--json").stdout)["findings"]

    [from_top] = [each for each in top if each["id"] == "permanently-failed"]
    [from_doctor] = [each for each in doctor if each["id"] == "permanently-failed"]
    # The prepared rows were updated just now, which counts as the time of the failure.
    assert from_top["title"].startswith("26 jobs failed permanently, the oldest ")
    assert [line.partition(",")[0] for line in from_top["evidence"]] == [
        "send_email: 20",
        "resize: 6",
    ]
    for name in ("severity", "advice", "shell", "affected"):
        assert from_top[name] == from_doctor[name]


def test_a_task_that_is_late_because_of_its_limit_needs_no_more_workers(database, sql):
    limits: list[Limit] = [
        ConcurrencyLimit(2, name="encoder"),
        RateLimit(1, per=timedelta(hours=1), name="stripe"),
    ]
    register(sql, limits={"encode": ["encoder"], "charge": ["encoder", "stripe"]})
    for task in ("encode", "charge", "send_email"):
        add_jobs(sql, task, due="2 minutes")
    with open_session(database) as connection:
        connection.run(register_limits(limits))
        connection.run(create_limit_rows(["encoder", "stripe"]))
        connection.run(take_tokens("stripe", 1))
        connection.run(rent_slots("encoder", PYTHON, 1))
        with_a_free_slot = list_late_tasks(run_top(database)["attention"])
        connection.run(rent_slots("encoder", PYTHON, 1))

    from_top = list_late_tasks(run_top(database)["attention"])
    report = json.loads(invoke(database, "doctor", "--json").stdout)
    from_doctor = list_late_tasks(report["findings"])

    assert [each for each in from_top.values() if "more workers" in each["advice"].lower()] == [
        from_top["encode"],
        from_top["charge"],
    ]
    slot = "the job waits for a slot of 'encoder' (2 of 2 rented)"
    assert from_top["encode"]["evidence"] == ["1 ready, 0 running", "0 of 4 slots busy", slot]
    assert from_top["charge"]["evidence"][-2] == slot
    token = from_top["charge"]["evidence"][-1]
    assert token.startswith("the job waits for a token of 'stripe' (1 per 1h, next in ")
    assert get_arguments(from_top["encode"]["shell"], "limits set") == ["encoder", "N"]
    assert get_arguments(with_a_free_slot["charge"]["shell"], "limits set") == ["stripe", "N/1h"]
    for other in (from_top["send_email"], with_a_free_slot["encode"]):
        assert other["advice"].startswith("Add workers")
        assert "jobs why" in other["shell"]
    for task, finding in from_doctor.items():
        for name in ("advice", "shell"):
            assert finding[name] == from_top[task][name]


def list_late_tasks(findings: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the findings of tasks that are late, by task."""
    return {each["subject"]["name"]: each for each in findings if each["id"] == "late"}


def get_arguments(shell: str, subcommand: str) -> list[str]:
    """Return the last two arguments of a command that is printed."""
    assert shell.startswith(f"graphile-worker {subcommand} ")
    return shlex.split(shell)[-2:]


def test_a_queue_that_cannot_be_read_has_no_verdict(empty_database):
    top = invoke(empty_database, "top", "--once", "--json", "--interval", "500ms")
    doctor = invoke(empty_database, "doctor", "--json")
    _, lines = read_readiness(empty_database.dsn, empty_database.schema)

    assert top.exit_code == 1
    assert (doctor.exit_code, json.loads(doctor.stdout)["verdict"]) == (3, "unknown")
    assert lines == ["ok", "verdict: unknown", "critical schema-missing"]


def test_a_locked_table_is_a_warning_of_doctor_and_readiness(database, sql):
    other = sql.another()
    other.run("begin")
    other.run("lock table :schema._private_jobs in access exclusive mode")

    report = json.loads(invoke(database, "doctor", "--json").stdout)
    _, lines = read_readiness(database.dsn, database.schema)
    other.close()

    unfinished = [each for each in report["findings"] if each["id"] == "check-unfinished"]
    assert {each["severity"] for each in unfinished} == {"warning"}
    assert lines == ["ok", "verdict: unknown", "warning check-unfinished"]


def test_an_unreachable_database_has_no_verdict_and_readiness_does_not_name_it(database):
    dsn = make_conninfo(database.dsn, port=1)

    doctor = CliRunner().invoke(command, ["doctor", "--json", "-c", dsn])
    _, lines = read_readiness(dsn, database.schema)

    assert (doctor.exit_code, json.loads(doctor.stdout)["verdict"]) == (3, "unknown")
    assert lines == ["ok", "verdict: unknown", "critical unreachable"]


async def test_an_old_transaction_is_reported_alike_by_snapshots_doctor_and_tune(database, sql):
    other = sql.another()
    other.run("set application_name = 'report'")
    other.run("begin isolation level repeatable read")
    other.run("select 1")
    schemas, at_once = Schemas.from_names(database.schema), timedelta(0)
    db = PsycopgDatabase(database.dsn, schemas, max_size=1)

    snapshot = await run_plan(db, plan_snapshot(schemas, at_once))
    report = await examine(
        database.dsn,
        schema=database.schema,
        options=DoctorOptions(thresholds=Thresholds(max_transaction_age=at_once)),
    )
    tuning = await run_plan(db, plan_get_tuning(schemas, at_once))
    young = await run_plan(db, plan_snapshot(schemas))
    await db.close()
    other.close()

    found = [*diagnose_queue(SnapshotHistory(snapshot), schemas), *report.findings]
    evidence = [each.evidence for each in found if each.id is FindingId.HELD_SNAPSHOT]
    assert [any("report" in line for line in lines) for lines in evidence] == [True, True]
    assert any("report" in each.name for each in tuning.vacuum_blockers)
    assert young.server.vacuum_blockers == ()
