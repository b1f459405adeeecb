"""What is kept and said of an error: a line for people, then the traceback; never too much."""

import traceback
from hashlib import sha256

LONGEST = 8192
LONGEST_LINE = 500


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


def error_line(error: BaseException) -> str:
    """What went wrong, in one line of a log."""
    line = _storable(_summary(error))
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 1]}…"


def _told(error: BaseException, what: str) -> str | None:
    """An error of another process brings the name of its class and its text along."""
    told: str | None = getattr(error, what) if hasattr(error, "told_by_process") else None
    return told


def _summary(error: BaseException) -> str:
    name = _told(error, "kind") or type(error).__name__
    try:
        message = " ".join(str(error).split())
    except Exception as broken:
        message = f"(its text could not be made: {type(broken).__name__})"
    return f"{name}: {message}" if message else name


def _where(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception as broken:
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
