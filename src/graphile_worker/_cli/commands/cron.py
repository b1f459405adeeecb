"""`graphile-worker cron`: check a crontab, see when its items run next, run one now."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import psycopg

from graphile_worker._cli.printing import pluralize
from graphile_worker._cli.settings.flags import current_settings, setting_flags
from graphile_worker._cli.settings.layers import Settings
from graphile_worker._cli.settings.resolve import (
    DEFAULT_CRONTAB,
    open_client,
    resolve_app,
    resolve_crontab,
)
from graphile_worker._discovery.discovery import load_crontab, resolve_cron_items
from graphile_worker._sql.queries.cron import KnownCrontab
from graphile_worker._support.error_format import format_error_line, format_one_line, make_printable
from graphile_worker.crontab import ParsedCronItem
from graphile_worker.errors import ConfigurationError, SchemaMissing
from graphile_worker.tasks import TaskRouter

source_flags = setting_flags("app", "crontab", "connection", "schema")


@click.group()
def cron() -> None:
    """Recurring tasks: check a crontab, see what runs next, run an item now."""


@cron.command()
@click.argument("file", required=False)
@setting_flags("app", "crontab")
def check(file: str | None) -> None:
    """Read a crontab, or all items of a worker, and say what is wrong."""
    if file is None:
        source, items = _load_items_to_check()
    else:
        # Only read, and nothing is done that it says: any file may be checked.
        source, items = file, load_crontab(Path(file), allow_unsafe=True)
    click.echo(f"{source}: {pluralize(len(items), 'item')}, nothing wrong")


@cron.command(name="next")
@click.option("--count", type=click.IntRange(min=1), default=3, help="Runs of each (default: 3).")
@source_flags
def next_runs(count: int) -> None:
    """Say when each item runs next, and when it last did."""
    settings, app = _load_sources()
    items = _load_items(settings, app)
    known = _load_known_crontabs(settings)
    now = datetime.now(UTC)
    for item in items:
        click.echo("\n".join(map(make_printable, _format_item(item, known, now, count))))


@cron.command()
@click.argument("identifier")
@source_flags
def run(identifier: str) -> None:
    """Add the job of one item now; when it is due it runs as well."""
    settings, app = _load_sources()
    items = {item.identifier: item for item in _load_items(settings, app)}
    if identifier not in items:
        names = ", ".join(items) or "none"
        raise ConfigurationError(f"there is no cron item {identifier!r}; there are: {names}")
    spec = replace(items[identifier].spec_at(datetime.now(UTC)), run_at=None)
    with open_client(settings) as client:
        (job,) = client.add_jobs([spec])
    click.echo(f"added job {job.id} ({make_printable(job.task_identifier)})")


def _load_items_to_check() -> tuple[str, list[ParsedCronItem]]:
    """What a worker would have, of its app and of its crontab; first where that is from."""
    settings, app = _load_sources()
    path = resolve_crontab(settings)
    if app is None:
        path = path or DEFAULT_CRONTAB
        return str(path), load_crontab(path)
    items = resolve_cron_items(app, crontab_file=path)
    names = [settings.value("app"), *([] if path is None else [str(path)])]
    return " and ".join(names), [] if items is None else items()


def _load_sources() -> tuple[Settings, TaskRouter[Any] | None]:
    """The settings, and the app that they name and that may say more."""
    settings = current_settings()
    app = resolve_app(settings)
    return settings.with_app(app), app


def _load_items(settings: Settings, app: TaskRouter[Any] | None) -> list[ParsedCronItem]:
    items = resolve_cron_items(
        app,
        crontab_file=resolve_crontab(settings),
        allow_unsafe=bool(settings.value("allow_unsafe_tasks")),
    )
    if items is None:
        raise ConfigurationError("no cron items: write ./crontab, or name one, or name your app")
    return items()


def _load_known_crontabs(settings: Settings) -> Mapping[str, KnownCrontab]:
    try:
        with open_client(settings) as client:
            return client.list_known_crontabs()
    except (ConfigurationError, SchemaMissing, psycopg.OperationalError) as error:
        line = format_one_line(str(error))
        click.echo(f"graphile-worker: when they last ran is not known: {line}", err=True)
        return {}


def _format_item(
    item: ParsedCronItem, known: Mapping[str, KnownCrontab], now: datetime, count: int
) -> Iterator[str]:
    yield (
        f"{item.identifier} (task {item.task}), last ran "
        f"{_format_last_run(known.get(item.identifier), now)}"
    )
    try:
        runs = list(itertools.islice(item.upcoming(now), count))
    except Exception as error:
        # A function of the user's.
        yield f"  cannot be said: {format_error_line(error)}"
        return
    for run in runs:
        local = run.astimezone(item.zone)
        yield (
            f"  {run:%Y-%m-%d %H:%M} UTC   {local:%a %Y-%m-%d %H:%M %Z}   in "
            f"{_format_duration(run - now)}"
        )
    if not runs:
        yield "  never"


def _format_last_run(known: KnownCrontab | None, now: datetime) -> str:
    if known is None or known.last_execution is None:
        return "never"
    return f"{_format_duration(now - known.last_execution)} ago"


def _format_duration(span: timedelta) -> str:
    """Two units are enough to read."""
    minutes = max(0, round(span.total_seconds() / 60))
    days, hours, minutes = minutes // 1440, minutes // 60 % 24, minutes % 60
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
