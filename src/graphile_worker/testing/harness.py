"""Harness: what a test sees of a queue, and does to it."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, Self

from graphile_worker.app import App
from graphile_worker.errors import ConfigurationError
from graphile_worker.jobs import LATEST, Job, When
from graphile_worker.sql.testing import clear_jobs, get_enqueued_jobs
from graphile_worker.tasks import JobContext, Task
from graphile_worker.testing.clock import State
from graphile_worker.testing.contexts import context_of
from graphile_worker.testing.desk import OF_LIFESPAN, Desk
from graphile_worker.testing.matching import Wanted, listed
from graphile_worker.testing.places import refuse_in_loop
from graphile_worker.testing.running import Drained

# So many jobs one drain runs before it asks whether there is an end.
AT_MOST = 1000


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
        self._desk = Desk(app, connection, dsn)

    @property
    def deps(self) -> Any:
        """What tasks find in `ctx.deps`, if the test has set it: then no lifespan is entered."""
        return None if self._desk.deps is OF_LIFESPAN else self._desk.deps

    @deps.setter
    def deps(self, deps: Any) -> None:
        self._desk.deps = deps

    # What was added

    def enqueued(
        self,
        task: Task[..., Any] | str | None = None,
        /,
        *,
        having: Mapping[str, Any] | None = None,
        **payload: Any,
    ) -> list[Job]:
        """The jobs that will run, in the order in which they go; those of a task, or all.

        Keywords are keys of the payload; others may be there too. `having` names other facts, such
        as `{"queue_name": "mail"}`, and so does `task.using(…)`.
        """
        wanted = self._wanted(task, having, payload)
        return self._among(self._blocking_answer(wanted), wanted)

    async def aenqueued(
        self,
        task: Task[..., Any] | str | None = None,
        /,
        *,
        having: Mapping[str, Any] | None = None,
        **payload: Any,
    ) -> list[Job]:
        """`enqueued` for async code."""
        wanted = self._wanted(task, having, payload)
        return self._among(await self._answer(wanted), wanted)

    def assert_enqueued(
        self,
        task: Task[..., Any] | str,
        /,
        *,
        having: Mapping[str, Any] | None = None,
        **payload: Any,
    ) -> Job:
        """The job that will run, as `enqueued` finds it: the newest of them. Fails without one."""
        __tracebackhide__ = True
        wanted = self._wanted(task, having, payload)
        found = self._among(self._blocking_answer(wanted), wanted)
        return max(found, key=_age) if found else self._fail(self._blocking_answer(None), wanted)

    async def aassert_enqueued(
        self,
        task: Task[..., Any] | str,
        /,
        *,
        having: Mapping[str, Any] | None = None,
        **payload: Any,
    ) -> Job:
        """`assert_enqueued` for async code."""
        __tracebackhide__ = True
        wanted = self._wanted(task, having, payload)
        found = self._among(await self._answer(wanted), wanted)
        return max(found, key=_age) if found else self._fail(await self._answer(None), wanted)

    def refute_enqueued(
        self,
        task: Task[..., Any] | str | None = None,
        /,
        *,
        having: Mapping[str, Any] | None = None,
        **payload: Any,
    ) -> None:
        """Fails if there is a job that `enqueued` finds."""
        __tracebackhide__ = True
        wanted = self._wanted(task, having, payload)
        self._refute(self._blocking_answer(wanted), wanted)

    async def arefute_enqueued(
        self,
        task: Task[..., Any] | str | None = None,
        /,
        *,
        having: Mapping[str, Any] | None = None,
        **payload: Any,
    ) -> None:
        """`refute_enqueued` for async code."""
        __tracebackhide__ = True
        wanted = self._wanted(task, having, payload)
        self._refute(await self._answer(wanted), wanted)

    # Running

    def drain(
        self,
        *,
        include_delayed: bool = False,
        raise_errors: bool = True,
        at_most: int = AT_MOST,
    ) -> Drained:
        """Run here what is due, and what that adds; the jobs that were run.

        The first error of a task ends it and is raised; its failure is recorded before, as a worker
        would. Without `raise_errors` all are run, and the errors are in what is returned. With
        `include_delayed` jobs count as due whatever their time, also those that failed.
        """
        refuse_in_loop()
        until = LATEST if include_delayed else None
        main = partial(self._desk.drain, until, stop_at_error=raise_errors, at_most=at_most)
        drained = self._desk.crew.line.place.run(main)
        return drained.raise_first() if raise_errors else drained

    async def adrain(
        self,
        *,
        include_delayed: bool = False,
        raise_errors: bool = True,
        at_most: int = AT_MOST,
    ) -> Drained:
        """`drain` for async code."""
        until = LATEST if include_delayed else None
        drained = await self._desk.drain(until, stop_at_error=raise_errors, at_most=at_most)
        return drained.raise_first() if raise_errors else drained

    def inline(self) -> AbstractContextManager[None]:
        """Inside, a job that is due runs before the call returns that adds it; errors are raised.

        It goes through JSON and the database all the same. What a running job adds runs after it.
        """
        return self._desk.inline()

    def context(
        self,
        task: Task[..., Any] | str | Job,
        /,
        payload: Any = None,
        *,
        deps: Any = OF_LIFESPAN,
        attempts: int = 1,
        cancelled: bool = False,
    ) -> JobContext[Any]:
        """A context to call a task with, `task.fn(gw.context(task), …)`: async, or plain as it is.

        Its job has that payload, and what `task.using(…)` says; it is in no queue. What the task
        does with the context happens on the connection of the test.
        """
        chosen = self._desk.deps if deps is OF_LIFESPAN else deps
        around = self._desk.crew.surroundings(None if chosen is OF_LIFESPAN else chosen)
        if cancelled:
            around.cancellation.request()
        now = self._desk.clock.now()
        context: JobContext[Any] = context_of(self.app, task, payload, attempts, now, around)
        return context

    # Time

    def now(self) -> datetime:
        """The time by which jobs are due: this machine's, or what the test has made of it."""
        return self._desk.clock.now()

    def freeze(self, at: datetime | None = None) -> AbstractContextManager[Any]:
        """Stop the time, at that moment or now, to the end of the test or of a `with` block."""
        before = self._desk.clock.state
        self._desk.clock.freeze(at)
        return self._until_exit(before)

    def travel(self, to: When) -> AbstractContextManager[Any]:
        """Move the time to a moment or by a timedelta, for as long; it goes on from there."""
        before = self._desk.clock.state
        self._desk.clock.move(to)
        return self._until_exit(before)

    # Where each statement commits

    def clear(self) -> None:
        """Delete all jobs, those of others too: for tests in which statements commit."""
        self._desk.crew.line.blocking.run(clear_jobs(2**31 - 2))

    async def aclear(self) -> None:
        """`clear` for async code."""
        await self._desk.crew.line.database.run(clear_jobs(2**31 - 2))

    @property
    def was_used(self) -> bool:
        """Has anything been asked of it that needs a connection?"""
        return self._desk.was_used

    # From begin to end

    def __enter__(self) -> Self:
        self._desk.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._desk.close()

    # How it is done

    def _wanted(
        self,
        task: Task[..., Any] | str | None,
        having: Mapping[str, Any] | None,
        payload: Mapping[str, Any],
    ) -> Wanted:
        if task is None or isinstance(task, Task):
            identifier = None if task is None else task.identifier
            return Wanted(task, identifier, having, payload)
        if not isinstance(task, str):
            raise TypeError(f"expected a task or the name of one, got {task!r}")
        return Wanted(self.app.tasks().get(task), task, having, payload)

    def _blocking_answer(self, wanted: Wanted | None) -> list[Job]:
        identifier = None if wanted is None else wanted.identifier
        return self._desk.crew.line.blocking.run(get_enqueued_jobs(identifier))

    async def _answer(self, wanted: Wanted | None) -> list[Job]:
        identifier = None if wanted is None else wanted.identifier
        return await self._desk.crew.line.database.run(get_enqueued_jobs(identifier))

    def _among(self, jobs: Sequence[Job], wanted: Wanted) -> list[Job]:
        return wanted.among(jobs, self._desk.clock)

    def _fail(self, jobs: Sequence[Job], wanted: Wanted) -> NoReturn:
        __tracebackhide__ = True
        raise AssertionError(f"no job is enqueued of {wanted}. These are:\n{listed(jobs)}")

    def _refute(self, jobs: Sequence[Job], wanted: Wanted) -> None:
        __tracebackhide__ = True
        if found := self._among(jobs, wanted):
            raise AssertionError(f"enqueued of {wanted}:\n{listed(found)}")

    def _until_exit(self, before: State) -> AbstractContextManager[Any]:
        stack = ExitStack()
        stack.callback(self._desk.clock.reset, before)
        return stack


def _age(job: Job) -> int:
    return job.id
