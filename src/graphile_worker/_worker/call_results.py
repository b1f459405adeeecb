"""Check the result of a task, and read the outcomes of the items of a batch."""

import asyncio
import inspect

from graphile_worker._payloads import encode
from graphile_worker._support.cancellation import is_being_cancelled
from graphile_worker._support.error_format import format_error_line
from graphile_worker.errors import JobSpecError, ResultError
from graphile_worker.results import MAX_RESULT_BYTES
from graphile_worker.retries import PartialFailure
from graphile_worker.tasks.batch_results import BatchItems, ItemErrors, is_outcome_list

NO_ERRORS: ItemErrors = {}

# The code of JobSpecError for a value that is too large.
TOO_LARGE_CODE = "54000"


def encode_result(result: object) -> str:
    """Encode the result of a task as JSON text.

    Raises:
        ResultError: JSON cannot represent it, or it is too large.
    """
    try:
        return encode(result, max_bytes=MAX_RESULT_BYTES) or "null"
    except JobSpecError as error:
        reason = error.reason
        if error.code == TOO_LARGE_CODE:
            reason = f"larger than {MAX_RESULT_BYTES} bytes: store it elsewhere and return its key"
        raise build_result_error(reason) from error
    except Exception as error:
        # A property or method of the object may raise any error.
        raise build_result_error(format_error_line(error)) from error


def build_result_error(reason: str) -> ResultError:
    error = ResultError(f"the result of the task cannot be stored: {reason}")
    error._is_unstorable = True
    return error


def is_unstorable_result(error: BaseException) -> bool:
    """Return whether the own result of a task is at fault, and not that of a job it waited for."""
    return isinstance(error, ResultError) and error._is_unstorable


def reject_unawaited(result: object) -> None:
    """Raise TypeError for a coroutine or a generator, whose code has not run yet."""
    if inspect.iscoroutine(result):
        result.close()
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise TypeError(
            f"the task returned a {type(result).__name__} that is never awaited: "
            "declare it, and its decorators, with async def"
        )


async def await_item_results(result: object) -> object:
    """Await the outcomes of items that are awaitable, as Node tasks return promises."""
    if not is_outcome_list(result) or not any(map(inspect.isawaitable, result)):
        return result
    return await asyncio.gather(*map(_await_item, result))


async def _await_item(outcome: object) -> object:
    if not inspect.isawaitable(outcome):
        return outcome
    try:
        return await outcome
    except asyncio.CancelledError as error:
        if is_being_cancelled():
            raise
        return error
    except BaseException as error:
        # KeyboardInterrupt and SystemExit would end the event loop.
        return error


def get_item_errors(batch: BatchItems | None, failure: PartialFailure) -> ItemErrors:
    """Return the errors of a batch by the position of the item."""
    if batch is None:
        raise TypeError(
            "PartialFailure is for batches, and this payload is not an array"
        ) from failure
    return batch.read_partial_failure(failure)
