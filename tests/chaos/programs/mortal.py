"""Tasks of workers that are killed, and a worker that only looks for dead ones.

With AHEAD in its environment a worker fetches that number of jobs, and holds each until it is its
turn.
"""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

from graphile_worker import App, BaseJobContext, JobContext, _assembly
from graphile_worker._sql.identifiers import derive_companion_schema, quote_identifier
from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._worker.claimer import Claimer

AHEAD = int(os.environ.get("AHEAD", "0"))

app = App()
idle = App()


class ClaimsAhead(Claimer):
    """Takes many jobs at once, and gives out as many of them as are asked for."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._ahead: list[ClaimedJob] = []

    async def claim(self, limit: int) -> list[ClaimedJob]:
        if not self._ahead:
            self._ahead = await super().claim(AHEAD)
        given, self._ahead = self._ahead[:limit], self._ahead[limit:]
        return given


if AHEAD:
    _assembly.Claimer = ClaimsAhead  # type: ignore[attr-defined]  # workers are made with it


def say(word: str, n: int) -> None:
    # Not through a buffer, which dies with its process.
    os.write(1, f"{word} {n}\n".encode())


@app.task
async def linger(n: int, resists: bool = False) -> None:
    """Runs until there is a file called "go"; one that resists outlives its cancellation."""
    say("began", n)
    while not Path("go").exists():
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            if not resists:
                raise
            # Seconds that its worker may take to stop.
            await asyncio.sleep(0.1)
            block(n)
    say("ran", n)


@app.task
async def report(ctx: JobContext) -> None:
    """Reports progress and never ends."""
    ctx.progress(0.4, "page 4 of 10")
    await asyncio.Event().wait()


def block(n: int) -> None:
    say("blocks", n)
    time.sleep(600)


@app.task
async def work(n: int, seconds: float = 0.01) -> None:
    await asyncio.sleep(seconds)
    say("ran", n)


@app.task
async def kill(ctx: JobContext, heartbeats: int) -> None:
    """Kill its worker after `beats` heartbeats with this job."""
    heard: set[Any] = set()
    while len(heard) < heartbeats:
        heard |= {row["seen_at"] for row in await ctx.query(heartbeats_of(ctx), [ctx.job.id])}
        await asyncio.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)


def heartbeats_of(ctx: BaseJobContext) -> str:
    pools = f"{quote_identifier(derive_companion_schema(ctx.schema))}.pools"
    return f"select seen_at from {pools} where %s = any (started_jobs)"


@idle.task
async def nothing() -> None:
    pass
