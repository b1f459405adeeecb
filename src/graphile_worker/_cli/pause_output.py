"""The commands `pause` and `resume`."""

from datetime import timedelta

import click

from graphile_worker._cli.printing import format_time, print_json, print_table
from graphile_worker._cli.settings.layers import Settings
from graphile_worker._cli.settings.resolve import open_database, resolve_actor
from graphile_worker._db.database import SyncDatabase, run_plan_sync
from graphile_worker._support.error_format import make_printable
from graphile_worker.ops.pauses import (
    Pause,
    PauseKind,
    plan_list_pause_warnings,
    plan_list_pauses,
    plan_pause_queue,
    plan_pause_task,
    plan_resume_queue,
    plan_resume_task,
)

PAUSE_HEADERS = ("kind", "name", "by", "since", "until", "reason")


def pause_task(
    settings: Settings,
    name: str,
    *,
    duration: timedelta | None,
    reason: str | None,
    as_json: bool,
) -> None:
    """Pause a task, and print the pause."""
    with open_database(settings) as database:
        _print_warnings(database, PauseKind.TASK, name, duration)
        plan = plan_pause_task(
            name,
            database.schemas,
            duration=duration,
            reason=reason,
            actor=resolve_actor(settings),
        )
        _print_pause(run_plan_sync(database, plan), as_json)


def pause_queue(
    settings: Settings,
    name: str,
    *,
    duration: timedelta | None,
    reason: str | None,
    wait: timedelta,
    as_json: bool,
) -> None:
    """Pause a named queue, and print the pause."""
    with open_database(settings) as database:
        _print_warnings(database, PauseKind.QUEUE, name, duration)
        plan = plan_pause_queue(
            name,
            database.schemas,
            duration=duration,
            reason=reason,
            actor=resolve_actor(settings),
            wait=wait,
        )
        _print_pause(run_plan_sync(database, plan), as_json)


def resume_task(settings: Settings, name: str, *, as_json: bool) -> None:
    """Resume a task, and print whether it was paused."""
    with open_database(settings) as database:
        plan = plan_resume_task(name, database.schemas, actor=resolve_actor(settings))
        _print_resumed(PauseKind.TASK, name, run_plan_sync(database, plan), as_json)


def resume_queue(settings: Settings, name: str, *, wait: timedelta, as_json: bool) -> None:
    """Resume a named queue, and print whether it was paused."""
    with open_database(settings) as database:
        plan = plan_resume_queue(name, database.schemas, actor=resolve_actor(settings), wait=wait)
        _print_resumed(PauseKind.QUEUE, name, run_plan_sync(database, plan), as_json)


def print_pauses(settings: Settings, *, as_json: bool) -> None:
    """Print the paused tasks and named queues."""
    with open_database(settings) as database:
        pauses = run_plan_sync(database, plan_list_pauses(database.schemas))
    if as_json:
        print_json({"pauses": pauses})
        return
    if not pauses:
        click.echo("nothing is paused", err=True)
        return
    print_table(
        PAUSE_HEADERS,
        [
            (
                each.kind,
                each.name,
                each.by,
                None if each.since is None else format_time(each.since),
                None if each.until is None else format_time(each.until),
                each.reason,
            )
            for each in pauses
        ],
    )


def _print_warnings(
    database: SyncDatabase, kind: PauseKind, name: str, duration: timedelta | None
) -> None:
    """Warn about a name that may be mistyped, and about a pause that no worker ends."""
    plan = plan_list_pause_warnings(kind, name, database.schemas, duration=duration)
    for warning in run_plan_sync(database, plan):
        click.echo(make_printable(warning), err=True)


def _print_pause(pause: Pause, as_json: bool) -> None:
    if as_json:
        print_json({"pause": pause})
        return
    end = "" if pause.until is None else f" until {format_time(pause.until)}"
    click.echo(make_printable(f"paused {pause.kind} {pause.name!r}{end}"))


def _print_resumed(kind: PauseKind, name: str, was_paused: bool, as_json: bool) -> None:
    if as_json:
        print_json({"kind": kind, "name": name, "was_paused": was_paused})
        return
    text = f"resumed {kind} {name!r}" if was_paused else f"{kind} {name!r} is not paused"
    click.echo(make_printable(text), err=not was_paused)
