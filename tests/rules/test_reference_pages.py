"""The pages under docs/reference tell what there is: no more, no less, nothing otherwise."""

import dataclasses
import inspect
import math
import re
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

import graphile_worker
from graphile_worker import (
    ExecutableOptions,
    LocalQueueOptions,
    RecoveryOptions,
    RefetchDelayOptions,
    TaskProcessOptions,
    WorkerOptions,
    errors,
    options,
    sync,
    testing,
)
from graphile_worker._cli.commands.config import config
from graphile_worker._cli.main import command
from graphile_worker._cli.settings.definitions import SETTINGS
from graphile_worker._cli.settings.values import format_value
from graphile_worker.contrib import opentelemetry
from graphile_worker.events import EVENTS_BY_NAME, Event
from graphile_worker.ops import diagnostics
from graphile_worker.ops.diagnostics import FindingId
from graphile_worker.retries import JobOutcomeException
from tests.support.pages import ROOT
from tests.support.tables import codes, rows, section
from tools.pages import parts
from tools.reference import pages, written
from tools.reference.commands import options_of
from tools.reference.events import groups, words
from tools.reference.python_api import named

SOURCES = Path(graphile_worker.__file__).parent
VARIABLE = re.compile(r"(?:environ\.get\(|environ\[)\"(\w+)\"")

# They name events without announcing them.
MENTIONING = {"__init__.py", "events.py", "reporting.py"}


# The command


def flags_of(function: click.Command) -> set[str]:
    return {name for each in options_of(function) for name in (*each.opts, *each.secondary_opts)}


@pytest.mark.parametrize(
    ("heading", "function"),
    [("Flags", command)]
    + [(f"`graphile-worker {name}`", each) for name, each in command.commands.items()],
)
def test_the_page_of_the_command_names_its_flags(heading, function):
    # What comes under a heading of the third level is a subcommand's.
    own, _, _ = section("reference/command.md", heading).partition("\n### ")

    told = {flag for row in rows(own) for flag in codes(row[0])}

    # `config` takes those of all settings, which need not be told twice.
    of_settings = flags_of(command) & flags_of(function) if function is config else set()
    assert told == flags_of(function) - (of_settings - {"-h", "--help"})


def groups_of_commands() -> dict[str, click.Group]:
    return {name: each for name, each in command.commands.items() if isinstance(each, click.Group)}


def test_the_page_of_the_command_has_a_section_for_each_subcommand():
    page = (ROOT / "docs/reference/command.md").read_text(encoding="utf-8")

    told = re.findall(r"^### `graphile-worker (\w+ [\w-]+)`$", page, re.MULTILINE)

    groups = groups_of_commands()
    known = [f"{group} {name}" for group in groups for name in groups[group].commands]
    assert sorted(told) == sorted(known)
    assert sorted(parts(page)) == sorted(f"commands {group}" for group in groups)


@pytest.mark.parametrize(
    "name",
    [f"{group} {each}" for group, of in groups_of_commands().items() for each in of.commands],
)
def test_the_page_of_the_command_names_the_flags_of_a_subcommand(name):
    group, _, own = name.partition(" ")
    _, _, after = section("reference/command.md", f"`graphile-worker {group}`").partition(
        f"### `graphile-worker {name}`\n"
    )
    text, _, _ = after.partition("\n### ")

    told = [flag for row in rows(text) for flag in codes(row[0])]

    assert len(told) == len(set(told))
    assert set(told) == flags_of(groups_of_commands()[group].commands[own])


def test_the_page_of_the_command_tells_key_and_default_of_each_setting():
    table = [row for row in rows(section("reference/command.md", "Flags")) if len(row) == 4]
    told = {codes(row[1])[0]: row for row in table if row[1]}

    assert told.keys() == SETTINGS.keys()
    for name, (flags, _, default, _) in told.items():
        setting = SETTINGS[name]
        assert codes(flags)[: len(setting.flags)] == [*setting.flags]
        if setting.default is not None:
            assert default == format_value(setting, setting.default)


def test_the_page_of_the_command_names_the_variables_that_are_read():
    told = {codes(row[0])[0] for row in rows(section("reference/command.md", "Environment"))}

    read = {name for path in SOURCES.rglob("*.py") for name in VARIABLE.findall(path.read_text())}
    assert told == read


# Options


def test_the_page_of_options_tells_each_with_its_default(monkeypatch):
    monkeypatch.delenv("GRAPHILE_WORKER_SCHEMA", raising=False)
    page = (ROOT / "docs/reference/options.md").read_text(encoding="utf-8")
    first, _, _ = page.partition("\n## ")

    told = {codes(row[0])[0]: value(row[1]) for row in rows(first) if len(row) == 3}

    worker = WorkerOptions()
    assert told == {name: getattr(worker, name) for name in names_of(worker)}


@pytest.mark.parametrize("kind", [RecoveryOptions, TaskProcessOptions, ExecutableOptions])
def test_the_page_of_options_tells_those_of_each_part(kind):
    table = rows(section("reference/options.md", kind.__name__))

    told = {codes(row[0])[0]: value(row[1]) for row in table}

    part = kind()
    assert told == {name: getattr(part, name) for name in names_of(part)}


def test_the_page_of_options_tells_those_of_a_local_queue():
    table = rows(section("reference/options.md", "LocalQueueOptions"))

    told = {codes(row[0])[0]: value(row[1]) for row in table if codes(row[1])}

    queue, delay = LocalQueueOptions(), RefetchDelayOptions()
    defaults = {name: getattr(queue, name) for name in names_of(queue)}
    assert told == defaults | {name: getattr(delay, name) for name in names_of(delay)}


def test_the_page_of_options_has_all_parts():
    page = (ROOT / "docs/reference/options.md").read_text(encoding="utf-8")

    parts = public_names(options) - {"default_schema"}

    assert {
        name for name in parts if f"`{name}`" not in page and f"## {name}\n" not in page
    } == set()


def value(cell: str) -> Any:
    """What a cell says in Python's own words."""
    known = (
        timedelta,
        ExecutableOptions,
        LocalQueueOptions,
        RecoveryOptions,
        TaskProcessOptions,
    )
    return eval(codes(cell)[0], {each.__name__: each for each in known})


def names_of(it: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(it)]


# Events


def test_the_page_of_events_has_their_groups_in_order():
    page = (ROOT / "docs/reference/events.md").read_text(encoding="utf-8")

    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == list(groups())
    assert [*parts(page)] == [f"events {group}" for group in groups()]


def test_every_event_is_in_a_group():
    events = [each for group in groups().values() for each in group if issubclass(each, Event)]

    assert events == list(EVENTS_BY_NAME.values())


@pytest.mark.parametrize("event", [each for group in groups().values() for each in group])
def test_the_docstring_of_an_event_says_when_it_comes(event):
    # Generated tables show them; those of dataclasses without one are their signature.
    assert words(event).endswith(".")


def test_the_page_of_events_says_which_ones_nothing_announces_yet():
    page = (ROOT / "docs/reference/events.md").read_text(encoding="utf-8")
    files = [path for path in SOURCES.rglob("*.py") if path.name not in MENTIONING]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)

    later = {codes(row[0])[0] for row in rows(page) if row[-1].startswith("*Later:*")}

    known = {event.__name__ for event in EVENTS_BY_NAME.values()}
    assert later == {name for name in known if not re.search(rf"\b{name}\b", text)}


# What the doctor finds


def test_the_page_of_the_doctor_tells_cause_and_cure_of_each_finding():
    page = (ROOT / "docs/guides/doctor.md").read_text(encoding="utf-8")

    parts = re.split(r"^### `([\w-]+)`$", page, flags=re.MULTILINE)[1:]
    told = dict(zip(parts[::2], parts[1::2], strict=True))

    assert list(told) == [each.value for each in FindingId]
    for text in told.values():
        assert text.count("**Cause.**") == text.count("**Cure.**") == 1


# Errors, and when a failed job is tried again


def test_the_page_of_errors_draws_their_tree():
    tree = re.search(r"GraphileWorkerError\n.*?\n\n", errors.__doc__ or "", re.DOTALL)

    assert tree is not None
    assert tree[0].strip() in (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")


def test_the_page_of_errors_tells_each_class_and_what_it_has():
    table = rows(section("reference/errors.md", "Each of them"))

    told = {codes(row[0])[0]: codes(row[1]) for row in table}

    assert told == {each.__name__: attributes_of(each) for each in error_classes()}
    assert all(row[3] for row in table)


def test_the_tree_of_errors_is_that_of_the_classes():
    drawn = re.findall(r"^((?:[│├└─ ]{4})*)(\w+)", errors.__doc__ or "", re.MULTILINE)
    tree = [(len(indent) // 4, name) for indent, name in drawn if name in vars(errors)]

    assert sorted(tree) == sorted(
        (
            len(each.__mro__) - len(errors.GraphileWorkerError.__mro__) - is_value(each),
            each.__name__,
        )
        for each in error_classes()
    )


def is_value(error: type[Exception]) -> bool:
    return issubclass(error, ValueError)


def error_classes() -> list[type[Exception]]:
    found = [each for each in vars(errors).values() if inspect.isclass(each)]
    return [each for each in found if issubclass(each, errors.GraphileWorkerError)]


def attributes_of(error: type[Exception]) -> list[str]:
    """What its `__init__` keeps, in that order."""
    return re.findall(r"^        self\.(\w+) = ", inspect.getsource(error), re.MULTILINE)


def test_every_public_exception_is_told():
    page = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")

    found = [getattr(graphile_worker, name) for name in graphile_worker.__all__]
    raised = [each for each in found if inspect.isclass(each) and issubclass(each, Exception)]

    assert [each for each in raised if f"`{each.__name__}`" not in page] == []
    assert {*raised} - {*error_classes()} == {*JobOutcomeException.__subclasses__()}


def test_the_page_of_errors_tells_the_codes_that_a_job_can_be_refused_with():
    table = rows(section("reference/errors.md", "Jobs that cannot be added"))

    told = {code for row in table for code in codes(row[2])}

    assert told == set(refusals())


# What the database says before it is translated, or what is not about a job.
NOT_TOLD = {"22012", "23514"}


def refusals() -> list[str]:
    """The codes in all files that refuse jobs."""
    texts = [path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.py")]
    refusing = [text for text in texts if re.search(r"JobSpecError\(|_build_payload_error\(", text)]
    found = re.findall(r'"((?:GW|2\d|54)[0-9A-Z]{3})"', "\n".join(refusing))
    return [code for code in found if code not in NOT_TOLD]


# The Python API


def test_the_page_of_the_python_api_names_each_public_name_once():
    page = (ROOT / "docs/reference/python.md").read_text(encoding="utf-8")
    found = [named(part.partition(" ")[2]) for part in parts(page)]

    told: dict[str, list[str]] = {module: [] for module, _ in found}
    for module, names in found:
        told[module] += names

    assert sorted(told["graphile_worker"]) == sorted(graphile_worker.__all__)
    assert sorted(told["graphile_worker.testing"]) == sorted(testing.__all__)
    assert sorted(told["graphile_worker.ops.diagnostics"]) == sorted(diagnostics.__all__)
    assert set(told["graphile_worker.sync"]) == public_names(sync)
    assert set(told["graphile_worker.contrib.opentelemetry"]) == public_names(opentelemetry)
    assert set(told["graphile_worker.errors"]) == public_names(errors) - {*graphile_worker.__all__}


def public_names(module: ModuleType) -> set[str]:
    """The functions and classes that a module defines, and their other names."""
    found = {name: it for name, it in vars(module).items() if not name.startswith("_")}
    return {
        name
        for name, it in found.items()
        if inspect.isroutine(it) or inspect.isclass(it)
        if it.__module__ == module.__name__
    }


# All of them


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_a_page_is_what_the_code_says(page):
    assert page.read_text(encoding="utf-8") == written(page), "write it anew: just reference"


@pytest.mark.feature("F207")
def test_the_delays_of_the_guide_are_those_of_the_database():
    [waits] = rows(section("guides/tasks.md", "When it is tried again"))

    told = [seconds(cell) for cell in waits[1:]]

    assert told == [pytest.approx(math.exp(attempt), rel=0.01) for attempt in range(1, 11)]


def seconds(text: str) -> float:
    units = {"h": 3600, "min": 60, "s": 1}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+) (\w+)", text))
