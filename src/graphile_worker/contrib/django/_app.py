"""DjangoApp: an app that adds its jobs on Django's connections."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from copy import copy
from datetime import timedelta
from functools import partial
from threading import Lock
from typing import Any, Unpack

from asgiref.sync import sync_to_async
from django.db import connections

from graphile_worker import sync
from graphile_worker._announcer import Send
from graphile_worker._client import CallerTransaction
from graphile_worker._db.external_connections import OpenTransaction
from graphile_worker._db.sync import SyncPsycopgDatabase
from graphile_worker._result_waiter import (
    OutageLog,
    Waiter,
    build_timeout_error,
    is_retryable,
    read_timeout,
)
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.status import EndedJob, check_job_id
from graphile_worker._sql.queries.claim import notify_jobs
from graphile_worker.app import App, AppResultSource
from graphile_worker.contrib.django import _connections
from graphile_worker.contrib.django._database import DjangoDatabase, dsn_of
from graphile_worker.contrib.django._registry import get_job_tasks
from graphile_worker.contrib.django._settings import get_settings
from graphile_worker.crontab import ParsedCronItem
from graphile_worker.errors import OpenTransactionError
from graphile_worker.jobs import Job, JobOptions, JobSpec
from graphile_worker.options import NotifyMode
from graphile_worker.results import JobStatus, Retention
from graphile_worker.tasks import ReadResult, Task

ChooseTasks = Callable[[Mapping[str, Task[..., Any]]], Collection[str]]


class DjangoClient(sync.Client):
    """A client on the connection of the current thread, also in its open transaction."""

    _db: DjangoDatabase

    def _build_send(self, source: object, *, prepared_statements: bool) -> Send:
        # Django would open a connection for the thread of the announcer, and never close it.
        dsn = partial(dsn_of, self._db.alias)
        database = SyncPsycopgDatabase(dsn, self._schemas, prepared_statements=prepared_statements)
        return lambda count: database.run(notify_jobs(count))

    def _is_foreign(self, conn: object) -> bool:
        return getattr(conn, "alias", self._db.alias) != self._db.alias

    def _find_connection(self, conn: object) -> object:
        return connections[self._db.alias] if conn is None else conn

    def _look_for_end(self, job_id: int, caller: CallerTransaction | None) -> EndedJob | None:
        # The client has no connection besides the caller's, and no worker sees the job before the
        # transaction ends.
        find = self._ended_jobs.plan_find([job_id])
        ended: EndedJob | None = self._run_plan(find, caller and caller.connection).get(job_id)
        if ended is None:
            raise OpenTransactionError(
                f"job {job_id} has not ended: leave atomic() before you wait for its result"
            )
        return ended

    def _look_once(
        self, job_id: int, caller: CallerTransaction | None, outage: OutageLog
    ) -> EndedJob | None:
        """Return the end of a job, or None if it has not ended or the database is unreachable."""
        if self._needs_look(caller):
            return self._look_for_end(job_id, caller)
        try:
            ended = self._run_plan(self._ended_jobs.plan_find([job_id]), None)
        except Exception as error:
            if not is_retryable(error):
                raise
            outage.record(error)
            return None
        outage.last_error = None
        return ended.get(job_id)


class DjangoResultSource(AppResultSource):
    """Waits for the result of a job on Django's connection."""

    _app: "DjangoApp"

    async def aresult(self, job: Job[Any], timeout: timedelta | None) -> Any:  # noqa: ASYNC109
        if self._app._client_override is not None:
            return await super().aresult(job, timeout)
        caller = await sync_to_async(self._find_caller)(job)
        return await self._app._await_result(job.id, timeout, self._read_result, caller)

    def __deepcopy__(self, memo: dict[int, Any]) -> "DjangoResultSource":
        # Django copies what setUpTestData stores for each test. There is only one app.
        return self


class DjangoApp(App[None]):
    """Define tasks, add their jobs on Django's connection and run workers.

    A call uses the connection of the current thread to the database of the app, so it joins the
    transaction of `atomic()`, and during tests the job is in the test database. Async calls run in
    the thread in which Django's async code uses the database. `conn` can also be an alias.

    The methods are those of `App`.

    Args:
        alias: Key of `DATABASES` (default: `DATABASE` of the setting `GRAPHILE_WORKER`).
    """

    _workers_migrate = False

    def __init__(self, alias: str | None = None) -> None:
        super().__init__(self._build_dsn)
        self._alias = alias
        self._client_key: tuple[str, ...] | None = None
        _connections.install(self.hooks)
        # Returns the identifiers of the tasks that a worker runs. None for all.
        self._choose_tasks: ChooseTasks | None = None

    @property
    def alias(self) -> str:
        """Return the alias of the database that has the queue."""
        return self._alias or get_settings().database

    @property
    def schema(self) -> str:
        """Return the schema of Graphile Worker."""
        return get_settings().schema

    @property
    def _notify(self) -> NotifyMode:
        return get_settings().notify

    @property
    def database(self) -> DjangoDatabase:
        """Return the connection of the current thread, to run plans on it."""
        return DjangoDatabase(self.alias, Schemas.from_names(self.schema))

    async def aadd_job(
        self,
        identifier: str,
        payload: Any = None,
        *,
        conn: object = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Add a job from async code. See `add_job`."""
        if self._is_for_harness(conn):
            return await super().aadd_job(identifier, payload, conn=conn, **options)
        return await sync_to_async(self.add_job)(identifier, payload, conn=conn, **options)

    async def aadd_jobs(self, specs: Iterable[JobSpec], *, conn: object = None) -> list[Job]:
        """Add jobs from async code. See `add_jobs`."""
        if self._is_for_harness(conn):
            return await super().aadd_jobs(specs, conn=conn)
        return await sync_to_async(self.add_jobs)(specs, conn=conn)

    async def aremove_job(
        self, job_key: str, *, shard_key: str | None = None, conn: object = None
    ) -> Job | None:
        """Remove a job from async code. See `remove_job`."""
        if self._is_for_harness(conn):
            return await super().aremove_job(job_key, conn=conn)
        return await sync_to_async(self.remove_job)(job_key, conn=conn)

    async def astatus(
        self, job_id: int, *, shard: str | None = None, conn: object = None
    ) -> JobStatus:
        """Get what is known of a job from async code. See `status`."""
        if self._is_for_harness(conn):
            return await super().astatus(job_id, conn=conn)
        return await sync_to_async(self.status)(job_id, conn=conn)

    async def aresult(
        self,
        job_id: int,
        *,
        shard: str | None = None,
        timeout: timedelta | None = None,  # noqa: ASYNC109
    ) -> Any:
        """Wait for the result of a job in async code. See `result`."""
        if self._client_override is not None:
            return await super().aresult(job_id, timeout=timeout)
        caller = await sync_to_async(self._find_caller)()
        return await self._await_result(job_id, timeout, None, caller)

    async def aenqueue(
        self, spec: JobSpec, conn: object = None, read_result: ReadResult | None = None
    ) -> Job:
        """Add the job of a task from async code, for `Task.aenqueue`."""
        if self._is_for_harness(conn):
            return await super().aenqueue(spec, conn, read_result)
        return await sync_to_async(self.enqueue)(spec, conn, read_result)

    async def amigrate(self) -> int:
        """Install or upgrade the schema from async code. See `migrate`."""
        return await sync_to_async(self.migrate)()

    def tasks(self) -> dict[str, Task[..., Any]]:
        """List the tasks that a worker of this app runs."""
        tasks = {**super().tasks(), **get_job_tasks(self)}
        if self._choose_tasks is None:
            return tasks
        chosen = self._choose_tasks(tasks)
        return {name: task for name, task in tasks.items() if name in chosen}

    def cron_items(self) -> list[ParsedCronItem]:
        """List the cron items. A worker of another database than the app's has none.

        A worker of some of the tasks has all of them: another one may not be running.
        """
        return super().cron_items() if self.alias == app.alias else []

    def _find(self, identifier: str) -> Task[..., Any] | None:
        return super()._find(identifier) or get_job_tasks(self).get(identifier)

    def _build_dsn(self) -> str:
        """Return the connection string of a worker. Tests rename databases after the import."""
        settings = get_settings()
        is_default = self._alias is None or self._alias == settings.database
        return dsn_of(settings.worker_database or self.alias if is_default else self.alias)

    def _get_default_retention(self) -> Retention | None:
        return get_settings().retention

    def _resolve_connection(self, conn: object) -> object:
        conn = super()._resolve_connection(conn)
        if isinstance(conn, str):
            return connections[conn]
        if conn is not None or self._client_override is not None:
            return conn
        connection = connections[self.alias]
        # Outside of a transaction the client commits, on the same connection.
        return None if OpenTransaction.find(connection) is None else connection

    def _is_for_harness(self, conn: object) -> bool:
        """Return whether an async call belongs to the connection of a test.

        The harness checks that the coroutine uses that connection.
        """
        if self._client_override is None:
            return False
        chosen = super()._resolve_connection(conn)
        alias = chosen if isinstance(chosen, str) else getattr(chosen, "alias", None)
        return chosen is None or alias in (None, self.alias)

    def _find_caller(self) -> CallerTransaction | None:
        """Return the open transaction in which a result is waited for, or None."""
        transaction = OpenTransaction.find(self._resolve_connection(None))
        return None if transaction is None else CallerTransaction(transaction)

    def _bind(self, job: Job, conn: object, read_result: ReadResult | None) -> Job:
        if read_result is not None:
            # Another database has other jobs with the same ids.
            alias = getattr(conn, "alias", self.alias)
            app = self if alias == self.alias else self._for_alias(alias)
            job._result_source = DjangoResultSource(app, read_result, OpenTransaction.find(conn))
        return job

    async def _await_result(
        self,
        job_id: int,
        timeout: timedelta | None,  # noqa: ASYNC109
        read_result: ReadResult | None,
        caller: CallerTransaction | None,
    ) -> Any:
        """Poll the end of a job, in the thread of Django's async code.

        A poll is short, so other coroutines can use the database meanwhile.
        """
        check_job_id(job_id)
        seconds = read_timeout(timeout)
        client, waiter = self._get_sync_client(), Waiter(job_id, time.monotonic())
        # A test that replaces the client does not come here.
        assert isinstance(client, DjangoClient)
        outage = OutageLog()
        while True:
            ended = await sync_to_async(client._look_once)(job_id, caller, outage)
            if ended is not None:
                return await sync_to_async(client._read_result)(ended, read_result)
            now = time.monotonic()
            if seconds is not None and now >= waiter.started_at + seconds:
                raise build_timeout_error(job_id, timeout) from outage.last_error
            waiter.postpone(now)
            await asyncio.sleep(waiter.delay)

    def _get_sync_client(self) -> sync.Client:
        # A test may override the settings.
        key = (self.alias, self.schema, self._notify)
        with self._sync_client_lock:
            if key != self._client_key:
                self._client_key, self._sync_client = key, None
        client = super()._get_sync_client()
        assert isinstance(client, sync.Client)
        return client

    def _open_sync_client(self) -> sync.Client:
        return DjangoClient(self.database, **self._build_client_options())

    def _with_tasks(self, choose: ChooseTasks) -> "DjangoApp":
        """Return an app with some of the tasks, for a worker."""
        other = self._for_alias(self.alias)
        other._choose_tasks = choose
        return other

    def _for_alias(self, alias: str) -> "DjangoApp":
        """Return an app with the same tasks and hooks, and another database."""
        other = copy(self)
        other._alias = alias
        other.dsn = other._build_dsn
        other._sync_client, other._sync_client_lock = None, Lock()
        other._clients = {}
        if alias != self.alias:
            # The connection of a test, or of `using_connection`, leads to the database of this app.
            other._client_override = None
            other._current_connection = ContextVar("connection", default=None)
        return other


app = DjangoApp()

_other_apps: dict[str, DjangoApp] = {}


def app_for(alias: str | None = None) -> DjangoApp:
    """Return the app with another database: the same tasks, and the queue of that database.

    Args:
        alias: Key of `DATABASES` (default: that of `app`).

    Returns:
        `app`, or an app that differs from it in its database and has no cron items.
    """
    if alias is None or alias == app.alias:
        return app
    if alias not in _other_apps:
        _other_apps.setdefault(alias, app._for_alias(alias))
    return _other_apps[alias]
