"""Which changes apply to a job in its state: as bulk changes do, each other one with a reason."""

from graphile_worker.ops.bulk import (
    BulkAction,
    CompleteAction,
    FailAction,
    RescheduleAction,
    RetryAction,
    UnlockAction,
)
from graphile_worker.ops.job_actions import JobAction, list_action_obstacles
from graphile_worker.ops.states import JobState

CHANGES: dict[JobAction, BulkAction] = {
    JobAction.RETRY: RetryAction(),
    JobAction.RESCHEDULE: RescheduleAction(),
    JobAction.FAIL: FailAction(),
    JobAction.DELETE: CompleteAction(),
    JobAction.UNLOCK: UnlockAction(),
}


def test_an_action_applies_in_the_states_of_its_bulk_change_and_otherwise_has_a_reason():
    for state in JobState:
        for action, obstacle in list_action_obstacles(state).items():
            assert (obstacle is None) == (state in CHANGES[action].states)
            assert obstacle is None or obstacle.endswith(".")


def test_no_action_applies_to_a_job_that_ended():
    assert set(list_action_obstacles(None).values()) == {"The job has ended."}
