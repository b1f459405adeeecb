"""Worker: one slot. It takes a job, runs it, records how it ended, and asks for the next."""

import asyncio
import contextvars
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._support.failpoints import failpoint
from graphile_worker._worker.completer import Completer
from graphile_worker._worker.completion_batcher import CompletionBatchers, PendingCompletion
from graphile_worker._worker.context import Context, PoolResources
from graphile_worker._worker.job_events import emit_job_ended, emit_job_started
from graphile_worker._worker.outcomes import Failed, Interrupted, Outcome
from graphile_worker._worker.run_job import Executors, run_job
from graphile_worker._worker.sources.direct import JobSource
from graphile_worker._worker.start_guard import StartGuard
from graphile_worker.errors import TaskNotFound
from graphile_worker.events import JobStarted
from graphile_worker.hooks import Hooks
from graphile_worker.tasks import Task

# Seconds in which a program that ends may still give a job back.
RELEASE_TIMEOUT_SECONDS = 5.0


class Worker:
    """Holds one job at most: `claimed` from when it got it until its end is written."""

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
    ) -> None:
        self.id = f"worker-{secrets.token_hex(9)}"
        self.claimed: ClaimedJob | None = None
        self.has_started = False
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
        # Each job gets its own copy.
        self._variables = contextvars.copy_context()
        self._asyncio_task: asyncio.Task[Any] | None = None
        self._context: Context | None = None
        # While its task runs, and not while its end is being written.
        self._running_context: Context | None = None
        # For whoever waits until it holds none.
        self._released: asyncio.Event | None = None

    async def run(self) -> None:
        """Work until there will be no more jobs."""
        self._asyncio_task = asyncio.current_task()
        if (left := self._context) is not None:
            # This worker was cancelled while it held a job, and could not release it.
            left.is_revoked = True
            await self._complete_now(left, Interrupted(left.claimed))
        take, wait = self._source.take_buffered, self._source.wait_for_job
        while held := take() or await wait(self.id):
            try:
                await self.work_once(held)
            except Exception as error:
                await self._handle_fatal_error(error)
                raise
            if self._hooks.is_behind:
                await self._hooks.catch_up()

    async def work_once(self, claimed: ClaimedJob) -> None:
        """Run one job that this pool holds, and record how it ended."""
        self.claimed = claimed
        context = self._context = Context(claimed, self.id, self._resources)
        began = time.monotonic()
        outcome = await self._execute(context)
        if context.is_released:
            return
        seconds = time.monotonic() - began
        self._source.record_duration(seconds)
        # After a lost answer to the commit of the task's own transaction the job may have ended.
        is_uncertain = context.is_committing and not context.is_committed
        batch = (
            None if context.is_discarded or is_uncertain else self._batchers.get_batcher(outcome)
        )
        if batch is not None:
            await batch.put(PendingCompletion(outcome, partial(self._on_written, context, seconds)))
            self._clear_job()
            self.job_count += 1
            return
        self.job_error = outcome.error if isinstance(outcome, Failed) else None
        written = None
        if not context.is_discarded:
            written = await self._completer.complete(outcome, is_uncertain=is_uncertain)
        self._clear_job()
        self.job_error = None
        self.job_count += 1
        self._on_written(context, seconds, written or outcome, written is not None)

    def _on_written(
        self, context: Context, seconds: float, outcome: Outcome, is_still_owned: bool
    ) -> None:
        self._source.forget(context.claimed)
        # Only now: until then, if this process dies, the job counts as one that was running.
        self._start_guard.forget(context.claimed)
        # Only now: whoever hears of it may rely on what the database says.
        emit_job_ended(
            self._hooks, context, outcome, is_still_owned=is_still_owned, seconds=seconds
        )

    @property
    def is_writing(self) -> bool:
        """Has its task ended, and is it being recorded how?"""
        return self.claimed is not None and self._running_context is None

    def interrupt(self) -> bool:
        """Cancel the running task, whose job is then handed back; False if that cannot be done."""
        context = self._running_context
        if context is None:
            # Perhaps its end is being written, which takes a moment.
            return self.is_writing
        if not self._is_cancellable(context.claimed):
            return False
        if not context.is_interrupted and context.job_task is not None:
            context.is_interrupted = True
            context.job_task.cancel()
        return True

    def revoke(self, *, is_discarded: bool = False) -> bool:
        """Ask its task to give up, and cancel it if that can be done; False if none runs.

        Its job is, or soon may be, somebody else's. Dropped, not even that is written.
        """
        if self._context is not None:
            self._context.is_discarded = self._context.is_discarded or is_discarded
        context = self._running_context
        if context is None or context.is_committing or context.is_revoked:
            return False
        context.is_revoked = True
        self.interrupt()
        return True

    async def release(self) -> None:
        """Return once this worker holds no job: one whose task still runs is handed back."""
        context = self._running_context
        if context is None:
            # How its task ended is being written, unless this worker has broken down.
            if self._asyncio_task is None or self._asyncio_task.done():
                raise TimeoutError
            await self._wait_until_idle()
            return
        context.is_released = True
        await self._complete_now(context, Interrupted(context.claimed))
        self._cancel()

    def abandon(self) -> None:
        """End, whatever is being done: the program does."""
        self._cancel()

    async def _execute(self, context: Context) -> Outcome:
        held = context.claimed
        task = self._tasks.get(held.job.task_identifier)
        if task is None:
            emit_job_started(self._hooks, context)
            return Failed(held, TaskNotFound(held.job.task_identifier, known=self._tasks))
        if self._start_guard.needs_check(held):
            not_now = await self._start_guard.check_start(held)
            if not_now or context.is_discarded:
                return not_now or Interrupted(held)
        self.has_started = True
        variables = self._variables.copy()
        if self._hooks.has_listeners(JobStarted):
            # A listener may set variables for the task.
            variables.run(emit_job_started, self._hooks, context)
        failpoint("task_started")
        self._running_context = context
        try:
            outcome = await run_job(task, context, self._executors, self._hooks, variables)
        except asyncio.CancelledError:
            # A plain function goes on in its thread: `release` is for that, at the very end.
            if not context.is_released and task.is_cancellable:
                self._running_context = None
                await self._release_on_cancel(context)
            raise
        failpoint("task_ended")
        self._running_context = None
        return outcome

    def _clear_job(self) -> None:
        self.has_started = False
        self.claimed = None
        self._running_context = self._context = None
        if self._released is not None:
            self._released.set()

    async def _handle_fatal_error(self, error: Exception) -> None:
        """Spend the attempt of the job that this worker holds: another might break down, too."""
        context, self._running_context = self._context, None
        if context is not None and not context.is_discarded:
            with suppress(Exception):
                await self._complete_now(context, Failed(context.claimed, error))

    async def _complete_now(self, context: Context, outcome: Outcome) -> None:
        still_ours = await self._completer.complete(outcome) is not None
        emit_job_ended(self._hooks, context, outcome, is_still_owned=still_ours, seconds=0.0)
        self._clear_job()
        self._source.forget(context.claimed)
        self._start_guard.forget(context.claimed)

    async def _wait_until_idle(self) -> None:
        while self.claimed is not None:
            self._released = asyncio.Event()
            await self._released.wait()

    async def _release_on_cancel(self, context: Context) -> None:
        """The program is ending: return the job, or it would stay locked for hours."""
        with suppress(TimeoutError):
            async with asyncio.timeout(RELEASE_TIMEOUT_SECONDS):
                await self._complete_now(context, Interrupted(context.claimed))

    def _is_cancellable(self, claimed: ClaimedJob) -> bool:
        task = self._tasks.get(claimed.job.task_identifier)
        return task is not None and task.is_cancellable

    def _cancel(self) -> None:
        assert self._asyncio_task is not None
        self._asyncio_task.cancel()
