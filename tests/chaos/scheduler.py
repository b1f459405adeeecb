"""An event loop whose callbacks run in random order, and whose time jumps: all by one number."""

import asyncio
import heapq
import random
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

# Callbacks after which a run does not seem to come to an end.
MOST_STEPS = 200_000


class Stuck(AssertionError):
    """No callback is ready and no timer is set, or the run does not end."""


class ScheduledLoop(asyncio.BaseEventLoop):
    """Runs ready callbacks in a drawn order; without any, time jumps to the next timer."""

    # An attribute of the base class, which has no type for it.
    _ready: deque[Any]
    _scheduled: list[Any]

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.problems: list[str] = []
        self._rng = rng
        self._now = 1000.0
        self._steps = 0
        self.set_exception_handler(self._complain)

    def time(self) -> float:
        return self._now

    def monotonic(self) -> float:
        """The same for those who look at a clock: no two looks show the same."""
        self._now += 1e-9
        return self._now

    def _run_once(self) -> None:
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise Stuck(f"no end after {MOST_STEPS} callbacks")
        while not self._ready:
            self._jump()
        # Any of those that are ready may be next: swap it with the last.
        ready = self._ready
        at = self._rng.randrange(len(ready))
        ready[at], ready[-1] = ready[-1], ready[at]
        handle = ready.pop()
        if not handle._cancelled:
            handle._run()

    def _jump(self) -> None:
        timers = self._scheduled
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False
        if not timers:
            raise Stuck("all tasks wait for each other")
        self._now = max(self._now, timers[0]._when)
        while timers and timers[0]._when <= self._now:
            timer = heapq.heappop(timers)
            timer._scheduled = False
            self._ready.append(timer)

    def _complain(self, _loop: object, context: dict[str, Any]) -> None:
        self.problems.append(f"{context['message']}: {context.get('exception')!r}")

    def _write_to_self(self) -> None:
        """There is nothing to be woken from."""


@contextmanager
def virtual(seed: int) -> Iterator[ScheduledLoop]:
    """Run with a loop that sets the time of the library and, by its seed, all random draws."""
    loop = ScheduledLoop(random.Random(seed))
    clock = SimpleNamespace(monotonic=loop.monotonic)
    ours = [each for name, each in sys.modules.items() if name.startswith("graphile_worker")]
    timed: list[Any] = [each for each in ours if getattr(each, "time", None) is time]
    dice = random.getstate()
    random.seed(seed)
    for module in timed:
        module.time = clock
    try:
        yield loop
    finally:
        for module in timed:
            module.time = time
        random.setstate(dice)
        loop.close()
