"""Queries for the metrics of a queue, and for the sample that all processes share."""

from dataclasses import dataclass
from datetime import timedelta

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.migrations import INDEXES
from graphile_worker._sql.query import Query, read_as, read_count, read_first

# The name of the sample of the queue.
SAMPLE_NAME = "queue"

# The name of the sessions in pg_stat_activity.
PROGRAM_NAME = "graphile-worker metrics"


@dataclass(frozen=True, slots=True)
class SampleAccess:
    """What this role may do with the shared sample, and whether all indexes exist."""

    can_read: bool
    can_write: bool
    has_indexes: bool
    has_hidden_rows: bool = False
    """Whether row level security hides the jobs from this role."""


@dataclass(frozen=True, slots=True)
class StoredSample:
    """The sample that all processes share. `body` is JSON."""

    age_seconds: float
    duration: float
    is_due: bool
    body: str


@dataclass(frozen=True, slots=True)
class OldestReadyRow:
    """The oldest ready job of a task with available jobs. `seconds` is None without one."""

    task: str
    seconds: float | None
    is_certain: bool
    """False if an older job may exist."""
    is_complete: bool
    """False if there are tasks without a row that may have ready jobs. The same in all rows."""


@dataclass(frozen=True, slots=True)
class QueueStorage:
    """Sizes and shares that PostgreSQL reports. `sequence_ratio` is None if it is hidden."""

    table_bytes: int
    locked_queues: int
    notify_ratio: float
    sequence_ratio: float | None


def set_probe_limits(timeout: timedelta) -> Query[None]:
    return Query("set_probe_limits", (_to_milliseconds(timeout), PROGRAM_NAME))


def set_sample_limits(timeout: timedelta, read_only: bool) -> Query[None]:
    return Query("set_sample_limits", (_to_milliseconds(timeout), PROGRAM_NAME, read_only))


def inspect_samples(schemas: Schemas) -> Query[SampleAccess]:
    args = (schemas.companion, schemas.shared, list(INDEXES))
    return Query("inspect_samples", args, lambda rows: SampleAccess(*rows[0]))


def get_sample() -> Query[StoredSample | None]:
    return Query(
        "get_sample", (SAMPLE_NAME,), lambda rows: StoredSample(*rows[0]) if rows else None
    )


def create_sample() -> Query[None]:
    return Query("create_sample", (SAMPLE_NAME,))


def try_lock_sample() -> Query[str | None]:
    return Query("try_lock_sample", (SAMPLE_NAME,), read_first)


def write_sample(body: str, duration: timedelta, pause: timedelta) -> Query[None]:
    times = (_to_milliseconds(duration), _to_milliseconds(pause))
    return Query("write_sample", (SAMPLE_NAME, body, *times))


def delay_sample(pause: timedelta) -> Query[None]:
    return Query("delay_sample", (SAMPLE_NAME, _to_milliseconds(pause)))


def get_oldest_ready(max_lanes: int, max_jobs: int) -> Query[list[OldestReadyRow]]:
    return Query("get_oldest_ready", (max_lanes, max_jobs), read_as(OldestReadyRow))


def get_queue_storage(schemas: Schemas) -> Query[QueueStorage]:
    return Query("get_queue_storage", (schemas.shared,), lambda rows: QueueStorage(*rows[0]))


def count_runnable(tasks: list[str] | None, limit: int, paused: list[str]) -> Query[int]:
    return Query("count_runnable", (tasks, limit, paused), read_count)


def count_runnable_indexed(
    tasks: list[str] | None, limit: int, max_lanes: int, paused: list[str]
) -> Query[int]:
    return Query("count_runnable_indexed", (tasks, limit, max_lanes, paused), read_count)


def _to_milliseconds(time: timedelta) -> int:
    return max(1, time // timedelta(milliseconds=1))
