"""Announce added jobs to workers, apart from the transactions that add them.

A notification takes a lock that all committing sessions share, for as long as the commit lasts. An
announcer sends one for many jobs. A notification is only a hint: without it, workers find the jobs
when they poll.
"""

import asyncio
import atexit
import heapq
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial

from graphile_worker._db.database import Database
from graphile_worker._db.external_connections import OpenTransaction, call_on_commit
from graphile_worker._sql.queries.claim import notify_jobs
from graphile_worker.errors import ConfigurationError

# When a commit probably has happened, if the caller's library does not report it.
HINT_DELAYS_SECONDS = (0.05, 0.5)

# The thread and its connection end after this time without jobs.
IDLE_SECONDS = 30.0

# Longest wait for the last announcement, when a client is closed or Python exits.
CLOSE_SECONDS = 1.0

# Until an announcement that failed is sent again.
RETRY_SECONDS = 1.0

# Longest wait for the event loop of an async client, which may be blocked or closed meanwhile.
SEND_TIMEOUT_SECONDS = 10.0

logger = logging.getLogger("graphile_worker")

Send = Callable[[int], object]


class Announcer:
    """Send notifications for added jobs from a thread, at most one per interval.

    The thread starts with the first job, and ends when it is idle or closed.

    Args:
        send: Notifies workers of a number of jobs. Only the thread calls it.
        interval: Shortest time between two notifications.
    """

    _thread: threading.Thread | None

    def __init__(self, send: Send, interval: timedelta) -> None:
        self._send = send
        self._interval_seconds = interval.total_seconds()
        self._reset()
        _announcers.add(self)

    def announce(self, count: int, transaction: OpenTransaction | None = None) -> None:
        """Announce jobs that were added: after the commit if their transaction is still open."""
        if self._pid != os.getpid():
            # The thread and its jobs exist only in the parent process.
            self._reset()
        self._is_closed = False
        if transaction is None:
            self._add(count)
        elif not call_on_commit(
            transaction.connection,
            committed=partial(self._add, count),
            committing=partial(self._add, count, HINT_DELAYS_SECONDS),
        ):
            self._add(count, HINT_DELAYS_SECONDS)

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Announce what is left and end the thread. A later `announce` starts it again."""
        if self._pid != os.getpid():
            self._reset()
        with self._changed:
            self._is_closed = True
            thread = self._thread
            self._thread = None
            self._changed.notify()
        if thread is not None:
            thread.join(timeout)

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition(threading.Lock())
        self._due: list[tuple[float, int]] = []
        self._thread = None
        self._is_closed = False

    def _add(self, count: int, delays: tuple[float, ...] = (0.0,)) -> None:
        now = time.monotonic()
        with self._changed:
            # A transaction may commit after the client was closed.
            if self._is_closed:
                return
            for delay in delays:
                heapq.heappush(self._due, (now + delay, count))
            if self._thread is None:
                self._start()
            else:
                self._changed.notify()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="graphile-worker-announcer", daemon=True)
        # Python starts no threads while it exits.
        with suppress(RuntimeError):
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        is_failing = is_last = False
        sent_at = -self._interval_seconds
        while not is_last:
            count, is_last = self._take(sent_at)
            if not count:
                continue
            sent_at = time.monotonic()
            try:
                self._send(count)
            except ConfigurationError as error:
                # The client adds jobs only on connections of its callers, and has no database.
                if not is_failing:
                    logger.warning("added jobs are not announced: %s", error)
                is_failing = True
            except Exception as error:
                if not is_failing:
                    logger.warning(
                        "announcing added jobs failed, retrying: %s: %s",
                        type(error).__name__,
                        error,
                    )
                is_failing = True
                if not is_last:
                    self._add(count, (RETRY_SECONDS,))
            else:
                is_failing = False

    def _take(self, sent_at: float) -> tuple[int, bool]:
        """Wait until an announcement is due.

        Returns:
            Its number of jobs, and whether the thread ends after it.
        """
        idle_at = time.monotonic() + IDLE_SECONDS
        with self._changed:
            while self._thread is threading.current_thread():
                now = time.monotonic()
                if not self._due:
                    due_at = idle_at
                else:
                    due_at = max(self._due[0][0], sent_at + self._interval_seconds)
                if due_at > now:
                    self._changed.wait(due_at - now)
                    continue
                if not self._due:
                    self._thread = None
                return self._pop_due(now), not self._thread
            return self._pop_due(threading.TIMEOUT_MAX), True

    def _pop_due(self, now: float) -> int:
        count = 0
        while self._due and self._due[0][0] <= now:
            count += heapq.heappop(self._due)[1]
        return count


class LoopSender:
    """Notify workers on the pool of an async client, in its event loop."""

    def __init__(
        self, database: Database, *, timeout_seconds: float = SEND_TIMEOUT_SECONDS
    ) -> None:
        self._database = database
        self._timeout_seconds = timeout_seconds
        self._loop: asyncio.AbstractEventLoop | None = None

    def use_running_loop(self) -> None:
        self._loop = asyncio.get_running_loop()

    def __call__(self, count: int) -> None:
        loop = self._loop
        # After the end of the loop, its pool cannot be used.
        if loop is None or not loop.is_running():
            return
        query = self._database.run(notify_jobs(count))
        try:
            sending = asyncio.run_coroutine_threadsafe(query, loop)
        except RuntimeError:
            # The loop was closed just now.
            query.close()
            raise
        try:
            sending.result(self._timeout_seconds)
        except TimeoutError:
            if not loop.is_closed():
                sending.cancel()
            raise


_announcers: weakref.WeakSet[Announcer] = weakref.WeakSet()


@atexit.register
def _close_at_exit() -> None:
    end_at = time.monotonic() + CLOSE_SECONDS
    for announcer in list(_announcers):
        announcer.close(max(0.0, end_at - time.monotonic()))
