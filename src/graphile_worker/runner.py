"""Build the parts of a worker and start them: the only place that knows them all."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

from graphile_worker.db.blocking import BlockingPsycopgDatabase
from graphile_worker.db.database import perform
from graphile_worker.db.migrate import migrating
from graphile_worker.db.psycopg import PsycopgDatabase
from graphile_worker.hooks import Hooks
from graphile_worker.loading import load_tasks, tasks_of
from graphile_worker.options import WorkerOptions
from graphile_worker.sql.holding import HeldJob
from graphile_worker.sql.identifiers import Schemas
from graphile_worker.tasks import Task, Tasks
from graphile_worker.worker.context import BlockingContext, Context
from graphile_worker.worker.settle import Settler
from graphile_worker.worker.source import DirectSource
from graphile_worker.worker.worker import Worker

# Listeners that take longer are cancelled and named.
DRAIN_WITHIN = timedelta(seconds=10)


async def run_once(
    dsn: str | None,
    tasks: Tasks[Any] | Mapping[str, Callable[..., Any]] | Path,
    *,
    options: WorkerOptions | None = None,
    lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
    hooks: Hooks | None = None,
) -> int:
    """Run every job that is ready, and those that become so meanwhile; how many were run.

    `tasks` is an app or a router, a mapping of names to functions, or the path of a tasks folder.
    An app brings its own lifespan and hooks.
    """
    chosen = options or WorkerOptions()
    heard = hooks or getattr(tasks, "hooks", None) or Hooks()
    enter = lifespan or getattr(tasks, "lifespan", None) or nullcontext
    async with _databases(dsn, chosen) as databases, enter() as deps:
        with ThreadPoolExecutor(chosen.concurrency, "graphile-worker") as threads:
            pool = _Pool(databases, _found(tasks), deps, heard, threads)
            counts = await _together([pool.worker() for _ in range(chosen.concurrency)])
        await heard.drain(DRAIN_WITHIN)
        return sum(counts)


class _Databases:
    """Ours for taking and settling jobs; the tasks have their own, and can never starve us."""

    def __init__(self, dsn: str | None, schemas: Schemas, concurrency: int) -> None:
        self.own = PsycopgDatabase(dsn, schemas)
        self.tasks = PsycopgDatabase(dsn, schemas, max_size=concurrency)
        self.blocking_tasks = BlockingPsycopgDatabase(dsn, schemas)

    async def close(self) -> None:
        await self.own.close()
        await self.tasks.close()
        self.blocking_tasks.close()


class _Pool:
    """What all workers of this process share."""

    def __init__(
        self,
        databases: _Databases,
        tasks: Mapping[str, Task[..., Any]],
        deps: Any,
        hooks: Hooks,
        threads: Executor,
    ) -> None:
        self.id = f"pypool-{secrets.token_hex(9)}"
        self._databases = databases
        self._tasks = tasks
        self._deps = deps
        self._hooks = hooks
        self._threads = threads

    def worker(self) -> Worker:
        return Worker(
            source=DirectSource(self._databases.own, self.id, list(self._tasks)),
            settler=Settler(self._databases.own, self.id),
            tasks=self._tasks,
            make_context=self._context,
            threads=self._threads,
            hooks=self._hooks,
        )

    def _context(self, held: HeldJob, worker_id: str) -> tuple[Context, BlockingContext]:
        context = Context(
            held,
            deps=self._deps,
            pool_id=self.id,
            worker_id=worker_id,
            database=self._databases.tasks,
        )
        return context, BlockingContext(context, self._databases.blocking_tasks)


def _found(
    tasks: Tasks[Any] | Mapping[str, Callable[..., Any]] | Path,
) -> Mapping[str, Task[..., Any]]:
    if isinstance(tasks, Tasks):
        return tasks.tasks()
    if isinstance(tasks, Path):
        return load_tasks(tasks)
    return tasks_of(tasks)


@asynccontextmanager
async def _databases(dsn: str | None, options: WorkerOptions) -> AsyncIterator[_Databases]:
    schemas = Schemas.named(options.schema, options.ext_schema)
    databases = _Databases(dsn, schemas, options.concurrency)
    try:
        await perform(databases.own, migrating(schemas))
        yield databases
    finally:
        await databases.close()


async def _together(workers: list[Worker]) -> list[int]:
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(worker.run_until_empty()) for worker in workers]
    return [task.result() for task in running]
