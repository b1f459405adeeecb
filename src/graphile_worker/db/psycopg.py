"""Our own database for async code: autocommit psycopg connections, as many as are needed."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from datetime import timedelta
from typing import TypeVar
from weakref import WeakKeyDictionary, WeakSet

from psycopg import AsyncConnection, AsyncRawCursor, OperationalError, pq
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow, tuple_row

from graphile_worker.db.conninfo import resolve
from graphile_worker.db.database import has_input, has_rows, with_retries
from graphile_worker.db.deadline import ImpatientConnection
from graphile_worker.db.listening import Listening, listening
from graphile_worker.errors import ConfigurationError
from graphile_worker.sql.failures import READ_ONLY, sqlstate_of
from graphile_worker.sql.identifiers import Schemas
from graphile_worker.sql.query import Query
from graphile_worker.sql.statements import render_bytes

T = TypeVar("T")

# What is raised where there is no database, or none that lets us in.
CannotConnect = OperationalError

# Seconds. A statement that takes longer may follow a plan that was made for another table: one made
# while there were no jobs reads all of them, until the next analyze, however many have come since.
SLOW = 0.1

# Seconds before a connection that is still slow discards its plans again; doubled each time.
FIRST_REST = 1.0


def implementation() -> str:
    """How psycopg is built: binary, c, or python, which is several times slower."""
    return pq.__impl__


class PsycopgConnection:
    """One psycopg connection, ours or the caller's; rows are tuples whatever its owner prefers."""

    def __init__(self, connection: AsyncConnection[TupleRow], schemas: Schemas) -> None:
        self.raw = connection
        self._schemas = schemas

    async def run(self, query: Query[T]) -> T:
        text = render_bytes(query.statement, self._schemas)
        async with AsyncRawCursor(self.raw, row_factory=tuple_row) as cursor:
            await cursor.execute(text, query.args or None)
            return query.read(await cursor.fetchall() if has_rows(cursor.pgresult) else [])


class PsycopgDatabase:
    """Connections are opened as they are needed, up to a number, and belong to that event loop.

    Not psycopg_pool: its background tasks can keep a program from ending, and hide for half a
    minute why a database cannot be reached.
    """

    def __init__(
        self,
        conninfo: str | None,
        schemas: Schemas,
        *,
        max_size: int = 10,
        prepared_statements: bool = True,
        prepare_after: int = 5,
        answer_within: timedelta | None = None,
    ) -> None:
        self.schemas = schemas
        self._conninfo = resolve(conninfo)
        self._max_size = max_size
        self._answer_within = answer_within
        # PgBouncer before 1.21 mixes up prepared statements in transaction mode.
        self._prepare_threshold = prepare_after if prepared_statements else None
        self._open: _OpenConnections | None = None

    async def run(self, query: Query[T]) -> T:
        return await with_retries(query, lambda: self._run_once(query))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PsycopgConnection]:
        async with self._connections().take() as connection, connection.transaction():
            yield PsycopgConnection(connection, self.schemas)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[PsycopgConnection]:
        """A connection in autocommit mode; what its user left open is rolled back."""
        async with self._connections().take() as connection:
            yield PsycopgConnection(connection, self.schemas)

    @asynccontextmanager
    async def listen(self, *channels: str) -> AsyncIterator[Listening]:
        """Listen on a connection for that alone, beside the others."""
        connection = await self._connect()
        try:
            async with listening(connection, *channels) as heard:
                yield heard
        finally:
            await connection.close()

    async def close(self) -> None:
        if self._open is not None:
            closing, self._open = self._open, None
            await closing.close()

    async def _run_once(self, query: Query[T]) -> T:
        async with self._connections().take() as connection, self._limit():
            began = time.monotonic()
            answer = await PsycopgConnection(connection, self.schemas).run(query)
            # Without prepared statements there is no plan to be forgotten.
            if self._prepare_threshold is not None:
                is_slow = time.monotonic() - began > SLOW
                self._connections().judge(connection, is_slow=is_slow)
            return answer

    def _limit(self) -> AbstractAsyncContextManager[object]:
        if self._answer_within is None:
            return nullcontext()
        return asyncio.timeout(self._answer_within.total_seconds())

    def _connections(self) -> "_OpenConnections":
        if self._open is None:
            self._open = _OpenConnections(self._connect, self._limit, self._max_size)
        # They answer only in the loop that they were opened in; elsewhere calls would hang.
        if self._open.loop is not asyncio.get_running_loop():
            raise ConfigurationError(
                "this client was first used in another event loop and not closed there: "
                "build one for each loop, or use graphile_worker.sync.Client"
            )
        return self._open

    async def _connect(self) -> AsyncConnection[TupleRow]:
        kind = AsyncConnection if self._answer_within is None else ImpatientConnection
        return await kind.connect(
            self._conninfo, autocommit=True, prepare_threshold=self._prepare_threshold
        )


class _OpenConnections:
    """The connections of one loop: whoever needs one waits for its turn and opens it if it must."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[AsyncConnection[TupleRow]]],
        limit: Callable[[], AbstractAsyncContextManager[object]],
        max_size: int,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._connect = connect
        self._limit = limit
        self._turns = asyncio.Semaphore(max_size)
        # The one used last is used next: the others can fall asleep.
        self._idle: list[AsyncConnection[TupleRow]] = []
        # Connections that must discard their plans before the next use. For those that have done so
        # and are still slow: when that was, and how many seconds must pass before they do it again.
        self._distrusted: WeakSet[AsyncConnection[TupleRow]] = WeakSet()
        self._planned_at: WeakKeyDictionary[AsyncConnection[TupleRow], float] = WeakKeyDictionary()
        self._rests: WeakKeyDictionary[AsyncConnection[TupleRow], float] = WeakKeyDictionary()
        self._closed = False

    @asynccontextmanager
    async def take(self) -> AsyncIterator[AsyncConnection[TupleRow]]:
        async with self._turns:
            connection = await self._living() or await self._connect()
            try:
                yield connection
            except Exception as error:
                if sqlstate_of(error) == READ_ONLY:
                    # Its address may lead to another server by now.
                    await connection.close()
                raise
            finally:
                await self._give_back(connection)

    def judge(self, connection: AsyncConnection[TupleRow], *, is_slow: bool) -> None:
        """Have a slow connection discard its plans; ever more rarely while that does not help."""
        if not is_slow:
            self._planned_at.pop(connection, None)
            self._rests.pop(connection, None)
            return
        rested = time.monotonic() - self._planned_at.get(connection, -math.inf)
        if rested >= self._rests.get(connection, 0.0):
            self._distrusted.add(connection)

    async def close(self) -> None:
        self._closed = True
        await self._close_idle()

    async def _living(self) -> AsyncConnection[TupleRow] | None:
        while self._idle:
            connection = self._idle.pop()
            if await self._can_be_used(connection):
                return connection
            await connection.close()
        return None

    async def _can_be_used(self, connection: AsyncConnection[TupleRow]) -> bool:
        if connection.closed:
            return False
        is_distrusted = connection in self._distrusted
        # What it says unasked is a farewell, most likely.
        if not is_distrusted and not has_input(connection.fileno()):
            return True
        try:
            async with self._limit():
                await connection.execute("discard plans" if is_distrusted else "select 1")
        except (OperationalError, TimeoutError):
            return False
        if is_distrusted:
            self._distrusted.discard(connection)
            self._planned_at[connection] = time.monotonic()
            self._rests[connection] = 2 * self._rests.get(connection, FIRST_REST / 2)
        return True

    async def _give_back(self, connection: AsyncConnection[TupleRow]) -> None:
        if connection.closed:
            # Where one was lost, the others most likely are too, and may not say so.
            await self._close_idle()
        elif self._closed or not _is_as_new(connection):
            await connection.close()
        else:
            self._idle.append(connection)

    async def _close_idle(self) -> None:
        while self._idle:
            await self._idle.pop().close()


def _is_as_new(connection: AsyncConnection[TupleRow]) -> bool:
    # A call that was cancelled may leave a statement behind, and a task may change the mode.
    idle = connection.info.transaction_status == TransactionStatus.IDLE
    return idle and connection.autocommit
