"""The health server: what it answers, to whom, and for how long."""

import asyncio
import socket
import time
import urllib.error
import urllib.request

import pytest

from graphile_worker.cli import health
from graphile_worker.cli.health import health_server


def get(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    """The status and the text that are answered."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


async def ask(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    return await asyncio.to_thread(get, port, path, method)


async def test_a_loop_that_turns_is_alive():
    async with health_server(0, lambda: False) as port:
        assert await ask(port, "/livez") == (200, "ok")


async def test_a_worker_is_ready_when_it_says_so():
    ready = False
    async with health_server(0, lambda: ready) as port:
        assert await ask(port, "/readyz") == (503, "not ok")

        ready = True
        assert await ask(port, "/readyz") == (200, "ok")


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
async def test_it_answers_on_addresses_of_both_kinds():
    async with health_server(0, lambda: True) as port:
        for host in ("127.0.0.1", "::1"):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET /livez HTTP/1.0\r\n\r\n")
            assert (await reader.readline()).split()[1] == b"200"
            writer.close()


async def test_two_paths_are_known_and_no_others():
    paths = ["/livez?deep=1", "/", "/healthz", "/readyz/more", "/READYZ"]
    async with health_server(0, lambda: True) as port:
        answers = [await ask(port, path) for path in paths]

    assert answers == [(200, "ok")] + [(404, "not found")] * 4


async def test_a_head_request_has_no_body():
    async with health_server(0, lambda: True) as port:
        assert await ask(port, "/readyz", "HEAD") == (200, "")


async def test_a_blocked_loop_is_not_alive_until_it_turns_again(monkeypatch):
    monkeypatch.setattr(health, "ALIVE_WITHIN", 0.5)
    monkeypatch.setattr(health, "TURN_EVERY", 0.01)
    async with health_server(0, lambda: True) as port:
        # To wait here blocks the loop, and a thread answers all the same.
        deadline = time.monotonic() + 20
        while get(port, "/livez") == (200, "ok"):
            assert time.monotonic() < deadline
        assert get(port, "/livez") == (503, "not ok")

        while await ask(port, "/livez") != (200, "ok"):
            assert time.monotonic() < deadline


async def test_nothing_is_logged_for_what_is_asked_every_few_seconds(capfd, caplog):
    async with health_server(0, lambda: True) as port:
        await ask(port, "/livez")

    assert capfd.readouterr().err == ""
    assert caplog.records == []


async def test_without_a_port_nothing_is_served():
    async with health_server(None, lambda: True) as port:
        assert port == 0


async def test_the_port_is_free_afterwards():
    async with health_server(0, lambda: True) as port:
        pass

    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        pass
    async with health_server(port, lambda: True) as again:
        assert again == port


async def test_a_client_that_says_nothing_holds_nobody_up():
    async with health_server(0, lambda: True) as port:
        silent = socket.create_connection(("127.0.0.1", port))
        assert await ask(port, "/livez") == (200, "ok")

    # The server is gone, although this one never said what it wants.
    silent.close()
