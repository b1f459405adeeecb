"""Routes for Prometheus, `/metrics` and `/metrics/queue`, and `/scale` for autoscalers."""

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from graphile_worker._cli.http_server import Handler, Request, Response
from graphile_worker._db.conninfo import ConninfoSource
from graphile_worker._metrics.exposition import (
    OPENMETRICS_CONTENT_TYPE,
    TEXT_CONTENT_TYPE,
    accepts_openmetrics,
    write_metrics,
)
from graphile_worker._metrics.values import Families
from graphile_worker._sql.identifiers import Schemas

if TYPE_CHECKING:
    from graphile_worker.ops.queue_monitor import QueueMonitor, RunnableCounter

QUEUE_METRICS_PATH = "/metrics/queue"
SCALE_PATH = "/scale"

JSON_CONTENT_TYPE = "application/json"

# Clients within this time get the same text. Writing it takes milliseconds, in which the tasks of
# this process wait, so that clients could slow down a worker.
MIN_WRITE_INTERVAL_SECONDS = 0.5

# The largest number that /scale takes, and the longest name of a task in the database.
MAX_PARAMETER = 1_000_000
MAX_TASK_LENGTH = 128


def build_queue_routes(conninfo: ConninfoSource, schemas: Schemas) -> Mapping[str, Handler]:
    """Build the handlers of the routes about a queue.

    Args:
        conninfo: The database. A role that may only read it is enough.
        schemas: The schemas of the queue.
    """
    monitor: QueueMonitor | None = None
    writer = MetricsWriter()
    counter: RunnableCounter | None = None

    async def answer_metrics(request: Request) -> Response:
        nonlocal monitor
        if monitor is None:
            # Imported at the first request, as few workers get one.
            from graphile_worker.ops.queue_monitor import QueueMonitor

            monitor = QueueMonitor(conninfo, schemas)
        families = await monitor.collect()
        return writer.respond(request, lambda: families)

    async def answer_scale(request: Request) -> Response:
        nonlocal counter
        if counter is None:
            from graphile_worker.ops.queue_monitor import RunnableCounter

            counter = RunnableCounter(conninfo, schemas)
        return await _scale(counter, request)

    return {QUEUE_METRICS_PATH: answer_metrics, SCALE_PATH: answer_scale}


def handle_metrics(collect: Callable[[], Families]) -> Handler:
    """Build the handler that writes what `collect` returns."""
    writer = MetricsWriter()

    async def answer(request: Request) -> Response:
        return writer.respond(request, collect)

    return answer


class MetricsWriter:
    """Writes metrics in the format that a client accepts, seldom for any number of clients."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By whether the format is OpenMetrics: when it was written, and the text.
        self._written: dict[bool, tuple[float, Response]] = {}

    def respond(self, request: Request, collect: Callable[[], Families]) -> Response:
        """Return the metrics, written now or within the last half second."""
        openmetrics, now = accepts_openmetrics(request.accept), self._clock()
        written_at, response = self._written.get(openmetrics, (-math.inf, None))
        if response is None or now - written_at >= MIN_WRITE_INTERVAL_SECONDS:
            response = Response(
                content_type=OPENMETRICS_CONTENT_TYPE if openmetrics else TEXT_CONTENT_TYPE,
                body=write_metrics(collect(), openmetrics=openmetrics),
            )
            self._written[openmetrics] = (now, response)
        return response


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaleQuery:
    """The parameters of `/scale`."""

    jobs: int
    """Jobs that a pod runs at once."""
    max_pods: int | None = None
    tasks: tuple[str, ...] | None = None
    excluded: tuple[str, ...] = ()

    @property
    def limit(self) -> int:
        """The number of jobs at which counting may stop."""
        from graphile_worker.ops.queue_metrics import MAX_RUNNABLE

        needed = math.inf if self.max_pods is None else self.jobs * self.max_pods
        return int(min(MAX_RUNNABLE, needed))

    def compute_pods(self, runnable: int) -> int:
        """Compute the number of pods that run these jobs at once."""
        pods = math.ceil(runnable / self.jobs)
        return pods if self.max_pods is None else min(pods, self.max_pods)


def parse_scale_query(query: Mapping[str, list[str]]) -> ScaleQuery:
    """Parse the parameters of `/scale`.

    Raises:
        ValueError: If one is missing, unknown or invalid.
    """
    # A mistyped name would count the jobs of all tasks.
    if unknown := sorted(query.keys() - {"jobs", "tasks", "except", "max"}):
        raise ValueError(f"unknown parameter {unknown[0]!r}. Use jobs, tasks, except and max.")
    if "jobs" not in query:
        raise ValueError("parameter jobs is missing. Set it to --jobs of a pod.")
    return ScaleQuery(
        jobs=_parse_number("jobs", query["jobs"]),
        max_pods=_parse_number("max", query["max"]) if "max" in query else None,
        tasks=_parse_tasks("tasks", query["tasks"]) if "tasks" in query else None,
        excluded=_parse_tasks("except", query["except"]) if "except" in query else (),
    )


def _parse_number(name: str, values: list[str]) -> int:
    text = values[0]
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_PARAMETER))
    if len(values) > 1 or not is_number or not 1 <= int(text) <= MAX_PARAMETER:
        raise ValueError(f"parameter {name} must be one number from 1 to {MAX_PARAMETER}.")
    return int(text)


def _parse_tasks(parameter: str, values: list[str]) -> tuple[str, ...]:
    names = [name for value in values for name in value.split(",")]
    # The database rejects these.
    if not all(0 < len(name) <= MAX_TASK_LENGTH and "\0" not in name for name in names):
        raise ValueError(f"parameter {parameter} must be names of tasks, separated by commas.")
    return tuple(sorted(set(names)))


async def _scale(counter: "RunnableCounter", request: Request) -> Response:
    from graphile_worker.ops.queue_monitor import TooManyCountsError

    try:
        query = parse_scale_query(request.query)
    except ValueError as error:
        return _answer_json(HTTPStatus.BAD_REQUEST, error=str(error))
    try:
        runnable = await counter.count(query.tasks, query.limit, excluded=query.excluded)
    except TooManyCountsError:
        return _answer_json(HTTPStatus.TOO_MANY_REQUESTS, error="too many sets of tasks")
    except Exception:
        # The counter has logged it. An autoscaler keeps its number of pods after an error.
        return _answer_json(HTTPStatus.SERVICE_UNAVAILABLE, error="the jobs cannot be counted")
    return _answer_json(HTTPStatus.OK, runnable=runnable, pods=query.compute_pods(runnable))


def _answer_json(status: HTTPStatus, **content: object) -> Response:
    return Response(status, JSON_CONTENT_TYPE, json.dumps(content))
