"""A shift: as many worker processes as there are places, started, replaced and told to end."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from graphile_worker._cli.supervisor.parent_pipe import FINISH
from graphile_worker._cli.supervisor.supervised_process import SupervisedProcess

# Seconds: what served for less than this has ended quickly, and the one after it comes later.
STABLE_AFTER_SECONDS = 10.0
INITIAL_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 30.0

# How often in a row each place may fail to get a child that works, once there was one somewhere.
MAX_FAILED_STARTS = 5

# Seconds between two looks whether another may be replaced.
REPLACE_CHECK_INTERVAL_SECONDS = 0.1

# Seconds: what still runs so long after a shift is over is worth a word.
SLOW_FINISH_SECONDS = 2.0

logger = logging.getLogger("graphile_worker")


class Slot:
    """One of the N: who works there, and how it went with those before."""

    def __init__(self) -> None:
        self.child: SupervisedProcess | None = None
        self.quick_exits = 0
        self.failed_starts = 0

    @property
    def is_ready(self) -> bool:
        return self.child is not None and self.child.is_ready

    def record_exit(self, child: SupervisedProcess) -> None:
        """A child that served here does no more, or soon will not."""
        self.quick_exits = (
            self.quick_exits + 1 if child.seconds_served < STABLE_AFTER_SECONDS else 0
        )
        self.failed_starts = 0 if child.was_ready else self.failed_starts + 1


class ProcessSet:
    """Keeps a child in each of its places until it is over; with `once`, until each has ended.

    `give_up` is called with an exit code when no child can start. Without it, nothing is started
    any more in a place whose child ended before it was ready.
    """

    def __init__(
        self,
        count: int,
        *,
        on_end: Callable[[SupervisedProcess], None],
        once: bool = False,
        on_start_failure: Callable[[int], None] | None = None,
    ) -> None:
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
        """Until all its children have ended, and no more will come."""
        await asyncio.gather(*(self._supervise(place) for place in self.slots))
        await asyncio.gather(*(child.wait() for child in self.children))

    @property
    def is_ready(self) -> bool:
        """Is there a child in each place that takes jobs?"""
        return not self._stopping.is_set() and all(place.is_ready for place in self.slots)

    def finish(self) -> None:
        """Start no more children; those there are take no more jobs, and end after those they run.

        Fine when it is over already.
        """
        if not self._stopping.is_set():
            self.stop(FINISH)
            asyncio.get_running_loop().call_later(SLOW_FINISH_SECONDS, self._log_remaining)

    def stop(self, message: bytes) -> None:
        """Start no more children; this is what to tell those there are, and one that just comes."""
        self._stopping.set()
        self._last_message = message
        for child in self.children:
            child.send(message)

    # Each place

    async def _supervise(self, slot: Slot) -> None:
        """Have a child in this place until the end."""
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
        """A child that works in place of this one, which goes on until then; None if it ends."""
        while True:
            await self._back_off(slot)
            await self._wait_for_other_replacement(old)
            if old.has_exited or self._stopping.is_set():
                return None
            self._is_replacing = True
            new = await self._start(slot)
            begun = new is not None and await new.wait_until_ready()
            self._is_replacing = False
            if begun:
                old.send(FINISH)
                return new
            if new is not None:
                slot.record_exit(new)
                self._log_exit(slot, new)

    async def _wait_for_other_replacement(self, old: SupervisedProcess) -> None:
        """Until no other is being replaced: no more than one process comes on top."""
        while self._is_replacing and not old.has_exited and not self._stopping.is_set():
            await self._wait(REPLACE_CHECK_INTERVAL_SECONDS)

    async def _start(self, slot: Slot) -> SupervisedProcess | None:
        """A new child; None if the end comes first."""
        while not self._stopping.is_set():
            try:
                child = await SupervisedProcess.start(on_end=self._handle_exit)
            except OSError as error:
                self._log_start_failure(slot, error)
                await self._back_off(slot)
                continue
            self.children.append(child)
            logger.info("started process %s", child.pid)
            # If it came while this child was being made.
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
        """For so long, or until the end comes."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    # Those that do not work

    def _log_start_failure(self, slot: Slot, error: OSError) -> None:
        logger.error("no process could be made: %s", error)
        slot.quick_exits += 1
        slot.failed_starts += 1
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
            logger.info("another one comes in %g s", seconds)

    def _check_start_failures(self, code: int) -> None:
        if self._on_start_failure is not None and self._has_failed_to_start():
            logger.error("no worker process could start: giving up")
            self._on_start_failure(code or 1)

    def _has_failed_to_start(self) -> bool:
        """Does no child work, and has each place failed to get one?"""
        tries = MAX_FAILED_STARTS if self._was_ready else 1
        return not any(child.was_ready for child in self.children) and all(
            place.failed_starts >= tries for place in self.slots
        )

    def _log_waiting(self) -> None:
        if not self._has_logged_waiting:
            self._has_logged_waiting = True
            logger.error("no worker process could start: waiting for the next change of a file")

    def _log_remaining(self) -> None:
        for child in self.children if self._last_message == FINISH else ():
            logger.info("process %s finishes its jobs with the code from before", child.pid)


def compute_backoff(quick_exits: int) -> float:
    """Seconds to wait before the next child, after so many in a row that ended quickly."""
    if quick_exits == 0:
        return 0
    return min(MAX_BACKOFF_SECONDS, INITIAL_BACKOFF_SECONDS * 2.0 ** min(quick_exits - 1, 16))
