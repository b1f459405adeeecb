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

from graphile_worker._db.database import Connection, SyncQueryRunner
from graphile_worker._db.notifications import NotificationStream
from graphile_worker._db.psycopg import PsycopgConnection
from graphile_worker._db.sync import SyncPsycopgConnection
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.query import Query
from graphile_worker._sql.render import ParameterStyle, render
from graphile_worker.errors import ConfigurationError

T = TypeVar("T")

SUPPORTED_LIBRARIES = "psycopg, psycopg2, asyncpg, SQLAlchemy or Django"


def adapt_connection(connection: object, schemas: Schemas) -> Connection:
    """The caller's async connection or session as one of ours."""
    wrap = _find_async_adapter(connection)
    if wrap is not None:
        return wrap(connection, schemas)
    if _find_sync_adapter(connection) is not None:
        raise TypeError(
            f"{_format_class_name(connection)} is a blocking connection: call enqueue() or "
            "add_job() without "
            "await, or use graphile_worker.sync.Client"
        )
    raise TypeError(
        f"{_format_class_name(connection)} is not an async connection of {SUPPORTED_LIBRARIES}"
    )


def adapt_sync_connection(connection: object, schemas: Schemas) -> SyncQueryRunner:
    """The caller's blocking connection or session as one of ours."""
    wrap = _find_sync_adapter(connection)
    if wrap is not None:
        return wrap(connection, schemas)
    if _find_async_adapter(connection) is not None:
        raise TypeError(
            f"{_format_class_name(connection)} is an async connection: await aenqueue() or "
            "aadd_job(), or "
            "use graphile_worker.Client"
        )
    raise TypeError(
        f"{_format_class_name(connection)} is not a blocking connection of {SUPPORTED_LIBRARIES}"
    )


class ExternalConnectionDatabase:
    """One async connection of the caller's as all that a worker has: nothing is committed here."""

    def __init__(self, connection: object, schemas: Schemas) -> None:
        self.schemas = schemas
        self._connection = adapt_connection(connection, schemas)

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

    def listen(self, *channels: str) -> AbstractAsyncContextManager[NotificationStream]:
        raise ConfigurationError("a borrowed connection does not listen")

    async def close(self) -> None:
        """Nothing: the connection is the caller's."""


class AsyncpgConnection:
    def __init__(self, connection: Any, schemas: Schemas) -> None:
        self.raw = connection
        self._schemas = schemas

    async def run(self, query: Query[T]) -> T:
        text = render(query.statement, self._schemas, ParameterStyle.NATIVE)
        return query.read(await self.raw.fetch(text, *query.args))


class Psycopg2Connection:
    def __init__(self, connection: Any, schemas: Schemas) -> None:
        self.raw = connection
        self._schemas = schemas

    def run(self, query: Query[T]) -> T:
        # The plain cursor class, not the caller's: rows must be tuples.
        plain = sys.modules["psycopg2.extensions"].cursor
        with self.raw.cursor(cursor_factory=plain) as cursor:
            cursor.execute(*render_pyformat(query, self._schemas))
            return query.read(cursor.fetchall() if cursor.description else [])


class DjangoConnection:
    def __init__(self, connection: Any, schemas: Schemas) -> None:
        self.raw = connection
        self._schemas = schemas

    def run(self, query: Query[T]) -> T:
        with self.raw.cursor() as cursor:
            cursor.execute(*render_pyformat(query, self._schemas))
            return query.read(cursor.fetchall() if cursor.description else [])


class SqlalchemyConnection:
    """A Connection, Session or scoped_session: all of them execute."""

    def __init__(self, connection: Any, schemas: Schemas) -> None:
        self.raw = connection
        self._schemas = schemas

    def run(self, query: Query[T]) -> T:
        if not query.args:
            result = self.raw.exec_driver_sql(*_build_driver_sql(query, self._schemas))
        else:
            result = self.raw.execute(*_build_text_clause(query, self._schemas))
        return query.read(result.all() if result.returns_rows else [])


class AsyncSqlalchemyConnection:
    """An AsyncConnection, AsyncSession or async_scoped_session."""

    def __init__(self, connection: Any, schemas: Schemas) -> None:
        self.raw = connection
        self._schemas = schemas

    async def run(self, query: Query[T]) -> T:
        if not query.args:
            result = await self.raw.exec_driver_sql(*_build_driver_sql(query, self._schemas))
        else:
            result = await self.raw.execute(*_build_text_clause(query, self._schemas))
        return query.read(result.all() if result.returns_rows else [])


def render_pyformat(query: Query[T], schemas: Schemas) -> tuple[Any, ...]:
    """What psycopg2 and Django execute. Without parameters they leave every % as it is."""
    if not query.args:
        return (render(query.statement, schemas, ParameterStyle.NATIVE),)
    return render(query.statement, schemas, ParameterStyle.PYFORMAT), _build_named_args(query)


def _build_text_clause(query: Query[T], schemas: Schemas) -> tuple[Any, dict[str, object]]:
    text = sys.modules["sqlalchemy"].text(
        render(query.statement, schemas, ParameterStyle.SQLALCHEMY)
    )
    return text, _build_named_args(query)


def _build_driver_sql(query: Query[T], schemas: Schemas) -> tuple[Any, ...]:
    # text() doubles every % for psycopg2, which undoubles them only where there are parameters.
    # Only connections of a lent engine are asked such questions; sessions never are.
    text = render(query.statement, schemas, ParameterStyle.NATIVE)
    return text, None, {"no_parameters": True}


def _build_named_args(query: Query[T]) -> dict[str, object]:
    return {f"p{number}": value for number, value in enumerate(query.args, start=1)}


def _find_sync_adapter(connection: object) -> Callable[[Any, Schemas], SyncQueryRunner] | None:
    if isinstance(connection, psycopg.Connection):
        return SyncPsycopgConnection
    if is_instance_by_name(connection, "psycopg2.extensions", "connection"):
        return Psycopg2Connection
    if is_instance_by_name(connection, "sqlalchemy.engine", "Connection"):
        return SqlalchemyConnection
    if is_instance_by_name(connection, "sqlalchemy.orm", "Session", "scoped_session"):
        return SqlalchemyConnection
    if is_instance_by_name(connection, "django.db.backends.base.base", "BaseDatabaseWrapper"):
        return DjangoConnection
    # django.db.connection stands for the connection of the thread that uses it.
    if is_instance_by_name(connection, "django.utils.connection", "ConnectionProxy"):
        return DjangoConnection
    return None


def _find_async_adapter(connection: object) -> Callable[[Any, Schemas], Connection] | None:
    if isinstance(connection, psycopg.AsyncConnection):
        return PsycopgConnection
    if is_instance_by_name(connection, "asyncpg.connection", "Connection"):
        return AsyncpgConnection
    if is_instance_by_name(connection, "asyncpg.pool", "PoolConnectionProxy"):
        return AsyncpgConnection
    names = ("AsyncConnection", "AsyncSession", "async_scoped_session")
    if is_instance_by_name(connection, "sqlalchemy.ext.asyncio", *names):
        return AsyncSqlalchemyConnection
    return None


def is_instance_by_name(connection: object, module: str, *names: str) -> bool:
    """Is it of one of these classes of a module that somebody has imported?"""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(
        connection, tuple(getattr(loaded, name) for name in names)
    )


def _format_class_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
