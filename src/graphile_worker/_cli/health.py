"""`/livez` and `/readyz` for an orchestrator, from a thread that answers even if the loop hangs."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING

from graphile_worker._cli.http_server import (
    REQUEST_TIMEOUT_SECONDS,
    Handler,
    HttpServer,
    Request,
    Response,
    open_listener,
)
from graphile_worker._db.conninfo import ConninfoSource
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._support.error_format import format_error_line

if TYPE_CHECKING:
    from graphile_worker._cli.readiness import QueueProbe

# An event loop is alive if it ran within this time.
MAX_LOOP_DELAY_SECONDS = 10.0

# The flags that change the address.
ADDRESS_FLAGS = "--health-port or --health-host"

NO_ROUTES: Mapping[str, Handler] = MappingProxyType({})

# The details if the diagnosis raises an error.
UNKNOWN_VERDICT = "verdict: unknown"

# Returns lines to append to the answer of `/readyz?verbose`.
Describe = Callable[[], Awaitable[str]]

logger = logging.getLogger("graphile_worker")


def describe_queue(conninfo: ConninfoSource, schemas: Schemas) -> Describe:
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
    request_timeout: float = REQUEST_TIMEOUT_SECONDS
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
    routes: Mapping[str, Handler] = NO_ROUTES,
    address_flags: str = ADDRESS_FLAGS,
    timings: HealthTimings = DEFAULT_TIMINGS,
) -> AsyncIterator[int]:
    """Serve `/livez` and `/readyz` until the context ends, and yield the port.

    Args:
        port: The port, 0 for any free one, None for no server.
        is_ready: Decides the status of `/readyz`.
        is_alive: Decides the status of `/livez`, together with the event loop.
        host: The address to listen on.
        describe: Returns the text that `/readyz?verbose` appends; it does not change the status.
        routes: The handlers of further paths. They run in the server's thread and event loop.
        address_flags: The flags that an error about the address names.
        timings: Time limits.

    Raises:
        ConfigurationError: If the address cannot be used.
    """
    if port is None:
        yield 0
        return
    monitor = LoopMonitor(timings)
    checks = {
        "/livez": _handle_check(lambda: monitor.is_alive and is_alive()),
        "/readyz": _handle_check(is_ready, describe),
    }
    listener = open_listener(host, port, address_flags)
    server = HttpServer(
        listener, {**routes, **checks}, name="health", request_timeout=timings.request_timeout
    )
    monitoring = asyncio.create_task(monitor.run())
    try:
        yield listener.getsockname()[1]
    finally:
        monitoring.cancel()
        await asyncio.to_thread(server.close)


def _handle_check(check: Callable[[], bool], describe: Describe | None = None) -> Handler:
    async def handle(request: Request) -> Response:
        is_passing = _is_passing(check)
        status = HTTPStatus.OK if is_passing else HTTPStatus.SERVICE_UNAVAILABLE
        text = "ok" if is_passing else "not ok"
        # The answer to `?verbose` lists details, as in Kubernetes.
        if describe is not None and "verbose" in request.query:
            text = f"{text}\n{await _describe_safely(describe)}\n"
        return Response(status, body=text)

    return handle


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
