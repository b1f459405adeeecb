"""The seven states of a job. No column holds one: it follows from locks, counters and the time.

`sql/fragments/job_state.sql` says which holds when; whatever shows or looks for a state asks there.
"""

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum


class JobState(StrEnum):
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


LOCKED_STATES = (JobState.STALE, JobState.RUNNING)

# Other words for them, in the reference's tools and in those for Rust.
STATE_ALIASES: Mapping[str, tuple[JobState, ...]] = {
    "locked": LOCKED_STATES,
    "permafailed": (JobState.FAILED,),
    "permanently_failed": (JobState.FAILED,),
}


def parse_states(name: str) -> tuple[JobState, ...]:
    """The states that a word stands for; none if it is no such word."""
    if name in STATE_ALIASES:
        return STATE_ALIASES[name]
    return (JobState(name),) if name in set(JobState) else ()


def estimate_failed_at(
    *, run_at: datetime, updated_at: datetime, attempts: int, now: datetime
) -> datetime:
    """When a job without attempts failed, as far as its row says.

    Our workers write it as `run_at`. Those of other languages put that off by the backoff of the
    attempt. A person who fails jobs changes `updated_at`.
    """
    if run_at > now:
        run_at -= timedelta(seconds=math.exp(min(attempts, 10)))
    return min(now, max(run_at, updated_at))
