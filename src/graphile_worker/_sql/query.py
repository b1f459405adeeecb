"""Queries and plans: what to ask the database, as values without I/O.

The same values serve async code, blocking code and connections of every library.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from graphile_worker._sql.statement import Statement

T = TypeVar("T")

Row = Sequence[Any]
RowReader = Callable[[Sequence[Row]], T]


def read_nothing(rows: Sequence[Row]) -> None:
    """Return None, for statements without a result."""


def read_count(rows: Sequence[Row]) -> int:
    return int(rows[0][0])


def read_bool(rows: Sequence[Row]) -> bool:
    return bool(rows[0][0])


def read_column(rows: Sequence[Row]) -> list[Any]:
    return [row[0] for row in rows]


def read_dict(rows: Sequence[Row]) -> dict[Any, Any]:
    """Return the second column of each row by the first one."""
    return {row[0]: row[1] for row in rows}


def read_first(rows: Sequence[Row]) -> Any:
    """Return the first column of the first row, or None without rows."""
    return rows[0][0] if rows else None


def read_as(kind: Callable[..., T]) -> RowReader[list[T]]:
    """Make a reader that calls `kind` with the columns of each row."""
    return lambda rows: [kind(*row) for row in rows]


@dataclass(frozen=True, slots=True)
class Query(Generic[T]):
    """One statement, its arguments, and the function that reads its rows."""

    statement: str | Statement
    """A plain name is the name of a file of statements/."""
    args: tuple[object, ...] = ()
    read: RowReader[T] = read_nothing  # type: ignore[assignment]  # then T is None


@dataclass(frozen=True, slots=True)
class Atomic:
    """Queries in one transaction. The result is the list of their results."""

    queries: tuple[Query[Any], ...]


@dataclass(frozen=True, slots=True)
class Transaction:
    """A plan whose queries run in one transaction, or in the caller's. A retry builds it again."""

    build_plan: Callable[[], Generator[Any, Any, Any]]


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait before the next step."""

    seconds: float


Step = Query[Any] | Atomic | Transaction | Pause

# A plan yields steps and receives their results or errors. It returns its own result.
Plan = Generator[Step, Any, T]
