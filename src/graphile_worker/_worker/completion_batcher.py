"""Batches: how jobs ended is written together, while their workers go on with the next ones."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import NamedTuple

from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._support.failpoints import failpoint
from graphile_worker._worker.completer import Completer
from graphile_worker._worker.outcomes import Completed, Failed, Outcome

# So many endings may wait to be written; then workers wait too, and nothing more is fetched.
MAX_PENDING_COMPLETIONS = 1000


class PendingCompletion(NamedTuple):
    """How a job ended, and what to do when that is written.

    `on_written` is called with what was written and whether this pool still held the job.
    """

    outcome: Outcome
    on_written: Callable[[Outcome, bool], None]

    def finish(self, written: Outcome | None) -> None:
        self.on_written(written or self.outcome, written is not None)


class CompletionBatcher:
    """Gathers endings of one kind for `delay` and writes them with one statement, one at a time.

    A delay of nothing gathers what ends while the batch before is written. An ending that frees a
    named queue does not wait. One that the database rejects is written apart, so that it does not
    delay the others.
    """

    def __init__(self, completer: Completer, delay: timedelta) -> None:
        self._completer = completer
        self._delay_seconds = delay.total_seconds()
        self._queued: list[PendingCompletion] = []
        self._writing: list[PendingCompletion] = []
        self._separate_writes: dict[asyncio.Task[None], PendingCompletion] = {}
        self._first_queued_at = 0.0
        # There is something to write; it must not wait; some of it is being written, or was.
        self._has_queued = asyncio.Event()
        self._urgent = asyncio.Event()
        self._progressed = asyncio.Event()
        self._is_closed = False

    @property
    def pending_jobs(self) -> list[ClaimedJob]:
        """The jobs whose end is not written yet; asked from other threads too."""
        unwritten = (*list(self._separate_writes.values()), *self._writing, *self._queued)
        return [ending.outcome.claimed for ending in unwritten]

    async def put(self, completion: PendingCompletion) -> None:
        """Return once there is room for it; after the end it is written by itself."""
        if self._is_closed:
            completion.finish(await self._completer.complete(completion.outcome))
            return
        while len(self._queued) + len(self._separate_writes) >= MAX_PENDING_COMPLETIONS:
            await self._wait_for_progress()
        if not self._queued:
            self._first_queued_at = time.monotonic()
            self._has_queued.set()
        self._queued.append(completion)
        if (
            completion.outcome.claimed.queue_id is not None
            or len(self._queued) >= MAX_PENDING_COMPLETIONS
        ):
            self._urgent.set()

    async def run(self) -> None:
        while True:
            await self._has_queued.wait()
            failpoint("batch_waiting")
            await self._wait_for_more()
            await self.write_once()

    async def write_once(self) -> None:
        """Write all that was gathered."""
        self._writing, self._queued = self._queued, []
        self._has_queued.clear()
        if not self._is_closed:
            self._urgent.clear()
        self._progressed.set()
        for endings in _group_by_pool_id(self._writing):
            await self._write_batch(endings)
        self._writing = []
        self._progressed.set()

    async def _write_batch(self, completions: list[PendingCompletion]) -> None:
        written = await self._completer.complete_all([ending.outcome for ending in completions])
        if written is None:
            await self._write_one_by_one(completions)
            return
        for (outcome, then), now in zip(completions, written, strict=True):
            then(now or outcome, now is not None)

    async def _write_one_by_one(self, completions: list[PendingCompletion]) -> None:
        for ending in completions:
            try:
                written = await self._completer.complete_unless_rejected(ending.outcome)
            except Exception:
                task = asyncio.create_task(self._write_separately(ending))
                self._separate_writes[task] = ending
                task.add_done_callback(self._on_separate_write_done)
            else:
                ending.finish(written)
            self._writing = [each for each in self._writing if each is not ending]

    async def _write_separately(self, completion: PendingCompletion) -> None:
        completion.finish(await self._completer.complete(completion.outcome, attempt=1))

    def _on_separate_write_done(self, task: asyncio.Task[None]) -> None:
        # The end of a job whose task was cancelled is still unwritten.
        if not task.cancelled():
            del self._separate_writes[task]
            self._progressed.set()

    async def flush(self) -> None:
        """Return once nothing is left to write."""
        while self._queued or self._writing or self._separate_writes:
            await self._wait_for_progress()

    async def close(self) -> None:
        """Write what is left without delay; return once that is done."""
        self._is_closed = True
        self._urgent.set()
        await self.flush()

    def abandon(self) -> None:
        """Stop writing what the database rejects; those jobs stay locked until recovery."""
        for task in list(self._separate_writes):
            task.cancel()

    async def _wait_for_more(self) -> None:
        left = self._first_queued_at + self._delay_seconds - time.monotonic()
        if left > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._urgent.wait()

    async def _wait_for_progress(self) -> None:
        self._progressed.clear()
        await self._progressed.wait()


def _group_by_pool_id(completions: list[PendingCompletion]) -> list[list[PendingCompletion]]:
    """Endings under one id of this pool together; nearly always all of them."""
    ids = {ending.outcome.claimed.job.locked_by for ending in completions}
    if len(ids) == 1:
        return [completions]
    return [
        [each for each in completions if each.outcome.claimed.job.locked_by == id] for id in ids
    ]


class CompletionBatchers:
    """One batch for completions and one for failures, each if it is wanted."""

    def __init__(
        self,
        completer: Completer,
        *,
        complete_delay: timedelta | None = None,
        fail_delay: timedelta | None = None,
    ) -> None:
        self._completions = (
            None if complete_delay is None else CompletionBatcher(completer, complete_delay)
        )
        self._failures = None if fail_delay is None else CompletionBatcher(completer, fail_delay)

    @property
    def batchers(self) -> Sequence[CompletionBatcher]:
        return [each for each in (self._completions, self._failures) if each is not None]

    @property
    def pending_jobs(self) -> list[ClaimedJob]:
        return [held for batch in self.batchers for held in batch.pending_jobs]

    def get_batcher(self, outcome: Outcome) -> CompletionBatcher | None:
        """The batch for such an ending; without one it is written by itself."""
        if isinstance(outcome, Completed):
            return self._completions
        return self._failures if isinstance(outcome, Failed) else None
