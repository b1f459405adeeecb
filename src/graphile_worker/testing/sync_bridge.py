"""Facades that let async code use a blocking psycopg connection, and blocking code an async one."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from inspect import isawaitable
from typing import Any

import psycopg

# The results of these methods are context managers or iterators, and are wrapped too.
WRAPPED_METHODS = ("cursor", "transaction", "pipeline", "copy", "stream", "results", "notifies")

# Methods that are not awaited on psycopg's async classes either.
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
    """A blocking connection, or an object that it returned, for async code."""

    def __init__(self, wrapped: Any, call_sync: CallSync) -> None:
        self._wrapped = wrapped
        self._call_sync = call_sync

    @property  # type: ignore[misc]  # read-only
    def __class__(self) -> type:
        """Return the class for `isinstance`."""
        return psycopg.AsyncConnection if _is_connection(self._wrapped) else AsyncFacade

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._wrapped, name)
        if not callable(member) or name in NON_BLOCKING_METHODS:
            return member
        if name in WRAPPED_METHODS:
            return lambda *args, **kwargs: AsyncFacade(member(*args, **kwargs), self._call_sync)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return self._wrap(await self._call_sync(partial(member, *args, **kwargs)))

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
    """An async connection, or an object that it returned, for blocking code."""

    def __init__(self, wrapped: Any, run_coroutine: RunCoroutine) -> None:
        self._wrapped = wrapped
        self._run_coroutine = run_coroutine

    @property  # type: ignore[misc]  # read-only
    def __class__(self) -> type:
        """Return the class for `isinstance`."""
        return psycopg.Connection if _is_connection(self._wrapped) else SyncFacade

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._wrapped, name)
        return partial(self._call, member) if callable(member) else member

    def __enter__(self) -> Any:
        return self._call(self._wrapped.__aenter__)

    def __exit__(self, *error: Any) -> Any:
        return self._call(self._wrapped.__aexit__, *error)

    def __iter__(self) -> Iterator[Any]:
        async def list_rows() -> list[Any]:
            return [row async for row in self._wrapped]

        return iter(self._call(list_rows))

    def _call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        async def call() -> Any:
            result = function(*args, **kwargs)
            return await result if isawaitable(result) else result

        return self._wrap(self._run_coroutine(call))

    def _wrap(self, value: Any) -> Any:
        if value is self._wrapped:
            return self
        is_opened = isinstance(value, psycopg.AsyncCursor) or hasattr(value, "__aenter__")
        return SyncFacade(value, self._run_coroutine) if is_opened else value


def is_facade(connection: object) -> bool:
    """Return whether it is a facade of the connection of a test."""
    return type(connection) in (AsyncFacade, SyncFacade)


def _is_connection(value: object) -> bool:
    return isinstance(value, psycopg.Connection | psycopg.AsyncConnection)
