"""`graphile-worker tune`: it prints SQL that psql can run, and applies it with `--apply`."""

import subprocess
from collections.abc import Iterator

import pytest
from psycopg.conninfo import make_conninfo

from tests.conftest import TestDatabase
from tests.support.roles import temporary_role
from tests.support.sql import Sql
from tests.support.tools import client_program


@pytest.fixture
def role(database: TestDatabase, sql: Sql) -> Iterator[str]:
    """A role without objects, whose name contains a line break."""
    with temporary_role(sql, f"role_{database.name}\nselect 1/0;") as name:
        yield name


def settings(sql: Sql) -> list[str]:
    """Return the storage parameters of the tables of the queue."""
    found = sql.value(
        "select array(select unnest(reloptions) from pg_class "
        "where relnamespace = to_regnamespace($1) and relkind = 'r')",
        sql.text(":schema").decode(),
    )
    return list(found)


def test_tune_prints_sql_with_reasons_and_changes_nothing(programs, sql):
    done = programs.without_fork.run_to_end("tune")

    assert (done.code, done.err) == (0, "")
    assert "  autovacuum_vacuum_scale_factor = 0, -- is not set\n" in done.out
    assert "--   alter system set autovacuum_naptime = '10s';\n" in done.out
    assert done.out.endswith("-- No old snapshot is held right now.\n")
    assert settings(sql) == []


def test_psql_can_run_the_output(programs, sql, database):
    printed = programs.run_to_end("tune").out
    command = [str(client_program("psql")), "-qX", "-v", "ON_ERROR_STOP=1", database.url]

    subprocess.run(command, input=printed, text=True, check=True, capture_output=True)

    assert "autovacuum_vacuum_cost_delay=0" in settings(sql)
    assert "-- _private_jobs: all is set.\n" in programs.run_to_end("tune").out


def test_apply_sets_the_tables(programs, sql):
    first, second = programs.run_to_end("tune", "--apply"), programs.run_to_end("tune", "--apply")

    assert (first.code, second.code) == (0, 0)
    assert first.out.startswith("-- _private_jobs: changed.\n-- _private_job_queues: changed.\n")
    assert second.out.startswith("-- _private_jobs: already set.\n")
    assert "autovacuum_vacuum_threshold=1000" in settings(sql)


def test_a_role_that_owns_nothing_cannot_apply(programs, sql, database, role):
    url = make_conninfo(database.dsn, user=role)

    read, tried = (
        programs.run_to_end("tune", "-c", url),
        programs.run_to_end("tune", "--apply", "-c", url),
    )

    assert read.code == 0
    assert "-- Only its owner can do this: 'postgres'.\n" in read.out
    assert "-- This role does not see all sessions: grant it pg_read_all_stats.\n" in read.out
    assert tried.code == 1
    assert "-- _private_jobs: not changed, only its owner can: 'postgres'.\n" in tried.out
    assert settings(sql) == []


def test_tune_without_the_schema_exits_with_1(programs):
    done = programs.run_to_end("tune", "-s", "nowhere")

    assert (done.code, done.out) == (1, "")
    assert "schema 'nowhere' is not installed" in done.err
