"""The audit: who changed which jobs, when, and with which filter."""

from dataclasses import replace

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.audit import AuditLabel
from graphile_worker._sql.queries.audit import (
    AuditAccess,
    AuditAction,
    AuditEntry,
    begin_audit,
    list_audit_entries,
)
from graphile_worker._sql.query import Plan, Transaction
from graphile_worker.errors import SchemaError, SchemaMissing
from graphile_worker.ops.filters import Filter, FilterField, Term, TextPattern
from graphile_worker.ops.search import DEFAULT_LIMITS, QueryLimits, with_limits

__all__ = [
    "AuditAction",
    "AuditEntry",
    "AuditMissing",
    "format_for_audit",
    "plan_list_audit",
    "plan_record_reveal",
]

DEFAULT_LIMIT = 50

# Stands for values of payloads, which the audit must not contain.
HIDDEN_VALUE = TextPattern(("…",))


class AuditMissing(SchemaError):
    """The companion schema has no audit table."""

    _arguments = ("schema",)

    def __init__(self, schema: str) -> None:
        self.schema = schema
        super().__init__(
            f"schema {schema!r} has no table 'audit': changes of jobs are not recorded. Run "
            "`graphile-worker migrate` as the owner."
        )


def plan_list_audit(
    schemas: Schemas,
    *,
    actor: str | None = None,
    action: str | None = None,
    job_id: int | None = None,
    before: int | None = None,
    limit: int = DEFAULT_LIMIT,
    newest: int | None = None,
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
        newest: Search only among this number of newest entries.
        limits: The timeouts of the statement.

    Returns:
        A plan for the entries.

    Raises:
        QueryTimeoutError: The statement took too long or waited too long for a lock.
        AuditMissing: The audit table is not installed.
    """
    query = list_audit_entries(actor, action, job_id, before, limit, newest)
    try:
        return (yield from with_limits(query, schemas, limits))
    except SchemaMissing as error:
        raise AuditMissing(schemas.companion) from error


def plan_record_reveal(
    job_id: int, what: str, schemas: Schemas, *, actor: str | None = None
) -> Plan[bool]:
    """Record that a person sees a payload or a result without masked values.

    Args:
        job_id: The job.
        what: What is shown, for example `payload`.
        schemas: The schemas of the queue.
        actor: Who sees it.

    Returns:
        A plan for whether this role may add entries. If not, do not show the values.
    """
    label = AuditLabel(
        action=AuditAction.PAYLOAD_REVEAL, actor=actor, filter=f"id:{job_id}", note=what
    )

    def build_plan() -> Plan[bool]:
        access: AuditAccess = yield begin_audit(schemas)
        if access.is_granted:
            yield label.build_entry(access, [job_id])
        return access.is_granted

    is_recorded: bool = yield Transaction(build_plan)
    return is_recorded


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
