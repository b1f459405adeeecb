"""Run jobs on the connection of a test, one at a time, as a worker does it."""

import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from graphile_worker.app import App
from graphile_worker.jobs import Job
from graphile_worker.lease import Lease
from graphile_worker.logs import logger_of
from graphile_worker.options import TaskProcessOptions
from graphile_worker.sql.holding import HeldJob, get_jobs_unindexed, get_task_ids
from graphile_worker.sql.testing import probe, take_job
from graphile_worker.tasks import Task
from graphile_worker.testing.clients import BlockingTestClient, TestClient
from graphile_worker.testing.clock import TestClock
from graphile_worker.testing.lines import Line
from graphile_worker.testing.places import PlacedThreads
from graphile_worker.worker.announce import announce_end, announce_start
from graphile_worker.worker.children import Children
from graphile_worker.worker.context import Cancellation, Context, Surroundings
from graphile_worker.worker.outcomes import Failed, Outcome, Snoozed, Written
from graphile_worker.worker.run_job import Places, run_job
from graphile_worker.worker.settle import Settler

WORKER_ID = "worker-of-a-test"

# Async listeners that take longer are cancelled and named.
LISTENERS_END_WITHIN = timedelta(seconds=3)


class Drained(list[Job]):
    """The jobs that were run, in order, each as it was when it was taken.

    `errors` has what tasks raised, with its job, in order too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[tuple[Job, BaseException]] = []

    def raise_first(self) -> "Drained":
        """Raise what the first task that failed has raised, if any did."""
        if self.errors:
            raise self.errors[0][1]
        return self


@dataclass(frozen=True, kw_only=True)
class Crew:
    """All that jobs need to run in a test."""

    app: App[Any]
    line: Line
    client: TestClient
    blocking_client: BlockingTestClient
    clock: TestClock
    lifespan: Callable[[], Any]

    def surroundings(self, deps: Any) -> Surroundings:
        return Surroundings(
            deps=deps,
            logger=logger_of(None),
            cancellation=Cancellation(),
            database=self.line.database,
            client=self.client,
            blocking_database=self.line.blocking,
            blocking_client=self.blocking_client,
        )


class Shift:
    """One call of `drain`, or one job that was added inline."""

    def __init__(self, crew: Crew, *, stop_at_error: bool) -> None:
        self.drained = Drained()
        self._crew = crew
        self._db = crew.line.database
        self._stop_at_error = stop_at_error
        self._hooks = crew.app.hooks
        self._tasks = {name: _here(task) for name, task in crew.app.tasks().items()}
        self._lease = Lease()
        self._settler = Settler(self._db, self._lease, self._hooks, again=False)
        self._places = Places(PlacedThreads(crew.line.place), Children(TaskProcessOptions()))

    async def drain(self, until: datetime | None, at_most: int) -> Drained:
        """Run what is due, by the clock or until then, and what that adds."""
        async with self._working() as work:
            while held := await self._next(until or self._crew.clock.now()):
                if len(self.drained) == at_most:
                    await self._settler.hand_back([held])
                    raise RuntimeError(
                        f"{at_most} jobs were run and there are more: does a task add itself? "
                        "If that is right, say drain(at_most=…)"
                    )
                if not await work(held):
                    break
        return self.drained

    async def run(self, job_ids: deque[int]) -> Drained:
        """Run these, if they are due, and those that are put there meanwhile."""
        async with self._working() as work:
            while job_ids:
                taking = take_job(self._lease.pool_id, job_ids.popleft(), self._crew.clock.now())
                held = await self._db.run(taking)
                if held is not None and not await work(held):
                    break
        return self.drained

    async def _next(self, now: datetime) -> HeldJob | None:
        """The job whose turn it is, if one is due."""
        # Each time, as a job may be the first of its task. They are not made here: tests that do so
        # beside each other would wait for each other.
        task_ids = await self._db.run(get_task_ids(list(self._tasks)))
        taken = await self._db.run(get_jobs_unindexed(self._lease.pool_id, task_ids, now=now))
        return taken[0] if taken else None

    @asynccontextmanager
    async def _working(self) -> AsyncIterator[Any]:
        """Gives the function that runs a job; the lifespan begins with the first one."""
        async with AsyncExitStack() as stack:
            around: list[Surroundings] = []

            async def work(held: HeldJob) -> bool:
                if not around:
                    deps = await stack.enter_async_context(self._crew.lifespan())
                    around.append(self._crew.surroundings(deps))
                return await self._work_once(held, around[0])

            yield work
            await self._hooks.drain(LISTENERS_END_WITHIN)

    async def _work_once(self, held: HeldJob, around: Surroundings) -> bool:
        """Run one job and record how it ended; False if that is the end."""
        self.drained.append(held.job)
        context = Context(held, WORKER_ID, around)
        began = time.monotonic()
        announce_start(self._hooks, context)
        outcome = self._timed(await self._ended(context))
        still_ours = await self._settler.settle(outcome) is not None
        seconds = time.monotonic() - began
        announce_end(self._hooks, context, outcome, still_ours=still_ours, seconds=seconds)
        # What async listeners add comes after what is there, and before the end.
        await self._hooks.drain(LISTENERS_END_WITHIN)
        error = _error_of(outcome)
        if error is not None:
            self.drained.errors.append((held.job, error))
        return error is None or not self._stop_at_error

    async def _ended(self, context: Context) -> Outcome:
        """How its task ended. If one of its statements failed, all that it did is undone.

        Otherwise what a task did that failed stays, as it does where each statement commits.
        """
        task = self._tasks[context.job.task_identifier]
        outcome: Outcome | None = None
        try:
            async with self._db.savepoint():
                outcome = await run_job(task, context, self._places, self._hooks)
                await self._db.run(probe())
        except Exception as error:
            if outcome is None:
                raise
            return _undone(context.held, outcome, error)
        return outcome

    def _timed(self, outcome: Outcome) -> Outcome:
        """When it is tried again, by the clock of the test."""
        clock = self._crew.clock
        if isinstance(outcome, Failed) and not outcome.give_up:
            when = outcome.when
            outcome.when = _backed_off(outcome.held.job, clock) if when is None else clock.at(when)
        elif isinstance(outcome, Snoozed):
            outcome.when = clock.at(outcome.when)
        return outcome


def _here(task: Task[..., Any]) -> Task[..., Any]:
    """The same task, in this process: another one would not see the transaction of the test."""
    copy = task.named(task.identifier)
    copy.options = replace(task.options, run_in=None if task.is_async else "thread")
    return copy


def _backed_off(job: Job, clock: TestClock) -> datetime:
    delay = timedelta(seconds=math.exp(min(job.attempts, 10)))
    return max(clock.now(), job.run_at) + delay


def _undone(held: HeldJob, outcome: Outcome, error: Exception) -> Outcome:
    """The failure of a task whose transaction cannot go on: also its end, if it wrote that."""
    if isinstance(outcome, Failed):
        return outcome
    reason = RuntimeError(
        "one of its statements failed, and the task went on. In production each statement commits "
        "by itself; in the transaction of a test all that the task did is undone. Put what may "
        "fail into ctx.transaction(), or into a savepoint"
    )
    reason.__cause__ = error
    return Failed(held, _error_of(outcome) or reason)


def _error_of(outcome: Outcome) -> BaseException | None:
    if isinstance(outcome, Failed):
        return outcome.error
    return outcome.late_error if isinstance(outcome, Written) else None
