"""Live: look, draw, hear keys; and go on when the database was away."""

import asyncio
import codecs
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from graphile_worker.administration.attention import Attention, attention
from graphile_worker.administration.snapshot import (
    LONGEST_PAUSE,
    SHARE,
    Pace,
    Snapshot,
    look,
    look_at_counters,
)
from graphile_worker.administration.watch import Watch
from graphile_worker.cli.top.keys import read_keys
from graphile_worker.cli.top.printing import is_coloured
from graphile_worker.cli.top.render import Frame, render
from graphile_worker.cli.top.terminal import Terminal
from graphile_worker.cli.top.view import Key, View, pressed
from graphile_worker.db.database import Transacting
from graphile_worker.error_text import error_line
from graphile_worker.errors import GraphileWorkerError

# Seconds after which a database that is away is tried again.
TRY_AGAIN = 2.0

# Seconds: what is shown of the time goes on.
TICK = 1.0

LEAVING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Live:
    """A queue on a terminal until somebody leaves."""

    def __init__(self, database: Transacting, *, interval: float) -> None:
        self._db = database
        self._terminal = Terminal(coloured=is_coloured())
        self._interval = interval
        self._pace = Pace(interval)
        self._view = View()
        self._watch: Watch | None = None
        self._attention: list[Attention] = []
        self._looked_at = time.monotonic()
        self._every = interval
        self._away: str | None = None
        self._wake = asyncio.Event()
        self._goes_on = asyncio.Event()
        self._goes_on.set()

    async def run(self) -> None:
        """Until a key or a signal; what is wrong at the first look is raised."""
        counters = await look_at_counters(self._db)
        self._see(await look(self._db))
        self._add_counters(counters)
        with self._terminal.taken(), self._hearing():
            looking = asyncio.create_task(self._look_on())
            try:
                await self._draw_on(looking)
            finally:
                looking.cancel()
                # It may be in the middle of a look, which is called off.
                with suppress(asyncio.CancelledError, psycopg.Error, OSError):
                    await looking

    async def _draw_on(self, looking: asyncio.Task[None]) -> None:
        while not self._view.is_over:
            if looking.done():
                looking.result()
            self._draw()
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK):
                    await self._wake.wait()

    async def _look_on(self) -> None:
        pause = self._every
        while True:
            pause = await self._look_once(pause)
            self._wake.set()

    async def _look_once(self, pause: float) -> float:
        """Wait, and look; after how many seconds the next look is due."""
        try:
            await self._wait(pause)
            self._see(await look(self._db))
        except TimeoutError:
            self._away = "it does not answer"
        except (psycopg.Error, OSError, GraphileWorkerError) as error:
            self._away = error_line(error)
        else:
            self._away = None
            return self._every
        return TRY_AGAIN

    async def _wait(self, pause: float) -> None:
        """Where it is long, rates are looked at meanwhile, and what that costs comes on top."""
        ends = time.monotonic() + pause
        latest = ends - pause + max(pause, LONGEST_PAUSE)
        while self._away is None and ends - time.monotonic() > self._interval:
            await self._sleep(self._interval)
            counters = await look_at_counters(self._db)
            self._add_counters(counters)
            ends = min(ends + counters.took * SHARE, latest)
        await self._sleep(ends - time.monotonic())

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._goes_on.wait()

    def _add_counters(self, counters: Snapshot) -> None:
        assert self._watch is not None
        self._watch.add_counters(counters)
        self._wake.set()

    def _see(self, snapshot: Snapshot) -> None:
        if self._watch is None:
            self._watch = Watch(snapshot)
        else:
            self._watch.add(snapshot)
        self._attention = attention(self._watch, self._db.schemas)
        self._looked_at = time.monotonic()
        self._every = self._pace.pause_after(snapshot.took)

    def _draw(self) -> None:
        assert self._watch is not None
        columns, rows = self._terminal.size()
        frame = Frame(
            watch=self._watch,
            attention=self._attention,
            schemas=self._db.schemas,
            view=self._view,
            columns=columns,
            rows=rows,
            every=self._every,
            looked_ago=time.monotonic() - self._looked_at,
            away=self._away,
        )
        self._terminal.draw(render(frame), (columns, rows))

    # What is heard

    @contextmanager
    def _hearing(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        handlers: dict[int, Callable[[], Any]] = dict.fromkeys(LEAVING, self._leave)
        handlers |= {signal.SIGWINCH: self._wake.set, signal.SIGTSTP: self._step_aside}
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        if sys.stdin.isatty():
            loop.add_reader(sys.stdin.fileno(), self._read, decoder)
        try:
            yield
        finally:
            loop.remove_reader(sys.stdin.fileno())
            for number in handlers:
                loop.remove_signal_handler(number)

    def _read(self, decoder: codecs.IncrementalDecoder) -> None:
        try:
            found = os.read(sys.stdin.fileno(), 1024)
        except OSError:
            found = b""
        if not found:
            # The terminal is gone.
            self._leave()
            return
        for key in read_keys(decoder.decode(found)):
            self._view = pressed(self._view, key)
        if self._view.is_paused:
            self._goes_on.clear()
        else:
            self._goes_on.set()
        self._wake.set()

    def _leave(self) -> None:
        self._view = pressed(self._view, Key.LEAVE)
        self._wake.set()

    def _step_aside(self) -> None:
        """Ctrl-Z: the shell gets its screen, and we are back with the next `fg`."""
        self._terminal.give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._terminal.take()
        self._wake.set()
