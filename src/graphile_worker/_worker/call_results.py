"""Check the result of a task, and read the outcomes of the items of a batch."""

import asyncio
import inspect

from graphile_worker._support.cancellation import is_being_cancelled
from graphile_worker.retries import PartialFailure
from graphile_worker.tasks.batch_results import BatchItems, ItemErrors, is_outcome_list

NO_ERRORS: ItemErrors = {}


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
