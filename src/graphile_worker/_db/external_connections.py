"""Connections of the caller, of every supported library.

The caller's transaction decides about the job: this package never commits, opens no savepoint,
changes no autocommit mode and registers no adapter on such a connection. Libraries are recognized
by class, and only if the caller has imported them.
"""

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Self, TypeVar
from weakref import WeakKeyDictionary

from psycopg.pq import TransactionStatus

from graphile_worker._db.database import Connection, SyncQueryRunner
from graphile_worker._db.notifications import NotificationStream
from graphile_worker._db.psycopg import PsycopgConnection
from graphile_worker._db.sync import SyncPsycopgConnection
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.query import Query
from graphile_worker._sql.render import ParameterStyle, render
from graphile_worker._support.lazy_dataclass import LazyDataclass
from graphile_worker.errors import ConfigurationError

T = TypeVar("T")

SUPPORTED_LIBRARIES = "psycopg, psycopg2, asyncpg, SQLAlchemy or Django"


def adapt_connection(connection: object, schemas: Schemas) -> Connection:
    """Wrap the caller's async connection or session as a `Connection`."""
    adapter = _find_async_adapter(connection)
    if adapter is not None:
        return adapter(connection, schemas)
    name = f"{type(connection).__module__}.{type(connection).__qualname__}"
    if _find_sync_adapter(connection) is DjangoConnection:
        raise TypeError(
            f"{name} is Django's connection, which async code cannot use: put the database work "
            "and enqueue() in a plain function, and await sync_to_async(function)()"
        )
    if is_sync_connection(connection):
        raise TypeError(
            f"{name} is a blocking connection: call enqueue() or add_job() without await, or use "
            "graphile_worker.sync.Client"
        )
    raise TypeError(f"{name} is not an async connection of {SUPPORTED_LIBRARIES}")


def adapt_sync_connection(connection: object, schemas: Schemas) -> SyncQueryRunner:
    """Wrap the caller's blocking connection or session as a `SyncQueryRunner`."""
    adapter = _find_sync_adapter(connection)
    if adapter is not None:
        return adapter(connection, schemas)
    name = f"{type(connection).__module__}.{type(connection).__qualname__}"
    if _find_async_adapter(connection) is not None:
        raise TypeError(
            f"{name} is an async connection: await aenqueue() or aadd_job(), or use "
            "graphile_worker.Client"
        )
    raise TypeError(f"{name} is not a blocking connection of {SUPPORTED_LIBRARIES}")


class ExternalConnectionDatabase:
    """One async connection of the caller, for a whole worker. Nothing is committed here."""

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
        """Open a savepoint in an open transaction, otherwise a transaction."""
        raw = self._connection.raw
        begin = raw.begin_nested if hasattr(raw, "begin_nested") else raw.transaction
        async with begin():
            yield self._connection

    def listen(self, *channels: str) -> AbstractAsyncContextManager[NotificationStream]:
        raise ConfigurationError("a worker on one connection of the caller cannot listen")

    async def close(self) -> None:
        """Do nothing. The connection belongs to the caller."""


class OpenTransaction(LazyDataclass):
    """A transaction that is open on a connection of the caller."""

    connection: object
    identity: object
    """SQLAlchemy's transaction. Drivers have no object for it, so there it is the connection."""

    @classmethod
    def find(cls, connection: object) -> Self | None:
        """Return the open transaction of a connection or session, or None."""
        identity = None if connection is None else _identify_transaction(connection)
        return None if identity is None else cls(connection, identity)

    def is_open(self) -> bool:
        """Return whether it may still be open. A pool may have lent the connection again."""
        return _identify_transaction(self.connection) is self.identity


def call_on_commit(
    connection: Any, *, committed: Callable[[], None], committing: Callable[[], None]
) -> bool:
    """Call a function when the open transaction of a connection or session commits.

    Args:
        connection: The caller's connection or session.
        committed: Called after the commit.
        committing: Called right before it, if the library reports no more.

    Returns:
        Whether the library reports commits.
    """
    try:
        return _call_on_commit(connection, committed, committing)
    except Exception:
        # For example a version of the library without these events.
        return False


def _call_on_commit(
    connection: Any, committed: Callable[[], None], committing: Callable[[], None]
) -> bool:
    if is_instance_by_name(connection, "sqlalchemy.orm", "scoped_session") or is_instance_by_name(
        connection, "sqlalchemy.ext.asyncio", "async_scoped_session"
    ):
        connection = connection()
    connection = getattr(connection, "sync_session", connection)
    connection = getattr(connection, "sync_connection", connection)
    if hasattr(connection, "on_commit"):
        # Django's. It forgets the function if the transaction is rolled back.
        connection.on_commit(committed)
    elif _is_committed(connection):
        committed()
    elif is_instance_by_name(connection, "sqlalchemy.orm", "Session"):
        _SqlalchemyCommits.find(connection, "after_commit").add(committed)
    elif is_instance_by_name(connection, "sqlalchemy.engine", "Connection"):
        _SqlalchemyCommits.find(connection, "commit").add(committing)
    else:
        return False
    return True


def _is_committed(connection: Any) -> bool:
    """Return whether the driver has committed, though SQLAlchemy has a transaction: AUTOCOMMIT."""
    if is_instance_by_name(connection, "sqlalchemy.orm", "Session"):
        # Session.connection() may check out one of another engine than the one that ran the query.
        transaction = connection.get_transaction()
        used = {each for each, *_ in transaction._connections.values()}
    elif is_instance_by_name(connection, "sqlalchemy.engine", "Connection"):
        used = {connection}
    else:
        return False
    drivers = [each.connection.driver_connection for each in used]
    return bool(drivers) and all(_find_transaction(each) is None for each in drivers)


class _SqlalchemyCommits:
    """The functions to call when a session or connection of SQLAlchemy commits.

    After a rollback they wait for the next commit.
    """

    _known: WeakKeyDictionary[Any, "_SqlalchemyCommits"] = WeakKeyDictionary()

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []

    @classmethod
    def find(cls, target: Any, event: str) -> "_SqlalchemyCommits":
        found = cls._known.get(target)
        if found is None:
            found = cls()
            sys.modules["sqlalchemy"].event.listen(target, event, found._call)
            cls._known[target] = found
        return found

    def add(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def _call(self, target: Any) -> None:
        # The event of a session is also that of a savepoint. Connections have another one for it.
        if hasattr(target, "flush") and target.in_nested_transaction():
            return
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


def find_source(connection: Any) -> object:
    """Return what a connection comes from: all connections of it lead to the same database.

    An engine of SQLAlchemy, a connection of Django for one alias and thread, or the connection of
    the driver.
    """
    try:
        return _find_source(connection)
    except Exception:
        # For example closed. The call that uses the connection raises what is wrong.
        return connection


def _find_source(connection: Any) -> object:
    source: object = connection
    if hasattr(connection, "get_bind"):
        source = connection.get_bind().engine
    elif is_instance_by_name(connection, "sqlalchemy.ext.asyncio", "AsyncConnection"):
        source = connection.sync_connection.engine
    elif is_instance_by_name(connection, "sqlalchemy.engine", "Connection"):
        source = connection.engine
    elif is_instance_by_name(connection, "django.utils.connection", "ConnectionProxy"):
        source = connection._connections[connection._alias]
    elif is_instance_by_name(connection, "asyncpg.pool", "PoolConnectionProxy"):
        source = connection._con
    return source


def _identify_transaction(connection: Any) -> object | None:
    """Return an object for the open transaction of a connection, without a statement."""
    try:
        return _find_transaction(connection)
    except Exception:
        # For example closed, returned to its pool, or of another thread.
        return None


def _find_transaction(connection: Any) -> object | None:
    if is_instance_by_name(connection, "sqlalchemy.orm", "scoped_session") or is_instance_by_name(
        connection, "sqlalchemy.ext.asyncio", "async_scoped_session"
    ):
        # A session that does not exist yet has no transaction.
        return _find_transaction(connection()) if connection.registry.has() else None
    if is_instance_by_name(connection, "sqlalchemy.ext.asyncio", "AsyncSession"):
        return _find_transaction(connection.sync_session)
    if is_instance_by_name(connection, "sqlalchemy.ext.asyncio", "AsyncConnection"):
        return _find_transaction(connection.sync_connection)
    if hasattr(connection, "get_transaction"):
        transaction: object | None = connection.get_transaction()
        return transaction
    if is_instance_by_name(connection, "django.utils.connection", "ConnectionProxy"):
        return _find_transaction(connection._connections[connection._alias])
    if hasattr(connection, "in_atomic_block"):
        is_open = connection.in_atomic_block or not connection.get_autocommit()
        return connection if is_open else None
    if hasattr(connection, "is_in_transaction"):
        return connection if connection.is_in_transaction() else None
    if hasattr(connection, "get_transaction_status"):
        status = connection.get_transaction_status()
    else:
        status = connection.info.transaction_status
    no_transaction = (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)
    return None if status in no_transaction else connection


class _ExternalConnection:
    """A connection of the caller. `raw` is the caller's object."""

    def __init__(self, connection: Any, schemas: Schemas) -> None:
        self.raw = connection
        self._schemas = schemas

    def _render(self, query: Query[Any], style: ParameterStyle) -> str:
        return render(query.statement, self._schemas, style)


class AsyncpgConnection(_ExternalConnection):
    async def run(self, query: Query[T]) -> T:
        text = self._render(query, ParameterStyle.NATIVE)
        return query.read(await self.raw.fetch(text, *query.args))


class DjangoConnection(_ExternalConnection):
    def run(self, query: Query[T]) -> T:
        # Without parameters Django and psycopg2 leave every % as it is.
        style = ParameterStyle.PYFORMAT if query.args else ParameterStyle.NATIVE
        with self._open_cursor() as cursor:
            cursor.execute(self._render(query, style), _name_args(query) or None)
            return query.read(cursor.fetchall() if cursor.description else [])

    def _open_cursor(self) -> Any:
        return self.raw.cursor()


class Psycopg2Connection(DjangoConnection):
    def _open_cursor(self) -> Any:
        # The plain cursor class, not the caller's: rows must be tuples.
        return self.raw.cursor(cursor_factory=sys.modules["psycopg2.extensions"].cursor)


class _SqlalchemyBase(_ExternalConnection):
    def _build_call(self, query: Query[Any]) -> Callable[[], Any]:
        if query.args:
            text = sys.modules["sqlalchemy"].text(self._render(query, ParameterStyle.SQLALCHEMY))
            return partial(self.raw.execute, text, _name_args(query))
        # text() doubles every % for psycopg2, which undoes that only with parameters. Only
        # connections of an engine run statements without parameters, never sessions.
        text = self._render(query, ParameterStyle.NATIVE)
        return partial(self.raw.exec_driver_sql, text, None, {"no_parameters": True})


class SqlalchemyConnection(_SqlalchemyBase):
    """A Connection, Session or scoped_session."""

    def run(self, query: Query[T]) -> T:
        result = self._build_call(query)()
        return query.read(result.all() if result.returns_rows else [])


class AsyncSqlalchemyConnection(_SqlalchemyBase):
    """An AsyncConnection, AsyncSession or async_scoped_session."""

    async def run(self, query: Query[T]) -> T:
        result = await self._build_call(query)()
        return query.read(result.all() if result.returns_rows else [])


def _name_args(query: Query[Any]) -> dict[str, object]:
    return {f"p{number}": value for number, value in enumerate(query.args, start=1)}


# Classes by module and name, and the adapter for their instances.
_SYNC_ADAPTERS: tuple[tuple[str, tuple[str, ...], Callable[..., SyncQueryRunner]], ...] = (
    ("psycopg", ("Connection",), SyncPsycopgConnection),
    ("psycopg2.extensions", ("connection",), Psycopg2Connection),
    ("sqlalchemy.engine", ("Connection",), SqlalchemyConnection),
    ("sqlalchemy.orm", ("Session", "scoped_session"), SqlalchemyConnection),
    ("django.db.backends.base.base", ("BaseDatabaseWrapper",), DjangoConnection),
    # django.db.connection, a proxy for the connection of the current thread.
    ("django.utils.connection", ("ConnectionProxy",), DjangoConnection),
)
_ASYNC_ADAPTERS: tuple[tuple[str, tuple[str, ...], Callable[..., Connection]], ...] = (
    ("psycopg", ("AsyncConnection",), PsycopgConnection),
    ("asyncpg.connection", ("Connection",), AsyncpgConnection),
    ("asyncpg.pool", ("PoolConnectionProxy",), AsyncpgConnection),
    (
        "sqlalchemy.ext.asyncio",
        ("AsyncConnection", "AsyncSession", "async_scoped_session"),
        AsyncSqlalchemyConnection,
    ),
)


def _find_sync_adapter(connection: object) -> Callable[..., SyncQueryRunner] | None:
    for module, names, adapter in _SYNC_ADAPTERS:
        if is_instance_by_name(connection, module, *names):
            return adapter
    return None


def _find_async_adapter(connection: object) -> Callable[..., Connection] | None:
    for module, names, adapter in _ASYNC_ADAPTERS:
        if is_instance_by_name(connection, module, *names):
            return adapter
    return None


def is_sync_connection(connection: object) -> bool:
    """Return whether it is a connection for blocking code."""
    return _find_sync_adapter(connection) is not None


def is_instance_by_name(connection: object, module: str, *names: str) -> bool:
    """Return whether it is an instance of one of these classes, if their module is imported."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(
        connection, tuple(getattr(loaded, name) for name in names)
    )
