"""BackgroundLoop: what runs beside the worker's loop, what it answers, and how it ends."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from graphile_worker._lease.background_loop import BackgroundLoop, cancel_until_done
from tests.support.recorder import wait_until


@pytest.fixture
async def side() -> AsyncIterator[BackgroundLoop]:
    """One that has started; a test may stop it."""
    # A busy machine may take longer than the 2 s of the worker.
    side = BackgroundLoop(stop_timeout_seconds=20)
    side.start()
    thread = await side.call(here())
    yield side
    if thread.is_alive():
        await side.stop()


class Running:
    """Work that lasts until it is cancelled, and says so."""

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


async def here() -> threading.Thread:
    return threading.current_thread()


async def fail(error: BaseException) -> None:
    raise error


# Something there


async def test_what_is_called_there_runs_in_another_thread_and_loop_and_answers(side):
    async def answer() -> tuple[threading.Thread, asyncio.AbstractEventLoop, int]:
        await asyncio.sleep(0)
        return threading.current_thread(), asyncio.get_running_loop(), 7

    thread, loop, number = await side.call(answer())

    assert thread is not threading.current_thread()
    assert loop is not asyncio.get_running_loop()
    assert number == 7


async def test_all_that_is_given_to_it_runs_in_one_thread(side):
    assert await side.call(here()) is await side.call(here())


async def test_a_program_does_not_wait_for_it(side):
    thread = await side.call(here())

    assert thread.daemon


@pytest.mark.parametrize("error", [LookupError("boom"), TimeoutError(), RuntimeError("closed")])
async def test_what_is_raised_there_is_raised_here(side, error):
    with pytest.raises(type(error)) as raised:
        await side.call(fail(error))

    assert str(raised.value) == str(error)


async def test_a_call_that_fails_does_not_end_the_loop(side):
    side.submit(fail(LookupError("boom")))

    assert await side.call(here())


async def test_what_began_there_goes_on_while_the_loop_here_is_blocked(side):
    went_on = threading.Event()

    async def go_on() -> None:
        for _ in range(3):
            await asyncio.sleep(0.001)
        went_on.set()

    side.submit(go_on())

    # Nothing here is awaited: this loop stands still meanwhile.
    assert went_on.wait(20)


async def test_what_began_there_can_be_cancelled_from_here(side):
    work = Running()
    beginning = side.submit(work.run())
    assert work.began.wait(20)

    beginning.cancel()
    await wait_until(lambda: work.ended)

    assert work.ended == ["cancelled"]


async def test_a_call_that_is_given_up_here_is_cancelled_there(side):
    work = Running()
    call = asyncio.create_task(side.call(work.run()))
    assert await asyncio.to_thread(work.began.wait, 20)

    call.cancel()
    await asyncio.wait([call])
    await wait_until(lambda: work.ended)

    assert call.cancelled()


# The end


async def test_its_end_cancels_what_runs_there(side):
    works = [Running() for _ in range(3)]
    for work in works:
        side.submit(work.run())
        assert work.began.wait(20)

    await side.stop()

    assert [work.ended for work in works] == [["cancelled"]] * 3


async def test_its_end_ends_its_thread_and_closes_its_loop(side):
    async def loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    thread, its_loop = await side.call(here()), await side.call(loop())

    await side.stop()

    assert not thread.is_alive()
    assert its_loop.is_closed()


async def test_what_tidies_up_is_waited_for(side):
    began, never = threading.Event(), asyncio.Event()
    tidied: list[str] = []

    async def tidy() -> None:
        try:
            began.set()
            await never.wait()
        finally:
            await asyncio.sleep(0.01)
            tidied.append("done")

    side.submit(tidy())
    assert began.wait(20)
    await side.stop()

    assert tidied == ["done"]


async def test_work_that_fails_during_its_cancellation_does_not_delay_the_stop(side):
    began, never = threading.Event(), asyncio.Event()

    async def fail_late() -> None:
        began.set()
        try:
            await never.wait()
        finally:
            raise LookupError("boom")

    side.submit(fail_late())
    assert began.wait(20)
    thread = await side.call(here())
    await side.stop()

    assert not thread.is_alive()


class Stubborn:
    """Work that cannot be cancelled."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.was_asked = threading.Event()

    async def run(self) -> None:
        self.began.set()
        while True:
            try:
                await asyncio.sleep(0.001)
            except asyncio.CancelledError:
                self.was_asked.set()


async def test_work_that_cannot_be_cancelled_does_not_delay_the_stop(side):
    # Enough for a busy machine to cancel it, which has no effect.
    side._stop_timeout_seconds = 1
    work, thread = Stubborn(), await side.call(here())
    side.submit(work.run())
    assert work.began.wait(20)

    await side.stop()
    await asyncio.to_thread(thread.join, 20)

    assert work.was_asked.is_set()
    assert not thread.is_alive()


async def test_the_loop_stops_although_its_stop_is_cancelled(side):
    side._stop_timeout_seconds = 1
    work, thread = Stubborn(), await side.call(here())
    side.submit(work.run())
    assert work.began.wait(20)

    stopping = asyncio.create_task(side.stop())
    assert await asyncio.to_thread(work.was_asked.wait, 20)
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
