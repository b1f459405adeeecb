"""Limits of tasks: their values and their use, and set and reset while workers run."""

from collections.abc import Mapping
from typing import Any

from graphile_worker._sql.query import Plan
from graphile_worker.contrib.dashboard._api import (
    COMPANION_MISSING,
    ApiRequest,
    ApiRoute,
    Parameter,
    Problem,
)
from graphile_worker.contrib.dashboard._resources._common import (
    EXAMPLE_TIME,
    Cache,
    get_now,
    get_sample,
    read_int,
    read_path_text,
    read_text,
    reject,
)
from graphile_worker.contrib.dashboard._users import Permission
from graphile_worker.contrib.dashboard._wording import link_ready_jobs
from graphile_worker.errors import ConfigurationError, SchemaError, SchemaMissing
from graphile_worker.limits import MAX_BURST, ConcurrencyLimit, RateLimit
from graphile_worker.ops.limits import (
    LimitState,
    encode_limit,
    encode_state,
    format_change,
    format_limit,
    format_use,
    parse_limit,
    plan_can_read_limits,
    plan_get_slot_renters,
    plan_list_limits,
    plan_reset_limit,
    plan_set_rate,
    plan_set_slots,
)
from graphile_worker.ops.pools import find_task_limits
from graphile_worker.ops.search import limit_plan
from graphile_worker.ops.states import JobState
from graphile_worker.tasks.router import find_limits

MAX_SHOWN = 500

EFFECT = "Workers follow within seconds."
NOT_STORED = (
    "Limits are stored in the companion schema. Its tables are missing, or this role may not read "
    "them. Run graphile-worker migrate as the owner."
)
NO_LIMITS = "A limit appears here when a worker starts that has a task with limit=."

_LIMITS = Cache(seconds=1.0)


async def list_limits(request: ApiRequest) -> object:
    """List limits, those whose tasks have the most ready jobs first."""
    states = await get_limits(request)
    tasks = await list_limited_tasks(request)
    sample = await get_sample(request)
    ready = {task.identifier: task[JobState.READY] for task in sample.snapshot.tasks}
    found = states or []
    service = request.service
    names = [each.name for each in found]
    renters = await service.read(plan_get_slot_renters(names, service.schemas)) if names else {}
    rows = [
        _show_limit(each, tasks.get(each.name, []), ready, renters.get(each.name, {}))
        for each in found
    ]
    rows.sort(key=lambda row: (-row["ready"], row["name"]))
    return {
        "now": await get_now(request),
        "is_stored": states is not None,
        "limits": rows[:MAX_SHOWN],
        "view": {"empty": ["No limits", NOT_STORED if states is None else NO_LIMITS]},
    }


async def get_limits(request: ApiRequest) -> list[LimitState] | None:
    """Return the limits, or None if this role cannot read their tables, or they are missing."""
    service = request.service

    async def read() -> list[LimitState] | None:
        if not await service.read(plan_can_read_limits(service.schemas)):
            return None
        return await service.read(plan_list_limits(service.schemas))

    return await _LIMITS.get(service, read)


async def list_limited_tasks(request: ApiRequest) -> Mapping[str, list[str]]:
    """List the tasks of each limit, as the workers and the app report them."""
    app = request.service.app
    sample = await get_sample(request)
    limits = {task: set(names) for task, names in find_task_limits(sample.snapshot.pools).items()}
    for task, own in ({} if app is None else find_limits(app.tasks())).items():
        limits.setdefault(task, set()).update(each.name or task for each in own)
    tasks: dict[str, list[str]] = {}
    for task, names in sorted(limits.items()):
        for name in names:
            tasks.setdefault(name, []).append(task)
    return tasks


def _show_limit(
    state: LimitState, tasks: list[str], ready: Mapping[str, int], renters: Mapping[str, int]
) -> dict[str, Any]:
    count = sum(ready.get(task, 0) for task in tasks)
    is_set = state.set_at is not None
    return encode_state(state) | {
        "value": format_limit(state.limit),
        "tasks": tasks,
        "ready": count,
        "rented": [{"worker": id, "slots": slots} for id, slots in renters.items()],
        "limit_text": str(state.limit),
        "app_text": _describe_origin(state) if is_set else None,
        "use_text": [
            format_use(state),
            *({"small": [f"{slots} by ", {"worker": id}]} for id, slots in renters.items()),
        ],
        "tasks_text": _join([{"task": task} for task in tasks]),
        "ready_text": {"link": [f"{count:,}", link_ready_jobs(tasks)]} if count else "0",
        "actions": [
            "set_slots" if isinstance(state.limit, ConcurrencyLimit) else "set_rate",
            *["reset_limit"] * is_set,
        ],
    }


def _describe_origin(state: LimitState) -> list[object]:
    who = state.set_by or "an unknown user"
    return [
        str(state.defined),
        {"small": [f"changed by {who} ", {"ago": state.set_at}]},
    ]


def _join(parts: list[Any]) -> list[Any]:
    return [each for part in parts for each in (", ", part)][1:]


async def set_limit(request: ApiRequest) -> object:
    """Set the values of the limit that the path names."""
    service, name = request.service, read_path_text(request, "name")
    value = read_text(request.body, "value")
    if value is None:
        raise reject("value is missing: pass for example 20 or 50/1m")
    burst = read_int(request.body, "burst", minimum=1, maximum=MAX_BURST)
    actor = request.user.name
    plan: Plan[LimitState]
    try:
        limit = parse_limit(value, burst=burst)
        if isinstance(limit, RateLimit):
            plan = plan_set_rate(
                name, limit.starts, limit.per, service.schemas, burst=burst, actor=actor
            )
        else:
            plan = plan_set_slots(name, limit.slots, service.schemas, actor=actor)
    except ConfigurationError as error:
        raise reject(str(error)) from error
    state = await _change(request, plan)
    return {
        "limit": encode_limit(state.limit),
        "sentence": f"The limit “{name}” is {format_change(state)}. {EFFECT}",
    }


async def reset_limit(request: ApiRequest) -> object:
    """Let the values of the app be in force again."""
    name = read_path_text(request, "name")
    plan = plan_reset_limit(name, request.service.schemas, actor=request.user.name)
    state = await _change(request, plan)
    what = f"is {state.limit} again. {EFFECT}" if state else "has the values of the app."
    return {
        "limit": None if state is None else encode_limit(state.limit),
        "sentence": f"The limit “{name}” {what}",
    }


async def _change(request: ApiRequest, plan: Plan[Any]) -> Any:
    service = request.service
    try:
        return await service.change(limit_plan(plan, service.schemas, service.limits))
    except SchemaMissing:
        raise
    except SchemaError as error:
        raise Problem(409, COMPANION_MISSING, str(error)) from error
    except ConfigurationError as error:
        raise reject(str(error)) from error
    finally:
        _LIMITS.clear(service)


RATE_EXAMPLE: dict[str, Any] = {"starts": 100, "per_seconds": 60.0, "burst": 20}

ROUTES = (
    ApiRoute(
        method="GET",
        path="/limits",
        permission=Permission.VIEW,
        handler=list_limits,
        summary="List the limits of tasks: those with the most ready jobs first.",
        answer={
            "now": EXAMPLE_TIME,
            "is_stored": True,
            "limits": [
                {
                    "name": "stripe",
                    "kind": "rate",
                    **RATE_EXAMPLE,
                    "app": {},
                    "set_by": "ada",
                    "set_at": EXAMPLE_TIME,
                    "used_slots": None,
                    "seconds_until_next": 0.4,
                    "is_wanted": False,
                    "value": "100/1m",
                    "tasks": ["charge", "refund"],
                    "ready": 30,
                    "rented": [],
                    "limit_text": "100 per 1m, burst 20",
                    "app_text": "50 per 1m",
                    "use_text": ["next start in 0.4s"],
                    "tasks_text": "charge, refund",
                    "ready_text": "30",
                    "actions": ["set_rate", "reset_limit"],
                }
            ],
            "view": {},
        },
    ),
    ApiRoute(
        method="POST",
        path="/limits/{name}/set",
        permission=Permission.LIMIT,
        handler=set_limit,
        summary="Set the values of a limit, until they are reset.",
        body=(
            Parameter(name="value", help="Slots, or starts and a period: 50/1m.", is_required=True),
            Parameter(name="burst", kind=int, help="Burst of a rate (default: as before)."),
        ),
        answer={"limit": RATE_EXAMPLE, "sentence": "The limit “stripe” is 50 per 1m."},
    ),
    ApiRoute(
        method="POST",
        path="/limits/{name}/reset",
        permission=Permission.LIMIT,
        handler=reset_limit,
        summary="Use the values of the app again.",
        answer={"limit": RATE_EXAMPLE, "sentence": "The limit “stripe” is 100 per 1m again."},
    ),
)
