"""The page of workers: which are alive, and how many jobs each has locked."""

from dataclasses import dataclass
from typing import Any

from graphile_worker._support.text import pluralize
from graphile_worker.contrib.django._admin.pages import Queue, QueuePages, format_problem
from graphile_worker.contrib.django._admin.text import (
    format_line,
    format_time,
    join_names,
)
from graphile_worker.errors import GraphileWorkerError
from graphile_worker.ops.filters import Filter, FilterField, Term, TextPattern
from graphile_worker.ops.pools import PoolHealth, PoolInfo, plan_get_lock_holders
from graphile_worker.ops.search import with_limits
from graphile_worker.ops.text import format_seconds

MAX_WORKERS = 500
# With more tasks, a row shows their number, and their names on demand.
MAX_TASKS = 3
MAX_TASK_NAMES = 500


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A pool of workers in the list."""

    id: str
    health: PoolHealth
    runtime: str
    host: str
    pid: int | None
    version: str
    slots: int | None
    jobs: int
    jobs_url: str
    queues: int
    heartbeat: str
    started_at: str
    tasks: str
    all_tasks: str


class WorkerPages(QueuePages):
    """Lists workers that are registered or hold jobs."""

    def show_changelist(self, request: Any) -> Any:
        """Show workers, those that need attention first."""
        queue = self.get_queue(request)
        problems: list[str] = []
        pools: list[PoolInfo] = []
        try:
            pools = queue.run(
                plan_get_lock_holders(
                    queue.schemas, lambda query: with_limits(query, queue.schemas)
                )
            )
        except GraphileWorkerError as error:
            problems.append(format_problem(error))
        order = [PoolHealth.DEAD, PoolHealth.UNKNOWN, PoolHealth.ALIVE]
        pools.sort(key=lambda pool: (order.index(pool.health), pool.host or "", pool.id))
        jobs_url = self.find_url(request, "job", "changelist")
        alive = [pool for pool in pools if pool.health is PoolHealth.ALIVE]
        context = {
            "rows": [self._build_row(queue, pool, jobs_url) for pool in pools[:MAX_WORKERS]],
            "problems": problems,
            "more_count": max(len(pools) - MAX_WORKERS, 0),
            "alive_count": len(alive),
            "slot_count": sum(pool.concurrency or 0 for pool in alive),
            "job_count": sum(pool.jobs for pool in pools),
        }
        return self.render(request, queue, "worker_list", "Workers", context, is_list=True)

    def _build_row(self, queue: Queue, pool: PoolInfo, jobs_url: str) -> WorkerRow:
        held = Filter((Term(FilterField.WORKER, (TextPattern((pool.id,)),)),))
        heartbeat = ""
        if pool.seconds_since_heartbeat is not None:
            heartbeat = f"{format_seconds(max(pool.seconds_since_heartbeat, 0.0))} ago"
        tasks = pool.tasks or ()
        is_long = len(tasks) > MAX_TASKS
        summary = pluralize(len(tasks), "task") if is_long else join_names(tasks, MAX_TASKS)
        return WorkerRow(
            id=format_line(pool.id),
            health=pool.health,
            runtime=format_line(pool.runtime or ""),
            host=format_line(pool.host or ""),
            pid=pool.pid,
            version=format_line(pool.version or ""),
            slots=pool.concurrency,
            jobs=pool.jobs,
            jobs_url=self.build_link(jobs_url, queue, {"q": str(held)}) if pool.jobs else "",
            queues=pool.queues,
            heartbeat=heartbeat,
            started_at=format_time(pool.started_at),
            tasks="not reported" if pool.tasks is None else summary,
            all_tasks=join_names(tasks, MAX_TASK_NAMES) if is_long else "",
        )
