"""The pages under docs/reference tell what there is: no more, no less, nothing otherwise."""

import dataclasses
import inspect
import math
import re
from datetime import timedelta
from pathlib import Path
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
    events,
)
from graphile_worker.administration.doctor import FindingId
from graphile_worker.cli.catalogue import SETTINGS
from graphile_worker.cli.commands.config import config
from graphile_worker.cli.main import command
from graphile_worker.cli.values import to_text
from graphile_worker.events import BY_NAME, Event, Moment
from tests.docs.pages import ROOT

SOURCES = Path(graphile_worker.__file__).parent
CODE = re.compile(r"`([^`]+)`")
VARIABLE = re.compile(r"(?:environ\.get\(|environ\[)\"(\w+)\"")

# They name events without announcing them.
MENTIONING = {"__init__.py", "events.py", "reporting.py"}


def section(page: str, heading: str) -> str:
    """What stands under a heading of the second level."""
    parts = re.split(
        r"^## ", (ROOT / "docs" / page).read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    [found] = [part for part in parts if part.splitlines()[0] == heading]
    return found


def rows(text: str) -> list[list[str]]:
    """The cells of all tables in a text, without the heads of the tables."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    heads = [index - 1 for index, row in enumerate(cells) if set("".join(row)) == {"-"}]
    return [row for index, row in enumerate(cells) if index not in heads and index - 1 not in heads]


def codes(cell: str) -> list[str]:
    return CODE.findall(cell)


# The command


def flags_of(function: click.Command) -> set[str]:
    context = click.Context(function, help_option_names=["-h", "--help"])
    shown = [each for each in function.get_params(context) if not getattr(each, "hidden", False)]
    names = {name for each in shown for name in (*each.opts, *each.secondary_opts)}
    # The others are arguments.
    return {name for name in names if name.startswith("-")}


@pytest.mark.parametrize(
    ("heading", "function"),
    [("Flags", command)]
    + [(f"`graphile-worker {name}`", each) for name, each in command.commands.items()],
)
def test_the_page_of_the_command_names_its_flags(heading, function):
    told = {
        flag for row in rows(section("reference/command.md", heading)) for flag in codes(row[0])
    }

    # `config` takes those of all settings, which need not be told twice.
    of_settings = flags_of(command) & flags_of(function) if function is config else set()
    assert told == flags_of(function) - (of_settings - {"-h", "--help"})


def test_the_page_of_the_command_tells_key_and_default_of_each_setting():
    table = [row for row in rows(section("reference/command.md", "Flags")) if len(row) == 4]
    told = {codes(row[1])[0]: row for row in table if row[1]}

    assert told.keys() == SETTINGS.keys()
    for name, (flags, _, default, _) in told.items():
        setting = SETTINGS[name]
        assert codes(flags)[: len(setting.flags)] == [*setting.flags]
        if setting.default is not None:
            assert default == to_text(setting, setting.default)


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

    options = WorkerOptions()
    assert told == {name: getattr(options, name) for name in names_of(options)}


@pytest.mark.parametrize("kind", [RecoveryOptions, TaskProcessOptions, ExecutableOptions])
def test_the_page_of_options_tells_those_of_each_part(kind):
    table = rows(section("reference/options.md", kind.__name__))

    told = {codes(row[0])[0]: value(row[1]) for row in table}

    options = kind()
    assert told == {name: getattr(options, name) for name in names_of(options)}


def test_the_page_of_options_tells_those_of_a_local_queue():
    table = rows(section("reference/options.md", "LocalQueueOptions"))

    told = {codes(row[0])[0]: value(row[1]) for row in table if codes(row[1])}

    queue, delay = LocalQueueOptions(), RefetchDelayOptions()
    defaults = {name: getattr(queue, name) for name in names_of(queue)}
    assert told == defaults | {name: getattr(delay, name) for name in names_of(delay)}


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


def groups() -> dict[str, list[type[Any]]]:
    """The classes of events.py under the comments that stand above them."""
    found: dict[str, list[type[Any]]] = {}
    for line in inspect.getsource(events).splitlines():
        if line.startswith("# "):
            group = found.setdefault(line.removeprefix("# "), [])
        elif match := re.match(r"class (\w+)\(", line):
            each = getattr(events, match[1])
            if each in BY_NAME.values() or (issubclass(each, Moment) and each is not Moment):
                group.append(each)
    return found


GROUPS = groups()


def test_the_page_of_events_has_their_groups_in_order():
    page = (ROOT / "docs/reference/events.md").read_text(encoding="utf-8")

    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == list(GROUPS)


def test_every_event_is_in_a_group():
    events = [each for group in GROUPS.values() for each in group if issubclass(each, Event)]

    assert events == list(BY_NAME.values())


@pytest.mark.parametrize("group", [name for name in GROUPS if "around" not in name])
def test_the_page_of_events_names_class_name_base_and_fields(group):
    told = [[*map(codes, row[:4])] for row in rows(section("reference/events.md", group))]

    assert told == [event_row(each) for each in GROUPS[group]]


def event_row(event: type[Event]) -> list[list[str]]:
    base = event.__mro__[1]
    fields = [name for name in names_of(event) if name not in names_of(base)]
    return [[event.__name__], [event.name], [base.__name__], fields]


def test_the_page_of_events_names_the_moments_and_their_fields():
    [heading] = [name for name in GROUPS if "around" in name]

    told = [[*map(codes, row[:2])] for row in rows(section("reference/events.md", heading))]

    assert told == [[[each.__name__], names_of(each)] for each in GROUPS[heading]]


def test_the_page_of_events_says_which_ones_nothing_announces_yet():
    page = (ROOT / "docs/reference/events.md").read_text(encoding="utf-8")
    files = [path for path in SOURCES.rglob("*.py") if path.name not in MENTIONING]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)

    later = {codes(row[0])[0] for row in rows(page) if row[-1].startswith("*Later:*")}

    known = {event.__name__ for event in BY_NAME.values()}
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


@pytest.mark.feature("F207")
def test_the_delays_of_the_guide_are_those_of_the_database():
    [waits] = rows(section("guides/tasks.md", "When it is tried again"))

    told = [seconds(cell) for cell in waits[1:]]

    assert told == [pytest.approx(math.exp(attempt), rel=0.01) for attempt in range(1, 11)]


def seconds(text: str) -> float:
    units = {"h": 3600, "min": 60, "s": 1}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+) (\w+)", text))
