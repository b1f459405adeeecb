"""Finding: something that is wrong, how it shows, and what to do about it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    CRITICAL = "critical"  # jobs do not run, cannot be added, or soon will not
    WARNING = "warning"  # all goes on, but slower, or less safely than it could


class FindingId(StrEnum):
    """Every finding that there is; docs/guides/doctor.md tells cause and cure of each."""

    # Can it be reached?
    UNREACHABLE = "unreachable"
    ROLE_MISSING = "role-missing"
    DATABASE_MISSING = "database-missing"
    SERVER_TOO_OLD = "server-too-old"
    READ_ONLY = "read-only"
    TRANSACTION_POOLING = "transaction-pooling"
    PLAIN_TEXT = "plain-text"
    PURE_PYTHON_DRIVER = "pure-python-driver"
    # The schema, and who may use it
    SCHEMA_MISSING = "schema-missing"
    SCHEMA_INCOMPLETE = "schema-incomplete"
    SCHEMA_TOO_OLD = "schema-too-old"
    SCHEMA_BEHIND = "schema-behind"
    SCHEMA_TOO_NEW = "schema-too-new"
    SCHEMA_NEWER = "schema-newer"
    SCHEMA_OF_RUST = "schema-of-rust"
    PRIVILEGES_MISSING = "rights-missing"
    ROWS_HIDDEN = "rows-hidden"
    LIMITED_ROLE = "limited-role"
    COMPANION_MISSING = "companion-missing"
    COMPANION_FOREIGN = "companion-foreign"
    COMPANION_BEHIND = "companion-behind"
    COMPANION_PRIVILEGES = "companion-rights"
    INDEXES_MISSING = "indexes-missing"
    UNSAFE_PATH = "unsafe-path"
    # Jobs and those who hold them
    DANGLING_TASKS = "dangling-tasks"
    DANGLING_QUEUES = "dangling-queues"
    STALE_LOCKS = "stale-locks"
    DEAD_POOL_LOCKS = "silent-pool-locks"
    DEAD_POOLS = "silent-pools"
    RESCUE_LOCK_HELD = "recovery-held"
    # Clocks
    CLOCK_OFFSET = "clock-offset"
    POOL_CLOCK_OFFSET = "pool-clock-offset"
    # The server
    SEQUENCE_FILL = "sequence-fill"
    HELD_SNAPSHOT = "held-snapshot"
    AUTOVACUUM_OFF = "autovacuum-off"
    DEAD_ROWS = "dead-rows"
    NOTIFY_QUEUE = "notify-queue"
    CONNECTIONS_FULL = "connections-full"
    UNSAFE_SERVER = "unsafe-server"
    # The doctor
    CHECK_UNFINISHED = "check-unfinished"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What is wrong; `shell` and `sql` are what to type, where `advice` does not say it all."""

    id: FindingId
    severity: Severity
    title: str
    evidence: tuple[str, ...] = ()
    advice: str
    shell: str | None = None
    sql: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What was looked at, by name, and all that was found, the worst first."""

    facts: Mapping[str, str]
    findings: tuple[Finding, ...]

    @property
    def is_critical(self) -> bool:
        return any(each.severity is Severity.CRITICAL for each in self.findings)
