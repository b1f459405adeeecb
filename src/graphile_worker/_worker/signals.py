"""Handle signals: the first one shuts down all runners gracefully, the second one forcefully."""

import asyncio
import opcode
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType, TracebackType
from typing import Any

# The signals that Graphile Worker for Node handles, without SIGPIPE.
SIGNAL_NAMES = ("SIGUSR2", "SIGINT", "SIGTERM", "SIGHUP", "SIGABRT")

RAISE_OPCODE = opcode.opmap["RAISE_VARARGS"]

SignalHandler = Callable[[signal.Signals], None]

# Several runners in one process share the signals: the first one installs the handlers, the last
# one restores them.
_handlers: list[SignalHandler] = []
_previous_handlers: dict[signal.Signals, Any] = {}


@contextmanager
def handle_signals(handler: SignalHandler) -> Iterator[None]:
    """Call the function on the event loop for each signal inside the block."""
    if threading.current_thread() is not threading.main_thread():
        # Only the main thread receives signals: the program must call stop() there.
        yield
        return
    if not _handlers:
        _install_handlers()
    _handlers.append(handler)
    try:
        yield
    finally:
        _handlers.remove(handler)
        if not _handlers:
            _restore_handlers()


def _install_handlers() -> None:
    # Not with loop.add_signal_handler, which would replace handlers of the program.
    loop = asyncio.get_running_loop()
    for name in SIGNAL_NAMES:
        number = getattr(signal, name, None)
        # A handler that Python did not set, for example faulthandler's, could not be restored.
        if number is None or signal.getsignal(number) is None:
            continue
        # nohup ignores SIGHUP, so that a worker runs on without its terminal.
        if name != "SIGHUP" or signal.getsignal(number) is not signal.SIG_IGN:
            _previous_handlers[number] = signal.signal(number, partial(_forward_signal, loop))


def _restore_handlers() -> None:
    for number, handler in _previous_handlers.items():
        signal.signal(number, handler)
    _previous_handlers.clear()


def _forward_signal(loop: asyncio.AbstractEventLoop, number: int, _frame: FrameType | None) -> None:
    loop.call_soon_threadsafe(_call_handlers, signal.Signals(number))


def _call_handlers(number: signal.Signals) -> None:
    for handler in list(_handlers):
        handler(number)


def is_interrupt(error: BaseException) -> bool:
    """Return whether a signal raised this KeyboardInterrupt, and not the code of a task."""
    if not isinstance(error, KeyboardInterrupt):
        return False
    if threading.current_thread() is not threading.main_thread():
        return False
    trace = list(_iterate_traceback(error.__traceback__))
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        # This handler is written in C and has no frame. It interrupts any code but a `raise`.
        last = trace[-1]
        return last.tb_frame.f_code.co_code[last.tb_lasti] != RAISE_OPCODE
    while isinstance(handler, partial):
        handler = handler.func
    code = getattr(handler, "__code__", None)
    if code is None:
        return callable(handler)
    return any(each.tb_frame.f_code is code for each in trace)


def _iterate_traceback(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next
