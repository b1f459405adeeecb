"""Run one task and turn its result into an outcome. Its errors fail only its own job."""

import asyncio
import contextvars
import json
import sys
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator
from contextlib import AbstractContextManager, suppress
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

from graphile_worker._payloads import encode
from graphile_worker._worker.call_results import (
    NO_ERRORS,
    await_item_results,
    encode_result,
    get_item_errors,
    is_unstorable_result,
    reject_unawaited,
)
from graphile_worker._worker.context import Context
from graphile_worker._worker.outcomes import (
    Completed,
    CompletedInTransaction,
    Failed,
    Interrupted,
    Outcome,
    Snoozed,
)
from graphile_worker._worker.process_pool import ProcessPool
from graphile_worker._worker.process_protocol import (
    Message,
    read_error,
    read_next_attempt,
    read_outcome_exception,
)
from graphile_worker._worker.retry_decision import decide_next_attempt
from graphile_worker._worker.run_state import RunState
from graphile_worker._worker.signals import is_interrupt
from graphile_worker._worker.threads import ThreadPool
from graphile_worker.errors import JobSpecError
from graphile_worker.events import RunningJob
from graphile_worker.hooks import Hooks
from graphile_worker.jobs import Job
from graphile_worker.retries import Discard, PartialFailure, Retry, Snooze
from graphile_worker.tasks import BatchTask, Task
from graphile_worker.tasks.batch_results import ItemErrors
from graphile_worker.tasks.importing import locate_task

JobTask = asyncio.Task[None]
JobCoroutine = Coroutine[Any, Any, None]


class Executors(NamedTuple):
    """Where tasks run, besides the event loop."""

    threads: ThreadPool
    processes: ProcessPool


if sys.version_info >= (3, 12):

    def _start_job_task(body: JobCoroutine, variables: contextvars.Context) -> JobTask | None:
        # Started eagerly, so that a task that never waits needs no turn of the event loop.
        loop = asyncio.get_running_loop()
        return asyncio.Task(body, loop=loop, context=variables, eager_start=True)

else:

    def _start_job_task(body: JobCoroutine, variables: contextvars.Context) -> JobTask | None:
        # The first step runs here, because an asyncio task costs more than a tiny job. A task that
        # cancels the current asyncio task in this step cancels its worker. WorkerPool then restarts
        # the worker.
        try:
            awaited = variables.run(body.send, None)
        except StopIteration:
            return None
        return asyncio.create_task(_ResumedCoroutine(body, awaited), context=variables)

    class _ResumedCoroutine(Coroutine[Any, Any, None]):
        """The rest of a coroutine after its first step, which ended with `awaited`."""

        def __init__(self, body: JobCoroutine, awaited: Any) -> None:
            self._body = body
            self._awaited = awaited
            self._is_resumed = False

        def send(self, value: Any) -> Any:
            if self._is_resumed:
                return self._body.send(value)
            self._is_resumed = True
            return self._awaited

        def throw(self, *error: Any) -> Any:
            if not self._is_resumed:
                self._is_resumed = True
                # Cancelled before the asyncio task could cancel the future that it waits for.
                if self._awaited is not None and self._awaited.cancel():
                    return self._awaited
            return self._body.throw(*error)

        def close(self) -> None:
            self._body.close()

        def __await__(self) -> Generator[Any, Any, None]:
            return self._body.__await__()


async def run_job(
    task: Task[..., Any],
    context: Context,
    executors: Executors,
    hooks: Hooks,
    variables: contextvars.Context | None = None,
) -> Outcome:
    """Run the task of a claimed job in its own asyncio task, and return its outcome.

    The task may cancel its asyncio task and change its copy of the context variables: other jobs
    are not affected.
    """
    worker_task = context.worker_task = asyncio.current_task()
    assert worker_task is not None
    cancel_count = worker_task.cancelling()
    if isinstance(task, BatchTask):
        context.is_batch = True
    if variables is None:
        variables = contextvars.copy_context()
    job_task = context.job_task = _start_job_task(
        _run_task(task, context, executors, hooks), variables
    )
    if worker_task.cancelling() > cancel_count:
        await _undo_cancellation(worker_task, cancel_count, job_task)
    if job_task is not None and not job_task.done():
        with suppress(asyncio.CancelledError):
            await job_task
    # The outcome is missing if the task was cancelled from outside or before its first step.
    return context.outcome or _build_error_outcome(task, context, asyncio.CancelledError())


async def _undo_cancellation(
    worker_task: asyncio.Task[Any], cancel_count: int, job_task: JobTask | None
) -> None:
    """Undo that the first step of a task cancelled its worker."""
    while worker_task.cancelling() > cancel_count:
        worker_task.uncancel()
    if job_task is None:
        # Otherwise the cancellation would reach the next job.
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)


async def _run_task(
    task: Task[..., Any], context: Context, executors: Executors, hooks: Hooks
) -> None:
    run = _choose_runner(task)
    outcome: Outcome
    try:
        if task.options.timeout is None:
            errors = await run(task, context, executors, hooks)
        else:
            async with asyncio.timeout(
                task.options.timeout.total_seconds()
            ) as context.timeout_handle:
                errors = await run(task, context, executors, hooks)
        if errors:
            outcome = _build_partial_failure(task, context, errors)
        elif context.state is RunState.COMMITTED:
            outcome = CompletedInTransaction(context.claimed)
        else:
            if context.retention is not None:
                _encode_kept_result(context)
            outcome = Completed(context.claimed)
    except BaseException as error:
        outcome = _build_error_outcome(task, context, error)
    # Not returned, because asyncio loses the result of a task that is cancelled in its last step.
    context.outcome = outcome


def _encode_kept_result(context: Context) -> None:
    """Encode the result of the task, if that is kept and not encoded yet."""
    assert context.retention is not None
    if not context.retention.results or (context.result is None and context.result_text):
        return
    context.result_text = encode_result(context.result)


def _choose_runner(task: Task[..., Any]) -> Callable[..., Awaitable[ItemErrors]]:
    if task.runs_in_process:
        return _run_in_process
    return _run_on_loop if task.runs_on_loop else _run_in_thread


async def _run_on_loop(
    task: Task[..., Any], context: Context, _executors: Executors, hooks: Hooks
) -> ItemErrors:
    # Read here, so that an invalid payload fails only this job.
    task_context = context if task.is_async else context.sync_context
    args, kwargs = task.signature.build_call_arguments(context.claimed.job.payload, task_context)
    batch = task.signature.get_batch(args)
    try:
        if hooks.has_wrappers(RunningJob):
            async with hooks.around_async(_build_operation(task, context)):
                result = await _call_task(task, context, args, kwargs)
        elif task.is_async:
            # The same as `_call_task`, without the cost of that call.
            result = await task.fn(*args, **kwargs)
        else:
            result = await _call_task(task, context, args, kwargs)
        if batch is None:
            context.result = result
            return NO_ERRORS
        return batch.read_result(await await_item_results(result) if task.is_async else result)
    except PartialFailure as failure:
        return get_item_errors(batch, failure)


async def _call_task(
    task: Task[..., Any], context: Context, args: list[Any], kwargs: dict[str, Any]
) -> object:
    result = task.fn(*args, **kwargs)
    if task.is_async:
        return await result
    reject_unawaited(result)
    return result


async def _run_in_thread(
    task: Task[..., Any], context: Context, executors: Executors, hooks: Hooks
) -> ItemErrors:
    args, kwargs = task.signature.build_call_arguments(context.job.payload, context.sync_context)
    batch = task.signature.get_batch(args)
    try:
        async with hooks.around_thread(_build_operation(task, context)) as in_thread:
            call = partial(task.fn, *args, **kwargs)
            run = contextvars.copy_context().run
            work = executors.threads.run(
                partial(run, _run_in_current_thread, call, in_thread, context)
            )
            result = await (
                work if context.timeout_handle is None else _wait_past_timeout(task, context, work)
            )
        if batch is None:
            context.result = result
            return NO_ERRORS
        return batch.read_result(result)
    except PartialFailure as failure:
        return get_item_errors(batch, failure)


async def _wait_past_timeout(task: Task[..., Any], context: Context, work: Awaitable[Any]) -> Any:
    """Wait for a function in a thread, which cannot be stopped at its timeout.

    If the job failed at the timeout, its next attempt would run at the same time.
    """
    limit, timeout = context.timeout_handle, task.options.timeout
    assert limit is not None
    assert timeout is not None
    ends_at = limit.when()
    assert ends_at is not None
    limit.reschedule(None)
    timer = asyncio.get_running_loop().call_at(ends_at, context.mark_overrun, timeout)
    failure: BaseException | None = None
    result = None
    try:
        result = await work
    except BaseException as error:
        failure = error
    timer.cancel()
    if context.overrun_event is not None and not context.is_worker_cancelled:
        context.clear_overrun()
        raise TimeoutError(f"the function ran longer than its timeout of {timeout}") from failure
    limit.reschedule(ends_at)
    if failure is not None:
        raise failure
    return result


async def _run_in_process(
    task: Task[..., Any], context: Context, executors: Executors, hooks: Hooks
) -> ItemErrors:
    logger, operation = context.logger, _build_operation(task, context)
    async with hooks.around_async(operation):
        response = await executors.processes.run(
            locate_task(task),
            operation,
            lambda line: logger.info("%s", line),
            keeps_result=context.retention is not None and context.retention.results,
        )
        context.result_text = response.get("result")
        return _read_response(context, response)


def _read_response(context: Context, response: Message) -> ItemErrors:
    """Return the errors of the items, or raise what the task raised in its process."""
    if "requested" in response:
        raise read_outcome_exception(response)
    if response.get("next") is not None:
        # The retry policy ran in the process, because it needs the error object.
        context.next_attempt = read_next_attempt(response["next"])
    if "error" in response:
        raise read_error(response["error"])
    return {int(index): read_error(each) for index, each in response.get("items", {}).items()}


def _build_operation(task: Task[..., Any], context: Context) -> RunningJob:
    return RunningJob(
        pool_id=context.pool_id,
        worker_id=context.worker_id,
        job=context.claimed.job,
        runs_in=task.runs_in,
    )


def _run_in_current_thread(
    call: Callable[[], object], wrapper: AbstractContextManager[object], context: Context
) -> object:
    with wrapper:
        result = call()
        reject_unawaited(result)
        return result


def find_job_in_frame(pool_ids: Collection[str], frame: FrameType) -> Job | None:
    """Return the job of one of these pools whose task this frame calls, or None."""
    if frame.f_code not in (
        _call_task.__code__,
        _run_on_loop.__code__,
        _run_in_current_thread.__code__,
    ):
        return None
    context: Context = frame.f_locals["context"]
    return context.job if context.pool_id in pool_ids else None


def _build_error_outcome(task: Task[..., Any], context: Context, error: BaseException) -> Outcome:
    """Return the outcome of a task that raised. Raise errors that come from outside of it."""
    claimed, is_committed = context.claimed, context.state is RunState.COMMITTED
    if isinstance(error, asyncio.CancelledError):
        if is_committed:
            return CompletedInTransaction(claimed)
        if context.state is RunState.STOPPING and task.is_cancellable:
            return Interrupted(claimed)
        if context.is_worker_cancelled:
            raise error
        # A task that should stop may raise this itself.
        if context.cancelled:
            return Interrupted(claimed)
    elif is_interrupt(error):
        raise error
    if is_committed:
        return CompletedInTransaction(claimed, error)
    try:
        if isinstance(error, Snooze | Retry | Discard):
            return _build_requested_outcome(task, context, error)
        return _build_failure(task, context, error)
    except Exception as broken:
        # The error itself is invalid, for example a subclass of Retry that has no delay.
        return Failed(claimed, broken)


def _build_requested_outcome(
    task: Task[..., Any], context: Context, exception: Snooze | Retry | Discard
) -> Outcome:
    """Return the outcome that a task requested."""
    claimed = context.claimed
    match exception:
        case Snooze():
            return Snoozed(claimed, exception.delay)
        case Retry(delay=None):
            # The task requested another attempt: its policy sets the delay and cannot prevent it.
            failure = _build_failure(task, context, exception)
            failure.is_permanent = False
            return failure
        case Retry():
            return Failed(claimed, exception, when=exception.delay)
        case Discard():
            return Failed(claimed, exception, is_permanent=True)


def _build_partial_failure(task: Task[..., Any], context: Context, errors: ItemErrors) -> Outcome:
    """Return the outcome of a batch with failed items: only those are retried."""
    failure = PartialFailure(errors)
    failure.__cause__ = BaseExceptionGroup("of its items", list(failure.errors.values()))
    if context.state is RunState.COMMITTED:
        return CompletedInTransaction(context.claimed, failure)
    outcome = _build_failure(task, context, failure)
    # Read again, because the task may have changed the payload that it received.
    items = json.loads(context.job.payload_text)
    if len(errors) < len(items):
        # If Python cannot encode one of the numbers, the payload keeps all items.
        with suppress(JobSpecError):
            outcome.remaining_payload = encode([items[index] for index in failure.errors])
    return outcome


def _build_failure(task: Task[..., Any], context: Context, error: BaseException) -> Failed:
    if is_unstorable_result(error):
        # The task has done its work. Its next run would return the same.
        return Failed(context.claimed, error, is_permanent=True)
    attempt = context.next_attempt or decide_next_attempt(task, context.job, error)
    return Failed(context.claimed, error, when=attempt.when, is_permanent=attempt.is_permanent)
