"""What the world hears of a job: its start, and its end once that is written."""

from datetime import timedelta
from typing import Any

from graphile_worker.events import (
    JobErrored,
    JobFailed,
    JobFinished,
    JobInterrupted,
    JobLockLost,
    JobStarted,
    JobSucceeded,
)
from graphile_worker.hooks import Hooks
from graphile_worker.worker.context import Context
from graphile_worker.worker.outcomes import Completed, Failed, Interrupted, Outcome, Written


def announce_start(hooks: Hooks, context: Context) -> None:
    if hooks.hears(JobStarted):
        hooks.emit(JobStarted(**_where(context)))


def announce_end(
    hooks: Hooks, context: Context, outcome: Outcome, *, still_ours: bool, duration: timedelta
) -> None:
    """Say how the job ended; if its lock was lost, that and nothing else."""
    where = _where(context)
    if not still_ours:
        hooks.emit(JobLockLost(**where))
        return
    match outcome:
        case Interrupted():
            hooks.emit(JobInterrupted(**where))
            return
        case Completed():
            hooks.emit(JobSucceeded(**where, duration=duration))
            hooks.emit(JobFinished(**where, error=None))
        case Written(_, late_error):
            hooks.emit(JobSucceeded(**where, duration=duration, late_error=late_error))
            hooks.emit(JobFinished(**where, error=None))
        case Failed(_, error, _, give_up):
            hooks.emit(JobErrored(**where, error=error, duration=duration))
            if give_up or context.job.attempts >= context.job.max_attempts:
                hooks.emit(JobFailed(**where, error=error, duration=duration))
            hooks.emit(JobFinished(**where, error=error))
        case _:
            # Snoozed: neither a success nor an error.
            hooks.emit(JobFinished(**where, error=None))


def _where(context: Context) -> dict[str, Any]:
    return {"pool_id": context.pool_id, "worker_id": context.worker_id, "job": context.job}
