"""App: tasks, and the database that their jobs go to, in one object."""

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, overload
from weakref import WeakKeyDictionary

from graphile_worker import sync
from graphile_worker._support.logs import Logger
from graphile_worker._worker.claimer import ForbiddenFlags
from graphile_worker.client import Client
from graphile_worker.crontab import ParsedCronItem
from graphile_worker.hooks import Hooks
from graphile_worker.jobs import Job, JobKeyMode, JobKeyModeName, JobSpec, RunAt
from graphile_worker.options import WorkerOptions
from graphile_worker.runner import Runner
from graphile_worker.tasks import D, TaskRouter


class ClientProvider(Protocol):
    """Whoever adds jobs in place of an app's own clients."""

    @property
    def client(self) -> Client: ...

    @property
    def sync_client(self) -> sync.Client: ...


class App(TaskRouter[D]):
    """Tasks and where their jobs go. Making one connects to nothing; the first call does.

    `dsn` is a connection string (default: `DATABASE_URL`, then libpq's variables). `lifespan` is a
    function that returns an async context manager; a worker enters it before its first job, and
    tasks find what it yields in `ctx.deps`.

    `add_job`, `add_jobs`, `remove_job` and `enqueue` block; those that begin with `a` are awaited.
    """

    @overload
    def __init__(
        self: "App[None]",
        dsn: str | None = None,
        *,
        schema: str | None = None,
        lifespan: None = None,
        include: Iterable[TaskRouter[Any]] = (),
        use_local_time: bool = False,
        max_payload_bytes: int | None = None,
        prepared_statements: bool = True,
    ) -> None: ...
    @overload
    def __init__(
        self,
        dsn: str | None = None,
        *,
        schema: str | None = None,
        lifespan: Callable[[], AbstractAsyncContextManager[D]],
        include: Iterable[TaskRouter[D]] = (),
        use_local_time: bool = False,
        max_payload_bytes: int | None = None,
        prepared_statements: bool = True,
    ) -> None: ...
    def __init__(
        self,
        dsn: str | None = None,
        *,
        schema: str | None = None,
        lifespan: Callable[[], AbstractAsyncContextManager[D]] | None = None,
        include: Iterable[TaskRouter[Any]] = (),
        use_local_time: bool = False,
        max_payload_bytes: int | None = None,
        prepared_statements: bool = True,
    ) -> None:
        super().__init__()
        self.lifespan = lifespan
        self.hooks = Hooks()
        self.on = self.hooks.on
        self.around = self.hooks.around
        self.dsn = dsn
        self.schema = schema
        self._options: dict[str, Any] = {
            "hooks": self.hooks,
            "schema": schema,
            "use_local_time": use_local_time,
            "max_payload_bytes": max_payload_bytes,
            "prepared_statements": prepared_statements,
            "tasks": self,
        }
        self._sync_client: sync.Client | None = None
        self._sync_client_lock = threading.Lock()
        # A client belongs to a loop; a program may have several, one after the other.
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, Client] = WeakKeyDictionary()
        self._current_connection: ContextVar[object] = ContextVar("connection", default=None)
        self._client_override: ClientProvider | None = None
        self.include(*include)

    def add_job(
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
        """Add one job by the name of its task, which may be defined in another program.

        If this app has the task, its options apply where none is given, and the payload is checked.
        """
        return self._get_sync_client().add_job(
            identifier,
            payload,
            queue_name=queue_name,
            run_at=run_at,
            max_attempts=max_attempts,
            priority=priority,
            job_key=job_key,
            job_key_mode=job_key_mode,
            flags=flags,
            conn=self._resolve_connection(conn),
        )

    async def aadd_job(
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
        """`add_job` for async code."""
        return await self._get_client().add_job(
            identifier,
            payload,
            queue_name=queue_name,
            run_at=run_at,
            max_attempts=max_attempts,
            priority=priority,
            job_key=job_key,
            job_key_mode=job_key_mode,
            flags=flags,
            conn=self._resolve_connection(conn),
        )

    def add_jobs(self, specs: Iterable[JobSpec], *, conn: object = None) -> list[Job]:
        """Add any number of jobs in one round trip; the jobs in the order of their specs.

        The definitions of this app's tasks apply as with `add_job`.
        """
        return self._get_sync_client().add_jobs(specs, conn=self._resolve_connection(conn))

    async def aadd_jobs(self, specs: Iterable[JobSpec], *, conn: object = None) -> list[Job]:
        """`add_jobs` for async code."""
        return await self._get_client().add_jobs(specs, conn=self._resolve_connection(conn))

    def remove_job(self, job_key: str, *, conn: object = None) -> Job | None:
        """Remove the job with that key; one that runs is let finish and gets no other attempt."""
        return self._get_sync_client().remove_job(job_key, conn=self._resolve_connection(conn))

    async def aremove_job(self, job_key: str, *, conn: object = None) -> Job | None:
        """`remove_job` for async code."""
        return await self._get_client().remove_job(job_key, conn=self._resolve_connection(conn))

    def enqueue(self, spec: JobSpec, conn: object = None) -> Job:
        """Add the job of a task; `task.enqueue(…)` comes here."""
        return self._get_sync_client().add_spec(spec, conn=self._resolve_connection(conn))

    async def aenqueue(self, spec: JobSpec, conn: object = None) -> Job:
        """`enqueue` for async code."""
        return await self._get_client().add_spec(spec, conn=self._resolve_connection(conn))

    @contextmanager
    def using_connection(self, conn: object) -> Iterator[None]:
        """Inside, whatever adds jobs to this app joins the transaction of that connection."""
        token = self._current_connection.set(conn)
        try:
            yield
        finally:
            self._current_connection.reset(token)

    @contextmanager
    def _using_clients(self, clients: "ClientProvider") -> Iterator[None]:
        """Inside, in every thread and loop, jobs are added by other clients: for tests."""
        before, self._client_override = self._client_override, clients
        try:
            yield
        finally:
            self._client_override = before

    def worker(
        self,
        options: WorkerOptions | None = None,
        *,
        concurrency: int | None = None,
        tasks: Collection[str] | None = None,
        database: object = None,
        schema: str | None = None,
        crontab: str | None = None,
        crontab_file: Path | str | None = None,
        cron_items: Sequence[ParsedCronItem] | None = None,
        forbidden_flags: ForbiddenFlags = None,
        logger: Logger | logging.Logger | None = None,
        handle_signals: bool = False,
    ) -> Runner:
        """A worker for this app's tasks, or for some of them: `async with app.worker(): …`.

        It works while the block lasts; `await app.worker().run_once()` only runs what is ready.
        """
        chosen = options or WorkerOptions()
        given: dict[str, Any] = {} if concurrency is None else {"concurrency": concurrency}
        given |= self._get_worker_options()
        if schema:
            given["schema"] = schema
        return Runner(
            self.dsn if database is None else database,
            self if tasks is None else self.subset(tasks),
            crontab=crontab,
            crontab_file=crontab_file,
            cron_items=cron_items,
            options=replace(chosen, **given),
            lifespan=self.lifespan,
            hooks=self.hooks,
            forbidden_flags=forbidden_flags,
            logger=logger,
            handle_signals=handle_signals,
        )

    def _get_worker_options(self) -> dict[str, Any]:
        """What the app itself says of WorkerOptions, by the names there."""
        named: dict[str, Any] = {"schema": self.schema} if self.schema else {}
        if self._options["use_local_time"]:
            named["use_local_time"] = True
        if not self._options["prepared_statements"]:
            named["prepared_statements"] = False
        return named

    def migrate(self) -> int:
        """Install or upgrade the schema; the level at which it then stands."""
        return self._get_sync_client().migrate()

    async def amigrate(self) -> int:
        """`migrate` for async code."""
        return await self._get_client().migrate()

    async def close(self) -> None:
        """Close what the app opened in this loop and for blocking calls; it can be used again."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()
        if self._sync_client is not None:
            self._sync_client.close()

    def find_enqueuer(self) -> "App[D]":
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _resolve_connection(self, conn: object) -> object:
        return self._current_connection.get() if conn is None else conn

    def _get_client(self) -> Client:
        if self._client_override is not None:
            return self._client_override.client
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = Client(self.dsn, **self._options)
        return self._clients[loop]

    def _get_sync_client(self) -> sync.Client:
        if self._client_override is not None:
            return self._client_override.sync_client
        # Two threads may come first at once, and share one client all the same.
        with self._sync_client_lock:
            if self._sync_client is None:
                self._sync_client = sync.Client(self.dsn, **self._options)
            return self._sync_client
