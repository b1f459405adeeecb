"""Executable: a program of the tasks folder, run once for each of its jobs.

As in the reference it reads the payload from standard input and finds facts about the job in its
environment; what it says goes to the log of the job, and exit code 0 is success. Whatever it
started itself ends with it.
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
from graphile_worker._support.logs import Logger, make_printable
from graphile_worker._support.pipes import Pipes
from graphile_worker._support.process_group import ProcessGroup
from graphile_worker.errors import ExecutableFailed
from graphile_worker.jobs import Job
from graphile_worker.options import ExecutableOptions
from graphile_worker.tasks import JobContext

# All that is left of the worker's own environment if it shall be minimal.
MINIMAL_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "USER")

# Seconds that a program has to end when it is asked to, and if the worker itself cannot wait.
TERMINATE_GRACE_SECONDS = 5.0
CLEANUP_GRACE_SECONDS = 1.0

# Seconds to read what a program has said before it ended. Another one may hold the pipe for ever:
# it made a session of its own, or it would have been ended too.
OUTPUT_DRAIN_SECONDS = 2.0

MAX_LINE_CHARS = 4096
# What a log has around each line; an empty one costs something too.
LOG_LINE_OVERHEAD_BYTES = 100

MAX_LAST_LINES = 20
MAX_LAST_OUTPUT_CHARS = 2000

START_ERROR_HINTS = {
    errno.ENOEXEC: "its first line must say what runs it, such as #!/bin/sh",
    errno.ENOENT: "it, or the program that its first line names, is not there",
    errno.EACCES: "it, or the program that its first line names, may not be run",
}


class Executable:
    """A program as the function of a task."""

    def __init__(self, identifier: str, path: Path, options: ExecutableOptions) -> None:
        self.identifier = identifier
        self.path = path
        self._options = options

    async def __call__(self, payload: Any, ctx: JobContext[Any]) -> None:
        """Run it to its end; raises ExecutableFailed unless that is exit code 0."""
        given = stringify({"payload": payload}).encode()
        said = ProgramOutput(ctx.logger, self._options.max_output_bytes)
        with Pipes.open() as pipes:
            group = self._start(ctx.job, pipes)
            async with _communicate(pipes, given, said), _ensure_terminated(group):
                stays = await self._wait_and_check_overrun(group, ctx)
                if stays:
                    await group.terminate(TERMINATE_GRACE_SECONDS)
        if stays and ctx.cancelled:
            raise asyncio.CancelledError("the worker asked it to give up")
        if stays:
            raise self._build_error(f"was ended after {self._options.timeout}", group, said)
        if group.returncode != 0:
            raise self._build_error(f"ended with {group.exit_status}", group, said)

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

    async def _wait_and_check_overrun(self, group: ProcessGroup, ctx: JobContext[Any]) -> bool:
        """Must it be ended, because its time is over or the worker asks its tasks to give up?"""
        limit = self._options.timeout
        ending = asyncio.ensure_future(group.wait())
        asked = asyncio.ensure_future(ctx.wait_cancelled())
        try:
            await asyncio.wait(
                {ending, asked},
                timeout=None if limit is None else limit.total_seconds(),
                return_when=asyncio.FIRST_COMPLETED,
            )
            return not ending.done()
        finally:
            ending.cancel()
            asked.cancel()

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
    """The variables of a program: the worker's own, and those that say which job it runs."""
    inherited = dict(os.environ)
    if options.environment == "minimal":
        inherited = {name: inherited[name] for name in MINIMAL_VARIABLES if name in inherited}
    facts = {
        # There may be others one day.
        "GRAPHILE_WORKER_PAYLOAD_FORMAT": "json",
        "GRAPHILE_WORKER_TASK_IDENTIFIER": job.task_identifier,
        "GRAPHILE_WORKER_JOB_ID": str(job.id),
        "GRAPHILE_WORKER_JOB_KEY": job.key,
        "GRAPHILE_WORKER_JOB_ATTEMPTS": str(job.attempts),
        "GRAPHILE_WORKER_JOB_MAX_ATTEMPTS": str(job.max_attempts),
        "GRAPHILE_WORKER_JOB_PRIORITY": str(job.priority),
        "GRAPHILE_WORKER_JOB_RUN_AT": _format_run_at(job),
    }
    # UTF-8 whatever the locale is; what is inherited stays as it is, byte for byte.
    told = {
        name: None if fact is None else os.fsdecode(fact.encode()) for name, fact in facts.items()
    }
    return {name: value for name, value in {**inherited, **told}.items() if value is not None}


def _format_run_at(job: Job) -> str:
    return job.run_at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@asynccontextmanager
async def _communicate(
    pipes: Pipes, input_bytes: bytes, output: "ProgramOutput"
) -> AsyncIterator[None]:
    """Give a program its input and hear what it says; at the end, what it had said by then."""
    async with asyncio.TaskGroup() as beside:
        writing = beside.create_task(pipes.write(input_bytes))
        reading = [
            beside.create_task(_read_stream(pipes.output, output.stdout)),
            beside.create_task(_read_stream(pipes.errors, output.stderr)),
        ]
        yield
        writing.cancel()
        await asyncio.wait(reading, timeout=OUTPUT_DRAIN_SECONDS)
        for each in reading:
            each.cancel()


@asynccontextmanager
async def _ensure_terminated(group: ProcessGroup) -> AsyncIterator[None]:
    """Nothing of the group is left behind."""
    try:
        yield
    finally:
        await group.terminate(CLEANUP_GRACE_SECONDS)
        # Killed by now, if it was not before.
        with suppress(TimeoutError):
            async with asyncio.timeout(CLEANUP_GRACE_SECONDS):
                await group.wait()


async def _read_stream(chunks: AsyncIterator[bytes], stream: "OutputStream") -> None:
    try:
        async for chunk in chunks:
            stream.feed(chunk)
    finally:
        stream.finish()


# What it says


class ProgramOutput:
    """What a program says, in the log of its job line by line, up to so many bytes in all."""

    def __init__(self, logger: Logger, max_bytes: int) -> None:
        self._logger = logger
        self._max_bytes = self._bytes_left = max_bytes
        self.stdout = OutputStream(lambda line: self._log_line(logger.info, line))
        self.stderr = OutputStream(lambda line: self._log_line(logger.error, line))

    @property
    def last_output(self) -> str:
        """The end of its standard error."""
        lines = [make_printable(line.rstrip("\r")) for line in self.stderr.tail.split("\n")]
        shown = "\n".join([line for line in lines if line.strip()][-MAX_LAST_LINES:])
        return (
            shown if len(shown) <= MAX_LAST_OUTPUT_CHARS else f"…{shown[-MAX_LAST_OUTPUT_CHARS:]}"
        )

    def _log_line(self, log: Callable[[str], None], line: str) -> bool:
        """False: that was too much, and nothing more is shown."""
        if self._bytes_left < 0:
            return False
        self._bytes_left -= len(line.encode(errors="replace")) + LOG_LINE_OVERHEAD_BYTES
        if self._bytes_left < 0:
            self._logger.warning(
                "it says more than %s bytes: the rest is not shown", self._max_bytes
            )
            return False
        log(make_printable(line))
        return True


class OutputStream:
    """One of the two that a program writes to, cut into lines; all that is kept is the end."""

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
        """There will be no more of it."""
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
