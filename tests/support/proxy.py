"""A network that fails on purpose, between a program and its database."""

import asyncio
import threading
from contextlib import suppress
from enum import Enum, auto
from typing import Self


class Mode(Enum):
    """What becomes of bytes."""

    PASS = auto()
    STALL = auto()
    """Nothing moves, in either direction, until it passes again."""
    SWALLOW_REPLIES = auto()
    """Requests with the words `about` arrive, and their answers get lost with the connection."""


class Proxy:
    """Runs in a thread of its own, so that a test may block."""

    def __init__(self, port: int) -> None:
        self.mode = Mode.PASS
        self.about = b""
        self.port = 0
        self._target = port
        self._loop = asyncio.new_event_loop()
        self._connections: set[_Connection] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        self.port = server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def forget(self) -> None:
        """Established connections go silent for ever, as after a firewall forgot them."""
        for connection in list(self._connections):
            connection.forgotten = True

    def reset(self) -> None:
        """Established connections are cut, and both ends are told."""
        self._loop.call_soon_threadsafe(self._reset)

    def _reset(self) -> None:
        for connection in list(self._connections):
            connection.cut()

    async def _listen(self) -> asyncio.Server:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self._server

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection(self, writer, server[1])
        self._connections.add(connection)
        await asyncio.gather(
            connection.pump(reader, server[1], replies=False),
            connection.pump(server[0], writer, replies=True),
        )
        self._connections.discard(connection)

    async def _end(self) -> None:
        self._server.close()
        self.mode = Mode.PASS
        for connection in self._connections:
            connection.forgotten = False
        self._reset()
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))


class _Connection:
    def __init__(self, proxy: Proxy, *writers: asyncio.StreamWriter) -> None:
        self.forgotten = False
        self._proxy = proxy
        self._asked = b""
        self._is_answered = True
        self._writers = writers

    async def pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, replies: bool
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                await self._hold()
                if not replies:
                    # A long question comes in pieces.
                    self._asked = data if self._is_answered else self._asked + data
                elif self._is_swallowed():
                    self.cut()
                    return
                self._is_answered = replies
                writer.write(data)
                await writer.drain()
        await self._hold()
        writer.close()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def _is_swallowed(self) -> bool:
        return self._proxy.mode is Mode.SWALLOW_REPLIES and self._proxy.about in self._asked

    async def _hold(self) -> None:
        # The test sets these from another thread.
        while self.forgotten or self._proxy.mode is Mode.STALL:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
