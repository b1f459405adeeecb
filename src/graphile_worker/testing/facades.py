"""A psycopg connection for the other kind of code: both kinds of tasks run in every test."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from inspect import isawaitable
from typing import Any

import psycopg

# What they return is for `with` and goes on being used, rather than being an answer.
OPENING = ("cursor", "transaction", "pipeline", "copy", "stream", "results", "notifies")

# What psycopg's async classes do not await either.
PLAIN = (
    "add_notice_handler",
    "add_notify_handler",
    "cancel",
    "fileno",
    "nextset",
    "remove_notice_handler",
    "remove_notify_handler",
)

Ask = Callable[[Callable[[], Any]], Awaitable[Any]]
Wait = Callable[[Callable[[], Any]], Any]


class Awaited:
    """A blocking connection, or what it gave, for async code: what blocks is awaited."""

    def __init__(self, plain: Any, ask: Ask) -> None:
        self._plain = plain
        self._ask = ask

    @property  # type: ignore[misc]  # nobody sets it
    def __class__(self) -> type:
        """What it stands for, for those who ask what it is."""
        return psycopg.AsyncConnection if _is_connection(self._plain) else Awaited

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._plain, name)
        if not callable(found) or name in PLAIN:
            return found
        if name in OPENING:
            return lambda *args, **kwargs: Awaited(found(*args, **kwargs), self._ask)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return self._given(await self._ask(partial(found, *args, **kwargs)))

        return call

    async def __aenter__(self) -> Any:
        return self._given(await self._ask(self._plain.__enter__))

    async def __aexit__(self, *error: Any) -> Any:
        return await self._ask(partial(self._plain.__exit__, *error))

    async def __aiter__(self) -> AsyncIterator[Any]:
        for row in await self._ask(partial(list, self._plain)):
            yield row

    def _given(self, value: Any) -> Any:
        if value is self._plain:
            return self
        return Awaited(value, self._ask) if isinstance(value, psycopg.Cursor) else value


class Waited:
    """An async connection, or what it gave, for a plain function: what is awaited is waited for."""

    def __init__(self, plain: Any, wait: Wait) -> None:
        self._plain = plain
        self._wait = wait

    @property  # type: ignore[misc]  # nobody sets it
    def __class__(self) -> type:
        return psycopg.Connection if _is_connection(self._plain) else Waited

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._plain, name)
        if not callable(found):
            return found
        return lambda *args, **kwargs: self._given(self._called(found, *args, **kwargs))

    def __enter__(self) -> Any:
        return self._given(self._called(self._plain.__aenter__))

    def __exit__(self, *error: Any) -> Any:
        return self._called(self._plain.__aexit__, *error)

    def __iter__(self) -> Iterator[Any]:
        async def rows() -> list[Any]:
            return [row async for row in self._plain]

        return iter(self._called(rows))

    def _called(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        async def call() -> Any:
            result = function(*args, **kwargs)
            return await result if isawaitable(result) else result

        return self._wait(call)

    def _given(self, value: Any) -> Any:
        if value is self._plain:
            return self
        is_opened = isinstance(value, psycopg.AsyncCursor) or hasattr(value, "__aenter__")
        return Waited(value, self._wait) if is_opened else value


def is_facade(connection: object) -> bool:
    """Is it the connection of a test, in other clothes?"""
    return type(connection) in (Awaited, Waited)


def _is_connection(plain: object) -> bool:
    return isinstance(plain, psycopg.Connection | psycopg.AsyncConnection)
