"""One worker process as its parent sees it."""

import asyncio
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from graphile_worker.cli.health import ALIVE_WITHIN
from graphile_worker.cli.line import DUE, NOT_READY, READY

logger = logging.getLogger("graphile_worker")


def command_of_child(line: int) -> list[str]:
    """What started this program, with the words for the interpreter, and the number of a line."""
    flags = sys.argv[1:]
    before = sys.orig_argv[1 : len(sys.orig_argv) - len(flags)]
    # It comes first, as nobody knows what the last of the flags is about.
    return [sys.executable, *before, f"--parent={line}", *flags]


class Child:
    """Runs until told to finish or to stop; says when it is ready, and when it should be replaced.

    It is `due` when it has run as many jobs, or holds as much memory, as it should.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        line: socket.socket,
        on_end: "Callable[[Child], None]",
    ) -> None:
        self.is_ready = False
        self.was_ready = False
        self._process = process
        self._line = line
        self._on_end = on_end
        self._born = self._heard_at = time.monotonic()
        self._due_at: float | None = None
        self._news = asyncio.Event()
        asyncio.get_running_loop().add_reader(line, self._listen)
        self._ending = asyncio.create_task(self._until_end())

    @classmethod
    async def started(cls, on_end: "Callable[[Child], None]") -> "Child":
        """A new process of the same command, with a line to it."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        line = theirs.fileno()
        try:
            process = await asyncio.create_subprocess_exec(*command_of_child(line), pass_fds=[line])
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return cls(process, ours, on_end)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._ending.done()

    @property
    def is_alive(self) -> bool:
        """Did its event loop turn of late? While it starts, nobody knows."""
        return not self.was_ready or time.monotonic() - self._heard_at < ALIVE_WITHIN

    @property
    def served(self) -> float:
        """Seconds from its start until it was due, or until now."""
        return (self._due_at or time.monotonic()) - self._born

    @property
    def code(self) -> int:
        """Its exit code, as a shell would say it."""
        code = self._process.returncode
        assert code is not None
        return code if code >= 0 else 128 - code

    @property
    def how_it_ended(self) -> str:
        code = self._process.returncode
        assert code is not None
        return f"ended with {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"

    async def ends(self) -> None:
        await self._ending

    async def begins(self) -> bool:
        """Wait until it takes jobs; False if it ends without."""
        while not self.was_ready and not self.has_ended:
            await self._next_news()
        return self.was_ready and not self.has_ended

    async def ends_or_is_due(self) -> None:
        while self._due_at is None and not self.has_ended:
            await self._next_news()

    def make_due(self, why: str) -> None:
        if self._due_at is None:
            self._due_at = time.monotonic()
            self._news.set()
            logger.info("process %s %s: it is replaced", self.pid, why)

    def say(self, word: bytes) -> None:
        # It may be gone already.
        with suppress(OSError):
            self._line.send(word)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()

    async def _next_news(self) -> None:
        self._news.clear()
        await self._news.wait()

    async def _until_end(self) -> None:
        await self._process.wait()
        # Its last words may not have been read yet.
        self._listen()
        self.is_ready = False
        asyncio.get_running_loop().remove_reader(self._line)
        self._line.close()
        self._on_end(self)
        asyncio.get_running_loop().call_soon(self._news.set)

    def _listen(self) -> None:
        try:
            words = self._line.recv(4096)
        except OSError:
            words = b""
        if not words:
            asyncio.get_running_loop().remove_reader(self._line)
        for number in words:
            self._hear(bytes([number]))

    def _hear(self, word: bytes) -> None:
        self._heard_at = time.monotonic()
        if word in (READY, NOT_READY):
            self.is_ready = word == READY
            self.was_ready = self.was_ready or self.is_ready
        elif word == DUE:
            self.make_due("has run as many jobs as it should")
        self._news.set()
