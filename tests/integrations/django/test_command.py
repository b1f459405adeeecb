"""`manage.py graphile_worker` runs workers and all subcommands of `graphile-worker`."""

import json
import signal
import sys
from contextlib import closing
from pathlib import Path

import click
import psycopg
import pytest

from graphile_worker._cli.main import SUBCOMMANDS, command
from graphile_worker.contrib.django._arguments import OTHER_WORK, SWITCHES, VALUE_FLAGS, Arguments
from graphile_worker.contrib.django._selection import TaskSelection
from tests.integrations.django.conftest import NO_DATABASE, Project
from tests.support.processes import READY, Programs, eventually
from tests.support.sql import Sql
from tests.support.tiers import size

# The nightly matrix runs it on the other versions of Python and PostgreSQL.
pytestmark = [pytest.mark.timeout(600), pytest.mark.single_version]

PASSWORD = "open-sesame"

# Each starts Django twice.
COMMANDS = size(
    gate=[["jobs", "list", "--json"]],
    nightly=[
        ["jobs", "list", "--json"],
        ["workers", "list"],
        ["history", "show"],
        ["audit"],
        ["cron", "check"],
        ["config"],
        ["tune"],
        ["top", "--once"],
        ["add", "pay", '{"order_id": 1}'],
        ["--cleanup", "GC_TASK_IDENTIFIERS"],
        ["--schema-only"],
        ["migrate"],
        ["bench", "startup", "--rounds", "1"],
    ],
)


def test_what_the_command_rejects_and_sets(project: Project):
    # psycopg2 may be installed for other tests.
    project.settings["SILENCED_SYSTEM_CHECKS"] = ["graphile_worker.W001"]
    project.settings["TASKS"] = {
        "default": {
            "BACKEND": "graphile_worker.contrib.django.GraphileBackend",
            "QUEUES": ["default", "low"],
        }
    }
    project.settings["GRAPHILE_WORKER"]["IMPORTS"] = ["shop.django_tasks"]
    project.check("command", "-p", "no:django")


def test_processes_run_plain_async_and_process_tasks_until_a_signal(project: Project):
    project.settings["DATABASES"]["default"]["PASSWORD"] = PASSWORD
    project.settings["GRAPHILE_WORKER"]["WORKER"] = {"concurrency": 2, "poll_interval": "1s"}
    project.settings["LOGGING"] = {
        "version": 1,
        "handlers": {"console": {"class": "logging.StreamHandler"}},
        "root": {"handlers": ["console"], "level": "INFO"},
    }
    project.manage("migrate", "-v", "0")
    orders = add_orders(project, "pay", "apay", "pay_in_process")
    worker = project.start("graphile_worker", "--processes", "2", "--skip-checks")
    eventually(lambda: not list_unpaid(project, orders), "all orders are paid")
    assert "graphile_worker" in read_process(worker.pid, "cmdline")
    assert "--processes" in read_process(worker.pid, "cmdline")
    assert PASSWORD not in read_process(worker.pid, "cmdline")
    # The settings of this project are in a variable.
    variables = read_process(worker.pid, "environ").split("\0")
    assert not [each for each in variables if PASSWORD in each and not each.startswith("ACME=")]
    eventually(lambda: worker.err.count(READY) == 2, "both processes look for jobs")
    assert worker.stop(signal.SIGTERM) == 0


def test_watch_restarts_the_worker_with_the_chosen_tasks(project: Project):
    # This configuration disables all loggers that exist.
    project.settings["LOGGING"] = {"version": 1}
    project.manage("migrate", "-v", "0")
    worker = project.start("graphile_worker", "--watch", "--except", "apay", "--no-color")
    worker.wait_for_line(READY)
    tasks = project.folder / "shop" / "tasks.py"
    tasks.write_text(
        f"{tasks.read_text()}\n\n@app.task\ndef later(order_id: int) -> None:\n    pay(order_id)\n"
    )
    orders = add_orders(project, "apay", "later")
    eventually(lambda: list_unpaid(project, orders) == orders[:1], "the new task runs")
    assert worker.stop(signal.SIGTERM) == 0


def test_subcommands_use_the_database_of_the_project(project: Project, tmp_path: Path):
    project.manage("migrate", "-v", "0")
    add_orders(project, "pay")
    for arguments in COMMANDS:
        program = project.start("graphile_worker", *arguments)
        assert program.end(within=120) == 0, (arguments, program.err)
    # From another folder, with another program.
    programs = Programs(tmp_path)
    listing = programs.start(
        [
            *(sys.executable, "-m", "django", "graphile_worker", "jobs", "list", "--json"),
            *("--settings", "acme.settings", f"--pythonpath={project.folder}"),
        ],
        {**NO_DATABASE, "ACME": json.dumps(project.settings)},
    )
    assert listing.end(within=120) == 0, listing.err
    assert "pay" in json.loads(listing.out)["jobs"][0].values()


def test_flags_of_the_command_are_not_flags_of_graphile_worker():
    # Both commands choose tasks by name in the same way.
    own = (VALUE_FLAGS | SWITCHES) - {"--only", "--except"}
    for each in _iter_commands(command):
        for parameter in each.params:
            assert not own.intersection(parameter.opts, parameter.secondary_opts), each.name


def test_every_subcommand_is_known():
    names = set(SUBCOMMANDS)
    assert {each for each in OTHER_WORK if not each.startswith("-")} == names


def test_flags_of_django_and_of_the_command_are_taken_out():
    parsed = Arguments.parse(
        [
            *("-v", "2", "-j", "20", "--only", "pay", "--settings=acme.settings", "--watch"),
            *("--only=apay", "--traceback", "--database", "other", "--", "--only", "x"),
        ]
    )
    assert parsed.rest == ["-j", "20", "--watch", "--", "--only", "x"]
    assert parsed.database == "other"
    assert parsed.selection is not None
    assert parsed.selection.only == ("pay", "apay")
    joined = Arguments.parse(["--only=pay, apay", "--except", "a*,"]).selection
    assert joined == TaskSelection(only=("pay", "apay"), excluded=("a*",))
    assert parsed.runs_worker
    for arguments in (["jobs", "list"], ["-j", "2", "doctor"], ["--cleanup=GC_JOB_QUEUES"]):
        assert not Arguments.parse(arguments).runs_worker
    assert Arguments.parse([]).selection is None


def add_orders(project: Project, *tasks: str) -> list[int]:
    """Add an order and the job that pays it for each of these tasks."""
    with closing(Sql(project.database.dsn, project.database.schema)) as database:
        orders = [
            database.value(
                "insert into shop_order (email, is_paid) values ('', false) returning id"
            )
            for _ in tasks
        ]
        for task, order in zip(tasks, orders, strict=True):
            payload = json.dumps({"order_id": order})
            database.run("select :schema.add_job($1, $2::json)", task, payload)
    return orders


def list_unpaid(project: Project, orders: list[int]) -> list[int]:
    with psycopg.connect(project.database.dsn) as connection:
        found = connection.execute(
            "select id from shop_order where not is_paid and id = any(%s) order by id", [orders]
        )
        return [order for [order] in found]


def read_process(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text()


def _iter_commands(group: click.Command) -> list[click.Command]:
    inner = group.commands.values() if isinstance(group, click.Group) else ()
    return [group, *(found for each in inner for found in _iter_commands(each))]
