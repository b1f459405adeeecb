"""`graphile-worker config`: every setting in force, and where it came from."""

import json
import os
from collections.abc import Iterator
from typing import Any

import click

from graphile_worker.cli.catalogue import SETTINGS, Kind, Setting, settings_of
from graphile_worker.cli.commands.run import check_command
from graphile_worker.cli.flags import current_settings, with_flags_of
from graphile_worker.cli.loops import loop_factory
from graphile_worker.cli.settings import Given, Settings, Source
from graphile_worker.cli.sources import app_of, crontab_file, tasks_folder
from graphile_worker.cli.values import to_plain, to_text
from graphile_worker.db.conninfo import resolve

Row = tuple[Setting, Given]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_flags_of(*SETTINGS)
def config(as_json: bool) -> None:
    """Print every setting in force, and where it came from; needs no database."""
    settings = current_settings()
    settings = settings.with_app(app_of(settings))
    _check(settings)
    rows = list(in_force(settings))
    click.echo(_json(rows) if as_json else _aligned(rows))


def in_force(settings: Settings) -> Iterator[Row]:
    """Each setting with its value, given or not; what a part holds that is off is not in force."""
    for root in (settings.command, settings.options):
        for setting in settings_of(type(root)):
            parts, value = _reached(root, setting)
            if None not in parts:
                yield setting, settings.given.get(setting.name) or _left(setting, value, settings)


def _check(settings: Settings) -> None:
    """Refuse what a worker would refuse before it asks the database."""
    check_command(settings.command)
    loop_factory(settings.command.loop)
    if (connection := settings.value("connection")) is not None:
        resolve(connection)


def _reached(options: object, setting: Setting) -> tuple[list[Any], Any]:
    """The parts that hold a setting, and its value."""
    found = [options]
    for word in setting.name.split("."):
        found.append(None if found[-1] is None else getattr(found[-1], word))
    *parts, value = found
    return parts, value is not None if setting.kind is Kind.PART else value


def _left(setting: Setting, value: Any, settings: Settings) -> Given:
    """What holds for a setting that was not given."""
    if setting.name == "connection" and (name := os.environ.get("PGDATABASE")):
        return Given(name, Source.ENVIRONMENT, "PGDATABASE")
    if setting.name == "tasks":
        value = tasks_folder(settings)
    if setting.name == "crontab":
        value = crontab_file(settings)
    return Given(value, Source.DEFAULT, "default")


def _aligned(rows: list[Row]) -> str:
    cells = [(each.name, to_text(each, given.value), given.where) for each, given in rows]
    names, values = (max(len(row[column]) for row in cells) for column in (0, 1))
    return "\n".join(f"{name:<{names}}  {value:<{values}}  {where}" for name, value, where in cells)


def _json(rows: list[Row]) -> str:
    found = {
        setting.name: {
            "value": to_plain(setting, given.value),
            "source": given.source,
            "where": None if given.source is Source.DEFAULT else given.where,
        }
        for setting, given in rows
    }
    return json.dumps(found, indent=2)
