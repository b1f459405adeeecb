"""Worker: runs the jobs of a source one after the other, and writes their outcomes."""

import asyncio
import contextvars
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

from graphile_worker._metrics.recorder import Recorder
from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._support.failpoints import failpoint
from graphile_worker._worker.completer import Completer
from graphile_worker._worker.completion_batcher import CompletionBatchers, PendingCompletion
from graphile_worker._worker.context import Context, PoolResources
from graphile_worker._worker.job_events import emit_job_ended, emit_job_started
from graphile_worker._worker.job_metrics import record_job_ended
from graphile_worker._worker.outcomes import (
    Completed,
    CompletedInTransaction,
    Failed,
    Interrupted,
    Outcome,
    Snoozed,
)
from graphile_worker._worker.run_job import Executors, run_job
from graphile_worker._worker.run_state import INACTIVE_STATES, STOPPED_STATES, RunState, RunStep
from graphile_worker._worker.sources.base import JobSource
from graphile_worker._worker.start_guard import StartGuard
from graphile_worker.errors import TaskNotFound
from graphile_worker.events import JobStarted
from graphile_worker.hooks import Hooks
from graphile_worker.results import Retention
from graphile_worker.tasks import Task


class Seat(Protocol):
    """What a worker takes its jobs from, if each job needs more than a worker to run."""

    def take(self) -> ClaimedJob | None: ...
    async def wait(self, worker_id: str) -> ClaimedJob | None: ...
    def leave(self) -> None: ...


# A program that ends may take this long to release a job.
RELEASE_TIMEOUT_SECONDS = 5.0


# After these a job may be ready again soon.
RETRYING_OUTCOMES = (Failed, Snoozed, Interrupted)


class Worker:
    """Runs one job at a time. `claimed` is the job until its outcome is written."""

    def __init__(
        self,
        *,
        source: JobSource,
        start_guard: StartGuard,
        completer: Completer,
        batchers: CompletionBatchers,
        tasks: Mapping[str, Task[..., Any]],
        resources: PoolResources,
        executors: Executors,
        hooks: Hooks,
        recorder: Recorder | None = None,
        release_timeout_seconds: float = RELEASE_TIMEOUT_SECONDS,
        retentions: Mapping[str, Retention] = MappingProxyType({}),
        seat: Seat | None = None,
    ) -> None:
        self.id = f"worker-{secrets.token_hex(9)}"
        self.job_error: BaseException | None = None
        self.job_count = 0
        self._source = source
        self._start_guard = start_guard
        self._completer = completer
        self._batchers = batchers
        self._tasks = tasks
        self._resources = resources
        self._executors = executors
        self._hooks = hooks
        self._recorder = recorder
        self._release_timeout_seconds = release_timeout_seconds
        self._retentions = retentions
        # Takes the jobs from the source, if pools share their concurrency or tasks have limits.
        self._seat = seat
        # Each job gets its own copy.
        self._variables = contextvars.copy_context()
        self._asyncio_task: asyncio.Task[Any] | None = None
        # The run of its job, until the outcome is written or passed to a batch.
        self._context: Context | None = None
        # Set when this worker no longer holds a job, if `release` waits for that.
        self._released: asyncio.Event | None = None

    @property
    def claimed(self) -> ClaimedJob | None:
        """Return the job that this worker holds. Other threads read this too."""
        context = self._context
        return None if context is None else context.claimed

    @property
    def has_started(self) -> bool:
        context = self._context
        return context is not None and context.state is not RunState.CLAIMED

    @property
    def is_writing(self) -> bool:
        """Return whether this worker checks the start of its job, or writes the outcome."""
        context = self._context
        return context is not None and context.state in INACTIVE_STATES

    async def run(self) -> None:
        """Run jobs until the source has no more."""
        self._asyncio_task = asyncio.current_task()
        if (context := self._context) is not None:
            # This worker was cancelled while it held a job, and could not release it.
            await self._release_run(context)
        seat = self._seat
        if seat is None:
            take, wait = self._source.take_buffered, self._source.wait_for_job
        else:
            take, wait = seat.take, seat.wait
        try:
            while claimed := take() or await wait(self.id):
                try:
                    await self.work_once(claimed)
                except Exception as error:
                    await self._handle_fatal_error(error)
                    raise
                if self._hooks.is_behind:
                    await self._hooks.catch_up()
        finally:
            if seat is not None:
                seat.leave()

    async def work_once(self, claimed: ClaimedJob) -> None:
        """Run one job that this pool holds, and write its outcome."""
        context = self._context = Context(claimed, self.id, self._resources)
        started_at = time.monotonic()
        if self._retentions:
            context.retention = self._retentions.get(claimed.job.task_identifier)
            context.started_at = started_at
        outcome = await self._execute(context)
        state = context.state
        if context.retention is not None and isinstance(outcome, Completed | Failed | Snoozed):
            outcome.kept = context.build_kept_run(is_completed=isinstance(outcome, Completed))
        if state is RunState.RELEASED or self._context is not context:
            # `release` has reported this run.
            return
        seconds = time.monotonic() - started_at
        self._source.record_duration(seconds)
        if (state is RunState.ENDED or state is RunState.CLAIMED) and (
            batcher := self._batchers.get_batcher(outcome)
        ) is not None:
            if self._seat is not None and not batcher.has_room:
                # An outage of this shard must not take slots from the others.
                self._seat.leave()
            await batcher.put(
                PendingCompletion(outcome, partial(self._on_written, context, seconds))
            )
            self._clear_job()
            self.job_count += 1
            return
        self.job_error = outcome.error if isinstance(outcome, Failed) else None
        if self._seat is not None:
            self._seat.leave()
        written = None
        if state is not RunState.DISCARDED:
            written = await self._completer.complete(
                outcome, is_uncertain=state is RunState.UNCERTAIN
            )
        self._clear_job()
        self.job_error = None
        self.job_count += 1
        self._on_written(context, seconds, written or outcome, written is not None)

    def _on_written(
        self, context: Context, seconds: float, outcome: Outcome, is_still_owned: bool
    ) -> None:
        self._source.forget(context.claimed, may_run_again=type(outcome) in RETRYING_OUTCOMES)
        # Not earlier: if this process dies before the write, the job counts as running.
        self._start_guard.forget(context.claimed)
        cell = context.metrics_cell
        if cell is not None and is_still_owned and type(outcome) is Completed:
            cell.record_success(seconds)
        elif self._recorder is not None:
            self._record_ended(context, outcome, is_still_owned, seconds)
        # Not earlier, because listeners may rely on the state in the database.
        emit_job_ended(
            self._hooks, context, outcome, is_still_owned=is_still_owned, seconds=seconds
        )

    def interrupt(self) -> bool:
        """Cancel the running task to release its job, and return whether that is possible."""
        context = self._context
        if context is None or self.is_writing:
            # An outcome that is being written is nearly done.
            return context is not None
        if not self._is_cancellable(context):
            return False
        if context.state not in STOPPED_STATES:
            context.advance(RunStep.STOP)
            self._cancel_job_task(context)
        return True

    def revoke(self) -> bool:
        """Ask the running task to stop, because other workers may claim its job.

        Cancels the task if it is cancellable. Returns False if no task runs, if the task was asked
        before, or if its own transaction is completing the job.
        """
        context = self._context
        if context is None or not context.advance(RunStep.STOP):
            return False
        self._cancel_job_task(context)
        return True

    def discard(self) -> None:
        """End this run without writing an outcome, because this pool claimed its job again."""
        context = self._context
        if context is None:
            return
        is_running = context.state is RunState.RUNNING
        if context.advance(RunStep.DISCARD) and is_running:
            self._cancel_job_task(context)

    async def release(self) -> None:
        """Release the job of a task that still runs, or wait until the outcome is written.

        Raises:
            TimeoutError: The worker failed before it could write the outcome.
        """
        context = self._context
        if context is None:
            return
        if not self.is_writing:
            await self._release_run(context)
            self.cancel()
            return
        # The outcome is being written, unless this worker has failed.
        if self._asyncio_task is None or self._asyncio_task.done():
            raise TimeoutError
        while self._context is not None:
            self._released = asyncio.Event()
            await self._released.wait()

    def cancel(self) -> None:
        """Cancel this worker, because the program ends."""
        assert self._asyncio_task is not None
        self._asyncio_task.cancel()

    async def _execute(self, context: Context) -> Outcome:
        claimed = context.claimed
        task = self._tasks.get(claimed.job.task_identifier)
        if task is None:
            if self._recorder is not None:
                self._recorder.get_cell(claimed.job.task_identifier).started += 1
            emit_job_started(self._hooks, context)
            return Failed(claimed, TaskNotFound(claimed.job.task_identifier, known=self._tasks))
        if self._start_guard.needs_check(claimed):
            rejection = await self._start_guard.check_start(claimed)
            if rejection or context.state is RunState.DISCARDED:
                return rejection or Interrupted(claimed)
        context.start()
        if self._recorder is not None:
            cell = context.metrics_cell = self._recorder.get_cell(claimed.job.task_identifier)
            cell.started += 1
        variables = self._variables.copy()
        if self._hooks.has_listeners(JobStarted):
            # A listener may set variables for the task.
            variables.run(emit_job_started, self._hooks, context)
        failpoint("task_started")
        try:
            outcome = await run_job(task, context, self._executors, self._hooks, variables)
        except asyncio.CancelledError:
            # A plain function still runs in its thread: `release` releases its job at the end.
            is_released = context.state is RunState.RELEASED or self._context is not context
            if not is_released and task.is_cancellable:
                await self._release_on_cancel(context)
            raise
        failpoint("task_ended")
        context.end()
        return outcome

    def _record_ended(
        self, context: Context, outcome: Outcome, is_still_owned: bool, seconds: float | None
    ) -> None:
        if self._recorder is not None:
            job = context.job
            cell = context.metrics_cell or self._recorder.get_cell(job.task_identifier)
            record_job_ended(cell, job, outcome, is_still_owned, seconds)

    def _clear_job(self) -> None:
        self._context = None
        if self._released is not None:
            self._released.set()

    async def _handle_fatal_error(self, error: Exception) -> None:
        """Fail the job that this worker holds, because it may make other workers fail, too."""
        context = self._context
        if context is not None:
            context.advance(RunStep.END)
            kept = context.build_kept_run(is_completed=False)
            outcome = Failed(context.claimed, error, kept=kept)
            with suppress(Exception):
                await self._complete_now(context, outcome)

    async def _release_run(self, context: Context) -> None:
        """Release the job of a task that may still run."""
        outcome = _build_release_outcome(context)
        context.advance(RunStep.RELEASE)
        await self._complete_now(context, outcome)

    async def _release_on_cancel(self, context: Context) -> None:
        """Release the job before the program ends. Otherwise it would stay locked for hours."""
        outcome = _build_release_outcome(context)
        context.advance(RunStep.END)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._release_timeout_seconds):
                await self._complete_now(context, outcome)

    async def _complete_now(self, context: Context, outcome: Outcome) -> None:
        is_still_owned = (
            context.state is not RunState.DISCARDED
            and await self._completer.complete(outcome) is not None
        )
        self._record_ended(context, outcome, is_still_owned, None)
        emit_job_ended(self._hooks, context, outcome, is_still_owned=is_still_owned, seconds=0.0)
        self._clear_job()
        self._source.forget(context.claimed)
        self._start_guard.forget(context.claimed)

    def _is_cancellable(self, context: Context) -> bool:
        task = self._tasks.get(context.job.task_identifier)
        return task is not None and task.is_cancellable

    def _cancel_job_task(self, context: Context) -> None:
        if context.job_task is not None and self._is_cancellable(context):
            context.job_task.cancel()


def _build_release_outcome(context: Context) -> Outcome:
    if context.state is RunState.COMMITTED:
        return CompletedInTransaction(context.claimed)
    return Interrupted(context.claimed)
