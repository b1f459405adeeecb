"""The data that the checks of a diagnosis receive."""

from dataclasses import dataclass
from datetime import timedelta

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.diagnostics import ServerSession
from graphile_worker._sql.query import Plan
from graphile_worker._sql.remedies import format_remedy
from graphile_worker.ops.diagnostics.findings import Finding
from graphile_worker.ops.diagnostics.thresholds import DEFAULT_THRESHOLDS, Thresholds
from graphile_worker.ops.snapshot import Snapshot
from graphile_worker.ops.text import format_command
from graphile_worker.ops.trends import SnapshotHistory

FindingsPlan = Plan[list[Finding]]


@dataclass(frozen=True, kw_only=True, slots=True)
class DoctorOptions:
    """The limits of the diagnosis, and the options of your workers."""

    timeout: timedelta = timedelta(seconds=10)
    """The time limit of each statement."""
    thresholds: Thresholds = DEFAULT_THRESHOLDS
    """The values beyond which the diagnosis reports a finding."""
    listen: bool = True
    """Whether your workers use LISTEN."""
    prepared_statements: bool = True
    """Whether your workers use prepared statements."""
    external_tasks: frozenset[str] = frozenset()
    """The external tasks of your app, whose workers do not report their tasks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DiagnosticContext:
    """The schemas of the queue, and the thresholds."""

    schemas: Schemas
    thresholds: Thresholds = DEFAULT_THRESHOLDS

    def format_remedy(self, name: str, /, **blanks: str | int) -> str:
        """Format the SQL of a fix with the names of this database."""
        return format_remedy(name, self.schemas, **blanks)

    def format_command(self, subcommand: str, *arguments: str) -> str:
        """Format a command for this schema."""
        return format_command(self.schemas, subcommand, *arguments)


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueContext(DiagnosticContext):
    """The snapshots of a queue, and the tasks that other programs run."""

    history: SnapshotHistory
    external_tasks: frozenset[str] = frozenset()

    @property
    def snapshot(self) -> Snapshot:
        """The last snapshot."""
        return self.history.last


@dataclass(frozen=True, kw_only=True, slots=True)
class DoctorContext(DiagnosticContext):
    """The session and the options of `graphile-worker doctor`."""

    options: DoctorOptions
    session: ServerSession
