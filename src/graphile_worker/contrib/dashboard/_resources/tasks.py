"""Tasks: their jobs by state, whether a worker runs them, pause and resume."""

import difflib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from graphile_worker.contrib.dashboard._api import ApiRequest, ApiRoute, Problem
from graphile_worker.contrib.dashboard._redaction import Redactor
from graphile_worker.contrib.dashboard._resources import _pauses
from graphile_worker.contrib.dashboard._resources._common import (
    EXAMPLE_TIME,
    get_redactor,
    get_sample,
    read_path_text,
)
from graphile_worker.contrib.dashboard._resources._pauses import (
    PAUSE_EXAMPLE,
    describe_pause_parts,
    get_pauses,
    show_pause,
)
from graphile_worker.contrib.dashboard._resources.limits import list_limited_tasks
from graphile_worker.contrib.dashboard._texts import STATE_HELP
from graphile_worker.contrib.dashboard._users import Permission
from graphile_worker.contrib.dashboard._wording import format_age, link_jobs
from graphile_worker.ops.adding import TaskParameter, describe_parameters
from graphile_worker.ops.pauses import Pause, PauseKind, plan_pause_task
from graphile_worker.ops.pools import is_served, list_served_tasks
from graphile_worker.ops.snapshot import Snapshot, TaskCount
from graphile_worker.ops.states import JobState
from graphile_worker.ops.text import summarize_error

NO_APP = "The dashboard runs without the app that defines this task."

MAX_TASKS = 1_000
MAX_ERROR_CHARS = 500


async def list_tasks(request: ApiRequest) -> object:
    """List tasks, those with the oldest ready job and those that fail first."""
    sample = await get_sample(request)
    snapshot, app = sample.snapshot, request.service.app
    counts = {task.identifier: task for task in snapshot.tasks}
    served = tuple(list_served_tasks(snapshot.pools))
    names = {*counts, *served}
    if app is not None:
        names |= app.tasks().keys()
    pauses = await get_pauses(request, PauseKind.TASK)
    names |= pauses.keys()
    redactor = get_redactor(request.service)
    tasks = [counts.get(name, TaskCount(identifier=name)) for name in names]
    tasks.sort(key=_build_urgency)
    return {
        "now": sample.now,
        "age_seconds": round(sample.age, 1),
        "is_partial": sample.is_partial,
        "task_count": len(tasks),
        "tasks": [
            _show_task(request, task, snapshot, served, pauses.get(task.identifier), redactor)
            for task in tasks[:MAX_TASKS]
        ],
    }


async def show_task(request: ApiRequest) -> object:
    """Show a task: its jobs by state, its parameters and its limits."""
    name = read_path_text(request, "name")
    sample = await get_sample(request)
    snapshot, app = sample.snapshot, request.service.app
    served = tuple(list_served_tasks(snapshot.pools))
    count = next((task for task in snapshot.tasks if task.identifier == name), None)
    pause = (await get_pauses(request, PauseKind.TASK)).get(name)
    is_known = app is not None and app.find(name) is not None
    if count is None and pause is None and name not in served and not is_known:
        raise Problem(404, "not_found", f"no job and no worker has the task {name}")
    redactor = get_redactor(request.service)
    task = _show_task(
        request, count or TaskCount(identifier=name), snapshot, served, pause, redactor
    )
    limits = [each for each, tasks in (await list_limited_tasks(request)).items() if name in tasks]
    return {
        "now": sample.now,
        "age_seconds": round(sample.age, 1),
        "is_partial": sample.is_partial,
        **task,
        "view": {
            "title": name,
            "hint": {"link": ["All tasks", "tasks"]},
            "actions": ["enqueue_task", "resume_task" if pause else "pause_task"],
            "notices": _list_notices(task, pause),
            "stats": _list_stats(task),
            "latency_of": name,
            "panels": _list_panels(task, limits),
        },
    }


def _list_notices(task: Mapping[str, Any], pause: Pause | None) -> list[object]:
    notices: list[object] = []
    if pause is not None:
        parts = ["Paused ", *describe_pause_parts(pause), ". Python workers only."]
        notices.append({"kind": "warn", "text": parts})
    if task["is_served"] is False:
        parts = ["No running worker serves this task.", *_suggest(task["nearest"])]
        notices.append({"kind": "error", "text": parts})
    return notices


def _list_stats(task: Mapping[str, Any]) -> list[object]:
    name, oldest, first = task["identifier"], task["oldest_ready_seconds"], task["first_ready_id"]
    return [
        {
            "label": "Oldest ready",
            "value": "–" if oldest is None else format_age(oldest),
            "note": None if first is None else ["job ", {"job": str(first)}],
        },
        *(
            {
                "label": {"state": state},
                "value": f"{task['counts'][state]:,}",
                "link": link_jobs(state, task=name),
            }
            for state in STATE_HELP
        ),
    ]


def _list_panels(task: Mapping[str, Any], limits: list[str]) -> list[object]:
    panels: list[object] = [task["parameters"]]
    if limits:
        panels.append({"title": "Limits", "list": [{"link": [each, "limits"]} for each in limits]})
    if task["error"]:
        failing = task["newest_failing_id"]
        hint = None if failing is None else ["of job ", {"job": str(failing)}]
        panels.append({"title": "Newest error", "hint": hint, "text": {"mono": task["error"]}})
    return panels


def _describe_parameters(parameters: list[TaskParameter] | None) -> dict[str, object]:
    """Return the parameters of a task as a panel."""
    title = "Parameters"
    if parameters is None:
        return {"title": title, "text": {"muted": NO_APP}}
    if not parameters:
        return {"title": title, "text": {"muted": "None."}}
    facts = [[each.name, {"mono": _describe_type(each)}] for each in parameters]
    return {"title": title, "facts": facts}


def _describe_type(parameter: TaskParameter) -> str:
    default = "" if parameter.default is None else f" = {parameter.default}"
    return f"{parameter.type or 'any'}{default}"


def _describe_service(is_run: bool | None, nearest: str | None, pause: Pause | None) -> object:
    """Return whether workers run a task. Some workers do not report their tasks."""
    if pause is not None:
        return {"state": "paused"}
    if is_run:
        return {"state": ["ok", "Served"]}
    state = {"state": "unknown" if is_run is None else ["failed", "Not served"]}
    return [state, *[{"small": _suggest(nearest)}] * bool(nearest)]


def _suggest(nearest: str | None) -> list[object]:
    return [" Did you mean ", {"task": nearest}, "?"] if nearest else []


def _build_urgency(task: TaskCount) -> tuple[float, int, str]:
    return -(task.oldest_ready or 0.0), -task.failing, task.identifier


def _show_task(
    request: ApiRequest,
    task: TaskCount,
    snapshot: Snapshot,
    served: tuple[str, ...],
    pause: Pause | None,
    redactor: Redactor,
) -> dict[str, Any]:
    app = request.service.app
    found = None if app is None else app.find(task.identifier)
    error = summarize_error(task.error)[:MAX_ERROR_CHARS] or None
    is_run = is_served(snapshot.pools, task.identifier)
    nearest = None if is_run else _find_nearest(task.identifier, served)
    parameters = None if found is None else describe_parameters(found)
    return {
        "identifier": task.identifier,
        "counts": {str(state): task[state] for state in JobState},
        "oldest_ready_seconds": task.oldest_ready,
        "first_ready_id": task.first_ready,
        "newest_failing_id": task.newest_failing,
        "error": None if error is None else redactor.redact_text(error),
        "is_served": is_run,
        "nearest": nearest,
        "paused": show_pause(pause),
        "signature": parameters,
        "parameters": _describe_parameters(parameters),
        "served": _describe_service(is_run, nearest, pause),
        "actions": ["enqueue", "resume_task" if pause else "pause_task"],
    }


@lru_cache(maxsize=MAX_TASKS)
def _find_nearest(name: str, served: tuple[str, ...]) -> str | None:
    """Find the served task that a misspelled name may mean."""
    return next(iter(difflib.get_close_matches(name, served, n=1)), None)


async def pause_task(request: ApiRequest) -> object:
    """Pause a task for Python workers."""
    return await _pauses.pause(request, PauseKind.TASK, plan_pause_task)


TASK_EXAMPLE: dict[str, Any] = {
    "identifier": "send_email",
    "counts": dict.fromkeys(map(str, JobState), 0),
    "oldest_ready_seconds": 61.5,
    "first_ready_id": "4711",
    "newest_failing_id": "4712",
    "error": "TimeoutError: no answer",
    "is_served": True,
    "nearest": None,
    "paused": PAUSE_EXAMPLE,
    "signature": [{"name": "to", "type": "str", "default": None, "is_required": True}],
    "parameters": {},
    "served": "Paused",
    "actions": ["enqueue", "resume_task"],
}

ROUTES = (
    ApiRoute(
        method="GET",
        path="/tasks",
        permission=Permission.VIEW,
        handler=list_tasks,
        summary="List tasks and their jobs by state, the most urgent first.",
        answer={
            "now": EXAMPLE_TIME,
            "age_seconds": 0.4,
            "is_partial": False,
            "task_count": 1,
            "tasks": [TASK_EXAMPLE],
        },
    ),
    ApiRoute(
        method="GET",
        path="/tasks/{name}",
        permission=Permission.VIEW,
        handler=show_task,
        summary="Show a task, its parameters and its limits.",
        answer={
            "now": EXAMPLE_TIME,
            "age_seconds": 0.4,
            "is_partial": False,
            **TASK_EXAMPLE,
            "view": {},
        },
    ),
    ApiRoute(
        method="POST",
        path="/tasks/{name}/pause",
        permission=Permission.PAUSE,
        handler=pause_task,
        summary="Pause a task for Python workers.",
        body=_pauses.BODY,
        answer=_pauses.PAUSE_ANSWER,
    ),
    ApiRoute(
        method="POST",
        path="/tasks/{name}/resume",
        permission=Permission.PAUSE,
        handler=_pauses.resume_task,
        summary="Resume a task.",
        answer=_pauses.RESUME_ANSWER,
    ),
)
