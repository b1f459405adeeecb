"""LISTEN on one connection that does nothing else: psycopg's or asyncpg's."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple, Protocol

from psycopg import AsyncConnection, OperationalError, sql

from graphile_worker._db.cancellable_connection import run_with_deadline
from graphile_worker.errors import ConfigurationError

# Asked to hear whether the server is still there; and since a queue of notifications that was once
# full stays so, and no job can be added, until somebody asks how full it is: only then the server
# forgets what everybody has heard.
PING_STATEMENT = "select pg_catalog.pg_notification_queue_usage()"

# Seconds in which a server must take a LISTEN.
LISTEN_TIMEOUT_SECONDS = 10.0

# Notifications of a channel that wait to be read one by one. Those beyond are counted and not read:
# each of them says to look, and so does one that stands for all of them.
MAX_QUEUED_PER_CHANNEL = 10

# Beyond this many in one second, to listen costs more than to look.
MAX_NOTIFICATIONS_PER_SECOND = 5_000


class Notification(NamedTuple):
    """What was heard. Any role may send one: it is a hint, never a command."""

    channel: str
    payload: str
    skipped_count: int = 0
    """How many more of that channel it stands for, which were not read."""


class TooManyNotifications(Exception):
    """Too many notifications arrive: polling costs less than listening."""

    def __init__(self) -> None:
        super().__init__(
            f"more than {MAX_NOTIFICATIONS_PER_SECOND:,} notifications in a second: polling for a "
            "while instead"
        )


class NotificationStream(Protocol):
    """A connection that hears notifications."""

    async def wait_for_notification(self, timeout_seconds: float) -> Notification | None:
        """The next notification, None if there is none in so many seconds; raises when lost."""
        ...

    async def check(self, timeout_seconds: float) -> None:
        """Ask the server whether it is still there; raises when it does not say so in time."""
        ...


@asynccontextmanager
async def open_notification_stream(
    connection: Any, *channels: str
) -> AsyncIterator[NotificationStream]:
    """Listen on a connection that is ours for as long as this lasts, and for nothing else."""
    if isinstance(connection, AsyncConnection):
        heard: _PsycopgNotificationStream | _AsyncpgNotificationStream = _PsycopgNotificationStream(
            connection
        )
    elif hasattr(connection, "add_listener"):
        heard = _AsyncpgNotificationStream(connection)
    else:
        kind = type(connection).__qualname__
        raise ConfigurationError(f"cannot listen on a {kind}: set listen=False to poll instead")
    try:
        # A LISTEN does nothing that a server had to be asked to stop.
        await run_with_deadline(
            heard.start(*channels), LISTEN_TIMEOUT_SECONDS, [connection], grace_seconds=0
        )
        yield heard
    finally:
        heard.stop()


class _NotificationQueue:
    """What came in and was not asked for yet: notifications, or what ended them."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[bytes, bytes] | Exception] = asyncio.Queue()
        self._queued_counts: Counter[bytes] = Counter()
        self._skipped_counts: Counter[bytes] = Counter()
        self._window_started_at = time.monotonic()
        self._window_count = 0

    def put(self, channel: bytes, payload: bytes) -> None:
        if self._queued_counts[channel] >= MAX_QUEUED_PER_CHANNEL:
            self._skipped_counts[channel] += 1
            return
        self._queued_counts[channel] += 1
        self._queue.put_nowait((channel, payload))

    def fail(self, error: Exception) -> None:
        self._queue.put_nowait(error)

    def check_rate(self, count: int) -> None:
        """Raise Flooded if too many came in this second, with this many more."""
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
        others = self._skipped_counts.pop(channel, 0)
        return Notification(
            channel.decode(errors="replace"), payload.decode(errors="replace"), others
        )


class _PsycopgNotificationStream(_NotificationQueue):
    """Reads the socket as soon as there is something, which psycopg itself only does on request."""

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        super().__init__()
        self._connection = connection
        # Asked for now: a connection that was lost does not tell any more.
        self._socket = connection.fileno()
        self._loop = asyncio.get_running_loop()
        connection.add_notify_handler(self._handle_notification)

    async def start(self, *channels: str) -> None:
        for channel in channels:
            await self._connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        self._loop.add_reader(self._socket, self._read_socket)

    async def check(self, timeout_seconds: float) -> None:
        # psycopg wants the socket for itself while it asks.
        self._loop.remove_reader(self._socket)
        asking = self._connection.execute(PING_STATEMENT)
        await run_with_deadline(asking, timeout_seconds, [self._connection], grace_seconds=0)
        self._loop.add_reader(self._socket, self._read_socket)

    def stop(self) -> None:
        self._connection.remove_notify_handler(self._handle_notification)
        # The number of a closed socket may be another's by now.
        if not self._connection.closed:
            self._loop.remove_reader(self._socket)

    def _read_socket(self) -> None:
        connection = self._connection.pgconn
        try:
            connection.consume_input()
            number = 0
            while found := connection.notifies():
                self.put(found.relname, found.extra)
                number += 1
            self.check_rate(number)
        except Exception as error:
            self._loop.remove_reader(self._socket)
            self.fail(error)

    def _handle_notification(self, found: Any) -> None:
        self.put(found.channel.encode(), found.payload.encode())


class _AsyncpgNotificationStream(_NotificationQueue):
    """asyncpg calls back by itself."""

    def __init__(self, connection: Any) -> None:
        super().__init__()
        self._connection = connection
        self._has_ended = False

    async def start(self, *channels: str) -> None:
        self._connection.add_termination_listener(self._handle_termination)
        for channel in channels:
            await self._connection.add_listener(channel, self._handle_notification)

    async def check(self, timeout_seconds: float) -> None:
        asking = self._connection.fetchval(PING_STATEMENT)
        await run_with_deadline(asking, timeout_seconds, [self._connection], grace_seconds=0)

    def stop(self) -> None:
        # It raises once the connection is closed, and the pool has it back.
        with suppress(Exception):
            self._connection.remove_termination_listener(self._handle_termination)

    def _handle_notification(
        self, _connection: object, _pid: int, channel: str, payload: object
    ) -> None:
        if self._has_ended:
            return
        self.put(channel.encode(), str(payload).encode())
        try:
            self.check_rate(1)
        except TooManyNotifications as error:
            self._has_ended = True
            self.fail(error)

    def _handle_termination(self, _connection: object) -> None:
        self.fail(OperationalError("the connection that listens was closed"))
