"""Jobs that cannot run: their task or queue is nowhere, or who holds them is gone."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from graphile_worker._sql.queries import diagnostics
from graphile_worker._sql.queries.diagnostics import JobGroup, PoolRow, QueueGroup
from graphile_worker._sql.queries.workers import RescueLockHolder, get_rescue_lock_holders
from graphile_worker.ops.diagnostics.context import (
    DiagnosticContext,
    FindingsPlan,
    format_duration,
    limit_lines,
)
from graphile_worker.ops.diagnostics.findings import Finding, FindingId, Severity
from graphile_worker.ops.text import pluralize

# Leases without a heartbeat: after one, others take the jobs, if there are others.
DEAD_AFTER_LEASES = 2


@dataclass(frozen=True, slots=True)
class PoolLocks:
    """What one pool has locked."""

    jobs: int = 0
    stale_jobs: int = 0
    queues: int = 0
    stale_queues: int = 0
    oldest_lock_seconds: float = 0.0
    first_job_id: int | None = None

    @property
    def is_stale(self) -> bool:
        return bool(self.stale_jobs or self.stale_queues)


def plan_check_jobs(context: DiagnosticContext) -> FindingsPlan:
    """One look at all jobs, all named queues and all pools."""
    jobs = yield diagnostics.diagnose_jobs()
    queues = yield diagnostics.diagnose_queues()
    return [
        *check_dangling_ids(jobs, context),
        *check_stale_locks(group_locks_by_pool(jobs, queues), context),
    ]


def plan_check_jobs_and_pools(context: DiagnosticContext) -> FindingsPlan:
    """The same where there is a registry, which says who is silent."""
    jobs = yield diagnostics.diagnose_jobs()
    queues = yield diagnostics.diagnose_queues()
    pools = yield diagnostics.diagnose_pools()
    held = group_locks_by_pool(jobs, queues)
    silent = {each.id: each for each in pools if is_dead(each)}
    others = {pool_id: each for pool_id, each in held.items() if pool_id not in silent}
    return [
        *check_dangling_ids(jobs, context),
        *check_stale_locks(others, context),
        *check_dead_pools(silent, held, context),
    ]


def group_locks_by_pool(
    jobs: Iterable[JobGroup], queues: Iterable[QueueGroup]
) -> dict[str | None, PoolLocks]:
    """What each pool has locked."""
    found: dict[str | None, PoolLocks] = defaultdict(PoolLocks)
    for job in (each for each in jobs if each.oldest_lock_seconds is not None):
        old = found[job.locked_by]
        found[job.locked_by] = PoolLocks(
            old.jobs + job.count,
            old.stale_jobs + job.stale_count,
            old.queues,
            old.stale_queues,
            max(old.oldest_lock_seconds, job.oldest_lock_seconds or 0.0),
            job.first_id if old.first_job_id is None else min(old.first_job_id, job.first_id),
        )
    for queue in queues:
        old = found[queue.locked_by]
        found[queue.locked_by] = PoolLocks(
            old.jobs,
            old.stale_jobs,
            old.queues + queue.count,
            old.stale_queues + queue.stale_count,
            max(old.oldest_lock_seconds, queue.oldest_lock_seconds or 0.0),
            old.first_job_id,
        )
    return dict(found)


def is_dead(pool: PoolRow) -> bool:
    """Has nobody heard of it for so long that others, if there were any, had taken its jobs?"""
    patience = pool.lease * DEAD_AFTER_LEASES
    return pool.seconds_since_heartbeat > patience and pool.server_uptime > patience


# Ids that point nowhere


def check_dangling_ids(jobs: Iterable[JobGroup], context: DiagnosticContext) -> Iterator[Finding]:
    tasks = _count_dangling(jobs, lambda each: each.missing_task_id)
    if tasks:
        yield Finding(
            id=FindingId.DANGLING_TASKS,
            severity=Severity.CRITICAL,
            title=f"{pluralize(sum(tasks.values()), 'job')} of tasks that have no name any more: "
            "nobody will ever run them",
            evidence=limit_lines(
                [_format_dangling(tasks, each, "_private_tasks") for each in tasks]
            ),
            advice="A cleanup deleted the name while jobs were added. Give them a task again; "
            "restart workers that knew it before.",
            sql=context.format_remedy("restore_task", id=next(iter(tasks))),
        )
    queues = _count_dangling(jobs, lambda each: each.missing_queue_id)
    if queues:
        yield Finding(
            id=FindingId.DANGLING_QUEUES,
            severity=Severity.CRITICAL,
            title=f"{pluralize(sum(queues.values()), 'job')} of named queues that are not there "
            "any "
            "more: nobody will ever run them",
            evidence=limit_lines(
                [_format_dangling(queues, each, "_private_job_queues") for each in queues]
            ),
            advice="A cleanup deleted the queue while jobs were added. Let them run without a "
            "queue.",
            sql="\n".join(
                context.format_remedy("detach_from_queue", id=each) for each in list(queues)[:5]
            ),
        )


def _count_dangling(
    jobs: Iterable[JobGroup], get_id: Callable[[JobGroup], int | None]
) -> dict[int, int]:
    """How many jobs point to each id that is nowhere, the most first."""
    found: dict[int, int] = defaultdict(int)
    for each in jobs:
        if (lost := get_id(each)) is not None:
            found[lost] += each.count
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _format_dangling(counts: Mapping[int, int], id: int, table: str) -> str:
    return f"{pluralize(counts[id], 'job')} with id {id}, which is not in {table}"


# Locks that nobody releases


def check_stale_locks(
    locks: Mapping[str | None, PoolLocks], context: DiagnosticContext
) -> Iterator[Finding]:
    stale = {pool_id: each for pool_id, each in locks.items() if each.is_stale}
    if not stale:
        return
    yield Finding(
        id=FindingId.STALE_LOCKS,
        severity=Severity.CRITICAL,
        title=f"{_format_totals(stale.values(), stale=True)} locked for more than four hours",
        evidence=limit_lines([_format_holder(pool_id, stale[pool_id]) for pool_id in stale]),
        advice="Any worker releases them within ten minutes: start one. If these are surely dead, "
        "at once:",
        shell=_format_recover_command(stale, context),
    )


def check_dead_pools(
    dead_pools: Mapping[str, PoolRow],
    locks: Mapping[str | None, PoolLocks],
    context: DiagnosticContext,
) -> Iterator[Finding]:
    holding = {each: locks[each] for each in dead_pools if each in locks}
    if holding:
        yield Finding(
            id=FindingId.DEAD_POOL_LOCKS,
            severity=Severity.CRITICAL,
            title=f"{_format_totals(holding.values())} locked by pools that are silent",
            evidence=limit_lines(
                [
                    f"{_format_heartbeat(dead_pools[e])}: {_format_locks(holding[e])}"
                    for e in holding
                ]
            ),
            advice="Any worker with recovery takes them within a minute: start one. If these are "
            "surely dead, at once:",
            shell=_format_recover_command(holding, context),
        )
    idle = [each for each in dead_pools.values() if each.id not in holding and not each.is_rescued]
    if idle:
        yield Finding(
            id=FindingId.DEAD_POOLS,
            severity=Severity.WARNING,
            title=f"{pluralize(len(idle), 'pool')} in the registry, holding nothing, and silent",
            evidence=limit_lines([_format_heartbeat(each) for each in idle]),
            advice="No worker runs that would forget them: start one. To see who is there:",
            shell=context.format_command("workers list"),
        )


def _format_recover_command(
    holders: Iterable[str | None], context: DiagnosticContext
) -> str | None:
    known = [each for each in holders if each is not None]
    return context.format_command("workers recover", *known) if known else None


def _format_totals(holders: Iterable[PoolLocks], *, stale: bool = False) -> str:
    found = list(holders)
    jobs = sum(each.stale_jobs if stale else each.jobs for each in found)
    queues = sum(each.stale_queues if stale else each.queues for each in found)
    both = [(jobs, "job"), (queues, "named queue")]
    said = " and ".join(pluralize(count, word) for count, word in both if count)
    return f"{said} {'is' if jobs + queues == 1 else 'are'}"


def _format_holder(pool_id: str | None, locks: PoolLocks) -> str:
    return f"{pool_id or 'nobody'}: {_format_locks(locks)}"


def _format_locks(locks: PoolLocks) -> str:
    both = [(locks.jobs, "job"), (locks.queues, "named queue")]
    said = " and ".join(pluralize(count, word) for count, word in both if count)
    such = "" if locks.first_job_id is None else f", the first is job {locks.first_job_id}"
    return f"{said}, locked for up to {format_duration(locks.oldest_lock_seconds)}{such}"


def _format_heartbeat(pool: PoolRow) -> str:
    where = f" on {pool.host}" if pool.host else ""
    process = f", process {pool.pid}" if pool.pid else ""
    return f"{pool.id}{where}{process}, silent for {format_duration(pool.seconds_since_heartbeat)}"


# Who keeps workers from recovery


def plan_check_rescue_lock(context: DiagnosticContext) -> FindingsPlan:
    holders = yield get_rescue_lock_holders(context.schemas)
    return list(check_rescue_lock(holders, context))


def check_rescue_lock(
    holders: Iterable[RescueLockHolder], context: DiagnosticContext
) -> Iterator[Finding]:
    longest = context.options.max_transaction_age.total_seconds()
    # A worker that sweeps holds the turn too, for a minute at most.
    held = [each for each in holders if each.seconds is None or each.seconds >= longest]
    if held:
        pids = [each.pid for each in held if each.pid is not None]
        yield Finding(
            id=FindingId.RESCUE_LOCK_HELD,
            severity=Severity.WARNING,
            title="a session holds the turn to recover jobs: workers recover them later",
            evidence=limit_lines([_format_rescue_lock_holder(each) for each in held]),
            advice="End it, unless it is a worker that recovers jobs at this moment.",
            sql="\n".join(context.format_remedy("terminate_session", pid=each) for each in pids)
            or None,
        )


def _format_rescue_lock_holder(holder: RescueLockHolder) -> str:
    since = (
        ""
        if holder.seconds is None
        else f", in a transaction for {format_duration(holder.seconds)}"
    )
    return f"{holder}{since}"
