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
    """How a job ended, and what to do when that is written.

    `then` is called with what was written and whether this pool still held the job.
    """

    outcome: Outcome
    then: Callable[[Outcome, bool], None]

    def end(self, written: Outcome | None) -> None:
        self.then(written or self.outcome, written is not None)


class Batch:
    """Gathers endings of one kind for `delay` and writes them with one statement, one at a time.

    A delay of nothing gathers what ends while the batch before is written. An ending that frees a
    named queue does not wait. One that the database rejects is written apart, so that it does not
    delay the others.
    """

    def __init__(self, settler: Settler, delay: timedelta) -> None:
        self._settler = settler
        self._delay = delay.total_seconds()
        self._gathered: list[Ending] = []
        self._writing: list[Ending] = []
        self._apart: dict[asyncio.Task[None], Ending] = {}
        self._first_at = 0.0
        # There is something to write; it must not wait; some of it is being written, or was.
        self._some = asyncio.Event()
        self._urgent = asyncio.Event()
        self._moved = asyncio.Event()
        self._is_closed = False

    @property
    def pending(self) -> list[HeldJob]:
        """The jobs whose end is not written yet; asked from other threads too."""
        unwritten = (*list(self._apart.values()), *self._writing, *self._gathered)
        return [ending.outcome.held for ending in unwritten]

    async def put(self, ending: Ending) -> None:
        """Return once there is room for it; after the end it is written by itself."""
        if self._is_closed:
            ending.end(await self._settler.settle(ending.outcome))
            return
        while len(self._gathered) + len(self._apart) >= MOST:
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
        for endings in _by_pool_id(self._writing):
            await self._write_together(endings)
        self._writing = []
        self._moved.set()

    async def _write_together(self, endings: list[Ending]) -> None:
        written = await self._settler.settle_all([ending.outcome for ending in endings])
        if written is None:
            await self._write_one_by_one(endings)
            return
        for (outcome, then), now in zip(endings, written, strict=True):
            then(now or outcome, now is not None)

    async def _write_one_by_one(self, endings: list[Ending]) -> None:
        for ending in endings:
            try:
                written = await self._settler.settle_unless_refused(ending.outcome)
            except Exception:
                task = asyncio.create_task(self._write_apart(ending))
                self._apart[task] = ending
                task.add_done_callback(self._apart_ended)
            else:
                ending.end(written)
            self._writing = [each for each in self._writing if each is not ending]

    async def _write_apart(self, ending: Ending) -> None:
        ending.end(await self._settler.settle(ending.outcome, attempt=1))

    def _apart_ended(self, task: asyncio.Task[None]) -> None:
        # The end of a job whose task was cancelled is still unwritten.
        if not task.cancelled():
            del self._apart[task]
            self._moved.set()

    async def flush(self) -> None:
        """Return once nothing is left to write."""
        while self._gathered or self._writing or self._apart:
            await self._until_moved()

    async def close(self) -> None:
        """Write what is left without delay; return once that is done."""
        self._is_closed = True
        self._urgent.set()
        await self.flush()

    def abandon(self) -> None:
        """Stop writing what the database rejects; those jobs stay locked until recovery."""
        for task in list(self._apart):
            task.cancel()

    async def _gather(self) -> None:
        left = self._first_at + self._delay - time.monotonic()
        if left > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._urgent.wait()

    async def _until_moved(self) -> None:
        self._moved.clear()
        await self._moved.wait()


def _by_pool_id(endings: list[Ending]) -> list[list[Ending]]:
    """Endings under one id of this pool together; nearly always all of them."""
    ids = {ending.outcome.held.job.locked_by for ending in endings}
    if len(ids) == 1:
        return [endings]
    return [[each for each in endings if each.outcome.held.job.locked_by == id] for id in ids]


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
