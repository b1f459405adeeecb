"""The limits of the diagnosis, the same for `top`, `doctor`, `jobs why`, `tune` and `/readyz`."""

from dataclasses import dataclass
from datetime import timedelta

from graphile_worker._sql.queries.storage import MAX_TRANSACTION_AGE


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """From which age, share or number on the diagnosis reports something."""

    no_workers_after: timedelta = timedelta(seconds=10)
    """A job is ready for this long, and no worker is alive or works."""
    idle_window: timedelta = timedelta(seconds=60)
    """A lock or a completed job within this time is the sign of a worker that is not registered."""
    late_warning: timedelta = timedelta(seconds=60)
    """A job of a task is ready for longer."""
    late_critical: timedelta = timedelta(seconds=300)
    unhandled_after: timedelta = timedelta(seconds=30)
    """A job is ready for longer, and no worker runs its task."""
    unhandled_window: timedelta = timedelta(minutes=5)
    """Where workers do not report their tasks: no job of the task ran within this time."""
    queue_blocked_after: timedelta = timedelta(minutes=5)
    """A named queue is locked for longer while jobs wait for it."""
    stale_after: timedelta = timedelta(hours=4)
    """Any worker releases a lock of this age. Fixed: all implementations use it."""
    dead_after_leases: float = 2.0
    """Leases without a heartbeat: after the first one, a running worker recovers the jobs."""
    failing_jobs: int = 20
    """Jobs of a task that wait for a retry or failed permanently, while their number grows."""
    growth_window: timedelta = timedelta(minutes=15)
    """The time within which that number grows."""
    max_transaction_age: timedelta = MAX_TRANSACTION_AGE
    """A transaction is open for longer."""
    min_dead_rows: int = 100_000
    """Dead rows of a table, if they are more than the live rows, or vacuum is overdue."""
    vacuum_overdue_after: timedelta = timedelta(days=1)
    clock_warning: timedelta = timedelta(seconds=5)
    """The local clock and the database's differ by more."""
    clock_critical: timedelta = timedelta(seconds=60)
    """By this much, jobs move to another minute."""
    pool_clock_warning: timedelta = timedelta(seconds=15)
    """The same for the clock of a worker, whose registration may take 10 s."""
    sequence_warning: float = 0.5
    """The share of the ids of tasks or queues that is used up."""
    sequence_critical: float = 0.8
    notify_warning: float = 0.1
    """The share of the server's notification queue that is full."""
    notify_critical: float = 0.5
    connections_warning: float = 0.9
    """The share of the server's connections that is in use."""


DEFAULT_THRESHOLDS = Thresholds()
