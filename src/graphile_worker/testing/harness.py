"""Harness: what a test sees of a queue, and does to it."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, Self

from graphile_worker._sql.queries.testing import clear_jobs, get_enqueued_jobs
from graphile_worker.app import App
from graphile_worker.errors import ConfigurationError
from graphile_worker.jobs import MAX_DATETIME, Job, RunAt
from graphile_worker.tasks import JobContext, Task
from graphile_worker.testing.clock import ClockState
from graphile_worker.testing.contexts import build_context
from graphile_worker.testing.executors import reject_in_event_loop
from graphile_worker.testing.matching import JobMatcher, format_jobs
from graphile_worker.testing.runner import DrainResult
from graphile_worker.testing.session import FROM_LIFESPAN, TestSession

# So many jobs one drain runs before it asks whether there is an end.
MAX_DRAINED_JOBS = 1000


class Harness:
    """What the pytest fixture `gw` gives: the queue of an app, seen from a test.

    All happens on the connection of the test, in its transaction, and is never committed here:
    what the app adds, what is asserted, and the jobs that `drain` and `inline` run. `connection` is
    psycopg's, psycopg2's, asyncpg's, SQLAlchemy's or Django's. Without one it is Django's where
    Django is set up, and otherwise one of our own, rolled back at the end.

    With an async connection, await the methods that begin with `a`.
    """

    def __init__(self, app: App[Any], connection: object = None, *, dsn: str | None = None) -> None:
        if not isinstance(app, App):
            raise ConfigurationError(f"expected an App to test, got {app!r}")
        self.app = app
        self._session = TestSession(app, connection, dsn)

    @property
    def deps(self) -> Any:
        """What tasks find in `ctx.deps`, if the test has set it: then no lifespan is entered."""
        return None if self._session.deps is FROM_LIFESPAN else self._session.deps

    @deps.setter
    def deps(self, deps: Any) -> None:
        self._session.deps = deps

    # What was added

    def enqueued(
        self,
        task: Task[..., Any] | str | None = None,
        /,
        *,
        options: Mapping[str, Any] | None = None,
        **payload: Any,
    ) -> list[Job]:
        """The jobs that will run, in the order in which they go; those of a task, or all.

        Keywords are keys of the payload; others may be there too. `options` names other facts, such
        as `{"queue_name": "mail"}`, and so does `task.using(…)`.
        """
        wanted = self._build_matcher(task, options, payload)
        return self._filter_jobs(self._fetch_jobs_sync(wanted), wanted)

    async def aenqueued(
        self,
        task: Task[..., Any] | str | None = None,
        /,
        *,
        options: Mapping[str, Any] | None = None,
        **payload: Any,
    ) -> list[Job]:
        """`enqueued` for async code."""
        wanted = self._build_matcher(task, options, payload)
        return self._filter_jobs(await self._fetch_jobs(wanted), wanted)

    def assert_enqueued(
        self,
        task: Task[..., Any] | str,
        /,
        *,
        options: Mapping[str, Any] | None = None,
        **payload: Any,
    ) -> Job:
        """The job that will run, as `enqueued` finds it: the newest of them. Fails without one."""
        __tracebackhide__ = True
        wanted = self._build_matcher(task, options, payload)
        found = self._filter_jobs(self._fetch_jobs_sync(wanted), wanted)
        return (
            max(found, key=_get_job_id)
            if found
            else self._fail_not_enqueued(self._fetch_jobs_sync(None), wanted)
        )

    async def aassert_enqueued(
        self,
        task: Task[..., Any] | str,
        /,
        *,
        options: Mapping[str, Any] | None = None,
        **payload: Any,
    ) -> Job:
        """`assert_enqueued` for async code."""
        __tracebackhide__ = True
        wanted = self._build_matcher(task, options, payload)
        found = self._filter_jobs(await self._fetch_jobs(wanted), wanted)
        return (
            max(found, key=_get_job_id)
            if found
            else self._fail_not_enqueued(await self._fetch_jobs(None), wanted)
        )

    def assert_not_enqueued(
        self,
        task: Task[..., Any] | str | None = None,
        /,
        *,
        options: Mapping[str, Any] | None = None,
        **payload: Any,
    ) -> None:
        """Fails if there is a job that `enqueued` finds."""
        __tracebackhide__ = True
        wanted = self._build_matcher(task, options, payload)
        self._check_not_enqueued(self._fetch_jobs_sync(wanted), wanted)

    async def aassert_not_enqueued(
        self,
        task: Task[..., Any] | str | None = None,
        /,
        *,
        options: Mapping[str, Any] | None = None,
        **payload: Any,
    ) -> None:
        """`assert_not_enqueued` for async code."""
        __tracebackhide__ = True
        wanted = self._build_matcher(task, options, payload)
        self._check_not_enqueued(await self._fetch_jobs(wanted), wanted)

    # Running

    def drain(
        self,
        *,
        include_delayed: bool = False,
        raise_errors: bool = True,
        at_most: int = MAX_DRAINED_JOBS,
    ) -> DrainResult:
        """Run here what is due, and what that adds; the jobs that were run.

        The first error of a task ends it and is raised; its failure is recorded before, as a worker
        would. Without `raise_errors` all are run, and the errors are in what is returned. With
        `include_delayed` jobs count as due whatever their time, also those that failed.
        """
        reject_in_event_loop()
        until = MAX_DATETIME if include_delayed else None
        main = partial(self._session.drain, until, stop_at_error=raise_errors, at_most=at_most)
        drained = self._session.runtime.connection.executor.run(main)
        return drained.raise_first() if raise_errors else drained

    async def adrain(
        self,
        *,
        include_delayed: bool = False,
        raise_errors: bool = True,
        at_most: int = MAX_DRAINED_JOBS,
    ) -> DrainResult:
        """`drain` for async code."""
        until = MAX_DATETIME if include_delayed else None
        drained = await self._session.drain(until, stop_at_error=raise_errors, at_most=at_most)
        return drained.raise_first() if raise_errors else drained

    def inline(self) -> AbstractContextManager[None]:
        """Inside, a job that is due runs before the call returns that adds it; errors are raised.

        It goes through JSON and the database all the same. What a running job adds runs after it.
        """
        return self._session.inline()

    def context(
        self,
        task: Task[..., Any] | str | Job,
        /,
        payload: Any = None,
        *,
        deps: Any = FROM_LIFESPAN,
        attempts: int = 1,
        cancelled: bool = False,
    ) -> JobContext[Any]:
        """A context to call a task with, `task.fn(gw.context(task), …)`: async, or plain as it is.

        Its job has that payload, and what `task.using(…)` says; it is in no queue. What the task
        does with the context happens on the connection of the test.
        """
        chosen = self._session.deps if deps is FROM_LIFESPAN else deps
        around = self._session.runtime.build_resources(None if chosen is FROM_LIFESPAN else chosen)
        if cancelled:
            around.cancellation.request()
        now = self._session.clock.now()
        context: JobContext[Any] = build_context(self.app, task, payload, attempts, now, around)
        return context

    # Time

    def now(self) -> datetime:
        """The time by which jobs are due: this machine's, or what the test has made of it."""
        return self._session.clock.now()

    def freeze(self, at: datetime | None = None) -> AbstractContextManager[Any]:
        """Stop the time, at that moment or now, to the end of the test or of a `with` block."""
        before = self._session.clock.state
        self._session.clock.freeze(at)
        return self._restore_on_exit(before)

    def travel(self, to: RunAt) -> AbstractContextManager[Any]:
        """Move the time to a moment or by a timedelta, for as long; it goes on from there."""
        before = self._session.clock.state
        self._session.clock.move(to)
        return self._restore_on_exit(before)

    # Where each statement commits

    def clear(self) -> None:
        """Delete all jobs, those of others too: for tests in which statements commit."""
        self._session.runtime.connection.sync_database.run(clear_jobs(2**31 - 2))

    async def aclear(self) -> None:
        """`clear` for async code."""
        await self._session.runtime.connection.database.run(clear_jobs(2**31 - 2))

    @property
    def was_used(self) -> bool:
        """Has anything been asked of it that needs a connection?"""
        return self._session.was_used

    # From begin to end

    def __enter__(self) -> Self:
        self._session.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._session.close()

    # How it is done

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
        return JobMatcher(self.app.tasks().get(task), task, options, payload)

    def _fetch_jobs_sync(self, matcher: JobMatcher | None) -> list[Job]:
        identifier = None if matcher is None else matcher.identifier
        return self._session.runtime.connection.sync_database.run(get_enqueued_jobs(identifier))

    async def _fetch_jobs(self, matcher: JobMatcher | None) -> list[Job]:
        identifier = None if matcher is None else matcher.identifier
        return await self._session.runtime.connection.database.run(get_enqueued_jobs(identifier))

    def _filter_jobs(self, jobs: Sequence[Job], matcher: JobMatcher) -> list[Job]:
        return matcher.filter(jobs, self._session.clock)

    def _fail_not_enqueued(self, jobs: Sequence[Job], matcher: JobMatcher) -> NoReturn:
        __tracebackhide__ = True
        raise AssertionError(f"no job is enqueued of {matcher}. These are:\n{format_jobs(jobs)}")

    def _check_not_enqueued(self, jobs: Sequence[Job], matcher: JobMatcher) -> None:
        __tracebackhide__ = True
        if found := self._filter_jobs(jobs, matcher):
            raise AssertionError(f"enqueued of {matcher}:\n{format_jobs(found)}")

    def _restore_on_exit(self, state: ClockState) -> AbstractContextManager[Any]:
        stack = ExitStack()
        stack.callback(self._session.clock.restore, state)
        return stack


def _get_job_id(job: Job) -> int:
    return job.id
