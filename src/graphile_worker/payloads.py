"""What a payload may hold, as JSON text that every implementation reads alike."""

import dataclasses
import json
import re
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from graphile_worker.errors import JobSpecError

# Node and Python both read this deep from any stack; PostgreSQL reads far deeper.
MAX_DEPTH = 500

# A tuple, not a union: isinstance is several times faster with it, and every value is asked.
_CONTAINERS = (dict, list, tuple)

# A NUL escape: an odd number of backslashes before u0000.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def encode(payload: Any, *, max_bytes: int | None = None) -> str | None:
    """The payload as JSON text; None for None, which the database turns into `{}`.

    datetime, date, time, UUID and Decimal become text, Enum its value, dataclasses objects, tuples
    and sets arrays. What JSON cannot carry raises JobSpecError.
    """
    if payload is None:
        return None
    _check_shape(payload, MAX_DEPTH)
    try:
        text = _as_text(payload)
        size = len(text) if text.isascii() else len(text.encode())
    except JobSpecError:
        raise
    except UnicodeEncodeError:
        raise _refused(payload, "lone surrogates are not UTF-8", "22P05") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise _refused(payload, str(error), "22P02") from error
    if "\\u0000" in text and _NUL.search(text):
        raise _refused(payload, "PostgreSQL cannot read NUL in JSON text", "22P05")
    if max_bytes is not None and size > max_bytes:
        raise _refused(payload, f"{size} bytes, and max_payload_bytes is {max_bytes}", "54000")
    return text


def _check_shape(value: Any, room: int) -> None:
    """Refuse what json.dumps would bend or overflow on: keys that are not text, deep nesting."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise _refused(value, f"keys must be str, got {type(key).__name__}", "22P02")
            if isinstance(item, _CONTAINERS):
                _check_shape(item, _less(value, room))
    elif isinstance(value, _CONTAINERS):
        for item in value:
            if isinstance(item, _CONTAINERS):
                _check_shape(item, _less(value, room))


def _less(value: Any, room: int) -> int:
    if room <= 1:
        raise _refused(value, f"nested more than {MAX_DEPTH} levels deep", "54001")
    return room - 1


def _plain(value: Any) -> Any:
    """What json.dumps shall write for a value that it does not know."""
    if isinstance(value, datetime) and value.utcoffset() is None:
        raise _refused(value, "naive datetime: give it a tzinfo", "22007")
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, UUID | Decimal):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, set | frozenset):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _checked({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
    if isinstance(value, Mapping):
        return _checked(dict(value))
    raise _refused(value, f"{type(value).__name__} has no JSON form", "22P02")


def _checked(value: dict[Any, Any]) -> dict[Any, Any]:
    _check_shape(value, MAX_DEPTH)
    return value


# Made once: json.dumps would make one for every call that is not all defaults.
_as_text = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain
).encode


def _refused(value: Any, reason: str, code: str) -> JobSpecError:
    return JobSpecError("payload", value, reason, code)
