"""The plan of a cleanup: delete unused names, and jobs without attempts left.

A transaction that adds a job registers its names and then uses them without locking their rows. So
names are deleted under a table lock that keeps all such transactions out. The lock is short. If
another session blocks it, the cleanup gives it up at once and retries.
"""

from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import assert_never

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.add import raise_schema_missing
from graphile_worker._sql.plans.audit import AuditLabel, plan_audited
from graphile_worker._sql.queries import cleanup
from graphile_worker._sql.queries.audit import AuditAccess, AuditAction, begin_audit, end_audit
from graphile_worker._sql.query import Pause, Plan, Query, Transaction
from graphile_worker._sql.sqlstate import LOCK_NOT_AVAILABLE, get_sqlstate
from graphile_worker._support.lazy_dataclass import LazyDataclass
from graphile_worker._support.text import suggest
from graphile_worker.errors import CleanupBlocked, ConfigurationError
from graphile_worker.jobs import check_text

MAX_CLEANUP_ATTEMPTS = 20
RETRY_DELAY_SECONDS = 0.25


class CleanupTask(StrEnum):
    """What a cleanup deletes. The values are those of Graphile Worker for Node."""

    DELETE_PERMAFAILED_JOBS = "DELETE_PERMAFAILED_JOBS"
    """Jobs that have permanently failed."""
    GC_TASK_IDENTIFIERS = "GC_TASK_IDENTIFIERS"
    """Task names that no job uses."""
    GC_JOB_QUEUES = "GC_JOB_QUEUES"
    """Named queues that no job uses."""


def plan_cleanup(
    tasks: Iterable[CleanupTask | str],
    keep: Collection[str],
    schemas: Schemas,
    *,
    max_attempts: int = MAX_CLEANUP_ATTEMPTS,
    actor: str | None = None,
) -> Plan[dict[CleanupTask, int]]:
    """Run these cleanup tasks, and return the number of rows that each deleted."""
    chosen = {_parse_cleanup_task(task) for task in tasks}
    kept = sorted(check_text("task_identifiers_to_keep", name) for name in keep)
    deleted: dict[CleanupTask, int] = {}
    try:
        for task in CleanupTask:
            if task in chosen:
                label = AuditLabel(action=AuditAction.CLEANUP, actor=actor, filter=task.value)
                step = _CleanupStep(label, schemas, max_attempts)
                deleted[task] = yield from step.plan(task, kept)
    except Exception as error:
        raise_schema_missing(error, schemas)
    return deleted


class _CleanupStep(LazyDataclass):
    label: AuditLabel
    schemas: Schemas
    max_attempts: int

    def plan(self, task: CleanupTask, kept: list[str]) -> Plan[int]:
        count = 0
        match task:
            case CleanupTask.DELETE_PERMAFAILED_JOBS:
                count = yield Transaction(self._plan_delete_failed_jobs)
            case CleanupTask.GC_TASK_IDENTIFIERS:
                if (yield cleanup.has_unused_tasks(kept)):
                    deletion = cleanup.delete_unused_tasks(kept)
                    count = yield from self._plan_delete_locked(cleanup.lock_tasks(), deletion)
            case CleanupTask.GC_JOB_QUEUES:
                if (yield cleanup.has_unused_queues()):
                    deletion = cleanup.delete_unused_queues()
                    count = yield from self._plan_delete_locked(cleanup.lock_queues(), deletion)
            case _:
                assert_never(task)
        return count

    def _plan_delete_failed_jobs(self) -> Plan[int]:
        access: AuditAccess = yield begin_audit(self.schemas)
        # There may be millions of ids, so the statement adds the entries.
        if access.is_granted:
            count: int = yield self.label.build_failed_jobs_cleanup(access)
            yield end_audit()
        else:
            count = yield cleanup.delete_permanently_failed_jobs()
        return count

    def _plan_delete_locked(self, lock: Query[None], deletion: Query[int]) -> Plan[int]:
        def plan_delete() -> Plan[int]:
            yield cleanup.set_short_lock_timeout()
            yield lock
            count: int = yield deletion
            return count

        for _ in range(self.max_attempts):
            try:
                return (yield from plan_audited(plan_delete, int, self.schemas, self.label))
            except Exception as error:
                if get_sqlstate(error) != LOCK_NOT_AVAILABLE:
                    raise
                blocked = error
            yield Pause(RETRY_DELAY_SECONDS)
        raise CleanupBlocked(
            "transactions that add jobs stayed open. Run the cleanup again later."
        ) from blocked


def _parse_cleanup_task(task: CleanupTask | str) -> CleanupTask:
    try:
        return CleanupTask(task)
    except ValueError:
        hint, known = suggest(str(task), CleanupTask), ", ".join(CleanupTask)
        raise ConfigurationError(f"unknown cleanup task {task!r}{hint} Tasks: {known}") from None
