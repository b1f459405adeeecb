"""Worker: one slot. It takes a job, runs it, records how it ended, and asks for the next."""

import asyncio
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from graphile_worker.errors import TaskNotFound
from graphile_worker.hooks import Hooks
from graphile_worker.sql.holding import HeldJob
from graphile_worker.tasks import Task
from graphile_worker.worker.announce import announce_end, announce_start
from graphile_worker.worker.context import BlockingContext, Context, Surroundings
from graphile_worker.worker.outcomes import Failed, Interrupted, Outcome
from graphile_worker.worker.run_job import run_job
from graphile_worker.worker.settle import Settler
from graphile_worker.worker.source import JobSource
from graphile_worker.worker.threads import Threads

# Seconds in which a program that ends may still give a job back.
HAND_BACK_WITHIN = 5.0


class Worker:
    """Holds one job at most: `holds` from when it got it until its end is written."""

    def __init__(
        self,
        *,
        source: JobSource,
        settler: Settler,
        tasks: Mapping[str, Task[..., Any]],
        surroundings: Surroundings,
        threads: Threads,
        hooks: Hooks,
    ) -> None:
        self.id = f"worker-{secrets.token_hex(9)}"
        self.holds: HeldJob | None = None
        self.count = 0
        self._source = source
        self._settler = settler
        self._tasks = tasks
        self._surroundings = surroundings
        self._threads = threads
        self._hooks = hooks
        self._asyncio_task: asyncio.Task[Any] | None = None
        # While its task runs, and not while its end is being written.
        self._running: Context | None = None

    async def run(self) -> None:
        """Work until there will be no more jobs."""
        self._asyncio_task = asyncio.current_task()
        while held := await self._source.next(self.id):
            await self.work_once(held)

    async def work_once(self, held: HeldJob) -> None:
        """Run one job that this pool holds, and record how it ended."""
        self.holds = held
        context = Context(held, self.id, self._surroundings)
        announce_start(self._hooks, context)
        began = time.monotonic()
        outcome = await self._ended(context)
        if context.abandoned:
            return
        duration = timedelta(seconds=time.monotonic() - began)
        still_ours = await self._settler.settle(outcome)
        self.holds = None
        self.count += 1
        self._source.done(held)
        # Only now: whoever hears of it may rely on what the database says.
        announce_end(self._hooks, context, outcome, still_ours=still_ours, duration=duration)

    @property
    def is_running(self) -> bool:
        """Does a task run here, rather than its end being written?"""
        return self._running is not None

    def interrupt(self) -> None:
        """Cancel the running task if it can be: its job is then handed back."""
        if self._running is not None and self._is_async(self._running.held):
            self._running.interrupted = True
            self._cancel()

    async def abandon(self) -> bool:
        """Hand the job back although its task still runs; False if it was not ours any more."""
        context = self._running
        assert context is not None
        context.abandoned = True
        outcome = Interrupted(context.held)
        still_ours = await self._settler.settle(outcome)
        announce_end(self._hooks, context, outcome, still_ours=still_ours, duration=timedelta(0))
        self.holds = None
        self._cancel()
        return still_ours

    def give_up(self) -> None:
        """End, whatever is being done: the program does."""
        self._cancel()

    async def _ended(self, context: Context) -> Outcome:
        held = context.held
        task = self._tasks.get(held.job.task_identifier)
        if task is None:
            return Failed(held, TaskNotFound(held.job.task_identifier, known=self._tasks))
        blocking = BlockingContext(context, self._surroundings)
        self._running = context
        try:
            return await run_job(task, context, blocking, self._threads, self._hooks)
        except asyncio.CancelledError:
            if not context.abandoned and self._is_async(held):
                await self._hand_back(held)
            raise
        finally:
            self._running = None
            if context.interrupted:
                # It was for the task; this worker goes on to write how that ended.
                asyncio.current_task().uncancel()  # type: ignore[union-attr]  # there is one

    async def _hand_back(self, held: HeldJob) -> None:
        """The program is ending: return the job, or it would stay locked for hours.

        Not one of a plain function: its thread goes on, and nobody else may run it meanwhile.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(HAND_BACK_WITHIN):
                await self._settler.settle(Interrupted(held))

    def _is_async(self, held: HeldJob) -> bool:
        task = self._tasks.get(held.job.task_identifier)
        return task is not None and task.is_async

    def _cancel(self) -> None:
        assert self._asyncio_task is not None
        self._asyncio_task.cancel()
