"""What a client may be given as its database: a connection string, or the caller's pool or engine.

A pool or engine is lent to us for our own use: we take connections from it, each query commits by
itself, and we never close it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeVar

import psycopg
import psycopg_pool

from graphile_worker._db.cancellable_connection import CANCEL_GRACE_SECONDS, run_with_deadline
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
from graphile_worker._sql.queries.testing import probe
from graphile_worker._sql.query import Query
from graphile_worker._sql.sqlstate import READ_ONLY_SQL_TRANSACTION, get_sqlstate
from graphile_worker.errors import ConfigurationError

T = TypeVar("T")

ConnectionFactory = Callable[[], AbstractAsyncContextManager[Any]]
TransactionFactory = Callable[[Any], AbstractAsyncContextManager[Any]]
SyncConnectionFactory = Callable[[], AbstractContextManager[Any]]

# Seconds in which idle connections must answer, after another one of their pool has not.
CHECK_TIMEOUT_SECONDS = 1.0


def open_database(
    source: object, schemas: Schemas, *, prepared_statements: bool = True
) -> Database:
    """The async database that a client was given."""
    if isinstance(source, PsycopgDatabase | ExternalPoolDatabase | ExternalConnectionDatabase):
        return source
    if source is None or isinstance(source, str):
        return PsycopgDatabase(source, schemas, prepared_statements=prepared_statements)
    if isinstance(source, psycopg_pool.AsyncConnectionPool):
        return ExternalPoolDatabase(source.connection, schemas)
    if is_instance_by_name(source, "asyncpg.pool", "Pool"):
        return ExternalPoolDatabase(source.acquire, schemas)  # type: ignore[attr-defined]  # known by class
    if is_instance_by_name(source, "sqlalchemy.ext.asyncio", "AsyncEngine"):
        engine: Any = source
        return ExternalPoolDatabase(
            engine.begin, schemas, engine.connect, _begin_sqlalchemy_transaction
        )
    raise ConfigurationError(
        f"a {type(source).__qualname__} is not a database for async code: expected a connection "
        "string, a psycopg AsyncConnectionPool, an asyncpg Pool or a SQLAlchemy AsyncEngine. "
        "A single connection is given to the calls that shall join it, as conn="
    )


def open_sync_database(
    source: object, schemas: Schemas, *, prepared_statements: bool = True
) -> SyncDatabase:
    """The blocking database that a client was given."""
    if isinstance(source, SyncPsycopgDatabase | SyncConnectionPool | SyncExternalPoolDatabase):
        return source
    if source is None or isinstance(source, str):
        return SyncPsycopgDatabase(source, schemas, prepared_statements=prepared_statements)
    if isinstance(source, psycopg_pool.ConnectionPool):
        return SyncExternalPoolDatabase(
            source.connection, _build_sync_psycopg_transaction(source), schemas
        )
    if is_instance_by_name(source, "sqlalchemy.engine", "Engine"):
        begin = _build_sync_sqlalchemy_transaction(source)
        return SyncExternalPoolDatabase(source.begin, begin, schemas)  # type: ignore[attr-defined]  # known by class
    raise ConfigurationError(
        f"a {type(source).__qualname__} is not a database for blocking code: expected a "
        "connection string, a psycopg ConnectionPool or a SQLAlchemy Engine. A single connection "
        "is given to the calls that shall join it, as conn="
    )


class ExternalPoolDatabase:
    """Borrows a connection for each query, which commits as the connection is given back."""

    def __init__(
        self,
        connect: ConnectionFactory,
        schemas: Schemas,
        connect_without_transaction: ConnectionFactory | None = None,
        begin: TransactionFactory | None = None,
    ) -> None:
        self.schemas = schemas
        self._connect = connect
        # Gives a connection on which no transaction has begun.
        self._connect_without_transaction = connect_without_transaction or connect
        self._begin = begin or _begin_driver_transaction

    def limit_connections(self, max_connections: int) -> "ExternalPoolDatabase":
        """The same pool, for somebody who may have so many of its connections at once."""
        turns = asyncio.Semaphore(max_connections)
        connect, keep = (
            _limit_concurrency(each, turns)
            for each in (self._connect, self._connect_without_transaction)
        )
        return ExternalPoolDatabase(connect, self.schemas, keep, self._begin)

    async def run(self, query: Query[T]) -> T:
        return await with_retries(query, lambda: self._run_once(query))

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
        """Listen on one connection of the pool, which is not there for others meanwhile."""
        async with self._acquire(self._connect_without_transaction) as connection:
            raw = await _get_autocommit_connection(connection)
            try:
                async with open_notification_stream(raw, *channels) as heard:
                    yield heard
            finally:
                # It listens.
                await _discard_connection(connection if hasattr(connection, "invalidate") else raw)

    async def close(self) -> None:
        """Nothing: the pool is the caller's."""

    def _acquire(self, connect: ConnectionFactory) -> AbstractAsyncContextManager[Any]:
        return connect()

    def _begin_transaction(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        return self._begin(connection)

    def _adapt(self, connection: Any) -> Connection:
        return adapt_connection(connection, self.schemas)

    async def _run_once(self, query: Query[T]) -> T:
        return await self._run_on_pool(query, [])

    async def _run_on_pool(self, query: Query[T], acquired: list[Any]) -> T:
        """Ask on a connection of the pool, which is added to those `borrowed`."""
        async with self._connect() as connection:
            acquired.append(_get_driver_connection(connection))
            try:
                return await adapt_connection(connection, self.schemas).run(query)
            except Exception as error:
                if get_sqlstate(error) == READ_ONLY_SQL_TRANSACTION:
                    await _discard_connection(connection)
                raise


class NoWaitCancelDatabase(ExternalPoolDatabase):
    """A lent pool for a worker: connections whose server does not answer are taken out of it.

    A driver may wait for a server that has vanished for ever, even when it is canceled. So what it
    does runs in a task of its own, which can be left, and its connection is cut.
    """

    def __init__(
        self,
        database: ExternalPoolDatabase,
        query_timeout: timedelta,
        count_idle: Callable[[], int],
    ) -> None:
        super().__init__(
            database._connect,
            database.schemas,
            database._connect_without_transaction,
            database._begin,
        )
        self._timeout_seconds = query_timeout.total_seconds()
        self._count_idle = count_idle

    @asynccontextmanager
    async def listen(self, *channels: str) -> AsyncIterator[NotificationStream]:
        try:
            async with super().listen(*channels) as heard:
                yield heard
        except TimeoutError:
            await self._check_idle_connections()
            raise

    def _acquire(self, connect: ConnectionFactory) -> AbstractAsyncContextManager[Any]:
        return _DeadlineContext(connect(), self._timeout_seconds)

    def _begin_transaction(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        return _DeadlineContext(self._begin(connection), self._timeout_seconds, connection)

    def _adapt(self, connection: Any) -> Connection:
        return _CancellableConnection(adapt_connection(connection, self.schemas))

    async def _run_once(self, query: Query[T]) -> T:
        borrowed: list[Any] = []
        asking = self._run_on_pool(query, borrowed)
        return await run_with_deadline(
            asking, self._timeout_seconds, borrowed, on_abandon=self._check_idle_connections
        )

    async def _check_idle_connections(self) -> None:
        """Where one connection was lost, the others most likely are too, and do not say so."""
        checks = [self._check_connection() for _ in range(self._count_idle())]
        await asyncio.gather(*checks, return_exceptions=True)

    async def _check_connection(self) -> None:
        borrowed: list[Any] = []
        await run_with_deadline(
            self._run_on_pool(probe(), borrowed), CHECK_TIMEOUT_SECONDS, borrowed, grace_seconds=0
        )


class _DeadlineContext:
    """Takes a connection of a pool, or begins a transaction on one that is given, and ends that.

    Each of it is done in time, or the connection is cut.
    """

    def __init__(
        self,
        inner: AbstractAsyncContextManager[Any],
        timeout_seconds: float,
        connection: Any = None,
    ) -> None:
        self._inner = inner
        self._timeout_seconds = timeout_seconds
        self._stack = AsyncExitStack()
        self._acquired = [] if connection is None else [_get_driver_connection(connection)]

    async def __aenter__(self) -> Any:
        try:
            entered = await self._run_with_deadline(self._stack.enter_async_context(self._inner))
        except BaseException:
            # It may have been entered in the moment in which that was given up.
            with suppress(Exception):
                await self._run_with_deadline(self._stack.aclose())
            raise
        if not self._acquired:
            self._acquired.append(_get_driver_connection(entered))
        return entered

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        # What was canceled most likely had no answer: that is not worth as much time again.
        if isinstance(error, asyncio.CancelledError):
            self._timeout_seconds = min(self._timeout_seconds, CANCEL_GRACE_SECONDS)
        try:
            return await self._run_with_deadline(self._stack.__aexit__(kind, error, trace))
        except Exception:
            # What came first is what the caller must hear of, above all a cancellation.
            if error is None:
                raise
            return False

    async def _run_with_deadline(self, work: Coroutine[Any, Any, T]) -> T:
        return await run_with_deadline(work, self._timeout_seconds, self._acquired)


class _CancellableConnection:
    """A lent connection; a statement on it may take as long as its caller waits for it."""

    def __init__(self, connection: Connection) -> None:
        self.raw = connection.raw
        self._connection = connection
        self._acquired = [_get_driver_connection(connection.raw)]

    async def run(self, query: Query[T]) -> T:
        return await run_with_deadline(self._connection.run(query), None, self._acquired)


class SyncExternalPoolDatabase:
    """`ExternalPoolDatabase` without await."""

    def __init__(
        self, connect: SyncConnectionFactory, begin: SyncConnectionFactory, schemas: Schemas
    ) -> None:
        self.schemas = schemas
        self._connect = connect
        self._begin = begin

    def run(self, query: Query[T]) -> T:
        return with_retries_sync(query, lambda: self._run_once(query))

    @contextmanager
    def transaction(self) -> Iterator[SyncQueryRunner]:
        with self._begin() as connection:
            yield adapt_sync_connection(connection, self.schemas)

    def close(self) -> None:
        """Nothing: the pool is the caller's."""

    def _run_once(self, query: Query[T]) -> T:
        with self._connect() as connection:
            try:
                return adapt_sync_connection(connection, self.schemas).run(query)
            except Exception as error:
                if get_sqlstate(error) == READ_ONLY_SQL_TRANSACTION:
                    _discard_connection_sync(connection)
                raise


def _limit_concurrency(connect: ConnectionFactory, slots: asyncio.Semaphore) -> ConnectionFactory:
    @asynccontextmanager
    async def borrow_in_turn() -> AsyncIterator[Any]:
        async with slots, connect() as connection:
            yield connection

    return borrow_in_turn


async def _discard_connection(connection: Any) -> None:
    """Let the pool make another one, which may lead to another server."""
    # The error that led here, or a cancellation, must not be replaced: asyncpg raises where the
    # connection was cut.
    with suppress(Exception):
        if hasattr(connection, "invalidate"):
            await connection.invalidate()
        elif isinstance(connection, psycopg.AsyncConnection):
            # Its close() may give it back to its pool as it is.
            connection.pgconn.finish()
        else:
            # Its close() waits for the word of a server that may have vanished.
            connection.terminate()


def _discard_connection_sync(connection: Any) -> None:
    connection.invalidate() if hasattr(connection, "invalidate") else connection.close()


def _get_driver_connection(connection: Any) -> Any:
    if is_instance_by_name(connection, "sqlalchemy.ext.asyncio", "AsyncConnection"):
        return connection.sync_connection.connection.driver_connection
    return connection


async def _get_autocommit_connection(connection: Any) -> Any:
    """The driver's own connection, in autocommit mode: a LISTEN counts from its commit."""
    if is_instance_by_name(connection, "sqlalchemy.ext.asyncio", "AsyncConnection"):
        await connection.commit()
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        connection = (await connection.get_raw_connection()).driver_connection
    if isinstance(connection, psycopg.AsyncConnection) and not connection.autocommit:
        await connection.set_autocommit(True)
    return connection


def _begin_driver_transaction(connection: Any) -> AbstractAsyncContextManager[Any]:
    begun: AbstractAsyncContextManager[Any] = connection.transaction()
    return begun


@asynccontextmanager
async def _begin_sqlalchemy_transaction(connection: Any) -> AsyncIterator[None]:
    # An engine may be in autocommit mode, where begin() begins nothing.
    await connection.execution_options(isolation_level="READ COMMITTED")
    async with connection.begin():
        yield


def _build_sync_sqlalchemy_transaction(engine: Any) -> SyncConnectionFactory:
    @contextmanager
    def begin() -> Iterator[Any]:
        with engine.connect() as connection:
            connection.execution_options(isolation_level="READ COMMITTED")
            with connection.begin():
                yield connection

    return begin


def _build_sync_psycopg_transaction(pool: Any) -> SyncConnectionFactory:
    @contextmanager
    def begin() -> Iterator[Any]:
        with pool.connection() as connection, connection.transaction():
            yield connection

    return begin
