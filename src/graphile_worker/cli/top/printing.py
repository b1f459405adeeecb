"""Printing: one look on paper, or as JSON."""

import json
import math
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Any

import click

from graphile_worker.administration.attention import attention, verdict_of
from graphile_worker.administration.states import State
from graphile_worker.administration.watch import Watch
from graphile_worker.cli.top.render import Frame, render_all
from graphile_worker.cli.top.text import paint, unpainted
from graphile_worker.cli.top.view import View
from graphile_worker.sql.identifiers import Schemas

# Where nobody says how wide it is.
COLUMNS = 120


def is_coloured() -> bool:
    """Does whoever reads standard output want colours?"""
    is_dumb = os.environ.get("TERM", "dumb") == "dumb"
    return sys.stdout.isatty() and not is_dumb and not os.environ.get("NO_COLOR")


def print_screen(watch: Watch, schemas: Schemas, every: float) -> None:
    columns = shutil.get_terminal_size((COLUMNS, 24)).columns
    frame = Frame(
        watch=watch,
        attention=attention(watch, schemas),
        schemas=schemas,
        view=View(),
        columns=columns,
        rows=10_000,
        every=every,
    )
    coloured = is_coloured()
    for line in render_all(frame):
        click.echo(paint(line, coloured=True) if coloured else unpainted(line))


def print_object(watch: Watch, schemas: Schemas) -> None:
    """One line of JSON."""
    click.echo(json.dumps(as_object(watch, schemas)))


def as_object(watch: Watch, schemas: Schemas) -> dict[str, Any]:
    seen, found = watch.last, attention(watch, schemas)
    return {
        "now": seen.now.isoformat(),
        "took": seen.took,
        "schema": schemas.shared,
        "verdict": verdict_of(found).value,
        "attention": _plain(found),
        "totals": {state.value: seen.count(state) for state in State},
        "oldest_ready": _plain(seen.oldest_ready),
        "rates": _plain(watch.rates),
        "drains_in": _plain(watch.drains_in),
        "tasks": _plain(seen.tasks),
        "locked": _plain(seen.locked),
        "queues": _plain(seen.queues),
        "workers": _plain(seen.pools),
        "server": _plain(seen.server),
    }


def _plain(value: Any) -> Any:
    """The same in words of JSON; what no number can say is null."""
    match value:
        case Enum():
            return value.value
        case datetime():
            return value.isoformat()
        case float():
            return value if math.isfinite(value) else None
        case str() | int() | None:
            return value
        case Mapping():
            return {str(_plain(key)): _plain(each) for key, each in value.items()}
        case Iterable():
            return [_plain(each) for each in value]
    assert is_dataclass(value)
    return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
