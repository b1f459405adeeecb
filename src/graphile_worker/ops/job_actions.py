"""Which changes apply to a job in its state, and why not."""

from collections.abc import Mapping
from enum import StrEnum

from graphile_worker.ops.bulk import (
    BulkAction,
    CompleteAction,
    FailAction,
    RescheduleAction,
    RetryAction,
    UnlockAction,
)
from graphile_worker.ops.states import JobState


class JobAction(StrEnum):
    """A change that a person can make to a job."""

    RETRY = "retry"
    """Run it now."""
    RESCHEDULE = "reschedule"
    """Change its time, priority or attempts."""
    FAIL = "fail"
    """Fail it permanently."""
    DELETE = "delete"
    """Delete it as if it had been completed."""
    UNLOCK = "unlock"
    """Release it from a dead worker."""


_CHANGES: Mapping[JobAction, BulkAction] = {
    JobAction.RETRY: RetryAction(),
    JobAction.RESCHEDULE: RescheduleAction(),
    JobAction.FAIL: FailAction(),
    JobAction.DELETE: CompleteAction(),
    JobAction.UNLOCK: UnlockAction(),
}

_REASONS: Mapping[tuple[JobAction, JobState], str] = {
    (JobAction.RETRY, JobState.READY): "It can run now: a worker claims it as soon as one is free.",
    (JobAction.RETRY, JobState.WAITING): "It runs as soon as its queue is free.",
    (JobAction.FAIL, JobState.FAILED): "It has already failed permanently.",
    (JobAction.UNLOCK, JobState.RUNNING): "Its worker is not known to be dead.",
}
_RUNNING_REASON = "A worker holds it. Wait until it ends."
_STALE_REASON = "A worker holds it. Unlock it first."
_UNLOCKED_REASON = "No worker holds it."
_ENDED_REASON = "The job has ended."


def list_action_obstacles(state: JobState | None) -> dict[JobAction, str | None]:
    """List the changes of a job, each with the reason why it does not apply.

    Args:
        state: The state of the job, None if it has ended.

    Returns:
        None for the changes that apply.
    """
    return {action: _find_obstacle(action, state) for action in JobAction}


def _find_obstacle(action: JobAction, state: JobState | None) -> str | None:
    if state is None:
        return _ENDED_REASON
    if state in _CHANGES[action].states:
        return None
    if (reason := _REASONS.get((action, state))) is not None:
        return reason
    if action is JobAction.UNLOCK:
        return _UNLOCKED_REASON
    return _STALE_REASON if state is JobState.STALE else _RUNNING_REASON
