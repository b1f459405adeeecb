"""Start: which way of looking was asked for, on the database of the settings."""

import asyncio
import os
import sys
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any

from graphile_worker.administration.snapshot import Pace, look, look_at_counters
from graphile_worker.administration.watch import Watch
from graphile_worker.cli.settings import Settings
from graphile_worker.cli.sources import schema_of
from graphile_worker.cli.top.printing import print_object, print_screen
from graphile_worker.db.psycopg import PsycopgDatabase
from graphile_worker.errors import ConfigurationError
from graphile_worker.sql.identifiers import Schemas

# Longer than any statement of a look may take: who says nothing for so long is away.
ANSWER_WITHIN = timedelta(seconds=15)


def show(settings: Settings, *, interval: timedelta, once: bool, as_json: bool) -> None:
    """Until somebody leaves, or once."""
    prepared = settings.value("prepared_statements")
    database = PsycopgDatabase(
        settings.value("connection"),
        Schemas.named(schema_of(settings), settings.value("ext_schema")),
        max_size=1,
        answer_within=ANSWER_WITHIN,
        prepared_statements=True if prepared is None else prepared,
    )
    seconds = interval.total_seconds()
    if not once and not as_json:
        _check_terminal()
        _run(database, _live(database, seconds))
    elif once:
        _run(database, _once(database, seconds, as_json=as_json))
    else:
        _run(database, _print_on(database, seconds))


def _run(database: PsycopgDatabase, work: Coroutine[Any, Any, None]) -> None:
    async def and_close() -> None:
        try:
            await work
        except TimeoutError:
            raise ConfigurationError("the database does not answer") from None
        finally:
            await database.close()

    asyncio.run(and_close())


async def _live(database: PsycopgDatabase, seconds: float) -> None:
    # Not where there are no such terminals.
    from graphile_worker.cli.top.live import Live

    await Live(database, interval=seconds).run()


async def _once(database: PsycopgDatabase, seconds: float, *, as_json: bool) -> None:
    # Rates need two looks; the first is only at the counters, as it costs nothing.
    counters = await look_at_counters(database)
    await asyncio.sleep(seconds)
    watch = Watch(await look(database))
    watch.add_counters(counters)
    if as_json:
        print_object(watch, database.schemas)
    else:
        print_screen(watch, database.schemas, seconds)


async def _print_on(database: PsycopgDatabase, seconds: float) -> None:
    """A line for each look, until nobody reads or a signal ends it."""
    watch, pace = Watch(await look(database)), Pace(seconds)
    while True:
        print_object(watch, database.schemas)
        sys.stdout.flush()
        await asyncio.sleep(pace.pause_after(watch.last.took))
        watch.add(await look(database))


def _check_terminal() -> None:
    if sys.platform == "win32":
        raise ConfigurationError("top draws on terminals of Unix: add --once or --json")
    if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        raise ConfigurationError("top needs a terminal to draw on: add --once or --json")
