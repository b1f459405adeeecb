"""Queries about the history of jobs: outcomes, attempts, and the ring of slots that holds both."""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.query import Query, Row, read_bool, read_count, read_first
from graphile_worker._support.lazy_dataclass import LazyKeywordDataclass
from graphile_worker.jobs import MAX_DATETIME, MIN_DATETIME, parse_microseconds, parse_timestamp
from graphile_worker.results import DEFAULT_KEEP, Retention

MICROSECOND = timedelta(microseconds=1)
SLOT_COUNT = 9

# The time of a slot that holds no rows.
NEVER = MIN_DATETIME
ALWAYS = MAX_DATETIME


@dataclass(slots=True)
class KeptRun:
    """A run of a job that its task keeps. The times are those of `time.monotonic`."""

    job_id: int
    task_identifier: str
    attempt: int
    retention: Retention
    started_at: float
    ended_at: float
    result: str | None = None
    """The result as JSON text."""


class HistoryRing(LazyKeywordDataclass):
    """The ring of slots: which one is written to, and when each was written to first."""

    slot: int
    started_at: tuple[datetime, ...]
    keep: timedelta | None
    max_rows: int | None
    now: datetime

    @property
    def effective_keep(self) -> timedelta:
        """Return how long outcomes are kept."""
        return self.keep or DEFAULT_KEEP

    @property
    def slot_duration(self) -> timedelta:
        """Return for how long a slot is written to."""
        return self.effective_keep / (SLOT_COUNT - 1)

    @property
    def next_slot(self) -> int:
        return (self.slot + 1) % SLOT_COUNT

    @property
    def keeps_since(self) -> datetime:
        """Return the time since which outcomes are kept."""
        return self.now - self.effective_keep

    @property
    def is_due(self) -> bool:
        """Return whether the current slot was written to for long enough."""
        started_at = self.started_at[self.slot]
        # After a start in the future, the server's clock was ahead and is corrected.
        return started_at > self.now or self.now - started_at >= self.slot_duration

    @property
    def is_overdue(self) -> bool:
        """Return whether no process rotated the ring for long: the slot may have ended before."""
        return self.now - self.started_at[self.slot] >= 2 * self.slot_duration

    @property
    def old_slots(self) -> list[int]:
        """Return the slots that ended before the time since which outcomes are kept."""
        return [
            slot
            for slot in range(SLOT_COUNT)
            if slot != self.slot
            and self.started_at[slot] != NEVER
            and self.get_end(slot) <= self.keeps_since
        ]

    def get_end(self, slot: int) -> datetime:
        """Return the time of the last write to another slot than the current one."""
        return self.started_at[(slot + 1) % SLOT_COUNT]

    def without_future_starts(self) -> "HistoryRing":
        """Return the ring with starts up to now. Later ones come from a clock that was ahead."""
        return replace(self, started_at=tuple(min(time, self.now) for time in self.started_at))

    def with_start(self, slot: int, time: datetime) -> "HistoryRing":
        """Return the ring with another start of a slot."""
        times = list(self.started_at)
        times[slot] = time
        return replace(self, started_at=tuple(times))


def encode_runs(runs: Iterable[KeptRun]) -> str:
    """Encode runs as a JSON array. Results are JSON already, so they are inserted as they are."""
    now = time.monotonic()
    # Formatted by hand, because json.dumps takes several times as long.
    return f"[{','.join([_encode_run(run, now) for run in runs])}]"


def _encode_run(run: KeptRun, now: float) -> str:
    started_at = run.started_at
    age, duration = round((now - started_at) * 1e6), round((run.ended_at - started_at) * 1e6)
    result = "null" if run.result is None else run.result
    return (
        f'{{"id":{run.job_id},"attempt":{run.attempt},"age":{age},"duration":{duration},'
        f'{_encode_kind(run.task_identifier, run.retention)},"result":{result}}}'
    )


@lru_cache(maxsize=1024)
def _encode_kind(task_identifier: str, retention: Retention) -> str:
    """Encode what all runs of a task have in common."""
    fields = {
        "task": task_identifier,
        "keep": None if retention.keep is None else retention.keep // MICROSECOND,
        "has_attempt": retention.attempts,
        "has_result": retention.results,
        "has_payload": retention.payloads,
    }
    # No escapes: a database that is not UTF-8 can read few of them, if any.
    return json.dumps(fields, ensure_ascii=False)[1:-1]


def has_history(schemas: Schemas) -> Query[bool]:
    """Return whether the tables of outcomes exist, and this role may write to them."""
    return Query("has_history", (schemas.companion,), read_bool)


def get_history(now: datetime | None = None) -> Query[HistoryRing | None]:
    return Query("get_history", (_format_time(now),), _read_ring)


def rotate_history(
    ring: HistoryRing, changed: HistoryRing, emptied: Mapping[int, datetime]
) -> Query[bool]:
    """Change the ring and empty slots, if they have no rows after these times.

    Return whether that was possible. It is not if another process changed the ring.
    """
    return Query(
        "rotate_history",
        (
            ring.slot,
            [_encode_time(each) for each in ring.started_at],
            changed.slot,
            [_encode_time(each) for each in changed.started_at],
            list(emptied),
            [_encode_time(each) for each in emptied.values()],
        ),
        read_bool,
    )


def extend_history(keep: timedelta) -> Query[None]:
    """Keep outcomes for at least this long."""
    return Query("extend_history", (keep // MICROSECOND,))


def set_history(
    keep: timedelta | None, max_rows: int | None, *, clear_max_rows: bool = False
) -> Query[None]:
    """Change how long outcomes are kept, and how many. None changes nothing."""
    return Query(
        "set_history", (None if keep is None else keep // MICROSECOND, max_rows, clear_max_rows)
    )


def get_last_write(slot: int) -> Query[datetime | None]:
    """Return the time of the last outcome or attempt of a slot."""
    return Query("get_last_write", (slot,), _read_time)


def has_history_since(slot: int, since: datetime) -> Query[bool]:
    """Return whether a slot has an outcome or an attempt that ended later."""
    return Query("has_history_since", (slot, _encode_time(since)), read_bool)


def count_slot_rows(slot: int, limit: int) -> Query[int]:
    """Count the outcomes of a slot, up to a limit."""
    return Query("count_slot_rows", (slot, limit), read_count)


def delete_expired_history(slot: int, limit: int, now: datetime | None = None) -> Query[int]:
    """Delete rows of a slot that their task no longer keeps, and return their number."""
    return Query("delete_expired_history", (slot, limit, _format_time(now)), read_count)


def _encode_time(time: datetime) -> str:
    if time in (NEVER, ALWAYS):
        return "-infinity" if time == NEVER else "infinity"
    return time.isoformat()


def _format_time(time: datetime | None) -> str | None:
    return None if time is None else _encode_time(time)


def _read_time(rows: Sequence[Row]) -> datetime | None:
    value = read_first(rows)
    return None if value is None else parse_timestamp(value)


def _read_ring(rows: Sequence[Row]) -> HistoryRing | None:
    if not rows:
        return None
    slot, started_at, keep, max_rows, now = rows[0]
    return HistoryRing(
        slot=slot,
        started_at=tuple(map(parse_timestamp, started_at)),
        keep=None if keep is None else timedelta(microseconds=parse_microseconds(keep)),
        max_rows=max_rows,
        now=parse_timestamp(now),
    )
