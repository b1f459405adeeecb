"""Queries about the crontab: known items, and the jobs of a minute."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from graphile_worker._payloads import encode
from graphile_worker._sql.queries.jobs import encode_when
from graphile_worker._sql.query import Query, Row, read_dict
from graphile_worker._sql.sqlstate import TRANSIENT, get_sqlstate
from graphile_worker._support.lazy_dataclass import LazyDataclass
from graphile_worker.jobs import JobSpec, parse_timestamp

# Classes of SQLSTATE that reject the job itself: its data, a constraint, a raise in a trigger.
REJECTION_SQLSTATE_CLASSES = frozenset({"22", "23", "P0", "GW"})


class KnownCrontab(LazyDataclass):
    """A crontab item in the database, registered by any worker."""

    identifier: str
    known_since: datetime
    last_execution: datetime | None


def get_server_time() -> Query[datetime]:
    return Query("get_server_time", (), lambda rows: parse_timestamp(rows[0][0]))


def get_known_crontabs() -> Query[dict[str, KnownCrontab]]:
    return Query("get_known_crontabs", (), _read_known_crontabs)


def register_crontabs(identifiers: list[str], since: datetime) -> Query[None]:
    return Query("register_crontabs", (identifiers, encode_when(since)[0]))


def schedule_jobs(jobs: Sequence[tuple[str, JobSpec]], minute: datetime) -> Query[dict[str, int]]:
    """Add the jobs of a minute by the identifiers of their items, unless another worker did.

    Returns the ids of the jobs that were added.
    """
    entries = [_encode_cron_job(identifier, spec) for identifier, spec in jobs]
    # No escapes: a database that is not UTF-8 can read few of them, if any.
    args = (json.dumps(entries, ensure_ascii=False), encode_when(minute)[0])
    return Query("schedule_jobs", args, read_dict)


def is_rejection(error: Exception) -> bool:
    """Return whether the database rejects the job permanently, for example by a constraint.

    The error of a lost key counts, because the statement was retried.
    """
    state = get_sqlstate(error)
    return state is not None and state not in TRANSIENT and state[:2] in REJECTION_SQLSTATE_CLASSES


def _encode_cron_job(identifier: str, spec: JobSpec) -> dict[str, Any]:
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


def _read_known_crontabs(rows: Sequence[Row]) -> dict[str, KnownCrontab]:
    return {
        identifier: KnownCrontab(
            identifier, parse_timestamp(since), None if last is None else parse_timestamp(last)
        )
        for identifier, since, last in rows
    }
