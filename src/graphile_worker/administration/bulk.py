"""Bulk: the same done to many jobs, a thousand at a time, beside workers that go on working.

First a look at what would be changed, then the change. Each batch is a transaction of its own that
asks again whether its jobs are meant, never waits for a lock, and leaves alone what a worker holds.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from graphile_worker.administration.filters import Filter, in_states
from graphile_worker.administration.finding import (
    PATIENCE,
    Count,
    ListedJob,
    Patience,
    clauses_of,
    counting,
    finding_ids,
    getting_dead,
    listing,
    patiently,
)
from graphile_worker.administration.states import LOCKED, State
from graphile_worker.jobs import (
    When,
    check_max_attempts,
    check_smallint,
    check_text,
    check_when,
)
from graphile_worker.sql.finding import (
    Changed,
    Clauses,
    complete_chosen_jobs,
    fail_chosen_jobs,
    reschedule_chosen_jobs,
    retry_jobs,
    unlock_chosen_jobs,
)
from graphile_worker.sql.holding import announce_jobs
from graphile_worker.sql.identifiers import Schemas
from graphile_worker.sql.query import Pause, Plan, Query

T = TypeVar("T")

BATCH = 1000

# So many jobs one statement looks at, to find out which are meant.
STRETCH = 20_000

SAMPLE = 5

# A batch may take a little longer than a look, as it writes.
WORKING_PATIENCE = Patience(statement=timedelta(seconds=30))

# After each statement, so many times as long as it took nothing is done: others work here.
REST = 4.0

UNLOCKED = tuple(state for state in State if state not in LOCKED)


class Action(Protocol):
    """What is done to jobs, and in which states they must be."""

    @property
    def states(self) -> tuple[State, ...]: ...

    @property
    def wakes(self) -> bool:
        """May jobs be ready then, of which workers should hear?"""
        ...

    def query(self, ids: list[int], clauses: Clauses) -> Query[Changed]: ...


@dataclass(frozen=True, slots=True)
class Retry:
    """Let them run now; those without attempts left get all of them back."""

    states = (State.FAILED, State.RETRYING, State.SCHEDULED)
    wakes = True

    def query(self, ids: list[int], clauses: Clauses) -> Query[Changed]:
        return retry_jobs(ids, clauses)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reschedule:
    """Change what is given, zero included."""

    run_at: When | None = None
    priority: int | None = None
    attempts: int | None = None
    max_attempts: int | None = None

    states = UNLOCKED
    wakes = True

    def __post_init__(self) -> None:
        if self.run_at is not None:
            check_when("run_at", self.run_at)
        if self.priority is not None:
            check_smallint("priority", self.priority)
        if self.attempts is not None:
            check_smallint("attempts", self.attempts)
        if self.max_attempts is not None:
            check_max_attempts(self.max_attempts)

    def query(self, ids: list[int], clauses: Clauses) -> Query[Changed]:
        given = (self.run_at, self.priority, self.attempts, self.max_attempts)
        return reschedule_chosen_jobs(ids, *given, clauses)


@dataclass(frozen=True, slots=True)
class Fail:
    """Spend all their attempts, for a reason."""

    reason: str | None = None

    states = (State.WAITING, State.READY, State.RETRYING, State.SCHEDULED)
    wakes = False

    def __post_init__(self) -> None:
        if self.reason is not None:
            check_text("reason", self.reason)

    def query(self, ids: list[int], clauses: Clauses) -> Query[Changed]:
        return fail_chosen_jobs(ids, self.reason, clauses)


@dataclass(frozen=True, slots=True)
class Complete:
    """Delete them, as if they were done."""

    states = UNLOCKED
    wakes = False

    def query(self, ids: list[int], clauses: Clauses) -> Query[Changed]:
        return complete_chosen_jobs(ids, clauses)


@dataclass(frozen=True, slots=True)
class Unlock:
    """Take them from dead workers; by force from any, and what one still runs may run twice."""

    by_force: bool = False

    wakes = True

    @property
    def states(self) -> tuple[State, ...]:
        return LOCKED if self.by_force else (State.STALE,)

    def query(self, ids: list[int], clauses: Clauses) -> Query[Changed]:
        return unlock_chosen_jobs(ids, clauses)


@dataclass(frozen=True, kw_only=True, slots=True)
class Preview:
    """What a change would be about: how many jobs, a few of them, and those that it leaves alone.

    Whatever is added later is not meant: the change goes no further than the last of these.
    """

    action: Action
    wanted: Filter
    count: Count
    sample: list[ListedJob]
    now: datetime | None = None
    limit: int | None = None

    @property
    def total(self) -> int:
        """So many would be changed."""
        fitting = sum(self.count.by_state.get(state, 0) for state in self.action.states)
        return fitting if self.limit is None else min(fitting, self.limit)

    @property
    def held(self) -> int:
        """So many are meant and left alone, as a worker holds them."""
        states = [state for state in LOCKED if state not in self.action.states]
        return sum(self.count.by_state.get(state, 0) for state in states)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How many jobs were changed, left to who holds them, or gone: done, or not what they were."""

    done: int = 0
    skipped_locked: int = 0
    gone: int = 0


OnProgress = Callable[[Outcome], object]


def previewing(
    action: Action,
    wanted: Filter,
    schemas: Schemas,
    *,
    limit: int | None = None,
    patience: Patience = PATIENCE,
) -> Plan[Preview]:
    """What that action would change."""
    count = yield from counting(wanted, schemas, patience=patience)
    fitting = wanted & in_states(*action.states)
    page = yield from listing(fitting, schemas, limit=SAMPLE, patience=patience)
    return Preview(
        action=action, wanted=wanted, count=count, sample=page.jobs, now=page.now, limit=limit
    )


def changing(
    preview: Preview,
    schemas: Schemas,
    *,
    on_progress: OnProgress = lambda outcome: None,
    rest: float = REST,
) -> Plan[Outcome]:
    """Do what was looked at; what came of it, which is also said after each batch."""
    change = _Change(preview, schemas, on_progress, rest)
    if preview.count.first_id is not None and preview.count.last_id is not None:
        yield from change.go(preview.count.first_id, preview.count.last_id)
    return change.outcome


class _Change:
    """One way through the table, from the first of the jobs to the last."""

    def __init__(
        self, preview: Preview, schemas: Schemas, on_progress: OnProgress, rest: float
    ) -> None:
        self.outcome = Outcome()
        self._preview = preview
        self._schemas = schemas
        self._on_progress = on_progress
        self._rest = rest

    def go(self, first: int, last: int) -> Plan[None]:
        action, wanted = self._preview.action, self._preview.wanted
        dead = yield from getting_dead(self._schemas, WORKING_PATIENCE)
        # What a worker holds is found as well, to be counted.
        found = clauses_of(wanted & in_states(*{*action.states, *LOCKED}), dead)
        meant = clauses_of(wanted & in_states(*action.states), dead)
        after: int | None = first - 1
        while after is not None and self._left != 0:
            after, ids = yield from self._paced(self._find(found, after, last))
            while ids and self._left != 0:
                batch, ids = ids[: self._batch], ids[self._batch :]
                yield from self._paced(self._change(batch, meant))

    @property
    def _left(self) -> int | None:
        """So many may still be changed; None: any number."""
        limit = self._preview.limit
        return None if limit is None else limit - self.outcome.done

    @property
    def _batch(self) -> int:
        return BATCH if self._left is None else min(BATCH, self._left)

    def _find(self, clauses: Clauses, after: int, last: int) -> Plan[tuple[int | None, list[int]]]:
        return finding_ids(
            clauses,
            self._schemas,
            after=after,
            until=last,
            among=STRETCH,
            patience=WORKING_PATIENCE,
        )

    def _change(self, batch: list[int], clauses: Clauses) -> Plan[None]:
        query = self._preview.action.query(batch, clauses)
        done, left = yield from patiently(query, self._schemas, WORKING_PATIENCE)
        if done and self._preview.action.wakes:
            yield announce_jobs(done)
        before = self.outcome
        self.outcome = replace(
            before,
            done=before.done + done,
            skipped_locked=before.skipped_locked + left,
            gone=before.gone + len(batch) - done - left,
        )
        self._on_progress(self.outcome)

    def _paced(self, plan: Plan[T]) -> Plan[T]:
        """A part of the work, then a while for others."""
        began = time.monotonic()
        answer = yield from plan
        if self._rest:
            yield Pause((time.monotonic() - began) * self._rest)
        return answer
