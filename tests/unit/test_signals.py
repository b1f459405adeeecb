"""Signals: which handlers are called, and which ones are restored."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, NoReturn

import pytest

from graphile_worker._worker.signals import SIGNAL_NAMES, handle_signals, is_interrupt

SIGNALS = [signal.Signals[name] for name in SIGNAL_NAMES]


class SignalRecorder:
    """Records signals, and lets a test wait for them."""

    def __init__(self) -> None:
        self.received: asyncio.Queue[signal.Signals] = asyncio.Queue()

    def __call__(self, number: signal.Signals) -> None:
        # Called on the event loop, because the queue is not thread-safe.
        assert asyncio.get_running_loop()
        self.received.put_nowait(number)


@pytest.fixture(autouse=True)
def program_signals() -> Iterator[list[int]]:
    """The signals that the program's own handlers received."""
    received: list[int] = []
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        signal.signal(number, lambda number, frame: received.append(number))
    yield received
    for number, handler in before.items():
        signal.signal(number, handler)


def handlers() -> list[Any]:
    return [signal.getsignal(number) for number in SIGNALS]


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.feature("F212")
@pytest.mark.parametrize("number", SIGNALS)
async def test_the_signals_of_graphile_worker_for_node_are_handled_on_the_loop(
    number, program_signals
):
    recorder = SignalRecorder()

    with handle_signals(recorder):
        send(number)
        assert await recorder.received.get() is number

    assert program_signals == []


async def test_a_signal_may_come_again():
    recorder = SignalRecorder()

    with handle_signals(recorder):
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            send(number)
            assert await recorder.received.get() is number


async def test_a_closed_pipe_does_not_shut_down():
    before = signal.getsignal(signal.SIGPIPE)

    with handle_signals(SignalRecorder()):
        assert signal.getsignal(signal.SIGPIPE) is before


async def test_all_runners_of_a_program_get_a_signal():
    first, second = SignalRecorder(), SignalRecorder()

    with handle_signals(first), handle_signals(second):
        send(signal.SIGTERM)

        assert await first.received.get() is signal.SIGTERM
        assert await second.received.get() is signal.SIGTERM


async def test_only_running_runners_get_signals():
    first, second = ExitStack(), ExitStack()
    removed, recorder = SignalRecorder(), SignalRecorder()
    first.enter_context(handle_signals(removed))
    second.enter_context(handle_signals(recorder))

    # In the order of their start, unlike nested blocks.
    with second:
        first.close()
        send(signal.SIGTERM)

        assert await recorder.received.get() is signal.SIGTERM
        assert removed.received.empty()


async def test_the_last_to_go_gives_the_signals_back(program_signals):
    before = handlers()

    with handle_signals(SignalRecorder()):
        with handle_signals(SignalRecorder()):
            pass
        assert handlers() != before

    assert handlers() == before
    send(signal.SIGTERM)
    assert program_signals == [signal.SIGTERM]


async def test_signals_are_given_back_after_an_error():
    before = handlers()

    with pytest.raises(LookupError), handle_signals(SignalRecorder()):
        raise LookupError

    assert handlers() == before


async def test_signals_can_be_handled_again():
    recorder = SignalRecorder()
    with handle_signals(SignalRecorder()):
        pass

    with handle_signals(recorder):
        send(signal.SIGHUP)
        assert await recorder.received.get() is signal.SIGHUP


async def test_signal_handlers_of_the_program_are_restored():
    recorder = SignalRecorder()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, recorder, signal.SIGTERM)

    with handle_signals(SignalRecorder()):
        pass
    send(signal.SIGTERM)

    async with asyncio.timeout(40):
        assert await recorder.received.get() is signal.SIGTERM
    loop.remove_signal_handler(signal.SIGTERM)


async def test_outside_the_main_thread_signals_are_left_alone():
    before = handlers()
    during: list[Any] = []

    async def handle_in_thread() -> None:
        with handle_signals(SignalRecorder()):
            during.extend(handlers())

    thread = threading.Thread(target=lambda: asyncio.run(handle_in_thread()))
    thread.start()
    await asyncio.to_thread(thread.join)

    assert during == before
    assert handlers() == before


# KeyboardInterrupt


def catch(call: Any) -> BaseException:
    with pytest.raises(KeyboardInterrupt) as raised:
        call()
    return raised.value


def ctrl_c() -> None:
    send(signal.SIGINT)
    # A handler runs between two instructions, here at the latest.
    time.sleep(20)


def test_a_keyboard_interrupt_of_a_signal_differs_from_one_that_a_task_raises():
    def handle(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    class Handler:
        def __call__(self, number: int, frame: object) -> NoReturn:
            raise KeyboardInterrupt

    def task() -> NoReturn:
        raise KeyboardInterrupt("enough")

    def task_that_tidies_up(body: Any) -> None:
        try:
            body()
        except KeyboardInterrupt:
            send(signal.SIGUSR2)
            raise

    for handler in (signal.default_int_handler, handle, partial(handle), Handler()):
        signal.signal(signal.SIGINT, handler)
        assert is_interrupt(catch(ctrl_c))
        assert is_interrupt(catch(partial(task_that_tidies_up, ctrl_c)))
    handlers_to_try: list[Any] = [
        signal.default_int_handler,
        handle,
        partial(handle),
        signal.SIG_IGN,
    ]
    for handler in handlers_to_try:
        signal.signal(signal.SIGINT, handler)
        assert not is_interrupt(catch(task))
        assert not is_interrupt(catch(partial(task_that_tidies_up, task)))
    assert not is_interrupt(SystemExit())


def test_a_keyboard_interrupt_in_another_thread_comes_from_its_code():
    results: list[bool] = []

    def body() -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            results.append(is_interrupt(error))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()

    assert results == [False]
