"""The rules that must hold after two or three sessions have run, in any order.

Each rule is a function that returns what is wrong, or None.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import psycopg

from tests.chaos.interleavings.actions import NOT_ITS_TURN, Action, Answer
from tests.chaos.interleavings.scenes import Scene
from tests.chaos.interleavings.tables import FIRST_NEW_ID, Fields, Tables

Told = tuple[object, ...]


@dataclass(frozen=True)
class Actor:
    """Which statement, sent by which pool; `again` where it is the second try of the other's."""

    action: Action
    pool: str
    again: bool = False
    number: int = 1

    def __str__(self) -> str:
        who = f" by {self.pool}" if self.action.is_of_pool else ""
        return f"{self.action.name}{who}{' again' if self.again else ''}"


@dataclass
class Case:
    """What one schedule did, and what it is measured by."""

    scene: Scene
    actors: Sequence[Actor]
    before: Tables
    after: Tables
    answers: Sequence[Answer | None]
    errors: Sequence[BaseException | None]
    # What comes of the same statements one after the other, in each order; and if one is not sent.
    serial: Sequence[Told] = ()
    without: Sequence[Sequence[Told]] = ()
    # After all endings were sent a second time.
    repeated: Tables | None = None
    # After everything that is still held was taken from its holders, as from dead ones.
    swept: Tables | None = None
    # After the next sweep, if the first one has left something.
    swept_later: Tables | None = None
    trace: Sequence[str] = ()

    @cached_property
    def told(self) -> Told:
        """The tables afterwards, and the results of the sessions."""
        return (self.state, *map(_told, self.answers))

    @cached_property
    def state(self) -> Told:
        return self.told_of(self.after)

    def told_of(self, tables: Tables) -> Told:
        """What the tables say, without jobs that were removed and are only not deleted.

        remove_job looks for a free job first, then for a held one: a job that becomes free, or is
        added, in between is left like one that was held, with no key and no attempt.
        """
        removed = {job_id for answer in self.answers if answer for job_id in answer.removed}
        return tables.told(self.before, without=removed)

    def claims_of(self, job_id: int) -> list[str]:
        return [
            actor.pool
            for actor, answer in self.heard
            if answer is not None and job_id in answer.taken
        ]

    @property
    def heard(self) -> list[tuple[Actor, Answer | None]]:
        return list(zip(self.actors, self.answers, strict=True))


def _told(answer: Answer | None) -> Answer | None:
    if answer is None:
        return None
    return replace(answer, taken=_without_new(answer.taken), removed=_without_new(answer.removed))


def _without_new(ids: tuple[int, ...]) -> tuple[int, ...]:
    """The same ids, but for those of new jobs, which differ from run to run."""
    return tuple(min(job_id, FIRST_NEW_ID) for job_id in ids)


def nobody_gets_an_error(case: Case) -> str | None:
    """No statement fails; deadlocks have a separate rule."""
    errors = [error for error in case.errors if error and not _is_deadlock(error)]
    return f"{errors}" if errors else None


def no_two_wait_for_each_other(case: Case) -> str | None:
    """No statement meets a deadlock (40P01)."""
    deadlocks = [str(error) for error in case.errors if error and _is_deadlock(error)]
    return f"{deadlocks}" if deadlocks else None


def _is_deadlock(error: BaseException) -> bool:
    return isinstance(error, psycopg.errors.DeadlockDetected)


def locks_are_whole(case: Case) -> str | None:
    """A lock has an owner and a time, or neither."""
    rows: list[Fields] = [*case.after.jobs.values(), *case.after.queues.values()]
    broken = [row for row in rows if (row["locked_by"] is None) != (row["locked_at"] is None)]
    return f"{broken}" if broken else None


def one_holder(case: Case) -> str | None:
    """I2: the holder of a job held it before, or its claim returned it; no two claims did."""
    for job in case.after.jobs.values():
        claimed_by = case.claims_of(job["id"])
        if len(claimed_by) > 1 and not _may_be_released(case):
            return f"job {job['id']} was given to {claimed_by}"
        before = case.before.jobs.get(job["id"], {}).get("locked_by")
        if job["locked_by"] not in (None, before, *claimed_by):
            return f"job {job['id']} is held by {job['locked_by']}, who does not know"
    return None


def _may_be_released(case: Case) -> bool:
    return any(not actor.action.takes for actor in case.actors)


def queues_are_locked_for_their_jobs(case: Case) -> str | None:
    """I4, I7: a named queue is locked by the holder of its one claimed job, and otherwise free.

    A lock of more than four hours does not count: remove_job and add_job may have deleted the job.
    The next worker that releases stale locks unlocks the queue.
    """
    for queue in case.after.queues.values():
        held = case.after.held_in(queue["id"])
        if len(held) > 1:
            return f"{queue['queue_name']}: several jobs are held, {[job['id'] for job in held]}"
        holder = held[0]["locked_by"] if held else None
        if queue["locked_by"] != holder and not (holder is None and case.scene.is_stale):
            return f"{queue['queue_name']}: locked by {queue['locked_by']}, job held by {holder}"
    return None


def keys_are_unique(case: Case) -> str | None:
    """I9: at most one row has the key."""
    keys = Counter(job["key"] for job in case.after.jobs.values() if job["key"] is not None)
    twice = [key for key, count in keys.items() if count > 1]
    return f"{twice}" if twice else None


def attempts_count_claims(case: Case) -> str | None:
    """I5: attempts are what they were, plus claims, minus refunds; from 0 to the maximum.

    Except: a job that lost its key to a successor has none left, a replaced job starts from 0,
    and a job that was recovered from a dead pool keeps one, unless it is quarantined.
    """
    for job in case.after.jobs.values():
        if not 0 <= job["attempts"] <= job["max_attempts"]:
            return f"job {job['id']}: {job['attempts']} of {job['max_attempts']}"
        if job["attempts"] not in _right_attempts(case, job):
            expected = sorted(_right_attempts(case, job))
            return f"job {job['id']}: {job['attempts']} attempts, expected one of {expected}"
    return None


def _right_attempts(case: Case, job: Fields) -> set[int]:
    before = case.before.jobs.get(job["id"])
    claims = len(case.claims_of(job["id"]))
    heard = [answer for answer in case.answers if answer is not None]
    if any(job["id"] in answer.removed for answer in heard):
        return {job["max_attempts"]}
    if before is None:
        return {claims}
    if before["key"] and not job["key"]:
        return {job["max_attempts"]}
    if job["revision"] != before["revision"] and str(job["payload"]) != str(before["payload"]):
        return {0, claims}
    if any(job["id"] in answer.given_up for answer in heard):
        return {job["max_attempts"]}
    refunds = sum(job["id"] in answer.refunded for answer in heard)
    right = before["attempts"] + claims - refunds
    if any(job["id"] in answer.recovered for answer in heard):
        return {min(right, job["max_attempts"] - 1), job["max_attempts"]}
    return {max(0, right)}


def nothing_is_lost(case: Case) -> str | None:
    """I1: a job is deleted only if its holder completed it, or it was removed by its key.

    Or if it was replaced by its key, and taken from a dead pool that had not started it.
    """
    replaced = any(actor.action.supersedes for actor in case.actors)
    swept = any(actor.action.knows_death for actor in case.actors)
    for job_id in case.before.jobs.keys() - case.after.jobs.keys():
        ended = any(answer and job_id in answer.ended for answer in case.answers)
        removed = any(answer and job_id in answer.removed for answer in case.answers)
        if replaced and swept and case.before.jobs[job_id]["key"]:
            continue
        if not ended and not removed:
            return f"job {job_id} is deleted, and no statement returned that"
    return None


def strangers_end_nothing(case: Case) -> str | None:
    """I3: a completion, failure or return by a pool that does not hold the job changes nothing.

    Everything is then as if it had not been sent.
    """
    for number, (actor, answer) in enumerate(case.heard):
        if not actor.action.ends or answer is None or _could_hold(case, actor):
            continue
        if answer.ended:
            return f"{actor} ended jobs {answer.ended}, which others hold"
        if case.without and case.state not in case.without[number]:
            return f"{actor} changed something, though it held nothing"
    return None


def _could_hold(case: Case, actor: Actor) -> bool:
    claims = any(other.action.takes and other.pool == actor.pool for other in case.actors)
    return claims or any(row.held_by == actor.pool for row in case.scene.to_end)


def ends_can_be_repeated(case: Case) -> str | None:
    """I8: a completion, failure or return that is sent again changes nothing.

    Unless its own pool has claimed the same job again: the pool knows that, and sends nothing.
    """
    if case.repeated is None or case.repeated == case.after:
        return None
    return f"{case.state} became {case.told_of(case.repeated)}"


def what_was_superseded_stays_so(case: Case) -> str | None:
    """I9: a held job that lost its key to a successor is not revived when its pool dies."""
    if case.swept is None:
        return None
    for job in case.swept.jobs.values():
        before = case.before.jobs.get(job["id"], {})
        if before.get("key") and not job["key"] and job["is_available"]:
            return f"job {job['id']} gave up its key, and can be taken again"
    return None


def some_order_explains_it(case: Case) -> str | None:
    """The tables and the results of each session are those of some serial order.

    Exceptions:
    - A claim skips rows that are locked at this moment, and may return nothing, though it would
      have got a job before the other and after it. It counts as not sent; so does a recovery while
      another one is in progress.
    - A recovery skips such jobs too, with their named queues. The next recovery takes them, so it
      counts as the last.
    - remove_job may find no job, if it waited for one that then lost its key to a new one. The
      tables are as if it came first.
    """
    if not case.serial or case.told in case.serial or any(case.errors):
        return None
    as_if_not_sent = _states_without(case)
    if case.state in as_if_not_sent:
        return None
    states = [state for state, *_ in case.serial] + as_if_not_sent
    if case.swept_later is not None and case.told_of(case.swept_later) in states:
        return None
    if _has_missed_its_job(case) and case.state in states:
        return None
    return f"{case.told} is none of {list(case.serial)}"


def _states_without(case: Case) -> list[Told]:
    """What would be if those who came away with nothing had not been sent."""
    return [
        state
        for (actor, answer), states in zip(case.heard, case.without, strict=False)
        if answer == NOT_ITS_TURN or (actor.action.takes and answer == Answer())
        for state in states
    ]


def _has_missed_its_job(case: Case) -> bool:
    return any(actor.action.name == "remove" and answer == Answer() for actor, answer in case.heard)


Rule = Callable[[Case], str | None]

RULES: tuple[Rule, ...] = (
    nobody_gets_an_error,
    no_two_wait_for_each_other,
    locks_are_whole,
    one_holder,
    queues_are_locked_for_their_jobs,
    keys_are_unique,
    attempts_count_claims,
    nothing_is_lost,
    strangers_end_nothing,
    ends_can_be_repeated,
    what_was_superseded_stays_so,
    some_order_explains_it,
)


@dataclass(frozen=True)
class Violation:
    """Which rule, how, and the shortest way to see it again."""

    rule: str
    complaint: str
    scene: str
    actors: tuple[str, ...]
    trace: tuple[str, ...]

    def __str__(self) -> str:
        who = "; ".join(f"{number} = {actor}" for number, actor in enumerate(self.actors, 1))
        return (
            f"{self.rule}: {self.complaint}\n"
            f"  scene: {self.scene}; {who}\n  schedule: {', '.join(self.trace)}"
        )


def violations(case: Case) -> list[Violation]:
    found = ((rule, rule(case)) for rule in RULES)
    return [
        Violation(
            rule.__name__,
            complaint,
            case.scene.name,
            tuple(map(str, case.actors)),
            tuple(case.trace),
        )
        for rule, complaint in found
        if complaint is not None
    ]
