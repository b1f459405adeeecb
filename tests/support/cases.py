"""One test for many values, where a separate case costs more than its check.

A test with fixtures loops itself and uses pytest's `subtests`.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest

T = TypeVar("T")


def for_each(values: Iterable[T]) -> Callable[[Callable[[T], None]], Callable[[], None]]:
    """Call a test with each value; its failure names all values that fail."""

    def decorate(test: Callable[[T], None]) -> Callable[[], None]:
        def run() -> None:
            failures: list[BaseException] = []
            for value in values:
                try:
                    test(value)
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"of: {value}")
                    failures.append(error)
            if failures:
                raise BaseExceptionGroup("failed for some values", failures)

        run.__name__ = test.__name__
        run.__qualname__ = test.__qualname__
        run.__doc__ = test.__doc__
        run.__module__ = test.__module__
        return run

    return decorate
