"""Plans that insert jobs without the functions of the shared schema, to the same effect.

The functions add_job and add_jobs plan their statements in every call, which takes most of the
time of an add. Jobs without a key can be inserted by statements whose plans PostgreSQL keeps. The
functions also notify workers at each commit, and these statements can leave that out. They need no
privilege that the functions do not need, as long as the functions run with the privileges of their
caller. An error would abort the transaction of a caller, so that is known before. The statements
themselves notice when a function or the table changes.
"""

import json
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries import jobs as sql
from graphile_worker._sql.queries.jobs import (
    MICROSECOND,
    AddingState,
    InsertedJobs,
    UpsertedJobs,
)
from graphile_worker._sql.queries.migrations import (
    LATEST_LEVEL,
    has_levels_above,
    is_known_body,
)
from graphile_worker._sql.query import Plan, Query, Row, Transaction
from graphile_worker._sql.sqlstate import INSUFFICIENT_PRIVILEGE, get_sqlstate
from graphile_worker.jobs import EPOCH, Job, JobKeyMode, JobSpec, parse_microseconds

A = TypeVar("A", bound=InsertedJobs | UpsertedJobs)

DEFAULT_MAX_ATTEMPTS = 25

# Until a schema whose functions must add the jobs is inspected again: a trigger may be temporary.
INSPECT_INTERVAL_SECONDS = 60.0


@dataclass(slots=True)
class DirectInserts:
    """Whether jobs can be inserted directly, for one pool or for one source of connections.

    The functions add the first jobs, so that a program that adds once needs no inspection.
    """

    is_callers: bool = False
    """Whether the connections belong to the caller, whose transaction an error would abort."""
    notify: bool = True
    """Whether workers are notified at the commit. If not, jobs with keys are inserted too."""
    inspect_interval_seconds: float = INSPECT_INTERVAL_SECONDS
    can_use_windows: bool = field(default=False, init=False)
    """Whether the companion schema was found to have unique keys."""
    _has_added: bool = field(default=False, init=False)
    _inspect_at: float = field(default=-math.inf, init=False)
    """When to inspect the schema, unless it has a version."""
    _version: str | None = field(default=None, init=False)

    def plan_insert(
        self, specs: Sequence[JobSpec], payloads: Sequence[str | None], schemas: Schemas
    ) -> Plan[list[Job] | None]:
        """Insert jobs without keys. None if another plan must add them."""
        if any(spec.job_key is not None for spec in specs):
            return None
        version = yield from self._plan_get_version(schemas)
        if version is None:
            return None
        query: Query[InsertedJobs]
        if len(specs) == 1:
            query = sql.insert_job(specs[0], payloads[0], version, notify=self.notify)
        else:
            query = sql.insert_jobs(specs, payloads, version, notify=self.notify)
        inserted: InsertedJobs | None = yield from self._plan_run(query)
        return build_jobs(inserted, specs, payloads) if inserted and inserted.ids else None

    def plan_upsert(
        self,
        specs: Sequence[JobSpec],
        payloads: Sequence[str | None],
        schemas: Schemas,
        *,
        expected: int | None = None,
    ) -> Plan[list[Row] | None]:
        """Add jobs without a notification, and create their names. None if the functions must."""
        if self.notify:
            return None
        version = yield from self._plan_get_version(schemas)
        if version is None:
            return None
        is_deduped = specs[0].job_key is not None and (
            specs[0].job_key_mode == JobKeyMode.UNSAFE_DEDUPE
        )
        query = (
            sql.dedupe_job(specs[0], payloads[0], version)
            if is_deduped
            else sql.upsert_jobs(specs, payloads, version, expected)
        )
        upserted = yield from self._plan_run(query)
        if upserted is not None and not upserted.rows:
            # A name is new, or sessions locked all keys at this moment.
            with_names: Plan[UpsertedJobs | None] = self._plan_run(
                Transaction(partial(_plan_create_names, specs, query))
            )
            upserted = yield from with_names
        return None if upserted is None else upserted.rows

    def _plan_run(self, step: Query[A] | Transaction) -> Plan[A | None]:
        """Run a step that adds jobs. None if the functions may differ in effect now."""
        try:
            added: A = yield step
        except Exception as error:
            if get_sqlstate(error) != INSUFFICIENT_PRIVILEGE:
                raise
            # The functions may run with the privileges of their owner since the inspection.
            self._forget()
            if self.is_callers:
                raise
            return None
        if added.is_current:
            return added
        self._forget()
        return None

    def _plan_get_version(self, schemas: Schemas) -> Plan[str | None]:
        if self.notify and not self._has_added:
            self._has_added = True
        elif self._version is None and time.monotonic() >= self._inspect_at:
            try:
                yield from self._plan_inspect(schemas)
            except Exception as error:
                is_hidden = get_sqlstate(error) == INSUFFICIENT_PRIVILEGE
                if is_hidden:
                    # If the catalog is hidden from this role, it is not inspected again.
                    self._inspect_at = math.inf
                if self.is_callers or not is_hidden:
                    raise
        return self._version

    def _plan_inspect(self, schemas: Schemas) -> Plan[None]:
        state: AddingState | None = yield sql.inspect_adding(schemas)
        # Without a schema the functions raise an error. It may be installed at any time.
        if state is not None:
            self._version = yield from plan_choose_version(state, schemas)
            self._inspect_at = time.monotonic() + self.inspect_interval_seconds

    def _forget(self) -> None:
        self._has_added, self._inspect_at, self._version = False, -math.inf, None


def _plan_create_names(specs: Sequence[JobSpec], query: Query[UpsertedJobs]) -> Plan[UpsertedJobs]:
    identifiers, queue_names = (
        list(dict.fromkeys(names))
        for names in zip(*((spec.identifier, spec.queue_name) for spec in specs), strict=True)
    )
    yield sql.create_names(identifiers, queue_names)
    upserted: UpsertedJobs = yield query
    return upserted


def plan_choose_version(state: AddingState, schemas: Schemas) -> Plan[str | None]:
    """Return the version for statements that insert jobs. None if they could differ in effect."""
    if not state.is_plain or not state.can_read_ledger:
        return None
    bodies = {"add_job": state.add_job_body, "add_jobs": state.add_jobs_body}
    if not all(is_known_body(name, body, schemas) for name, body in bodies.items()):
        return None
    is_newer: bool = yield has_levels_above(LATEST_LEVEL)
    return None if is_newer else state.version


def build_jobs(
    inserted: InsertedJobs, specs: Sequence[JobSpec], payloads: Sequence[str | None]
) -> list[Job]:
    """Build the jobs of these specs as their rows are."""
    now = inserted.now
    get_text = str.__str__  # of the plain class, because an Enum of str prints its own name
    return [
        Job(
            job_id,
            get_text(spec.identifier),
            None if spec.queue_name is None else get_text(spec.queue_name),
            "{}" if payload is None else payload,
            0 if spec.priority is None else +spec.priority,
            None if spec.run_at is None else _encode_run_at(spec.run_at, now),
            0,
            DEFAULT_MAX_ATTEMPTS if spec.max_attempts is None else +spec.max_attempts,
            None,
            now,
            None,
            None,
            None,
            None,
            0,
            _encode_flags(spec.flags) if spec.flags else None,
        )
        for job_id, spec, payload in zip(inserted.ids, specs, payloads, strict=True)
    ]


def compute_run_at(when: datetime | timedelta | None, now: int) -> int:
    """Return the time of a job, in microseconds since 1970, as the database computes it."""
    if isinstance(when, datetime):
        return (when - EPOCH) // MICROSECOND
    if isinstance(when, timedelta):
        return now + when // MICROSECOND
    return now


def _encode_run_at(when: datetime | timedelta, now: str) -> str:
    microseconds = compute_run_at(when, parse_microseconds(now))
    seconds, rest = divmod(abs(microseconds), 1_000_000)
    return f"{'-' if microseconds < 0 else ''}{seconds}.{rest:06}"


def _encode_flags(flags: Iterable[str]) -> str:
    # jsonb orders keys by their length in bytes, then by their bytes.
    ordered = sorted(set(flags), key=lambda flag: (len(flag.encode()), flag.encode()))
    return json.dumps(dict.fromkeys(ordered, True), ensure_ascii=False)
