"""LISTEN on one connection that does nothing else: psycopg's or asyncpg's."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple, Protocol

from psycopg import AsyncConnection, OperationalError, sql

from graphile_worker.db.deadline import in_time
from graphile_worker.errors import ConfigurationError

# Asked to hear whether the server is still there; and since a queue of notifications that was once
# full stays so, and no job can be added, until somebody asks how full it is: only then the server
# forgets what everybody has heard.
ARE_YOU_THERE = "select pg_catalog.pg_notification_queue_usage()"

# Seconds in which a server must take a LISTEN.
LISTEN_WITHIN = 10.0

# Notifications of a channel that wait to be read one by one. Those beyond are counted and not read:
# each of them says to look, and so does one that stands for all of them.
MAX_WAITING = 10

# Beyond this many in one second, to listen costs more than to look.
MAX_PER_SECOND = 5_000


class Notification(NamedTuple):
    """What was heard. Any role may send one: it is a hint, never a command."""

    channel: str
    payload: str
    others: int = 0
    """How many more of that channel it stands for, which were not read."""


class Flooded(Exception):
    """Too many notifications arrive: polling costs less than listening."""

    def __init__(self) -> None:
        super().__init__(
            f"more than {MAX_PER_SECOND:,} notifications in a second: polling for a while instead"
        )


class Listening(Protocol):
    """A connection that hears notifications."""

    async def next(self, within: float) -> Notification | None:
        """The next notification, None if there is none in so many seconds; raises when lost."""
        ...

    async def check(self, within: float) -> None:
        """Ask the server whether it is still there; raises when it does not say so in time."""
        ...


@asynccontextmanager
async def listening(connection: Any, *channels: str) -> AsyncIterator[Listening]:
    """Listen on a connection that is ours for as long as this lasts, and for nothing else."""
    if isinstance(connection, AsyncConnection):
        heard: _PsycopgListening | _AsyncpgListening = _PsycopgListening(connection)
    elif hasattr(connection, "add_listener"):
        heard = _AsyncpgListening(connection)
    else:
        kind = type(connection).__qualname__
        raise ConfigurationError(f"cannot listen on a {kind}: set listen=False to poll instead")
    try:
        # A LISTEN does nothing that a server had to be asked to stop.
        await in_time(heard.start(*channels), LISTEN_WITHIN, [connection], patience=0)
        yield heard
    finally:
        heard.stop()


class _Heard:
    """What came in and was not asked for yet: notifications, or what ended them."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[bytes, bytes] | Exception] = asyncio.Queue()
        self._waiting: Counter[bytes] = Counter()
        self._others: Counter[bytes] = Counter()
        self._second_began = time.monotonic()
        self._in_second = 0

    def put(self, channel: bytes, payload: bytes) -> None:
        if self._waiting[channel] >= MAX_WAITING:
            self._others[channel] += 1
            return
        self._waiting[channel] += 1
        self._queue.put_nowait((channel, payload))

    def end(self, error: Exception) -> None:
        self._queue.put_nowait(error)

    def count(self, number: int) -> None:
        """Raise Flooded if too many came in this second, with this many more."""
        now = time.monotonic()
        if now - self._second_began >= 1.0:
            self._second_began, self._in_second = now, 0
        self._in_second += number
        if self._in_second > MAX_PER_SECOND:
            raise Flooded

    async def next(self, within: float) -> Notification | None:
        try:
            async with asyncio.timeout(within):
                item = await self._queue.get()
        except TimeoutError:
            return None
        if isinstance(item, Exception):
            raise item
        channel, payload = item
        self._waiting[channel] -= 1
        others = self._others.pop(channel, 0)
        return Notification(
            channel.decode(errors="replace"), payload.decode(errors="replace"), others
        )


class _PsycopgListening(_Heard):
    """Reads the socket as soon as there is something, which psycopg itself only does on request."""

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        super().__init__()
        self._connection = connection
        # Asked for now: a connection that was lost does not tell any more.
        self._socket = connection.fileno()
        self._loop = asyncio.get_running_loop()
        connection.add_notify_handler(self._notified)

    async def start(self, *channels: str) -> None:
        for channel in channels:
            await self._connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        self._loop.add_reader(self._socket, self._read)

    async def check(self, within: float) -> None:
        # psycopg wants the socket for itself while it asks.
        self._loop.remove_reader(self._socket)
        asking = self._connection.execute(ARE_YOU_THERE)
        await in_time(asking, within, [self._connection], patience=0)
        self._loop.add_reader(self._socket, self._read)

    def stop(self) -> None:
        self._connection.remove_notify_handler(self._notified)
        # The number of a closed socket may be another's by now.
        if not self._connection.closed:
            self._loop.remove_reader(self._socket)

    def _read(self) -> None:
        connection = self._connection.pgconn
        try:
            connection.consume_input()
            number = 0
            while found := connection.notifies():
                self.put(found.relname, found.extra)
                number += 1
            self.count(number)
        except Exception as error:
            self._loop.remove_reader(self._socket)
            self.end(error)

    def _notified(self, found: Any) -> None:
        self.put(found.channel.encode(), found.payload.encode())


class _AsyncpgListening(_Heard):
    """asyncpg calls back by itself."""

    def __init__(self, connection: Any) -> None:
        super().__init__()
        self._connection = connection
        self._has_ended = False

    async def start(self, *channels: str) -> None:
        self._connection.add_termination_listener(self._terminated)
        for channel in channels:
            await self._connection.add_listener(channel, self._notified)

    async def check(self, within: float) -> None:
        asking = self._connection.fetchval(ARE_YOU_THERE)
        await in_time(asking, within, [self._connection], patience=0)

    def stop(self) -> None:
        # It raises once the connection is closed, and the pool has it back.
        with suppress(Exception):
            self._connection.remove_termination_listener(self._terminated)

    def _notified(self, _connection: object, _pid: int, channel: str, payload: object) -> None:
        if self._has_ended:
            return
        self.put(channel.encode(), str(payload).encode())
        try:
            self.count(1)
        except Flooded as error:
            self._has_ended = True
            self.end(error)

    def _terminated(self, _connection: object) -> None:
        self.end(OperationalError("the connection that listens was closed"))
