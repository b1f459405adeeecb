"""Build results of `django.tasks` from jobs, outcomes and attempts, and payloads from arguments."""

import json
from collections.abc import Mapping, Sequence
from copy import copy
from datetime import datetime
from typing import Any

from django.conf import settings
from django.utils import timezone

from graphile_worker._sql.queries.outcomes import JobRecord, JobRow, OutcomeRow
from graphile_worker._support.error_format import format_error
from graphile_worker.contrib.django._compat import TaskError, TaskResult, TaskResultStatus
from graphile_worker.errors import JobFailedError
from graphile_worker.jobs import Job
from graphile_worker.results import Attempt

# The class of an error that no task raised, for example of `jobs fail`, or of a crashed worker.
UNKNOWN_CLASS = f"{JobFailedError.__module__}.{JobFailedError.__qualname__}"


def build_payload(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Build the payload of a job: the keyword arguments, and `_args` if there are others.

    So SQL can add a job with `{"order_id": 7}`.
    """
    if any(name.startswith("_") for name in kwargs):
        # These keys belong to the queue: `_cron` is not an argument.
        return {"_args": args, "_kwargs": kwargs}
    return {**kwargs, **({"_args": args} if args else {})}


def read_arguments(payload: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a payload.

    Raises:
        TypeError: The payload has another form.
    """
    if not isinstance(payload, dict):
        raise TypeError(f"expected an object as the payload, got {type(payload).__name__}")
    args = payload.get("_args", [])
    kwargs = payload.get("_kwargs")
    if kwargs is None:
        kwargs = {name: value for name, value in payload.items() if not name.startswith("_")}
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise TypeError("expected a list as _args and an object as _kwargs of the payload")
    return args, kwargs


def localize(time: datetime | None) -> datetime | None:
    """Return a time as Django represents it: without a time zone if USE_TZ is False."""
    if time is None or settings.USE_TZ:
        return time
    naive: datetime = timezone.make_naive(time, timezone.get_default_timezone())
    return naive


def build_running_result(task: Any, backend: str, queue: str, job: Job, pool_id: str) -> Any:
    """Build the result of a job whose attempt starts now, without a query.

    Of a retry it knows only this attempt. `refresh()` reads the earlier ones.

    Raises:
        TypeError: The payload has another form.
    """
    args, kwargs = read_arguments(job.payload)
    now = timezone.now()
    return TaskResult(
        task=_restore_task(task, backend, queue, job.priority, _find_run_after(job)),
        id=str(job.id),
        status=TaskResultStatus.RUNNING,
        enqueued_at=localize(job.created_at),
        started_at=now,
        last_attempted_at=now,
        finished_at=None,
        args=args,
        kwargs=kwargs,
        backend=backend,
        errors=[],
        worker_ids=[pool_id],
    )


def build_error(error: BaseException) -> Any:
    """Build the error of an attempt of this process."""
    kind = type(error)
    path = f"{kind.__module__}.{kind.__qualname__}"
    return TaskError(exception_class_path=path, traceback=_strip(format_error(error)))


def build_ended_result(backend: str, job_id: int, record: JobRecord, task: Any, queue: str) -> Any:
    """Build the result of a job that is in the queue, or left an outcome."""
    row, outcome, attempts = record.row, record.outcome, list(record.attempts)
    found = row or outcome
    assert found is not None
    status = _find_status(row, outcome)
    if row is not None and (status is not TaskResultStatus.FAILED or not _is_same(row, outcome)):
        # An outcome of an earlier run, before a person retried the job.
        outcome = None
    # A job that failed permanently has the time of that as its time to run.
    planned = outcome if status is TaskResultStatus.FAILED else found
    if not attempts and outcome is not None:
        attempts = [_build_only_attempt(outcome)]
    starts = [each.started_at for each in attempts]
    workers = [each.worker for each in attempts]
    if row is not None and row.locked_at is not None:
        starts.append(row.locked_at)
        workers.append(row.locked_by or "")
    args, kwargs = _read_stored_arguments(found.payload)
    result = TaskResult(
        task=_restore_task(task, backend, queue, found.priority or 0, _find_run_after(planned)),
        id=str(job_id),
        status=status,
        enqueued_at=localize(found.created_at),
        started_at=localize(starts[0] if starts else None),
        last_attempted_at=localize(starts[-1] if starts else None),
        finished_at=localize(_find_end(status, row, outcome)),
        args=args,
        kwargs=kwargs,
        backend=backend,
        errors=_list_errors(status, row, attempts),
        worker_ids=workers,
    )
    if status is TaskResultStatus.SUCCESSFUL and outcome is not None and outcome.result is not None:
        object.__setattr__(result, "_return_value", json.loads(outcome.result))
    return result


def _find_status(row: JobRow | None, outcome: OutcomeRow | None) -> Any:
    if row is not None:
        if row.locked_at is not None:
            return TaskResultStatus.RUNNING
        return TaskResultStatus.FAILED if row.has_no_attempts else TaskResultStatus.READY
    assert outcome is not None
    return TaskResultStatus.SUCCESSFUL if outcome.succeeded else TaskResultStatus.FAILED


def _is_same(row: JobRow, outcome: OutcomeRow | None) -> bool:
    return outcome is not None and outcome.error == row.error


def _build_only_attempt(outcome: OutcomeRow) -> Attempt:
    """Return the last attempt of a task that keeps outcomes without attempts."""
    return Attempt(
        number=1,
        started_at=outcome.started_at,
        duration=outcome.finished_at - outcome.started_at,
        worker=outcome.pool_id,
        error=outcome.error,
        error_class=outcome.error_class,
    )


def _find_end(status: Any, row: JobRow | None, outcome: OutcomeRow | None) -> datetime | None:
    if outcome is not None:
        return outcome.finished_at
    return row.changed_at if row is not None and status is TaskResultStatus.FAILED else None


def _list_errors(status: Any, row: JobRow | None, attempts: Sequence[Attempt]) -> list[Any]:
    errors = [
        TaskError(
            exception_class_path=each.error_class or UNKNOWN_CLASS, traceback=_strip(each.error)
        )
        for each in attempts
        if each.error is not None
    ]
    last = attempts[-1].error if attempts else None
    if row is not None and status is TaskResultStatus.FAILED and row.error != last:
        # Nothing of this package ran the job at its end, or the worker kept no attempt.
        errors.append(
            TaskError(exception_class_path=UNKNOWN_CLASS, traceback=_strip(row.error or ""))
        )
    return errors


def _read_stored_arguments(payload: str | None) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments, or none if the payload is not kept or has another form."""
    try:
        return read_arguments(json.loads(payload or "{}"))
    except (TypeError, ValueError):
        return [], {}


def _restore_task(
    task: Any, backend: str, queue: str, priority: int, run_after: datetime | None
) -> Any:
    """Return the task as it was when it was enqueued."""
    changes = {
        "backend": backend,
        "queue_name": queue,
        # Any program can add jobs. Django has priorities from -100 to 100.
        "priority": max(-100, min(100, -priority)),
        "run_after": localize(run_after),
    }
    if all(getattr(task, name) == value for name, value in changes.items()):
        return task
    restored = copy(task)
    # Without the validation of a new task: its queue may have been removed from QUEUES since.
    for name, value in changes.items():
        object.__setattr__(restored, name, value)
    return restored


def _find_run_after(job: Job | JobRow | OutcomeRow | None) -> datetime | None:
    """Return the time of `run_after`. Retries move the time from which a job may run."""
    if job is None or job.attempts > 1 or job.run_at == job.created_at:
        return None
    return job.run_at


def _strip(text: str) -> str:
    """Return the traceback of an error, which follows its first line."""
    _, _, traceback = text.partition("\n\n")
    return traceback if traceback.startswith(("Traceback ", "  + Exception")) else text
