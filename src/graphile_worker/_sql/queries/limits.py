"""Queries about limits of tasks, the slots that pools rent, and the tokens that they take."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.jobs import MICROSECOND, encode_when
from graphile_worker._sql.queries.workers import FIRST_START_KEY, LIMITS_KEY
from graphile_worker._sql.query import Query, Row, read_as, read_bool, read_column
from graphile_worker._support.lazy_dataclass import LazyDataclass
from graphile_worker.jobs import RunAt, parse_timestamp
from graphile_worker.limits import ConcurrencyLimit, Limit, RateLimit

# A task with due jobs behind this many priorities without one counts as ready.
MAX_READY_PRIORITIES = 20


class LimitKind(StrEnum):
    """What is limited."""

    CONCURRENCY = "concurrency"
    """How many jobs run at the same time."""
    RATE = "rate"
    """How many jobs start in a period."""


class LimitAccess(NamedTuple):
    """Whether this role may read the tables of limits and may write to them, if they exist."""

    can_read: bool
    can_write: bool


class RentedSlot(NamedTuple):
    """A slot of a limit that a pool rents. A later rental of the same slot has another number."""

    limit: str
    number: int
    rental: int
    pool_id: str


class TakenTokens(NamedTuple):
    """How many tokens were taken, when the next start is due, and seconds until the next token."""

    taken: int
    due_at: str | None
    seconds_until_next: float


class WatchedLimit(NamedTuple):
    """The values in force of a limit, and whether another pool waits for a slot.

    `defined` has the values of the app that was registered last.
    """

    name: str
    kind: LimitKind
    amount: int
    is_wanted: bool
    defined: Limit


class LimitState(LazyDataclass):
    """A limit as it is in force, and how much of it is in use."""

    limit: Limit
    """The values in force."""
    defined: Limit
    """The values of the app."""
    set_by: str | None
    """Who set other values than those of the app."""
    set_at: datetime | None
    """When they were set."""
    used_slots: int
    """Slots that pools rent, if the limit is a `ConcurrencyLimit`."""
    seconds_until_next: float | None
    """Time until another job may start, if the limit is a `RateLimit`. 0 means at once."""
    is_wanted: bool
    """Whether a pool without a slot waits for one."""

    @property
    def name(self) -> str:
        """Return the name of the limit."""
        return self.limit.name or ""

    @property
    def kind(self) -> LimitKind:
        """Return what is limited."""
        return get_kind(self.limit)

    @property
    def is_exhausted(self) -> bool:
        """Return whether no other job may start now: pools rent all slots, or no token is left."""
        if isinstance(self.limit, ConcurrencyLimit):
            return self.used_slots >= self.limit.slots
        return bool(self.seconds_until_next)


def get_kind(limit: Limit) -> LimitKind:
    is_rate = isinstance(limit, RateLimit)
    return LimitKind.RATE if is_rate else LimitKind.CONCURRENCY


def check_limits(schemas: Schemas) -> Query[LimitAccess]:
    args = (schemas.companion, schemas.shared)
    return Query("check_limits", args, lambda rows: LimitAccess(*rows[0]))


def register_limits(limits: Iterable[Limit]) -> Query[None]:
    """Write the definitions of the app. The values that a person set stay in force."""
    return Query("register_limits", (json.dumps([_encode_limit(each) for each in limits]),))


def create_limit_rows(names: list[str]) -> Query[None]:
    return Query("create_limit_rows", (names,))


def find_ready_tasks(task_ids: Sequence[int], now: RunAt | None = None) -> Query[set[int]]:
    """Return the tasks that may have a ready job. The others have none."""
    args = (list(task_ids), encode_when(now)[0], MAX_READY_PRIORITIES)
    return Query("find_ready_tasks", args, lambda rows: {row[0] for row in rows})


def rent_slots(name: str, pool_id: str, count: int) -> Query[list[RentedSlot]]:
    args = (name, pool_id, count)
    return Query(
        "rent_slots",
        args,
        lambda rows: sorted(RentedSlot(name, row[0], row[1], pool_id) for row in rows),
    )


def return_slots(slots: Sequence[RentedSlot]) -> Query[None]:
    args = (
        [each.limit for each in slots],
        [each.number for each in slots],
        [each.rental for each in slots],
        [each.pool_id for each in slots],
    )
    return Query("return_slots", args)


def return_pool_slots(pool_ids: list[str]) -> Query[None]:
    return Query("return_pool_slots", (pool_ids,))


def free_dead_slots() -> Query[None]:
    return Query("free_dead_slots")


def get_rented_slots(pool_ids: list[str]) -> Query[set[RentedSlot]]:
    return Query("get_rented_slots", (pool_ids,), lambda rows: {RentedSlot(*row) for row in rows})


def want_slot(name: str, pool_id: str) -> Query[None]:
    return Query("want_slot", (name, pool_id))


def watch_limits(
    names: list[str], pool_ids: list[str], rented: list[str]
) -> Query[list[WatchedLimit]]:
    """Read limits, and learn of which of the limits `rented` another pool waits for a slot."""
    return Query("watch_limits", (names, pool_ids, rented), _read_watched)


def find_newest_limits(names: list[str], pool_ids: list[str]) -> Query[list[str]]:
    """Find the limits for which this pool is the one that started last, of all that have it."""
    args = (names, pool_ids, LIMITS_KEY, FIRST_START_KEY)
    return Query("find_newest_limits", args, read_column)


def take_tokens(name: str, count: int) -> Query[TakenTokens | None]:
    """Take tokens of a rate limit. None if the limit does not exist."""
    args = (name, count)
    return Query("take_tokens", args, lambda rows: TakenTokens(*rows[0]) if rows else None)


def restore_tokens(name: str, count: int, due_at: str) -> Query[None]:
    return Query("restore_tokens", (name, count, due_at))


def set_limit(limit: Limit, actor: str | None) -> Query[tuple[str, datetime] | None]:
    """Set the values in force, and return by whom and when.

    None if no limit has this name and kind.
    """
    each = _encode_limit(limit)
    args = (each["name"], each["kind"], each["amount"], each["period"], each["burst"], actor)
    return Query(
        "set_limit",
        args,
        lambda rows: (rows[0][0], parse_timestamp(rows[0][1])) if rows else None,
    )


def reset_limit(name: str) -> Query[bool]:
    return Query("reset_limit", (name,), read_bool)


def list_limits(limit: int) -> Query[list[LimitState]]:
    return Query("list_limits", (limit,), lambda rows: [_read_state(row) for row in rows])


def get_slot_renters(names: list[str]) -> Query[list[tuple[str, str, int]]]:
    """Return how many slots of each limit each pool rents, the most first."""
    return Query("get_slot_renters", (names,), read_as(lambda *row: row))


def describe_task_limits(limits: Mapping[str, Collection[Limit]]) -> dict[str, list[str]]:
    """Return the names of the limits of each task, for the details of a pool."""
    return {task: sorted(each.name or "" for each in some) for task, some in limits.items()}


def _encode_limit(limit: Limit) -> dict[str, object]:
    if isinstance(limit, RateLimit):
        amount, period, burst = limit.starts, limit.per // MICROSECOND, limit.burst
    else:
        amount, period, burst = limit.slots, None, None
    return {
        "name": limit.name,
        "kind": get_kind(limit).value,
        "amount": amount,
        "period": period,
        "burst": burst,
    }


def _read_limit(name: str, kind: str, amount: int, period: int | None, burst: int | None) -> Limit:
    if kind == LimitKind.CONCURRENCY:
        return ConcurrencyLimit(amount, name=name)
    return RateLimit(amount, per=(period or 0) * MICROSECOND, burst=burst or 1, name=name)


def _read_state(row: Row) -> LimitState:
    name, kind = row[0], row[1]
    return LimitState(
        _read_limit(name, kind, *row[2:5]),
        _read_limit(name, kind, *row[5:8]),
        row[8],
        None if row[9] is None else parse_timestamp(row[9]),
        row[10],
        row[11],
        row[12],
    )


def _read_watched(rows: Sequence[Row]) -> list[WatchedLimit]:
    return [
        WatchedLimit(name, LimitKind(kind), amount, is_wanted, _read_limit(name, kind, *defined))
        for name, kind, amount, is_wanted, *defined in rows
    ]
