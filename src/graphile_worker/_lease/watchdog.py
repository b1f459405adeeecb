"""Watchdog: logs a task that blocks the event loop or its thread."""

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType

from graphile_worker._support.logs import Logger
from graphile_worker.jobs import Job

FindJob = Callable[[FrameType], Job | None]

# Checks in the time after which a thread counts as blocked.
CHECKS_PER_PERIOD = 5


@dataclass(slots=True)
class _ThreadPosition:
    """The innermost call of a thread, and since when the thread is there."""

    location: tuple[int, int]
    since: float
    is_reported: bool = False


class Watchdog:
    """Checks the event loop and the threads of tasks from its own thread.

    `find_job` returns the job whose task a frame calls, if any. The watchdog writes log lines
    itself, because the loop that would emit an event may be blocked.
    """

    def __init__(self, logger: Logger, warn_after: timedelta, find_job: FindJob) -> None:
        self._logger = logger
        self._warn_after_seconds = warn_after.total_seconds()
        self._find_job = find_job
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._ping_sent_at: float | None = None
        self._is_reported = False
        self._thread_positions: dict[int, _ThreadPosition] = {}
        self._stopped = threading.Event()
        # Its own thread, because a log handler that blocks must not block anything else.
        self._thread = threading.Thread(
            target=self._run, name="graphile-worker watchdog", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end at its next check."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._warn_after_seconds / CHECKS_PER_PERIOD):
            self.check_once()

    def check_once(self) -> None:
        frames = sys._current_frames()
        if self._loop_thread in frames:
            self._check_loop(frames[self._loop_thread])
        self._check_threads(frames)

    def _check_loop(self, frame: FrameType) -> None:
        now = time.monotonic()
        sent_at = self._ping_sent_at
        if sent_at is None:
            self._ping_sent_at = now
            # The loop is closed if its program ended without `stop`.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._on_ping_returned)
        elif now - sent_at >= self._warn_after_seconds and not self._is_reported:
            self._is_reported = True
            subject, stack = self._describe(frame)
            self._logger.warning(
                "%s has been blocking the event loop for %.1f s; no other job in this worker can "
                "run\n%s",
                subject,
                now - sent_at,
                stack,
            )

    def _on_ping_returned(self) -> None:
        sent_at, self._ping_sent_at = self._ping_sent_at, None
        seconds = 0.0 if sent_at is None else time.monotonic() - sent_at
        self._is_reported = False
        if seconds >= self._warn_after_seconds:
            self._logger.warning("the event loop was blocked for %.1f s", seconds)

    def _check_threads(self, frames: dict[int, FrameType]) -> None:
        before, self._thread_positions = self._thread_positions, {}
        for thread, frame in frames.items():
            if thread != self._loop_thread and self._is_running_task(frame):
                position = _update_position(before.get(thread), frame)
                self._thread_positions[thread] = position
                self._report_thread(position, frame)

    def _report_thread(self, position: _ThreadPosition, frame: FrameType) -> None:
        seconds = time.monotonic() - position.since
        if position.is_reported or seconds < self._warn_after_seconds:
            return
        position.is_reported = True
        subject, stack = self._describe(frame)
        self._logger.info("%s has been blocking its thread for %.1f s\n%s", subject, seconds, stack)

    def _is_running_task(self, frame: FrameType) -> bool:
        return any(self._find_job(each) for each, _ in traceback.walk_stack(frame))

    def _describe(self, frame: FrameType) -> tuple[str, str]:
        """Return the task that a frame belongs to, and its calls down to the innermost one."""
        calls: list[tuple[FrameType, int]] = []
        for each, line in traceback.walk_stack(frame):
            if job := self._find_job(each):
                return f"task {job.task_identifier!r} (job {job.id})", _format_stack(calls)
            calls.append((each, line))
        return "code outside of tasks", _format_stack(calls)


def _update_position(previous: _ThreadPosition | None, frame: FrameType) -> _ThreadPosition:
    location = (id(frame), frame.f_lineno)
    if previous is not None and previous.location == location:
        return previous
    return _ThreadPosition(location, time.monotonic())


def _format_stack(calls: list[tuple[FrameType, int]]) -> str:
    return "".join(traceback.StackSummary.extract(reversed(calls)).format()).rstrip()
