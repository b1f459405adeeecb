"""BackgroundLoop: an event loop in its own thread, which tasks of the worker cannot block."""

import asyncio
import threading
from collections.abc import Collection, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

# Seconds that the end of the loop may take. After that, calls that wait for a server are left.
STOP_TIMEOUT_SECONDS = 2.0

# Seconds before tasks that have not ended are cancelled again.
CANCEL_RETRY_SECONDS = 2.0


class BackgroundLoop:
    """Runs coroutines in its own thread. `stop` cancels all of them."""

    _loop: asyncio.AbstractEventLoop

    def __init__(self, stop_timeout_seconds: float = STOP_TIMEOUT_SECONDS) -> None:
        self._stop_timeout_seconds = stop_timeout_seconds
        # A daemon, so that the program does not wait for it.
        self._thread = threading.Thread(
            target=self._run, name="graphile-worker background loop", daemon=True
        )

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        """Start a coroutine on the background loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the background loop and return its result."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def stop(self) -> None:
        try:
            # A task that cannot be cancelled must not delay the end.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._stop_timeout_seconds):
                    await self.call(_cancel_others())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(self._stop_timeout_seconds)

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            # Tasks that could not be cancelled are collected at some later time, when asyncio would
            # log an error for each of them.
            self._loop.set_exception_handler(lambda *_: None)
            self._loop.close()


async def cancel_until_done(
    tasks: Collection[asyncio.Task[Any]], *, retry_seconds: float = CANCEL_RETRY_SECONDS
) -> None:
    """Cancel tasks repeatedly until all have ended.

    asyncio.wait_for can lose a cancellation before Python 3.12.
    """
    while tasks:
        for task in tasks:
            task.cancel()
        _, tasks = await asyncio.wait(tasks, timeout=retry_seconds)


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for each in others:
        each.cancel()
    await asyncio.gather(*others, return_exceptions=True)
