"""`graphile-worker cron`: check a crontab, list the next runs of its items, run one now."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import psycopg

from graphile_worker._cli.arguments import POSITIVE_INT
from graphile_worker._cli.settings.flags import current_settings, setting_flags
from graphile_worker._cli.settings.layers import Settings
from graphile_worker._cli.settings.resolve import (
    DEFAULT_CRONTAB,
    open_client,
    open_database,
    resolve_actor,
    resolve_app,
    resolve_crontab,
)
from graphile_worker._db.database import run_plan_sync
from graphile_worker._discovery.discovery import load_crontab, resolve_cron_items
from graphile_worker._sql.plans.add import plan_add_jobs
from graphile_worker._sql.plans.audit import AuditLabel, plan_audited
from graphile_worker._sql.queries.audit import AuditAction
from graphile_worker._sql.queries.cron import KnownCrontab
from graphile_worker._sql.query import Plan
from graphile_worker._support.durations import format_duration
from graphile_worker._support.error_format import format_error_line, format_one_line, make_printable
from graphile_worker._support.text import pluralize, suggest
from graphile_worker.crontab import ParsedCronItem
from graphile_worker.errors import ConfigurationError, SchemaMissing
from graphile_worker.jobs import Job
from graphile_worker.tasks import TaskRouter

source_flags = setting_flags("app", "crontab", "connection", "schema")
run_flags = setting_flags("app", "crontab", "connection", "schema", "actor")


@click.group()
def cron() -> None:
    """Check, list and run scheduled tasks."""


@cron.command()
@click.argument("file", required=False)
@setting_flags("app", "crontab")
def check(file: str | None) -> None:
    """Check a crontab, or all cron items of a worker, for mistakes."""
    if file is None:
        source, items = _load_items_to_check()
    else:
        # The file is only parsed, so its permissions do not matter.
        source, items = file, load_crontab(Path(file), allow_unsafe=True)
    click.echo(f"{source}: {pluralize(len(items), 'item')}, nothing wrong")


@cron.command(name="next")
@click.option(
    "--count", type=POSITIVE_INT, default=3, help="Number of runs to list per item (default: 3)."
)
@source_flags
def next_runs(count: int) -> None:
    """List the next runs of each item, and its last run."""
    settings, app = _load_sources()
    items = _load_items(settings, app)
    known = _load_known_crontabs(settings)
    now = datetime.now(UTC)
    for item in items:
        click.echo("\n".join(map(make_printable, _format_item(item, known, now, count))))


@cron.command()
@click.argument("identifier")
@run_flags
def run(identifier: str) -> None:
    """Add the job of an item now; its schedule stays the same."""
    settings, app = _load_sources()
    items = {item.identifier: item for item in _load_items(settings, app)}
    if identifier not in items:
        names = ", ".join(items) or "none"
        raise ConfigurationError(
            f"unknown cron item {identifier!r}{suggest(identifier, items)} Known items: {names}"
        )
    spec = replace(items[identifier].spec_at(datetime.now(UTC)), run_at=None)
    label = AuditLabel(
        action=AuditAction.CRON_RUN, actor=resolve_actor(settings), filter=identifier
    )
    with open_database(settings) as database:
        schemas = database.schemas

        def plan_add() -> Plan[list[Job]]:
            return plan_add_jobs([spec], schemas, max_bytes=None, all_or_nothing=False)

        plan = plan_audited(plan_add, lambda jobs: [job.id for job in jobs], schemas, label)
        (job,) = run_plan_sync(database, plan)
    click.echo(f"added job {job.id} ({make_printable(job.task_identifier)})")


def _load_items_to_check() -> tuple[str, list[ParsedCronItem]]:
    """Return the names of the app and the crontab of a worker, and their items."""
    settings, app = _load_sources()
    path, allow_unsafe = resolve_crontab(settings), bool(settings.value("allow_unsafe_tasks"))
    if app is None:
        path = path or DEFAULT_CRONTAB
        return str(path), load_crontab(path, allow_unsafe=allow_unsafe)
    items = resolve_cron_items(app, crontab_file=path, allow_unsafe=allow_unsafe)
    names = [settings.value("app"), *([] if path is None else [str(path)])]
    return " and ".join(names), [] if items is None else items()


def _load_sources() -> tuple[Settings, TaskRouter[Any] | None]:
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
        raise ConfigurationError("no cron items. Write ./crontab, or pass --crontab or --app.")
    return items()


def _load_known_crontabs(settings: Settings) -> Mapping[str, KnownCrontab]:
    try:
        with open_client(settings) as client:
            return client.list_known_crontabs()
    except (ConfigurationError, SchemaMissing, psycopg.OperationalError) as error:
        line = format_one_line(str(error))
        click.echo(f"graphile-worker: last runs are unknown: {line}", err=True)
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
        # The item is a function of the user.
        yield f"  unknown: {format_error_line(error)}"
        return
    for run in runs:
        local = run.astimezone(item.zone)
        yield (
            f"  {run:%Y-%m-%d %H:%M} UTC   {local:%a %Y-%m-%d %H:%M %Z}   in "
            f"{format_duration(run - now)}"
        )
    if not runs:
        yield "  never"


def _format_last_run(known: KnownCrontab | None, now: datetime) -> str:
    if known is None or known.last_execution is None:
        return "never"
    # The clocks of the database and of this machine can differ.
    return f"{format_duration(max(timedelta(0), now - known.last_execution))} ago"
