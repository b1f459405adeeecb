"""An event loop in a thread of its own, for what must go on while a task blocks the worker's."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

# Seconds that its end may take: whatever still waits for a server then is left to itself.
STOP_TIMEOUT_SECONDS = 2.0


class BackgroundLoop:
    """Started with `start`, from the loop that it stands beside; `stop` cancels what runs in it."""

    _loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        # A program does not wait for it to end.
        self._thread = threading.Thread(
            target=self._run, name="graphile-worker side loop", daemon=True
        )

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        """Run something there until this stops, or it is cancelled."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """What it answers there."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def stop(self) -> None:
        try:
            # A task there that cannot be cancelled is no reason to stay.
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_TIMEOUT_SECONDS):
                    await self.call(_cancel_others())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_TIMEOUT_SECONDS)

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for each in others:
        each.cancel()
    await asyncio.gather(*others, return_exceptions=True)
