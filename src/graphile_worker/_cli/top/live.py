"""The live view: poll snapshots, draw, handle keys, and continue after a database outage."""

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

from graphile_worker._cli.top.content import Frame
from graphile_worker._cli.top.recent import read_recent_history
from graphile_worker._cli.top.screen import render
from graphile_worker._cli.top.terminal import Terminal
from graphile_worker._cli.top.view import View, handle_key, read_keys
from graphile_worker._db.database import TransactionalRunner
from graphile_worker._support.error_format import format_error_line
from graphile_worker.errors import GraphileWorkerError
from graphile_worker.ops.diagnostics.findings import Finding
from graphile_worker.ops.diagnostics.queue import diagnose_queue
from graphile_worker.ops.history import RecentHistory
from graphile_worker.ops.snapshot import (
    PAUSE_FACTOR,
    PollPacer,
    Snapshot,
    take_counter_snapshot,
    take_snapshot,
)
from graphile_worker.ops.trends import SnapshotHistory

RETRY_INTERVAL_SECONDS = 2.0
REDRAW_INTERVAL_SECONDS = 1.0

EXIT_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class LiveScreen:
    """A queue on a terminal, until a key or a signal ends it."""

    def __init__(
        self,
        database: TransactionalRunner,
        *,
        interval: float,
        is_color_enabled: bool,
        external_tasks: frozenset[str] = frozenset(),
    ) -> None:
        self._db = database
        self._terminal = Terminal(is_color_enabled=is_color_enabled)
        self._interval = interval
        self._external_tasks = external_tasks
        self._pacer = PollPacer(interval)
        self._view = View()
        self._history: SnapshotHistory | None = None
        self._recent: RecentHistory | None = None
        self._alerts: list[Finding] = []
        self._snapshot_at = time.monotonic()
        self._snapshot_interval = interval
        self._outage: str | None = None
        self._redraw = asyncio.Event()
        self._unpaused = asyncio.Event()
        self._unpaused.set()

    async def run(self) -> None:
        """Show the queue. Errors of the first snapshot are raised, later ones are shown."""
        counters = await take_counter_snapshot(self._db)
        self._history = await self._take_snapshot()
        self._history.add_counters(counters)
        with self._terminal.alternate_screen(), self._handle_input():
            polling = asyncio.create_task(self._poll_snapshots(self._history))
            try:
                while not self._view.is_closed:
                    if polling.done():
                        polling.result()
                    self._draw(self._history)
                    self._redraw.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(REDRAW_INTERVAL_SECONDS):
                            await self._redraw.wait()
            finally:
                polling.cancel()
                # Cancelling a query in flight may raise.
                with suppress(asyncio.CancelledError, psycopg.Error, OSError):
                    await polling

    async def _poll_snapshots(self, history: SnapshotHistory) -> None:
        pause = self._snapshot_interval
        while True:
            try:
                await self._wait_for_next_poll(history, pause)
                await self._take_snapshot()
            except (psycopg.Error, OSError, GraphileWorkerError) as error:
                # A timeout is an OSError without a text.
                is_timeout = isinstance(error, TimeoutError)
                self._outage = "no answer" if is_timeout else format_error_line(error)
                pause = RETRY_INTERVAL_SECONDS
            else:
                self._outage = None
                pause = self._snapshot_interval
            self._redraw.set()

    async def _wait_for_next_poll(self, history: SnapshotHistory, pause: float) -> None:
        """Wait, and update the rates during a long pause, less often if that takes long.

        A user who resumes the view sees a new snapshot at once.
        """
        ends = time.monotonic() + pause
        counter_pause = self._interval
        while self._outage is None and ends - time.monotonic() > counter_pause:
            if await self._sleep_unless_paused(counter_pause):
                return
            counters = await take_counter_snapshot(self._db)
            history.add_counters(counters)
            self._redraw.set()
            counter_pause = max(self._interval, counters.duration * PAUSE_FACTOR)
        await self._sleep_unless_paused(ends - time.monotonic())

    async def _sleep_unless_paused(self, seconds: float) -> bool:
        """Sleep, and wait until the view is not paused. Return whether it was."""
        await asyncio.sleep(seconds)
        was_paused = not self._unpaused.is_set()
        await self._unpaused.wait()
        return was_paused

    async def _take_snapshot(self) -> SnapshotHistory:
        snapshot = await take_snapshot(self._db)
        self._recent = await read_recent_history(self._db, snapshot)
        return self._add_snapshot(snapshot)

    def _add_snapshot(self, snapshot: Snapshot) -> SnapshotHistory:
        if self._history is None:
            history = SnapshotHistory(snapshot)
        else:
            history = self._history
            history.add(snapshot)
        self._alerts = diagnose_queue(
            history, self._db.schemas, external_tasks=self._external_tasks
        )
        self._snapshot_at = time.monotonic()
        self._snapshot_interval = self._pacer.compute_pause(snapshot.duration)
        return history

    def _draw(self, history: SnapshotHistory) -> None:
        size = self._terminal.get_size()
        frame = Frame(
            history=history,
            alerts=self._alerts,
            schemas=self._db.schemas,
            view=self._view,
            columns=size.columns,
            rows=size.lines,
            interval_seconds=self._snapshot_interval,
            snapshot_age_seconds=time.monotonic() - self._snapshot_at,
            outage=self._outage,
            recent=self._recent,
        )
        self._terminal.draw(render(frame), size)

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
        data = b""
        with suppress(OSError):
            data = os.read(sys.stdin.fileno(), 1024)
        if not data:
            # The terminal is closed.
            self._exit()
            return
        for key in read_keys(decoder.decode(data)):
            self._view = handle_key(self._view, key)
        if self._view.is_paused:
            self._unpaused.clear()
        else:
            self._unpaused.set()
        self._redraw.set()

    def _exit(self) -> None:
        self._view = handle_key(self._view, "quit")
        self._redraw.set()

    def _suspend(self) -> None:
        """Restore the screen of the shell at Ctrl-Z, and come back at `fg`."""
        self._terminal.leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._terminal.enter()
        self._redraw.set()
