"""A caller's own connection, whatever its library.

We never commit, never open a savepoint, never change autocommit and never register an adapter on
it: the caller's transaction decides what becomes of the job. Libraries are recognised by class and
only if the caller has imported them.
"""

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

import psycopg

from graphile_worker.db.blocking import BlockingPsycopgConnection
from graphile_worker.db.database import BlockingConnection, Connection
from graphile_worker.db.listening import Listening
from graphile_worker.db.psycopg import PsycopgConnection
from graphile_worker.errors import ConfigurationError
from graphile_worker.sql.identifiers import Schemas
from graphile_worker.sql.query import Query
from graphile_worker.sql.statements import Style, render

T = TypeVar("T")

KINDS = "psycopg, psycopg2, asyncpg, SQLAlchemy or Django"


def borrow(connection: object, schemas: Schemas) -> Connection:
    """The caller's async connection or session as one of ours."""
    wrap = _async_kind(connection)
    if wrap is not None:
        return wrap(connection, schemas)
    if _blocking_kind(connection) is not None:
        raise TypeError(
            f"{_name(connection)} is a blocking connection: call enqueue() or add_job() without "
            "await, or use graphile_worker.sync.Client"
        )
    raise TypeError(f"{_name(connection)} is not an async connection of {KINDS}")


def borrow_blocking(connection: object, schemas: Schemas) -> BlockingConnection:
    """The caller's blocking connection or session as one of ours."""
    wrap = _blocking_kind(connection)
    if wrap is not None:
        return wrap(connection, schemas)
    if _async_kind(connection) is not None:
        raise TypeError(
            f"{_name(connection)} is an async connection: await aenqueue() or aadd_job(), or "
            "use graphile_worker.Client"
        )
    raise TypeError(f"{_name(connection)} is not a blocking connection of {KINDS}")


class BorrowedDatabase:
    """One async connection of the caller's as all that a worker has: nothing is committed here."""

    def __init__(self, connection: object, schemas: Schemas) -> None:
        self.schemas = schemas
        self._connection = borrow(connection, schemas)

    async def run(self, query: Query[T]) -> T:
        return await self._connection.run(query)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        yield self._connection

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A savepoint where a transaction is open, a transaction of its own otherwise."""
        raw = self._connection.raw
        begin = raw.begin_nested if hasattr(raw, "begin_nested") else raw.transaction
        async with begin():
            yield self._connection

    def listen(self, *channels: str) -> AbstractAsyncContextManager[Listening]:
        raise ConfigurationError("a borrowed connection does not listen")

    async def close(self) -> None:
        """Nothing: the connection is the caller's."""


class AsyncpgConnection:
    def __init__(self, connection: Any, schemas: Schemas) -> None:
        self.raw = connection
        self._schemas = schemas

    async def run(self, query: Query[T]) -> T:
        text = render(query.statement, self._schemas, Style.NATIVE)
        return query.read(await self.raw.fetch(text, *query.args))


class Psycopg2Connection:
    def __init__(self, connection: Any, schemas: Schemas) -> None:
        self.raw = connection
        self._schemas = schemas

    def run(self, query: Query[T]) -> T:
        # The plain cursor class, not the caller's: rows must be tuples.
        plain = sys.modules["psycopg2.extensions"].cursor
        with self.raw.cursor(cursor_factory=plain) as cursor:
            cursor.execute(*pyformat(query, self._schemas))
            return query.read(cursor.fetchall() if cursor.description else [])


class DjangoConnection:
    def __init__(self, connection: Any, schemas: Schemas) -> None:
        self.raw = connection
        self._schemas = schemas

    def run(self, query: Query[T]) -> T:
        with self.raw.cursor() as cursor:
            cursor.execute(*pyformat(query, self._schemas))
            return query.read(cursor.fetchall() if cursor.description else [])


class SqlalchemyConnection:
    """A Connection, Session or scoped_session: all of them execute."""

    def __init__(self, connection: Any, schemas: Schemas) -> None:
        self.raw = connection
        self._schemas = schemas

    def run(self, query: Query[T]) -> T:
        if not query.args:
            result = self.raw.exec_driver_sql(*_plain(query, self._schemas))
        else:
            result = self.raw.execute(*_clause(query, self._schemas))
        return query.read(result.all() if result.returns_rows else [])


class AsyncSqlalchemyConnection:
    """An AsyncConnection, AsyncSession or async_scoped_session."""

    def __init__(self, connection: Any, schemas: Schemas) -> None:
        self.raw = connection
        self._schemas = schemas

    async def run(self, query: Query[T]) -> T:
        if not query.args:
            result = await self.raw.exec_driver_sql(*_plain(query, self._schemas))
        else:
            result = await self.raw.execute(*_clause(query, self._schemas))
        return query.read(result.all() if result.returns_rows else [])


def pyformat(query: Query[T], schemas: Schemas) -> tuple[Any, ...]:
    """What psycopg2 and Django execute. Without parameters they leave every % as it is."""
    if not query.args:
        return (render(query.statement, schemas, Style.NATIVE),)
    return render(query.statement, schemas, Style.PYFORMAT), _named(query)


def _clause(query: Query[T], schemas: Schemas) -> tuple[Any, dict[str, object]]:
    text = sys.modules["sqlalchemy"].text(render(query.statement, schemas, Style.SQLALCHEMY))
    return text, _named(query)


def _plain(query: Query[T], schemas: Schemas) -> tuple[Any, ...]:
    # text() doubles every % for psycopg2, which undoubles them only where there are parameters.
    # Only connections of a lent engine are asked such questions; sessions never are.
    text = render(query.statement, schemas, Style.NATIVE)
    return text, None, {"no_parameters": True}


def _named(query: Query[T]) -> dict[str, object]:
    return {f"p{number}": value for number, value in enumerate(query.args, start=1)}


def _blocking_kind(connection: object) -> Callable[[Any, Schemas], BlockingConnection] | None:
    if isinstance(connection, psycopg.Connection):
        return BlockingPsycopgConnection
    if is_a(connection, "psycopg2.extensions", "connection"):
        return Psycopg2Connection
    if is_a(connection, "sqlalchemy.engine", "Connection"):
        return SqlalchemyConnection
    if is_a(connection, "sqlalchemy.orm", "Session", "scoped_session"):
        return SqlalchemyConnection
    if is_a(connection, "django.db.backends.base.base", "BaseDatabaseWrapper"):
        return DjangoConnection
    # django.db.connection stands for the connection of the thread that uses it.
    if is_a(connection, "django.utils.connection", "ConnectionProxy"):
        return DjangoConnection
    return None


def _async_kind(connection: object) -> Callable[[Any, Schemas], Connection] | None:
    if isinstance(connection, psycopg.AsyncConnection):
        return PsycopgConnection
    if is_a(connection, "asyncpg.connection", "Connection"):
        return AsyncpgConnection
    if is_a(connection, "asyncpg.pool", "PoolConnectionProxy"):
        return AsyncpgConnection
    names = ("AsyncConnection", "AsyncSession", "async_scoped_session")
    if is_a(connection, "sqlalchemy.ext.asyncio", *names):
        return AsyncSqlalchemyConnection
    return None


def is_a(connection: object, module: str, *names: str) -> bool:
    """Is it of one of these classes of a module that somebody has imported?"""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(
        connection, tuple(getattr(loaded, name) for name in names)
    )


def _name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
