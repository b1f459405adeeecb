"""BatchItems: read which items of a batch failed from what its task returned or raised."""

import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from graphile_worker.retries import PartialFailure

ItemErrors = dict[int, BaseException]

logger = logging.getLogger("graphile_worker")


class BatchItems:
    """The positions in the payload of the items that a task receives.

    `parse_errors` are the errors of the other items, by position.
    """

    def __init__(
        self, positions: Sequence[int], parse_errors: Mapping[int, BaseException] | None = None
    ) -> None:
        self._positions = tuple(positions)
        self._parse_errors = dict(parse_errors or {})

    def read_result(self, result: object) -> ItemErrors:
        """Return the errors by position in the payload, from the result of the task."""
        errors = dict(self._parse_errors)
        if not is_outcome_list(result):
            return errors
        _reject_unawaited(result)
        if len(result) != len(self._positions):
            # As in Graphile Worker for Node: the items of these outcomes are unknown.
            logger.warning(
                "batch result ignored (%s items, %s outcomes), all items count as succeeded",
                len(self._positions),
                len(result),
            )
            return errors
        failed = {i: each for i, each in enumerate(result) if isinstance(each, BaseException)}
        return errors | self._map_positions(failed)

    def read_partial_failure(self, failure: PartialFailure) -> ItemErrors:
        """Return the errors by position in the payload, from the exception of the task.

        Raises:
            IndexError: An item does not exist, so the whole job fails.
        """
        for index in failure.errors:
            if not 0 <= index < len(self._positions):
                raise IndexError(f"PartialFailure: no item {index} of {len(self._positions)}")
        return self._parse_errors | self._map_positions(failure.errors)

    def _map_positions(self, errors: Mapping[int, BaseException]) -> ItemErrors:
        return {self._positions[index]: error for index, error in errors.items()}


def is_outcome_list(result: object) -> TypeGuard[Sequence[Any]]:
    """Return whether the result is a sequence of outcomes."""
    return isinstance(result, Sequence) and not isinstance(result, str | bytes | bytearray)


def _reject_unawaited(result: Sequence[Any]) -> None:
    for each in result:
        if inspect.iscoroutine(each):
            each.close()
    if any(inspect.isawaitable(each) for each in result):
        raise TypeError("the outcomes are awaitable. Declare the task with async def.")
