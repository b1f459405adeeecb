"""JSON text as JavaScript writes it, so that executables read the same from both workers."""

import math
import re
from collections.abc import Iterator
from json.encoder import encode_basestring
from typing import Any

# JavaScript lists keys that are array indices before all others.
_INDEX_PATTERN = re.compile(r"0|[1-9][0-9]{0,9}")
_MAX_INDEX = 2**32 - 2

_SURROGATE = re.compile("[\ud800-\udfff]")

_LITERALS = {True: "true", False: "false", None: "null"}


def stringify(value: Any) -> str:
    """Write a value that was read from JSON as `JSON.stringify` does.

    One difference: an integer keeps all its digits, where JavaScript rounds those beyond 2⁵³.
    """
    # No recursion, because payloads that other programs enqueued may be nested to any depth.
    text: list[str] = []
    stack = [_iter_pieces(value)]
    while stack:
        for piece in stack[-1]:
            if isinstance(piece, str):
                text.append(piece)
            else:
                stack.append(_iter_pieces(piece))
                break
        else:
            stack.pop()
    return "".join(text)


def _iter_pieces(value: Any) -> Iterator[str | dict[str, Any] | list[Any]]:
    """Yield the text of a value piece by piece, and nested arrays and objects as they are."""
    if isinstance(value, dict):
        before = "{"
        for key in _order_keys(value):
            yield f"{before}{_quote(key)}:"
            yield _format_scalar(value[key])
            before = ","
        yield "{}" if before == "{" else "}"
    elif isinstance(value, list):
        before = "["
        for item in value:
            yield before
            yield _format_scalar(item)
            before = ","
        yield "[]" if before == "[" else "]"
    else:
        yield _format_scalar(value)


def _format_scalar(value: Any) -> Any:
    if isinstance(value, str):
        return _quote(value)
    if value is None or isinstance(value, bool):
        return _LITERALS[value]
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return format_number(value)
    return value


def format_number(value: float) -> str:
    if not math.isfinite(value):
        return "null"
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    digits, point = _split_digits(abs(value))
    if len(digits) <= point <= 21:
        return f"{sign}{digits.ljust(point, '0')}"
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{point - 1:+d}"


def _split_digits(value: float) -> tuple[str, int]:
    """Return the shortest digits of a number, and how many of them precede the point."""
    mantissa, _, exponent = repr(value).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    zeros = len(whole + fraction) - len(digits)
    return digits.rstrip("0"), len(whole) - zeros + int(exponent or 0)


def _order_keys(value: dict[str, Any]) -> list[str]:
    indices = [key for key in value if _is_index(key)]
    if not indices:
        return list(value)
    return [*sorted(indices, key=int), *(key for key in value if not _is_index(key))]


def _is_index(key: str) -> bool:
    return _INDEX_PATTERN.fullmatch(key) is not None and int(key) <= _MAX_INDEX


def _quote(text: str) -> str:
    quoted = encode_basestring(text)
    if quoted.isascii():
        return quoted
    return _SURROGATE.sub(lambda half: f"\\u{ord(half[0]):04x}", quoted)
