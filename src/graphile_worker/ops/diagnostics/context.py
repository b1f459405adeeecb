"""Case: what is known about the database at hand when its checks begin."""

from dataclasses import dataclass
from datetime import timedelta

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.diagnostics import ServerSession
from graphile_worker._sql.query import Plan
from graphile_worker._sql.remedies import format_remedy
from graphile_worker.ops.diagnostics.findings import Finding
from graphile_worker.ops.text import format_command

# Lines of evidence in one finding.
MAX_EVIDENCE_LINES = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class DoctorOptions:
    """How to check, and how the workers are set up.

    A transaction younger than `max_transaction_age` is fine.
    """

    timeout: timedelta = timedelta(seconds=10)
    max_transaction_age: timedelta = timedelta(minutes=5)
    listen: bool = True
    prepared_statements: bool = True


@dataclass(frozen=True, slots=True)
class DiagnosticContext:
    """The database at hand: where the queue is in it, who asks, and how."""

    schemas: Schemas
    options: DoctorOptions
    session: ServerSession

    def format_remedy(self, name: str, /, **blanks: str | int) -> str:
        """The SQL of a cure, with the names of this database."""
        return format_remedy(name, self.schemas, **blanks)

    def format_command(self, subcommand: str, *arguments: str) -> str:
        """A command of ours for this schema."""
        return format_command(self.schemas, subcommand, *arguments)


FindingsPlan = Plan[list[Finding]]


def limit_lines(texts: list[str]) -> tuple[str, ...]:
    """The first few, and how many more there are."""
    if len(texts) <= MAX_EVIDENCE_LINES:
        return tuple(texts)
    return (*texts[:MAX_EVIDENCE_LINES], f"and {len(texts) - MAX_EVIDENCE_LINES:,} more")


def format_duration(seconds: float) -> str:
    """`4 h 12 min`, `35 s`: a time in the two largest units."""
    left = max(0, round(seconds))
    parts = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"
