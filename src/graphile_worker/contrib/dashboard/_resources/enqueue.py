"""Add a job, and check its payload by the signature of its task."""

import difflib
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from graphile_worker._support.durations import parse_duration
from graphile_worker.contrib.dashboard._api import (
    COMPANION_MISSING,
    ApiRequest,
    ApiRoute,
    Parameter,
    Problem,
)
from graphile_worker.contrib.dashboard._resources._common import (
    check_storable,
    get_sample,
    read_int,
    read_list,
    read_run_at,
    read_text,
    reject,
)
from graphile_worker.contrib.dashboard._users import Permission
from graphile_worker.errors import JobSpecError, SchemaError
from graphile_worker.jobs import JobSpec
from graphile_worker.ops.adding import (
    find_payload_problems,
    list_unknown_keys,
    plan_add_for_person,
)
from graphile_worker.ops.pools import list_served_tasks
from graphile_worker.ops.search import limit_plan
from graphile_worker.tasks import Task

MAX_PAYLOAD_CHARS = 4_000_000
MAX_FLAGS = 100
MAX_NEAREST = 3
SMALLINT = 2**15


async def add_job(request: ApiRequest) -> object:
    """Add a job."""
    service = request.service
    spec, payload = _read_spec(request)
    task = _find_task(request, spec.identifier)
    problems = find_payload_problems(payload, task)
    if problems:
        raise Problem(
            422, "bad_payload", "the task cannot run with this payload", problems=problems
        )
    if task is not None:
        spec = task.options.completed(spec)
    plan = plan_add_for_person(spec, payload, service.schemas, actor=request.user.name)
    try:
        added = await service.change(limit_plan(plan, service.schemas, service.limits))
    except JobSpecError as error:
        raise reject(str(error), problems=[_show_spec_error(error)]) from error
    except SchemaError as error:
        raise Problem(409, COMPANION_MISSING, str(error)) from error
    return {"id": added.id, "is_new": added.is_new, "is_duplicate": added.is_duplicate}


async def check_job(request: ApiRequest) -> object:
    """Check a job without adding it."""
    problems: object
    try:
        spec, payload = _read_spec(request)
    except Problem as problem:
        if "problems" not in problem.more:
            raise
        name, payload = request.body["task"], None
        problems = problem.more["problems"]
    else:
        name = spec.identifier
        problems = find_payload_problems(payload, _find_task(request, name))
    known = await _list_known_tasks(request)
    nearest = [] if name in known else difflib.get_close_matches(name, known, n=MAX_NEAREST)
    return {
        "problems": problems,
        "unknown_keys": list_unknown_keys(payload, _find_task(request, name)),
        "task_is_known": name in known,
        "known_tasks_nearest": nearest,
    }


async def _list_known_tasks(request: ApiRequest) -> list[str]:
    app = request.service.app
    names = set() if app is None else {*app.tasks(), *app.external_tasks()}
    snapshot = (await get_sample(request)).snapshot
    names |= {*list_served_tasks(snapshot.pools)}
    return sorted(names | {task.identifier for task in snapshot.tasks})


def _find_task(request: ApiRequest, name: str) -> Task[..., Any] | None:
    app = request.service.app
    return None if app is None else app.find(name)


def _read_spec(request: ApiRequest) -> tuple[JobSpec, str | None]:
    body = request.body
    task = read_text(body, "task")
    if task is None:
        raise reject("task is missing")
    payload = read_text(body, "payload", max_chars=MAX_PAYLOAD_CHARS)
    flags = read_list(body, "flags", maximum=MAX_FLAGS)
    if flags is not None and not all(isinstance(each, str) for each in flags):
        raise reject("flags must be a list of texts")
    for each in flags or ():
        check_storable("flags", each)
    numbers: dict[str, Any] = {
        name: read_int(body, name, minimum=-SMALLINT, maximum=SMALLINT - 1)
        for name in ("priority", "max_attempts")
    }
    mode: Any = read_text(body, "job_key_mode")
    try:
        spec = JobSpec(
            task,
            queue_name=read_text(body, "queue_name"),
            run_at=read_run_at(body),
            job_key=read_text(body, "job_key"),
            job_key_mode=mode,
            flags=flags or None,
            unique=read_text(body, "unique"),
            unique_for=_read_length(body, "unique_for"),
            **numbers,
        )
    except JobSpecError as error:
        raise reject(str(error), problems=[_show_spec_error(error)]) from error
    return spec, payload


def _read_length(body: Mapping[str, Any], name: str) -> timedelta | None:
    text = read_text(body, name)
    length = None if text is None else parse_duration(text)
    if text is not None and length is None:
        raise reject(f"{name} must be a duration such as 1d")
    return length


def _show_spec_error(error: JobSpecError) -> dict[str, str]:
    return {"path": error.argument, "message": error.reason}


BODY = (
    Parameter(name="task", help="Identifier of the task.", is_required=True),
    Parameter(name="payload", help="Payload as JSON text (default: an empty object)."),
    Parameter(name="queue_name", help="Named queue."),
    Parameter(name="run_at", help="Time in RFC 3339, or a delay such as 10m (default: now)."),
    Parameter(name="priority", kind=int, help="Priority; lower numbers run first."),
    Parameter(name="max_attempts", kind=int, help="Number of attempts."),
    Parameter(name="job_key", help="Unique key."),
    Parameter(name="job_key_mode", help="replace, preserve_run_at or unsafe_dedupe."),
    Parameter(name="flags", kind=list, help="Flags."),
    Parameter(name="unique", help="Unique key of a window, in which no other job is added."),
    Parameter(name="unique_for", help="Length of the window, such as 1d. Required with unique."),
)

ROUTES = (
    ApiRoute(
        method="POST",
        path="/jobs",
        permission=Permission.ENQUEUE,
        handler=add_job,
        summary="Add a job.",
        body=BODY,
        answer={"id": "4711", "is_new": True, "is_duplicate": False},
        status=201,
    ),
    ApiRoute(
        method="POST",
        path="/jobs/check",
        permission=Permission.ENQUEUE,
        handler=check_job,
        summary="Check a job without adding it.",
        body=BODY,
        answer={
            "problems": [{"path": "width", "message": "expected an integer, got str"}],
            "unknown_keys": ["widthh"],
            "task_is_known": True,
            "known_tasks_nearest": [],
        },
    ),
)
