"""Our own database for async code: a pool of autocommit psycopg connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from psycopg import AsyncConnection, AsyncRawCursor, OperationalError
from psycopg.pq import ConnStatus
from psycopg.rows import TupleRow, tuple_row
from psycopg_pool import AsyncConnectionPool

from graphile_worker.db.conninfo import resolve
from graphile_worker.db.database import Connection, act_with_retries
from graphile_worker.errors import ConfigurationError
from graphile_worker.sql.identifiers import Schemas
from graphile_worker.sql.query import Query
from graphile_worker.sql.statements import render_bytes

T = TypeVar("T")


class PsycopgConnection:
    """One psycopg connection, ours or the caller's; rows are tuples whatever its owner prefers."""

    def __init__(self, connection: AsyncConnection[TupleRow], schemas: Schemas) -> None:
        self._connection = connection
        self._schemas = schemas

    async def run(self, query: Query[T]) -> T:
        text = render_bytes(query.statement, self._schemas)
        async with AsyncRawCursor(self._connection, row_factory=tuple_row) as cursor:
            await cursor.execute(text, query.args or None)
            return query.read(await cursor.fetchall() if cursor.description else [])


class PsycopgDatabase:
    """A pool that opens with its first query and belongs to that event loop."""

    def __init__(
        self,
        conninfo: str | None,
        schemas: Schemas,
        *,
        max_size: int = 10,
        prepared_statements: bool = True,
    ) -> None:
        self.schemas = schemas
        self._conninfo = resolve(conninfo)
        self._max_size = max_size
        # PgBouncer before 1.21 mixes up prepared statements in transaction mode.
        self._prepare_threshold = 5 if prepared_statements else None
        self._pool: AsyncConnectionPool | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()

    async def run(self, query: Query[T]) -> T:
        return await act_with_retries(query, self._run_once)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        pool = await self._opened()
        async with pool.connection() as connection, connection.transaction():
            yield PsycopgConnection(connection, self.schemas)

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.close()
            self._pool = self._loop = None

    async def _run_once(self, query: Query[T]) -> T:
        pool = await self._opened()
        async with pool.connection() as connection:
            return await PsycopgConnection(connection, self.schemas).run(query)

    async def _opened(self) -> AsyncConnectionPool:
        if self._pool is not None:
            self._check_loop()
            return self._pool
        async with self._opening:
            if self._pool is None:
                pool = AsyncConnectionPool(
                    self._conninfo,
                    min_size=0,
                    max_size=self._max_size,
                    kwargs={"autocommit": True, "prepare_threshold": self._prepare_threshold},
                    check=_check_alive,
                    open=False,
                )
                await pool.open()
                self._pool = pool
                self._loop = asyncio.get_running_loop()
            return self._pool

    def _check_loop(self) -> None:
        # A pool answers only in the loop that it was opened in; elsewhere calls would hang.
        if self._loop is not asyncio.get_running_loop():
            raise ConfigurationError(
                "this client was first used in another event loop and not closed there: "
                "build one for each loop, or use graphile_worker.sync.Client"
            )


async def _check_alive(connection: AsyncConnection[TupleRow]) -> None:
    """Raise if the server has hung up: a look at the socket, not a round trip."""
    connection.pgconn.consume_input()
    if connection.pgconn.status != ConnStatus.OK:
        raise OperationalError("the server closed the connection")
