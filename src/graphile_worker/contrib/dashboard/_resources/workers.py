"""Workers: which are alive, what they hold, and release the jobs of dead ones."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from graphile_worker._sql.plans.admin import plan_recover_jobs
from graphile_worker._support.text import pluralize
from graphile_worker.contrib.dashboard._api import ApiRequest, ApiRoute, Parameter
from graphile_worker.contrib.dashboard._resources._common import (
    EXAMPLE_TIME,
    check_storable,
    get_sample,
    read_bool,
    read_list,
    read_text,
    reject,
)
from graphile_worker.contrib.dashboard._resources.errors import forget_groups
from graphile_worker.contrib.dashboard._users import Permission
from graphile_worker.contrib.dashboard._view import build_recovery
from graphile_worker.contrib.dashboard._wording import describe_recovery
from graphile_worker.ops.pauses import PAUSED_PREFIX
from graphile_worker.ops.pools import PoolHealth, PoolInfo, plan_get_lock_holders
from graphile_worker.ops.search import limit_plan, with_limits

SILENT_WORKERS = "Workers of Node send no heartbeats. They appear here while they hold locks."

MAX_IDS = 100
MAX_WORKERS = 1_000

# The worst first.
HEALTH_ORDER = (PoolHealth.DEAD, PoolHealth.UNKNOWN, PoolHealth.ALIVE)


async def list_workers(request: ApiRequest) -> object:
    """List workers, those that are dead first."""
    sample = await get_sample(request)
    pools = sorted(
        sample.snapshot.pools, key=lambda pool: (HEALTH_ORDER.index(pool.health), pool.id)
    )
    id = read_text(request.query, "id")
    if id is not None:
        pools = [pool for pool in pools if pool.id == id]
    return {
        "now": sample.now,
        "age_seconds": round(sample.age, 1),
        "is_partial": sample.is_partial,
        "worker_count": len(pools),
        "workers": [_show_worker(pool) for pool in pools[:MAX_WORKERS]],
        "view": _build_view(pools) | ({} if id is None else _build_item_view(pools)),
    }


def _build_view(pools: list[PoolInfo]) -> dict[str, object]:
    """Build what the page shows around its table: a summary, notices, and one action."""
    notices = []
    healths = [pool.health for pool in pools]
    if PoolHealth.UNKNOWN in healths:
        notices.append(SILENT_WORKERS)
    alive = [pool for pool in pools if pool.health is PoolHealth.ALIVE]
    versions = sorted({_describe_version(pool) for pool in alive})
    if len(versions) > 1:
        count = len(versions)
        notices.append(f"Workers of {count} versions are running: {', '.join(versions)}.")
    dead = [pool.id for pool in pools if pool.health is PoolHealth.DEAD and _describe_locks(pool)]
    name, label = f"{len(dead)} dead workers", f"Recover all {len(dead)} dead…"
    counts = [f"{healths.count(each)} {each}" for each in reversed(HEALTH_ORDER)]
    return {
        "hint": ", ".join(counts) if pools else None,
        "notices": [{"text": text} for text in notices],
        "actions": [build_recovery(PoolHealth.DEAD, dead, name, label)] if len(dead) > 1 else [],
    }


def _build_item_view(pools: list[PoolInfo]) -> dict[str, object]:
    tasks = [{"task": task} for pool in pools for task in pool.tasks or ()]
    return {
        "hint": {"link": ["All workers", "workers"]},
        "panels": [{"title": "Tasks", "list": tasks}] if tasks else [],
    }


def _describe_version(pool: PoolInfo) -> str:
    return " ".join(filter(None, (pool.runtime, pool.version)))


def _describe_process(pool: PoolInfo) -> str:
    host = f"on {pool.host}" if pool.host else None
    process = f"process {pool.pid}" if pool.pid else None
    return ", ".join(filter(None, (_describe_version(pool), host, process)))


def _describe_locks(pool: PoolInfo) -> str | None:
    counts = {"job": pool.jobs, "queue": pool.queues}
    return ", ".join(pluralize(count, noun) for noun, count in counts.items() if count) or None


async def recover(request: ApiRequest) -> object:
    """Release the jobs and queues of workers. One that may be alive needs `force`."""
    service = request.service
    ids = _read_ids(request)
    force = read_bool(request.body, "force")
    confirm = read_text(request.body, "confirm")
    by_index = replace(service.limits, prefer_indexes=True)
    pools = await service.read(
        plan_get_lock_holders(
            service.schemas, lambda query: with_limits(query, service.schemas, by_index)
        )
    )
    known = {pool.id: pool for pool in pools}
    obstacles = {
        each: _find_obstacle(each, known.get(each), is_forced=force, confirm=confirm)
        for each in ids
    }
    chosen = [each for each, why in obstacles.items() if why is None]
    jobs = []
    if chosen:
        plan = plan_recover_jobs(chosen, timedelta(0), service.schemas, actor=request.user.name)
        jobs = await service.change(limit_plan(plan, service.schemas, service.limits))
        forget_groups(request)
    queues = sum(known[each].queues for each in chosen)
    rejected = {each: why for each, why in obstacles.items() if why}
    return {
        "jobs": len(jobs),
        "queues": queues,
        "rejected": [{"id": each, "why": why} for each, why in rejected.items()],
        "sentence": describe_recovery(len(jobs), queues, rejected),
    }


def _find_obstacle(
    id: str, pool: PoolInfo | None, *, is_forced: bool, confirm: str | None
) -> str | None:
    """Return why the jobs of a worker are not released, or None."""
    if id.startswith(PAUSED_PREFIX):
        return "This is a paused queue. Resume it."
    if pool is None:
        return "No worker with this id is registered or holds a lock."
    if pool.health is PoolHealth.DEAD:
        return None
    is_alive = pool.health is PoolHealth.ALIVE
    state = (
        "This worker is alive" if is_alive else "This worker may be alive: it sends no heartbeats"
    )
    if not is_forced:
        return f"{state}. Its jobs would run twice. Stop it first, or use force."
    if confirm != id:
        return f"{state}. Type its id to confirm that its jobs may run twice."
    return None


def _read_ids(request: ApiRequest) -> list[str]:
    ids = read_list(request.body, "ids", maximum=MAX_IDS)
    if not ids or not all(isinstance(each, str) and each for each in ids):
        raise reject("ids must be a list of ids of workers")
    return list(dict.fromkeys(check_storable("ids", each) for each in ids))


def _show_worker(pool: PoolInfo) -> dict[str, Any]:
    holds = _describe_locks(pool)
    return {
        "id": pool.id,
        "runtime": pool.runtime,
        "health": pool.health,
        "host": pool.host,
        "pid": pool.pid,
        "version": pool.version,
        "concurrency": pool.concurrency,
        "jobs": pool.jobs,
        "queues": pool.queues,
        "oldest_lock_at": pool.oldest_lock,
        "started_at": pool.started_at,
        "seconds_since_heartbeat": pool.seconds_since_heartbeat,
        "lease": pool.lease,
        "tasks": pool.tasks,
        "clock_offset": pool.clock_offset,
        "worker": pool.id,
        "title": [{"worker": pool.id}, {"small": _describe_process(pool)}],
        "health_rank": HEALTH_ORDER.index(pool.health),
        "slots": " / ".join(
            f"{each:,}" for each in (pool.jobs, pool.concurrency) if each is not None
        ),
        "holds": holds,
        "task_count": None if pool.tasks is None else len(pool.tasks),
        "actions": [f"recover_{pool.health}"] if holds else [],
    }


ROUTES = (
    ApiRoute(
        method="GET",
        path="/workers",
        permission=Permission.VIEW,
        handler=list_workers,
        summary="List workers in any language: those that are dead first.",
        query=(Parameter(name="id", help="Only this worker."),),
        answer={
            "now": EXAMPLE_TIME,
            "age_seconds": 0.4,
            "is_partial": False,
            "worker_count": 1,
            "workers": [
                {
                    "id": "pypool-0123456789abcdef01",
                    "runtime": "python",
                    "health": "alive",
                    "host": "web-1",
                    "pid": 17,
                    "version": "1.0.0",
                    "concurrency": 10,
                    "jobs": 3,
                    "queues": 1,
                    "oldest_lock_at": EXAMPLE_TIME,
                    "started_at": EXAMPLE_TIME,
                    "seconds_since_heartbeat": 4.2,
                    "lease": 30.0,
                    "tasks": ["send_email"],
                    "clock_offset": 0.0,
                    "worker": "pypool-0123456789abcdef01",
                    "title": "pypool-0123456789abcdef01",
                    "health_rank": 2,
                    "slots": "3 / 10",
                    "holds": "3 jobs, 1 queue",
                    "task_count": 1,
                    "actions": ["recover_alive"],
                }
            ],
            "view": {},
        },
    ),
    ApiRoute(
        method="POST",
        path="/workers/recover",
        permission=Permission.RECOVER,
        handler=recover,
        summary="Release the jobs and queues of workers.",
        body=(
            Parameter(name="ids", kind=list, help="Ids of workers.", is_required=True),
            Parameter(name="force", kind=bool, help="Also of a worker that may be alive."),
            Parameter(name="confirm", help="The id of that worker, typed again."),
        ),
        answer={
            "jobs": 3,
            "queues": 1,
            "rejected": [{"id": "worker-1", "why": "…"}],
            "sentence": "Released 3 jobs and 1 queue. worker-1: …",
        },
    ),
)
