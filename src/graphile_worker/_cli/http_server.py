"""A small HTTP server in a thread that answers even if the event loop of the program hangs.

That thread has a separate event loop. It holds a limited number of connections for a limited time,
so that slow clients cannot use up the threads or file descriptors of a worker.
"""

import asyncio
import logging
import socket
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qs

from graphile_worker._support.error_format import format_error_line
from graphile_worker.errors import ConfigurationError

# All addresses of the machine, IPv4 and IPv6.
ALL_ADDRESSES = "::"

# Connections without a complete request. Further ones wait in the kernel's queue, up to the
# backlog: the default limit of Linux. A client beyond that connects a second later.
MAX_CONNECTIONS = 32
LISTEN_BACKLOG = 4096

# Connections whose request is answered. Several scrapers may wait for one slow handler.
MAX_ANSWERS = 128

# The limit for a request and its answer.
REQUEST_TIMEOUT_SECONDS = 5.0

# Probes and scrapers send a few hundred bytes.
MAX_REQUEST_BYTES = 8192
MAX_QUERY_PARAMETERS = 20

# The pause after a failed accept, for example without a free file descriptor.
ACCEPT_RETRY_SECONDS = 0.1

TEXT_CONTENT_TYPE = "text/plain; charset=utf-8"

logger = logging.getLogger("graphile_worker")


@dataclass(frozen=True, slots=True)
class Request:
    """A GET or HEAD request."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    """The values of each query parameter, empty text for a parameter without a value."""
    accept: str = ""
    """The `Accept` header."""


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to a request. The server leaves out the body if the method is HEAD."""

    status: HTTPStatus = HTTPStatus.OK
    content_type: str = TEXT_CONTENT_TYPE
    body: str = ""


Handler = Callable[[Request], Awaitable[Response]]

_Clients = OrderedDict[socket.socket, asyncio.Task[None]]

NOT_FOUND = Response(HTTPStatus.NOT_FOUND, body="not found")
METHOD_NOT_ALLOWED = Response(HTTPStatus.METHOD_NOT_ALLOWED, body="method not allowed")
BAD_REQUEST = Response(HTTPStatus.BAD_REQUEST, body="bad request")
INTERNAL_ERROR = Response(HTTPStatus.INTERNAL_SERVER_ERROR, body="internal error")


def open_listener(host: str, port: int, address_flags: str) -> socket.socket:
    """Open a listening socket.

    Args:
        host: The address, or a name for it.
        port: The port, 0 for any free one.
        address_flags: The flags that an error names.

    Raises:
        ConfigurationError: If the address cannot be used.
    """
    try:
        return _create_listener(host, port)
    # A host name that cannot be encoded raises ValueError.
    except (OSError, OverflowError, ValueError) as error:
        raise ConfigurationError(
            f"cannot listen on {host} port {port}: {error}. Change {address_flags}."
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


class HttpServer:
    """Serves a listening socket from a thread, until it is closed.

    Args:
        listener: The socket. The server closes it.
        routes: The handler of each path. It runs in the server's thread and event loop.
        name: The name of the thread.
        request_timeout: The limit for a request and its answer in seconds.
    """

    def __init__(
        self,
        listener: socket.socket,
        routes: Mapping[str, Handler],
        *,
        name: str,
        request_timeout: float = REQUEST_TIMEOUT_SECONDS,
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._routes = routes
        self._request_timeout = request_timeout
        # When there are too many clients without a request, or with one, the first is closed.
        self._clients: _Clients = OrderedDict()
        self._answered_clients: _Clients = OrderedDict()
        # Not the proactor of Windows, which psycopg does not support.
        self._loop = asyncio.SelectorEventLoop()
        self._serve_task = self._loop.create_task(self._serve())
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
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
        # A task of a handler may outlast the request that started it.
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
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                await self._wait_for_connection()
            except OSError:
                await asyncio.sleep(ACCEPT_RETRY_SECONDS)
            else:
                connection.setblocking(False)
                return connection

    async def _wait_for_connection(self) -> None:
        # Not `sock_accept`: if a client connects while that call is cancelled, it logs an
        # `InvalidStateError` and leaks the connection (python/cpython#153761).
        has_connection = asyncio.Event()
        self._loop.add_reader(self._listener, has_connection.set)
        try:
            await has_connection.wait()
        finally:
            self._loop.remove_reader(self._listener)

    def _admit(self, group: asyncio.TaskGroup, connection: socket.socket) -> None:
        """Answer this client. If there are too many, close it or another one."""
        received = _receive_available(connection)
        if len(self._clients) == MAX_CONNECTIONS:
            # A probe sends its request at once, so clients with a partial request are closed first.
            if received and not _is_complete(received):
                connection.close()
                return
            _cancel_first(self._clients)
        self._start_client(group, connection, received)

    def _start_client(
        self, group: asyncio.TaskGroup, connection: socket.socket, received: bytes
    ) -> None:
        client = group.create_task(self._serve_client(connection, received))
        self._clients[connection] = client

        def close_connection(_: object) -> None:
            # Not in the task: a task that is cancelled before it begins never runs.
            self._clients.pop(connection, None)
            self._answered_clients.pop(connection, None)
            connection.close()

        client.add_done_callback(close_connection)

    async def _serve_client(self, connection: socket.socket, received: bytes) -> None:
        # A client that is late or gone gets no answer and no log line.
        with suppress(OSError):
            async with asyncio.timeout(self._request_timeout):
                request = await self._read_request(connection, received)
                if request is None:
                    return
                self._keep_until_answered(connection)
                response = await self._respond(request)
                content = _encode_response(response, is_head=request.startswith(b"HEAD "))
                await self._loop.sock_sendall(connection, content)

    def _keep_until_answered(self, connection: socket.socket) -> None:
        # New clients must not displace one that waits for its answer.
        if len(self._answered_clients) == MAX_ANSWERS:
            _cancel_first(self._answered_clients)
        self._answered_clients[connection] = self._clients.pop(connection)

    async def _respond(self, head: bytes) -> Response:
        match _parse_head(head):
            case Request() as request:
                handler = self._routes.get(request.path)
                return NOT_FOUND if handler is None else await _run_handler(handler, request)
            case response:
                return response

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


def _cancel_first(clients: _Clients) -> None:
    _, client = clients.popitem(last=False)
    client.cancel()


def _receive_available(connection: socket.socket) -> bytes:
    try:
        return connection.recv(MAX_REQUEST_BYTES)
    except OSError:
        # Nothing has arrived, or the client is gone: the next read shows which.
        return b""


def _is_complete(request: bytes) -> bool:
    return b"\r\n\r\n" in request or b"\n\n" in request


def _parse_head(head: bytes) -> Request | Response:
    request_line, _, headers = head.partition(b"\n")
    match request_line.split():
        case [b"GET" | b"HEAD" as method, target, _]:
            path, _, query = target.decode("latin-1").partition("?")
            try:
                parameters = parse_qs(
                    query, keep_blank_values=True, max_num_fields=MAX_QUERY_PARAMETERS
                )
            except ValueError:
                return BAD_REQUEST
            return Request(method.decode(), path, parameters, _read_accept(headers))
        case [_, _, _]:
            return METHOD_NOT_ALLOWED
        case _:
            return BAD_REQUEST


def _read_accept(headers: bytes) -> str:
    values = []
    for line in headers.decode("latin-1").split("\n"):
        name, _, value = line.partition(":")
        if name.lower() == "accept":
            values.append(value.strip())
    return ", ".join(values)


async def _run_handler(handler: Handler, request: Request) -> Response:
    try:
        return await handler(request)
    except Exception as error:
        # The server must answer the next request.
        logger.error("%s failed, answering 500: %s", request.path, format_error_line(error))
        return INTERNAL_ERROR


def _encode_response(response: Response, *, is_head: bool) -> bytes:
    body = response.body.encode()
    head = (
        f"HTTP/1.1 {response.status.value} {response.status.phrase}\r\n"
        "Allow: GET, HEAD\r\n"
        "Connection: close\r\n"
        f"Content-Type: {response.content_type}\r\n"
        f"Content-Length: {len(body)}\r\n"
        "\r\n"
    )
    return head.encode("ascii") + (b"" if is_head else body)
