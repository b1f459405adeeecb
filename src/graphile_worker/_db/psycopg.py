"""The database of async code: autocommit psycopg connections, opened on demand."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from datetime import timedelta
from typing import TypeVar
from weakref import WeakKeyDictionary, WeakSet

from psycopg import AsyncConnection, AsyncRawCursor, OperationalError, ProgrammingError, pq
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow, tuple_row

from graphile_worker._db.cancellable_connection import NoWaitCancelConnection
from graphile_worker._db.conninfo import Conninfo, ConninfoSource
from graphile_worker._db.database import ConnectionCounts, has_input, has_rows, with_retries
from graphile_worker._db.notifications import NotificationStream, open_notification_stream
from graphile_worker._db.prepared_statements import PreparedStatements
from graphile_worker._db.retry import MAX_ATTEMPTS
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.workers import use_generic_plans
from graphile_worker._sql.query import Query
from graphile_worker._sql.render import render_bytes
from graphile_worker._sql.sqlstate import READ_ONLY_SQL_TRANSACTION, get_sqlstate
from graphile_worker._support.call_in_thread import call_in_thread
from graphile_worker.errors import ConfigurationError

T = TypeVar("T")

# Raised if the database is unreachable or rejects the login.
ConnectError = OperationalError

# A slower statement may use an outdated plan: one that was made for an empty table reads all jobs
# until the next analyze.
SLOW_QUERY_SECONDS = 0.1

# Until a connection that is still slow discards its plans again; doubled each time.
FIRST_DISCARD_DELAY_SECONDS = 1.0


def get_psycopg_implementation() -> str:
    """Return how psycopg is built: binary, c, or python, which is several times slower."""
    return pq.__impl__


class PsycopgConnection:
    """A psycopg connection. Rows are tuples for every row factory of its owner."""

    def __init__(self, connection: AsyncConnection[TupleRow], schemas: Schemas) -> None:
        self.raw = connection
        self._schemas = schemas

    async def run(self, query: Query[T]) -> T:
        text = render_bytes(query.statement, self._schemas)
        async with AsyncRawCursor(self.raw, row_factory=tuple_row) as cursor:
            await cursor.execute(text, query.args or None)
            if cursor.pgresult is None:
                return query.read(await _fetch_in_pipeline(cursor))
            return query.read(await cursor.fetchall() if has_rows(cursor.pgresult) else [])


async def _fetch_in_pipeline(cursor: AsyncRawCursor[TupleRow]) -> list[TupleRow]:
    """Fetch the rows in pipeline mode, where the result arrives with the fetch."""
    try:
        return await cursor.fetchall()
    except ProgrammingError:
        # psycopg also raises it for a statement without columns.
        if cursor.pgresult is None or has_rows(cursor.pgresult):
            raise
        return []


class PsycopgDatabase:
    """A database that opens connections on demand, up to a number, for one event loop.

    Not psycopg_pool: its background tasks can keep a program from exiting, and hide for 30 s why
    a database is unreachable.

    With `generic_plans` the server plans each prepared statement once, and not six times: planning
    `claim_jobs` takes longer than running it.
    """

    def __init__(
        self,
        conninfo: ConninfoSource,
        schemas: Schemas,
        *,
        max_size: int = 10,
        prepared_statements: bool = True,
        prepare_after: int = 5,
        generic_plans: bool = False,
        query_timeout: timedelta | None = None,
        transaction_timeout: timedelta | None = None,
        max_attempts: int = MAX_ATTEMPTS,
        slow_query_seconds: float = SLOW_QUERY_SECONDS,
        first_discard_delay_seconds: float = FIRST_DISCARD_DELAY_SECONDS,
    ) -> None:
        self.schemas = schemas
        self._conninfo = Conninfo(conninfo)
        self._max_size = max_size
        self._query_timeout = query_timeout
        self._transaction_timeout = transaction_timeout
        self._max_attempts = max_attempts
        self._slow_query_seconds = slow_query_seconds
        self._first_discard_delay_seconds = first_discard_delay_seconds
        # PgBouncer before 1.21 does not support prepared statements in transaction mode.
        self._prepare_threshold = prepare_after if prepared_statements else None
        self._generic_plans = generic_plans and prepared_statements
        self._prepares_at_once = self._prepare_threshold == 0
        self._prepared: WeakKeyDictionary[AsyncConnection[TupleRow], PreparedStatements] = (
            WeakKeyDictionary()
        )
        self._pool: _LoopConnectionPool | None = None

    async def run(self, query: Query[T]) -> T:
        return await with_retries(lambda: self._run_once(query), max_attempts=self._max_attempts)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PsycopgConnection]:
        async with (
            self._get_pool().acquire() as connection,
            _limit_time(self._transaction_timeout),
            connection.transaction(),
        ):
            yield PsycopgConnection(connection, self.schemas)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[PsycopgConnection]:
        """Yield a connection in autocommit mode. A transaction left open on it is rolled back."""
        async with self._get_pool().acquire() as connection:
            yield PsycopgConnection(connection, self.schemas)

    @asynccontextmanager
    async def listen(self, *channels: str) -> AsyncIterator[NotificationStream]:
        """Listen on a separate connection."""
        connection = await self._connect()
        try:
            async with open_notification_stream(connection, *channels) as stream:
                yield stream
        finally:
            await connection.close()

    def count_connections(self) -> ConnectionCounts:
        """Count the connections. Any thread may call this."""
        pool = self._pool
        return ConnectionCounts() if pool is None else pool.count_connections()

    async def close(self) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            await pool.close()

    def discard(self) -> None:
        """Close the connections of an event loop that was closed, in which nothing can wait."""
        if self._pool is not None:
            pool, self._pool = self._pool, None
            pool.discard()

    async def _run_once(self, query: Query[T]) -> T:
        pool = self._get_pool()
        async with pool.acquire() as connection, self._apply_timeout():
            started_at = time.monotonic()
            answer = await self._run_on(connection, query)
            # Without prepared statements a connection has no plans to discard.
            if self._prepare_threshold is not None:
                is_slow = time.monotonic() - started_at > self._slow_query_seconds
                pool.record_query_speed(connection, is_slow=is_slow)
            return answer

    async def _run_on(self, connection: AsyncConnection[TupleRow], query: Query[T]) -> T:
        if not self._prepares_at_once:
            return await PsycopgConnection(connection, self.schemas).run(query)
        statements = self._prepared.get(connection)
        if statements is None:
            statements = self._prepared[connection] = PreparedStatements(connection)
        text = render_bytes(query.statement, self.schemas)
        return query.read(await statements.execute(text, query.args))

    def _apply_timeout(self) -> AbstractAsyncContextManager[object]:
        return _limit_time(self._query_timeout)

    def _get_pool(self) -> "_LoopConnectionPool":
        if self._pool is None:
            self._pool = _LoopConnectionPool(
                self._connect_for_queries,
                self._apply_timeout,
                self._max_size,
                self._first_discard_delay_seconds,
            )
        # Connections work only in the loop that opened them. Calls from another loop would hang.
        if self._pool.loop is not asyncio.get_running_loop():
            raise ConfigurationError(
                "this client was first used in another event loop and not closed there. Create "
                "one client per loop, or use graphile_worker.sync.Client."
            )
        return self._pool

    async def _connect_for_queries(self) -> AsyncConnection[TupleRow]:
        connection = await self._connect()
        if not self._generic_plans:
            return connection
        query = use_generic_plans(connection.info.backend_pid)
        text = render_bytes(query.statement, self.schemas)
        try:
            async with self._apply_timeout(), AsyncRawCursor(connection) as cursor:
                await cursor.execute(text, query.args, prepare=False)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _connect(self) -> AsyncConnection[TupleRow]:
        kind = AsyncConnection if self._query_timeout is None else NoWaitCancelConnection
        # A function may ask a service for a password. It must not block the event loop meanwhile.
        conninfo = (
            await call_in_thread(self._conninfo.resolve)
            if self._conninfo.is_function
            else self._conninfo.resolve()
        )
        # Beside `PreparedStatements`, psycopg prepares none: after a rollback it would deallocate
        # all statements of the session.
        threshold = None if self._prepares_at_once else self._prepare_threshold
        return await kind.connect(conninfo, autocommit=True, prepare_threshold=threshold)


class _LoopConnectionPool:
    """The connections of one event loop, up to a number."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[AsyncConnection[TupleRow]]],
        apply_timeout: Callable[[], AbstractAsyncContextManager[object]],
        max_size: int,
        first_discard_delay_seconds: float,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._connect = connect
        self._apply_timeout = apply_timeout
        self._max_size = max_size
        self._slots = asyncio.Semaphore(max_size)
        # Callers that use a connection or wait for one.
        self._caller_count = 0
        self._first_discard_delay_seconds = first_discard_delay_seconds
        # The last one used is the next one used, so that the others stay idle.
        self._idle: list[AsyncConnection[TupleRow]] = []
        # Connections that must discard their plans before the next use. For connections that have
        # done so and are still slow: when, and the seconds until they do it again.
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
        self._caller_count += 1
        try:
            async with self._slots:
                connection = await self._pop_usable() or await self._connect()
                try:
                    yield connection
                except Exception as error:
                    if get_sqlstate(error) == READ_ONLY_SQL_TRANSACTION:
                        # Its address may lead to another server now.
                        await connection.close()
                    raise
                finally:
                    await self._release(connection)
        finally:
            self._caller_count -= 1

    def count_connections(self) -> ConnectionCounts:
        used = min(self._caller_count, self._max_size)
        return ConnectionCounts(used, len(self._idle), self._caller_count - used)

    def record_query_speed(self, connection: AsyncConnection[TupleRow], *, is_slow: bool) -> None:
        """Make a slow connection discard its plans, with a longer delay each time."""
        if not is_slow:
            self._plans_discarded_at.pop(connection, None)
            self._discard_delays.pop(connection, None)
            return
        elapsed = time.monotonic() - self._plans_discarded_at.get(connection, -math.inf)
        if elapsed >= self._discard_delays.get(connection, 0.0):
            self._stale_plans.add(connection)

    async def close(self) -> None:
        self._closed = True
        await self._close_idle()

    def discard(self) -> None:
        for connection in self._idle:
            connection.pgconn.finish()
        self._idle.clear()

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
        has_stale_plans = connection in self._stale_plans
        # Unexpected input is probably the end of the session.
        if not has_stale_plans and not has_input(connection.fileno()):
            return True
        try:
            async with self._apply_timeout():
                await connection.execute("discard plans" if has_stale_plans else "select 1")
        except (OperationalError, TimeoutError):
            return False
        if has_stale_plans:
            self._stale_plans.discard(connection)
            self._plans_discarded_at[connection] = time.monotonic()
            self._discard_delays[connection] = 2 * self._discard_delays.get(
                connection, self._first_discard_delay_seconds / 2
            )
        return True

    async def _release(self, connection: AsyncConnection[TupleRow]) -> None:
        if connection.closed:
            # If one connection was lost, the others probably are too, without an error.
            await self._close_idle()
        elif self._closed or not _is_clean(connection):
            await connection.close()
        else:
            self._idle.append(connection)

    async def _close_idle(self) -> None:
        while self._idle:
            await self._idle.pop().close()


def _limit_time(timeout: timedelta | None) -> AbstractAsyncContextManager[object]:
    return nullcontext() if timeout is None else asyncio.timeout(timeout.total_seconds())


def _is_clean(connection: AsyncConnection[TupleRow]) -> bool:
    # A canceled call may leave a statement running, and a task may change the mode.
    is_idle = connection.info.transaction_status == TransactionStatus.IDLE
    return is_idle and connection.autocommit
