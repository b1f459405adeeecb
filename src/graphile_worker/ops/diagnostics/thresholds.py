"""The limits of the diagnosis, which `top`, `doctor`, `jobs why`, `tune` and `/readyz` share."""

from dataclasses import dataclass
from datetime import timedelta

from graphile_worker._sql.queries.storage import MAX_TRANSACTION_AGE


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """The ages, shares and numbers beyond which the diagnosis reports a finding."""

    no_workers_after: timedelta = timedelta(seconds=10)
    """Age of the oldest ready job, while no worker is alive or works."""
    idle_window: timedelta = timedelta(seconds=60)
    """Time within which any lock or a completed job shows that a worker works."""
    late_warning: timedelta = timedelta(seconds=60)
    """Age of the oldest ready job of a task."""
    late_critical: timedelta = timedelta(seconds=300)
    """Age of the oldest ready job of a task that makes the finding critical."""
    unhandled_after: timedelta = timedelta(seconds=30)
    """Age of the oldest ready job of a task that no worker runs."""
    unhandled_window: timedelta = timedelta(minutes=5)
    """Time without a running job of a task, where workers do not report their tasks."""
    queue_blocked_after: timedelta = timedelta(minutes=5)
    """Age of the lock of a named queue for which jobs wait."""
    stale_after: timedelta = timedelta(hours=4)
    """Age from which any worker releases a lock. Fixed, because all implementations use it."""
    dead_after_leases: float = 2.0
    """Leases without a heartbeat. After one lease, a running worker recovers the jobs."""
    failing_jobs: int = 20
    """Jobs of a task that wait for a retry or failed permanently, while their number grows."""
    growth_window: timedelta = timedelta(minutes=15)
    """Time within which the number of failing jobs grows."""
    max_transaction_age: timedelta = MAX_TRANSACTION_AGE
    """Age of an open transaction."""
    min_dead_rows: int = 100_000
    """Dead rows of a table, if they outnumber the live rows or vacuum is overdue."""
    vacuum_overdue_after: timedelta = timedelta(days=1)
    """Time since the last vacuum of a table."""
    clock_warning: timedelta = timedelta(seconds=5)
    """Difference between the local clock and the database's."""
    clock_critical: timedelta = timedelta(seconds=60)
    """Difference that moves jobs to another minute."""
    pool_clock_warning: timedelta = timedelta(seconds=15)
    """Difference between the clocks of a worker and the database. Registration may take 10 s."""
    sequence_warning: float = 0.5
    """Share of the ids of tasks or queues that is used up."""
    sequence_critical: float = 0.8
    """Share of used ids that makes the finding critical."""
    notify_warning: float = 0.1
    """Share of the server's notification queue that is full."""
    notify_critical: float = 0.5
    """Share of the notification queue that makes the finding critical."""
    notify_lock_warning: float = 0.5
    """Share of samples in which a commit waits for the lock of notifications."""
    connections_warning: float = 0.9
    """Share of the server's connections that is in use."""


DEFAULT_THRESHOLDS = Thresholds()
