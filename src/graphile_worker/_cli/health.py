"""`/livez` and `/readyz` for an orchestrator, from a thread that answers even if the loop hangs.

That thread has a separate event loop. It holds a limited number of connections for a limited time,
so that slow clients cannot use up the threads or file descriptors of a worker.
"""

import asyncio
import logging
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._support.error_format import format_error_line
from graphile_worker.errors import ConfigurationError

if TYPE_CHECKING:
    from graphile_worker._cli.readiness import QueueProbe

# An event loop is alive if it ran within this time.
MAX_LOOP_DELAY_SECONDS = 10.0

# All addresses of the machine, IPv4 and IPv6.
ALL_ADDRESSES = "::"

# Connections that are open at once. Further ones wait in the kernel's queue, up to the backlog.
MAX_CONNECTIONS = 32
LISTEN_BACKLOG = 1024

# Probes send a few hundred bytes.
MAX_REQUEST_BYTES = 8192

# The pause after a failed accept, for example without a free file descriptor.
ACCEPT_RETRY_SECONDS = 0.1

# The answer to this target lists details, as in Kubernetes.
VERBOSE_TARGET = b"/readyz?verbose"

# The details if the diagnosis raises an error.
UNKNOWN_VERDICT = "verdict: unknown"

Checks = Mapping[str, Callable[[], bool]]

# Returns lines to append to the answer of `/readyz?verbose`.
Describe = Callable[[], Awaitable[str]]

logger = logging.getLogger("graphile_worker")


def describe_queue(conninfo: str | None, schemas: Schemas) -> Describe:
    """Build the function that diagnoses a queue for `/readyz?verbose`."""
    probe: QueueProbe | None = None

    async def describe() -> str:
        nonlocal probe
        if probe is None:
            # Imported at the first request, as few workers get one.
            from graphile_worker._cli.readiness import QueueProbe

            probe = QueueProbe(conninfo, schemas)
        return await probe.describe()

    return describe


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthTimings:
    """Time limits in seconds."""

    max_loop_delay: float = MAX_LOOP_DELAY_SECONDS
    loop_check_interval: float = 1.0
    request_timeout: float = 5.0
    """The limit for a request and its answer, even if the client keeps sending bytes."""


DEFAULT_TIMINGS = HealthTimings()


class LoopMonitor:
    """Records when the event loop last ran."""

    def __init__(self, timings: HealthTimings) -> None:
        self._timings = timings
        self._last_run = time.monotonic()

    @property
    def is_alive(self) -> bool:
        return time.monotonic() - self._last_run < self._timings.max_loop_delay

    async def run(self) -> None:
        while True:
            self._last_run = time.monotonic()
            await asyncio.sleep(self._timings.loop_check_interval)


@asynccontextmanager
async def health_server(
    port: int | None,
    is_ready: Callable[[], bool],
    is_alive: Callable[[], bool] = lambda: True,
    *,
    host: str = "127.0.0.1",
    describe: Describe | None = None,
    timings: HealthTimings = DEFAULT_TIMINGS,
) -> AsyncIterator[int]:
    """Serve `/livez` and `/readyz` until the context ends, and yield the port.

    Args:
        port: The port, 0 for any free one, None for no server.
        is_ready: Decides the status of `/readyz`.
        is_alive: Decides the status of `/livez`, together with the event loop.
        host: The address to listen on.
        describe: Returns the text that `/readyz?verbose` appends; it does not change the status.
        timings: Time limits.

    Raises:
        ConfigurationError: If the address cannot be used.
    """
    if port is None:
        yield 0
        return
    monitor = LoopMonitor(timings)
    checks = {"/livez": lambda: monitor.is_alive and is_alive(), "/readyz": is_ready}
    listener = _open_listener(host, port)
    server = _HealthServer(listener, checks, describe, timings)
    monitoring = asyncio.create_task(monitor.run())
    try:
        yield listener.getsockname()[1]
    finally:
        monitoring.cancel()
        await asyncio.to_thread(server.close)


def _open_listener(host: str, port: int) -> socket.socket:
    try:
        return _create_listener(host, port)
    # A host name that cannot be encoded raises ValueError.
    except (OSError, OverflowError, ValueError) as error:
        raise ConfigurationError(
            f"cannot listen on {host} port {port}: {error}. Change --health-port or --health-host."
        ) from error


def _create_listener(host: str, port: int) -> socket.socket:
    has_both = socket.has_dualstack_ipv6()
    if host == ALL_ADDRESSES and not has_both:
        return socket.create_server(("", port), backlog=LISTEN_BACKLOG)
    [(family, _, _, _, address), *_] = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return socket.create_server(
        (address[0], port, *address[2:]),
        family=family,
        backlog=LISTEN_BACKLOG,
        dualstack_ipv6=has_both and family == socket.AF_INET6,
    )


class _HealthServer:
    """Serves a listening socket from a thread, until it is closed."""

    def __init__(
        self,
        listener: socket.socket,
        checks: Checks,
        describe: Describe | None,
        timings: HealthTimings,
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._checks = checks
        self._describe = describe
        self._timings = timings
        # The first client is closed when there are too many.
        self._clients: OrderedDict[socket.socket, asyncio.Task[None]] = OrderedDict()
        # Not the proactor of Windows, which psycopg does not support.
        self._loop = asyncio.SelectorEventLoop()
        self._serve_task = self._loop.create_task(self._serve())
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close all connections, and wait until the thread has ended."""
        self._loop.call_soon_threadsafe(self._serve_task.cancel)
        self._thread.join()
        self._loop.close()
        self._listener.close()

    def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._serve_task)
        # A diagnosis outlasts the request that started it.
        if remaining := asyncio.all_tasks(self._loop):
            for task in remaining:
                task.cancel()
            self._loop.run_until_complete(asyncio.wait(remaining))

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                self._admit(group, await self._accept())
                # Answer requests that have arrived before the next client is accepted, so that a
                # flood of connections cannot displace a probe.
                await asyncio.sleep(0)

    async def _accept(self) -> socket.socket:
        while True:
            try:
                connection, _ = await self._loop.sock_accept(self._listener)
            except OSError:
                await asyncio.sleep(ACCEPT_RETRY_SECONDS)
            else:
                return connection

    def _admit(self, group: asyncio.TaskGroup, connection: socket.socket) -> None:
        """Answer this client. If there are too many, close it or another one."""
        received = _receive_available(connection)
        if len(self._clients) == MAX_CONNECTIONS:
            # A probe sends its request at once, so clients with a partial request are closed first.
            if received and not _is_complete(received):
                connection.close()
                return
            _, client = self._clients.popitem(last=False)
            client.cancel()
        self._start_client(group, connection, received)

    def _start_client(
        self, group: asyncio.TaskGroup, connection: socket.socket, received: bytes
    ) -> None:
        client = group.create_task(self._respond(connection, received))
        self._clients[connection] = client

        def close_connection(_: object) -> None:
            # Not in the task: a task that is cancelled before it begins never runs.
            self._clients.pop(connection, None)
            connection.close()

        client.add_done_callback(close_connection)

    async def _respond(self, connection: socket.socket, received: bytes) -> None:
        # A client that is late or gone gets no answer and no log line.
        with suppress(OSError):
            async with asyncio.timeout(self._timings.request_timeout):
                request = await self._read_request(connection, received)
                if request is not None:
                    response = await self._build_response(request)
                    await self._loop.sock_sendall(connection, response)

    async def _build_response(self, request: bytes) -> bytes:
        """Build the answer to a request, of which only the first line counts."""
        request_line = request.partition(b"\n")[0].split()
        status, text = _evaluate(request_line, self._checks)
        is_evaluated = status in (HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE)
        if self._describe is not None and is_evaluated and request_line[1] == VERBOSE_TARGET:
            text = f"{text}\n{await _describe_safely(self._describe)}\n"
        body = text.encode()
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\n"
            "Allow: GET, HEAD\r\n"
            "Connection: close\r\n"
            "Content-Type: text/plain; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\n"
            "\r\n"
        )
        return head.encode("ascii") + (b"" if request_line[:1] == [b"HEAD"] else body)

    async def _read_request(self, connection: socket.socket, received: bytes) -> bytes | None:
        """Return the head of a request, empty if it is too long, or None if the client is gone."""
        while not _is_complete(received):
            if len(received) > MAX_REQUEST_BYTES:
                return b""
            if received:
                self._clients.move_to_end(connection, last=False)
            chunk = await self._loop.sock_recv(connection, MAX_REQUEST_BYTES)
            if not chunk:
                return None
            received += chunk
        return received


def _receive_available(connection: socket.socket) -> bytes:
    try:
        return connection.recv(MAX_REQUEST_BYTES)
    except OSError:
        # Nothing has arrived, or the client is gone: the next read shows which.
        return b""


def _is_complete(request: bytes) -> bool:
    return b"\r\n\r\n" in request or b"\n\n" in request


def _evaluate(request_line: list[bytes], checks: Checks) -> tuple[HTTPStatus, str]:
    match request_line:
        case [b"GET" | b"HEAD", target, _]:
            check = checks.get(target.partition(b"?")[0].decode("latin-1"))
            if check is None:
                return HTTPStatus.NOT_FOUND, "not found"
            if _is_passing(check):
                return HTTPStatus.OK, "ok"
            return HTTPStatus.SERVICE_UNAVAILABLE, "not ok"
        case [_, _, _]:
            return HTTPStatus.METHOD_NOT_ALLOWED, "method not allowed"
        case _:
            return HTTPStatus.BAD_REQUEST, "bad request"


def _is_passing(check: Callable[[], bool]) -> bool:
    try:
        return check()
    except Exception as error:
        # The server must answer the next probe.
        logger.error("health check failed, answering 503: %s", format_error_line(error))
        return False


async def _describe_safely(describe: Describe) -> str:
    try:
        return await describe()
    except Exception as error:
        # An error here would end the server, and with it `/livez`.
        logger.error("diagnosis failed, answering without findings: %s", format_error_line(error))
        return UNKNOWN_VERDICT
