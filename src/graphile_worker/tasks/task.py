"""Task: a function that can be called, and enqueued with the same arguments."""

import asyncio
import inspect
import logging
import sys
import typing
from collections.abc import Callable, Collection
from copy import copy as copy_of
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Generic, Literal, ParamSpec, Self, TypeVar

from graphile_worker.errors import ConfigurationError
from graphile_worker.jobs import Job, JobKeyMode, JobKeyModeName, JobSpec, RunAt
from graphile_worker.retries import Backoff
from graphile_worker.tasks.context import Enqueuer
from graphile_worker.tasks.signatures import PositionalSignature, Signature, get_function_name

P = ParamSpec("P")
R = TypeVar("R")

# A function is told the error and the job; None gives up.
RetryPolicy = Backoff | Callable[[BaseException, Job], RunAt | None]
RunIn = Literal["loop", "thread", "process"]

logger = logging.getLogger("graphile_worker")


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

    def get_job_options(self) -> dict[str, Any]:
        """Those that each job gets."""
        return {
            "queue_name": self.queue_name,
            "priority": self.priority,
            "max_attempts": self.max_attempts,
        }

    def completed(self, spec: JobSpec) -> JobSpec:
        """The spec with these options where it has none: one that it has takes precedence."""
        missing = {
            name: value
            for name, value in self.get_job_options().items()
            if value is not None and getattr(spec, name) is None
        }
        return replace(spec, **missing) if missing else spec


class Task(Generic[P, R]):
    """A function that can be called, and enqueued with the same arguments."""

    def __init__(
        self,
        identifier: str,
        fn: Callable[..., R],
        options: TaskOptions,
        find_enqueuer: Callable[[], Enqueuer],
        signature: Signature | PositionalSignature | None = None,
    ) -> None:
        JobSpec(identifier, **options.get_job_options())  # refuses what could not be enqueued
        self.identifier = identifier
        self.fn = fn
        self.options = options
        self.signature = signature or Signature(fn, identifier)
        self.is_async = _is_async(fn)
        if self.runs_in_process:
            _check_process_task(fn, self.signature)
        self._find_enqueuer = find_enqueuer
        self._job_options: dict[str, Any] = {}
        self._conn: object = None

    @property
    def runs_on_loop(self) -> bool:
        """On the event loop, rather than in a thread?"""
        return self.is_async or self.options.run_in == "loop"

    @property
    def runs_in_process(self) -> bool:
        """In a process beside the worker's?"""
        return self.options.run_in == "process"

    @property
    def is_cancellable(self) -> bool:
        """Can a run of it be ended by others? A function in a thread cannot."""
        return self.is_async or self.runs_in_process

    @property
    def job_options(self) -> dict[str, Any]:
        """The options that `using` has given to its jobs."""
        return dict(self._job_options)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the plain function, here and now."""
        return self.fn(*args, **kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Add a job that will call the function with these arguments."""
        warn_if_in_loop(f"{self.identifier}.aenqueue")
        return self._find_enqueuer().enqueue(self.spec(*args, **kwargs), self._conn)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """`enqueue` for async code."""
        return await self._find_enqueuer().aenqueue(self.spec(*args, **kwargs), self._conn)

    def spec(self, *args: P.args, **kwargs: P.kwargs) -> JobSpec:
        """The job as a value, for `add_jobs`."""
        if "job_key_mode" in self._job_options and "job_key" not in self._job_options:
            warn_mode_without_key(f"task {self.identifier}", self._job_options["job_key_mode"])
        payload = self.signature.build_payload(args, kwargs)
        return self.options.completed(JobSpec(self.identifier, payload, **self._job_options))

    def completed(self, spec: JobSpec) -> JobSpec:
        """The spec of a job that is added by name, as `spec` would give it.

        Raises JobSpecError if the task cannot be called with its payload.
        """
        self.signature.normalize_payload(spec.payload)
        return self.options.completed(spec)

    def using(
        self,
        *,
        conn: object = None,
        queue_name: str | None = None,
        run_at: RunAt | None = None,
        max_attempts: int | None = None,
        priority: int | None = None,
        job_key: str | None = None,
        job_key_mode: JobKeyMode | JobKeyModeName | None = None,
        flags: Collection[str] | None = None,
    ) -> Self:
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
        copy._job_options = {**self._job_options, **given}
        copy._conn = self._conn if conn is None else conn
        return copy

    def with_identifier(self, identifier: str) -> Self:
        """The same task under another identifier, such as the place of its file."""
        copy = self._copy()
        copy.identifier = identifier
        if isinstance(self.signature, Signature):
            copy.signature = copy_of(self.signature)
            copy.signature.task = identifier
        return copy

    def _copy(self) -> Self:
        copy = type(self).__new__(type(self))
        copy.__dict__.update(self.__dict__)
        return copy

    def __repr__(self) -> str:
        return f"<Task {self.identifier}>"


def make_positional_task(identifier: str, fn: Callable[..., Any]) -> Task[..., Any]:
    """A function of a tasks folder or a mapping, called as the reference calls its own."""

    def nobody() -> Enqueuer:
        raise ConfigurationError(f"task {identifier!r} belongs to no app: add its jobs by name")

    return Task(identifier, fn, TaskOptions(), nobody, PositionalSignature(fn))


def _is_async(fn: Callable[..., Any]) -> bool:
    # An object with an async __call__ is called like an async function.
    call = getattr(type(fn), "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(call)


def _check_process_task(fn: Callable[..., Any], signature: Signature | PositionalSignature) -> None:
    """Refuse what another process could not find, or could not be given."""
    name = getattr(fn, "__qualname__", "<none>")
    if "<" in name:
        raise ConfigurationError(
            f"{get_function_name(fn)} runs in a process, which must find it by its name: define it "
            "with def, at the top of a module"
        )
    if isinstance(signature, Signature) and signature.takes_context:
        raise ConfigurationError(
            f"{name} runs in a process, where there is no JobContext: its parameters are all that "
            "travels there"
        )


_warned_call_sites: set[tuple[str, int]] = set()
_warned_mode_subjects: set[str] = set()


def warn_mode_without_key(subject: str, mode: str) -> None:
    """Log once for each task and cron item that a mode without a key has no effect."""
    if subject not in _warned_mode_subjects:
        _warned_mode_subjects.add(subject)
        logger.warning("%s: job_key_mode=%r has no effect without a job_key", subject, str(mode))


def warn_if_in_loop(instead: str) -> None:
    """Say once for each place that it blocks an event loop."""
    if asyncio._get_running_loop() is None:
        return
    caller = sys._getframe(2)
    place = (caller.f_code.co_filename, caller.f_lineno)
    if place not in _warned_call_sites:
        _warned_call_sites.add(place)
        logger.warning("%s:%s blocks the event loop: await %s(…)", *place, instead)
