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

from graphile_worker.jobs import Job
from graphile_worker.logs import Logger

JobOf = Callable[[FrameType], Job | None]

# How often in the time after which something counts as blocked.
LOOKS = 5


@dataclass(slots=True)
class _Stand:
    """Where the innermost call of a thread was found, and since when."""

    place: tuple[int, int]
    since: float
    reported: bool = False


class Watchdog:
    """Looks at a loop and at the threads of tasks, from another thread than theirs.

    `job_of` says of a frame whether it is where a task is called, and for which job. The log is
    written from here, as the loop that would announce it may be the one that stands still.
    """

    def __init__(self, logger: Logger, after: timedelta, job_of: JobOf) -> None:
        self._logger = logger
        self._after = after.total_seconds()
        self._job_of = job_of
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._asked_at: float | None = None
        self._reported = False
        self._stands: dict[int, _Stand] = {}
        self._ended = threading.Event()
        # Not a loop beside others: a log that is itself stuck must hold up nobody else.
        self._thread = threading.Thread(
            target=self._run, name="graphile-worker watchdog", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """It ends by itself, soon."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self._after / LOOKS):
            self.look_once()

    def look_once(self) -> None:
        frames = sys._current_frames()
        if self._loop_thread in frames:
            self._look_at_loop(frames[self._loop_thread])
        self._look_at_threads(frames)

    def _look_at_loop(self, frame: FrameType) -> None:
        now = time.monotonic()
        asked_at = self._asked_at
        if asked_at is None:
            self._asked_at = now
            # It is closed when its program ends without a word to us.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._turned)
        elif now - asked_at >= self._after and not self._reported:
            self._reported = True
            who, stack = self._described(frame)
            self._logger.warning(
                "%s blocks the event loop for %.1f s now: nothing else of this worker goes on\n%s",
                who,
                now - asked_at,
                stack,
            )

    def _turned(self) -> None:
        asked_at, self._asked_at = self._asked_at, None
        seconds = 0.0 if asked_at is None else time.monotonic() - asked_at
        self._reported = False
        if seconds >= self._after:
            self._logger.warning("the event loop stood still for %.1f s", seconds)

    def _look_at_threads(self, frames: dict[int, FrameType]) -> None:
        before, self._stands = self._stands, {}
        for thread, frame in frames.items():
            if thread != self._loop_thread and self._runs_task(frame):
                stand = _still_standing(before.get(thread), frame)
                self._stands[thread] = stand
                self._report(stand, frame)

    def _report(self, stand: _Stand, frame: FrameType) -> None:
        seconds = time.monotonic() - stand.since
        if stand.reported or seconds < self._after:
            return
        stand.reported = True
        who, stack = self._described(frame)
        self._logger.info("%s stands still in its thread for %.1f s\n%s", who, seconds, stack)

    def _runs_task(self, frame: FrameType) -> bool:
        return any(self._job_of(each) for each, _ in traceback.walk_stack(frame))

    def _described(self, frame: FrameType) -> tuple[str, str]:
        """Whose code it is, and the calls that led from there to where it stands."""
        calls: list[tuple[FrameType, int]] = []
        for each, line in traceback.walk_stack(frame):
            if job := self._job_of(each):
                who = f"task {job.task_identifier!r} (job {job.id})"
                return who, _shown(calls)
            calls.append((each, line))
        return "something", _shown(calls)


def _still_standing(before: _Stand | None, frame: FrameType) -> _Stand:
    place = (id(frame), frame.f_lineno)
    if before is not None and before.place == place:
        return before
    return _Stand(place, time.monotonic())


def _shown(calls: list[tuple[FrameType, int]]) -> str:
    return "".join(traceback.StackSummary.extract(reversed(calls)).format()).rstrip()
