"""Scheduled tasks: next and last runs, and run one now."""

import difflib
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from graphile_worker.contrib.dashboard._api import ApiRequest, ApiRoute, Problem
from graphile_worker.contrib.dashboard._resources._common import (
    EXAMPLE_TIME,
    get_now,
    read_path_text,
)
from graphile_worker.contrib.dashboard._users import Permission
from graphile_worker.crontab import ParsedCronItem
from graphile_worker.ops.cron_items import (
    ListedCronItem,
    plan_list_cron_items,
    plan_run_cron_item,
)
from graphile_worker.ops.search import limit_plan

SOURCES = {"app": "this dashboard’s app", "worker": "a running worker", "database": "the database"}
NEEDS_APP = "Start the dashboard with the app that defines this item."


async def list_items(request: ApiRequest) -> object:
    """List the cron items of the app, of workers and of the database."""
    service = request.service
    plan = plan_list_cron_items(service.schemas, _list_app_items(request), limits=service.limits)
    listing = await service.read(plan)
    return {"now": listing.now, "items": [_show_item(item) for item in listing.items]}


async def run_item(request: ApiRequest) -> object:
    """Add the job of an item now. Its schedule stays the same."""
    service = request.service
    identifier = read_path_text(request, "identifier")
    items = {item.identifier: item for item in _list_app_items(request)}
    if identifier not in items:
        raise await _build_unknown_item(request, identifier, items)
    now = await get_now(request)
    plan = plan_run_cron_item(items[identifier], now, service.schemas, actor=request.user.name)
    job = await service.change(limit_plan(plan, service.schemas, service.limits))
    return {"id": job.id, "sentence": f"Added job {job.id} for {identifier}."}


async def _build_unknown_item(
    request: ApiRequest, identifier: str, items: dict[str, ParsedCronItem]
) -> Problem:
    service = request.service
    listing = await service.read(plan_list_cron_items(service.schemas, limits=service.limits))
    if any(item.identifier == identifier for item in listing.items):
        return Problem(
            409,
            "conflict",
            "the payload of this item is known only to its workers. Start the dashboard with the "
            "app that defines it.",
        )
    near = difflib.get_close_matches(identifier, items, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return Problem(404, "not_found", f"no such cron item.{hint}")


def _list_app_items(request: ApiRequest) -> list[ParsedCronItem]:
    app = request.service.app
    return [] if app is None else app.cron_items()


def _show_item(item: ListedCronItem) -> dict[str, Any]:
    return {
        "identifier": item.identifier,
        "task": item.task,
        "schedule": item.schedule,
        "words": item.words,
        "tz": item.tz,
        "next": item.next,
        "last_at": item.last_at,
        "known_since": item.known_since,
        "backfill_seconds": item.backfill,
        "source": item.source,
        "health": item.health,
        "schedule_text": _describe_schedule(item),
        "next_text": _describe_next(item.next),
        "actions": ["run_cron"],
        "obstacle": None if item.source == "app" else NEEDS_APP,
    }


def _describe_schedule(item: ListedCronItem) -> object:
    if item.schedule is None:
        return {"muted": "Unknown here: another runtime defines it"}
    source = SOURCES.get(item.source, item.source)
    return [{"code": item.schedule}, {"small": f"{item.words}, from {source}"}]


def _describe_next(times: Sequence[datetime]) -> object:
    if not times:
        return None
    later = [part for time in times[1:] for part in (", ", {"at": time})][1:]
    return [{"both": times[0]}, *[{"small": ["then ", *later]}] * bool(later)]


ROUTES = (
    ApiRoute(
        method="GET",
        path="/cron",
        permission=Permission.VIEW,
        handler=list_items,
        summary="List scheduled tasks with their next and last runs.",
        answer={
            "now": EXAMPLE_TIME,
            "items": [
                {
                    "identifier": "nightly_report",
                    "task": "report",
                    "schedule": "30 4 * * 1",
                    "words": "at 04:30 on Monday UTC",
                    "tz": "UTC",
                    "next": [EXAMPLE_TIME],
                    "last_at": EXAMPLE_TIME,
                    "known_since": EXAMPLE_TIME,
                    "backfill_seconds": 0.0,
                    "source": "app",
                    "health": "ok",
                    "schedule_text": "30 4 * * 1",
                    "next_text": "in 2h",
                    "actions": ["run_cron"],
                    "obstacle": None,
                }
            ],
        },
    ),
    ApiRoute(
        method="POST",
        path="/cron/{identifier}/run",
        permission=Permission.ENQUEUE,
        handler=run_item,
        summary="Add the job of a cron item now.",
        answer={"id": "4711", "sentence": "Added job 4711 for nightly_report."},
        status=201,
    ),
)
