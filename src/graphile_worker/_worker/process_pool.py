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

from graphile_worker._support.pipes import PipeEnds, read_chunks
from graphile_worker._support.process_group import ProcessGroup
from graphile_worker._support.rss import MEGABYTE
from graphile_worker._worker.output import OutputReader
from graphile_worker._worker.process_protocol import (
    Message,
    encode_job,
    encode_message,
    read_message,
)
from graphile_worker.errors import TaskProcessDied
from graphile_worker.jobs import Job
from graphile_worker.options import TaskProcessOptions
from graphile_worker.tasks.importing import TaskLocation
from graphile_worker.tasks.source_only import list_source_folders

# Seconds that what a process said last may take to arrive, and that its end may take.
LAST_OUTPUT_TIMEOUT_SECONDS = 1.0
EXIT_TIMEOUT_SECONDS = 2.0

PROGRAM = "from graphile_worker._worker.process_main import main; main({})"

logger = logging.getLogger("graphile_worker")


class ProcessPool:
    """As many processes as tasks that run in them at once; each is kept for the next job.

    Spawned, never forked: a copy of a program with threads and connections is no program.
    """

    def __init__(self, options: TaskProcessOptions) -> None:
        self._options = options
        self._idle: list[_PoolProcess] = []
        self._alive: set[_PoolProcess] = set()

    async def run(self, task: TaskLocation, job: Job, on_line: Callable[[str], object]) -> Message:
        """How the job ended, told by the process that ran it; cancelled, that process is killed.

        `hear` is told what it says meanwhile. One that ends before the job raises TaskProcessDied.
        """
        child = self._take_idle() or await _PoolProcess.start(self._options, self._alive)
        try:
            answer = await child.execute({"task": asdict(task), "job": encode_job(job)}, on_line)
        except BaseException:
            child.kill()
            raise
        if self._must_recycle(child, answer):
            child.kill()
        else:
            self._idle.append(child)
        return answer

    async def close(self) -> None:
        """End all, and return once they have."""
        for child in self._alive:
            child.kill()
        if self._alive:
            await asyncio.wait(
                [child.exit_task for child in self._alive], timeout=EXIT_TIMEOUT_SECONDS
            )

    def _take_idle(self) -> "_PoolProcess | None":
        while self._idle:
            child = self._idle.pop()
            if child.is_alive:
                return child
            child.kill()
        return None

    def _must_recycle(self, process: "_PoolProcess", response: Message) -> bool:
        if (why := response["must_end"]) is not None:
            logger.warning("process %s, in which a task %s, is ended", process.pid, why)
            return True
        if self._options.max_jobs is not None and process.job_count >= self._options.max_jobs:
            return True
        most, held = self._options.max_memory, response["memory"]
        return most is not None and held is not None and held > most * MEGABYTE


def _spawn(socket_fd: int, output_fd: int) -> ProcessGroup:
    return ProcessGroup(
        # With -c the current directory would be the first place where modules are looked for, and a
        # file called socket.py there would run. Tasks are found by the worker's own path.
        *(sys.executable, "-P", "-u", "-c", PROGRAM.format(socket_fd)),
        pass_fds=[socket_fd],
        stdin=subprocess.DEVNULL,
        stdout=output_fd,
        stderr=output_fd,
    )


class _PoolProcess:
    """One process, asked for one job at a time."""

    def __init__(
        self,
        group: ProcessGroup,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        output: int,
        alive: "set[_PoolProcess]",
    ) -> None:
        self.job_count = 0
        self._group = group
        self._reader = reader
        self._writer = writer
        self._output = OutputReader(read_chunks(output))
        self._output_task = asyncio.create_task(self._output.read_all())
        self._output_task.add_done_callback(lambda _: os.close(output))
        self._alive = alive
        alive.add(self)
        self.exit_task = asyncio.create_task(self._wait_for_exit())

    @classmethod
    async def start(cls, options: TaskProcessOptions, alive: "set[_PoolProcess]") -> "_PoolProcess":
        ours, theirs = socket.socketpair()
        output = PipeEnds(*os.pipe())
        try:
            group = _spawn(theirs.fileno(), output.write)
        except BaseException:
            ours.close()
            os.close(output.read)
            raise
        finally:
            theirs.close()
            os.close(output.write)
        try:
            child = cls(group, *await asyncio.open_connection(sock=ours), output.read, alive)
        except BaseException:
            group.kill()
            os.close(output.read)
            raise
        child._send(
            {
                "path": sys.path,
                "argv": sys.argv,
                "memory_limit": options.memory_limit,
                "tasks_folders": list_source_folders(),
            }
        )
        return child

    @property
    def pid(self) -> int:
        return self._group.pid

    @property
    def is_alive(self) -> bool:
        return not self._group.has_exited and not self._reader.at_eof()

    async def execute(self, request: Message, on_line: Callable[[str], object]) -> Message:
        self.job_count += 1
        self._output.clear()
        self._output.on_line = on_line
        try:
            self._send(request)
            await self._writer.drain()
            return await read_message(self._reader)
        except (EOFError, ConnectionError, ValueError):
            raise await self._build_exit_error() from None

    def kill(self) -> None:
        """End it with all that it started; fine when it has ended already."""
        self._group.kill()
        self._writer.close()

    def _send(self, message: Message) -> None:
        self._writer.write(encode_message(message))

    async def _build_exit_error(self) -> TaskProcessDied:
        # Unless it only closed the line.
        await asyncio.wait([self.exit_task], timeout=EXIT_TIMEOUT_SECONDS)
        self.kill()
        await asyncio.wait([self.exit_task])
        return TaskProcessDied(self._group.exit_status, self._output.last_output)

    async def _wait_for_exit(self) -> None:
        await self._group.wait()
        self.kill()
        # Whoever left the group may still hold its output open.
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_OUTPUT_TIMEOUT_SECONDS):
                await self._output_task
        self._alive.discard(self)
