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

from graphile_worker._db.cancellable_connection import NoWaitCancelConnection
from graphile_worker._db.conninfo import resolve_conninfo
from graphile_worker._db.database import has_input, has_rows, with_retries
from graphile_worker._db.notifications import NotificationStream, open_notification_stream
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.query import Query
from graphile_worker._sql.render import render_bytes
from graphile_worker._sql.sqlstate import READ_ONLY_SQL_TRANSACTION, get_sqlstate
from graphile_worker.errors import ConfigurationError

T = TypeVar("T")

# What is raised where there is no database, or none that lets us in.
ConnectError = OperationalError

# Seconds. A statement that takes longer may follow a plan that was made for another table: one made
# while there were no jobs reads all of them, until the next analyze, however many have come since.
SLOW_QUERY_SECONDS = 0.1

# Seconds before a connection that is still slow discards its plans again; doubled each time.
FIRST_DISCARD_DELAY_SECONDS = 1.0


def get_psycopg_implementation() -> str:
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
        query_timeout: timedelta | None = None,
    ) -> None:
        self.schemas = schemas
        self._conninfo = resolve_conninfo(conninfo)
        self._max_size = max_size
        self._query_timeout = query_timeout
        # PgBouncer before 1.21 mixes up prepared statements in transaction mode.
        self._prepare_threshold = prepare_after if prepared_statements else None
        self._pool: _LoopConnectionPool | None = None

    async def run(self, query: Query[T]) -> T:
        return await with_retries(query, lambda: self._run_once(query))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PsycopgConnection]:
        async with self._get_pool().acquire() as connection, connection.transaction():
            yield PsycopgConnection(connection, self.schemas)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[PsycopgConnection]:
        """A connection in autocommit mode; what its user left open is rolled back."""
        async with self._get_pool().acquire() as connection:
            yield PsycopgConnection(connection, self.schemas)

    @asynccontextmanager
    async def listen(self, *channels: str) -> AsyncIterator[NotificationStream]:
        """Listen on a connection for that alone, beside the others."""
        connection = await self._connect()
        try:
            async with open_notification_stream(connection, *channels) as heard:
                yield heard
        finally:
            await connection.close()

    async def close(self) -> None:
        if self._pool is not None:
            closing, self._pool = self._pool, None
            await closing.close()

    async def _run_once(self, query: Query[T]) -> T:
        async with self._get_pool().acquire() as connection, self._apply_timeout():
            began = time.monotonic()
            answer = await PsycopgConnection(connection, self.schemas).run(query)
            # Without prepared statements there is no plan to be forgotten.
            if self._prepare_threshold is not None:
                is_slow = time.monotonic() - began > SLOW_QUERY_SECONDS
                self._get_pool().record_query_speed(connection, is_slow=is_slow)
            return answer

    def _apply_timeout(self) -> AbstractAsyncContextManager[object]:
        if self._query_timeout is None:
            return nullcontext()
        return asyncio.timeout(self._query_timeout.total_seconds())

    def _get_pool(self) -> "_LoopConnectionPool":
        if self._pool is None:
            self._pool = _LoopConnectionPool(self._connect, self._apply_timeout, self._max_size)
        # They answer only in the loop that they were opened in; elsewhere calls would hang.
        if self._pool.loop is not asyncio.get_running_loop():
            raise ConfigurationError(
                "this client was first used in another event loop and not closed there: "
                "build one for each loop, or use graphile_worker.sync.Client"
            )
        return self._pool

    async def _connect(self) -> AsyncConnection[TupleRow]:
        kind = AsyncConnection if self._query_timeout is None else NoWaitCancelConnection
        return await kind.connect(
            self._conninfo, autocommit=True, prepare_threshold=self._prepare_threshold
        )


class _LoopConnectionPool:
    """The connections of one loop: whoever needs one waits for its turn and opens it if it must."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[AsyncConnection[TupleRow]]],
        apply_timeout: Callable[[], AbstractAsyncContextManager[object]],
        max_size: int,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._connect = connect
        self._apply_timeout = apply_timeout
        self._slots = asyncio.Semaphore(max_size)
        # The one used last is used next: the others can fall asleep.
        self._idle: list[AsyncConnection[TupleRow]] = []
        # Connections that must discard their plans before the next use. For those that have done so
        # and are still slow: when that was, and how many seconds must pass before they do it again.
        self._stale_plans: WeakSet[AsyncConnection[TupleRow]] = WeakSet()
        self._plans_discarded_at: WeakKeyDictionary[AsyncConnection[TupleRow], float] = (
            WeakKeyDictionary()
        )
        self._discard_delays: WeakKeyDictionary[AsyncConnection[TupleRow], float] = (
            WeakKeyDictionary()
        )
        self._closed = False

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[AsyncConnection[TupleRow]]:
        async with self._slots:
            connection = await self._pop_usable() or await self._connect()
            try:
                yield connection
            except Exception as error:
                if get_sqlstate(error) == READ_ONLY_SQL_TRANSACTION:
                    # Its address may lead to another server by now.
                    await connection.close()
                raise
            finally:
                await self._release(connection)

    def record_query_speed(self, connection: AsyncConnection[TupleRow], *, is_slow: bool) -> None:
        """Have a slow connection discard its plans; ever more rarely while that does not help."""
        if not is_slow:
            self._plans_discarded_at.pop(connection, None)
            self._discard_delays.pop(connection, None)
            return
        rested = time.monotonic() - self._plans_discarded_at.get(connection, -math.inf)
        if rested >= self._discard_delays.get(connection, 0.0):
            self._stale_plans.add(connection)

    async def close(self) -> None:
        self._closed = True
        await self._close_idle()

    async def _pop_usable(self) -> AsyncConnection[TupleRow] | None:
        while self._idle:
            connection = self._idle.pop()
            if await self._is_usable(connection):
                return connection
            await connection.close()
        return None

    async def _is_usable(self, connection: AsyncConnection[TupleRow]) -> bool:
        if connection.closed:
            return False
        is_distrusted = connection in self._stale_plans
        # What it says unasked is a farewell, most likely.
        if not is_distrusted and not has_input(connection.fileno()):
            return True
        try:
            async with self._apply_timeout():
                await connection.execute("discard plans" if is_distrusted else "select 1")
        except (OperationalError, TimeoutError):
            return False
        if is_distrusted:
            self._stale_plans.discard(connection)
            self._plans_discarded_at[connection] = time.monotonic()
            self._discard_delays[connection] = 2 * self._discard_delays.get(
                connection, FIRST_DISCARD_DELAY_SECONDS / 2
            )
        return True

    async def _release(self, connection: AsyncConnection[TupleRow]) -> None:
        if connection.closed:
            # Where one was lost, the others most likely are too, and may not say so.
            await self._close_idle()
        elif self._closed or not _is_clean(connection):
            await connection.close()
        else:
            self._idle.append(connection)

    async def _close_idle(self) -> None:
        while self._idle:
            await self._idle.pop().close()


def _is_clean(connection: AsyncConnection[TupleRow]) -> bool:
    # A call that was cancelled may leave a statement behind, and a task may change the mode.
    idle = connection.info.transaction_status == TransactionStatus.IDLE
    return idle and connection.autocommit
