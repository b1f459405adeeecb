"""The session of a test: its clients replace those of the app and add jobs on its connection."""

import asyncio
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from datetime import datetime
from functools import partial
from threading import Lock
from typing import Any, TypeVar

from psycopg import Connection

from graphile_worker import sync
from graphile_worker._db.conninfo import resolve_conninfo
from graphile_worker._db.external_connections import OpenTransaction
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.query import Plan
from graphile_worker.app import App
from graphile_worker.client import Client
from graphile_worker.jobs import Job, JobSpec
from graphile_worker.options import default_schema
from graphile_worker.testing.clock import TestClock
from graphile_worker.testing.connections import SyncTestDatabase, TestConnection, TestDatabase
from graphile_worker.testing.runner import DrainResult, DrainRun, TestRuntime
from graphile_worker.testing.savepoints import is_django_connection
from graphile_worker.testing.setup import (
    PreparePlan,
    choose_plan_for_django,
    get_django_test_environment,
    plan_keep_schema,
    plan_prepare_empty_schema,
    plan_prepare_schema,
)
from graphile_worker.testing.sync_bridge import is_facade

T = TypeVar("T")

# The default of `deps`. A test may set any other value, also None.
FROM_LIFESPAN: Any = object()


class TestClient(Client):
    """The async client of an app in a test. It runs jobs that are added inline."""

    __test__ = False
    _shares_transaction = True
    session: "TestSession"
    database: TestDatabase

    async def add_spec(self, spec: JobSpec, *, conn: object = None) -> Job:
        job = await super().add_spec(spec, conn=conn)
        await self.session.handle_added([job], conn)
        return job

    async def add_jobs(self, specs: Iterable[JobSpec], *, conn: object = None) -> list[Job]:
        jobs = await super().add_jobs(specs, conn=conn)
        await self.session.handle_added(jobs, conn)
        return jobs

    def _set_run_at(self, spec: JobSpec) -> JobSpec:
        return _set_run_at(spec, self.session.clock)

    def _get_local_time(self) -> datetime:
        return self.session.clock.now()

    async def _run_plan(self, plan: Plan[T], conn: object) -> T:
        if self.session.is_test_connection(conn):
            return await super()._run_plan(plan, None)
        await self.database.prepare()
        return await super()._run_plan(plan, conn)

    async def close(self) -> None:
        """Do nothing. The connection belongs to the test."""


class SyncTestClient(sync.Client):
    """The blocking client of an app in a test. It runs jobs that are added inline."""

    _shares_transaction = True
    session: "TestSession"
    database: SyncTestDatabase

    def add_spec(self, spec: JobSpec, *, conn: object = None) -> Job:
        job = super().add_spec(spec, conn=conn)
        self.session.handle_added_sync([job], conn)
        return job

    def add_jobs(self, specs: Iterable[JobSpec], *, conn: object = None) -> list[Job]:
        jobs = super().add_jobs(specs, conn=conn)
        self.session.handle_added_sync(jobs, conn)
        return jobs

    def _set_run_at(self, spec: JobSpec) -> JobSpec:
        return _set_run_at(spec, self.session.clock)

    def _get_local_time(self) -> datetime:
        return self.session.clock.now()

    def _run_plan(self, plan: Plan[T], conn: object) -> T:
        if self.session.is_test_connection(conn):
            return super()._run_plan(plan, None)
        self.database.prepare()
        return super()._run_plan(plan, conn)

    def close(self) -> None:
        """Do nothing. The connection belongs to the test."""


def _set_run_at(spec: JobSpec, clock: TestClock) -> JobSpec:
    # The server's time does not advance in a transaction, so the clock of the test decides.
    if not isinstance(spec, JobSpec):
        return spec
    return replace(spec, run_at=clock.now() if spec.run_at is None else clock.resolve(spec.run_at))


class _NoCommitConnection(Connection[Any]):
    """A connection that ignores commits of tasks, so that the test can roll back everything."""

    def commit(self) -> None: ...

    def rollback(self) -> None: ...


class TestSession:
    """Replace the clients of the app during a test, and connect before the first statement."""

    __test__ = False

    def __init__(self, app: App[Any], connection: object, dsn: str | None) -> None:
        self.clock = TestClock()
        self.deps: Any = FROM_LIFESPAN
        self._app = app
        self._connection = connection
        self._dsn = dsn
        self._schemas = Schemas.from_names(app.schema or default_schema())
        self._runtime: TestRuntime | None = None
        self._runtime_lock = Lock()
        self._is_inline = False
        self._is_draining = False
        # Jobs that were added inline while another job runs. None while no job runs.
        self._pending_job_ids: deque[int] | None = None
        self._exit_stack = ExitStack()

    def open(self) -> None:
        """Replace the clients of the app."""
        self._exit_stack.enter_context(self._app._using_clients(self))

    def close(self) -> None:
        """Restore the clients of the app and close a connection that was opened here."""
        self._exit_stack.close()
        if self._runtime is not None:
            self._runtime.connection.executor.close()
        self._runtime = None

    @property
    def was_used(self) -> bool:
        return self._runtime is not None

    @property
    def must_clear(self) -> bool:
        """Return whether the test leaves committed jobs, which Django does not delete.

        After a TransactionTestCase, Django empties only the tables of its models.
        """
        return (
            self._runtime is not None
            and self._runtime.connection.sync_database.was_used
            and is_django_connection(self._connection)
            and get_django_test_environment() is not None
            and asyncio._get_running_loop() is None
            and OpenTransaction.find(self._connection) is None
        )

    @property
    def runtime(self) -> TestRuntime:
        """Return the parts that run jobs on the connection of the test."""
        with self._runtime_lock:
            if self._runtime is None:
                self._runtime = self._build_runtime(self._build_connection())
            return self._runtime

    # The clients of the app

    @property
    def client(self) -> Client:
        return self.runtime.client

    @property
    def sync_client(self) -> sync.Client:
        return self.runtime.sync_client

    def is_test_connection(self, conn: object) -> bool:
        """Return whether `conn` is None or the connection of the test."""
        if conn is None or conn is self._connection or is_facade(conn):
            return True
        # Each thread has another object for the same database.
        return (
            is_django_connection(conn)
            and is_django_connection(self._connection)
            and conn.alias == self._connection.alias  # type: ignore[attr-defined]
        )

    async def handle_added(self, jobs: Sequence[Job], conn: object) -> None:
        """Run jobs that were added inline."""
        if self._begin_inline_run(jobs):
            with self._runtime_for(conn) as runtime:
                result = await self._run_pending(runtime)
            result.raise_first()

    def handle_added_sync(self, jobs: Sequence[Job], conn: object) -> None:
        """Run jobs that were added inline, from blocking code."""
        if self._begin_inline_run(jobs):
            with self._runtime_for(conn) as runtime:
                result = runtime.connection.executor.run_main(partial(self._run_pending, runtime))
            result.raise_first()

    # Running

    @contextmanager
    def inline(self) -> Iterator[None]:
        """Run jobs when they are added."""
        before, self._is_inline = self._is_inline, True
        try:
            yield
        finally:
            self._is_inline = before

    async def drain(
        self, until: datetime | None, *, stop_at_error: bool, at_most: int
    ) -> DrainResult:
        """Run the jobs that are due now or until a time."""
        before, self._is_draining = self._is_draining, True
        try:
            return await DrainRun(self.runtime, stop_at_error=stop_at_error).drain(until, at_most)
        finally:
            self._is_draining = before

    def _begin_inline_run(self, jobs: Sequence[Job]) -> bool:
        """Return whether the caller has to run these jobs. Otherwise a run in progress will."""
        if not self._is_inline or self._is_draining:
            return False
        known = self._app.tasks()
        added = [job for job in jobs if not job.is_duplicate]
        ids = [job.id for job in added if job.task_identifier in known]
        if self._pending_job_ids is not None:
            self._pending_job_ids.extend(ids)
            return False
        self._pending_job_ids = deque(ids)
        return True

    async def _run_pending(self, runtime: TestRuntime) -> DrainResult:
        assert self._pending_job_ids is not None
        return await DrainRun(runtime, stop_at_error=True).run(self._pending_job_ids)

    # The connection

    def _build_connection(self) -> TestConnection:
        if self._connection is None and self._dsn is None:
            self._connection = _get_django_connection(self._app)
        if self._connection is not None:
            plan: PreparePlan = plan_prepare_schema
            if is_django_connection(self._connection):
                plan = choose_plan_for_django(self._connection, self._schemas)
            return TestConnection.wrap(self._connection, self._schemas, plan)
        return TestConnection.connect_lazily(
            self._connect, self._schemas, plan_prepare_empty_schema
        )

    def _connect(self) -> Connection[Any]:
        is_prepared = self._app._prepared_statements
        connection = _NoCommitConnection.connect(
            resolve_conninfo(self._dsn or self._app._get_dsn()),
            prepare_threshold=5 if is_prepared else None,
        )
        # Closing it rolls back.
        self._exit_stack.callback(connection.close)
        return connection

    @contextmanager
    def _runtime_for(self, conn: object) -> Iterator[TestRuntime]:
        """Yield the runtime for an inline run, on `conn` or on the connection of the test."""
        try:
            if self.is_test_connection(conn):
                yield self.runtime
                return
            runtime = self._build_runtime(
                TestConnection.wrap(conn, self._schemas, plan_keep_schema)
            )
            try:
                yield runtime
            finally:
                runtime.connection.executor.close()
        finally:
            self._pending_job_ids = None

    def _build_runtime(self, connection: TestConnection) -> TestRuntime:
        options = self._app._build_client_options()
        client = TestClient(connection.database, **options)
        sync_client = SyncTestClient(connection.sync_database, **options)
        client.session = sync_client.session = self
        client.database, sync_client.database = connection.database, connection.sync_database
        return TestRuntime(
            app=self._app,
            connection=connection,
            client=client,
            sync_client=sync_client,
            clock=self.clock,
            lifespan=self._lifespan,
        )

    def _lifespan(self) -> Any:
        if self.deps is not FROM_LIFESPAN:
            return nullcontext(self.deps)
        return (self._app.lifespan or nullcontext)()


def _get_django_connection(app: App[Any]) -> Any:
    conf = sys.modules.get("django.conf")
    if conf is None or not conf.settings.configured:
        return None
    from django.db import DEFAULT_DB_ALIAS, connections
    from django.utils.connection import ConnectionProxy

    # Only a DjangoApp has an alias. The proxy stands for the connection of the current thread.
    connection = ConnectionProxy(connections, getattr(app, "alias", DEFAULT_DB_ALIAS))
    return connection if connection.vendor == "postgresql" else None
