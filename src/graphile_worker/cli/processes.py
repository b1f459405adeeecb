"""Worker processes under one parent, which starts, replaces and stops them.

The parent imports no tasks and has no connection to the database: what leaks or breaks in a child
does not reach it.
"""

import asyncio
import logging
import signal
from contextlib import suppress
from dataclasses import dataclass

from graphile_worker.cli.child import Child
from graphile_worker.cli.health import health_server
from graphile_worker.cli.line import FINISH, kill_word, stop_word
from graphile_worker.memory import resident_bytes
from graphile_worker.worker.signals import heard_by

# Seconds: what served for less than this has ended quickly, and the one after it comes later.
STEADY_AFTER = 10.0
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0

# How often in a row each place may fail to get a child that works, once there was one somewhere.
TRIES = 5

# Seconds between two looks: at the memory of children, and whether another may be replaced.
LOOK_EVERY = 1.0
TURN_EVERY = 0.1

# Seconds before a child that was asked to stop is killed: a little more than a stop takes at most,
# and more than one takes that is cut short.
STOP_WITHIN = 35.0
KILL_WITHIN = 10.0

MEGABYTE = 1024 * 1024

logger = logging.getLogger("graphile_worker")


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What the flags say about processes; `max_memory` is in megabytes."""

    count: int
    once: bool = False
    max_memory: int | None = None
    health_port: int | None = None


class Place:
    """One of the N: who works there, and how it went with those before."""

    def __init__(self) -> None:
        self.child: Child | None = None
        self.short_lives = 0
        self.failed_starts = 0

    @property
    def is_ready(self) -> bool:
        return self.child is not None and self.child.is_ready

    def note(self, child: Child) -> None:
        """A child that served here does no more, or soon will not."""
        self.short_lives = self.short_lives + 1 if child.served < STEADY_AFTER else 0
        self.failed_starts = 0 if child.was_ready else self.failed_starts + 1


class Processes:
    """Keeps a child in each of its places until a signal; with `once`, until each has ended."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._places = [Place() for _ in range(plan.count)]
        self._children: list[Child] = []
        self._codes: list[int] = []
        self._stopping = asyncio.Event()
        self._stop_word = b""
        self._heard: signal.Signals | None = None
        self._heard_again: signal.Signals | None = None
        self._gave_up = 0
        self._was_ready = False
        self._is_replacing = False
        self._warned = False

    async def run(self) -> int:
        """Until all have ended; the exit code."""
        health = health_server(self._plan.health_port, lambda: self.is_ready, lambda: self.is_alive)
        with heard_by(self._on_signal):
            async with health, asyncio.TaskGroup() as group:
                looking = group.create_task(self._look_at_memory())
                await asyncio.gather(*(self._keep(place) for place in self._places))
                await asyncio.gather(*(child.ends() for child in self._children))
                looking.cancel()
        return self._code()

    @property
    def is_ready(self) -> bool:
        """Is there a child in each place that takes jobs?"""
        return not self._stopping.is_set() and all(place.is_ready for place in self._places)

    @property
    def is_alive(self) -> bool:
        """Did the event loop of each child turn of late?"""
        return all(child.is_alive for child in list(self._children))

    # Each place

    async def _keep(self, place: Place) -> None:
        """Have a child in this place until the end."""
        child: Child | None = None
        while not self._stopping.is_set():
            child = place.child = child or await self._start(place)
            if child is None:
                return
            await child.ends_or_is_due()
            place.note(child)
            if not child.has_ended:
                child = await self._successor(place, child)
                continue
            if self._plan.once:
                return
            self._tell_end(place, child)
            child = None
            await self._pause(place)

    async def _successor(self, place: Place, old: Child) -> Child | None:
        """A child that works in place of this one, which goes on until then; None if it ends."""
        while True:
            await self._pause(place)
            await self._turn(old)
            if old.has_ended or self._stopping.is_set():
                return None
            self._is_replacing = True
            new = await self._start(place)
            begun = new is not None and await new.begins()
            self._is_replacing = False
            if begun:
                old.say(FINISH)
                return new
            if new is not None:
                place.note(new)
                self._tell_end(place, new)

    async def _turn(self, old: Child) -> None:
        """Until no other is being replaced: no more than one process comes on top."""
        while self._is_replacing and not old.has_ended and not self._stopping.is_set():
            await self._wait(TURN_EVERY)

    async def _start(self, place: Place) -> Child | None:
        """A new child; None if the end comes first."""
        while not self._stopping.is_set():
            try:
                child = await Child.started(on_end=self._ended)
            except OSError as error:
                self._tell_failure(place, error)
                await self._pause(place)
                continue
            self._children.append(child)
            logger.info("started process %s", child.pid)
            # If it came while this child was being made.
            child.say(self._stop_word)
            return child
        return None

    def _tell_failure(self, place: Place, error: OSError) -> None:
        logger.error("no process could be made: %s", error)
        place.short_lives += 1
        place.failed_starts += 1
        if self._is_hopeless():
            self._give_up(1)

    def _ended(self, child: Child) -> None:
        self._children.remove(child)
        self._was_ready = self._was_ready or child.was_ready
        if self._plan.once or self._heard is not None:
            self._codes.append(child.code)

    def _tell_end(self, place: Place, child: Child) -> None:
        if self._stopping.is_set():
            return
        level = logging.WARNING if child.code else logging.INFO
        logger.log(level, "process %s %s", child.pid, child.how_it_ended)
        if self._is_hopeless():
            self._give_up(child.code)
        elif seconds := pause_after(place.short_lives):
            logger.info("another one comes in %g s", seconds)

    def _is_hopeless(self) -> bool:
        """Does no child work, and has each place failed to get one?"""
        tries = TRIES if self._was_ready else 1
        return not any(child.was_ready for child in self._children) and all(
            place.failed_starts >= tries for place in self._places
        )

    def _give_up(self, code: int) -> None:
        logger.error("no worker process could start: giving up")
        self._gave_up = code or 1
        self._stop_all(signal.SIGTERM)

    async def _pause(self, place: Place) -> None:
        await self._wait(pause_after(place.short_lives))

    async def _wait(self, seconds: float) -> None:
        """For so long, or until the end comes."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    # Memory

    async def _look_at_memory(self) -> None:
        while self._plan.max_memory is not None:
            await asyncio.sleep(LOOK_EVERY)
            for place in self._places:
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
            self._say_all(kill_word(number), KILL_WITHIN)

    def _stop_all(self, number: signal.Signals) -> None:
        self._stopping.set()
        self._stop_word = stop_word(number)
        self._say_all(self._stop_word, STOP_WITHIN)

    def _say_all(self, word: bytes, within: float) -> None:
        for child in self._children:
            child.say(word)
        asyncio.get_running_loop().call_later(within, self._kill_all)

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


def pause_after(short_lives: int) -> float:
    """Seconds to wait before the next child, after so many in a row that ended quickly."""
    if short_lives == 0:
        return 0
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(short_lives - 1, 16))
