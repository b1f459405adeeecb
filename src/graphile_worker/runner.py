"""Start a worker in this program, and stop it: `run` and its kin."""

import asyncio
import logging
import signal
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from graphile_worker._assembly import (
    Lifespan,
    WorkerComponents,
    WorkerConfig,
    background_tasks,
    build_stale_locks,
    build_worker,
    rescue_once,
)
from graphile_worker._db.worker_connections import (
    WorkerConnections,
    open_worker_connections,
    wrap_connection,
)
from graphile_worker._discovery.discovery import build_tasks, load_tasks, resolve_cron_items
from graphile_worker._support.logs import Logger, resolve_logger
from graphile_worker._worker.claimer import ForbiddenFlags
from graphile_worker._worker.pool import WorkerPool
from graphile_worker._worker.signals import handle_signals
from graphile_worker.client import Client
from graphile_worker.crontab import ParsedCronItem
from graphile_worker.errors import WorkerStoppedError
from graphile_worker.events import ForcefulShutdown, GracefulShutdown, RunnerStarted
from graphile_worker.hooks import Hooks
from graphile_worker.jobs import Job, JobKeyMode, JobKeyModeName, JobSpec, RunAt
from graphile_worker.options import WorkerOptions
from graphile_worker.tasks import Task, TaskRouter

TaskSource = TaskRouter[Any] | Mapping[str, Callable[..., Any]] | Path | str


async def run(
    database: object,
    tasks: TaskSource,
    *,
    crontab: str | None = None,
    crontab_file: Path | str | None = None,
    cron_items: Sequence[ParsedCronItem] | None = None,
    options: WorkerOptions | None = None,
    lifespan: Lifespan | None = None,
    hooks: Hooks | None = None,
    forbidden_flags: ForbiddenFlags = None,
    logger: Logger | logging.Logger | None = None,
    handle_signals: bool = True,
) -> "Runner":
    """Start a worker; it goes on until a signal or `stop()`.

    `database` is a connection string (None: `DATABASE_URL`, then `PGDATABASE`), or a psycopg,
    asyncpg or SQLAlchemy pool of yours. `tasks` is an app or a router, a mapping of names to
    functions, or the path of a tasks folder; an app brings its own lifespan, hooks and cron items.
    Others are given as the text or the path of a crontab, or as what its parsers made.
    """
    runner = Runner(
        database,
        tasks,
        crontab=crontab,
        crontab_file=crontab_file,
        cron_items=cron_items,
        options=options,
        lifespan=lifespan,
        hooks=hooks,
        forbidden_flags=forbidden_flags,
        logger=logger,
        handle_signals=handle_signals,
    )
    return await runner.start()


async def run_once(
    database: object,
    tasks: TaskSource,
    *,
    options: WorkerOptions | None = None,
    lifespan: Lifespan | None = None,
    hooks: Hooks | None = None,
    forbidden_flags: ForbiddenFlags = None,
    logger: Logger | logging.Logger | None = None,
    handle_signals: bool = False,
) -> int:
    """Run every job that is ready, and those that become so meanwhile; how many were run."""
    runner = Runner(
        database,
        tasks,
        options=options,
        lifespan=lifespan,
        hooks=hooks,
        forbidden_flags=forbidden_flags,
        logger=logger,
        handle_signals=handle_signals,
    )
    return await runner.run_once()


async def run_task_list(
    tasks: TaskSource,
    database: object,
    *,
    options: WorkerOptions | None = None,
    hooks: Hooks | None = None,
    handle_signals: bool = True,
) -> "Runner":
    """`run` on a schema that is there already: nothing is migrated."""
    runner = Runner(
        database,
        tasks,
        options=options,
        hooks=hooks,
        handle_signals=handle_signals,
        migrate=False,
    )
    return await runner.start()


async def run_task_list_once(
    tasks: TaskSource,
    connection: object,
    *,
    options: WorkerOptions | None = None,
    hooks: Hooks | None = None,
) -> int:
    """Run what is ready on one async connection of yours, one job at a time; how many were run.

    Nothing is committed that you do not commit yourself, which makes it a way to test tasks.
    """
    runner = Runner(connection, tasks, options=options, hooks=hooks, migrate=False)
    return await runner.run_on_connection()


class Runner:
    """A worker in this program: a pool, what wakes it, and what it does for others."""

    def __init__(
        self,
        database: object,
        tasks: TaskSource,
        *,
        crontab: str | None = None,
        crontab_file: Path | str | None = None,
        cron_items: Sequence[ParsedCronItem] | None = None,
        options: WorkerOptions | None = None,
        lifespan: Lifespan | None = None,
        hooks: Hooks | None = None,
        forbidden_flags: ForbiddenFlags = None,
        logger: Logger | logging.Logger | None = None,
        handle_signals: bool = False,
        migrate: bool = True,
    ) -> None:
        self.options = options or WorkerOptions()
        self.hooks: Hooks = _merge_hooks(hooks, tasks)
        self.exit_signal: signal.Signals | None = None
        self._database = database
        self._config = WorkerConfig(
            options=self.options,
            tasks=resolve_tasks(tasks, self.options),
            definitions=tasks if isinstance(tasks, TaskRouter) else None,
            cron_items=resolve_cron_items(
                tasks,
                crontab=crontab,
                crontab_file=crontab_file,
                cron_items=cron_items,
                allow_unsafe=self.options.allow_unsafe_tasks,
            ),
            hooks=self.hooks,
            logger=resolve_logger(logger),
            lifespan=lifespan or getattr(tasks, "lifespan", None) or nullcontext,
            forbidden_flags=forbidden_flags,
            migrate=migrate,
        )
        self._handle_signals = handle_signals
        self._main_task: asyncio.Task[None] | None = None
        self._worker_task: asyncio.Task[Any] | None = None
        self._components: WorkerComponents | None = None

    # For programs

    @property
    def client(self) -> Client:
        """Adds and administers jobs on the worker's own connections."""
        return self._get_components().client

    @property
    def is_ready(self) -> bool:
        """Does it take jobs, and does the database answer?"""
        return self._components is not None and self._components.pool.is_ready

    async def start(self) -> Self:
        """Return once the worker looks for jobs; raises what keeps it from that."""
        if self._main_task is not None:
            raise WorkerStoppedError("a runner can be started once: make another")
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._main_task = asyncio.create_task(self._run(started), name="graphile-worker")
        try:
            await asyncio.wait({self._main_task, started}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._main_task.cancel()
            await asyncio.wait({self._main_task})
            raise
        if self._main_task.cancelled():
            raise WorkerStoppedError("it was stopped while it started")
        if self._main_task.done():
            await self._main_task
        return self

    async def wait(self) -> None:
        """Until the worker has stopped; raises what made it stop, unless it was asked to."""
        if self._main_task is None:
            raise WorkerStoppedError("this runner was not started")
        await asyncio.wait({self._main_task})
        if not self._main_task.cancelled():
            self._main_task.result()

    async def stop(self, reason: str = "stop() was called") -> None:
        """Take no more jobs, and return once the running ones are done or handed back."""
        self._request_stop(lambda pool: pool.stop_gracefully(reason))
        await self.wait()

    async def kill(self, reason: str = "kill() was called") -> None:
        """Hand back at once what runs."""
        self._request_stop(lambda pool: pool.stop_forcefully(reason))
        await self.wait()

    def finish(self) -> None:
        """Take no more jobs, and end once those that run have, however long they take."""
        if self._components is not None:
            self._components.pool.finish()

    def _stop_on_signal(self, number: signal.Signals) -> None:
        """Begin to stop, as after a first signal; fine when it stops already."""
        if self._components is None:
            self._abort_start(number)
        elif not self._components.pool.is_stopping:
            self.hooks.emit(GracefulShutdown(signal=number.name))
            self._components.pool.stop_gracefully(f"heard {number.name}")

    def _kill_on_signal(self, number: signal.Signals) -> None:
        """Hand back at once what runs, as after a second signal."""
        if self._components is None:
            self._abort_start(number)
            return
        self.exit_signal = number
        self.hooks.emit(ForcefulShutdown(signal=number.name))
        self._components.pool.stop_forcefully(f"heard {number.name}")

    async def run_once(self) -> int:
        """Run every job that is ready, and those that become so meanwhile; how many were run."""
        databases = self._open_connections()
        async with (
            self._build_worker(databases, once=True) as parts,
            background_tasks(self._config, parts, once=True),
        ):
            await rescue_once(parts)
            await self._run_pool(parts)
            return parts.pool.job_count

    async def run_on_connection(self) -> int:
        """`run_once` on the one connection that is all this runner was given."""
        self._config = replace(self._config, options=replace(self.options, concurrency=1))
        databases = wrap_connection(self._database, self.options)
        async with self._build_worker(databases, once=True) as parts:
            await build_stale_locks(self._config, parts).unlock_once()
            await self._run_pool(parts)
            return parts.pool.job_count

    async def add_job(
        self,
        identifier: str,
        payload: Any = None,
        *,
        queue_name: str | None = None,
        run_at: RunAt | None = None,
        max_attempts: int | None = None,
        priority: int | None = None,
        job_key: str | None = None,
        job_key_mode: JobKeyMode | JobKeyModeName | None = None,
        flags: Collection[str] | None = None,
        conn: object = None,
    ) -> Job:
        """Add one job to the queue that this worker serves."""
        return await self.client.add_job(
            identifier,
            payload,
            queue_name=queue_name,
            run_at=run_at,
            max_attempts=max_attempts,
            priority=priority,
            job_key=job_key,
            job_key_mode=job_key_mode,
            flags=flags,
            conn=conn,
        )

    async def add_jobs(self, specs: Iterable[JobSpec], *, conn: object = None) -> list[Job]:
        """Add any number of jobs in one round trip; the jobs in the order of their specs."""
        return await self.client.add_jobs(specs, conn=conn)

    def __await__(self) -> Generator[Any, None, None]:
        return self.wait().__await__()

    async def __aenter__(self) -> Self:
        return self if self._main_task is not None else await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop("its block ended")

    # How it goes

    async def _run(self, started: asyncio.Future[None]) -> None:
        databases = self._open_connections()
        async with self._build_worker(databases) as parts, background_tasks(self._config, parts):
            if not started.done():
                started.set_result(None)
            await self._run_pool(parts)

    @asynccontextmanager
    async def _build_worker(
        self, databases: WorkerConnections, *, once: bool = False
    ) -> AsyncIterator[WorkerComponents]:
        self._worker_task = asyncio.current_task()
        # Until the very end: a signal in its last moments must not cost a job.
        with handle_signals(self._on_signal) if self._handle_signals else nullcontext():
            async with build_worker(self._config, databases, once=once) as parts:
                self._components = parts
                yield parts

    def _open_connections(self) -> WorkerConnections:
        return open_worker_connections(self._database, self.options, self._config.tasks.values())

    async def _run_pool(self, components: WorkerComponents) -> None:
        components.pool.start()
        names = tuple(self._config.tasks)
        self.hooks.emit(RunnerStarted(pool_id=components.pool.id, tasks=names))
        await components.pool.run()

    def _on_signal(self, number: signal.Signals) -> None:
        if self._components is not None and self._components.pool.is_stopping:
            self._kill_on_signal(number)
        else:
            self._stop_on_signal(number)

    def _abort_start(self, number: signal.Signals) -> None:
        """There is nothing to stop yet."""
        self.exit_signal = number
        if (starting := self._worker_task or self._main_task) is not None:
            starting.cancel()

    def _request_stop(self, stop_pool: Callable[[WorkerPool], None]) -> None:
        if self._main_task is None or self._main_task.done():
            return
        if self._components is None:
            # There is nothing to stop yet.
            self._main_task.cancel()
        else:
            stop_pool(self._components.pool)

    def _get_components(self) -> WorkerComponents:
        if self._components is None:
            raise WorkerStoppedError("this runner was not started")
        if self._main_task is not None and self._main_task.done():
            raise WorkerStoppedError("this runner has stopped")
        return self._components


def resolve_tasks(tasks: TaskSource, options: WorkerOptions) -> Mapping[str, Task[..., Any]]:
    """Tasks by their names, wherever they are."""
    if isinstance(tasks, TaskRouter):
        return tasks.tasks()
    if isinstance(tasks, Path | str):
        return load_tasks(Path(tasks), options.executables, allow_unsafe=options.allow_unsafe_tasks)
    return build_tasks(tasks)


def _merge_hooks(hooks: Hooks | None, tasks: TaskSource) -> Hooks:
    """Whoever listens: the hooks that were given, and those of an app."""
    of_app: Hooks | None = getattr(tasks, "hooks", None)
    if hooks is None:
        return of_app or Hooks()
    if of_app is not None and of_app is not hooks:
        hooks.include(of_app)
    return hooks
