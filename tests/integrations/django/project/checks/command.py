"""What `manage.py graphile_worker` rejects, and what it sets before the worker starts."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, connections
from django.test import override_settings

from graphile_worker import CronItem, parse_cron_items
from graphile_worker._sql.identifiers import derive_companion_schema, quote_identifier
from graphile_worker.contrib.django import app
from graphile_worker.contrib.django._schema_check import find_schema_problem
from graphile_worker.contrib.django._selection import TaskSelection
from graphile_worker.contrib.django._settings import build_worker_environment
from graphile_worker.contrib.django.management.commands.graphile_worker import Command

# Without pytest-django: this is not a test of the project, but its command in one process.
SCHEMA = app.schema


def queue(**settings: object) -> override_settings:
    return override_settings(GRAPHILE_WORKER={"SCHEMA": SCHEMA, **settings})


def reject(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line with which the command ends."""
    with pytest.raises(SystemExit) as caught:
        Command().run_from_argv(["manage.py", "graphile_worker", *arguments])
    assert caught.value.code == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1, printed.err
    return printed.err


def test_a_schema_that_is_behind_is_one_line(capsys):
    line = reject(capsys)
    assert f"schema {SCHEMA!r} is not installed in database 'default'. Run `python" in line
    call_command("migrate", verbosity=0)
    assert find_schema_problem("default") is None
    companion = quote_identifier(derive_companion_schema(SCHEMA))
    with connection.cursor() as cursor:
        cursor.execute(
            f"delete from {companion}.migrations where id = "
            f"(select max(id) from {companion}.migrations) returning id, name"
        )
        newest, name = cursor.fetchone()
    assert f"is at level {newest - 1} of {newest}. Run `python" in reject(capsys)
    with queue(MIGRATE=False):
        assert find_schema_problem("default") is None
    with connection.cursor() as cursor:
        cursor.execute(f"insert into {companion}.migrations values ({newest}, '{name}')")
    assert find_schema_problem("default") is None


def test_names_that_match_nothing_are_rejected(capsys):
    for arguments, words in (
        (["--database", "defaultt"], "no database 'defaultt' in DATABASES. Known: default"),
        (["--database=defaultt"], "no database 'defaultt'"),
        (["--only", "pya"], "--only: unknown task 'pya', did you mean 'pay'? Known tasks: apay"),
        (["--except", "pya"], "--except: unknown task 'pya', did you mean 'pay'?"),
        (["--queue", "lwo"], "is in queue 'lwo', did you mean 'low'? Known queues: default, low"),
        (["--exclude-queue", "high"], "--exclude-queue: no task of django.tasks is in queue"),
        (["--only", "pay", "--except=pay"], "no tasks left to run"),
        (["jobs", "list", "--only"], "--only needs a value"),
        (["--only", ","], "--only needs the name of a task"),
    ):
        assert words in reject(capsys, *arguments), arguments


def test_tasks_are_chosen_by_name_and_by_queue():
    tasks, nothing = app.tasks(), "shop.django_tasks.nothing"

    def choose(**names: tuple[str, ...]) -> set[str]:
        return TaskSelection(**names).choose(tasks)

    low = {name for name in tasks if name.endswith(":low")}
    default = {name.removesuffix(":low") for name in low}
    assert {f"{nothing}:low", nothing} <= low | default
    assert choose(queues=("low",)) == low
    assert choose(queues=("low", "default")) == low | default
    assert choose(excluded_queues=("low",)) == set(tasks) - low
    assert choose(only=("pay",), queues=("low",)) == {"pay", *low}
    assert choose(queues=("low",), excluded=(f"{nothing}:low",)) == low - {f"{nothing}:low"}
    assert choose(only=("*pay",), excluded=("a*",)) == {"pay"}
    chosen = TaskSelection(only=("pay", "apay")).apply(app)
    assert set(chosen.tasks()) == {"pay", "apay"}
    assert chosen.find(nothing) is not None
    assert set(app.tasks()) == set(tasks)


def test_a_worker_of_some_tasks_schedules_the_cron_items_of_all(monkeypatch):
    items = parse_cron_items([CronItem(task="apay", match="0 4 * * *")])
    monkeypatch.setattr(app, "_cron_items", items)

    chosen = TaskSelection(only=("pay",)).apply(app)

    assert chosen.cron_items() == items


def test_a_flag_overrides_the_tasks_that_the_settings_choose():
    def complete(**names: tuple[str, ...]) -> TaskSelection:
        environment = {"GRAPHILE_WORKER_ONLY_TASKS": "pay", "GRAPHILE_WORKER_EXCEPT_TASKS": "a,b"}
        selection = TaskSelection(**names).take_variables(environment)
        assert environment == {}
        return selection

    every = TaskSelection(only=("pay",), excluded=("a", "b"))
    assert complete(excluded_queues=("low",)) == replace(every, excluded_queues=("low",))
    assert complete(only=("apay",)) == replace(every, only=("apay",))
    assert complete(excluded=("c",)) == replace(every, excluded=("c",))
    assert complete(queues=("low",)) == replace(every, only=(), queues=("low",))


def test_a_config_file_is_rejected(capsys):
    for name, text in (
        ("graphile-worker.toml", "concurrency = 2\n"),
        ("pyproject.toml", "[tool.graphile-worker]\nconcurrency = 2\n"),
    ):
        Path(name).write_text(text)
        line = reject(capsys)
        assert name in line
        assert "Move its settings to GRAPHILE_WORKER['WORKER']" in line
        Path(name).unlink()


def test_settings_that_are_not_valid_are_rejected(capsys):
    for worker, words in (
        ({"concurrencyy": 2}, "unknown setting 'concurrencyy', did you mean 'concurrency'?"),
        ({"local_queue": {"sizee": 2}}, "unknown setting 'local_queue.sizee'"),
        ({"concurrency": "many"}, "concurrency: expected a whole number from 1"),
        ({"poll_interval": 5}, "poll_interval: expected a duration"),
        ({"poll_interval": timedelta(seconds=-1)}, "poll_interval: expected a duration"),
        ({"schema": "other"}, "cannot set 'schema'. Set SCHEMA instead"),
        ({"connection": "shop"}, "cannot set 'connection'. Set DATABASE"),
    ):
        with queue(WORKER=worker):
            assert words in reject(capsys, "jobs", "list"), worker
    with queue(WORKERS={}):
        assert "unknown key 'WORKERS', did you mean 'WORKER'?" in reject(capsys)


def test_settings_become_environment_variables_that_are_not_set():
    worker = {
        "concurrency": 4,
        "poll-interval": timedelta(milliseconds=1500),
        "cancel_after": None,
        "listen": False,
        "health_port": 8080,
        "crontab": Path("etc") / "crontab",
        "recovery": {"lease_duration": "1m"},
        "local_queue": "off",
        "only_tasks": ("pay", "a*"),
    }
    expected = {
        "GRAPHILE_WORKER_CONCURRENCY": "4",
        "GRAPHILE_WORKER_POLL_INTERVAL": "1s500ms",
        "GRAPHILE_WORKER_CANCEL_AFTER": "off",
        "GRAPHILE_WORKER_LISTEN": "off",
        "GRAPHILE_WORKER_HEALTH_PORT": "8080",
        "GRAPHILE_WORKER_CRONTAB": str(Path("etc/crontab")),
        "GRAPHILE_WORKER_RECOVERY": "on",
        "GRAPHILE_WORKER_RECOVERY_LEASE_DURATION": "1m",
        "GRAPHILE_WORKER_LOCAL_QUEUE": "off",
        "GRAPHILE_WORKER_ONLY_TASKS": "pay,a*",
    }
    with queue(WORKER=worker):
        assert build_worker_environment({}) == expected
        for variables, left_out in (
            ({"GRAPHILE_WORKER_CONCURRENCY": "9"}, {"CONCURRENCY"}),
            ({"GRAPHILE_WORKER_RECOVERY": "off"}, {"RECOVERY", "RECOVERY_LEASE_DURATION"}),
            ({"GRAPHILE_WORKER_LOCAL_QUEUE_SIZE": "9"}, {"LOCAL_QUEUE"}),
            ({"GRAPHILE_WORKER_LISTEN": ""}, set()),
        ):
            names = {f"GRAPHILE_WORKER_{name}" for name in left_out}
            kept = {name: value for name, value in expected.items() if name not in names}
            assert build_worker_environment(variables) == kept, variables


def test_another_program_cannot_call_the_command():
    with pytest.raises(CommandError, match="as a program"):
        call_command("graphile_worker")
    connections.close_all()
