"""Run the coroutines and plain functions of a test in the threads that its connection allows."""

import asyncio
import contextvars
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from graphile_worker._worker.threads import ThreadPool

T = TypeVar("T")

MainCoroutine = Callable[[], Coroutine[Any, Any, T]]


class Executor(ThreadPool):
    """Run code for one kind of connection. `run` calls the plain function of a task."""

    def run_main(self, main: MainCoroutine[T]) -> T:
        """Run a coroutine from blocking code and wait for its result."""
        raise NotImplementedError

    async def call_sync(self, call: Callable[[], T]) -> T:
        """Call a function that uses the blocking connection, from a coroutine."""
        raise NotImplementedError


class ThreadExecutor(Executor):
    """For connections that any thread may use, one thread at a time."""

    def run_main(self, main: MainCoroutine[T]) -> T:
        return LoopThread().run(main)

    async def call_sync(self, call: Callable[[], T]) -> T:
        loop_thread = _loop_threads.get(asyncio.get_running_loop())
        return call() if loop_thread is None else await loop_thread.call_sync(call)

    async def run(self, call: Callable[[], Any]) -> Any:
        if asyncio.get_running_loop() in _loop_threads:
            return await self.call_sync(call)
        # In a thread, because a plain task must not block the loop of an async test.
        return await super().run(call)


class DjangoExecutor(Executor):
    """For Django, whose connections belong to a thread. asgiref calls back into that thread."""

    def __init__(self, connection: Any) -> None:
        super().__init__()
        is_atomic = connection.in_atomic_block
        self._test_thread_id = threading.get_ident() if is_atomic else None

    def run_main(self, main: MainCoroutine[T]) -> T:
        result: T = sys.modules["asgiref.sync"].async_to_sync(main)()
        return result

    async def call_sync(self, call: Callable[[], T]) -> T:
        result: T = await sys.modules["asgiref.sync"].sync_to_async(self._call_in_test_thread)(call)
        return result

    async def run(self, call: Callable[[], Any]) -> Any:
        return await self.call_sync(call)

    def _call_in_test_thread(self, call: Callable[[], T]) -> T:
        if self._test_thread_id not in (None, threading.get_ident()):
            raise RuntimeError(
                "from this coroutine Django uses another connection than that of the test. Make "
                "the test a method of django.test.TestCase, or a plain function."
            )
        return call()


class AsyncExecutor(Executor):
    """For async connections, which belong to the loop of the test."""

    def __init__(self) -> None:
        super().__init__()
        self._loop: asyncio.AbstractEventLoop | None = None

    def bind_loop(self) -> None:
        """Use the running loop as the loop of the test."""
        self._loop = asyncio.get_running_loop()

    def run_main(self, main: MainCoroutine[T]) -> T:
        if self._loop is None or not self._loop.is_running() or _is_in_event_loop():
            raise RuntimeError(
                "this test has an async connection, which blocking code cannot use. Await the "
                "method that begins with a, for example aenqueue, adrain or aassert_enqueued."
            )
        return asyncio.run_coroutine_threadsafe(main(), self._loop).result()

    async def call_sync(self, call: Callable[[], T]) -> T:
        result: T = await self.run(call)
        return result


class LoopThread:
    """A loop in a second thread. The thread that waits for it runs the calls of `call_sync`."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._loop = asyncio.new_event_loop()

    def run(self, main: MainCoroutine[T]) -> T:
        """Run a coroutine in the loop and wait for its result."""
        result: Future[T] = Future()
        _loop_threads[self._loop] = self
        run = partial(contextvars.copy_context().run, self._run_loop, main, result)
        thread = threading.Thread(target=run, name="graphile-worker test", daemon=True)
        thread.start()
        while (call := self._calls.get()) is not None:
            call()
        thread.join()
        return result.result()

    async def call_sync(self, call: Callable[[], T]) -> T:
        """Call a function in the thread that waits for the loop."""
        result: asyncio.Future[T] = self._loop.create_future()
        self._calls.put(partial(self._call_and_resolve, call, result))
        return await result

    def _run_loop(self, main: MainCoroutine[T], result: "Future[T]") -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                result.set_result(runner.run(main()))
        except BaseException as error:
            result.set_exception(error)
        finally:
            self._calls.put(None)

    def _call_and_resolve(self, call: Callable[[], T], future: "asyncio.Future[T]") -> None:
        resolve: Callable[[], None]
        try:
            resolve = partial(future.set_result, call())
        except (StopIteration, GeneratorExit) as error:
            # A future cannot carry these two.
            resolve = partial(future.set_exception, RuntimeError(f"the task raised {error!r}"))
        except BaseException as error:
            resolve = partial(future.set_exception, error)
        self._loop.call_soon_threadsafe(lambda: None if future.done() else resolve())


_loop_threads: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopThread] = WeakKeyDictionary()


def reject_in_event_loop() -> None:
    """Raise in an event loop, where a drain would block what its tasks wait for."""
    if _is_in_event_loop():
        raise RuntimeError("drain() would block this event loop. Await adrain().")


def _is_in_event_loop() -> bool:
    return asyncio._get_running_loop() is not None
