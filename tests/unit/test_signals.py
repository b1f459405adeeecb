"""Signals: who hears them, and who has them afterwards."""

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


class Ear:
    """Remembers the signals it heard, and lets a test wait for them."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[signal.Signals] = asyncio.Queue()

    def __call__(self, number: signal.Signals) -> None:
        # Only on the loop: a queue knows its own.
        assert asyncio.get_running_loop()
        self.heard.put_nowait(number)


@pytest.fixture(autouse=True)
def others() -> Iterator[list[int]]:
    """The signals that the program itself hears, with handlers of its own."""
    heard: list[int] = []
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        signal.signal(number, lambda number, frame: heard.append(number))
    yield heard
    for number, handler in before.items():
        signal.signal(number, handler)


def handlers() -> list[Any]:
    return [signal.getsignal(number) for number in SIGNALS]


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.feature("F212")
@pytest.mark.parametrize("number", SIGNALS)
async def test_the_signals_of_graphile_worker_for_node_are_handled_on_the_loop(number, others):
    ear = Ear()

    with handle_signals(ear):
        send(number)
        assert await ear.heard.get() is number

    assert others == []


async def test_a_signal_may_come_again():
    ear = Ear()

    with handle_signals(ear):
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            send(number)
            assert await ear.heard.get() is number


async def test_a_closed_pipe_does_not_shut_down():
    before = signal.getsignal(signal.SIGPIPE)

    with handle_signals(Ear()):
        assert signal.getsignal(signal.SIGPIPE) is before


async def test_all_runners_of_a_program_get_a_signal():
    first, second = Ear(), Ear()

    with handle_signals(first), handle_signals(second):
        send(signal.SIGTERM)

        assert await first.heard.get() is signal.SIGTERM
        assert await second.heard.get() is signal.SIGTERM


async def test_a_runner_that_ended_gets_no_signal_and_the_others_do():
    first, second = ExitStack(), ExitStack()
    gone, ear = Ear(), Ear()
    first.enter_context(handle_signals(gone))
    second.enter_context(handle_signals(ear))

    # In the order in which they came, not the other way round as blocks would have it.
    with second:
        first.close()
        send(signal.SIGTERM)

        assert await ear.heard.get() is signal.SIGTERM
        assert gone.heard.empty()


async def test_the_last_to_go_gives_the_signals_back(others):
    before = handlers()

    with handle_signals(Ear()):
        with handle_signals(Ear()):
            pass
        assert handlers() != before

    assert handlers() == before
    send(signal.SIGTERM)
    assert others == [signal.SIGTERM]


async def test_signals_are_given_back_after_an_error():
    before = handlers()

    with pytest.raises(LookupError), handle_signals(Ear()):
        raise LookupError

    assert handlers() == before


async def test_signals_can_be_taken_over_again():
    ear = Ear()
    with handle_signals(Ear()):
        pass

    with handle_signals(ear):
        send(signal.SIGHUP)
        assert await ear.heard.get() is signal.SIGHUP


async def test_signal_handlers_of_the_program_are_restored():
    ear = Ear()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, ear, signal.SIGTERM)

    with handle_signals(Ear()):
        pass
    send(signal.SIGTERM)

    async with asyncio.timeout(40):
        assert await ear.heard.get() is signal.SIGTERM
    loop.remove_signal_handler(signal.SIGTERM)


async def test_outside_the_main_thread_signals_are_left_alone():
    before = handlers()
    during: list[Any] = []

    async def elsewhere() -> None:
        with handle_signals(Ear()):
            during.extend(handlers())

    thread = threading.Thread(target=lambda: asyncio.run(elsewhere()))
    thread.start()
    await asyncio.to_thread(thread.join)

    assert during == before
    assert handlers() == before


# KeyboardInterrupt


def caught(call: Any) -> BaseException:
    with pytest.raises(KeyboardInterrupt) as raised:
        call()
    return raised.value


def ctrl_c() -> None:
    send(signal.SIGINT)
    # A handler runs between two instructions, at the latest here.
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
        assert is_interrupt(caught(ctrl_c))
        assert is_interrupt(caught(partial(task_that_tidies_up, ctrl_c)))
    others: list[Any] = [signal.default_int_handler, handle, partial(handle), signal.SIG_IGN]
    for other in others:
        signal.signal(signal.SIGINT, other)
        assert not is_interrupt(caught(task))
        assert not is_interrupt(caught(partial(task_that_tidies_up, task)))
    assert not is_interrupt(SystemExit())


def test_a_keyboard_interrupt_in_another_thread_comes_from_its_code():
    found: list[bool] = []

    def body() -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            found.append(is_interrupt(error))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()

    assert found == [False]
