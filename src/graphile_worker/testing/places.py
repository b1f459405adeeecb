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

from graphile_worker.worker.threads import Threads

T = TypeVar("T")

Main = Callable[[], Coroutine[Any, Any, T]]


class Place(Protocol):
    """For one kind of connection."""

    def run(self, main: Main[T]) -> T:
        """What a coroutine returns, waited for in blocking code."""
        ...

    async def ask(self, call: Callable[[], T]) -> T:
        """What a function returns that uses a blocking connection, for a coroutine."""
        ...

    async def perform(self, call: Callable[[], T]) -> T:
        """What a task returns that is a plain function, for a coroutine."""
        ...

    def close(self) -> None:
        """Nothing runs here any more."""
        ...


class PlainPlace:
    """For connections that any thread may use, one after the other."""

    def __init__(self) -> None:
        self._threads = Threads()

    def run(self, main: Main[T]) -> T:
        return Bridge().run(main)

    async def ask(self, call: Callable[[], T]) -> T:
        bridge = _bridges.get(asyncio.get_running_loop())
        return call() if bridge is None else await bridge.ask(call)

    async def perform(self, call: Callable[[], T]) -> T:
        bridge = _bridges.get(asyncio.get_running_loop())
        # In the loop of an async test it would block what it may wait for.
        result: T = await (self._threads.run(call) if bridge is None else bridge.ask(call))
        return result

    def close(self) -> None:
        self._threads.close()


class DjangoPlace:
    """For Django, whose connections belong to a thread, and which has its own way back to it."""

    def __init__(self) -> None:
        # The thread of a test that is in a transaction; None where there is none.
        is_atomic = sys.modules["django.db"].connection.in_atomic_block
        self._thread = threading.get_ident() if is_atomic else None

    def run(self, main: Main[T]) -> T:
        result: T = sys.modules["asgiref.sync"].async_to_sync(main)()
        return result

    async def ask(self, call: Callable[[], T]) -> T:
        result: T = await sys.modules["asgiref.sync"].sync_to_async(self._called)(call)
        return result

    async def perform(self, call: Callable[[], T]) -> T:
        return await self.ask(call)

    def close(self) -> None: ...

    def _called(self, call: Callable[[], T]) -> T:
        if self._thread not in (None, threading.get_ident()):
            raise RuntimeError(
                "from this coroutine Django uses another connection than that of the test: make "
                "the test a method of django.test.TestCase, or a plain function"
            )
        return call()


class AsyncPlace:
    """For async connections, which belong to the loop of the test."""

    def __init__(self) -> None:
        self._threads = Threads()
        self._loop: asyncio.AbstractEventLoop | None = None

    def enter(self) -> None:
        """This is the loop."""
        self._loop = asyncio.get_running_loop()

    def run(self, main: Main[T]) -> T:
        """Only beside the loop, as in a plain task that runs in a thread."""
        if self._loop is None or not self._loop.is_running() or _in_loop():
            raise RuntimeError(
                "this test has an async connection, which blocking code cannot use: await the "
                "method that begins with a, such as aenqueue, adrain or aassert_enqueued"
            )
        return asyncio.run_coroutine_threadsafe(main(), self._loop).result()

    async def ask(self, call: Callable[[], T]) -> T:
        return await self.perform(call)

    async def perform(self, call: Callable[[], T]) -> T:
        result: T = await self._threads.run(call)
        return result

    def close(self) -> None:
        self._threads.close()


class PlacedThreads(Threads):
    """Threads of a worker that has none of its own."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place = place

    async def run(self, call: Callable[[], Any]) -> Any:
        return await self._place.perform(call)


class Bridge:
    """A loop in a thread of its own, and a way back to the thread that waits for it."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._loop = asyncio.new_event_loop()

    def run(self, main: Main[T]) -> T:
        """What the coroutine returns; meanwhile this thread does what it asks for."""
        ended: Future[T] = Future()
        _bridges[self._loop] = self
        run = partial(contextvars.copy_context().run, self._run, main, ended)
        thread = threading.Thread(target=run, name="graphile-worker test", daemon=True)
        thread.start()
        while (call := self._calls.get()) is not None:
            call()
        thread.join()
        return ended.result()

    async def ask(self, call: Callable[[], T]) -> T:
        """What a function returns in the thread that waits."""
        answer: asyncio.Future[T] = self._loop.create_future()
        self._calls.put(partial(self._answer, call, answer))
        return await answer

    def _run(self, main: Main[T], ended: "Future[T]") -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                ended.set_result(runner.run(main()))
        except BaseException as error:
            ended.set_exception(error)
        finally:
            self._calls.put(None)

    def _answer(self, call: Callable[[], T], answer: "asyncio.Future[T]") -> None:
        try:
            result = call()
        except (StopIteration, GeneratorExit) as error:
            # Which a future cannot carry.
            self._deliver(answer.set_exception, RuntimeError(f"the task raised {error!r}"), answer)
        except BaseException as error:
            self._deliver(answer.set_exception, error, answer)
        else:
            self._deliver(answer.set_result, result, answer)

    def _deliver(self, put: Callable[[Any], None], value: object, answer: Any) -> None:
        self._loop.call_soon_threadsafe(lambda: None if answer.done() else put(value))


_bridges: WeakKeyDictionary[asyncio.AbstractEventLoop, Bridge] = WeakKeyDictionary()


def refuse_in_loop() -> None:
    """A drain would block what its tasks may wait for."""
    if _in_loop():
        raise RuntimeError("drain() would block this event loop: await adrain()")


def _in_loop() -> bool:
    return asyncio._get_running_loop() is not None
