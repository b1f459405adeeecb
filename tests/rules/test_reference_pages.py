"""The pages of docs/reference list exactly what the package has."""

import dataclasses
import inspect
import math
import re
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import griffe
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
    options,
    sync,
    testing,
)
from graphile_worker._cli.commands.config import config
from graphile_worker._cli.main import command
from graphile_worker._settings.definitions import SETTINGS
from graphile_worker._settings.values import format_default
from graphile_worker._support.option_fields import HelpGroup
from graphile_worker.contrib import opentelemetry
from graphile_worker.errors import CrontabProblem
from graphile_worker.events import EVENTS_BY_NAME, Event
from graphile_worker.ops import diagnostics
from graphile_worker.ops.diagnostics import FindingId
from graphile_worker.retries import JobOutcomeException
from tests.support.cases import for_each
from tests.support.pages import ROOT
from tests.support.tables import codes, rows, section
from tools.pages import FENCE, find_part_names
from tools.reference import api, build_page, class_pages, list_pages
from tools.reference.api import list_names
from tools.reference.class_pages import add_links, build_pages, insert_navigation
from tools.reference.commands import CONNECTION_FLAGS, flag_table, list_options
from tools.reference.events import describe, groups

SOURCES = Path(graphile_worker.__file__).parent
VARIABLE = re.compile(r"(?:environ\.get\(|environ\[)\"(\w+)\"")

# These modules name events without emitting them.
MENTIONING = {"__init__.py", "events.py", "reporting.py"}


# The command


def flags_of(function: click.Command) -> set[str]:
    return {name for each in list_options(function) for name in (*each.opts, *each.secondary_opts)}


@pytest.mark.parametrize(
    ("heading", "function"),
    [("Flags", command)]
    + [(f"`graphile-worker {name}`", each) for name, each in command.commands.items()],
)
def test_the_page_of_the_command_lists_its_flags(heading, function):
    # A heading of the third level begins a subcommand, or a group of flags.
    text = section("reference/command-line.md", heading)
    own = text if function is command else re.split(r"\n### |^Shared flags:", text, flags=re.M)[0]

    listed = {flag for row in rows(own) for flag in codes(row[0])}

    # `config` takes the flags of all settings, which the page lists once.
    of_settings = flags_of(command) & flags_of(function) if function is config else set()
    expected = flags_of(function) - (of_settings - {"-h", "--help"})
    assert listed == expected - omitted_flags(function)


def omitted_flags(function: click.Command) -> set[str]:
    """Return the flags that the page lists once for all commands with a connection."""
    connecting = function is not command and {*CONNECTION_FLAGS} <= flags_of(function)
    return {*CONNECTION_FLAGS} if connecting and function is not config else set()


def test_the_page_of_the_command_lists_the_connection_flags():
    text = section("reference/command-line.md", "Flags").partition("\n### Connection flags\n")[2]

    assert {*CONNECTION_FLAGS} <= set(codes(text))


def test_the_page_of_the_command_links_to_each_command():
    page = (ROOT / "docs/reference/command-line.md").read_text(encoding="utf-8")
    first, _, _ = page.partition("\n## ")

    assert sorted(re.findall(r"\[`(\w+)`\]\(#", first)) == sorted(command.commands)


def command_groups() -> dict[str, click.Group]:
    return {name: each for name, each in command.commands.items() if isinstance(each, click.Group)}


def test_the_page_of_the_command_has_a_section_for_each_subcommand():
    page = (ROOT / "docs/reference/command-line.md").read_text(encoding="utf-8")

    listed = re.findall(r"^### `graphile-worker (\w+ [\w-]+)`$", page, re.MULTILINE)

    groups = command_groups()
    known = [f"{group} {name}" for group in groups for name in groups[group].commands]
    assert sorted(listed) == sorted(known)
    with_flags = [name for name in command.commands if flag_table(name)]
    assert sorted(find_part_names(page)) == sorted(
        ["settings", "flags"]
        + [f"flags {name}" for name in with_flags]
        + [f"commands {group}" for group in groups]
    )


@pytest.mark.parametrize(
    "name",
    [f"{group} {each}" for group, of in command_groups().items() for each in of.commands],
)
def test_the_page_of_the_command_lists_the_flags_of_a_subcommand(name):
    group, _, own = name.partition(" ")
    _, _, after = section("reference/command-line.md", f"`graphile-worker {group}`").partition(
        f"### `graphile-worker {name}`\n"
    )
    text, _, _ = after.partition("\n### ")

    listed = [flag for row in rows(text) for flag in codes(row[0])]

    function = command_groups()[group].commands[own]
    assert len(listed) == len(set(listed))
    assert set(listed) == flags_of(function) - omitted_flags(function)


@pytest.mark.parametrize("group", command_groups())
def test_flags_that_several_subcommands_share_are_in_one_table(group):
    text = section("reference/command-line.md", f"`graphile-worker {group}`")
    _, _, after = text.partition("Shared flags:\n")

    shared = {flag for row in rows(after.partition("\n### ")[0]) for flag in codes(row[0])}

    named = {flag for row in rows(text) if row[1] == "Shared flags." for flag in codes(row[0])}
    assert named == shared


def test_the_page_of_the_command_has_key_and_default_of_each_setting():
    table = [row for row in rows(section("reference/command-line.md", "Flags")) if len(row) == 4]
    listed = {codes(row[1])[0]: row for row in table if row[1]}

    assert listed.keys() == SETTINGS.keys()
    for name, (flags, _, default, _) in listed.items():
        setting = SETTINGS[name]
        assert codes(flags)[: len(setting.flags)] == [*setting.flags]
        assert default == format_default(setting)


def test_the_page_of_the_command_lists_the_variables_that_the_package_reads():
    listed = {codes(row[0])[0] for row in rows(section("reference/command-line.md", "Environment"))}

    read = {name for path in SOURCES.rglob("*.py") for name in VARIABLE.findall(path.read_text())}
    assert listed == read


# Options


def test_the_page_of_options_has_each_option_with_its_default(monkeypatch):
    monkeypatch.delenv("GRAPHILE_WORKER_SCHEMA", raising=False)
    table = rows(section("reference/options.md", "WorkerOptions"))

    listed = {codes(row[0])[0]: value(row[1]) for row in table}

    worker = WorkerOptions()
    assert listed == {name: getattr(worker, name) for name in names_of(worker)}


@pytest.mark.parametrize(
    "kind",
    [
        LocalQueueOptions,
        RefetchDelayOptions,
        RecoveryOptions,
        TaskProcessOptions,
        ExecutableOptions,
    ],
)
def test_the_page_of_options_has_the_options_of_each_group(kind):
    table = rows(section("reference/options.md", kind.__name__))

    listed = {codes(row[0])[0]: value(row[1]) for row in table}

    part = kind()
    assert listed == {name: getattr(part, name) for name in names_of(part)}


@pytest.mark.parametrize(
    ("page", "heading"), [("options", "WorkerOptions"), ("command-line", "Flags")]
)
def test_the_tables_of_options_have_the_groups_of_the_help(page, heading):
    text = section(f"reference/{page}.md", heading)

    headings = re.findall(r"^### (.+)$", text, re.MULTILINE)

    assert headings[: len(HelpGroup)] == [group.value for group in HelpGroup]


def test_the_page_of_options_has_all_groups():
    page = (ROOT / "docs/reference/options.md").read_text(encoding="utf-8")

    parts = public_names(options) - {"default_schema"}

    assert {name for name in parts if f"\n## {name}\n" not in page} == set()


def value(cell: str) -> Any:
    """Evaluate the Python expression of a cell."""
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
    assert [*find_part_names(page)] == [f"events {group}" for group in groups()]


def test_every_event_is_in_a_group():
    grouped = [each for group in groups().values() for each in group if issubclass(each, Event)]

    assert grouped == list(EVENTS_BY_NAME.values())


@for_each([each for group in groups().values() for each in group])
def test_every_event_has_a_docstring(event):
    # The generated docstring of a dataclass is its signature, without a period.
    assert describe(event).endswith(".")


def test_the_page_of_events_marks_events_that_are_not_emitted_yet():
    page = (ROOT / "docs/reference/events.md").read_text(encoding="utf-8")
    files = [path for path in SOURCES.rglob("*.py") if path.name not in MENTIONING]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)

    later = {codes(row[0])[0] for row in rows(page) if row[-1].startswith("*Later:*")}

    known = {event.__name__ for event in EVENTS_BY_NAME.values()}
    assert later == {name for name in known if not re.search(rf"\b{name}\b", text)}


# Findings of the doctor


def test_the_troubleshooting_page_has_cause_and_fix_of_each_finding():
    page = (ROOT / "docs/operations/troubleshooting.md").read_text(encoding="utf-8")

    parts = re.split(r"^### `([\w-]+)`$", page, flags=re.MULTILINE)[1:]
    listed = dict(zip(parts[::2], parts[1::2], strict=True))

    assert list(listed) == [each.value for each in FindingId]
    for text in listed.values():
        cause, fix = text.partition("\n## ")[0].split("**Fix:**")
        assert cause.strip().endswith(".")
        assert fix.strip()


# Errors


def test_the_page_of_errors_has_their_tree():
    tree = re.search(r"GraphileWorkerError\n.*?\n\n", errors.__doc__ or "", re.DOTALL)

    assert tree is not None
    assert tree[0].strip() in (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")


def test_the_page_of_errors_has_a_section_for_each_class_with_its_attributes():
    page = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")
    parts = re.split(r"^### (\w+)$", page, flags=re.MULTILINE)[1:]

    listed = {
        name: codes((re.search(r"^Attributes: .+$", text, re.MULTILINE) or [""])[0])
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    }

    problem = {CrontabProblem.__name__: names_of(CrontabProblem)}
    assert listed == {each.__name__: attributes_of(each) for each in error_classes()} | problem


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
    """Return the attributes that `__init__` sets, in their order."""
    return re.findall(r"^        self\.(\w+) = ", inspect.getsource(error), re.MULTILINE)


def test_every_public_exception_is_documented():
    page = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")

    found = [getattr(graphile_worker, name) for name in graphile_worker.__all__]
    raised = [each for each in found if inspect.isclass(each) and issubclass(each, Exception)]

    missing = [each for each in raised if not re.search(rf"[`#] ?{each.__name__}\b", page)]
    assert missing == []
    assert {*raised} - {*error_classes()} == {*JobOutcomeException.__subclasses__()}


def test_the_page_of_errors_has_the_codes_that_reject_a_job():
    table = rows(section("reference/errors.md", "Job limits"))

    listed = {code for row in table for code in codes(row[2])}

    assert listed == set(rejection_codes())


# Codes that are translated first, or that do not concern a job.
NOT_LISTED = {"22012", "23514"}


def rejection_codes() -> list[str]:
    """Return the codes of all files that reject jobs."""
    texts = [path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.py")]
    rejecting = [
        text for text in texts if re.search(r"JobSpecError\(|_build_payload_error\(", text)
    ]
    found = re.findall(r'"((?:GW|2\d|54)[0-9A-Z]{3})"', "\n".join(rejecting))
    return [code for code in found if code not in NOT_LISTED]


# The Python API


def test_the_page_of_the_python_api_has_each_public_name_once():
    listed: dict[str, list[str]] = {}
    for each in [*list_names("python"), *list_names("names")]:
        listed.setdefault(each.module, []).append(each.name)

    assert sorted(listed["graphile_worker"]) == sorted(graphile_worker.__all__)
    assert sorted(listed["graphile_worker.testing"]) == sorted(testing.__all__)
    assert sorted(listed["graphile_worker.ops.diagnostics"]) == sorted(diagnostics.__all__)
    assert set(listed["graphile_worker.sync"]) == public_names(sync)
    assert set(listed["graphile_worker.contrib.opentelemetry"]) == public_names(opentelemetry)
    assert set(listed["graphile_worker.errors"]) == public_names(errors) - {
        *graphile_worker.__all__
    }


def public_names(module: ModuleType) -> set[str]:
    """Return the names of the functions and classes that a module defines."""
    found = {name: it for name, it in vars(module).items() if not name.startswith("_")}
    return {
        name
        for name, it in found.items()
        if inspect.isroutine(it) or inspect.isclass(it)
        if it.__module__ == module.__name__
    }


ANCHOR = re.compile(r"^#+ `?(.+?)`?$", re.MULTILINE)


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """The text of the pages of the Python API by their paths."""
    return build_pages()


def test_every_public_class_and_function_is_on_a_page_of_the_site():
    on_pages = {name for page in class_pages.list_pages() for name in page.names}

    assert {*list_names("python")} <= on_pages
    assert {each.name for each in on_pages if each.module == events.__name__} == public_names(
        events
    )


def test_every_public_method_has_an_anchor(pages):
    for page in class_pages.list_pages():
        headings = ANCHOR.findall(FENCE.sub("", pages[page.path]))
        methods = [
            method.name
            for name in page.names
            if isinstance(name.item, griffe.Class)
            for method in api.list_methods(name.item)
        ]
        names = [each.name for each in page.names]

        if [page.title] == [each.title for each in page.names]:
            assert headings == [page.title, *methods]
        else:
            assert set(headings) == {page.title, *names, *methods}
        assert len({each.lower() for each in headings}) == len(headings)


def test_everything_on_a_page_of_the_python_api_has_a_description(pages):
    for page in class_pages.list_pages():
        items: list[Any] = [
            each.item for each in page.names if not isinstance(each.item, griffe.Attribute)
        ]
        classes = [each for each in items if isinstance(each, griffe.Class)]
        items += [method for each in classes for method in api.list_methods(each)]

        missing = [each.path for each in items if not api.get_summary(each)]
        missing += [
            each.path
            for each in items
            if isinstance(each, griffe.Function) and str(each.returns) != "None"
            if not api.get_returns(each)
        ]
        missing += [row[0] for row in rows(pages[page.path]) if not row[-1]]

        assert missing == []


def test_every_link_of_the_pages_of_the_python_api_has_a_target(pages):
    headings = {path: ANCHOR.findall(FENCE.sub("", text)) for path, text in pages.items()}

    for target in class_pages.list_targets().values():
        path, _, anchor = target.partition("#")
        if path in pages:
            assert not anchor or anchor in {each.lower() for each in headings[path]}


def test_the_navigation_of_the_site_has_the_pages_of_the_python_api(pages):
    settings = insert_navigation((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))

    listed = re.findall(r": (reference/python/\S+)$", settings, re.MULTILINE)

    assert sorted(listed) == sorted(pages)


def test_the_index_of_the_site_links_to_the_pages_of_the_python_api(pages):
    index = add_links((ROOT / "docs/reference/python.md").read_text(encoding="utf-8"))

    linked = set(re.findall(r"\]\(python/([\w-]+\.md)", index))

    assert linked == {path.rpartition("/")[2] for path in pages}
    assert "### [Client](python/client.md)" in index
    assert "[`add_jobs`](python/client.md#add_jobs)" in index
    assert "[`JobStarted`](python/events.md#jobstarted)" in index


# All pages


@pytest.mark.parametrize("page", list_pages(), ids=lambda page: page.name)
def test_the_generated_parts_of_a_page_are_up_to_date(page):
    assert page.read_text(encoding="utf-8") == build_page(page), "run: just reference"


@pytest.mark.feature("F207")
def test_the_delays_of_the_guide_are_those_of_the_database():
    [waits] = rows(section("guides/retries-and-timeouts.md", "Default backoff"))

    listed = [seconds(cell) for cell in waits[1:]]

    assert listed == [pytest.approx(math.exp(attempt), rel=0.01) for attempt in range(1, 11)]


def seconds(text: str) -> float:
    units = {"h": 3600, "min": 60, "s": 1}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+) (\w+)", text))
