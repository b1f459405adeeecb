"""Emit the events of a job: its start, and its end after the outcome was written."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from graphile_worker._worker.context import Context
from graphile_worker._worker.outcomes import (
    Completed,
    CompletedInTransaction,
    Failed,
    Interrupted,
    Outcome,
)
from graphile_worker.events import (
    JobErrored,
    JobEvent,
    JobFailed,
    JobFinished,
    JobInterrupted,
    JobLockLost,
    JobStarted,
    JobSucceeded,
    JobSucceededLate,
)
from graphile_worker.hooks import Hooks
from graphile_worker.retries import PartialFailure


def emit_job_started(hooks: Hooks, context: Context) -> None:
    if hooks.has_listeners(JobStarted):
        hooks.emit(JobStarted(**_build_event_fields(context)))


def emit_job_ended(
    hooks: Hooks, context: Context, outcome: Outcome, *, is_still_owned: bool, seconds: float
) -> None:
    """Emit how the job ended, or only that its lock was lost."""
    if is_still_owned and isinstance(outcome, Completed) and not _has_success_listeners(hooks):
        return
    fields = _build_event_fields(context)
    duration = timedelta(seconds=seconds)
    for event in _build_events(context, outcome, is_still_owned, duration, fields):
        hooks.emit(event)


def _has_success_listeners(hooks: Hooks) -> bool:
    return hooks.has_listeners(JobSucceeded) or hooks.has_listeners(JobFinished)


def _build_events(
    context: Context,
    outcome: Outcome,
    is_still_owned: bool,
    duration: timedelta,
    fields: dict[str, Any],
) -> Iterator[JobEvent]:
    if not is_still_owned:
        yield JobLockLost(**fields)
        return
    match outcome:
        case Interrupted():
            yield JobInterrupted(**fields)
            return
        case Completed() | CompletedInTransaction(_, None):
            yield JobSucceeded(**fields, duration=duration)
        case CompletedInTransaction(_, late_error):
            yield JobSucceededLate(**fields, duration=duration, late_error=late_error)
        case Failed(_, error, _, is_permanent):
            item_errors = tuple(error.errors.values()) if isinstance(error, PartialFailure) else ()
            more = {**fields, "error": error, "duration": duration, "batch_job_errors": item_errors}
            is_last = is_permanent or context.job.attempts >= context.job.max_attempts
            yield JobErrored(**more, will_retry=not is_last)
            if is_last:
                yield JobFailed(**more)
        case _:
            # Snoozed is neither a success nor an error.
            pass
    yield JobFinished(**fields, error=outcome.error if isinstance(outcome, Failed) else None)


def _build_event_fields(context: Context) -> dict[str, Any]:
    return {"pool_id": context.pool_id, "worker_id": context.worker_id, "job": context.job}
