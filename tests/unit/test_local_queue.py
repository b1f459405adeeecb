"""LocalQueue: its modes, which worker gets a job, when it fetches, and what it releases."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from graphile_worker._lease.lease import Lease
from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._worker.claimer import Claimer
from graphile_worker._worker.completer import Completer
from graphile_worker._worker.sources import local_queue as local_queue_module
from graphile_worker._worker.sources.buffer import compute_fetch_limit
from graphile_worker._worker.sources.local_queue import (
    ALLOWED_TRANSITIONS,
    LocalQueue,
    LocalQueueMode,
)
from graphile_worker.events import (
    GetJobEmpty,
    GetJobErrored,
    GetJobRecovered,
    GetJobStarted,
    LocalQueueCreated,
    LocalQueueFetched,
    LocalQueueModeChanged,
    LocalQueueRefetchDelayAborted,
    LocalQueueRefetchDelayExpired,
    LocalQueueRefetchDelayStarted,
    LocalQueueReturned,
    PoolEvent,
)
from graphile_worker.hooks import Hooks
from graphile_worker.options import LocalQueueOptions, RefetchDelayOptions
from tests.support.fake_database import FakeDatabase
from tests.support.job_sources import (
    SourceScene,
    get_results,
    make_flags_function,
    poll_again_soon,
    run_until_idle,
)
from tests.support.jobs import make_job
from tests.support.recorder import wait_until

HOUR = timedelta(hours=1)
AT_ONCE = timedelta(milliseconds=1)
# Only a bug takes that long.
PATIENCE = 20


class Scene(SourceScene):
    """A local queue, and the modes that it had."""

    def __init__(
        self,
        *,
        size: int = 10,
        ttl: timedelta = HOUR,
        delay: RefetchDelayOptions | None = None,
        poll: timedelta = HOUR,
        once: bool = False,
        flags: Callable[[], Any] | None = None,
    ) -> None:
        super().__init__(flags=flags)
        options = LocalQueueOptions(size=size, ttl=ttl, refetch_delay=delay)
        self.queue = self.source = LocalQueue(
            self.claimer,
            self.completer,
            self.hooks,
            self.build_options(poll_interval=poll, once=once),
            options,
            size=size,
        )
        self.modes: list[str] = []
        self.hooks.on(LocalQueueModeChanged)(lambda event: self.modes.append(event.new_mode))

    async def until(self, mode: LocalQueueMode) -> None:
        await wait_until(lambda: self.queue.mode == mode)
        await run_until_idle()


@asynccontextmanager
async def scene(*ready: int, **options: Any) -> AsyncIterator[Scene]:
    """A running local queue that found these jobs with its first fetch."""
    scene = Scene(**options)
    async with scene.run_with(*ready):
        yield scene


def ids(jobs: Any) -> list[int]:
    return [job.id for job in jobs]


@pytest.fixture
def chance(monkeypatch) -> SimpleNamespace:
    """A value instead of a random number."""
    drawn = SimpleNamespace(number=0.5)
    drawn.random = lambda: drawn.number
    monkeypatch.setattr(local_queue_module, "random", drawn)
    return drawn


# Modes


@pytest.mark.feature("F98")
async def test_it_holds_nothing_before_it_runs():
    it = Scene()
    it.ready(1)

    waiting_tasks = await it.wait_for_jobs("a")

    assert it.queue.mode == LocalQueueMode.STARTING
    assert (get_results(waiting_tasks), it.claimer.requested_limits) == (["waits"], [])
    it.queue.stop()
    assert get_results(await it.wait_for_jobs("b")) == [None]


@pytest.mark.feature("F98")
async def test_it_fetches_at_its_start_without_waiting_workers():
    async with scene() as it:
        assert it.modes == ["POLLING"]
        assert it.claimer.requested_limits == [10]


@pytest.mark.feature("F98")
async def test_with_more_jobs_than_workers_ask_for_it_waits_for_them():
    async with scene(1, 2, 3) as it:
        assert it.modes == ["POLLING", "WAITING"]

        waiting_tasks = await it.wait_for_jobs("a", "b")

        assert get_results(waiting_tasks) == [1, 2]
        assert it.queue.mode == LocalQueueMode.WAITING
        assert it.claimer.requested_limits == [10]


@pytest.mark.feature("F98")
async def test_an_empty_local_queue_fetches_at_once_without_waiting_workers():
    async with scene(1, 2) as it:
        it.ready(3)

        await it.wait_for_jobs("a", "b")

        assert it.modes == ["POLLING", "WAITING", "POLLING", "WAITING"]
        assert it.claimer.requested_limits == [10, 10]
        assert get_results(await it.wait_for_jobs("c")) == [3]


@pytest.mark.feature("F98")
async def test_waiting_workers_are_served_before_jobs_are_kept():
    it = Scene()
    it.ready(1, 2, 3)
    early = await it.wait_for_jobs("a", "b")

    it.run()
    await run_until_idle()

    assert get_results(early) == [1, 2]
    assert get_results(await it.wait_for_jobs("c")) == [3]
    await it.stop()


@pytest.mark.feature("F98")
async def test_jobs_leave_it_in_the_order_in_which_they_came():
    async with scene(5, 3, 9, 1) as it:
        waiting_tasks = [(await it.wait_for_jobs("a"))[0] for _ in range(4)]

        assert get_results(waiting_tasks) == [5, 3, 9, 1]


async def test_jobs_that_all_find_their_worker_leave_it_polling():
    async with scene() as it:
        waiting_tasks = await it.wait_for_jobs("a", "b", "c")
        it.ready(1, 2)

        await it.wake(2)

        assert get_results(waiting_tasks) == [1, 2, "waits"]
        assert it.modes == ["POLLING"]
        assert it.claimer.requested_limits == [10, 10]


@pytest.mark.parametrize("mode", LocalQueueMode)
def test_no_mode_leads_to_itself_and_all_to_the_last_one(mode):
    assert mode not in ALLOWED_TRANSITIONS[mode]
    assert mode == LocalQueueMode.RELEASED or LocalQueueMode.RELEASED in ALLOWED_TRANSITIONS[mode]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (old, new)
        for old in LocalQueueMode
        for new in LocalQueueMode
        if new not in ALLOWED_TRANSITIONS[old]
    ],
)
async def test_a_step_that_does_not_exist_is_a_bug(old, new):
    it = Scene()
    it.queue.mode = old

    with pytest.raises(AssertionError, match=f"{old} does not lead to {new}"):
        it.queue._set_mode(new)

    assert it.queue.mode == old
    assert it.events == []


# Announced jobs


async def test_a_notification_leads_to_a_fetch():
    async with scene() as it:
        waiting_tasks = await it.wait_for_jobs("a")
        it.ready(1)

        await it.wake()

        assert get_results(waiting_tasks) == [1]


async def test_while_it_holds_jobs_it_does_not_care_for_more():
    async with scene(1, 2) as it:
        await it.wake(5)

        assert it.claimer.requested_limits == [10]


async def test_a_job_that_is_announced_during_a_fetch_is_fetched_by_the_next():
    async with scene() as it:
        waiting_tasks = await it.wait_for_jobs("a")
        it.claimer.answering.clear()
        await it.wake(1)

        it.ready(1)
        await it.wake(1)
        assert it.claimer.requested_limits == [10, 10]
        await it.finish_fetch()

        assert it.claimer.requested_limits == [10, 10, 10]
        assert get_results(waiting_tasks) == [1]


async def test_jobs_announced_before_a_fetch_cause_no_other_fetch():
    async with scene(1) as it:
        await it.wake(3)

        await it.wait_for_jobs("a")

        assert it.claimer.requested_limits == [10, 10]


async def test_an_announcement_of_nothing_fetches_nothing():
    async with scene() as it:
        await it.wake(0)

        assert it.claimer.requested_limits == [10]


async def test_after_a_full_fetch_it_fetches_again():
    it = Scene(size=2)
    waiting_tasks = await it.wait_for_jobs("a", "b", "c")
    it.ready(1, 2, 3)

    it.run()
    await run_until_idle()

    assert get_results(waiting_tasks) == [1, 2, 3]
    assert it.claimer.requested_limits == [2, 2]
    await it.stop()


async def test_a_job_without_a_notification_is_found_by_polling():
    async with scene(poll=AT_ONCE) as it:
        waiting_tasks = await it.wait_for_jobs("a")
        it.ready(1)

        claimed = await asyncio.wait_for(waiting_tasks[0], PATIENCE)

        assert claimed is not None
        assert claimed.job.id == 1


# Named queues


async def test_a_freed_named_queue_causes_a_fetch():
    it = Scene()
    it.ready(1, queue=5)
    waiting_tasks = await it.wait_for_jobs("a", "b")
    it.run()
    await run_until_idle()
    it.ready(2, queue=5)

    it.queue.forget(it.claimer.claimed_jobs[1])
    await run_until_idle()

    assert get_results(waiting_tasks) == [1, 2]
    await it.stop()


async def test_the_end_of_a_job_without_a_queue_leads_to_no_fetch():
    async with scene(1) as it:
        await it.wait_for_jobs("a")

        it.queue.forget(it.claimer.claimed_jobs[1])
        await run_until_idle()

        assert it.claimer.claimed_jobs == {}
        assert it.claimer.requested_limits == [10, 10]


async def test_behind_the_first_job_of_a_named_queue_there_may_be_others():
    # All jobs that a fetch scans may be of that queue.
    it = Scene()
    it.ready(1, queue=5)
    await it.wait_for_jobs("a", "b")

    it.run()
    await run_until_idle()

    assert it.claimer.requested_limits == [10, 10]
    await it.stop()


# Time to live


@pytest.mark.feature("F98")
async def test_jobs_older_than_the_ttl_are_released_in_one_write():
    async with scene(1, 2, 3, ttl=AT_ONCE) as it:
        await it.until(LocalQueueMode.TTL_EXPIRED)

        assert it.completer.writes == [[1, 2, 3]]
        assert it.claimer.claimed_jobs == {}
        assert it.modes == ["POLLING", "WAITING", "TTL_EXPIRED"]


async def test_only_the_remaining_jobs_are_released():
    it = Scene(ttl=AT_ONCE)
    it.ready(1, 2, 3)
    waiting_tasks = await it.wait_for_jobs("a")

    it.run()
    await it.until(LocalQueueMode.TTL_EXPIRED)

    assert get_results(waiting_tasks) == [1]
    assert it.completer.writes == [[2, 3]]
    assert list(it.claimer.claimed_jobs) == [1]
    await it.stop()


@pytest.mark.feature("F98")
async def test_after_that_it_fetches_only_for_a_worker():
    async with scene(1, ttl=AT_ONCE, poll=AT_ONCE) as it:
        await it.until(LocalQueueMode.TTL_EXPIRED)
        it.ready(2)
        await it.wake(1)
        await asyncio.sleep(0.02)
        assert it.claimer.requested_limits == [10]

        waiting_tasks = await it.wait_for_jobs("a")

        assert get_results(waiting_tasks) == [2]
        assert it.modes[-2:] == ["TTL_EXPIRED", "POLLING"]


async def test_a_worker_that_waits_during_the_release_is_served_after_it():
    it = Scene(ttl=AT_ONCE)
    it.completer.answering.clear()
    it.ready(1)
    it.run()
    await it.until(LocalQueueMode.TTL_EXPIRED)
    it.ready(2)
    waiting_tasks = await it.wait_for_jobs("a")
    assert get_results(waiting_tasks) == ["waits"]

    it.completer.answering.set()
    await run_until_idle()

    assert get_results(waiting_tasks) == [2]
    await it.stop()


@pytest.mark.single_version
async def test_each_batch_has_its_own_time_to_live():
    # Long enough that the first batch does not expire on a busy machine.
    ttl = timedelta(seconds=8)
    async with scene(1, 2, ttl=ttl) as it:
        await asyncio.sleep(0.2)
        it.ready(3)
        claimed_since = time.monotonic()
        await it.wait_for_jobs("a", "b")

        await it.until(LocalQueueMode.TTL_EXPIRED)

        assert it.completer.writes == [[3]]
        # Timers may be early by the resolution of the clock.
        assert time.monotonic() - claimed_since > 0.95 * ttl.total_seconds()


# The delay after a short fetch


@pytest.mark.feature("F98")
async def test_after_a_poor_fetch_it_lets_jobs_gather(chance):
    async with scene(delay=RefetchDelayOptions(duration=timedelta(minutes=10))) as it:
        chance.number = 0.5
        waiting_tasks = await it.wait_for_jobs("a")
        it.ready(1)

        await it.wake(1)

        assert get_results(waiting_tasks) == ["waits"]
        assert it.claimer.requested_limits == [10]
        [started] = it.events_of(LocalQueueRefetchDelayStarted)
        assert (started.job_count, started.threshold) == (0, 0)
        assert started.delay == timedelta(minutes=10)
        assert started.abort_threshold == 0.5 * 5 * 10


@pytest.mark.feature("F98")
@pytest.mark.parametrize(("number", "minutes"), [(0.0, 5), (0.5, 10), (0.999, 14.99)])
async def test_the_delay_varies_by_half_of_it(chance, number, minutes):
    chance.number = number
    async with scene(delay=RefetchDelayOptions(duration=timedelta(minutes=10))) as it:
        [started] = it.events_of(LocalQueueRefetchDelayStarted)

        assert started.delay == timedelta(minutes=minutes)


async def test_a_threshold_of_nothing_is_none(chance):
    chance.number = 0.0
    async with scene(delay=RefetchDelayOptions(duration=HOUR)) as it:
        await it.wake(1_000_000)

        [started] = it.events_of(LocalQueueRefetchDelayStarted)
        assert started.abort_threshold == math.inf
        assert it.claimer.requested_limits == [10]


@pytest.mark.feature("F98")
async def test_the_delay_is_cut_short_by_enough_announcements(chance):
    delay = RefetchDelayOptions(duration=HOUR, max_abort_threshold=6)
    async with scene(delay=delay) as it:
        waiting_tasks = await it.wait_for_jobs("a")
        it.ready(1)

        await it.wake(2)
        assert it.events_of(LocalQueueRefetchDelayAborted) == []
        await it.wake(2)

        assert get_results(waiting_tasks) == [1]
        [aborted] = it.events_of(LocalQueueRefetchDelayAborted)
        assert (aborted.count, aborted.abort_threshold) == (4, 3.0)
        assert it.events_of(LocalQueueRefetchDelayExpired) == []


async def test_what_is_announced_during_the_fetch_counts_too(chance):
    delay = RefetchDelayOptions(duration=HOUR, max_abort_threshold=6)
    it = Scene(delay=delay)
    it.claimer.answering.clear()
    it.run()
    await run_until_idle()

    # The fetch may have missed them, but two are too few to fetch at once.
    await it.wake(2)
    await it.finish_fetch()
    assert it.claimer.requested_limits == [10]
    await it.wake(1)

    assert it.claimer.requested_limits == [10, 10]
    await it.stop()


async def test_when_the_delay_is_over_what_was_announced_is_fetched(chance):
    async with scene(delay=RefetchDelayOptions(duration=timedelta(milliseconds=100))) as it:
        waiting_tasks = await it.wait_for_jobs("a")
        it.ready(1)
        await it.wake(1)

        await asyncio.wait_for(waiting_tasks[0], PATIENCE)

        assert len(it.events_of(LocalQueueRefetchDelayExpired)) >= 1
        assert it.events_of(LocalQueueRefetchDelayAborted) == []


async def test_when_the_delay_is_over_and_nothing_was_announced_it_rests(chance):
    async with scene(delay=RefetchDelayOptions(duration=AT_ONCE)) as it:
        await wait_until(lambda: it.events_of(LocalQueueRefetchDelayExpired))
        await run_until_idle()
        assert it.claimer.requested_limits == [10]
        waiting_tasks = await it.wait_for_jobs("a")
        it.ready(1)

        # The delay is over, so this does not abort it.
        await it.wake(1000)

        assert get_results(waiting_tasks) == [1]
        assert it.events_of(LocalQueueRefetchDelayAborted) == []


@pytest.mark.parametrize(("found", "delays"), [(0, 1), (2, 1), (3, 0)])
async def test_a_fetch_is_poor_up_to_the_threshold(chance, found, delays):
    it = Scene(delay=RefetchDelayOptions(duration=HOUR, threshold=2))
    it.ready(*range(found))
    await it.wait_for_jobs("a", "b", "c", "d")

    it.run()
    await run_until_idle()

    assert len(it.events_of(LocalQueueRefetchDelayStarted)) == delays
    await it.stop()


async def test_a_full_fetch_is_not_a_poor_one(chance):
    it = Scene(size=2, delay=RefetchDelayOptions(duration=HOUR, threshold=100))
    it.ready(1, 2, 3)
    waiting_tasks = await it.wait_for_jobs("a", "b", "c")

    it.run()
    await run_until_idle()

    assert get_results(waiting_tasks) == [1, 2, 3]
    [started] = it.events_of(LocalQueueRefetchDelayStarted)
    assert started.job_count == 1
    await it.stop()


async def test_jobs_that_are_kept_start_no_delay(chance):
    async with scene(1, delay=RefetchDelayOptions(duration=HOUR, threshold=5)) as it:
        assert it.events_of(LocalQueueRefetchDelayStarted) == []
        assert it.queue.mode == LocalQueueMode.WAITING


async def test_a_stop_does_not_wait_for_the_delay(chance):
    async with scene(delay=RefetchDelayOptions(duration=HOUR)) as it:
        waiting_tasks = await it.wait_for_jobs("a")

        await it.stop()

        assert get_results(waiting_tasks) == [None]


# Stop


async def test_a_stop_before_it_runs_leaves_nothing_to_do():
    it = Scene()
    it.ready(1)
    it.queue.stop()

    await it.queue.run()

    assert it.claimer.requested_limits == []
    assert it.modes == ["POLLING", "RELEASED"]


async def test_a_stop_while_it_polls_sends_all_away():
    async with scene() as it:
        waiting_tasks = await it.wait_for_jobs("a", "b")

        await it.stop()

        assert get_results(waiting_tasks + await it.wait_for_jobs("c")) == [None, None, None]
        assert it.modes == ["POLLING", "RELEASED"]
        assert it.completer.writes == []


@pytest.mark.feature("F98")
async def test_a_stop_releases_the_waiting_jobs_in_one_write():
    async with scene(1, 2, 3) as it:
        waiting_tasks = await it.wait_for_jobs("a")

        await it.stop()

        assert get_results(waiting_tasks + await it.wait_for_jobs("b")) == [1, None]
        assert it.completer.writes == [[2, 3]]
        assert list(it.claimer.claimed_jobs) == [1]
        assert it.modes == ["POLLING", "WAITING", "RELEASED"]
        [returned] = it.events_of(LocalQueueReturned)
        assert ids(returned.jobs) == [2, 3]


async def test_no_job_is_given_out_between_the_stop_and_the_end():
    async with scene(1, 2) as it:
        it.completer.answering.clear()

        it.queue.stop()
        waiting_tasks = await it.wait_for_jobs("a")

        assert get_results(waiting_tasks) == [None]
        assert it.completer.writes == [[1, 2]]
        # They stay claimed until the release is written.
        assert list(it.claimer.claimed_jobs) == [1, 2]


async def test_a_stop_after_the_release_of_all_jobs_writes_nothing():
    async with scene(1, ttl=AT_ONCE) as it:
        await it.until(LocalQueueMode.TTL_EXPIRED)

        await it.stop()

        assert it.completer.writes == [[1]]
        assert it.modes[-1] == "RELEASED"


async def test_jobs_fetched_after_the_stop_are_released():
    it = Scene()
    it.claimer.answering.clear()
    it.ready(1, 2, 3)
    waiting_tasks = await it.wait_for_jobs("a")
    it.run()
    await run_until_idle()

    it.queue.stop()
    await run_until_idle()
    assert get_results(waiting_tasks) == [None]
    assert not it.running.done()
    await it.finish_fetch()

    assert it.running.done()
    assert it.completer.writes == [[1, 2, 3]]
    assert it.claimer.claimed_jobs == {}
    assert it.modes == ["POLLING", "RELEASED"]


async def test_a_fetch_that_fails_after_the_stop_ends_it():
    it = Scene()
    it.claimer.answering.clear()
    it.claimer.errors = [OSError("gone")]
    it.run()
    await run_until_idle()

    it.queue.stop()
    await it.finish_fetch()

    assert it.running.done()
    assert it.running.exception() is None


async def test_a_cancelled_local_queue_releases_its_jobs():
    async with scene(1, 2) as it:
        it.running.cancel()
        await run_until_idle()

        assert it.running.cancelled()
        assert it.completer.writes == [[1, 2]]
        assert get_results(await it.wait_for_jobs("a")) == [None]


async def test_one_that_is_cancelled_while_it_fetches_sends_all_away():
    it = Scene()
    it.claimer.answering.clear()
    waiting_tasks = await it.wait_for_jobs("a")
    it.run()
    await run_until_idle()

    it.running.cancel()
    await run_until_idle()

    assert it.running.cancelled()
    assert get_results(waiting_tasks) == [None]


# Errors


@pytest.mark.feature("F175")
async def test_a_failed_fetch_is_retried_until_all_waiting_workers_have_a_job():
    it = Scene()
    it.claimer.errors = [OSError(str(each)) for each in range(5)]
    it.ready(1, 2)
    waiting_tasks = await it.wait_for_jobs("a", "b")

    it.run()
    await run_until_idle()

    assert get_results(waiting_tasks) == [1, 2]
    assert it.claimer.requested_limits == [10] * 6
    assert [(each.worker_id, str(each.error)) for each in it.events_of(GetJobErrored)] == [
        (worker, str(error)) for error in range(5) for worker in "ab"
    ]
    await it.stop()


async def test_a_fetch_that_raises_a_cancellation_is_retried():
    # Not a cancellation of the source: a flags function may await a cancelled task.
    it = Scene()
    it.claimer.errors = [asyncio.CancelledError()]
    it.ready(1)
    waiting_tasks = await it.wait_for_jobs("a")

    it.run()
    await run_until_idle()

    assert get_results(waiting_tasks) == [1]
    assert not it.running.done()
    await it.stop()


async def test_each_pause_is_longer_until_a_fetch_succeeds():
    async with scene() as it:
        it.claimer.errors = [OSError(), OSError(), OSError()]
        await it.wake()
        it.claimer.errors = [OSError()]
        await it.wake()

        assert it.failures == [0, 1, 2, 0]


async def test_it_is_failing_from_an_error_to_the_next_answer():
    async with scene() as it:
        waiting_states: list[bool] = []
        it.hooks.on(GetJobErrored)(lambda event: waiting_states.append(it.queue.is_failing))
        it.hooks.on(GetJobRecovered)(lambda event: waiting_states.append(it.queue.is_failing))
        await it.wait_for_jobs("a")
        it.claimer.errors = [OSError()]
        assert not it.queue.is_failing

        await it.wake()

        assert waiting_states == [True, False]
        assert not it.queue.is_failing


async def test_announcements_do_not_cut_the_pause_after_an_error_short():
    async with scene() as it:
        it.backoff_seconds = 3600
        it.claimer.errors = [OSError()]
        await it.wake()

        await it.wake()

        assert it.claimer.requested_limits == [10, 10]
        assert it.queue.is_failing


async def test_a_stop_does_not_wait_for_the_pause_after_an_error():
    async with scene() as it:
        it.backoff_seconds = 3600
        waiting_tasks = await it.wait_for_jobs("a")
        it.claimer.errors = [OSError()]
        await it.wake()

        await it.stop()

        assert get_results(waiting_tasks) == [None]


# Once


@pytest.mark.feature("F98")
async def test_once_sends_all_away_when_nothing_is_ready_and_nothing_runs():
    async with scene(once=True) as it:
        waiting_tasks = await it.wait_for_jobs("a", "b")

        assert get_results(waiting_tasks) == [None, None]
        assert it.running.done()
        assert it.modes == ["POLLING", "RELEASED"]


async def test_once_waits_for_what_the_running_jobs_may_add():
    async with scene(1, once=True) as it:
        busy, idle = await it.wait_for_jobs("a", "b")
        assert get_results([busy, idle]) == [1, "waits"]

        # No notification announces it: the queue polls.
        it.ready(2)
        it.queue.forget(it.claimer.claimed_jobs[1])
        await asyncio.wait_for(idle, PATIENCE)
        assert get_results([idle]) == [2]

        it.queue.forget(it.claimer.claimed_jobs[2])
        assert await asyncio.wait_for(it.queue.wait_for_job("a"), PATIENCE) is None


async def test_once_does_not_end_while_it_holds_jobs():
    async with scene(1, once=True) as it:
        await asyncio.sleep(0.02)

        assert it.queue.mode == LocalQueueMode.WAITING
        assert get_results(await it.wait_for_jobs("a")) == [1]


async def test_once_does_not_end_before_a_full_scan():
    it = Scene(once=True)
    it.claimer.next_fetch_at = math.inf
    async with it.run_with():
        waiting_tasks = await it.wait_for_jobs("a")
        assert get_results(waiting_tasks) == ["waits"]

        it.claimer.next_fetch_at = None

        assert await asyncio.wait_for(waiting_tasks[0], PATIENCE) is None


@pytest.mark.feature("F175")
async def test_once_a_failed_fetch_is_raised_to_the_waiting_workers():
    it = Scene(once=True)
    error = OSError("gone")
    it.claimer.errors = [error]
    waiting_tasks = await it.wait_for_jobs("a", "b")

    it.run()
    await run_until_idle()
    waiting_tasks += await it.wait_for_jobs("c")

    assert [each.exception() for each in waiting_tasks] == [error, error, error]
    assert it.running.done()


# Flags


@pytest.mark.feature("F237")
async def test_the_flags_function_is_called_again_before_a_job_with_flags_starts():
    async with scene(flags=make_flags_function(["slow"])) as it:
        it.ready(1, flags='{"slow": true}')
        it.ready(2, flags='{"fast": true}')
        it.ready(3)
        await it.wake()

        waiting_tasks = await it.wait_for_jobs("a", "b")

        assert sorted(map(str, get_results(waiting_tasks))) == ["2", "3"]
        assert it.completer.writes == [[1]]
        assert sorted(it.claimer.claimed_jobs) == [2, 3]
        [returned] = it.events_of(LocalQueueReturned)
        assert ids(returned.jobs) == [1]


@pytest.mark.feature("F237")
@pytest.mark.parametrize("allowed", [None, [], ["other"]])
async def test_a_job_whose_flags_are_not_forbidden_now_starts(allowed):
    async with scene(flags=make_flags_function(allowed)) as it:
        it.ready(1, flags='{"slow": true}')
        await it.wake()

        assert get_results(await it.wait_for_jobs("a")) == [1]


@pytest.mark.feature("F237")
async def test_the_flags_function_is_not_called_for_a_job_without_flags():
    async with scene(1, flags=make_flags_function(AssertionError("asked"))) as it:
        assert get_results(await it.wait_for_jobs("a")) == [1]
        assert it.events_of(GetJobErrored) == []


@pytest.mark.feature("F237")
async def test_a_list_of_flags_is_not_checked_again():
    # The fetch excluded forbidden flags, which do not change.
    async with scene() as it:
        it.ready(1, flags='{"slow": true}')
        await it.wake()

        assert get_results(await it.wait_for_jobs("a")) == [1]


@pytest.mark.feature("F237")
@pytest.mark.parametrize("error", [OSError("no answer"), asyncio.CancelledError()], ids=repr)
async def test_a_function_that_fails_keeps_its_job_from_starting_and_ends_no_worker(error):
    async with scene(flags=make_flags_function(error, None)) as it:
        it.ready(1, 2, flags='{"slow": true}')
        await it.wake()

        waiting_tasks = await it.wait_for_jobs("a")

        assert get_results(waiting_tasks) == [2]
        assert it.completer.writes == [[1]]
        [failed] = it.events_of(GetJobErrored)
        assert (failed.worker_id, failed.error) == ("a", error)


async def test_a_worker_that_is_cancelled_during_the_flags_function_ends():
    forever = asyncio.Event()
    async with scene(flags=forever.wait) as it:
        it.ready(1, flags='{"slow": true}')
        await it.wake()
        waiting_tasks = await it.wait_for_jobs("a")

        waiting_tasks[0].cancel()
        await run_until_idle()

        assert get_results(waiting_tasks) == ["cancelled"]
        # The job stays claimed, and is released with all others at the end.
        assert list(it.claimer.claimed_jobs) == [1]


async def test_a_stop_during_the_flags_function_releases_the_job():
    decided = asyncio.Event()

    async def flags() -> None:
        await decided.wait()

    async with scene(flags=flags) as it:
        it.ready(1, flags='{"slow": true}')
        await it.wake()
        waiting_tasks = await it.wait_for_jobs("a")

        it.queue.stop()
        decided.set()
        await run_until_idle()

        assert get_results(waiting_tasks) == [None]
        assert it.completer.writes == [[1]]
        assert it.claimer.claimed_jobs == {}


# Rotated pool ids


@pytest.mark.feature("F98")
async def test_jobs_that_wait_when_the_pool_gets_another_id_do_not_start():
    async with scene(1, 2) as it:
        it.claimer.pool_id = "p2"
        it.claimer.ready.append(ClaimedJob(make_job(id=3, locked_by="p2"), None))

        waiting_tasks = await it.wait_for_jobs("a")

        assert get_results(waiting_tasks) == [3]
        assert it.completer.writes == [[1], [2]]
        assert list(it.claimer.claimed_jobs) == [3]


# Cancelled workers


async def test_the_job_of_one_who_no_longer_waits_goes_to_another():
    it = Scene()
    it.claimer.answering.clear()
    it.ready(1)
    waiting_tasks = await it.wait_for_jobs("a", "b")
    it.run()
    await run_until_idle()

    waiting_tasks[0].cancel()
    await it.finish_fetch()

    assert get_results(waiting_tasks) == ["cancelled", 1]
    await it.stop()


async def test_the_job_of_one_who_no_longer_waits_is_kept():
    it = Scene()
    it.claimer.answering.clear()
    it.ready(1)
    waiting_tasks = await it.wait_for_jobs("a")
    it.run()
    await run_until_idle()

    waiting_tasks[0].cancel()
    await it.finish_fetch()

    assert it.queue.mode == LocalQueueMode.WAITING
    assert get_results(await it.wait_for_jobs("b")) == [1]
    await it.stop()


# Events


@pytest.mark.feature("F98", "F174", "F176")
async def test_all_is_announced_in_the_order_in_which_it_happens():
    it = Scene(ttl=AT_ONCE)
    it.ready(1, 2)
    await it.wait_for_jobs("a")
    it.run()
    await it.until(LocalQueueMode.TTL_EXPIRED)

    await it.wait_for_jobs("b")
    await it.stop()

    assert [type(event) for event in it.events] == [
        LocalQueueCreated,
        LocalQueueModeChanged,
        GetJobStarted,
        LocalQueueFetched,
        LocalQueueModeChanged,
        LocalQueueModeChanged,
        LocalQueueReturned,
        LocalQueueModeChanged,
        GetJobStarted,
        LocalQueueFetched,
        GetJobEmpty,
        LocalQueueModeChanged,
    ]
    assert {event.pool_id for event in it.events_of(PoolEvent)} == {"p1"}
    assert [(each.old_mode, each.new_mode) for each in it.events_of(LocalQueueModeChanged)] == [
        ("STARTING", "POLLING"),
        ("POLLING", "WAITING"),
        ("WAITING", "TTL_EXPIRED"),
        ("TTL_EXPIRED", "POLLING"),
        ("POLLING", "RELEASED"),
    ]
    assert [ids(each.jobs) for each in it.events_of(LocalQueueFetched)] == [[1, 2], []]
    assert [each.worker_id for each in it.events_of(GetJobStarted, GetJobEmpty)] == ["a", "b", "b"]


# The fetch limit


def make_claimed(count: int, letters: int) -> list[ClaimedJob]:
    return [ClaimedJob(make_job(payload_text="x" * letters), None) for _ in range(count)]


@pytest.mark.parametrize(
    ("limit", "size", "max_bytes", "arrived", "then"),
    [
        pytest.param(100, 500, 10**6, make_claimed(100, 2), 400, id="four times as many"),
        pytest.param(400, 500, 10**6, make_claimed(400, 2), 500, id="no more than the size"),
        pytest.param(100, 500, 10**6, [], 100, id="an empty fetch tells nothing"),
        pytest.param(100, 500, 1000, make_claimed(10, 50), 20, id="as many as fit"),
        pytest.param(100, 500, 1000, make_claimed(100, 50), 20, id="fewer than came"),
        pytest.param(100, 500, 1000, make_claimed(1, 5000), 1, id="one at least"),
        pytest.param(
            1, 500, 1000, make_claimed(1, 10), 4, id="more again when they are small again"
        ),
    ],
)
def test_the_next_fetch_requests_what_fits_by_the_size_of_the_last(
    limit, size, max_bytes, arrived, then
):
    assert compute_fetch_limit(limit, size, max_bytes, arrived) == then


@pytest.mark.parametrize(("size", "first"), [(10, 10), (100, 100), (500, 100)])
async def test_the_first_fetch_requests_a_hundred_jobs_at_most(size, first):
    async with scene(size=size) as it:
        assert it.claimer.requested_limits == [first]


async def test_the_second_fetch_requests_more_jobs():
    async with scene(1, size=500) as it:
        await it.wait_for_jobs("a")

        assert it.claimer.requested_limits == [100, 400]


# Release


def settler_on(database: Any, **options: Any) -> Completer:
    return Completer(database, Lease(pool_id="p1"), Hooks(), **options)


def claimed_job(job_id: int, queue: int | None = None, pool: str = "p1") -> ClaimedJob:
    return ClaimedJob(make_job(id=job_id, attempts=1, locked_by=pool), queue)


@pytest.mark.feature("F99")
async def test_all_jobs_of_a_pool_are_released_in_one_write_with_their_queues():
    database = FakeDatabase(None)

    await settler_on(database).try_release([claimed_job(1), claimed_job(2, 5), claimed_job(3, 6)])

    [query] = database.queries
    assert query.statement == "release_claimed_jobs"
    assert query.args[1:] == ("p1", [5, 6], False)
    assert str(query.args[0]).count('"id"') == 3


async def test_jobs_claimed_under_another_id_are_released_under_it():
    database = FakeDatabase(None, None)

    await settler_on(database).try_release([claimed_job(1), claimed_job(2, 5, pool="p0")])

    assert sorted(query.args[1:3] for query in database.queries) == [("p0", [5]), ("p1", [])]


async def test_a_queue_that_is_locked_for_another_job_by_now_is_not_freed():
    old, new = claimed_job(1, 5), claimed_job(2, 5)
    database = FakeDatabase(None)

    await settler_on(database, claimed_jobs={1: old, 2: new}).try_release([old])

    [query] = database.queries
    assert query.args[2] == []


async def test_a_repeated_release_frees_a_queue_only_together_with_its_job():
    held = claimed_job(1, 5)
    database = FakeDatabase(OSError(), OSError(), None)
    completer = settler_on(database)

    # An earlier write may have succeeded.
    assert await completer.try_release([held]) == [held]
    assert await completer.try_release([held], attempt=1) == [held]
    assert await completer.try_release([held], attempt=2) == []

    assert [query.args[3] for query in database.queries] == [False, True, True]


async def test_a_job_that_this_pool_claimed_again_is_not_released():
    kept, old = claimed_job(1, 5), claimed_job(2, 6)
    all_claimed = {1: kept, 2: old}
    # The first write succeeded, but its answer was lost.
    database = FakeDatabase(OSError(), OSError(), None)
    completer = settler_on(database, claimed_jobs=all_claimed)

    assert await completer.try_release([kept, old]) == [kept, old]
    all_claimed[2] = claimed_job(2, 6)
    assert await completer.try_release([kept, old], attempt=1) == [kept]
    assert await completer.try_release([kept], attempt=2) == []

    first, *repeated = database.queries
    assert (str(first.args[0]).count('"id"'), first.args[2]) == (2, [5, 6])
    for query in repeated:
        assert (str(query.args[0]).count('"id"'), query.args[2]) == (1, [5])


async def test_a_release_in_a_callers_transaction_is_not_retried():
    database = FakeDatabase(OSError("gone"))

    with pytest.raises(OSError, match="gone"):
        await settler_on(database, can_retry=False).try_release([claimed_job(1)])


# Forbidden flags of the claimer


@pytest.mark.feature("F237")
@pytest.mark.parametrize(
    ("overrides", "may_change", "skipped"),
    [
        (None, False, None),
        ([], False, None),
        (["slow"], False, ["slow"]),
        (lambda: ["slow"], True, ["slow"]),
        (lambda: None, True, None),
        (make_flags_function(["slow"]), True, ["slow"]),
    ],
    ids=["none", "empty", "list", "function", "function: none", "async function"],
)
async def test_only_what_a_function_forbids_may_change(overrides, may_change, skipped):
    database: Any = FakeDatabase()
    claimer = Claimer(database, Lease(pool_id="p1"), ["task"], forbidden_flags=overrides)

    assert claimer.has_dynamic_flags is may_change
    assert await claimer.get_forbidden_flags() == skipped


# Fetches without a full scan


async def test_the_next_fetch_is_at_next_fetch_at(monkeypatch):
    async with scene() as it:
        waiting_tasks = await it.wait_for_jobs("a")
        poll_again_soon(it.claimer, monkeypatch)
        await it.wake()
        it.ready(1)

        await asyncio.wait(waiting_tasks, timeout=PATIENCE)

        assert get_results(waiting_tasks) == [1]
