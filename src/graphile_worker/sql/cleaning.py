"""The plan for cleaning up: names that nobody uses, jobs that will never run again.

A transaction that adds a job first makes sure of its names, then relies on them, without locking
their rows. So names are only deleted while a table lock keeps all such transactions out: taken for
a moment, given up at once when somebody is in the way, tried again.
"""

from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import Any

from graphile_worker.errors import ConfigurationError, MigrationBlocked
from graphile_worker.jobs import check_text
from graphile_worker.sql import admin
from graphile_worker.sql.failures import LOCK_NOT_AVAILABLE, sqlstate_of
from graphile_worker.sql.query import Atomic, Pause, Plan, Query

TRIES = 40
PAUSE = 0.25


class CleanupTask(StrEnum):
    """What a cleanup may delete; the values are the reference's."""

    DELETE_PERMAFAILED_JOBS = "DELETE_PERMAFAILED_JOBS"
    GC_TASK_IDENTIFIERS = "GC_TASK_IDENTIFIERS"
    GC_JOB_QUEUES = "GC_JOB_QUEUES"


def cleaning(tasks: Iterable[CleanupTask | str], keep: Collection[str]) -> Plan[None]:
    """Delete what these tasks name, but for the task identifiers to keep."""
    chosen = {_cleanup_task(task) for task in tasks}
    if CleanupTask.DELETE_PERMAFAILED_JOBS in chosen:
        yield admin.delete_permanently_failed_jobs()
    if CleanupTask.GC_TASK_IDENTIFIERS in chosen:
        kept = sorted(check_text("task_identifiers_to_keep", name) for name in keep)
        if (yield admin.find_unused_tasks(kept)):
            yield from _while_nobody_adds(admin.lock_tasks(), admin.delete_unused_tasks(kept))
    if CleanupTask.GC_JOB_QUEUES in chosen and (yield admin.find_unused_queues()):
        yield from _while_nobody_adds(admin.lock_queues(), admin.delete_unused_queues())


def _while_nobody_adds(lock: Query[Any], deletion: Query[Any]) -> Plan[None]:
    for _ in range(TRIES):
        try:
            yield Atomic((admin.wait_briefly_for_locks(), lock, deletion))
            return
        except Exception as error:
            if sqlstate_of(error) != LOCK_NOT_AVAILABLE:
                raise
            blocked = error
        yield Pause(PAUSE)
    raise MigrationBlocked(
        "transactions that add jobs stayed open: clean up again when none of them lasts for long"
    ) from blocked


def _cleanup_task(task: CleanupTask | str) -> CleanupTask:
    try:
        return CleanupTask(task)
    except ValueError:
        known = ", ".join(CleanupTask)
        raise ConfigurationError(f"unknown cleanup task {task!r}: expected {known}") from None
