"""Call a blocking function from async code."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def call_in_thread(function: Callable[[], T]) -> T:
    """Call a function in a daemon thread, which does not keep the program from exiting.

    After a cancellation it continues without a result.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="graphile-worker call", daemon=True).start()
    return await asyncio.wrap_future(future)
