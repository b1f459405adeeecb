"""What the world hears of a job: its start, and its end once that is written."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

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
from graphile_worker.worker.context import Context
from graphile_worker.worker.outcomes import Completed, Failed, Interrupted, Outcome, Written


def announce_start(hooks: Hooks, context: Context) -> None:
    if hooks.hears(JobStarted):
        hooks.emit(JobStarted(**_where(context)))


def announce_end(
    hooks: Hooks, context: Context, outcome: Outcome, *, still_ours: bool, seconds: float
) -> None:
    """Say how the job ended; if its lock was lost, that and nothing else."""
    if still_ours and isinstance(outcome, Completed) and not _hears_of_success(hooks):
        return
    where = _where(context)
    for event in _events(context, outcome, still_ours, timedelta(seconds=seconds), where):
        hooks.emit(event)


def _hears_of_success(hooks: Hooks) -> bool:
    return hooks.hears(JobSucceeded) or hooks.hears(JobFinished)


def _events(
    context: Context, outcome: Outcome, still_ours: bool, duration: timedelta, where: dict[str, Any]
) -> Iterator[JobEvent]:
    if not still_ours:
        yield JobLockLost(**where)
        return
    match outcome:
        case Interrupted():
            yield JobInterrupted(**where)
            return
        case Completed() | Written(_, None):
            yield JobSucceeded(**where, duration=duration)
        case Written(_, late_error):
            yield JobSucceededLate(**where, duration=duration, late_error=late_error)
        case Failed(_, error, _, give_up):
            of_items = tuple(error.errors.values()) if isinstance(error, PartialFailure) else ()
            said = {**where, "error": error, "duration": duration, "batch_job_errors": of_items}
            is_last = give_up or context.job.attempts >= context.job.max_attempts
            yield JobErrored(**said, will_retry=not is_last)
            if is_last:
                yield JobFailed(**said)
        case _:
            # Snoozed: neither a success nor an error.
            pass
    yield JobFinished(**where, error=outcome.error if isinstance(outcome, Failed) else None)


def _where(context: Context) -> dict[str, Any]:
    return {"pool_id": context.pool_id, "worker_id": context.worker_id, "job": context.job}
