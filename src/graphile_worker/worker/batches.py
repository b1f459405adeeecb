"""Batches: how jobs ended is written together, while their workers go on with the next ones."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import NamedTuple

from graphile_worker.failpoints import failpoint
from graphile_worker.sql.holding import HeldJob
from graphile_worker.worker.outcomes import Completed, Failed, Outcome
from graphile_worker.worker.settle import Settler

# So many endings may wait to be written; then workers wait too, and nothing more is fetched.
MOST = 1000


class Ending(NamedTuple):
    """How a job ended, and what to do when that is written: told whether the job was still ours."""

    outcome: Outcome
    then: Callable[[bool], None]


class Batch:
    """Gathers endings of one kind for `delay` and writes them with one statement, one at a time.

    A delay of nothing gathers what ends while the batch before is written. An ending that frees a
    named queue does not wait.
    """

    def __init__(self, settler: Settler, delay: timedelta) -> None:
        self._settler = settler
        self._delay = delay.total_seconds()
        self._gathered: list[Ending] = []
        self._writing: list[Ending] = []
        self._first_at = 0.0
        # There is something to write; it must not wait; some of it is being written, or was.
        self._some = asyncio.Event()
        self._urgent = asyncio.Event()
        self._moved = asyncio.Event()
        self._is_closed = False

    @property
    def pending(self) -> list[HeldJob]:
        """The jobs whose end is not written yet; asked from other threads too."""
        return [ending.outcome.held for ending in (*self._writing, *self._gathered)]

    async def put(self, ending: Ending) -> None:
        """Return once there is room for it; after the end it is written by itself."""
        if self._is_closed:
            ending.then(await self._settler.settle(ending.outcome))
            return
        while len(self._gathered) >= MOST:
            await self._until_moved()
        if not self._gathered:
            self._first_at = time.monotonic()
            self._some.set()
        self._gathered.append(ending)
        if ending.outcome.held.queue_id is not None or len(self._gathered) >= MOST:
            self._urgent.set()

    async def run(self) -> None:
        while True:
            await self._some.wait()
            failpoint("batch_waiting")
            await self._gather()
            await self.write_once()

    async def write_once(self) -> None:
        """Write all that was gathered."""
        self._writing, self._gathered = self._gathered, []
        self._some.clear()
        if not self._is_closed:
            self._urgent.clear()
        self._moved.set()
        outcomes = [ending.outcome for ending in self._writing]
        were_ours = await self._settler.settle_all(outcomes)
        written, self._writing = self._writing, []
        for ending, was_ours in zip(written, were_ours, strict=True):
            ending.then(was_ours)
        self._moved.set()

    async def flush(self) -> None:
        """Return once nothing is left to write."""
        while self._gathered or self._writing:
            await self._until_moved()

    async def close(self) -> None:
        """Write what is left without delay; return once that is done."""
        self._is_closed = True
        self._urgent.set()
        await self.flush()

    async def _gather(self) -> None:
        left = self._first_at + self._delay - time.monotonic()
        if left > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._urgent.wait()

    async def _until_moved(self) -> None:
        self._moved.clear()
        await self._moved.wait()


class Batches:
    """One batch for completions and one for failures, each if it is wanted."""

    def __init__(
        self,
        settler: Settler,
        *,
        complete_delay: timedelta | None = None,
        fail_delay: timedelta | None = None,
    ) -> None:
        self._completions = None if complete_delay is None else Batch(settler, complete_delay)
        self._failures = None if fail_delay is None else Batch(settler, fail_delay)

    @property
    def all(self) -> Sequence[Batch]:
        return [each for each in (self._completions, self._failures) if each is not None]

    @property
    def pending(self) -> list[HeldJob]:
        return [held for batch in self.all for held in batch.pending]

    def of(self, outcome: Outcome) -> Batch | None:
        """The batch for such an ending; without one it is written by itself."""
        if isinstance(outcome, Completed):
            return self._completions
        return self._failures if isinstance(outcome, Failed) else None
