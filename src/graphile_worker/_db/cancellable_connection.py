"""Connections that do not wait for an unreachable server."""

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

from graphile_worker._support.lazy_dataclass import LazyKeywordDataclass

T = TypeVar("T")

# Between two checks for an interrupt of the program, as in psycopg.
INTERRUPT_CHECK_INTERVAL_SECONDS = 0.1

# For the request to the server to cancel a statement.
CANCEL_REQUEST_TIMEOUT_SECONDS = 2.0

# Running tasks: an event loop has only weak references to them.
_cancel_requests: set[asyncio.Task[None]] = set()
_abandonments: set[asyncio.Task[None]] = set()


class CancelTimings(LazyKeywordDataclass):
    """Time limits of a driver that cancels a statement."""

    grace_seconds: float = 1.0
    """Time to cancel the statement before its connection is cut."""
    retry_seconds: float = 1.0
    """Time between two cuts while the driver still waits."""


DEFAULT_TIMINGS = CancelTimings()

# For statements that need not be canceled on the server.
NO_GRACE = CancelTimings(grace_seconds=0)


class NoWaitCancelConnection(AsyncConnection[Row]):
    """A connection that closes at once if a statement on it is canceled.

    psycopg would first ask the server to cancel the statement, and wait up to 10 s for its answer.
    This connection sends the request without waiting. It must send it, because a server that waits
    for a lock does not notice that its client is gone, and would keep the session.
    """

    async def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        if not args:
            kwargs.setdefault("interval", INTERRUPT_CHECK_INTERVAL_SECONDS)
        try:
            return await waiting.wait_async(_write_first(gen), self.pgconn.socket, *args, **kwargs)
        except asyncio.CancelledError:
            self._request_cancel()
            self.pgconn.finish()
            raise

    def _request_cancel(self) -> None:
        if self.pgconn.transaction_status != TransactionStatus.ACTIVE:
            return
        # Needs a libpq that can cancel without blocking.
        if capabilities.has_cancel_safe():
            task = asyncio.get_running_loop().create_task(
                _send_cancel_request(self.pgconn.cancel_conn())
            )
            _cancel_requests.add(task)
            task.add_done_callback(_cancel_requests.discard)


def _write_first(steps: PQGen[RV]) -> PQGen[RV]:
    """Let the first step write at once, without a turn of the event loop.

    The socket of an idle connection nearly always has room. If it has not, the step waits again.
    """
    try:
        state = next(steps)
        if state & waiting.WAIT_W:
            state = steps.send(waiting.READY_W)
        while True:
            state = steps.send((yield state))
    except StopIteration as end:
        result: RV = end.value
        return result


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
    timings: CancelTimings = DEFAULT_TIMINGS,
    on_abandon: Callable[[], Awaitable[object]] | None = None,
) -> T:
    """Await `work`, and abandon it after `seconds` or if the caller is canceled.

    For drivers that wait for their server even if they are canceled. The driver has a grace period
    to cancel the statement. Then `connections` are cut, so that the work ends. `on_abandon` runs at
    the same time.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.wait([task], timeout=seconds)
    finally:
        is_late = not task.done()
        if is_late:
            ending = asyncio.create_task(_abandon(task, connections, timings, on_abandon))
            _abandonments.add(ending)
            ending.add_done_callback(_abandonments.discard)
            # If the caller is canceled again, it does not wait for the end.
            await asyncio.shield(ending)
        failed = task.cancelled() or task.exception() is not None
    if is_late and failed:
        raise TimeoutError(f"no answer, or no connection of the pool, within {seconds:g} s")
    return task.result()


async def _abandon(
    task: asyncio.Task[Any],
    connections: Sequence[Any],
    timings: CancelTimings,
    on_abandon: Callable[[], Awaitable[object]] | None,
) -> None:
    ends: list[Awaitable[object]] = [_cancel_task(task, connections, timings)]
    if on_abandon is not None:
        ends.append(on_abandon())
    await asyncio.gather(*ends, return_exceptions=True)


async def _cancel_task(
    task: asyncio.Task[Any], connections: Sequence[Any], timings: CancelTimings
) -> None:
    task.cancel()
    await asyncio.wait([task], timeout=timings.grace_seconds)
    while not task.done():
        for connection in connections:
            terminate_connection(connection)
        # Again: a driver may wait for another event now, and before Python 3.12
        # asyncio.wait_for can lose a cancellation.
        task.cancel()
        await asyncio.wait([task], timeout=timings.retry_seconds)
    if not task.cancelled():
        # Retrieve it, or asyncio logs that it was never retrieved.
        task.exception()


def terminate_connection(connection: Any) -> None:
    """Make every call fail that waits for an answer on a psycopg or asyncpg connection."""
    # It raises if the connection is closed already. asyncpg returns a cut connection to its pool,
    # and then each of its methods raises.
    with suppress(Exception):
        if isinstance(connection, AsyncConnection):
            _shutdown_socket(connection.fileno())
        else:
            connection.terminate()


def _shutdown_socket(descriptor: int) -> None:
    """Close both directions of a connection, whose descriptor libpq still owns."""
    copy = socket.socket(fileno=descriptor)
    try:
        copy.shutdown(socket.SHUT_RDWR)
    finally:
        copy.detach()
