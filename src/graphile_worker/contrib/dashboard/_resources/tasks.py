"""Tasks: their jobs by state, whether a worker runs them, pause and resume."""

import difflib
from functools import lru_cache
from typing import Any

from graphile_worker.contrib.dashboard._api import ApiRequest, ApiRoute
from graphile_worker.contrib.dashboard._redaction import Redactor
from graphile_worker.contrib.dashboard._resources import _pauses
from graphile_worker.contrib.dashboard._resources._common import (
    EXAMPLE_TIME,
    get_redactor,
    get_sample,
)
from graphile_worker.contrib.dashboard._resources._pauses import (
    PAUSE_EXAMPLE,
    get_pauses,
    show_pause,
)
from graphile_worker.contrib.dashboard._users import Permission
from graphile_worker.ops.adding import describe_parameters
from graphile_worker.ops.pauses import Pause, PauseKind, plan_pause_task
from graphile_worker.ops.pools import is_served, list_served_tasks
from graphile_worker.ops.snapshot import Snapshot, TaskCount
from graphile_worker.ops.states import JobState
from graphile_worker.ops.text import summarize_error

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
    return {
        "identifier": task.identifier,
        "counts": {str(state): task[state] for state in JobState},
        "oldest_ready_seconds": task.oldest_ready,
        "first_ready_id": task.first_ready,
        "newest_failing_id": task.newest_failing,
        "error": None if error is None else redactor.redact_text(error),
        "is_served": is_run,
        "nearest": None if is_run else _find_nearest(task.identifier, served),
        "paused": show_pause(pause),
        "signature": None if found is None else describe_parameters(found),
    }


@lru_cache(maxsize=MAX_TASKS)
def _find_nearest(name: str, served: tuple[str, ...]) -> str | None:
    """Find the served task that a misspelled name may mean."""
    return next(iter(difflib.get_close_matches(name, served, n=1)), None)


async def pause_task(request: ApiRequest) -> object:
    """Pause a task for Python workers."""
    return await _pauses.pause(request, PauseKind.TASK, plan_pause_task)


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
            "tasks": [
                {
                    "identifier": "send_email",
                    "counts": dict.fromkeys(map(str, JobState), 0),
                    "oldest_ready_seconds": 61.5,
                    "first_ready_id": "4711",
                    "newest_failing_id": "4712",
                    "error": "TimeoutError: no answer",
                    "is_served": True,
                    "nearest": None,
                    "paused": PAUSE_EXAMPLE,
                    "signature": [
                        {"name": "to", "type": "str", "default": None, "is_required": True}
                    ],
                }
            ],
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
