"""Change many jobs: preview, run, progress, cancel."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from graphile_worker._sql.query import Plan
from graphile_worker.contrib.dashboard._api import ApiRequest, ApiRoute, Parameter
from graphile_worker.contrib.dashboard._bulk_runs import (
    ACTION_PERMISSIONS,
    TOKEN_SECONDS,
    BulkRun,
    count_matching,
    get_bulk_runs,
)
from graphile_worker.contrib.dashboard._resources._common import (
    EXAMPLE_TIME,
    JOB_EXAMPLE,
    MAX_ID,
    get_redactor,
    read_bool,
    read_filter,
    read_int,
    read_list,
    read_run_at,
    read_text,
    reject,
    require,
    show_job,
)
from graphile_worker.contrib.dashboard._resources.errors import (
    find_group,
    forget_groups,
    get_groups,
)
from graphile_worker.contrib.dashboard._texts import ACTION_TEXTS
from graphile_worker.contrib.dashboard._users import Permission
from graphile_worker.contrib.dashboard._wording import describe_skipped
from graphile_worker.errors import JobSpecError, QueryTimeoutError
from graphile_worker.ops.bulk import (
    BulkAction,
    BulkPreview,
    CompleteAction,
    FailAction,
    RescheduleAction,
    RetryAction,
    UnlockAction,
    plan_bulk_preview,
)
from graphile_worker.ops.filters import Filter, filter_by_ids
from graphile_worker.ops.job_actions import JobAction

MAX_IDS = 10_000
SMALLINT = 2**15

INCOMPLETE = "Only the newest failing jobs were searched. More of them may have this error."
TOO_MANY = "Too many jobs: narrow the filter first."


async def preview(request: ApiRequest) -> object:
    """Count the jobs that a change would affect, and return a token for it."""
    service = request.service
    name = _read_action_name(request)
    action = _build_action(request, name)
    job_filter, is_complete = await _read_selection(request)
    limit = read_int(request.body, "limit", minimum=1, maximum=service.max_bulk_jobs)
    limit = limit or service.max_bulk_jobs
    found = await service.read(_plan_preview(request, action, job_filter, limit))
    redactor = get_redactor(service)
    text = ACTION_TEXTS[JobAction(name)]
    matching = count_matching(found)
    is_capped = matching > service.max_bulk_jobs
    unfit = found.count.total - matching - found.locked_count
    return {
        "token": get_bulk_runs(service).add_preview(name, request.user, found),
        "action": name,
        "total": found.total,
        "by_state": {str(state): count for state, count in found.count.by_state.items()},
        "locked": found.locked_count,
        "sample": [show_job(job, redactor) for job in found.sample],
        "expires_in": TOKEN_SECONDS,
        "is_capped": is_capped,
        "is_complete": is_complete,
        "max_jobs": service.max_bulk_jobs,
        "help": text.help if is_complete else f"{text.help} {INCOMPLETE}",
        "notes": describe_skipped(found.locked_count, unfit=unfit, states=text.states),
        "obstacle": TOO_MANY if is_capped else None if found.total else "No job changes.",
    }


def _plan_preview(
    request: ApiRequest, action: BulkAction, job_filter: Filter, limit: int
) -> Plan[BulkPreview]:
    """Count all jobs, or if that takes too long, one more than a run changes."""
    schemas, limits = request.service.schemas, request.service.limits
    plan = partial(plan_bulk_preview, action, job_filter, schemas, limit=limit, limits=limits)
    try:
        return (yield from plan())
    except QueryTimeoutError:
        return (yield from plan(max_count=request.service.max_bulk_jobs + 1))


async def start(request: ApiRequest) -> object:
    """Start the change of a preview."""
    runs = get_bulk_runs(request.service)
    token = read_text(request.body, "token") or ""
    require(request, ACTION_PERMISSIONS[runs.get_action(token, request.user)])
    limit = read_int(request.body, "limit", minimum=1, maximum=request.service.max_bulk_jobs)
    run = runs.start(token, request.user, limit)
    forget_groups(request)
    return run.show()


async def show(request: ApiRequest) -> object:
    """Show how far a change is."""
    return _get_run(request).show()


async def cancel(request: ApiRequest) -> object:
    """Cancel a change. Jobs that it has changed stay changed."""
    run = _get_run(request)
    require(request, ACTION_PERMISSIONS[run.action])
    get_bulk_runs(request.service).cancel(run)
    return run.show()


def _get_run(request: ApiRequest) -> BulkRun:
    return get_bulk_runs(request.service).get(request.path["id"])


def _read_action_name(request: ApiRequest) -> str:
    name = request.body.get("action")
    if not isinstance(name, str) or name not in ACTION_PERMISSIONS:
        raise reject(f"action must be one of {', '.join(ACTION_PERMISSIONS)}")
    require(request, ACTION_PERMISSIONS[name])
    return name


def _build_action(request: ApiRequest, name: str) -> BulkAction:
    values = request.body.get("parameters")
    if values is None:
        values = {}
    if not isinstance(values, Mapping):
        raise reject("parameters must be an object")
    try:
        match name:
            case "retry":
                return RetryAction()
            case "reschedule":
                return _build_reschedule(values)
            case "fail":
                return FailAction(read_text(values, "reason", max_chars=1_000))
            case "delete":
                return CompleteAction()
            case _:
                return UnlockAction(force=read_bool(values, "force"))
    except JobSpecError as error:
        raise reject(str(error)) from error


def _build_reschedule(values: Mapping[str, Any]) -> RescheduleAction:
    numbers = {
        name: read_int(values, name, minimum=-SMALLINT, maximum=SMALLINT - 1)
        for name in ("priority", "attempts", "max_attempts")
    }
    run_at = read_run_at(values)
    if run_at is None and not any(value is not None for value in numbers.values()):
        raise reject("parameters must have run_at, priority, attempts or max_attempts")
    return RescheduleAction(run_at=run_at, **numbers)


async def _read_selection(request: ApiRequest) -> tuple[Filter, bool]:
    """Return which jobs: by a filter, by ids, or by the fingerprint of an error.

    Of an error, only the newest failing jobs are known. The second value is whether these are all.
    """
    body = request.body
    given = [name for name in ("q", "ids", "fingerprint") if body.get(name) is not None]
    if len(given) != 1:
        raise reject("pass one of q, ids and fingerprint")
    if given == ["q"]:
        # An empty filter selects all jobs, so that it must be written.
        return read_filter(request, read_text(body, "q")), True
    if given == ["ids"]:
        return filter_by_ids(_read_ids(body)), True
    fingerprint = read_text(body, "fingerprint") or ""
    groups = await get_groups(request)
    return filter_by_ids(find_group(groups, fingerprint).ids), groups.is_complete


def _read_ids(body: Mapping[str, Any]) -> list[int]:
    ids = read_list(body, "ids", maximum=MAX_IDS)
    if not ids:
        raise reject("ids must have at least one id")
    read = [read_int({"ids": each}, "ids", minimum=-MAX_ID, maximum=MAX_ID) for each in ids]
    if None in read:
        raise reject("ids must be ids of jobs")
    return list(dict.fromkeys(each for each in read if each is not None))


RUN_EXAMPLE: dict[str, Any] = {
    "id": "0123456789abcdef",
    "action": "retry",
    "by": "ada",
    "state": "running",
    "total": 4312,
    "changed": 2000,
    "skipped_locked": 3,
    "gone": 1,
    "error": None,
    "started_at": EXAMPLE_TIME,
    "ended_at": None,
    "rate": 950.2,
    "eta_seconds": 2.4,
    "done": 2004,
    "sentence": "Retry: 2,004 of 4,312, 950/s, about 2.4 s left",
    "notes": ["3 jobs skipped: a worker has locked them."],
}

ROUTES = (
    ApiRoute(
        method="POST",
        path="/bulk/preview",
        permission=Permission.VIEW,
        handler=preview,
        summary="Count the jobs that a change would affect. Needs the permission of the action.",
        body=(
            Parameter(name="action", help=", ".join(ACTION_PERMISSIONS), is_required=True),
            Parameter(name="q", help="Filter. An empty one selects all jobs."),
            Parameter(name="ids", kind=list, help=f"Ids of jobs, at most {MAX_IDS:,}."),
            Parameter(name="fingerprint", help="Fingerprint of an error."),
            Parameter(
                name="parameters",
                kind=dict,
                help="run_at, priority, attempts, max_attempts; reason; force.",
            ),
            Parameter(name="limit", kind=int, help="Change at most this number, oldest first."),
        ),
        answer={
            "token": "…",
            "action": "retry",
            "total": 4312,
            "by_state": {"failed": 4312},
            "locked": 0,
            "sample": [JOB_EXAMPLE],
            "expires_in": TOKEN_SECONDS,
            "is_capped": False,
            "is_complete": True,
            "max_jobs": 100_000,
            "help": ACTION_TEXTS[JobAction.RETRY].help,
            "notes": [],
            "obstacle": None,
        },
    ),
    ApiRoute(
        method="POST",
        path="/bulk",
        permission=Permission.VIEW,
        handler=start,
        summary="Start the change of a preview, of at most 100,000 jobs.",
        body=(
            Parameter(name="token", help="Token of the preview.", is_required=True),
            Parameter(name="limit", kind=int, help="Change only this number, for a trial."),
        ),
        answer=RUN_EXAMPLE,
        status=202,
    ),
    ApiRoute(
        method="GET",
        path="/bulk/{id}",
        permission=Permission.VIEW,
        handler=show,
        summary="Show how far a change is. It ends with the process of the dashboard.",
        answer=RUN_EXAMPLE,
    ),
    ApiRoute(
        method="DELETE",
        path="/bulk/{id}",
        permission=Permission.VIEW,
        handler=cancel,
        summary="Cancel a change. Jobs that it has changed stay changed.",
        answer=RUN_EXAMPLE,
    ),
)
