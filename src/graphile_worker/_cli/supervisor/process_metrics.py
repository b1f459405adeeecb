"""Metrics of worker processes: a child sends its values, the supervisor adds them up.

They have a separate pipe, because the one of `parent_pipe` carries single bytes. Each message is a
JSON object after its length. A child sends once a second and when it ends, so the counts of a
killed process lack at most its last second.
"""

import asyncio
import json
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from graphile_worker._cli.queue_endpoints import QueueLocation
from graphile_worker._metrics.values import (
    Families,
    decode_families,
    drop_gauges,
    encode_families,
    merge_families,
)
from graphile_worker._support.error_format import format_error_line
from graphile_worker.errors import ConfigurationError

SEND_INTERVAL_SECONDS = 1.0

# How often a child sends a connection string that may expire. Tokens are valid for 15 minutes and
# longer.
LOCATION_INTERVAL_SECONDS = 60.0

# The time that the end of a process may wait for its last message.
CLOSE_TIMEOUT_SECONDS = 1.0

LENGTH = struct.Struct(">I")

# 100 tasks with two histograms each take less than 100 kB.
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
CHUNK_BYTES = 65536

logger = logging.getLogger("graphile_worker")


class MetricsSender:
    """The child's end. It sends from a thread, also while a task blocks the event loop.

    Args:
        fd: File descriptor of the pipe.
        collect: Returns the current values.
        location: Queue of this process, for the health port of the supervisor. None for shards.
        send_interval_seconds: Seconds between two messages.
        location_interval_seconds: Seconds until a location that can change is sent again.
    """

    def __init__(
        self,
        fd: int,
        collect: Callable[[], Families],
        location: QueueLocation | None,
        *,
        send_interval_seconds: float = SEND_INTERVAL_SECONDS,
        location_interval_seconds: float = LOCATION_INTERVAL_SECONDS,
    ) -> None:
        try:
            self._socket = socket.socket(fileno=fd)
        except OSError as error:
            raise ConfigurationError("--parent-metrics is internal. Use --processes.") from error
        # Programs that tasks start must not inherit the pipe.
        self._socket.set_inheritable(False)
        self._collect = collect
        self._location = location
        self._send_interval_seconds = send_interval_seconds
        self._location_interval_seconds = location_interval_seconds
        self._location_sent_at = 0.0
        self._has_failed = False
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send the last values. The supervisor may be gone or busy, so wait only shortly."""
        self._is_closing.set()
        self._thread.join(CLOSE_TIMEOUT_SECONDS)

    def _run(self) -> None:
        # The supervisor may be gone.
        with suppress(OSError):
            self._send_location()
            is_last = False
            while not is_last:
                is_last = self._is_closing.wait(self._send_interval_seconds)
                if (content := self._encode()) is not None:
                    self._send({"metrics": content})
                if self._location is not None and self._location.can_change and not is_last:
                    age = time.monotonic() - self._location_sent_at
                    if age >= self._location_interval_seconds:
                        self._send_location()

    def _send_location(self) -> None:
        self._location_sent_at = time.monotonic()
        if self._location is None:
            return
        try:
            message = self._location.to_message()
        except Exception as error:
            # A function of the app failed, perhaps only this time.
            logger.warning("database not sent to the parent: %s", format_error_line(error))
            return
        self._send({"queue": message})

    def _encode(self) -> str | None:
        try:
            return encode_families(self._collect()).decode()
        except Exception as error:
            # The next values may be complete.
            if not self._has_failed:
                logger.warning("metrics not collected, retrying: %s", format_error_line(error))
            self._has_failed = True
            return None

    def _send(self, message: dict[str, Any]) -> None:
        content = json.dumps(message).encode()
        self._socket.sendall(LENGTH.pack(len(content)) + content)


class MetricsReceiver:
    """The supervisor's end for one child."""

    def __init__(
        self, pipe: socket.socket, on_message: Callable[["MetricsReceiver", Any], None]
    ) -> None:
        pipe.setblocking(False)
        self._pipe = pipe
        self._on_message = on_message
        self._received = bytearray()
        self._is_open = True
        asyncio.get_running_loop().add_reader(pipe, self._receive)

    def close(self) -> None:
        """Read what the child sent before it ended, and close the pipe."""
        while self._is_open and self._receive():
            pass
        self._stop()
        self._pipe.close()

    def _receive(self) -> bool:
        try:
            chunk = self._pipe.recv(CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            chunk = b""
        if not chunk:
            self._stop()
            return False
        self._received += chunk
        try:
            self._handle_messages()
        except Exception as error:
            # The child is this program, but its tasks may write to any descriptor.
            logger.warning("metrics of a process ignored: %s", format_error_line(error))
            self._stop()
        return self._is_open

    def _stop(self) -> None:
        if self._is_open:
            self._is_open = False
            asyncio.get_running_loop().remove_reader(self._pipe)

    def _handle_messages(self) -> None:
        while len(self._received) >= LENGTH.size:
            [length] = LENGTH.unpack_from(self._received)
            if length > MAX_MESSAGE_BYTES:
                raise ValueError(f"a message of {length} bytes")
            end = LENGTH.size + length
            if len(self._received) < end:
                return
            content = bytes(self._received[LENGTH.size : end])
            del self._received[:end]
            self._on_message(self, json.loads(content))


class ProcessMetrics:
    """The metrics of all processes. Counters of processes that ended stay, their gauges do not."""

    def __init__(self) -> None:
        self.queue_location: QueueLocation | None = None
        self._ended: Families = {}
        self._running: dict[MetricsReceiver, Families] = {}
        # The thread of the health port collects. Without the lock a counter could decrease, as
        # the values of a process that ends move from one place to the other.
        self._lock = threading.Lock()

    def add(self, pipe: socket.socket) -> MetricsReceiver:
        """Receive the metrics of another process."""
        return MetricsReceiver(pipe, self._handle_message)

    def remove(self, receiver: MetricsReceiver) -> None:
        """Keep the counters of a process that ended."""
        receiver.close()
        with self._lock:
            last = self._running.pop(receiver, {})
            self._ended = merge_families([self._ended, drop_gauges(last)])

    def collect(self) -> Families:
        """Return the current values. Any thread may call this."""
        with self._lock:
            parts = [self._ended, *self._running.values()]
        return merge_families(parts)

    def _handle_message(self, receiver: MetricsReceiver, message: Any) -> None:
        if "queue" in message:
            self.queue_location = QueueLocation.from_message(message["queue"])
        if "metrics" in message:
            families = decode_families(message["metrics"])
            with self._lock:
                self._running[receiver] = families
