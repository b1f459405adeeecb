"""Errors of failing jobs, grouped."""

from collections.abc import Mapping
from typing import Any

from graphile_worker._support.text import pluralize
from graphile_worker.contrib.dashboard._api import ApiRequest, ApiRoute, Problem
from graphile_worker.contrib.dashboard._redaction import Redactor
from graphile_worker.contrib.dashboard._resources._common import (
    EXAMPLE_TIME,
    Cache,
    get_redactor,
    show_error,
)
from graphile_worker.contrib.dashboard._users import Permission
from graphile_worker.contrib.dashboard._view import GROUP_CHANGES
from graphile_worker.contrib.dashboard._wording import link_page
from graphile_worker.ops.error_groups import ErrorGroup, ErrorGroups, plan_group_errors

MAX_IDS = 200
MAX_GROUPS = 200

# All browsers share one search.
_GROUPS = Cache(seconds=3.0)


async def list_groups(request: ApiRequest) -> object:
    """List the groups with the most jobs first."""
    found = await get_groups(request)
    redactor = get_redactor(request.service)
    return {
        "now": found.now,
        "searched": found.searched,
        "is_complete": found.is_complete,
        "groups": [_show_group(group, redactor) for group in found.groups[:MAX_GROUPS]],
        "view": {"hint": _describe_search(found)},
    }


async def show_group(request: ApiRequest) -> object:
    """Show a group and its newest jobs."""
    found = await get_groups(request)
    group = find_group(found, request.path["fingerprint"])
    shown = _show_group(group, get_redactor(request.service))
    ids = group.ids[:MAX_IDS]
    return {
        "now": found.now,
        "searched": found.searched,
        "is_complete": found.is_complete,
        **shown,
        "ids": ids,
        "link": link_page("jobs", q=f"id:{','.join(map(str, ids))}"),
        "view": {
            "title": shown["summary"].partition(":")[0],
            "hint": {"link": ["All errors", "errors"]},
            "actions": GROUP_CHANGES,
            "panels": _list_panels(group, shown),
        },
    }


def _describe_search(found: ErrorGroups) -> str | None:
    newest = "" if found.is_complete else "newest "
    jobs = pluralize(found.searched, "job")
    return f"The {newest}{jobs} with an error" if found.searched else None


def _list_panels(group: ErrorGroup, shown: Mapping[str, Any]) -> list[object]:
    ids = group.ids[:MAX_IDS]
    sample = {"job": str(group.sample_id)}
    return [
        {
            "title": "Group",
            "facts": [
                ["Error", shown["summary"]],
                ["Task", {"task": group.task_identifier}],
                ["Jobs", f"{group.jobs:,}"],
                ["Retrying", f"{group.retrying:,}"],
                ["Failed", f"{group.failed:,}"],
                ["First", {"about": group.first_at}],
                ["Last", {"about": group.last_at}],
            ],
        },
        {"title": "Newest error", "hint": ["of job ", sample], "code": shown["sample"]["error"]},
        {
            "title": "Jobs",
            "hint": f"the newest {len(ids)} of {group.jobs:,}" if group.jobs > len(ids) else None,
            "list": [{"job": str(id)} for id in ids],
        },
    ]


async def get_groups(request: ApiRequest) -> ErrorGroups:
    """Return the groups, at most a few seconds old."""
    service = request.service

    async def search() -> ErrorGroups:
        return await service.read(plan_group_errors(service.schemas, limits=service.limits))

    return await _GROUPS.get(service, search)


def forget_groups(request: ApiRequest) -> None:
    """Search again for the next request, after a change."""
    _GROUPS.clear(request.service)


def find_group(found: ErrorGroups, fingerprint: str) -> ErrorGroup:
    """Return a group, or raise if it has no jobs any more."""
    group = found.find(fingerprint)
    if group is None:
        raise Problem(404, "not_found", "no failing job has this error now")
    return group


def _show_group(group: ErrorGroup, redactor: Redactor) -> dict[str, Any]:
    summary = redactor.redact_text(group.summary)
    return {
        "fingerprint": group.fingerprint,
        "task": group.task_identifier,
        "summary": summary,
        "sample": {"id": group.sample_id, "error": show_error(group.sample_error, redactor)},
        "jobs": group.jobs,
        "retrying": group.retrying,
        "failed": group.failed,
        "first_at": group.first_at,
        "last_at": group.last_at,
        "title": {"link": [summary, link_page("errors", group.fingerprint)]},
        "actions": GROUP_CHANGES,
    }


GROUP_EXAMPLE: dict[str, Any] = {
    "fingerprint": "0123456789abcdef",
    "task": "send_email",
    "summary": "TimeoutError: no answer within <n> s",
    "sample": {"id": "4711", "error": "TimeoutError: no answer within 30 s\n\nTraceback …"},
    "jobs": 12,
    "retrying": 2,
    "failed": 10,
    "first_at": EXAMPLE_TIME,
    "last_at": EXAMPLE_TIME,
    "title": "TimeoutError: no answer within <n> s",
    "actions": list(GROUP_CHANGES),
}
SEARCH_EXAMPLE: dict[str, Any] = {"now": EXAMPLE_TIME, "searched": 12, "is_complete": True}

ROUTES = (
    ApiRoute(
        method="GET",
        path="/errors",
        permission=Permission.VIEW,
        handler=list_groups,
        summary="Group the errors of the newest failing jobs.",
        answer={**SEARCH_EXAMPLE, "groups": [GROUP_EXAMPLE], "view": {}},
    ),
    ApiRoute(
        method="GET",
        path="/errors/{fingerprint}",
        permission=Permission.VIEW,
        handler=show_group,
        summary="Show a group of errors and its newest jobs.",
        answer={
            **SEARCH_EXAMPLE,
            **GROUP_EXAMPLE,
            "ids": ["4711"],
            "link": "jobs?q=id%3A4711",
            "view": {},
        },
    ),
)
