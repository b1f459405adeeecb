"""LISTEN on one connection that does nothing else: psycopg's or asyncpg's."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Protocol

from psycopg import AsyncConnection, OperationalError, sql

from graphile_worker.errors import ConfigurationError

# Asked to hear whether the server is still there; and since a queue of notifications that was once
# full stays so, and no job can be added, until somebody asks how full it is: only then the server
# forgets what everybody has heard.
ARE_YOU_THERE = "select pg_notification_queue_usage()"

# So many of a channel may wait to be asked for, as anybody may send as many and as long ones as he
# likes. Those beyond are dropped: each says to look, and so do all that wait and are heard later.
MOST_WAITING = 1_000


class Notification(NamedTuple):
    """What was heard. Any role may send one: it is a hint, never a command."""

    channel: str
    payload: str


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
    await heard.start(*channels)
    try:
        yield heard
    finally:
        heard.stop()


class _Heard:
    """What came in and nobody has asked for yet: notifications, or what ended them."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Notification | Exception] = asyncio.Queue()
        self._waiting: Counter[str] = Counter()

    def put(self, item: Notification | Exception) -> None:
        if isinstance(item, Notification):
            if self._waiting[item.channel] >= MOST_WAITING:
                return
            self._waiting[item.channel] += 1
        self._queue.put_nowait(item)

    async def next(self, within: float) -> Notification | None:
        try:
            async with asyncio.timeout(within):
                item = await self._queue.get()
        except TimeoutError:
            return None
        if isinstance(item, Exception):
            raise item
        self._waiting[item.channel] -= 1
        return item


class _PsycopgListening(_Heard):
    """Reads the socket as soon as there is something, which psycopg itself only does on request."""

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        super().__init__()
        self._connection = connection
        # Asked for now: a connection that was lost does not tell any more.
        self._socket = connection.fileno()
        self._loop = asyncio.get_running_loop()

    async def start(self, *channels: str) -> None:
        self._connection.add_notify_handler(self._notified)
        for channel in channels:
            await self._connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        self._loop.add_reader(self._socket, self._read)

    async def check(self, within: float) -> None:
        # psycopg wants the socket for itself while it asks.
        self._loop.remove_reader(self._socket)
        async with asyncio.timeout(within):
            await self._connection.execute(ARE_YOU_THERE)
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
            while found := connection.notifies():
                self.put(Notification(found.relname.decode(), found.extra.decode()))
        except Exception as error:
            self._loop.remove_reader(self._socket)
            self.put(error)

    def _notified(self, found: Any) -> None:
        self.put(Notification(found.channel, found.payload))


class _AsyncpgListening(_Heard):
    """asyncpg calls back by itself."""

    def __init__(self, connection: Any) -> None:
        super().__init__()
        self._connection = connection

    async def start(self, *channels: str) -> None:
        self._connection.add_termination_listener(self._terminated)
        for channel in channels:
            await self._connection.add_listener(channel, self._notified)

    async def check(self, within: float) -> None:
        await self._connection.fetchval(ARE_YOU_THERE, timeout=within)

    def stop(self) -> None:
        self._connection.remove_termination_listener(self._terminated)

    def _notified(self, _connection: object, _pid: int, channel: str, payload: object) -> None:
        self.put(Notification(channel, str(payload)))

    def _terminated(self, _connection: object) -> None:
        self.put(OperationalError("the connection that listens was closed"))
