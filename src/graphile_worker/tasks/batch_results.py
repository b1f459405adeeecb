"""Outcomes: which items of a batch failed, by what its task returned or raised."""

import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from graphile_worker.retries import PartialFailure

ItemErrors = dict[int, BaseException]

logger = logging.getLogger("graphile_worker")


class BatchItems:
    """The items that a task was given, by their places in the payload, as it was before the call.

    `unread` is what is wrong with those that it was not given.
    """

    def __init__(
        self, positions: Sequence[int], parse_errors: Mapping[int, BaseException] | None = None
    ) -> None:
        self._positions = tuple(positions)
        self._parse_errors = dict(parse_errors or {})

    def read_result(self, result: object) -> ItemErrors:
        """By what the task returned: an outcome for each item, or nothing about them."""
        errors = dict(self._parse_errors)
        if not is_outcome_list(result):
            return errors
        _reject_unawaited(result)
        if len(result) != len(self._positions):
            # As in the reference, which cannot know whose outcomes these are either.
            logger.warning(
                "a batch of %s items has %s outcomes: all items count as done",
                len(self._positions),
                len(result),
            )
            return errors
        failed = {at: each for at, each in enumerate(result) if isinstance(each, BaseException)}
        return errors | self._map_positions(failed)

    def read_partial_failure(self, failure: PartialFailure) -> ItemErrors:
        """By what the task raised; an item that was not there makes it an error about all."""
        for at in failure.errors:
            if not 0 <= at < len(self._positions):
                raise IndexError(f"PartialFailure: there is no item {at} of {len(self._positions)}")
        return self._parse_errors | self._map_positions(failure.errors)

    def _map_positions(self, errors: Mapping[int, BaseException]) -> ItemErrors:
        return {self._positions[at]: error for at, error in errors.items()}


def is_outcome_list(result: object) -> TypeGuard[Sequence[Any]]:
    """Is it a sequence of outcomes, whichever?"""
    return isinstance(result, Sequence) and not isinstance(result, str | bytes | bytearray)


def _reject_unawaited(result: Sequence[Any]) -> None:
    for each in result:
        if inspect.iscoroutine(each):
            each.close()
    if any(inspect.isawaitable(each) for each in result):
        raise TypeError("outcomes that nobody awaits: make the task async def")
