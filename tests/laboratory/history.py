"""What happened in a run: what the database saw, what tasks, enqueuers and the fault driver noted.

Rows and changes are tuples: a long run has a million of them. Times are seconds since 1970, those
of changes and effects by the database's clock.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

# Added, updated, deleted; or there before anybody looked.
Op = Literal["i", "u", "d", "s"]

Step = Literal["invoke", "ok", "fail", "info"]


class JobRow(NamedTuple):
    """A row of `_private_jobs`, as far as it matters."""

    id: int
    queue: int | None
    task: int
    # As it is, or its hash if it is long: see audit.sql.
    payload: str
    priority: int
    run_at: float
    attempts: int
    max_attempts: int
    # How it begins.
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
    """One row that a transaction has changed and committed.

    Of one row, `seq` is the order of commits, because its lock is held until then. Of several rows,
    it is the order of statements.
    """

    seq: int
    at: float
    xid: int
    op: Op
    # The name and the server process of whoever did it.
    app: str
    pid: int
    # Both of one kind; None where there is none.
    old: Row | None
    new: Row | None


@dataclass(frozen=True, slots=True)
class Body:
    """A task's body begins or ends, in a process that may have lost the job."""

    step: Literal["start", "end"]
    job_id: int
    attempt: int
    pool: str
    process: str
    at: float


@dataclass(frozen=True, slots=True)
class Add:
    """An enqueuer calls, and hears that it is done (ok), that it is not (fail), or nothing (info).

    All steps of one call carry its name. A token stands in one job's payload alone, as "token".
    `position` is how far the log of the database had come (LSN or time) before it called, or when
    it had its answer.
    """

    step: Step
    call: str
    at: float
    tokens: tuple[str, ...] = ()
    # In the order of the tokens; of "ok" alone.
    job_ids: tuple[int, ...] = ()
    key: str | None = None
    key_mode: str = "replace"
    position: float | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """What a task has done, in the database."""

    job_id: int
    attempt: int
    at: float


@dataclass(frozen=True, slots=True)
class Fault:
    """Something was done to a process, or to the server; `until` is when it was over.

    A process that is killed has the kind "SIGKILL".
    """

    kind: str
    at: float
    process: str | None = None
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Final:
    """The tables when all was over, read directly: what was recorded must lead to it."""

    jobs: tuple[JobRow, ...] = ()
    queues: tuple[QueueRow, ...] = ()


@dataclass(slots=True)
class History:
    """All that is known of a run."""

    changes: list[Change] = field(default_factory=list)
    adds: list[Add] = field(default_factory=list)
    bodies: list[Body] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    final: Final | None = None
    # Identifiers of tasks.
    tasks: dict[int, str] = field(default_factory=dict)

    def read_journals(self, folder: Path) -> None:
        """Add what the processes of a run have noted in `*.jsonl` files of a folder."""
        for path in sorted(folder.glob("*.jsonl")):
            for kind, note in _notes(path):
                getattr(self, kind).append(note)


class Journal:
    """Notes of one process in a file of its own, each written at once: they survive its death."""

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
    # Behind the last end of line is nothing, or what somebody was killed at writing.
    for line in lines[:-1]:
        name, fields = json.loads(line)
        kind, make = _KINDS[name]
        yield kind, make(**{key: _frozen(value) for key, value in fields.items()})


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
