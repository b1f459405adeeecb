"""Findings: a problem, its severity, the evidence, and what to do about it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from graphile_worker._support.text import pluralize


class Severity(StrEnum):
    """The severity of a finding, the worst first."""

    CRITICAL = "critical"
    """Jobs do not run or cannot be added, now or soon."""
    WARNING = "warning"
    """Jobs fail or run late, or the queue is slower or less safe than it could be."""
    NOTE = "note"
    """Not a problem, but good to know."""


class QueueHealth(StrEnum):
    """The verdict on a queue. `top`, `doctor` and `/readyz?verbose` agree on it."""

    HEALTHY = "healthy"
    """No finding about the queue is a warning or critical."""
    DEGRADED = "degraded"
    """There is a warning or a critical finding about the queue."""
    STALLED = "stalled"
    """Jobs are ready, and no worker is alive."""
    UNKNOWN = "unknown"
    """The queue could not be read."""


class FindingId(StrEnum):
    """The ids of all findings. The page Troubleshooting describes the cause and fix of each."""

    # Connection
    UNREACHABLE = "unreachable"
    ROLE_MISSING = "role-missing"
    DATABASE_MISSING = "database-missing"
    SERVER_TOO_OLD = "server-too-old"
    READ_ONLY = "read-only"
    TRANSACTION_POOLING = "transaction-pooling"
    PLAIN_TEXT = "plain-text"
    PURE_PYTHON_DRIVER = "pure-python-driver"
    # Schema and permissions
    SCHEMA_MISSING = "schema-missing"
    SCHEMA_INCOMPLETE = "schema-incomplete"
    SCHEMA_TOO_OLD = "schema-too-old"
    SCHEMA_BEHIND = "schema-behind"
    SCHEMA_TOO_NEW = "schema-too-new"
    SCHEMA_NEWER = "schema-newer"
    SCHEMA_OF_RUST = "schema-of-rust"
    PRIVILEGES_MISSING = "privileges-missing"
    ROWS_HIDDEN = "rows-hidden"
    LIMITED_ROLE = "limited-role"
    COMPANION_MISSING = "companion-missing"
    COMPANION_FOREIGN = "companion-foreign"
    COMPANION_BEHIND = "companion-behind"
    COMPANION_PRIVILEGES = "companion-privileges"
    INDEXES_MISSING = "indexes-missing"
    UNSAFE_PATH = "unsafe-path"
    # Jobs and workers
    NO_WORKERS = "no-workers"
    UNHANDLED_TASK = "unhandled-task"
    LATE = "late"
    QUEUE_BLOCKED = "queue-blocked"
    QUEUE_PAUSED = "queue-paused"
    QUEUE_PARALLEL = "queue-parallel"
    TASK_PAUSED = "task-paused"
    LIMIT_NOT_SHARED = "limit-not-shared"
    PERMANENTLY_FAILED = "permanently-failed"
    FAILING = "failing"
    STALE_LOCKS = "stale-locks"
    DEAD_POOL_LOCKS = "dead-pool-locks"
    DEAD_POOLS = "dead-pools"
    RESCUE_LOCK_HELD = "rescue-lock-held"
    UNREGISTERED_WORKERS = "unregistered-workers"
    DANGLING_TASKS = "dangling-tasks"
    DANGLING_QUEUES = "dangling-queues"
    # Clocks
    CLOCK_OFFSET = "clock-offset"
    POOL_CLOCK_OFFSET = "pool-clock-offset"
    # Server
    SEQUENCE_FILL = "sequence-fill"
    HELD_SNAPSHOT = "held-snapshot"
    AUTOVACUUM_OFF = "autovacuum-off"
    DEAD_ROWS = "dead-rows"
    NOTIFY_QUEUE = "notify-queue"
    NOTIFY_LOCK = "notify-lock"
    CONNECTIONS_FULL = "connections-full"
    UNSAFE_SERVER = "unsafe-server"
    # The diagnosis itself
    CHECK_UNFINISHED = "check-unfinished"


# The findings of a snapshot, on which the verdict depends. The others concern the installation.
QUEUE_FINDINGS = frozenset(
    {
        FindingId.SCHEMA_TOO_NEW,
        FindingId.SCHEMA_NEWER,
        FindingId.ROWS_HIDDEN,
        FindingId.NO_WORKERS,
        FindingId.UNHANDLED_TASK,
        FindingId.LATE,
        FindingId.QUEUE_BLOCKED,
        FindingId.LIMIT_NOT_SHARED,
        FindingId.QUEUE_PAUSED,
        FindingId.QUEUE_PARALLEL,
        FindingId.TASK_PAUSED,
        FindingId.PERMANENTLY_FAILED,
        FindingId.FAILING,
        FindingId.STALE_LOCKS,
        FindingId.DEAD_POOL_LOCKS,
        FindingId.DEAD_POOLS,
        FindingId.UNREGISTERED_WORKERS,
        FindingId.DANGLING_TASKS,
        FindingId.DANGLING_QUEUES,
        FindingId.CLOCK_OFFSET,
        FindingId.POOL_CLOCK_OFFSET,
        FindingId.HELD_SNAPSHOT,
        FindingId.DEAD_ROWS,
    }
)


class SubjectKind(StrEnum):
    """What a finding is about."""

    TASK = "task"
    """A task, by its identifier."""
    QUEUE = "queue"
    """A named queue."""
    WORKER = "worker"
    """A worker, by its id."""
    JOB = "job"
    """A job, by its id."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The one task, named queue, worker or job that a finding is about."""

    kind: SubjectKind
    """What it is."""
    name: str
    """The identifier of the task, the name of the queue, or the id of the worker or job."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A problem, the evidence for it, and what to do."""

    id: FindingId
    """The kind of problem."""
    severity: Severity
    """How urgent it is."""
    title: str
    """The problem in one line."""
    evidence: tuple[str, ...] = ()
    """Facts that show the problem, one per line."""
    advice: str
    """What to do."""
    shell: str | None = None
    """Commands to type, one per line."""
    sql: str | None = None
    """Statements to run."""
    affected: int = 0
    """The number of jobs concerned."""
    subject: Subject | None = None
    """What the finding is about, if that is one task, queue, worker or job."""

    @property
    def command(self) -> str | None:
        """Return the first command to type, or None."""
        return None if self.shell is None else self.shell.partition("\n")[0]


@dataclass(frozen=True, slots=True)
class Report:
    """The facts and the findings of a diagnosis, the worst finding first."""

    facts: Mapping[str, str]
    """What the diagnosis read, for example versions."""
    findings: tuple[Finding, ...]
    """The problems, the worst first."""
    verdict: QueueHealth
    """The health of the queue."""

    @property
    def is_critical(self) -> bool:
        """Return whether a finding is critical."""
        return any(each.severity is Severity.CRITICAL for each in self.findings)

    @property
    def has_warnings(self) -> bool:
        """Return whether a finding is a warning."""
        return any(each.severity is Severity.WARNING for each in self.findings)


def assess_health(findings: Iterable[Finding]) -> QueueHealth:
    """Reduce the findings about a queue to a verdict.

    Args:
        findings: All findings. Those about the installation do not count.
    """
    queue_findings = [each for each in findings if each.id in QUEUE_FINDINGS]
    if any(each.id is FindingId.NO_WORKERS for each in queue_findings):
        return QueueHealth.STALLED
    if any(each.severity is not Severity.NOTE for each in queue_findings):
        return QueueHealth.DEGRADED
    return QueueHealth.HEALTHY


def sort_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings, the worst first."""
    order = list(Severity)
    return sorted(findings, key=lambda each: order.index(each.severity))


def count_severities(findings: Iterable[Finding]) -> str:
    """Count the findings of each severity: `1 critical, 2 warnings`."""
    severities = [each.severity for each in findings]
    counts = [(severities.count(each), each) for each in Severity]
    return ", ".join(
        f"{count} critical" if each is Severity.CRITICAL else pluralize(count, each)
        for count, each in counts
        if count
    )
