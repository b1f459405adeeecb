"""Worker: one slot. It takes a job, runs it, records how it ended, and asks for the next."""

import asyncio
import contextvars
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from graphile_worker.errors import TaskNotFound
from graphile_worker.events import JobStarted
from graphile_worker.failpoints import failpoint
from graphile_worker.hooks import Hooks
from graphile_worker.sql.holding import HeldJob
from graphile_worker.tasks import Task
from graphile_worker.worker.announce import announce_end, announce_start
from graphile_worker.worker.batches import Batches, Ending
from graphile_worker.worker.context import Context, Surroundings
from graphile_worker.worker.outcomes import Failed, Interrupted, Outcome
from graphile_worker.worker.run_job import Places, run_job
from graphile_worker.worker.settle import Settler
from graphile_worker.worker.source import JobSource
from graphile_worker.worker.starts import Starts

# Seconds in which a program that ends may still give a job back.
HAND_BACK_WITHIN = 5.0


class Worker:
    """Holds one job at most: `holds` from when it got it until its end is written."""

    def __init__(
        self,
        *,
        source: JobSource,
        starts: Starts,
        settler: Settler,
        batches: Batches,
        tasks: Mapping[str, Task[..., Any]],
        surroundings: Surroundings,
        places: Places,
        hooks: Hooks,
    ) -> None:
        self.id = f"worker-{secrets.token_hex(9)}"
        self.holds: HeldJob | None = None
        self.has_started = False
        self.job_error: BaseException | None = None
        self.count = 0
        self._source = source
        self._starts = starts
        self._settler = settler
        self._batches = batches
        self._tasks = tasks
        self._surroundings = surroundings
        self._places = places
        self._hooks = hooks
        # Each job gets its own copy.
        self._variables = contextvars.copy_context()
        self._asyncio_task: asyncio.Task[Any] | None = None
        self._context: Context | None = None
        # While its task runs, and not while its end is being written.
        self._running: Context | None = None
        # For whoever waits until it holds none.
        self._let_go: asyncio.Event | None = None

    async def run(self) -> None:
        """Work until there will be no more jobs."""
        self._asyncio_task = asyncio.current_task()
        if (left := self._context) is not None:
            # This worker was cancelled while it held a job, and could not release it.
            left.lost = True
            await self._settle_at_once(left, Interrupted(left.held))
        take, wait = self._source.take, self._source.next
        while held := take() or await wait(self.id):
            try:
                await self.work_once(held)
            except Exception as error:
                await self._break_down(error)
                raise
            if self._hooks.is_behind:
                await self._hooks.catch_up()

    async def work_once(self, held: HeldJob) -> None:
        """Run one job that this pool holds, and record how it ended."""
        self.holds = held
        context = self._context = Context(held, self.id, self._surroundings)
        began = time.monotonic()
        outcome = await self._ended(context)
        if context.abandoned:
            return
        seconds = time.monotonic() - began
        self._source.ran(seconds)
        # After a lost answer to the commit of the task's own transaction the job may have ended.
        is_uncertain = context.ending and not context.written
        batch = None if context.dropped or is_uncertain else self._batches.of(outcome)
        if batch is not None:
            await batch.put(Ending(outcome, partial(self._written, context, seconds)))
            self._release()
            self.count += 1
            return
        self.job_error = outcome.error if isinstance(outcome, Failed) else None
        written = None
        if not context.dropped:
            written = await self._settler.settle(outcome, is_uncertain=is_uncertain)
        self._release()
        self.job_error = None
        self.count += 1
        self._written(context, seconds, written or outcome, written is not None)

    def _written(
        self, context: Context, seconds: float, outcome: Outcome, still_ours: bool
    ) -> None:
        self._source.done(context.held)
        # Only now: until then, if this process dies, the job counts as one that was running.
        self._starts.end(context.held)
        # Only now: whoever hears of it may rely on what the database says.
        announce_end(self._hooks, context, outcome, still_ours=still_ours, seconds=seconds)

    @property
    def is_writing(self) -> bool:
        """Has its task ended, and is it being recorded how?"""
        return self.holds is not None and self._running is None

    def interrupt(self) -> bool:
        """Cancel the running task, whose job is then handed back; False if that cannot be done."""
        context = self._running
        if context is None:
            # Perhaps its end is being written, which takes a moment.
            return self.is_writing
        if not self._is_cancellable(context.held):
            return False
        if not context.interrupted and context.running is not None:
            context.interrupted = True
            context.running.cancel()
        return True

    def lose_job(self, *, dropped: bool = False) -> bool:
        """Ask its task to give up, and cancel it if that can be done; False if none runs.

        Its job is, or soon may be, somebody else's. Dropped, not even that is written.
        """
        if self._context is not None:
            self._context.dropped = self._context.dropped or dropped
        context = self._running
        if context is None or context.ending or context.lost:
            return False
        context.lost = True
        self.interrupt()
        return True

    async def hand_back(self) -> None:
        """Return once this worker holds no job: one whose task still runs is handed back."""
        context = self._running
        if context is None:
            # How its task ended is being written, unless this worker has broken down.
            if self._asyncio_task is None or self._asyncio_task.done():
                raise TimeoutError
            await self._holds_none()
            return
        context.abandoned = True
        await self._settle_at_once(context, Interrupted(context.held))
        self._cancel()

    def give_up(self) -> None:
        """End, whatever is being done: the program does."""
        self._cancel()

    async def _ended(self, context: Context) -> Outcome:
        held = context.held
        task = self._tasks.get(held.job.task_identifier)
        if task is None:
            announce_start(self._hooks, context)
            return Failed(held, TaskNotFound(held.job.task_identifier, known=self._tasks))
        if self._starts.must_ask(held):
            not_now = await self._starts.begin(held)
            if not_now or context.dropped:
                return not_now or Interrupted(held)
        self.has_started = True
        variables = self._variables.copy()
        if self._hooks.hears(JobStarted):
            # A listener may set variables for the task.
            variables.run(announce_start, self._hooks, context)
        failpoint("task_started")
        self._running = context
        try:
            outcome = await run_job(task, context, self._places, self._hooks, variables)
        except asyncio.CancelledError:
            # A plain function goes on in its thread: `hand_back` is for that, at the very end.
            if not context.abandoned and task.is_cancellable:
                self._running = None
                await self._hand_back(context)
            raise
        failpoint("task_ended")
        self._running = None
        return outcome

    def _release(self) -> None:
        self.has_started = False
        self.holds = None
        self._running = self._context = None
        if self._let_go is not None:
            self._let_go.set()

    async def _break_down(self, error: Exception) -> None:
        """Spend the attempt of the job that this worker holds: another might break down, too."""
        context, self._running = self._context, None
        if context is not None and not context.dropped:
            with suppress(Exception):
                await self._settle_at_once(context, Failed(context.held, error))

    async def _settle_at_once(self, context: Context, outcome: Outcome) -> None:
        still_ours = await self._settler.settle(outcome) is not None
        announce_end(self._hooks, context, outcome, still_ours=still_ours, seconds=0.0)
        self._release()
        self._source.done(context.held)
        self._starts.end(context.held)

    async def _holds_none(self) -> None:
        while self.holds is not None:
            self._let_go = asyncio.Event()
            await self._let_go.wait()

    async def _hand_back(self, context: Context) -> None:
        """The program is ending: return the job, or it would stay locked for hours."""
        with suppress(TimeoutError):
            async with asyncio.timeout(HAND_BACK_WITHIN):
                await self._settle_at_once(context, Interrupted(context.held))

    def _is_cancellable(self, held: HeldJob) -> bool:
        task = self._tasks.get(held.job.task_identifier)
        return task is not None and task.is_cancellable

    def _cancel(self) -> None:
        assert self._asyncio_task is not None
        self._asyncio_task.cancel()
