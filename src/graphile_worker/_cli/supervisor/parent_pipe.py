"""The pipe between the supervisor and a worker process. Each message is one byte.

The supervisor does not forward signals. A terminal sends Ctrl-C to every process of its group, so a
forwarded signal would be the second one of a child, which ends its graceful shutdown.
"""

import asyncio
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from graphile_worker._cli.streams import flush_standard_streams
from graphile_worker.errors import ConfigurationError
from graphile_worker.events import RunnerStarted

if TYPE_CHECKING:
    from graphile_worker.runner import Runner

# Messages of a child.
READY = b"+"  # it claims jobs, and the database answers
NOT_READY = b"-"
REPLACEMENT_DUE = b"d"  # it has run `--max-jobs` jobs

# Messages of the parent: finish, or the number of a signal, plus the offset for the second signal.
FINISH = bytes([0])
SECOND_SIGNAL_OFFSET = 128

STATUS_INTERVAL_SECONDS = 1.0

# The time beyond shutdown_timeout after which the parent kills a child, or an orphaned child exits.
STOP_GRACE_SECONDS = 10.0

logger = logging.getLogger("graphile_worker")


def compute_stop_timeout(shutdown_timeout: timedelta | None) -> float | None:
    """Compute the seconds after which a stopping child is killed. None means never."""
    if shutdown_timeout is None:
        return None
    return shutdown_timeout.total_seconds() + STOP_GRACE_SECONDS


def build_stop_message(signal_number: int) -> bytes:
    return bytes([signal_number])


def build_kill_message(signal_number: int) -> bytes:
    return bytes([SECOND_SIGNAL_OFFSET + signal_number])


class ParentPipe:
    """The child's end. A thread receives, so messages arrive during the import of tasks too."""

    def __init__(self, fd: int, stop_timeout: float | None) -> None:
        self._stop_timeout = stop_timeout
        try:
            self._socket = socket.socket(fileno=fd)
        except OSError as error:
            raise ConfigurationError("--parent is internal. Use --processes.") from error
        # Programs that tasks start must not inherit the pipe.
        self._socket.set_inheritable(False)
        self._on_message: Callable[[int], object] = _exit
        self._should_finish = False
        threading.Thread(target=self._receive_loop, name="parent", daemon=True).start()

    def send(self, message: bytes) -> None:
        # The parent may be gone, or may not read.
        with suppress(OSError):
            self._socket.send(message, socket.MSG_DONTWAIT)

    @asynccontextmanager
    async def attach_runner(self, runner: "Runner") -> AsyncIterator[None]:
        """Pass the messages of the parent to the runner, and report its status to the parent."""
        loop = asyncio.get_running_loop()
        self._on_message = lambda message: loop.call_soon_threadsafe(
            self._handle_message, runner, message
        )
        runner.hooks.on(RunnerStarted)(lambda _: self._on_started(runner))
        reporting = asyncio.create_task(self._send_status(runner))
        try:
            yield
        finally:
            self._on_message = lambda message: None
            reporting.cancel()

    def _on_started(self, runner: "Runner") -> None:
        self.send(READY)
        if self._should_finish:
            runner.finish()

    def _handle_message(self, runner: "Runner", message: int) -> None:
        if message == FINISH[0]:
            # The runner may not have started.
            self._should_finish = True
            runner.finish()
        elif message < SECOND_SIGNAL_OFFSET:
            runner._stop_on_signal(signal.Signals(message))
        else:
            runner._kill_on_signal(signal.Signals(message - SECOND_SIGNAL_OFFSET))

    async def _send_status(self, runner: "Runner") -> None:
        while True:
            await asyncio.sleep(STATUS_INTERVAL_SECONDS)
            self.send(READY if runner.is_ready else NOT_READY)

    def _receive_loop(self) -> None:
        while message := self._receive():
            self._dispatch(message[0])
        logger.warning("parent process is gone, stopping")
        self._dispatch(signal.SIGTERM)
        # No parent is left to kill this process if it does not stop.
        if self._stop_timeout is not None:
            time.sleep(self._stop_timeout)
            _exit(signal.SIGTERM)

    def _dispatch(self, message: int) -> None:
        # The loop may be closed already.
        with suppress(RuntimeError):
            self._on_message(message)

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(1)
        except OSError:
            return b""


def _exit(message: int) -> None:
    """Exit at once: no runner is attached yet, or it did not stop in time."""
    flush_standard_streams()
    os._exit(0 if message == FINISH[0] else 128 + message % SECOND_SIGNAL_OFFSET)
