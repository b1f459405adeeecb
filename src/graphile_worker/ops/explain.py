"""Explain why a job does not run: the reasons that apply, the decisive one first."""

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.limits import MAX_LIMITS
from graphile_worker._sql.queries.jobs import JOB_COLUMNS, read_job
from graphile_worker._sql.queries.limits import check_limits, get_slot_renters, list_limits
from graphile_worker._sql.queries.pauses import check_pauses, list_pauses
from graphile_worker._sql.queries.search import (
    count_jobs_ahead,
    count_queue_ahead,
    get_job_status,
    get_queue_holder,
)
from graphile_worker._sql.queries.workers import check_registries
from graphile_worker._sql.query import Plan, Row
from graphile_worker._support.durations import format_duration
from graphile_worker._support.text import pluralize
from graphile_worker.jobs import Job, parse_timestamp
from graphile_worker.limits import ConcurrencyLimit
from graphile_worker.ops.diagnostics.thresholds import DEFAULT_THRESHOLDS
from graphile_worker.ops.limits import LimitState, describe_shortage
from graphile_worker.ops.pauses import (
    PAUSED_PREFIX,
    Pause,
    PauseKind,
    format_pause,
    is_overdue,
    is_paused_lock,
)
from graphile_worker.ops.pools import (
    PoolHealth,
    PoolInfo,
    find_task_limits,
    is_served,
    list_alive_pools,
    list_dead_pool_ids,
    list_served_tasks,
    plan_get_lock_holders,
)
from graphile_worker.ops.search import (
    DEFAULT_LIMITS,
    MAX_ERROR_CHARS,
    QueryLimits,
    with_limits,
)
from graphile_worker.ops.states import LOCKED_STATES, JobState, compute_default_backoff
from graphile_worker.ops.text import format_seconds, summarize_error

MAX_JOBS_AHEAD = 10_000


class ReasonCode(StrEnum):
    """The reasons, in the order in which they are checked."""

    RUNNING = "running"
    STALE = "stale"
    FAILED = "failed"
    SCHEDULED = "scheduled"
    BACKING_OFF = "backing_off"
    QUEUE_LOCKED = "queue_held"
    QUEUE_PAUSED = "queue_paused"
    TASK_PAUSED = "task_paused"
    NO_WORKER = "no_worker"
    LIMIT = "limit"
    FLAGS = "flags"
    BEHIND = "behind"
    BUSY = "busy"
    ELIGIBLE = "eligible"


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason why a job does not run, as a sentence and with its evidence."""

    why: ReasonCode
    sentence: str
    evidence: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Explanation:
    """A job, its state, and the reasons why it does not run, the decisive one first."""

    job: Job
    state: JobState
    now: datetime
    reasons: list[Reason]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExplanationContext:
    """The data from which the reasons follow."""

    job: Job
    state: JobState
    now: datetime
    pools: Sequence[PoolInfo] = ()
    has_registry: bool = True
    """Whether workers are registered in this database."""
    queue_locked_at: datetime | None = None
    queue_locked_by: str | None = None
    pauses: Sequence[Pause] = ()
    """The described pauses of tasks and queues."""
    limits: Sequence[LimitState] = ()
    """The limits of the task."""
    slot_renters: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """How many slots of each limit each pool rents."""
    queue_holder: tuple[int, str | None] | None = None
    """The locked job of the named queue, and its task."""
    jobs_ahead_in_queue: int = 0
    jobs_ahead: int = 0
    may_be_more_ahead: bool = False

    def find_pool(self, pool_id: str | None) -> PoolInfo | None:
        """Find a pool by its id."""
        return next((pool for pool in self.pools if pool.id == pool_id), None)

    def find_pause(self, kind: PauseKind, name: str | None) -> Pause | None:
        """Find the pause of the task or queue of the job."""
        return next((each for each in self.pauses if (each.kind, each.name) == (kind, name)), None)

    @property
    def task_pause(self) -> Pause | None:
        """The pause of the task."""
        return self.find_pause(PauseKind.TASK, self.job.task_identifier)

    @property
    def capable_pools(self) -> list[PoolInfo]:
        """The pools that are alive and run the task, or do not report their tasks."""
        task = self.job.task_identifier
        return [
            pool
            for pool in list_alive_pools(self.pools)
            if pool.tasks is None or task in pool.tasks
        ]

    @property
    def is_unhandled(self) -> bool:
        """Whether no worker runs the task. An unregistered worker that holds a lock may run it."""
        has_pools = any(pool.health is not PoolHealth.DEAD for pool in self.pools)
        served = is_served(self.pools, self.job.task_identifier) if has_pools else False
        return self.has_registry and served is False


def plan_explain(
    job_id: int, schemas: Schemas, *, limits: QueryLimits = DEFAULT_LIMITS
) -> Plan[Explanation | None]:
    """Explain why a job does not run.

    Args:
        job_id: The id of the job.
        schemas: The schemas of the queue.
        limits: The time limits of the queries.

    Returns:
        None if the job does not exist: it is completed, or was removed.
    """
    context = yield from _plan_read_context(job_id, schemas, limits)
    if context is None:
        return None
    return Explanation(context.job, context.state, context.now, list(find_reasons(context)))


def find_reasons(context: ExplanationContext) -> Iterator[Reason]:
    """Find all reasons that apply, at least one, in their order."""
    if context.state is JobState.STALE:
        yield _explain_stale(context)
        return
    if context.state is JobState.RUNNING:
        yield _explain_running(context)
        return
    if context.state is JobState.FAILED:
        yield _explain_failed(context)
    if context.state in (JobState.RETRYING, JobState.SCHEDULED):
        yield _explain_not_due(context)
    obstacles = [*_find_blockers(context), *_find_delays(context)]
    yield from obstacles
    if context.state is JobState.READY and not obstacles:
        yield Reason(
            ReasonCode.ELIGIBLE, "it can run now: a worker claims it within its poll interval"
        )


def _find_blockers(context: ExplanationContext) -> Iterator[Reason]:
    """Find what keeps the job from running even when it is due."""
    if context.queue_locked_at is not None:
        age = (context.now - context.queue_locked_at).total_seconds()
        is_paused = is_paused_lock(context.queue_locked_by, age)
        yield _explain_queue_paused(context) if is_paused else _explain_queue_locked(context)
    if context.task_pause is not None:
        yield _explain_task_paused(context, context.task_pause)
    if context.is_unhandled:
        yield _explain_no_worker(context)
    if context.state is JobState.READY:
        yield from _explain_limits(context)
    if context.job.flags:
        flags = sorted(context.job.flags)
        yield Reason(
            ReasonCode.FLAGS,
            f"it has the flags {', '.join(map(repr, flags))}: workers that forbid one skip it",
            {"flags": flags},
        )


def _find_delays(context: ExplanationContext) -> Iterator[Reason]:
    """Find why workers that run the task do not claim the job yet."""
    if context.state is not JobState.READY or context.is_unhandled or context.task_pause:
        return
    if context.jobs_ahead:
        more = " or more" if context.may_be_more_ahead else ""
        noun = "job runs" if context.jobs_ahead == 1 and not more else "jobs run"
        sentence = f"{context.jobs_ahead:,}{more} {noun} before it"
        yield Reason(ReasonCode.BEHIND, sentence, {"ahead": context.jobs_ahead})
    yield from _explain_busy(context)


# One function for each longer reason


def _explain_running(context: ExplanationContext) -> Reason:
    job = context.job
    return Reason(
        ReasonCode.RUNNING,
        f"{_format_lock(context)}, attempt {job.attempts} of {job.max_attempts}; "
        f"{_format_heartbeat(context.find_pool(job.locked_by))}",
        _build_lock_evidence(context) | {"attempt": job.attempts, "max_attempts": job.max_attempts},
    )


def _explain_stale(context: ExplanationContext) -> Reason:
    stale_after = DEFAULT_THRESHOLDS.stale_after
    owner = context.find_pool(context.job.locked_by)
    if owner is not None and owner.health is PoolHealth.DEAD:
        outlook = "a running worker recovers it soon, or unlock it"
    else:
        outlook = (
            f"any worker releases a lock older than {format_duration(stale_after)}, or unlock it"
        )
    return Reason(
        ReasonCode.STALE,
        f"{_format_lock(context)}; {_format_heartbeat(owner)}; {outlook}",
        _build_lock_evidence(context)
        | {"frees_at": (context.job.locked_at or context.now) + stale_after},
    )


def _explain_failed(context: ExplanationContext) -> Reason:
    job = context.job
    error = summarize_error(job.last_error)[:MAX_ERROR_CHARS]
    return Reason(
        ReasonCode.FAILED,
        f"it failed permanently: {job.attempts} of {job.max_attempts} attempts; retry it"
        + (f"; last error: {error}" if error else ""),
        {"attempts": job.attempts, "max_attempts": job.max_attempts, "last_error": job.last_error},
    )


def _explain_not_due(context: ExplanationContext) -> Reason:
    job = context.job
    left = job.run_at - context.now
    evidence = {"run_at": job.run_at, "in_seconds": left.total_seconds()}
    if context.state is JobState.SCHEDULED:
        sentence = f"it is scheduled: due in {format_duration(left)}"
        return Reason(ReasonCode.SCHEDULED, sentence, evidence)
    backoff = compute_default_backoff(job.attempts)
    return Reason(
        ReasonCode.BACKING_OFF,
        f"attempt {job.attempts} of {job.max_attempts} failed; the next is due in "
        f"{format_duration(left)} (default backoff: {format_duration(backoff)})",
        evidence | {"attempts": job.attempts, "backoff_seconds": backoff.total_seconds()},
    )


def _explain_queue_locked(context: ExplanationContext) -> Reason:
    owner = context.find_pool(context.queue_locked_by)
    job_id, task = context.queue_holder or (None, None)
    job = "" if job_id is None else f"job {job_id} ({task}) on "
    since = context.now - (context.queue_locked_at or context.now)
    return Reason(
        ReasonCode.QUEUE_LOCKED,
        f"its queue {context.job.queue_name!r} is locked by {job}worker "
        f"{context.queue_locked_by} for {format_duration(since)}, and "
        f"{context.jobs_ahead_in_queue:,} more run before it; {_format_heartbeat(owner)}",
        {
            "queue": context.job.queue_name,
            "worker": context.queue_locked_by,
            "since": context.queue_locked_at,
            "held_by_job": job_id,
            "ahead": context.jobs_ahead_in_queue,
            "worker_silence_seconds": None if owner is None else owner.seconds_since_heartbeat,
        },
    )


def _explain_queue_paused(context: ExplanationContext) -> Reason:
    name = context.job.queue_name or ""
    by = (context.queue_locked_by or "").removeprefix(PAUSED_PREFIX)
    pause = context.find_pause(PauseKind.QUEUE, name)
    if pause is None or pause.by != by:
        pause = Pause(PauseKind.QUEUE, name, by)
    sentence = f"its queue {name!r} is {format_pause(pause, context.now)}"
    if is_overdue(pause, context.now):
        sentence += "; a running Python worker resumes it, or resume it yourself"
    return Reason(ReasonCode.QUEUE_PAUSED, sentence, {"queue": name} | _build_pause_evidence(pause))


def _explain_task_paused(context: ExplanationContext, pause: Pause) -> Reason:
    return Reason(
        ReasonCode.TASK_PAUSED,
        f"its task {pause.name!r} is {format_pause(pause, context.now)}; Python workers do not "
        "start it",
        {"task": pause.name} | _build_pause_evidence(pause),
    )


def _build_pause_evidence(pause: Pause) -> dict[str, object]:
    return {
        "paused_by": pause.by,
        "reason": pause.reason,
        "since": pause.since,
        "until": pause.until,
    }


def _explain_no_worker(context: ExplanationContext) -> Reason:
    task = context.job.task_identifier
    # The task of a job may have been deleted.
    near = difflib.get_close_matches(task or "", list_served_tasks(context.pools), n=1)
    ids = [pool.id for pool in list_alive_pools(context.pools)]
    workers = f"{len(ids)} running, none has it" if ids else "no workers are running"
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return Reason(
        ReasonCode.NO_WORKER,
        f"no live worker handles task {task!r} ({workers}){hint}",
        {"task": task, "workers": ids, "nearest": near[0] if near else None},
    )


def _explain_limits(context: ExplanationContext) -> Iterator[Reason]:
    """Explain which limits of the task allow no other job now."""
    for state in context.limits:
        if not state.is_exhausted:
            continue
        renters = context.slot_renters.get(state.name, {})
        evidence: dict[str, object] = {"limit": state.name}
        if isinstance(state.limit, ConcurrencyLimit):
            evidence |= {"slots": state.limit.slots, "rented_by": dict(renters)}
        else:
            evidence |= {"limit_rate": str(state.limit), "in_seconds": state.seconds_until_next}
        sentence = f"it waits for {describe_shortage(state, renters)}"
        yield Reason(ReasonCode.LIMIT, sentence, evidence)


def _explain_busy(context: ExplanationContext) -> Iterator[Reason]:
    pools = context.capable_pools
    if not pools or any(pool.concurrency is None for pool in pools):
        return
    slots = sum(pool.concurrency or 0 for pool in pools)
    claimed = sum(pool.jobs for pool in pools)
    if claimed >= slots:
        yield Reason(
            ReasonCode.BUSY,
            f"all workers are busy: they have claimed {pluralize(claimed, 'job')} and run {slots:,}"
            " at once",
            {"held": claimed, "slots": slots, "workers": [pool.id for pool in pools]},
        )


def _format_lock(context: ExplanationContext) -> str:
    since = context.now - (context.job.locked_at or context.now)
    return f"worker {context.job.locked_by} has it locked for {format_duration(since)}"


def _format_heartbeat(pool: PoolInfo | None) -> str:
    if pool is None or pool.seconds_since_heartbeat is None:
        return "that worker is not registered"
    heartbeat = f"last heartbeat {format_seconds(pool.seconds_since_heartbeat)} ago"
    return f"that worker is {pool.health}, {heartbeat}"


def _build_lock_evidence(context: ExplanationContext) -> dict[str, object]:
    owner = context.find_pool(context.job.locked_by)
    return {
        "worker": context.job.locked_by,
        "since": context.job.locked_at,
        "worker_health": PoolHealth.UNKNOWN if owner is None else owner.health,
        "worker_silence_seconds": None if owner is None else owner.seconds_since_heartbeat,
    }


# Queries


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
    context = _read_context(row, pools, any(registries))
    if context.state not in LOCKED_STATES:
        access = yield from with_limits(check_pauses(schemas), schemas, limits)
        if access.can_read:
            pauses = yield from with_limits(list_pauses(), schemas, limits)
            context = replace(context, pauses=pauses)
    if context.state is JobState.READY:
        names = find_task_limits(pools).get(context.job.task_identifier, set())
        if names:
            context = yield from _plan_read_limits(context, names, schemas, limits)
    holder, in_queue, ahead, may_be_more = None, 0, 0, False
    queue_id = row[JOB_COLUMNS + 2]
    if queue_id is not None and context.queue_locked_at is not None:
        holder = yield from with_limits(get_queue_holder(queue_id), schemas, limits)
        in_queue = yield from with_limits(
            count_queue_ahead(job_id, MAX_JOBS_AHEAD), schemas, limits
        )
    if context.state is JobState.READY:
        query = count_jobs_ahead(job_id, _list_competing_tasks(context), MAX_JOBS_AHEAD)
        ahead, may_be_more = yield from with_limits(query, schemas, limits)
    return replace(
        context,
        queue_holder=holder,
        jobs_ahead_in_queue=in_queue,
        jobs_ahead=ahead,
        may_be_more_ahead=may_be_more,
    )


def _plan_read_limits(
    context: ExplanationContext, names: Collection[str], schemas: Schemas, limits: QueryLimits
) -> Plan[ExplanationContext]:
    access = yield from with_limits(check_limits(schemas), schemas, limits)
    if not access.can_read:
        return context
    states = yield from with_limits(list_limits(MAX_LIMITS), schemas, limits)
    rows = yield from with_limits(get_slot_renters(sorted(names)), schemas, limits)
    renters: dict[str, dict[str, int]] = {}
    for name, pool_id, count in rows:
        renters.setdefault(name, {})[pool_id] = count
    return replace(
        context, limits=[each for each in states if each.name in names], slot_renters=renters
    )


def _list_competing_tasks(context: ExplanationContext) -> list[str] | None:
    """List the tasks of the workers that run this one, or None if a worker does not report them."""
    pools = context.capable_pools
    if not pools or any(pool.tasks is None for pool in pools):
        return None
    return list_served_tasks(pools)


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
