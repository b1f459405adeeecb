"""Write the subcommands and their flags of docs/reference/command.md from click."""

import click

from graphile_worker._cli.main import command
from graphile_worker._cli.settings.definitions import SETTINGS
from tools.reference.tables import code, table


def subcommand_sections(group_name: str) -> str:
    """Return a section for each subcommand of a group: its purpose, its usage and its flags."""
    group = command.commands[group_name]
    assert isinstance(group, click.Group)
    return "\n".join(_section(f"{group_name} {name}", it) for name, it in group.commands.items())


def flag_table(name: str) -> str:
    """Return the flags of one command, or those of the whole command that are not settings."""
    return table(["flag", "meaning"], _rows(command.commands[name] if name else command))


def list_options(it: click.Command) -> list[click.Option]:
    """Return all flags of a command that are not hidden, with `--help`."""
    options = [each for each in it.get_params(_context(it)) if isinstance(each, click.Option)]
    return [each for each in options if not each.hidden]


def format_row(option: click.Option) -> list[str]:
    """Return the cell with the names of a flag, and the cell with its help."""
    flags = f"{code(*_names(option))} {_value(option)}".strip().replace("|", "\\|")
    default = f" (default: {option.default})" if option.show_default else ""
    return [flags, f"{(option.help or '').rstrip('.')}{default}."]


def _section(name: str, it: click.Command) -> str:
    usage = " ".join(["graphile-worker", name, *it.collect_usage_pieces(_context(it))])
    purpose = " ".join((it.help or "").split())
    flags = table(["flag", "meaning"], _rows(it))
    return f"### `graphile-worker {name}`\n\n{purpose}\n\n```text\n{usage}\n```\n\n{flags}"


def _rows(it: click.Command) -> list[list[str]]:
    options = list_options(it)
    if it is command:
        return [format_row(each) for each in options if not _is_setting(each)]
    shared = [each for each in options if not each.expose_value]
    own = [format_row(each) for each in options if each not in shared]
    if len(shared) > len(SETTINGS):
        # Every setting: the text of the page names them.
        shared = shared[-1:]
    names = [name for each in shared for name in _names(each)]
    return [*own, [code(*names), "See [Flags](#flags)."]]


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
