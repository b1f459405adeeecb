"""Payloads: how many bytes of them a pool holds at once.

Those of jobs that wait and of jobs that run count together. A fetch brings what fits beside them. A
payload that does not fit stays in the database until its job is about to start and there is room.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from graphile_worker.db.database import Answering
from graphile_worker.errors import JobNotHeld, PayloadTooLarge, PoolStopped
from graphile_worker.options import MAX_BYTES
from graphile_worker.sql.holding import HeldJob, get_payload

# Bytes that a payload may have in any case to come with a fetch, so that small jobs never wait for
# large ones.
SMALL = 1024

# Seconds between two looks at whether the pool stops, while a payload waits for room.
LOOK_EVERY = 0.2


class Payloads:
    """Knows how much is held, and reads what did not come with a fetch."""

    def __init__(
        self,
        database: Answering,
        *,
        max_bytes: int = MAX_BYTES,
        max_payload_bytes: int = MAX_BYTES,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.held_bytes = 0
        self._db = database
        self._max_bytes = max_bytes
        self._max_payload_bytes = max_payload_bytes
        self._is_stopping = is_stopping
        # Bytes that the fetch under way may bring.
        self._expected_bytes = 0
        # Bytes of each payload that is read by itself, by the id of its job.
        self._alone: dict[int, int] = {}
        self._freed = asyncio.Event()
        # Held by the one that waits for room; others wait for their turn.
        self._turn = asyncio.Lock()

    @contextmanager
    def fetching(self, limit: int) -> Iterator[int]:
        """How large a payload may be to come with the fetch of up to this many jobs in the block.

        Only one fetch at a time is under way.
        """
        room = (self._max_bytes - self.held_bytes) // limit
        share = min(max(room, SMALL), self._max_payload_bytes)
        self._expected_bytes = limit * share
        try:
            yield share
        finally:
            self._expected_bytes = 0
            self._freed.set()

    def hold(self, taken: Iterable[HeldJob]) -> None:
        """A fetch brought these jobs."""
        self.held_bytes += sum(held.size for held in taken if not held.unread_bytes)

    def let_go(self, held: HeldJob) -> None:
        """That job is settled, or was returned."""
        if held.unread_bytes:
            self._free(held.job.id)
        else:
            self.held_bytes -= held.size

    async def read(self, held: HeldJob) -> None:
        """Read the payload of a job, once there is room for it.

        Raises PayloadTooLarge, JobNotHeld if the job is not this pool's, PoolStopped if it must not
        start any more.
        """
        if held.size > self._max_payload_bytes:
            raise PayloadTooLarge(held.size, self._max_payload_bytes)
        async with self._turn:
            await self._wait_for_room(held.size)
            self._alone[held.job.id] = held.size
            self.held_bytes += held.size
        try:
            text = await self._db.run(get_payload(held.job.id, held.pool_id))
            if text is None:
                raise JobNotHeld(f"job {held.job.id} is not held by this pool any more")
        except BaseException:
            self._free(held.job.id)
            raise
        held.job.payload_text = text

    async def _wait_for_room(self, size: int) -> None:
        # Only for jobs that run: those that wait for a worker may have to wait for this one. So one
        # payload by itself is always read.
        while self._alone and self._used_bytes + size > self._max_bytes:
            if self._is_stopping():
                raise PoolStopped("no more jobs are started")
            self._freed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY):
                    await self._freed.wait()

    @property
    def _used_bytes(self) -> int:
        return self.held_bytes + self._expected_bytes

    def _free(self, job_id: int) -> None:
        self.held_bytes -= self._alone.pop(job_id, 0)
        self._freed.set()
