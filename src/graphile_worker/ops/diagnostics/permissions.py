"""Checks of the permissions of a role, and of the search path."""

from collections.abc import Iterator

from graphile_worker._sql.queries import diagnostics
from graphile_worker._sql.queries.diagnostics import ObjectAccess, SearchPathGrant
from graphile_worker.ops.diagnostics.context import DoctorContext, FindingsPlan
from graphile_worker.ops.diagnostics.findings import Finding, FindingId, Severity
from graphile_worker.ops.text import limit_lines

# For queues where each kind of program has its own role, none of which should own the tables.
PRIVILEGES_ADVICE = (
    "If workers use this role, grant it the privileges that deploy/sql/rights.sql "  # voice: allow
    "grants to queue_worker: see the page on security. Otherwise ignore this."
)


def check_privileges(access: list[ObjectAccess], context: DoctorContext) -> list[Finding]:
    """Report the privileges on the shared schema that this role lacks, or rows hidden from it.

    Args:
        access: The access of this role to each table and function of the shared schema.
        context: The session and the schemas.
    """
    lacking = [each for each in access if not each.can_use_schema or each.missing_privileges]
    hidden = [each for each in access if each.has_hidden_rows]
    role = context.session.role
    if not lacking and not hidden:
        return []
    advice, sql = _build_membership_advice(access, context)
    if lacking:
        return [
            Finding(
                id=FindingId.PRIVILEGES_MISSING,
                severity=Severity.CRITICAL,
                title=f"role {role!r} lacks privileges on the queue",
                evidence=tuple(format_missing_privileges(lacking, context.schemas.shared)),
                advice=advice,
                sql=sql,
            )
        ]
    if hidden[0].owner == role:
        advice = "The owner is subject to row level security too: turn that off."
        sql = context.format_remedy("disable_forced_row_security")
    names = ", ".join(each.name for each in hidden)
    return [
        Finding(
            id=FindingId.ROWS_HIDDEN,
            severity=Severity.CRITICAL,
            title=f"row level security hides all rows from role {role!r}",
            evidence=(f"no policy applies to this role on: {names}",),
            advice=advice,
            sql=sql,
        )
    ]


def build_limited_role_finding(
    access: list[ObjectAccess], unchecked: list[str], context: DoctorContext
) -> Finding:
    """Build the finding for a role that can read the queue but cannot run workers.

    Args:
        access: The access of this role to each table and function of the shared schema.
        unchecked: The checks that the role could not run.
        context: The session and the schemas.
    """
    lacking = [each for each in access if each.missing_privileges]
    return Finding(
        id=FindingId.LIMITED_ROLE,
        severity=Severity.WARNING,
        title=f"role {context.session.role!r} can neither add nor claim jobs: the diagnosis covers "
        "only what it can read",
        evidence=(
            *[f"not checked: {each}" for each in unchecked],
            *format_missing_privileges(lacking, context.schemas.shared),
        ),
        advice=f"Run this as the role of your workers to check everything. {PRIVILEGES_ADVICE}",
    )


def format_missing_privileges(access: list[ObjectAccess], schema: str) -> Iterator[str]:
    """Format the privileges that a role lacks, one line for each table or function."""
    if not access[0].can_use_schema:
        yield f"no usage on schema {schema}"
    for each in access:
        if each.missing_privileges:
            yield f"no {', '.join(each.missing_privileges)} on {each.name}"


def _build_membership_advice(
    access: list[ObjectAccess], context: DoctorContext
) -> tuple[str, str | None]:
    """Return advice, with SQL where all programs share one role."""
    if any(each.has_policies for each in access):
        return PRIVILEGES_ADVICE, None
    owner, role = access[0].owner, context.session.role
    advice = (
        f"Make it a member of {owner!r}, which owns the tables: row level security shows rows only "
        "to the owner, and grants do not change that."
    )
    if access[0].is_owner_superuser:
        advice += " That is a superuser: first make a role without that attribute the owner."
    return advice, context.format_remedy("grant_owner", owner=owner, role=role)


def plan_check_search_path(context: DoctorContext) -> FindingsPlan:
    """Report roles that can create functions which statements may call by mistake."""
    rows: list[SearchPathGrant] = yield diagnostics.inspect_search_path(context.schemas)
    # Two roles may have granted the same privilege.
    grants = list(dict.fromkeys(rows))
    if not grants:
        return []
    impact = (
        "Their functions replace built-in operators in every statement of this session."
        if any(each.is_before_catalog for each in grants)
        else "The statements of this package, and functions that it installed, do not call them. "
        "Functions that Node or Rust installed, your triggers and your tasks may."
    )
    revocations = [
        context.format_remedy("revoke_create", place=each.schema, role=each.role)
        for each in grants
        if not each.is_schema_owner
    ]
    return [
        Finding(
            id=FindingId.UNSAFE_PATH,
            severity=Severity.WARNING,
            title="other roles can create functions in a schema on the search path",
            evidence=limit_lines([_format_search_path_grant(each) for each in grants]),
            advice=f"{impact} Revoke the privilege, or remove the schema from the search path.",
            sql="\n".join(revocations) or None,
        )
    ]


def _format_search_path_grant(grant: SearchPathGrant) -> str:
    role = "every role" if grant.role == "public" else f"role {grant.role!r}"
    verb = "owns" if grant.is_schema_owner else "may create in"
    first = ", which is searched before pg_catalog" if grant.is_before_catalog else ""
    return f"{role} {verb} schema {grant.schema!r}{first}"
