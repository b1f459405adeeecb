"""A model of the queue: what the tables must hold after each step. Plain values, no database.

Times are microseconds of the model's own clock. What the reference does is the rule; where ours
differs on purpose, a comment begins with "ours".
"""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

SECOND = 1_000_000
STALE = 4 * 3600 * SECOND
INTERRUPTED = "Job recovered after worker interruption: "
NOTHING: frozenset[str] = frozenset()


class Spec(NamedTuple):
    """What is asked for when a job is added; the delay is in seconds, from now."""

    task: str
    payload: Any = None
    queue: str | None = None
    delay: int | None = None
    max_attempts: int | None = None
    priority: int | None = None
    key: str | None = None
    mode: str = "replace"
    flags: frozenset[str] = NOTHING


@dataclass
class Row:
    id: int
    task: str
    queue: str | None
    payload: Any
    priority: int
    run_at: int
    max_attempts: int
    key: str | None
    flags: frozenset[str]
    created_at: int
    updated_at: int
    attempts: int = 0
    last_error: str | None = None
    locked_by: str | None = None
    locked_at: int | None = None
    revision: int = 0

    @property
    def is_available(self) -> bool:
        return self.locked_at is None and self.attempts < self.max_attempts

    @property
    def place(self) -> tuple[int, int, int]:
        return self.priority, self.run_at, self.id

    @property
    def is_superseded(self) -> bool:
        """Was it forbidden another attempt while it was held?"""
        assert self.locked_at is not None
        is_spent = self.attempts >= self.max_attempts and self.key is None
        return is_spent and self.updated_at > max(self.created_at, self.locked_at)

    def forbid(self, now: int) -> None:
        self.key, self.attempts, self.updated_at = None, self.max_attempts, now

    def unlock(self) -> None:
        self.locked_by = self.locked_at = None


@dataclass
class Lock:
    """Who holds a named queue, and by which claim; of a lost one its pool knows nothing."""

    locked_by: str | None = None
    locked_at: int | None = None
    claim: int = 0
    is_lost: bool = False

    def free(self) -> None:
        self.locked_by = self.locked_at = None


class Claim(NamedTuple):
    """A job as a pool took it."""

    number: int
    pool: str
    id: int
    queue: str | None
    attempts: int
    is_keyed: bool


@dataclass
class Pool:
    seen_at: int
    started: list[int] = field(default_factory=list)
    is_swept: bool = False


@dataclass
class Recoveries:
    count: int = 0
    started: tuple[str, int] | None = None


class Model:
    """The tables, and what each function and statement makes of them."""

    def __init__(self, *, lease: int) -> None:
        self.now = 0
        self.next_id = 1
        self.jobs: dict[int, Row] = {}
        self.queues: dict[str, Lock] = {}
        self.pools: dict[str, Pool] = {}
        self.recoveries: dict[int, Recoveries] = {}
        self._lease = lease * SECOND
        self._claims = 0
        # By pool and job: what it has neither lost nor let go.
        self._known: dict[tuple[str, int], Claim] = {}

    # Functions for any client

    def add(self, specs: list[Spec], ids: list[int]) -> None:
        """Ids are the database's choice among the next ones: it inserts in no certain order."""
        for spec in specs:
            old = self._keyed(spec.key)
            if old is not None and not old.is_available and spec.mode != "unsafe_dedupe":
                old.forbid(self.now)
        for spec, job_id in zip(specs, ids, strict=True):
            if spec.queue is not None:
                self.queues.setdefault(spec.queue, Lock())
            old = self._keyed(spec.key)
            if old is None:
                assert job_id in range(self.next_id, self.next_id + len(specs))
                self.jobs[job_id] = self._new(spec, job_id)
            elif spec.mode == "unsafe_dedupe":
                old.revision += 1
                old.updated_at = self.now
            else:
                self._overwrite(old, spec)
        # One is used up by an upsert too.
        self.next_id += len(specs)

    def remove(self, key: str) -> None:
        row = self._keyed(key)
        if row is not None and self._may_change(row):
            # A queue that it held stays locked.
            del self.jobs[row.id]
        elif row is not None:
            row.forbid(self.now)

    def complete(self, ids: Iterable[int]) -> list[int]:
        changed = self._changeable(ids)
        for row in changed:
            del self.jobs[row.id]
        return [row.id for row in changed]

    def permanently_fail(self, ids: Iterable[int], reason: str | None) -> list[int]:
        changed = self._changeable(ids)
        for row in changed:
            row.last_error = reason or "Manually marked as failed"
            row.attempts, row.updated_at = row.max_attempts, self.now
        return [row.id for row in changed]

    def reschedule(
        self, ids: Iterable[int], *, delay: int | None, **given: int | None
    ) -> list[int]:
        changed = self._changeable(ids)
        for row in changed:
            row.run_at = row.run_at if delay is None else self.now + delay * SECOND
            for name, value in given.items():
                setattr(row, name, getattr(row, name) if value is None else value)
            row.updated_at = self.now
        return [row.id for row in changed]

    def force_unlock(self, pools: Collection[str]) -> None:
        for each in self._held_by(pools):
            each.unlock()
        self._free_queues_of(pools)

    # What pools do

    def ready(self) -> list[Row]:
        """Return the jobs that are available and due, in the order of claims."""
        rows = self.jobs.values()
        due = [each for each in rows if each.is_available and each.run_at <= self.now]
        return sorted(due, key=lambda row: row.place)

    def claimable(self, tasks: Collection[str], forbidden: Collection[str]) -> list[Row]:
        """What a pool may take together, in order: of each named queue that is free the first."""
        seen: set[str] = set()
        found = []
        for row in self.ready():
            if row.task not in tasks or row.flags & set(forbidden):
                continue
            if row.queue is not None:
                if row.queue in seen or self.queues[row.queue].locked_by is not None:
                    continue
                seen.add(row.queue)
            found.append(row)
        return found

    def claim(self, pool: str, ids: Iterable[int], *, is_lost: bool = False) -> list[Claim]:
        self._claims += 1
        return [self._claim(pool, self.jobs[job_id], is_lost) for job_id in ids]

    def finish(self, claims: list[Claim], *, again: bool = False) -> set[int]:
        # Ours: only a job that the pool still holds. Node deletes any job with that id.
        held = self._still_held(claims)
        for row in held:
            del self.jobs[row.id]
        return self._let_go(claims, held, again)

    def fail(
        self,
        claims: list[Claim],
        message: str,
        *,
        delay: int | None = None,
        give_up: bool = False,
        payload: Any = None,
        again: bool = False,
    ) -> set[int]:
        held = self._still_held(claims)
        for row in held:
            backoff = round(math.exp(min(row.attempts, 10)) * SECOND)
            usual = max(self.now, row.run_at) + backoff
            row.last_error = message
            # Ours: a task may say when, or never.
            row.run_at = usual if delay is None else self.now + delay * SECOND
            if give_up or row.attempts >= row.max_attempts:
                # Ours: one that does not run again keeps the time of its failure.
                row.run_at = self.now
            row.attempts = row.max_attempts if give_up else row.attempts
            row.payload = row.payload if payload is None else payload
            row.unlock()
        return self._let_go(claims, held, again)

    def give_back(
        self, claims: list[Claim], *, delay: int | None = None, again: bool = False
    ) -> set[int]:
        taken = {claim.id: claim for claim in claims}
        held = self._still_held(claims)
        for row in held:
            claim = taken[row.id]
            is_spent = row.attempts >= row.max_attempts
            # Ours: one that was removed or replaced by its key is gone, one that was failed is not
            # revived.
            if is_spent and claim.is_keyed and row.key is None:
                del self.jobs[row.id]
            if not is_spent or row.attempts == claim.attempts:
                row.attempts = max(0, row.attempts - 1)
            row.run_at = row.run_at if delay is None else self.now + delay * SECOND
            row.unlock()
        return self._let_go(claims, held, again)

    def give_back_unknown(self, pool: str, known: list[Claim]) -> set[int]:
        """Ours: what a fetch has locked whose answer got lost."""
        returned = [
            row for row in self._held_by([pool]) if row.id not in {each.id for each in known}
        ]
        for row in returned:
            row.attempts = row.attempts if row.is_superseded else max(0, row.attempts - 1)
            row.unlock()
        self._free_queues_of([pool], but={each.queue for each in known})
        return {row.id for row in returned}

    def unlock_stale(self, own: str, known: list[Claim]) -> int:
        """Ours: except those that the pool holds which asks."""
        held = {each.id for each in known}
        queues = {each.queue for each in known}
        stale = [
            row
            for row in self._held_by(None)
            if self._is_stale(row) and not (row.locked_by == own and row.id in held)
        ]
        for row in stale:
            row.run_at = max(row.run_at, self.now)
            row.unlock()
        for name, lock in self.queues.items():
            is_held = lock.locked_by == own and name in queues
            if lock.locked_by is not None and self._is_stale(lock) and not is_held:
                lock.free()
        return len(stale)

    # Ours: pools that send heartbeats, and the recovery of those that do not

    def register(self, pool: str) -> None:
        self.pools[pool] = Pool(self.now)

    def beat(self, pool: str, started: list[int]) -> bool:
        known = self.pools[pool]
        if not known.is_swept:
            known.seen_at, known.started = self.now, started
        return not known.is_swept

    def note_start(self, claim: Claim) -> int | None:
        row = self.jobs.get(claim.id)
        if row is None or (row.locked_by, row.attempts) != (claim.pool, claim.attempts):
            return None
        noted = self.recoveries.setdefault(claim.id, Recoveries())
        noted.started = (claim.pool, claim.attempts)
        return noted.count

    def recover(
        self, pools: Collection[str], *, delay: int, most: int, surely_dead: bool = False
    ) -> list[int]:
        gone = [each for each in pools if surely_dead or self._is_silent(each)]
        for each in gone:
            if each in self.pools:
                self.pools[each].is_swept = True
        rows = self._held_by(gone)
        for row in rows:
            self._recover(row, delay, most)
        self._free_queues_of(gone)
        return sorted(row.id for row in rows if row.id in self.jobs)

    def _recover(self, row: Row, delay: int, most: int) -> None:
        assert row.locked_by is not None
        owner = self.pools.get(row.locked_by)
        noted = self.recoveries.get(row.id, Recoveries())
        has_begun = noted.started == (row.locked_by, row.attempts)
        was_started = None if owner is None else row.id in owner.started or has_begun
        if was_started is False and row.is_superseded:
            del self.jobs[row.id]
            return
        self.recoveries[row.id] = noted
        count = noted.count + (was_started is True)
        is_quarantined = was_started is True and count >= most
        noted.count, noted.started = 0 if is_quarantined else count, None
        if not row.is_superseded:
            row.attempts = _attempts_after(row, was_started, is_quarantined)
        if delay:
            row.run_at = max(row.run_at, self.now + delay * SECOND)
        row.last_error = INTERRUPTED + _reason(was_started, is_quarantined, count) + row.locked_by
        row.unlock()

    # Parts of these

    def _keyed(self, key: str | None) -> Row | None:
        return next((row for row in self.jobs.values() if key is not None and row.key == key), None)

    def _new(self, spec: Spec, job_id: int) -> Row:
        row = Row(job_id, "", None, None, 0, 0, 0, spec.key, NOTHING, self.now, self.now)
        self._write(row, spec)
        row.run_at = self.now + (spec.delay or 0) * SECOND
        row.payload = {} if spec.payload is None else spec.payload
        return row

    def _overwrite(self, row: Row, spec: Spec) -> None:
        self._write(row, spec)
        if spec.mode != "preserve_run_at" or row.attempts > 0:
            row.run_at = self.now + (spec.delay or 0) * SECOND
        new = {} if spec.payload is None else spec.payload
        both = isinstance(row.payload, list) and isinstance(new, list)
        row.payload = row.payload + new if both else new
        row.revision += 1
        row.attempts, row.last_error, row.updated_at = 0, None, self.now

    def _write(self, row: Row, spec: Spec) -> None:
        row.task, row.queue, row.flags = spec.task, spec.queue, spec.flags
        row.max_attempts = spec.max_attempts or 25
        row.priority = spec.priority or 0

    def _claim(self, pool: str, row: Row, is_lost: bool) -> Claim:
        row.attempts += 1
        row.locked_by, row.locked_at = pool, self.now
        if row.queue is not None:
            self.queues[row.queue] = Lock(pool, self.now, self._claims, is_lost)
        is_keyed = row.key is not None
        claim = Claim(self._claims, pool, row.id, row.queue, row.attempts, is_keyed)
        if not is_lost:
            self._known[pool, row.id] = claim
        return claim

    def _still_held(self, claims: list[Claim]) -> list[Row]:
        """The fence: a pool's id, so that only a pool of another name is kept out."""
        rows = [(self.jobs.get(each.id), each.pool) for each in claims]
        return [row for row, pool in rows if row is not None and row.locked_by == pool]

    def _let_go(self, claims: list[Claim], held: list[Row], again: bool) -> set[int]:
        if held or not again:
            for each in claims:
                lock = self.queues.get(each.queue or "")
                if lock and lock.locked_by == each.pool and self._is_last(each, lock, claims):
                    lock.free()
        if not again:
            for each in claims:
                del self._known[each.pool, each.id]
        return {row.id for row in held}

    def _is_last(self, claim: Claim, lock: Lock, ending: list[Claim]) -> bool:
        """Has its pool not taken the queue for another job since, as far as it knows?"""
        if not lock.is_lost:
            return lock.claim == claim.number
        # It was unlocked by force, and taken again by a fetch whose answer got lost: runs nowhere.
        others = (each for each in self._known.values() if each not in ending)
        later = {(each.pool, each.queue) for each in others if each.number > claim.number}
        return (claim.pool, claim.queue) not in later

    def _free_queues_of(self, pools: Collection[str], but: Collection[str | None] = ()) -> None:
        for name, lock in self.queues.items():
            if lock.locked_by in pools and name not in but:
                lock.free()

    def _held_by(self, pools: Collection[str] | None) -> list[Row]:
        rows = [row for row in self.jobs.values() if row.locked_by is not None]
        return [row for row in rows if pools is None or row.locked_by in pools]

    def _changeable(self, ids: Iterable[int]) -> list[Row]:
        rows = [self.jobs[each] for each in sorted(set(ids)) if each in self.jobs]
        return [row for row in rows if self._may_change(row)]

    def _may_change(self, row: Row) -> bool:
        return row.locked_at is None or self._is_stale(row)

    def _is_stale(self, locked: Row | Lock) -> bool:
        assert locked.locked_at is not None
        return locked.locked_at < self.now - STALE

    def _is_silent(self, pool: str) -> bool:
        return pool in self.pools and self.pools[pool].seen_at < self.now - self._lease


def _attempts_after(row: Row, was_started: bool | None, is_quarantined: bool) -> int:
    """A job that did not begin gets its attempt back; for one that did this was not the last."""
    if is_quarantined:
        return row.max_attempts
    if was_started is False:
        return max(0, row.attempts - 1)
    return max(0, min(row.attempts, row.max_attempts - 1))


def _reason(was_started: bool | None, is_quarantined: bool, count: int) -> str:
    if is_quarantined:
        return f"quarantined, as it was running at {count} recoveries, last in pool "
    return (
        "it was fetched, not started, by pool " if was_started is False else "it was held by pool "
    )
