"""Start: which way of looking was asked for, on the database of the settings."""

import asyncio
import os
import sys
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any

from graphile_worker._cli.settings.layers import Settings
from graphile_worker._cli.settings.resolve import resolve_schema
from graphile_worker._cli.top.printing import print_json_line, print_screen
from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._sql.identifiers import Schemas
from graphile_worker.errors import ConfigurationError
from graphile_worker.ops.snapshot import PollPacer, take_counter_snapshot, take_snapshot
from graphile_worker.ops.trends import SnapshotHistory

# Longer than any statement of a look may take: who says nothing for so long is away.
QUERY_TIMEOUT = timedelta(seconds=15)


def run_top(settings: Settings, *, interval: timedelta, once: bool, as_json: bool) -> None:
    """Until somebody leaves, or once."""
    prepared = settings.value("prepared_statements")
    database = PsycopgDatabase(
        settings.value("connection"),
        Schemas.from_names(resolve_schema(settings), settings.value("ext_schema")),
        max_size=1,
        query_timeout=QUERY_TIMEOUT,
        prepared_statements=True if prepared is None else prepared,
    )
    seconds = interval.total_seconds()
    if not once and not as_json:
        _check_terminal()
        _run_and_close(database, _run_live(database, seconds))
    elif once:
        _run_and_close(database, _print_once(database, seconds, as_json=as_json))
    else:
        _run_and_close(database, _print_repeatedly(database, seconds))


def _run_and_close(database: PsycopgDatabase, work: Coroutine[Any, Any, None]) -> None:
    async def and_close() -> None:
        try:
            await work
        except TimeoutError:
            raise ConfigurationError("the database does not answer") from None
        finally:
            await database.close()

    asyncio.run(and_close())


async def _run_live(database: PsycopgDatabase, seconds: float) -> None:
    # Not where there are no such terminals.
    from graphile_worker._cli.top.live import LiveScreen

    await LiveScreen(database, interval=seconds).run()


async def _print_once(database: PsycopgDatabase, seconds: float, *, as_json: bool) -> None:
    # Rates need two looks; the first is only at the counters, as it costs nothing.
    counters = await take_counter_snapshot(database)
    await asyncio.sleep(seconds)
    watch = SnapshotHistory(await take_snapshot(database))
    watch.add_counters(counters)
    if as_json:
        print_json_line(watch, database.schemas)
    else:
        print_screen(watch, database.schemas, seconds)


async def _print_repeatedly(database: PsycopgDatabase, seconds: float) -> None:
    """A line for each look, until nobody reads or a signal ends it."""
    watch, pace = SnapshotHistory(await take_snapshot(database)), PollPacer(seconds)
    while True:
        print_json_line(watch, database.schemas)
        sys.stdout.flush()
        await asyncio.sleep(pace.compute_pause(watch.last.duration))
        watch.add(await take_snapshot(database))


def _check_terminal() -> None:
    if sys.platform == "win32":
        raise ConfigurationError("top draws on terminals of Unix: add --once or --json")
    if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        raise ConfigurationError("top needs a terminal to draw on: add --once or --json")
