"""The scheduler ring: the real pool, sources and batches, with all that may come in between.

For each seed the callbacks of the event loop run in another order, and time jumps. The database is
a table that is slow, goes away, or loses answers; tasks fail, hang, or do not want to be cancelled;
the pool is stopped in all ways at any moment. See tests/chaos/scheduled_pool.py for what must hold.

    GW_SCHEDULER_SEED=626 pytest tests/chaos/test_scheduler.py -k one_seed      # again, alone
"""

import asyncio
import gc
import os
import random
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._worker.claimer import Claimer
from graphile_worker._worker.completer import Completer
from graphile_worker._worker.completion_batcher import CompletionBatcher
from graphile_worker._worker.pool import WorkerPool
from graphile_worker._worker.sources.buffer import JobBuffer
from tests.chaos.scheduled_pool import play
from tests.chaos.scheduler import ScheduledLoop, Stuck
from tests.support.tiers import size

SEEDS = size(gate=150, nightly=1000)
MANY_SEEDS = 10_000

# Seeds that found faults: an outcome written twice during a fetch that claimed its job again, a
# fetch or a worker left behind at the end, a lock under a swept pool id, a stop that took too long,
# jobs left by a pool that runs once and was swept during a fetch.
FOUND_FAULTS = (
    *(1454983702, 1454983911, 1454984957, 1454985147, 1454986848, 1454986876, 1454986985),
    *(1454988472, 77001274, 77002172, 77008644, 980005203, 983253413),
)

# A fetch loses its answer, and nothing else shows that its jobs are locked.
LOST_FETCH = 284

# A mistake may show late; most show within a few seeds.
SEEDS_TO_NOTICE = (LOST_FETCH, *range(1000))


@pytest.fixture(autouse=True)
def _frozen() -> Iterator[None]:
    """What was there before need not be looked at after every seed."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def wrong_with(seeds: Iterable[int]) -> dict[int, list[str]]:
    """What went wrong, by seed."""
    played = ((seed, play(seed).problems) for seed in seeds)
    return {seed: problems for seed, problems in played if problems}


@pytest.mark.single_version
@pytest.mark.timeout(300)
def test_each_claim_ends_once_and_each_shutdown_is_in_time():
    assert wrong_with([*range(SEEDS), LOST_FETCH, *FOUND_FAULTS]) == {}


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_every_claim_ends_once_with_new_seeds(figure):
    first = random.SystemRandom().randrange(SEEDS, 2**31)
    figure(f"scheduler ring with seeds from {first}")

    assert wrong_with(range(first, first + MANY_SEEDS)) == {}


@pytest.mark.skipif("GW_SCHEDULER_SEED" not in os.environ, reason="no seed was named")
def test_one_seed():
    seed = int(os.environ["GW_SCHEDULER_SEED"])

    assert wrong_with([seed]) == {}


@pytest.mark.parametrize("seed", [1, 2, 3, 344])
def test_a_seed_determines_the_whole_run(seed):
    first = play(seed)

    assert first.history
    assert play(seed) == first


# Would it notice? Each of these is one part that is broken on purpose, and how that shows.


async def give_up_writing(
    self: Completer, outcome: Any, *, attempt: int = 0, is_uncertain: bool = False
) -> Any:
    """The first error is the last try."""
    try:
        held = await self._db.run(self._build_query(outcome, attempt > 0, None))
    except Exception:
        return outcome
    return outcome if outcome.claimed.job.id in held else None


async def drop_a_batch(self: CompletionBatcher) -> None:
    """Endings that could not be written together are not written at all."""
    self._writing, self._queued = self._queued, []
    self._has_queued.clear()
    outcomes = [ending.outcome for ending in self._writing]
    if len({outcome.claimed.pool_id for outcome in outcomes}) == 1:
        try:
            await self._completer._db.run(self._completer._build_batch_query(outcomes))
        except Exception:
            outcomes = []
    written, self._writing = self._writing, []
    for ending in written:
        ending.finish(ending.outcome)
    self._progressed.set()


def hand_out_twice(self: JobBuffer) -> Any:
    """A job that is given to a worker stays on the shelf as well, now and then."""
    held = self.jobs[0]
    if random.random() < 0.9:
        self.jobs.popleft()
    if len(self.jobs) < self.low_watermark:
        self._on_low()
    return held


def stay_open(self: JobBuffer, error: BaseException | None = None) -> None:
    """Workers that wait are dismissed, but jobs in the buffer are still given out."""
    self._error = self._error or error
    while self.waiters:
        self.waiters.popleft().deliver(None)


async def wait_for_ever(self: WorkerPool, timeout_seconds: float | None, *, unless: Any) -> None:
    """No time limit counts."""
    await self._wait_for_all_workers()


async def keep_writing(self: WorkerPool) -> list[Any]:
    """The batchers are never stopped."""
    for batch in self._batchers.batchers:
        await batch.close()
    return self._batchers.pending_jobs


def of_whoever_it_is_now(self: ClaimedJob) -> str:
    """Not the id that the job was taken with, but the one that its pool goes on with."""
    pool_id = self.job.locked_by or ""
    return pool_id if pool_id.endswith("-again") else f"{pool_id}-again"


def forget(self: object, *args: object) -> None:
    pass


BROKEN = {
    "writes are given up": (Completer, "complete", give_up_writing, "(returned as|stays locked)"),
    "batches are dropped": (
        CompletionBatcher,
        "write_once",
        drop_a_batch,
        "(returned as|stays locked)",
    ),
    "endings are not fenced": (
        ClaimedJob,
        "pool_id",
        property(of_whoever_it_is_now),
        "(finished|failed|returned) as|stays locked|runs twice|announced as lost",
    ),
    "lost fetches are forgotten": (Claimer, "_mark_unconfirmed", forget, "stays locked"),
    "a shelf gives a job twice": (JobBuffer, "_pop", hand_out_twice, "runs twice|runs after"),
    "a shelf stays open": (JobBuffer, "close", stay_open, "begun after|took|no end"),
    "time limits do not count": (WorkerPool, "_wait_for_workers", wait_for_ever, "took|waits"),
    "batches are kept open": (
        WorkerPool,
        "_flush",
        keep_writing,
        "is left: .*CompletionBatcher.run",
    ),
}


# One in each part: completions, the batches of them, and jobs that are not started yet.
NOTICED_FIRST = ["writes are given up", "batches are kept open", "a shelf stays open"]


@pytest.mark.single_version
@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", size(gate=NOTICED_FIRST, nightly=list(BROKEN)))
def test_a_part_that_is_broken_is_noticed(what, monkeypatch):
    part, name, broken, expected = BROKEN[what]
    monkeypatch.setattr(part, name, broken)

    found = ((seed, each) for seed in SEEDS_TO_NOTICE for each in play(seed).problems)
    noticed = next((each for each in found if re.search(expected, each[1])), None)

    assert noticed is not None, f"not in {len(SEEDS_TO_NOTICE)} seeds"


# The loop itself


def loop_of(seed: int) -> ScheduledLoop:
    return ScheduledLoop(random.Random(seed))


def order_of(seed: int) -> list[int]:
    """In which order ten callbacks run that are ready at once."""
    loop, order = loop_of(seed), []

    async def all_of_them() -> None:
        await asyncio.gather(*(note(n) for n in range(10)))

    async def note(n: int) -> None:
        order.append(n)

    loop.run_until_complete(all_of_them())
    loop.close()
    return order


def test_a_seed_determines_the_order():
    orders = [order_of(seed) for seed in range(5)]

    assert orders == [order_of(seed) for seed in range(5)]
    assert all(sorted(order) == list(range(10)) for order in orders)
    assert len({tuple(order) for order in orders}) == 5


def test_time_jumps_to_the_next_timer():
    loop = loop_of(1)
    began = loop.time()

    loop.run_until_complete(asyncio.wait_for(asyncio.sleep(3600), 7200))

    assert loop.time() - began == pytest.approx(3600)
    loop.close()


def test_a_task_that_waits_for_nothing_is_found():
    loop = loop_of(1)

    with pytest.raises(Stuck, match="all tasks wait"):
        loop.run_until_complete(asyncio.Event().wait())
    loop.close()
