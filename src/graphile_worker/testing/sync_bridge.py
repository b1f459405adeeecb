"""A psycopg connection for the other kind of code: both kinds of tasks run in every test."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from inspect import isawaitable
from typing import Any

import psycopg

# What they return is for `with` and goes on being used, rather than being an answer.
WRAPPED_METHODS = ("cursor", "transaction", "pipeline", "copy", "stream", "results", "notifies")

# What psycopg's async classes do not await either.
NON_BLOCKING_METHODS = (
    "add_notice_handler",
    "add_notify_handler",
    "cancel",
    "fileno",
    "nextset",
    "remove_notice_handler",
    "remove_notify_handler",
)

CallSync = Callable[[Callable[[], Any]], Awaitable[Any]]
RunCoroutine = Callable[[Callable[[], Any]], Any]


class AsyncFacade:
    """A blocking connection, or what it gave, for async code: what blocks is awaited."""

    def __init__(self, wrapped: Any, call_sync: CallSync) -> None:
        self._wrapped = wrapped
        self._call_sync = call_sync

    @property  # type: ignore[misc]  # nobody sets it
    def __class__(self) -> type:
        """What it stands for, for those who ask what it is."""
        return psycopg.AsyncConnection if _is_connection(self._wrapped) else AsyncFacade

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._wrapped, name)
        if not callable(found) or name in NON_BLOCKING_METHODS:
            return found
        if name in WRAPPED_METHODS:
            return lambda *args, **kwargs: AsyncFacade(found(*args, **kwargs), self._call_sync)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return self._wrap(await self._call_sync(partial(found, *args, **kwargs)))

        return call

    async def __aenter__(self) -> Any:
        return self._wrap(await self._call_sync(self._wrapped.__enter__))

    async def __aexit__(self, *error: Any) -> Any:
        return await self._call_sync(partial(self._wrapped.__exit__, *error))

    async def __aiter__(self) -> AsyncIterator[Any]:
        for row in await self._call_sync(partial(list, self._wrapped)):
            yield row

    def _wrap(self, value: Any) -> Any:
        if value is self._wrapped:
            return self
        return AsyncFacade(value, self._call_sync) if isinstance(value, psycopg.Cursor) else value


class SyncFacade:
    """An async connection, or what it gave, for a plain function: what is awaited is waited for."""

    def __init__(self, wrapped: Any, run_coroutine: RunCoroutine) -> None:
        self._wrapped = wrapped
        self._run_coroutine = run_coroutine

    @property  # type: ignore[misc]  # nobody sets it
    def __class__(self) -> type:
        return psycopg.Connection if _is_connection(self._wrapped) else SyncFacade

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._wrapped, name)
        if not callable(found):
            return found
        return lambda *args, **kwargs: self._wrap(self._call(found, *args, **kwargs))

    def __enter__(self) -> Any:
        return self._wrap(self._call(self._wrapped.__aenter__))

    def __exit__(self, *error: Any) -> Any:
        return self._call(self._wrapped.__aexit__, *error)

    def __iter__(self) -> Iterator[Any]:
        async def rows() -> list[Any]:
            return [row async for row in self._wrapped]

        return iter(self._call(rows))

    def _call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        async def call() -> Any:
            result = function(*args, **kwargs)
            return await result if isawaitable(result) else result

        return self._run_coroutine(call)

    def _wrap(self, value: Any) -> Any:
        if value is self._wrapped:
            return self
        is_opened = isinstance(value, psycopg.AsyncCursor) or hasattr(value, "__aenter__")
        return SyncFacade(value, self._run_coroutine) if is_opened else value


def is_facade(connection: object) -> bool:
    """Is it the connection of a test, in other clothes?"""
    return type(connection) in (AsyncFacade, SyncFacade)


def _is_connection(value: object) -> bool:
    return isinstance(value, psycopg.Connection | psycopg.AsyncConnection)
