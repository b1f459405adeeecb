"""Signals to a command that must clean up before it exits."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

from graphile_worker._bench.schema import EXIT_SIGNALS


@contextmanager
def handle_interrupts() -> Iterator[None]:
    """Run every `finally` when a signal arrives, then exit with its code."""

    def handle(number: int, _frame: FrameType | None) -> None:
        raise _SignalReceived(number)

    previous = {each: signal.signal(each, handle) for each in EXIT_SIGNALS}
    try:
        yield
    except _SignalReceived as interrupted:
        click.echo("graphile-worker: interrupted", err=True)
        click.get_current_context().exit(128 + interrupted.number)
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)


class _SignalReceived(KeyboardInterrupt):
    """Raised by a signal. As for its base class, psycopg cancels the running statement."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
