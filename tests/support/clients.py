"""Both clients behind one face, so that each rule is written once; and a look at what they send."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import psycopg
import pytest

from graphile_worker import Client, sync
from graphile_worker._db import psycopg as own
from graphile_worker._db import sync as db_sync

KINDS = ("async", "blocking")


class AsyncWrapper:
    """A blocking client or connection to be awaited: so each rule is written once for both."""

    def __init__(self, blocking: Any) -> None:
        self.blocking = blocking

    def __getattr__(self, name: str) -> Any:
        return partial(asyncio.to_thread, getattr(self.blocking, name))


@asynccontextmanager
async def open_client(
    kind: str, database: Any, on: object = None, **options: Any
) -> AsyncIterator[Any]:
    """A client of that kind, to be awaited; `on` is another way to reach the database."""
    target, options = on or database.dsn, {"schema": database.schema, **options}
    if kind == "async":
        async with Client(target, **options) as client:
            yield client
    else:
        with sync.Client(target, **options) as blocking_client:
            yield AsyncWrapper(blocking_client)


@asynccontextmanager
async def open_connection(kind: str, database: Any) -> AsyncIterator[Any]:
    """A caller's own connection for a client of that kind; what is not committed is lost."""
    if kind == "async":
        connection = await psycopg.AsyncConnection.connect(database.dsn)
        yield connection
        await connection.close()
    else:
        with psycopg.connect(database.dsn) as raw:
            yield AsyncWrapper(raw)
            raw.rollback()


def unwrap(connection: Any) -> Any:
    """What a client is given as `conn`."""
    return connection.blocking if isinstance(connection, AsyncWrapper) else connection


def record_statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    sent: list[str] = []
    before_each_statement(monkeypatch, sent.append)
    return sent


def before_each_statement(monkeypatch: pytest.MonkeyPatch, act: Callable[[str], object]) -> None:
    """Do something with the name of each statement before clients send it."""

    def acting(run: Any) -> Any:
        def act_and_run(self: Any, query: Any) -> Any:
            act(query.statement)
            return run(self, query)

        return act_and_run

    for connection in (own.PsycopgConnection, db_sync.SyncPsycopgConnection):
        monkeypatch.setattr(connection, "run", acting(connection.run))
    run_on = own.PsycopgDatabase._run_on

    def act_and_run_on(self: Any, connection: Any, query: Any) -> Any:
        # Otherwise the query runs on a PsycopgConnection.
        if self._prepares_at_once:
            act(query.statement)
        return run_on(self, connection, query)

    monkeypatch.setattr(own.PsycopgDatabase, "_run_on", act_and_run_on)
