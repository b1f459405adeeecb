"""Desk: where jobs go in a test, and who runs those that are added inline."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import datetime
from functools import partial
from threading import Lock
from typing import Any

from psycopg import Connection

from graphile_worker.app import App
from graphile_worker.db.conninfo import resolve
from graphile_worker.jobs import Job
from graphile_worker.options import default_schema
from graphile_worker.sql.identifiers import Schemas
from graphile_worker.testing.clients import BlockingTestClient, TestClient
from graphile_worker.testing.clock import TestClock
from graphile_worker.testing.facades import is_facade
from graphile_worker.testing.lines import Line
from graphile_worker.testing.preparing import (
    as_it_is,
    django_connection,
    preparing,
    starting_empty,
)
from graphile_worker.testing.running import Crew, Drained, Shift

# In place of what a test may give, None among it.
OF_LIFESPAN: Any = object()


class _Uncommitted(Connection[Any]):
    """What a task says of the transaction is passed over: elsewhere each statement commits."""

    def commit(self) -> None: ...

    def rollback(self) -> None: ...


class Desk:
    """The clients of the app are here while a test lasts. Nothing is opened until it is needed."""

    def __init__(self, app: App[Any], connection: object, dsn: str | None) -> None:
        self.clock = TestClock()
        self.deps: Any = OF_LIFESPAN
        self._app = app
        self._connection = connection
        self._dsn = dsn
        self._schemas = Schemas.named(app.schema or default_schema())
        self._crew: Crew | None = None
        self._making = Lock()
        self._is_inline = False
        self._is_draining = False
        # Jobs that were added inline and wait for their turn, while one of them runs.
        self._adding: deque[int] | None = None
        self._stack = ExitStack()

    def open(self) -> None:
        self._stack.enter_context(self._app.through(self))

    def close(self) -> None:
        self._stack.close()
        if self._crew is not None:
            self._crew.line.place.close()
        self._crew = None

    @property
    def was_used(self) -> bool:
        return self._crew is not None

    @property
    def crew(self) -> Crew:
        """What jobs need to run on the connection of the test."""
        with self._making:
            if self._crew is None:
                self._crew = self._made_crew(self._line())
            return self._crew

    # In place of the app's own clients

    @property
    def client(self) -> TestClient:
        return self.crew.client

    @property
    def blocking_client(self) -> BlockingTestClient:
        return self.crew.blocking_client

    def is_at(self, conn: object) -> bool:
        """Is that the connection of the test, or none that was named?"""
        return conn is None or conn is self._connection or is_facade(conn)

    def added(self, jobs: Sequence[Job], conn: object) -> None:
        """Run what was just added, if that is to be done inline."""
        if not self._takes(jobs):
            return
        try:
            with self._crew_on(conn) as crew:
                drained = crew.line.place.run(partial(self._run_added, crew))
        finally:
            self._adding = None
        drained.raise_first()

    async def added_async(self, jobs: Sequence[Job], conn: object) -> None:
        """`added` for async code."""
        if not self._takes(jobs):
            return
        try:
            with self._crew_on(conn) as crew:
                drained = await self._run_added(crew)
        finally:
            self._adding = None
        drained.raise_first()

    # Running

    @contextmanager
    def inline(self) -> Iterator[None]:
        before, self._is_inline = self._is_inline, True
        try:
            yield
        finally:
            self._is_inline = before

    async def drain(self, until: datetime | None, *, stop_at_error: bool, at_most: int) -> Drained:
        """Run what is due, by the clock or until then."""
        before, self._is_draining = self._is_draining, True
        try:
            return await Shift(self.crew, stop_at_error=stop_at_error).drain(until, at_most)
        finally:
            self._is_draining = before

    def _takes(self, jobs: Sequence[Job]) -> bool:
        """Must these be run by whoever has added them? While others run, those will."""
        if not self._is_inline or self._is_draining:
            return False
        known = self._app.tasks()
        ids = [job.id for job in jobs if job.task_identifier in known]
        if self._adding is not None:
            self._adding.extend(ids)
            return False
        self._adding = deque(ids)
        return True

    async def _run_added(self, crew: Crew) -> Drained:
        assert self._adding is not None
        return await Shift(crew, stop_at_error=True).run(self._adding)

    # The connection

    def _line(self) -> Line:
        if self._connection is None and self._dsn is None:
            self._connection = django_connection()
        if self._connection is not None:
            return Line.of(self._connection, self._schemas, preparing)
        return Line.opened_by(self._connect, self._schemas, starting_empty)

    def _connect(self) -> Connection[Any]:
        is_prepared = self._app._options["prepared_statements"]
        connection = _Uncommitted.connect(
            resolve(self._dsn or self._app.dsn), prepare_threshold=5 if is_prepared else None
        )
        # What was not committed is rolled back by that.
        self._stack.callback(connection.close)
        return connection

    @contextmanager
    def _crew_on(self, conn: object) -> Iterator[Crew]:
        """On a connection that the tested code has named, or that of the test."""
        if self.is_at(conn):
            yield self.crew
            return
        crew = self._made_crew(Line.of(conn, self._schemas, as_it_is))
        try:
            yield crew
        finally:
            crew.line.place.close()

    def _made_crew(self, line: Line) -> Crew:
        client = TestClient(line.database, **self._app._options)
        blocking_client = BlockingTestClient(line.blocking, **self._app._options)
        client.desk = blocking_client.desk = self
        client.database, blocking_client.database = line.database, line.blocking
        return Crew(
            app=self._app,
            line=line,
            client=client,
            blocking_client=blocking_client,
            clock=self.clock,
            lifespan=self._lifespan,
        )

    def _lifespan(self) -> Any:
        if self.deps is not OF_LIFESPAN:
            return nullcontext(self.deps)
        return (self._app.lifespan or nullcontext)()
