"""Attention: what somebody should look at now, the worst first, each with what to type.

Every rule is a pure function of what was watched. What one rule explains another does not repeat:
where no worker runs at all, nobody needs to hear of each task that is late.
"""

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from graphile_worker.administration.filters import Field, Filter, Term, Words, in_states
from graphile_worker.administration.pools import PAUSED, Health, Pool, living
from graphile_worker.administration.snapshot import HeldQueue, Snapshot, TaskCount
from graphile_worker.administration.states import State
from graphile_worker.administration.watch import Watch
from graphile_worker.administration.wording import command, counted, headline
from graphile_worker.durations import about
from graphile_worker.sql.identifiers import Schemas

OUR_LEVEL = 20

# Seconds.
NOBODY_AFTER = 10.0
LATE, VERY_LATE = 60.0, 300.0
UNHANDLED_AFTER = 30.0
BLOCKED_AFTER = 300.0
STALE_AFTER = 14_400.0
HELD_FOR = 900.0
CLOCK_OFF_BY = 5.0
UNVACUUMED_FOR = 86_400.0

QUIET_FOR = timedelta(seconds=60)
UNSEEN_FOR = timedelta(minutes=5)
RECENTLY = timedelta(minutes=15)
LATELY = "within 15 min"

FAILING = 20
DEAD_ROWS = 100_000

# Of one rule; how many more there are is said.
MOST = 5


class Severity(StrEnum):
    CRITICAL = "critical"  # jobs do not run
    WARNING = "warning"  # jobs run late, or fail
    NOTE = "note"  # somebody should know


class Rule(StrEnum):
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
class Attention:
    """What is up, how it shows, how many jobs it concerns, and what to type, if that helps."""

    rule: Rule
    severity: Severity
    title: str
    evidence: tuple[str, ...] = ()
    affected: int = 0
    command: str | None = None


class Verdict(StrEnum):
    HEALTHY = "healthy"
    DEGRADED = "degraded"
    STALLED = "stalled"


Found = Iterator[Attention]


@dataclass(frozen=True, slots=True)
class Case:
    """What was watched, and in which schema."""

    watch: Watch
    schemas: Schemas

    @property
    def seen(self) -> Snapshot:
        return self.watch.last

    def command(self, words: str, *arguments: str) -> str:
        return command(self.schemas, words, *arguments)

    def jobs(self, verb: str, task: str, *states: State) -> str:
        """A command for the jobs of a task in these states."""
        wanted = Filter((Term(Field.TASK, (Words((task,)),)),)) & in_states(*states)
        return self.command(f"jobs {verb}", str(wanted))


def attention(watch: Watch, schemas: Schemas) -> list[Attention]:
    """All that should be looked at, the worst first."""
    case = Case(watch, schemas)
    found = [each for rule in RULES for each in _first(list(rule(case)))]
    explained = {Rule.LATE, Rule.UNHANDLED_TASK}
    if any(each.rule is Rule.NO_WORKERS for each in found):
        found = [each for each in found if each.rule not in explained]
    order = list(Severity)
    return sorted(found, key=lambda each: order.index(each.severity))


def verdict_of(found: list[Attention]) -> Verdict:
    if any(each.rule is Rule.NO_WORKERS for each in found):
        return Verdict.STALLED
    if any(each.severity is not Severity.NOTE for each in found):
        return Verdict.DEGRADED
    return Verdict.HEALTHY


def no_workers(case: Case) -> Found:
    """Somebody waits and nobody works: no sign of life, no new lock, nothing done."""
    seen = case.seen
    ready, oldest = seen.count(State.READY), seen.oldest_ready or 0.0
    if oldest < NOBODY_AFTER or living(seen.pools) or case.watch.done_within(QUIET_FOR):
        return
    if any(job.age < QUIET_FOR.total_seconds() for job in seen.locked):
        return
    dead = sum(pool.health is Health.DEAD for pool in seen.pools)
    yield Attention(
        rule=Rule.NO_WORKERS,
        severity=Severity.CRITICAL,
        title=f"No worker runs: {counted(ready, 'job')} ready, the oldest for {age(oldest)}",
        evidence=(
            f"no pool has shown life within its lease, {dead} fell silent",
            "nothing was locked or done within a minute",
        ),
        affected=ready,
        command=case.command("--app your_module:app"),
    )


def late(case: Case) -> Found:
    """The first job of a task has been ready for long; unless nobody runs that task at all."""
    lost = {task.identifier for task in _unhandled(case)}
    tasks = [task for task in case.seen.tasks if task.identifier not in lost]
    for task in sorted(tasks, key=lambda task: -(task.oldest_ready or 0.0)):
        waited = task.oldest_ready or 0.0
        if waited > LATE:
            yield Attention(
                rule=Rule.LATE,
                severity=Severity.CRITICAL if waited > VERY_LATE else Severity.WARNING,
                title=f"{task.identifier} is late: a job has been ready for {age(waited)}",
                evidence=(
                    f"{task[State.READY]:,} ready, {task.running:,} running",
                    *_slots(case.seen),
                    *_unsaid(case.seen, task),
                ),
                affected=task[State.READY],
                command=case.command("jobs why", str(task.first_ready)),
            )


def queue_blocked(case: Case) -> Found:
    """Jobs wait for a named queue that is held for long, or by the dead."""
    for queue in sorted(case.seen.queues, key=lambda queue: -queue.waiting):
        holder = _pool(case.seen, queue.pool_id)
        is_dead = holder is not None and holder.health is Health.DEAD
        if not queue.waiting or queue.is_paused or not (is_dead or queue.age > BLOCKED_AFTER):
            continue
        job = "" if queue.job_id is None else f" by job {queue.job_id}"
        yield Attention(
            rule=Rule.QUEUE_BLOCKED,
            severity=Severity.CRITICAL if is_dead else Severity.WARNING,
            title=f'Queue "{queue.name}" is held for {age(queue.age)}{job}, '
            f"{counted(queue.waiting, 'job')} waiting",
            evidence=(
                _holder(queue, holder),
                *_released(queue, holder),
                f"the oldest waits for {age(queue.oldest_waiting)}",
            ),
            affected=queue.waiting,
            command=case.command("workers recover", queue.pool_id or "")
            if is_dead
            else case.command("jobs why", str(queue.first_waiting)),
        )


def stale_worker(case: Case) -> Found:
    """A pool that is dead holds jobs still; or one of which nobody knows, for hours."""
    for pool in case.seen.pools:
        held_for = _held_for(case.seen, pool)
        is_stale = pool.health is Health.UNKNOWN and held_for > STALE_AFTER
        holds = pool.jobs or pool.queues
        if not holds or not (pool.health is Health.DEAD or is_stale):
            continue
        what = [(pool.jobs, "job"), (pool.queues, "named queue")]
        amount = " and ".join(counted(count, word) for count, word in what if count)
        yield Attention(
            rule=Rule.STALE_WORKER,
            severity=Severity.CRITICAL,
            title=f"{_called(pool)} {'seems' if is_stale else 'is'} dead and holds {amount}",
            evidence=(_silence(pool), f"held for {age(held_for)}"),
            affected=pool.jobs,
            command=case.command("workers recover", pool.id),
        )


def unhandled_task(case: Case) -> Found:
    """Jobs are ready and no worker that lives runs their task: most likely a name is misspelt."""
    known = sorted({name for pool in living(case.seen.pools) for name in pool.tasks or ()})
    for task in _unhandled(case):
        near = difflib.get_close_matches(task.identifier, known, n=1)
        guess = [f"did somebody mean {name}?" for name in near]
        yield Attention(
            rule=Rule.UNHANDLED_TASK,
            severity=Severity.CRITICAL,
            title=f"No worker runs {task.identifier}: "
            f"{counted(task[State.READY], 'job')} ready for up to {age(task.oldest_ready)}",
            evidence=(*guess, *_runs(known)),
            affected=task[State.READY],
            command=case.command("jobs why", str(task.first_ready)),
        )


def failing(case: Case) -> Found:
    """Many jobs of a task fail, and more and more."""
    for task in sorted(case.seen.tasks, key=lambda task: -task.failing):
        more = case.watch.growth(task.identifier, RECENTLY, State.RETRYING, State.FAILED)
        if task.failing < FAILING or more <= 0:
            continue
        yield Attention(
            rule=Rule.FAILING,
            severity=Severity.WARNING,
            title=f"{task.identifier} fails: {task[State.RETRYING]:,} retrying, "
            f"{task[State.FAILED]:,} failed, {more:,} more {LATELY}",
            evidence=_error(task),
            affected=task.failing,
            command=case.jobs("list", task.identifier, State.RETRYING, State.FAILED),
        )


def permanently_failed(case: Case) -> Found:
    """Jobs had their last attempt just now; they need somebody."""
    for task in case.seen.tasks:
        more = case.watch.growth(task.identifier, RECENTLY, State.FAILED)
        if more <= 0:
            continue
        yield Attention(
            rule=Rule.PERMANENTLY_FAILED,
            severity=Severity.WARNING,
            title=f"{counted(more, 'job')} of {task.identifier} had the last attempt {LATELY}",
            evidence=(f"{task[State.FAILED]:,} failed in all", *_error(task)),
            affected=more,
            command=case.jobs("list", task.identifier, State.FAILED),
        )


def queue_paused(case: Case) -> Found:
    for queue in case.seen.queues:
        if not queue.is_paused:
            continue
        who = (queue.pool_id or "").removeprefix(PAUSED)
        yield Attention(
            rule=Rule.QUEUE_PAUSED,
            severity=Severity.NOTE,
            title=f'Queue "{queue.name}" is paused by {who or "somebody"}, '
            f"{counted(queue.waiting, 'job')} waiting",
            affected=queue.waiting,
            command=case.command("workers recover", queue.pool_id or ""),
        )


def database(case: Case) -> Found:
    """What in the database slows a queue down, or makes what is said of it wrong."""
    server = case.seen.server
    if (server.held_for or 0.0) > HELD_FOR:
        yield Attention(
            rule=Rule.DATABASE,
            severity=Severity.WARNING,
            title=f"A transaction is open for {age(server.held_for)}: no dead row can go",
            evidence=(f"session {server.holder}, {server.holder_state or 'not to be seen'}",),
            command=case.command("doctor"),
        )
    if server.dead_rows > max(DEAD_ROWS, server.live_rows):
        yield _vacuum(case, f"{server.dead_rows:,} dead rows lie among {server.live_rows:,} jobs")
    elif server.dead_rows > DEAD_ROWS and (server.since_vacuum or 0.0) > UNVACUUMED_FOR:
        yield _vacuum(case, f"The table of jobs was not vacuumed for {age(server.since_vacuum)}")
    if abs(server.clock_offset) > CLOCK_OFF_BY:
        ahead = "ahead of" if server.clock_offset > 0 else "behind"
        yield Attention(
            rule=Rule.DATABASE,
            severity=Severity.WARNING,
            title=f"The database's clock is {age(abs(server.clock_offset))} {ahead} this machine's",
            command=case.command("doctor"),
        )


def compatibility(case: Case) -> Found:
    level = case.seen.server.level or 0
    if level > OUR_LEVEL:
        yield Attention(
            rule=Rule.COMPATIBILITY,
            severity=Severity.NOTE,
            title=f"The schema is at level {level}, newer than {OUR_LEVEL}, which we know",
            command=case.command("doctor"),
        )
    strangers = [pool for pool in case.seen.pools if pool.health is Health.UNKNOWN and pool.jobs]
    if strangers and any(pool.runtime == "rust" for pool in living(case.seen.pools)):
        yield Attention(
            rule=Rule.COMPATIBILITY,
            severity=Severity.WARNING,
            title="Rust workers may take long jobs from workers that their registry does not know",
            evidence=tuple(
                f"{_called(pool)} holds {counted(pool.jobs, 'job')}" for pool in strangers
            ),
            affected=sum(pool.jobs for pool in strangers),
            command=case.command("workers list"),
        )


def access(case: Case) -> Found:
    server = case.seen.server
    if server.hides_rows:
        yield Attention(
            rule=Rule.ACCESS,
            severity=Severity.CRITICAL,
            title=f"Rows are hidden from role {server.role}: there may be more than is shown",
            evidence=(
                f"the tables belong to {server.owner}, and row security has no policy for us",
            ),
            command=case.command("doctor"),
        )


RULES: tuple[Callable[[Case], Found], ...] = (
    access,
    no_workers,
    queue_blocked,
    stale_worker,
    unhandled_task,
    late,
    failing,
    permanently_failed,
    database,
    compatibility,
    queue_paused,
)


# Words


def age(seconds: float | None) -> str:
    """`6m12s`; there are times that nobody can count."""
    if seconds is None:
        return "?"
    return about(timedelta(seconds=seconds)) if abs(seconds) < 1e10 else "ever"


def _first(found: list[Attention]) -> list[Attention]:
    """The first few of a rule; the last of them says how many there are beside."""
    if len(found) <= MOST:
        return found
    left = found[MOST:]
    more = Attention(
        rule=found[0].rule,
        severity=left[0].severity,
        title=f"The same of {len(left):,} more",
        affected=sum(each.affected for each in left),
    )
    return [*found[:MOST], more]


def _unhandled(case: Case) -> list[TaskCount]:
    return [
        task
        for task in case.seen.tasks
        if (task.oldest_ready or 0.0) > UNHANDLED_AFTER and _is_unhandled(task, case)
    ]


def _is_unhandled(task: TaskCount, case: Case) -> bool:
    """By what the workers say of themselves; or else nothing of it was seen to run for minutes."""
    if task.running:
        return False
    pools = [pool for pool in case.seen.pools if pool.health is not Health.DEAD]
    if pools and all(pool.tasks is not None for pool in pools):
        return not any(task.identifier in (pool.tasks or ()) for pool in pools)
    is_said = any(task.identifier in (pool.tasks or ()) for pool in pools)
    ever = case.watch.was_running(task.identifier, UNSEEN_FOR)
    # What ends within a moment is never seen to run: then there are fewer and fewer.
    shrinks = case.watch.growth(task.identifier, UNSEEN_FOR, State.READY) < 0
    return ever is False and not is_said and not shrinks


def _runs(known: list[str]) -> tuple[str, ...]:
    if not known:
        return ()
    more = "" if len(known) <= MOST else f" and {len(known) - MOST:,} more"
    return (f"workers run {', '.join(known[:MOST])}{more}",)


def _pool(seen: Snapshot, pool_id: str | None) -> Pool | None:
    return next((pool for pool in seen.pools if pool.id == pool_id), None)


def _held_for(seen: Snapshot, pool: Pool) -> float:
    return 0.0 if pool.oldest_lock is None else (seen.now - pool.oldest_lock).total_seconds()


def _called(pool: Pool) -> str:
    where = f" on {pool.host}" if pool.host else ""
    return f"{(pool.runtime or 'a').capitalize()} worker {pool.id}{where}"


def _silence(pool: Pool) -> str:
    if pool.silence is None:
        return "no registry knows it"
    return f"silent for {age(pool.silence)}, its lease is {age(pool.lease)}"


def _holder(queue: HeldQueue, holder: Pool | None) -> str:
    if holder is None:
        return f"held by {queue.pool_id or 'nobody that is named'}"
    return f"held by {holder.id}, {_silence(holder)}"


def _released(queue: HeldQueue, holder: Pool | None) -> tuple[str, ...]:
    """When a lock ends that nobody renews, if it is one."""
    if holder is not None and holder.health is not Health.UNKNOWN:
        return ()
    left = STALE_AFTER - queue.age
    return (f"if it is dead, any worker releases it in {age(left)}",) if left > 0 else ()


def _unsaid(seen: Snapshot, task: TaskCount) -> tuple[str, ...]:
    """Some worker may run a task, but none of those that say what they run says so."""
    said = [pool.tasks for pool in living(seen.pools) if pool.tasks is not None]
    if task.running or not said or any(task.identifier in tasks for tasks in said):
        return ()
    return ("no worker that says what it runs runs it",)


def _slots(seen: Snapshot) -> tuple[str, ...]:
    """How many slots of the workers that live are taken, if they all say."""
    pools = living(seen.pools)
    slots = [pool.concurrency for pool in pools if pool.concurrency is not None]
    if not pools or len(slots) < len(pools):
        return ()
    # They may hold more than they run.
    busy = sum(min(pool.jobs, pool.concurrency or 0) for pool in pools)
    return (f"{busy:,} of {sum(slots):,} slots busy",)


def _error(task: TaskCount) -> tuple[str, ...]:
    first = headline(task.error)
    return (f"job {task.newest_failing}: {first[:200]}",) if first else ()


def _vacuum(case: Case, title: str) -> Attention:
    return Attention(
        rule=Rule.DATABASE,
        severity=Severity.WARNING,
        title=title,
        command=case.command("tune"),
    )
