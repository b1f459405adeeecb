"""What came of a call: results that nobody ran, and outcomes of items that are still awaited."""

import asyncio
import inspect

from graphile_worker.retries import PartialFailure
from graphile_worker.tasks.batch_results import BatchItems, ItemErrors, is_outcome_list

# Of nearly all jobs.
NO_ERRORS: ItemErrors = {}


def reject_unawaited(result: object) -> None:
    """A function that only made a coroutine or a generator has done nothing yet."""
    if inspect.iscoroutine(result):
        result.close()
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise TypeError(
            f"the task returned a {type(result).__name__} that nobody runs: make it, and what "
            "decorates it, async def"
        )


async def await_item_results(result: object) -> object:
    """Outcomes of items may still have to be awaited, as promises of the reference's tasks."""
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
        # Whatever it is: it would end the loop.
        return error


def get_item_errors(batch: BatchItems | None, failure: PartialFailure) -> ItemErrors:
    """Which items the task says have failed."""
    if batch is None:
        raise TypeError("PartialFailure is for batches: this payload is no array") from failure
    return batch.read_partial_failure(failure)


def is_being_cancelled() -> bool:
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0
