"""Serve a dashboard with uvicorn until a signal."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import uvicorn

from graphile_worker._worker.signals import handle_signals

# Streams end by themselves when the server stops. A client that does not read is cut off.
GRACE_SECONDS = 2

logger = logging.getLogger("graphile_worker")

AsgiApplication = Callable[[Any, Any, Any], Any]


class StoppableDashboard(Protocol):
    """A dashboard whose streams can be ended."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...

    def end_streams(self) -> None: ...


def serve(
    dashboard: StoppableDashboard,
    listener: socket.socket,
    *,
    root_path: str = "",
    on_start: Callable[[], object] = lambda: None,
) -> None:
    """Serve until a signal.

    Args:
        dashboard: The application.
        listener: The socket.
        root_path: The path below which a proxy serves it, without a slash at its end.
        on_start: Called when the server accepts requests.
    """
    config = uvicorn.Config(
        _below(root_path, dashboard),
        lifespan="on",
        # Lines of uvicorn go to the log of the command.
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        # The dashboard itself decides which proxies it trusts.
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    asyncio.run(_serve(_Server(config), dashboard, listener, on_start))


async def _serve(
    server: "_Server",
    dashboard: StoppableDashboard,
    listener: socket.socket,
    on_start: Callable[[], object],
) -> None:
    def stop(_number: signal.Signals) -> None:
        # The second signal does not wait for open connections.
        server.force_exit = server.should_exit
        server.should_exit = True
        dashboard.end_streams()

    with handle_signals(stop):
        on_start()
        await server.serve(sockets=[listener])
    logger.info("dashboard stopped")


class _Server(uvicorn.Server):
    """A server that leaves the signals to the command."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _below(root_path: str, application: AsgiApplication) -> AsgiApplication:
    """Return the application below a path, which a proxy may remove from requests or not."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if root_path and scope["type"] == "http":
            scope = {**scope, "root_path": root_path}
        await application(scope, receive, send)

    return answer
