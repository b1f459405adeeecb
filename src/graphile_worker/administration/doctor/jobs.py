"""Jobs that cannot run: their task or queue is nowhere, or who holds them is gone."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from graphile_worker.administration.doctor.case import Case, Findings, lasting, lines
from graphile_worker.administration.doctor.finding import Finding, FindingId, Severity
from graphile_worker.administration.wording import counted
from graphile_worker.sql import health
from graphile_worker.sql.health import JobGroup, PoolRow, QueueGroup
from graphile_worker.sql.workers import TurnHolder, get_turn_holders

# Leases without a heartbeat: after one, others take the jobs, if there are others.
SILENT_LEASES = 2


@dataclass(frozen=True, slots=True)
class Held:
    """What one pool has locked."""

    jobs: int = 0
    stale_jobs: int = 0
    queues: int = 0
    stale_queues: int = 0
    oldest: float = 0.0
    first_job: int | None = None

    @property
    def is_stale(self) -> bool:
        return bool(self.stale_jobs or self.stale_queues)


def surveying(case: Case) -> Findings:
    """One look at all jobs, all named queues and all pools."""
    jobs = yield health.survey_jobs()
    queues = yield health.survey_queues()
    return [*dangling(jobs, case), *stale_locks(held_by(jobs, queues), case)]


def surveying_with_pools(case: Case) -> Findings:
    """The same where there is a registry, which says who is silent."""
    jobs = yield health.survey_jobs()
    queues = yield health.survey_queues()
    pools = yield health.survey_pools()
    held = held_by(jobs, queues)
    silent = {each.id: each for each in pools if is_silent(each)}
    others = {pool_id: each for pool_id, each in held.items() if pool_id not in silent}
    return [
        *dangling(jobs, case),
        *stale_locks(others, case),
        *silent_pools(silent, held, case),
    ]


def held_by(jobs: Iterable[JobGroup], queues: Iterable[QueueGroup]) -> dict[str | None, Held]:
    """What each pool has locked."""
    found: dict[str | None, Held] = defaultdict(Held)
    for job in (each for each in jobs if each.oldest_lock is not None):
        old = found[job.locked_by]
        found[job.locked_by] = Held(
            old.jobs + job.count,
            old.stale_jobs + job.stale,
            old.queues,
            old.stale_queues,
            max(old.oldest, job.oldest_lock or 0.0),
            job.first_id if old.first_job is None else min(old.first_job, job.first_id),
        )
    for queue in queues:
        old = found[queue.locked_by]
        found[queue.locked_by] = Held(
            old.jobs,
            old.stale_jobs,
            old.queues + queue.count,
            old.stale_queues + queue.stale,
            max(old.oldest, queue.oldest_lock or 0.0),
            old.first_job,
        )
    return dict(found)


def is_silent(pool: PoolRow) -> bool:
    """Has nobody heard of it for so long that others, if there were any, had taken its jobs?"""
    patience = pool.lease * SILENT_LEASES
    return pool.silence > patience and pool.server_up > patience


# Ids that point nowhere


def dangling(jobs: Iterable[JobGroup], case: Case) -> Iterator[Finding]:
    tasks = _lost(jobs, lambda each: each.lost_task_id)
    if tasks:
        yield Finding(
            id=FindingId.DANGLING_TASKS,
            severity=Severity.CRITICAL,
            title=f"{counted(sum(tasks.values()), 'job')} of tasks that have no name any more: "
            "nobody will ever run them",
            evidence=lines([_pointing(tasks, each, "_private_tasks") for each in tasks]),
            advice="A cleanup deleted the name while jobs were added. Give them a task again; "
            "restart workers that knew it before.",
            sql=case.cure("name_task", id=next(iter(tasks))),
        )
    queues = _lost(jobs, lambda each: each.lost_queue_id)
    if queues:
        yield Finding(
            id=FindingId.DANGLING_QUEUES,
            severity=Severity.CRITICAL,
            title=f"{counted(sum(queues.values()), 'job')} of named queues that are not there any "
            "more: nobody will ever run them",
            evidence=lines([_pointing(queues, each, "_private_job_queues") for each in queues]),
            advice="A cleanup deleted the queue while jobs were added. Let them run without a "
            "queue.",
            sql="\n".join(case.cure("leave_queue", id=each) for each in list(queues)[:5]),
        )


def _lost(jobs: Iterable[JobGroup], of: Callable[[JobGroup], int | None]) -> dict[int, int]:
    """How many jobs point to each id that is nowhere, the most first."""
    found: dict[int, int] = defaultdict(int)
    for each in jobs:
        if (lost := of(each)) is not None:
            found[lost] += each.count
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _pointing(lost: Mapping[int, int], id: int, table: str) -> str:
    return f"{counted(lost[id], 'job')} with id {id}, which is not in {table}"


# Locks that nobody releases


def stale_locks(held: Mapping[str | None, Held], case: Case) -> Iterator[Finding]:
    stale = {pool_id: each for pool_id, each in held.items() if each.is_stale}
    if not stale:
        return
    yield Finding(
        id=FindingId.STALE_LOCKS,
        severity=Severity.CRITICAL,
        title=f"{_locks(stale.values(), stale=True)} locked for more than four hours",
        evidence=lines([_holding(pool_id, stale[pool_id]) for pool_id in stale]),
        advice="Any worker releases them within ten minutes: start one. If these are surely dead, "
        "at once:",
        shell=_recover(stale, case),
    )


def silent_pools(
    silent: Mapping[str, PoolRow], held: Mapping[str | None, Held], case: Case
) -> Iterator[Finding]:
    holding = {each: held[each] for each in silent if each in held}
    if holding:
        yield Finding(
            id=FindingId.SILENT_POOL_LOCKS,
            severity=Severity.CRITICAL,
            title=f"{_locks(holding.values())} locked by pools that are silent",
            evidence=lines([f"{_silence(silent[e])}: {_amount(holding[e])}" for e in holding]),
            advice="Any worker with recovery takes them within a minute: start one. If these are "
            "surely dead, at once:",
            shell=_recover(holding, case),
        )
    idle = [each for each in silent.values() if each.id not in holding and not each.is_swept]
    if idle:
        yield Finding(
            id=FindingId.SILENT_POOLS,
            severity=Severity.WARNING,
            title=f"{counted(len(idle), 'pool')} in the registry, holding nothing, and silent",
            evidence=lines([_silence(each) for each in idle]),
            advice="No worker runs that would forget them: start one. To see who is there:",
            shell=case.command("workers list"),
        )


def _recover(holders: Iterable[str | None], case: Case) -> str | None:
    known = [each for each in holders if each is not None]
    return case.command("workers recover", *known) if known else None


def _locks(holders: Iterable[Held], *, stale: bool = False) -> str:
    found = list(holders)
    jobs = sum(each.stale_jobs if stale else each.jobs for each in found)
    queues = sum(each.stale_queues if stale else each.queues for each in found)
    both = [(jobs, "job"), (queues, "named queue")]
    said = " and ".join(counted(count, word) for count, word in both if count)
    return f"{said} {'is' if jobs + queues == 1 else 'are'}"


def _holding(pool_id: str | None, held: Held) -> str:
    return f"{pool_id or 'nobody'}: {_amount(held)}"


def _amount(held: Held) -> str:
    both = [(held.jobs, "job"), (held.queues, "named queue")]
    said = " and ".join(counted(count, word) for count, word in both if count)
    such = "" if held.first_job is None else f", the first is job {held.first_job}"
    return f"{said}, locked for up to {lasting(held.oldest)}{such}"


def _silence(pool: PoolRow) -> str:
    where = f" on {pool.host}" if pool.host else ""
    process = f", process {pool.pid}" if pool.pid else ""
    return f"{pool.id}{where}{process}, silent for {lasting(pool.silence)}"


# Who keeps workers from recovery


def finding_turn_holders(case: Case) -> Findings:
    holders = yield get_turn_holders(case.schemas)
    return list(recovery_held(holders, case))


def recovery_held(holders: Iterable[TurnHolder], case: Case) -> Iterator[Finding]:
    longest = case.options.held_for.total_seconds()
    # A worker that sweeps holds the turn too, for a minute at most.
    held = [each for each in holders if each.seconds is None or each.seconds >= longest]
    if held:
        pids = [each.pid for each in held if each.pid is not None]
        yield Finding(
            id=FindingId.RECOVERY_HELD,
            severity=Severity.WARNING,
            title="a session holds the turn to recover jobs: workers recover them later",
            evidence=lines([_turn(each) for each in held]),
            advice="End it, unless it is a worker that recovers jobs at this moment.",
            sql="\n".join(case.cure("end_session", pid=each) for each in pids) or None,
        )


def _turn(holder: TurnHolder) -> str:
    since = "" if holder.seconds is None else f", in a transaction for {lasting(holder.seconds)}"
    return f"{holder}{since}"
