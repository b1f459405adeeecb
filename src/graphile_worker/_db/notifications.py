"""LISTEN on one psycopg or asyncpg connection that is used for nothing else."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple, Protocol

from psycopg import AsyncConnection, OperationalError, sql

from graphile_worker._db.cancellable_connection import NO_GRACE, run_with_deadline
from graphile_worker.errors import ConfigurationError

# Checks that the server answers. This function also lets the server remove notifications that all
# sessions have read: a queue that was once full otherwise stays full, and no job can be added.
PING_STATEMENT = "select pg_catalog.pg_notification_queue_usage()"

# For the server to accept a LISTEN.
LISTEN_TIMEOUT_SECONDS = 10.0

# Notifications of a channel that wait to be read. Further ones are only counted: each means that
# there may be jobs, and one is enough for that. Also the calls of a handler for one read.
MAX_QUEUED_PER_CHANNEL = 10

# Above this rate, listening costs more than polling.
MAX_NOTIFICATIONS_PER_SECOND = 5_000


class Notification(NamedTuple):
    """A notification. Any role may send one, so it is a hint and never a command."""

    channel: str
    payload: str
    skipped_count: int = 0
    """Further notifications of that channel, which were not read."""


NotificationHandler = Callable[[Notification], None]


class TooManyNotifications(Exception):
    """Too many notifications arrive: polling costs less than listening."""

    def __init__(self) -> None:
        super().__init__(
            f"more than {MAX_NOTIFICATIONS_PER_SECOND:,} notifications in a second: polling for a "
            "while instead"
        )


class NotificationStream(Protocol):
    """A connection that receives notifications."""

    def call_at_once(self, channel: str, handler: NotificationHandler) -> None:
        """Call the handler with notifications of a channel as soon as they are read.

        If too many arrive at once, `wait_for_notification` returns the others.
        """
        ...

    async def wait_for_notification(self, timeout_seconds: float) -> Notification | None:
        """Return the next notification, or None after the timeout. Raise if it is disconnected."""
        ...

    async def check(self, timeout_seconds: float) -> None:
        """Raise unless the server answers in time."""
        ...


@asynccontextmanager
async def open_notification_stream(
    connection: Any, *channels: str
) -> AsyncIterator[NotificationStream]:
    """Listen on a connection that has no other user meanwhile."""
    if isinstance(connection, AsyncConnection):
        stream: _PsycopgNotificationStream | _AsyncpgNotificationStream = (
            _PsycopgNotificationStream(connection)
        )
    elif hasattr(connection, "add_listener"):
        stream = _AsyncpgNotificationStream(connection)
    else:
        kind = type(connection).__qualname__
        raise ConfigurationError(f"cannot listen on a {kind}: set listen=False to poll instead")
    try:
        await run_with_deadline(
            stream.start(*channels), LISTEN_TIMEOUT_SECONDS, [connection], timings=NO_GRACE
        )
        yield stream
    finally:
        stream.stop()


class _NotificationQueue:
    """Received notifications, or the error that ended them, until they are read."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[bytes, bytes] | Exception] = asyncio.Queue()
        self._queued_counts: Counter[bytes] = Counter()
        self._skipped_counts: Counter[bytes] = Counter()
        self._window_started_at = time.monotonic()
        self._window_count = 0
        self._handlers: dict[bytes, NotificationHandler] = {}
        # How many calls of handlers are left until the next read.
        self._calls_left = 0

    def call_at_once(self, channel: str, handler: NotificationHandler) -> None:
        self._handlers[channel.encode()] = handler

    def put(self, channel: bytes, payload: bytes) -> None:
        if self._calls_left > 0 and (handler := self._handlers.get(channel)) is not None:
            self._calls_left -= 1
            handler(_decode(channel, payload))
            return
        if self._queued_counts[channel] >= MAX_QUEUED_PER_CHANNEL:
            self._skipped_counts[channel] += 1
            return
        self._queued_counts[channel] += 1
        self._queue.put_nowait((channel, payload))

    def fail(self, error: Exception) -> None:
        self._queue.put_nowait(error)

    def check_rate(self, count: int) -> None:
        """Count notifications, and raise TooManyNotifications if a second has too many."""
        now = time.monotonic()
        if now - self._window_started_at >= 1.0:
            self._window_started_at, self._window_count = now, 0
        self._window_count += count
        if self._window_count > MAX_NOTIFICATIONS_PER_SECOND:
            raise TooManyNotifications

    async def wait_for_notification(self, timeout_seconds: float) -> Notification | None:
        try:
            async with asyncio.timeout(timeout_seconds):
                item = await self._queue.get()
        except TimeoutError:
            return None
        if isinstance(item, Exception):
            raise item
        channel, payload = item
        self._queued_counts[channel] -= 1
        return _decode(channel, payload, self._skipped_counts.pop(channel, 0))


def _decode(channel: bytes, payload: bytes, skipped_count: int = 0) -> Notification:
    return Notification(
        channel.decode(errors="replace"), payload.decode(errors="replace"), skipped_count
    )


class _PsycopgNotificationStream(_NotificationQueue):
    """A stream that reads the socket when it has input. psycopg reads only on request."""

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        super().__init__()
        self._connection = connection
        # Read now: a lost connection has no descriptor.
        self._socket = connection.fileno()
        self._loop = asyncio.get_running_loop()
        connection.add_notify_handler(self._handle_notification)

    async def start(self, *channels: str) -> None:
        for channel in channels:
            await self._connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        self._loop.add_reader(self._socket, self._read_socket)

    async def check(self, timeout_seconds: float) -> None:
        # psycopg needs the socket for itself during a statement.
        self._loop.remove_reader(self._socket)
        ping = self._connection.execute(PING_STATEMENT)
        await run_with_deadline(ping, timeout_seconds, [self._connection], timings=NO_GRACE)
        self._loop.add_reader(self._socket, self._read_socket)

    def stop(self) -> None:
        self._connection.remove_notify_handler(self._handle_notification)
        # The descriptor of a closed socket may belong to another file now.
        if not self._connection.closed:
            self._loop.remove_reader(self._socket)

    def _read_socket(self) -> None:
        connection = self._connection.pgconn
        self._calls_left = MAX_QUEUED_PER_CHANNEL
        try:
            connection.consume_input()
            count = 0
            while notify := connection.notifies():
                self.put(notify.relname, notify.extra)
                count += 1
            self.check_rate(count)
        except Exception as error:
            self._loop.remove_reader(self._socket)
            self.fail(error)

    def _handle_notification(self, notify: Any) -> None:
        self.put(notify.channel.encode(), notify.payload.encode())


class _AsyncpgNotificationStream(_NotificationQueue):
    """A stream of the callbacks of asyncpg."""

    def __init__(self, connection: Any) -> None:
        super().__init__()
        self._connection = connection
        self._has_ended = False

    async def start(self, *channels: str) -> None:
        self._connection.add_termination_listener(self._handle_termination)
        for channel in channels:
            await self._connection.add_listener(channel, self._handle_notification)

    async def check(self, timeout_seconds: float) -> None:
        ping = self._connection.fetchval(PING_STATEMENT)
        await run_with_deadline(ping, timeout_seconds, [self._connection], timings=NO_GRACE)

    def stop(self) -> None:
        # It raises if the connection is closed and back in its pool.
        with suppress(Exception):
            self._connection.remove_termination_listener(self._handle_termination)

    def _handle_notification(
        self, _connection: object, _pid: int, channel: str, payload: object
    ) -> None:
        if self._has_ended:
            return
        # asyncpg calls this once for each notification. The rate is limited below.
        self._calls_left = 1
        self.put(channel.encode(), str(payload).encode())
        try:
            self.check_rate(1)
        except TooManyNotifications as error:
            self._has_ended = True
            self.fail(error)

    def _handle_termination(self, _connection: object) -> None:
        self.fail(OperationalError("the connection that listens was closed"))
