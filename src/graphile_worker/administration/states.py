"""The seven states of a job. No column holds one: it follows from locks, counters and the time.

`sql/fragments/job_state.sql` says which holds when; whatever shows or looks for a state asks there.
"""

from collections.abc import Mapping
from enum import StrEnum


class State(StrEnum):
    """In the order in which they are asked for: the first that fits is the one."""

    STALE = "stale"
    """Locked for more than four hours, or by a worker that is dead."""
    RUNNING = "running"
    """Locked: it runs, or was fetched and waits for its turn in a worker."""
    FAILED = "failed"
    """No attempts are left."""
    WAITING = "waiting"
    """It could run, but its named queue is locked."""
    READY = "ready"
    """It could run."""
    RETRYING = "retrying"
    """It failed before and waits for its next attempt."""
    SCHEDULED = "scheduled"
    """Its time has not come."""


LOCKED = (State.STALE, State.RUNNING)

# Other words for them, in the reference's tools and in those for Rust.
ALIASES: Mapping[str, tuple[State, ...]] = {
    "locked": LOCKED,
    "permafailed": (State.FAILED,),
    "permanently_failed": (State.FAILED,),
}


def states_called(name: str) -> tuple[State, ...]:
    """The states that a word stands for; none if it is no such word."""
    if name in ALIASES:
        return ALIASES[name]
    return (State(name),) if name in set(State) else ()
