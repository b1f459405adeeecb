"""The diagnosis of a queue: rules over snapshots, without I/O.

`top`, `doctor` and `/readyz?verbose` show these findings, so they agree on every queue.
"""

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.migrations import LATEST_LEVEL
from graphile_worker._support.text import pluralize
from graphile_worker.ops.diagnostics import clocks, locks, server
from graphile_worker.ops.diagnostics.context import QueueContext
from graphile_worker.ops.diagnostics.findings import (
    Finding,
    FindingId,
    Severity,
    Subject,
    SubjectKind,
    sort_findings,
)
from graphile_worker.ops.diagnostics.installation import build_too_new_finding
from graphile_worker.ops.diagnostics.permissions import PRIVILEGES_ADVICE
from graphile_worker.ops.diagnostics.thresholds import DEFAULT_THRESHOLDS, Thresholds
from graphile_worker.ops.filters import Filter, FilterField, Term, TextPattern, filter_by_states
from graphile_worker.ops.limits import describe_shortage, format_placeholders
from graphile_worker.ops.pauses import PauseKind
from graphile_worker.ops.pools import PoolHealth, is_served, list_alive_pools, list_served_tasks
from graphile_worker.ops.snapshot import Snapshot, TaskCount
from graphile_worker.ops.states import JobState
from graphile_worker.ops.text import (
    MAX_LINES,
    format_seconds,
    limit_lines,
    summarize_error,
)
from graphile_worker.ops.trends import SnapshotHistory

Findings = Iterator[Finding]
Rule = Callable[[QueueContext], Findings]

MAX_ERROR_CHARS = 200


def diagnose_queue(
    history: SnapshotHistory,
    schemas: Schemas,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    external_tasks: frozenset[str] = frozenset(),
) -> list[Finding]:
    """Find the problems of a queue, the worst first.

    Args:
        history: The last snapshot, and those before it if there are any.
        schemas: The schemas of the queue.
        thresholds: The limits beyond which a value is a problem.
        external_tasks: The tasks that other programs run, which do not report their tasks.
    """
    context = QueueContext(
        history=history, schemas=schemas, thresholds=thresholds, external_tasks=external_tasks
    )
    findings = [each for rule in RULES for each in rule(context)]
    if any(each.id is FindingId.NO_WORKERS for each in findings):
        # Without a worker, every task is late.
        explained = {FindingId.LATE, FindingId.UNHANDLED_TASK}
        findings = [each for each in findings if each.id not in explained]
    return sort_findings(findings)


def check_access(context: QueueContext) -> Findings:
    """Report that row level security hides the jobs."""
    stats = context.snapshot.server
    if stats.has_hidden_rows:
        yield Finding(
            id=FindingId.ROWS_HIDDEN,
            severity=Severity.CRITICAL,
            # Titles reach HTTP clients, which must not get names of roles.
            title="row level security hides all jobs from this role",
            evidence=(f"{stats.owner!r} owns the tables, and no policy applies to {stats.role!r}",),
            advice=PRIVILEGES_ADVICE,
            shell=context.format_command("doctor"),
        )


def check_schema_level(context: QueueContext) -> Findings:
    """Report a schema that is newer than this release."""
    stats = context.snapshot.server
    if (stats.breaking_level or 0) > LATEST_LEVEL:
        yield build_too_new_finding(stats.breaking_level or 0)
    elif (stats.level or 0) > LATEST_LEVEL:
        yield Finding(
            id=FindingId.SCHEMA_NEWER,
            severity=Severity.NOTE,
            title=f"the schema is at level {stats.level}, this release knows {LATEST_LEVEL}",
            evidence=("no newer level is marked as breaking, so workers use it",),
            advice="Upgrade when a release knows that level. The levels 21 and 22 of the Rust "
            "worker need no upgrade.",
            shell="pip install --upgrade graphile-worker",
        )


def check_no_workers(context: QueueContext) -> Findings:
    """Report ready jobs without a heartbeat, a recent lock or a completed job."""
    snapshot, limits = context.snapshot, context.thresholds
    ready, oldest = snapshot.count(JobState.READY), snapshot.oldest_ready or 0.0
    idle_seconds = limits.idle_window.total_seconds()
    if (
        oldest < limits.no_workers_after.total_seconds()
        or list_alive_pools(snapshot.pools)
        or context.history.completed_within(limits.idle_window)
        or _has_recent_lock(context)
    ):
        return
    dead = sum(pool.health is PoolHealth.DEAD for pool in snapshot.pools)
    yield Finding(
        id=FindingId.NO_WORKERS,
        severity=Severity.CRITICAL,
        title=f"no worker is alive: {pluralize(ready, 'job')} ready, the oldest for "
        f"{format_seconds(oldest)}",
        evidence=(
            f"no heartbeat within the lease; dead workers: {dead}",
            f"no lock is younger than {format_seconds(idle_seconds)}, and none of an unregistered "
            f"worker younger than {format_seconds(limits.stale_after.total_seconds())}",
        ),
        advice="Start a worker.",
        shell=context.format_command("--app your_module:app"),
        affected=ready,
    )


def check_unhandled_tasks(context: QueueContext) -> Findings:
    """Report ready jobs of tasks that no worker runs, most likely with a mistyped name."""
    served = list_served_tasks(context.snapshot.pools)
    more = f" and {len(served) - MAX_LINES:,} more" if len(served) > MAX_LINES else ""
    listed = (f"workers run {', '.join(served[:MAX_LINES])}{more}",) if served else ()

    def build(task: TaskCount) -> Finding:
        nearest = difflib.get_close_matches(task.identifier, served, n=1)
        advice = "Start a worker that has the task, or fix the name where jobs are added."
        if task.identifier in context.external_tasks:
            nearest, advice = [], "Start the program that runs this external task."
        return Finding(
            id=FindingId.UNHANDLED_TASK,
            severity=Severity.CRITICAL,
            title=f"no worker runs {task.identifier}: "
            f"{pluralize(task[JobState.READY], 'job')} ready for up to "
            f"{format_seconds(task.oldest_ready)}",
            evidence=(*[f"did you mean {name!r}?" for name in nearest], *listed),
            advice=advice,
            shell=context.format_command("jobs why", str(task.first_ready)),
            affected=task[JobState.READY],
            subject=Subject(SubjectKind.TASK, task.identifier),
        )

    return _build_for_first(_list_unhandled_tasks(context), build, JobState.READY)


def check_late(context: QueueContext) -> Findings:
    """Report tasks whose first ready job has waited long, those at a limit last."""
    limits, exhausted_limits = context.thresholds, context.snapshot.find_exhausted_limits()
    unhandled = {task.identifier for task in _list_unhandled_tasks(context)}
    late = [
        task
        for task in context.snapshot.tasks
        if (task.oldest_ready or 0.0) > limits.late_warning.total_seconds()
        if task.identifier not in unhandled
        if context.snapshot.find_pause(PauseKind.TASK, task.identifier) is None
    ]

    def build(task: TaskCount) -> Finding:
        waited = task.oldest_ready or 0.0
        is_critical = waited > limits.late_critical.total_seconds()
        exhausted = exhausted_limits.get(task.identifier, [])
        advice = "Add workers or raise --jobs, unless the job waits for something else:"
        shell = context.format_command("jobs why", str(task.first_ready))
        if exhausted:
            advice = "Wait, or raise the limit. More workers do not help:"
            shell = context.format_command("limits set", *format_placeholders(exhausted[0]))
        return Finding(
            id=FindingId.LATE,
            severity=Severity.CRITICAL if is_critical else Severity.WARNING,
            title=f"{task.identifier} is late: a job has been ready for {format_seconds(waited)}",
            evidence=(
                f"{task[JobState.READY]:,} ready, {task.running:,} running",
                *_format_busy_slots(context.snapshot),
                *_format_unreported_task(context.snapshot, task),
                *[f"the job waits for {describe_shortage(each)}" for each in exhausted],
            ),
            advice=advice,
            shell=shell,
            affected=task[JobState.READY],
            subject=Subject(SubjectKind.TASK, task.identifier),
        )

    # Two groups, because one finding with one advice stands for the rest of a group.
    for is_limited in (False, True):
        group = [task for task in late if (task.identifier in exhausted_limits) is is_limited]
        oldest_first = sorted(group, key=lambda task: -(task.oldest_ready or 0.0))
        yield from _build_for_first(oldest_first, build, JobState.READY)


def check_permanently_failed(context: QueueContext) -> Findings:
    """Report the permanently failed jobs of all tasks."""
    tasks = [task for task in context.snapshot.tasks if task[JobState.FAILED]]
    if not tasks:
        return
    count = context.snapshot.count(JobState.FAILED)
    oldest = max(task.oldest_failure or 0.0 for task in tasks)
    newest = min(task.newest_failure or 0.0 for task in tasks)
    most_first = sorted(tasks, key=lambda task: -task[JobState.FAILED])
    yield Finding(
        id=FindingId.PERMANENTLY_FAILED,
        severity=Severity.WARNING,
        title=f"{pluralize(count, 'job')} failed permanently, "
        f"{_format_failure_ages(count, oldest, newest)}",
        evidence=limit_lines([_format_failed_task(task) for task in most_first]),
        advice="Fix the cause, then retry or remove the jobs; workers do not touch them again.",
        shell=context.format_command("jobs list", str(filter_by_states(JobState.FAILED))),
        affected=count,
        subject=Subject(SubjectKind.TASK, tasks[0].identifier) if len(tasks) == 1 else None,
    )


def check_failing(context: QueueContext) -> Findings:
    """Report tasks with many failing jobs, whose number grows."""
    states, limits = (JobState.RETRYING, JobState.FAILED), context.thresholds
    for task in sorted(context.snapshot.tasks, key=lambda task: -task.failing):
        growth = context.history.growth(task.identifier, limits.growth_window, *states)
        if task.failing < limits.failing_jobs or growth <= 0:
            continue
        task_filter = Filter((Term(FilterField.TASK, (TextPattern((task.identifier,)),)),))
        yield Finding(
            id=FindingId.FAILING,
            severity=Severity.WARNING,
            title=f"{task.identifier} fails: {task[JobState.RETRYING]:,} retrying, "
            f"{task[JobState.FAILED]:,} failed, {growth:,} more within "
            f"{format_seconds(limits.growth_window.total_seconds())}",
            evidence=_format_error(task),
            advice="Read the errors of these jobs:",
            shell=context.format_command("jobs list", str(task_filter & filter_by_states(*states))),
            affected=task.failing,
            subject=Subject(SubjectKind.TASK, task.identifier),
        )


def check_dangling(context: QueueContext) -> Findings:
    """Report jobs whose task or named queue has no row: no worker can run them."""
    if tasks := context.snapshot.missing_tasks:
        yield Finding(
            id=FindingId.DANGLING_TASKS,
            severity=Severity.CRITICAL,
            title=f"{pluralize(sum(tasks.values()), 'job')} of deleted tasks: no worker can run "
            "them",
            evidence=limit_lines(
                [
                    f"{pluralize(count, 'job')} with id {id}, which is not in _private_tasks"
                    for id, count in tasks.items()
                ]
            ),
            advice="A cleanup deleted the task while jobs were added. Assign the jobs to a task, "
            "and restart workers that had loaded the deleted one.",
            sql=context.format_remedy("restore_task", id=next(iter(tasks))),
            affected=sum(tasks.values()),
        )
    if queues := context.snapshot.missing_queues:
        yield Finding(
            id=FindingId.DANGLING_QUEUES,
            severity=Severity.CRITICAL,
            title=f"{pluralize(sum(queues.values()), 'job')} of deleted named queues: no worker "
            "can run them",
            evidence=limit_lines(
                [
                    f"{pluralize(count, 'job')} with id {id}, which is not in _private_job_queues"
                    for id, count in queues.items()
                ]
            ),
            advice="A cleanup deleted the queue while jobs were added. Let them run without a "
            "queue.",
            sql="\n".join(
                context.format_remedy("detach_from_queue", id=each)
                for each in list(queues)[:MAX_LINES]
            ),
            affected=sum(queues.values()),
        )


def _limit(rule: Rule) -> Rule:
    """Replace the findings of a rule beyond the first by one with their number."""

    def check(context: QueueContext) -> Findings:
        findings = list(rule(context))
        yield from findings[:MAX_LINES]
        if rest := findings[MAX_LINES:]:
            yield _summarize_rest(rest[0], len(rest), sum(each.affected for each in rest))

    return check


RULES: tuple[Rule, ...] = (
    check_access,
    check_schema_level,
    check_no_workers,
    _limit(locks.check_blocked_queues),
    locks.check_dead_pools,
    locks.check_stale_locks,
    check_dangling,
    check_unhandled_tasks,
    check_late,
    _limit(check_failing),
    check_permanently_failed,
    server.check_vacuum_blockers,
    server.check_dead_rows,
    clocks.check_local_clock,
    clocks.check_pool_clocks,
    locks.check_unregistered_workers,
    _limit(locks.check_parallel_queues),
    _limit(locks.check_paused_queues),
    _limit(locks.check_paused_tasks),
    _limit(locks.check_unshared_limits),
)


def _build_for_first(
    tasks: Sequence[TaskCount], build: Callable[[TaskCount], Finding], state: JobState
) -> Findings:
    """Build the findings of the first tasks, and one for the rest: there may be thousands."""
    yield from map(build, tasks[:MAX_LINES])
    if rest := tasks[MAX_LINES:]:
        yield _summarize_rest(build(rest[0]), len(rest), sum(task[state] for task in rest))


def _summarize_rest(first: Finding, count: int, affected: int) -> Finding:
    title = f"{pluralize(count, 'more finding')} of this kind"
    return replace(
        first, title=title, evidence=(), shell=None, sql=None, affected=affected, subject=None
    )


def _has_recent_lock(context: QueueContext) -> bool:
    idle_seconds = context.thresholds.idle_window.total_seconds()
    stale_seconds = context.thresholds.stale_after.total_seconds()
    pools = context.snapshot.pools
    unregistered = {pool.id for pool in pools if pool.health is PoolHealth.UNKNOWN}
    # Without heartbeats, a worker with a long job differs from a dead one only by the lock's age.
    return any(
        job.age < (stale_seconds if job.pool_id in unregistered else idle_seconds)
        for job in context.snapshot.locked
    )


def _list_unhandled_tasks(context: QueueContext) -> list[TaskCount]:
    seconds = context.thresholds.unhandled_after.total_seconds()
    return [
        task
        for task in context.snapshot.tasks
        if (task.oldest_ready or 0.0) > seconds
        and context.snapshot.find_pause(PauseKind.TASK, task.identifier) is None
        and _is_unhandled(task, context)
    ]


def _is_unhandled(task: TaskCount, context: QueueContext) -> bool:
    if task.running:
        return False
    is_external = task.identifier in context.external_tasks
    served = None if is_external else is_served(context.snapshot.pools, task.identifier)
    if served is not None:
        return not served
    window = context.thresholds.unhandled_window
    was_running = context.history.was_running(task.identifier, window)
    # Jobs that take milliseconds are rarely seen locked, but their number decreases.
    decreases = context.history.growth(task.identifier, window, JobState.READY) < 0
    return was_running is False and not decreases


def _format_unreported_task(snapshot: Snapshot, task: TaskCount) -> tuple[str, ...]:
    reported = [pool.tasks for pool in list_alive_pools(snapshot.pools) if pool.tasks is not None]
    if task.running or not reported or any(task.identifier in tasks for tasks in reported):
        return ()
    return ("no worker that reports its tasks runs it",)


def _format_busy_slots(snapshot: Snapshot) -> tuple[str, ...]:
    pools = list_alive_pools(snapshot.pools)
    slots = [pool.concurrency for pool in pools if pool.concurrency is not None]
    if not pools or len(slots) < len(pools):
        return ()
    # A pool may have claimed more jobs than it runs at once.
    busy = sum(min(pool.jobs, pool.concurrency or 0) for pool in pools)
    return (f"{busy:,} of {sum(slots):,} slots busy",)


def _format_failed_task(task: TaskCount) -> str:
    count = task[JobState.FAILED]
    ages = _format_failure_ages(count, task.oldest_failure, task.newest_failure)
    return "; ".join([f"{task.identifier}: {count:,}, {ages}", *_format_error(task)])


def _format_failure_ages(count: int, oldest: float | None, newest: float | None) -> str:
    if count == 1:
        return f"{format_seconds(newest)} ago"
    return f"the oldest {format_seconds(oldest)} ago, the newest {format_seconds(newest)} ago"


def _format_error(task: TaskCount) -> tuple[str, ...]:
    error = summarize_error(task.error)
    return (f"job {task.newest_failing}: {error[:MAX_ERROR_CHARS]}",) if error else ()
