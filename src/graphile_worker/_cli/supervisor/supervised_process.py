"""A worker process, from the side of its supervisor."""

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
from graphile_worker._cli.supervisor.process_metrics import ProcessMetrics
from graphile_worker._support.error_format import format_error_line

logger = logging.getLogger("graphile_worker")


def build_child_command(pipe_fd: int, metrics_fd: int | None = None) -> list[str]:
    """Build the command of this process, with the options of the interpreter and `--parent`."""
    flags = sys.argv[1:]
    before = sys.orig_argv[1 : len(sys.orig_argv) - len(flags)]
    pipes = [f"--parent={pipe_fd}"]
    if metrics_fd is not None:
        pipes.append(f"--parent-metrics={metrics_fd}")
    # Before the other flags, because `--` may be one of them.
    return [sys.executable, *before, *pipes, *flags]


class SupervisedProcess:
    """A process that reports when it is ready, and is due after `max_jobs` or `max_memory`."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        pipe: socket.socket,
        on_end: "Callable[[SupervisedProcess], None]",
        metrics_pipe: socket.socket | None = None,
        metrics: ProcessMetrics | None = None,
    ) -> None:
        self.is_ready = False
        self.was_ready = False
        self._process = process
        self._pipe = pipe
        self._on_end = on_end
        self._metrics = metrics
        if metrics is not None and metrics_pipe is not None:
            self._metrics_receiver = metrics.add(metrics_pipe)
        self._started_at = self._last_message_at = time.monotonic()
        self._due_at: float | None = None
        self._changed = asyncio.Event()
        asyncio.get_running_loop().add_reader(pipe, self._receive)
        self._exit_task = asyncio.create_task(self._wait_for_exit())

    @classmethod
    async def start(
        cls,
        on_end: "Callable[[SupervisedProcess], None]",
        metrics: ProcessMetrics | None = None,
    ) -> "SupervisedProcess":
        """Start this command again, with a pipe to it, and another one for its metrics."""
        pipes = [socket.socketpair() for _ in range(1 if metrics is None else 2)]
        fds = [child_end.fileno() for _, child_end in pipes]
        try:
            process = await asyncio.create_subprocess_exec(*build_child_command(*fds), pass_fds=fds)
        except OSError:
            for parent_end, _ in pipes:
                parent_end.close()
            raise
        finally:
            for _, child_end in pipes:
                child_end.close()
        (pipe, _), *others = pipes
        pipe.setblocking(False)
        return cls(process, pipe, on_end, others[0][0] if others else None, metrics)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_exited(self) -> bool:
        return self._exit_task.done()

    @property
    def is_alive(self) -> bool:
        """Whether its event loop has reported recently. A starting process counts as alive."""
        message_age = time.monotonic() - self._last_message_at
        return not self.was_ready or message_age < MAX_LOOP_DELAY_SECONDS

    @property
    def seconds_served(self) -> float:
        """The seconds from its start until it was due, or until now."""
        return (self._due_at or time.monotonic()) - self._started_at

    @property
    def exit_code(self) -> int:
        """The exit code, 128 plus the number for a signal."""
        code = self._process.returncode
        assert code is not None
        return code if code >= 0 else 128 - code

    @property
    def exit_description(self) -> str:
        code = self._process.returncode
        assert code is not None
        return f"exited with {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"

    async def wait(self) -> None:
        await self._exit_task

    async def wait_until_ready(self) -> bool:
        """Wait until it claims jobs. False if it exits first."""
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
            logger.info("replacing process %s (%s)", self.pid, reason)

    def send(self, message: bytes) -> None:
        # The process may have exited.
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
        # Its last messages may not have been read.
        self._receive()
        if self._metrics is not None:
            try:
                self._metrics.remove(self._metrics_receiver)
            except Exception as error:
                # Metrics must not keep a replacement from starting.
                logger.warning("metrics of a process lost: %s", format_error_line(error))
        self.is_ready = False
        asyncio.get_running_loop().remove_reader(self._pipe)
        self._pipe.close()
        self._on_end(self)
        asyncio.get_running_loop().call_soon(self._changed.set)

    def _receive(self) -> None:
        try:
            messages = self._pipe.recv(4096)
        except OSError:
            messages = b""
        if not messages:
            asyncio.get_running_loop().remove_reader(self._pipe)
        for message in messages:
            self._handle_message(bytes([message]))

    def _handle_message(self, message: bytes) -> None:
        self._last_message_at = time.monotonic()
        if message in (READY, NOT_READY):
            self.is_ready = message == READY
            self.was_ready = self.was_ready or self.is_ready
        elif message == REPLACEMENT_DUE:
            self.mark_due("ran max_jobs jobs")
        self._changed.set()
