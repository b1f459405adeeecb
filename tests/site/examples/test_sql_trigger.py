"""examples/sql-trigger: rows change, and jobs come of it."""

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import errors

from tests.conftest import TestDatabase
from tests.site.examples.conftest import Example
from tests.support.processes import READY


@pytest.fixture
def web_role(empty_database: TestDatabase) -> Iterator[str]:
    """A role that may connect, and nothing else yet."""
    with psycopg.connect(empty_database.dsn, autocommit=True) as owner:
        owner.execute("create role sql_trigger_web login")
        yield "sql_trigger_web"
        owner.execute("drop owned by sql_trigger_web")
        owner.execute("drop role sql_trigger_web")


def run_in_psql(example: Example, statement: str) -> None:
    example.type(f'psql "$DATABASE_URL" -c "{statement}')


@pytest.mark.single_version
@pytest.mark.feature("F42", "F43", "F115")
def test_rows_become_jobs(prepared):
    worker = prepared.start("graphile-worker --app tasks:app")
    worker.wait_for_line(READY)

    for statement in ("insert into users", "insert into documents"):
        run_in_psql(prepared, statement)
    for words in ("Drink it'", "Drink it hot.'"):
        run_in_psql(prepared, f"update documents set body = '{words}")

    for line in ("welcome, ada@example.com", "INSERT user 1", "a cover for Tea"):
        worker.wait_for_line(line)
    worker.wait_for_line("indexed Tea: 3 words")

    run_in_psql(prepared, "begin; insert into users (email) values ('bob@example.com')")
    for statement in ("delete from documents", "delete from users"):
        run_in_psql(prepared, statement)

    worker.wait_for_line("document 1 was deleted")
    worker.wait_for_line("DELETE user 1")
    assert worker.stop() == 0
    assert worker.err.count("a cover for") == 1
    assert "bob" not in worker.err

    prepared.passes_its_own_tests()


@pytest.mark.single_version
@pytest.mark.feature("F41")
def test_a_role_without_privileges_on_the_queue_adds_jobs_through_triggers(
    prepared, empty_database, web_role
):
    with psycopg.connect(empty_database.dsn, autocommit=True) as owner:
        owner.execute(f"grant insert, update, delete, select on users, documents to {web_role}")
        owner.execute(f"create schema mine authorization {web_role}")
    with psycopg.connect(empty_database.dsn, user=web_role, autocommit=True) as web:
        with pytest.raises(errors.InsufficientPrivilege, match="schema graphile_worker"):
            web.execute("insert into users (email) values ('ada@example.com')")

        prepared.type('psql "$DATABASE_URL" -f permissions.sql')

        web.execute("insert into users (email) values ('ada@example.com')")
        web.execute("insert into documents (title) values ('Tea')")
        with pytest.raises(errors.InsufficientPrivilege, match="schema graphile_worker"):
            web.execute("select graphile_worker.add_job('anything')")
        web.execute("create table mine.own (id int)")
        with pytest.raises(errors.InsufficientPrivilege, match="function enqueue_change"):
            web.execute(
                "create trigger own after insert on mine.own for each row "
                "execute function enqueue_change('anything')"
            )
    with psycopg.connect(empty_database.dsn) as owner:
        added = owner.execute("select task_identifier from graphile_worker.jobs order by 1")
        assert [task for (task,) in added] == [
            "draw_cover", "index_document", "send_welcome", "sync_to_crm"
        ]  # fmt: skip
