"""What is kept and said of an error: a line for people, then the traceback; never too much.

`make_printable` makes any text of others safe to show: from an error, a payload or a child process.
"""

import importlib
import os
import re
import traceback
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

MAX_ERROR_BYTES = 8192

# A note with which an error names what to do about it begins like this.
HINT_PREFIX = "hint: "

# Files whose frames say nothing about the user's code: of this package and of Python's imports.
_OWN_FILES = (
    f"{Path(__file__).parents[1]}{os.sep}",
    f"{Path(importlib.__file__).parent}{os.sep}",
    "<frozen importlib",
)
MAX_LINE_CHARS = 500

# Characters that move a cursor, set colors, end a line or change the direction of writing. With
# these, a text could pass for a line of the log, or control a terminal. A tab is harmless.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def make_printable(text: object) -> str:
    """The text as one harmless line: control characters become escapes."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return _UNPRINTABLE.sub(lambda it: it[0].encode("unicode_escape").decode(), shown)


def format_one_line(text: str) -> str:
    """All words of the text in one harmless line."""
    return make_printable(" ".join(text.split()))


def format_error(error: BaseException) -> str:
    """One line that says what went wrong, then where: text that PostgreSQL takes, not too much."""
    text = (
        _get_process_attribute(error, "text")
        or f"{_format_summary(error)}\n\n{_format_traceback(error)}"
    )
    return truncate(_make_storable(text))


def format_error_message(error: BaseException) -> str:
    """What it says of itself and no more, as text that PostgreSQL takes."""
    return truncate(_make_storable(str(error)))


def escape_non_ascii(text: str) -> str:
    """The text for a database that cannot hold all its letters: those are written as escapes."""
    return text.encode("ascii", "backslashreplace").decode("ascii")


def get_hints(error: BaseException) -> list[str]:
    """The notes of an error that name what to do about it."""
    notes = getattr(error, "__notes__", ())
    return [note for note in notes if isinstance(note, str) and note.startswith(HINT_PREFIX)]


def format_import_traceback(error: BaseException) -> list[str]:
    """The lines that show where an import failed: frames of the user's code, not ours or Python's.

    Empty unless the error says that another one kept a module from being imported.
    """
    cause = error.__cause__
    if cause is None or not hasattr(error, "is_import_error"):
        return []
    told = traceback.TracebackException.from_exception(cause)
    for each in _iter_chain(told):
        each.stack = traceback.StackSummary.from_list(
            [frame for frame in each.stack if not frame.filename.startswith(_OWN_FILES)]
        )
    return "".join(told.format()).rstrip().split("\n")


def _iter_chain(
    trace: traceback.TracebackException | None,
) -> Iterator[traceback.TracebackException]:
    """It, what caused it, and what was handled when it was raised."""
    if trace is not None:
        yield trace
        yield from _iter_chain(trace.__cause__)
        yield from _iter_chain(trace.__context__)


def format_error_line(error: BaseException) -> str:
    """What went wrong, in one line of a log."""
    words = "; ".join([_format_summary(error), *get_hints(error)])
    line = make_printable(_make_storable(words[: MAX_LINE_CHARS + 1]))
    return line if len(line) <= MAX_LINE_CHARS else f"{line[: MAX_LINE_CHARS - 1]}…"


def _get_process_attribute(error: BaseException, attribute: str) -> str | None:
    """An error of another process brings the name of its class and its text along."""
    told: str | None = getattr(error, attribute) if hasattr(error, "is_from_process") else None
    return told


def _format_summary(error: BaseException) -> str:
    name = _get_process_attribute(error, "kind") or type(error).__name__
    try:
        message = " ".join(str(error).split())
    except BaseException as broken:
        message = f"(its text could not be made: {type(broken).__name__})"
    return f"{name}: {message}" if message else name


def _format_traceback(error: BaseException) -> str:
    try:
        return "\n".join(format_import_traceback(error)) or "".join(
            traceback.format_exception(error)
        )
    except BaseException as broken:
        return f"(its traceback could not be made: {type(broken).__name__})"


def _make_storable(text: str) -> str:
    # NUL cannot be stored, nor half of a surrogate pair.
    return text.replace("\x00", "␀").encode("utf-8", "replace").decode("utf-8")


def truncate(text: str) -> str:
    """The beginning and the end of a long text."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= MAX_ERROR_BYTES:
        return text
    # The summary stands at the beginning, the place where it happened at the end.
    first = encoded[: MAX_ERROR_BYTES // 2].decode(errors="ignore")
    last = encoded[-MAX_ERROR_BYTES // 2 :].decode(errors="ignore")
    digest = sha256(encoded).hexdigest()[:16]
    return f"{first}\n… {len(encoded)} bytes in all, sha256 {digest} …\n{last}"
