"""The caller's pool for a worker: no call waits forever for an unreachable server.

A driver may wait for such a server without end, even if it is canceled. So each of its calls runs
in a separate task. If the task is late it is abandoned, and its connection is cut.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeVar

from graphile_worker._db.cancellable_connection import (
    DEFAULT_TIMINGS,
    NO_GRACE,
    CancelTimings,
    run_with_deadline,
)
from graphile_worker._db.database import Connection
from graphile_worker._db.external_connections import adapt_connection
from graphile_worker._db.external_pools import (
    ConnectionFactory,
    ExternalPoolDatabase,
    get_driver_connection,
)
from graphile_worker._db.notifications import NotificationStream
from graphile_worker._sql.queries.testing import probe
from graphile_worker._sql.query import Query

T = TypeVar("T")

# For the check of idle connections, after another connection of their pool got no answer.
CHECK_TIMEOUT_SECONDS = 1.0


class NoWaitCancelDatabase(ExternalPoolDatabase):
    """The caller's pool, from which connections to a server that does not answer are removed."""

    def __init__(
        self,
        database: ExternalPoolDatabase,
        query_timeout: timedelta,
        count_idle: Callable[[], int],
        *,
        transaction_timeout: timedelta | None = None,
        timings: CancelTimings = DEFAULT_TIMINGS,
    ) -> None:
        super().__init__(
            database._connect,
            database.schemas,
            database._connect_without_transaction,
            database._begin,
        )
        self._timeout_seconds = query_timeout.total_seconds()
        self._transaction_seconds = (
            None if transaction_timeout is None else transaction_timeout.total_seconds()
        )
        self._count_idle = count_idle
        self._timings = timings

    @asynccontextmanager
    async def listen(self, *channels: str) -> AsyncIterator[NotificationStream]:
        try:
            async with super().listen(*channels) as stream:
                yield stream
        except TimeoutError:
            await self._check_idle_connections()
            raise

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        async with asyncio.timeout(self._transaction_seconds), super().transaction() as connection:
            yield connection

    def _acquire(self, connect: ConnectionFactory) -> AbstractAsyncContextManager[Any]:
        return _DeadlineContext(connect(), self._timeout_seconds, self._timings)

    def _begin_transaction(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        return _DeadlineContext(
            self._begin(connection), self._timeout_seconds, self._timings, connection
        )

    def _adapt(self, connection: Any) -> Connection:
        return _CancellableConnection(adapt_connection(connection, self.schemas), self._timings)

    async def _run_once(self, query: Query[T]) -> T:
        acquired: list[Any] = []
        return await run_with_deadline(
            self._run_on_pool(query, acquired),
            self._timeout_seconds,
            acquired,
            timings=self._timings,
            on_abandon=self._check_idle_connections,
        )

    async def _check_idle_connections(self) -> None:
        """Check the idle connections: if one was lost, the others probably are too."""
        checks = [self._check_connection() for _ in range(self._count_idle())]
        await asyncio.gather(*checks, return_exceptions=True)

    async def _check_connection(self) -> None:
        acquired: list[Any] = []
        await run_with_deadline(
            self._run_on_pool(probe(), acquired), CHECK_TIMEOUT_SECONDS, acquired, timings=NO_GRACE
        )


class _DeadlineContext:
    """Enter and leave a context of a driver in time, or cut its connection."""

    def __init__(
        self,
        inner: AbstractAsyncContextManager[Any],
        timeout_seconds: float,
        timings: CancelTimings,
        connection: Any = None,
    ) -> None:
        self._inner = inner
        self._timeout_seconds = timeout_seconds
        self._timings = timings
        self._stack = AsyncExitStack()
        self._acquired = [] if connection is None else [get_driver_connection(connection)]

    async def __aenter__(self) -> Any:
        try:
            entered = await self._run_with_deadline(self._stack.enter_async_context(self._inner))
        except BaseException:
            # The context may have been entered at the moment of the timeout.
            with suppress(Exception):
                await self._run_with_deadline(self._stack.aclose())
            raise
        if not self._acquired:
            self._acquired.append(get_driver_connection(entered))
        return entered

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        # A canceled call probably got no answer: do not wait for the full timeout again.
        if isinstance(error, asyncio.CancelledError):
            self._timeout_seconds = min(self._timeout_seconds, self._timings.grace_seconds)
        try:
            return await self._run_with_deadline(self._stack.__aexit__(kind, error, trace))
        except Exception:
            # The caller needs the first error, above all a cancellation.
            if error is None:
                raise
            return False

    async def _run_with_deadline(self, work: Coroutine[Any, Any, T]) -> T:
        return await run_with_deadline(
            work, self._timeout_seconds, self._acquired, timings=self._timings
        )


class _CancellableConnection:
    """A connection whose statements have no timeout, but can be canceled."""

    def __init__(self, connection: Connection, timings: CancelTimings) -> None:
        self.raw = connection.raw
        self._connection = connection
        self._timings = timings
        self._acquired = [get_driver_connection(connection.raw)]

    async def run(self, query: Query[T]) -> T:
        return await run_with_deadline(
            self._connection.run(query), None, self._acquired, timings=self._timings
        )
