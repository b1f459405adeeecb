"""`manage.py migrate` installs and upgrades the queue."""

import signal
from contextlib import closing, nullcontext

import psycopg
import pytest
from psycopg import sql

from graphile_worker._sql.identifiers import derive_companion_schema
from graphile_worker._sql.queries.migrations import EXT_STEPS, LATEST_LEVEL
from tests.conftest import TestDatabase
from tests.integrations.django.conftest import Project
from tests.support.node import node_command, node_install
from tests.support.processes import READY, Program, eventually
from tests.support.rows import count_waiting_sessions
from tests.support.sql import Sql

# The nightly matrix runs it on the other versions of Python and PostgreSQL.
pytestmark = [pytest.mark.timeout(600), pytest.mark.single_version]

ROUNDS = 50
NODE_READY = "Worker connected and looking for jobs"
TASK = """
from graphile_worker import App

app = App()


@app.task
def hello() -> None:
    pass
"""


def test_migrate_installs_the_queue(project: Project):
    cluster, name, schema = project.database.cluster, project.database.name, project.database.schema
    role, node, other, empty = (f"{name}_{each}" for each in ("role", "node", "other", "empty"))
    for each in (node, other, empty):
        cluster.create_database(each)
    node_install(cluster.url(node), schema=schema)
    with psycopg.connect(cluster.dsn(empty), autocommit=True) as connection:
        connection.execute(sql.SQL("create role {} login").format(sql.Identifier(role)))
        connection.execute(
            sql.SQL("grant create on schema public to {}").format(sql.Identifier(role))
        )
    project.settings["DATABASES"] |= {
        "lite": {"ENGINE": "django.db.backends.sqlite3", "NAME": "lite.sqlite3"},
        "node": project.describe_database(node),
        "other": project.describe_database(other),
        "denied": project.describe_database(empty, USER=role),
    }
    project.check("migrate", "-p", "no:django", COMPANION=derive_companion_schema(schema))


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_migrate_beside_workers_of_python_and_node(project: Project):
    """All start on an empty database at the same time, and none fails."""
    programs, cluster, schema = project.programs, project.database.cluster, project.database.schema
    programs.write("worker.py", TASK)
    programs.write("tasks/hello.js", "module.exports = async () => {};")
    for turn in range(ROUNDS):
        database = TestDatabase(f"{project.database.name}_round_{turn}", cluster, schema)
        cluster.create_database(database.name)
        project.settings["DATABASES"]["default"]["NAME"] = database.name
        with closing(Sql(database.dsn, schema)) as watcher:
            # In every other round, all arrive before the first one may create the schema.
            with hold_namespaces(database) if turn % 2 else nullcontext():
                started = [
                    *(programs.command("--app", "worker", **variables(database)) for _ in range(2)),
                    *(
                        programs.start(node_command("0.18", database.url, schema=schema), {})
                        for _ in range(2)
                    ),
                ]
                migrating = project.start("migrate", "-v", "0")
                if turn % 2:
                    eventually(lambda: count_waiting_sessions(watcher) == 5, "all five wait")
            assert migrating.end(within=60) == 0, (turn, migrating.err)
            for program in started:
                eventually(lambda: is_ready(program), f"worker is ready in round {turn}")  # noqa: B023
            assert watcher.value("select max(id) from :schema.migrations") == LATEST_LEVEL
            assert watcher.value("select max(id) from :ext_schema.migrations") == len(EXT_STEPS)
            watcher.run("select :schema.add_job('hello', '{}')")
            eventually(
                lambda: watcher.value("select count(*) from :schema.jobs") == 0,
                "the job runs",
            )
        for program in started:
            program.signal(signal.SIGTERM)
        for program in started:
            program.end()


def variables(database: TestDatabase) -> dict[str, str]:
    return {"DATABASE_URL": database.url, "GRAPHILE_WORKER_SCHEMA": database.schema}


def hold_namespaces(database: TestDatabase) -> psycopg.Connection:
    """Lock the table of schemas until the end of the block."""
    connection = psycopg.connect(database.dsn)
    connection.execute("lock table pg_catalog.pg_namespace in share mode")
    return connection


def is_ready(program: Program) -> bool:
    assert program.is_running, program.out + program.err
    return any(text in program.out + program.err for text in (READY, NODE_READY))
