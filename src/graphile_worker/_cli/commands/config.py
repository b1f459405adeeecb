"""`graphile-worker config`: print every setting and its source."""

import json
import os
from collections.abc import Iterator
from typing import Any

import click

from graphile_worker._cli.arguments import json_option
from graphile_worker._cli.event_loop import choose_loop_factory
from graphile_worker._cli.settings.flags import GroupedHelp, current_settings, setting_flags
from graphile_worker._cli.settings.layers import Settings, SettingSource, SettingValue
from graphile_worker._cli.settings.resolve import (
    resolve_app,
    resolve_crontab,
    resolve_tasks_folder,
)
from graphile_worker._db.conninfo import resolve_conninfo
from graphile_worker._settings.definitions import SETTINGS, Setting, SettingKind, iter_settings
from graphile_worker._settings.values import format_value, to_json_value
from graphile_worker.tasks.selection import select_tasks

SettingRow = tuple[Setting, SettingValue]


@click.command(cls=GroupedHelp)
@json_option
@setting_flags(*SETTINGS)
def config(as_json: bool) -> None:
    """Print every setting and its source."""
    settings = current_settings()
    app = resolve_app(settings)
    settings = settings.with_app(app)
    # Errors that a worker raises before it connects to the database.
    choose_loop_factory(settings.command_options.loop)
    options = settings.worker_options
    if app is not None:
        select_tasks(app.tasks(), options.only_tasks, options.except_tasks)
    if (connection := settings.value("connection")) is not None:
        resolve_conninfo(connection)
    rows = list(iter_effective_settings(settings))
    click.echo(_format_json(rows) if as_json else _format_table(rows))


def iter_effective_settings(settings: Settings) -> Iterator[SettingRow]:
    """Yield each setting with its value, without the settings of groups that are off."""
    for root in (settings.command_options, settings.worker_options):
        for setting in iter_settings(type(root)):
            *groups, value = _walk(root, setting.name)
            if None in groups:
                continue
            if setting.kind is SettingKind.GROUP:
                value = value is not None
            entry = settings.values.get(setting.name)
            yield setting, entry or _resolve_default(setting, value, settings)


def _walk(options: object, name: str) -> list[Any]:
    """Return the options, the groups around a setting and its value."""
    path = [options]
    for part in name.split("."):
        path.append(None if path[-1] is None else getattr(path[-1], part))
    return path


def _resolve_default(setting: Setting, value: Any, settings: Settings) -> SettingValue:
    if setting.name == "connection" and (name := os.environ.get("PGDATABASE")):
        return SettingValue(name, SettingSource.ENVIRONMENT, "PGDATABASE")
    if setting.name == "tasks":
        value = resolve_tasks_folder(settings)
    if setting.name == "crontab":
        value = resolve_crontab(settings)
    return SettingValue(value, SettingSource.DEFAULT, "default")


def _format_table(rows: list[SettingRow]) -> str:
    cells = [(each.name, format_value(each, entry.value), entry.where) for each, entry in rows]
    names, values = (max(len(row[column]) for row in cells) for column in (0, 1))
    return "\n".join(f"{name:<{names}}  {value:<{values}}  {where}" for name, value, where in cells)


def _format_json(rows: list[SettingRow]) -> str:
    values = {
        setting.name: {
            "value": to_json_value(setting, entry.value),
            "source": entry.source,
            "where": None if entry.source is SettingSource.DEFAULT else entry.where,
        }
        for setting, entry in rows
    }
    return json.dumps(values, indent=2)
