"""Run the server of `graphile-worker exporter` until a signal."""

import asyncio
import logging
import signal

from graphile_worker._cli.health import describe_queue, health_server
from graphile_worker._cli.log_format import configure_logging
from graphile_worker._cli.metrics_routes import QUEUE_METRICS_PATH, build_queue_routes
from graphile_worker._cli.settings.layers import Settings
from graphile_worker._cli.settings.resolve import resolve_schema
from graphile_worker._db.conninfo import resolve_conninfo
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._worker.signals import handle_signals

METRICS_PATH = "/metrics"
ADDRESS_FLAGS = "--port or --host"

logger = logging.getLogger("graphile_worker")


def run_exporter(settings: Settings, *, port: int, host: str) -> None:
    """Serve until a signal.

    Raises:
        ConfigurationError: If no database is configured, or the address cannot be used.
    """
    configure_logging(settings.command_options.log_format)
    # A mistake ends the command now, not each request later.
    conninfo = resolve_conninfo(settings.value("connection"))
    schemas = Schemas.from_names(resolve_schema(settings), settings.value("ext_schema"))
    asyncio.run(_serve(conninfo, schemas, port=port, host=host))


async def _serve(conninfo: str, schemas: Schemas, *, port: int, host: str) -> None:
    stopped = asyncio.Event()

    def stop(_number: signal.Signals) -> None:
        stopped.set()

    routes = build_queue_routes(conninfo, schemas)
    server = health_server(
        port,
        # An exporter without its database is ready to report that.
        lambda: True,
        host=host,
        describe=describe_queue(conninfo, schemas),
        routes={**routes, METRICS_PATH: routes[QUEUE_METRICS_PATH]},
        address_flags=ADDRESS_FLAGS,
    )
    with handle_signals(stop):
        async with server as bound_port:
            logger.info("exporter listening on %s port %s", host, bound_port)
            await stopped.wait()
    logger.info("exporter stopped")
