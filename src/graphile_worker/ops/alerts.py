"""Attention: what somebody should look at now, the worst first, each with what to type.

Every rule is a pure function of what was watched. What one rule explains another does not repeat:
where no worker runs at all, nobody needs to hear of each task that is late.
"""

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._support.durations import format_duration
from graphile_worker.ops.filters import Filter, FilterField, Term, TextPattern, filter_by_states
from graphile_worker.ops.pools import PAUSED_PREFIX, PoolHealth, PoolInfo, list_alive_pools
from graphile_worker.ops.snapshot import LockedQueue, Snapshot, TaskCount
from graphile_worker.ops.states import JobState
from graphile_worker.ops.text import format_command, pluralize, summarize_error
from graphile_worker.ops.trends import SnapshotHistory

SUPPORTED_LEVEL = 20

# Seconds.
NO_WORKERS_AFTER_SECONDS = 10.0
LATE_WARNING_SECONDS, LATE_CRITICAL_SECONDS = 60.0, 300.0
UNHANDLED_AFTER_SECONDS = 30.0
BLOCKED_AFTER_SECONDS = 300.0
STALE_AFTER_SECONDS = 14_400.0
MAX_TRANSACTION_AGE_SECONDS = 900.0
MAX_CLOCK_OFFSET_SECONDS = 5.0
VACUUM_OVERDUE_SECONDS = 86_400.0

IDLE_WINDOW = timedelta(seconds=60)
NOT_RUNNING_WINDOW = timedelta(minutes=5)
GROWTH_WINDOW = timedelta(minutes=15)
GROWTH_WINDOW_TEXT = "within 15 min"

MIN_FAILING_JOBS = 20
MIN_DEAD_ROWS = 100_000

# Of one rule; how many more there are is said.
MAX_ALERTS_PER_RULE = 5


class Severity(StrEnum):
    CRITICAL = "critical"  # jobs do not run
    WARNING = "warning"  # jobs run late, or fail
    NOTE = "note"  # somebody should know


class AlertRule(StrEnum):
    """Whatever attention can be called to; the comments name them in the dashboard's design."""

    NO_WORKERS = "no-workers"  # A1
    LATE = "late"  # A2
    QUEUE_BLOCKED = "queue-blocked"  # A3
    STALE_WORKER = "stale-worker"  # A4
    UNHANDLED_TASK = "unhandled-task"  # A5
    FAILING = "failing"  # A6
    PERMANENTLY_FAILED = "permanently-failed"  # A7
    QUEUE_PAUSED = "queue-paused"  # A9
    DATABASE = "database"  # A10
    COMPATIBILITY = "compatibility"  # A11
    ACCESS = "access"  # A12


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    """What is up, how it shows, how many jobs it concerns, and what to type, if that helps."""

    rule: AlertRule
    severity: Severity
    title: str
    evidence: tuple[str, ...] = ()
    affected: int = 0
    command: str | None = None


class QueueHealth(StrEnum):
    HEALTHY = "healthy"
    DEGRADED = "degraded"
    STALLED = "stalled"


Alerts = Iterator[Alert]


@dataclass(frozen=True, slots=True)
class AlertContext:
    """What was watched, and in which schema."""

    history: SnapshotHistory
    schemas: Schemas

    @property
    def snapshot(self) -> Snapshot:
        return self.history.last

    def format_command(self, subcommand: str, *arguments: str) -> str:
        return format_command(self.schemas, subcommand, *arguments)

    def format_jobs_command(self, verb: str, task: str, *states: JobState) -> str:
        """A command for the jobs of a task in these states."""
        wanted = Filter((Term(FilterField.TASK, (TextPattern((task,)),)),)) & filter_by_states(
            *states
        )
        return self.format_command(f"jobs {verb}", str(wanted))


def find_alerts(history: SnapshotHistory, schemas: Schemas) -> list[Alert]:
    """All that should be looked at, the worst first."""
    case = AlertContext(history, schemas)
    found = [each for rule in RULES for each in _limit_alerts(list(rule(case)))]
    explained = {AlertRule.LATE, AlertRule.UNHANDLED_TASK}
    if any(each.rule is AlertRule.NO_WORKERS for each in found):
        found = [each for each in found if each.rule not in explained]
    order = list(Severity)
    return sorted(found, key=lambda each: order.index(each.severity))


def assess_health(alerts: list[Alert]) -> QueueHealth:
    if any(each.rule is AlertRule.NO_WORKERS for each in alerts):
        return QueueHealth.STALLED
    if any(each.severity is not Severity.NOTE for each in alerts):
        return QueueHealth.DEGRADED
    return QueueHealth.HEALTHY


def check_no_workers(context: AlertContext) -> Alerts:
    """Somebody waits and nobody works: no sign of life, no new lock, nothing done."""
    seen = context.snapshot
    ready, oldest = seen.count(JobState.READY), seen.oldest_ready or 0.0
    if (
        oldest < NO_WORKERS_AFTER_SECONDS
        or list_alive_pools(seen.pools)
        or context.history.completed_within(IDLE_WINDOW)
    ):
        return
    if any(job.age < IDLE_WINDOW.total_seconds() for job in seen.locked):
        return
    dead = sum(pool.health is PoolHealth.DEAD for pool in seen.pools)
    yield Alert(
        rule=AlertRule.NO_WORKERS,
        severity=Severity.CRITICAL,
        title=f"No worker runs: {pluralize(ready, 'job')} ready, the oldest for "
        f"{format_seconds(oldest)}",
        evidence=(
            f"no pool has shown life within its lease, {dead} fell silent",
            "nothing was locked or done within a minute",
        ),
        affected=ready,
        command=context.format_command("--app your_module:app"),
    )


def check_late(context: AlertContext) -> Alerts:
    """The first job of a task has been ready for long; unless nobody runs that task at all."""
    lost = {task.identifier for task in _list_unhandled_tasks(context)}
    tasks = [task for task in context.snapshot.tasks if task.identifier not in lost]
    for task in sorted(tasks, key=lambda task: -(task.oldest_ready or 0.0)):
        waited = task.oldest_ready or 0.0
        if waited > LATE_WARNING_SECONDS:
            yield Alert(
                rule=AlertRule.LATE,
                severity=Severity.CRITICAL if waited > LATE_CRITICAL_SECONDS else Severity.WARNING,
                title=f"{task.identifier} is late: a job has been ready for "
                f"{format_seconds(waited)}",
                evidence=(
                    f"{task[JobState.READY]:,} ready, {task.running:,} running",
                    *_format_busy_slots(context.snapshot),
                    *_format_unreported_task(context.snapshot, task),
                ),
                affected=task[JobState.READY],
                command=context.format_command("jobs why", str(task.first_ready)),
            )


def check_queue_blocked(context: AlertContext) -> Alerts:
    """Jobs wait for a named queue that is held for long, or by the dead."""
    for queue in sorted(context.snapshot.queues, key=lambda queue: -queue.waiting):
        holder = _find_pool(context.snapshot, queue.pool_id)
        is_dead = holder is not None and holder.health is PoolHealth.DEAD
        if (
            not queue.waiting
            or queue.is_paused
            or not (is_dead or queue.age > BLOCKED_AFTER_SECONDS)
        ):
            continue
        job = "" if queue.job_id is None else f" by job {queue.job_id}"
        yield Alert(
            rule=AlertRule.QUEUE_BLOCKED,
            severity=Severity.CRITICAL if is_dead else Severity.WARNING,
            title=f'Queue "{queue.name}" is held for {format_seconds(queue.age)}{job}, '
            f"{pluralize(queue.waiting, 'job')} waiting",
            evidence=(
                _format_lock_holder(queue, holder),
                *_format_release_time(queue, holder),
                f"the oldest waits for {format_seconds(queue.oldest_waiting)}",
            ),
            affected=queue.waiting,
            command=context.format_command("workers recover", queue.pool_id or "")
            if is_dead
            else context.format_command("jobs why", str(queue.first_waiting)),
        )


def check_stale_worker(context: AlertContext) -> Alerts:
    """A pool that is dead holds jobs still; or one of which nobody knows, for hours."""
    for pool in context.snapshot.pools:
        held_for = _get_lock_age(context.snapshot, pool)
        is_stale = pool.health is PoolHealth.UNKNOWN and held_for > STALE_AFTER_SECONDS
        holds = pool.jobs or pool.queues
        if not holds or not (pool.health is PoolHealth.DEAD or is_stale):
            continue
        what = [(pool.jobs, "job"), (pool.queues, "named queue")]
        amount = " and ".join(pluralize(count, word) for count, word in what if count)
        yield Alert(
            rule=AlertRule.STALE_WORKER,
            severity=Severity.CRITICAL,
            title=f"{_format_pool(pool)} {'seems' if is_stale else 'is'} dead and holds {amount}",
            evidence=(_format_heartbeat(pool), f"held for {format_seconds(held_for)}"),
            affected=pool.jobs,
            command=context.format_command("workers recover", pool.id),
        )


def check_unhandled_task(context: AlertContext) -> Alerts:
    """Jobs are ready and no worker that lives runs their task: most likely a name is misspelt."""
    known = sorted(
        {name for pool in list_alive_pools(context.snapshot.pools) for name in pool.tasks or ()}
    )
    for task in _list_unhandled_tasks(context):
        near = difflib.get_close_matches(task.identifier, known, n=1)
        guess = [f"did somebody mean {name}?" for name in near]
        yield Alert(
            rule=AlertRule.UNHANDLED_TASK,
            severity=Severity.CRITICAL,
            title=f"No worker runs {task.identifier}: "
            f"{pluralize(task[JobState.READY], 'job')} ready for up to "
            f"{format_seconds(task.oldest_ready)}",
            evidence=(*guess, *_format_known_tasks(known)),
            affected=task[JobState.READY],
            command=context.format_command("jobs why", str(task.first_ready)),
        )


def check_failing(context: AlertContext) -> Alerts:
    """Many jobs of a task fail, and more and more."""
    for task in sorted(context.snapshot.tasks, key=lambda task: -task.failing):
        more = context.history.growth(
            task.identifier, GROWTH_WINDOW, JobState.RETRYING, JobState.FAILED
        )
        if task.failing < MIN_FAILING_JOBS or more <= 0:
            continue
        yield Alert(
            rule=AlertRule.FAILING,
            severity=Severity.WARNING,
            title=f"{task.identifier} fails: {task[JobState.RETRYING]:,} retrying, "
            f"{task[JobState.FAILED]:,} failed, {more:,} more {GROWTH_WINDOW_TEXT}",
            evidence=_format_error(task),
            affected=task.failing,
            command=context.format_jobs_command(
                "list", task.identifier, JobState.RETRYING, JobState.FAILED
            ),
        )


def check_permanently_failed(context: AlertContext) -> Alerts:
    """Jobs had their last attempt just now; they need somebody."""
    for task in context.snapshot.tasks:
        more = context.history.growth(task.identifier, GROWTH_WINDOW, JobState.FAILED)
        if more <= 0:
            continue
        yield Alert(
            rule=AlertRule.PERMANENTLY_FAILED,
            severity=Severity.WARNING,
            title=f"{pluralize(more, 'job')} of {task.identifier} had the last attempt "
            f"{GROWTH_WINDOW_TEXT}",
            evidence=(f"{task[JobState.FAILED]:,} failed in all", *_format_error(task)),
            affected=more,
            command=context.format_jobs_command("list", task.identifier, JobState.FAILED),
        )


def check_queue_paused(context: AlertContext) -> Alerts:
    for queue in context.snapshot.queues:
        if not queue.is_paused:
            continue
        who = (queue.pool_id or "").removeprefix(PAUSED_PREFIX)
        yield Alert(
            rule=AlertRule.QUEUE_PAUSED,
            severity=Severity.NOTE,
            title=f'Queue "{queue.name}" is paused by {who or "somebody"}, '
            f"{pluralize(queue.waiting, 'job')} waiting",
            affected=queue.waiting,
            command=context.format_command("workers recover", queue.pool_id or ""),
        )


def check_database(context: AlertContext) -> Alerts:
    """What in the database slows a queue down, or makes what is said of it wrong."""
    server = context.snapshot.server
    if (server.oldest_transaction_seconds or 0.0) > MAX_TRANSACTION_AGE_SECONDS:
        yield Alert(
            rule=AlertRule.DATABASE,
            severity=Severity.WARNING,
            title=f"A transaction is open for {format_seconds(server.oldest_transaction_seconds)}: "
            "no dead row can go",
            evidence=(
                f"session {server.oldest_transaction}, "
                f"{server.oldest_transaction_state or 'not to be seen'}",
            ),
            command=context.format_command("doctor"),
        )
    if server.dead_rows > max(MIN_DEAD_ROWS, server.live_rows):
        yield _build_vacuum_alert(
            context, f"{server.dead_rows:,} dead rows lie among {server.live_rows:,} jobs"
        )
    elif (
        server.dead_rows > MIN_DEAD_ROWS
        and (server.seconds_since_vacuum or 0.0) > VACUUM_OVERDUE_SECONDS
    ):
        yield _build_vacuum_alert(
            context,
            f"The table of jobs was not vacuumed for {format_seconds(server.seconds_since_vacuum)}",
        )
    if abs(server.clock_offset) > MAX_CLOCK_OFFSET_SECONDS:
        ahead = "ahead of" if server.clock_offset > 0 else "behind"
        yield Alert(
            rule=AlertRule.DATABASE,
            severity=Severity.WARNING,
            title=f"The database's clock is {format_seconds(abs(server.clock_offset))} {ahead} "
            "this machine's",
            command=context.format_command("doctor"),
        )


def check_compatibility(context: AlertContext) -> Alerts:
    level = context.snapshot.server.level or 0
    if level > SUPPORTED_LEVEL:
        yield Alert(
            rule=AlertRule.COMPATIBILITY,
            severity=Severity.NOTE,
            title=f"The schema is at level {level}, newer than {SUPPORTED_LEVEL}, which we know",
            command=context.format_command("doctor"),
        )
    strangers = [
        pool for pool in context.snapshot.pools if pool.health is PoolHealth.UNKNOWN and pool.jobs
    ]
    if strangers and any(
        pool.runtime == "rust" for pool in list_alive_pools(context.snapshot.pools)
    ):
        yield Alert(
            rule=AlertRule.COMPATIBILITY,
            severity=Severity.WARNING,
            title="Rust workers may take long jobs from workers that their registry does not know",
            evidence=tuple(
                f"{_format_pool(pool)} holds {pluralize(pool.jobs, 'job')}" for pool in strangers
            ),
            affected=sum(pool.jobs for pool in strangers),
            command=context.format_command("workers list"),
        )


def check_access(context: AlertContext) -> Alerts:
    server = context.snapshot.server
    if server.has_hidden_rows:
        yield Alert(
            rule=AlertRule.ACCESS,
            severity=Severity.CRITICAL,
            title=f"Rows are hidden from role {server.role}: there may be more than is shown",
            evidence=(
                f"the tables belong to {server.owner}, and row security has no policy for us",
            ),
            command=context.format_command("doctor"),
        )


RULES: tuple[Callable[[AlertContext], Alerts], ...] = (
    check_access,
    check_no_workers,
    check_queue_blocked,
    check_stale_worker,
    check_unhandled_task,
    check_late,
    check_failing,
    check_permanently_failed,
    check_database,
    check_compatibility,
    check_queue_paused,
)


# Words


def format_seconds(seconds: float | None) -> str:
    """`6m12s`; there are times that nobody can count."""
    if seconds is None:
        return "?"
    return format_duration(timedelta(seconds=seconds)) if abs(seconds) < 1e10 else "ever"


def _limit_alerts(alerts: list[Alert]) -> list[Alert]:
    """The first few of a rule; the last of them says how many there are beside."""
    if len(alerts) <= MAX_ALERTS_PER_RULE:
        return alerts
    left = alerts[MAX_ALERTS_PER_RULE:]
    more = Alert(
        rule=alerts[0].rule,
        severity=left[0].severity,
        title=f"The same of {len(left):,} more",
        affected=sum(each.affected for each in left),
    )
    return [*alerts[:MAX_ALERTS_PER_RULE], more]


def _list_unhandled_tasks(context: AlertContext) -> list[TaskCount]:
    return [
        task
        for task in context.snapshot.tasks
        if (task.oldest_ready or 0.0) > UNHANDLED_AFTER_SECONDS and _is_unhandled(task, context)
    ]


def _is_unhandled(task: TaskCount, context: AlertContext) -> bool:
    """By what the workers say of themselves; or else nothing of it was seen to run for minutes."""
    if task.running:
        return False
    pools = [pool for pool in context.snapshot.pools if pool.health is not PoolHealth.DEAD]
    if pools and all(pool.tasks is not None for pool in pools):
        return not any(task.identifier in (pool.tasks or ()) for pool in pools)
    is_said = any(task.identifier in (pool.tasks or ()) for pool in pools)
    ever = context.history.was_running(task.identifier, NOT_RUNNING_WINDOW)
    # What ends within a moment is never seen to run: then there are fewer and fewer.
    shrinks = context.history.growth(task.identifier, NOT_RUNNING_WINDOW, JobState.READY) < 0
    return ever is False and not is_said and not shrinks


def _format_known_tasks(known: list[str]) -> tuple[str, ...]:
    if not known:
        return ()
    more = (
        ""
        if len(known) <= MAX_ALERTS_PER_RULE
        else f" and {len(known) - MAX_ALERTS_PER_RULE:,} more"
    )
    return (f"workers run {', '.join(known[:MAX_ALERTS_PER_RULE])}{more}",)


def _find_pool(snapshot: Snapshot, pool_id: str | None) -> PoolInfo | None:
    return next((pool for pool in snapshot.pools if pool.id == pool_id), None)


def _get_lock_age(snapshot: Snapshot, pool: PoolInfo) -> float:
    return 0.0 if pool.oldest_lock is None else (snapshot.now - pool.oldest_lock).total_seconds()


def _format_pool(pool: PoolInfo) -> str:
    where = f" on {pool.host}" if pool.host else ""
    return f"{(pool.runtime or 'a').capitalize()} worker {pool.id}{where}"


def _format_heartbeat(pool: PoolInfo) -> str:
    if pool.seconds_since_heartbeat is None:
        return "no registry knows it"
    return (
        f"silent for {format_seconds(pool.seconds_since_heartbeat)}, its lease is "
        f"{format_seconds(pool.lease)}"
    )


def _format_lock_holder(queue: LockedQueue, holder: PoolInfo | None) -> str:
    if holder is None:
        return f"held by {queue.pool_id or 'nobody that is named'}"
    return f"held by {holder.id}, {_format_heartbeat(holder)}"


def _format_release_time(queue: LockedQueue, holder: PoolInfo | None) -> tuple[str, ...]:
    """When a lock ends that nobody renews, if it is one."""
    if holder is not None and holder.health is not PoolHealth.UNKNOWN:
        return ()
    left = STALE_AFTER_SECONDS - queue.age
    return (f"if it is dead, any worker releases it in {format_seconds(left)}",) if left > 0 else ()


def _format_unreported_task(snapshot: Snapshot, task: TaskCount) -> tuple[str, ...]:
    """Some worker may run a task, but none of those that say what they run says so."""
    said = [pool.tasks for pool in list_alive_pools(snapshot.pools) if pool.tasks is not None]
    if task.running or not said or any(task.identifier in tasks for tasks in said):
        return ()
    return ("no worker that says what it runs runs it",)


def _format_busy_slots(snapshot: Snapshot) -> tuple[str, ...]:
    """How many slots of the workers that live are taken, if they all say."""
    pools = list_alive_pools(snapshot.pools)
    slots = [pool.concurrency for pool in pools if pool.concurrency is not None]
    if not pools or len(slots) < len(pools):
        return ()
    # They may hold more than they run.
    busy = sum(min(pool.jobs, pool.concurrency or 0) for pool in pools)
    return (f"{busy:,} of {sum(slots):,} slots busy",)


def _format_error(task: TaskCount) -> tuple[str, ...]:
    first = summarize_error(task.error)
    return (f"job {task.newest_failing}: {first[:200]}",) if first else ()


def _build_vacuum_alert(context: AlertContext, title: str) -> Alert:
    return Alert(
        rule=AlertRule.DATABASE,
        severity=Severity.WARNING,
        title=title,
        command=context.format_command("tune"),
    )
