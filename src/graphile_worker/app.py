"""App: tasks and the database of their jobs in one object."""

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, Unpack, overload

from graphile_worker import sync
from graphile_worker._client import CallerTransaction
from graphile_worker._db.external_connections import OpenTransaction
from graphile_worker._shards import BaseShards
from graphile_worker._support.logs import Logger
from graphile_worker.client import Client
from graphile_worker.errors import ConfigurationError
from graphile_worker.hooks import Hooks
from graphile_worker.jobs import Job, JobOptions, JobSpec
from graphile_worker.options import (
    DEFAULT_NOTIFY_INTERVAL,
    NotifyMode,
    WorkerOptions,
)
from graphile_worker.results import JobStatus, Retention
from graphile_worker.shards import Shards
from graphile_worker.tasks import D, ReadResult, TaskRouter
from graphile_worker.tasks.task import warn_if_in_loop

if TYPE_CHECKING:
    from graphile_worker._worker.claimer import ForbiddenFlags
    from graphile_worker.crontab import ParsedCronItem
    from graphile_worker.runner import Runner


class ClientProvider(Protocol):
    """An object whose clients replace those of an app, for tests."""

    @property
    def client(self) -> Client: ...

    @property
    def sync_client(self) -> sync.Client: ...


class AppResultSource:
    """Waits for the result of a job that the app added, with the app's clients."""

    def __init__(
        self, app: "App[Any]", read_result: ReadResult, transaction: OpenTransaction | None
    ) -> None:
        self._app = app
        self._read_result = read_result
        self._transaction = transaction

    def result(self, job: Job[Any], timeout: timedelta | None) -> Any:
        warn_if_in_loop("job.aresult", depth=3)
        return self._app._get_sync_result_client(job.id, job.shard)._wait_for_result(
            job.id, timeout, read_result=self._read_result, caller=self._find_caller(job)
        )

    async def aresult(self, job: Job[Any], timeout: timedelta | None) -> Any:  # noqa: ASYNC109
        return await self._app._get_result_client(job.id, job.shard)._wait_for_result(
            job.id, timeout, read_result=self._read_result, caller=self._find_caller(job)
        )

    def _find_caller(self, job: Job[Any]) -> CallerTransaction | None:
        caller = self._app._find_caller()
        if caller is None and self._transaction is not None:
            return CallerTransaction(self._transaction, job)
        return caller


class App(TaskRouter[D]):
    """Define tasks, add their jobs and run workers. The first call that needs a database connects.

    Methods such as `add_job` block. Those with the prefix `a`, such as `aadd_job`, are awaited.

    Args:
        dsn: Connection string, or a function that returns one for each new connection, for example
            with a password that expires (default: `DATABASE_URL`, then libpq's variables), or
            `Shards`.
        schema: Schema of Graphile Worker (default: `GRAPHILE_WORKER_SCHEMA`).
        lifespan: Function that returns an async context manager. A worker enters it before its
            first job, and tasks find the value that it yields in `ctx.deps`.
        include: Routers to include.
        use_local_time: Set `run_at` from this machine's clock, not from the database's.
        max_payload_bytes: Largest payload that `add_job` accepts.
        prepared_statements: Turn this off behind a pooler that does not support them.
        retention: What tasks keep of ended jobs, unless they have their own (default: nothing).
        notify: When workers are notified of added jobs: `on_commit`, or `coalesced` to notify them
            soon after the commit of many jobs, or `never` to let them poll.
        notify_interval: Shortest time between two coalesced notifications.

    Attributes:
        hooks (Hooks): Listeners and wrappers of this app.
        on: Decorator for a listener, see `Hooks.on`.
        around: Decorator for a wrapper, see `Hooks.around`.
    """

    @overload
    def __init__(
        self: "App[None]",
        dsn: str | Callable[[], str] | BaseShards | None = None,
        *,
        schema: str | None = None,
        lifespan: None = None,
        include: Iterable[TaskRouter[Any]] = (),
        use_local_time: bool = False,
        max_payload_bytes: int | None = None,
        prepared_statements: bool = True,
        retention: Retention | None = None,
        notify: NotifyMode = "on_commit",
        notify_interval: timedelta = DEFAULT_NOTIFY_INTERVAL,
    ) -> None: ...
    @overload
    def __init__(
        self,
        dsn: str | Callable[[], str] | BaseShards | None = None,
        *,
        schema: str | None = None,
        lifespan: Callable[[], AbstractAsyncContextManager[D]],
        include: Iterable[TaskRouter[D]] = (),
        use_local_time: bool = False,
        max_payload_bytes: int | None = None,
        prepared_statements: bool = True,
        retention: Retention | None = None,
        notify: NotifyMode = "on_commit",
        notify_interval: timedelta = DEFAULT_NOTIFY_INTERVAL,
    ) -> None: ...
    def __init__(
        self,
        dsn: str | Callable[[], str] | BaseShards | None = None,
        *,
        schema: str | None = None,
        lifespan: Callable[[], AbstractAsyncContextManager[D]] | None = None,
        include: Iterable[TaskRouter[Any]] = (),
        use_local_time: bool = False,
        max_payload_bytes: int | None = None,
        prepared_statements: bool = True,
        retention: Retention | None = None,
        notify: NotifyMode = "on_commit",
        notify_interval: timedelta = DEFAULT_NOTIFY_INTERVAL,
    ) -> None:
        super().__init__()
        if retention is not None and not isinstance(retention, Retention):
            raise ConfigurationError(f"retention must be a Retention, got {retention!r}")
        # This raises an error if a value is not valid.
        WorkerOptions(notify=notify, notify_interval=notify_interval)
        self._chosen_notify: NotifyMode = notify
        self._notify_interval = notify_interval
        self._default_retention = retention
        self.lifespan = lifespan
        self.hooks = Hooks()
        self.on = self.hooks.on
        self.around = self.hooks.around
        self.dsn = dsn
        self._schema = schema
        self._use_local_time = use_local_time
        self._max_payload_bytes = max_payload_bytes
        self._prepared_statements = prepared_statements
        self._sync_client: sync.Client | sync.Shards | None = None
        self._sync_client_lock = threading.Lock()
        # A client belongs to one event loop, and a program may run several loops in turn.
        self._clients: dict[asyncio.AbstractEventLoop, Client | Shards] = {}
        self._current_connection: ContextVar[object] = ContextVar("connection", default=None)
        self._client_override: ClientProvider | None = None
        self.include(*include)

    @property
    def schema(self) -> str | None:
        """Return the schema of Graphile Worker, or None for the default."""
        return self._schema

    @property
    def _notify(self) -> NotifyMode:
        return self._chosen_notify

    def add_job(
        self,
        identifier: str,
        payload: Any = None,
        *,
        conn: object = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Add a job by the name of its task, which another program may define.

        Args:
            identifier: Name of the task. If the app has it, its options are the defaults and the
                payload is checked.
            payload: Any value that JSON can represent.
            conn: Your connection, whose transaction the call joins.
            options: See `JobOptions`.

        Returns:
            The job that was added, or updated by its `job_key`.

        Raises:
            JobSpecError: The job cannot be stored.
        """
        return self._get_sync_client().add_job(
            identifier, payload, conn=self._resolve_connection(conn), **options
        )

    async def aadd_job(
        self,
        identifier: str,
        payload: Any = None,
        *,
        conn: object = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Add a job from async code. See `add_job`."""
        return await self._get_client().add_job(
            identifier, payload, conn=self._resolve_connection(conn), **options
        )

    def add_jobs(self, specs: Iterable[JobSpec], *, conn: object = None) -> list[Job]:
        """Add jobs in one round trip: all or none. See `Client.add_jobs`."""
        return self._get_sync_client().add_jobs(specs, conn=self._resolve_connection(conn))

    async def aadd_jobs(self, specs: Iterable[JobSpec], *, conn: object = None) -> list[Job]:
        """Add jobs from async code. See `add_jobs`."""
        return await self._get_client().add_jobs(specs, conn=self._resolve_connection(conn))

    def remove_job(
        self, job_key: str, *, shard_key: str | None = None, conn: object = None
    ) -> Job | None:
        """Remove the job with this key. A running job finishes and is not retried.

        Args:
            job_key: Key of the job.
            shard_key: The `shard_key` with which it was added, if the app has several shards.
            conn: Your connection, whose transaction the call joins.

        Returns:
            The removed job, or None if no job has this key.
        """
        client, conn = self._get_sync_client(), self._resolve_connection(conn)
        chosen = _get_shard_options(client, shard_key=shard_key)
        return client.remove_job(job_key, conn=conn, **chosen)

    async def aremove_job(
        self, job_key: str, *, shard_key: str | None = None, conn: object = None
    ) -> Job | None:
        """Remove a job from async code. See `remove_job`."""
        client, conn = self._get_client(), self._resolve_connection(conn)
        chosen = _get_shard_options(client, shard_key=shard_key)
        return await client.remove_job(job_key, conn=conn, **chosen)

    def status(self, job_id: int, *, shard: str | None = None, conn: object = None) -> JobStatus:
        """Get what is known of a job: its state, attempts, progress, error and times.

        Args:
            job_id: Id of the job.
            shard: Name of its shard, if the app has several: `job.shard`.
            conn: Your connection, whose transaction the call joins.

        Returns:
            The status. Its state is unknown if the job is deleted and left no outcome.
        """
        client, conn = self._get_sync_client(), self._resolve_connection(conn)
        chosen = _get_shard_options(client, shard=shard)
        return client.status(job_id, conn=conn, **chosen)

    async def astatus(
        self, job_id: int, *, shard: str | None = None, conn: object = None
    ) -> JobStatus:
        """Get what is known of a job from async code. See `status`."""
        client, conn = self._get_client(), self._resolve_connection(conn)
        chosen = _get_shard_options(client, shard=shard)
        return await client.status(job_id, conn=conn, **chosen)

    def result(
        self, job_id: int, *, shard: str | None = None, timeout: timedelta | None = None
    ) -> Any:
        """Wait until a job ends, and return what its task returned.

        Args:
            job_id: Id of the job.
            shard: Name of its shard, if the app has several: `job.shard`.
            timeout: Longest wait (default: no limit).

        Returns:
            The result, read by the return annotation of the task if the app has the task, else as
            plain JSON.

        Raises:
            JobFailedError: The job permanently failed.
            ResultUnknownError: The job is deleted and left no result. An id that is not visible in
                the queue counts as deleted, so wait after the commit that adds the job.
            ResultError: The stored result does not have the task's return type.
            OpenTransactionError: The connection of `using_connection` is in a transaction.
            TimeoutError: The job did not end in time.
        """
        warn_if_in_loop("app.aresult")
        client = self._get_sync_result_client(job_id, shard)
        return client._wait_for_result(job_id, timeout, caller=self._find_caller())

    async def aresult(
        self,
        job_id: int,
        *,
        shard: str | None = None,
        timeout: timedelta | None = None,  # noqa: ASYNC109
    ) -> Any:
        """Wait for the result of a job in async code. See `result`."""
        client = self._get_result_client(job_id, shard)
        return await client._wait_for_result(job_id, timeout, caller=self._find_caller())

    def enqueue(
        self, spec: JobSpec, conn: object = None, read_result: ReadResult | None = None
    ) -> Job:
        """Add the job of a task, for `Task.enqueue`."""
        conn = self._resolve_connection(conn)
        job = self._get_sync_client().add_spec(spec, conn=conn)
        return self._bind(job, conn, read_result)

    async def aenqueue(
        self, spec: JobSpec, conn: object = None, read_result: ReadResult | None = None
    ) -> Job:
        """Add the job of a task from async code, for `Task.aenqueue`."""
        conn = self._resolve_connection(conn)
        job = await self._get_client().add_spec(spec, conn=conn)
        return self._bind(job, conn, read_result)

    @contextmanager
    def using_connection(self, conn: object) -> Iterator[None]:
        """Make all calls of this app inside the block join the transaction of a connection.

        Args:
            conn: Your connection.

        Returns:
            A context manager.
        """
        token = self._current_connection.set(conn)
        try:
            yield
        finally:
            self._current_connection.reset(token)

    @contextmanager
    def _using_clients(self, clients: "ClientProvider") -> Iterator[None]:
        """Use other clients inside the block, in every thread and loop: for tests."""
        previous, self._client_override = self._client_override, clients
        try:
            yield
        finally:
            self._client_override = previous

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
        cron_items: "Sequence[ParsedCronItem] | None" = None,
        forbidden_flags: "ForbiddenFlags" = None,
        logger: Logger | logging.Logger | None = None,
        handle_signals: bool = False,
    ) -> "Runner":
        """Create a worker for the tasks of this app.

        `async with app.worker():` runs it during the block. `await app.worker().run_once()` runs
        the jobs that are ready. See `run` for the arguments that are missing here.

        Args:
            options: Options of the worker. Those of the app take precedence.
            concurrency: Number of jobs that run at the same time.
            tasks: Identifiers of the tasks to run (default: all).
            database: Connection string, pool or `Shards` (default: the app's `dsn`).
            schema: Schema of Graphile Worker (default: the app's).

        Returns:
            The runner, which is not started yet.

        Raises:
            TaskNotFound: A name in `tasks` is unknown.
        """
        # Imported here, so that programs that only add jobs start without it.
        from graphile_worker.runner import build_runner

        overrides: dict[str, Any] = {} if concurrency is None else {"concurrency": concurrency}
        overrides |= self._get_worker_options()
        if schema:
            overrides["schema"] = schema
        return build_runner(
            self.dsn if database is None else database,
            self if tasks is None else self.subset(tasks),
            crontab=crontab,
            crontab_file=crontab_file,
            cron_items=cron_items,
            options=replace(options or WorkerOptions(), **overrides),
            lifespan=self.lifespan,
            hooks=self.hooks,
            forbidden_flags=forbidden_flags,
            logger=logger,
            handle_signals=handle_signals,
        )

    def _get_dsn(self, shard: str | None = None) -> str | Callable[[], str] | None:
        """Return the connection string, for what works on one database.

        Raises:
            ConfigurationError: The app has several shards, and none or an unknown one is chosen.
        """
        if not isinstance(self.dsn, BaseShards):
            return self.dsn
        if shard is None or shard not in self.dsn.databases:
            names = ", ".join(self.dsn.names)
            raise ConfigurationError(f"the app has several shards. Choose one of {names}.")
        database: Any = self.dsn.databases[shard]
        dsn: str | Callable[[], str] | None = database
        return dsn

    def _get_worker_options(self) -> dict[str, Any]:
        """Return the worker options that the app sets."""
        options: dict[str, Any] = {"schema": self.schema} if self.schema else {}
        if self._use_local_time:
            options["use_local_time"] = True
        if not self._prepared_statements:
            options["prepared_statements"] = False
        if self._notify != "on_commit":
            options |= {"notify": self._notify, "notify_interval": self._notify_interval}
        return options

    def _build_client_options(self) -> dict[str, Any]:
        """Return the arguments of the app's clients, besides their database."""
        # Only what the app sets, because shards may have set the rest.
        options = {"hooks": self.hooks, "tasks": self, **self._get_worker_options()}
        if self._max_payload_bytes is not None:
            options["max_payload_bytes"] = self._max_payload_bytes
        return options

    def migrate(self) -> int:
        """Install or upgrade the schema.

        Returns:
            The new level of the schema.
        """
        return self._get_sync_client().migrate()

    async def amigrate(self) -> int:
        """Install or upgrade the schema from async code. See `migrate`."""
        return await self._get_client().migrate()

    async def close(self) -> None:
        """Close the connections of this event loop and of blocking calls. A later call reopens."""
        self._discard_clients_of_closed_loops()
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()
        if self._sync_client is not None:
            self._sync_client.close()

    def find_enqueuer(self) -> "App[D]":
        """Return this app, which adds the jobs of its tasks."""
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _bind(self, job: Job, conn: object, read_result: ReadResult | None) -> Job:
        if read_result is not None:
            job._result_source = AppResultSource(self, read_result, OpenTransaction.find(conn))
        return job

    def _find_caller(self) -> CallerTransaction | None:
        """Return the open transaction of `using_connection`, or None."""
        transaction = OpenTransaction.find(self._current_connection.get())
        return None if transaction is None else CallerTransaction(transaction)

    def _resolve_connection(self, conn: object) -> object:
        return self._current_connection.get() if conn is None else conn

    def _get_result_client(self, job_id: int, shard: str | None) -> Client:
        client = self._get_client()
        return client._get_result_client(job_id, shard) if isinstance(client, Shards) else client

    def _get_sync_result_client(self, job_id: int, shard: str | None) -> sync.Client:
        client = self._get_sync_client()
        if isinstance(client, sync.Shards):
            found: sync.Client = client._get_result_client(job_id, shard)
            return found
        return client

    def _get_client(self) -> Client | Shards:
        if self._client_override is not None:
            return self._client_override.client
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._discard_clients_of_closed_loops()
            options = self._build_client_options()
            self._clients[loop] = (
                self.dsn._derive(Shards, **options)
                if isinstance(self.dsn, BaseShards)
                else Client(self.dsn, **options)
            )
        return self._clients[loop]

    def _discard_clients_of_closed_loops(self) -> None:
        """Close what loops left that ended without `close`, for example those of `asyncio.run`."""
        # A copy, because other threads have loops too.
        for loop in list(self._clients):
            if loop.is_closed() and (client := self._clients.pop(loop, None)) is not None:
                client._discard()

    def _get_sync_client(self) -> sync.Client | sync.Shards:
        if self._client_override is not None:
            return self._client_override.sync_client
        # Two threads may make their first call at the same time.
        with self._sync_client_lock:
            if self._sync_client is None:
                self._sync_client = self._open_sync_client()
            return self._sync_client

    def _open_sync_client(self) -> sync.Client | sync.Shards:
        options = self._build_client_options()
        if isinstance(self.dsn, BaseShards):
            return self.dsn._derive(sync.Shards, **options)
        return sync.Client(self.dsn, **options)


def _get_shard_options(client: object, **options: Any) -> dict[str, Any]:
    """Return the options that only shards have. One database ignores them, as `shard_key`."""
    return options if isinstance(client, BaseShards) else {}
