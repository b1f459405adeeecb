"""BackgroundLoop: coroutines beside the worker's loop, their results, and its stop."""

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from graphile_worker._lease.background_loop import BackgroundLoop, cancel_until_done
from tests.support.recorder import wait_until


@asynccontextmanager
async def running_loop(stop_timeout_seconds: float) -> AsyncIterator[BackgroundLoop]:
    """Start a loop. A test may stop it."""
    background = BackgroundLoop(stop_timeout_seconds)
    background.start()
    thread = await background.call(get_current_thread())
    yield background
    if thread.is_alive():
        await background.stop()


@pytest.fixture
async def background() -> AsyncIterator[BackgroundLoop]:
    # A busy machine may take longer than the 2 s of the worker.
    async with running_loop(20) as background:
        yield background


@pytest.fixture
async def short_background() -> AsyncIterator[BackgroundLoop]:
    # Enough for a busy machine to cancel work, which may have no effect.
    async with running_loop(1) as background:
        yield background


class Running:
    """Work that runs until it is cancelled, and records that."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.ended: list[str] = []
        self._never = asyncio.Event()

    async def run(self) -> None:
        self.began.set()
        try:
            await self._never.wait()
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise


async def get_current_thread() -> threading.Thread:
    return threading.current_thread()


async def fail(error: BaseException) -> None:
    raise error


# Calls and results


async def test_what_is_called_there_runs_in_another_thread_and_loop_and_answers(background):
    async def describe_thread() -> tuple[threading.Thread, asyncio.AbstractEventLoop, int]:
        await asyncio.sleep(0)
        return threading.current_thread(), asyncio.get_running_loop(), 7

    thread, loop, number = await background.call(describe_thread())

    assert thread is not threading.current_thread()
    assert loop is not asyncio.get_running_loop()
    assert number == 7


async def test_all_that_is_given_to_it_runs_in_one_thread(background):
    assert await background.call(get_current_thread()) is await background.call(
        get_current_thread()
    )


async def test_a_program_does_not_wait_for_it(background):
    thread = await background.call(get_current_thread())

    assert thread.daemon


@pytest.mark.parametrize("error", [LookupError("boom"), TimeoutError(), RuntimeError("closed")])
async def test_what_is_raised_there_is_raised_here(background, error):
    with pytest.raises(type(error)) as raised:
        await background.call(fail(error))

    assert str(raised.value) == str(error)


async def test_a_call_that_fails_does_not_end_the_loop(background):
    background.submit(fail(LookupError("boom")))

    assert await background.call(get_current_thread())


async def test_what_began_there_goes_on_while_the_loop_here_is_blocked(background):
    went_on = threading.Event()

    async def release() -> None:
        for _ in range(3):
            await asyncio.sleep(0.001)
        went_on.set()

    background.submit(release())

    # Nothing is awaited here, so this loop is blocked meanwhile.
    assert went_on.wait(20)


async def test_what_began_there_can_be_cancelled_from_here(background):
    work = Running()
    beginning = background.submit(work.run())
    assert work.began.wait(20)

    beginning.cancel()
    await wait_until(lambda: work.ended)

    assert work.ended == ["cancelled"]


async def test_a_cancelled_call_is_cancelled_on_the_background_loop(background):
    work = Running()
    call = asyncio.create_task(background.call(work.run()))
    assert await asyncio.to_thread(work.began.wait, 20)

    call.cancel()
    await asyncio.wait([call])
    await wait_until(lambda: work.ended)

    assert call.cancelled()


# Stop


async def test_its_end_cancels_what_runs_there(background):
    works = [Running() for _ in range(3)]
    for work in works:
        background.submit(work.run())
        assert work.began.wait(20)

    await background.stop()

    assert [work.ended for work in works] == [["cancelled"]] * 3


async def test_its_end_ends_its_thread_and_closes_its_loop(background):
    async def loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    thread, its_event_loop = (
        await background.call(get_current_thread()),
        await background.call(loop()),
    )

    await background.stop()

    assert not thread.is_alive()
    assert its_event_loop.is_closed()


async def test_what_tidies_up_is_waited_for(background):
    began, never = threading.Event(), asyncio.Event()
    tidied: list[str] = []

    async def tidy() -> None:
        try:
            began.set()
            await never.wait()
        finally:
            await asyncio.sleep(0.01)
            tidied.append("done")

    background.submit(tidy())
    assert began.wait(20)
    await background.stop()

    assert tidied == ["done"]


async def test_work_that_fails_during_its_cancellation_does_not_delay_the_stop(background):
    began, never = threading.Event(), asyncio.Event()

    async def fail_late() -> None:
        began.set()
        try:
            await never.wait()
        finally:
            raise LookupError("boom")

    background.submit(fail_late())
    assert began.wait(20)
    thread = await background.call(get_current_thread())
    await background.stop()

    assert not thread.is_alive()


class Stubborn:
    """Work that cannot be cancelled."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.was_cancelled = threading.Event()

    async def run(self) -> None:
        self.began.set()
        while True:
            try:
                await asyncio.sleep(0.001)
            except asyncio.CancelledError:
                self.was_cancelled.set()


async def test_work_that_cannot_be_cancelled_does_not_delay_the_stop(short_background):
    work, thread = Stubborn(), await short_background.call(get_current_thread())
    short_background.submit(work.run())
    assert work.began.wait(20)

    await short_background.stop()
    await asyncio.to_thread(thread.join, 20)

    assert work.was_cancelled.is_set()
    assert not thread.is_alive()


async def test_work_that_cannot_be_cancelled_is_not_logged_later(caplog):
    async def stop_with_stubborn_work() -> weakref.ref[Stubborn]:
        async with running_loop(0.1) as background:
            work = Stubborn()
            background.submit(work.run())
            assert await asyncio.to_thread(work.began.wait, 20)
            thread = await background.call(get_current_thread())
        await asyncio.to_thread(thread.join, 20)
        return weakref.ref(work)

    work = await stop_with_stubborn_work()
    gc.collect()

    assert work() is None
    assert caplog.records == []


async def test_the_loop_stops_although_its_stop_is_cancelled(short_background):
    work, thread = Stubborn(), await short_background.call(get_current_thread())
    short_background.submit(work.run())
    assert work.began.wait(20)

    stopping = asyncio.create_task(short_background.stop())
    assert await asyncio.to_thread(work.was_cancelled.wait, 20)
    stopping.cancel()
    await asyncio.wait([stopping])
    await asyncio.to_thread(thread.join, 20)

    assert not thread.is_alive()


async def test_tasks_end_although_a_cancellation_is_lost():
    cancellations: list[str] = []

    async def lose_the_first() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        cancellations.append("lost")
        try:
            await asyncio.Event().wait()
        finally:
            cancellations.append("received")

    task = asyncio.create_task(lose_the_first())
    await asyncio.sleep(0)
    await cancel_until_done([task], retry_seconds=0.01)

    assert cancellations == ["lost", "received"]
