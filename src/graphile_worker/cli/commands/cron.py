"""`graphile-worker cron`: check a crontab, see when its items run next, run one now."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import psycopg

from graphile_worker.cli.settings import current_settings, database_options
from graphile_worker.cli.sources import CRONTAB, client_for, crontab_file
from graphile_worker.crontab import ParsedCronItem
from graphile_worker.error_text import error_line
from graphile_worker.errors import ConfigurationError, SchemaMissing
from graphile_worker.loading import cron_items_of, load_app, load_crontab
from graphile_worker.sql.cron import KnownCrontab
from graphile_worker.sync import Client

source_options = (
    click.option(
        "--app",
        "app_path",
        envvar="GRAPHILE_WORKER_APP",
        metavar="MODULE:ATTRIBUTE",
        help="Your app, for the items in its code.",
    ),
    click.option("--crontab", metavar="PATH", help="The crontab (default: ./crontab)."),
)


def from_source(function: Any) -> Any:
    """Add what says where the items are."""
    for option in source_options:
        function = option(function)
    return function


@click.group()
def cron() -> None:
    """Recurring tasks: check a crontab, see what runs next, run an item now."""


@cron.command()
@click.argument("file", default=str(CRONTAB))
def check(file: str) -> None:
    """Read a crontab and say all that is wrong with it."""
    count = len(load_crontab(Path(file)))
    click.echo(f"{file}: {count} {'item' if count == 1 else 'items'}, nothing wrong")


@cron.command(name="next")
@click.option("--count", type=click.IntRange(min=1), default=3, help="Runs of each (default: 3).")
@from_source
@database_options
def next_runs(count: int, app_path: str | None, crontab: str | None) -> None:
    """Say when each item runs next, and when it last did."""
    items = _items(app_path, crontab)
    known = _known(app_path)
    now = datetime.now(UTC)
    for item in items:
        click.echo("\n".join(_lines(item, known, now, count)))


@cron.command()
@click.argument("identifier")
@from_source
@database_options
def run(identifier: str, app_path: str | None, crontab: str | None) -> None:
    """Add the job of one item now; when it is due it runs as well."""
    items = {item.identifier: item for item in _items(app_path, crontab)}
    if identifier not in items:
        names = ", ".join(items) or "none"
        raise ConfigurationError(f"there is no cron item {identifier!r}; there are: {names}")
    spec = replace(items[identifier].spec_at(datetime.now(UTC)), run_at=None)
    with _client(app_path) as client:
        (job,) = client.add_jobs([spec])
    click.echo(f"added job {job.id} ({job.task_identifier})")


def _items(app_path: str | None, crontab: str | None) -> list[ParsedCronItem]:
    app = None if app_path is None else load_app(app_path)
    items = cron_items_of(app, crontab_file=crontab_file(crontab))
    if items is None:
        raise ConfigurationError("no cron items: write ./crontab, or name one, or name your app")
    return items()


def _known(app_path: str | None) -> Mapping[str, KnownCrontab]:
    try:
        with _client(app_path) as client:
            return client.known_crontabs()
    except (ConfigurationError, SchemaMissing, psycopg.OperationalError) as error:
        line = " ".join(str(error).split())
        click.echo(f"graphile-worker: when they last ran is not known: {line}", err=True)
        return {}


def _client(app_path: str | None) -> Client:
    settings = current_settings()
    return client_for(app_path, settings.connection, settings.given_schema)


def _lines(
    item: ParsedCronItem, known: Mapping[str, KnownCrontab], now: datetime, count: int
) -> Iterator[str]:
    yield f"{item.identifier} (task {item.task}), last ran {_last(known.get(item.identifier), now)}"
    try:
        runs = list(itertools.islice(item.upcoming(now), count))
    except Exception as error:
        # A function of the user's.
        yield f"  cannot be said: {error_line(error)}"
        return
    for run in runs:
        local = run.astimezone(item.zone)
        yield f"  {run:%Y-%m-%d %H:%M} UTC   {local:%a %Y-%m-%d %H:%M %Z}   in {_span(run - now)}"
    if not runs:
        yield "  never"


def _last(known: KnownCrontab | None, now: datetime) -> str:
    if known is None or known.last_execution is None:
        return "never"
    return f"{_span(now - known.last_execution)} ago"


def _span(span: timedelta) -> str:
    """Two units are enough to read."""
    minutes = max(0, round(span.total_seconds() / 60))
    days, hours, minutes = minutes // 1440, minutes // 60 % 24, minutes % 60
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
