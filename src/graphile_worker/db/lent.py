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

from graphile_worker.db.blocking import BlockingConnections, BlockingPsycopgDatabase
from graphile_worker.db.borrowed import BorrowedDatabase, borrow, borrow_blocking, is_a
from graphile_worker.db.database import (
    BlockingConnection,
    BlockingDatabase,
    Connection,
    Database,
    with_retries,
    with_retries_blocking,
)
from graphile_worker.db.deadline import STOP_WITHIN, in_time
from graphile_worker.db.listening import Listening, listening
from graphile_worker.db.psycopg import PsycopgDatabase
from graphile_worker.errors import ConfigurationError
from graphile_worker.sql.failures import READ_ONLY, sqlstate_of
from graphile_worker.sql.identifiers import Schemas
from graphile_worker.sql.query import Query
from graphile_worker.sql.testing import probe

T = TypeVar("T")

Borrowing = Callable[[], AbstractAsyncContextManager[Any]]
Beginning = Callable[[Any], AbstractAsyncContextManager[Any]]
BlockingBorrowing = Callable[[], AbstractContextManager[Any]]

# Seconds in which idle connections must answer, after another one of their pool has not.
CHECK_WITHIN = 1.0


def open_database(
    source: object, schemas: Schemas, *, prepared_statements: bool = True
) -> Database:
    """The async database that a client was given."""
    if isinstance(source, PsycopgDatabase | LentDatabase | BorrowedDatabase):
        return source
    if source is None or isinstance(source, str):
        return PsycopgDatabase(source, schemas, prepared_statements=prepared_statements)
    if isinstance(source, psycopg_pool.AsyncConnectionPool):
        return LentDatabase(source.connection, schemas)
    if is_a(source, "asyncpg.pool", "Pool"):
        return LentDatabase(source.acquire, schemas)  # type: ignore[attr-defined]  # known by class
    if is_a(source, "sqlalchemy.ext.asyncio", "AsyncEngine"):
        engine: Any = source
        return LentDatabase(engine.begin, schemas, engine.connect, _sqlalchemy_transaction)
    raise ConfigurationError(
        f"a {type(source).__qualname__} is not a database for async code: expected a connection "
        "string, a psycopg AsyncConnectionPool, an asyncpg Pool or a SQLAlchemy AsyncEngine. "
        "A single connection is given to the calls that shall join it, as conn="
    )


def open_blocking_database(
    source: object, schemas: Schemas, *, prepared_statements: bool = True
) -> BlockingDatabase:
    """The blocking database that a client was given."""
    if isinstance(source, BlockingPsycopgDatabase | BlockingConnections | BlockingLentDatabase):
        return source
    if source is None or isinstance(source, str):
        return BlockingPsycopgDatabase(source, schemas, prepared_statements=prepared_statements)
    if isinstance(source, psycopg_pool.ConnectionPool):
        return BlockingLentDatabase(
            source.connection, _blocking_psycopg_transaction(source), schemas
        )
    if is_a(source, "sqlalchemy.engine", "Engine"):
        begin = _blocking_sqlalchemy_transaction(source)
        return BlockingLentDatabase(source.begin, begin, schemas)  # type: ignore[attr-defined]  # known by class
    raise ConfigurationError(
        f"a {type(source).__qualname__} is not a database for blocking code: expected a "
        "connection string, a psycopg ConnectionPool or a SQLAlchemy Engine. A single connection "
        "is given to the calls that shall join it, as conn="
    )


class LentDatabase:
    """Borrows a connection for each query, which commits as the connection is given back."""

    def __init__(
        self,
        connect: Borrowing,
        schemas: Schemas,
        keep: Borrowing | None = None,
        begin: Beginning | None = None,
    ) -> None:
        self.schemas = schemas
        self._connect = connect
        # Gives a connection on which no transaction has begun.
        self._keep = keep or connect
        self._begin = begin or _transaction

    def at_most(self, count: int) -> "LentDatabase":
        """The same pool, for somebody who may have so many of its connections at once."""
        turns = asyncio.Semaphore(count)
        connect, keep = (_in_turn(each, turns) for each in (self._connect, self._keep))
        return LentDatabase(connect, self.schemas, keep, self._begin)

    async def run(self, query: Query[T]) -> T:
        return await with_retries(query, lambda: self._run_once(query))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        async with self._lend(self._keep) as connection, self._begun(connection):
            yield self._usable(connection)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        async with self._lend(self._connect) as connection:
            yield self._usable(connection)

    @asynccontextmanager
    async def listen(self, *channels: str) -> AsyncIterator[Listening]:
        """Listen on one connection of the pool, which is not there for others meanwhile."""
        async with self._lend(self._keep) as connection:
            raw = await _of_driver(connection)
            try:
                async with listening(raw, *channels) as heard:
                    yield heard
            finally:
                # It listens.
                await _discard(connection if hasattr(connection, "invalidate") else raw)

    async def close(self) -> None:
        """Nothing: the pool is the caller's."""

    def _lend(self, borrowing: Borrowing) -> AbstractAsyncContextManager[Any]:
        return borrowing()

    def _begun(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        return self._begin(connection)

    def _usable(self, connection: Any) -> Connection:
        return borrow(connection, self.schemas)

    async def _run_once(self, query: Query[T]) -> T:
        return await self._ask(query, [])

    async def _ask(self, query: Query[T], borrowed: list[Any]) -> T:
        """Ask on a connection of the pool, which is added to those `borrowed`."""
        async with self._connect() as connection:
            borrowed.append(_driver_of(connection))
            try:
                return await borrow(connection, self.schemas).run(query)
            except Exception as error:
                if sqlstate_of(error) == READ_ONLY:
                    await _discard(connection)
                raise


class ImpatientDatabase(LentDatabase):
    """A lent pool for a worker: connections whose server does not answer are taken out of it.

    A driver may wait for a server that has vanished for ever, even when it is canceled. So what it
    does runs in a task of its own, which can be left, and its connection is cut.
    """

    def __init__(
        self, lent: LentDatabase, answer_within: timedelta, idle: Callable[[], int]
    ) -> None:
        super().__init__(lent._connect, lent.schemas, lent._keep, lent._begin)
        self._seconds = answer_within.total_seconds()
        self._idle = idle

    @asynccontextmanager
    async def listen(self, *channels: str) -> AsyncIterator[Listening]:
        try:
            async with super().listen(*channels) as heard:
                yield heard
        except TimeoutError:
            await self._check_idle()
            raise

    def _lend(self, borrowing: Borrowing) -> AbstractAsyncContextManager[Any]:
        return _InTime(borrowing(), self._seconds)

    def _begun(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        return _InTime(self._begin(connection), self._seconds, connection)

    def _usable(self, connection: Any) -> Connection:
        return _GuardedConnection(borrow(connection, self.schemas))

    async def _run_once(self, query: Query[T]) -> T:
        borrowed: list[Any] = []
        asking = self._ask(query, borrowed)
        return await in_time(asking, self._seconds, borrowed, meanwhile=self._check_idle)

    async def _check_idle(self) -> None:
        """Where one connection was lost, the others most likely are too, and do not say so."""
        checks = [self._check_one() for _ in range(self._idle())]
        await asyncio.gather(*checks, return_exceptions=True)

    async def _check_one(self) -> None:
        borrowed: list[Any] = []
        await in_time(self._ask(probe(), borrowed), CHECK_WITHIN, borrowed, patience=0)


class _InTime:
    """Takes a connection of a pool, or begins a transaction on one that is given, and ends that.

    Each of it is done in time, or the connection is cut.
    """

    def __init__(
        self, inner: AbstractAsyncContextManager[Any], seconds: float, connection: Any = None
    ) -> None:
        self._inner = inner
        self._seconds = seconds
        self._stack = AsyncExitStack()
        self._borrowed = [] if connection is None else [_driver_of(connection)]

    async def __aenter__(self) -> Any:
        try:
            entered = await self._in_time(self._stack.enter_async_context(self._inner))
        except BaseException:
            # It may have been entered in the moment in which that was given up.
            with suppress(Exception):
                await self._in_time(self._stack.aclose())
            raise
        if not self._borrowed:
            self._borrowed.append(_driver_of(entered))
        return entered

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        # What was canceled most likely had no answer: that is not worth as much time again.
        if isinstance(error, asyncio.CancelledError):
            self._seconds = min(self._seconds, STOP_WITHIN)
        try:
            return await self._in_time(self._stack.__aexit__(kind, error, trace))
        except Exception:
            # What came first is what the caller must hear of, above all a cancellation.
            if error is None:
                raise
            return False

    async def _in_time(self, work: Coroutine[Any, Any, T]) -> T:
        return await in_time(work, self._seconds, self._borrowed)


class _GuardedConnection:
    """A lent connection; a statement on it may take as long as its caller waits for it."""

    def __init__(self, connection: Connection) -> None:
        self.raw = connection.raw
        self._connection = connection
        self._borrowed = [_driver_of(connection.raw)]

    async def run(self, query: Query[T]) -> T:
        return await in_time(self._connection.run(query), None, self._borrowed)


class BlockingLentDatabase:
    """`LentDatabase` without await."""

    def __init__(
        self, connect: BlockingBorrowing, begin: BlockingBorrowing, schemas: Schemas
    ) -> None:
        self.schemas = schemas
        self._connect = connect
        self._begin = begin

    def run(self, query: Query[T]) -> T:
        return with_retries_blocking(query, lambda: self._run_once(query))

    @contextmanager
    def transaction(self) -> Iterator[BlockingConnection]:
        with self._begin() as connection:
            yield borrow_blocking(connection, self.schemas)

    def close(self) -> None:
        """Nothing: the pool is the caller's."""

    def _run_once(self, query: Query[T]) -> T:
        with self._connect() as connection:
            try:
                return borrow_blocking(connection, self.schemas).run(query)
            except Exception as error:
                if sqlstate_of(error) == READ_ONLY:
                    _discard_blocking(connection)
                raise


def _in_turn(borrowing: Borrowing, turns: asyncio.Semaphore) -> Borrowing:
    @asynccontextmanager
    async def borrow_in_turn() -> AsyncIterator[Any]:
        async with turns, borrowing() as connection:
            yield connection

    return borrow_in_turn


async def _discard(connection: Any) -> None:
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


def _discard_blocking(connection: Any) -> None:
    connection.invalidate() if hasattr(connection, "invalidate") else connection.close()


def _driver_of(connection: Any) -> Any:
    if is_a(connection, "sqlalchemy.ext.asyncio", "AsyncConnection"):
        return connection.sync_connection.connection.driver_connection
    return connection


async def _of_driver(connection: Any) -> Any:
    """The driver's own connection, in autocommit mode: a LISTEN counts from its commit."""
    if is_a(connection, "sqlalchemy.ext.asyncio", "AsyncConnection"):
        await connection.commit()
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        connection = (await connection.get_raw_connection()).driver_connection
    if isinstance(connection, psycopg.AsyncConnection) and not connection.autocommit:
        await connection.set_autocommit(True)
    return connection


def _transaction(connection: Any) -> AbstractAsyncContextManager[Any]:
    begun: AbstractAsyncContextManager[Any] = connection.transaction()
    return begun


@asynccontextmanager
async def _sqlalchemy_transaction(connection: Any) -> AsyncIterator[None]:
    # An engine may be in autocommit mode, where begin() begins nothing.
    await connection.execution_options(isolation_level="READ COMMITTED")
    async with connection.begin():
        yield


def _blocking_sqlalchemy_transaction(engine: Any) -> BlockingBorrowing:
    @contextmanager
    def begin() -> Iterator[Any]:
        with engine.connect() as connection:
            connection.execution_options(isolation_level="READ COMMITTED")
            with connection.begin():
                yield connection

    return begin


def _blocking_psycopg_transaction(pool: Any) -> BlockingBorrowing:
    @contextmanager
    def begin() -> Iterator[Any]:
        with pool.connection() as connection, connection.transaction():
            yield connection

    return begin
