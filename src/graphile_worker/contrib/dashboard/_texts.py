"""Fixed texts of the dashboard, which the browser gets with its session."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from graphile_worker.contrib.dashboard._users import Permission, User
from graphile_worker.jobs import JobKeyMode
from graphile_worker.ops.job_actions import JobAction
from graphile_worker.ops.pauses import PauseKind
from graphile_worker.ops.pools import PoolHealth
from graphile_worker.ops.states import JobState

# In the order of the tabs.
STATE_HELP = {
    JobState.READY: "Due, and free to be claimed.",
    JobState.WAITING: "Due, but its named queue is locked.",
    JobState.RUNNING: "Locked by a worker.",
    JobState.SCHEDULED: "Not due yet.",
    JobState.RETRYING: "An attempt failed, and the next one is not due.",
    JobState.FAILED: "Permanently failed: no attempts are left.",
    JobState.STALE: "Locked for more than four hours, or by a dead worker.",
}


@dataclass(frozen=True, slots=True)
class ActionText:
    """How buttons and dialogs name a change of jobs, and the permission that it requires."""

    label: str
    done: str
    permission: Permission
    states: str
    help: str
    is_dangerous: bool = False


ACTION_TEXTS = {
    JobAction.RETRY: ActionText(
        "Retry",
        "retried",
        Permission.RETRY,
        "failed, retrying or scheduled",
        "The jobs run as soon as a worker is free. Permanently failed jobs start again at "
        "attempt 1.",
    ),
    JobAction.RESCHEDULE: ActionText(
        "Reschedule",
        "rescheduled",
        Permission.RESCHEDULE,
        "not locked by a worker",
        "Changes when the jobs run, or their priority.",
    ),
    JobAction.FAIL: ActionText(
        "Fail permanently",
        "failed permanently",
        Permission.FAIL,
        "ready, waiting, scheduled or retrying",
        "The jobs stay in the list as failed and never run again, unless you retry them.",
        is_dangerous=True,
    ),
    JobAction.DELETE: ActionText(
        "Delete",
        "deleted",
        Permission.DELETE,
        "not locked by a worker",
        "The jobs are removed without being run, as if a worker had completed them. You cannot "
        "undo this.",
        is_dangerous=True,
    ),
    JobAction.UNLOCK: ActionText(
        "Release",
        "released",
        Permission.RECOVER,
        "stale",
        "Removes the locks of dead workers, so the jobs run again.",
        is_dangerous=True,
    ),
}

PAUSE_TEXTS = {
    PauseKind.QUEUE: "Workers of all runtimes stop claiming jobs of this queue within 6 s. A job "
    "that is running ends first.",
    PauseKind.TASK: "Python workers stop claiming jobs of this task within 6 s. Graphile Worker "
    "for Node and for Rust do not obey this pause.",
}

RECOVERY_TEXTS = {
    PoolHealth.DEAD: "Its last heartbeat is older than two leases. Its jobs run again on another "
    "worker, and its queues are released.",
    PoolHealth.ALIVE: "This worker is alive. If it still runs its jobs, they run twice. Shut it "
    "down gracefully instead where you can.",
    PoolHealth.UNKNOWN: "This worker sends no heartbeats. If it still runs its jobs, they run "
    "twice. Make sure that its process has ended.",
}

KEY_MODE_TEXTS = {
    JobKeyMode.REPLACE: "A job with this key gets the new payload and time, unless it is running.",
    JobKeyMode.PRESERVE_RUN_AT: "A job with this key gets the new payload, and keeps its time.",
    JobKeyMode.UNSAFE_DEDUPE: "Nothing changes if a job with this key exists, even if it has "
    "failed permanently.",
}

PROBLEM_TITLES = {
    "database_unreachable": "The database is unreachable",
    "timeout": "The query took too long",
    "forbidden": "You do not have permission",
    "permission_denied": "The database role lacks permissions",
    "rows_hidden": "Row-level security hides the jobs",
    "schema_missing": "Graphile Worker is not installed here",
    "companion_missing": "The companion schema is not installed",
    "not_found": "Not found",
}

READ_ONLY_PERMISSIONS = (Permission.VIEW, Permission.VIEW_PAYLOAD)

TEXTS: Mapping[str, Any] = {
    "states": [
        {"name": state, "label": state.capitalize(), "help": help}
        for state, help in STATE_HELP.items()
    ],
    "actions": {action: asdict(text) for action, text in ACTION_TEXTS.items()},
}


def list_obstacles(
    user: User, *, is_read_only: bool, hide_payloads: bool = False
) -> dict[Permission, str | None]:
    """Return for each permission why a user cannot use it, or None."""

    def find_obstacle(permission: Permission) -> str | None:
        if is_read_only and permission not in READ_ONLY_PERMISSIONS:
            return "This dashboard is read-only."
        if hide_payloads and permission is Permission.VIEW_PAYLOAD:
            return "This dashboard hides payloads."
        if not user.may(permission):
            return f"Your account does not have the permission “{permission}”."
        return None

    return {permission: find_obstacle(permission) for permission in Permission}
