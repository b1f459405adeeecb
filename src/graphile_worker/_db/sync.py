"""Our own database for blocking code: one autocommit connection per thread, no thread of ours."""

import atexit
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from psycopg import Connection as Psycopg
from psycopg import OperationalError, RawCursor
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow, tuple_row

from graphile_worker._db.conninfo import resolve_conninfo
from graphile_worker._db.database import has_input, has_rows, with_retries_sync
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.query import Query
from graphile_worker._sql.render import render_bytes
from graphile_worker._sql.sqlstate import READ_ONLY_SQL_TRANSACTION, get_sqlstate

T = TypeVar("T")

# A connection unused for longer is asked whether it still lives before it is relied upon.
PING_AFTER_IDLE_SECONDS = 30.0

# Connections that a fork brought along: closing one politely would end the parent's session, so
# they are only put aside for as long as this process lives.
_inherited_connections: list[Psycopg[TupleRow]] = []


class SyncPsycopgConnection:
    """One psycopg connection, ours or the caller's; rows are tuples whatever its owner prefers."""

    def __init__(self, connection: Psycopg[TupleRow], schemas: Schemas) -> None:
        self.raw = connection
        self._schemas = schemas

    def run(self, query: Query[T]) -> T:
        text = render_bytes(query.statement, self._schemas)
        with RawCursor(self.raw, row_factory=tuple_row) as cursor:
            cursor.execute(text, query.args or None)
            return query.read(cursor.fetchall() if has_rows(cursor.pgresult) else [])


class SyncPsycopgDatabase:
    """Connections open with a thread's first query and close with the thread, `close()` or exit."""

    def __init__(
        self, conninfo: str | None, schemas: Schemas, *, prepared_statements: bool = True
    ) -> None:
        self.schemas = schemas
        self._conninfo = resolve_conninfo(conninfo)
        self._prepare_threshold = 5 if prepared_statements else None
        self._local = threading.local()
        self._thread_connections: weakref.WeakSet[_ReusableConnection] = weakref.WeakSet()
        self._lock = threading.Lock()
        _open_databases.add(self)

    def run(self, query: Query[T]) -> T:
        return with_retries_sync(query, lambda: self._run_once(query))

    @contextmanager
    def transaction(self) -> Iterator[SyncPsycopgConnection]:
        with self._acquire() as connection, connection.raw.transaction():
            yield connection

    def close(self) -> None:
        """Close the connections of all threads; the next query opens a new one."""
        with self._lock:
            threads = list(self._thread_connections)
        for held in threads:
            held.close()

    def _run_once(self, query: Query[T]) -> T:
        with self._acquire() as connection:
            return connection.run(query)

    @contextmanager
    def _acquire(self) -> Iterator[SyncPsycopgConnection]:
        """This thread's connection."""
        reusable: _ReusableConnection | None = getattr(self._local, "reusable", None)
        if reusable is None or not reusable.is_usable():
            reusable = self._local.reusable = _ReusableConnection(self._connect())
            with self._lock:
                self._thread_connections.add(reusable)
        with reusable.use() as connection:
            yield SyncPsycopgConnection(connection, self.schemas)

    def _connect(self) -> Psycopg[TupleRow]:
        return Psycopg.connect(
            self._conninfo, autocommit=True, prepare_threshold=self._prepare_threshold
        )


class SyncConnectionPool:
    """Connections lent to plain functions, in whatever thread: opened when needed, so many at once.

    Each is in autocommit mode; one that comes back in the middle of something is not used again.
    """

    def __init__(
        self,
        conninfo: str | None,
        schemas: Schemas,
        *,
        max_size: int,
        prepared_statements: bool = True,
    ) -> None:
        self.schemas = schemas
        self._conninfo = resolve_conninfo(conninfo)
        self._prepare_threshold = 5 if prepared_statements else None
        self._slots = threading.Semaphore(max_size)
        self._idle: list[_ReusableConnection] = []
        self._closed = False

    def run(self, query: Query[T]) -> T:
        return with_retries_sync(query, lambda: self._run_once(query))

    @contextmanager
    def connection(self) -> Iterator[SyncPsycopgConnection]:
        with self._slots:
            kept = self._pop_usable() or _ReusableConnection(self._connect())
            try:
                with kept.use() as connection:
                    yield SyncPsycopgConnection(connection, self.schemas)
            finally:
                self._release(kept)

    @contextmanager
    def transaction(self) -> Iterator[SyncPsycopgConnection]:
        with self.connection() as connection, connection.raw.transaction():
            yield connection

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _run_once(self, query: Query[T]) -> T:
        with self.connection() as connection:
            return connection.run(query)

    def _pop_usable(self) -> "_ReusableConnection | None":
        while self._idle:
            # Two threads may reach for the last one.
            with suppress(IndexError):
                kept = self._idle.pop()
                if kept.is_usable():
                    return kept
        return None

    def _release(self, connection: "_ReusableConnection") -> None:
        if self._closed or not connection.is_idle():
            connection.close()
        else:
            self._idle.append(connection)

    def _connect(self) -> Psycopg[TupleRow]:
        return Psycopg.connect(
            self._conninfo, autocommit=True, prepare_threshold=self._prepare_threshold
        )


class _ReusableConnection:
    """A connection that stays open between two uses, in the process that opened it."""

    def __init__(self, connection: Psycopg[TupleRow]) -> None:
        self._connection = connection
        self._pid = os.getpid()
        self._last_used_at = time.monotonic()

    @contextmanager
    def use(self) -> Iterator[Psycopg[TupleRow]]:
        self._last_used_at = time.monotonic()
        try:
            yield self._connection
        except Exception as error:
            if get_sqlstate(error) == READ_ONLY_SQL_TRANSACTION:
                # Its address may lead to another server by now.
                self.close()
            raise

    def is_usable(self) -> bool:
        if self._pid != os.getpid():
            self._abandon()
            return False
        if self._connection.closed or not self.is_idle() or not self._is_responsive():
            self.close()
            return False
        return True

    def is_idle(self) -> bool:
        # An exception out of a signal handler can leave a call in the middle of its statement.
        idle = self._connection.info.transaction_status == TransactionStatus.IDLE
        return idle and self._connection.autocommit

    def close(self) -> None:
        if self._pid == os.getpid():
            self._connection.close()

    def __del__(self) -> None:
        # The thread has ended.
        self.close()

    def _is_responsive(self) -> bool:
        """Does the server still listen? Asked after a long pause, or if it has said something."""
        idle = time.monotonic() - self._last_used_at
        if idle <= PING_AFTER_IDLE_SECONDS and not has_input(self._connection.fileno()):
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
            # This process's copy of the socket, without a word to the server.
            os.close(self._connection.fileno())


_open_databases: weakref.WeakSet[Any] = weakref.WeakSet()


@atexit.register
def _close_at_exit() -> None:
    for database in list(_open_databases):
        database.close()
