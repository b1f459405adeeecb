"""Run one task; turn its ending into an outcome. Whatever a task does, only its own job fails."""

import asyncio
import contextvars
import json
from collections.abc import Awaitable, Callable, Collection
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
    is_being_cancelled,
    refuse_unrun,
    settled,
)
from graphile_worker.worker.retrying import next_attempt
from graphile_worker.worker.threads import Threads


class Places(NamedTuple):
    """Where tasks run, besides the event loop."""

    threads: Threads
    children: Children


async def run_job(task: Task[..., Any], context: Context, places: Places, hooks: Hooks) -> Outcome:
    """Run the task of a held job and say how it ended."""
    held = context.held
    run = _way_of(task)
    try:
        if task.options.timeout is None:
            errors = await run(task, context, places, hooks)
        else:
            async with asyncio.timeout(task.options.timeout.total_seconds()):
                errors = await run(task, context, places, hooks)
    except (Snooze, Retry, Discard) as signal:
        return Written(held, signal) if context.written else _asked(held, signal)
    except asyncio.CancelledError as error:
        if context.written:
            return Written(held)
        if context.interrupted:
            return Interrupted(held)
        if is_being_cancelled():
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
            result = await places.threads.run(partial(run, _run_here, call, in_thread, context))
        return NO_ERRORS if batch is None else batch.errors_in(result)
    except PartialFailure as failure:
        return errors_of(batch, failure)


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
    if frame.f_code not in (_call.__code__, _run_here.__code__):
        return None
    context: Context = frame.f_locals["context"]
    return context.job if context.pool_id in pool_ids else None


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
