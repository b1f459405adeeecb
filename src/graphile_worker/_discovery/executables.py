"""Executable: a program of the tasks folder, which runs once per job.

As in Graphile Worker for Node, the program reads the payload from standard input and facts about
the job from its environment. Its output goes to the log of the job, and exit code 0 is success. All
processes that it starts end with it.
"""

import asyncio
import codecs
import errno
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from graphile_worker._payloads.javascript import stringify
from graphile_worker._support.error_format import make_printable
from graphile_worker._support.lazy_dataclass import LazyDataclass
from graphile_worker._support.logs import Logger
from graphile_worker._support.pipes import Pipes
from graphile_worker._support.process_group import ProcessGroup
from graphile_worker.errors import ExecutableFailed
from graphile_worker.jobs import Job
from graphile_worker.options import ExecutableOptions
from graphile_worker.tasks import JobContext

# Variables that the program inherits with environment="minimal".
MINIMAL_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "USER")

MAX_LINE_CHARS = 4096
# Size of a log line without its text, so that empty lines count too.
LOG_LINE_OVERHEAD_BYTES = 100

MAX_LAST_LINES = 20
MAX_LAST_OUTPUT_CHARS = 2000

START_ERROR_HINTS = {
    errno.ENOEXEC: "its first line must name its interpreter, for example #!/bin/sh",
    errno.ENOENT: "the program, or the interpreter in its first line, does not exist",
    errno.EACCES: "the program, or the interpreter in its first line, is not executable",
}


class Timings(LazyDataclass):
    """Limits in seconds."""

    terminate_grace: float = 5.0
    """From SIGTERM to SIGKILL at the timeout, or when the worker cancels the job."""
    cleanup_grace: float = 1.0
    """From SIGTERM to SIGKILL when the worker cannot wait."""
    output_drain: float = 2.0
    """Time to read the output after the end. A daemon in another session may keep the pipe open."""


class Executable:
    """A program as the function of a task."""

    def __init__(
        self,
        identifier: str,
        path: Path,
        options: ExecutableOptions,
        timings: Timings = Timings(),  # noqa: B008
    ) -> None:
        self.identifier = identifier
        self.path = path
        self._options = options
        self._timings = timings

    async def __call__(self, payload: Any, ctx: JobContext[Any]) -> None:
        """Run the program, and raise ExecutableFailed unless it ends with exit code 0."""
        input_bytes = stringify({"payload": payload}).encode()
        output = ProgramOutput(ctx.logger, self._options.max_output_bytes)
        with Pipes.open() as pipes:
            group = self._start(ctx.job, pipes)
            async with self._communicate(pipes, input_bytes, output), self._terminate(group):
                is_running = await self._wait(group, ctx)
                if is_running:
                    await group.terminate(self._timings.terminate_grace)
        if is_running and ctx.cancelled:
            raise asyncio.CancelledError("the worker cancelled the job")
        if is_running:
            raise self._build_error(f"was ended after {self._options.timeout}", group, output)
        if group.returncode != 0:
            raise self._build_error(f"ended with {group.exit_status}", group, output)

    def _start(self, job: Job, pipes: Pipes) -> ProcessGroup:
        environment = build_environment(job, self._options)
        try:
            return ProcessGroup(str(self.path), env=environment, **pipes.get_child_ends())
        except OSError as error:
            hint = START_ERROR_HINTS.get(error.errno or 0)
            reason = f"{os.strerror(error.errno or 0)}{f': {hint}' if hint else ''}"
            raise ExecutableFailed(self.identifier, f"could not be started: {reason}") from error
        finally:
            pipes.close_child_ends()

    async def _wait(self, group: ProcessGroup, ctx: JobContext[Any]) -> bool:
        """Wait for the exit, the timeout or a cancellation, and return whether it still runs."""
        limit = self._options.timeout
        ended = asyncio.ensure_future(group.wait())
        cancelled = asyncio.ensure_future(ctx.wait_cancelled())
        try:
            await asyncio.wait(
                {ended, cancelled},
                timeout=None if limit is None else limit.total_seconds(),
                return_when=asyncio.FIRST_COMPLETED,
            )
            return not ended.done()
        finally:
            ended.cancel()
            cancelled.cancel()

    @asynccontextmanager
    async def _communicate(
        self, pipes: Pipes, input_bytes: bytes, output: "ProgramOutput"
    ) -> AsyncIterator[None]:
        """Write the input and log the output while the program runs."""
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(pipes.write(input_bytes))
            reading = [
                tasks.create_task(_read_stream(pipes.output, output.stdout)),
                tasks.create_task(_read_stream(pipes.errors, output.stderr)),
            ]
            yield
            writing.cancel()
            await asyncio.wait(reading, timeout=self._timings.output_drain)
            for task in reading:
                task.cancel()

    @asynccontextmanager
    async def _terminate(self, group: ProcessGroup) -> AsyncIterator[None]:
        """End all processes of the group after the block."""
        try:
            yield
        finally:
            await group.terminate(self._timings.cleanup_grace)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timings.cleanup_grace):
                    await group.wait()

    def _build_error(
        self, reason: str, group: ProcessGroup, output: "ProgramOutput"
    ) -> ExecutableFailed:
        code = group.returncode
        facts: dict[str, Any] = {"last_output": output.last_output}
        if code is not None and code >= 0:
            facts["code"] = code
        elif code is not None:
            facts["signal"] = group.exit_status.removeprefix("signal ")
        return ExecutableFailed(self.identifier, reason, **facts)


def build_environment(job: Job, options: ExecutableOptions) -> dict[str, str]:
    """Build the environment of a program: the worker's variables, and those of the job."""
    inherited = dict(os.environ)
    if options.environment == "minimal":
        inherited = {name: inherited[name] for name in MINIMAL_VARIABLES if name in inherited}
    facts = {
        "GRAPHILE_WORKER_PAYLOAD_FORMAT": "json",
        "GRAPHILE_WORKER_TASK_IDENTIFIER": job.task_identifier,
        "GRAPHILE_WORKER_JOB_ID": str(job.id),
        "GRAPHILE_WORKER_JOB_KEY": job.key,
        "GRAPHILE_WORKER_JOB_ATTEMPTS": str(job.attempts),
        "GRAPHILE_WORKER_JOB_MAX_ATTEMPTS": str(job.max_attempts),
        "GRAPHILE_WORKER_JOB_PRIORITY": str(job.priority),
        "GRAPHILE_WORKER_JOB_RUN_AT": _format_run_at(job),
    }
    # Encoded as UTF-8 in any locale. Inherited variables keep their bytes.
    encoded = {
        name: None if fact is None else os.fsdecode(fact.encode()) for name, fact in facts.items()
    }
    return {name: value for name, value in {**inherited, **encoded}.items() if value is not None}


def _format_run_at(job: Job) -> str:
    return job.run_at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def _read_stream(chunks: AsyncIterator[bytes], stream: "OutputStream") -> None:
    try:
        async for chunk in chunks:
            stream.feed(chunk)
    finally:
        stream.finish()


class ProgramOutput:
    """The output of a program, logged line by line up to a maximum of bytes."""

    def __init__(self, logger: Logger, max_bytes: int) -> None:
        self._logger = logger
        self._max_bytes = self._bytes_left = max_bytes
        self.stdout = OutputStream(lambda line: self._log_line(logger.info, line))
        self.stderr = OutputStream(lambda line: self._log_line(logger.error, line))

    @property
    def last_output(self) -> str:
        """Return the last lines of standard error."""
        lines = [make_printable(line.rstrip("\r")) for line in self.stderr.tail.split("\n")]
        text = "\n".join([line for line in lines if line.strip()][-MAX_LAST_LINES:])
        return text if len(text) <= MAX_LAST_OUTPUT_CHARS else f"…{text[-MAX_LAST_OUTPUT_CHARS:]}"

    def _log_line(self, log: Callable[[str], None], line: str) -> bool:
        """Log a line, and return False when the maximum is reached."""
        if self._bytes_left < 0:
            return False
        self._bytes_left -= len(line.encode(errors="replace")) + LOG_LINE_OVERHEAD_BYTES
        if self._bytes_left < 0:
            self._logger.warning("output exceeds %s bytes, the rest is not logged", self._max_bytes)
            return False
        log(make_printable(line))
        return True


class OutputStream:
    """Splits one output stream of a program into lines, and keeps its tail."""

    def __init__(self, log_line: Callable[[str], bool]) -> None:
        self._log_line = log_line
        self._is_logging = True
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._partial_line = ""
        self._tail = b""

    @property
    def tail(self) -> str:
        return self._tail.decode(errors="replace")

    def feed(self, chunk: bytes) -> None:
        self._tail = (self._tail + chunk)[-2 * MAX_LAST_OUTPUT_CHARS :]
        if self._is_logging:
            *lines, self._partial_line = (self._partial_line + self._decoder.decode(chunk)).split(
                "\n"
            )
            self._log_lines(lines)
            while len(self._partial_line) > MAX_LINE_CHARS:
                self._log_lines([self._partial_line[:MAX_LINE_CHARS]])
                self._partial_line = self._partial_line[MAX_LINE_CHARS:]

    def finish(self) -> None:
        """Log the last line, which has no newline."""
        rest = self._partial_line + self._decoder.decode(b"", final=True)
        if rest:
            self._log_lines([rest])

    def _log_lines(self, lines: list[str]) -> None:
        for line in lines:
            for piece in _split_line(line.removesuffix("\r")):
                self._is_logging = self._is_logging and self._log_line(piece)
        if not self._is_logging:
            self._partial_line = ""


def _split_line(line: str) -> Iterator[str]:
    yield line[:MAX_LINE_CHARS]
    for start in range(MAX_LINE_CHARS, len(line), MAX_LINE_CHARS):
        yield line[start : start + MAX_LINE_CHARS]
