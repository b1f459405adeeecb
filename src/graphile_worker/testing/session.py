"""Desk: where jobs go in a test, and who runs those that are added inline."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import datetime
from functools import partial
from threading import Lock
from typing import Any

from psycopg import Connection

from graphile_worker._db.conninfo import resolve_conninfo
from graphile_worker._sql.identifiers import Schemas
from graphile_worker.app import App
from graphile_worker.jobs import Job
from graphile_worker.options import default_schema
from graphile_worker.testing.clients import SyncTestClient, TestClient
from graphile_worker.testing.clock import TestClock
from graphile_worker.testing.connections import TestConnection
from graphile_worker.testing.runner import DrainResult, DrainRun, TestRuntime
from graphile_worker.testing.setup import (
    get_django_connection,
    plan_keep_schema,
    plan_prepare_empty_schema,
    plan_prepare_schema,
)
from graphile_worker.testing.sync_bridge import is_facade

# In place of what a test may give, None among it.
FROM_LIFESPAN: Any = object()


class _NoCommitConnection(Connection[Any]):
    """What a task says of the transaction is passed over: elsewhere each statement commits."""

    def commit(self) -> None: ...

    def rollback(self) -> None: ...


class TestSession:
    """The clients of the app are here while a test lasts. Nothing is opened until it is needed."""

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
        # Jobs that were added inline and wait for their turn, while one of them runs.
        self._pending_job_ids: deque[int] | None = None
        self._exit_stack = ExitStack()

    def open(self) -> None:
        self._exit_stack.enter_context(self._app._using_clients(self))

    def close(self) -> None:
        self._exit_stack.close()
        if self._runtime is not None:
            self._runtime.connection.executor.close()
        self._runtime = None

    @property
    def was_used(self) -> bool:
        return self._runtime is not None

    @property
    def runtime(self) -> TestRuntime:
        """What jobs need to run on the connection of the test."""
        with self._runtime_lock:
            if self._runtime is None:
                self._runtime = self._build_runtime(self._build_connection())
            return self._runtime

    # In place of the app's own clients

    @property
    def client(self) -> TestClient:
        return self.runtime.client

    @property
    def sync_client(self) -> SyncTestClient:
        return self.runtime.sync_client

    def is_test_connection(self, conn: object) -> bool:
        """Is that the connection of the test, or none that was named?"""
        return conn is None or conn is self._connection or is_facade(conn)

    def handle_added(self, jobs: Sequence[Job], conn: object) -> None:
        """Run what was just added, if that is to be done inline."""
        if not self._begin_inline_run(jobs):
            return
        try:
            with self._runtime_for(conn) as crew:
                drained = crew.connection.executor.run(partial(self._run_pending, crew))
        finally:
            self._pending_job_ids = None
        drained.raise_first()

    async def handle_added_async(self, jobs: Sequence[Job], conn: object) -> None:
        """`added` for async code."""
        if not self._begin_inline_run(jobs):
            return
        try:
            with self._runtime_for(conn) as crew:
                drained = await self._run_pending(crew)
        finally:
            self._pending_job_ids = None
        drained.raise_first()

    # Running

    @contextmanager
    def inline(self) -> Iterator[None]:
        before, self._is_inline = self._is_inline, True
        try:
            yield
        finally:
            self._is_inline = before

    async def drain(
        self, until: datetime | None, *, stop_at_error: bool, at_most: int
    ) -> DrainResult:
        """Run what is due, by the clock or until then."""
        before, self._is_draining = self._is_draining, True
        try:
            return await DrainRun(self.runtime, stop_at_error=stop_at_error).drain(until, at_most)
        finally:
            self._is_draining = before

    def _begin_inline_run(self, jobs: Sequence[Job]) -> bool:
        """Must these be run by whoever has added them? While others run, those will."""
        if not self._is_inline or self._is_draining:
            return False
        known = self._app.tasks()
        ids = [job.id for job in jobs if job.task_identifier in known]
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
            self._connection = get_django_connection()
        if self._connection is not None:
            return TestConnection.wrap(self._connection, self._schemas, plan_prepare_schema)
        return TestConnection.connect_lazily(
            self._connect, self._schemas, plan_prepare_empty_schema
        )

    def _connect(self) -> Connection[Any]:
        is_prepared = self._app._options["prepared_statements"]
        connection = _NoCommitConnection.connect(
            resolve_conninfo(self._dsn or self._app.dsn),
            prepare_threshold=5 if is_prepared else None,
        )
        # What was not committed is rolled back by that.
        self._exit_stack.callback(connection.close)
        return connection

    @contextmanager
    def _runtime_for(self, conn: object) -> Iterator[TestRuntime]:
        """On a connection that the tested code has named, or that of the test."""
        if self.is_test_connection(conn):
            yield self.runtime
            return
        crew = self._build_runtime(TestConnection.wrap(conn, self._schemas, plan_keep_schema))
        try:
            yield crew
        finally:
            crew.connection.executor.close()

    def _build_runtime(self, connection: TestConnection) -> TestRuntime:
        client = TestClient(connection.database, **self._app._options)
        blocking_client = SyncTestClient(connection.sync_database, **self._app._options)
        client.target = blocking_client.target = self
        client.database, blocking_client.database = connection.database, connection.sync_database
        return TestRuntime(
            app=self._app,
            connection=connection,
            client=client,
            sync_client=blocking_client,
            clock=self.clock,
            lifespan=self._lifespan,
        )

    def _lifespan(self) -> Any:
        if self.deps is not FROM_LIFESPAN:
            return nullcontext(self.deps)
        return (self._app.lifespan or nullcontext)()
