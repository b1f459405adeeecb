"""Errors as text: a summary, then the traceback, up to a maximum size.

`make_printable` makes any text safe to show, for example of an error, a payload or a process.
"""

import importlib
import os
import re
import traceback
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

MAX_ERROR_BYTES = 8192

# The prefix of a note of an error that describes what to do.
HINT_PREFIX = "hint: "

# Files whose frames are not the user's code: this package and Python's import system.
_OWN_FILES = (
    f"{Path(__file__).parents[1]}{os.sep}",
    f"{Path(importlib.__file__).parent}{os.sep}",
    "<frozen importlib",
)
MAX_LINE_CHARS = 500

# Characters that move a cursor, set colors, end a line or change the direction of writing. A text
# with them could look like a separate log line, or control a terminal. A tab is harmless.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def make_printable(text: object) -> str:
    """Return the text as one line, with escapes for control characters."""
    line = str(text)
    if line.isprintable():
        return line
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), line)


def format_one_line(text: str) -> str:
    """Return the words of the text in one printable line."""
    return make_printable(" ".join(text.split()))


def format_error(error: BaseException) -> str:
    """Format the summary and the traceback, as text that PostgreSQL can store."""
    text = (
        _get_process_attribute(error, "text")
        or f"{_format_summary(error)}\n\n{_format_traceback(error)}"
    )
    return truncate(_make_storable(text))


def format_error_message(error: BaseException) -> str:
    """Format only the message of an error, as text that PostgreSQL can store."""
    return truncate(_make_storable(str(error)))


def escape_non_ascii(text: str) -> str:
    """Replace non-ASCII characters, for a database whose encoding lacks some of them."""
    return text.encode("ascii", "backslashreplace").decode("ascii")


def get_hints(error: BaseException) -> list[str]:
    """Return the notes of an error that describe what to do."""
    notes = getattr(error, "__notes__", ())
    return [note for note in notes if isinstance(note, str) and note.startswith(HINT_PREFIX)]


def format_import_traceback(error: BaseException) -> list[str]:
    """Format the traceback of a failed import, with the frames of the user's code only.

    The list is empty unless the error was raised for a module that could not be imported.
    """
    cause = error.__cause__
    if cause is None or not hasattr(error, "is_import_error"):
        return []
    formatted = traceback.TracebackException.from_exception(cause)
    for each in _iter_chain(formatted):
        each.stack = traceback.StackSummary.from_list(
            [frame for frame in each.stack if not frame.filename.startswith(_OWN_FILES)]
        )
    return "".join(formatted.format()).rstrip().split("\n")


def _iter_chain(
    trace: traceback.TracebackException | None,
) -> Iterator[traceback.TracebackException]:
    if trace is not None:
        yield trace
        yield from _iter_chain(trace.__cause__)
        yield from _iter_chain(trace.__context__)


def format_error_line(error: BaseException) -> str:
    """Format the summary and the hints of an error in one line, for a log."""
    text = "; ".join([_format_summary(error), *get_hints(error)])
    line = make_printable(_make_storable(text[: MAX_LINE_CHARS + 1]))
    return line if len(line) <= MAX_LINE_CHARS else f"{line[: MAX_LINE_CHARS - 1]}…"


def _get_process_attribute(error: BaseException, attribute: str) -> str | None:
    """Return the class name or the text of an error from another process."""
    value: str | None = getattr(error, attribute) if hasattr(error, "is_from_process") else None
    return value


def _format_summary(error: BaseException) -> str:
    name = _get_process_attribute(error, "kind") or type(error).__name__
    try:
        message = " ".join(str(error).split())
    except BaseException as broken:
        message = f"(its message raised {type(broken).__name__})"
    return f"{name}: {message}" if message else name


def _format_traceback(error: BaseException) -> str:
    try:
        return "\n".join(format_import_traceback(error)) or "".join(
            traceback.format_exception(error)
        )
    except BaseException as broken:
        return f"(its traceback raised {type(broken).__name__})"


def _make_storable(text: str) -> str:
    # PostgreSQL cannot store NUL or half of a surrogate pair.
    return text.replace("\x00", "␀").encode("utf-8", "replace").decode("utf-8")


def truncate(text: str) -> str:
    """Return the text, or only the start and the end of a long one."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= MAX_ERROR_BYTES:
        return text
    # The start has the summary, the end has the line that raised the error.
    first = encoded[: MAX_ERROR_BYTES // 2].decode(errors="ignore")
    last = encoded[-MAX_ERROR_BYTES // 2 :].decode(errors="ignore")
    digest = sha256(encoded).hexdigest()[:16]
    return f"{first}\n… {len(encoded)} bytes in all, sha256 {digest} …\n{last}"
