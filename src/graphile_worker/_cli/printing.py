"""Print tables and JSON. Control characters of foreign text never reach the terminal."""

import json
import math
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

import click

from graphile_worker._cli.top.text import clip, display_width, fit, sanitize
from graphile_worker._support.error_format import make_printable

EMPTY_CELL = "-"


def print_json(value: Any) -> None:
    """Print one JSON object: times in ISO 8601 with their zone, durations in seconds."""
    click.echo(json.dumps(to_json(value), indent=2))


def to_json(value: Any) -> Any:
    match value:
        case Enum():
            return value.value
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Mapping():
            return {str(key): to_json(each) for key, each in value.items()}
        case float() if not math.isfinite(value):
            return None
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
    """Print rows under headers, cut to the width of a terminal.

    `right_aligned` has the headers of right-aligned columns, separated by spaces.
    """
    # Tabs and wide letters take more than one cell.
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
    """Print each name with its value. The lines of a longer value follow its name, indented."""
    longest = max(map(len, values))
    for name, value in values.items():
        lines = str("" if value is None else value).splitlines() or [EMPTY_CELL]
        if len(lines) == 1:
            click.echo(f"{name:<{longest}}  {make_printable(lines[0])}")
        else:
            click.echo("\n".join([name, *(f"  {make_printable(line)}" for line in lines)]))


def format_cell(value: Any) -> str:
    return EMPTY_CELL if value is None or value == "" else make_printable(value)


def format_time(time: datetime) -> str:
    """Format a time in the time zone of this machine, with the zone."""
    try:
        return f"{time.astimezone():%Y-%m-%d %H:%M:%S %Z}"
    except OverflowError:
        # The time is at the limits of datetime.
        return f"{time:%Y-%m-%d %H:%M:%S %Z}"
