"""What is kept of an error in `last_error`: a line for people, then the traceback."""

import traceback
from hashlib import sha256

LONGEST = 8192


def error_text(error: BaseException) -> str:
    """One line that says what went wrong, then where: text that PostgreSQL takes, not too much."""
    return _capped(_storable(f"{_summary(error)}\n\n{_where(error)}"))


def _summary(error: BaseException) -> str:
    name = type(error).__name__
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


def _capped(text: str) -> str:
    encoded = text.encode()
    if len(encoded) <= LONGEST:
        return text
    # The summary stands at the beginning, the place where it happened at the end.
    first = encoded[: LONGEST // 2].decode(errors="ignore")
    last = encoded[-LONGEST // 2 :].decode(errors="ignore")
    digest = sha256(encoded).hexdigest()[:16]
    return f"{first}\n… {len(encoded)} bytes in all, sha256 {digest} …\n{last}"
