"""Where things happen in a test: plain functions in its own thread, coroutines in a loop.

A connection, and what hangs on a thread such as Django's, stays in the thread of the test.
"""

import asyncio
import contextvars
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from graphile_worker._worker.threads import ThreadPool

T = TypeVar("T")

MainCoroutine = Callable[[], Coroutine[Any, Any, T]]


class Executor(Protocol):
    """For one kind of connection."""

    def run(self, main: MainCoroutine[T]) -> T:
        """What a coroutine returns, waited for in blocking code."""
        ...

    async def call_sync(self, call: Callable[[], T]) -> T:
        """What a function returns that uses a blocking connection, for a coroutine."""
        ...

    async def run_task(self, call: Callable[[], T]) -> T:
        """What a task returns that is a plain function, for a coroutine."""
        ...

    def close(self) -> None:
        """Nothing runs here any more."""
        ...


class ThreadExecutor:
    """For connections that any thread may use, one after the other."""

    def __init__(self) -> None:
        self._threads = ThreadPool()

    def run(self, main: MainCoroutine[T]) -> T:
        return LoopThread().run(main)

    async def call_sync(self, call: Callable[[], T]) -> T:
        bridge = _loop_threads.get(asyncio.get_running_loop())
        return call() if bridge is None else await bridge.call_sync(call)

    async def run_task(self, call: Callable[[], T]) -> T:
        bridge = _loop_threads.get(asyncio.get_running_loop())
        # In the loop of an async test it would block what it may wait for.
        result: T = await (self._threads.run(call) if bridge is None else bridge.call_sync(call))
        return result

    def close(self) -> None:
        self._threads.close()


class DjangoExecutor:
    """For Django, whose connections belong to a thread, and which has its own way back to it."""

    def __init__(self) -> None:
        # The thread of a test that is in a transaction; None where there is none.
        is_atomic = sys.modules["django.db"].connection.in_atomic_block
        self._test_thread_id = threading.get_ident() if is_atomic else None

    def run(self, main: MainCoroutine[T]) -> T:
        result: T = sys.modules["asgiref.sync"].async_to_sync(main)()
        return result

    async def call_sync(self, call: Callable[[], T]) -> T:
        result: T = await sys.modules["asgiref.sync"].sync_to_async(self._call_in_test_thread)(call)
        return result

    async def run_task(self, call: Callable[[], T]) -> T:
        return await self.call_sync(call)

    def close(self) -> None: ...

    def _call_in_test_thread(self, call: Callable[[], T]) -> T:
        if self._test_thread_id not in (None, threading.get_ident()):
            raise RuntimeError(
                "from this coroutine Django uses another connection than that of the test: make "
                "the test a method of django.test.TestCase, or a plain function"
            )
        return call()


class AsyncExecutor:
    """For async connections, which belong to the loop of the test."""

    def __init__(self) -> None:
        self._threads = ThreadPool()
        self._loop: asyncio.AbstractEventLoop | None = None

    def bind_loop(self) -> None:
        """This is the loop."""
        self._loop = asyncio.get_running_loop()

    def run(self, main: MainCoroutine[T]) -> T:
        """Only beside the loop, as in a plain task that runs in a thread."""
        if self._loop is None or not self._loop.is_running() or _is_in_event_loop():
            raise RuntimeError(
                "this test has an async connection, which blocking code cannot use: await the "
                "method that begins with a, such as aenqueue, adrain or aassert_enqueued"
            )
        return asyncio.run_coroutine_threadsafe(main(), self._loop).result()

    async def call_sync(self, call: Callable[[], T]) -> T:
        return await self.run_task(call)

    async def run_task(self, call: Callable[[], T]) -> T:
        result: T = await self._threads.run(call)
        return result

    def close(self) -> None:
        self._threads.close()


class ExecutorThreads(ThreadPool):
    """Threads of a worker that has none of its own."""

    def __init__(self, executor: Executor) -> None:
        super().__init__()
        self._executor = executor

    async def run(self, call: Callable[[], Any]) -> Any:
        return await self._executor.run_task(call)


class LoopThread:
    """A loop in a thread of its own, and a way back to the thread that waits for it."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._loop = asyncio.new_event_loop()

    def run(self, main: MainCoroutine[T]) -> T:
        """What the coroutine returns; meanwhile this thread does what it asks for."""
        ended: Future[T] = Future()
        _loop_threads[self._loop] = self
        run = partial(contextvars.copy_context().run, self._run_loop, main, ended)
        thread = threading.Thread(target=run, name="graphile-worker test", daemon=True)
        thread.start()
        while (call := self._calls.get()) is not None:
            call()
        thread.join()
        return ended.result()

    async def call_sync(self, call: Callable[[], T]) -> T:
        """What a function returns in the thread that waits."""
        answer: asyncio.Future[T] = self._loop.create_future()
        self._calls.put(partial(self._call_and_resolve, call, answer))
        return await answer

    def _run_loop(self, main: MainCoroutine[T], result: "Future[T]") -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                result.set_result(runner.run(main()))
        except BaseException as error:
            result.set_exception(error)
        finally:
            self._calls.put(None)

    def _call_and_resolve(self, call: Callable[[], T], future: "asyncio.Future[T]") -> None:
        try:
            result = call()
        except (StopIteration, GeneratorExit) as error:
            # Which a future cannot carry.
            self._resolve_threadsafe(
                future.set_exception, RuntimeError(f"the task raised {error!r}"), future
            )
        except BaseException as error:
            self._resolve_threadsafe(future.set_exception, error, future)
        else:
            self._resolve_threadsafe(future.set_result, result, future)

    def _resolve_threadsafe(
        self, setter: Callable[[Any], None], value: object, future: Any
    ) -> None:
        self._loop.call_soon_threadsafe(lambda: None if future.done() else setter(value))


_loop_threads: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopThread] = WeakKeyDictionary()


def reject_in_event_loop() -> None:
    """A drain would block what its tasks may wait for."""
    if _is_in_event_loop():
        raise RuntimeError("drain() would block this event loop: await adrain()")


def _is_in_event_loop() -> bool:
    return asyncio._get_running_loop() is not None
