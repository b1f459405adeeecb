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

from graphile_worker.assembly import (
    Blueprint,
    Lifespan,
    Parts,
    assembled,
    beside,
    recover_once,
    stale_locks,
)
from graphile_worker.client import Client
from graphile_worker.crontab import ParsedCronItem
from graphile_worker.db.reserved import WorkerDatabases, borrowed, reserved
from graphile_worker.errors import PoolStopped
from graphile_worker.events import ForcefulShutdown, GracefulShutdown, RunnerStarted
from graphile_worker.hooks import Hooks
from graphile_worker.jobs import Job, JobKeyMode, JobKeyModeName, JobSpec, When
from graphile_worker.loading import cron_items_of, load_tasks, tasks_of
from graphile_worker.logs import Logger, logger_of
from graphile_worker.options import WorkerOptions
from graphile_worker.tasks import Task, Tasks
from graphile_worker.worker.claims import ForbiddenFlags
from graphile_worker.worker.pool import WorkerPool
from graphile_worker.worker.signals import heard_by

TaskSource = Tasks[Any] | Mapping[str, Callable[..., Any]] | Path | str


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
        self.hooks: Hooks = _heard(hooks, tasks)
        self.forced_by: signal.Signals | None = None
        self._database = database
        self._plan = Blueprint(
            options=self.options,
            tasks=found_tasks(tasks, self.options),
            definitions=tasks if isinstance(tasks, Tasks) else None,
            cron_items=cron_items_of(
                tasks,
                crontab=crontab,
                crontab_file=crontab_file,
                cron_items=cron_items,
                allow_unsafe=self.options.allow_unsafe_tasks,
            ),
            hooks=self.hooks,
            logger=logger_of(logger),
            lifespan=lifespan or getattr(tasks, "lifespan", None) or nullcontext,
            forbidden_flags=forbidden_flags,
            migrate=migrate,
        )
        self._handle_signals = handle_signals
        self._main: asyncio.Task[None] | None = None
        self._working: asyncio.Task[Any] | None = None
        self._parts: Parts | None = None

    # For programs

    @property
    def client(self) -> Client:
        """Adds and administers jobs on the worker's own connections."""
        return self._running().client

    @property
    def is_ready(self) -> bool:
        """Does it take jobs, and does the database answer?"""
        return self._parts is not None and self._parts.pool.is_ready

    async def start(self) -> Self:
        """Return once the worker looks for jobs; raises what keeps it from that."""
        if self._main is not None:
            raise PoolStopped("a runner can be started once: make another")
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._main = asyncio.create_task(self._run(started), name="graphile-worker")
        try:
            await asyncio.wait({self._main, started}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._main.cancel()
            await asyncio.wait({self._main})
            raise
        if self._main.cancelled():
            raise PoolStopped("it was stopped while it started")
        if self._main.done():
            await self._main
        return self

    async def wait(self) -> None:
        """Until the worker has stopped; raises what made it stop, unless it was asked to."""
        if self._main is None:
            raise PoolStopped("this runner was not started")
        await asyncio.wait({self._main})
        if not self._main.cancelled():
            self._main.result()

    async def stop(self, reason: str = "stop() was called") -> None:
        """Take no more jobs, and return once the running ones are done or handed back."""
        self._begin_to_stop(lambda pool: pool.stop_gracefully(reason))
        await self.wait()

    async def kill(self, reason: str = "kill() was called") -> None:
        """Hand back at once what runs."""
        self._begin_to_stop(lambda pool: pool.stop_forcefully(reason))
        await self.wait()

    def let_finish(self) -> None:
        """Take no more jobs, and end once those that run have, however long they take."""
        if self._parts is not None:
            self._parts.pool.finish()

    def stop_by(self, number: signal.Signals) -> None:
        """Begin to stop, as after a first signal; fine when it stops already."""
        if self._parts is None:
            self._leave_by(number)
        elif not self._parts.pool.is_stopping:
            self.hooks.emit(GracefulShutdown(signal=number.name))
            self._parts.pool.stop_gracefully(f"heard {number.name}")

    def kill_by(self, number: signal.Signals) -> None:
        """Hand back at once what runs, as after a second signal."""
        if self._parts is None:
            self._leave_by(number)
            return
        self.forced_by = number
        self.hooks.emit(ForcefulShutdown(signal=number.name))
        self._parts.pool.stop_forcefully(f"heard {number.name}")

    async def run_once(self) -> int:
        """Run every job that is ready, and those that become so meanwhile; how many were run."""
        databases = self._databases()
        async with (
            self._assembled(databases, once=True) as parts,
            beside(self._plan, parts, once=True),
        ):
            await recover_once(parts)
            await self._work(parts)
            return parts.pool.count

    async def run_on_connection(self) -> int:
        """`run_once` on the one connection that is all this runner was given."""
        self._plan = replace(self._plan, options=replace(self.options, concurrency=1))
        databases = borrowed(self._database, self.options)
        async with self._assembled(databases, once=True) as parts:
            await stale_locks(self._plan, parts).unlock_once()
            await self._work(parts)
            return parts.pool.count

    async def add_job(
        self,
        identifier: str,
        payload: Any = None,
        *,
        queue_name: str | None = None,
        run_at: When | None = None,
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
        return self if self._main is not None else await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop("its block ended")

    # How it goes

    async def _run(self, started: asyncio.Future[None]) -> None:
        databases = self._databases()
        async with self._assembled(databases) as parts, beside(self._plan, parts):
            if not started.done():
                started.set_result(None)
            await self._work(parts)

    @asynccontextmanager
    async def _assembled(
        self, databases: WorkerDatabases, *, once: bool = False
    ) -> AsyncIterator[Parts]:
        self._working = asyncio.current_task()
        # Until the very end: a signal in its last moments must not cost a job.
        with heard_by(self._on_signal) if self._handle_signals else nullcontext():
            async with assembled(self._plan, databases, once=once) as parts:
                self._parts = parts
                yield parts

    def _databases(self) -> WorkerDatabases:
        return reserved(self._database, self.options, self._plan.tasks.values())

    async def _work(self, parts: Parts) -> None:
        parts.pool.start()
        names = tuple(self._plan.tasks)
        self.hooks.emit(RunnerStarted(pool_id=parts.pool.id, tasks=names))
        await parts.pool.run()

    def _on_signal(self, number: signal.Signals) -> None:
        if self._parts is not None and self._parts.pool.is_stopping:
            self.kill_by(number)
        else:
            self.stop_by(number)

    def _leave_by(self, number: signal.Signals) -> None:
        """There is nothing to stop yet."""
        self.forced_by = number
        if (starting := self._working or self._main) is not None:
            starting.cancel()

    def _begin_to_stop(self, how: Callable[[WorkerPool], None]) -> None:
        if self._main is None or self._main.done():
            return
        if self._parts is None:
            # There is nothing to stop yet.
            self._main.cancel()
        else:
            how(self._parts.pool)

    def _running(self) -> Parts:
        if self._parts is None:
            raise PoolStopped("this runner was not started")
        if self._main is not None and self._main.done():
            raise PoolStopped("this runner has stopped")
        return self._parts


def found_tasks(tasks: TaskSource, options: WorkerOptions) -> Mapping[str, Task[..., Any]]:
    """Tasks by their names, wherever they are."""
    if isinstance(tasks, Tasks):
        return tasks.tasks()
    if isinstance(tasks, Path | str):
        return load_tasks(Path(tasks), options.executables, allow_unsafe=options.allow_unsafe_tasks)
    return tasks_of(tasks)


def _heard(given: Hooks | None, tasks: TaskSource) -> Hooks:
    """Whoever listens: the hooks that were given, and those of an app."""
    of_app: Hooks | None = getattr(tasks, "hooks", None)
    if given is None:
        return of_app or Hooks()
    if of_app is not None and of_app is not given:
        given.include(of_app)
    return given
