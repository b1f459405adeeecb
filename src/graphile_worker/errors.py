"""Every exception of ours, drawn as a tree.

GraphileWorkerError
├── ConfigurationError     an option or argument makes no sense            (also ValueError)
├── CrontabError           a crontab cannot be read; it says all that is wrong (also ValueError)
├── JobSpecError           this job cannot be added
├── CleanupBlocked         transactions that add jobs stayed open
├── FilterError            a filter for jobs cannot be read; it says where     (also ValueError)
├── QueryTimeoutError          the database was not done in the time that a look may take
├── TaskLoadError          a task file could not be imported
├── TaskNotFound           no function for this identifier
├── PayloadTooLarge        the payload of a job is larger than a worker reads
├── TaskProcessError       what a task raised in a process of its own
├── TaskProcessDied        the process of a task ended in the middle of a job
├── ExecutableFailed       the program of a job did not end with exit code 0
├── JobLockLostError             the job that a task wanted to end is held by somebody else now
├── OutcomeRefused         the database rejects how a job ended
├── JobsLeftLocked         a worker stopped and could not say how its jobs ended
├── LeaseExpiredError            a pool whose heartbeat is not heard takes no jobs
├── WorkerStoppedError            asked to work after stopping
└── SchemaError            the schema in the database is not one we can use
    ├── SchemaMissing      it is not installed yet
    ├── SchemaTooOld       another release must bring it up first
    ├── SchemaTooNew       a breaking revision that this release does not know
    └── MigrationBlocked   something is in the way of an installation

Driver errors pass through unwrapped; only what has a meaning of ours is translated.
"""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


class GraphileWorkerError(Exception):
    """Anything that this library raises on its own account."""


class ConfigurationError(GraphileWorkerError, ValueError):
    """An option or argument makes no sense; the message names it."""


@dataclass(frozen=True, slots=True)
class CrontabProblem:
    """One thing that is wrong in a crontab; lines and columns count from 1."""

    line: int
    column: int
    text: str
    expected: str

    def __str__(self) -> str:
        text = self.text if len(self.text) <= 80 else self.text[:77] + "..."
        return f"line {self.line}, column {self.column}: expected {self.expected}, got {text!r}"


class CrontabError(GraphileWorkerError, ValueError):
    """A crontab cannot be read: `problems` are all that is wrong with it, in their order."""

    def __init__(self, problems: Iterable[CrontabProblem], source: str = "crontab") -> None:
        self.problems = tuple(problems)
        self.source = source
        super().__init__("\n".join(f"{source}: {problem}" for problem in self.problems))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems, self.source)


class JobSpecError(GraphileWorkerError):
    """A job cannot be added or changed as asked: which argument, its value, why, and the code.

    Codes are those of the reference where it documents one (GWBID, GWBQN, GWBJK, GWBMA, GWBKM,
    GWNOR), otherwise the SQLSTATE that PostgreSQL gives for the same mistake. `text` is the whole
    message where that names the task and its parameter instead.
    """

    def __init__(
        self, argument: str, value: object, reason: str, code: str, text: str | None = None
    ) -> None:
        self.argument = argument
        self.value = value
        self.reason = reason
        self.code = code
        super().__init__(text or f"{_format_argument(argument, value)}: {reason} [{code}]")

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors travel between processes; values that could not come along stay behind.
        value = self.value if isinstance(self.value, str | int | float | None) else None
        return type(self), (self.argument, value, self.reason, self.code, str(self))


class FilterError(GraphileWorkerError, ValueError):
    """A filter cannot be read at `column`, counted from 1: `expected` says what may stand there."""

    exit_code = 2

    def __init__(self, column: int, expected: str, got: str) -> None:
        self.column = column
        self.expected = expected
        self.got = got
        shown = got if len(got) <= 80 else got[:77] + "..."
        super().__init__(f"filter, column {column}: expected {expected}, got {shown!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.column, self.expected, self.got)


class QueryTimeoutError(GraphileWorkerError):
    """The database was not done in the time that a look may take; nothing was changed by it."""


class TaskLoadError(GraphileWorkerError):
    """A file of the tasks folder could not be imported; the message names it.

    Also the module of an app. Its cause is the error that the import raised.
    """

    is_import_error = True


class TaskNotFound(GraphileWorkerError):
    """No task has this identifier; those that are known are named."""

    def __init__(self, identifier: str, known: Iterable[str] = ()) -> None:
        self.identifier = identifier
        self.known = sorted(known)
        names = ", ".join(repr(name) for name in self.known) or "none"
        super().__init__(f"no task is called {identifier!r}; known here: {names}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.identifier, self.known)


class PayloadTooLarge(GraphileWorkerError):
    """The payload of a job has `size` bytes, more than the `limit` of this worker."""

    def __init__(self, size: int, limit: int) -> None:
        self.size = size
        self.limit = limit
        super().__init__(
            f"the payload has {size:,} bytes and was not read: max_payload_bytes is {limit:,}. "
            "Keep the data elsewhere and put a reference into the payload, or raise "
            "max_payload_bytes"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.size, self.limit)


class TaskProcessError(GraphileWorkerError):
    """What a task raised in a process of its own; only its words come over.

    `kind` is the name of its class, `text` what it said and where.
    """

    is_from_process = True

    def __init__(self, kind: str, message: str, text: str) -> None:
        self.kind = kind
        self.text = text
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kind, str(self), self.text)


class TaskProcessDied(GraphileWorkerError):
    """The process of a task ended in the middle of a job: how, and what it said last."""

    def __init__(self, exit_status: str, last_output: str) -> None:
        self.exit_status = exit_status
        self.last_output = last_output
        said = f"; it said last:\n{last_output}" if last_output else ""
        super().__init__(f"the process of the task ended with {exit_status}{said}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.exit_status, self.last_output)


class ExecutableFailed(GraphileWorkerError):
    """The program of a job did not end with exit code 0: what became of it, and what it said last.

    `code` is its exit code, or `signal` the name of what ended it; neither, if it never started.
    """

    def __init__(
        self,
        identifier: str,
        reason: str,
        code: int | None = None,
        signal: str | None = None,
        last_output: str = "",
    ) -> None:
        self.identifier = identifier
        self.reason = reason
        self.code = code
        self.signal = signal
        self.last_output = last_output
        said = f"; it said last:\n{last_output}" if last_output else ""
        super().__init__(f"{identifier} {reason}{said}")

    def __reduce__(self) -> tuple[Any, ...]:
        facts = (self.identifier, self.reason, self.code, self.signal, self.last_output)
        return type(self), facts


class WorkerStoppedError(GraphileWorkerError):
    """A worker that has stopped was asked to work."""


class LeaseExpiredError(GraphileWorkerError):
    """No heartbeat was heard for a while, so the pool takes no jobs: others may think it dead."""


class JobsLeftLocked(GraphileWorkerError):
    """A worker stopped while the database was away: these jobs stay locked until they are freed."""

    def __init__(self, job_ids: Iterable[int]) -> None:
        self.job_ids = sorted(job_ids)
        listing = ", ".join(str(job_id) for job_id in self.job_ids)
        super().__init__(f"the end of these jobs could not be written, they stay locked: {listing}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.job_ids,)


class OutcomeRefused(GraphileWorkerError):
    """The database keeps rejecting the outcome of a job, so the job fails with its message.

    For example, a trigger that raises when the row of a completed job is deleted.
    """


class JobLockLostError(GraphileWorkerError):
    """A task's own transaction cannot end its job: the pool has lost it, so nothing happened."""


class SchemaError(GraphileWorkerError):
    """The schema in the database is not one that this release can use."""


class SchemaMissing(SchemaError):
    """The schema is not installed; the message names the command to type."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        given = "" if schema == "graphile_worker" else f" --schema {shlex.quote(schema)}"
        super().__init__(
            f"schema {schema!r} is not installed in this database: "
            f"run `graphile-worker migrate{given}`, or call migrate() on a client"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.schema,)


class SchemaTooOld(SchemaError):
    """The ledger stands below what we upgrade from; the message names the way up."""

    def __init__(self, schema: str, level: int) -> None:
        self.schema = schema
        self.level = level
        super().__init__(
            f"schema {schema!r} is at level {level}; levels 18 and up can be upgraded here. "
            "Stop its workers, run `npx graphile-worker@0.18.0 --schema-only` on it once, "
            "then migrate again"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.schema, self.level)


class SchemaTooNew(SchemaError):
    """A newer release changed the schema in a way that this one would break."""

    exit_code = 57

    def __init__(self, schema: str, level: int) -> None:
        self.schema = schema
        self.level = level
        super().__init__(
            f"schema {schema!r} is at the breaking level {level}, which this release does not "
            "know: upgrade graphile-worker before you go on"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.schema, self.level)


class MigrationBlocked(SchemaError):
    """Objects that are not ours are in the way of an installation."""


class CleanupBlocked(GraphileWorkerError):
    """Transactions that add jobs stayed open, so unused names could not be deleted."""


def _format_argument(argument: str, value: object) -> str:
    # Payloads may hold secrets and messages end up in logs: they are never quoted.
    if argument.startswith("payload"):
        return argument
    try:
        text = repr(value)
    except ValueError:  # an int of too many digits
        text = f"a huge {type(value).__name__}"
    return f"{argument}={text if len(text) <= 80 else text[:77] + '...'}"
