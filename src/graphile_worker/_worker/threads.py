"""Threads for plain functions: as many as run at once, kept for the next one, never waited for.

Not concurrent.futures: its threads keep a program from ending while a function that nobody can
stop still runs.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, NamedTuple


class _WorkItem(NamedTuple):
    call: Callable[[], Any]
    result: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class ThreadPool:
    """Runs functions in threads of its own. `close` ends the idle ones, and the others in time."""

    def __init__(self) -> None:
        self._idle: list[_PoolThread] = []
        self._is_closed = False

    async def run(self, call: Callable[[], Any]) -> Any:
        """What the function returns or raises. Cancelled, it runs on and its result is lost."""
        thread = self._idle.pop() if self._idle else _PoolThread(self._on_thread_idle)
        loop = asyncio.get_running_loop()
        result = loop.create_future()
        thread.work_items.put(_WorkItem(call, result, loop))
        return await result

    def close(self) -> None:
        self._is_closed = True
        # Threads that end now come here too.
        with suppress(IndexError):
            while True:
                self._idle.pop().work_items.put(None)

    def _on_thread_idle(self, thread: "_PoolThread") -> None:
        self._idle.append(thread)
        if self._is_closed:
            self.close()


class _PoolThread:
    def __init__(self, on_idle: Callable[["_PoolThread"], None]) -> None:
        self.work_items: SimpleQueue[_WorkItem | None] = SimpleQueue()
        self._on_idle = on_idle
        threading.Thread(target=self._run, name="graphile-worker task", daemon=True).start()

    def _run(self) -> None:
        while work := self.work_items.get():
            result, error = _capture_result(work.call)
            self._on_idle(self)
            # The loop may be gone while a function that nobody waits for still ran.
            with suppress(RuntimeError):
                work.loop.call_soon_threadsafe(_set_result, work.result, result, error)
            del work, result, error


def _capture_result(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return call(), None
    except (StopIteration, GeneratorExit) as error:
        # Which a future cannot carry.
        return None, RuntimeError(f"the task raised {error!r}")
    except BaseException as error:
        return None, error


def _set_result(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
