"""Queries about pauses of tasks and of named queues."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.jobs import MICROSECOND
from graphile_worker._sql.query import Query, Row, read_bool, read_dict, read_first
from graphile_worker._support.lazy_dataclass import LazyDataclass
from graphile_worker.jobs import parse_timestamp

# The prefix of locked_by of a paused queue, followed by the name of who paused it.
PAUSED_PREFIX = "paused:"

# Python workers read the pauses again after a notification on this channel.
PAUSES_CHANNEL = "gwpy:pauses"


class PauseKind(StrEnum):
    """What is paused."""

    TASK = "task"
    """A task, for Python workers."""
    QUEUE = "queue"
    """A named queue, for workers in every language."""


class Pause(LazyDataclass):
    """A paused task or named queue."""

    kind: PauseKind
    """What is paused."""
    name: str
    """Identifier of the task, or name of the queue."""
    by: str
    """Who paused it: the actor, or the database role."""
    reason: str | None = None
    """Why, if it was given."""
    since: datetime | None = None
    """When the pause began. None for a queue that another program paused."""
    until: datetime | None = None
    """When the pause ends by itself, or None."""


class PauseAccess(NamedTuple):
    """Whether the table of pauses exists, and whether this role may read it, and write to it."""

    exists: bool
    can_read: bool
    can_write: bool


class HeldQueue(NamedTuple):
    """A named queue that no worker can lock before the end of the transaction."""

    id: int
    locked_by: str | None
    is_locked: bool


class ResumedQueue(NamedTuple):
    """Whether a queue was paused, and is resumed. If not, the job of it that is still locked."""

    was_paused: bool
    is_resumed: bool
    job_id: int | None
    locked_by: str | None


class PausedTasks(NamedTuple):
    """The paused tasks, seconds until the first pause ends, and whether one has ended."""

    names: list[str]
    seconds_left: float | None
    has_expired: bool


def check_pauses(schemas: Schemas) -> Query[PauseAccess]:
    args = (schemas.companion, schemas.shared)
    return Query("check_pauses", args, lambda rows: PauseAccess(*rows[0]))


def create_queue(name: str) -> Query[None]:
    return Query("create_queue", (name,))


def hold_queue(name: str) -> Query[HeldQueue | None]:
    return Query("hold_queue", (name,), lambda rows: HeldQueue(*rows[0]) if rows else None)


def wait_for_queue(milliseconds: int) -> Query[None]:
    return Query("wait_for_queue", (milliseconds,))


def pause_queue(name: str, actor: str | None) -> Query[str | None]:
    """Pause a queue, and return who paused it. None if a worker has locked it."""
    return Query("pause_queue", (name, actor), read_first)


def resume_queue(name: str) -> Query[ResumedQueue]:
    return Query("resume_queue", (name,), lambda rows: ResumedQueue(*rows[0]))


def resume_expired_queues() -> Query[list[tuple[PauseKind, str]]]:
    return Query(
        "resume_expired_queues", (), lambda rows: [(PauseKind(row[0]), row[1]) for row in rows]
    )


def write_pause(
    kind: str,
    name: str,
    actor: str | None,
    reason: str | None,
    duration: timedelta | None,
    is_new: bool,
) -> Query[Pause]:
    """Describe a pause. If `is_new`, an existing row describes an older one, which has ended."""
    microseconds = None if duration is None else duration // MICROSECOND
    args = (kind, name, actor, reason, microseconds, is_new)
    return Query("write_pause", args, lambda rows: _read_pause(*rows[0]))


def delete_pause(kind: str, name: str) -> Query[bool]:
    return Query("delete_pause", (kind, name), read_bool)


def list_pauses() -> Query[list[Pause]]:
    return Query("list_pauses", (), _read_pauses)


def list_paused_queues() -> Query[dict[str, str]]:
    """Return who paused each paused queue."""
    return Query("list_paused_queues", (), read_dict)


def get_paused_tasks() -> Query[PausedTasks]:
    return Query("get_paused_tasks", (), lambda rows: PausedTasks(*rows[0]))


def notify_pauses(payload: str) -> Query[None]:
    return Query("notify_pauses", (payload,))


def _read_pauses(rows: Sequence[Row]) -> list[Pause]:
    return [_read_pause(*row) for row in rows]


def _read_pause(
    kind: str, name: str, by: str, reason: str | None, since: str, until: str | None
) -> Pause:
    until_time = None if until is None else parse_timestamp(until)
    return Pause(PauseKind(kind), name, by, reason, parse_timestamp(since), until_time)
