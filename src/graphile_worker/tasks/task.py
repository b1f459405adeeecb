"""Task: a function that you can call, or enqueue with the same arguments."""

import asyncio
import logging
import sys
import typing
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Generic, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from graphile_worker.errors import ConfigurationError
from graphile_worker.jobs import Job, JobOptions, JobSpec, RunAt, build_spec
from graphile_worker.limits import Limit, list_limits
from graphile_worker.results import Retention
from graphile_worker.retries import Backoff
from graphile_worker.tasks.context import Enqueuer
from graphile_worker.tasks.signatures import (
    PositionalSignature,
    Signature,
    get_function_name,
    is_async_function,
)

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

# A function receives the error and the job. It returns None to fail the job permanently.
RetryPolicy = Backoff | Callable[[BaseException, Job], RunAt | None]
RunIn = Literal["loop", "thread", "process"]

logger = logging.getLogger("graphile_worker")


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskOptions:
    """How the jobs of a task run, and the defaults of their options."""

    queue_name: str | None = None
    priority: int | None = None
    max_attempts: int | None = None
    retry: RetryPolicy | None = None
    timeout: timedelta | None = None
    run_in: RunIn | None = None
    retention: Retention | None = None
    limit: Limit | Sequence[Limit] | None = None

    def __post_init__(self) -> None:
        if self.timeout is not None and not isinstance(self.timeout, timedelta):
            raise ConfigurationError(f"timeout must be a timedelta, got {self.timeout!r}")
        if self.retry is not None and not (isinstance(self.retry, Backoff) or callable(self.retry)):
            raise ConfigurationError(f"retry must be a Backoff or a function, got {self.retry!r}")
        if self.run_in not in (None, *typing.get_args(RunIn)):
            choices = ", ".join(typing.get_args(RunIn))
            raise ConfigurationError(f"run_in must be one of {choices}, got {self.run_in!r}")
        if self.retention is not None and not isinstance(self.retention, Retention):
            raise ConfigurationError(f"retention must be a Retention, got {self.retention!r}")
        if self.limit is not None:
            # A copy, because the caller may change its list.
            object.__setattr__(self, "limit", list_limits(self.limit))

    @property
    def limits(self) -> tuple[Limit, ...]:
        """Return the limits of the task, as it defines them."""
        return list_limits(self.limit)

    def completed(self, spec: JobSpec) -> JobSpec:
        """Return the spec with these options where it has none."""
        missing: dict[str, Any] = {
            name: value
            for name in ("queue_name", "priority", "max_attempts")
            if (value := getattr(self, name)) is not None and getattr(spec, name) is None
        }
        return replace(spec, **missing) if missing else spec


class Task(Generic[P, R_co]):
    """A function that you can call, or enqueue with the same arguments.

    Attributes:
        identifier: Name of the task in the database.
        fn: The function.
        options: Options of the task, as passed to the decorator.
        is_async (bool): Whether the function is a coroutine function.
    """

    def __init__(
        self,
        identifier: str,
        fn: Callable[..., R_co],
        options: TaskOptions,
        find_enqueuer: Callable[[], Enqueuer],
        signature: Signature | PositionalSignature | None = None,
    ) -> None:
        options.completed(JobSpec(identifier))  # raises JobSpecError at the definition
        self.identifier = identifier
        self.fn = fn
        self.options = options
        self.signature = signature or Signature(fn, identifier)
        self.is_async = is_async_function(fn)
        if self.runs_in_process:
            _check_process_task(fn, self.signature)
        keeps_result = options.retention is not None and options.retention.results
        if keeps_result and isinstance(self.signature, Signature):
            self.signature.check_result()
        self._find_enqueuer = find_enqueuer
        self._job_options: dict[str, Any] = {}
        self._conn: object = None

    @property
    def runs_in(self) -> RunIn:
        """Return where the function runs."""
        if self.runs_in_process:
            return "process"
        return "loop" if self.runs_on_loop else "thread"

    @property
    def runs_on_loop(self) -> bool:
        """Return whether the function runs on the event loop, not in a thread or process."""
        return self.is_async or self.options.run_in == "loop"

    @property
    def runs_in_process(self) -> bool:
        """Return whether the function runs in a separate process."""
        return self.options.run_in == "process"

    @property
    def is_cancellable(self) -> bool:
        """Return whether the worker can end a run. It cannot end a function in a thread."""
        return self.is_async or self.runs_in_process

    @property
    def job_options(self) -> dict[str, Any]:
        """Return the options that `using` set."""
        return dict(self._job_options)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function directly, without a job.

        Args:
            args: Positional arguments of the function.
            kwargs: Keyword arguments of the function.

        Returns:
            The result of the function.
        """
        return self.fn(*args, **kwargs)

    # The result of an async task is what its coroutine returns.
    @overload
    def enqueue(self: "Task[P, Awaitable[T]]", *args: P.args, **kwargs: P.kwargs) -> Job[T]: ...
    @overload
    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R_co]: ...
    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[Any]:
        """Add a job that calls the function with these arguments.

        Args:
            args: Positional arguments of the function, without its context.
            kwargs: Keyword arguments of the function.

        Returns:
            The job that was added, or updated by its `job_key`. `job.result()` waits for its
            result, if the task keeps results.

        Raises:
            TypeError: The function does not accept these arguments.
            JobSpecError: A value has the wrong type, or JSON cannot represent it.
        """
        warn_if_in_loop(f"{self.identifier}.aenqueue")
        spec = self.spec(*args, **kwargs)
        return self._find_enqueuer().enqueue(spec, self._conn, self.signature.read_result)

    @overload
    async def aenqueue(
        self: "Task[P, Awaitable[T]]", *args: P.args, **kwargs: P.kwargs
    ) -> Job[T]: ...
    @overload
    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R_co]: ...
    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[Any]:
        """Add a job from async code. See `enqueue`."""
        spec = self.spec(*args, **kwargs)
        enqueuer = self._find_enqueuer()
        return await enqueuer.aenqueue(spec, self._conn, self.signature.read_result)

    def spec(self, *args: P.args, **kwargs: P.kwargs) -> JobSpec:
        """Build the spec of a job for `add_jobs`. See `enqueue`.

        Returns:
            The job to add.
        """
        if "job_key_mode" in self._job_options and "job_key" not in self._job_options:
            warn_mode_without_key(f"task {self.identifier}", self._job_options["job_key_mode"])
        payload = self.signature.build_payload(args, kwargs)
        return self.options.completed(JobSpec(self.identifier, payload, **self._job_options))

    def completed(self, spec: JobSpec) -> JobSpec:
        """Add the options of this task to a spec.

        Args:
            spec: The job, added by the name of its task.

        Returns:
            The spec with the options of the task where it has none.

        Raises:
            JobSpecError: The function cannot be called with the payload.
        """
        self.signature.normalize_payload(spec.payload)
        return self.options.completed(spec)

    def using(self, *, conn: object = None, **options: Unpack[JobOptions]) -> Self:
        """Return a copy of this task whose jobs have these options.

        Args:
            conn: Your connection, whose transaction `enqueue` joins.
            options: See `JobOptions`.

        Returns:
            The copy.

        Raises:
            TypeError: An option does not exist.
            JobSpecError: A value cannot be stored.
        """
        build_spec(self.identifier, None, options)
        changed = copy(self)
        changed._job_options = self._job_options | {
            name: value for name, value in options.items() if value is not None
        }
        changed._conn = self._conn if conn is None else conn
        return changed

    def with_identifier(self, identifier: str) -> Self:
        """Return a copy of this task under another identifier, for example its path in a folder."""
        changed = copy(self)
        changed.identifier = identifier
        if isinstance(self.signature, Signature):
            changed.signature = copy(self.signature)
            changed.signature.task = identifier
        return changed

    def __repr__(self) -> str:
        return f"<Task {self.identifier}>"


def make_positional_task(identifier: str, fn: Callable[..., Any]) -> Task[..., Any]:
    """Make a task of a function in a folder or a mapping, called as `fn(payload, context)`."""

    def reject() -> Enqueuer:
        raise ConfigurationError(f"task {identifier!r} has no app. Add its jobs by name.")

    return Task(identifier, fn, TaskOptions(), reject, PositionalSignature(fn))


def _check_process_task(fn: Callable[..., Any], signature: Signature | PositionalSignature) -> None:
    name = getattr(fn, "__qualname__", "<none>")
    if "<" in name:
        raise ConfigurationError(
            f"{get_function_name(fn)} runs in a process, which must find it by its name: define it "
            "with def, at the top of a module"
        )
    if isinstance(signature, Signature) and signature.takes_context:
        raise ConfigurationError(
            f"{name} runs in a process, where no context is available. Remove the context: the "
            "process receives only the payload."
        )


_warned_call_sites: set[tuple[str, int]] = set()
_warned_mode_subjects: set[str] = set()


def warn_mode_without_key(subject: str, mode: str) -> None:
    """Log once per task and cron item that a mode without a key has no effect."""
    if subject not in _warned_mode_subjects:
        _warned_mode_subjects.add(subject)
        logger.warning("%s: job_key_mode=%r has no effect without a job_key", subject, str(mode))


def warn_if_in_loop(instead: str, depth: int = 2) -> None:
    """Log once per call site that the call blocks an event loop.

    `depth` is the number of frames between this function and the call site.
    """
    if asyncio._get_running_loop() is None:
        return
    caller = sys._getframe(depth)
    call_site = (caller.f_code.co_filename, caller.f_lineno)
    if call_site not in _warned_call_sites:
        _warned_call_sites.add(call_site)
        logger.warning("%s:%s blocks the event loop: await %s(…)", *call_site, instead)
