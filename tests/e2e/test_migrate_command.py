"""The installed command `graphile-worker migrate`: its database, output and exit codes."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import TestDatabase
from tests.support.cluster import Cluster, server_of
from tests.support.processes import INSTALLED, Programs
from tests.support.sql import Sql
from tests.support.tools import client_program

SECRET = "s3cr3t-canary"

# The role "guarded" needs a password, other roles do not.
HOST_RULES = """\
host all guarded 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
"""

Done = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def guarded_cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """A server that asks one role for a password."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        rules = Path(folder) / "pg_hba.conf"
        rules.write_text(HOST_RULES)
        server = Cluster(pytestconfig.getoption("--pg"), [f"hba_file={rules}"]).start()
        behind = Sql(server.dsn(), "graphile_worker")
        behind.run(f"create role guarded superuser login password '{SECRET}'")
        behind.close()
        yield server
        server.stop()


@pytest.mark.feature("F15", "F18", "F20")
def test_a_url_selects_the_database(empty_database, behind):
    done = run("migrate", "-c", empty_database.url, "-s", empty_database.schema)

    assert_migrated(done, empty_database.schema)
    assert level(behind) == 20


def test_name_value_pairs_select_the_database(empty_database, behind):
    done = run("migrate", "-c", empty_database.dsn, "-s", empty_database.schema)

    assert_migrated(done, empty_database.schema)
    assert level(behind) == 20


def test_a_bare_word_is_the_name_of_a_database(empty_database, behind):
    server = server_of(empty_database.cluster)

    done = run("migrate", "-c", empty_database.name, "-s", empty_database.schema, **server)

    assert_migrated(done, empty_database.schema)
    assert level(behind) == 20


def test_database_url_selects_the_database(empty_database, behind):
    done = run("migrate", "-s", empty_database.schema, DATABASE_URL=empty_database.url)

    assert_migrated(done, empty_database.schema)
    assert level(behind) == 20


def test_the_variables_of_libpq_select_the_database(empty_database, behind):
    variables = {**server_of(empty_database.cluster), "PGDATABASE": empty_database.name}

    done = run("migrate", "-s", empty_database.schema, **variables)

    assert_migrated(done, empty_database.schema)
    assert level(behind) == 20


def test_a_flag_overrides_the_environment(empty_database):
    url = "postgres://nobody@127.0.0.1:1/nowhere"

    done = run("migrate", "-c", empty_database.url, DATABASE_URL=url)

    assert_migrated(done, "graphile_worker")


@pytest.mark.feature("F20")
def test_flags_work_before_the_subcommand(empty_database, behind):
    done = run("-c", empty_database.url, "-s", empty_database.schema, "migrate")

    assert_migrated(done, empty_database.schema)
    assert level(behind) == 20


@pytest.mark.feature("F20")
def test_schemas_of_postgresql_itself_are_rejected(empty_database):
    for name in ("information_schema", "pg_catalog", "pg_toast", "pg_anything"):
        done = run("migrate", "-c", empty_database.url, "-s", name)

        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == (
            f"graphile-worker: schema is '{name}', which PostgreSQL reserves. Choose another "
            "name than information_schema, without the prefix pg_.\n"
        )


@pytest.mark.feature("F20")
def test_the_later_of_two_flags_takes_precedence(empty_database):
    done = run("-s", "early", "-c", "nowhere", "migrate", "-c", empty_database.url, "-s", "late")

    assert_migrated(done, "late")


@pytest.mark.feature("F20")
def test_a_variable_sets_the_schema(empty_database, behind):
    given = {"GRAPHILE_WORKER_SCHEMA": empty_database.schema}

    done = run("migrate", "-c", empty_database.url, **given)

    assert_migrated(done, empty_database.schema)
    assert level(behind) == 20


@pytest.mark.feature("F20")
def test_a_given_schema_overrides_the_environment(empty_database):
    done = run("migrate", "-c", empty_database.url, "-s", "given", GRAPHILE_WORKER_SCHEMA="env")

    assert_migrated(done, "given")


def test_the_default_schema_is_graphile_worker(empty_database):
    assert_migrated(run("migrate", "-c", empty_database.url), "graphile_worker")


def test_the_module_is_the_same_command(empty_database):
    command = [sys.executable, "-m", "graphile_worker"]

    done = run_as(command, "migrate", "-c", empty_database.url, "-s", empty_database.schema)

    assert_migrated(done, empty_database.schema)


def test_a_second_time_changes_nothing(database):
    done = run("migrate", "-c", database.url, "-s", database.schema)

    assert_migrated(done, database.schema)


@pytest.mark.feature("F2")
def test_the_schema_of_graphile_worker_for_node_is_accepted(node_database):
    done = run("migrate", "-c", node_database.url, "-s", node_database.schema)

    assert_migrated(done, node_database.schema)


@pytest.mark.feature("F20")
def test_the_printed_sql_installs_the_schema_when_run_by_psql(empty_database, behind, tmp_path):
    printed = run("migrate", "--sql", "-s", empty_database.schema)
    assert (printed.returncode, printed.stderr) == (0, "")
    script = tmp_path / "install.sql"
    script.write_text(printed.stdout, encoding="utf-8")

    psql(empty_database, script)

    assert level(behind) == 20
    assert_migrated(
        run("migrate", "-c", empty_database.url, "-s", empty_database.schema), empty_database.schema
    )


def test_printing_sql_needs_no_database():
    done = run("migrate", "--sql")

    assert done.returncode == 0
    assert done.stdout.startswith("begin;\n")
    assert done.stdout.endswith("commit;\n")


@pytest.mark.parametrize(
    "arguments", [["--help"], ["-h"], ["migrate", "--help"], ["migrate", "-h"]]
)
def test_help_names_the_options(arguments):
    done = run(*arguments)

    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: graphile-worker" in done.stdout
    assert "--connection" in done.stdout
    assert "--schema" in done.stdout


def test_the_version_is_printed():
    done = run("--version")

    assert done.returncode == 0
    assert re.search(r"\d+\.\d+\.\d+", done.stdout)


@pytest.mark.parametrize("arguments", [["migrate", "--nonsense"], ["nonsense"]])
def test_unknown_flags_and_arguments_are_rejected(arguments):
    done = run(*arguments)

    assert done.returncode == 2
    assert "nonsense" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_database_the_error_names_the_setting():
    done = run("migrate")

    assert_one_line(done)
    assert "DATABASE_URL" in done.stderr
    assert "PGDATABASE" in done.stderr


def test_an_empty_schema_name_means_the_default(empty_database):
    done = run("migrate", "-c", empty_database.url, GRAPHILE_WORKER_SCHEMA="")

    assert_migrated(done, "graphile_worker")


@pytest.mark.feature("F21")
def test_a_schema_name_that_postgresql_would_truncate_is_rejected(empty_database):
    done = run("migrate", "-c", empty_database.url, "-s", "x" * 64)

    assert_one_line(done)
    assert "63 bytes" in done.stderr


def test_a_password_is_used(guarded_cluster):
    done = run("migrate", "-c", guarded_url(guarded_cluster, SECRET))

    assert_migrated(done, "graphile_worker")
    assert SECRET not in done.stdout + done.stderr


@pytest.mark.parametrize("password", [f"{SECRET}-wrong", f"not-{SECRET}"])
def test_a_wrong_password_is_reported_in_one_line_without_the_password(guarded_cluster, password):
    done = run("migrate", "-c", guarded_url(guarded_cluster, password))

    assert_one_line(done)
    assert "authentication failed" in done.stderr


@pytest.mark.parametrize("host", ["127.0.0.1:1", "localhost:1", "host.invalid"])
def test_an_unreachable_server_is_reported_in_one_line(host):
    done = run("migrate", "-c", f"postgres://me:{SECRET}@{host}/db?connect_timeout=5")

    assert_one_line(done)


def test_an_unknown_database_is_reported_in_one_line(guarded_cluster):
    done = run("migrate", "-c", guarded_url(guarded_cluster, SECRET, "nowhere"))

    assert_one_line(done)
    assert '"nowhere" does not exist' in done.stderr


@pytest.mark.parametrize(
    "malformed",
    [
        f"postgres://me:{SECRET}%zz@host/db",
        f"postgres://me:{SECRET}@[::1/db",
        f"postgres://me:{SECRET}@127.0.0.1/db?nonsense=1",
        f"host=127.0.0.1 password={SECRET} nonsense",
        f"host=127.0.0.1 password='{SECRET}",
        f"host=127.0.0.1 passwort={SECRET}",
        f"postgres://me:{SECRET}@127.0.0.1:port/db",
        f"postgres://me:{SECRET}@127.0.0.1:99999/db",
        f"postgres://me:{SECRET}@127.0.0.1:1/db?sslmode=nonsense",
        # The slash ends what is read as host and port.
        f"postgres://localhost:{SECRET}/x@127.0.0.1/db",
        # Without a scheme it is the name of a database, which the server quotes.
        f"me:{SECRET}@127.0.0.1/db",
    ],
)
def test_a_malformed_connection_string_is_one_line_without_the_password(guarded_cluster, malformed):
    done = run("migrate", "-c", malformed, **server_of(guarded_cluster))

    assert_one_line(done)


def test_a_malformed_database_url_is_one_line_without_the_password(guarded_cluster):
    url = f"postgres://me:{SECRET}%zz@host/db"

    done = run("migrate", DATABASE_URL=url, **server_of(guarded_cluster))

    assert_one_line(done)


@pytest.mark.feature("F24")
def test_a_breaking_schema_level_exits_with_57(database, sql):
    sql.run("insert into :schema.migrations (id, breaking) values (21, true)")

    done = run("migrate", "-c", database.url, "-s", database.schema)

    assert done.returncode == 57
    assert_one_line(done, code=57)
    assert "level 21" in done.stderr


def test_a_compatible_newer_schema_level_is_accepted(database, sql):
    sql.run("insert into :schema.migrations (id, breaking) values (21, false)")

    done = run("migrate", "-c", database.url, "-s", database.schema)

    assert done.returncode == 0
    assert done.stdout == f"schema {database.schema} is at level 21\n"


def run(*arguments: str, **variables: str) -> Done:
    return run_as([INSTALLED], *arguments, **variables)


def run_as(command: list[str], *arguments: str, **variables: str) -> Done:
    with Programs(Path.cwd()) as programs:
        program = programs.start([*command, *arguments], variables)
        code = program.end()
    return Done(command, code, program.out, program.err)


def psql(database: TestDatabase, script: Path) -> None:
    command = [str(client_program("psql")), "-X", "-q", "-v", "ON_ERROR_STOP=1"]
    command += ["-d", database.dsn, "-f", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (0, "")


def guarded_url(cluster: Cluster, password: str, database: str = "postgres") -> str:
    return f"postgres://guarded:{password}@127.0.0.1:{cluster.port}/{database}"


def level(behind: Sql) -> int:
    result: int = behind.value("select max(id) from :schema.migrations")
    return result


def assert_migrated(done: Done, schema: str) -> None:
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"schema {schema} is at level 20\n"


def assert_one_line(done: Done, code: int = 1) -> None:
    """Assert that the command failed with one line of text, without a secret."""
    assert SECRET not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("graphile-worker: ")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert (done.returncode, done.stdout) == (code, "")
