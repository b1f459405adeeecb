"""RunState: how far the run of a job is, and the steps that lead from one state to the next."""

import threading
from collections.abc import Mapping
from enum import StrEnum, auto


class RunState(StrEnum):
    """The state of one run of a job in this process."""

    CLAIMED = auto()
    """This pool holds the job; its task has not started, or must not."""
    RUNNING = auto()
    """The task runs."""
    STOPPING = auto()
    """The task runs and is asked to stop: the pool stops, or other workers may claim the job."""
    COMMITTING = auto()
    """The task's own transaction is completing the job; the database has not confirmed it."""
    COMMITTED = auto()
    """The task's own transaction completed the job; the task may still run."""
    ENDED = auto()
    """The task returned or raised; its outcome is being written."""
    UNCERTAIN = auto()
    """The task ended while its own transaction was committing: the job may be completed already."""
    RELEASED = auto()
    """The job was released while its task still runs: how the task ends has no effect."""
    DISCARDED = auto()
    """This pool claimed the job again: nothing is written about this run."""


class RunStep(StrEnum):
    """What happens to a run."""

    START = auto()
    STOP = auto()
    BEGIN_COMMIT = auto()
    CONFIRM_COMMIT = auto()
    END = auto()
    RELEASE = auto()
    DISCARD = auto()


# The task may run in these states.
ACTIVE_STATES = frozenset(
    {RunState.RUNNING, RunState.STOPPING, RunState.COMMITTING, RunState.COMMITTED}
)

# No task runs in these states: the run is checked, or its outcome is written.
INACTIVE_STATES = frozenset({RunState.CLAIMED, RunState.ENDED, RunState.UNCERTAIN})

# A step that has no entry for a state leaves a run in that state. RELEASED stays as it is.
TRANSITIONS: Mapping[RunStep, Mapping[RunState, RunState]] = {
    RunStep.START: {RunState.CLAIMED: RunState.RUNNING},
    RunStep.STOP: {RunState.RUNNING: RunState.STOPPING},
    # The statement that completes the job checks its lock, also for a run that is asked to stop.
    RunStep.BEGIN_COMMIT: dict.fromkeys([RunState.RUNNING, RunState.STOPPING], RunState.COMMITTING),
    RunStep.CONFIRM_COMMIT: dict.fromkeys(
        [RunState.COMMITTING, RunState.DISCARDED], RunState.COMMITTED
    ),
    # A job that must not start stays CLAIMED while that is written.
    RunStep.END: dict.fromkeys(
        [RunState.RUNNING, RunState.STOPPING, RunState.COMMITTED], RunState.ENDED
    )
    | {RunState.COMMITTING: RunState.UNCERTAIN},
    RunStep.RELEASE: dict.fromkeys(ACTIVE_STATES, RunState.RELEASED),
    # A run that completed its job cannot be discarded any more.
    RunStep.DISCARD: dict.fromkeys(
        INACTIVE_STATES | ACTIVE_STATES - {RunState.COMMITTED}, RunState.DISCARDED
    ),
}

# A task that runs in these states should give up.
STOPPED_STATES = frozenset({RunState.STOPPING, RunState.RELEASED, RunState.DISCARDED})

# A plain function changes the state of its run from its thread.
_lock = threading.Lock()


class JobRun:
    """One run of a job; `advance` is the only way to change its state."""

    # On the class until it changes, because one is made for every job.
    state = RunState.CLAIMED

    def advance(self, step: RunStep) -> bool:
        """Make a step; False if the state stays as it is."""
        with _lock:
            following = TRANSITIONS[step].get(self.state)
            if following is None:
                return False
            self.state = following
            return True
