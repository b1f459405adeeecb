"""Hooks: which listeners are called, what an error does, and how context managers nest."""

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import pytest

from graphile_worker.errors import ConfigurationError
from graphile_worker.events import (
    EVENTS_BY_NAME,
    AddingJobs,
    Event,
    GracefulShutdown,
    JobEvent,
    JobFailed,
    JobStarted,
    Migrating,
    Operation,
    PoolCreated,
    PoolEvent,
    PoolReleased,
    RunningJob,
)
from graphile_worker.hooks import Hooks
from graphile_worker.jobs import Job, JobSpec
from tests.support.jobs import make_job

CREATED = PoolCreated(pool_id="p1")
RELEASED = PoolReleased(pool_id="p1")


class Recorder:
    """Records all events, and lets a test wait for one."""

    def __init__(self, hooks: Hooks) -> None:
        self.events: list[Event] = []
        self._more = asyncio.Event()
        hooks.on(Event)(self._hear)

    def _hear(self, event: Event) -> None:
        self.events.append(event)
        self._more.set()

    async def wait_for(self, kind: type[Event]) -> Event:
        while True:
            for event in self.events:
                if isinstance(event, kind):
                    return event
            self._more.clear()
            await self._more.wait()


@dataclass
class Steps:
    """Records entries and exits with their threads."""

    taken: list[str]
    threads: dict[str, int]

    def take(self, step: str) -> None:
        self.taken.append(step)
        self.threads[step] = threading.get_ident()

    def plain(self, name: str) -> Callable[[Operation], object]:
        @contextmanager
        def manager(moment):
            self.take(f"{name} in")
            try:
                yield
            finally:
                self.take(f"{name} out")

        return manager

    def asynchronous(self, name: str) -> Callable[[Operation], object]:
        @asynccontextmanager
        async def manager(moment):
            self.take(f"{name} in")
            try:
                yield
            finally:
                self.take(f"{name} out")

        return manager


@pytest.fixture
def steps() -> Steps:
    return Steps([], {})


def running() -> RunningJob:
    job = make_job(id=7, attempts=1)
    return RunningJob(pool_id="p1", worker_id="w1", job=job, runs_in="loop")


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int, str]]:
    return [
        (record.name, record.levelno, record.getMessage())
        for record in caplog.records
        if record.name.startswith("graphile_worker")
    ]


# on: who hears what


@pytest.mark.feature("F163")
def test_a_plain_listener_is_called_before_emit_returns(hooks):
    heard: list[Event] = []
    hooks.on(PoolCreated)(heard.append)

    hooks.emit(CREATED)
    hooks.emit(RELEASED)

    assert heard == [CREATED]


@pytest.mark.feature("F163")
async def test_an_async_listener_runs_in_a_task_that_drain_awaits(hooks):
    heard: list[Event] = []

    @hooks.on(PoolCreated)
    async def listener(event: PoolCreated) -> None:
        await asyncio.sleep(0)
        heard.append(event)

    hooks.emit(CREATED)
    assert heard == []

    await hooks.drain()
    assert heard == [CREATED]


@pytest.mark.feature("F163")
def test_an_event_is_found_by_its_name_in_node(hooks):
    heard: list[Event] = []

    @hooks.on("pool:create")
    def listener(event):
        heard.append(event)

    hooks.emit(CREATED)

    assert heard == [CREATED]


@pytest.mark.parametrize("name", EVENTS_BY_NAME)
def test_every_name_can_be_listened_for(hooks, name):
    hooks.on(name)(print)

    assert hooks.has_listeners(EVENTS_BY_NAME[name])


def test_a_listener_for_a_base_class_receives_all_derived_events(hooks):
    everything: list[Event] = []
    pools: list[Event] = []
    jobs: list[Event] = []
    hooks.on(Event)(everything.append)
    hooks.on(PoolEvent)(pools.append)
    hooks.on(JobEvent)(jobs.append)

    signalled = GracefulShutdown(signal="SIGTERM")
    hooks.emit(CREATED)
    hooks.emit(signalled)

    assert everything == [CREATED, signalled]
    assert pools == [CREATED]
    assert jobs == []


def test_an_event_class_of_another_package_works(hooks):
    class Deployed(Event):
        name = "shop:deployed"

    heard: list[Event] = []
    hooks.on(Deployed)(heard.append)

    hooks.emit(Deployed())

    assert len(heard) == 1


def test_listeners_are_called_in_the_order_of_registration(hooks):
    heard: list[str] = []
    hooks.on(Event)(lambda event: heard.append("first"))
    hooks.on(PoolCreated)(lambda event: heard.append("second"))
    hooks.on(PoolEvent)(lambda event: heard.append("third"))

    hooks.emit(CREATED)

    assert heard == ["first", "second", "third"]


def test_a_decorated_function_is_returned_unchanged(hooks):
    def listener(event):
        return None

    def wrapper(moment):
        return nullcontext()

    assert hooks.on(PoolCreated)(listener) is listener
    assert hooks.around(RunningJob)(wrapper) is wrapper


def test_registering_the_same_function_again_changes_nothing(hooks):
    heard: list[Event] = []
    hooks.on(PoolCreated)(heard.append)
    hooks.on(PoolCreated)(heard.append)

    hooks.emit(CREATED)

    assert heard == [CREATED]


def test_has_listeners_is_true_for_registered_events(hooks):
    hooks.on(PoolEvent)(print)

    assert hooks.has_listeners(PoolCreated)
    assert hooks.has_listeners(JobFailed)
    assert not hooks.has_listeners(GracefulShutdown)


def test_a_listener_registered_after_the_first_event_is_called(hooks):
    heard: list[Event] = []
    hooks.emit(CREATED)
    assert not hooks.has_listeners(PoolCreated)

    hooks.on(PoolCreated)(heard.append)
    hooks.emit(CREATED)

    assert heard == [CREATED]


def test_an_event_without_listeners_costs_one_dictionary_lookup(hooks):
    hooks.emit(CREATED)
    found = []

    class Counting(dict[type, tuple]):
        def __getitem__(self, kind):
            found.append(kind)
            return super().__getitem__(kind)

    hooks._listeners = Counting(hooks._listeners)
    hooks.emit(CREATED)
    hooks.has_listeners(PoolCreated)

    assert found == [PoolCreated, PoolCreated]


def test_off_removes_a_listener(hooks):
    heard: list[Event] = []
    hooks.on(PoolCreated)(heard.append)

    hooks.off("pool:create", heard.append)
    hooks.emit(CREATED)

    assert heard == []
    assert not hooks.has_listeners(PoolCreated)


def test_off_removes_a_wrapper(hooks, steps):
    wrapper = steps.plain("a")
    hooks.around(Migrating)(wrapper)

    hooks.off(Migrating, wrapper)

    assert not hooks.has_wrappers(Migrating)


def test_off_ignores_a_function_that_is_not_registered(hooks):
    hooks.on(PoolCreated)(print)

    hooks.off(PoolCreated, repr)
    hooks.off(PoolReleased, print)

    assert hooks.has_listeners(PoolCreated)


def test_a_listener_may_remove_itself_while_it_runs(hooks):
    heard: list[str] = []

    def once(event):
        heard.append("once")
        hooks.off(PoolCreated, once)

    hooks.on(PoolCreated)(once)
    hooks.on(PoolCreated)(lambda event: heard.append("always"))
    hooks.emit(CREATED)
    hooks.emit(CREATED)

    assert heard == ["once", "always", "always"]


def test_include_adds_functions_after_the_registered_ones(hooks, steps):
    heard: list[str] = []
    other = Hooks()
    hooks.on(PoolCreated)(lambda event: heard.append("ours"))
    other.on(PoolCreated)(lambda event: heard.append("theirs"))
    other.around(RunningJob)(steps.plain("a"))

    hooks.include(other)
    hooks.emit(CREATED)

    assert heard == ["ours", "theirs"]
    assert hooks.has_wrappers(RunningJob)


def test_including_hooks_twice_or_themselves_adds_nothing(hooks):
    heard: list[Event] = []
    other = Hooks()
    other.on(PoolCreated)(heard.append)

    hooks.include(other)
    hooks.include(other)
    hooks.include(hooks)
    hooks.emit(CREATED)

    assert heard == [CREATED]


def test_included_hooks_do_not_receive_events_of_the_including_hooks(hooks):
    other = Hooks()
    hooks.on(PoolCreated)(print)

    hooks.include(other)

    assert not other.has_listeners(PoolCreated)


async def test_a_recorder_is_a_listener(hooks):
    recorder = Recorder(hooks)
    waiting = asyncio.create_task(recorder.wait_for(PoolReleased))

    hooks.emit(CREATED)
    hooks.emit(RELEASED)

    assert await waiting is RELEASED


# on: what is refused


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ("job:fail", "no event is called 'job:fail', did you mean 'job:failed'?"),
        ("%", "no event is called '%'."),
        (RunningJob, r"RunningJob is an operation: use around\(RunningJob\)"),
        (Job, "expected an event class or the name of one"),
        (CREATED, "expected an event class or the name of one"),
        (print, "expected an event class or the name of one"),
    ],
)
def test_on_rejects_values_that_are_not_events(hooks, event, message):
    with pytest.raises(ConfigurationError, match=message):
        hooks.on(event)


# on: errors


@pytest.mark.feature("F163")
def test_an_error_in_a_plain_listener_is_logged_and_the_other_listeners_run(hooks, caplog):
    heard: list[Event] = []

    @hooks.on(PoolCreated)
    def broken(event: PoolCreated) -> None:
        raise LookupError("boom")

    hooks.on(PoolCreated)(heard.append)
    hooks.emit(CREATED)

    assert heard == [CREATED]
    [(name, level, message)] = logged(caplog)
    assert (name, level) == ("graphile_worker.hooks", logging.ERROR)
    assert message.endswith("broken failed on PoolCreated")
    assert "LookupError: boom" in caplog.text


@pytest.mark.feature("F163")
async def test_an_error_in_an_async_listener_is_logged_and_drain_does_not_raise_it(hooks, caplog):
    @hooks.on(PoolCreated)
    async def broken(event: PoolCreated) -> None:
        raise LookupError("boom")

    hooks.emit(CREATED)
    await hooks.drain()

    [(name, level, message)] = logged(caplog)
    assert (name, level) == ("graphile_worker.hooks", logging.ERROR)
    assert message.endswith("broken failed on PoolCreated")
    assert "LookupError: boom" in caplog.text


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_keyboard_interrupt_and_system_exit_pass_through(hooks, error):
    @hooks.on(PoolCreated)
    def interrupted(event: PoolCreated) -> None:
        raise error

    with pytest.raises(error):
        hooks.emit(CREATED)


def test_keyboard_interrupt_and_system_exit_pass_through_from_an_async_listener(hooks, caplog):
    @hooks.on(PoolCreated)
    async def interrupted(event: PoolCreated) -> None:
        raise SystemExit(3)

    async def emit() -> None:
        hooks.emit(CREATED)
        await hooks.drain()

    with pytest.raises(SystemExit):
        asyncio.run(emit())
    assert logged(caplog) == []


async def test_a_cancelled_error_from_a_plain_listener_is_only_logged(hooks, caplog):
    cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    cancelled.cancel()
    hooks.on(PoolCreated)(lambda event: cancelled.result())

    hooks.emit(CREATED)

    assert len(logged(caplog)) == 1


def test_a_listener_without_a_name_is_logged_by_its_repr(hooks, caplog):
    hooks.on(PoolCreated)(partial(int, "x", base="y"))

    hooks.emit(CREATED)

    assert "functools.partial" in logged(caplog)[0][2]


# on: async listeners


async def test_drain_awaits_events_that_listeners_emit(hooks):
    heard: list[str] = []

    @hooks.on(PoolCreated)
    async def first(event: PoolCreated) -> None:
        await asyncio.sleep(0)
        hooks.emit(RELEASED)

    @hooks.on(PoolReleased)
    async def second(event: PoolReleased) -> None:
        await asyncio.sleep(0)
        heard.append("second")

    hooks.emit(CREATED)
    await hooks.drain()

    assert heard == ["second"]


async def test_drain_without_running_listeners_returns_immediately(hooks):
    await hooks.drain()
    await hooks.drain(timedelta(0))


async def test_a_listener_may_drain_without_waiting_for_itself(hooks):
    heard: list[str] = []

    @hooks.on(PoolCreated)
    async def drains(event: PoolCreated) -> None:
        await hooks.drain()
        heard.append("drained")

    hooks.emit(CREATED)
    await hooks.drain()

    assert heard == ["drained"]


@pytest.mark.parametrize("within", [timedelta(0), timedelta(milliseconds=20)])
async def test_a_listener_that_takes_too_long_is_cancelled_and_named(hooks, caplog, within):
    ended: list[str] = []

    @hooks.on(PoolCreated)
    async def endless(event: PoolCreated) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("endless")

    hooks.emit(CREATED)
    await asyncio.sleep(0)
    await hooks.drain(within)

    assert ended == ["endless"]
    [(_, level, message)] = logged(caplog)
    assert level == logging.WARNING
    assert message.endswith("endless took too long, cancelled")


async def test_a_listener_may_wait_for_the_caller_of_drain(hooks):
    stopped = asyncio.Event()

    @hooks.on(JobFailed)
    @hooks.on(PoolCreated)
    async def stop(event: Event) -> None:
        await stopped.wait()

    hooks.emit(CREATED)
    await hooks.drain(timedelta(milliseconds=20))
    stopped.set()

    await hooks.drain()


def test_a_loop_that_ends_early_leaves_no_coroutine_unawaited(hooks):
    @hooks.on(PoolCreated)
    async def listener(event: PoolCreated) -> None:
        await asyncio.sleep(0)

    async def emit() -> None:
        hooks.emit(CREATED)

    # A coroutine that nobody awaited would warn, and warnings are errors here.
    asyncio.run(emit())
    asyncio.run(hooks.drain())


async def test_drain_leaves_the_listeners_of_another_loop_alone(hooks):
    started, release = threading.Event(), threading.Event()

    @hooks.on(PoolCreated)
    async def waits(event: PoolCreated) -> None:
        started.set()
        await asyncio.to_thread(release.wait)

    async def elsewhere() -> None:
        hooks.emit(CREATED)
        await hooks.drain()

    other = asyncio.create_task(asyncio.to_thread(asyncio.run, elsewhere()))
    await asyncio.to_thread(started.wait)
    await hooks.drain()
    assert not other.done()

    release.set()
    await other


async def test_an_async_listener_sees_the_context_of_the_emitter(hooks):
    job_id = contextvars.ContextVar[int]("job_id")
    seen: list[int] = []

    @hooks.on(PoolCreated)
    async def listener(event: PoolCreated) -> None:
        seen.append(job_id.get())

    job_id.set(7)
    hooks.emit(CREATED)
    await hooks.drain()

    assert seen == [7]


def test_blocking_code_skips_async_listeners_with_one_warning(hooks, caplog):
    heard: list[str] = []

    @hooks.on(PoolEvent)
    async def listener(event: PoolEvent) -> None:
        heard.append("async")

    hooks.on(PoolEvent)(lambda event: heard.append("plain"))
    hooks.emit(CREATED)
    hooks.emit(RELEASED)

    assert heard == ["plain", "plain"]
    [(_, level, message)] = logged(caplog)
    assert level == logging.WARNING
    assert message.endswith("skipped: PoolCreated was emitted in blocking code")


# around: nesting


def test_blocking_code_enters_in_order_and_leaves_in_reverse(hooks, steps):
    hooks.around(Migrating)(steps.plain("a"))
    hooks.around(Migrating)(steps.plain("b"))

    with hooks.around_sync(Migrating(schema="s")):
        steps.take("work")

    assert steps.taken == ["a in", "b in", "work", "b out", "a out"]


async def test_on_the_loop_plain_and_async_wrappers_nest_in_registration_order(hooks, steps):
    hooks.around(RunningJob)(steps.plain("a"))
    hooks.around(RunningJob)(steps.asynchronous("b"))
    hooks.around(RunningJob)(steps.plain("c"))

    async with hooks.around_async(running()):
        steps.take("work")

    assert steps.taken == ["a in", "b in", "c in", "work", "c out", "b out", "a out"]


async def test_plain_wrappers_of_a_plain_task_are_entered_in_its_thread(hooks, steps):
    hooks.around(RunningJob)(steps.plain("a"))
    hooks.around(RunningJob)(steps.asynchronous("b"))
    hooks.around(RunningJob)(steps.plain("c"))

    def work(in_thread):
        with in_thread:
            steps.take("work")

    async with hooks.around_thread(running()) as in_thread:
        await asyncio.to_thread(work, in_thread)

    assert steps.taken == ["b in", "a in", "c in", "work", "c out", "a out", "b out"]
    assert steps.threads["b in"] == steps.threads["b out"] == threading.get_ident()
    inside = {steps.threads[step] for step in ("a in", "c in", "work", "c out", "a out")}
    assert len(inside) == 1
    assert threading.get_ident() not in inside


async def test_a_context_variable_set_on_the_loop_is_seen_in_the_thread(hooks):
    span = contextvars.ContextVar("span", default="none")
    seen: list[str] = []

    @hooks.around(RunningJob)
    @asynccontextmanager
    async def traced(moment):
        token = span.set("job")
        yield
        span.reset(token)

    @hooks.around(RunningJob)
    @contextmanager
    def looks(moment):
        seen.append(span.get())
        yield

    def work(in_thread):
        with in_thread:
            seen.append(span.get())

    async with hooks.around_thread(running()) as in_thread:
        await asyncio.to_thread(work, in_thread)
    assert seen == ["job", "job"]


async def test_without_wrappers_one_shared_null_context_is_entered(hooks):
    moment = running()

    with hooks.around_sync(moment):
        pass
    async with hooks.around_async(moment):
        pass
    async with hooks.around_thread(moment) as in_thread:
        with in_thread:
            pass

    assert hooks.around_sync(moment) is hooks.around_sync(moment)
    assert not hooks.has_wrappers(RunningJob)


def test_a_wrapper_is_called_after_the_previous_one_was_entered(hooks, steps):
    hooks.around(Migrating)(steps.plain("a"))

    @hooks.around(Migrating)
    def second(moment: Migrating) -> nullcontext[None]:
        steps.take(f"second called for {moment.schema}")
        return nullcontext()

    with hooks.around_sync(Migrating(schema="s")):
        pass

    assert steps.taken == ["a in", "second called for s", "a out"]


async def test_each_job_gets_new_context_managers(hooks, steps):
    hooks.around(RunningJob)(steps.plain("a"))

    async with hooks.around_async(running()), hooks.around_async(running()):
        pass

    assert steps.taken == ["a in", "a in", "a out", "a out"]


def test_the_specs_of_added_jobs_can_be_replaced(hooks):
    @hooks.around(AddingJobs)
    @contextmanager
    def urgent(moment):
        moment.specs[:] = [JobSpec(spec.identifier, priority=-1) for spec in moment.specs]
        yield

    adding = AddingJobs(specs=[JobSpec("resize")])
    with hooks.around_sync(adding):
        assert adding.specs == [JobSpec("resize", priority=-1)]


# around: errors


def swallowing(moment):
    return _Swallowing()


class _Swallowing:
    def __enter__(self):
        return None

    def __exit__(self, *error):
        return True


class _SwallowingAsync:
    async def __aenter__(self):
        return None

    async def __aexit__(self, *error):
        return True


def test_an_error_before_the_operation_fails_it_and_exits_the_outer_wrappers(hooks, steps):
    hooks.around(Migrating)(steps.plain("a"))

    @hooks.around(Migrating)
    @contextmanager
    def refuses(moment):
        raise PermissionError
        yield

    with pytest.raises(PermissionError), hooks.around_sync(Migrating(schema="s")):
        steps.take("work")

    assert steps.taken == ["a in", "a out"]


async def test_an_error_after_the_operation_fails_it(hooks):
    @hooks.around(RunningJob)
    @asynccontextmanager
    async def too_late(moment):
        yield
        raise PermissionError

    with pytest.raises(PermissionError):
        async with hooks.around_async(running()):
            pass


async def test_an_error_of_the_operation_passes_through_all_wrappers(hooks, steps):
    hooks.around(RunningJob)(steps.plain("a"))
    hooks.around(RunningJob)(steps.asynchronous("b"))

    with pytest.raises(LookupError):
        async with hooks.around_async(running()):
            raise LookupError

    assert steps.taken == ["a in", "b in", "b out", "a out"]


def test_an_error_suppressed_in_blocking_code_counts_as_success(hooks):
    hooks.around(Migrating)(swallowing)

    with hooks.around_sync(Migrating(schema="s")):
        raise LookupError


@pytest.mark.parametrize("wrapper", [swallowing, lambda moment: _SwallowingAsync()])
async def test_an_error_suppressed_on_the_loop_counts_as_success(hooks, wrapper):
    hooks.around(RunningJob)(wrapper)

    async with hooks.around_async(running()):
        raise LookupError


async def test_an_error_suppressed_in_the_thread_does_not_reach_the_loop(hooks, steps):
    seen: list[str] = []
    hooks.around(RunningJob)(swallowing)

    def work(in_thread):
        with in_thread:
            raise LookupError

    async with hooks.around_thread(running()) as in_thread:
        await asyncio.to_thread(work, in_thread)
        seen.append("went on")

    assert seen == ["went on"]


async def test_an_error_in_the_thread_reaches_the_async_wrappers(hooks, steps):
    hooks.around(RunningJob)(steps.plain("a"))
    hooks.around(RunningJob)(lambda moment: _SwallowingAsync())

    def work(in_thread):
        with in_thread:
            raise LookupError

    async with hooks.around_thread(running()) as in_thread:
        await asyncio.to_thread(work, in_thread)

    assert steps.taken == ["a in", "a out"]


async def test_a_cancelled_job_exits_its_wrappers(hooks, steps):
    hooks.around(RunningJob)(steps.asynchronous("a"))
    entered = asyncio.Event()

    async def job() -> None:
        async with hooks.around_async(running()):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(job())
    await entered.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps.taken == ["a in", "a out"]


# around: what is refused


@pytest.mark.parametrize("moment", [Operation, Event, JobStarted, "job:start", print, CREATED])
def test_around_takes_only_the_three_operations(hooks, moment):
    with pytest.raises(ConfigurationError, match="AddingJobs, RunningJob, Migrating"):
        hooks.around(moment)


def _generator(moment):
    yield


async def _async_generator(moment):
    yield


async def _coroutine(moment):
    return nullcontext()


@pytest.mark.parametrize(
    ("wrapper", "message"),
    [
        (_generator, "_generator is a generator: decorate it with @contextmanager"),
        (_async_generator, "_async_generator is an async generator: .* @asynccontextmanager"),
        (_coroutine, "_coroutine is async: it must be a plain function"),
    ],
)
def test_a_function_that_cannot_return_a_context_manager_is_rejected_at_registration(
    hooks, wrapper, message
):
    with pytest.raises(ConfigurationError, match=message):
        hooks.around(RunningJob)(wrapper)
    assert not hooks.has_wrappers(RunningJob)


def test_a_wrapper_that_returns_no_context_manager_is_named(hooks):
    hooks.around(Migrating)(lambda moment: 7)

    with (
        pytest.raises(ConfigurationError, match="<lambda> must return a context manager, got int"),
        hooks.around_sync(Migrating(schema="s")),
    ):
        pass


async def test_adding_jobs_rejects_async_wrappers(hooks, steps):
    hooks.around(AddingJobs)(steps.asynchronous("a"))
    adding = AddingJobs(specs=[])

    with pytest.raises(ConfigurationError, match="AddingJobs is for blocking code too"):
        hooks.around_sync(adding).__enter__()
    with pytest.raises(ConfigurationError, match="AddingJobs is for blocking code too"):
        await hooks.around_async(adding).__aenter__()


def test_blocking_code_rejects_async_wrappers(hooks, steps):
    hooks.around(Migrating)(steps.asynchronous("a"))

    with pytest.raises(ConfigurationError, match="Migrating is for blocking code too"):
        hooks.around_sync(Migrating(schema="s")).__enter__()


async def test_a_context_manager_of_both_kinds_counts_as_plain(hooks, steps):
    class Both(_SwallowingAsync):
        def __enter__(self):
            steps.take("plain")

        def __exit__(self, *error):
            return None

    hooks.around(RunningJob)(lambda moment: Both())
    async with hooks.around_async(running()):
        pass

    assert steps.taken == ["plain"]


async def test_a_worker_waits_while_too_many_calls_of_async_listeners_run():
    hooks, may_end = Hooks(max_listener_calls=2), asyncio.Event()

    @hooks.on(PoolReleased)
    async def slow(event: PoolReleased) -> None:
        await may_end.wait()

    hooks.emit(PoolReleased(pool_id="p"))
    assert not hooks.is_behind
    hooks.emit(PoolReleased(pool_id="p"))
    assert hooks.is_behind
    catching_up = asyncio.create_task(hooks.catch_up())
    await asyncio.sleep(0)
    assert not catching_up.done()

    may_end.set()
    await catching_up
    assert not hooks.is_behind


async def test_a_worker_does_not_wait_long_for_listeners_that_may_wait_for_it():
    limit = timedelta(milliseconds=10)
    hooks, may_end = Hooks(max_listener_calls=1, catch_up_timeout=limit), asyncio.Event()

    @hooks.on(PoolReleased)
    async def stuck(event: PoolReleased) -> None:
        await may_end.wait()

    hooks.emit(PoolReleased(pool_id="p"))

    await hooks.catch_up()

    assert hooks.is_behind
    may_end.set()
    await hooks.drain()
