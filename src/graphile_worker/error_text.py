"""What is kept and said of an error: a line for people, then the traceback; never too much.

`printable` makes any text of others safe to show: from an error, a payload or a child process.
"""

import importlib
import os
import re
import traceback
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

LONGEST = 8192

# A note with which an error names what to do about it begins like this.
HINT = "hint: "

# Files whose frames say nothing about the user's code: of this package and of Python's imports.
_OWN_FILES = (
    f"{Path(__file__).parent}{os.sep}",
    f"{Path(importlib.__file__).parent}{os.sep}",
    "<frozen importlib",
)
LONGEST_LINE = 500

# Characters that move a cursor, set colors, end a line or change the direction of writing. With
# these, a text could pass for a line of the log, or control a terminal. A tab is harmless.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: object) -> str:
    """The text as one harmless line: control characters become escapes."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return _UNPRINTABLE.sub(lambda it: it[0].encode("unicode_escape").decode(), shown)


def one_line(text: str) -> str:
    """All words of the text in one harmless line."""
    return printable(" ".join(text.split()))


def error_text(error: BaseException) -> str:
    """One line that says what went wrong, then where: text that PostgreSQL takes, not too much."""
    text = _told(error, "text") or f"{_summary(error)}\n\n{_where(error)}"
    return capped(_storable(text))


def message_text(error: BaseException) -> str:
    """What it says of itself and no more, as text that PostgreSQL takes."""
    return capped(_storable(str(error)))


def ascii_text(text: str) -> str:
    """The text for a database that cannot hold all its letters: those are written as escapes."""
    return text.encode("ascii", "backslashreplace").decode("ascii")


def hints_of(error: BaseException) -> list[str]:
    """The notes of an error that name what to do about it."""
    notes = getattr(error, "__notes__", ())
    return [note for note in notes if isinstance(note, str) and note.startswith(HINT)]


def import_traceback(error: BaseException) -> list[str]:
    """The lines that show where an import failed: frames of the user's code, not ours or Python's.

    Empty unless the error says that another one kept a module from being imported.
    """
    cause = error.__cause__
    if cause is None or not hasattr(error, "is_about_import"):
        return []
    told = traceback.TracebackException.from_exception(cause)
    for each in _chain(told):
        each.stack = traceback.StackSummary.from_list(
            [frame for frame in each.stack if not frame.filename.startswith(_OWN_FILES)]
        )
    return "".join(told.format()).rstrip().split("\n")


def _chain(told: traceback.TracebackException | None) -> Iterator[traceback.TracebackException]:
    """It, what caused it, and what was handled when it was raised."""
    if told is not None:
        yield told
        yield from _chain(told.__cause__)
        yield from _chain(told.__context__)


def error_line(error: BaseException) -> str:
    """What went wrong, in one line of a log."""
    words = "; ".join([_summary(error), *hints_of(error)])
    line = printable(_storable(words[: LONGEST_LINE + 1]))
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 1]}…"


def _told(error: BaseException, what: str) -> str | None:
    """An error of another process brings the name of its class and its text along."""
    told: str | None = getattr(error, what) if hasattr(error, "told_by_process") else None
    return told


def _summary(error: BaseException) -> str:
    name = _told(error, "kind") or type(error).__name__
    try:
        message = " ".join(str(error).split())
    except BaseException as broken:
        message = f"(its text could not be made: {type(broken).__name__})"
    return f"{name}: {message}" if message else name


def _where(error: BaseException) -> str:
    try:
        return "\n".join(import_traceback(error)) or "".join(traceback.format_exception(error))
    except BaseException as broken:
        return f"(its traceback could not be made: {type(broken).__name__})"


def _storable(text: str) -> str:
    # NUL cannot be stored, nor half of a surrogate pair.
    return text.replace("\x00", "␀").encode("utf-8", "replace").decode("utf-8")


def capped(text: str) -> str:
    """The beginning and the end of a long text."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= LONGEST:
        return text
    # The summary stands at the beginning, the place where it happened at the end.
    first = encoded[: LONGEST // 2].decode(errors="ignore")
    last = encoded[-LONGEST // 2 :].decode(errors="ignore")
    digest = sha256(encoded).hexdigest()[:16]
    return f"{first}\n… {len(encoded)} bytes in all, sha256 {digest} …\n{last}"
