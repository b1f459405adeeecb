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

from graphile_worker.errors import ExecutableFailed
from graphile_worker.jobs import Job
from graphile_worker.logs import Logger, printable
from graphile_worker.options import ExecutableOptions
from graphile_worker.payloads.javascript import stringify
from graphile_worker.pipes import Pipes
from graphile_worker.process_group import ProcessGroup
from graphile_worker.tasks import JobContext

# All that is left of the worker's own environment if it shall be minimal.
NEEDED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "USER")

# Seconds that a program has to end when it is asked to, and if the worker itself cannot wait.
GRACE = 5.0
LITTLE_GRACE = 1.0

# Seconds to read what a program has said before it ended. Another one may hold the pipe for ever:
# it made a session of its own, or it would have been ended too.
REST_WITHIN = 2.0

LONGEST_LINE = 4096
# What a log has around each line; an empty one costs something too.
AROUND_A_LINE = 100

LAST_LINES = 20
LAST_WORDS = 2000

HINTS = {
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
        said = Said(ctx.logger, self._options.max_output_bytes)
        with Pipes.opened() as pipes:
            group = self._started(ctx.job, pipes)
            async with _talking(pipes, given, said), _ended(group):
                stays = await self._stays(group, ctx)
                if stays:
                    await group.end(GRACE)
        if stays and ctx.cancelled:
            raise asyncio.CancelledError("the worker asked it to give up")
        if stays:
            raise self._failed(f"was ended after {self._options.timeout}", group, said)
        if group.returncode != 0:
            raise self._failed(f"ended with {group.how_it_ended}", group, said)

    def _started(self, job: Job, pipes: Pipes) -> ProcessGroup:
        environment = environment_of(job, self._options)
        try:
            return ProcessGroup(str(self.path), env=environment, **pipes.of_the_program())
        except OSError as error:
            hint = HINTS.get(error.errno or 0)
            reason = f"{os.strerror(error.errno or 0)}{f': {hint}' if hint else ''}"
            raise ExecutableFailed(self.identifier, f"could not be started: {reason}") from error
        finally:
            pipes.leave_to_the_program()

    async def _stays(self, group: ProcessGroup, ctx: JobContext[Any]) -> bool:
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

    def _failed(self, ended: str, group: ProcessGroup, said: "Said") -> ExecutableFailed:
        code = group.returncode
        facts: dict[str, Any] = {"last_words": said.last_words}
        if code is not None and code >= 0:
            facts["code"] = code
        elif code is not None:
            facts["signal"] = group.how_it_ended.removeprefix("signal ")
        return ExecutableFailed(self.identifier, ended, **facts)


def environment_of(job: Job, options: ExecutableOptions) -> dict[str, str]:
    """The variables of a program: the worker's own, and those that say which job it runs."""
    inherited = dict(os.environ)
    if options.environment == "minimal":
        inherited = {name: inherited[name] for name in NEEDED if name in inherited}
    facts = {
        # There may be others one day.
        "GRAPHILE_WORKER_PAYLOAD_FORMAT": "json",
        "GRAPHILE_WORKER_TASK_IDENTIFIER": job.task_identifier,
        "GRAPHILE_WORKER_JOB_ID": str(job.id),
        "GRAPHILE_WORKER_JOB_KEY": job.key,
        "GRAPHILE_WORKER_JOB_ATTEMPTS": str(job.attempts),
        "GRAPHILE_WORKER_JOB_MAX_ATTEMPTS": str(job.max_attempts),
        "GRAPHILE_WORKER_JOB_PRIORITY": str(job.priority),
        "GRAPHILE_WORKER_JOB_RUN_AT": _iso(job),
    }
    # UTF-8 whatever the locale is; what is inherited stays as it is, byte for byte.
    told = {
        name: None if fact is None else os.fsdecode(fact.encode()) for name, fact in facts.items()
    }
    return {name: value for name, value in {**inherited, **told}.items() if value is not None}


def _iso(job: Job) -> str:
    return job.run_at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@asynccontextmanager
async def _talking(pipes: Pipes, given: bytes, said: "Said") -> AsyncIterator[None]:
    """Give a program its input and hear what it says; at the end, what it had said by then."""
    async with asyncio.TaskGroup() as beside:
        writing = beside.create_task(pipes.write(given))
        reading = [
            beside.create_task(_heard(pipes.output, said.info)),
            beside.create_task(_heard(pipes.errors, said.error)),
        ]
        yield
        writing.cancel()
        await asyncio.wait(reading, timeout=REST_WITHIN)
        for each in reading:
            each.cancel()


@asynccontextmanager
async def _ended(group: ProcessGroup) -> AsyncIterator[None]:
    """Nothing of the group is left behind."""
    try:
        yield
    finally:
        await group.end(LITTLE_GRACE)
        # Killed by now, if it was not before.
        with suppress(TimeoutError):
            async with asyncio.timeout(LITTLE_GRACE):
                await group.wait()


async def _heard(chunks: AsyncIterator[bytes], stream: "Stream") -> None:
    try:
        async for chunk in chunks:
            stream.feed(chunk)
    finally:
        stream.end()


# What it says


class Said:
    """What a program says, in the log of its job line by line, up to so many bytes in all."""

    def __init__(self, logger: Logger, most: int) -> None:
        self._logger = logger
        self._most = self._left = most
        self.info = Stream(lambda line: self._show(logger.info, line))
        self.error = Stream(lambda line: self._show(logger.error, line))

    @property
    def last_words(self) -> str:
        """The end of its standard error."""
        lines = [printable(line.rstrip("\r")) for line in self.error.end_of_it.split("\n")]
        shown = "\n".join([line for line in lines if line.strip()][-LAST_LINES:])
        return shown if len(shown) <= LAST_WORDS else f"…{shown[-LAST_WORDS:]}"

    def _show(self, log: Callable[[str], None], line: str) -> bool:
        """False: that was too much, and nothing more is shown."""
        if self._left < 0:
            return False
        self._left -= len(line.encode(errors="replace")) + AROUND_A_LINE
        if self._left < 0:
            self._logger.warning("it says more than %s bytes: the rest is not shown", self._most)
            return False
        log(printable(line))
        return True


class Stream:
    """One of the two that a program writes to, cut into lines; all that is kept is the end."""

    def __init__(self, show: Callable[[str], bool]) -> None:
        self._show = show
        self._is_shown = True
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = ""
        self._last = b""

    @property
    def end_of_it(self) -> str:
        return self._last.decode(errors="replace")

    def feed(self, chunk: bytes) -> None:
        self._last = (self._last + chunk)[-2 * LAST_WORDS :]
        if self._is_shown:
            *lines, self._begun = (self._begun + self._decoder.decode(chunk)).split("\n")
            self._say(lines)
            while len(self._begun) > LONGEST_LINE:
                self._say([self._begun[:LONGEST_LINE]])
                self._begun = self._begun[LONGEST_LINE:]

    def end(self) -> None:
        """There will be no more of it."""
        rest = self._begun + self._decoder.decode(b"", final=True)
        if rest:
            self._say([rest])

    def _say(self, lines: list[str]) -> None:
        for line in lines:
            for piece in _pieces(line.removesuffix("\r")):
                self._is_shown = self._is_shown and self._show(piece)
        if not self._is_shown:
            self._begun = ""


def _pieces(line: str) -> Iterator[str]:
    yield line[:LONGEST_LINE]
    for start in range(LONGEST_LINE, len(line), LONGEST_LINE):
        yield line[start : start + LONGEST_LINE]
