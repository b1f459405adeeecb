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

from graphile_worker._cli.top.keys import read_keys
from graphile_worker._cli.top.printing import is_color_enabled
from graphile_worker._cli.top.render import Frame, render
from graphile_worker._cli.top.terminal import Terminal
from graphile_worker._cli.top.view import Key, View, handle_key
from graphile_worker._db.database import TransactionalRunner
from graphile_worker._support.error_format import format_error_line
from graphile_worker.errors import GraphileWorkerError
from graphile_worker.ops.alerts import Alert, find_alerts
from graphile_worker.ops.snapshot import (
    MAX_PAUSE_SECONDS,
    PAUSE_FACTOR,
    PollPacer,
    Snapshot,
    take_counter_snapshot,
    take_snapshot,
)
from graphile_worker.ops.trends import SnapshotHistory

# Seconds after which a database that is away is tried again.
RETRY_INTERVAL_SECONDS = 2.0

# Seconds: what is shown of the time goes on.
REDRAW_INTERVAL_SECONDS = 1.0

EXIT_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class LiveScreen:
    """A queue on a terminal until somebody leaves."""

    def __init__(self, database: TransactionalRunner, *, interval: float) -> None:
        self._db = database
        self._terminal = Terminal(is_color_enabled=is_color_enabled())
        self._interval = interval
        self._pacer = PollPacer(interval)
        self._view = View()
        self._history: SnapshotHistory | None = None
        self._alerts: list[Alert] = []
        self._snapshot_at = time.monotonic()
        self._snapshot_interval = interval
        self._outage: str | None = None
        self._redraw = asyncio.Event()
        self._unpaused = asyncio.Event()
        self._unpaused.set()

    async def run(self) -> None:
        """Until a key or a signal; what is wrong at the first look is raised."""
        counters = await take_counter_snapshot(self._db)
        self._add_snapshot(await take_snapshot(self._db))
        self._add_counters(counters)
        with self._terminal.alternate_screen(), self._handle_input():
            looking = asyncio.create_task(self._poll_snapshots())
            try:
                await self._draw_until_exit(looking)
            finally:
                looking.cancel()
                # It may be in the middle of a look, which is called off.
                with suppress(asyncio.CancelledError, psycopg.Error, OSError):
                    await looking

    async def _draw_until_exit(self, polling: asyncio.Task[None]) -> None:
        while not self._view.is_closed:
            if polling.done():
                polling.result()
            self._draw()
            self._redraw.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(REDRAW_INTERVAL_SECONDS):
                    await self._redraw.wait()

    async def _poll_snapshots(self) -> None:
        pause = self._snapshot_interval
        while True:
            pause = await self._poll_once(pause)
            self._redraw.set()

    async def _poll_once(self, pause: float) -> float:
        """Wait, and look; after how many seconds the next look is due."""
        try:
            await self._wait_for_next_poll(pause)
            self._add_snapshot(await take_snapshot(self._db))
        except TimeoutError:
            self._outage = "it does not answer"
        except (psycopg.Error, OSError, GraphileWorkerError) as error:
            self._outage = format_error_line(error)
        else:
            self._outage = None
            return self._snapshot_interval
        return RETRY_INTERVAL_SECONDS

    async def _wait_for_next_poll(self, pause: float) -> None:
        """Where it is long, rates are looked at meanwhile, and what that costs comes on top."""
        ends = time.monotonic() + pause
        latest = ends - pause + max(pause, MAX_PAUSE_SECONDS)
        while self._outage is None and ends - time.monotonic() > self._interval:
            await self._sleep_unless_paused(self._interval)
            counters = await take_counter_snapshot(self._db)
            self._add_counters(counters)
            ends = min(ends + counters.duration * PAUSE_FACTOR, latest)
        await self._sleep_unless_paused(ends - time.monotonic())

    async def _sleep_unless_paused(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._unpaused.wait()

    def _add_counters(self, counters: Snapshot) -> None:
        assert self._history is not None
        self._history.add_counters(counters)
        self._redraw.set()

    def _add_snapshot(self, snapshot: Snapshot) -> None:
        if self._history is None:
            self._history = SnapshotHistory(snapshot)
        else:
            self._history.add(snapshot)
        self._alerts = find_alerts(self._history, self._db.schemas)
        self._snapshot_at = time.monotonic()
        self._snapshot_interval = self._pacer.compute_pause(snapshot.duration)

    def _draw(self) -> None:
        assert self._history is not None
        columns, rows = self._terminal.size()
        frame = Frame(
            history=self._history,
            alerts=self._alerts,
            schemas=self._db.schemas,
            view=self._view,
            columns=columns,
            rows=rows,
            interval_seconds=self._snapshot_interval,
            snapshot_age_seconds=time.monotonic() - self._snapshot_at,
            outage=self._outage,
        )
        self._terminal.draw(render(frame), (columns, rows))

    # What is heard

    @contextmanager
    def _handle_input(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        handlers: dict[int, Callable[[], Any]] = dict.fromkeys(EXIT_SIGNALS, self._exit)
        handlers |= {signal.SIGWINCH: self._redraw.set, signal.SIGTSTP: self._suspend}
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        if sys.stdin.isatty():
            loop.add_reader(sys.stdin.fileno(), self._read_input, decoder)
        try:
            yield
        finally:
            loop.remove_reader(sys.stdin.fileno())
            for number in handlers:
                loop.remove_signal_handler(number)

    def _read_input(self, decoder: codecs.IncrementalDecoder) -> None:
        try:
            found = os.read(sys.stdin.fileno(), 1024)
        except OSError:
            found = b""
        if not found:
            # The terminal is gone.
            self._exit()
            return
        for key in read_keys(decoder.decode(found)):
            self._view = handle_key(self._view, key)
        if self._view.is_paused:
            self._unpaused.clear()
        else:
            self._unpaused.set()
        self._redraw.set()

    def _exit(self) -> None:
        self._view = handle_key(self._view, Key.QUIT)
        self._redraw.set()

    def _suspend(self) -> None:
        """Ctrl-Z: the shell gets its screen, and we are back with the next `fg`."""
        self._terminal.leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._terminal.enter()
        self._redraw.set()
