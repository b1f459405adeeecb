"""Plans that pause and resume tasks and named queues, and record that in the audit.

A named queue is paused by the lock of its row, which workers in every language obey. A task is
paused by a row of the companion schema, which Python workers read.
"""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.add import raise_job_spec_error, raise_schema_missing
from graphile_worker._sql.plans.audit import (
    AuditLabel,
    build_audited_transaction,
    clean_actor,
    clean_text,
    make_storable,
)
from graphile_worker._sql.queries.audit import AuditAccess, AuditAction, begin_audit
from graphile_worker._sql.queries.claim import notify_jobs
from graphile_worker._sql.queries.pauses import (
    PAUSED_PREFIX,
    HeldQueue,
    Pause,
    PauseAccess,
    PausedTasks,
    PauseKind,
    ResumedQueue,
    check_pauses,
    create_queue,
    delete_pause,
    get_paused_tasks,
    hold_queue,
    list_paused_queues,
    list_pauses,
    notify_pauses,
    pause_queue,
    resume_queue,
    wait_for_queue,
    write_pause,
)
from graphile_worker._sql.query import Plan
from graphile_worker._support.durations import format_exact_duration
from graphile_worker.errors import JobSpecError, QueueBusy, SchemaError
from graphile_worker.jobs import MAX_QUEUE_NAME_LENGTH, check_name, check_run_at, check_text

T = TypeVar("T")

# How long a pause waits for a worker that has locked the queue.
DEFAULT_WAIT = timedelta(seconds=5)
CHECK_INTERVAL_MILLISECONDS = 50


def plan_pause_queue(
    name: str,
    schemas: Schemas,
    *,
    duration: timedelta | None = None,
    reason: str | None = None,
    actor: str | None = None,
    wait: timedelta = DEFAULT_WAIT,
) -> Plan[Pause]:
    """Pause a named queue: no worker in any language starts jobs of it.

    While a job of the queue runs, the plan waits for its end, and keeps workers from starting the
    next one. A queue that does not exist is created. A queue that is paused already gets the new
    reason and end.

    Args:
        name: The name of the queue.
        schemas: The schemas of the queue.
        duration: The pause ends by itself after this time (default: without an end).
        reason: Why, for other people.
        actor: Who pauses the queue (default: the database role).
        wait: How long to wait for a running job.

    Returns:
        A plan for the pause.

    Raises:
        QueueBusy: A worker did not release the queue within `wait`.
        JobSpecError: An argument is invalid.
        SchemaMissing: The schema is not installed.
        SchemaError: The companion schema cannot store the end of the pause, or this role may not.
    """
    check_name("queue_name", name, MAX_QUEUE_NAME_LENGTH, "GWBQN")
    _check_arguments(duration, reason)
    label = _build_label(AuditAction.PAUSE, PauseKind.QUEUE, name, actor, reason, duration)

    def build_plan() -> Plan[Pause]:
        audit, access = yield from _plan_begin(schemas)
        # A role that may not describe a pause can set one, except for its end.
        if duration is not None and not access.can_write:
            raise _build_table_error(schemas, " Without a duration, you can pause the queue now.")
        who, why = _make_storable_texts(actor, reason, audit)
        yield create_queue(name)
        deadline = time.monotonic() + wait.total_seconds()
        was_paused = False
        while True:
            held: HeldQueue | None = yield hold_queue(name)
            if held is not None:
                was_paused = (held.locked_by or "").startswith(PAUSED_PREFIX)
                by: str | None = yield pause_queue(name, who)
                if by is not None:
                    break
            if time.monotonic() >= deadline:
                raise QueueBusy(name, None if held is None else held.locked_by)
            yield wait_for_queue(CHECK_INTERVAL_MILLISECONDS)
        pause = Pause(PauseKind.QUEUE, name, by, why)
        if access.can_write:
            pause = yield write_pause(PauseKind.QUEUE, name, by, why, duration, not was_paused)
            yield notify_pauses(PauseKind.QUEUE)
        yield label.build_entry(audit, 1)
        return pause

    return (yield from _plan_transaction(build_plan, schemas))


def plan_resume_queue(
    name: str, schemas: Schemas, *, actor: str | None = None, wait: timedelta = DEFAULT_WAIT
) -> Plan[bool]:
    """Resume a paused named queue, and wake workers in every language.

    A lock of a worker stays. If another program paused the queue while a job of it ran, the plan
    waits for the end of that job, so that jobs of the queue never run at the same time.

    Args:
        name: The name of the queue.
        schemas: The schemas of the queue.
        actor: Who resumes the queue.
        wait: How long to wait for a job that still runs.

    Returns:
        A plan for whether the queue was paused.

    Raises:
        QueueBusy: A job of the queue did not end within `wait`.
        SchemaMissing: The schema is not installed.
    """
    check_text("queue_name", name)
    label = _build_label(AuditAction.RESUME, PauseKind.QUEUE, name, actor)

    def build_plan() -> Plan[bool]:
        audit, access = yield from _plan_begin(schemas)
        deadline = time.monotonic() + wait.total_seconds()
        while True:
            answer: ResumedQueue = yield resume_queue(name)
            if answer.is_resumed or not answer.was_paused:
                break
            if time.monotonic() >= deadline:
                raise QueueBusy(name, answer.locked_by, answer.job_id)
            yield wait_for_queue(CHECK_INTERVAL_MILLISECONDS)
        if access.can_write:
            yield delete_pause(PauseKind.QUEUE, name)
        if answer.is_resumed:
            # One, because one job of a named queue runs at a time.
            yield notify_jobs(1)
        yield label.build_entry(audit, int(answer.is_resumed))
        return answer.is_resumed

    return (yield from _plan_transaction(build_plan, schemas))


def plan_pause_task(
    name: str,
    schemas: Schemas,
    *,
    duration: timedelta | None = None,
    reason: str | None = None,
    actor: str | None = None,
) -> Plan[Pause]:
    """Pause a task: Python workers start no jobs of it. Jobs that run continue.

    Args:
        name: The identifier of the task.
        schemas: The schemas of the queue.
        duration: The pause ends by itself after this time (default: without an end).
        reason: Why, for other people.
        actor: Who pauses the task (default: the database role).

    Returns:
        A plan for the pause.

    Raises:
        JobSpecError: An argument is invalid.
        SchemaError: The companion schema cannot store pauses, or this role may not write them.
    """
    check_name("identifier", name, 128, "GWBID")
    _check_arguments(duration, reason)
    label = _build_label(AuditAction.PAUSE, PauseKind.TASK, name, actor, reason, duration)

    def build_plan() -> Plan[Pause]:
        audit, access = yield from _plan_begin(schemas)
        if not access.can_write:
            raise _build_table_error(schemas)
        who, why = _make_storable_texts(actor, reason, audit)
        pause: Pause = yield write_pause(PauseKind.TASK, name, who, why, duration, False)
        yield notify_pauses(PauseKind.TASK)
        yield label.build_entry(audit, 1)
        return pause

    return (yield from _plan_transaction(build_plan, schemas))


def plan_resume_task(name: str, schemas: Schemas, *, actor: str | None = None) -> Plan[bool]:
    """Resume a paused task.

    Args:
        name: The identifier of the task.
        schemas: The schemas of the queue.
        actor: Who resumes the task.

    Returns:
        A plan for whether the task was paused.

    Raises:
        SchemaError: The companion schema cannot store pauses, or this role may not write them.
    """
    check_text("identifier", name)
    label = _build_label(AuditAction.RESUME, PauseKind.TASK, name, actor)

    def build_plan() -> Plan[bool]:
        audit, access = yield from _plan_begin(schemas)
        if not access.can_write:
            raise _build_table_error(schemas)
        was_paused: bool = yield delete_pause(PauseKind.TASK, name)
        yield notify_pauses(PauseKind.TASK)
        yield label.build_entry(audit, int(was_paused))
        return was_paused

    return (yield from _plan_transaction(build_plan, schemas))


def plan_get_paused_tasks(schemas: Schemas) -> Plan[list[str]]:
    """Return the names of the paused tasks, none if this role may not read them."""
    access: PauseAccess = yield check_pauses(schemas)
    if not access.can_read:
        return []
    paused: PausedTasks = yield get_paused_tasks()
    return paused.names


def plan_list_pauses(schemas: Schemas) -> Plan[list[Pause]]:
    """List the paused tasks and named queues, by kind and name.

    Args:
        schemas: The schemas of the queue.

    Returns:
        A plan for the pauses.

    Raises:
        SchemaMissing: The schema is not installed.
    """
    try:
        access: PauseAccess = yield check_pauses(schemas)
        described: list[Pause] = (yield list_pauses()) if access.can_read else []
        queues: dict[str, str] = yield list_paused_queues()
    except Exception as error:
        raise_schema_missing(error, schemas)
    return join_pauses(described, queues)


def join_pauses(described: list[Pause], queues: dict[str, str]) -> list[Pause]:
    """Return the pauses of tasks, and the paused queues with what is known of each.

    A row that describes another pause of a queue, of another person, is left out.
    """
    tasks = [each for each in described if each.kind is PauseKind.TASK]
    known = {each.name: each for each in described if each.kind is PauseKind.QUEUE}
    paused_queues = [
        known[name] if name in known and known[name].by == by else Pause(PauseKind.QUEUE, name, by)
        for name, by in queues.items()
    ]
    return sorted(paused_queues + tasks, key=lambda each: (each.kind, each.name))


def _plan_begin(schemas: Schemas) -> Plan[tuple[AuditAccess, PauseAccess]]:
    audit: AuditAccess = yield begin_audit(schemas)
    access: PauseAccess = yield check_pauses(schemas)
    return audit, access


def _plan_transaction(build_plan: Callable[[], Plan[T]], schemas: Schemas) -> Plan[T]:
    try:
        answer: T = yield build_audited_transaction(build_plan)
    except Exception as error:
        raise_job_spec_error(error, schemas)
    return answer


def _check_arguments(duration: timedelta | None, reason: str | None) -> None:
    if reason is not None:
        check_text("reason", reason)
    if duration is None:
        return
    if not isinstance(duration, timedelta) or duration <= timedelta(0):
        raise JobSpecError("duration", duration, "expected a timedelta above 0", "22023")
    check_run_at("duration", duration)


def _build_label(
    action: AuditAction,
    kind: PauseKind,
    name: str,
    actor: str | None,
    reason: str | None = None,
    duration: timedelta | None = None,
) -> AuditLabel:
    span = None if duration is None else f"for {format_exact_duration(duration)}"
    note = " ".join(filter(None, (reason, f"({span})" if reason and span else span))) or None
    return AuditLabel(action=action, actor=actor, filter=f"{kind}:{name}", note=note)


def _make_storable_texts(
    actor: str | None, reason: str | None, access: AuditAccess
) -> tuple[str | None, str | None]:
    return (
        make_storable(clean_actor(actor), access),
        make_storable(clean_text(reason), access) or None,
    )


def _build_table_error(schemas: Schemas, advice: str = "") -> SchemaError:
    return SchemaError(
        f"schema {schemas.companion!r} cannot store pauses: its table 'pauses' is missing, or this "
        "role may not write to it. Run `graphile-worker migrate` as the owner, and grant the role "
        f"its permissions.{advice}"
    )
