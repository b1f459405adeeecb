"""Wait until jobs end. All waiters of a client share one query.

Waiting reads what the database stores and depends on no notification, so an end cannot be missed.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import Context
from datetime import timedelta
from typing import Generic, TypeVar

from graphile_worker._db.retry import is_outage, is_temporary
from graphile_worker._sql.plans.status import EndedJob
from graphile_worker.errors import ConfigurationError, GraphileWorkerError

MIN_DELAY_SECONDS = 0.005
MAX_DELAY_SECONDS = 1.0

# Until the query is sent again after a temporary error.
RETRY_DELAY_SECONDS = 0.1

EndedJobs = Mapping[int, EndedJob]
FindEnded = Callable[[list[int]], Awaitable[EndedJobs]]
FindEndedSync = Callable[[list[int]], EndedJobs]

logger = logging.getLogger("graphile_worker")


class Waiter:
    """A caller that waits for the end of a job. The times are those of `time.monotonic`."""

    __slots__ = ("delay", "due_at", "job_id", "started_at")

    def __init__(self, job_id: int, now: float) -> None:
        self.job_id = job_id
        self.started_at = now
        # The first look is due at once.
        self.due_at = now
        self.delay = 0.0

    def postpone(self, now: float, min_delay: float = MIN_DELAY_SECONDS) -> None:
        """Set the next look after half of the time waited so far, from 5 ms to 1 s."""
        self.delay = min(max(min_delay, (now - self.started_at) / 2), MAX_DELAY_SECONDS)
        self.due_at = now + self.delay


W = TypeVar("W", bound=Waiter)


class WaitSchedule(Generic[W]):
    """The waiters of a client, and when to look for the ends of their jobs."""

    def __init__(self) -> None:
        self._waiters: dict[W, None] = {}

    def __bool__(self) -> bool:
        return bool(self._waiters)

    def add(self, waiter: W) -> None:
        self._waiters[waiter] = None

    def discard(self, waiter: W) -> None:
        self._waiters.pop(waiter, None)

    def clear(self) -> list[W]:
        """Remove and return all waiters."""
        waiters, self._waiters = list(self._waiters), {}
        return waiters

    def get_first(self) -> W | None:
        return next(iter(self._waiters), None)

    def get_delay(self, now: float) -> float:
        """Return the seconds until the next look."""
        return max(0.0, min(waiter.due_at for waiter in self._waiters) - now)

    def list_due(self, now: float) -> list[W]:
        """Return the waiters of the next look, or none if it is not due.

        A look includes all waiters that have waited for half of their delay, so that waiters who
        came at different times soon share their looks.
        """
        if not self._waiters or self.get_delay(now) > 0:
            return []
        return [each for each in self._waiters if each.due_at - each.delay / 2 <= now]


class OutageLog:
    """Log the first error of an outage, and remember the last one."""

    def __init__(self) -> None:
        self.last_error: Exception | None = None

    def record(self, error: Exception) -> None:
        if self.last_error is None:
            logger.warning(
                "waiting for the results of jobs failed, retrying: %s: %s",
                type(error).__name__,
                error,
            )
        self.last_error = error


class _AsyncWaiter(Waiter):
    __slots__ = ("future",)

    def __init__(self, job_id: int, now: float, future: "asyncio.Future[EndedJob]") -> None:
        super().__init__(job_id, now)
        self.future = future


class ResultWaiter:
    """Wait for jobs in async code. One task of the event loop looks for all waiters.

    The task exists while there are waiters.
    """

    def __init__(self, find_ended: FindEnded) -> None:
        self._find_ended = find_ended
        self._poller: _Poller | None = None

    async def wait(self, job_id: int, timeout: timedelta | None) -> EndedJob:  # noqa: ASYNC109
        """Wait until the job ends.

        Raises:
            TimeoutError: It did not end in time.
            GraphileWorkerError: The client was closed.
        """
        seconds = read_timeout(timeout)
        if seconds is not None and seconds <= 0:
            ended = (await self._find_ended([job_id])).get(job_id)
            if ended is None:
                raise build_timeout_error(job_id, timeout)
            return ended
        poller = self._get_poller()
        waiter = poller.add(job_id)
        try:
            async with asyncio.timeout(seconds) as limit:
                return await waiter.future
        except TimeoutError:
            if not limit.expired():
                raise
            raise build_timeout_error(job_id, timeout) from poller.outage.last_error
        finally:
            poller.discard(waiter)

    def close(self) -> None:
        """Raise an error in all waiters."""
        if self._poller is not None:
            self._poller.close()
            self._poller = None

    def _get_poller(self) -> "_Poller":
        if self._poller is None or not self._poller.is_usable:
            self._poller = _Poller(self._find_ended)
        return self._poller


class _Poller:
    """The task that looks for all waiters of one event loop."""

    def __init__(self, find_ended: FindEnded) -> None:
        self.outage = OutageLog()
        self._find_ended = find_ended
        self._loop = asyncio.get_running_loop()
        self._schedule: WaitSchedule[_AsyncWaiter] = WaitSchedule()
        self._changed = asyncio.Event()
        # In an empty context: the looks belong to no request, span or transaction of a caller.
        self._task = self._loop.create_task(self._run(), context=Context())

    @property
    def is_usable(self) -> bool:
        """Return whether it runs, in the current event loop."""
        return not self._task.done() and self._loop is asyncio.get_running_loop()

    def add(self, job_id: int) -> _AsyncWaiter:
        waiter = _AsyncWaiter(job_id, time.monotonic(), self._loop.create_future())
        self._schedule.add(waiter)
        self._changed.set()
        return waiter

    def discard(self, waiter: _AsyncWaiter) -> None:
        waiter.future.cancel()
        self._schedule.discard(waiter)
        if not self._schedule:
            self._changed.set()

    def close(self) -> None:
        for waiter in self._schedule.clear():
            if not waiter.future.done():
                waiter.future.set_exception(build_closed_error(waiter.job_id))
        if not self._loop.is_closed():
            self._changed.set()

    async def _run(self) -> None:
        try:
            # The first waiter is added right after the start.
            while self._schedule:
                self._changed.clear()
                if due := self._schedule.list_due(time.monotonic()):
                    await self._look(due)
                else:
                    await self._sleep(self._schedule.get_delay(time.monotonic()))
        finally:
            # Only if the task was cancelled, for example because the loop ends.
            for waiter in self._schedule.clear():
                waiter.future.cancel()

    async def _sleep(self, seconds: float) -> None:
        handle = self._loop.call_later(seconds, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            handle.cancel()

    async def _look(self, due: list[_AsyncWaiter]) -> None:
        try:
            ended = await self._find_ended(list_job_ids(due))
        except Exception as error:
            self._handle_error(due, error)
            return
        self.outage.last_error = None
        now = time.monotonic()
        for waiter in due:
            if waiter.job_id not in ended:
                waiter.postpone(now)
            else:
                self._schedule.discard(waiter)
                if not waiter.future.done():
                    waiter.future.set_result(ended[waiter.job_id])

    def _handle_error(self, due: list[_AsyncWaiter], error: Exception) -> None:
        if is_retryable(error):
            self.outage.record(error)
            for waiter in due:
                waiter.postpone(time.monotonic(), RETRY_DELAY_SECONDS)
            return
        for waiter in due:
            self._schedule.discard(waiter)
            if not waiter.future.done():
                waiter.future.set_exception(error)


class _SyncWaiter(Waiter):
    __slots__ = ("answer", "wakeup")

    def __init__(self, job_id: int, now: float) -> None:
        super().__init__(job_id, now)
        self.answer: EndedJob | Exception | None = None
        self.wakeup = threading.Event()


class SyncResultWaiter:
    """Wait for jobs in threads. One of the waiting threads looks for all, until its job ends.

    Then another one does. No thread is started.
    """

    def __init__(self, find_ended: FindEndedSync) -> None:
        self._find_ended = find_ended
        self._outage = OutageLog()
        self._reset()

    def wait(self, job_id: int, timeout: timedelta | None) -> EndedJob:
        """Wait until the job ends. See `ResultWaiter.wait`."""
        seconds = read_timeout(timeout)
        if seconds is not None and seconds <= 0:
            ended = self._find_ended([job_id]).get(job_id)
            if ended is None:
                raise build_timeout_error(job_id, timeout)
            return ended
        if self._pid != os.getpid():
            # A fork copied waiters whose threads exist only in the parent process.
            self._reset()
        waiter = _SyncWaiter(job_id, time.monotonic())
        try:
            self._add(waiter)
            while waiter.answer is None:
                remaining = threading.TIMEOUT_MAX
                if seconds is not None:
                    remaining = waiter.started_at + seconds - time.monotonic()
                if remaining <= 0:
                    raise build_timeout_error(job_id, timeout) from self._outage.last_error
                if self._leader is waiter:
                    self._lead(waiter, remaining)
                else:
                    waiter.wakeup.wait(remaining)
                    waiter.wakeup.clear()
        finally:
            self._discard(waiter)
        if isinstance(waiter.answer, Exception):
            raise waiter.answer
        return waiter.answer

    def close(self) -> None:
        """Raise an error in all waiters."""
        with self._lock:
            for waiter in self._schedule.clear():
                self._answer(waiter, build_closed_error(waiter.job_id))

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._schedule: WaitSchedule[_SyncWaiter] = WaitSchedule()
        self._leader: _SyncWaiter | None = None

    def _add(self, waiter: _SyncWaiter) -> None:
        with self._lock:
            self._schedule.add(waiter)
            if self._leader is None:
                self._leader = waiter
            else:
                self._leader.wakeup.set()

    def _discard(self, waiter: _SyncWaiter) -> None:
        with self._lock:
            self._schedule.discard(waiter)
            if self._leader is waiter:
                self._leader = self._schedule.get_first()
                if self._leader is not None:
                    self._leader.wakeup.set()

    def _lead(self, leader: _SyncWaiter, remaining: float) -> None:
        """Look once for all waiters that are due, or sleep until some are."""
        with self._lock:
            if leader.answer is not None:
                return
            now = time.monotonic()
            due, delay = self._schedule.list_due(now), self._schedule.get_delay(now)
        if not due:
            leader.wakeup.wait(min(delay, remaining))
            leader.wakeup.clear()
            return
        try:
            ended = self._find_ended(list_job_ids(due))
        except Exception as error:
            self._handle_error(due, error)
            return
        self._outage.last_error = None
        with self._lock:
            now = time.monotonic()
            for waiter in due:
                if waiter.job_id in ended:
                    self._answer(waiter, ended[waiter.job_id])
                else:
                    waiter.postpone(now)

    def _handle_error(self, due: list[_SyncWaiter], error: Exception) -> None:
        is_temporary_error = is_retryable(error)
        if is_temporary_error:
            self._outage.record(error)
        with self._lock:
            for waiter in due:
                if is_temporary_error:
                    waiter.postpone(time.monotonic(), RETRY_DELAY_SECONDS)
                else:
                    self._answer(waiter, error)

    def _answer(self, waiter: _SyncWaiter, answer: EndedJob | Exception) -> None:
        self._schedule.discard(waiter)
        if waiter.answer is None:
            waiter.answer = answer
            waiter.wakeup.set()


def list_job_ids(waiters: Iterable[Waiter]) -> list[int]:
    """Return the ids of the jobs, each once."""
    return list({waiter.job_id: None for waiter in waiters})


def read_timeout(timeout: object) -> float | None:
    """Return a timeout in seconds, or raise ConfigurationError."""
    if timeout is None:
        return None
    if not isinstance(timeout, timedelta):
        raise ConfigurationError(f"timeout must be a timedelta, got {timeout!r}")
    return min(timeout.total_seconds(), threading.TIMEOUT_MAX)


def is_retryable(error: Exception) -> bool:
    """Return whether the same query may succeed later. A pool that is closed stays closed."""
    is_closed_pool = type(error).__name__ == "PoolClosed" or str(error).startswith(
        ("pool is closed", "pool is closing")
    )
    return not is_closed_pool and (is_temporary(error) or is_outage(error))


def build_timeout_error(job_id: int, timeout: timedelta | None) -> TimeoutError:
    """Build the error of a caller whose job did not end in time."""
    seconds = 0.0 if timeout is None else timeout.total_seconds()
    return TimeoutError(f"job {job_id} did not end within {seconds:g} s")


def build_closed_error(job_id: int) -> GraphileWorkerError:
    """Build the error of a caller whose client was closed."""
    return GraphileWorkerError(f"the client was closed while a caller waited for job {job_id}")
