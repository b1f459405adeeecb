"""Run one task; turn its ending into an outcome. Whatever a task does, only its own job fails."""

import asyncio
import contextvars
import inspect
import json
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, suppress
from functools import partial
from types import FrameType
from typing import Any

from graphile_worker.errors import JobNotHeld, JobSpecError
from graphile_worker.events import RunningJob
from graphile_worker.hooks import Hooks
from graphile_worker.jobs import Job, When, check_when
from graphile_worker.payloads import encode
from graphile_worker.retries import Backoff, Discard, PartialFailure, Retry, Snooze
from graphile_worker.sql.holding import HeldJob
from graphile_worker.tasks import BatchTask, Task
from graphile_worker.tasks.outcomes import Batch, ItemErrors, is_listing
from graphile_worker.worker.context import Context
from graphile_worker.worker.outcomes import (
    Completed,
    Failed,
    Interrupted,
    Outcome,
    Snoozed,
    Written,
)
from graphile_worker.worker.threads import Threads

# Of nearly all jobs.
NO_ERRORS: ItemErrors = {}


async def run_job(
    task: Task[..., Any], context: Context, threads: Threads, hooks: Hooks
) -> Outcome:
    """Run the task of a held job and say how it ended."""
    held = context.held
    run = _run_on_loop if task.runs_on_loop else _run_in_thread
    try:
        if task.options.timeout is None:
            errors = await run(task, context, threads, hooks)
        else:
            async with asyncio.timeout(task.options.timeout.total_seconds()):
                errors = await run(task, context, threads, hooks)
    except (Snooze, Retry, Discard) as signal:
        return Written(held, signal) if context.written else _asked(held, signal)
    except asyncio.CancelledError as error:
        if context.written:
            return Written(held)
        if context.interrupted:
            return Interrupted(held)
        if _is_being_cancelled():
            raise
        # A task that was asked to give up may say so like this.
        return Interrupted(held) if context.cancelled else _failed(task, context, error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return _failed(task, context, error)
    if errors:
        return _partly_failed(task, context, errors)
    return Written(held) if context.written else Completed(held)


async def _run_on_loop(
    task: Task[..., Any], context: Context, _threads: Threads, hooks: Hooks
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
        else:
            result = await _call(task, context, args, kwargs)
        if batch is None:
            return NO_ERRORS
        return batch.errors_in(await _settled(result) if task.is_async else result)
    except PartialFailure as failure:
        return _errors_of(batch, failure)


async def _call(
    task: Task[..., Any], context: Context, args: list[Any], kwargs: dict[str, Any]
) -> object:
    result = task.fn(*args, **kwargs)
    if task.is_async:
        return await result
    _refuse_unrun(result)
    return result


async def _settled(result: object) -> object:
    """Outcomes of items may still have to be awaited, as promises of the reference's tasks."""
    if not is_listing(result) or not any(map(inspect.isawaitable, result)):
        return result
    return await asyncio.gather(*map(_ended, result))


async def _ended(outcome: object) -> object:
    if not inspect.isawaitable(outcome):
        return outcome
    try:
        return await outcome
    except asyncio.CancelledError as error:
        if _is_being_cancelled():
            raise
        return error
    except BaseException as error:
        # Whatever it is: it would end the loop.
        return error


async def _run_in_thread(
    task: Task[..., Any], context: Context, threads: Threads, hooks: Hooks
) -> ItemErrors:
    args, kwargs = task.signature.call(context.job.payload, context.blocking)
    batch = task.signature.batch(args)
    if isinstance(task, BatchTask):
        context.has_items = True
    try:
        async with hooks.around_thread(_running(context)) as in_thread:
            call = partial(task.fn, *args, **kwargs)
            run = contextvars.copy_context().run
            result = await threads.run(partial(run, _run_here, call, in_thread, context))
        return NO_ERRORS if batch is None else batch.errors_in(result)
    except PartialFailure as failure:
        return _errors_of(batch, failure)


def _errors_of(batch: Batch | None, failure: PartialFailure) -> ItemErrors:
    if batch is None:
        raise TypeError("PartialFailure is for batches: this payload is no array") from failure
    return batch.errors_of(failure)


def _running(context: Context) -> RunningJob:
    return RunningJob(pool_id=context.pool_id, worker_id=context.worker_id, job=context.held.job)


def _run_here(
    call: Callable[[], object], around: AbstractContextManager[object], context: Context
) -> object:
    with around:
        result = call()
        _refuse_unrun(result)
        return result


def job_of(pool_ids: Collection[str], frame: FrameType) -> Job | None:
    """The job of these whose task is called there, if any."""
    if frame.f_code not in (_call.__code__, _run_here.__code__):
        return None
    context: Context = frame.f_locals["context"]
    return context.job if context.pool_id in pool_ids else None


def _refuse_unrun(result: object) -> None:
    """A function that only made a coroutine or a generator has done nothing yet."""
    if inspect.iscoroutine(result):
        result.close()
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise TypeError(
            f"the task returned a {type(result).__name__} that nobody runs: make it, and what "
            "decorates it, async def"
        )


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
    if isinstance(error, JobNotHeld) or task.options.retry is None:
        return Failed(context.held, error)
    try:
        when = _next_attempt(task, context, error)
    except Exception as broken:
        error.add_note(f"and its retry policy failed, so it backs off as usual: {broken!r}")
        return Failed(context.held, error)
    return Failed(context.held, error, when=when, give_up=when is None)


def _next_attempt(task: Task[..., Any], context: Context, error: BaseException) -> When | None:
    policy = task.options.retry
    if isinstance(policy, Backoff):
        return policy.delay(error, context.job.attempts)
    assert policy is not None
    when = policy(error, context.job)
    if when is not None:
        check_when("retry", when)
    return when


def _is_being_cancelled() -> bool:
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0
