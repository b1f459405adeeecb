"""`graphile-worker doctor`: findings and exit codes, one problem in each database."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.conftest import TestDatabase
from tests.support.cluster import Cluster
from tests.support.faketime import WrongClock
from tests.support.pgbouncer import PgBouncer
from tests.support.processes import Program, Programs
from tests.support.roles import temporary_role
from tests.support.rust import rust_install
from tests.support.sql import Sql

# The servers of the tests run with fsync off. So the exit code is 1 without another finding.
EXPECTED_IN_TESTS = "unsafe-server"


@pytest.fixture
def role(database: TestDatabase, sql: Sql) -> Iterator[str]:
    """A role without objects, whose name contains a control sequence."""
    with temporary_role(sql, f"role_{database.name}\x1b[2J") as name:
        yield name


def parse_findings(done: Program) -> dict[str, dict[str, Any]]:
    """Return the findings of `doctor --json` by id."""
    report = json.loads(done.out)
    return {each["id"]: each for each in report["findings"] if each["id"] != EXPECTED_IN_TESTS}


def test_a_missing_role_is_reported(programs, database):
    done = programs.without_fork.run_to_end(
        "doctor", "--json", "-c", make_conninfo(database.dsn, user="no one")
    )

    [(id, finding)] = parse_findings(done).items()
    assert (done.code, id) == (3, "role-missing")
    assert 'create role "no one" login;' in finding["sql"]


def test_rows_hidden_by_row_level_security_are_reported(programs, database, sql, role):
    sql.run(f'grant usage on schema :schema, :ext_schema to "{role}"')
    sql.run(f'grant all on all tables in schema :schema to "{role}"')
    sql.run(f'grant all on all tables in schema :ext_schema to "{role}"')

    done = programs.run_to_end("doctor", "-c", make_conninfo(database.dsn, user=role))

    assert done.code == 3
    assert "CRITICAL rows-hidden: row level security hides all rows from role" in done.out
    assert 'grant "postgres" to "role_' in done.out
    assert "\x1b" not in done.out


def test_jobs_of_deleted_tasks_and_queues_are_reported(programs, sql):
    sql.run("select :schema.add_job('resize', queue_name => 'images')")
    sql.run("select :schema.add_job('email')")
    sql.run("delete from :schema._private_job_queues")
    sql.run("delete from :schema._private_tasks where identifier = 'email'")

    done = programs.run_to_end("doctor", "--json")

    findings = parse_findings(done)
    assert (done.code, set(findings)) == (3, {"dangling-tasks", "dangling-queues"})
    assert "set job_queue_id = null where job_queue_id = " in findings["dangling-queues"]["sql"]
    assert "set task_id = (select id from " in findings["dangling-tasks"]["sql"]


def test_stale_locks_are_reported(programs, sql):
    sql.run("select :schema.add_job('resize', queue_name => 'images')")
    for table in ("_private_jobs", "_private_job_queues"):
        sql.run(
            f"update :schema.{table} set locked_by = 'worker-x', "
            "locked_at = now() - interval '5 hours'"
        )

    done = programs.run_to_end("doctor", "--json")

    [(id, finding)] = parse_findings(done).items()
    assert (done.code, id) == (3, "stale-locks")
    assert finding["title"] == "1 job and 1 named queue are locked for more than four hours"
    assert finding["shell"] == "graphile-worker workers recover worker-x"


def test_a_dead_worker_is_reported(programs, sql):
    sql.run("select :schema.add_job('resize')")
    sql.run("update :schema._private_jobs set locked_by = 'pypool-x', locked_at = now()")
    for name in ("pypool-x", "pypool-y"):
        sql.run(
            "insert into :ext_schema.pools (id, seen_at, lease, details) "
            "values ($1, now() - interval '1 minute', '0.01 s', '{\"host\": \"web-1\"}')",
            name,
        )

    done = programs.run_to_end("doctor", "--json")

    findings = parse_findings(done)
    assert (done.code, set(findings)) == (3, {"dead-pool-locks", "dead-pools"})
    assert "pypool-x on web-1" in findings["dead-pool-locks"]["evidence"][0]
    assert findings["dead-pool-locks"]["shell"].endswith(" pypool-x")
    assert findings["dead-pools"]["severity"] == "warning"


def test_a_schema_that_the_rust_worker_installed_is_reported(programs, empty_database):
    rust_install(empty_database.url, empty_database.dsn, empty_database.schema)
    programs.run_to_end("migrate", "-c", empty_database.dsn)

    done = programs.run_to_end("doctor", "--json", "-c", empty_database.dsn)

    assert (done.code, set(parse_findings(done))) == (1, {"schema-of-rust"})
    assert "installed by Rust" in json.loads(done.out)["facts"]["schema"]


def test_a_schema_that_is_too_new_is_reported(programs, sql):
    sql.run("insert into :schema.migrations (id, breaking) values (21, true)")

    done = programs.run_to_end("doctor", "--json")

    [(id, finding)] = parse_findings(done).items()
    assert (done.code, id) == (3, "schema-too-new")
    assert finding["shell"] == "pip install --upgrade graphile-worker"


def test_a_held_snapshot_is_reported_with_the_sql_that_ends_its_session(programs, sql):
    other = sql.another()
    other.run("begin isolation level repeatable read")
    other.run("select 1, pg_sleep(1.1)")

    done = programs.run_to_end("doctor", "--json", "--max-transaction-age", "1s")
    [(id, finding)] = parse_findings(done).items()
    young = programs.run_to_end("doctor", "--json")
    sql.run(finding["sql"])
    with pytest.raises(psycopg.OperationalError):
        other.run("select 1")
    other.close()

    assert (done.code, id, finding["severity"]) == (1, "held-snapshot", "warning")
    assert "idle in transaction" in finding["evidence"][0]
    assert (young.code, parse_findings(young)) == (1, {})


def test_an_exhausted_sequence_is_reported_with_the_free_ids(programs, sql):
    sql.run("select :schema.add_job('first')")
    sql.run("alter sequence :schema.tasks_id_seq restart with 2147483647")
    sql.run("select :schema.add_job('last')")

    done = programs.run_to_end("doctor", "--json")
    [(id, finding)] = parse_findings(done).items()
    sql.run(finding["sql"])
    sql.run("select :schema.add_job('another')")
    again = programs.run_to_end("doctor", "--json")

    assert (done.code, id) == (3, "sequence-fill")
    assert "tasks_id_seq is at 2,147,483,647 of 2,147,483,647" in finding["evidence"]
    assert (again.code, parse_findings(again)) == (1, {})


def test_a_transaction_pooler_is_reported(programs, database, cluster):
    with PgBouncer(cluster) as pgbouncer:
        through = make_conninfo(database.dsn, port=pgbouncer.port)
        done = programs.run_to_end("doctor", "--json", "-c", through)
        elsewhere = programs.run_to_end("doctor", "--json", "-c", through, "--schema", "my jobs")
        polling = programs.run_to_end(
            "doctor", "--json", "-c", through, "--no-listen", "--no-prepared-statements"
        )

    [(id, finding)] = parse_findings(done).items()
    assert (done.code, id) == (1, "transaction-pooling")
    assert "--no-listen --no-prepared-statements" in finding["shell"]
    assert "--schema 'my jobs'" in parse_findings(elsewhere)["transaction-pooling"]["shell"]
    assert (polling.code, parse_findings(polling)) == (1, {})
    assert json.loads(polling.out)["facts"]["pooler"] == "assigns sessions by transaction"


@pytest.mark.parametrize(
    ("shift", "severity", "code", "offset"),
    [("+20s", "warning", 1, "(20|19)s ahead of"), ("-1d", "critical", 3, "1d behind")],
)
def test_a_wrong_clock_is_reported(programs, tmp_path, shift, severity, code, offset):
    clock = WrongClock(tmp_path / "clock", shift)

    done = programs.run_to_end("doctor", "--json", **clock.variables)

    [(id, finding)] = parse_findings(done).items()
    assert (done.code, id, finding["severity"]) == (code, "clock-offset", severity)
    assert re.fullmatch(f"the clock of this machine is {offset} the database's", finding["title"])


def test_the_wrong_clock_of_a_worker_is_reported(programs, tmp_path):
    clock = WrongClock(tmp_path / "clock", "-1h")
    programs.write("tasks/hello.py", "async def task(payload): ...")
    programs.worker(**clock.variables)

    done = programs.run_to_end("doctor", "--json")

    [(id, finding)] = parse_findings(done).items()
    assert (done.code, id) == (1, "pool-clock-offset")
    assert re.search(r"^pypool-\w+ on .*: (1h|59m\d+s) behind the", finding["evidence"][0])


def test_the_pure_python_driver_is_reported(programs):
    environment = {**os.environ, "PSYCOPG_IMPL": "python"}
    has_libpq = subprocess.run([sys.executable, "-c", "import psycopg"], env=environment)
    if has_libpq.returncode:
        pytest.skip("there is no libpq here, which psycopg needs without its binary form")

    done = programs.run_to_end("doctor", "--json", PSYCOPG_IMPL="python")

    [(id, finding)] = parse_findings(done).items()
    assert (done.code, id) == (1, "pure-python-driver")
    assert finding["shell"] == "pip install 'psycopg[binary]'"
    assert json.loads(done.out)["facts"]["driver"].endswith(", python")


# A server on this machine, at an address that is not loopback.
NOT_LOOPBACK = "0.0.0.0"


def test_a_connection_that_may_fall_back_to_plain_text_is_reported(programs, database):
    elsewhere = make_conninfo(database.dsn, host=NOT_LOOPBACK)

    done = programs.run_to_end("doctor", "--json", "-c", elsewhere)
    here = programs.run_to_end("doctor", "--json")

    [(id, finding)] = parse_findings(done).items()
    assert (done.code, id) == (1, "plain-text")
    assert finding["evidence"] == [
        f"host={NOT_LOOPBACK}, sslmode=prefer; this connection is plain text"
    ]
    assert "sslmode=verify-full" in finding["advice"]
    assert parse_findings(here) == {}


def test_a_worker_warns_once_that_its_connection_may_fall_back_to_plain_text(programs, database):
    programs.write("tasks/hello.py", "async def task(payload): ...")
    elsewhere = make_conninfo(database.dsn, host=NOT_LOOPBACK)

    done = programs.run_to_end("--once", DATABASE_URL=elsewhere)
    here = programs.run_to_end("--once")

    warning = (
        f"connection may fall back to plain text (host={NOT_LOOPBACK}, sslmode=prefer): require "
        "TLS with sslmode=verify-full"
    )
    assert done.err.count(warning) == 1
    assert "plain text" not in here.err


def test_an_unreachable_database_is_a_finding(programs):
    done = programs.run_to_end("doctor", "-c", "host=127.0.0.1 port=1 dbname=shop password=secret")

    assert (done.code, done.err) == (3, "")
    assert "CRITICAL unreachable: the database is unreachable" in done.out
    assert "Start the server, or correct host and port" in done.out
    assert "secret" not in done.out


def test_a_healthy_database_with_a_worker_has_no_findings_and_exit_code_0(
    tmp_path, pytestconfig, schema
):
    cluster = Cluster(pytestconfig.getoption("--pg"), ("fsync=on", "full_page_writes=on")).start()
    try:
        healthy = TestDatabase("postgres", cluster, schema)
        with Programs.for_database(healthy, tmp_path) as programs:
            programs.write("tasks/hello.py", "async def task(payload): ...")
            programs.worker()
            done = programs.run_to_end("doctor", "--strict")
            newer = Sql(healthy.dsn, schema)
            newer.run("insert into :schema.migrations (id, breaking) values (21, false)")
            newer.close()
            lenient, strict = [programs.run_to_end("doctor", *flag) for flag in ((), ("--strict",))]
    finally:
        cluster.stop()

    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("\n\nno findings\n")
    assert "level 20, installed by Python on " in done.out
    assert (lenient.code, strict.code) == (0, 1)
    assert lenient.out.endswith("\n\n1 note\n")


def test_a_usage_error_has_exit_code_2(programs):
    assert programs.run_to_end("doctor", "--timeout", "soon").code == 2
