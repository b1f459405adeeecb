"""The seven states of a job. No column contains the state: locks, counters and times determine it.

`_sql/fragments/job_state.sql` defines them. Searches and lists use that fragment.
"""

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum


class JobState(StrEnum):
    """The states, in the order in which they are checked: the first that applies is the state."""

    STALE = "stale"
    """Locked for more than four hours, or by a dead worker."""
    RUNNING = "running"
    """Locked: the job runs, or waits in a worker for a free slot."""
    FAILED = "failed"
    """Permanently failed: no attempts are left."""
    WAITING = "waiting"
    """Due, but its named queue is locked."""
    READY = "ready"
    """Due, and free to be claimed."""
    RETRYING = "retrying"
    """An attempt failed, and the next one is not due."""
    SCHEDULED = "scheduled"
    """Not due, and without an attempt."""


LOCKED_STATES = (JobState.STALE, JobState.RUNNING)

# The names that tools of Graphile Worker for Node and of the Rust worker use.
STATE_ALIASES: Mapping[str, tuple[JobState, ...]] = {
    "locked": LOCKED_STATES,
    "permafailed": (JobState.FAILED,),
    "permanently_failed": (JobState.FAILED,),
}


def parse_states(name: str) -> tuple[JobState, ...]:
    """Return the states of a name or alias, or no states if it is unknown."""
    if name in STATE_ALIASES:
        return STATE_ALIASES[name]
    return (JobState(name),) if name in set(JobState) else ()


def compute_default_backoff(attempts: int) -> timedelta:
    """Compute the delay before the next attempt of a task without its own backoff."""
    return timedelta(seconds=math.exp(min(attempts, 10)))


def estimate_failed_at(
    *,
    run_at: datetime,
    updated_at: datetime,
    attempts: int,
    now: datetime,
    is_permanent: bool = True,
) -> datetime:
    """Estimate when a job failed: permanently, as `_sql/fragments/failed_at.sql` does, or last.

    Python workers write the time of a permanent failure to `run_at`. Other workers add the backoff
    of the attempt to it, as all do before a retry. A command that fails jobs changes `updated_at`.

    Args:
        run_at: The job's column.
        updated_at: The job's column.
        attempts: The job's column.
        now: The database's time.
        is_permanent: Whether the job failed permanently.
    """
    if run_at > now or not is_permanent:
        run_at -= compute_default_backoff(attempts)
    return min(now, max(run_at, updated_at))
