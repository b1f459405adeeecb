"""`/livez` and `/readyz` for an orchestrator, from a thread that answers even if the loop hangs.

That thread has an event loop of its own, and holds a bounded number of connections for a bounded
time: a client that can reach the port costs a worker neither threads nor file descriptors.
"""

import asyncio
import logging
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus

from graphile_worker._support.error_format import format_error_line
from graphile_worker.errors import ConfigurationError

# The loop must have turned within this many seconds.
MAX_LOOP_DELAY_SECONDS = 10.0
LOOP_CHECK_INTERVAL_SECONDS = 1.0

# The address that means all addresses of the machine, those of IPv4 among them.
ALL_ADDRESSES = "::"

# Connections that are open at once. Others wait in the kernel's queue, of at most this length.
MAX_CONNECTIONS = 32
LISTEN_BACKLOG = 1024

# Seconds that a client has for its request and the answer together, however often it sends a byte.
REQUEST_TIMEOUT_SECONDS = 5.0

# Probes send a few hundred bytes.
MAX_REQUEST_BYTES = 8192

# Seconds before the next try where no connection can be accepted, as no file descriptor is left.
ACCEPT_RETRY_SECONDS = 0.1

Checks = Mapping[str, Callable[[], bool]]

logger = logging.getLogger("graphile_worker")


class LoopMonitor:
    """When did the event loop last turn?"""

    def __init__(self) -> None:
        self._last_turn = time.monotonic()

    @property
    def is_alive(self) -> bool:
        return time.monotonic() - self._last_turn < MAX_LOOP_DELAY_SECONDS

    async def run(self) -> None:
        while True:
            self._last_turn = time.monotonic()
            await asyncio.sleep(LOOP_CHECK_INTERVAL_SECONDS)


def always() -> bool:
    return True


@asynccontextmanager
async def health_server(
    port: int | None,
    is_ready: Callable[[], bool],
    is_alive: Callable[[], bool] = always,
    *,
    host: str = "127.0.0.1",
) -> AsyncIterator[int]:
    """Answer at this address while it lasts; which port, as 0 means any. Without one, nothing."""
    if port is None:
        yield 0
        return
    pulse = LoopMonitor()
    checks = {"/livez": lambda: pulse.is_alive and is_alive(), "/readyz": is_ready}
    listener = _open_listener(host, port)
    server = _HealthServer(listener, checks)
    turning = asyncio.create_task(pulse.run())
    try:
        yield listener.getsockname()[1]
    finally:
        turning.cancel()
        await asyncio.to_thread(server.close)


def _open_listener(host: str, port: int) -> socket.socket:
    try:
        return _create_listener(host, port)
    # An address that cannot be encoded is a ValueError.
    except (OSError, OverflowError, ValueError) as error:
        raise ConfigurationError(f"--health-port {port} at {host}: {error}") from error


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

    def __init__(self, listener: socket.socket, checks: Checks) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._checks = checks
        # In the order in which they are closed when there are too many.
        self._clients: OrderedDict[socket.socket, asyncio.Task[None]] = OrderedDict()
        self._loop = asyncio.new_event_loop()
        self._serve_task = self._loop.create_task(self._serve())
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close all connections, and return once the thread has ended."""
        self._loop.call_soon_threadsafe(self._serve_task.cancel)
        self._thread.join()
        self._loop.close()
        self._listener.close()

    def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._serve_task)

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                self._admit(group, await self._accept())
                # A request that has already arrived is answered before the next client is accepted:
                # a flood of connections cannot push a probe out.
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
        """Answer this client; if there are too many, close it or another one at once."""
        received = _receive_available(connection)
        if len(self._clients) == MAX_CONNECTIONS:
            # A probe sends its request whole, so a client that sent a part of one is closed first.
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

        def end(_: object) -> None:
            # Here and not in the task, as one that is cancelled before it begins never runs.
            self._clients.pop(connection, None)
            connection.close()

        client.add_done_callback(end)

    async def _respond(self, connection: socket.socket, received: bytes) -> None:
        # A client that is late or gone gets no answer, and nothing is logged about it.
        with suppress(OSError):
            async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
                request = await self._read_request(connection, received)
                if request is not None:
                    await self._loop.sock_sendall(connection, build_response(request, self._checks))

    async def _read_request(self, connection: socket.socket, received: bytes) -> bytes | None:
        """The head of the request, empty if it is too long; None if the client has gone."""
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
    """What a client has sent by now; nothing, too, if it has gone, which the next read tells."""
    try:
        return connection.recv(MAX_REQUEST_BYTES)
    except OSError:
        return b""


def _is_complete(request: bytes) -> bool:
    return b"\r\n\r\n" in request or b"\n\n" in request


def build_response(request: bytes, checks: Checks) -> bytes:
    """The answer to a request, of which only the first line counts."""
    words = request.partition(b"\n")[0].split()
    status, text = _evaluate(words, checks)
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        "Allow: GET, HEAD\r\n"
        "Connection: close\r\n"
        "Content-Type: text/plain\r\n"
        f"Content-Length: {len(text)}\r\n"
        "\r\n"
    )
    body = "" if words[:1] == [b"HEAD"] else text
    return f"{head}{body}".encode("ascii")


def _evaluate(words: list[bytes], checks: Checks) -> tuple[HTTPStatus, str]:
    match words:
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
        # It must not end the server, which has to answer the next probe.
        logger.error("health check failed, answering 503: %s", format_error_line(error))
        return False
