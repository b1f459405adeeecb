"""Readers convert a JSON value to a Python type. They raise Mismatch where it does not fit."""

import collections.abc as abc
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from enum import Enum
from inspect import Parameter
from types import NoneType
from typing import Any, Final, NamedTuple
from uuid import UUID

from graphile_worker._payloads.writing import encode_json

Reader = Callable[[Any], Any]


class Mismatch(ValueError):
    """A payload does not fit its annotation.

    The reasons name types. They never quote the payload, because it may contain secrets.
    """

    def __init__(self, path: str, reason: str, task: str | None = None) -> None:
        super().__init__(path, reason, task)
        self.path = path  # for example `items[2].width`
        self.reason = reason
        self.task = task

    def __str__(self) -> str:
        if self.task is not None:
            return f"{self.task}: {self._format_sentence()}"
        return f"{self.path}: {self.reason}" if self.path else self.reason

    def _format_sentence(self) -> str:
        subject = f'"{self.path}"' if self.path else "the payload"
        if self.path.startswith("["):
            subject = f"payload{self.path}"
        if self.reason == "missing":
            return f"{subject} is missing"
        if self.reason.startswith("not the text"):
            return f"{subject} is {self.reason}"
        must_be = re.fullmatch(r"expected ((?!\d|.*; or ).*)", self.reason, re.DOTALL)
        return f"{subject} must be {must_be[1]}" if must_be else f"{subject}: {self.reason}"

    def prepend_path(self, step: str) -> None:
        """Put a field or an `[index]` in front of the path."""
        dot = "." if self.path and not self.path.startswith("[") else ""
        self.path = f"{step}{dot}{self.path}"


def _build_type_mismatch(expected: str, value: Any) -> Mismatch:
    got = "None" if value is None else type(value).__name__
    return Mismatch("", f"expected {expected}, got {got}")


# Scalars. Types are compared without isinstance: JSON has no subclasses, and True is not a number.


def read_any(value: Any) -> Any:
    return value


def _build_exact_reader(kind: type) -> Reader:
    name = "None" if kind is NoneType else kind.__name__

    def read(value: Any) -> Any:
        if type(value) is kind:
            return value
        raise _build_type_mismatch(name, value)

    return read


def _build_text_reader(parse: Callable[[Any], Any], kind: type, *accepted: type) -> Reader:
    name = kind.__name__

    def read(value: Any) -> Any:
        if type(value) not in accepted:
            raise _build_type_mismatch(f"{name} as text", value)
        try:
            return parse(value)
        except (ValueError, InvalidOperation):
            raise Mismatch("", f"not the text of a {name}") from None

    return read


def _read_float(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is not int:
        raise _build_type_mismatch("float", value)
    try:
        return float(value)
    except OverflowError:
        raise Mismatch("", "too large for a float") from None


def _read_datetime(value: Any) -> datetime:
    parsed: datetime = _read_any_datetime(value)
    if parsed.utcoffset() is None:
        raise Mismatch("", "naive datetime: expected one with an offset")
    return parsed


_read_none = _build_exact_reader(NoneType)
read_str = _build_exact_reader(str)
_read_int = _build_exact_reader(int)
_read_bool = _build_exact_reader(bool)
_read_list = _build_exact_reader(list)
_read_dict = _build_exact_reader(dict)
_read_any_datetime = _build_text_reader(datetime.fromisoformat, datetime, str)
_read_date = _build_text_reader(date.fromisoformat, date, str)
_read_time = _build_text_reader(time.fromisoformat, time, str)
_read_uuid = _build_text_reader(UUID, UUID, str)
_read_decimal = _build_text_reader(Decimal, Decimal, str, int)

SCALAR_READERS: dict[Any, Reader] = {
    **dict.fromkeys((Any, object, Parameter.empty, Final), read_any),
    **dict.fromkeys((None, NoneType), _read_none),
    str: read_str,
    int: _read_int,
    bool: _read_bool,
    float: _read_float,
    Decimal: _read_decimal,
    datetime: _read_datetime,
    date: _read_date,
    time: _read_time,
    UUID: _read_uuid,
}

_JSON_TYPES = (str, int, float, bool, NoneType, list, dict)

# The JSON types that a reader accepts. Readers that are not listed may accept any.
_ACCEPTED_TYPES: dict[Reader, tuple[type, ...]] = {
    **dict.fromkeys((read_str, _read_datetime, _read_date, _read_time, _read_uuid), (str,)),
    _read_int: (int,),
    _read_bool: (bool,),
    _read_float: (float, int),
    _read_decimal: (str, int),
}


# Arrays and objects.

ARRAY_TYPES: dict[Any, Callable[[list[Any]], Any]] = {
    **dict.fromkeys((list, abc.Sequence, abc.MutableSequence, abc.Iterable, abc.Collection), list),
    **dict.fromkeys((set, abc.Set, abc.MutableSet), set),
    frozenset: frozenset,
    tuple: tuple,
}
OBJECT_TYPES = (dict, abc.Mapping, abc.MutableMapping)


def build_array_reader(make: Callable[[list[Any]], Any], read_item: Reader) -> Reader:
    if make is list and read_item is read_any:
        return _read_list

    def read(value: Any) -> Any:
        items, done = _read_list(value), []
        try:
            for item in items:
                done.append(read_item(item))
        except Mismatch as mismatch:
            mismatch.prepend_path(f"[{len(done)}]")
            raise
        if make is list:
            return done
        try:
            return make(done)
        except TypeError:
            raise Mismatch("", f"items that a {make.__name__} cannot hold") from None

    return read


def build_tuple_reader(readers: Sequence[Reader]) -> Reader:
    def read(value: Any) -> tuple[Any, ...]:
        items, done = _read_list(value), []
        if len(items) != len(readers):
            raise Mismatch("", f"expected {len(readers)} items, got {len(items)}")
        try:
            for read_item, item in zip(readers, items, strict=True):
                done.append(read_item(item))
        except Mismatch as mismatch:
            mismatch.prepend_path(f"[{len(done)}]")
            raise
        return tuple(done)

    return read


def build_dict_reader(read_key: Reader, read_item: Reader) -> Reader:
    if read_key in (read_str, read_any) and read_item is read_any:
        return _read_dict

    def read(value: Any) -> dict[Any, Any]:
        items = _read_dict(value)
        try:
            return {read_key(key): read_item(item) for key, item in items.items()}
        except Mismatch as mismatch:
            # The keys of a mapping are data, and messages never quote data.
            mismatch.prepend_path("[...]")
            raise

    return read


class Field(NamedTuple):
    """One key of an object and the keyword that takes its value."""

    key: str
    keyword: str
    hint: Any = Any
    is_required: bool = True
    read: Reader = read_any


def read_fields(value: dict[str, Any], fields: Iterable[Field]) -> dict[str, Any]:
    """Read the fields of an object by keyword. Other keys are ignored."""
    arguments: dict[str, Any] = {}
    key = ""
    try:
        for key, keyword, _, is_required, read in fields:
            if key in value:
                arguments[keyword] = read(value[key])
            elif is_required:
                raise Mismatch("", "missing")
    except Mismatch as mismatch:
        mismatch.prepend_path(key)
        raise
    return arguments


def build_typed_dict_reader(kind: type, fields: Sequence[Field]) -> Reader:
    return lambda value: {**_read_dict(value), **read_fields(value, fields)}


def build_class_reader(kind: type, fields: Sequence[Field]) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _build_type_mismatch(f"an object ({kind.__name__})", value)
        arguments = read_fields(value, fields)
        try:
            return kind(**arguments)
        except (TypeError, ValueError) as error:
            # Only the first argument: attrs adds its attribute and the value after the message.
            reason = error.args[0] if error.args else type(error).__name__
            raise Mismatch("", f"{kind.__name__}: {reason}") from error

    return read


def build_named_tuple_reader(kind: type, fields: Sequence[Field]) -> Reader:
    read_object = build_class_reader(kind, fields)
    names = [field.key for field in fields]

    def read(value: Any) -> Any:
        if type(value) is not list:
            return read_object(value)
        if len(value) > len(names):
            raise Mismatch("", f"expected {len(names)} items, got {len(value)}")
        return read_object(dict(zip(names, value, strict=False)))

    return read


def build_model_reader(model: type) -> Reader | None:
    """Build a reader for a pydantic model, or None if the model is not complete yet."""
    pydantic = sys.modules["pydantic"]
    adapter = pydantic.TypeAdapter(model)
    names: set[str] = set()
    # Adapters have this attribute since pydantic 2.10, models in every version.
    if not getattr(adapter, "pydantic_complete", getattr(model, "__pydantic_complete__", True)):
        return None

    def read(value: Any) -> Any:
        try:
            # From text, because strict models accept fewer Python values than JSON values.
            return adapter.validate_json(encode_json(value))
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            mismatch = Mismatch("", _get_model_reason(first))
            if not names:
                names.update(_list_texts(adapter.core_schema))
            for step in reversed(first["loc"]):
                # Keys that the model does not name are data, and messages never quote data.
                shown = step if step in names else "[...]"
                mismatch.prepend_path(f"[{step}]" if isinstance(step, int) else shown)
            raise mismatch from None

    return read


def _get_model_reason(error: dict[str, Any]) -> str:
    """Return the message of an error of pydantic without values of the payload."""
    message, kind, context = str(error["msg"]), error["type"], error.get("ctx", {})
    if kind == "union_tag_invalid":
        return message.replace(f" '{context['tag']}'", "", 1)
    if kind in _QUOTING_ERRORS and context:
        return message.removesuffix(str(context["error"])).rstrip(" ,:")
    return message


# Errors of pydantic whose messages end with what another parser found in the text.
_QUOTING_ERRORS = {"import_error", "json_invalid", "url_parsing", "uuid_parsing"}


def _list_texts(schema: Any) -> set[str]:
    """Return all texts in a schema of pydantic: names of fields, their aliases, and others."""
    texts: set[str] = set()
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            texts.add(each)
        elif isinstance(each, abc.Mapping):
            waiting += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple | set | frozenset):
            waiting += each
    return texts


# The end of a message of msgspec: "... - at `$.items[2].width`".
_STRUCT_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
# The value or the key of the payload in a message of msgspec.
_STRUCT_QUOTE = re.compile(
    "^(Invalid value|Invalid enum value|Object contains unknown field) .*", re.DOTALL
)


def build_struct_reader(struct: Any) -> Reader:
    msgspec = sys.modules["msgspec"]

    def read(value: Any) -> Any:
        try:
            return msgspec.convert(value, struct, str_keys=True)
        except msgspec.ValidationError as error:
            path = _STRUCT_PATH.search(str(error))
            reason = _STRUCT_QUOTE.sub(r"\1", _STRUCT_PATH.sub("", str(error)))
            raise Mismatch(path[1] if path else "", reason) from None

    return read


# Unions and listed values.


def build_optional_reader(read: Reader) -> Reader:
    return lambda value: None if value is None else read(value)


def build_union_reader(readers: Sequence[Reader]) -> Reader:
    by_type = {kind: _select_readers(readers, kind) or readers for kind in _JSON_TYPES}

    def read(value: Any) -> Any:
        reasons = []
        for read_member in by_type.get(type(value), readers):
            try:
                return read_member(value)
            except Mismatch as mismatch:
                reasons.append(str(mismatch))
        raise Mismatch("", "; or ".join(dict.fromkeys(reasons)))

    return read


def _select_readers(readers: Iterable[Reader], kind: type) -> list[Reader]:
    accepting = [read for read in readers if kind in _ACCEPTED_TYPES.get(read, _JSON_TYPES)]
    # Float and Decimal come last for an integer, because they accept it too.
    return sorted(accepting, key=lambda read: kind is int and read in (_read_float, _read_decimal))


def build_choice_reader(choices: Iterable[Any], find: Callable[[Any], Any] | None = None) -> Reader:
    """Build a reader that finds each choice by its JSON text, so that 1, True and "1" differ.

    `find` looks up a value that is not listed, for example a combination of flags.
    """
    by_text = {encode_json(choice): choice for choice in choices}
    listed = ", ".join(list(by_text)[:8]) + (", ..." if len(by_text) > 8 else "")
    for choice in list(by_text.values()):
        # JavaScript writes 2.0 as 2.
        number = choice.value if isinstance(choice, Enum) else choice
        if type(number) is float and number.is_integer():
            by_text.setdefault(str(int(number)), choice)

    def read(value: Any) -> Any:
        try:
            return by_text[encode_json(value)]
        except (KeyError, ValueError, RecursionError):
            pass
        if find is not None and type(value) is not bool:
            with suppress(TypeError, ValueError):
                return find(value)
        raise Mismatch("", f"expected one of {listed}")

    return read
