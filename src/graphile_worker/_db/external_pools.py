"""Databases of a client: opened from a connection string, or on the caller's pool or engine.

The package takes connections from a pool or engine of the caller for its queries, each of which
commits separately. It never closes the pool.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import psycopg

from graphile_worker._db.conninfo import ConninfoSource
from graphile_worker._db.database import (
    Connection,
    Database,
    SyncDatabase,
    SyncQueryRunner,
    with_retries,
    with_retries_sync,
)
from graphile_worker._db.external_connections import (
    ExternalConnectionDatabase,
    adapt_connection,
    adapt_sync_connection,
    is_instance_by_name,
)
from graphile_worker._db.notifications import NotificationStream, open_notification_stream
from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._db.sync import SyncConnectionPool, SyncPsycopgDatabase
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.query import Query
from graphile_worker._sql.sqlstate import READ_ONLY_SQL_TRANSACTION, get_sqlstate
from graphile_worker.errors import ConfigurationError

if TYPE_CHECKING:
    import psycopg_pool

T = TypeVar("T")

ConnectionFactory = Callable[[], AbstractAsyncContextManager[Any]]
TransactionFactory = Callable[[Any], AbstractAsyncContextManager[Any]]
SyncConnectionFactory = Callable[[], AbstractContextManager[Any]]


def open_database(
    source: object, schemas: Schemas, *, prepared_statements: bool = True
) -> Database:
    """Open the database of an async client from its first argument."""
    if isinstance(source, PsycopgDatabase | ExternalPoolDatabase | ExternalConnectionDatabase):
        return source
    if is_conninfo_source(source):
        return PsycopgDatabase(source, schemas, prepared_statements=prepared_statements)
    pool: Any = source
    if is_psycopg_pool(source):
        return ExternalPoolDatabase(pool.connection, schemas)
    if is_instance_by_name(source, "asyncpg.pool", "Pool"):
        return ExternalPoolDatabase(pool.acquire, schemas)
    if is_instance_by_name(source, "sqlalchemy.ext.asyncio", "AsyncEngine"):
        return ExternalPoolDatabase(
            pool.begin, schemas, pool.connect, _begin_sqlalchemy_transaction
        )
    raise ConfigurationError(
        f"a {type(source).__qualname__} is not a database for async code: expected a connection "
        "string, a function that returns one, a psycopg AsyncConnectionPool, an asyncpg Pool or a "
        "SQLAlchemy AsyncEngine. To join the transaction of a single connection, pass it to the "
        "call as conn=."
    )


def open_sync_database(
    source: object, schemas: Schemas, *, prepared_statements: bool = True
) -> SyncDatabase:
    """Open the database of a blocking client from its first argument."""
    if isinstance(source, SyncPsycopgDatabase | SyncConnectionPool | SyncExternalPoolDatabase):
        return source
    if is_conninfo_source(source):
        return SyncPsycopgDatabase(source, schemas, prepared_statements=prepared_statements)
    pool: Any = source
    if is_instance_by_name(source, "psycopg_pool", "ConnectionPool"):
        begin = partial(_begin_sync_psycopg, pool)
        return SyncExternalPoolDatabase(pool.connection, begin, schemas)
    if is_instance_by_name(source, "sqlalchemy.engine", "Engine"):
        begin = partial(_begin_sync_sqlalchemy, pool)
        return SyncExternalPoolDatabase(pool.begin, begin, schemas)
    raise ConfigurationError(
        f"a {type(source).__qualname__} is not a database for blocking code: expected a "
        "connection string, a function that returns one, a psycopg ConnectionPool or a SQLAlchemy "
        "Engine. To join the transaction of a single connection, pass it to the call as conn=."
    )


def is_psycopg_pool(source: object) -> "TypeGuard[psycopg_pool.AsyncConnectionPool[Any]]":
    return is_instance_by_name(source, "psycopg_pool", "AsyncConnectionPool")


def is_conninfo_source(source: object) -> TypeGuard[ConninfoSource]:
    """Return whether it is a connection string, a function that returns one, or None."""
    if source is None or isinstance(source, str):
        return True
    # A sessionmaker of SQLAlchemy can be called too. A class is passed by mistake.
    return callable(source) and not isinstance(source, type) and not hasattr(source, "begin")


class ExternalPoolDatabase:
    """The caller's pool. Each query takes a connection, whose return to the pool commits it."""

    def __init__(
        self,
        connect: ConnectionFactory,
        schemas: Schemas,
        connect_without_transaction: ConnectionFactory | None = None,
        begin: TransactionFactory | None = None,
    ) -> None:
        self.schemas = schemas
        self._connect = connect
        self._connect_without_transaction = connect_without_transaction or connect
        self._begin = begin or _begin_driver_transaction

    def limit_connections(self, max_connections: int) -> "ExternalPoolDatabase":
        """Return the same pool with a limit on the connections that are taken at the same time."""
        slots = asyncio.Semaphore(max_connections)
        connect, connect_without_transaction = (
            partial(_connect_in_slot, each, slots)
            for each in (self._connect, self._connect_without_transaction)
        )
        return ExternalPoolDatabase(connect, self.schemas, connect_without_transaction, self._begin)

    async def run(self, query: Query[T]) -> T:
        return await with_retries(lambda: self._run_once(query))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        async with (
            self._acquire(self._connect_without_transaction) as connection,
            self._begin_transaction(connection),
        ):
            yield self._adapt(connection)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        async with self._acquire(self._connect) as connection:
            yield self._adapt(connection)

    @asynccontextmanager
    async def listen(self, *channels: str) -> AsyncIterator[NotificationStream]:
        """Listen on one connection of the pool, which it loses meanwhile."""
        async with self._acquire(self._connect_without_transaction) as connection:
            raw = await _get_autocommit_connection(connection)
            try:
                async with open_notification_stream(raw, *channels) as stream:
                    yield stream
            finally:
                # Not for other uses: it still listens.
                await _discard_connection(connection if hasattr(connection, "invalidate") else raw)

    async def close(self) -> None:
        """Do nothing: the pool belongs to the caller."""

    def _acquire(self, connect: ConnectionFactory) -> AbstractAsyncContextManager[Any]:
        return connect()

    def _begin_transaction(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        return self._begin(connection)

    def _adapt(self, connection: Any) -> Connection:
        return adapt_connection(connection, self.schemas)

    async def _run_once(self, query: Query[T]) -> T:
        return await self._run_on_pool(query, [])

    async def _run_on_pool(self, query: Query[T], acquired: list[Any]) -> T:
        """Run a query on a connection of the pool, which is appended to `acquired`."""
        async with self._connect() as connection:
            acquired.append(get_driver_connection(connection))
            try:
                return await adapt_connection(connection, self.schemas).run(query)
            except Exception as error:
                if get_sqlstate(error) == READ_ONLY_SQL_TRANSACTION:
                    await _discard_connection(connection)
                raise


class SyncExternalPoolDatabase:
    """The caller's blocking pool. See `ExternalPoolDatabase`."""

    def __init__(
        self, connect: SyncConnectionFactory, begin: SyncConnectionFactory, schemas: Schemas
    ) -> None:
        self.schemas = schemas
        self._connect = connect
        self._begin = begin

    def run(self, query: Query[T]) -> T:
        return with_retries_sync(lambda: self._run_once(query))

    @contextmanager
    def transaction(self) -> Iterator[SyncQueryRunner]:
        with self._begin() as connection:
            yield adapt_sync_connection(connection, self.schemas)

    def close(self) -> None:
        """Do nothing: the pool belongs to the caller."""

    def _run_once(self, query: Query[T]) -> T:
        with self._connect() as connection:
            try:
                return adapt_sync_connection(connection, self.schemas).run(query)
            except Exception as error:
                if get_sqlstate(error) == READ_ONLY_SQL_TRANSACTION:
                    _discard_sync_connection(connection)
                raise


@asynccontextmanager
async def _connect_in_slot(
    connect: ConnectionFactory, slots: asyncio.Semaphore
) -> AsyncIterator[Any]:
    async with slots, connect() as connection:
        yield connection


async def _discard_connection(connection: Any) -> None:
    """Make the pool open another connection, which may lead to another server."""
    # An error here must not replace the first one, or a cancellation: asyncpg raises if the
    # connection was cut.
    with suppress(Exception):
        if hasattr(connection, "invalidate"):
            await connection.invalidate()
        elif isinstance(connection, psycopg.AsyncConnection):
            # Its close() may return it to its pool unchanged.
            connection.pgconn.finish()
        else:
            # Its close() waits for a server that may be unreachable.
            connection.terminate()


def _discard_sync_connection(connection: Any) -> None:
    """Discard a connection without await. See `_discard_connection`."""
    with suppress(Exception):
        if hasattr(connection, "invalidate"):
            connection.invalidate()
        else:
            # Its close() may return it to its pool unchanged.
            connection.pgconn.finish()


def get_driver_connection(connection: Any) -> Any:
    if is_instance_by_name(connection, "sqlalchemy.ext.asyncio", "AsyncConnection"):
        return connection.sync_connection.connection.driver_connection
    return connection


async def _get_autocommit_connection(connection: Any) -> Any:
    """Return the driver's connection in autocommit mode: a LISTEN takes effect at its commit."""
    if is_instance_by_name(connection, "sqlalchemy.ext.asyncio", "AsyncConnection"):
        await connection.commit()
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        connection = (await connection.get_raw_connection()).driver_connection
    if isinstance(connection, psycopg.AsyncConnection) and not connection.autocommit:
        await connection.set_autocommit(True)
    return connection


def _begin_driver_transaction(connection: Any) -> AbstractAsyncContextManager[Any]:
    transaction: AbstractAsyncContextManager[Any] = connection.transaction()
    return transaction


@asynccontextmanager
async def _begin_sqlalchemy_transaction(connection: Any) -> AsyncIterator[None]:
    # An engine may be in autocommit mode, where begin() has no effect.
    await connection.execution_options(isolation_level="READ COMMITTED")
    async with connection.begin():
        yield


@contextmanager
def _begin_sync_sqlalchemy(engine: Any) -> Iterator[Any]:
    with engine.connect() as connection:
        connection.execution_options(isolation_level="READ COMMITTED")
        with connection.begin():
            yield connection


@contextmanager
def _begin_sync_psycopg(pool: Any) -> Iterator[Any]:
    with pool.connection() as connection, connection.transaction():
        yield connection
