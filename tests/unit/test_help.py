"""`--help`: what every command and every option must have."""

import re
from collections.abc import Iterator

import click
import pytest

from graphile_worker._cli.main import command
from graphile_worker._settings.definitions import SETTINGS
from graphile_worker._support.option_fields import HelpGroup
from graphile_worker.errors import ConfigurationError

pytestmark = [pytest.mark.single_version]

MAX_HELP_CHARS = 60
DEFAULT_PATTERN = re.compile(r" \(default: [^()]+\)\.$")


def iter_commands(name: str, it: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, it
    for child_name, child in it.commands.items() if isinstance(it, click.Group) else ():
        yield from iter_commands(f"{name} {child_name}", child)


COMMANDS = dict(iter_commands("graphile-worker", command))
OPTIONS = {
    f"{name} {option.opts[-1]}": option
    for name, it in COMMANDS.items()
    for option in it.params
    if isinstance(option, click.Option) and not option.hidden
}


def list_summaries(it: click.Command) -> str:
    return format_help(it, 80).partition("Commands:")[2]


def format_help(it: click.Command, columns: int) -> str:
    # A command keeps the help option of its first context, so it must be the one of the program.
    names = ["-h", "--help"]
    context = click.Context(it, info_name="it", terminal_width=columns, help_option_names=names)
    return it.get_help(context)


def test_every_option_has_a_short_help_text():
    def is_short(text: str) -> bool:
        return text[:1].isupper() and text.endswith(".") and len(text) <= MAX_HELP_CHARS

    assert [name for name, it in OPTIONS.items() if not is_short(it.help or "")] == []


def test_every_option_with_a_value_names_its_default():
    with_value = {
        name: it for name, it in OPTIONS.items() if not (it.is_flag or it.multiple or it.required)
    }

    assert [n for n, it in with_value.items() if not DEFAULT_PATTERN.search(it.help or "")] == []


def test_no_summary_is_cut_off_at_80_columns():
    assert [name for name, it in COMMANDS.items() if not it.help] == []
    assert [name for name, it in COMMANDS.items() if "..." in list_summaries(it)] == []


def test_options_are_listed_in_groups():
    headings = re.findall(r"^(\w+) options:$", format_help(command, 80), re.MULTILINE)

    assert headings == list(HelpGroup)


def test_each_option_is_listed_in_its_group():
    sections = dict(
        re.findall(r"^(\w+) options:\n(.*?)(?:\n\n|\Z)", format_help(command, 80), re.M | re.S)
    )

    for setting in SETTINGS.values():
        assert re.search(rf"(?<![\w-]){setting.flag}\b", sections[setting.help_group])


MISSPELLED = [
    (["--polling-interval", "2s"], "--poll-interval"),
    (["--cleanup", "GC_JOB_QUEUE"], "did you mean 'GC_JOB_QUEUES'?"),
    (["--cleanup", ""], "--cleanup has no step. Steps: DELETE_PERMAFAILED_JOBS, "),
    (["--cleanup", ","], "--cleanup has no step. Steps: DELETE_PERMAFAILED_JOBS, "),
]
# Older releases of click suggest no names of commands.
if hasattr(click.exceptions, "NoSuchCommand"):
    MISSPELLED += [(["dotcor"], "doctor"), (["jobs", "lst"], "list")]


@pytest.mark.parametrize(("arguments", "expected"), MISSPELLED)
def test_a_misspelled_name_gets_a_suggestion(arguments: list[str], expected: str):
    with pytest.raises((click.UsageError, ConfigurationError)) as caught:
        command.main(arguments, standalone_mode=False)

    error = caught.value
    text = error.format_message() if isinstance(error, click.UsageError) else str(error)
    assert expected in text
