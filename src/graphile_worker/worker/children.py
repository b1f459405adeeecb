"""Children: processes in which tasks run that are better ended than waited for."""

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict

from graphile_worker.errors import TaskProcessDied
from graphile_worker.jobs import Job
from graphile_worker.memory import MEGABYTE
from graphile_worker.options import TaskProcessOptions
from graphile_worker.pipes import Ends, chunks
from graphile_worker.process_group import ProcessGroup
from graphile_worker.tasks.importing import Location
from graphile_worker.tasks.source_only import folders_read_as_source
from graphile_worker.worker.messages import Message, job_fields, packed, read_message
from graphile_worker.worker.output import Output

# Seconds that what a process said last may take to arrive, and that its end may take.
LAST_WORDS_WITHIN = 1.0
END_WITHIN = 2.0

PROGRAM = "from graphile_worker.worker.child import main; main({})"

logger = logging.getLogger("graphile_worker")


class Children:
    """As many processes as tasks that run in them at once; each is kept for the next job.

    Spawned, never forked: a copy of a program with threads and connections is no program.
    """

    def __init__(self, options: TaskProcessOptions) -> None:
        self._options = options
        self._idle: list[_Child] = []
        self._living: set[_Child] = set()

    async def run(self, task: Location, job: Job, hear: Callable[[str], object]) -> Message:
        """How the job ended, told by the process that ran it; cancelled, that process is killed.

        `hear` is told what it says meanwhile. One that ends before the job raises TaskProcessDied.
        """
        child = self._take() or await _Child.started(self._options, self._living)
        try:
            answer = await child.ask({"task": asdict(task), "job": job_fields(job)}, hear)
        except BaseException:
            child.kill()
            raise
        if self._is_worn(child, answer):
            child.kill()
        else:
            self._idle.append(child)
        return answer

    async def close(self) -> None:
        """End all, and return once they have."""
        for child in self._living:
            child.kill()
        if self._living:
            await asyncio.wait([child.ending for child in self._living], timeout=END_WITHIN)

    def _take(self) -> "_Child | None":
        while self._idle:
            child = self._idle.pop()
            if child.is_alive:
                return child
            child.kill()
        return None

    def _is_worn(self, child: "_Child", answer: Message) -> bool:
        if (why := answer["must_end"]) is not None:
            logger.warning("process %s, in which a task %s, is ended", child.pid, why)
            return True
        if self._options.max_jobs is not None and child.count >= self._options.max_jobs:
            return True
        most, held = self._options.max_memory, answer["memory"]
        return most is not None and held is not None and held > most * MEGABYTE


def _spawned(line: int, output: int) -> ProcessGroup:
    return ProcessGroup(
        # With -c the current directory would be the first place where modules are looked for, and a
        # file called socket.py there would run. Tasks are found by the worker's own path.
        *(sys.executable, "-P", "-u", "-c", PROGRAM.format(line)),
        pass_fds=[line],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
    )


class _Child:
    """One process, asked for one job at a time."""

    def __init__(
        self,
        group: ProcessGroup,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        output: int,
        living: "set[_Child]",
    ) -> None:
        self.count = 0
        self._group = group
        self._reader = reader
        self._writer = writer
        self._output = Output(chunks(output))
        self._listening = asyncio.create_task(self._output.listen())
        self._listening.add_done_callback(lambda _: os.close(output))
        self._living = living
        living.add(self)
        self.ending = asyncio.create_task(self._until_end())

    @classmethod
    async def started(cls, options: TaskProcessOptions, living: "set[_Child]") -> "_Child":
        ours, theirs = socket.socketpair()
        output = Ends(*os.pipe())
        try:
            group = _spawned(theirs.fileno(), output.write)
        except BaseException:
            ours.close()
            os.close(output.read)
            raise
        finally:
            theirs.close()
            os.close(output.write)
        try:
            child = cls(group, *await asyncio.open_connection(sock=ours), output.read, living)
        except BaseException:
            group.kill()
            os.close(output.read)
            raise
        child._send(
            {
                "path": sys.path,
                "argv": sys.argv,
                "memory_limit": options.memory_limit,
                "tasks_folders": folders_read_as_source(),
            }
        )
        return child

    @property
    def pid(self) -> int:
        return self._group.pid

    @property
    def is_alive(self) -> bool:
        return not self._group.has_ended and not self._reader.at_eof()

    async def ask(self, request: Message, hear: Callable[[str], object]) -> Message:
        self.count += 1
        self._output.forget()
        self._output.hear = hear
        try:
            self._send(request)
            await self._writer.drain()
            return await read_message(self._reader)
        except (EOFError, ConnectionError, ValueError):
            raise await self._died() from None

    def kill(self) -> None:
        """End it with all that it started; fine when it has ended already."""
        self._group.kill()
        self._writer.close()

    def _send(self, message: Message) -> None:
        self._writer.write(packed(message))

    async def _died(self) -> TaskProcessDied:
        # Unless it only closed the line.
        await asyncio.wait([self.ending], timeout=END_WITHIN)
        self.kill()
        await asyncio.wait([self.ending])
        return TaskProcessDied(self._group.how_it_ended, self._output.last_words)

    async def _until_end(self) -> None:
        await self._group.wait()
        self.kill()
        # Whoever left the group may still hold its output open.
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_WITHIN):
                await self._listening
        self._living.discard(self)
