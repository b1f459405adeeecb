"""Classify a change of a job's row by the old and the new row alone.

=============  ===========================================================================
add            inserted
claim          locked; it was not locked before
takeover       locked while another pool had it locked, or claimed again by the same pool
renewal        locked by the same pool, with a later time
completion     deleted by the process whose pool has it locked (its holder)
failure        unlocked by its holder; the attempt stays spent (all attempts: permanently failed)
refund         unlocked by its holder, which does not count the attempt
recovery       unlocked by any process, with the error text of a recovery;
               or unlocked by another process that changed nothing but its time
detachment     lost its key and all its attempts (another job gets the key)
replacement    got another revision while unlocked
touch          got another revision and nothing else, or nothing at all
edit           changed in its time, priority or attempts while unlocked
foreign end    changed in another way while locked, by a process that is not its holder
removal        deleted while unlocked, or when its lock is four hours old;
               or, after a detachment, by the process that recovers the jobs of a dead pool
=============  ===========================================================================
"""

from enum import Enum, auto

from tests.laboratory.history_checker.history import JobRow

# The first words of the errors that recoveries write, in Python and in Rust.
RECOVERED = "Job recovered after worker interruption"
NOT_STARTED = f"{RECOVERED}: it was fetched, not started"
QUARANTINED = f"{RECOVERED}: quarantined"

# Seconds after which any process may remove a lock.
STALE = 4 * 3600.0


class Kind(Enum):
    """The kinds of changes in the table above."""

    ADD = auto()
    CLAIM = auto()
    TAKEOVER = auto()
    RENEWAL = auto()
    COMPLETION = auto()
    FAILURE = auto()
    REFUND = auto()
    RECOVERY = auto()
    DETACHMENT = auto()
    REPLACEMENT = auto()
    TOUCH = auto()
    EDIT = auto()
    FOREIGN_END = auto()
    REMOVAL = auto()


def classify(
    old: JobRow | None,
    new: JobRow | None,
    *,
    by_holder: bool,
    at: float,
    is_detached: bool = False,
) -> Kind:
    """Return the kind of a change; `by_holder` is true if the job's holder made it.

    `is_detached` is true if the job lost its key after it was claimed.
    """
    if old is None:
        return Kind.ADD
    if new is None:
        if is_detached and not by_holder:
            return Kind.REMOVAL
        return _deletion(old, by_holder=by_holder, at=at)
    if old.locked_by is None:
        return Kind.CLAIM if new.locked_by is not None else _unheld_change(old, new)
    if new.locked_by is not None:
        return _held_change(old, new, by_holder=by_holder, at=at)
    return _release(old, new, by_holder=by_holder)


def _deletion(old: JobRow, *, by_holder: bool, at: float) -> Kind:
    if old.locked_by is None or _is_stale(old, at):
        return Kind.REMOVAL
    return Kind.COMPLETION if by_holder else Kind.FOREIGN_END


def _is_stale(row: JobRow, at: float) -> bool:
    return row.locked_at is not None and row.locked_at < at - STALE


def _unheld_change(old: JobRow, new: JobRow) -> Kind:
    if _loses_key(old, new):
        return Kind.DETACHMENT
    if new.revision != old.revision:
        return Kind.TOUCH if new == old._replace(revision=new.revision) else Kind.REPLACEMENT
    return Kind.TOUCH if new == old else Kind.EDIT


def _loses_key(old: JobRow, new: JobRow) -> bool:
    return old.key is not None and new.key is None and new.attempts == new.max_attempts


def _held_change(old: JobRow, new: JobRow, *, by_holder: bool, at: float) -> Kind:
    if new.locked_by != old.locked_by:
        return Kind.TAKEOVER
    if _loses_key(old, new):
        return Kind.DETACHMENT
    if new == old._replace(locked_at=new.locked_at, attempts=old.attempts + 1):
        return Kind.TAKEOVER
    if new == old._replace(revision=new.revision):
        return Kind.TOUCH
    if new == old._replace(locked_at=new.locked_at):
        return Kind.RENEWAL
    if _is_stale(old, at):
        return Kind.EDIT
    return Kind.TOUCH if by_holder else Kind.FOREIGN_END


def _release(old: JobRow, new: JobRow, *, by_holder: bool) -> Kind:
    if new.error != old.error and (new.error or "").startswith(RECOVERED):
        return Kind.RECOVERY
    if not by_holder:
        is_bare = new.attempts == old.attempts and new.error == old.error
        return Kind.RECOVERY if is_bare and new.payload == old.payload else Kind.FOREIGN_END
    return Kind.REFUND if new.attempts == old.attempts - 1 else Kind.FAILURE
