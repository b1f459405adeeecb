"""Statement: the SQL of a query, which is a file with chosen conditions, or a part of it.

A condition is a file of conditions/ with its own parameters from $1 on. A statement that takes
conditions has `:conditions` where they go.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self


@dataclass(frozen=True, slots=True)
class Condition:
    """A file of conditions/, and its arguments."""

    name: str
    args: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class Clause:
    """Conditions of which one must be true. If negated, all must be false or null."""

    any_of: tuple[Condition, ...]
    is_negated: bool = False


class ClauseText(NamedTuple):
    """A clause without its arguments, which do not change the SQL."""

    conditions: tuple[str, ...]
    is_negated: bool


@dataclass(frozen=True, slots=True)
class Statement:
    """The SQL of a query. Statements with the same text are equal, so texts are cached by them."""

    path: str
    """The file below _sql/, without its suffix."""
    clauses: tuple[ClauseText, ...] = ()
    """All of them must be true."""
    position: int | None = None
    """The position of one statement in a script, counted from 0."""

    @classmethod
    def with_clauses(cls, name: str, clauses: Sequence[Clause]) -> Self:
        """Return the statement of a file of statements/ with these clauses."""
        chosen = [
            ClauseText(tuple(each.name for each in clause.any_of), clause.is_negated)
            for clause in clauses
        ]
        return cls(f"statements/{name}", tuple(chosen))

    def __str__(self) -> str:
        return self.path.removeprefix("statements/")


def collect_args(clauses: Sequence[Clause]) -> tuple[object, ...]:
    """Return the arguments of all conditions, in the order of their parameters."""
    return tuple(arg for clause in clauses for each in clause.any_of for arg in each.args)
