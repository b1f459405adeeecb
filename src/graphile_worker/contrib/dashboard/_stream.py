"""Server-sent events: one generator per browser, which sends only the newest of each kind."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress

RETRY_MILLISECONDS = 3000
PING_SECONDS = 15.0

# How often a stream looks whether its session has ended, or the server stops.
CHECK_SECONDS = 1.0

# Streams of one process. A browser needs one for all of its tabs.
MAX_STREAMS = 200
# Streams of one session, or of one user if the host knows its users.
MAX_OWN_STREAMS = 20


class EventStream:
    """The events that wait for one browser. A newer event replaces an older one of its key."""

    def __init__(self) -> None:
        self._pending: dict[str, bytes] = {}
        self._has_events = asyncio.Event()

    def put(self, key: str, event: str, data: bytes) -> None:
        """Add an event."""
        self._pending.pop(key, None)
        self._pending[key] = format_event(event, data)
        self._has_events.set()

    async def take(self, seconds: float) -> bytes:
        """Return the events that wait, or nothing if none comes in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._has_events.wait()
        self._has_events.clear()
        events, self._pending = b"".join(self._pending.values()), {}
        return events


class Broadcaster:
    """Sends events to all streams."""

    def __init__(self, max_streams: int = MAX_STREAMS) -> None:
        self.max_streams = max_streams
        # Each stream with its owner.
        self._streams: dict[EventStream, str] = {}
        self._is_stopping = False

    def is_full(self, owner: str) -> bool:
        """Return whether this owner cannot open one more stream."""
        own = list(self._streams.values()).count(owner)
        return len(self._streams) >= self.max_streams or own >= MAX_OWN_STREAMS

    @property
    def stream_count(self) -> int:
        """The number of open streams."""
        return len(self._streams)

    @property
    def is_stopping(self) -> bool:
        """Whether streams must end, because the server stops."""
        return self._is_stopping or is_server_stopping()

    @contextmanager
    def open_stream(self, owner: str) -> Iterator[EventStream]:
        """Open a stream."""
        stream = EventStream()
        self._streams[stream] = owner
        try:
            yield stream
        finally:
            del self._streams[stream]

    def send(self, key: str, event: str, data: bytes) -> None:
        """Send an event to all streams."""
        for stream in self._streams:
            stream.put(key, event, data)

    def stop(self) -> None:
        """End all streams."""
        self._is_stopping = True
        for stream in self._streams:
            stream.put("bye", "bye", b'{"reason": "server_stops"}')


def format_event(event: str, data: bytes) -> bytes:
    """Format an event. JSON has no line breaks."""
    return b"event: %s\ndata: %s\n\n" % (event.encode(), data)


async def merge_pings(stream: EventStream) -> AsyncIterator[bytes]:
    """Yield events, empty bytes each second without one, and a comment each 15 s."""
    silent_seconds = 0.0
    yield b"retry: %d\n\n" % RETRY_MILLISECONDS
    while True:
        events = await stream.take(CHECK_SECONDS)
        silent_seconds = 0.0 if events else silent_seconds + CHECK_SECONDS
        if silent_seconds >= PING_SECONDS:
            events, silent_seconds = b": ping\n\n", 0.0
        yield events


def is_server_stopping() -> bool:
    """Return whether the uvicorn server of this process has received a signal to stop.

    It waits for open connections before it informs its application, so streams end by themselves.
    """
    handler = signal.getsignal(signal.SIGTERM)
    return getattr(getattr(handler, "__self__", None), "should_exit", False) is True
