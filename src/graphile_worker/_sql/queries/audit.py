"""Queries about the audit: who changed which jobs, with which command."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.query import Query, Row, read_count
from graphile_worker._support.lazy_dataclass import LazyDataclass
from graphile_worker.jobs import parse_timestamp


class AuditAction(StrEnum):
    """What was done, by the words of the command."""

    JOBS_RETRY = "jobs retry"
    JOBS_RESCHEDULE = "jobs reschedule"
    JOBS_FAIL = "jobs fail"
    JOBS_COMPLETE = "jobs complete"
    JOBS_UNLOCK = "jobs unlock"
    JOBS_REMOVE = "jobs remove"
    JOBS_ADD = "jobs add"
    """By the dashboard."""
    PAYLOAD_REVEAL = "payload reveal"
    """The dashboard showed a payload or a result without redaction."""
    WORKERS_RECOVER = "workers recover"
    WORKERS_UNLOCK = "workers unlock"
    CRON_RUN = "cron run"
    PAUSE = "pause"
    RESUME = "resume"
    LIMITS_SET = "limits set"
    LIMITS_RESET = "limits reset"
    CLEANUP = "cleanup"
    HISTORY_SET = "history set"
    HISTORY_PRUNE = "history prune"
    DIRECT_UPDATE = "direct update"
    """Recorded by the trigger of deploy/sql/audit-trigger.sql, like the next two."""
    DIRECT_DELETE = "direct delete"
    DIRECT_TRUNCATE = "direct truncate"


class AuditEntry(LazyDataclass):
    """A change by a person or a program, as the audit records it."""

    id: int
    at: datetime
    actor: str | None
    """Who, as the program reports it."""
    role: str
    """The role that logged in to the database."""
    action: str
    filter: str | None
    job_ids: tuple[int, ...]
    count: int
    note: str | None


class AuditAccess(NamedTuple):
    """Whether this role may add entries, and whether the database can store every character."""

    is_granted: bool
    is_utf8: bool


def begin_audit(schemas: Schemas) -> Query[AuditAccess]:
    return Query("begin_audit", (schemas.companion,), lambda rows: AuditAccess(*rows[0][:2]))


def begin_recovery_audit(schemas: Schemas, pool_ids: list[str]) -> Query[tuple[AuditAccess, int]]:
    """Begin an audit, and return how many named queues the pools have locked."""
    args = (schemas.companion, pool_ids)
    return Query("begin_recovery_audit", args, lambda rows: (AuditAccess(*rows[0][:2]), rows[0][2]))


def add_audit_entry(
    actor: str | None,
    action: str,
    filter: str | None,
    job_ids: list[int],
    count: int,
    note: str | None,
) -> Query[None]:
    """Add an entry for each 1,000 jobs. Without jobs, `count` applies."""
    return Query("add_audit_entry", (actor, action, filter, job_ids, count, note))


def end_audit() -> Query[None]:
    # A parameter, because sessions of SQLAlchemy run no statement without one.
    return Query("end_audit", ("",))


def delete_and_audit_failed_jobs(actor: str | None, action: str, filter: str | None) -> Query[int]:
    return Query("delete_and_audit_failed_jobs", (actor, action, filter), read_count)


def list_audit_entries(
    actor: str | None,
    action: str | None,
    job_id: int | None,
    before: int | None,
    limit: int,
    newest: int | None,
) -> Query[list[AuditEntry]]:
    args = (actor, action, job_id, before, limit, newest)
    return Query("list_audit_entries", args, _read_entries)


def _read_entries(rows: Sequence[Row]) -> list[AuditEntry]:
    return [_read_entry(*row) for row in rows]


def _read_entry(
    id: int,
    at: str,
    actor: str | None,
    role: str,
    action: str,
    filter: str | None,
    job_ids: Sequence[int],
    count: int,
    note: str | None,
) -> AuditEntry:
    time = parse_timestamp(at)
    return AuditEntry(id, time, actor, role, action, filter, tuple(job_ids), count, note)
