"""One worker process as its parent sees it."""

import asyncio
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from graphile_worker._cli.health import MAX_LOOP_DELAY_SECONDS
from graphile_worker._cli.supervisor.parent_pipe import NOT_READY, READY, REPLACEMENT_DUE

logger = logging.getLogger("graphile_worker")


def build_child_command(pipe_fd: int) -> list[str]:
    """What started this program, with the words for the interpreter, and the number of a line."""
    flags = sys.argv[1:]
    before = sys.orig_argv[1 : len(sys.orig_argv) - len(flags)]
    # It comes first, as nobody knows what the last of the flags is about.
    return [sys.executable, *before, f"--parent={pipe_fd}", *flags]


class SupervisedProcess:
    """Runs until told to finish or to stop; says when it is ready, and when it should be replaced.

    It is `due` when it has run as many jobs, or holds as much memory, as it should.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        pipe: socket.socket,
        on_end: "Callable[[SupervisedProcess], None]",
    ) -> None:
        self.is_ready = False
        self.was_ready = False
        self._process = process
        self._pipe = pipe
        self._on_end = on_end
        self._started_at = self._last_message_at = time.monotonic()
        self._due_at: float | None = None
        self._changed = asyncio.Event()
        asyncio.get_running_loop().add_reader(pipe, self._receive)
        self._exit_task = asyncio.create_task(self._wait_for_exit())

    @classmethod
    async def start(cls, on_end: "Callable[[SupervisedProcess], None]") -> "SupervisedProcess":
        """A new process of the same command, with a line to it."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        line = theirs.fileno()
        try:
            process = await asyncio.create_subprocess_exec(
                *build_child_command(line), pass_fds=[line]
            )
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
    def has_exited(self) -> bool:
        return self._exit_task.done()

    @property
    def is_alive(self) -> bool:
        """Did its event loop turn of late? While it starts, nobody knows."""
        return (
            not self.was_ready or time.monotonic() - self._last_message_at < MAX_LOOP_DELAY_SECONDS
        )

    @property
    def seconds_served(self) -> float:
        """Seconds from its start until it was due, or until now."""
        return (self._due_at or time.monotonic()) - self._started_at

    @property
    def exit_code(self) -> int:
        """Its exit code, as a shell would say it."""
        code = self._process.returncode
        assert code is not None
        return code if code >= 0 else 128 - code

    @property
    def exit_description(self) -> str:
        code = self._process.returncode
        assert code is not None
        return f"ended with {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"

    async def wait(self) -> None:
        await self._exit_task

    async def wait_until_ready(self) -> bool:
        """Wait until it takes jobs; False if it ends without."""
        while not self.was_ready and not self.has_exited:
            await self._wait_for_change()
        return self.was_ready and not self.has_exited

    async def wait_until_exit_or_due(self) -> None:
        while self._due_at is None and not self.has_exited:
            await self._wait_for_change()

    def mark_due(self, reason: str) -> None:
        if self._due_at is None:
            self._due_at = time.monotonic()
            self._changed.set()
            logger.info("process %s %s: it is replaced", self.pid, reason)

    def send(self, message: bytes) -> None:
        # It may be gone already.
        with suppress(OSError):
            self._pipe.send(message)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _wait_for_exit(self) -> None:
        await self._process.wait()
        # Its last words may not have been read yet.
        self._receive()
        self.is_ready = False
        asyncio.get_running_loop().remove_reader(self._pipe)
        self._pipe.close()
        self._on_end(self)
        asyncio.get_running_loop().call_soon(self._changed.set)

    def _receive(self) -> None:
        try:
            words = self._pipe.recv(4096)
        except OSError:
            words = b""
        if not words:
            asyncio.get_running_loop().remove_reader(self._pipe)
        for number in words:
            self._handle_message(bytes([number]))

    def _handle_message(self, message: bytes) -> None:
        self._last_message_at = time.monotonic()
        if message in (READY, NOT_READY):
            self.is_ready = message == READY
            self.was_ready = self.was_ready or self.is_ready
        elif message == REPLACEMENT_DUE:
            self.mark_due("has run as many jobs as it should")
        self._changed.set()
