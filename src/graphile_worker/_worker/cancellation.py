"""Cancellation: the request to the tasks of a pool to stop."""

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta

from graphile_worker._support.durations import to_seconds


class Cancellation:
    """Asks all tasks of a pool, or one of them, to stop, on the event loop and in threads."""

    def __init__(self) -> None:
        self.is_requested = False
        self._changed = asyncio.Event()
        self._thread_condition = threading.Condition()

    def request(self) -> None:
        """Ask all tasks to stop."""
        self.is_requested = True
        self.recheck()

    def recheck(self) -> None:
        """Let all waiting tasks check again whether they should stop."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        with self._thread_condition:
            self._thread_condition.notify_all()

    async def wait(self, is_cancelled: Callable[[], bool], within: timedelta | None) -> bool:
        """Wait until the task should stop, and return whether it should."""
        try:
            async with asyncio.timeout(to_seconds(within)):
                while not is_cancelled():
                    await self._changed.wait()
        except TimeoutError:
            return is_cancelled()
        return True

    def wait_in_thread(self, is_cancelled: Callable[[], bool], within: timedelta | None) -> bool:
        """Do the same as `wait` in the thread of a plain function."""
        seconds = to_seconds(within)
        with self._thread_condition:
            return self._thread_condition.wait_for(is_cancelled, seconds)
