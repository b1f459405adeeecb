"""Pause and resume tasks and named queues.

A named queue is paused by a lock that workers in every language obey. A task is paused in the
companion schema, for Python workers.
"""

from datetime import datetime, timedelta

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.pauses import (
    DEFAULT_WAIT,
    plan_list_pauses,
    plan_pause_queue,
    plan_pause_task,
    plan_resume_queue,
    plan_resume_task,
)
from graphile_worker._sql.queries.pauses import (
    PAUSED_PREFIX,
    Pause,
    PauseAccess,
    PauseKind,
    check_pauses,
    resume_expired_queues,
)
from graphile_worker._sql.queries.search import list_queue_names, list_task_names
from graphile_worker._sql.query import Plan
from graphile_worker._support.durations import format_duration
from graphile_worker._support.text import suggest
from graphile_worker.ops.pools import list_alive_pools, plan_get_pools
from graphile_worker.ops.search import DEFAULT_LIMITS, QueryLimits, with_limits

__all__ = [
    "DEFAULT_WAIT",
    "PAUSED_PREFIX",
    "Pause",
    "PauseKind",
    "format_pause",
    "is_overdue",
    "is_paused_lock",
    "plan_list_pause_warnings",
    "plan_list_pauses",
    "plan_pause_queue",
    "plan_pause_task",
    "plan_resume_expired",
    "plan_resume_queue",
    "plan_resume_task",
]

# A lock of a named queue that is this far in the future is a pause by another program.
PAUSED_LOCK_AGE_SECONDS = -86_400.0

MAX_NAMES = 10_000


def is_paused_lock(locked_by: str | None, age_seconds: float) -> bool:
    """Return whether the lock of a named queue is that of a pause, not of a worker.

    Args:
        locked_by: Who has locked the queue.
        age_seconds: Seconds since the time of the lock, by the database's clock.
    """
    return (locked_by or "").startswith(PAUSED_PREFIX) or age_seconds < PAUSED_LOCK_AGE_SECONDS


def plan_list_pause_warnings(
    kind: PauseKind,
    name: str,
    schemas: Schemas,
    *,
    duration: timedelta | None = None,
    limits: QueryLimits = DEFAULT_LIMITS,
) -> Plan[list[str]]:
    """List what a person should know before a pause.

    Args:
        kind: What to pause.
        name: Identifier of the task, or name of the queue.
        schemas: The schemas of the queue.
        duration: The length of the pause, if it ends by itself.
        limits: The timeouts of each statement.

    Returns:
        A plan for sentences: the name may be mistyped, or no worker will end the pause.
    """
    warnings = []
    query = list_task_names if kind is PauseKind.TASK else list_queue_names
    names = yield from with_limits(query(MAX_NAMES), schemas, limits)
    if name not in names and len(names) < MAX_NAMES:
        hint = suggest(name, names).removesuffix(".")
        warnings.append(f"{kind} {name!r} does not exist yet{hint}")
    if kind is PauseKind.QUEUE and duration is not None:
        pools = yield from plan_get_pools(
            schemas, lambda query: with_limits(query, schemas, limits)
        )
        if not any(pool.runtime == "python" for pool in list_alive_pools(pools)):
            warnings.append(
                "no Python worker is alive to end the pause: the queue stays paused until one "
                "starts, or until you resume it"
            )
    return warnings


def plan_resume_expired(schemas: Schemas) -> Plan[list[tuple[PauseKind, str]]]:
    """End the pauses whose time is over, as Python workers do, if this role may.

    Args:
        schemas: The schemas of the queue.

    Returns:
        A plan for the kinds and names of the pauses that ended.
    """
    access: PauseAccess = yield check_pauses(schemas)
    ended: list[tuple[PauseKind, str]] = (yield resume_expired_queues()) if access.can_write else []
    return ended


def format_pause(pause: Pause, now: datetime) -> str:
    """Format who paused something, since when, until when and why.

    Args:
        pause: The pause.
        now: The time, by the database's clock.

    Returns:
        A text, for example `paused by ada for 2m30s, ends in 7m30s; reason: vendor is down`.
    """
    since = "" if pause.since is None else f" for {format_duration(now - pause.since)}"
    if pause.until is None:
        end = ""
    elif is_overdue(pause, now):
        end = f", ended {format_duration(now - pause.until)} ago"
    else:
        end = f", ends in {format_duration(pause.until - now)}"
    by = f" by {pause.by}" if pause.by else ""
    return f"paused{by}{since}{end}{f'; reason: {pause.reason}' if pause.reason else ''}"


def is_overdue(pause: Pause, now: datetime) -> bool:
    """Return whether the time of a pause is over, although no worker has ended it yet.

    Args:
        pause: The pause.
        now: The time, by the database's clock.
    """
    return pause.until is not None and pause.until <= now
