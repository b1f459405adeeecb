"""A network that fails on purpose, between programs and their database.

It knows what it carries (see wire.py), so that a fault can be about the connections of one program,
or strike between a commit and its answer. Every mode can be changed while bytes flow.
"""

import asyncio
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from math import inf
from typing import Any, Self, TypeAlias

from tests.support.wire import Conversation, inside_a_message

# Bytes that wait in the proxy before it stops reading.
BUFFER_BYTES = 262_144

# On close, pending bytes are discarded and the other end sees a reset.
NO_LINGER = struct.pack("ii", 1, 0)


class Direction(Enum):
    """A direction."""

    REQUESTS = auto()
    REPLIES = auto()


@dataclass(frozen=True)
class Treatment:
    """What becomes of bytes; without a word to the contrary they arrive."""

    def due(self, way: Direction, size: int, now: float) -> float:
        """When bytes arrive that were sent now; infinity: when another mode lets them."""
        return now

    def swallows(self, way: Direction) -> bool:
        """Whether bytes get lost. Bytes after a gap cannot be parsed and are lost, too."""
        return False

    def apply_to(self, connection: "Connection", *, is_new: bool) -> None:
        """A connection comes under this mode."""


@dataclass(frozen=True)
class Pass(Treatment):
    """Bytes arrive."""


@dataclass(frozen=True)
class Stall(Treatment):
    """Nothing moves, in either direction, until it passes again."""

    def due(self, way: Direction, size: int, now: float) -> float:
        return inf


@dataclass(frozen=True)
class Delay(Treatment):
    """Bytes take that many seconds more, each way."""

    seconds: float

    def due(self, way: Direction, size: int, now: float) -> float:
        return now + self.seconds


@dataclass(frozen=True)
class Bandwidth(Treatment):
    """A limit on the bytes per second and direction, for all its connections together."""

    bytes_per_second: float
    _free_at: dict[Direction, float] = field(default_factory=dict, repr=False, compare=False)

    def due(self, way: Direction, size: int, now: float) -> float:
        begins = max(now, self._free_at.get(way, now))
        self._free_at[way] = begins + size / self.bytes_per_second
        return self._free_at[way]


@dataclass(frozen=True)
class Blackhole(Treatment):
    """All bytes get lost; connections stay open, new ones are accepted and ignored.

    The server's end stays, too: it goes on waiting, and holds its locks.
    """

    def swallows(self, way: Direction) -> bool:
        return True


@dataclass(frozen=True)
class OneWay(Treatment):
    """Requests arrive and are carried out; no reply ever comes back."""

    def swallows(self, way: Direction) -> bool:
        return way is Direction.REPLIES


@dataclass(frozen=True)
class HalfOpen(Treatment):
    """The server's end of established connections disappears, without a message to the client.

    New connections pass.
    """

    def apply_to(self, connection: "Connection", *, is_new: bool) -> None:
        if not is_new:
            connection.lose_server()


@dataclass(frozen=True)
class Reset(Treatment):
    """Connections are reset, new ones as soon as they are made."""

    def apply_to(self, connection: "Connection", *, is_new: bool) -> None:
        connection.reset()


@dataclass(frozen=True)
class _Cut(Treatment):
    """A fault of one request, `times` times; None means each time."""

    about: bytes = b""
    """The request, or its transaction, has these words; a prepared statement counts by its text."""
    times: int | None = 1
    _done: list["Loss"] = field(default_factory=list, repr=False, compare=False)

    @property
    def losses(self) -> list["Loss"]:
        """What was cut so far."""
        return list(self._done)

    @property
    def is_spent(self) -> bool:
        return self.times is not None and len(self._done) >= self.times

    def is_about(self, asked: bytes) -> bool:
        return not self.is_spent and self.about in asked

    def note(self, loss: "Loss") -> None:
        self._done.append(loss)


@dataclass(frozen=True)
class CutAfterRequest(_Cut):
    """A request is committed by the server; its answer gets lost and the connection is reset."""


@dataclass(frozen=True)
class CutInReply(_Cut):
    """As CutAfterRequest, but a part of the answer arrives, which ends within a message."""


@dataclass(frozen=True)
class CutInRequest(_Cut):
    """A part of a request arrives, which ends within a message; then the connection is reset."""


class Mode:
    """The modes without a figure, by name."""

    PASS = Pass()
    STALL = Stall()
    BLACKHOLE = Blackhole()
    ONE_WAY = OneWay()
    HALF_OPEN = HalfOpen()
    RESET = Reset()
    SWALLOW_REPLIES = CutAfterRequest(times=None)
    """For all requests with the text of `Proxy.about`."""


@dataclass(frozen=True)
class Loss:
    """A request that was cut on purpose."""

    application_name: str
    asked: bytes
    at: float
    """By the monotonic clock."""


ConnectionFilter: TypeAlias = Callable[["Connection"], bool]


def by_application_name(*names: str) -> ConnectionFilter:
    """The connections of programs with these application names."""
    return lambda connection: connection.application_name in names


class Proxy:
    """Runs in its own thread, so that a test may block."""

    def __init__(self, port: int, listener: socket.socket | None = None) -> None:
        self.about = b""
        self.port = 0
        self.target = port
        """Where new connections go: another server's port after a failover, for example."""
        self._listener = listener
        self._rules: list[tuple[ConnectionFilter, Treatment]] = [(_match_all, Mode.PASS)]
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._record_error)
        self._errors: list[BaseException] = []
        self._connections: set[Connection] = set()
        self._openings: set[asyncio.Task[None]] = set()
        self.open_ends = 0
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        except BaseException:
            self._stop()
            raise
        self.port = server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._stop()
        if self._errors:
            raise self._errors[0]

    @property
    def mode(self) -> Treatment:
        """The mode of connections without a separate rule."""
        return self._rules[0][1]

    @mode.setter
    def mode(self, mode: Treatment) -> None:
        self.put(mode)

    def put(self, mode: Treatment, where: ConnectionFilter | None = None) -> None:
        """Set the mode of all connections, or of those chosen; in force when this returns.

        A connection is checked now, or once its name is known, and in the thread of the proxy;
        the newest rule counts.
        """
        if mode is Mode.SWALLOW_REPLIES:
            mode = CutAfterRequest(self.about, times=None)
        self._in_loop(lambda: self._put(mode, where))

    def put_between_requests(self, mode: Treatment) -> None:
        """Set the mode of all connections, at a moment at which no request is under way."""

        def try_to() -> bool:
            if any(each.is_waiting for each in self._connections):
                return False
            self._put(mode, None)
            return True

        while not self._in_loop(try_to):
            time.sleep(0.005)

    def pass_all_but(self, where: ConnectionFilter) -> None:
        """New connections pass, and those that are open too, except for these."""

        def act() -> None:
            kept = self._chosen(where)
            self._rules = [(_match_all, Mode.PASS)]
            for connection in self._connections.difference(kept):
                connection.enter(Mode.PASS)

        self._in_loop(act)

    def heal(self) -> None:
        """Everything passes again; what was lost stays lost."""
        self.put(Mode.PASS)
        # The server would keep the other ends of those that were forgotten, and run out of room.
        self.reset(lambda connection: connection.is_abandoned)

    def reset(self, where: ConnectionFilter | None = None) -> None:
        """Cut established connections; both ends see a reset."""
        self._in_loop(lambda: self._do(Connection.reset, where))

    def forget(self, where: ConnectionFilter | None = None) -> None:
        """Drop all bytes of established connections, as a firewall that lost its state does."""
        self._in_loop(lambda: self._do(Connection.lose_all, where))

    def lose_server(self, where: ConnectionFilter | None = None) -> None:
        """Established connections become half-open: only the server's end is gone."""
        self._in_loop(lambda: self._do(Connection.lose_server, where))

    @property
    def connections(self) -> list["Connection"]:
        """Those that are open."""
        found: list[Connection] = self._in_loop(lambda: list(self._connections))
        return found

    def _put(self, mode: Treatment, where: ConnectionFilter | None) -> None:
        rule = (where or _match_all, mode)
        self._rules = [*self._rules, rule] if where else [rule]
        for connection in self._chosen(where):
            connection.enter(mode)

    def _do(self, act: "Callable[[Connection], None]", where: ConnectionFilter | None) -> None:
        for connection in self._chosen(where):
            act(connection)

    def _chosen(self, where: ConnectionFilter | None) -> list["Connection"]:
        return [each for each in self._connections if where is None or where(each)]

    def mode_of(self, connection: "Connection") -> Treatment:
        return next(mode for where, mode in reversed(self._rules) if where(connection))

    def process_name(self, backend: int) -> str:
        """The application name of the connection that this process of the server works for."""
        found = (each for each in self._connections if each.backend == backend)
        return next((each.application_name for each in found), "")

    def _in_loop(self, act: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return act()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    async def _listen(self) -> asyncio.Server:
        listener = self._listener or socket.create_server(("127.0.0.1", 0))
        self._server = await self._loop.create_server(self._accept, sock=listener)
        return self._server

    def _accept(self) -> "_End":
        connection = Connection(self, self._loop)
        return _End(connection, Direction.REQUESTS)

    def opened(self, connection: "Connection") -> None:
        self._connections.add(connection)
        connection.enter(self.mode, is_new=True)
        if connection.is_closed or self.mode.swallows(Direction.REQUESTS):
            return
        opening = self._loop.create_task(self._connect(connection))
        self._openings.add(opening)
        opening.add_done_callback(self._openings.discard)

    async def _connect(self, connection: "Connection") -> None:
        try:
            await self._loop.create_connection(
                lambda: _End(connection, Direction.REPLIES), "127.0.0.1", self.target
            )
        except OSError:
            # No server listens: the client sees a reset, as from the host of the server.
            connection.reset()

    def closed(self, connection: "Connection") -> None:
        self._connections.discard(connection)

    async def _end(self) -> None:
        self._server.close()
        await make_accepted_connections()
        for opening in self._openings:
            opening.cancel()
        for connection in list(self._connections):
            connection.reset()
        # Each end reports its close in the next iterations of the loop.
        while self.open_ends or self._openings:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await self._server.wait_closed()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _record_error(self, loop: object, context: dict[str, Any]) -> None:
        error = context.get("exception") or RuntimeError(context["message"])
        if not isinstance(error, OSError):
            self._errors.append(error)


class Connection:
    """One that a program made; everything but its public facts belongs to the proxy's thread."""

    def __init__(self, proxy: Proxy, loop: asyncio.AbstractEventLoop) -> None:
        self.is_closed = False
        self._proxy = proxy
        self._mode: Treatment = Mode.PASS
        self._conversation = Conversation()
        self._talk = self._conversation.talk
        self._requests = _Lane(loop, Direction.REQUESTS)
        self._replies = _Lane(loop, Direction.REPLIES)
        self._withheld: list[bytes] = []
        self._is_known = False

    @property
    def application_name(self) -> str:
        """The application name of the client; a cancel request has that of its connection."""
        if self._talk.cancels:
            return self._proxy.process_name(self._talk.cancels)
        return self._talk.application_name

    @property
    def database(self) -> str:
        return self._talk.database

    @property
    def user(self) -> str:
        return self._talk.user

    @property
    def backend(self) -> int:
        """The process id of the server; 0 before it is known."""
        return self._talk.backend

    @property
    def asked(self) -> bytes:
        """The statements of the newest request."""
        return self._talk.asked

    @property
    def is_waiting(self) -> bool:
        """A request is under way that the server has not answered."""
        return self._conversation.is_waiting

    @property
    def is_in_transaction(self) -> bool:
        return self._talk.is_in_transaction

    @property
    def is_committing(self) -> bool:
        """A commit is under way that the server has not answered."""
        return self.is_waiting and self.asked[:6].upper() == b"COMMIT"

    @property
    def has_gap(self) -> bool:
        """Something that was sent will never arrive."""
        return self._requests.has_gap or self._replies.has_gap

    @property
    def is_abandoned(self) -> bool:
        """One end is closed, and the other end gets no message."""
        ends = (self._requests.source, self._requests.sink)
        return self._requests.is_lost and any(end and end.is_closing() for end in ends)

    # What the ends of the connection say.

    def made(self, way: Direction, end: asyncio.Transport) -> None:
        self._proxy.open_ends += 1
        if way is Direction.REPLIES and self.is_closed:
            _abort(end)
            return
        here, there = self._lanes(way)
        here.source = there.sink = end
        if way is Direction.REQUESTS:
            self._proxy.opened(self)
        there.flush()

    def received(self, way: Direction, data: bytes) -> None:
        if way is Direction.REQUESTS:
            self._request(data)
        else:
            self._reply(data)

    def ended(self, way: Direction) -> None:
        self._proxy.open_ends -= 1
        self._release()
        self._lanes(way)[0].end(self._mode)
        lanes = (self._requests, self._replies)
        if all(lane.source is None or lane.source.is_closing() for lane in lanes):
            self._close()

    def full(self, way: Direction, *, is_full: bool) -> None:
        """The end that sends this way has much, or little, that it could not send yet."""
        self._lanes(way)[1].press(is_full=is_full)

    def _lanes(self, way: Direction) -> "tuple[_Lane, _Lane]":
        """That by which an end's own bytes leave, and that by which others reach it."""
        both = (self._requests, self._replies)
        return both if way is Direction.REQUESTS else both[::-1]

    def _request(self, data: bytes) -> None:
        is_whole = self._conversation.request(data)
        cut = self._mode
        if isinstance(cut, CutInRequest) and is_whole and cut.is_about(self.asked):
            self._requests.send(data[: inside_a_message(data)], Mode.PASS)
            self._cut(cut, self.asked)
            return
        if self._conversation.is_started and not self._is_known:
            self._is_known = True
            self.enter(self._proxy.mode_of(self), is_new=True)
        self._requests.send(data, self._mode)

    def _reply(self, data: bytes) -> None:
        was_waiting = self._conversation.is_waiting
        answers = self._conversation.reply(data)
        cut = self._mode
        if not isinstance(cut, CutAfterRequest | CutInReply) or cut.is_spent or not was_waiting:
            self._release()
            self._replies.send(data, self._mode)
            return
        self._withheld.append(data)
        for answer in answers:
            if answer.is_settled and not answer.is_startup and cut.is_about(answer.asked):
                if isinstance(cut, CutInReply):
                    kept = b"".join(self._withheld)
                    self._replies.send(kept[: inside_a_message(kept)], Mode.PASS)
                self._cut(cut, answer.asked)
                return
        if not self._conversation.is_waiting:
            self._release()

    def _cut(self, cut: _Cut, asked: bytes) -> None:
        cut.note(Loss(self.application_name, asked, time.monotonic()))
        self.reset()

    def _release(self) -> None:
        """Let go what was kept until it was clear that its loss is not wanted."""
        withheld, self._withheld = self._withheld, []
        for data in withheld:
            self._replies.send(data, self._mode)

    # What the proxy does to it.

    def enter(self, mode: Treatment, *, is_new: bool = False) -> None:
        if self.is_closed or (is_new and mode is self._mode):
            return
        self._mode = mode
        self._release()
        for lane in (self._requests, self._replies):
            lane.reconsider(mode)
        mode.apply_to(self, is_new=is_new)

    def lose_all(self) -> None:
        self._requests.lose()
        self._replies.lose()

    def lose_server(self) -> None:
        self.lose_all()
        if self._requests.sink is not None:
            _abort(self._requests.sink)

    def reset(self) -> None:
        for end in (self._requests.source, self._requests.sink):
            if end is not None:
                _abort(end)
        self._close()

    def _close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._requests.cancel()
            self._replies.cancel()
            self._proxy.closed(self)


class _End(asyncio.Protocol):
    """The client's end of a connection, or the server's: who sends requests, or replies."""

    def __init__(self, connection: Connection, way: Direction) -> None:
        self._connection = connection
        self._way = way

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection.made(self._way, transport)

    def data_received(self, data: bytes) -> None:
        self._connection.received(self._way, data)

    def connection_lost(self, error: Exception | None) -> None:
        self._connection.ended(self._way)

    def pause_writing(self) -> None:
        self._connection.full(self._way, is_full=True)

    def resume_writing(self) -> None:
        self._connection.full(self._way, is_full=False)


class _Lane:
    """One direction of a connection: what is sent arrives now, later or never, and in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop, way: Direction) -> None:
        self.source: asyncio.Transport | None = None
        self.sink: asyncio.Transport | None = None
        self._loop = loop
        self._way = way
        # With the time at which it is due; None is the end.
        self._backlog: deque[tuple[float, bytes | None]] = deque()
        self._size = 0
        self._is_pressed = False
        self.has_gap = False
        self.is_lost = False
        self._timer: asyncio.TimerHandle | None = None

    def send(self, data: bytes, mode: Treatment) -> None:
        if self.has_gap or mode.swallows(self._way):
            self.has_gap = True
            return
        if mode.__class__ is Pass and not self._backlog and self.sink is not None:
            self.sink.write(data)
            return
        self._append(data, mode)
        self.flush()

    def end(self, mode: Treatment) -> None:
        """Its source is closed; the mode decides whether the sink is closed, too."""
        if self.is_lost:
            return
        due = inf if mode.swallows(self._way) else mode.due(self._way, 0, self._loop.time())
        self._backlog.append((due, None))
        self.flush()

    def lose(self) -> None:
        """Nothing arrives any more, not even the end."""
        self.is_lost = self.has_gap = True
        self._backlog.clear()
        self._size = 0
        self.flush()

    def reconsider(self, mode: Treatment) -> None:
        """What waits here goes on under another mode."""
        waiting, self._backlog, self._size = self._backlog, deque(), 0
        for _, data in waiting:
            if data is None:
                self.end(mode)
            else:
                self.send(data, mode)
        self.flush()

    def flush(self) -> None:
        """Deliver what is due, and come back for the rest."""
        self.cancel()
        now = self._loop.time()
        while self._backlog and self.sink is not None and self._backlog[0][0] <= now:
            data = self._backlog.popleft()[1]
            if data is None:
                self.sink.close()
            else:
                self._size -= len(data)
                self.sink.write(data)
        self._hold_back()
        if self._backlog and self.sink is not None and self._backlog[0][0] < inf:
            self._timer = self._loop.call_at(self._backlog[0][0], self.flush)

    def press(self, *, is_full: bool) -> None:
        self._is_pressed = is_full
        self._hold_back()

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _append(self, data: bytes, mode: Treatment) -> None:
        # In pieces, so that a thin line drips and does not gush.
        step = max(1, int(mode.bytes_per_second / 20)) if isinstance(mode, Bandwidth) else len(data)
        for start in range(0, len(data), step):
            piece = data[start : start + step]
            self._backlog.append((mode.due(self._way, len(piece), self._loop.time()), piece))
        self._size += len(data)

    def _hold_back(self) -> None:
        if self.source is None or self.source.is_closing():
            return
        # While nothing is read, the sender's own buffers fill up, as before a slow network.
        if self._is_pressed or self._size > BUFFER_BYTES:
            self.source.pause_reading()
        else:
            self.source.resume_reading()


async def make_accepted_connections() -> None:
    """Let the event loop make the connections that a server accepted just before its close."""
    for _ in range(10):
        await asyncio.sleep(0)


def _abort(end: asyncio.Transport) -> None:
    with suppress(OSError):
        end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
    end.abort()


def _match_all(connection: Connection) -> bool:
    return True
