"""What a change of a job's row was, told by what became of the row alone.

=============  ===========================================================================
add            inserted
claim          locked, from not being locked
takeover       locked, while somebody had it locked; or claimed again by who has it
renewal        locked as before, only later
completion     deleted by the process whose pool has it locked
failure        unlocked by that process; the attempt stays spent, all of them if it gives up
refund         unlocked by that process, and the attempt is given back
recovery       unlocked by whoever it is, with an error that begins as those of recoveries do;
               or unlocked by another process, with nothing but its time changed
detachment     robbed of its key and of all its attempts (somebody else gets the key)
replacement    given another revision while nobody has it
touch          given another revision, and nothing else; or nothing at all
edit           changed in its time, priority or attempts while nobody has it
foreign end    changed in another way while somebody has it, by another process
removal        deleted while nobody has it, or when its lock is four hours old;
               or, after a detachment, by whoever takes it from a dead pool
=============  ===========================================================================
"""

from enum import Enum, auto

from tests.laboratory.history import JobRow

# How the errors begin that recoveries write, of Python and of Rust.
RECOVERED = "Job recovered after worker interruption"
NOT_STARTED = f"{RECOVERED}: it was fetched, not started"
QUARANTINED = f"{RECOVERED}: quarantined"

# Seconds after which anybody may take a lock away.
STALE = 4 * 3600.0


class Kind(Enum):
    """What a change of a job's row was: see above."""

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
    """What this change was; `by_holder` says that the process did it whose pool has the job.

    `is_detached` says that the last change of note was a detachment.
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
