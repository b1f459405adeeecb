"""Why does this job not run? The reasons that hold, the one that counts first, with evidence."""

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.jobs import JOB_COLUMNS, read_job
from graphile_worker._sql.queries.search import (
    count_jobs_ahead,
    count_queue_ahead,
    get_job_status,
    get_queue_holder,
)
from graphile_worker._sql.queries.workers import check_registries
from graphile_worker._sql.query import Plan, Row
from graphile_worker._support.durations import format_duration
from graphile_worker.jobs import Job, parse_timestamp
from graphile_worker.ops.pools import (
    PAUSED_PREFIX,
    PoolHealth,
    PoolInfo,
    list_alive_pools,
    list_dead_pool_ids,
    plan_get_lock_holders,
)
from graphile_worker.ops.search import (
    DEFAULT_LIMITS,
    MAX_ERROR_CHARS,
    QueryLimits,
    with_limits,
)
from graphile_worker.ops.states import LOCKED_STATES, JobState
from graphile_worker.ops.text import summarize_error

MAX_JOBS_AHEAD = 10_000

# A lock as old as this is released by any worker, at the next of its looks.
STALE_AFTER = timedelta(hours=4)


class ReasonCode(StrEnum):
    """In the order in which they are asked for."""

    RUNNING = "running"
    STALE = "stale"
    FAILED = "failed"
    SCHEDULED = "scheduled"
    BACKING_OFF = "backing_off"
    QUEUE_LOCKED = "queue_held"
    QUEUE_PAUSED = "check_queue_paused"
    NO_WORKER = "no_worker"
    FLAGS = "flags"
    BEHIND = "behind"
    BUSY = "busy"
    ELIGIBLE = "eligible"


Evidence = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Reason:
    """What keeps a job from running, in a sentence, and how that is known."""

    why: ReasonCode
    sentence: str
    evidence: Evidence = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Explanation:
    """A job, its state at that time, and why it does not run: the first reason is the one."""

    job: Job
    state: JobState
    now: datetime
    reasons: list[Reason]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExplanationContext:
    """Whatever the reasons are drawn from."""

    job: Job
    state: JobState
    now: datetime
    pools: Sequence[PoolInfo] = ()
    has_registry: bool = True
    """Can it be known who lives?"""
    queue_locked_at: datetime | None = None
    queue_locked_by: str | None = None
    queue_holder: tuple[int, str | None] | None = None
    """The job that holds its named queue, and the name of its task."""
    jobs_ahead_in_queue: int = 0
    jobs_ahead: int = 0


def plan_explain(
    job_id: int, schemas: Schemas, *, limits: QueryLimits = DEFAULT_LIMITS
) -> Plan[Explanation | None]:
    """Why that job does not run; None if there is no such job: it is done, or was removed."""
    situation = yield from _plan_read_context(job_id, schemas, limits)
    if situation is None:
        return None
    return Explanation(situation.job, situation.state, situation.now, list(find_reasons(situation)))


def find_reasons(context: ExplanationContext) -> Iterator[Reason]:
    """All that hold, in their order; there is always one."""
    if context.state in LOCKED_STATES:
        yield (
            _explain_stale(context)
            if context.state is JobState.STALE
            else _explain_running(context)
        )
        return
    if context.state is JobState.FAILED:
        yield _explain_failed(context)
    if context.state in (JobState.RETRYING, JobState.SCHEDULED):
        yield _explain_not_due(context)
    hindrances = [*_find_blockers(context), *_find_delays(context)]
    yield from hindrances
    if context.state is JobState.READY and not hindrances:
        yield Reason(
            ReasonCode.ELIGIBLE, "it can run now: a worker takes it within its poll interval"
        )


def _find_blockers(context: ExplanationContext) -> Iterator[Reason]:
    """What would keep it from running even if its time had come."""
    if context.queue_locked_at is not None:
        yield (
            _explain_queue_paused(context)
            if (context.queue_locked_by or "").startswith(PAUSED_PREFIX)
            else _explain_queue_locked(context)
        )
    if _is_task_unhandled(context):
        yield _explain_no_worker(context)
    if context.job.flags:
        yield _explain_flags(context)


def _find_delays(context: ExplanationContext) -> Iterator[Reason]:
    """Why those who could run it do not do so yet."""
    if context.state is not JobState.READY or _is_task_unhandled(context):
        return
    if context.jobs_ahead:
        yield _explain_behind(context)
    if (busy := _explain_busy(context)) is not None:
        yield busy


# One reason each


def _explain_running(context: ExplanationContext) -> Reason:
    return Reason(
        ReasonCode.RUNNING,
        f"{_format_lock(context)}, attempt {context.job.attempts} of {context.job.max_attempts}; "
        f"{_format_heartbeat(_find_owner(context))}",
        _build_lock_evidence(context)
        | {"attempt": context.job.attempts, "max_attempts": context.job.max_attempts},
    )


def _explain_stale(context: ExplanationContext) -> Reason:
    locked_at = context.job.locked_at or context.now
    frees_at = locked_at + STALE_AFTER
    owner = _find_owner(context)
    if owner is not None and owner.health is PoolHealth.DEAD:
        then = "workers that live take it soon, or unlock it"
    else:
        then = "four hours and more: workers release it at their next look, or unlock it"
    return Reason(
        ReasonCode.STALE,
        f"{_format_lock(context)}; {_format_heartbeat(owner)}; {then}",
        _build_lock_evidence(context) | {"frees_at": frees_at},
    )


def _explain_failed(context: ExplanationContext) -> Reason:
    job = context.job
    error = summarize_error(job.last_error)[:MAX_ERROR_CHARS]
    return Reason(
        ReasonCode.FAILED,
        f"no attempts are left: {job.attempts} of {job.max_attempts} were made; retry it"
        + (f"; its last error: {error}" if error else ""),
        {"attempts": job.attempts, "max_attempts": job.max_attempts, "last_error": job.last_error},
    )


def _explain_not_due(context: ExplanationContext) -> Reason:
    job = context.job
    left = job.run_at - context.now
    when = f"it may run in {format_duration(left)}"
    evidence = {"run_at": job.run_at, "in_seconds": left.total_seconds()}
    if context.state is JobState.SCHEDULED:
        return Reason(ReasonCode.SCHEDULED, f"its time has not come: {when}", evidence)
    backoff = timedelta(seconds=math.exp(min(job.attempts, 10)))
    return Reason(
        ReasonCode.BACKING_OFF,
        f"attempt {job.attempts} of {job.max_attempts} failed, and it waits before the next, "
        f"{format_duration(backoff)} unless its task says otherwise: {when}",
        evidence | {"attempts": job.attempts, "backoff_seconds": backoff.total_seconds()},
    )


def _explain_queue_locked(context: ExplanationContext) -> Reason:
    owner = _find_pool(context, context.queue_locked_by)
    by = f"by worker {context.queue_locked_by}"
    if context.queue_holder is not None:
        by = (
            f"by job {context.queue_holder[0]} ({context.queue_holder[1]}) on worker "
            f"{context.queue_locked_by}"
        )
    since = context.now - (context.queue_locked_at or context.now)
    return Reason(
        ReasonCode.QUEUE_LOCKED,
        f"its queue {context.job.queue_name!r} is held {by} for {format_duration(since)}, "
        f"and {context.jobs_ahead_in_queue:,} more go before it; {_format_heartbeat(owner)}",
        {
            "queue": context.job.queue_name,
            "worker": context.queue_locked_by,
            "since": context.queue_locked_at,
            "held_by_job": None if context.queue_holder is None else context.queue_holder[0],
            "ahead": context.jobs_ahead_in_queue,
            "worker_silence_seconds": None if owner is None else owner.seconds_since_heartbeat,
        },
    )


def _explain_queue_paused(context: ExplanationContext) -> Reason:
    by = (context.queue_locked_by or "").removeprefix(PAUSED_PREFIX)
    return Reason(
        ReasonCode.QUEUE_PAUSED,
        f"its queue {context.job.queue_name!r} is paused by {by or 'somebody'}",
        {"queue": context.job.queue_name, "paused_by": by},
    )


def _explain_no_worker(context: ExplanationContext) -> Reason:
    task = context.job.task_identifier
    known = sorted({name for pool in list_alive_pools(context.pools) for name in pool.tasks or ()})
    # A job may have lost its task: see the doctor.
    near = difflib.get_close_matches(task, known, n=1) if task is not None else []
    ids = [pool.id for pool in list_alive_pools(context.pools)]
    who = f"of {len(ids)} that live, none does" if ids else "none is known to live"
    hint = f"; is {near[0]!r} meant?" if near else ""
    return Reason(
        ReasonCode.NO_WORKER,
        f"no worker runs task {task!r}: {who}{hint}",
        {"task": task, "workers": ids, "nearest": near[0] if near else None},
    )


def _explain_flags(context: ExplanationContext) -> Reason:
    flags = sorted(context.job.flags)
    return Reason(
        ReasonCode.FLAGS,
        f"it carries the flags {', '.join(map(repr, flags))}: workers that forbid one skip it",
        {"flags": flags},
    )


def _explain_behind(context: ExplanationContext) -> Reason:
    many = (
        f"{context.jobs_ahead:,} or more"
        if context.jobs_ahead >= MAX_JOBS_AHEAD
        else f"{context.jobs_ahead:,}"
    )
    noun = "job goes" if context.jobs_ahead == 1 else "jobs go"
    return Reason(ReasonCode.BEHIND, f"{many} {noun} before it", {"ahead": context.jobs_ahead})


def _explain_busy(context: ExplanationContext) -> Reason | None:
    pools = _find_capable_pools(context)
    if not pools or any(pool.concurrency is None for pool in pools):
        return None
    slots = sum(pool.concurrency or 0 for pool in pools)
    held = sum(pool.jobs for pool in pools)
    if held < slots:
        return None
    return Reason(
        ReasonCode.BUSY,
        f"all workers are busy: they hold {held:,} jobs and run {slots:,} at once",
        {"held": held, "slots": slots, "workers": [pool.id for pool in pools]},
    )


# What they have in common


def _find_owner(context: ExplanationContext) -> PoolInfo | None:
    return _find_pool(context, context.job.locked_by)


def _find_pool(context: ExplanationContext, pool_id: str | None) -> PoolInfo | None:
    return next((pool for pool in context.pools if pool.id == pool_id), None)


def _format_lock(context: ExplanationContext) -> str:
    since = context.now - (context.job.locked_at or context.now)
    return f"worker {context.job.locked_by} holds it for {format_duration(since)}"


def _format_heartbeat(pool: PoolInfo | None) -> str:
    if pool is None or pool.seconds_since_heartbeat is None:
        return "no registry knows that worker"
    silence = format_duration(timedelta(seconds=pool.seconds_since_heartbeat))
    if pool.health is PoolHealth.DEAD:
        return f"that worker is dead, heard of {silence} ago"
    return f"that worker was heard of {silence} ago"


def _build_lock_evidence(context: ExplanationContext) -> dict[str, object]:
    owner = _find_owner(context)
    return {
        "worker": context.job.locked_by,
        "since": context.job.locked_at,
        "worker_health": PoolHealth.UNKNOWN if owner is None else owner.health,
        "worker_silence_seconds": None if owner is None else owner.seconds_since_heartbeat,
    }


def _find_capable_pools(context: ExplanationContext) -> list[PoolInfo]:
    """The pools that live and run its task, or may."""
    task = context.job.task_identifier
    return [
        pool for pool in list_alive_pools(context.pools) if pool.tasks is None or task in pool.tasks
    ]


def _is_task_unhandled(context: ExplanationContext) -> bool:
    """Not if there is one that does not say, such as a Node worker that holds something."""
    strangers = [pool for pool in context.pools if pool.health is PoolHealth.UNKNOWN]
    return context.has_registry and not strangers and not _find_capable_pools(context)


# Looking


def _plan_read_context(
    job_id: int, schemas: Schemas, limits: QueryLimits
) -> Plan[ExplanationContext | None]:
    registries = yield from with_limits(check_registries(schemas), schemas, limits)
    pools = yield from plan_get_lock_holders(
        schemas, lambda query: with_limits(query, schemas, limits)
    )
    row = yield from with_limits(get_job_status(list_dead_pool_ids(pools), job_id), schemas, limits)
    if row is None:
        return None
    situation = _read_context(row, pools, any(registries))
    holder, in_queue, ahead = None, 0, 0
    queue_id = row[JOB_COLUMNS + 2]
    if queue_id is not None and situation.queue_locked_at is not None:
        holder = yield from with_limits(get_queue_holder(queue_id), schemas, limits)
        in_queue = yield from with_limits(
            count_queue_ahead(job_id, MAX_JOBS_AHEAD), schemas, limits
        )
    if situation.state is JobState.READY:
        query = count_jobs_ahead(job_id, _list_competing_tasks(situation), MAX_JOBS_AHEAD)
        ahead = yield from with_limits(query, schemas, limits)
    return replace(situation, queue_holder=holder, jobs_ahead_in_queue=in_queue, jobs_ahead=ahead)


def _list_competing_tasks(context: ExplanationContext) -> list[str] | None:
    """The tasks of the workers that could run this one; None if nobody knows."""
    pools = _find_capable_pools(context)
    if not pools or any(pool.tasks is None for pool in pools):
        return None
    return sorted({name for pool in pools for name in pool.tasks or ()})


def _read_context(row: Row, pools: Sequence[PoolInfo], has_registry: bool) -> ExplanationContext:
    state, now, _, locked_at, locked_by = row[JOB_COLUMNS:]
    return ExplanationContext(
        job=read_job(row),
        state=JobState(state),
        now=parse_timestamp(now),
        pools=pools,
        has_registry=has_registry,
        queue_locked_at=None if locked_at is None else parse_timestamp(locked_at),
        queue_locked_by=locked_by,
    )
