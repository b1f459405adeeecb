"""Workers: which are alive, what they hold, and release the jobs of dead ones."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from graphile_worker._sql.plans.admin import plan_recover_jobs
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
from graphile_worker.contrib.dashboard._wording import describe_recovery
from graphile_worker.ops.pauses import PAUSED_PREFIX
from graphile_worker.ops.pools import PoolHealth, PoolInfo, plan_get_lock_holders
from graphile_worker.ops.search import limit_plan, with_limits

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
    return {
        "now": sample.now,
        "age_seconds": round(sample.age, 1),
        "is_partial": sample.is_partial,
        "worker_count": len(pools),
        "workers": [_show_worker(pool) for pool in pools[:MAX_WORKERS]],
    }


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
    }


ROUTES = (
    ApiRoute(
        method="GET",
        path="/workers",
        permission=Permission.VIEW,
        handler=list_workers,
        summary="List workers in any language: those that are dead first.",
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
                }
            ],
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
