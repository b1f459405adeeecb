"""Run `top`: as a live view, once as text, or as JSON."""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any

import click

from graphile_worker._cli.history_output import build_ended_json
from graphile_worker._cli.printing import to_json
from graphile_worker._cli.settings.layers import Settings
from graphile_worker._cli.settings.resolve import resolve_external_tasks, resolve_schema
from graphile_worker._cli.top.content import Frame
from graphile_worker._cli.top.recent import read_recent_history
from graphile_worker._cli.top.screen import render_all
from graphile_worker._cli.top.text import render_ansi, render_plain
from graphile_worker._cli.top.view import View
from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._sql.identifiers import Schemas
from graphile_worker.errors import ConfigurationError
from graphile_worker.ops.diagnostics.findings import assess_health
from graphile_worker.ops.diagnostics.queue import diagnose_queue
from graphile_worker.ops.history import RecentHistory
from graphile_worker.ops.snapshot import PollPacer, take_counter_snapshot, take_snapshot
from graphile_worker.ops.states import JobState
from graphile_worker.ops.trends import SnapshotHistory

# Longer than the statement timeout of a snapshot, so that only an unreachable server exceeds it.
QUERY_TIMEOUT = timedelta(seconds=15)

# The width of the output of `--once` in a pipe.
DEFAULT_COLUMNS = 120


def run_top(settings: Settings, *, interval: timedelta, once: bool, as_json: bool) -> None:
    prepared = settings.value("prepared_statements")
    database = PsycopgDatabase(
        settings.value("connection"),
        Schemas.from_names(resolve_schema(settings), settings.value("ext_schema")),
        max_size=1,
        query_timeout=QUERY_TIMEOUT,
        prepared_statements=True if prepared is None else prepared,
    )
    seconds, external = interval.total_seconds(), resolve_external_tasks(settings)
    if once:
        work = _print_once(database, seconds, external, as_json=as_json)
    elif as_json:
        work = _print_json_lines(database, seconds, external)
    else:
        _check_terminal()
        work = _run_live(database, seconds, external)
    asyncio.run(_run_and_close(database, work))


async def _run_and_close(database: PsycopgDatabase, work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except TimeoutError:
        raise ConfigurationError(
            "the database does not answer. Check that the server is running and reachable."
        ) from None
    finally:
        await database.close()


def has_terminal() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _check_terminal() -> None:
    if sys.platform == "win32":
        raise ConfigurationError("top needs a Unix terminal. Add --once or --json.")
    if not has_terminal():
        raise ConfigurationError("top needs a terminal to draw on. Add --once or --json.")


async def _run_live(
    database: PsycopgDatabase, seconds: float, external_tasks: frozenset[str]
) -> None:
    # Imports termios, which Windows lacks.
    from graphile_worker._cli.top.live import LiveScreen

    screen = LiveScreen(
        database,
        interval=seconds,
        is_color_enabled=_is_color_enabled(),
        external_tasks=external_tasks,
    )
    await screen.run()


def _is_color_enabled() -> bool:
    return has_terminal() and not os.environ.get("NO_COLOR")


async def _print_once(
    database: PsycopgDatabase, seconds: float, external_tasks: frozenset[str], *, as_json: bool
) -> None:
    # Rates need two snapshots. The first reads only the counters, which costs almost nothing.
    counters = await take_counter_snapshot(database)
    await asyncio.sleep(seconds)
    history = SnapshotHistory(await take_snapshot(database))
    history.add_counters(counters)
    recent = await read_recent_history(database, history.last)
    if as_json:
        _print_json_line(history, recent, database.schemas, external_tasks)
        return
    frame = Frame(
        history=history,
        alerts=diagnose_queue(history, database.schemas, external_tasks=external_tasks),
        schemas=database.schemas,
        view=View(),
        columns=shutil.get_terminal_size((DEFAULT_COLUMNS, 24)).columns,
        rows=10_000,
        interval_seconds=seconds,
        recent=recent,
    )
    has_color = _is_color_enabled()
    for line in render_all(frame):
        click.echo(render_ansi(line, is_color_enabled=True) if has_color else render_plain(line))


async def _print_json_lines(
    database: PsycopgDatabase, seconds: float, external_tasks: frozenset[str]
) -> None:
    history, pacer = SnapshotHistory(await take_snapshot(database)), PollPacer(seconds)
    while True:
        recent = await read_recent_history(database, history.last)
        _print_json_line(history, recent, database.schemas, external_tasks)
        sys.stdout.flush()
        await asyncio.sleep(pacer.compute_pause(history.last.duration))
        history.add(await take_snapshot(database))


def _print_json_line(
    history: SnapshotHistory,
    recent: RecentHistory | None,
    schemas: Schemas,
    external_tasks: frozenset[str],
) -> None:
    snapshot = history.last
    alerts = diagnose_queue(history, schemas, external_tasks=external_tasks)
    values = {
        "now": snapshot.now,
        "took": snapshot.duration,
        "schema": schemas.shared,
        "verdict": assess_health(alerts),
        "attention": alerts,
        "totals": {state.value: snapshot.count(state) for state in JobState},
        "oldest_ready": snapshot.oldest_ready,
        "rates": history.rates,
        "seconds_until_drained": history.seconds_until_drained,
        "tasks": snapshot.tasks,
        "locked": snapshot.locked,
        "queues": snapshot.queues,
        "workers": snapshot.pools,
        "server": snapshot.server,
        "ended": None if recent is None else [build_ended_json(job) for job in recent.ended],
        "progress": {} if recent is None else recent.progress,
    }
    click.echo(json.dumps(to_json(values)))
