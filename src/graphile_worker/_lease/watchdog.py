"""Name the task that stands still, while it does: on the loop it holds up everything else."""

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

# How often in the time after which something counts as blocked.
CHECKS_PER_PERIOD = 5


@dataclass(slots=True)
class _ThreadPosition:
    """Where the innermost call of a thread was found, and since when."""

    location: tuple[int, int]
    since: float
    is_reported: bool = False


class Watchdog:
    """Looks at a loop and at the threads of tasks, from another thread than theirs.

    `find_job_in_frame` says of a frame whether it is where a task is called, and for which job.
    The log is written from here, as the loop that would announce it may be the one that stands
    still.
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
        # Not a loop beside others: a log that is itself stuck must hold up nobody else.
        self._thread = threading.Thread(
            target=self._run, name="graphile-worker watchdog", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """It ends by itself, soon."""
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
        asked_at = self._ping_sent_at
        if asked_at is None:
            self._ping_sent_at = now
            # It is closed when its program ends without a word to us.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._on_ping_returned)
        elif now - asked_at >= self._warn_after_seconds and not self._is_reported:
            self._is_reported = True
            who, stack = self._describe(frame)
            self._logger.warning(
                "%s blocks the event loop for %.1f s now: nothing else of this worker goes on\n%s",
                who,
                now - asked_at,
                stack,
            )

    def _on_ping_returned(self) -> None:
        asked_at, self._ping_sent_at = self._ping_sent_at, None
        seconds = 0.0 if asked_at is None else time.monotonic() - asked_at
        self._is_reported = False
        if seconds >= self._warn_after_seconds:
            self._logger.warning("the event loop stood still for %.1f s", seconds)

    def _check_threads(self, frames: dict[int, FrameType]) -> None:
        before, self._thread_positions = self._thread_positions, {}
        for thread, frame in frames.items():
            if thread != self._loop_thread and self._is_running_task(frame):
                stand = _update_position(before.get(thread), frame)
                self._thread_positions[thread] = stand
                self._report_thread(stand, frame)

    def _report_thread(self, position: _ThreadPosition, frame: FrameType) -> None:
        seconds = time.monotonic() - position.since
        if position.is_reported or seconds < self._warn_after_seconds:
            return
        position.is_reported = True
        who, stack = self._describe(frame)
        self._logger.info("%s stands still in its thread for %.1f s\n%s", who, seconds, stack)

    def _is_running_task(self, frame: FrameType) -> bool:
        return any(self._find_job(each) for each, _ in traceback.walk_stack(frame))

    def _describe(self, frame: FrameType) -> tuple[str, str]:
        """Whose code it is, and the calls that led from there to where it stands."""
        calls: list[tuple[FrameType, int]] = []
        for each, line in traceback.walk_stack(frame):
            if job := self._find_job(each):
                who = f"task {job.task_identifier!r} (job {job.id})"
                return who, _format_stack(calls)
            calls.append((each, line))
        return "something", _format_stack(calls)


def _update_position(previous: _ThreadPosition | None, frame: FrameType) -> _ThreadPosition:
    place = (id(frame), frame.f_lineno)
    if previous is not None and previous.location == place:
        return previous
    return _ThreadPosition(place, time.monotonic())


def _format_stack(calls: list[tuple[FrameType, int]]) -> str:
    return "".join(traceback.StackSummary.extract(reversed(calls)).format()).rstrip()
