"""How a task of `django.tasks` runs as a job, and when its signals are sent."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any

from asgiref.sync import sync_to_async
from django.utils import timezone

from graphile_worker.contrib.django._app import DjangoApp
from graphile_worker.contrib.django._compat import (
    TaskContext,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from graphile_worker.contrib.django._connections import close_shared_connections, is_test
from graphile_worker.contrib.django._job_options import get_job_options
from graphile_worker.contrib.django._registry import (
    build_identifier,
    list_registered,
    list_served_queues,
)
from graphile_worker.contrib.django._task_results import build_error, build_running_result
from graphile_worker.errors import ConfigurationError
from graphile_worker.events import (
    JobEvent,
    JobFailed,
    JobFinished,
    JobInterrupted,
    JobLockLost,
    JobSucceeded,
)
from graphile_worker.hooks import Hooks
from graphile_worker.tasks import Task
from graphile_worker.tasks.batch_results import BatchItems
from graphile_worker.tasks.signatures import PositionalSignature
from graphile_worker.tasks.task import TaskOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphileTaskContext(TaskContext):
    """The context of a task of `django.tasks`, with that of its job.

    Attributes:
        job_context: The `JobContext` of a coroutine, or the `SyncJobContext` of a function.
    """

    job_context: Any

    @property
    def attempt(self) -> int:
        """Return the number of this attempt, from 1."""
        attempts: int = self.job_context.job.attempts
        return attempts


class TaskSignature(PositionalSignature):
    """Calls the function of a job with its context only. The function reads the payload."""

    def __init__(self) -> None:
        self._max_args = 1

    def build_call_arguments(self, payload: Any, context: Any) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments for a call."""
        return [context], {}

    def get_batch(self, args: Sequence[Any]) -> BatchItems | None:
        """Return None: these tasks have no batches."""
        return None


@dataclass(slots=True)
class _Run:
    """A run of a task in this process."""

    result: Any
    backend_class: type[Any]


# By the ids of pool and job, from the start of the task until its outcome is written.
_runs: dict[tuple[str, int], _Run] = {}


def build_job_tasks(job_app: DjangoApp) -> dict[str, Task[..., Any]]:
    """Build the tasks with which a worker runs the jobs of the backend of a database.

    Args:
        job_app: The app of that database.
    """
    backend = _find_backend(job_app.alias)
    if backend is None:
        return {}
    _install(job_app.hooks)
    tasks: dict[str, Task[..., Any]] = {}
    for task in list_registered().values():
        for queue in backend.queues or list_served_queues():
            identifier = build_identifier(task, queue)
            tasks[identifier] = _build_job_task(job_app, backend, task, identifier, queue)
    return tasks


def _install(hooks: Hooks) -> None:
    """Send the signal `task_finished` after the outcomes of jobs are written."""
    for event in (JobSucceeded, JobFailed, JobFinished, JobInterrupted, JobLockLost):
        hooks.on(event)(_on_ended)


def _find_backend(database: str) -> Any:
    """Return the backend whose jobs are in a database, or None."""
    from graphile_worker.contrib.django._backend import GraphileBackend

    backends = (task_backends[alias] for alias in task_backends)
    return next(
        (
            each
            for each in backends
            if isinstance(each, GraphileBackend) and each.database == database
        ),
        None,
    )


def _build_job_task(
    job_app: DjangoApp, backend: Any, task: Any, identifier: str, queue: str
) -> Task[..., Any]:
    options = get_job_options(task.func)
    build: Callable[..., Callable[[Any], Any]] = (
        _build_coroutine if iscoroutinefunction(task.func) else _build_function
    )
    if options.run_in == "process":
        # Not at once: a check reports it, after all modules are imported.
        build = _build_rejection
    return Task(
        identifier,
        build(task, backend.alias, type(backend), queue),
        TaskOptions(
            max_attempts=options.max_attempts or backend.max_attempts,
            retry=options.retry,
            timeout=options.timeout,
            run_in=None if options.run_in == "process" else options.run_in,
            queue_name=options.serial,
            retention=backend.retention,
        ),
        lambda: job_app,
        TaskSignature(),
    )


def _build_function(
    task: Any, alias: str, backend_class: type[Any], queue: str
) -> Callable[[Any], Any]:
    def run(ctx: Any) -> Any:
        result = _start(task, alias, backend_class, queue, ctx)
        # A receiver that raises must not fail the job.
        task_started.send_robust(sender=backend_class, task_result=result)
        return _keep_value(result, task.func(*_build_arguments(task, result, ctx), **result.kwargs))

    return run


def _build_coroutine(
    task: Any, alias: str, backend_class: type[Any], queue: str
) -> Callable[[Any], Awaitable[Any]]:
    async def run(ctx: Any) -> Any:
        result = _start(task, alias, backend_class, queue, ctx)
        await task_started.asend_robust(sender=backend_class, task_result=result)
        arguments = _build_arguments(task, result, ctx)
        return _keep_value(result, await task.func(*arguments, **result.kwargs))

    return run


def _build_rejection(task: Any, *_: object) -> Callable[[Any], Any]:
    def run(ctx: Any) -> Any:
        raise ConfigurationError(
            f'{task.module_path} cannot run with run_in="process". Define it with '
            '@app.task(run_in="process"), or remove run_in.'
        )

    return run


def _start(task: Any, alias: str, backend_class: type[Any], queue: str, ctx: Any) -> Any:
    result = build_running_result(task, alias, queue, ctx.job, ctx.pool_id)
    _runs[ctx.pool_id, ctx.job.id] = _Run(result, backend_class)
    return result


def _build_arguments(task: Any, result: Any, ctx: Any) -> list[Any]:
    if not task.takes_context:
        return list(result.args)
    return [GraphileTaskContext(task_result=result, job_context=ctx), *result.args]


def _keep_value(result: Any, value: Any) -> Any:
    """Return what the task returned as JSON values. Other values fail the task."""
    normalized = normalize_json(value)
    object.__setattr__(result, "_return_value", normalized)
    return normalized


def _on_ended(event: JobEvent) -> Awaitable[None] | None:
    """Send the signal for a job whose outcome is written, unless it runs again."""
    run = _runs.pop((event.pool_id, event.job.id), None)
    if run is None:
        return None
    error = event.error if isinstance(event, JobFailed) else None
    if error is None and not isinstance(event, JobSucceeded):
        return None
    _set_finished(run, error)
    send = sync_to_async(_send_finished)(run, error)
    return send if is_test(event) else _send_between_jobs(send)


async def _send_between_jobs(send: Awaitable[None]) -> None:
    """Send the signal in the thread in which coroutines of Django use the database."""
    await close_shared_connections()
    await send
    await close_shared_connections()


def _set_finished(run: _Run, error: BaseException | None) -> None:
    object.__setattr__(run.result, "finished_at", timezone.now())
    if error is None:
        object.__setattr__(run.result, "status", TaskResultStatus.SUCCESSFUL)
    else:
        object.__setattr__(run.result, "status", TaskResultStatus.FAILED)
        object.__setattr__(run.result, "_return_value", None)
        run.result.errors.append(build_error(error))


def _send_finished(run: _Run, error: BaseException | None) -> None:
    if error is None:
        task_finished.send_robust(sender=run.backend_class, task_result=run.result)
        return
    traceback = error.__traceback__
    try:
        # Django's receiver logs the exception that is being handled.
        raise error
    except BaseException:
        # Without the line above.
        error.__traceback__ = traceback
        task_finished.send_robust(sender=run.backend_class, task_result=run.result)
