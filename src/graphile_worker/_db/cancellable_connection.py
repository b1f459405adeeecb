"""Do not wait for a server that may have vanished."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from psycopg import AsyncConnection, Error, capabilities, generators, waiting
from psycopg.abc import RV, PQGen
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGcancelConn
from psycopg.rows import Row

T = TypeVar("T")

# Seconds between two looks at whether the program was interrupted, as psycopg has it.
INTERRUPT_CHECK_INTERVAL_SECONDS = 0.1

# Seconds to reach a server that is asked to stop.
CANCEL_REQUEST_TIMEOUT_SECONDS = 2.0

# Seconds in which a driver may ask its server to stop a statement, before its connection is cut.
CANCEL_GRACE_SECONDS = 1.0

# Those that are under way: a loop alone does not keep its tasks.
_cancel_requests: set[asyncio.Task[None]] = set()
_abandonments: set[asyncio.Task[None]] = set()


class NoWaitCancelConnection(AsyncConnection[Row]):
    """Whoever gives up a statement on it gives up the connection, at once.

    psycopg would first ask the server to stop, and wait up to ten seconds for its word. Here nobody
    waits for that: but asked it must be, for a server does not look at its clients while it waits
    for a lock, and would keep a session for each statement that was given up.
    """

    async def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        if not args:
            kwargs.setdefault("interval", INTERRUPT_CHECK_INTERVAL_SECONDS)
        try:
            return await waiting.wait_async(gen, self.pgconn.socket, *args, **kwargs)
        except asyncio.CancelledError:
            self._request_cancel()
            self.pgconn.finish()
            raise

    def _request_cancel(self) -> None:
        if self.pgconn.transaction_status != TransactionStatus.ACTIVE:
            return
        # Needs a libpq that can do so without standing still.
        if capabilities.has_cancel_safe():
            task = asyncio.get_running_loop().create_task(
                _send_cancel_request(self.pgconn.cancel_conn())
            )
            _cancel_requests.add(task)
            task.add_done_callback(_cancel_requests.discard)


async def _send_cancel_request(cancel_connection: PGcancelConn) -> None:
    try:
        with suppress(Error, OSError, TimeoutError):
            async with asyncio.timeout(CANCEL_REQUEST_TIMEOUT_SECONDS):
                cancel_connection.start()
                await waiting.wait_conn_async(
                    generators.cancel(cancel_connection), interval=INTERRUPT_CHECK_INTERVAL_SECONDS
                )
    finally:
        cancel_connection.finish()


async def run_with_deadline(
    work: Coroutine[Any, Any, T],
    seconds: float | None,
    connections: Sequence[Any],
    *,
    grace_seconds: float = CANCEL_GRACE_SECONDS,
    on_abandon: Callable[[], Awaitable[object]] | None = None,
) -> T:
    """What `work` returns; gives it up after that many seconds, or when the caller is canceled.

    For connections of drivers that wait for their server even when they are canceled. The driver
    gets `patience` seconds to stop the statement. Then the connections that the work has `borrowed`
    are cut, so that it ends. If it is given up, `meanwhile` runs beside that.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.wait([task], timeout=seconds)
    finally:
        is_late = not task.done()
        if is_late:
            ending = asyncio.create_task(_abandon(task, connections, grace_seconds, on_abandon))
            _abandonments.add(ending)
            ending.add_done_callback(_abandonments.discard)
            # A caller that is canceled again does not wait for it.
            await asyncio.shield(ending)
        failed = task.cancelled() or task.exception() is not None
    if is_late and failed:
        raise TimeoutError(f"no answer, or no connection of the pool, within {seconds:g} s")
    return task.result()


async def _abandon(
    task: asyncio.Task[Any],
    connections: Sequence[Any],
    grace_seconds: float,
    on_abandon: Callable[[], Awaitable[object]] | None,
) -> None:
    ends: list[Awaitable[object]] = [_cancel_task(task, connections, grace_seconds)]
    if on_abandon is not None:
        ends.append(on_abandon())
    await asyncio.gather(*ends, return_exceptions=True)


async def _cancel_task(
    task: asyncio.Task[Any], connections: Sequence[Any], grace_seconds: float
) -> None:
    task.cancel()
    await asyncio.wait([task], timeout=grace_seconds)
    while not task.done():
        for connection in connections:
            terminate_connection(connection)
        # Again: a driver may wait for something else by now, and before Python 3.12
        # asyncio.wait_for can lose a cancellation.
        task.cancel()
        await asyncio.wait([task], timeout=CANCEL_GRACE_SECONDS)
    if not task.cancelled():
        # Or it would be logged that it was never retrieved.
        task.exception()


def terminate_connection(connection: Any) -> None:
    """Let everything fail that waits for an answer on a connection of psycopg or asyncpg."""
    # Only a connection that is gone already raises. asyncpg gives one that was cut to its pool, and
    # from then on each of its methods raises.
    with suppress(Exception):
        if isinstance(connection, AsyncConnection):
            _shutdown_socket(connection.fileno())
        else:
            connection.terminate()


def _shutdown_socket(descriptor: int) -> None:
    """End a connection as if its other end had; libpq still owns the descriptor."""
    opened = socket.socket(fileno=descriptor)
    try:
        opened.shutdown(socket.SHUT_RDWR)
    finally:
        opened.detach()
