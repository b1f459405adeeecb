"""Worker: one slot. It takes a job, runs it, records how it ended, and asks for the next."""

import asyncio
import inspect
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from datetime import timedelta
from typing import Any

from graphile_worker.hooks import Hooks
from graphile_worker.sql.holding import HeldJob
from graphile_worker.tasks import Task
from graphile_worker.worker.announce import announce_end, announce_start
from graphile_worker.worker.context import BlockingContext, Context
from graphile_worker.worker.outcomes import Interrupted
from graphile_worker.worker.run_job import run_job
from graphile_worker.worker.settle import Settler
from graphile_worker.worker.source import JobSource

# Seconds in which a program that ends may still give a job back.
HAND_BACK_WITHIN = 5.0

ContextMaker = Callable[[HeldJob, str], tuple[Context, BlockingContext]]


class Worker:
    def __init__(
        self,
        *,
        source: JobSource,
        settler: Settler,
        tasks: Mapping[str, Task[..., Any]],
        make_context: ContextMaker,
        threads: Executor,
        hooks: Hooks,
    ) -> None:
        self.id = f"worker-{secrets.token_hex(9)}"
        self._source = source
        self._settler = settler
        self._tasks = tasks
        self._make_context = make_context
        self._threads = threads
        self._hooks = hooks

    async def run_until_empty(self) -> int:
        """Work until there is no job to be had; how many were run."""
        count = 0
        while held := await self._source.next():
            await self.work_once(held)
            count += 1
        return count

    async def work_once(self, held: HeldJob) -> None:
        """Run one job that this pool holds, and record how it ended."""
        context, blocking = self._make_context(held, self.id)
        task = self._tasks[held.job.task_identifier]
        announce_start(self._hooks, context)
        began = time.monotonic()
        try:
            outcome = await run_job(task, context, blocking, self._threads, self._hooks)
        except asyncio.CancelledError:
            if inspect.iscoroutinefunction(task.fn):
                await self._hand_back(held)
            raise
        duration = timedelta(seconds=time.monotonic() - began)
        still_ours = await self._settler.settle(outcome)
        # Only now: whoever hears of it may rely on what the database says.
        announce_end(self._hooks, context, outcome, still_ours=still_ours, duration=duration)

    async def _hand_back(self, held: HeldJob) -> None:
        """The program is ending: return the job, or it would stay locked for hours.

        Not one of a plain function: its thread goes on, and nobody else may run it meanwhile.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(HAND_BACK_WITHIN):
                await self._settler.settle(Interrupted(held))
