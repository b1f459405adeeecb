"""ThreadPool: idle threads are kept, and never keep a program running."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable

import pytest

from graphile_worker._worker.threads import ThreadPool


@pytest.fixture
async def threads() -> AsyncIterator[ThreadPool]:
    threads = ThreadPool()
    yield threads
    threads.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that a thread fulfills."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)


async def start_calls(
    threads: ThreadPool, count: int
) -> tuple[threading.Event, list[asyncio.Task[object]]]:
    """Start functions that run at once until the event is set."""
    release = threading.Event()
    together = threading.Barrier(count + 1)

    def call() -> threading.Thread:
        together.wait(20)
        release.wait(20)
        return threading.current_thread()

    calls = [asyncio.create_task(threads.run(call)) for _ in range(count)]
    await asyncio.to_thread(together.wait, 20)
    return release, calls


@pytest.mark.feature("F106")
async def test_a_function_runs_in_a_thread_that_the_loop_does_not_wait_for(threads):
    release, [call] = await start_calls(threads, 1)

    # The event loop runs meanwhile, or this would never be reached.
    release.set()

    thread = await call
    assert thread is not threading.current_thread()
    assert isinstance(thread, threading.Thread)
    assert thread.daemon


async def test_what_a_function_returns_is_returned(threads):
    assert await threads.run(lambda: 7) == 7


@pytest.mark.parametrize("error", [LookupError("boom"), SystemExit(3), asyncio.CancelledError()])
async def test_what_a_function_raises_is_raised(threads, error):
    def call() -> None:
        raise error

    with pytest.raises(type(error)):
        await threads.run(call)


@pytest.mark.parametrize("error", [StopIteration, GeneratorExit])
async def test_what_a_future_cannot_carry_is_an_error_that_names_it(threads, error):
    def call() -> None:
        raise error

    with pytest.raises(RuntimeError, match=error.__name__):
        await threads.run(call)


async def test_as_many_threads_are_made_as_run_at_once(threads):
    release, calls = await start_calls(threads, 5)

    release.set()

    assert len(set(await asyncio.gather(*calls))) == 5


async def test_a_thread_is_kept_for_the_next_function(threads):
    threads_used = [await threads.run(threading.current_thread) for _ in range(5)]

    assert len(set(threads_used)) == 1


async def test_a_thread_that_raised_is_kept_as_well(threads):
    threads_used = []

    def call() -> None:
        threads_used.append(threading.current_thread())
        raise SystemExit

    for _ in range(2):
        with pytest.raises(SystemExit):
            await threads.run(call)

    assert threads_used[0] is threads_used[1]


async def test_a_function_whose_caller_is_cancelled_runs_on(threads):
    started, release, ended = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        started.set()
        release.wait(20)
        ended.set()

    caller = asyncio.create_task(threads.run(call))
    await asyncio.to_thread(started.wait, 20)
    caller.cancel()
    await asyncio.wait([caller])
    release.set()

    assert caller.cancelled()
    assert await asyncio.to_thread(ended.wait, 20)


async def test_close_ends_the_threads_that_are_idle():
    threads = ThreadPool()
    thread = await threads.run(threading.current_thread)

    threads.close()

    await until(lambda: not thread.is_alive())


async def test_close_does_not_wait_for_a_running_function_whose_thread_ends_with_it():
    threads = ThreadPool()
    release, [call] = await start_calls(threads, 1)

    threads.close()
    assert not call.done()

    release.set()
    thread = await call
    assert isinstance(thread, threading.Thread)
    await until(lambda: not thread.is_alive())


def test_a_function_may_outlive_the_loop_that_started_it():
    threads, release, ended = ThreadPool(), threading.Event(), threading.Event()

    def call() -> None:
        release.wait(20)
        ended.set()

    async def start() -> None:
        await asyncio.wait([asyncio.create_task(threads.run(call))], timeout=0)

    asyncio.run(start())
    threads.close()
    release.set()

    assert ended.wait(20)


ENDLESS = """
import asyncio, threading
from graphile_worker._worker.threads import ThreadPool

async def main():
    started = threading.Event()
    asyncio.create_task(ThreadPool().run(lambda: (started.set(), threading.Event().wait())))
    await asyncio.to_thread(started.wait)
    print("over")

asyncio.run(main())
"""


def test_a_program_ends_although_a_function_never_does():
    program = subprocess.run(
        [sys.executable, "-c", ENDLESS], capture_output=True, text=True, timeout=50, check=True
    )

    assert (program.stdout, program.stderr) == ("over\n", "")
