"""All exceptions of this library.

GraphileWorkerError
├── ConfigurationError     an option or argument is not valid               (also ValueError)
├── CrontabError           a crontab cannot be parsed; lists all problems   (also ValueError)
├── JobSpecError           this job cannot be added or changed
├── CleanupBlocked         transactions that add jobs stayed open
├── QueueBusy              a worker has locked the named queue to pause or resume
├── FilterError            a filter for jobs cannot be parsed               (also ValueError)
├── QueryTimeoutError      a read-only query exceeded its time limit
├── TaskLoadError          a task file could not be imported
├── TaskNotFound           no task has this identifier
├── PayloadTooLarge        the payload of a job exceeds the limit of the worker
├── TaskProcessError       a task raised an error in a separate process
├── TaskProcessDied        the process of a task ended while the job ran
├── ExecutableFailed       the program of a job did not end with exit code 0
├── JobLockLostError       another worker owns the job that a task tried to complete
├── OutcomeRefused         the database rejects the outcome of a job
├── ResultError            the result of a task cannot be stored, or not be read by its type
├── JobFailedError         the job whose result was requested has permanently failed
├── ResultUnknownError     the job whose result was requested left no result
├── OpenTransactionError   the caller waits for a job that its own transaction adds
├── JobsLeftLocked         a worker stopped and could not write the outcome of its jobs
├── LeaseExpiredError      the heartbeat of a pool failed for too long to claim jobs
├── WorkerStoppedError     the runner is not running
└── SchemaError            this release cannot use the schema in the database
    ├── SchemaMissing      it is not installed
    ├── SchemaTooOld       another release must upgrade it first
    ├── SchemaTooNew       it has a breaking revision that this release does not know
    └── MigrationBlocked   other objects prevent the installation

Driver errors pass through unchanged, except those with a meaning in this library.
"""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar


class GraphileWorkerError(Exception):
    """Base class of all errors of this library."""

    # Attributes that the constructor takes, by which the error travels between processes.
    _arguments: ClassVar[tuple[str, ...]] = ()

    def __reduce__(self) -> str | tuple[Any, ...]:
        if not self._arguments:
            return super().__reduce__()
        return type(self), tuple(getattr(self, name) for name in self._arguments)


class ConfigurationError(GraphileWorkerError, ValueError):
    """An option or argument is not valid. The message names it."""


@dataclass(frozen=True, slots=True)
class CrontabProblem:
    """One problem in a crontab. Lines and columns count from 1."""

    line: int
    column: int
    text: str
    expected: str

    def __str__(self) -> str:
        text = _shorten(self.text)
        return f"line {self.line}, column {self.column}: expected {self.expected}, got {text!r}"


class CrontabError(GraphileWorkerError, ValueError):
    """A crontab cannot be parsed. `problems` lists all problems in their order."""

    _arguments = ("problems", "source")

    def __init__(self, problems: Iterable[CrontabProblem], source: str = "crontab") -> None:
        self.problems = tuple(problems)
        self.source = source
        super().__init__("\n".join(f"{source}: {problem}" for problem in self.problems))


class JobSpecError(GraphileWorkerError):
    """A job cannot be added or changed.

    Args:
        argument: Name of the argument.
        value: Its value.
        reason: Why it is rejected.
        code: GWBID, GWBQN, GWBJK, GWBMA, GWBKM or GWNOR, as Graphile Worker for Node documents
            them, else the SQLSTATE that PostgreSQL has for this mistake.
        text: The whole message, if it names the task and its parameter instead.
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
        # The value of another type may not be picklable.
        value = self.value if isinstance(self.value, str | int | float | None) else None
        return type(self), (self.argument, value, self.reason, self.code, str(self))


class QueueBusy(GraphileWorkerError):
    """A worker has locked the named queue to pause, or runs a job of the one to resume.

    Args:
        queue_name: Name of the queue.
        locked_by: Id of the worker pool, if known.
        job_id: Id of the running job, if known.
    """

    _arguments = ("queue_name", "locked_by", "job_id")

    def __init__(self, queue_name: str, locked_by: str | None, job_id: int | None = None) -> None:
        self.queue_name = queue_name
        self.locked_by = locked_by
        self.job_id = job_id
        job = "a job of it" if job_id is None else f"job {job_id}"
        holder = "another session" if locked_by is None else f"worker {locked_by!r}"
        super().__init__(
            f"queue {queue_name!r} is busy: {holder} is running {job}. Wait for its end, or "
            "recover the worker if it is dead."
        )


class FilterError(GraphileWorkerError, ValueError):
    """A filter cannot be parsed at `column`, counted from 1, where `expected` is possible."""

    _arguments = ("column", "expected", "got")

    exit_code = 2

    def __init__(self, column: int, expected: str, got: str) -> None:
        self.column = column
        self.expected = expected
        self.got = got
        super().__init__(f"filter, column {column}: expected {expected}, got {_shorten(got)!r}")


class QueryTimeoutError(GraphileWorkerError):
    """A read-only query exceeded its time limit. It changed nothing."""


class TaskLoadError(GraphileWorkerError):
    """A task file or the module of an app could not be imported.

    The message names it, and the cause is the error that the import raised.
    """

    is_import_error = True


class TaskNotFound(GraphileWorkerError):
    """No task has this identifier. The message lists the known tasks."""

    _arguments = ("identifier", "known")

    def __init__(self, identifier: str, known: Iterable[str] = ()) -> None:
        self.identifier = identifier
        self.known = sorted(known)
        names = ", ".join(repr(name) for name in self.known) or "none"
        # Imported for a mistake only, as every command waits for the imports.
        import difflib

        near = difflib.get_close_matches(identifier, self.known, n=1)
        hint = f", did you mean {near[0]!r}?" if near else "."
        super().__init__(f"no task is called {identifier!r}{hint} Known tasks: {names}")


class PayloadTooLarge(GraphileWorkerError):
    """The payload of a job has `size` bytes, more than the `limit` of this worker."""

    _arguments = ("size", "limit")

    def __init__(self, size: int, limit: int) -> None:
        self.size = size
        self.limit = limit
        super().__init__(
            f"the payload has {size:,} bytes and was not read: max_payload_bytes is {limit:,}. "
            "Keep the data elsewhere and put a reference into the payload, or raise "
            "max_payload_bytes."
        )


class TaskProcessError(GraphileWorkerError):
    """A task raised an error in a separate process.

    Args:
        kind: Name of the error's class.
        message: Message of the error.
        text: The error with its traceback.
    """

    is_from_process = True

    def __init__(self, kind: str, message: str, text: str) -> None:
        self.kind = kind
        self.text = text
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kind, str(self), self.text)


class TaskProcessDied(GraphileWorkerError):
    """The process of a task ended while the job ran."""

    _arguments = ("exit_status", "last_output")

    def __init__(self, exit_status: str, last_output: str) -> None:
        self.exit_status = exit_status
        self.last_output = last_output
        super().__init__(
            f"the process of the task ended with {exit_status}{_format_output(last_output)}"
        )


class ExecutableFailed(GraphileWorkerError):
    """The program of a job did not end with exit code 0.

    Args:
        identifier: Name of the task.
        reason: What happened.
        code: Exit code, if the program ended by itself.
        signal: Name of the signal that ended the program.
        last_output: Last lines of its standard error.
    """

    _arguments = ("identifier", "reason", "code", "signal", "last_output")

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
        super().__init__(f"{identifier} {reason}{_format_output(last_output)}")


class WorkerStoppedError(GraphileWorkerError):
    """The runner has not started, or has stopped."""


class LeaseExpiredError(GraphileWorkerError):
    """The heartbeat of a pool failed for too long, so the pool claims no jobs.

    Other workers may already take the pool for dead.
    """


class JobsLeftLocked(GraphileWorkerError):
    """A worker stopped during a database outage. These jobs stay locked until they are released."""

    _arguments = ("job_ids",)

    def __init__(self, job_ids: Iterable[int]) -> None:
        self.job_ids = sorted(job_ids)
        listing = ", ".join(str(job_id) for job_id in self.job_ids)
        super().__init__(f"could not write the outcome of these jobs, they stay locked: {listing}")


class OutcomeRefused(GraphileWorkerError):
    """The database keeps rejecting the outcome of a job, so the job fails with its message.

    For example, a trigger that raises when the row of a completed job is deleted.
    """


class ResultError(GraphileWorkerError):
    """The result of a task cannot be stored, or a stored result does not have the task's type."""

    _is_unstorable = False


class JobFailedError(GraphileWorkerError):
    """The job whose result was requested has permanently failed.

    Args:
        job_id: Id of the job.
        error: Error of its last attempt, as text, or None.
    """

    _arguments = ("job_id", "error")

    def __init__(self, job_id: int, error: str | None = None) -> None:
        self.job_id = job_id
        self.error = error
        super().__init__(f"job {job_id} permanently failed: {error or 'no error is stored'}")


class ResultUnknownError(GraphileWorkerError):
    """The job whose result was requested is deleted, and left no result.

    Args:
        job_id: Id of the job.
        reason: Why the result is unknown.
    """

    _arguments = ("job_id", "reason")

    def __init__(self, job_id: int, reason: str) -> None:
        self.job_id = job_id
        self.reason = reason
        super().__init__(f"job {job_id} {reason}")


class OpenTransactionError(GraphileWorkerError):
    """The caller waits for a job that its own transaction adds. Workers see it after the commit."""


class JobLockLostError(GraphileWorkerError):
    """A task's own transaction cannot complete its job, which the pool has lost.

    The transaction is rolled back.
    """


class SchemaError(GraphileWorkerError):
    """This release cannot use the schema in the database."""


class SchemaMissing(SchemaError):
    """The schema is not installed. The message names the command to run."""

    _arguments = ("schema",)

    def __init__(self, schema: str) -> None:
        self.schema = schema
        flag = "" if schema == "graphile_worker" else f" --schema {shlex.quote(schema)}"
        super().__init__(
            f"schema {schema!r} is not installed in this database: "
            f"run `graphile-worker migrate{flag}`, or call migrate() on a client"
        )


class SchemaTooOld(SchemaError):
    """The level of the schema is too low to upgrade. The message names the command to run."""

    _arguments = ("schema", "level")

    def __init__(self, schema: str, level: int) -> None:
        self.schema = schema
        self.level = level
        super().__init__(
            f"schema {schema!r} is at level {level}. This release upgrades levels 18 and up. "
            "Stop its workers, run `npx graphile-worker@0.18.0 --schema-only` on it once, then "
            "migrate again."
        )


class SchemaTooNew(SchemaError):
    """A newer release changed the schema in a way that this release does not support."""

    exit_code = 57
    _arguments = ("schema", "level")

    def __init__(self, schema: str, level: int) -> None:
        self.schema = schema
        self.level = level
        super().__init__(
            f"schema {schema!r} is at the breaking level {level}, which this release does not "
            "know: upgrade graphile-worker"
        )


class MigrationBlocked(SchemaError):
    """Other objects in the database prevent the installation."""


class CleanupBlocked(GraphileWorkerError):
    """Transactions that add jobs stayed open, so unused names could not be deleted."""


def _format_argument(argument: str, value: object) -> str:
    # Payloads may contain secrets, and messages are logged.
    if argument.startswith("payload"):
        return argument
    try:
        text = repr(value)
    except ValueError:  # an int of too many digits
        text = f"a huge {type(value).__name__}"
    return f"{argument}={_shorten(text)}"


def _shorten(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def _format_output(last_output: str) -> str:
    return f"; last output:\n{last_output}" if last_output else ""
