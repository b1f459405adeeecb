"""Worker pools of one process share its concurrency: in turns, and no job waits for long."""

import asyncio
from collections import Counter, deque
from typing import Any

from graphile_worker._worker import shared_concurrency
from graphile_worker._worker.shared_concurrency import SharedConcurrency, WorkerSeat


class Source:
    """Jobs that are already claimed, by number."""

    def __init__(self, jobs: int = 0) -> None:
        self.jobs: deque[Any] = deque(range(1, jobs + 1))
        self.released: list[Any] = []

    def take_buffered(self) -> Any:
        return self.jobs.popleft() if self.jobs else None

    async def wait_for_job(self, worker_id: str) -> Any:
        return self.take_buffered()

    async def release(self, claimed: Any) -> None:
        self.released.append(claimed)

    def put_back(self, claimed: Any) -> None:
        self.jobs.appendleft(claimed)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def build_seats(*sources: Source, slots: int = 1) -> tuple[Any, ...]:
    limit = SharedConcurrency(slots, len(sources), clock=Clock())
    gates = [limit.open_gate() for _ in sources]
    seats = [WorkerSeat(gate, source) for gate, source in zip(gates, sources, strict=True)]
    return limit, gates, *seats


async def let_run() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_worker_keeps_its_slot_while_no_other_pool_needs_it():
    source = Source(jobs=3)
    limit, _, seat = build_seats(source)

    assert await seat.wait("w") == 1
    limit.clock.now = 60.0
    assert (seat.take(), seat.take(), seat.take()) == (2, 3, None)
    assert limit.free == 1


async def test_a_worker_passes_its_slot_on_after_its_turn():
    limit, _, first, second = build_seats(Source(jobs=9), Source(jobs=9))
    assert await first.wait("first") == 1
    waiting = asyncio.create_task(second.wait("second"))
    await let_run()

    assert first.take() == 2, "its turn has not ended"
    limit.clock.now = 1.0
    assert first.take() is None
    assert await waiting == 1
    assert limit.free == 0


async def test_a_worker_does_not_take_back_the_slot_that_it_passed_on():
    limit, _, first, second = build_seats(Source(jobs=9), Source(jobs=9))
    assert await first.wait("first") == 1
    waiting = asyncio.create_task(second.wait("second"))
    await let_run()

    async def end_turn() -> Any:
        # As in Worker.run, without a step of the event loop in between.
        limit.clock.now = 1.0
        return first.take() or await first.wait("first")

    again = asyncio.create_task(end_turn())
    await let_run()

    assert (waiting.done(), again.done()) == (True, False)
    second.leave()
    assert await again == 2


async def test_pools_get_slots_in_turns():
    sources = [Source(jobs=100) for _ in range(3)]
    limit, gates, *_ = build_seats(*sources, slots=2)
    ran: Counter[int] = Counter()

    async def work(pool: int) -> None:
        seat = WorkerSeat(gates[pool], sources[pool])
        while sum(ran.values()) < 60:
            claimed = seat.take() or await seat.wait("w")
            if claimed is None:
                break
            ran[pool] += 1
            await asyncio.sleep(0.001)
            limit.clock.now += 1.0
        seat.leave()

    # Each pool has as many workers as there are slots.
    await asyncio.gather(*(work(pool) for pool in (0, 0, 1, 1, 2, 2)))

    assert limit.free == 2
    assert all(count >= 15 for count in ran.values()), ran


async def test_no_more_jobs_run_than_there_are_slots():
    limit, _, *seats = build_seats(*(Source(jobs=1) for _ in range(5)), slots=3)
    waiting = [asyncio.create_task(seat.wait("w")) for seat in seats]
    await let_run()

    assert [task.done() for task in waiting].count(True) == 3
    for seat in seats[:2]:
        seat.leave()
    assert [await task for task in waiting] == [1] * 5
    assert limit.free == 0


async def test_a_job_that_waits_too_long_for_a_slot_is_released():
    source = Source(jobs=1)
    limit, gates, holder, seat = build_seats(Source(jobs=1), source, slots=1)
    # Both have passed the gate before one takes the only slot.
    claimed = source.take_buffered()
    await holder.wait("holder")

    assert await gates[1].acquire() is False
    assert limit.free == 0
    source.jobs.append(claimed)
    waiting = asyncio.create_task(seat.wait("w"))
    await let_run()
    assert (len(source.jobs), waiting.done()) == (1, False), "it claims nothing without a slot"
    holder.leave()
    assert await waiting == claimed


async def test_a_pool_that_stops_lets_its_workers_go():
    source = Source(jobs=1)
    limit, gates, holder, seat = build_seats(Source(jobs=1), source)
    await holder.wait("holder")
    idle = asyncio.create_task(seat.wait("idle"))
    acquiring = asyncio.create_task(gates[1].acquire())
    await let_run()

    gates[1].close()

    assert await acquiring is False
    # It gets a job that it cannot run, releases it, and then finds its source empty.
    assert (await idle, source.released) == (None, [1])
    assert limit.free == 0
    holder.leave()
    assert limit.free == 1


async def test_a_cancelled_worker_gives_back_its_job_and_its_slot():
    source = Source(jobs=1)
    limit, gates, holder, seat = build_seats(Source(jobs=1), source)
    claimed = source.take_buffered()
    await holder.wait("holder")
    acquiring = asyncio.create_task(gates[1].acquire())
    await let_run()
    holder.leave()
    # It has got the slot, but does not run any more.
    acquiring.cancel()
    await asyncio.wait({acquiring})

    assert limit.free == 1
    source.jobs.append(claimed)
    assert shared_concurrency.MAX_WAIT_SECONDS < 1
    assert await seat.wait("w") == claimed
