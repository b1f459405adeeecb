"""A set of worker processes: start one per slot, replace it, and stop all."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from graphile_worker._cli.supervisor.parent_pipe import FINISH
from graphile_worker._cli.supervisor.process_metrics import ProcessMetrics
from graphile_worker._cli.supervisor.supervised_process import SupervisedProcess

# A process that exits before this time exits quickly, and delays the next start.
STABLE_AFTER_SECONDS = 10.0
INITIAL_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 30.0

# Failed starts in a row of each slot before the set gives up, once a process was ready.
MAX_FAILED_STARTS = 5

REPLACE_CHECK_INTERVAL_SECONDS = 0.1

# Upper bound on the start of a replacement, for which the other slots wait. 5 minutes, because an
# import or a lifespan may load a large model.
REPLACEMENT_TIMEOUT_SECONDS = 300.0

# A process that still runs jobs after this time is logged.
SLOW_FINISH_SECONDS = 2.0

logger = logging.getLogger("graphile_worker")


class Slot:
    """The place of one process, and how the previous processes there ended."""

    def __init__(self) -> None:
        self.child: SupervisedProcess | None = None
        self.quick_exits = 0
        self.failed_starts = 0

    @property
    def is_ready(self) -> bool:
        return self.child is not None and self.child.is_ready

    def record_exit(self, child: SupervisedProcess) -> None:
        """Count the exit, or the coming replacement, of a process."""
        is_quick = child.seconds_served < STABLE_AFTER_SECONDS
        self.quick_exits = self.quick_exits + 1 if is_quick else 0
        self.failed_starts = 0 if child.was_ready else self.failed_starts + 1

    def record_failed_start(self) -> None:
        """Count a process that could not start, or that was killed before it was ready."""
        self.quick_exits += 1
        self.failed_starts += 1


class ProcessSet:
    """Keeps a process in each slot until it is stopped. With `once`, each slot has one process.

    `on_start_failure` is called with an exit code when no process can start. Without it, a slot
    stays empty after a process that exited before it was ready.
    """

    def __init__(
        self,
        count: int,
        *,
        on_end: Callable[[SupervisedProcess], None],
        once: bool = False,
        on_start_failure: Callable[[int], None] | None = None,
        metrics: ProcessMetrics | None = None,
        replacement_timeout_seconds: float = REPLACEMENT_TIMEOUT_SECONDS,
    ) -> None:
        self._metrics = metrics
        self._replacement_timeout_seconds = replacement_timeout_seconds
        self.slots = [Slot() for _ in range(count)]
        self.children: list[SupervisedProcess] = []
        self._once = once
        self._on_end = on_end
        self._on_start_failure = on_start_failure
        self._stopping = asyncio.Event()
        self._last_message = b""
        self._was_ready = False
        self._is_replacing = False
        self._has_logged_waiting = False

    async def run(self) -> None:
        """Run until all processes have exited and no slot starts another."""
        await asyncio.gather(*(self._supervise(slot) for slot in self.slots))
        await asyncio.gather(*(child.wait() for child in self.children))

    @property
    def is_ready(self) -> bool:
        """Whether the process of each slot claims jobs."""
        return not self._stopping.is_set() and all(slot.is_ready for slot in self.slots)

    def finish(self) -> None:
        """Start no more processes, and let the present ones exit after their running jobs."""
        if not self._stopping.is_set():
            self.stop(FINISH)
            asyncio.get_running_loop().call_later(SLOW_FINISH_SECONDS, self._log_remaining)

    def stop(self, message: bytes) -> None:
        """Start no more processes, and send a message to the present ones."""
        self._stopping.set()
        self._last_message = message
        for child in self.children:
            child.send(message)

    async def _supervise(self, slot: Slot) -> None:
        child: SupervisedProcess | None = None
        while not self._stopping.is_set():
            child = slot.child = child or await self._start(slot)
            if child is None:
                return
            await child.wait_until_exit_or_due()
            slot.record_exit(child)
            if not child.has_exited:
                child = await self._replace(slot, child)
                continue
            if self._once:
                return
            self._log_exit(slot, child)
            if not child.was_ready and self._on_start_failure is None:
                return
            child = None
            await self._back_off(slot)

    async def _replace(self, slot: Slot, old: SupervisedProcess) -> SupervisedProcess | None:
        """Start a process, and finish the old one once it is ready.

        Returns None if the old one exits before that start.
        """
        while True:
            await self._back_off(slot)
            await self._wait_for_other_replacement(old)
            if old.has_exited or self._stopping.is_set():
                return None
            self._is_replacing = True
            new = await self._start(slot)
            if new is not None:
                await self._wait_until_ready_or_alone(new, old)
            self._is_replacing = False
            if new is None:
                continue
            if new.has_exited:
                slot.record_exit(new)
                self._log_exit(slot, new)
            elif new.was_ready or old.has_exited:
                old.send(FINISH)
                return new
            else:
                await self._kill_late(slot, new)

    async def _wait_until_ready_or_alone(
        self, new: SupervisedProcess, old: SupervisedProcess
    ) -> None:
        """Wait until the new process is ready, either one exits or the timeout expires."""
        ready = asyncio.create_task(new.wait_until_ready())
        # Not cancelled below, because that would cancel the wait of the process itself.
        old_exit = asyncio.create_task(old.wait())
        try:
            await asyncio.wait(
                {ready, old_exit},
                timeout=self._replacement_timeout_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            ready.cancel()

    async def _kill_late(self, slot: Slot, child: SupervisedProcess) -> None:
        """Kill a replacement that was not ready in time."""
        slot.record_failed_start()
        seconds = self._replacement_timeout_seconds
        logger.error("process %s was not ready within %g s, killing it", child.pid, seconds)
        child.kill()
        await child.wait()
        if not self._stopping.is_set():
            logger.info("starting another process in %g s", compute_backoff(slot.quick_exits))

    async def _wait_for_other_replacement(self, old: SupervisedProcess) -> None:
        """Wait until no other slot starts a replacement, so that memory peaks stay small."""
        while self._is_replacing and not old.has_exited and not self._stopping.is_set():
            await self._wait(REPLACE_CHECK_INTERVAL_SECONDS)

    async def _start(self, slot: Slot) -> SupervisedProcess | None:
        """Start a process. None if the set is stopped first."""
        while not self._stopping.is_set():
            try:
                child = await SupervisedProcess.start(self._handle_exit, self._metrics)
            except OSError as error:
                self._log_start_failure(slot, error)
                await self._back_off(slot)
                continue
            self.children.append(child)
            logger.info("started process %s", child.pid)
            # The set may have been stopped during the start.
            child.send(self._last_message)
            return child
        return None

    def _handle_exit(self, child: SupervisedProcess) -> None:
        self.children.remove(child)
        self._was_ready = self._was_ready or child.was_ready
        self._on_end(child)

    async def _back_off(self, slot: Slot) -> None:
        await self._wait(compute_backoff(slot.quick_exits))

    async def _wait(self, seconds: float) -> None:
        """Wait for a time, or until the set is stopped."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    def _log_start_failure(self, slot: Slot, error: OSError) -> None:
        logger.error("process failed to start, retrying: %s", error)
        slot.record_failed_start()
        self._check_start_failures(1)

    def _log_exit(self, slot: Slot, child: SupervisedProcess) -> None:
        if self._stopping.is_set():
            return
        level = logging.WARNING if child.exit_code else logging.INFO
        logger.log(level, "process %s %s", child.pid, child.exit_description)
        if self._on_start_failure is None and not child.was_ready:
            self._log_waiting()
            return
        self._check_start_failures(child.exit_code)
        if not self._stopping.is_set() and (seconds := compute_backoff(slot.quick_exits)):
            logger.info("starting another process in %g s", seconds)

    def _check_start_failures(self, code: int) -> None:
        attempts = MAX_FAILED_STARTS if self._was_ready else 1
        has_failed = all(slot.failed_starts >= attempts for slot in self.slots)
        is_any_ready = any(child.was_ready for child in self.children)
        if self._on_start_failure is not None and has_failed and not is_any_ready:
            logger.error("no worker process could start, exiting")
            self._on_start_failure(code or 1)

    def _log_waiting(self) -> None:
        if not self._has_logged_waiting:
            self._has_logged_waiting = True
            logger.error("no worker process could start, waiting for a file to change")

    def _log_remaining(self) -> None:
        for child in self.children if self._last_message == FINISH else ():
            logger.info("process %s finishes its jobs with the previous code", child.pid)


def compute_backoff(quick_exits: int) -> float:
    """Compute the seconds before the next start from the quick exits in a row."""
    if quick_exits == 0:
        return 0
    return min(MAX_BACKOFF_SECONDS, INITIAL_BACKOFF_SECONDS * 2.0 ** min(quick_exits - 1, 16))
