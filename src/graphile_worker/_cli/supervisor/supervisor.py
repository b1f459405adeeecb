"""The parent of worker processes: it starts, replaces and stops them.

The parent imports no tasks and has no database connection, so errors and leaks of tasks do not
reach it.
"""

import asyncio
import logging
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from graphile_worker._cli.health import health_server
from graphile_worker._cli.http_server import Handler
from graphile_worker._cli.metrics_routes import handle_metrics
from graphile_worker._cli.queue_endpoints import QueueEndpoints, QueueLocation
from graphile_worker._cli.reload import FileWatcher
from graphile_worker._cli.supervisor.parent_pipe import build_kill_message, build_stop_message
from graphile_worker._cli.supervisor.process_metrics import ProcessMetrics
from graphile_worker._cli.supervisor.process_set import ProcessSet
from graphile_worker._cli.supervisor.supervised_process import SupervisedProcess
from graphile_worker._support.rss import MEGABYTE, read_resident_bytes
from graphile_worker._worker.signals import handle_signals

MEMORY_CHECK_INTERVAL_SECONDS = 1.0

# The time before a child is killed after a second signal.
KILL_TIMEOUT_SECONDS = 10.0

logger = logging.getLogger("graphile_worker")


@dataclass(frozen=True, kw_only=True, slots=True)
class SupervisorConfig:
    """The settings of the supervisor.

    `max_memory` is in megabytes. A stopping child is killed after `stop_timeout` seconds, or never.
    """

    process_count: int
    stop_timeout: float | None
    once: bool = False
    max_memory: int | None = None
    health_port: int | None = None
    health_host: str = "127.0.0.1"
    has_metrics: bool = False
    queue_location: QueueLocation | None = None
    """The queue, if the settings of the command name it. Otherwise the processes report it."""


class Supervisor:
    """Runs a process set until a signal, and with a watcher a new one after each change."""

    def __init__(self, config: SupervisorConfig, watcher: FileWatcher | None = None) -> None:
        self._config = config
        self._watcher = watcher
        self._metrics = ProcessMetrics() if config.has_metrics else None
        self._queue = QueueEndpoints(self._locate_queue)
        self._process_sets: list[ProcessSet] = []
        self._exit_codes: list[int] = []
        self._stopping = asyncio.Event()
        self._first_signal: signal.Signals | None = None
        self._second_signal: signal.Signals | None = None
        self._failure_code = 0
        self._was_ready = False
        self._has_warned = False

    async def run(self) -> int:
        """Run until all processes have exited, and return the exit code."""
        health = health_server(
            self._config.health_port,
            lambda: self.is_ready,
            lambda: self.is_alive,
            host=self._config.health_host,
            describe=self._queue.describe,
            routes=self._build_routes(),
        )
        with handle_signals(self._on_signal):
            async with health, asyncio.TaskGroup() as group:
                monitoring = group.create_task(self._monitor_memory())
                await self._run_process_sets()
                monitoring.cancel()
        return self._compute_exit_code()

    def _locate_queue(self) -> QueueLocation | None:
        reported = None if self._metrics is None else self._metrics.queue_location
        return reported or self._config.queue_location

    def _build_routes(self) -> Mapping[str, Handler]:
        if self._metrics is None:
            return {}
        return {**self._queue.routes, "/metrics": handle_metrics(self._metrics.collect)}

    @property
    def is_ready(self) -> bool:
        """Whether the process of each slot claims jobs."""
        return bool(self._process_sets) and self._process_sets[-1].is_ready

    @property
    def is_alive(self) -> bool:
        """Whether the event loop of each process runs."""
        return all(child.is_alive for child in self._children)

    @property
    def _children(self) -> list[SupervisedProcess]:
        # Copies, because the health server calls from another thread.
        return [child for each in list(self._process_sets) for child in list(each.children)]

    async def _run_process_sets(self) -> None:
        """Start a set, and another one after each change. Previous sets finish their jobs."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run_process_set(self._add_process_set()))
            while await self._wait_for_change():
                for process_set in self._process_sets:
                    process_set.finish()
                group.create_task(self._run_process_set(self._add_process_set()))

    def _add_process_set(self) -> ProcessSet:
        # Known before its task runs, so that a signal in between stops it.
        process_set = ProcessSet(
            self._config.process_count,
            once=self._config.once,
            on_end=self._handle_exit,
            on_start_failure=None if self._watcher is not None else self._abandon,
            metrics=self._metrics,
        )
        self._process_sets.append(process_set)
        return process_set

    async def _run_process_set(self, process_set: ProcessSet) -> None:
        await process_set.run()
        self._process_sets.remove(process_set)

    async def _wait_for_change(self) -> bool:
        """Wait for a change. False without a watcher, or if the supervisor is stopped first."""
        if self._watcher is None:
            return False
        change = asyncio.create_task(self._watcher.wait_for_change())
        stop = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({change, stop}, return_when=asyncio.FIRST_COMPLETED)
        change.cancel()
        stop.cancel()
        if self._stopping.is_set():
            return False
        await change
        return True

    def _handle_exit(self, child: SupervisedProcess) -> None:
        self._was_ready = self._was_ready or child.was_ready
        if self._config.once or self._first_signal is not None:
            self._exit_codes.append(child.exit_code)

    def _abandon(self, code: int) -> None:
        self._failure_code = code
        self._stop_all(signal.SIGTERM)

    async def _monitor_memory(self) -> None:
        while self._config.max_memory is not None:
            await asyncio.sleep(MEMORY_CHECK_INTERVAL_SECONDS)
            for slot in self._process_sets[-1].slots if self._process_sets else ():
                if slot.child is not None and slot.child.is_ready:
                    self._check_memory(slot.child, self._config.max_memory)

    def _check_memory(self, child: SupervisedProcess, max_megabytes: int) -> None:
        used = read_resident_bytes(child.pid)
        if used is not None:
            if used > max_megabytes * MEGABYTE:
                child.mark_due(f"uses {used // MEGABYTE} MB")
        elif not self._has_warned:
            self._has_warned = True
            logger.warning(
                "--max-memory is ignored: process memory cannot be read on this platform"
            )

    def _on_signal(self, number: signal.Signals) -> None:
        if self._first_signal is None:
            self._first_signal = number
            logger.info("received %s, stopping %s processes", number.name, len(self._children))
            self._stop_all(number)
        else:
            self._second_signal = number
            for child in self._children:
                child.send(build_kill_message(number))
            self._kill_after(KILL_TIMEOUT_SECONDS)

    def _stop_all(self, number: signal.Signals) -> None:
        self._stopping.set()
        for process_set in self._process_sets:
            process_set.stop(build_stop_message(number))
        if self._config.stop_timeout is not None:
            self._kill_after(self._config.stop_timeout)

    def _kill_after(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self._kill_all)

    def _kill_all(self) -> None:
        for child in self._children:
            logger.error("process %s did not stop in time, killing it", child.pid)
            child.kill()

    def _compute_exit_code(self) -> int:
        if self._failure_code:
            return self._failure_code
        if self._second_signal is not None:
            return 128 + self._second_signal
        # A signal before the worker is ready ends a single process with the same code.
        early = None if self._first_signal is None else 128 + self._first_signal
        if failed := [code for code in self._exit_codes if code not in (0, early)]:
            return failed[0] if self._config.once else 1
        return early if early in self._exit_codes and not self._was_ready else 0
