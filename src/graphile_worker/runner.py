"""Run a worker in your program."""

import asyncio
import logging
import signal
from collections.abc import (
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self, Unpack

from graphile_worker import sync
from graphile_worker._assembly import (
    WorkerComponents,
    background_tasks,
    build_executors,
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
from graphile_worker._shard_group import ShardGroup
from graphile_worker._shards import BaseShards, get_cron_shard_key
from graphile_worker._support.logs import Logger, resolve_logger
from graphile_worker._worker.claimer import ForbiddenFlags
from graphile_worker._worker.pool import WorkerPool
from graphile_worker._worker.shared_concurrency import SharedConcurrency
from graphile_worker._worker.signals import handle_signals
from graphile_worker._worker_config import Lifespan, WorkerConfig, WorkerShard
from graphile_worker.client import Client
from graphile_worker.crontab import ParsedCronItem
from graphile_worker.errors import ConfigurationError, WorkerStoppedError
from graphile_worker.events import ForcefulShutdown, GracefulShutdown, RunnerStarted
from graphile_worker.hooks import Hooks, ShardHooks
from graphile_worker.jobs import Job, JobOptions, JobSpec
from graphile_worker.options import WorkerOptions
from graphile_worker.shards import Shards
from graphile_worker.tasks import Task, TaskRouter
from graphile_worker.tasks.selection import select_tasks

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
    """Start a worker, which runs until a signal or `stop()`.

    Args:
        database: Connection string or a function that returns one (default: `DATABASE_URL`, then
            `PGDATABASE`), or your psycopg, asyncpg or SQLAlchemy pool, or `Shards`.
        tasks: App or router, mapping of names to functions, or path of a tasks folder. An app
            brings its lifespan, hooks and cron items.
        crontab: Text of a crontab.
        crontab_file: Path of a crontab.
        cron_items: Parsed cron items, as `parse_crontab` and `parse_cron_items` return them.
        options: Options of the worker.
        lifespan: Function that returns an async context manager, which yields `ctx.deps`.
        hooks: Hooks of the worker.
        forbidden_flags: Flags of the jobs to leave out, or a function that returns them.
        logger: Logger of the worker.
        handle_signals: Shut down gracefully on SIGTERM and SIGINT.

    Returns:
        The runner, which looks for jobs.

    Raises:
        ConfigurationError: An option or a task is not valid.
        SchemaError: The schema cannot be upgraded.
    """
    runner = build_runner(
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
    """Run all jobs that are ready or become ready meanwhile. See `run` for the arguments.

    Returns:
        The number of jobs that were run.
    """
    runner = build_runner(
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
    """Start a worker without migrating the schema. See `run` for the arguments."""
    runner = build_runner(
        database, tasks, options=options, hooks=hooks, handle_signals=handle_signals, migrate=False
    )
    return await runner.start()


async def run_task_list_once(
    tasks: TaskSource,
    connection: object,
    *,
    options: WorkerOptions | None = None,
    hooks: Hooks | None = None,
) -> int:
    """Run all jobs that are ready on your async connection, one at a time.

    It commits nothing, so that you can test tasks and roll back.

    Args:
        tasks: App or router, mapping of names to functions, or path of a tasks folder.
        connection: Your async connection.
        options: Options of the worker.
        hooks: Hooks of the worker.

    Returns:
        The number of jobs that were run.
    """
    runner = Runner(connection, tasks, options=options, hooks=hooks, migrate=False)
    return await runner.run_on_connection()


class Runner:
    """A worker in your program, as `run` and `App.worker` return it.

    See `run` for most arguments.

    Args:
        migrate: Install or upgrade the schema at the start. The workers of a Django project never
            do.
        task_process_module: Module that the processes of tasks with `run_in="process"` import
            before the module of the task, for example one that sets up Django.

    Attributes:
        options (WorkerOptions): Options of the worker.
        hooks: Hooks of the worker, with those of the app.
        exit_signal: The signal that ended it at once, or None.
    """

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
        task_process_module: str | None = None,
    ) -> None:
        options = options or WorkerOptions()
        if options.forbidden_flags and forbidden_flags is not None:
            raise ConfigurationError(
                "forbidden_flags is an argument and set in the options. Remove one."
            )
        known = resolve_tasks(tasks, options)
        config = WorkerConfig(
            options=options,
            tasks=select_tasks(known, options.only_tasks, options.except_tasks),
            known_tasks=frozenset(known),
            definitions=tasks if isinstance(tasks, TaskRouter) else None,
            cron_items=resolve_cron_items(
                tasks,
                crontab=crontab,
                crontab_file=crontab_file,
                cron_items=cron_items,
                allow_unsafe=options.allow_unsafe_tasks,
            ),
            hooks=_merge_hooks(hooks, tasks),
            logger=resolve_logger(logger),
            lifespan=lifespan or getattr(tasks, "lifespan", None) or nullcontext,
            forbidden_flags=options.forbidden_flags or forbidden_flags,
            migrate=migrate and _may_migrate(tasks),
            task_process_module=task_process_module,
        )
        self._set_up(database, config, handle_signals=handle_signals)

    @classmethod
    def _from_config(cls, database: object, config: WorkerConfig) -> Self:
        runner = cls.__new__(cls)
        runner._set_up(database, config, handle_signals=False)
        return runner

    def _set_up(self, database: object, config: WorkerConfig, *, handle_signals: bool) -> None:
        self.options = config.options
        self.hooks: Hooks = config.hooks
        self.exit_signal: signal.Signals | None = None
        self._database = database
        self._config = config
        self._handle_signals = handle_signals
        self._main_task: asyncio.Task[None] | None = None
        self._worker_task: asyncio.Task[Any] | None = None
        self._components: WorkerComponents | None = None

    @property
    def client(self) -> Client:
        """Return a client on the worker's connections.

        Raises:
            WorkerStoppedError: The runner is not running.
        """
        client = self._get_components().client
        assert isinstance(client, Client)
        return client

    @property
    def is_ready(self) -> bool:
        """Return whether the worker claims jobs and the database answers."""
        return self._components is not None and self._components.pool.is_ready

    async def start(self) -> Self:
        """Start, and return when the worker looks for jobs.

        Returns:
            The runner.

        Raises:
            WorkerStoppedError: The runner was already started, or was stopped while it started.
        """
        if self._main_task is not None:
            raise WorkerStoppedError("a runner can be started only once. Create another one.")
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._main_task = asyncio.create_task(self._run(started), name="graphile-worker")
        try:
            await asyncio.wait({self._main_task, started}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._main_task.cancel()
            await asyncio.wait({self._main_task})
            raise
        if self._main_task.cancelled():
            raise WorkerStoppedError("the runner was stopped while it started")
        if self._main_task.done():
            await self._main_task
        return self

    async def wait(self) -> None:
        """Wait until the worker has stopped, and raise the error that stopped it, if any.

        Raises:
            WorkerStoppedError: The runner was not started.
            JobsLeftLocked: The worker stopped during a database outage.
        """
        if self._main_task is None:
            raise WorkerStoppedError("this runner was not started")
        await asyncio.wait({self._main_task})
        if not self._main_task.cancelled():
            self._main_task.result()

    async def stop(self, reason: str = "stop() was called") -> None:
        """Shut down gracefully, and return when the running jobs are completed or released.

        Args:
            reason: Text for the log.
        """
        self._request_stop(lambda pool: pool.stop_gracefully(reason))
        await self.wait()

    async def kill(self, reason: str = "kill() was called") -> None:
        """Release the running jobs and stop.

        Args:
            reason: Text for the log.
        """
        self._request_stop(lambda pool: pool.stop_forcefully(reason))
        await self.wait()

    def finish(self) -> None:
        """Claim no more jobs, and stop when the running jobs have ended, without a time limit."""
        if self._components is not None:
            self._components.pool.finish()

    def _stop_on_signal(self, number: signal.Signals) -> None:
        """Shut down gracefully after a first signal."""
        if self._components is None:
            self._abort_start(number)
        elif not self._components.pool.is_stopping:
            self.hooks.emit(GracefulShutdown(signal=number.name))
            self._components.pool.stop_gracefully(f"received {number.name}")

    def _kill_on_signal(self, number: signal.Signals) -> None:
        """Release the running jobs and stop after a second signal."""
        if self._components is None:
            self._abort_start(number)
            return
        self.exit_signal = number
        self.hooks.emit(ForcefulShutdown(signal=number.name))
        self._components.pool.stop_forcefully(f"received {number.name}")

    async def run_once(self) -> int:
        """Run all jobs that are ready or become ready meanwhile.

        Returns:
            The number of jobs that were run.
        """
        connections = self._open_connections()
        async with (
            self._build_worker(connections, once=True) as components,
            background_tasks(self._config, components, once=True),
        ):
            await rescue_once(components)
            await self._run_pool(components)
            return components.pool.job_count

    async def run_on_connection(self) -> int:
        """Run all jobs that are ready on the one connection of this runner."""
        self._config = replace(self._config, options=replace(self.options, concurrency=1))
        connections = wrap_connection(self._database, self.options)
        async with self._build_worker(connections, once=True) as components:
            await build_stale_locks(self._config, components).unlock_once()
            await self._run_pool(components)
            return components.pool.job_count

    async def add_job(
        self,
        identifier: str,
        payload: Any = None,
        *,
        conn: object = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Add a job on the worker's connections. See `Client.add_job`."""
        return await self.client.add_job(identifier, payload, conn=conn, **options)

    async def add_jobs(self, specs: Iterable[JobSpec], *, conn: object = None) -> list[Job]:
        """Add jobs on the worker's connections. See `Client.add_jobs`."""
        return await self.client.add_jobs(specs, conn=conn)

    def __await__(self) -> Generator[Any, None, None]:
        return self.wait().__await__()

    async def __aenter__(self) -> Self:
        return self if self._main_task is not None else await self.start()

    async def __aexit__(self, *error: object) -> None:
        await self.stop("the async with block ended")

    async def _run(self, started: asyncio.Future[None]) -> None:
        connections = self._open_connections()
        async with (
            self._build_worker(connections) as components,
            background_tasks(self._config, components),
        ):
            if not started.done():
                started.set_result(None)
            await self._run_pool(components)

    @asynccontextmanager
    async def _build_worker(
        self, connections: WorkerConnections, *, once: bool = False
    ) -> AsyncIterator[WorkerComponents]:
        self._worker_task = asyncio.current_task()
        # Signals are handled until the end: one during the last writes must not lose a job.
        with handle_signals(self._on_signal) if self._handle_signals else nullcontext():
            async with build_worker(self._config, connections, once=once) as components:
                self._components = components
                yield components

    def _open_connections(self) -> WorkerConnections:
        return open_worker_connections(
            self._database,
            self.options,
            self._config.tasks.values(),
            self._config.timings.connections,
        )

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
        self.exit_signal = number
        self._cancel_start()

    def _cancel_start(self) -> None:
        if (starting := self._worker_task or self._main_task) is not None:
            starting.cancel()

    def _request_stop(self, stop_pool: Callable[[WorkerPool], None]) -> None:
        running = self._worker_task or self._main_task
        if running is None or running.done():
            return
        if self._components is None:
            # The worker is still starting.
            self._cancel_start()
        else:
            stop_pool(self._components.pool)

    def _get_components(self) -> WorkerComponents:
        if self._components is None:
            raise WorkerStoppedError("this runner was not started")
        if self._main_task is not None and self._main_task.done():
            raise WorkerStoppedError("this runner has stopped")
        return self._components


class ShardedRunner(Runner):
    """A worker over several shards: one pool for each, which share concurrency and lifespan.

    It is ready while at least one shard is. A shard that is unreachable does not stop the others.
    """

    _database: BaseShards

    def _set_up(self, database: object, config: WorkerConfig, *, handle_signals: bool) -> None:
        for item in config.cron_items() if config.cron_items is not None else ():
            # Raises for an item that has no shard.
            get_cron_shard_key(item)
        super()._set_up(database, config, handle_signals=handle_signals)

    @property
    def client(self) -> Shards:  # type: ignore[override]
        """Return the shards, on the worker's connections.

        Raises:
            WorkerStoppedError: The runner is not running.
        """
        client = self._get_components().client
        assert isinstance(client, Shards)
        return client

    async def run_once(self) -> int:
        async with self._open_group() as group:
            return await group.run_once()

    async def run_on_connection(self) -> int:
        raise ConfigurationError("a connection belongs to one shard. Pass that connection.")

    async def _run(self, started: asyncio.Future[None]) -> None:
        def on_started() -> None:
            if not started.done():
                started.set_result(None)

        async with self._open_group() as group:
            await group.run(on_started)

    @asynccontextmanager
    async def _open_group(self) -> AsyncIterator[ShardGroup]:
        config, hooks = self._config, self.hooks
        self._worker_task = asyncio.current_task()
        options = {
            **config.client_options,
            "prepared_statements": self.options.prepared_statements,
        }
        limit = SharedConcurrency(self.options.concurrency, len(self._database.names))
        executors = build_executors(config)
        with handle_signals(self._on_signal) if self._handle_signals else nullcontext():
            async with AsyncExitStack() as stack:
                shards = await stack.enter_async_context(self._database._derive(Shards, **options))
                sync_shards = stack.enter_context(self._database._derive(sync.Shards, **options))
                stack.push_async_callback(executors.processes.close)
                stack.callback(executors.threads.close)
                deps = await stack.enter_async_context(config.lifespan())

                def build_shard_runner(name: str) -> Runner:
                    shard = WorkerShard(
                        name=name,
                        shards=shards,
                        sync_shards=sync_shards,
                        limit=limit,
                        executors=executors,
                    )
                    return self._build_shard_runner(shard, deps)

                group = ShardGroup(
                    shards.names,
                    build_shard_runner,
                    config.logger,
                    hooks._recorder,
                    self.options.concurrency,
                )
                self._components = ShardComponents(group, shards)  # type: ignore[assignment]
                yield group

    def _build_shard_runner(self, shard: WorkerShard, deps: Any) -> Runner:
        """Build a runner with the configuration of this one, and the hooks of its shard."""
        items = self._config.cron_items
        config = replace(
            self._config,
            hooks=ShardHooks(self.hooks, shard.name),
            logger=self._config.logger.scope(shard=shard.name),
            lifespan=lambda: nullcontext(deps),
            # Each item is scheduled on one shard: that of other jobs with its key or queue.
            cron_items=None
            if items is None
            else lambda: [
                item
                for item in items()
                if shard.shards.find_shard(get_cron_shard_key(item)) == shard.name
            ],
            shard=shard,
        )
        return Runner._from_config(shard.shards.databases[shard.name], config)


class ShardComponents(NamedTuple):
    """What `Runner` needs of the workers of all shards."""

    pool: ShardGroup
    client: Shards


def build_runner(database: object, tasks: TaskSource, **options: Any) -> Runner:
    """Build a runner on one database, or on several shards."""
    kind = ShardedRunner if isinstance(database, BaseShards) else Runner
    return kind(database, tasks, **options)


def resolve_tasks(tasks: TaskSource, options: WorkerOptions) -> Mapping[str, Task[..., Any]]:
    """Return the tasks by identifier."""
    if isinstance(tasks, TaskRouter):
        return tasks.tasks()
    if isinstance(tasks, Path | str):
        return load_tasks(Path(tasks), options.executables, allow_unsafe=options.allow_unsafe_tasks)
    return build_tasks(tasks)


def _may_migrate(tasks: TaskSource) -> bool:
    return not isinstance(tasks, TaskRouter) or tasks._workers_migrate


def _merge_hooks(hooks: Hooks | None, tasks: TaskSource) -> Hooks:
    """Return the passed hooks, with those of the app included."""
    app_hooks: Hooks | None = getattr(tasks, "hooks", None)
    if hooks is None:
        return app_hooks or Hooks()
    if app_hooks is not None and app_hooks is not hooks:
        hooks.include(app_hooks)
    return hooks
