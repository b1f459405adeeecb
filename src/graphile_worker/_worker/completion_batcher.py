"""CompletionBatcher: writes outcomes together, while their workers run the next jobs."""

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

# Outcomes that may wait to be written; beyond that workers wait too, and nothing is fetched.
MAX_PENDING = 1000


class PendingCompletion(NamedTuple):
    """An outcome, and a function to call with what was written and whether the lock was kept."""

    outcome: Outcome
    on_written: Callable[[Outcome, bool], None]

    def finish(self, written: Outcome | None) -> None:
        self.on_written(written or self.outcome, written is not None)


class CompletionBatcher:
    """Collects outcomes of one kind for `delay` and writes them with one statement.

    A delay of 0 collects the outcomes that come while the batch before is written. An outcome that
    frees a named queue does not wait. One that the database rejects is written separately, so that
    it does not delay the others.
    """

    def __init__(
        self, completer: Completer, delay: timedelta, *, max_pending: int = MAX_PENDING
    ) -> None:
        self._completer = completer
        self._max_pending = max_pending
        self._delay_seconds = delay.total_seconds()
        self._queued: list[PendingCompletion] = []
        self._writing: list[PendingCompletion] = []
        self._separate_writes: dict[asyncio.Task[None], PendingCompletion] = {}
        self._first_queued_at = 0.0
        # Set when there are outcomes to write, when they must not wait, and after each write.
        self._has_queued = asyncio.Event()
        self._urgent = asyncio.Event()
        self._progressed = asyncio.Event()
        self._is_closed = False

    @property
    def pending_jobs(self) -> list[ClaimedJob]:
        """Return the jobs whose outcome is not written yet. Other threads read this too."""
        unwritten = (*list(self._separate_writes.values()), *self._writing, *self._queued)
        return [each.outcome.claimed for each in unwritten]

    @property
    def has_room(self) -> bool:
        """Return whether `put` does not wait for the database."""
        pending = len(self._queued) + len(self._separate_writes)
        return pending < self._max_pending and not self._is_closed

    async def put(self, completion: PendingCompletion) -> None:
        """Add an outcome, once there is room for it. A closed batcher writes it at once."""
        if self._is_closed:
            completion.finish(await self._completer.complete(completion.outcome))
            return
        while len(self._queued) + len(self._separate_writes) >= self._max_pending:
            await self._wait_for_progress()
        if not self._queued:
            self._first_queued_at = time.monotonic()
            self._has_queued.set()
        self._queued.append(completion)
        if (
            completion.outcome.claimed.queue_id is not None
            or len(self._queued) >= self._max_pending
        ):
            self._urgent.set()

    async def run(self) -> None:
        while True:
            await self._has_queued.wait()
            failpoint("batch_waiting")
            await self._wait_for_more()
            await self.write_once()

    async def write_once(self) -> None:
        """Write all outcomes that were collected."""
        self._writing, self._queued = self._queued, []
        self._has_queued.clear()
        if not self._is_closed:
            self._urgent.clear()
        self._progressed.set()
        for completions in _group_by_pool_id(self._writing):
            await self._write_batch(completions)
        self._writing = []
        self._progressed.set()

    async def _write_batch(self, completions: list[PendingCompletion]) -> None:
        written = await self._completer.complete_all([each.outcome for each in completions])
        if written is None:
            await self._write_one_by_one(completions)
            return
        # Not with `finish`, because that call costs time for every job.
        for (outcome, on_written), stored in zip(completions, written, strict=True):
            on_written(stored or outcome, stored is not None)

    async def _write_one_by_one(self, completions: list[PendingCompletion]) -> None:
        for completion in completions:
            try:
                written = await self._completer.complete_unless_rejected(completion.outcome)
            except Exception:
                task = asyncio.create_task(self._write_separately(completion))
                self._separate_writes[task] = completion
                task.add_done_callback(self._on_separate_write_done)
            else:
                completion.finish(written)
            self._writing = [each for each in self._writing if each is not completion]

    async def _write_separately(self, completion: PendingCompletion) -> None:
        completion.finish(await self._completer.complete(completion.outcome, attempt=1))

    def _on_separate_write_done(self, task: asyncio.Task[None]) -> None:
        # The outcome of a cancelled write stays pending.
        if not task.cancelled():
            del self._separate_writes[task]
            self._progressed.set()

    async def flush(self) -> None:
        """Wait until all outcomes are written."""
        while self._queued or self._writing or self._separate_writes:
            await self._wait_for_progress()

    async def close(self) -> None:
        """Write the remaining outcomes without delay."""
        self._is_closed = True
        self._urgent.set()
        await self.flush()

    def abandon(self) -> None:
        """Stop writing rejected outcomes, whose jobs stay locked until recovery."""
        for task in list(self._separate_writes):
            task.cancel()

    async def _wait_for_more(self) -> None:
        seconds_left = self._first_queued_at + self._delay_seconds - time.monotonic()
        if seconds_left > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds_left):
                    await self._urgent.wait()

    async def _wait_for_progress(self) -> None:
        self._progressed.clear()
        await self._progressed.wait()


def _group_by_pool_id(completions: list[PendingCompletion]) -> list[list[PendingCompletion]]:
    """Group outcomes by the pool id that locks their job: nearly always one."""
    ids = {each.outcome.claimed.job.locked_by for each in completions}
    if len(ids) == 1:
        return [completions]
    return [
        [each for each in completions if each.outcome.claimed.job.locked_by == id] for id in ids
    ]


class CompletionBatchers:
    """One batcher for completions and one for failures, each if it has a delay."""

    def __init__(
        self,
        completer: Completer,
        *,
        complete_delay: timedelta | None = None,
        fail_delay: timedelta | None = None,
        max_pending: int = MAX_PENDING,
    ) -> None:
        self._completions, self._failures = (
            None if delay is None else CompletionBatcher(completer, delay, max_pending=max_pending)
            for delay in (complete_delay, fail_delay)
        )

    @property
    def batchers(self) -> Sequence[CompletionBatcher]:
        return [each for each in (self._completions, self._failures) if each is not None]

    @property
    def pending_jobs(self) -> list[ClaimedJob]:
        return [claimed for batcher in self.batchers for claimed in batcher.pending_jobs]

    def get_batcher(self, outcome: Outcome) -> CompletionBatcher | None:
        """Return the batcher for an outcome, or None if the outcome is written separately."""
        if isinstance(outcome, Completed):
            return self._completions
        return self._failures if isinstance(outcome, Failed) else None
