"""Jobs: search and count."""

import time

from graphile_worker.contrib.dashboard._api import ApiRequest, ApiRoute, Parameter
from graphile_worker.contrib.dashboard._resources._common import (
    EXAMPLE_TIME,
    JOB_EXAMPLE,
    MAX_ID,
    NEWEST_JOBS,
    choose_newest,
    get_now,
    get_redactor,
    read_filter,
    read_int,
    read_limit,
    show_job,
)
from graphile_worker.contrib.dashboard._users import Permission
from graphile_worker.contrib.dashboard._wording import describe_no_jobs
from graphile_worker.ops.search import plan_count_jobs, plan_list_jobs

MAX_PAGE = 200
MAX_COUNT = 100_000


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
        "view": {} if page.jobs else {"empty": describe_no_jobs(job_filter, newest)},
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
            "view": {},
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
)
