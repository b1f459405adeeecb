"""JSON for the browser: ids as text, times in RFC 3339, durations in seconds."""

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

# JavaScript reads integers beyond this as another number.
MAX_SAFE_INTEGER = 2**53 - 1


def encode(value: object) -> bytes:
    """Return a value as JSON.

    Dataclasses become objects, times text in RFC 3339, durations seconds. Members named `id`, or
    whose name ends in `_id` or `_ids`, become text if they are integers.
    """
    text = json.dumps(to_json(value), ensure_ascii=False, allow_nan=False)
    # UTF-8 has no lone surrogates. As an escape, JSON accepts them.
    return text.encode(errors="backslashreplace")


def to_json(value: object, name: str = "") -> Any:
    """Return a value that `json.dumps` writes."""
    match value:
        case None | bool() | str():
            return str(value) if isinstance(value, Enum) else value
        case int():
            is_id = name in ("id", "ids") or name.endswith(("_id", "_ids"))
            return str(value) if is_id or abs(value) > MAX_SAFE_INTEGER else int(value)
        case float():
            return value if math.isfinite(value) else None
        case Decimal():
            return float(value)
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Mapping():
            return {str(key): to_json(each, str(key)) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [to_json(each, name) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        pairs = ((each.name, getattr(value, each.name)) for each in fields(value))
        return {name: to_json(each, name) for name, each in pairs}
    raise TypeError(f"cannot write {type(value).__name__} as JSON")
