"""The history of a run: what the database, tasks, enqueuers and the injector of faults recorded.

Rows and changes are tuples, because a long run has a million of them. Times are seconds since
1970. Changes and effects have the time of the database.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

# Inserted, updated, deleted; or seen when the record began.
Op = Literal["i", "u", "d", "s"]

Step = Literal["invoke", "ok", "fail", "info"]


class JobRow(NamedTuple):
    """The columns of `_private_jobs` that rules need."""

    id: int
    queue: int | None
    task: int
    # The payload, or its hash if it is long: see audit.sql.
    payload: str
    priority: int
    run_at: float
    attempts: int
    max_attempts: int
    # The first characters of `last_error`.
    error: str | None
    locked_by: str | None
    locked_at: float | None
    key: str | None
    revision: int
    is_available: bool


class QueueRow(NamedTuple):
    """A row of `_private_job_queues`."""

    id: int
    name: str
    locked_by: str | None
    locked_at: float | None


class CrontabRow(NamedTuple):
    """A row of `_private_known_crontabs`."""

    identifier: str
    known_since: float
    last_execution: float | None


Row = JobRow | QueueRow | CrontabRow


class Change(NamedTuple):
    """A change of one row, committed by a transaction.

    For one row, `seq` is the order of commits, because the lock lasts until the commit. For several
    rows, it is the order of statements.
    """

    seq: int
    at: float
    xid: int
    op: Op
    # The application name and the server process of the session.
    app: str
    pid: int
    # Rows of the same table; None before an insert and after a delete.
    old: Row | None
    new: Row | None


@dataclass(frozen=True, slots=True)
class Body:
    """The start or the end of a task's body, in a process that may have lost the job."""

    step: Literal["start", "end"]
    job_id: int
    attempt: int
    pool: str
    process: str
    at: float
    # What the run returns if it succeeds; only starts of tasks that keep their results have it.
    result: str | None = None


@dataclass(frozen=True, slots=True)
class Add:
    """An enqueuer calls (invoke), and the call succeeds (ok), fails (fail) or has no answer (info).

    All steps of one call have its name. A token is in the payload of one job only, as "token".
    `position` is that of the database's log (LSN or time) before the call, or after the answer.
    """

    step: Step
    call: str
    at: float
    tokens: tuple[str, ...] = ()
    # In the order of the tokens; only "ok" has them.
    job_ids: tuple[int, ...] = ()
    key: str | None = None
    key_mode: str = "replace"
    position: float | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """A row that a task wrote to the database."""

    job_id: int
    attempt: int
    at: float


@dataclass(frozen=True, slots=True)
class KeptOutcome:
    """An outcome that a worker kept of an ended job."""

    job_id: int
    task: str
    pool: str
    attempt: int
    succeeded: bool
    result: str | None


@dataclass(frozen=True, slots=True)
class KeptAttempt:
    """An attempt that a worker kept."""

    job_id: int
    pool: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a process, or of the server; `until` is when it was over.

    The fault of a killed process has the kind "SIGKILL".
    """

    kind: str
    at: float
    process: str | None = None
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Final:
    """The tables at the end, read directly; the recorded changes must lead to them."""

    jobs: tuple[JobRow, ...] = ()
    queues: tuple[QueueRow, ...] = ()


@dataclass(slots=True)
class History:
    """All records of a run."""

    changes: list[Change] = field(default_factory=list)
    adds: list[Add] = field(default_factory=list)
    bodies: list[Body] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    outcomes: list[KeptOutcome] = field(default_factory=list)
    attempts: list[KeptAttempt] = field(default_factory=list)
    final: Final | None = None
    # Identifiers of tasks.
    tasks: dict[int, str] = field(default_factory=dict)

    def read_journals(self, folder: Path) -> None:
        """Add the records that processes wrote to `*.jsonl` files of a folder."""
        for path in sorted(folder.glob("*.jsonl")):
            for kind, note in _notes(path):
                getattr(self, kind).append(note)


class Journal:
    """The records of one process, in its file. Each is written at once and survives a SIGKILL."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, what: Body | Add | Fault) -> None:
        line = json.dumps([type(what).__name__, asdict(what)])
        os.write(self._file, line.encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


_KINDS: dict[str, tuple[str, type]] = {
    "Body": ("bodies", Body),
    "Add": ("adds", Add),
    "Fault": ("faults", Fault),
}


def _notes(path: Path) -> Iterator[tuple[str, Body | Add | Fault]]:
    lines = path.read_bytes().split(b"\n")
    # The last line is empty, or incomplete because the process was killed.
    for line in lines[:-1]:
        name, fields = json.loads(line)
        kind, make = _KINDS[name]
        yield kind, make(**{key: _frozen(value) for key, value in fields.items()})


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
