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


class _Work(NamedTuple):
    call: Callable[[], Any]
    result: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class Threads:
    """Runs functions in threads of its own. `close` ends the idle ones, and the others in time."""

    def __init__(self) -> None:
        self._idle: list[_Thread] = []
        self._closed = False

    async def run(self, call: Callable[[], Any]) -> Any:
        """What the function returns or raises. Cancelled, it runs on and its result is lost."""
        thread = self._idle.pop() if self._idle else _Thread(self._ended)
        loop = asyncio.get_running_loop()
        result = loop.create_future()
        thread.work.put(_Work(call, result, loop))
        return await result

    def close(self) -> None:
        self._closed = True
        # Threads that end now come here too.
        with suppress(IndexError):
            while True:
                self._idle.pop().work.put(None)

    def _ended(self, thread: "_Thread") -> None:
        self._idle.append(thread)
        if self._closed:
            self.close()


class _Thread:
    def __init__(self, ended: Callable[["_Thread"], None]) -> None:
        self.work: SimpleQueue[_Work | None] = SimpleQueue()
        self._ended = ended
        threading.Thread(target=self._run, name="graphile-worker task", daemon=True).start()

    def _run(self) -> None:
        while work := self.work.get():
            result, error = _called(work.call)
            self._ended(self)
            # The loop may be gone while a function that nobody waits for still ran.
            with suppress(RuntimeError):
                work.loop.call_soon_threadsafe(_deliver, work.result, result, error)
            del work, result, error


def _called(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return call(), None
    except (StopIteration, GeneratorExit) as error:
        # Which a future cannot carry.
        return None, RuntimeError(f"the task raised {error!r}")
    except BaseException as error:
        return None, error


def _deliver(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
