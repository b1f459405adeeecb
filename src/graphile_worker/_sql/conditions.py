"""Conditions: what a statement may be told about the jobs that are meant, beside what it knows.

A condition is a file in conditions/, its parameters counted from $1; a statement says `:conditions`
where they go. So whatever people ask for is text in files, and whatever they give a parameter.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Condition:
    """The name of a file in conditions/, and what its parameters are."""

    name: str
    args: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class Clause:
    """One of these conditions holds; or none does, which is also so where nobody knows."""

    any_of: tuple[Condition, ...]
    is_negated: bool = False

    def __str__(self) -> str:
        return "!" * self.is_negated + "|".join(each.name for each in self.any_of)


def add_clauses(statement: str, clauses: Sequence[Clause]) -> str:
    """The name of a statement with these clauses in it, of which all must hold."""
    return "?".join(filter(None, (statement, "&".join(map(str, clauses)))))


def collect_args(clauses: Sequence[Clause]) -> tuple[object, ...]:
    """The parameters of all of them, in their order."""
    return tuple(arg for clause in clauses for each in clause.any_of for arg in each.args)
