"""The database of blocking code: autocommit psycopg connections, without extra threads."""

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from typing import Any, TypeVar

from psycopg import Connection as Psycopg
from psycopg import OperationalError, ProgrammingError, RawCursor
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow, tuple_row

from graphile_worker._db.conninfo import Conninfo, ConninfoSource
from graphile_worker._db.database import ConnectionCounts, has_input, has_rows, with_retries_sync
from graphile_worker._db.retry import MAX_ATTEMPTS
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.query import Query
from graphile_worker._sql.render import render_bytes
from graphile_worker._sql.sqlstate import READ_ONLY_SQL_TRANSACTION, get_sqlstate

T = TypeVar("T")

# A connection that was idle for longer is checked before it is used.
PING_AFTER_IDLE_SECONDS = 30.0

# Connections that a fork inherited. Closing them would end the sessions of the parent process, so
# they stay referenced until this process ends.
_inherited_connections: list[Psycopg[TupleRow]] = []


class SyncPsycopgConnection:
    """A psycopg connection. Rows are tuples for every row factory of its owner."""

    def __init__(self, connection: Psycopg[TupleRow], schemas: Schemas) -> None:
        self.raw = connection
        self._schemas = schemas

    def run(self, query: Query[T]) -> T:
        text = render_bytes(query.statement, self._schemas)
        with RawCursor(self.raw, row_factory=tuple_row) as cursor:
            cursor.execute(text, query.args or None)
            if cursor.pgresult is None:
                return query.read(_fetch_in_pipeline(cursor))
            return query.read(cursor.fetchall() if has_rows(cursor.pgresult) else [])


def _fetch_in_pipeline(cursor: RawCursor[TupleRow]) -> list[TupleRow]:
    """Fetch the rows in pipeline mode, where the result arrives with the fetch."""
    try:
        return cursor.fetchall()
    except ProgrammingError:
        # psycopg also raises it for a statement without columns.
        if cursor.pgresult is None or has_rows(cursor.pgresult):
            raise
        return []


class _SyncDatabase:
    """The common part of both databases, which differ in how they choose a connection."""

    def __init__(
        self,
        conninfo: ConninfoSource,
        schemas: Schemas,
        prepared_statements: bool,
        ping_after_idle_seconds: float = PING_AFTER_IDLE_SECONDS,
        max_attempts: int = MAX_ATTEMPTS,
    ) -> None:
        self.schemas = schemas
        self._conninfo = Conninfo(conninfo)
        self._prepare_threshold = 5 if prepared_statements else None
        self._ping_after_idle_seconds = ping_after_idle_seconds
        self._max_attempts = max_attempts

    def connection(self) -> AbstractContextManager[SyncPsycopgConnection]:
        raise NotImplementedError

    @contextmanager
    def transaction(self) -> Iterator[SyncPsycopgConnection]:
        with self.connection() as connection, connection.raw.transaction():
            yield connection

    def run(self, query: Query[T]) -> T:
        return with_retries_sync(lambda: self._run_once(query), max_attempts=self._max_attempts)

    def _run_once(self, query: Query[T]) -> T:
        with self.connection() as connection:
            return connection.run(query)

    def _open_connection(self) -> "_ReusableConnection":
        connection = Psycopg.connect(
            self._conninfo.resolve(), autocommit=True, prepare_threshold=self._prepare_threshold
        )
        return _ReusableConnection(connection, self._ping_after_idle_seconds)


class SyncPsycopgDatabase(_SyncDatabase):
    """One connection per thread, until the thread ends, `close()` is called or Python exits.

    A call inside a block that uses this connection gets another one, which is closed afterwards.
    """

    def __init__(
        self,
        conninfo: ConninfoSource,
        schemas: Schemas,
        *,
        prepared_statements: bool = True,
        ping_after_idle_seconds: float = PING_AFTER_IDLE_SECONDS,
        max_attempts: int = MAX_ATTEMPTS,
    ) -> None:
        super().__init__(
            conninfo, schemas, prepared_statements, ping_after_idle_seconds, max_attempts
        )
        self._local = threading.local()
        self._thread_connections: weakref.WeakSet[_ReusableConnection] = weakref.WeakSet()
        self._lock = threading.Lock()
        _open_databases.add(self)

    @contextmanager
    def connection(self) -> Iterator[SyncPsycopgConnection]:
        reusable: _ReusableConnection | None = getattr(self._local, "reusable", None)
        if reusable is not None and reusable.is_in_use():
            # A call inside a transaction of this thread, for example by a hook.
            with closing(self._open_connection()) as temporary, temporary.use() as connection:
                yield SyncPsycopgConnection(connection, self.schemas)
            return
        if reusable is None or not reusable.is_usable():
            reusable = self._local.reusable = self._open_connection()
            with self._lock:
                self._thread_connections.add(reusable)
        with reusable.use() as connection:
            yield SyncPsycopgConnection(connection, self.schemas)

    def close(self) -> None:
        """Close the connections of all threads. The next query opens a new one."""
        with self._lock:
            reusable = list(self._thread_connections)
        for each in reusable:
            each.close()


class SyncConnectionPool(_SyncDatabase):
    """Connections for plain functions in any thread, up to a number.

    A connection that is returned in a transaction or without autocommit is closed.
    """

    def __init__(
        self,
        conninfo: ConninfoSource,
        schemas: Schemas,
        *,
        max_size: int,
        prepared_statements: bool = True,
    ) -> None:
        super().__init__(conninfo, schemas, prepared_statements)
        self._max_size = max_size
        self._slots = threading.Semaphore(max_size)
        self._idle: list[_ReusableConnection] = []
        # One entry for each caller that uses a connection or waits for one.
        self._callers: deque[None] = deque()
        self._closed = False

    @contextmanager
    def connection(self) -> Iterator[SyncPsycopgConnection]:
        self._callers.append(None)
        try:
            with self._slots:
                reusable = self._pop_usable() or self._open_connection()
                try:
                    with reusable.use() as connection:
                        yield SyncPsycopgConnection(connection, self.schemas)
                finally:
                    if self._closed or not reusable.is_idle():
                        reusable.close()
                    else:
                        self._idle.append(reusable)
        finally:
            self._callers.pop()

    def count_connections(self) -> ConnectionCounts:
        """Count the connections. Any thread may call this."""
        callers = len(self._callers)
        used = min(callers, self._max_size)
        return ConnectionCounts(used, len(self._idle), callers - used)

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _pop_usable(self) -> "_ReusableConnection | None":
        while self._idle:
            # Another thread may take the last one first.
            with suppress(IndexError):
                reusable = self._idle.pop()
                if reusable.is_usable():
                    return reusable
        return None


class _ReusableConnection:
    """A connection that stays open between uses, in the process that opened it."""

    def __init__(self, connection: Psycopg[TupleRow], ping_after_idle_seconds: float) -> None:
        self._connection = connection
        self._ping_after_idle_seconds = ping_after_idle_seconds
        self._pid = os.getpid()
        self._last_used_at = time.monotonic()
        self._is_in_use = False

    @contextmanager
    def use(self) -> Iterator[Psycopg[TupleRow]]:
        self._last_used_at = time.monotonic()
        try:
            self._is_in_use = True
            yield self._connection
        except Exception as error:
            if get_sqlstate(error) == READ_ONLY_SQL_TRANSACTION:
                # Its address may lead to another server now.
                self.close()
            raise
        finally:
            self._is_in_use = False

    def is_in_use(self) -> bool:
        """Return whether a block of this process uses it."""
        return self._is_in_use and self._pid == os.getpid()

    def is_usable(self) -> bool:
        if self._pid != os.getpid():
            self._abandon()
            return False
        if self._connection.closed or not self.is_idle() or not self._is_responsive():
            self.close()
            return False
        return True

    def is_idle(self) -> bool:
        # An exception of a signal handler can interrupt a call in the middle of its statement.
        is_idle = self._connection.info.transaction_status == TransactionStatus.IDLE
        return is_idle and self._connection.autocommit

    def close(self) -> None:
        if self._pid == os.getpid():
            self._connection.close()

    def __del__(self) -> None:
        # Its thread has ended.
        self.close()

    def _is_responsive(self) -> bool:
        """Return whether the server answers. Ask it after a long idle time, or if it sent input."""
        idle_seconds = time.monotonic() - self._last_used_at
        if idle_seconds <= self._ping_after_idle_seconds and not has_input(
            self._connection.fileno()
        ):
            return True
        try:
            self._connection.execute("select 1")
        except OperationalError:
            return False
        return True

    def _abandon(self) -> None:
        if any(self._connection is each for each in _inherited_connections):
            return
        _inherited_connections.append(self._connection)
        if not self._connection.closed:
            # Only the copy of the socket in this process. The server is not notified.
            os.close(self._connection.fileno())


_open_databases: weakref.WeakSet[Any] = weakref.WeakSet()


@atexit.register
def _close_at_exit() -> None:
    for database in list(_open_databases):
        database.close()
