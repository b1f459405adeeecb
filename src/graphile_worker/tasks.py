"""A task is a function with an identifier; its parameters are the keys of a JSON object.

One positional-only parameter is the whole payload instead. A first parameter annotated with
`JobContext` is given by the worker. Defining tasks never connects to anything.
"""

import asyncio
import inspect
import json
import logging
import sys
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Protocol, overload

from graphile_worker.crontab.items import (
    CronItem,
    CronKeyMode,
    ParsedCronItem,
    check_identifiers,
    parse_cron_items,
)
from graphile_worker.crontab.zones import Match
from graphile_worker.errors import ConfigurationError, JobSpecError, TaskNotFound
from graphile_worker.jobs import Job, JobKeyMode, JobKeyModeName, JobSpec, When
from graphile_worker.logs import Logger
from graphile_worker.payloads import Mismatch, Reader, encode, reader
from graphile_worker.retries import Backoff

if sys.version_info >= (3, 13):
    from typing import TypeVar
else:
    from typing_extensions import TypeVar

P = ParamSpec("P")
R = TypeVar("R")
D = TypeVar("D", default=None)  # what the lifespan of an app yields
C = TypeVar("C", default=Any, covariant=True)
T = TypeVar("T", bound="Task[..., Any]")

# A function is told the error and the job; None gives up.
RetryPolicy = Backoff | Callable[[BaseException, Job], When | None]
RunIn = Literal["loop", "thread", "process"]

logger = logging.getLogger("graphile_worker")


@dataclass(frozen=True, slots=True)
class CronRun:
    """The minute for which the crontab added a job, and whether it did so late, to catch up."""

    scheduled_at: datetime
    backfilled: bool

    @property
    def ts(self) -> datetime:
        """`scheduled_at`, by the name that it has in payloads."""
        return self.scheduled_at


def cron_run_of(job: Job) -> CronRun | None:
    """What a job of the crontab carries under the key `_cron`; None for any other."""
    mark = job.payload.get("_cron") if isinstance(job.payload, dict) else None
    if not isinstance(mark, dict):
        return None
    try:
        return CronRun(datetime.fromisoformat(mark["ts"]), bool(mark.get("backfilled")))
    except (KeyError, TypeError, ValueError):
        return None


class JobTransaction(Protocol):
    """Gives a psycopg connection: by `async with` in an async task, by `with` in a plain one."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *error: object) -> bool | None: ...

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, *error: object) -> bool | None: ...


class JobContext(Protocol[C]):
    """What a task receives besides its payload.

    An async task awaits what waits: `await ctx.add_job(…)`, `async with ctx.connection()`. A plain
    function gets the same without await, and blocking psycopg connections.
    """

    @property
    def job(self) -> Job: ...

    @property
    def deps(self) -> C:
        """What the app's lifespan yielded."""
        ...

    @property
    def cancelled(self) -> bool:
        """Has the worker asked this task to give up? Long loops look here now and then."""
        ...

    @property
    def logger(self) -> Logger:
        """A logger whose lines carry the ids of this job."""
        ...

    @property
    def cron(self) -> CronRun | None:
        """For which minute the crontab added this job, if it did."""
        ...

    @property
    def queue_name(self) -> str | None: ...

    @property
    def pool_id(self) -> str: ...

    @property
    def worker_id(self) -> str: ...

    @property
    def schema(self) -> str: ...

    def wait_cancelled(self, within: timedelta | None = None) -> Any:
        """Sleep until the worker asks this task to give up; False if that takes longer."""
        ...

    def add_job(
        self,
        identifier: str,
        payload: Any = None,
        *,
        queue_name: str | None = None,
        run_at: When | None = None,
        max_attempts: int | None = None,
        priority: int | None = None,
        job_key: str | None = None,
        job_key_mode: JobKeyMode | JobKeyModeName | None = None,
        flags: Collection[str] | None = None,
        conn: object = None,
    ) -> Any:
        """Add one job to the queue that this one came from."""
        ...

    def add_jobs(self, specs: Iterable[JobSpec], *, conn: object = None) -> Any:
        """Add any number of jobs in one round trip."""
        ...

    def connection(self) -> JobTransaction:
        """A connection in autocommit mode, or a pool's own, for as long as the `with` lasts."""
        ...

    def query(self, statement: str, args: Any = None) -> Any:
        """The rows of one statement as dictionaries; %s stands for each argument."""
        ...

    def transaction(self) -> JobTransaction:
        """A transaction that also ends the job: its effects happen exactly once, or not at all."""
        ...


class Enqueuer(Protocol):
    """Whoever can add the jobs of tasks: an app, a framework's integration, a test."""

    def enqueue(self, spec: JobSpec, conn: object = None) -> Job: ...

    async def aenqueue(self, spec: JobSpec, conn: object = None) -> Job: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskOptions:
    """What a task's jobs get unless they are told otherwise, and how they run."""

    queue_name: str | None = None
    priority: int | None = None
    max_attempts: int | None = None
    retry: RetryPolicy | None = None
    timeout: timedelta | None = None
    run_in: RunIn | None = None

    def __post_init__(self) -> None:
        if self.timeout is not None and not isinstance(self.timeout, timedelta):
            raise ConfigurationError(f"timeout must be a timedelta, got {self.timeout!r}")
        if self.retry is not None and not (isinstance(self.retry, Backoff) or callable(self.retry)):
            raise ConfigurationError(f"retry must be a Backoff or a function, got {self.retry!r}")
        if self.run_in not in (None, *typing.get_args(RunIn)):
            places = ", ".join(typing.get_args(RunIn))
            raise ConfigurationError(f"run_in must be one of {places}, got {self.run_in!r}")

    def of_jobs(self) -> dict[str, Any]:
        """Those that each job gets."""
        return {
            "queue_name": self.queue_name,
            "priority": self.priority,
            "max_attempts": self.max_attempts,
        }


class Task(Generic[P, R]):
    """A function that can be called, and enqueued with the same arguments."""

    def __init__(
        self,
        identifier: str,
        fn: Callable[..., R],
        options: TaskOptions,
        find_enqueuer: Callable[[], Enqueuer],
        signature: "Signature | PositionalSignature | None" = None,
    ) -> None:
        JobSpec(identifier, **options.of_jobs())  # refuses what could not be enqueued
        self.identifier = identifier
        self.fn = fn
        self.options = options
        self.signature = signature or Signature(fn)
        self.is_async = _is_async(fn)
        self._find_enqueuer = find_enqueuer
        self._using: dict[str, Any] = {}
        self._conn: object = None

    @property
    def runs_on_loop(self) -> bool:
        """On the event loop, rather than in a thread?"""
        return self.is_async or self.options.run_in == "loop"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the plain function, here and now."""
        return self.fn(*args, **kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Add a job that will call the function with these arguments."""
        _warn_if_in_loop(self.identifier)
        return self._find_enqueuer().enqueue(self.spec(*args, **kwargs), self._conn)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """`enqueue` for async code."""
        return await self._find_enqueuer().aenqueue(self.spec(*args, **kwargs), self._conn)

    def spec(self, *args: P.args, **kwargs: P.kwargs) -> JobSpec:
        """The job as a value, for `add_jobs`."""
        given = {**self.options.of_jobs(), **self._using}
        return JobSpec(self.identifier, self.signature.payload(args, kwargs), **given)

    def using(
        self,
        *,
        conn: object = None,
        queue_name: str | None = None,
        run_at: When | None = None,
        max_attempts: int | None = None,
        priority: int | None = None,
        job_key: str | None = None,
        job_key_mode: JobKeyMode | JobKeyModeName | None = None,
        flags: Collection[str] | None = None,
    ) -> "Task[P, R]":
        """The same task, its jobs with these options; `conn` joins a transaction of yours."""
        options: dict[str, Any] = {
            "queue_name": queue_name,
            "run_at": run_at,
            "max_attempts": max_attempts,
            "priority": priority,
            "job_key": job_key,
            "job_key_mode": job_key_mode,
            "flags": flags,
        }
        given = {name: value for name, value in options.items() if value is not None}
        JobSpec(self.identifier, **given)  # bad options are refused where they are written
        copy = self._copy()
        copy._using = {**self._using, **given}
        copy._conn = self._conn if conn is None else conn
        return copy

    def named(self, identifier: str) -> "Task[P, R]":
        """The same task under another identifier, such as the place of its file."""
        copy = self._copy()
        copy.identifier = identifier
        return copy

    def _copy(self) -> "Task[P, R]":
        copy: Task[P, R] = Task.__new__(Task)
        copy.__dict__.update(self.__dict__)
        return copy

    def __repr__(self) -> str:
        return f"<Task {self.identifier}>"


def positional_task(identifier: str, fn: Callable[..., Any]) -> Task[..., Any]:
    """A function of a tasks folder or a mapping, called as the reference calls its own."""

    def nobody() -> Enqueuer:
        raise ConfigurationError(f"task {identifier!r} belongs to no app: add its jobs by name")

    return Task(identifier, fn, TaskOptions(), nobody, PositionalSignature(fn))


class TaskDecorator(Generic[D]):
    """What `@tasks.task(…)` returns."""

    def __init__(self, add: Callable[[Any], Any]) -> None:
        self._add = add

    @overload
    def __call__(self, fn: Callable[Concatenate[JobContext[D], P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Task[P, R]: ...
    def __call__(self, fn: Any, /) -> Any:
        return self._add(fn)


class CronDecorator:
    """What `@tasks.cron(…)` returns."""

    def __init__(self, add: Callable[[Task[..., Any]], None]) -> None:
        self._add = add

    def __call__(self, task: T, /) -> T:
        if not isinstance(task, Task):
            raise ConfigurationError("write @cron(…) above @task, not below it")
        self._add(task)
        return task


def _check_fit(task: Task[..., Any], payload: Mapping[str, Any] | None) -> None:
    """Refuse a payload that the task could never be called with, where it is written."""
    if not isinstance(task.signature, Signature):
        return
    try:
        task.signature.arguments(json.loads(encode(dict(payload or {})) or "{}"))
    except (Mismatch, JobSpecError) as error:
        raise ConfigurationError(f"cron item of task {task.identifier!r}: {error}") from error
    except ConfigurationError:
        # An annotation that cannot be read yet.
        return


class Tasks(Generic[D]):
    """A router of tasks: no connection, no global state. An app includes it."""

    def __init__(self, *, prefix: str = "") -> None:
        self.prefix = prefix
        self._tasks: dict[str, Task[..., Any]] = {}
        self._cron_items: list[ParsedCronItem] = []
        self._routers: list[Tasks[Any]] = []
        self._parent: Tasks[Any] | None = None

    @overload
    def task(self, fn: Callable[Concatenate[JobContext[D], P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, fn: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        queue_name: str | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
        run_in: RunIn | None = None,
    ) -> TaskDecorator[D]: ...
    def task(self, fn: Any = None, /, *, name: str | None = None, **options: Any) -> Any:
        """Make a function a task; its identifier is its name, after the router's prefix."""
        chosen = TaskOptions(**options)
        if fn is not None:
            return self._add(fn, name, chosen)
        return TaskDecorator(lambda fn: self._add(fn, name, chosen))

    def cron(
        self,
        schedule: str | Match,
        *,
        id: str | None = None,
        payload: Mapping[str, Any] | None = None,
        backfill: timedelta = timedelta(0),
        tz: str = "UTC",
        queue_name: str | None = None,
        max_attempts: int | None = None,
        priority: int | None = None,
        job_key: str | None = None,
        job_key_mode: CronKeyMode | None = None,
    ) -> CronDecorator:
        """Run a task by a pattern such as `30 4 * * 1`, or when a function of the minute says so.

        Stands above `@task`, any number of times; each but one then needs an `id` of its own.
        """

        def add(task: Task[..., Any]) -> None:
            _check_fit(task, payload)
            options = task.options
            item = CronItem(
                task=task.identifier,
                match=schedule,
                identifier=id,
                payload=payload,
                backfill=backfill,
                tz=tz,
                queue_name=options.queue_name if queue_name is None else queue_name,
                max_attempts=options.max_attempts if max_attempts is None else max_attempts,
                priority=options.priority if priority is None else priority,
                job_key=job_key,
                job_key_mode=job_key_mode,
            )
            self._cron_items += parse_cron_items([item])

        return CronDecorator(add)

    def include(self, *routers: "Tasks[Any]") -> None:
        """Take in the tasks of routers, those that they will yet define too."""
        for router in routers:
            if router._parent is not None or router is self._root():
                raise ConfigurationError(f"{router!r} is already included elsewhere")
            self._refuse_known(router.tasks())
            router._parent = self
            self._routers.append(router)

    def tasks(self) -> dict[str, Task[..., Any]]:
        """Every task by its identifier, those of included routers too."""
        found = dict(self._tasks)
        for router in self._routers:
            found |= router.tasks()
        return found

    def only(self, identifiers: Collection[str]) -> "Tasks[D]":
        """Some of these tasks, with their cron items, as a router of their own."""
        known, some = self.tasks(), Tasks[D]()
        for identifier in identifiers:
            if identifier not in known:
                raise TaskNotFound(identifier, known)
            some._tasks[identifier] = known[identifier]
        some._cron_items = [item for item in self.cron_items() if item.task in some._tasks]
        return some

    def cron_items(self) -> list[ParsedCronItem]:
        """Every cron item, those of included routers too; two of one id are refused."""
        found = list(self._cron_items)
        for router in self._routers:
            found += router.cron_items()
        check_identifiers(found)
        return found

    def find_enqueuer(self) -> Enqueuer:
        """Whoever adds the jobs of these tasks: the app at the root."""
        if self._parent is None:
            raise ConfigurationError(
                f"{self!r} is not included in an app: who shall add its jobs? "
                "Write app.include(router) where the app is made"
            )
        return self._parent.find_enqueuer()

    def _add(self, fn: Callable[..., R], name: str | None, options: TaskOptions) -> Task[..., R]:
        chosen = name or getattr(fn, "__name__", None)
        if chosen is None:
            raise ConfigurationError(f"{fn!r} has no name of its own: give it one with name=…")
        identifier = self.prefix + chosen
        self._refuse_known([identifier])
        task: Task[..., R] = Task(identifier, fn, options, self.find_enqueuer)
        self._tasks[identifier] = task
        return task

    def _refuse_known(self, identifiers: Iterable[str]) -> None:
        known = self._root().tasks()
        for identifier in identifiers:
            if identifier in known:
                raise ConfigurationError(f"two tasks are named {identifier!r}")

    def _root(self) -> "Tasks[Any]":
        return self if self._parent is None else self._parent._root()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} prefix={self.prefix!r}>"


class Signature:
    """How the arguments of a function travel as JSON, and how they come back."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        parameters = list(inspect.signature(fn, **_LAZILY).parameters.values())
        self.takes_context = bool(parameters) and _is_context(fn, parameters[0])
        self._parameters = parameters[1:] if self.takes_context else parameters
        _check_parameters(fn, self._parameters)
        self.takes_whole_payload = any(each.kind is _WHOLE for each in self._parameters)
        # By name, and whether it must be given; and that of `**rest`.
        self._names = [
            (each.name, each.default is inspect.Parameter.empty)
            for each in self._parameters
            if each.kind is not _REST
        ]
        self._rest = next((each.name for each in self._parameters if each.kind is _REST), None)
        self._call = inspect.Signature(self._parameters)
        self._readers: dict[str, Reader] | None = None
        self._read_early()

    def payload(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The payload of a call with these arguments, checked as the worker will check it."""
        bound = self._call.bind(*args, **kwargs)
        if self.takes_whole_payload:
            given = bound.args[0] if bound.args else self._parameters[0].default
        else:
            given = _flat(self._parameters, bound.arguments)
        text = encode(given)
        plain = None if text is None else json.loads(text)
        try:
            # The database has an empty object where no payload is given.
            self.arguments({} if plain is None else plain)
        except Mismatch as misfit:
            misfit.lies_in("payload")
            raise JobSpecError(misfit.path, given, misfit.reason, "22023") from misfit
        return plain

    def call(self, payload: Any, context: Any) -> tuple[list[Any], dict[str, Any]]:
        """The arguments for a call with that payload, the context among them if it is wanted."""
        args, kwargs = self.arguments(payload)
        return ([context, *args] if self.takes_context else args), kwargs

    def arguments(self, payload: Any) -> tuple[list[Any], dict[str, Any]]:
        """The arguments for a call with that payload; raises Mismatch where it does not fit.

        Keys that the function does not name are left out, and so are those that begin with `_`,
        which belong to the queue.
        """
        readers = self._resolved()
        if self.takes_whole_payload:
            return [readers[self._parameters[0].name](payload)], {}
        if not isinstance(payload, dict):
            kind = type(payload).__name__
            raise Mismatch("", f"expected an object with the parameters as keys, got {kind}")
        return [], self._named(payload, readers)

    def _named(self, payload: dict[str, Any], readers: dict[str, Reader]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, is_required in self._names:
            if name in payload:
                found[name] = _read(readers[name], payload[name], name)
            elif is_required:
                raise Mismatch(name, "missing")
        if self._rest is not None:
            rest = payload.keys() - found.keys()
            given = [key for key in payload if key in rest and not key.startswith("_")]
            found |= {key: _read(readers[self._rest], payload[key], key) for key in given}
        return found

    def _read_early(self) -> None:
        # A wrong annotation fails where it is written; one that names a class defined further down
        # can only be looked at later.
        try:
            self._resolved()
        except ConfigurationError as error:
            if not _misses_a_name(error):
                raise

    def _resolved(self) -> dict[str, Reader]:
        if self._readers is None:
            self._readers = {each.name: self._reader(each) for each in self._parameters}
        return self._readers

    def _reader(self, parameter: inspect.Parameter) -> Reader:
        try:
            return reader(_evaluated(self._fn, parameter.annotation))
        except (ConfigurationError, NameError, AttributeError, TypeError, SyntaxError) as error:
            where = f"{_name(self._fn)}, parameter {parameter.name}"
            raise ConfigurationError(f"{where}: {error}") from error


# From 3.14 on, annotations are evaluated when somebody asks; names may still be missing then.
_LAZILY: dict[str, Any] = {}
if sys.version_info >= (3, 14):
    import annotationlib

    _LAZILY["annotation_format"] = annotationlib.Format.FORWARDREF


class PositionalSignature:
    """How the reference calls its tasks: `task(payload)` or `task(payload, context)`, unchecked."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        parameters = inspect.signature(fn).parameters.values()
        self._takes = sum(each.kind in _POSITIONAL for each in parameters)
        if any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters):
            self._takes = 2

    def payload(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The payload of an enqueued call: its one argument."""
        if kwargs or len(args) > 1:
            raise TypeError("this task takes one payload, given by position")
        return args[0] if args else None

    def call(self, payload: Any, context: Any) -> tuple[list[Any], dict[str, Any]]:
        return [payload, context][: self._takes], {}


_WHOLE = inspect.Parameter.POSITIONAL_ONLY
_REST = inspect.Parameter.VAR_KEYWORD
_POSITIONAL = (_WHOLE, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _read(read: Reader, value: Any, name: str) -> Any:
    try:
        return read(value)
    except Mismatch as misfit:
        misfit.lies_in(name)
        raise


def _flat(parameters: Sequence[inspect.Parameter], given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, those of `**rest` among them."""
    flat = dict(given)
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            flat |= flat.pop(parameter.name, {})
    for key in flat:
        if key.startswith("_"):
            raise JobSpecError(
                f"payload.{key}", flat, "keys that begin with _ belong to the queue", "22023"
            )
    return flat


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__qualname__", repr(fn))


def _is_async(fn: Callable[..., Any]) -> bool:
    # An object with an async __call__ is called like an async function.
    call = getattr(type(fn), "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(call)


def _evaluated(fn: Callable[..., Any], annotation: Any) -> Any:
    """What an annotation of the function means, its strings looked up where the function stands.

    One by one, so that names which only the context or the result needs may be missing.
    """
    plain = inspect.unwrap(fn)
    alone = SimpleNamespace(
        __annotations__={"it": annotation}, __type_params__=getattr(plain, "__type_params__", ())
    )
    names = getattr(plain, "__globals__", {})
    return typing.get_type_hints(alone, names, include_extras=True)["it"]


def _misses_a_name(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, NameError):
        error = error.__context__
    return error is not None


def _is_context(fn: Callable[..., Any], parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    text = getattr(annotation, "__forward_arg__", annotation)
    if isinstance(text, str):
        # Without its argument, which may be imported for type checkers alone; so may the class.
        text = text.partition("[")[0]
        try:
            annotation = _evaluated(fn, text)
        except (NameError, AttributeError, TypeError, SyntaxError):
            return text.rpartition(".")[2] == JobContext.__name__
    return (typing.get_origin(annotation) or annotation) is JobContext


def _check_parameters(fn: Callable[..., Any], parameters: Sequence[inspect.Parameter]) -> None:
    name = _name(fn)
    kinds = [parameter.kind for parameter in parameters]
    if _looks_like_the_reference(parameters):
        raise ConfigurationError(
            f"{name}: a task is not called with (payload, helpers). Name the keys of the payload "
            "as parameters, or take all of it as `def task(payload, /)`; the context comes first, "
            "as `ctx: JobContext`"
        )
    if any(_is_context(fn, parameter) for parameter in parameters):
        raise ConfigurationError(f"{name}: the JobContext must be the first parameter")
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        raise ConfigurationError(f"{name}: *args have no names, so they cannot be keys of JSON")
    if _WHOLE in kinds and len(kinds) > 1:
        raise ConfigurationError(
            f"{name}: a positional-only parameter is the whole payload and stands alone"
        )
    for parameter in parameters:
        if parameter.kind in _BY_NAME and parameter.name.startswith("_"):
            raise ConfigurationError(
                f"{name}: {parameter.name} would stay empty, as keys that begin with _ belong to "
                "the queue"
            )


def _looks_like_the_reference(parameters: Sequence[inspect.Parameter]) -> bool:
    bare = [each.name for each in parameters if each.annotation is inspect.Parameter.empty]
    return "helpers" in bare or bare[:2] in (["payload", "ctx"], ["payload", "context"])


_warned: set[tuple[str, int]] = set()


def _warn_if_in_loop(identifier: str) -> None:
    """Say once for each place that it blocks an event loop."""
    if asyncio._get_running_loop() is None:
        return
    caller = sys._getframe(2)
    place = (caller.f_code.co_filename, caller.f_lineno)
    if place not in _warned:
        _warned.add(place)
        logger.warning("%s:%s blocks the event loop: await %s.aenqueue(…)", *place, identifier)
