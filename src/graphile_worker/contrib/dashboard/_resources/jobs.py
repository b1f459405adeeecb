"""Jobs: search, count, and what can complete a filter."""

import time
from typing import Any

from graphile_worker.contrib.dashboard._api import ApiRequest, ApiRoute, Parameter
from graphile_worker.contrib.dashboard._resources._common import (
    EXAMPLE_TIME,
    JOB_EXAMPLE,
    MAX_ID,
    NEWEST_JOBS,
    choose_newest,
    get_now,
    get_redactor,
    get_sample,
    read_filter,
    read_int,
    read_limit,
    show_job,
)
from graphile_worker.contrib.dashboard._users import Permission
from graphile_worker.ops.filters import VALUE_PARSERS
from graphile_worker.ops.pools import list_served_tasks
from graphile_worker.ops.search import plan_count_jobs, plan_list_jobs
from graphile_worker.ops.states import JobState

MAX_PAGE = 200
MAX_COUNT = 100_000
MAX_NAMES = 1_000

# What each field of a filter finds, for the completion.
FIELD_HELP = {
    "task": "Name of the task; * matches any text.",
    "queue": "Name of the queue, or none.",
    "state": "State of the job.",
    "id": "Id of the job, or a range such as 10..20.",
    "key": "Job key, or none.",
    "worker": "Worker that holds the job.",
    "error": "Part of the last error.",
    "attempts": "Number of attempts, for example >=3.",
    "priority": "Priority, for example <0.",
    "age": "Time since it was due, for example >10m.",
    "run": "When it is due, for example <1h.",
    "created": "When it was added, for example >2026-08-01.",
    "flag": "Flag of the job.",
    "payload": "Value in the payload, for example payload.user.id:42.",
}
FIELD_VALUES: dict[str, list[str]] = {
    "state": [*JobState],
    "queue": ["none"],
    "key": ["none"],
    "age": [">10m", ">1h", "<1h"],
    "run": ["<0s", ">0s", "<1h"],
    "created": [">-10m", ">-1h", ">-1d"],
    "attempts": [">=1", ">=3"],
    "priority": ["<0", ">0"],
}


async def list_jobs(request: ApiRequest) -> object:
    """List the jobs that a filter finds, the newest first."""
    service = request.service
    job_filter = read_filter(request, request.query.get("q"))
    limit = read_limit(request, default=50, maximum=MAX_PAGE)
    before = read_int(request.query, "before", minimum=-MAX_ID, maximum=MAX_ID)
    newest = choose_newest(request, job_filter)
    started = time.monotonic()
    page = await service.read(
        plan_list_jobs(
            job_filter,
            service.schemas,
            limit=limit,
            before=before,
            newest=newest,
            limits=service.limits,
        )
    )
    elapsed = time.monotonic() - started
    redactor = get_redactor(service)
    return {
        "now": page.now or await get_now(request),
        "jobs": [show_job(job, redactor) for job in page.jobs],
        "next": str(page.jobs[-1].id) if page.has_more else None,
        "newest": newest,
        "elapsed_ms": round(elapsed * 1000, 1),
        "hidden_rows": page.has_hidden_rows,
    }


async def count_jobs(request: ApiRequest) -> object:
    """Count the jobs that a filter finds by state."""
    service = request.service
    job_filter = read_filter(request, request.query.get("q"))
    newest = choose_newest(request, job_filter)
    counts = await service.read(
        plan_count_jobs(
            job_filter,
            service.schemas,
            newest=newest,
            max_count=MAX_COUNT,
            limits=service.limits,
        )
    )
    return {
        "by_state": {str(state): count for state, count in counts.by_state.items()},
        "total": counts.total,
        "is_capped": counts.total >= MAX_COUNT,
        "newest": newest,
    }


async def list_completions(request: ApiRequest) -> object:
    """List the fields of filters, and names from the last snapshot."""
    snapshot = (await get_sample(request)).snapshot
    app = request.service.app
    tasks = {task.identifier for task in snapshot.tasks} | {*list_served_tasks(snapshot.pools)}
    if app is not None:
        tasks |= app.tasks().keys()
    queues = {queue.name for queue in snapshot.queues}
    queues |= {job.queue_name for job in snapshot.locked if job.queue_name is not None}
    fields: list[dict[str, Any]] = [
        {"name": name, "help": FIELD_HELP.get(name, ""), "values": FIELD_VALUES.get(name, [])}
        for name in VALUE_PARSERS
    ]
    return {
        "fields": fields,
        "tasks": sorted(tasks)[:MAX_NAMES],
        "queues": sorted(queues)[:MAX_NAMES],
        "workers": sorted(pool.id for pool in snapshot.pools)[:MAX_NAMES],
        "states": [*JobState],
    }


FILTER_PARAMETERS = (
    Parameter(name="q", help="Filter, in the language of `graphile-worker jobs list`."),
    Parameter(
        name="newest",
        help=f"Search among this number of newest jobs, or all (default: {NEWEST_JOBS:,}).",
    ),
)

ROUTES = (
    ApiRoute(
        method="GET",
        path="/jobs",
        permission=Permission.VIEW,
        handler=list_jobs,
        summary="List jobs that match a filter, the newest first.",
        query=(
            *FILTER_PARAMETERS,
            Parameter(name="before", help="Only jobs with a lower id, for the next page."),
            Parameter(name="limit", kind=int, help=f"Size of the page, at most {MAX_PAGE}."),
        ),
        answer={
            "now": EXAMPLE_TIME,
            "jobs": [JOB_EXAMPLE],
            "next": "4711",
            "newest": NEWEST_JOBS,
            "elapsed_ms": 3.1,
            "hidden_rows": False,
        },
    ),
    ApiRoute(
        method="GET",
        path="/jobs/count",
        permission=Permission.VIEW,
        handler=count_jobs,
        summary=f"Count jobs that match a filter by state, at most {MAX_COUNT:,}.",
        query=FILTER_PARAMETERS,
        answer={
            "by_state": {"failed": 12, "ready": 3},
            "total": 15,
            "is_capped": False,
            "newest": NEWEST_JOBS,
        },
    ),
    ApiRoute(
        method="GET",
        path="/completions",
        permission=Permission.VIEW,
        handler=list_completions,
        summary="List fields and names that complete a filter.",
        answer={
            "fields": [{"name": "task", "help": FIELD_HELP["task"], "values": []}],
            "tasks": ["send_email"],
            "queues": ["invoices"],
            "workers": ["pypool-0123456789abcdef01"],
            "states": [*JobState],
        },
    ),
)
