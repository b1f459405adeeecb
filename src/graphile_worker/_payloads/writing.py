"""Write payloads as JSON text that Python, Node and Rust workers read alike."""

import dataclasses
import json
import re
import sys
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any
from uuid import UUID

from graphile_worker.errors import JobSpecError

# Node and Python read this depth from any stack. PostgreSQL reads far deeper.
MAX_DEPTH = 500

# Tuples, because isinstance is several times faster with them than with unions.
_SCALAR_TYPES = (str, int, float, type(None))
_JSON_TYPES = (*_SCALAR_TYPES, dict, list, tuple)

# A NUL escape: an odd number of backslashes before u0000.
_NUL_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def encode(payload: Any, *, max_bytes: int | None = None) -> str | None:
    """Encode a payload as JSON text. None stays None, which the database turns into `{}`.

    datetime, date, time, UUID and Decimal become text, an Enum its value, dataclasses and classes
    of attrs, pydantic and msgspec objects, tuples and sets arrays. Other values raise JobSpecError.
    """
    if payload is None:
        return None
    try:
        _check_shape(payload, MAX_DEPTH)
        text = encode_json(payload)
        size = len(text) if text.isascii() else len(text.encode())
    except JobSpecError:
        raise
    except UnicodeEncodeError:
        raise _build_payload_error(payload, "lone surrogates are not UTF-8", "22P05") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise _build_payload_error(payload, str(error), "22P02") from error
    if "\\u0000" in text and _NUL_ESCAPE.search(text):
        raise _build_payload_error(
            payload, "PostgreSQL cannot read NUL in JSON text: remove it", "22P05"
        )
    if max_bytes is not None and size > max_bytes:
        raise _build_payload_error(
            payload, f"{size} bytes, and max_payload_bytes is {max_bytes}", "54000"
        )
    return text


def _check_shape(value: Any, depth_left: int) -> None:
    """Reject keys that are not text, which json.dumps would convert, and deep nesting."""
    while not isinstance(value, _JSON_TYPES):
        value = _to_json_value(value)
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise _build_payload_error(
                    value, f"keys must be str, got {type(key).__name__}", "22P02"
                )
        items: Any = value.values()
    else:
        items = () if isinstance(value, _SCALAR_TYPES) else value
    for item in items:
        if not isinstance(item, _SCALAR_TYPES):
            _check_shape(item, _descend(value, depth_left))


def _descend(value: Any, depth_left: int) -> int:
    if depth_left <= 1:
        raise _build_payload_error(value, f"nested more than {MAX_DEPTH} levels deep", "54001")
    return depth_left - 1


def _to_json_value(value: Any) -> Any:
    if isinstance(value, datetime) and value.utcoffset() is None:
        raise _build_payload_error(value, "naive datetime: set its tzinfo", "22007")
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, UUID | Decimal):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, set | frozenset):
        return list(value)
    if not isinstance(value, type) and (write := _find_writer(value.__class__)):
        return write(value)
    if isinstance(value, Mapping):
        return dict(value)
    reason = f"{type(value).__name__} has no JSON form: convert it, for example to str"
    raise _build_payload_error(value, reason, "22P02")


@lru_cache(maxsize=512)
def _find_writer(kind: type) -> Callable[[Any], Any] | None:
    """Find the function that turns an object of this class into a dict."""
    if hasattr(kind, "model_dump"):
        return _dump_model
    if hasattr(kind, "__struct_fields__"):
        return _dump_struct
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
    elif hasattr(kind, "__attrs_attrs__"):
        names = [attribute.name for attribute in kind.__attrs_attrs__]
    else:
        return None
    return lambda value: {name: getattr(value, name) for name in names}


def _dump_model(model: Any) -> Any:
    # By alias and without computed fields, because the model reads it in this form.
    return model.model_dump(mode="json", by_alias=True, round_trip=True)


def _dump_struct(struct: Any) -> Any:
    # Times are left to _to_json_value, because msgspec would write naive ones.
    convert = sys.modules["msgspec"].to_builtins
    return convert(struct, builtin_types=(datetime, date, time), str_keys=True)


# One encoder for all calls: json.dumps creates one for each call with options.
encode_json = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_to_json_value
).encode


def _build_payload_error(value: Any, reason: str, code: str) -> JobSpecError:
    return JobSpecError("payload", value, reason, code)
