"""Outcomes: which items of a batch failed, by what its task returned or raised."""

import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from graphile_worker.retries import PartialFailure

ItemErrors = dict[int, BaseException]

logger = logging.getLogger("graphile_worker")


class Batch:
    """The items that a task was given, by their places in the payload, as it was before the call.

    `unread` is what is wrong with those that it was not given.
    """

    def __init__(
        self, places: Sequence[int], unread: Mapping[int, BaseException] | None = None
    ) -> None:
        self._places = tuple(places)
        self._unread = dict(unread or {})

    def errors_in(self, result: object) -> ItemErrors:
        """By what the task returned: an outcome for each item, or nothing about them."""
        errors = dict(self._unread)
        if not is_listing(result):
            return errors
        _refuse_unrun(result)
        if len(result) != len(self._places):
            # As in the reference, which cannot know whose outcomes these are either.
            logger.warning(
                "a batch of %s items has %s outcomes: all items count as done",
                len(self._places),
                len(result),
            )
            return errors
        failed = {at: each for at, each in enumerate(result) if isinstance(each, BaseException)}
        return errors | self._placed(failed)

    def errors_of(self, failure: PartialFailure) -> ItemErrors:
        """By what the task raised; an item that was not there makes it an error about all."""
        for at in failure.errors:
            if not 0 <= at < len(self._places):
                raise IndexError(f"PartialFailure: there is no item {at} of {len(self._places)}")
        return self._unread | self._placed(failure.errors)

    def _placed(self, errors: Mapping[int, BaseException]) -> ItemErrors:
        return {self._places[at]: error for at, error in errors.items()}


def is_listing(result: object) -> TypeGuard[Sequence[Any]]:
    """Is it a sequence of outcomes, whichever?"""
    return isinstance(result, Sequence) and not isinstance(result, str | bytes | bytearray)


def _refuse_unrun(result: Sequence[Any]) -> None:
    for each in result:
        if inspect.iscoroutine(each):
            each.close()
    if any(inspect.isawaitable(each) for each in result):
        raise TypeError("outcomes that nobody awaits: make the task async def")
