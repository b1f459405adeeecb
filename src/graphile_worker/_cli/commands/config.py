"""`graphile-worker config`: every setting in force, and where it came from."""

import json
import os
from collections.abc import Iterator
from typing import Any

import click

from graphile_worker._cli.commands.run import check_command_options
from graphile_worker._cli.event_loop import choose_loop_factory
from graphile_worker._cli.settings.definitions import SETTINGS, Setting, SettingKind, iter_settings
from graphile_worker._cli.settings.flags import current_settings, setting_flags
from graphile_worker._cli.settings.layers import Settings, SettingSource, SettingValue
from graphile_worker._cli.settings.resolve import resolve_app, resolve_crontab, resolve_tasks_folder
from graphile_worker._cli.settings.values import format_value, to_json_value
from graphile_worker._db.conninfo import resolve_conninfo

SettingRow = tuple[Setting, SettingValue]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@setting_flags(*SETTINGS)
def config(as_json: bool) -> None:
    """Print every setting in force, and where it came from; needs no database."""
    settings = current_settings()
    settings = settings.with_app(resolve_app(settings))
    _validate(settings)
    rows = list(iter_effective_settings(settings))
    click.echo(_format_json(rows) if as_json else _format_table(rows))


def iter_effective_settings(settings: Settings) -> Iterator[SettingRow]:
    """Each setting with its value, given or not; what a part holds that is off is not in force."""
    for root in (settings.command_options, settings.worker_options):
        for setting in iter_settings(type(root)):
            parts, value = _resolve_value(root, setting)
            if None not in parts:
                yield (
                    setting,
                    settings.values.get(setting.name) or _resolve_default(setting, value, settings),
                )


def _validate(settings: Settings) -> None:
    """Refuse what a worker would refuse before it asks the database."""
    check_command_options(settings.command_options)
    choose_loop_factory(settings.command_options.loop)
    if (connection := settings.value("connection")) is not None:
        resolve_conninfo(connection)


def _resolve_value(options: object, setting: Setting) -> tuple[list[Any], Any]:
    """The parts that hold a setting, and its value."""
    found = [options]
    for word in setting.name.split("."):
        found.append(None if found[-1] is None else getattr(found[-1], word))
    *parts, value = found
    return parts, value is not None if setting.kind is SettingKind.GROUP else value


def _resolve_default(setting: Setting, value: Any, settings: Settings) -> SettingValue:
    """What holds for a setting that was not given."""
    if setting.name == "connection" and (name := os.environ.get("PGDATABASE")):
        return SettingValue(name, SettingSource.ENVIRONMENT, "PGDATABASE")
    if setting.name == "tasks":
        value = resolve_tasks_folder(settings)
    if setting.name == "crontab":
        value = resolve_crontab(settings)
    return SettingValue(value, SettingSource.DEFAULT, "default")


def _format_table(rows: list[SettingRow]) -> str:
    cells = [(each.name, format_value(each, given.value), given.where) for each, given in rows]
    names, values = (max(len(row[column]) for row in cells) for column in (0, 1))
    return "\n".join(f"{name:<{names}}  {value:<{values}}  {where}" for name, value, where in cells)


def _format_json(rows: list[SettingRow]) -> str:
    found = {
        setting.name: {
            "value": to_json_value(setting, given.value),
            "source": given.source,
            "where": None if given.source is SettingSource.DEFAULT else given.where,
        }
        for setting, given in rows
    }
    return json.dumps(found, indent=2)
