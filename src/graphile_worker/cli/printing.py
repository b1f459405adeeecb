"""Printing: tables for people, JSON for programs; what others wrote cannot move a cursor."""

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

import click

from graphile_worker.cli.top.text import clip, fit, harmless, width
from graphile_worker.logs import printable

NOTHING = "-"


def print_json(value: Any) -> None:
    """One JSON object: times in ISO 8601 with their zone, lengths of time in seconds."""
    click.echo(json.dumps(plain(value), indent=2))


def plain(value: Any) -> Any:
    """The same in words of JSON."""
    match value:
        case Enum():
            return value.value
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Mapping():
            return {str(key): plain(each) for key, each in value.items()}
        case str() | int() | float() | None:
            return value
        case Iterable():
            return [plain(each) for each in value]
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    raise TypeError(f"no JSON for {type(value).__name__}")


def print_table(heads: Sequence[str], rows: Sequence[Sequence[Any]], right: str = "") -> None:
    """Rows under heads; columns whose head is one of the words of `right` end alike.

    On a terminal, a line is cut where the terminal ends.
    """
    # Tabs and wide letters take more cells than one.
    cells = [[harmless(shown(cell)) for cell in row] for row in rows]
    widths = [max(map(width, column)) for column in zip(heads, *cells, strict=True)]
    if heads[-1] not in right.split():
        widths[-1] = 0
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for row in (heads, *cells):
        aligned = [
            fit(cell, max(size, width(cell)), right=head in right.split())
            for head, cell, size in zip(heads, row, widths, strict=True)
        ]
        line = "  ".join(aligned).rstrip()
        click.echo(line if columns is None else clip(line, columns))


def print_lines(names: Mapping[str, Any]) -> None:
    """A name and its value in each line; a value of several lines stands below its name."""
    longest = max(map(len, names))
    for name, value in names.items():
        lines = str(NOTHING if value is None or value == "" else value).splitlines() or [NOTHING]
        if len(lines) == 1:
            click.echo(f"{name:<{longest}}  {printable(lines[0])}")
        else:
            click.echo("\n".join([name, *(f"  {printable(line)}" for line in lines)]))


def shown(value: Any) -> str:
    return NOTHING if value is None or value == "" else printable(value)


def clock_time(moment: datetime) -> str:
    """A moment by the clock of this machine, with its zone."""
    try:
        return f"{moment.astimezone():%Y-%m-%d %H:%M:%S %Z}"
    except OverflowError:
        # At the end of the calendar.
        return f"{moment:%Y-%m-%d %H:%M:%S %Z}"


def count_of(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
