"""Describe a run, and what its history must show."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Expectations:
    """What a run was like, and which promises its history must keep."""

    # Of I2 to I5, I7, I8 and L5, only findings about these processes count; None counts all.
    counts_process: Callable[[str], bool] | None = None
    # Processes that still run at the end. They may hold locks.
    alive: Container[str] = ()
    # The exact minutes of each crontab; None skips this check.
    cron_minutes: Mapping[str, Iterable[float]] | None = None
    # Tasks whose effect is committed in the transaction that ends their job.
    transactional_tasks: Container[str] = ()
    # Tasks that keep their result and their attempts.
    keeping_tasks: Container[str] = ()
    # The tasks that share a concurrency limit, and its number of slots.
    concurrency_limits: Sequence[tuple[frozenset[str], int]] = ()
    # Slots that are rented after all workers have stopped.
    rented_slots: Sequence[str] = ()
    # Whether a fetch must take the best jobs first (I12). If not, findings are listed as apart.
    strict_priority: bool = False
    # Whether each job that could run had the time to.
    must_finish: bool = False
    max_crashes: int | None = 3
    # The log position that a promoted standby had reached: only later enqueues may be lost.
    durable_until: float | None = None
    # When the last fault was over.
    healed_at: float | None = None
    # Processes that ended without a signal from the test.
    exits: Sequence[str] = ()
    # Seconds within which the order of changes to different rows is unknown.
    slack: float = 1.0
