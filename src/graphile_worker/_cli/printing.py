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

from graphile_worker._cli.top.text import clip, display_width, fit, sanitize
from graphile_worker._support.logs import make_printable

EMPTY_CELL = "-"


def print_json(value: Any) -> None:
    """One JSON object: times in ISO 8601 with their zone, lengths of time in seconds."""
    click.echo(json.dumps(to_json(value), indent=2))


def to_json(value: Any) -> Any:
    """The same in words of JSON."""
    match value:
        case Enum():
            return value.value
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Mapping():
            return {str(key): to_json(each) for key, each in value.items()}
        case str() | int() | float() | None:
            return value
        case Iterable():
            return [to_json(each) for each in value]
    if is_dataclass(value):
        return {each.name: to_json(getattr(value, each.name)) for each in fields(value)}
    raise TypeError(f"no JSON for {type(value).__name__}")


def print_table(
    headers: Sequence[str], rows: Sequence[Sequence[Any]], right_aligned: str = ""
) -> None:
    """Rows under heads; columns whose head is one of the words of `right` end alike.

    On a terminal, a line is cut where the terminal ends.
    """
    # Tabs and wide letters take more cells than one.
    cells = [[sanitize(format_cell(cell)) for cell in row] for row in rows]
    widths = [max(map(display_width, column)) for column in zip(headers, *cells, strict=True)]
    if headers[-1] not in right_aligned.split():
        widths[-1] = 0
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for row in (headers, *cells):
        aligned = [
            fit(cell, max(size, display_width(cell)), align_right=head in right_aligned.split())
            for head, cell, size in zip(headers, row, widths, strict=True)
        ]
        line = "  ".join(aligned).rstrip()
        click.echo(line if columns is None else clip(line, columns))


def print_fields(values: Mapping[str, Any]) -> None:
    """A name and its value in each line; a value of several lines stands below its name."""
    longest = max(map(len, values))
    for name, value in values.items():
        lines = str(EMPTY_CELL if value is None or value == "" else value).splitlines() or [
            EMPTY_CELL
        ]
        if len(lines) == 1:
            click.echo(f"{name:<{longest}}  {make_printable(lines[0])}")
        else:
            click.echo("\n".join([name, *(f"  {make_printable(line)}" for line in lines)]))


def format_cell(value: Any) -> str:
    return EMPTY_CELL if value is None or value == "" else make_printable(value)


def format_time(moment: datetime) -> str:
    """A moment by the clock of this machine, with its zone."""
    try:
        return f"{moment.astimezone():%Y-%m-%d %H:%M:%S %Z}"
    except OverflowError:
        # At the end of the calendar.
        return f"{moment:%Y-%m-%d %H:%M:%S %Z}"


def pluralize(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
