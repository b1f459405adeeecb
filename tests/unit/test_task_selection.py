"""`only_tasks`, `except_tasks` and `forbidden_flags`: what a deployment of an app leaves out."""

import logging
from typing import Any

import pytest

from graphile_worker import App, ConfigurationError, Runner, WorkerOptions
from graphile_worker._worker_config import check_config
from graphile_worker.tasks.selection import select_tasks

TASKS = dict.fromkeys(("mail_receipt", "mail_news", "report", "odd[1]*"), 1)


def select(only: list[str] | None = None, excluded: tuple[str, ...] = ()) -> list[str]:
    return [*select_tasks(TASKS, only, excluded)]


def find_error(**given: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        select(**given)
    return str(caught.value)


@pytest.fixture
def app() -> App:
    app = App()
    for name in TASKS:

        @app.cron("0 4 * * *")
        @app.task(name=name)
        async def task() -> None: ...

    return app


def test_a_worker_runs_the_tasks_that_are_named_or_match_a_pattern():
    assert select() == [*TASKS]
    assert select(["report", "mail_news"]) == ["mail_news", "report"]
    assert select(["mail_*"]) == ["mail_receipt", "mail_news"]
    assert select(["*"], ("mail_*",)) == ["report", "odd[1]*"]
    assert select(None, ("report", "odd*")) == ["mail_receipt", "mail_news"]
    # An identifier is not a pattern.
    assert select(["odd[1]*"]) == ["odd[1]*"]


def test_a_name_or_pattern_without_a_task_is_an_error():
    known = "Known tasks: mail_news, mail_receipt, odd[1]*, report"

    assert find_error(only=["reports"]) == (
        f"only_tasks: unknown task 'reports', did you mean 'report'? {known}"
    )
    assert find_error(excluded=("sms_*",)) == f"except_tasks: unknown task 'sms_*'. {known}"
    assert find_error(only=["Report"]).startswith("only_tasks: unknown task 'Report', did you")
    assert find_error(only=["report"], excluded=("*",)).startswith("no tasks left to run")


def test_lists_of_names_are_checked_and_stored_as_tuples():
    options = WorkerOptions(only_tasks=["a"], except_tasks=["b"], forbidden_flags=["c"])

    assert (options.only_tasks, options.except_tasks) == (("a",), ("b",))
    assert hash(options) == hash(
        WorkerOptions(only_tasks=("a",), except_tasks=("b",), forbidden_flags=("c",))
    )
    for given, words in (
        ({"only_tasks": []}, "only_tasks must name at least one task"),
        ({"only_tasks": "mail"}, "only_tasks must be a list of text, got 'mail'"),
        ({"except_tasks": None}, "except_tasks must be a list of text, got None"),
        ({"forbidden_flags": [1]}, r"forbidden_flags must be a list of text, got \[1\]"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            WorkerOptions(**given)


def test_a_worker_of_some_tasks_schedules_the_cron_items_of_all(app, caplog):
    options = WorkerOptions(only_tasks=["report"], forbidden_flags=["large"])
    items = "0 5 * * * mail_news ?id=later\n0 5 * * * reports"
    runner = Runner(None, app, options=options, crontab=items)

    config = runner._config
    assert [*config.tasks] == ["report"]
    assert config.forbidden_flags == ("large",)
    assert config.cron_items is not None
    identifiers = [each.identifier for each in config.cron_items()]
    assert identifiers == [*TASKS, "later", "reports"]

    with caplog.at_level(logging.WARNING):
        check_config(config)
    # Another deployment runs the others, and none runs this one.
    warned = [each.getMessage() for each in caplog.records if "cron item" in each.getMessage()]
    assert len(warned) == 1
    assert "'reports', which this worker does not run" in warned[0]


def test_a_mapping_of_tasks_is_selected_too():
    options = WorkerOptions(except_tasks=["other"])
    functions = {"kept": print, "other": print}
    runner = Runner(None, functions, options=options, crontab="0 5 * * * other")

    assert [*runner._config.tasks] == ["kept"]
    assert runner._config.known_tasks == {"kept", "other"}


def test_forbidden_flags_are_set_in_one_place(app):
    with pytest.raises(ConfigurationError, match="forbidden_flags is an argument and set in the"):
        Runner(None, app, options=WorkerOptions(forbidden_flags=["a"]), forbidden_flags=["b"])
