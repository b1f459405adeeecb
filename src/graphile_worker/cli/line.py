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

from graphile_worker.cli.streams import flush_all
from graphile_worker.errors import ConfigurationError
from graphile_worker.events import RunnerStarted

if TYPE_CHECKING:
    from graphile_worker.runner import Runner

# What a child says.
READY = b"+"  # it takes jobs, and the database answers
NOT_READY = b"-"
DUE = b"d"  # it has run as many jobs as it should

# What a parent says: to finish, or the number of the signal that it heard, a second one with this.
FINISH = bytes([0])
AGAIN = 128

# Seconds between two signs of life of a child.
SAY_EVERY = 1.0

# Seconds that a child may take for its end beyond the longest time that a stop may take: then its
# parent kills it, or it ends itself if there is no parent any more.
SPARE = 10.0

logger = logging.getLogger("graphile_worker")


def longest_stop(stop_after: timedelta | None) -> float | None:
    """The seconds in which a child that was asked to stop must have ended; None: no limit."""
    return None if stop_after is None else stop_after.total_seconds() + SPARE


def stop_word(number: int) -> bytes:
    return bytes([number])


def kill_word(number: int) -> bytes:
    return bytes([AGAIN + number])


class LineToParent:
    """A child's end. A thread listens, so that it is heard while tasks are imported, too."""

    def __init__(self, number: int, stop_within: float | None) -> None:
        self._stop_within = stop_within
        try:
            self._socket = socket.socket(fileno=number)
        except OSError as error:
            raise ConfigurationError("--parent is for processes of --processes") from error
        # It is for this process, not for what tasks may start.
        self._socket.set_inheritable(False)
        self._hear: Callable[[int], object] = _leave
        self._shall_finish = False
        threading.Thread(target=self._listen, name="parent", daemon=True).start()

    def say(self, word: bytes) -> None:
        # Nobody waits for a parent that is gone, or that reads nothing.
        with suppress(OSError):
            self._socket.send(word, socket.MSG_DONTWAIT)

    @asynccontextmanager
    async def heard_by(self, runner: "Runner") -> AsyncIterator[None]:
        """Meanwhile the runner does what the parent says, and the parent hears how it is."""
        loop = asyncio.get_running_loop()
        self._hear = lambda word: loop.call_soon_threadsafe(self._obey, runner, word)
        runner.hooks.on(RunnerStarted)(lambda _: self._begin(runner))
        saying = asyncio.create_task(self._say_how(runner))
        try:
            yield
        finally:
            self._hear = lambda word: None
            saying.cancel()

    def _begin(self, runner: "Runner") -> None:
        self.say(READY)
        if self._shall_finish:
            runner.let_finish()

    def _obey(self, runner: "Runner", word: int) -> None:
        if word == FINISH[0]:
            # It may not have begun.
            self._shall_finish = True
            runner.let_finish()
        elif word < AGAIN:
            runner.stop_by(signal.Signals(word))
        else:
            runner.kill_by(signal.Signals(word - AGAIN))

    async def _say_how(self, runner: "Runner") -> None:
        while True:
            await asyncio.sleep(SAY_EVERY)
            self.say(READY if runner.is_ready else NOT_READY)

    def _listen(self) -> None:
        while word := self._next_word():
            self._tell(word[0])
        logger.warning("the parent process is gone: stopping")
        self._tell(signal.SIGTERM)
        # Nobody else would end it, if it cannot stop.
        if self._stop_within is not None:
            time.sleep(self._stop_within)
            _leave(signal.SIGTERM)

    def _tell(self, word: int) -> None:
        # The loop may have been closed at this very moment.
        with suppress(RuntimeError):
            self._hear(word)

    def _next_word(self) -> bytes:
        try:
            return self._socket.recv(1)
        except OSError:
            return b""


def _leave(word: int) -> None:
    """There is nothing to finish or to stop yet, or nothing that could be stopped."""
    flush_all()
    os._exit(0 if word == FINISH[0] else 128 + word % AGAIN)
