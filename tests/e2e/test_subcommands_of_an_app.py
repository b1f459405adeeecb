"""Subcommands find the queue where the app of the settings has it."""

import pytest

from tests.conftest import TestDatabase
from tests.support.processes import Programs

COMMANDS = (
    ["jobs", "list"],
    ["workers", "list"],
    ["history", "show"],
    ["audit"],
    ["tune"],
    ["top", "--once"],
    ["migrate"],
    ["config"],
)


@pytest.mark.single_version
def test_subcommands_use_the_database_and_the_schema_of_the_app(
    programs: Programs, database: TestDatabase
):
    programs.write(
        "worker.py",
        f"""
        from graphile_worker import App

        app = App(lambda: {database.url!r}, schema={database.schema!r})
        """,
    )
    nowhere = {"DATABASE_URL": "postgres://127.0.0.1:1/none", "GRAPHILE_WORKER_SCHEMA": "none"}
    for arguments in COMMANDS:
        program = programs.run_to_end(*arguments, GRAPHILE_WORKER_APP="worker", **nowhere)
        assert program.code == 0, (arguments, program.err)
    flag = programs.run_to_end("jobs", "list", "-s", "none", GRAPHILE_WORKER_APP="worker")
    assert flag.code == 1
    assert "schema 'none' is not installed" in flag.err
