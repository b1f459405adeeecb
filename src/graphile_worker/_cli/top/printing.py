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

from graphile_worker._cli.top.render import Frame, render_all
from graphile_worker._cli.top.text import render_ansi, render_plain
from graphile_worker._cli.top.view import View
from graphile_worker._sql.identifiers import Schemas
from graphile_worker.ops.alerts import assess_health, find_alerts
from graphile_worker.ops.states import JobState
from graphile_worker.ops.trends import SnapshotHistory

# Where nobody says how wide it is.
DEFAULT_COLUMNS = 120


def is_color_enabled() -> bool:
    """Does whoever reads standard output want colours?"""
    is_dumb = os.environ.get("TERM", "dumb") == "dumb"
    return sys.stdout.isatty() and not is_dumb and not os.environ.get("NO_COLOR")


def print_screen(history: SnapshotHistory, schemas: Schemas, interval_seconds: float) -> None:
    columns = shutil.get_terminal_size((DEFAULT_COLUMNS, 24)).columns
    frame = Frame(
        history=history,
        alerts=find_alerts(history, schemas),
        schemas=schemas,
        view=View(),
        columns=columns,
        rows=10_000,
        interval_seconds=interval_seconds,
    )
    coloured = is_color_enabled()
    for line in render_all(frame):
        click.echo(render_ansi(line, is_color_enabled=True) if coloured else render_plain(line))


def print_json_line(history: SnapshotHistory, schemas: Schemas) -> None:
    """One line of JSON."""
    click.echo(json.dumps(build_json_object(history, schemas)))


def build_json_object(history: SnapshotHistory, schemas: Schemas) -> dict[str, Any]:
    seen, found = history.last, find_alerts(history, schemas)
    return {
        "now": seen.now.isoformat(),
        "took": seen.duration,
        "schema": schemas.shared,
        "verdict": assess_health(found).value,
        "attention": _to_json(found),
        "totals": {state.value: seen.count(state) for state in JobState},
        "oldest_ready": _to_json(seen.oldest_ready),
        "rates": _to_json(history.rates),
        "seconds_until_drained": _to_json(history.seconds_until_drained),
        "tasks": _to_json(seen.tasks),
        "locked": _to_json(seen.locked),
        "queues": _to_json(seen.queues),
        "workers": _to_json(seen.pools),
        "server": _to_json(seen.server),
    }


def _to_json(value: Any) -> Any:
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
            return {str(_to_json(key)): _to_json(each) for key, each in value.items()}
        case Iterable():
            return [_to_json(each) for each in value]
    assert is_dataclass(value)
    return {each.name: _to_json(getattr(value, each.name)) for each in fields(value)}
