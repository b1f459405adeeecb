"""ThreadPool: daemon threads for plain functions.

The threads of concurrent.futures would keep a program running until every function returns.
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
    """Starts a thread when none is idle. `close` ends idle threads, and busy ones afterwards."""

    def __init__(self) -> None:
        self._idle: list[_PoolThread] = []
        self._is_closed = False

    async def run(self, call: Callable[[], Any]) -> Any:
        """Run a function in a thread. After a cancellation it continues without a result."""
        thread = self._idle.pop() if self._idle else _PoolThread(self._on_thread_idle)
        loop = asyncio.get_running_loop()
        result = loop.create_future()
        thread.work_items.put(_WorkItem(call, result, loop))
        return await result

    def close(self) -> None:
        self._is_closed = True
        # Threads that become idle now call this too.
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
            # The event loop may be closed meanwhile.
            with suppress(RuntimeError):
                work.loop.call_soon_threadsafe(_set_result, work.result, result, error)
            del work, result, error


def _capture_result(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return call(), None
    except (StopIteration, GeneratorExit) as error:
        # A future cannot have these exceptions.
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
