"""job_options: options of this queue for a task of `django.tasks`, portable between backends."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from graphile_worker.errors import ConfigurationError
from graphile_worker.jobs import JobKeyMode, JobKeyModeName, JobSpec
from graphile_worker.tasks.task import RetryPolicy, RunIn, TaskOptions

F = TypeVar("F", bound=Callable[..., Any])

# Between the name of a task and its queue, in an identifier.
QUEUE_SEPARATOR = ":"

# The attribute of a function that has the options.
_ATTRIBUTE = "__graphile_worker_options__"


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskJobOptions:
    """Options of the jobs of a task. None is the default of the backend."""

    name: str | None = None
    max_attempts: int | None = None
    retry: RetryPolicy | None = None
    timeout: timedelta | None = None
    run_in: RunIn | None = None
    job_key: str | None = None
    job_key_mode: JobKeyMode | JobKeyModeName | None = None
    serial: str | None = None
    unique: str | None = None
    unique_for: timedelta | None = None


NO_OPTIONS = TaskJobOptions()


def job_options(
    *,
    name: str | None = None,
    max_attempts: int | None = None,
    retry: RetryPolicy | None = None,
    timeout: timedelta | None = None,
    run_in: RunIn | None = None,
    job_key: str | None = None,
    job_key_mode: JobKeyMode | JobKeyModeName | None = None,
    serial: str | None = None,
    unique: str | None = None,
    unique_for: timedelta | None = None,
) -> Callable[[F], F]:
    """Set options of this queue for a task of `django.tasks`. Write it below `@task`.

    It only marks the function, so the task also works with other backends, for example the
    `ImmediateBackend` of tests.

    Args:
        name: Identifier of the task in the queue (default: its module path). With a name you can
            move the function while jobs wait.
        max_attempts: Number of attempts (default: `MAX_ATTEMPTS` of the backend).
        retry: Delay between attempts: a `Backoff`, or a function of the error and the job.
        timeout: Longest run.
        run_in: "loop" or "thread" (default: a thread for plain functions).
        job_key: Unique key, by which a later call replaces the job.
        job_key_mode: What to do when a job already has the key.
        serial: Named queue of the worker. Its jobs run one at a time.
        unique: Unique key of a window: while it is open, no other job is added with it.
        unique_for: Length of the window, which stays open when the job ends.

    Returns:
        A decorator, which returns the function unchanged.

    Raises:
        TypeError: The decorator is above `@task`.
        ConfigurationError: `name`, `retry`, `timeout` or `run_in` is not valid.
        JobSpecError: Another value cannot be stored.
    """
    if name is not None and QUEUE_SEPARATOR in name:
        raise ConfigurationError(
            f"name must not contain {QUEUE_SEPARATOR!r}, after which identifiers have the name of "
            f"the queue, got {name!r}"
        )
    options = TaskJobOptions(
        name=name,
        max_attempts=max_attempts,
        retry=retry,
        timeout=timeout,
        run_in=run_in,
        job_key=job_key,
        job_key_mode=job_key_mode,
        serial=serial,
        unique=unique,
        unique_for=unique_for,
    )
    TaskOptions(max_attempts=max_attempts, retry=retry, timeout=timeout, run_in=run_in)
    JobSpec(
        "task" if name is None else name,
        queue_name=serial,
        max_attempts=max_attempts,
        job_key=job_key,
        job_key_mode=job_key_mode,
        unique=unique,
        unique_for=unique_for,
    )

    def mark(function: F) -> F:
        if hasattr(function, "func"):
            raise TypeError("write @job_options(…) below @task, not above it")
        setattr(function, _ATTRIBUTE, options)
        return function

    return mark


def get_job_options(function: Callable[..., Any]) -> TaskJobOptions:
    """Return the options of a function."""
    options: TaskJobOptions = getattr(function, _ATTRIBUTE, NO_OPTIONS)
    return options
