"""The audit: who changed which jobs."""

from typing import Any

from graphile_worker.contrib.dashboard._api import ApiRequest, ApiRoute, Parameter
from graphile_worker.contrib.dashboard._resources._common import (
    EXAMPLE_TIME,
    MAX_ID,
    get_now,
    read_int,
    read_limit,
    read_text,
)
from graphile_worker.contrib.dashboard._users import Permission
from graphile_worker.ops.audit import AuditEntry, plan_list_audit

MAX_PAGE = 200


# An entry may have 1,000 ids.
MAX_IDS = 100
SHOWN_IDS = 5


async def list_entries(request: ApiRequest) -> object:
    """List the entries of the audit, the newest first."""
    service = request.service
    limit = read_limit(request, default=50, maximum=MAX_PAGE)
    actor, action = read_text(request.query, "actor"), read_text(request.query, "action")
    job_id = read_int(request.query, "job_id", minimum=-MAX_ID, maximum=MAX_ID)
    newest = (
        None if (actor, action, job_id) == (None, None, None) else service.searched_audit_entries
    )
    entries = await service.read(
        plan_list_audit(
            service.schemas,
            actor=actor,
            action=action,
            job_id=job_id,
            newest=newest,
            before=read_int(request.query, "before", minimum=0, maximum=MAX_ID),
            limit=limit + 1,
            limits=service.limits,
        )
    )
    shown = entries[:limit]
    return {
        "now": await get_now(request),
        "entries": [_show_entry(entry) for entry in shown],
        "next": str(shown[-1].id) if len(entries) > limit else None,
        "searched_newest": newest,
    }


def _show_entry(entry: AuditEntry) -> dict[str, Any]:
    role = [] if entry.actor is None else [{"muted": f" as {entry.role}"}]
    ids = [part for id in entry.job_ids[:SHOWN_IDS] for part in ({"job": str(id)}, " ")]
    return {
        "id": entry.id,
        "at": entry.at,
        "actor": entry.actor,
        "role": entry.role,
        "action": entry.action,
        "filter": entry.filter,
        "job_ids": entry.job_ids[:MAX_IDS],
        "count": entry.count,
        "note": entry.note,
        "who": [{"strong": entry.actor or entry.role}, *role],
        "ids_text": [*ids, *["…"] * (len(entry.job_ids) > SHOWN_IDS)] or None,
    }


ROUTES = (
    ApiRoute(
        method="GET",
        path="/audit",
        permission=Permission.VIEW,
        handler=list_entries,
        summary="List changes by people and their tools, the newest first.",
        query=(
            Parameter(name="actor", help="Only of this person or database role."),
            Parameter(name="action", help="Only this action, for example `jobs retry`."),
            Parameter(name="job_id", help="Only about this job."),
            Parameter(name="before", help="`next` of the page before."),
            Parameter(name="limit", kind=int, help=f"Size of the page, at most {MAX_PAGE}."),
        ),
        answer={
            "now": EXAMPLE_TIME,
            "entries": [
                {
                    "id": "17",
                    "at": EXAMPLE_TIME,
                    "actor": "ada",
                    "role": "app",
                    "action": "jobs retry",
                    "filter": "id:4711",
                    "job_ids": ["4711"],
                    "count": 1,
                    "note": None,
                    "who": "ada as app",
                    "ids_text": "4711",
                }
            ],
            "next": "17",
            "searched_newest": None,
        },
    ),
)
