"""The health server: its answers, its addresses, and its limits for clients."""

import asyncio
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http import HTTPStatus
from typing import Any

import pytest

from graphile_worker._cli.health import HealthTimings, health_server
from graphile_worker._cli.http_server import (
    MAX_ANSWERS,
    MAX_CONNECTIONS,
    HttpServer,
    Request,
    Response,
    open_listener,
)
from graphile_worker.errors import ConfigurationError

# Connections are closed for other reasons only.
NO_DEADLINE = HealthTimings(request_timeout=600.0)


def get(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    """Return the status and the text of the answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def ask(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    return await asyncio.to_thread(get, port, path, method)


async def test_livez_is_200_while_the_event_loop_runs():
    async with health_server(0, lambda: False) as port:
        assert await ask(port, "/livez") == (200, "ok")


async def test_readyz_is_200_while_the_worker_is_ready():
    ready = False
    async with health_server(0, lambda: ready) as port:
        assert await ask(port, "/readyz") == (503, "not ok")

        ready = True
        assert await ask(port, "/readyz") == (200, "ok")


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
async def test_health_server_listens_on_ipv4_and_ipv6():
    async with health_server(0, lambda: True, host="::") as port:
        for host in ("127.0.0.1", "::1"):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET /livez HTTP/1.0\r\n\r\n")
            assert (await reader.readline()).split()[1] == b"200"
            writer.close()


async def test_health_server_listens_on_this_machine_only_by_default():
    async with health_server(0, lambda: True) as port:
        assert await ask(port, "/livez") == (200, "ok")
        # Another address of the same machine represents a network address.
        with socket.socket() as elsewhere:
            assert elsewhere.connect_ex(("127.0.0.2", port)) != 0


async def test_an_address_that_this_machine_does_not_have_is_rejected():
    for host in ("192.0.2.1", "no such host", "a" * 70, "\0"):
        with pytest.raises(ConfigurationError, match="^cannot listen on .* port 0: "):
            async with health_server(0, lambda: True, host=host):
                pass


async def test_health_server_serves_two_paths():
    paths = ["/livez?deep=1", "/", "/healthz", "/readyz/more", "/READYZ"]
    async with health_server(0, lambda: True) as port:
        answers = [await ask(port, path) for path in paths]

    assert answers == [(200, "ok")] + [(404, "not found")] * 4


async def test_a_head_request_has_no_body():
    async with health_server(0, lambda: True) as port:
        assert await ask(port, "/readyz", "HEAD") == (200, "")


async def test_readyz_verbose_appends_the_description_and_keeps_the_status():
    async def describe() -> str:
        return "verdict: degraded\nwarning late: é is late"

    async with health_server(0, lambda: False, describe=describe) as port:
        assert await ask(port, "/readyz?verbose") == (
            503,
            "not ok\nverdict: degraded\nwarning late: é is late\n",
        )
        assert await ask(port, "/readyz?verbose", "HEAD") == (503, "")
        assert await ask(port, "/readyz") == (503, "not ok")
        assert await ask(port, "/livez?verbose") == (200, "ok")


async def test_only_get_and_head_requests_start_a_diagnosis():
    calls = 0

    async def describe() -> str:
        nonlocal calls
        calls += 1
        return "verdict: healthy"

    async with health_server(0, lambda: True, describe=describe) as port:
        assert await ask(port, "/readyz?verbose", "POST") == (405, "method not allowed")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /readyz?verbose\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"400"
        writer.close()
        assert calls == 0

        assert await ask(port, "/readyz?verbose") == (200, "ok\nverdict: healthy\n")
        assert calls == 1


async def test_a_diagnosis_that_raises_has_no_verdict_and_the_next_probe_is_answered(caplog):
    async def describe() -> str:
        raise ZeroDivisionError("always")

    async with health_server(0, lambda: True, describe=describe) as port:
        assert await ask(port, "/readyz?verbose") == (200, "ok\nverdict: unknown\n")
        assert await ask(port, "/livez") == (200, "ok")

    assert [record.getMessage() for record in caplog.records] == [
        "diagnosis failed, answering without findings: ZeroDivisionError: always"
    ]


async def test_a_diagnosis_that_outlasts_its_request_ends_with_the_server():
    started, ended = threading.Event(), threading.Event()
    # The server's loop keeps only weak references to tasks.
    tasks: list[asyncio.Task[str]] = []

    async def diagnose() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    async def describe() -> str:
        tasks.append(asyncio.create_task(diagnose()))
        return await asyncio.shield(tasks[0])

    async with health_server(0, lambda: True, describe=describe, timings=NO_DEADLINE) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /readyz?verbose HTTP/1.1\r\n\r\n")
        assert await asyncio.to_thread(started.wait, 20)
        assert not ended.is_set()

    writer.close()
    assert ended.is_set()


async def test_livez_is_503_while_the_event_loop_is_blocked():
    timings = HealthTimings(max_loop_delay=0.5, loop_check_interval=0.01)
    async with health_server(0, lambda: True, timings=timings) as port:
        # A blocking wait blocks the event loop, and the thread of the server answers.
        deadline = time.monotonic() + 20
        while get(port, "/livez") == (200, "ok"):
            assert time.monotonic() < deadline
        assert get(port, "/livez") == (503, "not ok")

        while await ask(port, "/livez") != (200, "ok"):
            assert time.monotonic() < deadline


async def test_probes_are_not_logged(capfd, caplog):
    async with health_server(0, lambda: True) as port:
        await ask(port, "/livez")

    assert capfd.readouterr().err == ""
    assert caplog.records == []


async def test_without_a_port_no_server_starts():
    async with health_server(None, lambda: True) as port:
        assert port == 0


async def test_the_port_is_free_after_the_server_ends():
    async with health_server(0, lambda: True) as port:
        pass

    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        pass
    async with health_server(port, lambda: True) as again:
        assert again == port


def test_a_client_that_connects_while_the_server_closes_is_not_logged(caplog):
    listener = open_listener("127.0.0.1", 0, "")
    server = HttpServer(listener, {}, name="health")
    with socket.socket() as client:

        def connect_and_close() -> None:
            client.connect(listener.getsockname())
            # In the next iteration of the loop, which cancels first and then handles the client.
            server._loop.call_soon(server._serve_task.cancel)

        server._loop.call_soon_threadsafe(connect_and_close)
        server._thread.join()
        server.close()

    assert caplog.messages == []


async def test_a_client_without_a_request_does_not_delay_a_probe():
    async with health_server(0, lambda: True) as port:
        client = socket.create_connection(("127.0.0.1", port))
        assert await ask(port, "/livez") == (200, "ok")

    # The server has ended without a request of this client.
    client.close()


# Slow, invalid and disconnected clients

PARTIAL_REQUEST = b"GET /livez HTTP/1.1\r\nX: "


def connect(port: int, data: bytes = b"") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=20)
    client.sendall(data)
    return client


def is_closed(client: socket.socket) -> bool:
    """Whether the server closed the connection; it does not answer a partial request."""
    client.settimeout(0.01)
    try:
        return client.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True


async def wait_for_closed(clients: list[socket.socket], number: int) -> list[socket.socket]:
    """Wait until `number` clients are closed, and return them."""
    deadline = time.monotonic() + 20
    while True:
        closed = [client for client in clients if await asyncio.to_thread(is_closed, client)]
        if len(closed) >= number:
            return closed
        assert time.monotonic() < deadline


async def test_at_most_32_connections_are_open_and_probes_are_answered():
    assert MAX_CONNECTIONS == 32
    for data in (b"", PARTIAL_REQUEST):
        with ExitStack() as stack:
            async with health_server(0, lambda: True, timings=NO_DEADLINE) as port:
                clients = [stack.enter_context(connect(port, data)) for _ in range(100)]
                closed = await wait_for_closed(clients, 68)
                answers = [await ask(port, "/livez") for _ in range(10)]

        assert len(closed) == 68
        assert answers == [(200, "ok")] * 10


async def test_clients_with_a_partial_request_are_closed_first():
    with ExitStack() as stack:
        async with health_server(0, lambda: True, timings=NO_DEADLINE) as port:
            waiting = stack.enter_context(connect(port))
            slow = [stack.enter_context(connect(port, PARTIAL_REQUEST)) for _ in range(50)]
            await wait_for_closed(slow, 50 - MAX_CONNECTIONS + 1)
            waiting.sendall(b"GET /livez HTTP/1.1\r\n\r\n")
            answer = await asyncio.to_thread(waiting.recv, 100)

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")


async def test_a_request_has_one_deadline_for_all_its_bytes():
    timings = HealthTimings(request_timeout=0.3)
    async with health_server(0, lambda: True, timings=timings) as port:
        with connect(port, PARTIAL_REQUEST) as client:
            deadline = time.monotonic() + 20
            while not await asyncio.to_thread(is_closed, client):
                assert time.monotonic() < deadline
                with suppress(OSError):
                    client.sendall(b"a")


async def test_an_answer_names_neither_the_program_nor_its_version():
    async with health_server(0, lambda: True) as port:
        answers = [
            await asyncio.to_thread(read_answer, port, request)
            for request in (
                b"GET /livez HTTP/1.0\r\n\r\n",
                b"GET /livez HTTP/1.1\nHost: x\n\n",
                b"POST /livez HTTP/1.1\r\n\r\n",
                b"nonsense\r\n\r\n",
                b"\r\n\r\n",
                b"\xff\x00 \xff \xff\r\n\r\n",
                b"GET /livez HTTP/1.1\r\nX: " + b"a" * 10_000,
            )
        ]

    assert [answer.split()[1] for answer in answers] == [
        *(b"200", b"200", b"405", b"400", b"400", b"405", b"400")
    ]
    for answer in answers:
        head = answer.partition(b"\r\n\r\n")[0].decode()
        assert [line.partition(":")[0] for line in head.splitlines()[1:]] == [
            *("Allow", "Connection", "Content-Type", "Content-Length")
        ]


def read_answer(port: int, request: bytes) -> bytes:
    with connect(port, request) as client:
        received = b""
        # Bytes that the server did not read reset the connection.
        with suppress(ConnectionResetError):
            while chunk := client.recv(1000):
                received += chunk
        return received


async def test_disconnected_clients_are_not_logged(capfd, caplog):
    async with health_server(0, lambda: True) as port:
        for data in (b"", PARTIAL_REQUEST, b"GET /livez HTTP/1.1\r\n\r\n"):
            client = connect(port, data)
            # Reset the connection instead of closing it.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        assert await ask(port, "/livez") == (200, "ok")

    assert capfd.readouterr().err == ""
    assert caplog.records == []


async def test_a_check_that_raises_answers_503_and_the_next_probe_is_answered(caplog):
    answers: Iterator[Any] = iter([ZeroDivisionError("once"), True])

    def is_ready() -> bool:
        if isinstance(answer := next(answers), Exception):
            raise answer
        return bool(answer)

    async with health_server(0, is_ready) as port:
        assert await ask(port, "/readyz") == (503, "not ok")
        assert await ask(port, "/readyz") == (200, "ok")

    assert [record.getMessage() for record in caplog.records] == [
        "health check failed, answering 503: ZeroDivisionError: once"
    ]


# Routes


async def test_a_route_gets_the_method_path_query_and_accept_header_of_a_request():
    requests: list[Request] = []

    async def handle(request: Request) -> Response:
        requests.append(request)
        return Response(HTTPStatus.ACCEPTED, "application/json", '{"é": 1}')

    async with health_server(0, lambda: False, routes={"/a": handle, "/livez": handle}) as port:
        target = b"/a?x=1&x=%C3%A9+2&empty&y=%00"
        first = b"GET " + target + b" HTTP/1.1\r\naccept:  text/plain \r\nAccept: */*\r\n\r\n"
        answers = [
            await asyncio.to_thread(read_answer, port, first),
            await asyncio.to_thread(read_answer, port, b"HEAD /a HTTP/1.1\n\n"),
        ]
        others = [
            await ask(port, "/livez"),
            await ask(port, "/a/b"),
            await ask(port, "/a", "POST"),
            await ask(port, "/a?" + "&".join(["x=1"] * 21)),
        ]

    assert requests == [
        Request("GET", "/a", {"x": ["1", "é 2"], "empty": [""], "y": ["\0"]}, "text/plain, */*"),
        Request("HEAD", "/a", {}, ""),
    ]
    head = (
        "HTTP/1.1 202 Accepted\r\nAllow: GET, HEAD\r\nConnection: close\r\n"
        "Content-Type: application/json\r\nContent-Length: 9\r\n\r\n"
    )
    assert answers == [f'{head}{{"é": 1}}'.encode(), head.encode()]
    assert others == [
        (200, "ok"),
        (404, "not found"),
        (405, "method not allowed"),
        (400, "bad request"),
    ]


async def test_an_error_in_a_route_is_logged_and_answers_500(caplog):
    async def handle(request: Request) -> Response:
        raise ZeroDivisionError("always")

    async with health_server(0, lambda: True, routes={"/a": handle}) as port:
        assert await ask(port, "/a") == (500, "internal error")
        assert await ask(port, "/livez") == (200, "ok")

    assert [record.getMessage() for record in caplog.records] == [
        "/a failed, answering 500: ZeroDivisionError: always"
    ]


async def test_clients_that_wait_for_a_slow_route_are_kept_and_probes_are_answered():
    proceed = threading.Event()

    async def handle(request: Request) -> Response:
        await asyncio.to_thread(proceed.wait)
        return Response(body="done")

    request = b"GET /a HTTP/1.1\r\n\r\n"
    with ExitStack() as stack:
        async with health_server(
            0, lambda: True, routes={"/a": handle}, timings=NO_DEADLINE
        ) as port:
            waiting = [stack.enter_context(connect(port, request)) for _ in range(MAX_ANSWERS)]
            # The probe displaces the first of them.
            assert await ask(port, "/livez") == (200, "ok")
            for _ in range(100):
                stack.enter_context(connect(port, PARTIAL_REQUEST))
            proceed.set()
            answers = [await asyncio.to_thread(client.recv, 1000) for client in waiting]

    assert [answer.endswith(b"done") for answer in answers] == [False] + [True] * (MAX_ANSWERS - 1)
