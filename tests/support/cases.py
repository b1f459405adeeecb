"""One test for many values, where a separate case costs more than its check."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

import pytest

T = TypeVar("T")

Check = Callable[[object], AbstractContextManager[None]]


@contextmanager
def all_checked() -> Iterator[Check]:
    """Check each value in `with check(value):`; the failure at the end names all that fail."""
    failures: list[BaseException] = []

    @contextmanager
    def check(value: object) -> Iterator[None]:
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:
            error.add_note(f"of: {value}")
            failures.append(error)

    yield check
    if failures:
        raise BaseExceptionGroup("failed for some values", failures)


def for_each(values: Iterable[T]) -> Callable[[Callable[[T], None]], Callable[[], None]]:
    """Call a test with each value; its failure names all values that fail."""

    def decorate(test: Callable[[T], None]) -> Callable[[], None]:
        def run() -> None:
            with all_checked() as check:
                for value in values:
                    with check(value):
                        test(value)

        run.__name__ = test.__name__
        run.__qualname__ = test.__qualname__
        run.__doc__ = test.__doc__
        run.__module__ = test.__module__
        return run

    return decorate
