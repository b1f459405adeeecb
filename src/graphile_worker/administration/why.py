"""Why does this job not run? The reasons that hold, the one that counts first, with evidence."""

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from graphile_worker.administration.finding import (
    LONGEST_ERROR,
    PATIENCE,
    Patience,
    patiently,
)
from graphile_worker.administration.pools import (
    PAUSED,
    Health,
    Pool,
    dead_pools,
    getting_holders,
    living,
)
from graphile_worker.administration.states import LOCKED, State
from graphile_worker.administration.wording import headline
from graphile_worker.durations import about
from graphile_worker.jobs import Job, moment
from graphile_worker.sql.finding import (
    count_jobs_ahead,
    count_queue_ahead,
    get_queue_holder,
    get_situation,
)
from graphile_worker.sql.identifiers import Schemas
from graphile_worker.sql.jobs import JOB_COLUMNS, read_job
from graphile_worker.sql.query import Plan, Row
from graphile_worker.sql.workers import find_registries

MOST_AHEAD = 10_000

# A lock as old as this is released by any worker, at the next of its looks.
STALE_AFTER = timedelta(hours=4)


class Why(StrEnum):
    """In the order in which they are asked for."""

    RUNNING = "running"
    STALE = "stale"
    FAILED = "failed"
    SCHEDULED = "scheduled"
    BACKING_OFF = "backing_off"
    QUEUE_HELD = "queue_held"
    QUEUE_PAUSED = "queue_paused"
    NO_WORKER = "no_worker"
    FLAGS = "flags"
    BEHIND = "behind"
    BUSY = "busy"
    ELIGIBLE = "eligible"


Evidence = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Reason:
    """What keeps a job from running, in a sentence, and how that is known."""

    why: Why
    sentence: str
    evidence: Evidence = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Explanation:
    """A job, its state at that time, and why it does not run: the first reason is the one."""

    job: Job
    state: State
    now: datetime
    reasons: list[Reason]


@dataclass(frozen=True, kw_only=True, slots=True)
class Situation:
    """Whatever the reasons are drawn from."""

    job: Job
    state: State
    now: datetime
    pools: Sequence[Pool] = ()
    has_registry: bool = True
    """Can it be known who lives?"""
    queue_locked_at: datetime | None = None
    queue_locked_by: str | None = None
    holder: tuple[int, str | None] | None = None
    """The job that holds its named queue, and the name of its task."""
    ahead_in_queue: int = 0
    ahead: int = 0


def explaining(
    job_id: int, schemas: Schemas, *, patience: Patience = PATIENCE
) -> Plan[Explanation | None]:
    """Why that job does not run; None if there is no such job: it is done, or was removed."""
    situation = yield from _looking(job_id, schemas, patience)
    if situation is None:
        return None
    return Explanation(situation.job, situation.state, situation.now, list(reasons(situation)))


def reasons(it: Situation) -> Iterator[Reason]:
    """All that hold, in their order; there is always one."""
    if it.state in LOCKED:
        yield _stale(it) if it.state is State.STALE else _running(it)
        return
    if it.state is State.FAILED:
        yield _failed(it)
    if it.state in (State.RETRYING, State.SCHEDULED):
        yield _too_early(it)
    hindrances = [*_hindrances(it), *_waits(it)]
    yield from hindrances
    if it.state is State.READY and not hindrances:
        yield Reason(Why.ELIGIBLE, "it can run now: a worker takes it within its poll interval")


def _hindrances(it: Situation) -> Iterator[Reason]:
    """What would keep it from running even if its time had come."""
    if it.queue_locked_at is not None:
        yield _paused(it) if (it.queue_locked_by or "").startswith(PAUSED) else _held(it)
    if _nobody_knows_its_task(it):
        yield _no_worker(it)
    if it.job.flags:
        yield _flagged(it)


def _waits(it: Situation) -> Iterator[Reason]:
    """Why those who could run it do not do so yet."""
    if it.state is not State.READY or _nobody_knows_its_task(it):
        return
    if it.ahead:
        yield _behind(it)
    if (busy := _busy(it)) is not None:
        yield busy


# One reason each


def _running(it: Situation) -> Reason:
    return Reason(
        Why.RUNNING,
        f"{_holds(it)}, attempt {it.job.attempts} of {it.job.max_attempts}; "
        f"{_heard_of(_owner(it))}",
        _of_lock(it) | {"attempt": it.job.attempts, "max_attempts": it.job.max_attempts},
    )


def _stale(it: Situation) -> Reason:
    locked_at = it.job.locked_at or it.now
    frees_at = locked_at + STALE_AFTER
    owner = _owner(it)
    if owner is not None and owner.health is Health.DEAD:
        then = "workers that live take it soon, or unlock it"
    else:
        then = "four hours and more: workers release it at their next look, or unlock it"
    return Reason(
        Why.STALE,
        f"{_holds(it)}; {_heard_of(owner)}; {then}",
        _of_lock(it) | {"frees_at": frees_at},
    )


def _failed(it: Situation) -> Reason:
    job = it.job
    error = headline(job.last_error)[:LONGEST_ERROR]
    return Reason(
        Why.FAILED,
        f"no attempts are left: {job.attempts} of {job.max_attempts} were made; retry it"
        + (f"; its last error: {error}" if error else ""),
        {"attempts": job.attempts, "max_attempts": job.max_attempts, "last_error": job.last_error},
    )


def _too_early(it: Situation) -> Reason:
    job = it.job
    left = job.run_at - it.now
    when = f"it may run in {about(left)}"
    evidence = {"run_at": job.run_at, "in_seconds": left.total_seconds()}
    if it.state is State.SCHEDULED:
        return Reason(Why.SCHEDULED, f"its time has not come: {when}", evidence)
    backoff = timedelta(seconds=math.exp(min(job.attempts, 10)))
    return Reason(
        Why.BACKING_OFF,
        f"attempt {job.attempts} of {job.max_attempts} failed, and it waits before the next, "
        f"{about(backoff)} unless its task says otherwise: {when}",
        evidence | {"attempts": job.attempts, "backoff_seconds": backoff.total_seconds()},
    )


def _held(it: Situation) -> Reason:
    owner = _pool(it, it.queue_locked_by)
    by = f"by worker {it.queue_locked_by}"
    if it.holder is not None:
        by = f"by job {it.holder[0]} ({it.holder[1]}) on worker {it.queue_locked_by}"
    since = it.now - (it.queue_locked_at or it.now)
    return Reason(
        Why.QUEUE_HELD,
        f"its queue {it.job.queue_name!r} is held {by} for {about(since)}, "
        f"and {it.ahead_in_queue:,} more go before it; {_heard_of(owner)}",
        {
            "queue": it.job.queue_name,
            "worker": it.queue_locked_by,
            "since": it.queue_locked_at,
            "held_by_job": None if it.holder is None else it.holder[0],
            "ahead": it.ahead_in_queue,
            "worker_silence_seconds": None if owner is None else owner.silence,
        },
    )


def _paused(it: Situation) -> Reason:
    by = (it.queue_locked_by or "").removeprefix(PAUSED)
    return Reason(
        Why.QUEUE_PAUSED,
        f"its queue {it.job.queue_name!r} is paused by {by or 'somebody'}",
        {"queue": it.job.queue_name, "paused_by": by},
    )


def _no_worker(it: Situation) -> Reason:
    task = it.job.task_identifier
    known = sorted({name for pool in living(it.pools) for name in pool.tasks or ()})
    # A job may have lost its task: see the doctor.
    near = difflib.get_close_matches(task, known, n=1) if task is not None else []
    ids = [pool.id for pool in living(it.pools)]
    who = f"of {len(ids)} that live, none does" if ids else "none is known to live"
    hint = f"; is {near[0]!r} meant?" if near else ""
    return Reason(
        Why.NO_WORKER,
        f"no worker runs task {task!r}: {who}{hint}",
        {"task": task, "workers": ids, "nearest": near[0] if near else None},
    )


def _flagged(it: Situation) -> Reason:
    flags = sorted(it.job.flags)
    return Reason(
        Why.FLAGS,
        f"it carries the flags {', '.join(map(repr, flags))}: workers that forbid one skip it",
        {"flags": flags},
    )


def _behind(it: Situation) -> Reason:
    many = f"{it.ahead:,} or more" if it.ahead >= MOST_AHEAD else f"{it.ahead:,}"
    noun = "job goes" if it.ahead == 1 else "jobs go"
    return Reason(Why.BEHIND, f"{many} {noun} before it", {"ahead": it.ahead})


def _busy(it: Situation) -> Reason | None:
    pools = _for_its_task(it)
    if not pools or any(pool.concurrency is None for pool in pools):
        return None
    slots = sum(pool.concurrency or 0 for pool in pools)
    held = sum(pool.jobs for pool in pools)
    if held < slots:
        return None
    return Reason(
        Why.BUSY,
        f"all workers are busy: they hold {held:,} jobs and run {slots:,} at once",
        {"held": held, "slots": slots, "workers": [pool.id for pool in pools]},
    )


# What they have in common


def _owner(it: Situation) -> Pool | None:
    return _pool(it, it.job.locked_by)


def _pool(it: Situation, pool_id: str | None) -> Pool | None:
    return next((pool for pool in it.pools if pool.id == pool_id), None)


def _holds(it: Situation) -> str:
    since = it.now - (it.job.locked_at or it.now)
    return f"worker {it.job.locked_by} holds it for {about(since)}"


def _heard_of(pool: Pool | None) -> str:
    if pool is None or pool.silence is None:
        return "no registry knows that worker"
    silence = about(timedelta(seconds=pool.silence))
    if pool.health is Health.DEAD:
        return f"that worker is dead, heard of {silence} ago"
    return f"that worker was heard of {silence} ago"


def _of_lock(it: Situation) -> dict[str, object]:
    owner = _owner(it)
    return {
        "worker": it.job.locked_by,
        "since": it.job.locked_at,
        "worker_health": Health.UNKNOWN if owner is None else owner.health,
        "worker_silence_seconds": None if owner is None else owner.silence,
    }


def _for_its_task(it: Situation) -> list[Pool]:
    """The pools that live and run its task, or may."""
    task = it.job.task_identifier
    return [pool for pool in living(it.pools) if pool.tasks is None or task in pool.tasks]


def _nobody_knows_its_task(it: Situation) -> bool:
    """Not if there is one that does not say, such as a Node worker that holds something."""
    strangers = [pool for pool in it.pools if pool.health is Health.UNKNOWN]
    return it.has_registry and not strangers and not _for_its_task(it)


# Looking


def _looking(job_id: int, schemas: Schemas, patience: Patience) -> Plan[Situation | None]:
    registries = yield from patiently(find_registries(schemas), schemas, patience)
    pools = yield from getting_holders(schemas, lambda query: patiently(query, schemas, patience))
    row = yield from patiently(get_situation(dead_pools(pools), job_id), schemas, patience)
    if row is None:
        return None
    situation = _read_situation(row, pools, any(registries))
    holder, in_queue, ahead = None, 0, 0
    queue_id = row[JOB_COLUMNS + 2]
    if queue_id is not None and situation.queue_locked_at is not None:
        holder = yield from patiently(get_queue_holder(queue_id), schemas, patience)
        in_queue = yield from patiently(count_queue_ahead(job_id, MOST_AHEAD), schemas, patience)
    if situation.state is State.READY:
        query = count_jobs_ahead(job_id, _tasks_beside(situation), MOST_AHEAD)
        ahead = yield from patiently(query, schemas, patience)
    return replace(situation, holder=holder, ahead_in_queue=in_queue, ahead=ahead)


def _tasks_beside(it: Situation) -> list[str] | None:
    """The tasks of the workers that could run this one; None if nobody knows."""
    pools = _for_its_task(it)
    if not pools or any(pool.tasks is None for pool in pools):
        return None
    return sorted({name for pool in pools for name in pool.tasks or ()})


def _read_situation(row: Row, pools: Sequence[Pool], has_registry: bool) -> Situation:
    state, now, _, locked_at, locked_by = row[JOB_COLUMNS:]
    return Situation(
        job=read_job(row),
        state=State(state),
        now=moment(now),
        pools=pools,
        has_registry=has_registry,
        queue_locked_at=None if locked_at is None else moment(locked_at),
        queue_locked_by=locked_by,
    )
