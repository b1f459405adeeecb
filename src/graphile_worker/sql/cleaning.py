"""The plan for cleaning up: names that nobody uses, jobs that will never run again.

A transaction that adds a job first makes sure of its names, then relies on them, without locking
their rows. So names are only deleted while a table lock keeps all such transactions out: taken for
a moment, given up at once when somebody is in the way, tried again.
"""

from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import assert_never

from graphile_worker.errors import CleanupBlocked, ConfigurationError
from graphile_worker.jobs import check_text
from graphile_worker.sql import admin
from graphile_worker.sql.adding import raise_absence
from graphile_worker.sql.failures import LOCK_NOT_AVAILABLE, sqlstate_of
from graphile_worker.sql.identifiers import Schemas
from graphile_worker.sql.query import Atomic, Pause, Plan, Query

TRIES = 20
PAUSE = 0.25


class CleanupTask(StrEnum):
    """What a cleanup may delete; the values are the reference's."""

    DELETE_PERMAFAILED_JOBS = "DELETE_PERMAFAILED_JOBS"
    GC_TASK_IDENTIFIERS = "GC_TASK_IDENTIFIERS"
    GC_JOB_QUEUES = "GC_JOB_QUEUES"


def cleaning(
    tasks: Iterable[CleanupTask | str], keep: Collection[str], schemas: Schemas
) -> Plan[dict[CleanupTask, int]]:
    """Delete what these tasks name, but for the task identifiers to keep; how many of each."""
    chosen = {_cleanup_task(task) for task in tasks}
    kept = sorted(check_text("task_identifiers_to_keep", name) for name in keep)
    deleted: dict[CleanupTask, int] = {}
    try:
        for task in CleanupTask:
            if task in chosen:
                deleted[task] = yield from _cleaned(task, kept)
    except Exception as error:
        raise_absence(error, schemas)
    return deleted


def _cleaned(task: CleanupTask, kept: list[str]) -> Plan[int]:
    count = 0
    match task:
        case CleanupTask.DELETE_PERMAFAILED_JOBS:
            count = yield admin.delete_permanently_failed_jobs()
        case CleanupTask.GC_TASK_IDENTIFIERS:
            if (yield admin.find_unused_tasks(kept)):
                deletion = admin.delete_unused_tasks(kept)
                count = yield from _while_nobody_adds(admin.lock_tasks(), deletion)
        case CleanupTask.GC_JOB_QUEUES:
            if (yield admin.find_unused_queues()):
                deletion = admin.delete_unused_queues()
                count = yield from _while_nobody_adds(admin.lock_queues(), deletion)
        case _:
            assert_never(task)
    return count


def _while_nobody_adds(lock: Query[None], deletion: Query[int]) -> Plan[int]:
    for _ in range(TRIES):
        try:
            *_, count = yield Atomic((admin.wait_briefly_for_locks(), lock, deletion))
            return int(count)
        except Exception as error:
            if sqlstate_of(error) != LOCK_NOT_AVAILABLE:
                raise
            blocked = error
        yield Pause(PAUSE)
    raise CleanupBlocked(
        "transactions that add jobs stayed open: clean up again when none of them lasts for long"
    ) from blocked


def _cleanup_task(task: CleanupTask | str) -> CleanupTask:
    try:
        return CleanupTask(task)
    except ValueError:
        known = ", ".join(CleanupTask)
        raise ConfigurationError(f"unknown cleanup task {task!r}: expected {known}") from None
