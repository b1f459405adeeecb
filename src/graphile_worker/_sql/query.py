"""A question to the database as a value, and several of them in a row as a plan.

Neither does any I/O, so the same ones serve async code, blocking code and any connection.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")

Row = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Query(Generic[T]):
    """One question to the database: which statement, with what, read how."""

    statement: str
    args: tuple[object, ...]
    read: Callable[[Sequence[Row]], T]


@dataclass(frozen=True, slots=True)
class Atomic:
    """Queries that happen together or not at all; answered by the list of their answers."""

    queries: tuple[Query[Any], ...]


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait that many seconds before the next step."""

    seconds: float


Step = Query[Any] | Atomic | Pause

# A plan yields steps, is sent their answers, sees their errors raised, and returns its result.
Plan = Generator[Step, Any, T]


def read_nothing(rows: Sequence[Row]) -> None:
    """For statements that have no answer."""
