"""ProcessPool: processes for tasks with `run_in="process"`, which can be killed."""

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
from graphile_worker.events import RunningJob
from graphile_worker.options import TaskProcessOptions
from graphile_worker.tasks.importing import TaskLocation
from graphile_worker.tasks.source_only import list_source_folders

# Seconds that the last output of a process may take to arrive, and that its exit may take.
LAST_OUTPUT_TIMEOUT_SECONDS = 1.0
EXIT_TIMEOUT_SECONDS = 2.0

PROGRAM = "from graphile_worker._worker.process_main import main; main({}, {})"

logger = logging.getLogger("graphile_worker")


class ProcessPool:
    """Starts a process when none is idle, and keeps each process for the next job.

    Processes are spawned, because a program with threads and connections cannot be forked.
    """

    def __init__(self, options: TaskProcessOptions, first_module: str | None = None) -> None:
        self._options = options
        self._first_module = first_module
        self._idle: list[_PoolProcess] = []
        self._alive: set[_PoolProcess] = set()

    async def run(
        self,
        task: TaskLocation,
        operation: RunningJob,
        on_line: Callable[[str], object],
        *,
        keeps_result: bool = False,
    ) -> Message:
        """Run a job in a process and return its response. A cancellation kills the process.

        Args:
            task: Where the process finds the task.
            operation: The job to run, and its worker.
            on_line: Called with each line of output.
            keeps_result: Whether the response has the result of the task.

        Raises:
            TaskProcessDied: The process exited.
        """
        process = self._take_idle() or await _PoolProcess.start(self._options, self._alive)
        try:
            request = {
                "first_module": self._first_module,
                "task": asdict(task),
                "job": encode_job(operation.job),
                "pool_id": operation.pool_id,
                "worker_id": operation.worker_id,
                "keeps_result": keeps_result,
            }
            response = await process.execute(request, on_line)
        except BaseException:
            process.kill()
            raise
        if self._must_recycle(process, response):
            process.kill()
        else:
            self._idle.append(process)
        return response

    async def close(self) -> None:
        """Kill all processes, and wait until they have exited."""
        for process in self._alive:
            process.kill()
        if self._alive:
            exits = [process.exit_task for process in self._alive]
            await asyncio.wait(exits, timeout=EXIT_TIMEOUT_SECONDS)

    def _take_idle(self) -> "_PoolProcess | None":
        while self._idle:
            process = self._idle.pop()
            if process.is_alive:
                return process
            process.kill()
        return None

    def _must_recycle(self, process: "_PoolProcess", response: Message) -> bool:
        if (reason := response["must_end"]) is not None:
            logger.warning("killing task process %s: a task %s", process.pid, reason)
            return True
        if self._options.max_jobs is not None and process.job_count >= self._options.max_jobs:
            return True
        limit, used = self._options.max_memory, response["memory"]
        return limit is not None and used is not None and used > limit * MEGABYTE


def _spawn(socket_fd: int, liveness_fd: int, output_fd: int) -> ProcessGroup:
    return ProcessGroup(
        # -P, because -c puts the current directory first: a file socket.py there would run. Tasks
        # are found on the worker's own path.
        *(sys.executable, "-P", "-u", "-c", PROGRAM.format(socket_fd, liveness_fd)),
        pass_fds=[socket_fd, liveness_fd],
        stdin=subprocess.DEVNULL,
        stdout=output_fd,
        stderr=output_fd,
    )


class _PoolProcess:
    """One process, which runs one job at a time."""

    def __init__(
        self,
        group: ProcessGroup,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        liveness: int,
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
        self.exit_task.add_done_callback(lambda _: os.close(liveness))

    @classmethod
    async def start(cls, options: TaskProcessOptions, alive: "set[_PoolProcess]") -> "_PoolProcess":
        worker_socket, process_socket = socket.socketpair()
        # This process has the only write end, so the pipe closes when this process ends.
        liveness = PipeEnds(*os.pipe())
        try:
            output = PipeEnds(*os.pipe())
        except OSError:
            # No file descriptor is left, and a later job tries again.
            os.close(liveness.read)
            os.close(liveness.write)
            raise
        try:
            group = _spawn(process_socket.fileno(), liveness.read, output.write)
        except BaseException:
            worker_socket.close()
            os.close(liveness.write)
            os.close(output.read)
            raise
        finally:
            process_socket.close()
            os.close(liveness.read)
            os.close(output.write)
        try:
            streams = await asyncio.open_connection(sock=worker_socket)
            process = cls(group, *streams, liveness.write, output.read, alive)
        except BaseException:
            group.kill()
            os.close(liveness.write)
            os.close(output.read)
            raise
        process._send(
            {
                "path": sys.path,
                "argv": sys.argv,
                "memory_limit": options.memory_limit,
                "tasks_folders": list_source_folders(),
            }
        )
        return process

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
        """Kill the process and its children, if they still run."""
        self._group.kill()
        self._writer.close()

    def _send(self, message: Message) -> None:
        self._writer.write(encode_message(message))

    async def _build_exit_error(self) -> TaskProcessDied:
        # The process may only have closed the socket.
        await asyncio.wait([self.exit_task], timeout=EXIT_TIMEOUT_SECONDS)
        self.kill()
        await asyncio.wait([self.exit_task])
        return TaskProcessDied(self._group.exit_status, self._output.last_output)

    async def _wait_for_exit(self) -> None:
        await self._group.wait()
        self.kill()
        # A process that left the group may still have the output open.
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_OUTPUT_TIMEOUT_SECONDS):
                await self._output_task
        self._alive.discard(self)
