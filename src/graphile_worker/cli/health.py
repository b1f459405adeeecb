"""`/livez` and `/readyz` for an orchestrator, from a thread that answers even if the loop hangs."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from graphile_worker.errors import ConfigurationError

# The loop must have turned within this many seconds.
ALIVE_WITHIN = 10.0
TURN_EVERY = 1.0


class Pulse:
    """When did the event loop last turn?"""

    def __init__(self) -> None:
        self._last = time.monotonic()

    @property
    def alive(self) -> bool:
        return time.monotonic() - self._last < ALIVE_WITHIN

    async def run(self) -> None:
        while True:
            self._last = time.monotonic()
            await asyncio.sleep(TURN_EVERY)


def always() -> bool:
    return True


@asynccontextmanager
async def health_server(
    port: int | None, is_ready: Callable[[], bool], is_alive: Callable[[], bool] = always
) -> AsyncIterator[int]:
    """Answer on this port while it lasts; which port, as 0 means any. Without a port, nothing."""
    if port is None:
        yield 0
        return
    pulse = Pulse()
    checks = {"/livez": lambda: pulse.alive and is_alive(), "/readyz": is_ready}
    server = _bound(port, _handler(checks))
    serving = threading.Thread(
        target=server.serve_forever, args=(0.05,), name="health", daemon=True
    )
    serving.start()
    turning = asyncio.create_task(pulse.run())
    try:
        yield server.server_address[1]
    finally:
        turning.cancel()
        await asyncio.to_thread(server.shutdown)
        server.server_close()


class _Server(ThreadingHTTPServer):
    """On all addresses of the machine: a cluster may have none but those of IPv6."""

    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


def _bound(port: int, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    try:
        return _Server(("", port), handler)
    except (OSError, OverflowError) as error:
        raise ConfigurationError(f"--health-port {port}: {error}") from error


def _handler(checks: dict[str, Callable[[], bool]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        # Seconds: whoever connects and says nothing does not keep a thread.
        timeout = 5

        def do_GET(self) -> None:
            check = checks.get(self.path.partition("?")[0])
            if check is None:
                self._answer(404, "not found")
            elif check():
                self._answer(200, "ok")
            else:
                self._answer(503, "not ok")

        do_HEAD = do_GET

        def log_message(self, *args: object) -> None:
            """Nothing: it is asked every few seconds."""

        def _answer(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text.encode())

    return Handler
