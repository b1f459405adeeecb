"""`graphile-worker tune`: SQL that can be read and run; with `--apply` it is done."""

import re
import subprocess
from collections.abc import Iterator

import pytest
from psycopg.conninfo import make_conninfo

from tests.conftest import TestDatabase
from tests.support.sql import Sql
from tests.support.tools import client_program

# What depends on versions lies deeper, and is tested there on each.


@pytest.fixture
def role(database: TestDatabase, sql: Sql) -> Iterator[str]:
    """A role that owns nothing; its name would end a comment if it could."""
    name = f"role_{database.name}\nselect 1/0;"
    sql.run(f'create role "{name}" login')
    yield name
    sql.run(f'drop role "{name}"')


def settings(sql: Sql) -> list[str]:
    """What is set for the tables of the queue."""
    found = sql.value(
        "select array(select unnest(reloptions) from pg_class "
        "where relnamespace = to_regnamespace($1) and relkind = 'r')",
        sql.text(":schema").decode(),
    )
    return list(found)


def test_it_prints_sql_with_reasons_and_changes_nothing(programs, sql):
    done = programs.without_fork.run_to_end("tune")

    assert (done.code, done.err) == (0, "")
    assert "  autovacuum_vacuum_scale_factor = 0, -- is not set\n" in done.out
    assert "--   alter system set autovacuum_naptime = '10s';\n" in done.out
    assert done.out.endswith("-- No old snapshot is held right now.\n")
    assert settings(sql) == []


def test_what_it_prints_can_be_given_to_psql(programs, sql, database):
    printed = programs.run_to_end("tune").out
    command = [str(client_program("psql")), "-qX", "-v", "ON_ERROR_STOP=1", database.url]

    subprocess.run(command, input=printed, text=True, check=True, capture_output=True)

    assert "autovacuum_vacuum_cost_delay=0" in settings(sql)
    assert "-- _private_jobs: all is set.\n" in programs.run_to_end("tune").out


def test_with_apply_it_is_done(programs, sql):
    first, second = programs.run_to_end("tune", "--apply"), programs.run_to_end("tune", "--apply")

    assert (first.code, second.code) == (0, 0)
    assert first.out.startswith("-- _private_jobs: changed.\n-- _private_job_queues: changed.\n")
    assert second.out.startswith("-- _private_jobs: was set already.\n")
    assert "autovacuum_vacuum_threshold=1000" in settings(sql)


def test_a_role_that_owns_nothing_can_only_read_it(programs, sql, database, role):
    url = make_conninfo(database.dsn, user=role)

    read, tried = (
        programs.run_to_end("tune", "-c", url),
        programs.run_to_end("tune", "--apply", "-c", url),
    )

    assert read.code == 0
    assert "-- Only its owner may do this: 'postgres'.\n" in read.out
    assert "-- This role does not see all sessions: grant it pg_read_all_stats.\n" in read.out
    assert tried.code == 1
    assert "-- _private_jobs: not changed, only its owner may: 'postgres'.\n" in tried.out
    assert settings(sql) == []


def test_whatever_holds_a_snapshot_cannot_end_a_comment(programs, sql, database, role):
    other = Sql(make_conninfo(database.dsn, user=role), database.schema)
    other.run("begin isolation level repeatable read")
    other.run("select 1, pg_sleep(5.1)")

    done = programs.run_to_end("tune")
    other.close()

    [line] = [line for line in done.out.splitlines() if f"role_{database.name}" in line]
    assert line.startswith("--   session ")
    assert re.search(r"idle in transaction for \d+ s", line)


def test_without_the_schema_it_ends_with_1(programs):
    done = programs.run_to_end("tune", "-s", "nowhere")

    assert (done.code, done.out) == (1, "")
    assert "schema 'nowhere' is not installed" in done.err
