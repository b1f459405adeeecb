"""Case: what is known about the database at hand when its checks begin."""

from dataclasses import dataclass
from datetime import timedelta

from graphile_worker.administration.doctor.finding import Finding
from graphile_worker.administration.wording import command
from graphile_worker.sql.cures import cure
from graphile_worker.sql.health import Session
from graphile_worker.sql.identifiers import Schemas
from graphile_worker.sql.query import Plan

# Lines of evidence in one finding.
MOST_LINES = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class DoctorOptions:
    """How to look, and how the workers are set up; a snapshot younger than `held_for` is fine."""

    timeout: timedelta = timedelta(seconds=10)
    held_for: timedelta = timedelta(minutes=5)
    listen: bool = True
    prepared_statements: bool = True


@dataclass(frozen=True, slots=True)
class Case:
    """The database at hand: where the queue is in it, who asks, and how."""

    schemas: Schemas
    options: DoctorOptions
    session: Session

    def cure(self, name: str, /, **blanks: str | int) -> str:
        """The SQL of a cure, with the names of this database."""
        return cure(name, self.schemas, **blanks)

    def command(self, words: str, *arguments: str) -> str:
        """A command of ours for this schema."""
        return command(self.schemas, words, *arguments)


Findings = Plan[list[Finding]]


def lines(texts: list[str]) -> tuple[str, ...]:
    """The first few, and how many more there are."""
    if len(texts) <= MOST_LINES:
        return tuple(texts)
    return (*texts[:MOST_LINES], f"and {len(texts) - MOST_LINES:,} more")


def lasting(seconds: float) -> str:
    """`4 h 12 min`, `35 s`: a time in the two largest units."""
    left = max(0, round(seconds))
    parts = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"
