"""What the health port answers about the queue, once the database of the worker is known.

A supervisor does not import the app, which may set another database or schema. Its first process
reports both.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from graphile_worker._cli.health import UNKNOWN_VERDICT, Describe, describe_queue
from graphile_worker._cli.http_server import Handler, Request, Response
from graphile_worker._cli.metrics_routes import (
    QUEUE_METRICS_PATH,
    SCALE_PATH,
    build_queue_routes,
)
from graphile_worker._db.conninfo import ConninfoSource, read_conninfo_source
from graphile_worker._sql.identifiers import Schemas

UNKNOWN_QUEUE = Response(
    HTTPStatus.SERVICE_UNAVAILABLE,
    body="no worker process has reported its database yet, or it has several shards\n",
)


@dataclass(frozen=True, slots=True)
class QueueLocation:
    """The database and the schemas of a queue."""

    # With a password, perhaps.
    conninfo: ConninfoSource = field(repr=False)
    schemas: Schemas

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> "QueueLocation":
        """Read what a child sent to its supervisor."""
        return cls(
            message["conninfo"], Schemas.from_names(message["schema"], message["ext_schema"])
        )

    @property
    def can_change(self) -> bool:
        """Return whether a function returns the connection string, whose password may expire."""
        return callable(self.conninfo)

    def to_message(self) -> dict[str, Any]:
        return {
            # A function cannot be sent.
            "conninfo": read_conninfo_source(self.conninfo),
            "schema": self.schemas.shared,
            "ext_schema": self.schemas.companion,
        }


class QueueEndpoints:
    """The routes and the diagnosis of a queue whose location may be known only later."""

    def __init__(self, locate: Callable[[], QueueLocation | None]) -> None:
        self._locate = locate
        self._location: QueueLocation | None = None
        self._describe: Describe | None = None
        self._handlers: Mapping[str, Handler] = {}

    @property
    def routes(self) -> dict[str, Handler]:
        return {path: self._build_handler(path) for path in (QUEUE_METRICS_PATH, SCALE_PATH)}

    async def describe(self) -> str:
        """Describe the queue for `/readyz?verbose`."""
        self._resolve()
        return UNKNOWN_VERDICT if self._describe is None else await self._describe()

    def _build_handler(self, path: str) -> Handler:
        async def handle(request: Request) -> Response:
            self._resolve()
            return await self._handlers[path](request) if self._handlers else UNKNOWN_QUEUE

        return handle

    def _resolve(self) -> None:
        location = self._locate()
        if location is None or location == self._location:
            return
        self._location = location
        self._describe = describe_queue(location.conninfo, location.schemas)
        self._handlers = build_queue_routes(location.conninfo, location.schemas)
