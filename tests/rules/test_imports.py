"""What each command imports: a command starts fast because it does not import other parts."""

import re
import subprocess
import sys

import click
import pytest

from graphile_worker._cli.main import SUBCOMMANDS, command

pytestmark = [pytest.mark.single_version, pytest.mark.timeout(300)]

# A prefix stands for the module and all modules in it.
SETTINGS = (
    "click",
    "graphile_worker._cli.arguments",
    "graphile_worker._cli.error_output",
    "graphile_worker._cli.log_format",
    "graphile_worker._cli.main",
    "graphile_worker._cli.settings",
    "graphile_worker._cli.streams",
    "graphile_worker._cli.supervisor.pid1",
    "graphile_worker._settings",
    "graphile_worker._support",
    "graphile_worker.errors",
    "graphile_worker.options",
)
ADD = (
    *SETTINGS,
    "graphile_worker._cli.commands.add",
    "graphile_worker._client",
    "graphile_worker._db",
    "graphile_worker._metrics",
    "graphile_worker._payloads",
    "graphile_worker._result_waiter",
    # The blocking shards are in `sync`, beside the blocking client.
    "graphile_worker._shards",
    "graphile_worker._sql",
    "graphile_worker.events",
    "graphile_worker.hooks",
    "graphile_worker.jobs",
    "graphile_worker.limits",
    "graphile_worker.results",
    "graphile_worker.retries",
    "graphile_worker.sync",
    "graphile_worker.tasks",
    "psycopg",
    "psycopg_binary",
    # Tried first, and not installed.
    "psycopg_c",
)
WORKER = (
    *ADD,
    "graphile_worker._assembly",
    "graphile_worker._cli.commands.run",
    "graphile_worker._cli.event_loop",
    "graphile_worker._cli.supervisor.parent_pipe",
    "graphile_worker._cron",
    "graphile_worker._discovery",
    "graphile_worker._lease",
    "graphile_worker._shard_group",
    "graphile_worker._worker",
    "graphile_worker._worker_config",
    "graphile_worker.app",
    "graphile_worker.client",
    "graphile_worker.crontab",
    "graphile_worker.runner",
    "graphile_worker.shards",
    "uvloop",
)
ADD_HELP = (*SETTINGS, "graphile_worker._cli.commands.add", "graphile_worker.jobs")

# The package, its dependencies and those of its extras.
PACKAGES = ("graphile_worker", "click", "json5", "psycopg", "starlette", "uvicorn", "uvloop")
SLOW_STANDARD_MODULES = {"asyncio", "http.server", "multiprocessing", "ssl", "zoneinfo"}


def list_imports(*arguments):
    line = [sys.executable, "-X", "importtime", "-m", "graphile_worker", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    return re.findall(r"^import time: .*\| +([\w.]+)$", done.stderr, re.MULTILINE)


def find_others(names, prefixes):
    """Return the modules of packages that none of the prefixes covers."""
    parents = {"graphile_worker", "graphile_worker._cli", "graphile_worker._cli.commands"}
    parents |= {"graphile_worker._cli.supervisor"}
    allowed = tuple(f"{prefix}." for prefix in prefixes)
    return [
        name
        for name in names
        if name.startswith(PACKAGES) and name not in parents
        if not f"{name}.".startswith(allowed)
    ]


def test_help_and_version_import_only_the_settings():
    for arguments, prefixes in (
        (["--version"], SETTINGS),
        (["--help"], SETTINGS),
        (["add", "--help"], ADD_HELP),
    ):
        names = list_imports(*arguments)

        assert find_others(names, prefixes) == [], arguments
        assert SLOW_STANDARD_MODULES.intersection(names) == set(), arguments


def test_add_imports_no_worker(database):
    names = list_imports("add", "resize", "-c", database.url)

    assert find_others(names, ADD) == []


def test_a_worker_imports_no_server_and_no_tool(database, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "resize.py").write_text("async def task(payload): ...\n")

    names = list_imports("--once", "-c", database.url)

    assert find_others(names, WORKER) == []
    assert "http.server" not in names


def test_the_help_has_the_first_sentence_of_each_subcommand():
    known = {name: str(each.help).partition("\n\n")[0] for name, each in command.commands.items()}

    assert {name: " ".join(text.split()) for name, text in known.items()} == SUBCOMMANDS
    assert all(isinstance(each, click.Command) for each in command.commands.values())
    assert "unknown" not in command.commands
