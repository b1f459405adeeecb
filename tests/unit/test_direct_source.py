"""DirectSource: which worker gets a job, which one waits, and when the source fetches."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._worker.sources.base import FetchOptions
from graphile_worker._worker.sources.direct import DirectSource
from graphile_worker.events import GetJobEmpty, GetJobErrored, GetJobRecovered, GetJobStarted
from graphile_worker.hooks import Hooks
from tests.support.clocks import ManualClock
from tests.support.job_sources import (
    FakeClaimer,
    SourceScene,
    get_results,
    poll_again_soon,
    run_until_idle,
)
from tests.support.jobs import make_job

NEVER = timedelta(hours=1)
AT_ONCE = timedelta(milliseconds=1)
# Only a bug takes that long.
PATIENCE = 20


class Scene(SourceScene):
    """A running source that fetches a job when a worker needs one."""

    def __init__(
        self,
        *,
        poll: timedelta = NEVER,
        once: bool = False,
        time: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        options = self.build_options(poll_interval=poll, once=once, clock=time)
        self.source = DirectSource(self.claimer, self.completer, self.hooks, options)
        self.run()

    def ready(self, *job_ids: int, queue: int | None = None, **more: Any) -> None:
        super().ready(*job_ids, queue=queue, locked_by=None, **more)


@asynccontextmanager
async def scene(**options: Any) -> AsyncIterator[Scene]:
    scene = Scene(**options)
    yield scene
    await scene.stop()


# Waiting workers


async def test_the_first_waiting_worker_gets_the_first_job():
    async with scene() as it:
        it.ready(1, 2, 3)

        waiting_tasks = await it.wait_for_jobs("a", "b")

        assert get_results(waiting_tasks) == [1, 2]
        assert list(it.claimer.claimed_jobs) == [1, 2]


async def test_one_fetch_serves_all_who_ask_and_brings_no_more_than_they_are():
    async with scene() as it:
        it.ready(1, 2, 3, 4)

        await it.wait_for_jobs("a", "b", "c")

        assert it.claimer.requested_limits == [3]
        assert len(it.claimer.ready) == 1


@pytest.mark.feature("F102")
async def test_one_fetch_is_under_way_at_a_time():
    async with scene() as it:
        it.claimer.answering.clear()
        it.ready(1, 2, 3)

        waiting_tasks = (
            await it.wait_for_jobs("a") + await it.wait_for_jobs("b") + await it.wait_for_jobs("c")
        )
        assert it.claimer.requested_limits == [1]

        await it.finish_fetch()
        assert it.claimer.requested_limits == [1, 2]
        assert get_results(waiting_tasks) == [1, 2, 3]


async def test_workers_without_a_job_wait_for_the_next_fetch_if_others_got_one():
    async with scene() as it:
        it.ready(1)

        waiting_tasks = await it.wait_for_jobs("a", "b")

        assert get_results(waiting_tasks) == [1, "waits"]
        assert it.claimer.requested_limits == [2, 1]


async def test_they_become_idle_if_the_fetch_claimed_all_ready_jobs():
    async with scene() as it:
        it.claimer.knows_all_ready = True
        it.ready(1)
        it.claimer.answering.clear()
        waiting_tasks = await it.wait_for_jobs("a", "b", "c")

        # One job is announced during that fetch.
        it.ready(2)
        await it.wake(1)
        await it.finish_fetch()

        assert get_results(waiting_tasks) == [1, 2, "waits"]
        assert it.claimer.requested_limits == [3, 1]


async def test_a_worker_that_gets_nothing_becomes_idle():
    async with scene() as it:
        waiting_tasks = await it.wait_for_jobs("a", "b")

        assert get_results(waiting_tasks) == ["waits", "waits"]
        assert it.claimer.requested_limits == [2]


@pytest.mark.feature("F174", "F176")
async def test_each_waiting_worker_and_each_empty_fetch_is_an_event():
    async with scene() as it:
        it.ready(1)

        await it.wait_for_jobs("a", "b")

        assert [(type(event), event.worker_id) for event in it.events] == [
            (GetJobStarted, "a"),
            (GetJobStarted, "b"),
            (GetJobStarted, "b"),
            (GetJobEmpty, "b"),
        ]


@pytest.mark.parametrize("event", [GetJobStarted, GetJobEmpty, GetJobErrored])
async def test_a_listener_may_stop_the_source(event):
    async with scene() as it:
        if event is GetJobErrored:
            it.claimer.errors = [ConnectionError()]
        it.hooks.on(event)(lambda _: it.source.stop())

        waiting_tasks = await it.wait_for_jobs("a", "b")
        await asyncio.wait_for(it.running, PATIENCE)

        assert get_results(waiting_tasks) == [None, None]


# Announced jobs


@pytest.mark.feature("F102")
@pytest.mark.parametrize(("announced", "sent"), [(1, 1), (2, 2), (3, 3), (100, 3)])
async def test_as_many_idle_workers_ask_as_jobs_were_announced(announced, sent):
    async with scene() as it:
        await it.wait_for_jobs("a", "b", "c")

        await it.wake(announced)

        assert it.claimer.requested_limits == [3, sent]


async def test_the_worker_that_is_idle_longest_is_woken_first():
    async with scene() as it:
        waiting_tasks = await it.wait_for_jobs("a", "b")
        it.ready(1)

        await it.wake(1)

        assert get_results(waiting_tasks) == [1, "waits"]


async def test_a_notification_of_no_jobs_wakes_no_worker():
    async with scene() as it:
        await it.wait_for_jobs("a")

        await it.wake(0)

        assert it.claimer.requested_limits == [1]


@pytest.mark.feature("F102")
async def test_announcements_are_merged_while_all_are_busy():
    async with scene() as it:
        for _ in range(5):
            await it.wake(1)

        await it.wait_for_jobs("a", "b")

        assert it.claimer.requested_limits == [2]


@pytest.mark.feature("F102")
async def test_a_job_that_is_announced_during_a_fetch_is_fetched_by_the_next():
    async with scene() as it:
        it.claimer.answering.clear()
        waiting_tasks = await it.wait_for_jobs("a", "b", "c")

        it.ready(1)
        await it.wake(1)
        await it.finish_fetch()

        assert it.claimer.requested_limits == [3, 1]
        assert get_results(waiting_tasks) == [1, "waits", "waits"]


async def test_who_knows_how_many_is_found_out_by_asking_for_twice_as_many_each_time():
    async with scene() as it:
        waiting_tasks = await it.wait_for_jobs(*"abcdefgh")
        it.ready(*range(8))

        await it.wake(None)

        assert it.claimer.requested_limits == [8, 1, 2, 4, 1]
        assert sorted(map(str, get_results(waiting_tasks))) == [str(each) for each in range(8)]


async def test_doubling_ends_with_the_first_empty_fetch():
    async with scene() as it:
        await it.wait_for_jobs(*"abcdefgh")
        it.ready(1)

        await it.wake(None)
        assert it.claimer.requested_limits == [8, 1, 2]

        it.ready(2)
        await it.wake(1)
        assert it.claimer.requested_limits == [8, 1, 2, 1]


async def test_who_knows_how_many_during_a_fetch_is_found_out_after_it():
    async with scene() as it:
        it.claimer.answering.clear()
        waiting_tasks = await it.wait_for_jobs("a", "b", "c")

        it.ready(1, 2, 3)
        await it.wake(None)
        await it.finish_fetch()

        assert get_results(waiting_tasks) == [1, 2, 3]


# Polling


async def test_a_job_without_a_notification_is_found_by_polling():
    async with scene(poll=AT_ONCE) as it:
        waiting_tasks = await it.wait_for_jobs("a")
        it.ready(1)

        claimed = await waiting_tasks[0]

        assert claimed is not None
        assert claimed.job.id == 1


async def test_a_poll_that_is_due_is_not_put_off_by_workers_that_wait():
    clock = ManualClock()
    async with scene(time=clock.monotonic) as it:
        waiting_tasks = await it.wait_for_jobs("a", "b", "c")

        clock.now += NEVER.total_seconds()
        it.ready(1, 2, 3)
        waiting_tasks += await it.wait_for_jobs("d")

        # One fetch for the worker, one for the poll. Both found jobs and woke the other workers.
        assert it.claimer.requested_limits[:3] == [3, 2, 2]
        assert get_results(waiting_tasks) == [2, 3, "waits", 1]


# Named queues


async def test_a_worker_that_gets_the_next_job_of_its_queue_wakes_no_other():
    async with scene() as it:
        first, idle = await _one_runs_and_one_is_idle(it)
        it.ready(2, queue=5)

        it.source.forget(first)
        waiting_tasks = await it.wait_for_jobs("a")

        assert get_results(waiting_tasks) == [2]
        assert get_results([idle]) == ["waits"]
        assert it.claimer.requested_limits == [2, 1, 1]


async def test_a_worker_that_frees_a_queue_and_gets_another_job_wakes_one():
    async with scene() as it:
        first, idle = await _one_runs_and_one_is_idle(it)
        it.ready(3)
        it.ready(2, queue=5)

        it.source.forget(first)
        waiting_tasks = await it.wait_for_jobs("a")

        assert get_results(waiting_tasks) == [3]
        assert get_results([idle]) == [2]


async def test_a_freed_queue_without_another_job_wakes_no_worker():
    async with scene() as it:
        first, idle = await _one_runs_and_one_is_idle(it)

        it.source.forget(first)
        waiting_tasks = await it.wait_for_jobs("a")

        assert get_results([*waiting_tasks, idle]) == ["waits", "waits"]
        assert it.claimer.requested_limits == [2, 1, 1]


async def test_a_queue_that_is_freed_during_a_fetch_is_fetched_after_it():
    async with scene() as it:
        first, idle = await _one_runs_and_one_is_idle(it)
        it.claimer.answering.clear()
        await it.wake(1)

        # The fetch under way sees neither the free queue nor the job.
        it.source.forget(first)
        it.ready(3)
        it.ready(2, queue=5)
        waiting_tasks = await it.wait_for_jobs("a")
        await it.finish_fetch()

        assert get_results([*waiting_tasks, idle]) == [3, 2]


async def test_a_queue_that_is_freed_after_its_worker_waits_wakes_one():
    async with scene() as it:
        # With batched completions the worker does not wait for the write.
        first, idle = await _one_runs_and_one_is_idle(it)
        waiting_tasks = await it.wait_for_jobs("a")
        it.ready(2, queue=5)

        it.source.forget(first)
        await run_until_idle()

        assert get_results([idle, *waiting_tasks]) == [2, "waits"]


# Fetches without a full scan


async def test_workers_without_a_job_of_a_partial_scan_wait_for_the_next_scan():
    async with scene() as it:
        it.ready(1)
        it.claimer.next_fetch_at = math.inf

        assert get_results(await it.wait_for_jobs("a", "b")) == [1, "waits"]

        assert it.claimer.requested_limits == [2]
        assert not any(isinstance(event, GetJobEmpty) for event in it.events)


async def test_they_ask_again_when_it_is_time_to(monkeypatch):
    async with scene() as it:
        poll_again_soon(it.claimer, monkeypatch)
        waiting_tasks = await it.wait_for_jobs("a")
        it.ready(1)

        await asyncio.wait(waiting_tasks, timeout=PATIENCE)

        assert get_results(waiting_tasks) == [1]


async def test_once_does_not_end_before_a_full_scan():
    async with scene(once=True) as it:
        it.claimer.next_fetch_at = math.inf
        waiting_tasks = await it.wait_for_jobs("a")
        assert get_results(waiting_tasks) == ["waits"]

        it.claimer.next_fetch_at = None
        await it.wake()

        assert get_results(waiting_tasks) == [None]


async def test_the_next_job_of_a_queue_that_was_ours_does_not_send_for_more():
    async with scene() as it:
        _, idle = await _one_runs_and_one_is_idle(it)
        waiting_tasks = await it.wait_for_jobs("c")
        it.ready(2, queue=5)

        await it.wake()

        assert sorted(map(str, get_results([idle, *waiting_tasks]))) == ["2", "waits"]
        assert it.claimer.requested_limits == [2, 1, 1, 1]


async def _one_runs_and_one_is_idle(
    it: Scene,
) -> tuple[ClaimedJob, asyncio.Task[ClaimedJob | None]]:
    """One worker runs a job of a named queue, another one is idle."""
    it.ready(1, queue=5)
    busy, idle = await it.wait_for_jobs("a", "b")
    claimed = busy.result()
    assert claimed is not None
    return claimed, idle


# Once


async def test_once_sends_all_away_when_nothing_is_ready_and_nothing_runs():
    async with scene(once=True) as it:
        waiting_tasks = await it.wait_for_jobs("a", "b")

        assert get_results(waiting_tasks) == [None, None]
        assert it.running.done()


async def test_once_waits_for_what_the_running_jobs_may_add():
    async with scene(once=True) as it:
        it.ready(1)
        busy, idle = await it.wait_for_jobs("a", "b")
        assert get_results([idle]) == ["waits"]

        it.source.forget(it.claimer.claimed_jobs[1])
        it.ready(2)
        again = await it.wait_for_jobs("a")
        assert get_results([busy, *again, idle]) == [1, 2, "waits"]

        it.source.forget(it.claimer.claimed_jobs[2])
        assert get_results([*await it.wait_for_jobs("a"), idle]) == [None, None]


@pytest.mark.feature("F175")
async def test_once_a_failed_fetch_is_raised_to_the_waiting_workers():
    async with scene(once=True) as it:
        error = OSError("gone")
        it.claimer.errors = [error]

        waiting_tasks = await it.wait_for_jobs("a", "b") + await it.wait_for_jobs("c")

        assert [each.exception() for each in waiting_tasks] == [error, error, error]
        assert it.running.done()


# Errors


@pytest.mark.feature("F175")
async def test_a_failed_fetch_is_retried_until_all_waiting_workers_have_a_job():
    async with scene() as it:
        it.claimer.errors = [OSError(str(each)) for each in range(5)]
        it.ready(1, 2)

        waiting_tasks = await it.wait_for_jobs("a", "b")

        assert sorted(map(str, get_results(waiting_tasks))) == ["1", "2"]
        assert it.claimer.requested_limits == [2] * 6
        errors_emitted = [event for event in it.events if isinstance(event, GetJobErrored)]
        assert sorted((each.worker_id, str(each.error)) for each in errors_emitted) == [
            (worker, str(error)) for worker in "ab" for error in range(5)
        ]


async def test_a_fetch_that_raises_a_cancellation_is_retried():
    # Not a cancellation of the source: a flags function may await a cancelled task.
    async with scene() as it:
        it.claimer.errors = [asyncio.CancelledError()]
        it.ready(1)

        waiting_tasks = await it.wait_for_jobs("a")

        assert get_results(waiting_tasks) == [1]
        assert not it.running.done()


async def test_after_an_error_workers_keep_their_order():
    async with scene() as it:
        it.claimer.errors = [OSError()]
        it.ready(1, 2, 3)

        waiting_tasks = await it.wait_for_jobs("a", "b", "c")

        assert get_results(waiting_tasks) == [1, 2, 3]


async def test_a_worker_that_waits_during_a_failed_fetch_is_served_with_the_others():
    async with scene() as it:
        it.claimer.answering.clear()
        it.claimer.errors = [OSError()]
        it.ready(1, 2)
        waiting_tasks = await it.wait_for_jobs("a") + await it.wait_for_jobs("b")

        await it.finish_fetch()

        assert get_results(waiting_tasks) == [1, 2]
        assert it.claimer.requested_limits == [1, 2]


async def test_a_source_is_failing_from_an_error_to_the_next_answer():
    async with scene() as it:
        waiting_states: list[bool] = []
        it.hooks.on(GetJobErrored)(lambda event: waiting_states.append(it.source.is_failing))
        it.hooks.on(GetJobRecovered)(lambda event: waiting_states.append(it.source.is_failing))
        it.claimer.errors = [OSError()]
        assert not it.source.is_failing

        await it.wait_for_jobs("a")

        assert waiting_states == [True, False]
        assert not it.source.is_failing


async def test_a_stop_does_not_wait_for_the_pause_after_an_error():
    async with scene() as it:
        it.backoff_seconds = 3600
        it.claimer.errors = [OSError()]
        waiting_tasks = await it.wait_for_jobs("a")

        it.source.stop()
        await it.running

        assert await waiting_tasks[0] is None


# Stop


async def test_a_stop_sends_those_away_who_wait_and_those_who_come_later():
    async with scene() as it:
        waiting_tasks = await it.wait_for_jobs("a", "b")

        it.source.stop()
        waiting_tasks += await it.wait_for_jobs("c")

        assert get_results(waiting_tasks) == [None, None, None]
        assert it.running.done()
        assert it.claimer.requested_limits == [2]


async def test_jobs_fetched_after_the_stop_are_released():
    async with scene() as it:
        it.claimer.answering.clear()
        it.ready(1, 2)
        waiting_tasks = await it.wait_for_jobs("a", "b", "c")
        later = await it.wait_for_jobs("d")

        it.source.stop()
        await it.finish_fetch()

        assert it.completer.writes == [[1, 2]]
        assert it.claimer.claimed_jobs == {}
        assert get_results(waiting_tasks + later) == [None] * 4
        assert it.running.done()


async def test_a_source_that_is_cancelled_sends_all_away():
    async with scene() as it:
        idle = await it.wait_for_jobs("a")
        it.claimer.answering.clear()
        unserved = await it.wait_for_jobs("b") + await it.wait_for_jobs("c")

        it.running.cancel()
        await run_until_idle()

        assert it.running.cancelled()
        assert get_results(idle + unserved) == [None, None, None]


# Cancelled workers


async def test_the_job_of_one_who_no_longer_waits_goes_to_another():
    async with scene() as it:
        it.claimer.answering.clear()
        it.ready(1)
        waiting_tasks = await it.wait_for_jobs("a", "b")

        waiting_tasks[0].cancel()
        await it.finish_fetch()

        assert get_results(waiting_tasks) == ["cancelled", 1]
        assert it.completer.writes == []


async def test_a_job_without_a_waiting_worker_is_released():
    async with scene() as it:
        it.claimer.answering.clear()
        it.ready(1, 2)
        waiting_tasks = await it.wait_for_jobs("a", "b")

        waiting_tasks[0].cancel()
        await it.finish_fetch()

        assert get_results(waiting_tasks) == ["cancelled", 1]
        assert it.completer.writes == [[2]]
        assert list(it.claimer.claimed_jobs) == [1]


async def test_nothing_is_fetched_for_one_who_no_longer_waits():
    async with scene() as it:
        it.claimer.answering.clear()
        await it.wait_for_jobs("a")
        waiting_tasks = await it.wait_for_jobs("b", "c")

        waiting_tasks[0].cancel()
        await it.finish_fetch()

        assert it.claimer.requested_limits == [1, 1]


class NeverCompletes:
    """Fail, because the database is unreachable."""

    async def try_release(self, unstarted: object, *, attempt: int) -> None:
        await asyncio.Event().wait()


async def test_waiting_workers_end_when_the_source_is_cancelled_during_a_release():
    claimer = FakeClaimer(ManualClock())
    claimer.ready = [ClaimedJob(make_job(id=1, locked_by="p1"), None)]
    claimer.answering.clear()
    completer: Any = NeverCompletes()
    taking: Any = claimer
    source = DirectSource(taking, completer, Hooks(), FetchOptions(poll_interval=NEVER))
    running = asyncio.create_task(source.run())
    task = asyncio.create_task(source.wait_for_job("w1"))
    await run_until_idle()

    source.stop()
    claimer.answering.set()
    await run_until_idle()
    running.cancel()
    await asyncio.wait([running])
    await run_until_idle()

    assert task.done()
