"""Run one task; turn its ending into an outcome. Whatever a task does, only its own job fails."""

import asyncio
import contextvars
import json
import sys
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator
from contextlib import AbstractContextManager, suppress
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

from graphile_worker.errors import JobSpecError
from graphile_worker.events import RunningJob
from graphile_worker.hooks import Hooks
from graphile_worker.jobs import Job
from graphile_worker.payloads import encode
from graphile_worker.retries import Discard, PartialFailure, Retry, Snooze
from graphile_worker.sql.holding import HeldJob
from graphile_worker.tasks import BatchTask, Task
from graphile_worker.tasks.importing import locate
from graphile_worker.tasks.outcomes import ItemErrors
from graphile_worker.worker.children import Children
from graphile_worker.worker.context import Context
from graphile_worker.worker.messages import Message, read_error, read_next, read_signal
from graphile_worker.worker.outcomes import (
    Completed,
    Failed,
    Interrupted,
    Outcome,
    Snoozed,
    Written,
)
from graphile_worker.worker.results import (
    NO_ERRORS,
    errors_of,
    refuse_unrun,
    settled,
)
from graphile_worker.worker.retrying import next_attempt
from graphile_worker.worker.signals import is_interrupt
from graphile_worker.worker.threads import Threads

Running = asyncio.Task[None]
Body = Coroutine[Any, Any, None]


class Places(NamedTuple):
    """Where tasks run, besides the event loop."""

    threads: Threads
    children: Children


if sys.version_info >= (3, 12):

    def _started(body: Body, variables: contextvars.Context) -> Running | None:
        # Eager: a task that never waits for anything costs no turn of the event loop.
        loop = asyncio.get_running_loop()
        return asyncio.Task(body, loop=loop, context=variables, eager_start=True)

else:

    def _started(body: Body, variables: contextvars.Context) -> Running | None:
        # The first step is made here, as an asyncio task costs more than a tiny job. What a task
        # does in it to the current asyncio task after it has ended, it does to its worker, which
        # then starts again: WorkerPool takes care of that.
        try:
            waits_for = variables.run(body.send, None)
        except StopIteration:
            return None
        return asyncio.create_task(_Resumed(body, waits_for), context=variables)

    class _Resumed(Coroutine[Any, Any, None]):
        """The steps of a coroutine after the first, at whose end it waits for this."""

        def __init__(self, body: Body, waits_for: Any) -> None:
            self._body = body
            self._waits_for = waits_for
            self._is_told = False

        def send(self, value: Any) -> Any:
            if self._is_told:
                return self._body.send(value)
            self._is_told = True
            return self._waits_for

        def throw(self, *error: Any) -> Any:
            if not self._is_told:
                self._is_told = True
                # Cancelled before the asyncio task could cancel what it waits for.
                if self._waits_for is not None and self._waits_for.cancel():
                    return self._waits_for
            return self._body.throw(*error)

        def close(self) -> None:
            self._body.close()

        def __await__(self) -> Generator[Any, Any, None]:
            return self._body.__await__()


async def run_job(
    task: Task[..., Any],
    context: Context,
    places: Places,
    hooks: Hooks,
    variables: contextvars.Context | None = None,
) -> Outcome:
    """Run the task of a held job, in an asyncio task of its own, and say how it ended.

    A task may cancel the asyncio task that it runs in, and may change the context variables, which
    are its own copy: no other job notices it.
    """
    slot = context.slot = asyncio.current_task()
    assert slot is not None
    before = slot.cancelling()
    if variables is None:
        variables = contextvars.copy_context()
    running = context.running = _started(_run(task, context, places, hooks), variables)
    if slot.cancelling() > before:
        await _undo_cancellation(slot, before, running)
    if running is not None and not running.done():
        with suppress(asyncio.CancelledError):
            await running
    # There is no outcome if it was cancelled from outside, or before its first step.
    return context.outcome or _raised(task, context, asyncio.CancelledError())


async def _undo_cancellation(slot: asyncio.Task[Any], before: int, running: Running | None) -> None:
    """The first step of a task has cancelled the slot: that is for the task alone."""
    while slot.cancelling() > before:
        slot.uncancel()
    if running is None:
        # Otherwise the next job would be hit by it.
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)


async def _run(task: Task[..., Any], context: Context, places: Places, hooks: Hooks) -> None:
    run = _way_of(task)
    outcome: Outcome
    try:
        if task.options.timeout is None:
            errors = await run(task, context, places, hooks)
        else:
            async with asyncio.timeout(task.options.timeout.total_seconds()) as context.limit:
                errors = await run(task, context, places, hooks)
        if errors:
            outcome = _partly_failed(task, context, errors)
        else:
            outcome = Written(context.held) if context.written else Completed(context.held)
    except BaseException as error:
        outcome = _raised(task, context, error)
    # Not returned: asyncio drops the result of a task that is cancelled in its last step.
    context.outcome = outcome


def _way_of(task: Task[..., Any]) -> Callable[..., Awaitable[ItemErrors]]:
    if task.runs_in_process:
        return _run_in_process
    return _run_on_loop if task.runs_on_loop else _run_in_thread


async def _run_on_loop(
    task: Task[..., Any], context: Context, _places: Places, hooks: Hooks
) -> ItemErrors:
    # Read here, so that a payload that cannot be read fails this job alone.
    given = context if task.is_async else context.blocking
    args, kwargs = task.signature.call(context.held.job.payload, given)
    batch = task.signature.batch(args)
    if isinstance(task, BatchTask):
        context.has_items = True
    try:
        if hooks.wraps(RunningJob):
            async with hooks.around_async(_running(context)):
                result = await _call(task, context, args, kwargs)
        elif task.is_async:
            # As _call does, and without its cost, which a tiny job would notice.
            result = await task.fn(*args, **kwargs)
        else:
            result = await _call(task, context, args, kwargs)
        if batch is None:
            return NO_ERRORS
        return batch.errors_in(await settled(result) if task.is_async else result)
    except PartialFailure as failure:
        return errors_of(batch, failure)


async def _call(
    task: Task[..., Any], context: Context, args: list[Any], kwargs: dict[str, Any]
) -> object:
    result = task.fn(*args, **kwargs)
    if task.is_async:
        return await result
    refuse_unrun(result)
    return result


async def _run_in_thread(
    task: Task[..., Any], context: Context, places: Places, hooks: Hooks
) -> ItemErrors:
    args, kwargs = task.signature.call(context.job.payload, context.blocking)
    batch = task.signature.batch(args)
    if isinstance(task, BatchTask):
        context.has_items = True
    try:
        async with hooks.around_thread(_running(context)) as in_thread:
            call = partial(task.fn, *args, **kwargs)
            run = contextvars.copy_context().run
            work = places.threads.run(partial(run, _run_here, call, in_thread, context))
            result = await (work if context.limit is None else _past_timeout(task, context, work))
        return NO_ERRORS if batch is None else batch.errors_in(result)
    except PartialFailure as failure:
        return errors_of(batch, failure)


async def _past_timeout(task: Task[..., Any], context: Context, work: Awaitable[Any]) -> Any:
    """Wait for a function in a thread. It cannot be stopped, so at its timeout that is only noted.

    If the job failed at once, its next attempt would run beside this one.
    """
    limit, timeout = context.limit, task.options.timeout
    assert limit is not None
    assert timeout is not None
    ends_at = limit.when()
    assert ends_at is not None
    limit.reschedule(None)
    timer = asyncio.get_running_loop().call_at(ends_at, context.overrun, timeout)
    failure: BaseException | None = None
    result = None
    try:
        result = await work
    except BaseException as error:
        failure = error
    timer.cancel()
    if context.overran is not None and not context.is_leaving:
        context.end_overrun()
        raise TimeoutError(f"the function ran longer than its timeout of {timeout}") from failure
    limit.reschedule(ends_at)
    if failure is not None:
        raise failure
    return result


async def _run_in_process(
    task: Task[..., Any], context: Context, places: Places, hooks: Hooks
) -> ItemErrors:
    logger = context.logger
    async with hooks.around_async(_running(context)):
        answer = await places.children.run(
            locate(task), context.job, lambda line: logger.info("%s", line)
        )
        return _answered(context, answer)


def _answered(context: Context, answer: Message) -> ItemErrors:
    """What a process said about its job, as if it had happened here."""
    if "signal" in answer:
        raise read_signal(answer)
    if answer.get("next") is not None:
        # Its policy knew the error itself, of which only words came over.
        context.following = read_next(answer["next"])
    if "error" in answer:
        raise read_error(answer["error"])
    return {int(at): read_error(each) for at, each in answer.get("items", {}).items()}


def _running(context: Context) -> RunningJob:
    return RunningJob(pool_id=context.pool_id, worker_id=context.worker_id, job=context.held.job)


def _run_here(
    call: Callable[[], object], around: AbstractContextManager[object], context: Context
) -> object:
    with around:
        result = call()
        refuse_unrun(result)
        return result


def job_of(pool_ids: Collection[str], frame: FrameType) -> Job | None:
    """The job of these whose task is called there, if any."""
    if frame.f_code not in (_call.__code__, _run_on_loop.__code__, _run_here.__code__):
        return None
    context: Context = frame.f_locals["context"]
    return context.job if context.pool_id in pool_ids else None


def _raised(task: Task[..., Any], context: Context, error: BaseException) -> Outcome:
    """How a job ended whose task raised this. What came from outside the task is raised again."""
    held = context.held
    if isinstance(error, asyncio.CancelledError):
        if context.written:
            return Written(held)
        if context.interrupted:
            return Interrupted(held)
        if context.is_leaving:
            raise error
        # A task that was asked to give up may say so like this.
        if context.cancelled:
            return Interrupted(held)
    elif is_interrupt(error):
        raise error
    try:
        if isinstance(error, Snooze | Retry | Discard):
            return Written(held, error) if context.written else _asked(held, error)
        return _failed(task, context, error)
    except Exception as broken:
        # The error itself is broken, for example a subclass of Retry that has no delay.
        return Written(held, broken) if context.written else Failed(held, broken)


def _asked(held: HeldJob, signal: Snooze | Retry | Discard) -> Outcome:
    """What a task said itself about how its job goes on."""
    match signal:
        case Snooze():
            return Snoozed(held, signal.delay)
        case Retry():
            return Failed(held, signal, when=signal.delay)
        case Discard():
            return Failed(held, signal, give_up=True)


def _partly_failed(task: Task[..., Any], context: Context, errors: ItemErrors) -> Outcome:
    """Only what failed of a batch is tried again."""
    failure = PartialFailure(errors)
    failure.__cause__ = BaseExceptionGroup("of its items", list(failure.errors.values()))
    outcome = _failed(task, context, failure)
    if isinstance(outcome, Failed):
        # Read anew, as the task may have changed what it was given.
        items = json.loads(context.job.payload_text)
        if len(errors) < len(items):
            # Numbers that JSON has and Python has not stay where they are, and the rest with them.
            with suppress(JobSpecError):
                outcome.left = encode([items[at] for at in failure.errors])
    return outcome


def _failed(task: Task[..., Any], context: Context, error: BaseException) -> Outcome:
    if context.written:
        # The job ended with the task's own transaction; what came after changes nothing.
        return Written(context.held, error)
    following = context.following or next_attempt(task, context.job, error)
    return Failed(context.held, error, when=following.when, give_up=following.give_up)
