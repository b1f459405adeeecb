"""PayloadBudget: limits the bytes of payloads that a pool has in memory.

The payloads of waiting and running jobs count together. A fetch reads those that fit. A larger one
stays in the database until its job is about to start and there is room.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from graphile_worker._db.database import QueryRunner
from graphile_worker._sql.queries.claim import ClaimedJob, get_payload
from graphile_worker.errors import JobLockLostError, PayloadTooLarge, WorkerStoppedError
from graphile_worker.options import DEFAULT_MAX_BYTES

# Payloads up to this size always come with the fetch: small jobs never wait for large ones.
SMALL_PAYLOAD_BYTES = 1024

# Seconds between two checks for a shutdown, while a payload waits for room.
STOP_CHECK_INTERVAL_SECONDS = 0.2


class PayloadBudget:
    """Counts the bytes of payloads, and reads those that did not come with a fetch."""

    def __init__(
        self,
        database: QueryRunner,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        max_payload_bytes: int = DEFAULT_MAX_BYTES,
        is_stopping: Callable[[], bool] = lambda: False,
        stop_check_interval_seconds: float = STOP_CHECK_INTERVAL_SECONDS,
    ) -> None:
        self._stop_check_interval_seconds = stop_check_interval_seconds
        self.loaded_bytes = 0
        self._db = database
        self._max_bytes = max_bytes
        self._max_payload_bytes = max_payload_bytes
        self._is_stopping = is_stopping
        # Bytes that the fetch under way may bring.
        self._expected_bytes = 0
        # Bytes of each payload that is read by itself, by the id of its job.
        self._separate_bytes: dict[int, int] = {}
        self._freed = asyncio.Event()
        # Locked by the payload that waits for room; the others wait for the lock.
        self._read_lock = asyncio.Lock()

    @contextmanager
    def reserve_fetch(self, limit: int) -> Iterator[int]:
        """Reserve memory for one fetch of up to `limit` jobs in the block.

        Yields the size of the largest payload that the fetch may bring. Only one fetch may be under
        way at a time.
        """
        room = (self._max_bytes - self.loaded_bytes) // limit
        share = min(max(room, SMALL_PAYLOAD_BYTES), self._max_payload_bytes)
        self._expected_bytes = limit * share
        try:
            yield share
        finally:
            self._expected_bytes = 0
            self._freed.set()

    def add_claimed(self, claimed_jobs: Iterable[ClaimedJob]) -> None:
        """Count the payloads that came with a fetch."""
        self.loaded_bytes += sum(each.size for each in claimed_jobs if not each.unread_bytes)

    def forget(self, claimed: ClaimedJob) -> None:
        """Stop counting the payload of a job that ended or was released."""
        if claimed.unread_bytes:
            self._free(claimed.job.id)
        else:
            self.loaded_bytes -= claimed.size

    async def read(self, claimed: ClaimedJob) -> None:
        """Read the payload of a job, once there is room for it.

        Raises:
            PayloadTooLarge: It is larger than `max_payload_bytes`.
            JobLockLostError: This pool does not hold the job any more.
            WorkerStoppedError: The pool shuts down.
        """
        if claimed.size > self._max_payload_bytes:
            raise PayloadTooLarge(claimed.size, self._max_payload_bytes)
        async with self._read_lock:
            await self._wait_for_room(claimed.size)
            self._separate_bytes[claimed.job.id] = claimed.size
            self.loaded_bytes += claimed.size
        try:
            text = await self._db.run(get_payload(claimed.job.id, claimed.pool_id))
            if text is None:
                raise JobLockLostError(f"job {claimed.job.id} is no longer held by this pool")
        except BaseException:
            self._free(claimed.job.id)
            raise
        claimed.job.payload_text = text

    async def _wait_for_room(self, size: int) -> None:
        # Wait only while another large payload is in use. Otherwise this one would wait for jobs in
        # the buffer, which may wait for it.
        while self._separate_bytes and self._used_bytes + size > self._max_bytes:
            if self._is_stopping():
                raise WorkerStoppedError("no more jobs are started")
            self._freed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._stop_check_interval_seconds):
                    await self._freed.wait()

    @property
    def _used_bytes(self) -> int:
        return self.loaded_bytes + self._expected_bytes

    def _free(self, job_id: int) -> None:
        self.loaded_bytes -= self._separate_bytes.pop(job_id, 0)
        self._freed.set()
