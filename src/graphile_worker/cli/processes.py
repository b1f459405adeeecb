"""Worker processes under one parent, which starts, replaces and stops them.

The parent imports no tasks and has no connection to the database: what leaks or breaks in a child
does not reach it.
"""

import asyncio
import logging
import signal
from dataclasses import dataclass

from graphile_worker.cli.child import Child
from graphile_worker.cli.health import health_server
from graphile_worker.cli.line import kill_word, stop_word
from graphile_worker.cli.shift import Shift
from graphile_worker.cli.watching import Watcher
from graphile_worker.memory import MEGABYTE, resident_bytes
from graphile_worker.worker.signals import heard_by

# Seconds between two looks at the memory of children.
LOOK_EVERY = 1.0

# Seconds before a child is killed that was asked to stop at once: more than that takes.
KILL_WITHIN = 10.0

logger = logging.getLogger("graphile_worker")


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What the settings say about processes; `max_memory` is in megabytes.

    A child that was asked to stop is killed after the seconds `stop_within`, or never.
    """

    count: int
    stop_within: float | None
    once: bool = False
    max_memory: int | None = None
    health_port: int | None = None
    health_host: str = "127.0.0.1"


class Processes:
    """One shift of children until a signal; with a watcher, a new one after each change."""

    def __init__(self, plan: Plan, watcher: Watcher | None = None) -> None:
        self._plan = plan
        self._watcher = watcher
        self._shifts: list[Shift] = []
        self._codes: list[int] = []
        self._stopping = asyncio.Event()
        self._heard: signal.Signals | None = None
        self._heard_again: signal.Signals | None = None
        self._gave_up = 0
        self._was_ready = False
        self._warned = False

    async def run(self) -> int:
        """Until all have ended; the exit code."""
        health = health_server(
            self._plan.health_port,
            lambda: self.is_ready,
            lambda: self.is_alive,
            host=self._plan.health_host,
        )
        with heard_by(self._on_signal):
            async with health, asyncio.TaskGroup() as group:
                looking = group.create_task(self._look_at_memory())
                await self._work()
                looking.cancel()
        return self._code()

    @property
    def is_ready(self) -> bool:
        """Is there a child in each place that takes jobs?"""
        return bool(self._shifts) and self._shifts[-1].is_ready

    @property
    def is_alive(self) -> bool:
        """Did the event loop of each child turn of late?"""
        return all(child.is_alive for child in self._children)

    @property
    def _children(self) -> list[Child]:
        return [child for shift in list(self._shifts) for child in list(shift.children)]

    # Shifts

    async def _work(self) -> None:
        """One shift, or one after each change; those before end when their jobs have."""
        async with asyncio.TaskGroup() as shifts:
            shifts.create_task(self._run(self._new_shift()))
            while await self._changes():
                for shift in self._shifts:
                    shift.let_finish()
                shifts.create_task(self._run(self._new_shift()))

    def _new_shift(self) -> Shift:
        shift = Shift(
            self._plan.count,
            once=self._plan.once,
            on_end=self._ended,
            give_up=None if self._watcher is not None else self._give_up,
        )
        self._shifts.append(shift)
        return shift

    async def _run(self, shift: Shift) -> None:
        await shift.run()
        self._shifts.remove(shift)

    async def _changes(self) -> bool:
        """Wait for a change; False if there will be none, or the end comes first."""
        if self._watcher is None:
            return False
        change = asyncio.create_task(self._watcher.change())
        stop = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({change, stop}, return_when=asyncio.FIRST_COMPLETED)
        change.cancel()
        stop.cancel()
        if self._stopping.is_set():
            return False
        await change
        return True

    def _ended(self, child: Child) -> None:
        self._was_ready = self._was_ready or child.was_ready
        if self._plan.once or self._heard is not None:
            self._codes.append(child.code)

    def _give_up(self, code: int) -> None:
        self._gave_up = code
        self._stop_all(signal.SIGTERM)

    # Memory

    async def _look_at_memory(self) -> None:
        while self._plan.max_memory is not None:
            await asyncio.sleep(LOOK_EVERY)
            for place in self._shifts[-1].places if self._shifts else ():
                if place.child is not None and place.child.is_ready:
                    self._look_at(place.child, self._plan.max_memory)

    def _look_at(self, child: Child, most: int) -> None:
        held = resident_bytes(child.pid)
        if held is not None:
            if held > most * MEGABYTE:
                child.make_due(f"holds {held // MEGABYTE} MB")
        elif not self._warned:
            self._warned = True
            logger.warning("--max-memory: nobody can say here how much memory a process holds")

    # The end

    def _on_signal(self, number: signal.Signals) -> None:
        if self._heard is None:
            self._heard = number
            logger.info("heard %s: stopping %s processes", number.name, len(self._children))
            self._stop_all(number)
        else:
            self._heard_again = number
            for child in self._children:
                child.say(kill_word(number))
            self._kill_after(KILL_WITHIN)

    def _stop_all(self, number: signal.Signals) -> None:
        self._stopping.set()
        for shift in self._shifts:
            shift.stop(stop_word(number))
        if self._plan.stop_within is not None:
            self._kill_after(self._plan.stop_within)

    def _kill_after(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self._kill_all)

    def _kill_all(self) -> None:
        for child in self._children:
            logger.error("process %s did not stop: it is killed", child.pid)
            child.kill()

    def _code(self) -> int:
        if self._gave_up:
            return self._gave_up
        if self._heard_again is not None:
            return 128 + self._heard_again
        # Without processes, too, a signal that comes before there is a worker ends it like this.
        early = None if self._heard is None else 128 + self._heard
        if failed := [code for code in self._codes if code not in (0, early)]:
            return failed[0] if self._plan.once else 1
        return early if early in self._codes and not self._was_ready else 0
