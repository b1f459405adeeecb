"""CompletionBatcher: outcomes are written together, and workers wait if there are too many."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._worker.completion_batcher import (
    CompletionBatcher,
    CompletionBatchers,
    PendingCompletion,
)
from graphile_worker._worker.outcomes import Completed, Failed, Interrupted, Outcome, Snoozed
from tests.support.jobs import make_job
from tests.support.recorder import wait_until

NEVER = timedelta(days=1)
AT_ONCE = timedelta(0)


class FakeCompleter:
    """Records batches, and answers while an event is set."""

    def __init__(self) -> None:
        # Jobs whose outcome is rejected while this event is not set.
        self.rejected: set[int] = set()
        self.accepting = asyncio.Event()
        self.written: list[list[int]] = []
        self.lost: set[int] = set()
        self.write_started = asyncio.Event()
        self.answering = asyncio.Event()
        self.answering.set()

    async def complete(self, outcome: Outcome, *, attempt: int = 0) -> Outcome | None:
        if outcome.claimed.job.id in self.rejected:
            await self.accepting.wait()
            self.rejected.clear()
        [written] = await self.complete_all([outcome]) or []
        return written

    async def complete_unless_rejected(self, outcome: Outcome) -> Outcome | None:
        if outcome.claimed.job.id in self.rejected:
            raise ValueError("rejected")
        return await self.complete(outcome)

    async def complete_all(self, outcomes: list[Outcome]) -> list[Outcome | None] | None:
        ids = [outcome.claimed.job.id for outcome in outcomes]
        self.write_started.set()
        await self.answering.wait()
        if self.rejected.intersection(ids):
            return None
        self.written.append(ids)
        return [None if each.claimed.job.id in self.lost else each for each in outcomes]


class Scene:
    """A running batcher, and the results that it reported."""

    def __init__(self, delay: timedelta, **limits: int) -> None:
        self.completer = FakeCompleter()
        completer: Any = self.completer
        self.batch = CompletionBatcher(completer, delay, **limits)
        self.written_jobs: list[tuple[int, bool]] = []
        self.running = asyncio.create_task(self.batch.run())

    async def put(self, *job_ids: int, queue: int | None = None) -> None:
        for job_id in job_ids:
            await self.batch.put(
                PendingCompletion(
                    Completed(make_claimed(job_id, queue)), self._make_callback(job_id)
                )
            )

    def _make_callback(self, job_id: int) -> Any:
        return lambda outcome, was_owned: self.written_jobs.append((job_id, was_owned))


def make_claimed(job_id: int = 1, queue: int | None = None) -> ClaimedJob:
    return ClaimedJob(make_job(id=job_id, locked_by="p1"), queue)


@pytest.fixture
async def scene():
    scenes: list[Scene] = []

    def make(delay: timedelta = AT_ONCE, **limits: int) -> Scene:
        scenes.append(Scene(delay, **limits))
        return scenes[-1]

    yield make
    for each in scenes:
        each.running.cancel()
        await asyncio.wait([each.running])


@pytest.mark.feature("F292")
async def test_what_ends_while_a_batch_is_written_is_the_next_batch(scene):
    it = scene()
    it.completer.answering.clear()
    await it.put(1)
    await it.completer.write_started.wait()

    await it.put(2, 3, 4)
    it.completer.answering.set()
    await it.batch.flush()

    assert it.completer.written == [[1], [2, 3, 4]]


@pytest.mark.feature("F189")
async def test_each_completion_is_finished_with_whether_its_lock_was_kept(scene):
    it = scene()
    it.completer.lost = {2}
    it.completer.answering.clear()

    await it.put(1, 2)
    await it.completer.write_started.wait()
    assert it.written_jobs == []

    it.completer.answering.set()
    await it.batch.flush()
    assert sorted(it.written_jobs) == [(1, True), (2, False)]


@pytest.mark.feature("F292")
async def test_with_a_delay_endings_gather(scene):
    it = scene(timedelta(milliseconds=30))

    await it.put(1)
    await asyncio.sleep(0)
    await it.put(2)
    await it.batch.flush()

    assert it.completer.written == [[1, 2]]


async def test_an_ending_that_frees_a_named_queue_does_not_wait_for_the_delay(scene):
    it = scene(NEVER)
    await it.put(1, 2)
    await asyncio.sleep(0.01)
    assert it.completer.written == []

    await it.put(3, queue=5)
    await it.batch.flush()

    assert it.completer.written == [[1, 2, 3]]


@pytest.mark.feature("F294")
async def test_a_worker_waits_while_too_many_completions_are_pending(scene):
    it = scene(max_pending=2)
    it.completer.answering.clear()
    await it.put(1)
    await it.completer.write_started.wait()
    await it.put(2, 3)

    one_more = asyncio.create_task(it.put(4))
    await asyncio.sleep(0.01)
    assert not one_more.done()

    it.completer.answering.set()
    await one_more
    await it.batch.flush()
    assert it.completer.written == [[1], [2, 3], [4]]


async def test_as_many_as_there_is_room_for_do_not_wait_for_the_delay(scene):
    it = scene(NEVER, max_pending=2)

    await it.put(1, 2)
    await it.batch.flush()

    assert it.completer.written == [[1, 2]]


async def test_jobs_are_pending_until_their_end_is_written(scene):
    it = scene()
    it.completer.answering.clear()
    await it.put(1)
    await it.completer.write_started.wait()
    await it.put(2)

    assert [each.job.id for each in it.batch.pending_jobs] == [1, 2]

    it.completer.answering.set()
    await it.batch.flush()
    assert it.batch.pending_jobs == []


@pytest.mark.feature("F295")
async def test_the_end_does_not_wait_for_the_delay(scene):
    it = scene(NEVER)
    await it.put(1, 2)

    await it.batch.close()

    assert it.completer.written == [[1, 2]]


@pytest.mark.feature("F296")
async def test_an_ending_that_comes_after_the_end_is_written_by_itself(scene):
    it = scene(NEVER)
    await it.batch.close()
    it.running.cancel()

    await it.put(1)

    assert it.completer.written == [[1]]
    assert it.written_jobs == [(1, True)]


@pytest.mark.feature("F292", "F293")
async def test_completions_and_failures_have_a_batch_each_if_it_is_wanted():
    completer: Any = FakeCompleter()
    completed, failed = Completed(make_claimed()), Failed(make_claimed(), ValueError())

    none = CompletionBatchers(completer)
    both = CompletionBatchers(completer, complete_delay=AT_ONCE, fail_delay=AT_ONCE)

    assert none.get_batcher(completed) is none.get_batcher(failed) is None
    assert both.get_batcher(completed) is not both.get_batcher(failed)
    assert (
        both.get_batcher(Interrupted(make_claimed()))
        is both.get_batcher(Snoozed(make_claimed(), AT_ONCE))
        is None
    )
    assert [len(each.batchers) for each in (none, both)] == [0, 2]


async def test_a_rejected_ending_does_not_delay_the_others(scene):
    it = scene(NEVER)
    it.completer.rejected = {2}
    await it.put(1, 2, 3, queue=7)

    await wait_until(lambda: len(it.written_jobs) == 2)
    await it.put(4, queue=7)
    await wait_until(lambda: len(it.written_jobs) == 3)

    assert it.written_jobs == [(1, True), (3, True), (4, True)]
    assert [each.job.id for each in it.batch.pending_jobs] == [2]

    it.completer.accepting.set()
    await it.batch.flush()
    assert it.written_jobs[-1] == (2, True)
    assert it.batch.pending_jobs == []


async def test_an_abandoned_ending_counts_as_unwritten(scene):
    it = scene(NEVER)
    it.completer.rejected = {1}
    await it.put(1, queue=7)
    await wait_until(lambda: it.batch.pending_jobs and not it.batch._writing)

    it.batch.abandon()
    await asyncio.sleep(0)

    assert [each.job.id for each in it.batch.pending_jobs] == [1]


async def test_endings_of_several_pool_ids_are_not_mixed(scene):
    it = scene(NEVER)
    for job_id, pool_id in ((1, "p1"), (2, "old"), (3, "p1")):
        job = ClaimedJob(make_job(id=job_id, locked_by=pool_id), None)
        await it.batch.put(PendingCompletion(Completed(job), it._make_callback(job_id)))

    await it.batch.write_once()

    assert sorted(it.completer.written) == [[1, 3], [2]]
