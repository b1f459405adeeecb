"""Watchdog: names a task that blocks, once, with its stack."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from types import FrameType
from typing import Any, NamedTuple

import pytest

from graphile_worker import TaskRouter
from graphile_worker._lease import watchdog as watchdog_module
from graphile_worker._lease.watchdog import Watchdog
from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._support.logs import Logger
from graphile_worker._worker.cancellation import Cancellation
from graphile_worker._worker.context import Context, PoolResources
from graphile_worker._worker.outcomes import Completed
from graphile_worker._worker.process_pool import ProcessPool
from graphile_worker._worker.run_job import Executors, find_job_in_frame, run_job
from graphile_worker._worker.threads import ThreadPool
from graphile_worker.hooks import Hooks
from graphile_worker.jobs import Job
from graphile_worker.options import TaskProcessOptions
from graphile_worker.tasks import Task
from tests.support.clocks import ManualClock
from tests.support.jobs import make_job
from tests.support.recorder import wait_until

AFTER = timedelta(seconds=5)


class Line(NamedTuple):
    level: str
    message: str


class Log:
    """The log lines of all threads."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.logged = threading.Event()

    def __call__(self, scope: Mapping[str, Any]) -> Any:
        def log(level: str, message: str, meta: Mapping[str, Any]) -> None:
            self.lines.append(Line(level, message))
            self.logged.set()

        return log

    @property
    def first_lines(self) -> list[tuple[str, str]]:
        """Return the lines without their stacks."""
        return [(each.level, each.message.splitlines()[0]) for each in self.lines]


class Scene:
    """A watchdog of the test's loop, and its log."""

    def __init__(self, clock: ManualClock, after: timedelta) -> None:
        self.clock = clock
        self.log = Log()
        self.watchdog = Watchdog(Logger(self.log), after, partial(find_job_in_frame, {"p1"}))
        self.threads = ThreadPool()

    def check_after(self, *seconds: float) -> None:
        """Check from another thread, after each of these pauses, while this thread is blocked."""

        def check() -> None:
            for each in seconds:
                self.clock.now += each
                self.watchdog.check_once()

        checking = threading.Thread(target=check)
        checking.start()
        checking.join(20)

    async def run(
        self, function: Callable[..., Any], *, pool_id: str = "p1", **options: Any
    ) -> None:
        """Run a job of the task, as a worker of the pool does."""
        task: Task[..., Any] = TaskRouter[None]().task(name="resize", **options)(function)
        claimed = ClaimedJob(make_job(id=7, locked_by=pool_id), None)
        context = Context(claimed, "w1", resources())
        executors = Executors(self.threads, ProcessPool(TaskProcessOptions()))
        outcome = await run_job(task, context, executors, Hooks())
        assert isinstance(outcome, Completed), outcome


def resources() -> PoolResources:
    nothing: Any = None
    return PoolResources(
        deps=None,
        logger=nothing,
        cancellation=Cancellation(),
        database=nothing,
        client=nothing,
        sync_database=None,
        sync_client=None,
    )


@pytest.fixture
async def it(monkeypatch) -> AsyncIterator[Scene]:
    clock = ManualClock.patch(monkeypatch, watchdog_module)
    it = Scene(clock, AFTER)
    yield it
    it.threads.close()


async def run_loop_briefly() -> None:
    """Let the event loop run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def check_after_each(it: Scene, *seconds: float) -> None:
    """Check after each of these pauses, while the event loop runs."""
    for each in seconds:
        it.check_after(each)
        await run_loop_briefly()


# The loop


async def test_a_loop_that_turns_is_not_mentioned(it):
    await check_after_each(it, *[5] * 10)

    assert it.log.lines == []


async def test_a_task_that_blocks_the_loop_is_named_while_it_does(it):
    logged: list[list[tuple[str, str]]] = []

    async def resize() -> None:
        it.check_after(0, 4.9)
        logged.append(it.log.first_lines)
        it.check_after(0.1)
        logged.append(it.log.first_lines)

    await it.run(resize)

    line = (
        "warning",
        "task 'resize' (job 7) has been blocking the event loop for 5.0 s; no other job in this "
        "worker can run",
    )
    assert logged == [[], [line]]


async def test_a_plain_function_that_runs_on_the_loop_is_named_too(it):
    def resize() -> None:
        it.check_after(0, 5)

    await it.run(resize, run_in="loop")

    assert it.log.first_lines[0][1].startswith(
        "task 'resize' (job 7) has been blocking the event loop"
    )


async def test_the_calls_from_the_task_on_are_shown_and_not_those_that_led_to_it(it):
    def check_for_long() -> None:
        it.check_after(0, 5)

    async def resize() -> None:
        check_for_long()

    await it.run(resize)

    stack = it.log.lines[0].message
    assert stack.index("in resize") < stack.index("in check_for_long")
    assert "check_for_long()" in stack
    assert "run_job" not in stack


async def test_a_block_is_reported_once_however_long_it_lasts(it):
    async def resize() -> None:
        it.check_after(0, *[5] * 20)

    await it.run(resize)

    assert sum("has been blocking the event loop" in line.message for line in it.log.lines) == 1


async def test_the_duration_of_a_block_is_logged_at_its_end(it):
    async def resize() -> None:
        it.check_after(0, 5, 60)

    await it.run(resize)
    await run_loop_briefly()

    assert it.log.first_lines[1:] == [("warning", "the event loop was blocked for 65.0 s")]


async def test_the_next_block_is_reported_again(it):
    async def resize() -> None:
        it.check_after(0, 5)

    for _ in range(3):
        await it.run(resize)
        await run_loop_briefly()

    assert [level for level, _ in it.log.first_lines] == ["warning"] * 6


async def test_a_block_that_ends_in_time_is_not_mentioned_when_it_ends(it):
    async def resize() -> None:
        it.check_after(0, 4.9)

    await it.run(resize)
    await run_loop_briefly()

    assert it.log.lines == []


async def test_a_block_that_the_watchdog_missed_is_logged_at_its_end(it):
    async def resize() -> None:
        # A call that blocks all threads delays the watchdog, too.
        it.check_after(0)
        it.clock.now += 60

    await it.run(resize)
    await run_loop_briefly()

    assert it.log.first_lines == [("warning", "the event loop was blocked for 60.0 s")]


async def test_what_blocks_the_loop_without_a_job_is_shown_all_the_same(it):
    def block_loop() -> None:
        it.check_after(0, 5)

    asyncio.get_running_loop().call_soon(block_loop)
    await run_loop_briefly()

    line = it.log.lines[0].message
    assert line.startswith("code outside of tasks has been blocking the event loop for 5.0 s")
    assert "in block_loop" in line


async def test_a_blocked_loop_is_detected_from_another_thread():
    it = Scene(ManualClock(), timedelta(milliseconds=20))

    async def resize() -> None:
        # Started here, because a busy machine may delay the task.
        it.watchdog.start()
        # Nothing is awaited: only another thread can end this.
        assert it.log.logged.wait(20)

    await it.run(resize)
    await wait_until(lambda: len(it.log.lines) > 1)
    it.watchdog.stop()

    assert "task 'resize' (job 7) has been blocking the event loop" in it.log.lines[0].message
    assert "the event loop was blocked for" in it.log.lines[1].message


async def test_the_watchdog_ends_after_stop(it):
    before = set(threading.enumerate())
    it.watchdog.start()
    [checking] = set(threading.enumerate()) - before

    it.watchdog.stop()
    await asyncio.to_thread(checking.join, 20)

    assert not checking.is_alive()
    assert checking.daemon


async def test_a_loop_that_turns_while_it_is_described_does_no_harm():
    log = Log()
    began, checked, resumed = threading.Event(), threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def block() -> None:
        began.set()
        assert checked.wait(20)

    def resume_meanwhile(frame: FrameType) -> Job | None:
        if frame.f_code is block.__code__:
            checked.set()
            assert resumed.wait(20)
        return None

    def check() -> None:
        assert began.wait(20)
        try:
            while not checked.is_set():
                watchdog.check_once()
        except BaseException as error:
            errors.append(error)

    watchdog = Watchdog(Logger(log), timedelta(milliseconds=1), resume_meanwhile)
    checking = threading.Thread(target=check, daemon=True)
    checking.start()
    block()
    await run_loop_briefly()
    resumed.set()
    await asyncio.to_thread(checking.join, 20)

    assert errors == []
    assert any(
        "code outside of tasks has been blocking the event loop" in line.message
        for line in log.lines
    )


def test_a_closed_loop_is_not_an_error():
    async def make() -> Watchdog:
        return Watchdog(Logger(log), AFTER, partial(find_job_in_frame, {"p1"}))

    log = Log()
    watchdog = asyncio.run(make())
    watchdog.check_once()

    assert log.lines == []


# Threads


class Plain:
    """A plain function that blocks at two places, and continues on request."""

    def __init__(self) -> None:
        self._arrived: Any = SimpleQueue()
        self._first, self._second = threading.Lock(), threading.Lock()
        self._first.acquire()
        self._second.acquire()

    def resize(self) -> None:
        # On one line, so that the location does not change after the event is set.
        _ = (self._arrived.put(None), self._first.acquire(True, 20))
        _ = (self._arrived.put(None), self._second.acquire(True, 20))

    async def arrives(self) -> None:
        await asyncio.to_thread(self._arrived.get, timeout=20)

    def resume(self) -> None:
        """Continue from the first place to the second."""
        self._first.release()

    def end(self) -> None:
        for lock in (self._first, self._second):
            if lock.locked():
                lock.release()


@pytest.fixture
async def plain(it) -> AsyncIterator[Plain]:
    """A function that blocks its thread, for a job."""
    plain = Plain()
    running = asyncio.create_task(it.run(plain.resize))
    await plain.arrives()
    yield plain
    plain.end()
    await running


async def test_a_plain_function_that_blocks_its_thread_is_logged(it, plain):
    await check_after_each(it, 0, 4.9)
    assert it.log.lines == []

    await check_after_each(it, 0.1)

    [line] = it.log.lines
    assert line.level == "info"
    first, *stack = line.message.splitlines()
    assert first == "task 'resize' (job 7) has been blocking its thread for 5.0 s"
    assert "in resize" in stack[0]
    assert "_first.acquire" in stack[1]


async def test_a_blocked_thread_is_logged_once(it, plain):
    await check_after_each(it, *[5] * 20)

    assert len(it.log.lines) == 1


async def test_a_thread_that_is_blocked_elsewhere_is_logged_again(it, plain):
    await check_after_each(it, 0, 5)

    plain.resume()
    await plain.arrives()
    await check_after_each(it, 5)
    assert len(it.log.lines) == 1

    await check_after_each(it, 5)
    assert [line.level for line in it.log.lines] == ["info"] * 2
    assert "_second.acquire" in it.log.lines[1].message


async def test_a_thread_that_moves_is_not_mentioned(it, plain):
    await check_after_each(it, 0, 4)

    plain.resume()
    await plain.arrives()
    await check_after_each(it, 4, 4)

    assert it.log.lines == []


async def test_the_jobs_of_another_pool_in_this_program_are_left_to_its_own_watchdog(it):
    plain = Plain()
    running = asyncio.create_task(it.run(plain.resize, pool_id="p2"))
    await plain.arrives()

    await check_after_each(it, 0, 5, 5)
    plain.end()
    await running

    assert it.log.lines == []


async def test_threads_that_run_no_task_are_not_mentioned(it):
    release = threading.Event()
    blocked_thread = threading.Thread(target=release.wait, args=(20,))
    blocked_thread.start()

    await check_after_each(it, 0, 5, 5)
    release.set()
    blocked_thread.join(20)

    assert it.log.lines == []
