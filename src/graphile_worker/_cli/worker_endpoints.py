"""Health checks and metrics of a worker: on its own port, or through its supervisor."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import cast

from graphile_worker._cli.health import health_server
from graphile_worker._cli.http_server import Handler
from graphile_worker._cli.metrics_routes import handle_metrics
from graphile_worker._cli.queue_endpoints import QueueEndpoints, QueueLocation
from graphile_worker._cli.settings.layers import Settings
from graphile_worker._cli.supervisor.process_metrics import MetricsSender
from graphile_worker._db.conninfo import ConninfoSource
from graphile_worker._metrics.definitions import PROCESSES
from graphile_worker._metrics.values import Families
from graphile_worker._settings.definitions import CommandOptions
from graphile_worker._sql.identifiers import Schemas
from graphile_worker.runner import Runner


@asynccontextmanager
async def serve_endpoints(runner: Runner, command: CommandOptions) -> AsyncIterator[None]:
    """Serve the endpoints of a worker on its port."""
    location = _locate_queue_of(runner)
    queue = QueueEndpoints(lambda: location)
    routes: dict[str, Handler] = {}
    if has_metrics(command):
        routes = {**queue.routes, "/metrics": handle_metrics(_enable_metrics(runner, command))}
    health = health_server(
        command.health_port,
        lambda: runner.is_ready,
        host=command.health_host,
        describe=queue.describe,
        routes=routes,
    )
    async with health:
        yield


@contextmanager
def send_metrics(runner: Runner, command: CommandOptions, parent_metrics: int) -> Iterator[None]:
    """Send the metrics of a worker to its supervisor through this pipe."""
    location = _locate_queue_of(runner)
    sender = MetricsSender(parent_metrics, _enable_metrics(runner, command), location)
    try:
        yield
    finally:
        sender.close()


def locate_queue(settings: Settings) -> QueueLocation | None:
    """Return the queue of the settings, or None if an app may set another."""
    if settings.value("app") is not None:
        # A supervisor does not import the app, which may set another database or schema.
        return None
    options = settings.worker_options
    schemas = Schemas.from_names(options.schema, options.ext_schema)
    return QueueLocation(settings.value("connection"), schemas)


def has_metrics(command: CommandOptions) -> bool:
    return command.health_port is not None and command.metrics != "off"


def _locate_queue_of(runner: Runner) -> QueueLocation:
    return QueueLocation(
        cast("ConninfoSource", runner._database),
        Schemas.from_names(runner.options.schema, runner.options.ext_schema),
    )


def _enable_metrics(runner: Runner, command: CommandOptions) -> Callable[[], Families]:
    """Let a worker count its work, and return the function that reads it."""
    recorder = runner.hooks._enable_metrics(has_task_histograms=command.metrics == "tasks")
    recorder.set(PROCESSES, (), 1)
    return recorder.collect
