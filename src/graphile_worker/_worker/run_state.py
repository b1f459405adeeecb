"""RunState: the state of the run of a job, and the steps from one state to the next."""

import threading
from collections.abc import Mapping
from enum import StrEnum, auto


class RunState(StrEnum):
    """The state of one run of a job in this process."""

    CLAIMED = auto()
    """This pool holds the job. Its task has not started, or must not start."""
    RUNNING = auto()
    """The task runs."""
    STOPPING = auto()
    """The task runs and should stop: the pool shuts down, or other workers may claim the job."""
    COMMITTING = auto()
    """The task's own transaction is completing the job. The database has not confirmed it."""
    COMMITTED = auto()
    """The task's own transaction completed the job. The task may still run."""
    ENDED = auto()
    """The task returned or raised. Its outcome is being written."""
    UNCERTAIN = auto()
    """The task ended while its own transaction was committing: the job may be completed already."""
    RELEASED = auto()
    """The job was released while its task still runs: how the task ends has no effect."""
    DISCARDED = auto()
    """This pool claimed the job again: nothing is written about this run."""


class RunStep(StrEnum):
    """An event that may change the state of a run."""

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

# A step without an entry for a state does not change that state. RELEASED never changes.
TRANSITIONS: Mapping[RunStep, Mapping[RunState, RunState]] = {
    RunStep.START: {RunState.CLAIMED: RunState.RUNNING},
    RunStep.STOP: {RunState.RUNNING: RunState.STOPPING},
    # Allowed while stopping, because the statement that completes the job checks its lock.
    RunStep.BEGIN_COMMIT: dict.fromkeys([RunState.RUNNING, RunState.STOPPING], RunState.COMMITTING),
    RunStep.CONFIRM_COMMIT: dict.fromkeys(
        [RunState.COMMITTING, RunState.DISCARDED], RunState.COMMITTED
    ),
    # A job that must not start stays CLAIMED while it is released or fails.
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

# A task that runs in these states should stop.
STOPPED_STATES = frozenset({RunState.STOPPING, RunState.RELEASED, RunState.DISCARDED})

_state_after_start = TRANSITIONS[RunStep.START].get
_state_after_end = TRANSITIONS[RunStep.END].get

# A plain function changes the state of its run from its thread.
_lock = threading.Lock()


class JobRun:
    """One run of a job. Only its methods change its state."""

    # The defaults are on the class, because a run is created for every job.
    state = RunState.CLAIMED
    should_stop = False
    """Whether the task was asked to stop. A later transaction does not reset it."""

    # Every job starts and ends. The event loop makes these two steps while no thread has the run,
    # so they need no lock.

    def start(self) -> None:
        self.state = _state_after_start(self.state, self.state)

    def end(self) -> None:
        self.state = _state_after_end(self.state, self.state)

    def advance(self, step: RunStep) -> bool:
        """Apply a step, and return whether the state changed."""
        with _lock:
            next_state = TRANSITIONS[step].get(self.state)
            if next_state is None:
                return False
            self.state = next_state
            if next_state in STOPPED_STATES:
                self.should_stop = True
            return True
