"""SharedConcurrency: the worker pools of one process, one for each shard, share its concurrency."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from graphile_worker._sql.queries.claim import ClaimedJob

# A job that waits longer for a slot is released, because another process may run it now.
MAX_WAIT_SECONDS = 0.11

# While workers of other shards wait, all of them get a slot within this time if jobs are short.
TURN_SECONDS = 0.05


class SharedConcurrency:
    """One slot for each job that runs. Workers that hold a job get slots in the order of arrival.

    Args:
        slots: Number of jobs that run at the same time.
        pools: Number of pools that share the slots.
    """

    def __init__(self, slots: int, pools: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.slots = slots
        self.free = slots
        # How long a worker keeps its slot for further jobs while other workers wait for one.
        self.turn_seconds = TURN_SECONDS / pools
        self.clock = clock
        self.queue: deque[asyncio.Future[bool]] = deque()
        # Those that have not got a slot for longest come first.
        self.gates: list[SlotGate] = []

    def open_gate(self) -> "SlotGate":
        """Return the entrance of one pool."""
        gate = SlotGate(self)
        self.gates.append(gate)
        return gate

    def remove_gate(self, gate: "SlotGate") -> None:
        if gate in self.gates:
            self.gates.remove(gate)

    def record_turn(self, gate: "SlotGate") -> None:
        """Put a pool that got a slot behind the others."""
        if self.gates[-1:] != [gate]:
            self.remove_gate(gate)
            self.gates.append(gate)

    def release(self) -> None:
        """Pass a slot on to the worker that has waited longest, or else to the pools in turns."""
        while self.queue:
            waiting = self.queue.popleft()
            if not waiting.done():
                waiting.set_result(True)
                return
        self.free += 1
        for gate in self.gates:
            gate.wake_one()


class SlotGate:
    """The entrance of one pool: at most as many of its workers fetch as there are free slots."""

    def __init__(self, limit: SharedConcurrency) -> None:
        self.limit = limit
        self.is_closed = False
        self._idle: deque[asyncio.Future[None]] = deque()
        self._acquiring: set[asyncio.Future[bool]] = set()

    @property
    def is_contended(self) -> bool:
        """Return whether workers of other pools need a slot."""
        limit = self.limit
        return bool(limit.queue) or any(gate._idle for gate in limit.gates if gate is not self)

    def close(self) -> None:
        """Let all waiting workers go, because their pool stops."""
        self.is_closed = True
        self.limit.remove_gate(self)
        for acquiring in self._acquiring:
            if not acquiring.done():
                acquiring.set_result(False)
        while self._idle:
            self.wake_one()

    def wake_one(self) -> None:
        while self._idle:
            waiting = self._idle.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return

    async def wait_until_free(self) -> None:
        """Wait for a free slot, without taking it: the worker has no job yet."""
        while not self.limit.free and not self.is_closed:
            waiting = asyncio.get_running_loop().create_future()
            self._idle.append(waiting)
            await waiting

    async def acquire(self) -> bool:
        """Take a slot for a job. Return False if there is none in time, or if the pool stops."""
        limit = self.limit
        if self.is_closed:
            return False
        if limit.free:
            limit.free -= 1
            limit.record_turn(self)
            return True
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[bool] = loop.create_future()
        limit.queue.append(waiting)
        self._acquiring.add(waiting)
        timer = loop.call_later(MAX_WAIT_SECONDS, _give_up, waiting)
        try:
            return await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled() and waiting.result():
                limit.release()
            raise
        finally:
            timer.cancel()
            self._acquiring.discard(waiting)


class DeliversJobs(Protocol):
    """Where a worker gets its jobs."""

    def take_buffered(self) -> ClaimedJob | None: ...
    async def wait_for_job(self, worker_id: str) -> ClaimedJob | None: ...
    def put_back(self, claimed: ClaimedJob) -> None: ...
    async def release(self, claimed: ClaimedJob) -> None: ...


class WorkerSeat:
    """Takes the jobs of one worker from its source, each with a slot."""

    def __init__(self, gate: SlotGate, source: DeliversJobs) -> None:
        self._gate = gate
        self._limit = gate.limit
        self._source = source
        self._has_slot = False
        self._turn_ends_at = 0.0

    def take(self) -> ClaimedJob | None:
        """Return the next job if it can start at once with the slot of the last one."""
        if not self._has_slot:
            return None
        if self._limit.clock() < self._turn_ends_at or not self._gate.is_contended:
            claimed = self._source.take_buffered()
            if claimed is not None:
                return claimed
        self.leave()
        return None

    async def wait(self, worker_id: str) -> ClaimedJob | None:
        """Wait for a job and a slot. Return None if the source is closed."""
        # If this worker gave up its slot just now, the workers that this woke come first.
        await asyncio.sleep(0)
        while True:
            await self._gate.wait_until_free()
            claimed = await self._source.wait_for_job(worker_id)
            if claimed is None:
                return None
            try:
                self._has_slot = await self._gate.acquire()
            except asyncio.CancelledError:
                self._source.put_back(claimed)
                raise
            if self._has_slot:
                self._turn_ends_at = self._limit.clock() + self._limit.turn_seconds
                return claimed
            await self._source.release(claimed)

    def leave(self) -> None:
        """Give up the slot."""
        if self._has_slot:
            self._has_slot = False
            self._limit.release()


def _give_up(waiting: asyncio.Future[bool]) -> None:
    if not waiting.done():
        waiting.set_result(False)
