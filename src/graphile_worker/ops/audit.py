"""The audit: who changed which jobs, when, and with which filter."""

from dataclasses import replace

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.audit import AuditAction, AuditEntry, list_audit_entries
from graphile_worker._sql.query import Plan
from graphile_worker.ops.filters import Filter, FilterField, Term, TextPattern
from graphile_worker.ops.search import DEFAULT_LIMITS, QueryLimits, with_limits

__all__ = ["AuditAction", "AuditEntry", "format_for_audit", "plan_list_audit"]

DEFAULT_LIMIT = 50

# Stands for values of payloads, which the audit must not contain.
HIDDEN_VALUE = TextPattern(("…",))


def plan_list_audit(
    schemas: Schemas,
    *,
    actor: str | None = None,
    action: str | None = None,
    job_id: int | None = None,
    before: int | None = None,
    limit: int = DEFAULT_LIMIT,
    limits: QueryLimits = DEFAULT_LIMITS,
) -> Plan[list[AuditEntry]]:
    """List the entries of the audit, the newest first.

    Args:
        schemas: The schemas of the queue.
        actor: Only entries of this actor or database role.
        action: Only entries of this action, for example `jobs retry`.
        job_id: Only entries about this job.
        before: Only entries with a lower id, for the next page.
        limit: The largest number of entries.
        limits: The timeouts of the statement.

    Returns:
        A plan for the entries.

    Raises:
        QueryTimeoutError: The statement took too long or waited too long for a lock.
        SchemaMissing: The audit table is not installed.
    """
    query = list_audit_entries(actor, action, job_id, before, limit)
    return (yield from with_limits(query, schemas, limits))


def format_for_audit(job_filter: Filter) -> str:
    """Format a filter, with an ellipsis in the place of values of payloads.

    Args:
        job_filter: The filter.

    Returns:
        The text of the filter, or `all` for a filter that matches every job.
    """
    return str(Filter(tuple(map(_hide_payload, job_filter.terms)))) or "all"


def _hide_payload(term: Term) -> Term:
    return replace(term, values=(HIDDEN_VALUE,)) if term.field is FilterField.PAYLOAD else term
