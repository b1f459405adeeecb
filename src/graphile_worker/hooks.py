"""The one way to extend this library: hear what happened, or be there while it happens.

    @hooks.on(JobFailed)
    async def tell_someone(event: JobFailed) -> None: ...

    @hooks.around(RunningJob)
    @contextmanager
    def timed(operation: RunningJob) -> Iterator[None]: ...

Engines announce with `emit` and wrap with one of the `around_…` methods. Where building the event
would cost something, they ask `has_listeners` or `wraps` first: one look into a dictionary.
"""

import asyncio
import difflib
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar, overload

from graphile_worker.errors import ConfigurationError
from graphile_worker.events import (
    EVENTS_BY_NAME,
    AddingJobs,
    Event,
    Migrating,
    Operation,
    RunningJob,
)

logger = logging.getLogger(__name__)

SyncManager = AbstractContextManager[Any]
AsyncManager = AbstractAsyncContextManager[Any]
EventListener = Callable[[Any], object]
Wrapper = Callable[[Any], SyncManager | AsyncManager]

E = TypeVar("E", bound=Event)
R = TypeVar("R")
W = TypeVar("W", RunningJob, Migrating)
F = TypeVar("F", bound=Callable[[Any], object])
AnyManager = TypeVar("AnyManager", bound=SyncManager | AsyncManager)
AnySyncManager = TypeVar("AnySyncManager", bound=SyncManager)

OPERATIONS: tuple[type[Operation], ...] = (AddingJobs, RunningJob, Migrating)
CANCEL_TIMEOUT_SECONDS = 1.0

# With this many calls of async listeners under way, a worker waits before its next job, this long.
MAX_LISTENER_CALLS = 1000
CATCH_UP_SECONDS = 1.0
NULL_CONTEXT = nullcontext()
NULL_THREAD_CONTEXT = nullcontext(NULL_CONTEXT)


# Said where an error was swallowed that leaves the caller without an answer.
NO_JOB_ADDED_MESSAGE = "a hook around AddingJobs swallowed the error: no job was added"
NOT_MIGRATED_MESSAGE = "a hook around Migrating swallowed the error: nothing was migrated"


class Hooks:
    """Who wants to hear of events, and who wants to be around moments."""

    def __init__(self) -> None:
        self._listeners: _Registry[EventListener] = _Registry()
        self._wrappers: _Registry[Wrapper] = _Registry()
        self._running_calls: dict[asyncio.Future[Any], EventListener] = {}
        self._skipped_names: set[str] = set()

    # For those who extend

    @overload
    def on(self, event: type[E]) -> Callable[[Callable[[E], R]], Callable[[E], R]]: ...
    @overload
    def on(self, event: str) -> Callable[[F], F]: ...
    def on(self, event: type[Event] | str) -> Callable[[Any], Any]:
        """Call the decorated function, plain or async, whenever this happened.

        `event` is a class, its original name, or a base class to hear all that derive from it.
        An error in a listener is logged and reaches nobody else. The engine waits for a plain
        function and not for an async one, which may still run when the next event comes.
        """
        kind = _resolve_event(event)

        def register(listener: F) -> F:
            self._listeners = self._listeners.with_entries([(kind, listener)])
            return listener

        return register

    @overload
    def around(
        self, operation: type[AddingJobs]
    ) -> Callable[
        [Callable[[AddingJobs], AnySyncManager]], Callable[[AddingJobs], AnySyncManager]
    ]: ...
    @overload
    def around(
        self, operation: type[W]
    ) -> Callable[[Callable[[W], AnyManager]], Callable[[W], AnyManager]]: ...
    def around(self, operation: type[Operation]) -> Callable[[Any], Any]:
        """Enter the context manager that the decorated function returns, while this happens.

        The one registered first is the outermost. What a context manager raises fails the
        operation; an error that it swallows counts as success. Jobs are added in blocking code
        too, so around AddingJobs only plain ones will do.

        For a task that is a plain function, async context managers are entered on the event loop
        and, inside them, plain ones in the task's thread; the decorated functions themselves are
        called on the loop. For an async task all are entered on the loop.
        """
        _check_operation(operation)

        def register(wrapper: Wrapper) -> Wrapper:
            _check_wrapper(wrapper)
            self._wrappers = self._wrappers.with_entries([(operation, wrapper)])
            return wrapper

        return register

    def off(
        self, event: type[Event] | type[Operation] | str, function: Callable[..., object]
    ) -> None:
        """Forget a function that was registered for exactly this; fine when it was not."""
        if event in OPERATIONS:
            self._wrappers = self._wrappers.without_entry(event, function)
        else:
            kind = _resolve_event(event)
            self._listeners = self._listeners.without_entry(kind, function)

    def include(self, other: "Hooks") -> None:
        """Add all that `other` has by now, after our own; what is in both stays there once."""
        self._listeners = self._listeners.with_entries(other._listeners.entries)
        self._wrappers = self._wrappers.with_entries(other._wrappers.entries)

    # For the engines: events

    def has_listeners(self, event: type[Event]) -> bool:
        """Whether anybody listens for this."""
        return bool(self._listeners[event])

    def emit(self, event: Event) -> None:
        """Tell the listeners: plain ones before this returns, async ones in tasks of their own.

        Without a running event loop nobody can await the async ones: they are left out, and a
        warning says so once. The tasks are ours until `drain` has seen them end.
        """
        for listener in self._listeners[type(event)]:
            try:
                result = listener(event)
                if result is not None and inspect.isawaitable(result):
                    self._schedule_call(listener, event, result)
            # Nobody is cancelled between two awaits: here it is an error of the listener.
            except (Exception, asyncio.CancelledError) as error:
                _log_failure(listener, event, error)

    async def drain(self, within: timedelta | None = None) -> None:
        """Return once the async listeners are done, and those of events that they emitted.

        With `within`, what is not done by then is cancelled. A runner that stops must say it,
        because a listener may itself be waiting for the runner to stop.
        """
        seconds = None if within is None else within.total_seconds()
        try:
            async with asyncio.timeout(seconds):
                while busy := self._find_calls_on_loop():
                    await asyncio.wait(busy)
        except TimeoutError:
            await self._cancel_calls()

    @property
    def is_behind(self) -> bool:
        """Whether too many calls of async listeners run, so that the worker should wait."""
        return len(self._running_calls) >= MAX_LISTENER_CALLS

    async def catch_up(self) -> None:
        """Wait until fewer calls of async listeners run, at most a second.

        Not longer, because a listener may itself be waiting for the worker.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP_SECONDS):
                while self.is_behind and (busy := self._find_calls_on_loop()):
                    await asyncio.wait(busy, return_when=asyncio.FIRST_COMPLETED)

    # For the engines: moments

    def has_wrappers(self, operation: type[Operation]) -> bool:
        """Whether anybody wants to be around this."""
        return bool(self._wrappers[operation])

    def around_sync(self, operation: Operation) -> AbstractContextManager[None]:
        """All that was registered, for blocking code; refuses async context managers."""
        wrappers = self._wrappers[type(operation)]
        if not wrappers:
            return NULL_CONTEXT
        return _enter_all(_call_sync_wrapper(wrapper, operation) for wrapper in wrappers)

    def around_async(self, operation: Operation) -> AbstractAsyncContextManager[None]:
        """All that was registered, plain and async, entered on the event loop."""
        wrappers = self._wrappers[type(operation)]
        return _enter_all_on_loop(wrappers, operation) if wrappers else NULL_CONTEXT

    def around_thread(
        self, operation: Operation
    ) -> AbstractAsyncContextManager[AbstractContextManager[None]]:
        """The async ones entered on the event loop; gives the plain ones, to enter in a thread.

        async with hooks.around_thread(moment) as in_thread:
            await asyncio.to_thread(call, in_thread)    # with in_thread: …
        """
        wrappers = self._wrappers[type(operation)]
        return _enter_async_part(wrappers, operation) if wrappers else NULL_THREAD_CONTEXT

    # Async listeners at work

    def _schedule_call(self, listener: EventListener, event: Event, result: Any) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._skip_listener(listener, event, result)
            return
        # The coroutine itself becomes the task: one inside another would be left un-awaited, and
        # warn, when the loop ends before its first step.
        task = asyncio.ensure_future(result, loop=loop)
        self._running_calls[task] = listener
        task.add_done_callback(partial(self._on_call_done, listener, event))

    def _skip_listener(self, listener: EventListener, event: Event, result: Any) -> None:
        if inspect.iscoroutine(result):
            result.close()
        if _get_name(listener) in self._skipped_names:
            return
        self._skipped_names.add(_get_name(listener))
        logger.warning(
            "listener %s is async and was left out: %s happened in blocking code",
            _get_name(listener),
            type(event).__name__,
        )

    def _on_call_done(
        self, listener: EventListener, event: Event, task: asyncio.Future[Any]
    ) -> None:
        self._running_calls.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        # The event loop has already raised KeyboardInterrupt and SystemExit.
        if isinstance(error, Exception):
            _log_failure(listener, event, error)

    def _find_calls_on_loop(self) -> set[asyncio.Future[Any]]:
        """What runs on this loop, without the listener that asks."""
        loop = asyncio.get_running_loop()
        busy = {task for task in list(self._running_calls) if task.get_loop() is loop}
        return busy - {asyncio.current_task()}

    async def _cancel_calls(self) -> None:
        busy = self._find_calls_on_loop()
        for task in busy:
            logger.warning(
                "listener %s took too long and was cancelled", _get_name(self._running_calls[task])
            )
            task.cancel()
        if busy:
            await asyncio.wait(busy, timeout=CANCEL_TIMEOUT_SECONDS)


class _Registry(dict[type[object], tuple[F, ...]], Generic[F]):
    """Who registered for what; looking up a class finds all whom it concerns, in order.

    A table only ever learns answers: `with_entries` and `without_entry` make another one, so that
    a thread or a loop that is in the middle of one is not disturbed.
    """

    def __init__(self, entries: tuple[tuple[type[object], F], ...] = ()) -> None:
        super().__init__()
        self.entries = entries

    def __missing__(self, kind: type[object]) -> tuple[F, ...]:
        found = tuple(function for wanted, function in self.entries if issubclass(kind, wanted))
        self[kind] = found
        return found

    def with_entries(self, entries: Iterable[tuple[type[object], F]]) -> "_Registry[F]":
        new = [entry for entry in entries if entry not in self.entries]
        return _Registry((*self.entries, *new))

    def without_entry(self, kind: object, function: object) -> "_Registry[F]":
        gone = (kind, function)
        return _Registry(tuple(entry for entry in self.entries if entry != gone))


@contextmanager
def _enter_all(managers: Iterable[SyncManager]) -> Iterator[None]:
    with ExitStack() as stack:
        for manager in managers:
            stack.enter_context(manager)
        yield


@asynccontextmanager
async def _enter_all_on_loop(
    wrappers: tuple[Wrapper, ...], operation: Operation
) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for wrapper in wrappers:
            manager = _call_wrapper(wrapper, operation)
            if isinstance(manager, AbstractContextManager):
                stack.enter_context(manager)
            else:
                await stack.enter_async_context(manager)
        yield


@asynccontextmanager
async def _enter_async_part(
    wrappers: tuple[Wrapper, ...], operation: Operation
) -> AsyncIterator[AbstractContextManager[None]]:
    in_thread: list[SyncManager] = []
    async with AsyncExitStack() as stack:
        for wrapper in wrappers:
            manager = _call_wrapper(wrapper, operation)
            if isinstance(manager, AbstractContextManager):
                in_thread.append(manager)
            else:
                await stack.enter_async_context(manager)
        yield _enter_all(in_thread)


def _call_sync_wrapper(wrapper: Wrapper, operation: Operation) -> SyncManager:
    manager = _call_wrapper(wrapper, operation)
    if not isinstance(manager, AbstractContextManager):
        raise _build_async_error(wrapper, operation)
    return manager


def _call_wrapper(wrapper: Wrapper, operation: Operation) -> SyncManager | AsyncManager:
    """What the function returns for this moment; one that can be both counts as plain."""
    manager = wrapper(operation)
    if isinstance(manager, AbstractContextManager):
        return manager
    if not isinstance(manager, AbstractAsyncContextManager):
        raise ConfigurationError(
            f"{_get_name(wrapper)} must return a context manager, got {type(manager).__name__}"
        )
    if isinstance(operation, AddingJobs):
        raise _build_async_error(wrapper, operation)
    return manager


def _build_async_error(wrapper: Wrapper, operation: Operation) -> ConfigurationError:
    return ConfigurationError(
        f"{_get_name(wrapper)} returned an async context manager, "
        f"but {type(operation).__name__} is for blocking code too: return a plain one"
    )


def _resolve_event(event: object) -> type[Event]:
    if isinstance(event, str):
        return _find_event(event)
    if isinstance(event, type) and issubclass(event, Event):
        return event
    if event in OPERATIONS:
        raise ConfigurationError(f"{_get_name(event)} is a moment: use around({_get_name(event)})")
    raise ConfigurationError(f"expected an event class or the name of one, got {event!r}")


def _find_event(name: str) -> type[Event]:
    if name in EVENTS_BY_NAME:
        return EVENTS_BY_NAME[name]
    close = difflib.get_close_matches(name, EVENTS_BY_NAME, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ConfigurationError(f"no event is called {name!r}{hint}")


def _check_operation(operation: object) -> None:
    if operation not in OPERATIONS:
        moments = ", ".join(kind.__name__ for kind in OPERATIONS)
        raise ConfigurationError(f"around() takes one of {moments}, got {operation!r}")


def _check_wrapper(wrapper: Callable[..., object]) -> None:
    """Refuse now what could only fail later, when a job runs."""
    if inspect.isgeneratorfunction(wrapper):
        raise ConfigurationError(
            f"{_get_name(wrapper)} is a generator: decorate it @contextmanager"
        )
    if inspect.isasyncgenfunction(wrapper):
        raise ConfigurationError(
            f"{_get_name(wrapper)} is an async generator: decorate it @asynccontextmanager"
        )
    if inspect.iscoroutinefunction(wrapper):
        raise ConfigurationError(
            f"{_get_name(wrapper)} is async: it must be a plain function that returns a context "
            "manager, plain or async"
        )


def _log_failure(listener: EventListener, event: Event, error: BaseException) -> None:
    logger.error(
        "listener %s failed on %s", _get_name(listener), type(event).__name__, exc_info=error
    )


def _get_name(function: object) -> str:
    return getattr(function, "__qualname__", None) or repr(function)
