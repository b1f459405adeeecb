"""Tasks that say, each second, how many began and how long they had waited since they were added.

`graphile-worker --app benchmarks.programs.timed`. A job was added when the transaction that added
it began, by the clock of the database; both run on one machine, so it is our clock too.
"""

import asyncio
import time
from typing import Any

from benchmarks.histogram import Histogram
from benchmarks.programs.words import dsn, say
from graphile_worker import App, JobContext

app = App(dsn())


class Seconds:
    """Gathers the waits of a second, and says them when it is over."""

    def __init__(self) -> None:
        self._second = 0
        self._waits = Histogram()

    def add(self, now: float, wait: float) -> None:
        if int(now) != self._second:
            self._say(self._second)
            self._second = int(now)
            # For when no job comes after it.
            asyncio.get_running_loop().call_later(1.5, self._say, self._second)
        self._waits.add(wait)

    def _say(self, second: int) -> None:
        if second == self._second and self._waits.count:
            say(second=second, waits=self._waits.counts())
            self._waits = Histogram()


seconds = Seconds()


@app.task
async def timed(ctx: JobContext, payload: Any, /) -> None:
    now = time.time()
    seconds.add(now, now - ctx.job.created_at.timestamp())
