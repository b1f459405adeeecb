"""Run jobs on the connection of a test, one at a time, as a worker does it."""

import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from graphile_worker._lease.lease import Lease
from graphile_worker._sql.queries.claim import ClaimedJob, claim_jobs_unindexed, get_task_ids
from graphile_worker._sql.queries.testing import claim_job, probe
from graphile_worker._support.logs import resolve_logger
from graphile_worker._worker.completer import Completer
from graphile_worker._worker.context import Cancellation, Context, PoolResources
from graphile_worker._worker.job_events import emit_job_ended, emit_job_started
from graphile_worker._worker.outcomes import CompletedInTransaction, Failed, Outcome, Snoozed
from graphile_worker._worker.process_pool import ProcessPool
from graphile_worker._worker.run_job import Executors, run_job
from graphile_worker.app import App
from graphile_worker.jobs import Job
from graphile_worker.options import TaskProcessOptions
from graphile_worker.tasks import Task
from graphile_worker.testing.clients import SyncTestClient, TestClient
from graphile_worker.testing.clock import TestClock
from graphile_worker.testing.connections import TestConnection
from graphile_worker.testing.executors import ExecutorThreads

WORKER_ID = "worker-of-a-test"

# Async listeners that take longer are cancelled and named.
LISTENERS_TIMEOUT = timedelta(seconds=3)


class DrainResult(list[Job]):
    """The jobs that were run, in order, each as it was when it was taken.

    `errors` has what tasks raised, with its job, in order too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[tuple[Job, BaseException]] = []

    def raise_first(self) -> "DrainResult":
        """Raise what the first task that failed has raised, if any did."""
        if self.errors:
            raise self.errors[0][1]
        return self


@dataclass(frozen=True, kw_only=True)
class TestRuntime:
    """All that jobs need to run in a test."""

    app: App[Any]
    connection: TestConnection
    client: TestClient
    sync_client: SyncTestClient
    clock: TestClock
    lifespan: Callable[[], Any]

    def build_resources(self, deps: Any) -> PoolResources:
        return PoolResources(
            deps=deps,
            logger=resolve_logger(None),
            cancellation=Cancellation(),
            database=self.connection.database,
            client=self.client,
            sync_database=self.connection.sync_database,
            sync_client=self.sync_client,
        )


class DrainRun:
    """One call of `drain`, or one job that was added inline."""

    def __init__(self, runtime: TestRuntime, *, stop_at_error: bool) -> None:
        self.result = DrainResult()
        self._runtime = runtime
        self._db = runtime.connection.database
        self._stop_at_error = stop_at_error
        self._hooks = runtime.app.hooks
        self._tasks = {name: _copy_in_process(task) for name, task in runtime.app.tasks().items()}
        self._lease = Lease()
        self._completer = Completer(self._db, self._lease, self._hooks, can_retry=False)
        self._executors = Executors(
            ExecutorThreads(runtime.connection.executor), ProcessPool(TaskProcessOptions())
        )

    async def drain(self, until: datetime | None, at_most: int) -> DrainResult:
        """Run what is due, by the clock or until then, and what that adds."""
        async with self._open_job_runner() as work:
            while held := await self._claim_next(until or self._runtime.clock.now()):
                if len(self.result) == at_most:
                    await self._completer.release([held])
                    raise RuntimeError(
                        f"{at_most} jobs were run and there are more: does a task add itself? "
                        "If that is right, say drain(at_most=…)"
                    )
                if not await work(held):
                    break
        return self.result

    async def run(self, job_ids: deque[int]) -> DrainResult:
        """Run these, if they are due, and those that are put there meanwhile."""
        async with self._open_job_runner() as work:
            while job_ids:
                taking = claim_job(
                    self._lease.pool_id, job_ids.popleft(), self._runtime.clock.now()
                )
                held = await self._db.run(taking)
                if held is not None and not await work(held):
                    break
        return self.result

    async def _claim_next(self, now: datetime) -> ClaimedJob | None:
        """The job whose turn it is, if one is due."""
        # Each time, as a job may be the first of its task. They are not made here: tests that do so
        # beside each other would wait for each other.
        task_ids = await self._db.run(get_task_ids(list(self._tasks)))
        taken = await self._db.run(claim_jobs_unindexed(self._lease.pool_id, task_ids, now=now))
        return taken[0] if taken else None

    @asynccontextmanager
    async def _open_job_runner(self) -> AsyncIterator[Any]:
        """Gives the function that runs a job; the lifespan begins with the first one."""
        async with AsyncExitStack() as stack:
            around: list[PoolResources] = []

            async def work(held: ClaimedJob) -> bool:
                if not around:
                    deps = await stack.enter_async_context(self._runtime.lifespan())
                    around.append(self._runtime.build_resources(deps))
                return await self._run_and_complete(held, around[0])

            yield work
            await self._hooks.drain(LISTENERS_TIMEOUT)

    async def _run_and_complete(self, claimed: ClaimedJob, resources: PoolResources) -> bool:
        """Run one job and record how it ended; False if that is the end."""
        self.result.append(claimed.job)
        context = Context(claimed, WORKER_ID, resources)
        began = time.monotonic()
        emit_job_started(self._hooks, context)
        outcome = self._with_retry_time(await self._run_in_savepoint(context))
        still_ours = await self._completer.complete(outcome) is not None
        seconds = time.monotonic() - began
        emit_job_ended(self._hooks, context, outcome, is_still_owned=still_ours, seconds=seconds)
        # What async listeners add comes after what is there, and before the end.
        await self._hooks.drain(LISTENERS_TIMEOUT)
        error = _get_error(outcome)
        if error is not None:
            self.result.errors.append((claimed.job, error))
        return error is None or not self._stop_at_error

    async def _run_in_savepoint(self, context: Context) -> Outcome:
        """How its task ended. If one of its statements failed, all that it did is undone.

        Otherwise what a task did that failed stays, as it does where each statement commits.
        """
        task = self._tasks[context.job.task_identifier]
        outcome: Outcome | None = None
        try:
            async with self._db.savepoint():
                outcome = await run_job(task, context, self._executors, self._hooks)
                await self._db.run(probe())
        except Exception as error:
            if outcome is None:
                raise
            return _fail_rolled_back(context.claimed, outcome, error)
        return outcome

    def _with_retry_time(self, outcome: Outcome) -> Outcome:
        """When it is tried again, by the clock of the test."""
        clock = self._runtime.clock
        if isinstance(outcome, Failed) and not outcome.is_permanent:
            when = outcome.when
            outcome.when = (
                _compute_retry_at(outcome.claimed.job, clock)
                if when is None
                else clock.resolve(when)
            )
        elif isinstance(outcome, Snoozed):
            outcome.when = clock.resolve(outcome.when)
        return outcome


def _copy_in_process(task: Task[..., Any]) -> Task[..., Any]:
    """The same task, in this process: another one would not see the transaction of the test."""
    copy = task.with_identifier(task.identifier)
    copy.options = replace(task.options, run_in=None if task.is_async else "thread")
    return copy


def _compute_retry_at(job: Job, clock: TestClock) -> datetime:
    delay = timedelta(seconds=math.exp(min(job.attempts, 10)))
    return max(clock.now(), job.run_at) + delay


def _fail_rolled_back(claimed: ClaimedJob, outcome: Outcome, error: Exception) -> Outcome:
    """The failure of a task whose transaction cannot go on: also its end, if it wrote that."""
    if isinstance(outcome, Failed):
        return outcome
    reason = RuntimeError(
        "one of its statements failed, and the task went on. In production each statement commits "
        "by itself; in the transaction of a test all that the task did is undone. Put what may "
        "fail into ctx.transaction(), or into a savepoint"
    )
    reason.__cause__ = error
    return Failed(claimed, _get_error(outcome) or reason)


def _get_error(outcome: Outcome) -> BaseException | None:
    if isinstance(outcome, Failed):
        return outcome.error
    return outcome.late_error if isinstance(outcome, CompletedInTransaction) else None
