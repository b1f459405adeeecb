"""Run jobs on the connection of a test, one at a time, with the parts of a worker."""

import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from graphile_worker import sync
from graphile_worker._lease.lease import Lease
from graphile_worker._sql.queries.claim import ClaimedJob, claim_jobs_unindexed, get_task_ids
from graphile_worker._sql.queries.history import has_history
from graphile_worker._sql.queries.testing import claim_job, probe
from graphile_worker._support.logs import resolve_logger
from graphile_worker._worker.cancellation import Cancellation
from graphile_worker._worker.completer import Completer
from graphile_worker._worker.context import Context, PoolResources
from graphile_worker._worker.job_events import emit_job_ended, emit_job_started
from graphile_worker._worker.outcomes import (
    Completed,
    CompletedInTransaction,
    Failed,
    Outcome,
    Snoozed,
)
from graphile_worker._worker.process_pool import ProcessPool
from graphile_worker._worker.run_job import Executors, run_job
from graphile_worker._worker.run_state import RunStep
from graphile_worker.app import App
from graphile_worker.client import Client
from graphile_worker.errors import SchemaError
from graphile_worker.jobs import Job
from graphile_worker.options import TaskProcessOptions
from graphile_worker.tasks import Task, find_retentions
from graphile_worker.testing.clock import TestClock
from graphile_worker.testing.connections import TestConnection

WORKER_ID = "worker-of-a-test"

# Async listeners that take longer are cancelled, and their names are logged.
LISTENERS_TIMEOUT = timedelta(seconds=3)


class DrainResult(list[Job]):
    """The jobs that ran, in order, each as it was when it was claimed.

    Attributes:
        results: Each job whose task returned, with its result, in order. The task need not keep
            results.
        errors: Each job whose task raised, with the error, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.results: list[tuple[Job, Any]] = []
        self.errors: list[tuple[Job, BaseException]] = []

    def raise_first(self) -> "DrainResult":
        """Raise the first error of a task.

        Returns:
            Itself, if no task raised.
        """
        if self.errors:
            raise self.errors[0][1]
        return self


@dataclass(frozen=True, kw_only=True)
class TestRuntime:
    """The parts that run jobs in a test."""

    app: App[Any]
    connection: TestConnection
    client: Client
    sync_client: sync.Client
    clock: TestClock
    lifespan: Callable[[], Any]

    def build_resources(self, deps: Any) -> PoolResources:
        """Build what the contexts of jobs share."""
        return PoolResources(
            deps=deps,
            logger=resolve_logger(None),
            cancellation=Cancellation(),
            database=self.connection.database,
            client=self.client,
            sync_database=self.connection.sync_database,
            sync_client=self.sync_client,
        )


class DrainContext(Context):
    """The context of a job in a drain, which keeps its result as the task set it."""

    set_value: object = None

    def set_result(self, result: object) -> None:
        super().set_result(result)
        self.set_value = result

    @property
    def final_result(self) -> object:
        """Return what the task returned, or what it set if it returned nothing."""
        return self.set_value if self.result is None else self.result


class DrainRun:
    """One call of `drain`, or one run of jobs that were added inline."""

    def __init__(self, runtime: TestRuntime, *, stop_at_error: bool) -> None:
        self._result = DrainResult()
        self._runtime = runtime
        self._db = runtime.connection.database
        self._stop_at_error = stop_at_error
        self._hooks = runtime.app.hooks
        self._tasks = {name: _copy_in_process(task) for name, task in runtime.app.tasks().items()}
        self._retentions = find_retentions(self._tasks, runtime.app)
        self._lease = Lease()
        self._completer = Completer(self._db, self._lease, self._hooks, can_retry=False)
        self._executors = Executors(runtime.connection.executor, ProcessPool(TaskProcessOptions()))
        self._lifespan_stack = AsyncExitStack()
        self._resources: PoolResources | None = None

    async def drain(self, until: datetime | None, at_most: int) -> DrainResult:
        """Run the jobs that are due now or until a time, and the jobs that they add."""
        return await self._run_all(self._claim_due(until, at_most))

    async def run(self, job_ids: deque[int]) -> DrainResult:
        """Run these jobs if they are due, and those that are appended meanwhile."""
        return await self._run_all(self._claim_listed(job_ids))

    async def _claim_due(
        self, until: datetime | None, at_most: int
    ) -> AsyncGenerator[ClaimedJob, None]:
        while claimed := await self._claim_next(until or self._runtime.clock.now()):
            if len(self._result) == at_most:
                await self._completer.try_release([claimed])
                raise RuntimeError(
                    f"{at_most} jobs ran and there are more. If a task adds itself on purpose, "
                    "pass a larger drain(at_most=…)."
                )
            yield claimed

    async def _claim_listed(self, job_ids: deque[int]) -> AsyncGenerator[ClaimedJob, None]:
        while job_ids:
            now = self._runtime.clock.now()
            claimed = await self._db.run(claim_job(self._lease.pool_id, job_ids.popleft(), now))
            if claimed is not None:
                yield claimed

    async def _claim_next(self, now: datetime) -> ClaimedJob | None:
        # Each time, because a job may be the first of its task. Ids are not created here: tests
        # that run at the same time would wait for each other.
        task_ids = await self._db.run(get_task_ids(list(self._tasks)))
        claimed = await self._db.run(claim_jobs_unindexed(self._lease.pool_id, task_ids, now=now))
        return claimed[0] if claimed else None

    async def _run_all(self, claims: AsyncGenerator[ClaimedJob, None]) -> DrainResult:
        await self._check_history()
        async with self._lifespan_stack, aclosing(claims):
            async for claimed in claims:
                if not await self._run_and_complete(claimed):
                    break
            await self._hooks.drain(LISTENERS_TIMEOUT)
        return self._result

    async def _check_history(self) -> None:
        """Raise if tasks keep outcomes and the test database has no tables for them."""
        if self._retentions and not await self._db.run(has_history(self._db.schemas)):
            raise SchemaError(
                f"task {min(self._retentions)!r} keeps outcomes, and schema "
                f"{self._db.schemas.companion!r} of the test database has no tables for them. "
                "Run `graphile-worker migrate` on it."
            )

    async def _run_and_complete(self, claimed: ClaimedJob) -> bool:
        """Run one job and record its outcome. Return False if no other job should run."""
        if self._resources is None:
            deps = await self._lifespan_stack.enter_async_context(self._runtime.lifespan())
            self._resources = self._runtime.build_resources(deps)
        self._result.append(claimed.job)
        context = DrainContext(claimed, WORKER_ID, self._resources)
        context.retention = self._retentions.get(claimed.job.task_identifier)
        started = context.started_at = time.monotonic()
        context.advance(RunStep.START)
        emit_job_started(self._hooks, context)
        outcome = self._with_retry_time(await self._run_in_savepoint(context))
        if isinstance(outcome, Completed | Failed):
            outcome.kept = context.build_kept_run(is_completed=isinstance(outcome, Completed))
        is_owned = await self._completer.complete(outcome) is not None
        seconds = time.monotonic() - started
        emit_job_ended(self._hooks, context, outcome, is_still_owned=is_owned, seconds=seconds)
        # Before the next claim, so that jobs which async listeners add run too.
        await self._hooks.drain(LISTENERS_TIMEOUT)
        error = _get_error(outcome)
        if error is not None:
            self._result.errors.append((claimed.job, error))
        elif isinstance(outcome, Completed | CompletedInTransaction):
            self._result.results.append((claimed.job, context.final_result))
        return error is None or not self._stop_at_error

    async def _run_in_savepoint(self, context: Context) -> Outcome:
        """Run the task. If one of its statements failed, roll back everything that it did.

        Otherwise the changes of a failed task stay, as they do where each statement commits.
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
    # Another process would not see the transaction of the test.
    copy = task.with_identifier(task.identifier)
    copy.options = replace(task.options, run_in=None if task.is_async else "thread")
    return copy


def _compute_retry_at(job: Job, clock: TestClock) -> datetime:
    delay = timedelta(seconds=math.exp(min(job.attempts, 10)))
    return max(clock.now(), job.run_at) + delay


def _fail_rolled_back(claimed: ClaimedJob, outcome: Outcome, error: Exception) -> Outcome:
    if isinstance(outcome, Failed):
        return outcome
    reason = RuntimeError(
        "a statement of the task failed and the task continued. In production each statement "
        "commits by itself. In the transaction of a test everything that the task did is rolled "
        "back. Put statements that may fail into ctx.transaction() or into a savepoint."
    )
    reason.__cause__ = error
    return Failed(claimed, _get_error(outcome) or reason)


def _get_error(outcome: Outcome) -> BaseException | None:
    if isinstance(outcome, Failed):
        return outcome.error
    return outcome.late_error if isinstance(outcome, CompletedInTransaction) else None
