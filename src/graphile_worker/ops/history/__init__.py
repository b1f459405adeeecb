"""Read what became of jobs: list ended ones, show one, and inspect how long they are kept."""

from graphile_worker.ops.history.access import HistoryMissing
from graphile_worker.ops.history.ended_jobs import (
    EndedJob,
    EndedPage,
    EndedPosition,
    plan_list_outcomes,
)
from graphile_worker.ops.history.job_history import (
    JobHistory,
    RecentHistory,
    format_progress,
    plan_get_job_history,
    plan_get_recent_history,
)
from graphile_worker.ops.history.ring import (
    HistorySlot,
    HistoryStatus,
    plan_get_history_status,
    plan_prune,
    plan_set_history,
)

__all__ = [
    "EndedJob",
    "EndedPage",
    "EndedPosition",
    "HistoryMissing",
    "HistorySlot",
    "HistoryStatus",
    "JobHistory",
    "RecentHistory",
    "format_progress",
    "plan_get_history_status",
    "plan_get_job_history",
    "plan_get_recent_history",
    "plan_list_outcomes",
    "plan_prune",
    "plan_set_history",
]
