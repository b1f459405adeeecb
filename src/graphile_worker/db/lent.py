"""What a client may be given as its database: a connection string, or the caller's pool or engine.

A pool or engine is lent to us for our own use: we take connections from it, each query commits by
itself, and we never close it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
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
from graphile_worker.db.listening import Listening, listening
from graphile_worker.db.psycopg import PsycopgDatabase
from graphile_worker.errors import ConfigurationError
from graphile_worker.sql.failures import READ_ONLY, sqlstate_of
from graphile_worker.sql.identifiers import Schemas
from graphile_worker.sql.query import Query

T = TypeVar("T")

Borrowing = Callable[[], AbstractAsyncContextManager[Any]]
BlockingBorrowing = Callable[[], AbstractContextManager[Any]]


def open_database(
    source: object, schemas: Schemas, *, prepared_statements: bool = True
) -> Database:
    """The async database that a client was given."""
    if isinstance(source, PsycopgDatabase | LentDatabase | BorrowedDatabase):
        return source
    if source is None or isinstance(source, str):
        return PsycopgDatabase(source, schemas, prepared_statements=prepared_statements)
    if isinstance(source, psycopg_pool.AsyncConnectionPool):
        return LentDatabase(source.connection, _psycopg_transaction(source), schemas)
    if is_a(source, "asyncpg.pool", "Pool"):
        return LentDatabase(source.acquire, _asyncpg_transaction(source), schemas)  # type: ignore[attr-defined]  # known by class
    if is_a(source, "sqlalchemy.ext.asyncio", "AsyncEngine"):
        engine: Any = source
        return LentDatabase(engine.begin, _sqlalchemy_transaction(engine), schemas, engine.connect)
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
        begin: Borrowing,
        schemas: Schemas,
        keep: Borrowing | None = None,
    ) -> None:
        self.schemas = schemas
        self._connect = connect
        self._begin = begin
        # For somebody who does nothing with it that could be committed.
        self._keep = keep or connect

    def at_most(self, count: int) -> "LentDatabase":
        """The same pool, for somebody who may have so many of its connections at once."""
        turns = asyncio.Semaphore(count)
        return LentDatabase(
            _in_turn(self._connect, turns), _in_turn(self._begin, turns), self.schemas
        )

    async def run(self, query: Query[T]) -> T:
        return await with_retries(query, lambda: self._run_once(query))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        async with self._begin() as connection:
            yield borrow(connection, self.schemas)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        async with self._connect() as connection:
            yield borrow(connection, self.schemas)

    @asynccontextmanager
    async def listen(self, *channels: str) -> AsyncIterator[Listening]:
        """Listen on one connection of the pool, which is not there for others meanwhile."""
        async with self._keep() as connection:
            raw = await _of_driver(connection)
            try:
                async with listening(raw, *channels) as heard:
                    yield heard
            finally:
                # It listens.
                await _discard(connection if hasattr(connection, "invalidate") else raw)

    async def close(self) -> None:
        """Nothing: the pool is the caller's."""

    async def _run_once(self, query: Query[T]) -> T:
        async with self._connect() as connection:
            try:
                return await borrow(connection, self.schemas).run(query)
            except Exception as error:
                if sqlstate_of(error) == READ_ONLY:
                    await _discard(connection)
                raise


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
    await (connection.invalidate() if hasattr(connection, "invalidate") else connection.close())


def _discard_blocking(connection: Any) -> None:
    connection.invalidate() if hasattr(connection, "invalidate") else connection.close()


async def _of_driver(connection: Any) -> Any:
    """The driver's own connection, in autocommit mode: a LISTEN counts from its commit."""
    if is_a(connection, "sqlalchemy.ext.asyncio", "AsyncConnection"):
        await connection.commit()
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        connection = (await connection.get_raw_connection()).driver_connection
    if isinstance(connection, psycopg.AsyncConnection) and not connection.autocommit:
        await connection.set_autocommit(True)
    return connection


def _psycopg_transaction(pool: Any) -> Borrowing:
    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        async with pool.connection() as connection, connection.transaction():
            yield connection

    return begin


def _asyncpg_transaction(pool: Any) -> Borrowing:
    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        async with pool.acquire() as connection, connection.transaction():
            yield connection

    return begin


def _sqlalchemy_transaction(engine: Any) -> Borrowing:
    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        async with engine.connect() as connection:
            # An engine may be in autocommit mode, where begin() begins nothing.
            await connection.execution_options(isolation_level="READ COMMITTED")
            async with connection.begin():
                yield connection

    return begin


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
