"""The subcommands of a command in docs/reference/command.md, from click."""

import click

from graphile_worker._cli.main import command
from tools.reference.tables import code, table

# Told once for all: which queue, and help.
EVERYWHERE = ("--config", "--connection", "--schema", "--ext-schema", "--help")


def subcommands(name: str) -> str:
    """A heading, what it does, its line and its flags for each subcommand."""
    group = command.commands[name]
    assert isinstance(group, click.Group)
    return "\n".join(_section(f"{name} {each}", of) for each, of in group.commands.items())


def _section(name: str, of: click.Command) -> str:
    context = _context(of)
    line = " ".join(["graphile-worker", name, *of.collect_usage_pieces(context)])
    said = " ".join((of.help or "").split())
    flags = table(["flag", ""], _rows(options_of(of)))
    return f"### `graphile-worker {name}`\n\n{said}\n\n```text\n{line}\n```\n\n{flags}"


def _rows(options: list[click.Option]) -> list[list[str]]:
    own = [each for each in options if each.opts[-1] not in EVERYWHERE]
    common = [flag for each in options if each not in own for flag in each.opts]
    return [*map(_row, own), [code(*common), "as above"]]


def _row(option: click.Option) -> list[str]:
    flags = code(*option.opts, *option.secondary_opts)
    said = (option.help or "").rstrip(".")
    default = f" (default: {option.default})" if option.show_default else ""
    return [f"{flags} {_value(option)}".strip().replace("|", "\\|"), f"{said}{default}."]


def _value(option: click.Option) -> str:
    """What stands for its value, if it has one."""
    if option.is_flag:
        return ""
    if option.metavar:
        return option.metavar
    return "NUMBER" if "int" in option.type.name else option.type.name.upper()


def options_of(of: click.Command) -> list[click.Option]:
    """All flags of a command that are shown, help included."""
    options = [each for each in of.get_params(_context(of)) if isinstance(each, click.Option)]
    return [each for each in options if not each.hidden]


def _context(of: click.Command) -> click.Context:
    return click.Context(of, help_option_names=["-h", "--help"])
