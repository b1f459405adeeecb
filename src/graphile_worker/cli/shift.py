"""A shift: as many worker processes as there are places, started, replaced and told to end."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from graphile_worker.cli.child import Child
from graphile_worker.cli.line import FINISH

# Seconds: what served for less than this has ended quickly, and the one after it comes later.
STEADY_AFTER = 10.0
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0

# How often in a row each place may fail to get a child that works, once there was one somewhere.
TRIES = 5

# Seconds between two looks whether another may be replaced.
TURN_EVERY = 0.1

# Seconds: what still runs so long after a shift is over is worth a word.
SLOW_AFTER = 2.0

logger = logging.getLogger("graphile_worker")


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


class Shift:
    """Keeps a child in each of its places until it is over; with `once`, until each has ended.

    `give_up` is called with an exit code when no child can start. Without it, nothing is started
    any more in a place whose child ended before it was ready.
    """

    def __init__(
        self,
        count: int,
        *,
        on_end: Callable[[Child], None],
        once: bool = False,
        give_up: Callable[[int], None] | None = None,
    ) -> None:
        self.places = [Place() for _ in range(count)]
        self.children: list[Child] = []
        self._once = once
        self._on_end = on_end
        self._give_up = give_up
        self._over = asyncio.Event()
        self._last_word = b""
        self._was_ready = False
        self._is_replacing = False
        self._is_waiting = False

    async def run(self) -> None:
        """Until all its children have ended, and no more will come."""
        await asyncio.gather(*(self._keep(place) for place in self.places))
        await asyncio.gather(*(child.ends() for child in self.children))

    @property
    def is_ready(self) -> bool:
        """Is there a child in each place that takes jobs?"""
        return not self._over.is_set() and all(place.is_ready for place in self.places)

    def let_finish(self) -> None:
        """Start no more children; those there are take no more jobs, and end after those they run.

        Fine when it is over already.
        """
        if not self._over.is_set():
            self.stop(FINISH)
            asyncio.get_running_loop().call_later(SLOW_AFTER, self._tell_who_is_left)

    def stop(self, word: bytes) -> None:
        """Start no more children; this is what to tell those there are, and one that just comes."""
        self._over.set()
        self._last_word = word
        for child in self.children:
            child.say(word)

    # Each place

    async def _keep(self, place: Place) -> None:
        """Have a child in this place until the end."""
        child: Child | None = None
        while not self._over.is_set():
            child = place.child = child or await self._start(place)
            if child is None:
                return
            await child.ends_or_is_due()
            place.note(child)
            if not child.has_ended:
                child = await self._successor(place, child)
                continue
            if self._once:
                return
            self._tell_end(place, child)
            if not child.was_ready and self._give_up is None:
                return
            child = None
            await self._pause(place)

    async def _successor(self, place: Place, old: Child) -> Child | None:
        """A child that works in place of this one, which goes on until then; None if it ends."""
        while True:
            await self._pause(place)
            await self._turn(old)
            if old.has_ended or self._over.is_set():
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
        while self._is_replacing and not old.has_ended and not self._over.is_set():
            await self._wait(TURN_EVERY)

    async def _start(self, place: Place) -> Child | None:
        """A new child; None if the end comes first."""
        while not self._over.is_set():
            try:
                child = await Child.started(on_end=self._ended)
            except OSError as error:
                self._tell_failure(place, error)
                await self._pause(place)
                continue
            self.children.append(child)
            logger.info("started process %s", child.pid)
            # If it came while this child was being made.
            child.say(self._last_word)
            return child
        return None

    def _ended(self, child: Child) -> None:
        self.children.remove(child)
        self._was_ready = self._was_ready or child.was_ready
        self._on_end(child)

    async def _pause(self, place: Place) -> None:
        await self._wait(pause_after(place.short_lives))

    async def _wait(self, seconds: float) -> None:
        """For so long, or until the end comes."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()

    # Those that do not work

    def _tell_failure(self, place: Place, error: OSError) -> None:
        logger.error("no process could be made: %s", error)
        place.short_lives += 1
        place.failed_starts += 1
        self._look_for_hope(1)

    def _tell_end(self, place: Place, child: Child) -> None:
        if self._over.is_set():
            return
        level = logging.WARNING if child.code else logging.INFO
        logger.log(level, "process %s %s", child.pid, child.how_it_ended)
        if self._give_up is None and not child.was_ready:
            self._tell_wait()
            return
        self._look_for_hope(child.code)
        if not self._over.is_set() and (seconds := pause_after(place.short_lives)):
            logger.info("another one comes in %g s", seconds)

    def _look_for_hope(self, code: int) -> None:
        if self._give_up is not None and self._is_hopeless():
            logger.error("no worker process could start: giving up")
            self._give_up(code or 1)

    def _is_hopeless(self) -> bool:
        """Does no child work, and has each place failed to get one?"""
        tries = TRIES if self._was_ready else 1
        return not any(child.was_ready for child in self.children) and all(
            place.failed_starts >= tries for place in self.places
        )

    def _tell_wait(self) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            logger.error("no worker process could start: waiting for the next change of a file")

    def _tell_who_is_left(self) -> None:
        for child in self.children if self._last_word == FINISH else ():
            logger.info("process %s finishes its jobs with the code from before", child.pid)


def pause_after(short_lives: int) -> float:
    """Seconds to wait before the next child, after so many in a row that ended quickly."""
    if short_lives == 0:
        return 0
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(short_lives - 1, 16))
