"""Hooks: call a function after an event, or wrap an operation.

@hooks.on(JobFailed)
async def alert(event: JobFailed) -> None: ...

@hooks.around(RunningJob)
@contextmanager
def timed(operation: RunningJob) -> Iterator[None]: ...
"""

import asyncio
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
from typing import Any, ClassVar, Generic, TypeVar, overload

from graphile_worker._metrics.recorder import Recorder
from graphile_worker._support.instances import InstanceRegistry
from graphile_worker._support.text import suggest
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

MAX_LISTENER_CALLS = 1000
CATCH_UP_TIMEOUT = timedelta(seconds=1)
NULL_CONTEXT = nullcontext()
NULL_THREAD_CONTEXT = nullcontext(NULL_CONTEXT)

# Messages of the error for a caller who gets no result, because a hook suppressed its error.
NO_JOB_ADDED_MESSAGE = "a hook around AddingJobs suppressed the error: no job was added"
NOT_MIGRATED_MESSAGE = "a hook around Migrating suppressed the error: nothing was migrated"


class Hooks:
    """Listeners of events and wrappers of operations.

    Args:
        max_listener_calls: Running calls of async listeners at which a worker waits.
        catch_up_timeout: Longest wait of a worker for such calls.
    """

    _instances: ClassVar["InstanceRegistry[Hooks]"] = InstanceRegistry()

    def __init__(
        self,
        *,
        max_listener_calls: int = MAX_LISTENER_CALLS,
        catch_up_timeout: timedelta = CATCH_UP_TIMEOUT,
    ) -> None:
        self._max_listener_calls = max_listener_calls
        self._catch_up_seconds = catch_up_timeout.total_seconds()
        self._listeners: _Registry[EventListener] = _Registry()
        self._wrappers: _Registry[Wrapper] = _Registry()
        self._running_calls: dict[asyncio.Future[Any], EventListener] = {}
        self._skipped_names: set[str] = set()
        # For listeners that may need no events for now, whether they do. By id, because a listener
        # may have no hash.
        self._conditions: dict[int, Callable[[], bool]] = {}
        # Set by an exporter of metrics: workers and clients with these hooks count their work.
        self._recorder: Recorder | None = None
        self._instances.add(self)

    @overload
    def on(self, event: type[E]) -> Callable[[Callable[[E], R]], Callable[[E], R]]: ...
    @overload
    def on(self, event: str) -> Callable[[F], F]: ...
    def on(self, event: type[Event] | str) -> Callable[[Any], Any]:
        """Call the decorated function, plain or async, after each event of this kind.

        The worker waits for a plain function. It does not wait for an async one, which may still
        run at the next event. An error in a listener is logged and has no other effect.

        Args:
            event: Event class, its name, or a base class for all events that derive from it.

        Returns:
            A decorator, which returns the function unchanged.

        Raises:
            ConfigurationError: The event does not exist.
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
        """Wrap an operation in the context manager that the decorated function returns.

        The first one registered is the outermost. An error that a context manager raises fails the
        operation, and one that it suppresses counts as success. Blocking code adds jobs too, so
        AddingJobs takes only plain context managers.

        Around a plain task, async context managers are entered on the event loop and, inside them,
        plain ones in the thread of the task. The decorated functions are called on the loop. Around
        an async task, all are entered on the loop.

        Args:
            operation: AddingJobs, RunningJob or Migrating.

        Returns:
            A decorator, which returns the function unchanged.

        Raises:
            ConfigurationError: The operation does not exist, or the function cannot wrap it.
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
        """Remove a function that is registered for exactly this event or operation.

        Args:
            event: Event or operation, as passed to `on` or `around`.
            function: The function. Nothing happens if it is not registered.
        """
        if event in OPERATIONS:
            self._wrappers = self._wrappers.without_entry(event, function)
        else:
            kind = _resolve_event(event)
            self._listeners = self._listeners.without_entry(kind, function)
            self._conditions.pop(id(function), None)

    def include(self, other: "Hooks") -> None:
        """Add the current functions of other hooks after those registered here, each once.

        Args:
            other: The hooks to include.
        """
        self._listeners = self._listeners.with_entries(other._listeners.entries)
        self._wrappers = self._wrappers.with_entries(other._wrappers.entries)
        self._conditions |= other._conditions
        if self._recorder is None or (other._recorder is not None and self._recorder.is_automatic):
            self._recorder = other._recorder

    def _enable_metrics(self, *, has_task_histograms: bool = True) -> Recorder:
        """Return the recorder, created at the first call. A worker reads it when it starts."""
        if self._recorder is None:
            self._recorder = Recorder()
        # The app may have enabled metrics before the command read its options.
        if not has_task_histograms:
            self._recorder.share_histograms()
        return self._recorder

    # Events

    def has_listeners(self, event: type[Event]) -> bool:
        """Return whether a function is registered for this event and needs it now."""
        for listener in self._listeners[event]:
            needs_events = self._conditions.get(id(listener))
            if needs_events is None or needs_events():
                return True
        return False

    def _set_condition(self, listener: EventListener, needs_events: Callable[[], bool]) -> None:
        """Let events that are built for each job be left out while this listener ignores them."""
        self._conditions[id(listener)] = needs_events

    def emit(self, event: Event) -> None:
        """Call the listeners: plain ones now, async ones in separate asyncio tasks.

        Without a running event loop, async listeners are skipped with one warning each. `drain`
        waits for the asyncio tasks.
        """
        for listener in self._listeners[type(event)]:
            try:
                result = listener(event)
                if result is not None and inspect.isawaitable(result):
                    self._schedule_call(listener, event, result)
            # Without an await here, a CancelledError is an error of the listener.
            except (Exception, asyncio.CancelledError) as error:
                _log_failure(listener, event, error)

    async def drain(self, within: timedelta | None = None) -> None:
        """Wait for the async listeners, and for those of events that they emit.

        Args:
            within: Longest wait, after which calls are cancelled. A runner that stops must pass
                it, because a listener may wait for the runner to stop.
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
        """Return whether the worker should wait for async listeners."""
        return len(self._running_calls) >= self._max_listener_calls

    async def catch_up(self) -> None:
        """Wait until fewer async listeners run, at most for `catch_up_timeout`.

        A longer wait could be a deadlock, because a listener may wait for the worker.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(self._catch_up_seconds):
                while self.is_behind and (busy := self._find_calls_on_loop()):
                    await asyncio.wait(busy, return_when=asyncio.FIRST_COMPLETED)

    # Operations

    def has_wrappers(self, operation: type[Operation]) -> bool:
        """Return whether a function is registered around this operation."""
        return bool(self._wrappers[operation])

    def around_sync(self, operation: Operation) -> AbstractContextManager[None]:
        """Enter all context managers in blocking code, where async ones are rejected."""
        wrappers = self._wrappers[type(operation)]
        if not wrappers:
            return NULL_CONTEXT
        return _enter_all(_call_sync_wrapper(wrapper, operation) for wrapper in wrappers)

    def around_sync_only(self, operation: Operation) -> AbstractContextManager[None]:
        """Enter the plain context managers in blocking code. Async ones are left out."""
        managers = (
            _call_wrapper(wrapper, operation) for wrapper in self._wrappers[type(operation)]
        )
        return _enter_all(each for each in managers if isinstance(each, AbstractContextManager))

    def around_async(self, operation: Operation) -> AbstractAsyncContextManager[None]:
        """Enter all context managers, plain and async, on the event loop."""
        wrappers = self._wrappers[type(operation)]
        return _enter_all_on_loop(wrappers, operation) if wrappers else NULL_CONTEXT

    def around_thread(
        self, operation: Operation
    ) -> AbstractAsyncContextManager[AbstractContextManager[None]]:
        """Enter the async context managers and yield the plain ones, to enter in a thread.

        async with hooks.around_thread(operation) as in_thread:
            await asyncio.to_thread(call, in_thread)    # with in_thread: …
        """
        wrappers = self._wrappers[type(operation)]
        return _enter_all_on_loop(wrappers, operation, []) if wrappers else NULL_THREAD_CONTEXT

    def _schedule_call(self, listener: EventListener, event: Event, result: Any) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._skip_listener(listener, event, result)
            return
        # A wrapping coroutine would leave this one un-awaited, with a warning, if the loop ends
        # before its first step.
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
            "async listener %s skipped: %s was emitted in blocking code",
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
        """Return the running calls on this loop, except the current one."""
        loop = asyncio.get_running_loop()
        busy = {task for task in list(self._running_calls) if task.get_loop() is loop}
        return busy - {asyncio.current_task()}

    async def _cancel_calls(self) -> None:
        busy = self._find_calls_on_loop()
        for task in busy:
            logger.warning(
                "listener %s took too long, cancelled", _get_name(self._running_calls[task])
            )
            task.cancel()
        if busy:
            await asyncio.wait(busy, timeout=CANCEL_TIMEOUT_SECONDS)


class _Registry(dict[type[object], tuple[F, ...]], Generic[F]):
    """Functions by event class, base classes included, cached by the first lookup.

    A change makes a new registry, so that it does not disturb a thread that iterates over this one.
    """

    def __init__(self, entries: tuple[tuple[type[object], F], ...] = ()) -> None:
        super().__init__()
        self.entries = entries

    def __missing__(self, kind: type[object]) -> tuple[F, ...]:
        self[kind] = tuple(function for base, function in self.entries if issubclass(kind, base))
        return self[kind]

    def with_entries(self, entries: Iterable[tuple[type[object], F]]) -> "_Registry[F]":
        new = [entry for entry in entries if entry not in self.entries]
        return _Registry((*self.entries, *new))

    def without_entry(self, kind: object, function: object) -> "_Registry[F]":
        return _Registry(tuple(each for each in self.entries if each != (kind, function)))


@contextmanager
def _enter_all(managers: Iterable[SyncManager]) -> Iterator[None]:
    with ExitStack() as stack:
        for manager in managers:
            stack.enter_context(manager)
        yield


@asynccontextmanager
async def _enter_all_on_loop(
    wrappers: tuple[Wrapper, ...], operation: Operation, in_thread: list[SyncManager] | None = None
) -> AsyncIterator[Any]:
    """Enter all context managers, or yield the plain ones if `in_thread` collects them."""
    async with AsyncExitStack() as stack:
        for wrapper in wrappers:
            manager = _call_wrapper(wrapper, operation)
            if not isinstance(manager, AbstractContextManager):
                await stack.enter_async_context(manager)
            elif in_thread is None:
                stack.enter_context(manager)
            else:
                in_thread.append(manager)
        yield None if in_thread is None else _enter_all(in_thread)


def _call_sync_wrapper(wrapper: Wrapper, operation: Operation) -> SyncManager:
    manager = _call_wrapper(wrapper, operation)
    if not isinstance(manager, AbstractContextManager):
        raise _build_async_error(wrapper, operation)
    return manager


def _call_wrapper(wrapper: Wrapper, operation: Operation) -> SyncManager | AsyncManager:
    """Return the context manager of a function. One that is plain and async counts as plain."""
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
        name = _get_name(event)
        raise ConfigurationError(f"{name} is an operation: use around({name})")
    raise ConfigurationError(f"expected an event class or the name of one, got {event!r}")


def _find_event(name: str) -> type[Event]:
    if name in EVENTS_BY_NAME:
        return EVENTS_BY_NAME[name]
    raise ConfigurationError(f"no event is called {name!r}{suggest(name, EVENTS_BY_NAME)}")


def _check_operation(operation: object) -> None:
    if operation not in OPERATIONS:
        choices = ", ".join(kind.__name__ for kind in OPERATIONS)
        raise ConfigurationError(f"around() takes one of {choices}, got {operation!r}")


def _check_wrapper(wrapper: Callable[..., object]) -> None:
    """Raise at the definition for a function that would fail when a job runs."""
    if inspect.isgeneratorfunction(wrapper):
        raise ConfigurationError(
            f"{_get_name(wrapper)} is a generator: decorate it with @contextmanager"
        )
    if inspect.isasyncgenfunction(wrapper):
        raise ConfigurationError(
            f"{_get_name(wrapper)} is an async generator: decorate it with @asynccontextmanager"
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
