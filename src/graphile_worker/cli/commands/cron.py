"""`graphile-worker cron`: check a crontab, see when its items run next, run one now."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import psycopg

from graphile_worker.cli.flags import current_settings, with_flags_of
from graphile_worker.cli.printing import count_of
from graphile_worker.cli.settings import Settings
from graphile_worker.cli.sources import CRONTAB, app_of, client_of, crontab_file
from graphile_worker.crontab import ParsedCronItem
from graphile_worker.error_text import error_line, one_line, printable
from graphile_worker.errors import ConfigurationError, SchemaMissing
from graphile_worker.loading import cron_items_of, load_crontab
from graphile_worker.sql.cron import KnownCrontab
from graphile_worker.tasks import Tasks

from_source = with_flags_of("app", "crontab", "connection", "schema")


@click.group()
def cron() -> None:
    """Recurring tasks: check a crontab, see what runs next, run an item now."""


@cron.command()
@click.argument("file", required=False)
@with_flags_of("app", "crontab")
def check(file: str | None) -> None:
    """Read a crontab, or all items of a worker, and say what is wrong."""
    if file is None:
        source, items = _checked_items()
    else:
        # Only read, and nothing is done that it says: any file may be checked.
        source, items = file, load_crontab(Path(file), allow_unsafe=True)
    click.echo(f"{source}: {count_of(len(items), 'item')}, nothing wrong")


@cron.command(name="next")
@click.option("--count", type=click.IntRange(min=1), default=3, help="Runs of each (default: 3).")
@from_source
def next_runs(count: int) -> None:
    """Say when each item runs next, and when it last did."""
    settings, app = _sources()
    items = _items(settings, app)
    known = _known(settings)
    now = datetime.now(UTC)
    for item in items:
        click.echo("\n".join(map(printable, _lines(item, known, now, count))))


@cron.command()
@click.argument("identifier")
@from_source
def run(identifier: str) -> None:
    """Add the job of one item now; when it is due it runs as well."""
    settings, app = _sources()
    items = {item.identifier: item for item in _items(settings, app)}
    if identifier not in items:
        names = ", ".join(items) or "none"
        raise ConfigurationError(f"there is no cron item {identifier!r}; there are: {names}")
    spec = replace(items[identifier].spec_at(datetime.now(UTC)), run_at=None)
    with client_of(settings) as client:
        (job,) = client.add_jobs([spec])
    click.echo(f"added job {job.id} ({printable(job.task_identifier)})")


def _checked_items() -> tuple[str, list[ParsedCronItem]]:
    """What a worker would have, of its app and of its crontab; first where that is from."""
    settings, app = _sources()
    path = crontab_file(settings)
    if app is None:
        path = path or CRONTAB
        return str(path), load_crontab(path)
    items = cron_items_of(app, crontab_file=path)
    names = [settings.value("app"), *([] if path is None else [str(path)])]
    return " and ".join(names), [] if items is None else items()


def _sources() -> tuple[Settings, Tasks[Any] | None]:
    """The settings, and the app that they name and that may say more."""
    settings = current_settings()
    app = app_of(settings)
    return settings.with_app(app), app


def _items(settings: Settings, app: Tasks[Any] | None) -> list[ParsedCronItem]:
    items = cron_items_of(
        app,
        crontab_file=crontab_file(settings),
        allow_unsafe=bool(settings.value("allow_unsafe_tasks")),
    )
    if items is None:
        raise ConfigurationError("no cron items: write ./crontab, or name one, or name your app")
    return items()


def _known(settings: Settings) -> Mapping[str, KnownCrontab]:
    try:
        with client_of(settings) as client:
            return client.known_crontabs()
    except (ConfigurationError, SchemaMissing, psycopg.OperationalError) as error:
        line = one_line(str(error))
        click.echo(f"graphile-worker: when they last ran is not known: {line}", err=True)
        return {}


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
