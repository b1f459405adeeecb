"""Queries about the crontab: what the database knows of its items, and the lock for each minute."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from graphile_worker.jobs import JobSpec, moment
from graphile_worker.payloads import encode
from graphile_worker.sql.adding import LOST_KEY
from graphile_worker.sql.failures import TRANSIENT, sqlstate_of
from graphile_worker.sql.jobs import when_args
from graphile_worker.sql.query import Query, Row, read_nothing

# Classes of SQLSTATE that speak of what was to be written: data, constraints, a raise in a trigger.
REFUSALS = frozenset({"22", "23", "P0", "GW"})


@dataclass(frozen=True, slots=True)
class KnownCrontab:
    """What the database knows of an item, whichever worker told it."""

    identifier: str
    known_since: datetime
    last_execution: datetime | None


def get_time() -> Query[datetime]:
    return Query("get_time", (), lambda rows: moment(rows[0][0]))


def get_known_crontabs() -> Query[dict[str, KnownCrontab]]:
    return Query("get_known_crontabs", (), _read_known)


def register_crontabs(identifiers: list[str], since: datetime) -> Query[None]:
    return Query("register_crontabs", (identifiers, when_args(since)[0]), read_nothing)


def schedule_jobs(jobs: Sequence[tuple[str, JobSpec]], minute: datetime) -> Query[dict[str, int]]:
    """Add jobs by the identifiers of their items, if nobody did for this minute; their ids."""
    entries = [_entry(identifier, spec) for identifier, spec in jobs]
    # As it is: a database that is not UTF-8 can read few escapes, if any.
    args = (json.dumps(entries, ensure_ascii=False), when_args(minute)[0])
    return Query("schedule_jobs", args, lambda rows: dict(map(tuple, rows)))


def is_refusal(error: Exception) -> bool:
    """Does the database not want a job, now or later? Such as for a trigger or a constraint."""
    state = sqlstate_of(error)
    return state is not None and state not in (LOST_KEY, *TRANSIENT) and state[:2] in REFUSALS


def _entry(identifier: str, spec: JobSpec) -> dict[str, Any]:
    return {
        "identifier": identifier,
        "task": spec.identifier,
        "payload": encode(spec.payload),
        "queue_name": spec.queue_name,
        "max_attempts": spec.max_attempts,
        "job_key": spec.job_key,
        "job_key_mode": spec.job_key_mode,
        "priority": spec.priority,
    }


def _read_known(rows: Sequence[Row]) -> dict[str, KnownCrontab]:
    return {
        identifier: KnownCrontab(identifier, moment(since), None if last is None else moment(last))
        for identifier, since, last in rows
    }
