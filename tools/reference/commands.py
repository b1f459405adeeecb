"""Write the subcommands and their flags of docs/reference/command-line.md from click."""

import re
from collections import Counter

import click

from graphile_worker._cli.main import command
from graphile_worker._settings.definitions import SETTINGS
from tools.reference.tables import code, table

# A row of this many commands of a group is in one table for all of them.
MIN_SHARING_COMMANDS = 3

# Flags of every command that opens a connection.
CONNECTION_FLAGS = (
    *("-C", "--config", "-c", "--connection", "-s", "--schema"),
    *("--ext-schema", "-h", "--help"),
)


def subcommand_sections(group_name: str) -> str:
    """Return a section for each subcommand of a group: its purpose, its usage and its flags.

    A table in front of them has the flags that several subcommands share.
    """
    group = command.commands[group_name]
    assert isinstance(group, click.Group)
    counts = Counter(tuple(row) for each in group.commands.values() for row in _own_rows(each))
    shared = [list(row) for row, count in counts.items() if count >= MIN_SHARING_COMMANDS]
    names = {f"{group_name} {name}": it for name, it in group.commands.items()}
    sections = [_section(name, it, shared) for name, it in names.items()]
    if shared:
        sections.insert(0, f"Shared flags:\n\n{table(['flag', 'meaning'], shared)}")
    return "\n".join(sections)


def flag_table(name: str) -> str:
    """Return the flags of one command, or those of the whole command that are not settings."""
    return _flags(command.commands[name] if name else command, [])


def list_options(it: click.Command) -> list[click.Option]:
    """Return all flags of a command that are not hidden, with `--help`."""
    options = [each for each in it.get_params(_context(it)) if isinstance(each, click.Option)]
    return [each for each in options if not each.hidden]


def format_row(option: click.Option) -> list[str]:
    """Return the cell with the names of a flag, and the cell with its help."""
    flags = f"{code(*_names(option))} {_value(option)}".strip().replace("|", "\\|")
    default = f" (default: {option.default})" if option.show_default else ""
    return [flags, f"{(option.help or '').rstrip('.')}{default}."]


def _section(name: str, it: click.Command, shared: list[list[str]]) -> str:
    usage = " ".join(["graphile-worker", name, *it.collect_usage_pieces(_context(it))])
    purpose, _, examples = " ".join((it.help or "").split()).partition(" Example: ")
    lines = [usage, *(examples.split(" Example: ") if examples else [])]
    block = "\n".join(["```text", *lines, "```"])
    section = f"### `graphile-worker {name}`\n\n{purpose}\n\n{block}\n"
    return f"{section}\n{flags}" if (flags := _flags(it, shared)) else section


def _flags(it: click.Command, shared: list[list[str]]) -> str:
    """Return the table of a command, without the flags that all commands with a connection have."""
    rows = _rows(it, shared)
    return table(["flag", "meaning"], rows) if rows else ""


def _rows(it: click.Command, shared: list[list[str]]) -> list[list[str]]:
    rows = _own_rows(it)
    if it is command:
        return rows
    above = [row for row in rows if row in shared]
    rows = [row for row in rows if row not in shared]
    if above:
        # The names without the placeholders of their values.
        names = [name for row in above for name in re.findall(r"`(.+?)`", row[0])]
        rows.append([code(*names), "Shared flags."])
    return [*rows, *_settings_row(it)]


def _own_rows(it: click.Command) -> list[list[str]]:
    """Return the rows of the flags that are not settings."""
    options = list_options(it)
    if it is command:
        return [format_row(each) for each in options if not _is_setting(each)]
    return [format_row(each) for each in options if each.expose_value]


def _settings_row(it: click.Command) -> list[list[str]]:
    """Return the row of the flags that the section on flags describes."""
    options = [each for each in list_options(it) if not each.expose_value]
    if len(options) > len(SETTINGS):
        # Every setting: the text of the page names them.
        options = options[-1:]
    names = [name for each in options for name in _names(each)]
    if not {*CONNECTION_FLAGS} <= {*names}:
        return [[code(*names), "See [Flags](#flags)."]]
    further = [name for name in names if name not in CONNECTION_FLAGS]
    return [[code(*further), "See [Flags](#flags)."]] if further else []


def _is_setting(option: click.Option) -> bool:
    return option.name == "config" or (option.name or "") in SETTING_ARGUMENTS


def _names(option: click.Option) -> list[str]:
    return [*option.opts, *option.secondary_opts]


def _value(option: click.Option) -> str:
    """Return the placeholder of its value, if it has one."""
    if option.is_flag:
        return ""
    if option.metavar:
        return option.metavar
    if isinstance(option.type, click.Choice):
        return "|".join(option.type.choices)
    return "NUMBER" if "int" in option.type.name else option.type.name.upper()


def _context(it: click.Command) -> click.Context:
    return click.Context(it, help_option_names=["-h", "--help"])


SETTING_ARGUMENTS = {name.replace(".", "_") for name in SETTINGS}
COMMAND_FLAGS = {each.opts[-1]: each for each in list_options(command)}
