"""Tasks of all kinds for a scheduled pool: each notes for which claim it runs, and what it did."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from graphile_worker import JobContext, Retry, Snooze
from graphile_worker._discovery.discovery import build_tasks
from graphile_worker.tasks import Task
from graphile_worker.tasks.task import TaskOptions
from tests.chaos.scheduled_table import Claim, TableOfJobs

SHORT = (
    *("quick", "quick", "sleepy", "sleepy", "failing", "retrying", "retrying", "snoozing"),
    *("quitting", "limited", "transacting"),
)
# These do not end by themselves.
ENDLESS = ("hanging", "tidy", "stubborn", "polite")
KINDS = sorted({"brief", *SHORT, *ENDLESS})


class Bodies:
    """Tasks of all kinds, each of which notes what it did."""

    def __init__(self, table: TableOfJobs, rng: random.Random) -> None:
        self.released = asyncio.Event()
        self._table = table
        self._rng = rng
        self._running: dict[int, Claim] = {}

    def tasks(self) -> dict[str, Task[..., Any]]:
        tasks = build_tasks({kind: self._noted(kind, getattr(self, f"_{kind}")) for kind in KINDS})
        tasks["limited"].options = TaskOptions(timeout=timedelta(milliseconds=200))
        return tasks

    def _noted(self, kind: str, body: Callable[[Any], Awaitable[None]]) -> Any:
        async def run(payload: int, ctx: JobContext) -> None:
            claim = self._begin(self._table.claims[payload])
            try:
                await body(ctx)
            except asyncio.CancelledError:
                claim.body = "was cancelled"
                if kind in ("limited", "quitting"):
                    claim.body = "was cancelled in time"
                raise
            except Snooze:
                claim.body = "has snoozed"
                raise
            except Exception:
                claim.body = "has raised"
                raise
            else:
                claim.body = "has returned"
            finally:
                claim.ended_at = asyncio.get_running_loop().time()
                if self._running.get(claim.job.id) is claim:
                    del self._running[claim.job.id]

        return run

    def _begin(self, claim: Claim) -> Claim:
        other = self._running.get(claim.job.id)
        if other is not None and other.written is None:
            self._table.problems.append(f"job {claim.job.id} runs twice at once")
        if claim.body != "not begun":
            self._table.problems.append(f"job {claim.job.id} runs twice for one claim")
        if claim.written is not None:
            self._table.problems.append(f"job {claim.job.id} runs after it was {claim.written}")
        claim.body, claim.body_at = "runs", asyncio.get_running_loop().time()
        self._running[claim.job.id] = claim
        return claim

    async def _quick(self, _ctx: JobContext) -> None:
        pass

    async def _brief(self, _ctx: JobContext) -> None:
        await asyncio.sleep(0.03)

    async def _sleepy(self, _ctx: JobContext) -> None:
        await asyncio.sleep(self._rng.choice([0, 0.001, 0.05, 1.0]))

    async def _failing(self, ctx: JobContext) -> None:
        await self._sleepy(ctx)
        raise RuntimeError("boom")

    async def _retrying(self, ctx: JobContext) -> None:
        await self._sleepy(ctx)
        if self._rng.random() < 0.7:
            raise Retry(timedelta(milliseconds=self._rng.choice([0, 5, 200])))

    async def _snoozing(self, ctx: JobContext) -> None:
        await self._sleepy(ctx)
        if self._rng.random() < 0.7:
            raise Snooze(timedelta(milliseconds=self._rng.choice([0, 5, 200])))

    async def _hanging(self, _ctx: JobContext) -> None:
        await self.released.wait()

    async def _tidy(self, _ctx: JobContext) -> None:
        try:
            await self.released.wait()
        finally:
            await asyncio.sleep(self._rng.choice([0, 0.5]))

    async def _stubborn(self, _ctx: JobContext) -> None:
        while not self.released.is_set():
            with suppress(asyncio.CancelledError):
                await self.released.wait()

    async def _polite(self, ctx: JobContext) -> None:
        await ctx.wait_cancelled()

    async def _quitting(self, ctx: JobContext) -> None:
        await self._sleepy(ctx)
        raise asyncio.CancelledError

    async def _limited(self, ctx: JobContext) -> None:
        await asyncio.sleep(self._rng.choice([0.001, 0.199, 5]))

    async def _transacting(self, ctx: JobContext) -> None:
        claim = self._table.claims[int(ctx.job.payload_text)]
        async with ctx.transaction():
            await self._sleepy(ctx)
            claim.body = "commits"
