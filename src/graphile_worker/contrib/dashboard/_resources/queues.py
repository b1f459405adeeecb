"""Named queues: which worker has locked each, which jobs wait, pause and resume."""

from typing import Any

from graphile_worker._support.text import pluralize
from graphile_worker.contrib.dashboard._api import ApiRequest, ApiRoute, Parameter
from graphile_worker.contrib.dashboard._resources import _pauses
from graphile_worker.contrib.dashboard._resources._common import (
    EXAMPLE_TIME,
    read_limit,
    read_text,
    reject,
)
from graphile_worker.contrib.dashboard._resources._pauses import (
    PAUSE_EXAMPLE,
    describe_pause_parts,
    get_pauses,
    show_pause,
)
from graphile_worker.contrib.dashboard._users import Permission
from graphile_worker.ops.pauses import Pause, PauseKind, plan_pause_queue
from graphile_worker.ops.pools import PoolHealth
from graphile_worker.ops.queues import NamedQueue, QueuePosition, QueueState, plan_list_queues

MAX_PAGE = 200


async def list_queues(request: ApiRequest) -> object:
    """List named queues: blocked, paused and locked ones first, then by name."""
    service = request.service
    page = await service.read(
        plan_list_queues(
            service.schemas,
            search=read_text(request.query, "q") or "",
            after=_read_position(request),
            limit=read_limit(request, default=100, maximum=MAX_PAGE),
            limits=service.limits,
        )
    )
    pauses = await get_pauses(request, PauseKind.QUEUE)
    blocked = sum(queue.state is QueueState.BLOCKED for queue in page.queues)
    return {
        "now": page.now,
        "queues": [_show_queue(queue, pauses.get(queue.name)) for queue in page.queues],
        "next": None if page.next is None else f"{page.next.rank}:{page.next.name}",
        "view": {
            "notices": [{"kind": "error", "text": _describe_blocked(blocked)}] * (blocked > 0)
        },
    }


def _describe_blocked(count: int) -> str:
    return (
        f"Stale locks block {pluralize(count, 'queue')}. Recover the worker to release its locks "
        "now."
    )


def _read_position(request: ApiRequest) -> QueuePosition | None:
    text = read_text(request.query, "after")
    if text is None:
        return None
    rank, colon, name = text.partition(":")
    if rank not in ("0", "1", "2") or not colon:
        raise reject("after must be `next` of another page")
    return QueuePosition(int(rank), name)


def _show_queue(queue: NamedQueue, pause: Pause | None) -> dict[str, Any]:
    is_paused = queue.state is QueueState.PAUSED
    actions = ["resume_queue" if is_paused else "pause_queue"]
    if queue.state is QueueState.BLOCKED:
        actions.insert(0, f"recover_{queue.worker_health or PoolHealth.UNKNOWN}")
    return {
        "name": queue.name,
        "state": queue.state,
        "locked_by": queue.locked_by,
        "worker_health": queue.worker_health,
        "since": queue.locked_at if pause is None else pause.since,
        "job_id": queue.job_id,
        "task": queue.task_identifier,
        "ready": queue.ready,
        "waiting": queue.waiting,
        "is_capped": queue.is_capped,
        "oldest_waiting_seconds": queue.oldest_due_seconds,
        "paused": show_pause(pause) if is_paused else None,
        "worker": queue.locked_by,
        "holder": describe_pause_parts(pause) if is_paused and pause else _describe_holder(queue),
        "actions": actions,
    }


def _describe_holder(queue: NamedQueue) -> list[object] | None:
    if queue.locked_by is None or queue.state is QueueState.PAUSED:
        return None
    job = [] if queue.job_id is None else ["job ", {"job": str(queue.job_id)}]
    task = [f" {queue.task_identifier} on "] if job else []
    dead = [" ", {"bad": "dead"}] if queue.worker_health is PoolHealth.DEAD else []
    return [*job, *task, {"worker": queue.locked_by}, *dead]


async def pause_queue(request: ApiRequest) -> object:
    """Pause a queue for workers in every language."""
    return await _pauses.pause(request, PauseKind.QUEUE, plan_pause_queue)


ROUTES = (
    ApiRoute(
        method="GET",
        path="/queues",
        permission=Permission.VIEW,
        handler=list_queues,
        summary="List named queues: those that are blocked, paused or locked first.",
        query=(
            Parameter(name="q", help="Part of the name."),
            Parameter(name="after", help="`next` of the page before."),
            Parameter(name="limit", kind=int, help=f"Size of the page, at most {MAX_PAGE}."),
        ),
        answer={
            "now": EXAMPLE_TIME,
            "queues": [
                {
                    "name": "invoices",
                    "state": "locked",
                    "locked_by": "pypool-0123456789abcdef01",
                    "worker_health": "alive",
                    "since": EXAMPLE_TIME,
                    "job_id": "4711",
                    "task": "send_invoice",
                    "ready": 0,
                    "waiting": 12,
                    "is_capped": False,
                    "oldest_waiting_seconds": 61.5,
                    "paused": PAUSE_EXAMPLE,
                    "worker": "pypool-0123456789abcdef01",
                    "holder": "job 4711 send_invoice on pypool-0123456789abcdef01",
                    "actions": ["pause_queue"],
                }
            ],
            "next": "1:invoices",
            "view": {},
        },
    ),
    ApiRoute(
        method="POST",
        path="/queues/{name}/pause",
        permission=Permission.PAUSE,
        handler=pause_queue,
        summary="Pause a named queue for workers in every language.",
        body=_pauses.BODY,
        answer=_pauses.PAUSE_ANSWER,
    ),
    ApiRoute(
        method="POST",
        path="/queues/{name}/resume",
        permission=Permission.PAUSE,
        handler=_pauses.resume_queue,
        summary="Resume a named queue.",
        answer=_pauses.RESUME_ANSWER,
    ),
)
