"""Rules about locks and the pools that hold them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta

from graphile_worker._support.text import pluralize
from graphile_worker.ops.diagnostics.context import QueueContext
from graphile_worker.ops.diagnostics.findings import (
    Finding,
    FindingId,
    Severity,
    Subject,
    SubjectKind,
)
from graphile_worker.ops.pauses import PAUSED_PREFIX, Pause, PauseKind, format_pause, is_overdue
from graphile_worker.ops.pools import (
    PoolHealth,
    PoolInfo,
    build_unknown_pool,
    find_task_limits,
    list_alive_pools,
)
from graphile_worker.ops.snapshot import LockedJob, LockedQueue
from graphile_worker.ops.states import JobState
from graphile_worker.ops.text import format_seconds, limit_lines

# A running Python worker resumes a queue within this time of the end of its pause.
RESUME_DELAY = timedelta(seconds=30)


@dataclass(slots=True)
class _Locks:
    """The locks of one pool."""

    jobs: list[LockedJob] = field(default_factory=list)
    queues: list[LockedQueue] = field(default_factory=list)

    def __str__(self) -> str:
        age = max([job.age for job in self.jobs] + [queue.age for queue in self.queues])
        first = min((job.id for job in self.jobs), default=None)
        suffix = "" if first is None else f", the first is job {first}"
        return f"{_count_locks([self])}, locked for up to {format_seconds(age)}{suffix}"


def is_lost(pool: PoolInfo, context: QueueContext) -> bool:
    """Check whether a pool is dead and another worker should already have recovered its jobs.

    Args:
        pool: A pool of the snapshot.
        context: The snapshot; a restart of the server extends the time.
    """
    if pool.health is not PoolHealth.DEAD:
        return False
    seconds = (pool.lease or 0.0) * context.thresholds.dead_after_leases
    return (
        pool.seconds_since_heartbeat or 0.0
    ) > seconds and context.snapshot.server.uptime_seconds > seconds


def check_blocked_queues(context: QueueContext) -> Iterator[Finding]:
    """Report named queues for which jobs wait, locked for long or by a dead pool."""
    pools = {pool.id: pool for pool in context.snapshot.pools}
    limit = context.thresholds.queue_blocked_after.total_seconds()
    for queue in sorted(context.snapshot.queues, key=lambda queue: -queue.waiting):
        holder = pools.get(queue.pool_id or "")
        has_lost_holder = holder is not None and is_lost(holder, context)
        is_blocked = has_lost_holder or queue.age > limit
        if not queue.waiting or queue.is_paused or not is_blocked:
            continue
        job = "" if queue.job_id is None else f" by job {queue.job_id}"
        yield Finding(
            id=FindingId.QUEUE_BLOCKED,
            severity=Severity.CRITICAL if has_lost_holder else Severity.WARNING,
            title=f'queue "{queue.name}" is locked for {format_seconds(queue.age)}{job}, '
            f"{pluralize(queue.waiting, 'job')} waiting",
            evidence=(
                _format_holder(queue, holder),
                *_format_release_time(queue, holder, context),
                f"the oldest has waited for {format_seconds(queue.oldest_waiting)}",
            ),
            advice="If the worker is dead, release its locks:"
            if has_lost_holder
            else "Wait for the running job, or find out why it takes long:",
            shell=context.format_command("workers recover", queue.pool_id or "")
            if has_lost_holder
            else context.format_command("jobs why", str(queue.first_waiting)),
            affected=queue.waiting,
            subject=Subject(SubjectKind.QUEUE, queue.name),
        )


def check_paused_queues(context: QueueContext) -> Iterator[Finding]:
    """Report named queues that a person has paused."""
    for queue in context.snapshot.queues:
        if not queue.is_paused:
            continue
        pause = context.snapshot.find_pause(PauseKind.QUEUE, queue.name) or Pause(
            PauseKind.QUEUE, queue.name, (queue.pool_id or "").removeprefix(PAUSED_PREFIX)
        )
        is_late = is_overdue(pause, context.snapshot.now - RESUME_DELAY)
        yield Finding(
            id=FindingId.QUEUE_PAUSED,
            severity=Severity.WARNING if is_late else Severity.NOTE,
            # Titles reach HTTP clients, which must not get names of people.
            title=f'queue "{queue.name}" is paused{" past the end of its pause" if is_late else ""}'
            f", {pluralize(queue.waiting, 'job')} waiting",
            evidence=(format_pause(pause, context.snapshot.now),),
            advice="A running Python worker resumes it. To resume it now:"
            if is_late
            else "To resume it:",
            shell=context.format_command("resume queue", queue.name),
            affected=queue.waiting,
            subject=Subject(SubjectKind.QUEUE, queue.name),
        )


def check_parallel_queues(context: QueueContext) -> Iterator[Finding]:
    """Report named queues with several locked jobs, which older workers of Node and Rust claim."""
    jobs: dict[str, list[LockedJob]] = defaultdict(list)
    # Older locks count as left behind, so their jobs do not run.
    stale_seconds = context.thresholds.stale_after.total_seconds()
    for job in context.snapshot.locked:
        if job.queue_name is not None and job.age < stale_seconds:
            jobs[job.queue_name].append(job)
    for name, locked in sorted(jobs.items()):
        if len(locked) == 1:
            continue
        yield Finding(
            id=FindingId.QUEUE_PARALLEL,
            severity=Severity.WARNING,
            title=f'{len(locked)} jobs of queue "{name}" are locked at the same time',
            evidence=limit_lines(
                [f"{job.pool_id} has locked job {job.id}" for job in locked],
            ),
            advice="They may run at the same time. With a local queue, Node before 0.18 and Rust "
            "0.13.5 claim several jobs of a queue. Upgrade them, or turn the local queue off.",
            affected=len(locked),
            subject=Subject(SubjectKind.QUEUE, name),
        )


def check_paused_tasks(context: QueueContext) -> Iterator[Finding]:
    """Report tasks that a person has paused."""
    snapshot = context.snapshot
    ready = {task.identifier: task[JobState.READY] for task in snapshot.tasks}
    for pause in snapshot.pauses:
        if pause.kind is not PauseKind.TASK:
            continue
        count = ready.get(pause.name, 0)
        yield Finding(
            id=FindingId.TASK_PAUSED,
            severity=Severity.NOTE,
            title=f"{pause.name} is paused for Python workers, {pluralize(count, 'job')} ready",
            evidence=(format_pause(pause, snapshot.now),),
            advice="To resume it:",
            shell=context.format_command("resume task", pause.name),
            affected=count,
            subject=Subject(SubjectKind.TASK, pause.name),
        )


def check_unshared_limits(context: QueueContext) -> Iterator[Finding]:
    """Report jobs of tasks with a limit that a Node or Rust worker runs: it ignores limits."""
    limits = find_task_limits(context.snapshot.pools)
    pools = {pool.id: pool for pool in context.snapshot.pools}
    jobs: dict[str, list[LockedJob]] = defaultdict(list)
    for job in context.snapshot.locked:
        pool_id = job.pool_id or ""
        runtime = (pools.get(pool_id) or build_unknown_pool(pool_id)).runtime
        if job.task_identifier in limits and runtime != "python":
            jobs[job.task_identifier].append(job)
    for task, locked in sorted(jobs.items()):
        names = ", ".join(map(repr, sorted(limits[task])))
        yield Finding(
            id=FindingId.LIMIT_NOT_SHARED,
            severity=Severity.WARNING,
            title=f"{pluralize(len(locked), 'job')} of {task} beside the limit of the task",
            evidence=(
                f"{locked[0].pool_id} has locked job {locked[0].id}, and ignores limit {names}",
            ),
            advice="Limits hold for Python workers. Remove the task from other workers.",
            affected=len(locked),
            subject=Subject(SubjectKind.TASK, task),
        )


def check_stale_locks(context: QueueContext) -> Iterator[Finding]:
    """Report locks older than four hours whose pool is neither alive nor known to be dead."""
    covered = {
        pool.id
        for pool in context.snapshot.pools
        if pool.health is PoolHealth.ALIVE or is_lost(pool, context)
    }
    limit = context.thresholds.stale_after.total_seconds()
    stale = {
        pool_id: locks
        for pool_id, locks in _group_locks(context, min_age=limit).items()
        if pool_id not in covered
    }
    if not stale:
        return
    ids = [pool_id for pool_id in stale if pool_id is not None]
    yield Finding(
        id=FindingId.STALE_LOCKS,
        severity=Severity.CRITICAL,
        title=f"{_count_locks(stale.values(), with_verb=True)} locked for more than four hours",
        evidence=limit_lines(
            [f"{id or 'without a worker id'}: {locks}" for id, locks in stale.items()]
        ),
        advice="Any worker releases them within ten minutes: start one. If the holders are dead, "
        "release them now:",
        shell=context.format_command("workers recover", *ids) if ids else None,
        affected=sum(len(locks.jobs) for locks in stale.values()),
        subject=_find_worker(stale),
    )


def check_dead_pools(context: QueueContext) -> Iterator[Finding]:
    """Report pools that are dead and that no worker has recovered."""
    lost = {pool.id: pool for pool in context.snapshot.pools if is_lost(pool, context)}
    locks = {id: each for id, each in _group_locks(context).items() if id in lost}
    if locks:
        yield Finding(
            id=FindingId.DEAD_POOL_LOCKS,
            severity=Severity.CRITICAL,
            title=f"{_count_locks(locks.values(), with_verb=True)} locked by dead workers",
            evidence=limit_lines(
                [f"{format_pool(lost[id or ''])}: {each}" for id, each in locks.items()]
            ),
            advice="Any worker with recovery releases them within a minute: start one. Or release "
            "them now:",
            shell=context.format_command("workers recover", *[id or "" for id in locks]),
            affected=sum(len(each.jobs) for each in locks.values()),
            subject=_find_worker(locks),
        )
    idle = [pool for pool in lost.values() if pool.id not in locks and not pool.is_rescued]
    if idle:
        yield Finding(
            id=FindingId.DEAD_POOLS,
            severity=Severity.WARNING,
            title=f"{pluralize(len(idle), 'dead worker')} in the registry, without locks",
            evidence=limit_lines([format_pool(pool) for pool in idle]),
            advice="Start a worker: it removes them. To list all workers:",
            shell=context.format_command("workers list"),
            subject=_find_worker(pool.id for pool in idle),
        )


def check_unregistered_workers(context: QueueContext) -> Iterator[Finding]:
    """Report workers that Rust workers may take for dead, as they are not registered."""
    pools = context.snapshot.pools
    unknown = [pool for pool in pools if pool.health is PoolHealth.UNKNOWN and pool.jobs]
    if unknown and any(pool.runtime == "rust" for pool in list_alive_pools(pools)):
        yield Finding(
            id=FindingId.UNREGISTERED_WORKERS,
            severity=Severity.WARNING,
            title="Rust workers may recover running jobs of workers that are not registered",
            evidence=limit_lines(
                [f"{format_pool(pool)}: {pluralize(pool.jobs, 'job')}" for pool in unknown]
            ),
            advice="Turn off the recovery of the Rust workers. To list all workers:",
            shell=context.format_command("workers list"),
            affected=sum(pool.jobs for pool in unknown),
            subject=_find_worker(pool.id for pool in unknown),
        )


def format_pool(pool: PoolInfo) -> str:
    """Format a pool with its runtime, host, process and last heartbeat."""
    host = f" on {pool.host}" if pool.host else ""
    pid = f", process {pool.pid}" if pool.pid else ""
    heartbeat = (
        "not registered"
        if pool.seconds_since_heartbeat is None
        else f"last heartbeat {format_seconds(pool.seconds_since_heartbeat)} ago"
    )
    return f"{pool.runtime or 'unknown'} worker {pool.id}{host}{pid}, {heartbeat}"


def _find_worker(pool_ids: Iterable[str | None]) -> Subject | None:
    """Return the worker that a finding is about, if it is one."""
    ids = list(pool_ids)
    return Subject(SubjectKind.WORKER, ids[0]) if len(ids) == 1 and ids[0] else None


def _group_locks(context: QueueContext, min_age: float = 0.0) -> dict[str | None, _Locks]:
    locks: dict[str | None, _Locks] = defaultdict(_Locks)
    for job in context.snapshot.locked:
        if job.age >= min_age:
            locks[job.pool_id].jobs.append(job)
    for queue in context.snapshot.queues:
        if queue.age >= min_age and not queue.is_paused:
            locks[queue.pool_id].queues.append(queue)
    return dict(sorted(locks.items(), key=lambda item: -len(item[1].jobs)))


def _count_locks(locks: Iterable[_Locks], *, with_verb: bool = False) -> str:
    locks = list(locks)
    jobs = sum(len(each.jobs) for each in locks)
    queues = sum(len(each.queues) for each in locks)
    counts = [(jobs, "job"), (queues, "named queue")]
    text = " and ".join(pluralize(count, noun) for count, noun in counts if count)
    verb = " is" if jobs + queues == 1 else " are"
    return f"{text}{verb if with_verb else ''}"


def _format_holder(queue: LockedQueue, holder: PoolInfo | None) -> str:
    if holder is None:
        return f"locked by {queue.pool_id}" if queue.pool_id else "locked without a worker id"
    return f"locked by {format_pool(holder)}"


def _format_release_time(
    queue: LockedQueue, holder: PoolInfo | None, context: QueueContext
) -> tuple[str, ...]:
    # A registered pool renews its locks, and others recover them.
    if holder is not None and holder.health is not PoolHealth.UNKNOWN:
        return ()
    left = context.thresholds.stale_after.total_seconds() - queue.age
    return (f"if it is dead, any worker releases the lock in {format_seconds(left)}",) * (left > 0)
