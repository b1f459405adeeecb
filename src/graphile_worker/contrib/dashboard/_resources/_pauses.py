"""Pauses of queues and tasks, as the API shows and changes them."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from graphile_worker._sql.query import Plan
from graphile_worker.contrib.dashboard._api import (
    COMPANION_MISSING,
    ApiRequest,
    Parameter,
    Problem,
)
from graphile_worker.contrib.dashboard._resources._common import (
    EXAMPLE_TIME,
    Cache,
    read_int,
    read_path_text,
    read_text,
)
from graphile_worker.contrib.dashboard._wording import describe_pause
from graphile_worker.errors import QueueBusy, SchemaError, SchemaMissing
from graphile_worker.ops.pauses import (
    Pause,
    PauseKind,
    plan_list_pause_warnings,
    plan_list_pauses,
    plan_resume_queue,
    plan_resume_task,
)
from graphile_worker.ops.queues import QueueState, plan_list_queues
from graphile_worker.ops.search import limit_plan

MAX_SECONDS = 366 * 86_400
MAX_REASON_CHARS = 500
MAX_QUEUES = 200

_PAUSES = Cache(seconds=1.0)

PAUSE_EXAMPLE = {"by": "ada", "reason": "mail is down", "since": EXAMPLE_TIME, "until": None}
PAUSE_ANSWER: dict[str, Any] = {
    "paused": PAUSE_EXAMPLE,
    "warnings": ["…"],
    "sentence": "The queue “mail” is paused.",
}
RESUME_ANSWER: dict[str, Any] = {
    "paused": None,
    "was_paused": True,
    "sentence": "The queue “mail” is resumed.",
}

BODY = (
    Parameter(name="seconds", kind=int, help="The pause ends after this time (default: never)."),
    Parameter(name="reason", help="Why, for other people."),
)


async def get_pauses(request: ApiRequest, kind: PauseKind) -> dict[str, Pause]:
    """Return the pauses of a kind by name."""
    service = request.service

    async def read() -> list[Pause]:
        return await service.read(plan_list_pauses(service.schemas))

    found = await _PAUSES.get(service, read)
    return {each.name: each for each in found if each.kind is kind}


def show_pause(pause: Pause | None) -> dict[str, Any] | None:
    """Return a pause."""
    if pause is None:
        return None
    return {"by": pause.by, "reason": pause.reason, "since": pause.since, "until": pause.until}


def describe_pause_parts(pause: Pause) -> list[object]:
    """Describe who paused, until when and why."""
    until = "resumed" if pause.until is None else {"at": pause.until}
    reason = f": {pause.reason}" if pause.reason else ""
    return [f"by {pause.by or 'an unknown user'} until ", until, reason]


async def pause(
    request: ApiRequest, kind: PauseKind, build_plan: Callable[..., Plan[Pause]]
) -> object:
    """Pause what the path names."""
    service, name = request.service, read_path_text(request, "name")
    seconds = read_int(request.body, "seconds", minimum=1, maximum=MAX_SECONDS)
    reason = read_text(request.body, "reason", max_chars=MAX_REASON_CHARS)
    duration = None if seconds is None else timedelta(seconds=seconds)
    warnings = await service.read(
        plan_list_pause_warnings(
            kind, name, service.schemas, duration=duration, limits=service.limits
        )
    )
    plan = build_plan(
        name, service.schemas, duration=duration, reason=reason, actor=request.user.name
    )
    return {
        "paused": show_pause(await _change(request, plan)),
        "warnings": warnings,
        "sentence": describe_pause(kind, name, "paused", warnings),
    }


async def resume_task(request: ApiRequest) -> object:
    """Resume the task that the path names."""
    name = read_path_text(request, "name")
    plan = plan_resume_task(name, request.service.schemas, actor=request.user.name)
    was_paused = await _change(request, plan)
    return {
        "paused": None,
        "was_paused": was_paused,
        "sentence": describe_pause(PauseKind.TASK, name, "resumed"),
    }


async def resume_queue(request: ApiRequest) -> object:
    """Resume the queue that the path names."""
    service, name = request.service, read_path_text(request, "name")
    plan = plan_resume_queue(name, service.schemas, actor=request.user.name)
    was_paused = await _change(request, plan)
    if not was_paused:
        page = await service.read(
            plan_list_queues(service.schemas, search=name, limit=MAX_QUEUES, limits=service.limits)
        )
        for queue in page.queues:
            if queue.name == name and queue.state is QueueState.PAUSED:
                raise Problem(
                    409,
                    "conflict",
                    f"queue {name!r} is still paused: {queue.locked_by!r} has locked it, which is "
                    "not a pause of Graphile Worker for Python. Resume it with the program that "
                    "paused it.",
                    locked_by=queue.locked_by,
                )
    return {
        "paused": None,
        "was_paused": was_paused,
        "sentence": describe_pause(PauseKind.QUEUE, name, "resumed"),
    }


async def _change(request: ApiRequest, plan: Plan[Any]) -> Any:
    service = request.service
    try:
        return await service.change(limit_plan(plan, service.schemas, service.limits))
    except QueueBusy as error:
        raise Problem(409, "conflict", str(error)) from error
    except SchemaMissing:
        raise
    except SchemaError as error:
        raise Problem(409, COMPANION_MISSING, str(error)) from error
    finally:
        _PAUSES.clear(service)
