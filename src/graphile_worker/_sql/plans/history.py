"""Rotate the ring of history slots, and set how long outcomes are kept."""

import logging
from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.history import (
    ALWAYS,
    NEVER,
    SLOT_COUNT,
    HistoryRing,
    count_slot_rows,
    delete_expired_history,
    extend_history,
    get_history,
    get_last_write,
    has_history,
    has_history_since,
    rotate_history,
)
from graphile_worker._sql.query import Pause, Plan
from graphile_worker._sql.sqlstate import (
    INSUFFICIENT_PRIVILEGE,
    LOCK_NOT_AVAILABLE,
    MISSING_OBJECT,
    get_sqlstate,
)
from graphile_worker._support.durations import format_duration
from graphile_worker._support.lazy_dataclass import LazyDataclass
from graphile_worker.results import DEFAULT_KEEP, Retention

logger = logging.getLogger("graphile_worker")

# Rows that one statement deletes.
DELETE_BATCH_SIZE = 10_000

# Readers of a slot block a rotation for a while.
MAX_ROTATION_ATTEMPTS = 20
ROTATION_DELAY_SECONDS = 0.25

# After a long time without rotation, one round leaves the slot that was written to, the next one
# empties it, and the last one finds nothing to do.
MAX_ROUNDS = 4


class Rotation(LazyDataclass):
    """A change of the ring: the slots to empty, and the ring after that."""

    emptied_slots: tuple[int, ...]
    ring: HistoryRing
    lost_slot: int | None = None
    """A slot that is emptied although its rows are not too old."""


class PrunedHistory(LazyDataclass):
    """What was removed: whole slots, and single outcomes and attempts of the others."""

    emptied_slots: tuple[int, ...]
    deleted_rows: int


def plan_rotate_history(now: datetime | None = None) -> Plan[Rotation | None]:
    """Empty slots whose rows are too old, and move on to the next slot if that is due.

    Waits at most 250 ms for readers of a slot, and raises the error of the database after that.
    Returns None if there is nothing to do, or another process does it.
    """
    done: Rotation | None = None
    for _ in range(MAX_ROUNDS):
        ring: HistoryRing | None = yield get_history(now)
        rotation = None if ring is None else (yield from _plan_rotation(ring))
        if ring is None or rotation is None:
            break
        emptied_until = {
            slot: ALWAYS if slot == rotation.lost_slot else ring.keeps_since
            for slot in rotation.emptied_slots
        }
        if not (yield rotate_history(ring, rotation.ring, emptied_until)):
            break
        earlier = () if done is None else done.emptied_slots
        done = Rotation((*earlier, *rotation.emptied_slots), rotation.ring)
    return done


def plan_prune_history(now: datetime | None = None) -> Plan[PrunedHistory]:
    """Rotate while that empties slots, and delete rows that their task no longer keeps."""
    emptied: list[int] = []
    while rotation := (yield from _plan_rotate_patiently(now)):
        if not rotation.emptied_slots:
            break
        emptied += rotation.emptied_slots
    deleted = 0
    for slot in range(SLOT_COUNT):
        while count := (yield delete_expired_history(slot, DELETE_BATCH_SIZE, now)):
            deleted += int(count)
    return PrunedHistory(tuple(emptied), deleted)


def _plan_rotate_patiently(now: datetime | None) -> Plan[Rotation | None]:
    for _ in range(MAX_ROTATION_ATTEMPTS - 1):
        try:
            return (yield from plan_rotate_history(now))
        except Exception as error:
            if get_sqlstate(error) != LOCK_NOT_AVAILABLE:
                raise
        yield Pause(ROTATION_DELAY_SECONDS)
    return (yield from plan_rotate_history(now))


def plan_extend_history(retentions: Iterable[Retention], schemas: Schemas) -> Plan[None]:
    """Make the schema keep outcomes as long as the longest of these retentions requires."""
    chosen = list(retentions)
    if not chosen or not (yield has_history(schemas)):
        return
    ring: HistoryRing | None = yield get_history()
    wanted = find_longest_keep(chosen)
    if ring is not None and ring.keep is None and wanted is None:
        # Stored, so that an app with a shorter time does not shorten the default of this one.
        wanted = DEFAULT_KEEP
    if ring is None or wanted is None or ring.keep == wanted:
        return
    if ring.keep is None or ring.keep < wanted:
        try:
            yield extend_history(wanted)
        except Exception as error:
            if get_sqlstate(error) not in MISSING_OBJECT | {INSUFFICIENT_PRIVILEGE}:
                raise
            logger.warning(
                "schema %r keeps outcomes for %s, tasks want %s, and this role may not change it: "
                "run `graphile-worker history set --keep` as the owner",
                schemas.companion,
                format_duration(ring.effective_keep),
                format_duration(wanted),
            )
            return
    if ring.keep is not None:
        logger.warning(
            "schema %r keeps outcomes for %s and tasks want %s, the longer applies",
            schemas.companion,
            format_duration(ring.keep),
            format_duration(wanted),
        )


def find_longest_keep(retentions: Iterable[Retention]) -> timedelta | None:
    """Return how long tasks want to keep outcomes. None if no task sets a time."""
    keeps = {each.keep for each in retentions}
    if keeps <= {None}:
        return None
    # A task without a time relies on the default.
    return max(keep or DEFAULT_KEEP for keep in keeps)


def _plan_rotation(ring: HistoryRing) -> Plan[Rotation | None]:
    is_full = False
    if ring.max_rows is not None:
        limit = max(1, ring.max_rows // (SLOT_COUNT - 1))
        is_full = (yield count_slot_rows(ring.slot, limit)) >= limit
    last_write: datetime | None = None
    if ring.is_overdue:
        last_write = yield get_last_write(ring.slot)
    young_slots = []
    for slot in ring.old_slots:
        if (yield has_history_since(slot, ring.keeps_since)):
            young_slots.append(slot)
    rotation = decide_rotation(
        ring, is_full=is_full, last_write=last_write, young_slots=young_slots
    )
    if rotation is None or rotation.ring.slot in (ring.slot, *rotation.emptied_slots):
        return rotation
    # The slot counts as empty. A statement may have written to it when the slot was emptied.
    entered = rotation.ring.slot
    is_stale = (yield has_history_since(entered, NEVER)) and not (
        yield has_history_since(entered, ring.keeps_since)
    )
    emptied = (entered,) if is_stale else ()
    return replace(rotation, emptied_slots=rotation.emptied_slots + emptied)


def decide_rotation(
    ring: HistoryRing,
    *,
    is_full: bool = False,
    last_write: datetime | None = None,
    young_slots: Collection[int] = (),
) -> Rotation | None:
    """Decide which slots to empty, and whether to move on to the next slot.

    Args:
        ring: The ring as it is.
        is_full: Whether the current slot has as many rows as a slot may have.
        last_write: The last write to the current slot, if that was not rotated for long.
        young_slots: Old slots with rows that are not too old: a statement that began before the
            slot ended may have written them later.

    Returns:
        The change, or None if there is nothing to do.
    """
    emptied = [slot for slot in ring.old_slots if slot not in young_slots]
    # A slot ends at the start of the next one: with that in the future, it would be kept too long.
    changed = ring.without_future_starts()
    for slot in emptied:
        changed = changed.with_start(slot, NEVER)
    lost_slot: int | None = None
    is_next_free = changed.started_at[ring.next_slot] == NEVER
    if is_full or (ring.is_due and is_next_free):
        if not is_next_free:
            lost_slot = ring.next_slot
            emptied.append(lost_slot)
        # The slot that is left ends at its last write, or its rows would be kept too long.
        start = ring.now
        if last_write is not None and ring.is_overdue:
            start = min(max(last_write, ring.started_at[ring.slot]), ring.now)
        changed = replace(changed, slot=ring.next_slot).with_start(ring.next_slot, start)
    return None if changed == ring else Rotation(tuple(emptied), changed, lost_slot)


def compute_check_interval(keep: timedelta) -> timedelta:
    """Return how often to check whether the ring is due: a few times for each slot."""
    return min(max(keep / 64, timedelta(seconds=1)), timedelta(seconds=30))
