"""The line between a parent and a worker process: one byte is one word, its end is the other's end.

Not by signals: a terminal and some supervisors send theirs to every process, and what the parent
passed on would be the second signal of a child, which cuts its stop short.
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

# What a child says.
READY = b"+"  # it takes jobs, and the database answers
NOT_READY = b"-"
REPLACEMENT_DUE = b"d"  # it has run as many jobs as it should

# What a parent says: to finish, or the number of the signal that it heard, a second one with this.
FINISH = bytes([0])
SECOND_SIGNAL_OFFSET = 128

# Seconds between two signs of life of a child.
STATUS_INTERVAL_SECONDS = 1.0

# Seconds that a child may take for its end beyond the longest time that a stop may take: then its
# parent kills it, or it ends itself if there is no parent any more.
STOP_GRACE_SECONDS = 10.0

logger = logging.getLogger("graphile_worker")


def compute_stop_timeout(shutdown_timeout: timedelta | None) -> float | None:
    """The seconds in which a child that was asked to stop must have ended; None: no limit."""
    return (
        None if shutdown_timeout is None else shutdown_timeout.total_seconds() + STOP_GRACE_SECONDS
    )


def build_stop_message(signal_number: int) -> bytes:
    return bytes([signal_number])


def build_kill_message(signal_number: int) -> bytes:
    return bytes([SECOND_SIGNAL_OFFSET + signal_number])


class ParentPipe:
    """A child's end. A thread listens, so that it is heard while tasks are imported, too."""

    def __init__(self, fd: int, stop_timeout: float | None) -> None:
        self._stop_timeout = stop_timeout
        try:
            self._socket = socket.socket(fileno=fd)
        except OSError as error:
            raise ConfigurationError("--parent is for processes of --processes") from error
        # It is for this process, not for what tasks may start.
        self._socket.set_inheritable(False)
        self._on_message: Callable[[int], object] = _exit
        self._should_finish = False
        threading.Thread(target=self._receive_loop, name="parent", daemon=True).start()

    def send(self, message: bytes) -> None:
        # Nobody waits for a parent that is gone, or that reads nothing.
        with suppress(OSError):
            self._socket.send(message, socket.MSG_DONTWAIT)

    @asynccontextmanager
    async def attach_runner(self, runner: "Runner") -> AsyncIterator[None]:
        """Meanwhile the runner does what the parent says, and the parent hears how it is."""
        loop = asyncio.get_running_loop()
        self._on_message = lambda word: loop.call_soon_threadsafe(
            self._handle_message, runner, word
        )
        runner.hooks.on(RunnerStarted)(lambda _: self._on_started(runner))
        saying = asyncio.create_task(self._send_status(runner))
        try:
            yield
        finally:
            self._on_message = lambda word: None
            saying.cancel()

    def _on_started(self, runner: "Runner") -> None:
        self.send(READY)
        if self._should_finish:
            runner.finish()

    def _handle_message(self, runner: "Runner", message: int) -> None:
        if message == FINISH[0]:
            # It may not have begun.
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
        while word := self._receive():
            self._dispatch(word[0])
        logger.warning("the parent process is gone: stopping")
        self._dispatch(signal.SIGTERM)
        # Nobody else would end it, if it cannot stop.
        if self._stop_timeout is not None:
            time.sleep(self._stop_timeout)
            _exit(signal.SIGTERM)

    def _dispatch(self, message: int) -> None:
        # The loop may have been closed at this very moment.
        with suppress(RuntimeError):
            self._on_message(message)

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(1)
        except OSError:
            return b""


def _exit(message: int) -> None:
    """There is nothing to finish or to stop yet, or nothing that could be stopped."""
    flush_standard_streams()
    os._exit(0 if message == FINISH[0] else 128 + message % SECOND_SIGNAL_OFFSET)
