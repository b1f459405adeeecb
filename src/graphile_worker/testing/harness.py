"""Harness: look at the queue of an app in a test, and run its jobs."""

from collections.abc import Awaitable, Mapping
from contextlib import AbstractContextManager, ExitStack
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Never, Self, TypeVar, overload

from graphile_worker._db.database import run_plan, run_plan_sync
from graphile_worker.app import App
from graphile_worker.errors import ConfigurationError
from graphile_worker.jobs import MAX_DATETIME, Job, RunAt
from graphile_worker.tasks import Task
from graphile_worker.testing.contexts import RecordedContext, SyncRecordedContext, build_context
from graphile_worker.testing.executors import reject_in_event_loop
from graphile_worker.testing.matching import JobMatcher, format_jobs
from graphile_worker.testing.runner import DrainResult
from graphile_worker.testing.session import FROM_LIFESPAN, TestSession
from graphile_worker.testing.setup import plan_clear_queue

# A drain that reaches this number raises, because a task may add itself.
MAX_DRAINED_JOBS = 1000

A = TypeVar("A", bound=Awaitable[Any])
R = TypeVar("R")


class Harness:
    """The queue of an app in a test. The pytest fixture `gw` is one.

    Everything happens on the connection of the test, in its transaction: the jobs that the app
    adds, the assertions, and the jobs that `drain` and `inline` run. The harness never commits.
    With an async connection, await the methods that begin with `a`.

    Args:
        app: The app to test.
        connection: A connection or session of psycopg, psycopg2, asyncpg, SQLAlchemy or Django
            (default: Django's if Django is set up, else one that the harness opens and rolls back).
            A `DjangoApp` names its database.
        dsn: Connection string of the connection that the harness opens (default: the app's).

    Raises:
        ConfigurationError: `app` is not an app.
    """

    def __init__(self, app: App[Any], connection: object = None, *, dsn: str | None = None) -> None:
        if not isinstance(app, App):
            raise ConfigurationError(f"expected an App to test, got {app!r}")
        self.app = app
        self._session = TestSession(app, connection, dsn)

    @property
    def deps(self) -> Any:
        """Return the value of `ctx.deps` in tasks. If a test sets it, no lifespan is entered."""
        return None if self._session.deps is FROM_LIFESPAN else self._session.deps

    @deps.setter
    def deps(self, deps: Any) -> None:
        self._session.deps = deps

    # Enqueued jobs

    def enqueued(
        self,
        task: Task[..., Any] | str | None = None,
        /,
        *,
        options: Mapping[str, Any] | None = None,
        **payload: Any,
    ) -> list[Job]:
        """List the jobs that will run, in the order in which they will.

        Args:
            task: A task, its identifier, or None for all. `task.using(…)` also matches its options.
            options: Other fields that a job must have, for example `{"queue_name": "mail"}`.
            **payload: Keys that the payload must have. It may have others.

        Returns:
            The jobs that match.

        Raises:
            TypeError: The task has no such parameter, or a job no such field.
        """
        matcher = self._build_matcher(task, options, payload)
        database = self._session.runtime.connection.sync_database
        plan = matcher.plan_find(database.schemas, self._session.clock)
        return run_plan_sync(database, plan)

    async def aenqueued(
        self,
        task: Task[..., Any] | str | None = None,
        /,
        *,
        options: Mapping[str, Any] | None = None,
        **payload: Any,
    ) -> list[Job]:
        """List the jobs that will run, from async code. See `enqueued`."""
        matcher = self._build_matcher(task, options, payload)
        database = self._session.runtime.connection.database
        plan = matcher.plan_find(database.schemas, self._session.clock)
        return await run_plan(database, plan)

    def assert_enqueued(
        self,
        task: Task[..., Any] | str,
        /,
        *,
        options: Mapping[str, Any] | None = None,
        **payload: Any,
    ) -> Job:
        """Fail unless `enqueued` finds a job.

        Args:
            task: A task or its identifier.
            options: Other fields that the job must have.
            **payload: Keys that the payload must have.

        Returns:
            The newest job that matches.

        Raises:
            AssertionError: No job matches.
        """
        __tracebackhide__ = True
        jobs = self.enqueued(task, options=options, **payload)
        if not jobs:
            raise self._build_missing_error(self.enqueued(), task, options, payload)
        return max(jobs, key=_get_job_id)

    async def aassert_enqueued(
        self,
        task: Task[..., Any] | str,
        /,
        *,
        options: Mapping[str, Any] | None = None,
        **payload: Any,
    ) -> Job:
        """Fail unless `enqueued` finds a job, from async code. See `assert_enqueued`."""
        __tracebackhide__ = True
        jobs = await self.aenqueued(task, options=options, **payload)
        if not jobs:
            raise self._build_missing_error(await self.aenqueued(), task, options, payload)
        return max(jobs, key=_get_job_id)

    def assert_not_enqueued(
        self,
        task: Task[..., Any] | str | None = None,
        /,
        *,
        options: Mapping[str, Any] | None = None,
        **payload: Any,
    ) -> None:
        """Fail if `enqueued` finds a job.

        Args:
            task: A task, its identifier, or None for all tasks.
            options: Other fields that a job must have to match.
            **payload: Keys that the payload must have to match.

        Raises:
            AssertionError: A job matches.
        """
        __tracebackhide__ = True
        if jobs := self.enqueued(task, options=options, **payload):
            raise self._build_unexpected_error(jobs, task, options, payload)

    async def aassert_not_enqueued(
        self,
        task: Task[..., Any] | str | None = None,
        /,
        *,
        options: Mapping[str, Any] | None = None,
        **payload: Any,
    ) -> None:
        """Fail if `enqueued` finds a job, from async code. See `assert_not_enqueued`."""
        __tracebackhide__ = True
        if jobs := await self.aenqueued(task, options=options, **payload):
            raise self._build_unexpected_error(jobs, task, options, payload)

    # Running

    def drain(
        self,
        *,
        include_delayed: bool = False,
        raise_errors: bool = True,
        at_most: int = MAX_DRAINED_JOBS,
    ) -> DrainResult:
        """Run the jobs that are due, and the jobs that they add.

        Args:
            include_delayed: Also run jobs that are due later, and retry those that failed.
            raise_errors: Stop at the first error of a task, record it as a worker would, and raise
                it. Otherwise all jobs run, and the result has their errors.
            at_most: Raise if there are more jobs than this.

        Returns:
            The jobs that ran, and what their tasks returned in its `results`.

        Raises:
            RuntimeError: More than `at_most` jobs, or called in an event loop.
        """
        reject_in_event_loop()
        until = MAX_DATETIME if include_delayed else None
        main = partial(self._session.drain, until, stop_at_error=raise_errors, at_most=at_most)
        result = self._session.runtime.connection.executor.run_main(main)
        return result.raise_first() if raise_errors else result

    async def adrain(
        self,
        *,
        include_delayed: bool = False,
        raise_errors: bool = True,
        at_most: int = MAX_DRAINED_JOBS,
    ) -> DrainResult:
        """Run the jobs that are due, from async code. See `drain`."""
        until = MAX_DATETIME if include_delayed else None
        result = await self._session.drain(until, stop_at_error=raise_errors, at_most=at_most)
        return result.raise_first() if raise_errors else result

    def inline(self) -> AbstractContextManager[None]:
        """Run each due job inside the call that adds it, and raise its errors there.

        Payloads still pass through JSON and the database. A job that a running job adds runs
        after it.

        Returns:
            A context manager for the block in which jobs run inline.
        """
        return self._session.inline()

    # Only a task whose result has the type Any matches Never: its kind is unknown.
    @overload
    def context(
        self,
        task: Task[..., Never] | str | Job,
        /,
        payload: Any = None,
        *,
        deps: Any = FROM_LIFESPAN,
        attempts: int = 1,
        cancelled: bool = False,
    ) -> Any: ...
    @overload
    def context(  # type: ignore[overload-overlap]  # a task that is awaited comes first
        self,
        task: Task[..., A],
        /,
        payload: Any = None,
        *,
        deps: Any = FROM_LIFESPAN,
        attempts: int = 1,
        cancelled: bool = False,
    ) -> RecordedContext[Any]: ...
    @overload
    def context(
        self,
        task: Task[..., R],
        /,
        payload: Any = None,
        *,
        deps: Any = FROM_LIFESPAN,
        attempts: int = 1,
        cancelled: bool = False,
    ) -> SyncRecordedContext[Any]: ...
    def context(
        self,
        task: Task[..., Any] | str | Job,
        /,
        payload: Any = None,
        *,
        deps: Any = FROM_LIFESPAN,
        attempts: int = 1,
        cancelled: bool = False,
    ) -> Any:
        """Build a context to call a task with: `task.fn(gw.context(task), …)`.

        The task uses the connection of the test through the context. The job of the context is not
        in the queue. Afterwards `ctx.reported_progress` has what the task reported, and
        `ctx.result` what it passed to `set_result`.

        Args:
            task: A task, its identifier, or a job.
            payload: The payload of the job.
            deps: The value of `ctx.deps`.
            attempts: The number of attempts, with this one.
            cancelled: Whether `ctx.cancelled` is True.

        Returns:
            A context for async code, or for plain code if the task is a plain function.
        """
        chosen = self._session.deps if deps is FROM_LIFESPAN else deps
        resources = self._session.runtime.build_resources(
            None if chosen is FROM_LIFESPAN else chosen
        )
        if cancelled:
            resources.cancellation.request()
        now = self._session.clock.now()
        return build_context(self.app, task, payload, attempts, now, resources)

    # Time

    def now(self) -> datetime:
        """Get the time of the test, which decides whether a job is due.

        Returns:
            The time in UTC.
        """
        return self._session.clock.now()

    def freeze(self, at: datetime | None = None) -> AbstractContextManager[Any]:
        """Freeze the time until the end of the test, or of a `with` block.

        Args:
            at: The time to freeze at. None freezes the current time.

        Returns:
            A context manager that restores the clock.

        Raises:
            ConfigurationError: The time has no time zone.
        """
        restore = self._restore_clock_on_exit()
        self._session.clock.freeze(at)
        return restore

    def travel(self, to: RunAt) -> AbstractContextManager[Any]:
        """Move the time until the end of the test, or of a `with` block. It advances from there.

        Args:
            to: The time to move to, or a timedelta to move by.

        Returns:
            A context manager that restores the clock.

        Raises:
            ConfigurationError: The time has no time zone.
        """
        restore = self._restore_clock_on_exit()
        self._session.clock.move(to)
        return restore

    # For tests in which each statement commits

    def clear(self) -> None:
        """Delete all jobs and what is kept of ended jobs, also those of other programs."""
        database = self._session.runtime.connection.sync_database
        run_plan_sync(database, plan_clear_queue(database.schemas))

    async def aclear(self) -> None:
        """Delete all jobs, from async code. See `clear`."""
        database = self._session.runtime.connection.database
        await run_plan(database, plan_clear_queue(database.schemas))

    @property
    def was_used(self) -> bool:
        """Return whether the test did anything that needs a connection."""
        return self._session.was_used

    def __enter__(self) -> Self:
        self._session.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._session.must_clear:
                self.clear()
        finally:
            self._session.close()

    def _build_matcher(
        self,
        task: Task[..., Any] | str | None,
        options: Mapping[str, Any] | None,
        payload: Mapping[str, Any],
    ) -> JobMatcher:
        if task is None or isinstance(task, Task):
            identifier = None if task is None else task.identifier
            return JobMatcher(task, identifier, options, payload)
        if not isinstance(task, str):
            raise TypeError(f"expected a task or the name of one, got {task!r}")
        return JobMatcher(self.app.find(task), task, options, payload)

    def _build_missing_error(self, jobs: list[Job], *criteria: Any) -> AssertionError:
        matcher = self._build_matcher(*criteria)
        return AssertionError(
            f"no enqueued job matches {matcher}. Enqueued jobs:\n{format_jobs(jobs)}"
        )

    def _build_unexpected_error(self, jobs: list[Job], *criteria: Any) -> AssertionError:
        return AssertionError(
            f"enqueued jobs match {self._build_matcher(*criteria)}:\n{format_jobs(jobs)}"
        )

    def _restore_clock_on_exit(self) -> AbstractContextManager[Any]:
        stack = ExitStack()
        stack.callback(self._session.clock.restore, self._session.clock.state)
        return stack


def _get_job_id(job: Job) -> int:
    return job.id
