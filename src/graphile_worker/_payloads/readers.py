"""Readers: functions that give a JSON value as Python asks for it, or raise Mismatch."""

import collections.abc as abc
import re
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from inspect import Parameter
from typing import Any, Final, NamedTuple
from uuid import UUID

from graphile_worker._payloads.writing import _encode_json
from graphile_worker.errors import ConfigurationError

Reader = Callable[[Any], Any]


class Mismatch(ValueError):
    """A payload does not fit its annotation: where (`items[2].width`) and why.

    Our own reasons name types and never quote the payload, which may hold secrets.
    """

    def __init__(self, path: str, reason: str, task: str | None = None) -> None:
        super().__init__(path, reason, task)
        self.path = path
        self.reason = reason
        self.task = task

    def __str__(self) -> str:
        if self.task is not None:
            return f"{self.task}: {self._format_sentence()}"
        return f"{self.path}: {self.reason}" if self.path else self.reason

    def _format_sentence(self) -> str:
        """For a reader who does not know which value of which payload it is about."""
        what = f'"{self.path}"' if self.path else "the payload"
        if self.path.startswith("["):
            what = f"payload{self.path}"
        if self.reason == "missing":
            return f"{what} is missing"
        if self.reason.startswith("not the text"):
            return f"{what} is {self.reason}"
        must_be = re.fullmatch(r"expected ((?!\d|.*; or ).*)", self.reason, re.DOTALL)
        return f"{what} must be {must_be[1]}" if must_be else f"{what}: {self.reason}"

    def prepend_path(self, step: str) -> None:
        """Put the field or the `[index]` that holds the misfit in front of its path."""
        dot = "." if self.path and not self.path.startswith("[") else ""
        self.path = f"{step}{dot}{self.path}"


_SUPPORTED_TYPES = (
    "possible are str, int, float, bool, None, datetime, date, time, UUID, Decimal, Enum, Literal, "
    "list, tuple, set, dict, TypedDict, NamedTuple, dataclasses, "
    "classes of attrs, pydantic and msgspec, unions of these, and Any"
)


def _format_annotation(annotation: Any) -> str:
    if not isinstance(annotation, type):
        return repr(annotation)
    module = "" if annotation.__module__ == "builtins" else f"{annotation.__module__}."
    return f"{module}{annotation.__qualname__}"


def _build_annotation_error(annotation: Any, why: str = _SUPPORTED_TYPES) -> ConfigurationError:
    return ConfigurationError(
        f"a payload cannot be read as {_format_annotation(annotation)}: {why}"
    )


def _build_type_mismatch(what: str, value: Any) -> Mismatch:
    got = "None" if value is None else type(value).__name__
    return Mismatch("", f"expected {what}, got {got}")


# Scalars. Types are compared, not isinstance: JSON has no subclasses, and True is no number.


def _read_any(value: Any) -> Any:
    return value


def _read_none(value: Any) -> None:
    if value is not None:
        raise _build_type_mismatch("None", value)


def _read_str(value: Any) -> str:
    if type(value) is str:
        return value
    raise _build_type_mismatch("str", value)


def _read_int(value: Any) -> int:
    if type(value) is int:
        return value
    raise _build_type_mismatch("int", value)


def _read_bool(value: Any) -> bool:
    if type(value) is bool:
        return value
    raise _build_type_mismatch("bool", value)


def _read_float(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is not int:
        raise _build_type_mismatch("float", value)
    try:
        return float(value)
    except OverflowError:
        raise Mismatch("", "too large for a float") from None


def _read_decimal(value: Any) -> Decimal:
    if type(value) is not str and type(value) is not int:
        raise _build_type_mismatch("Decimal as text", value)
    try:
        return Decimal(value)
    except InvalidOperation:
        raise Mismatch("", "not the text of a Decimal") from None


def _read_datetime(value: Any) -> datetime:
    moment: datetime = _read_datetime_text(value)
    if moment.utcoffset() is None:
        raise Mismatch("", "naive datetime: expected one with an offset")
    return moment


def _build_text_reader(kind: str, parse: Callable[[str], Any]) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not str:
            raise _build_type_mismatch(f"{kind} as text", value)
        try:
            return parse(value)
        except ValueError:
            raise Mismatch("", f"not the text of a {kind}") from None

    return read


_read_datetime_text = _build_text_reader("datetime", datetime.fromisoformat)

_SCALAR_READERS: dict[Any, Reader] = {
    Any: _read_any,
    object: _read_any,
    Parameter.empty: _read_any,
    Final: _read_any,
    None: _read_none,
    types.NoneType: _read_none,
    str: _read_str,
    int: _read_int,
    bool: _read_bool,
    float: _read_float,
    Decimal: _read_decimal,
    datetime: _read_datetime,
    date: _build_text_reader("date", date.fromisoformat),
    time: _build_text_reader("time", time.fromisoformat),
    UUID: _build_text_reader("UUID", UUID),
}

_JSON_TYPES = (str, int, float, bool, types.NoneType, list, dict)

# What the scalars take; a reader that is not here may take anything.
_ACCEPTED_TYPES: dict[Reader, tuple[type, ...]] = {
    **dict.fromkeys((_SCALAR_READERS[kind] for kind in (str, datetime, date, time, UUID)), (str,)),
    _read_int: (int,),
    _read_bool: (bool,),
    _read_float: (float, int),
    _read_decimal: (str, int),
}

_UNSUPPORTED_REASONS: dict[Any, str] = {
    bytes: "JSON cannot carry it; write it as text, such as base64",
    bytearray: "JSON cannot carry it; write it as text, such as base64",
    timedelta: "JSON has no such value; take seconds as int or float",
}


# Arrays and objects.

_ARRAY_TYPES: dict[Any, Callable[[list[Any]], Any]] = {
    **dict.fromkeys((list, abc.Sequence, abc.MutableSequence, abc.Iterable, abc.Collection), list),
    **dict.fromkeys((set, abc.Set, abc.MutableSet), set),
    frozenset: frozenset,
    tuple: tuple,
}
_OBJECT_TYPES = (dict, abc.Mapping, abc.MutableMapping)


def _read_list(value: Any) -> list[Any]:
    if type(value) is list:
        return value
    raise _build_type_mismatch("list", value)


def _read_dict(value: Any) -> dict[str, Any]:
    if type(value) is dict:
        return value
    raise _build_type_mismatch("dict", value)


def _build_list_reader(read_item: Reader) -> Reader:
    if read_item is _read_any:
        return _read_list

    def read(value: Any) -> list[Any]:
        items, done = _read_list(value), []
        try:
            for item in items:
                done.append(read_item(item))
        except Mismatch as misfit:
            misfit.prepend_path(f"[{len(done)}]")
            raise
        return done

    return read


def _build_array_reader(make: Callable[[list[Any]], Any], read_list: Reader) -> Reader:
    def read(value: Any) -> Any:
        items = read_list(value)
        try:
            return make(items)
        except TypeError:
            raise Mismatch("", f"items that a {make.__name__} cannot hold") from None

    return read_list if make is list else read


def _build_tuple_reader(readers: Sequence[Reader]) -> Reader:
    def read(value: Any) -> tuple[Any, ...]:
        items, done = _read_list(value), []
        if len(items) != len(readers):
            raise Mismatch("", f"expected {len(readers)} items, got {len(items)}")
        try:
            for read_item, item in zip(readers, items, strict=True):
                done.append(read_item(item))
        except Mismatch as misfit:
            misfit.prepend_path(f"[{len(done)}]")
            raise
        return tuple(done)

    return read


def _build_dict_reader(read_key: Reader, read_item: Reader) -> Reader:
    if read_key in (_read_str, _read_any) and read_item is _read_any:
        return _read_dict

    def read(value: Any) -> dict[Any, Any]:
        items = _read_dict(value)
        try:
            return {read_key(key): read_item(item) for key, item in items.items()}
        except Mismatch as misfit:
            # Keys of a mapping are data, and data is not quoted.
            misfit.prepend_path("[...]")
            raise

    return read


class _Field(NamedTuple):
    """What one key of an object becomes."""

    key: str
    keyword: str
    read: Reader
    is_required: bool


def _read_fields(value: dict[str, Any], fields: Iterable[_Field]) -> dict[str, Any]:
    """The fields that are given, by keyword; keys that no field names are left out."""
    given: dict[str, Any] = {}
    key = ""
    try:
        for key, keyword, read, required in fields:
            if key in value:
                given[keyword] = read(value[key])
            elif required:
                raise Mismatch("", "missing")
    except Mismatch as misfit:
        misfit.prepend_path(key)
        raise
    return given


def _build_typed_dict_reader(fields: Sequence[_Field]) -> Reader:
    return lambda value: {**_read_dict(value), **_read_fields(value, fields)}


def _build_class_reader(kind: type, fields: Sequence[_Field]) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _build_type_mismatch(f"an object ({kind.__name__})", value)
        given = _read_fields(value, fields)
        try:
            return kind(**given)
        except (TypeError, ValueError) as error:
            # Constructors check what annotations cannot say; attrs puts more behind its message.
            reason = error.args[0] if error.args else type(error).__name__
            raise Mismatch("", f"{kind.__name__}: {reason}") from error

    return read


def _build_named_tuple_reader(kind: type, fields: Sequence[_Field]) -> Reader:
    read_object = _build_class_reader(kind, fields)
    names = [field.key for field in fields]

    def read(value: Any) -> Any:
        if type(value) is not list:
            return read_object(value)
        if len(value) > len(names):
            raise Mismatch("", f"expected {len(names)} items, got {len(value)}")
        return read_object(dict(zip(names, value, strict=False)))

    return read


def _build_model_reader(model: type) -> Reader:
    """Pydantic reads JSON text, because strict models take less from Python values."""
    pydantic = sys.modules["pydantic"]
    adapter = pydantic.TypeAdapter(model)
    # Adapters say so since 2.10, models always have.
    complete = getattr(adapter, "pydantic_complete", getattr(model, "__pydantic_complete__", True))
    if not complete:
        raise _build_annotation_error(model, "its annotations cannot be resolved yet")
    validate = adapter.validate_json

    def read(value: Any) -> Any:
        try:
            return validate(_encode_json(value))
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            misfit = Mismatch("", first["msg"])
            for step in reversed(first["loc"]):
                misfit.prepend_path(f"[{step}]" if isinstance(step, int) else step)
            raise misfit from None

    return read


# How msgspec ends its messages: "... - at `$.items[2].width`".
_STRUCT_PATH = re.compile(r" - at `\$\.?([^`]*)`$")


def _build_struct_reader(struct: Any) -> Reader:
    msgspec = sys.modules["msgspec"]
    convert = msgspec.convert

    def read(value: Any) -> Any:
        try:
            return convert(value, struct, str_keys=True)
        except msgspec.ValidationError as error:
            path = _STRUCT_PATH.search(str(error))
            reason = _STRUCT_PATH.sub("", str(error))
            raise Mismatch(path[1] if path else "", reason) from None

    return read


# Choices: unions, and values that are listed.


def _build_optional_reader(read: Reader) -> Reader:
    return lambda value: None if value is None else read(value)


def _build_union_reader(readers: Sequence[Reader]) -> Reader:
    by_type = {kind: _select_readers(readers, kind) or readers for kind in _JSON_TYPES}

    def read(value: Any) -> Any:
        reasons = []
        for read_member in by_type.get(type(value), readers):
            try:
                return read_member(value)
            except Mismatch as misfit:
                reasons.append(str(misfit))
        raise Mismatch("", "; or ".join(dict.fromkeys(reasons)))

    return read


def _select_readers(readers: Iterable[Reader], kind: type) -> list[Reader]:
    """Those that may take a JSON value of this type, so that others need not raise first."""
    able = [read for read in readers if kind in _ACCEPTED_TYPES.get(read, _JSON_TYPES)]
    # These two would take an integer away from int, were they asked first.
    return sorted(able, key=lambda read: kind is int and read in (_read_float, _read_decimal))


def _build_choice_reader(choices: Iterable[Any]) -> Reader:
    """Reads each of these values from its own JSON text, so that 1, True and "1" stay apart."""
    by_text = {_encode_json(choice): choice for choice in choices}
    listed = ", ".join(list(by_text)[:8]) + (", ..." if len(by_text) > 8 else "")
    for choice in list(by_text.values()):
        # JavaScript writes 2.0 as 2.
        number = choice.value if isinstance(choice, Enum) else choice
        if type(number) is float and number.is_integer():
            by_text.setdefault(str(int(number)), choice)

    def read(value: Any) -> Any:
        try:
            return by_text[_encode_json(value)]
        except (KeyError, ValueError, RecursionError):
            raise Mismatch("", f"expected one of {listed}") from None

    return read


def _build_lenient_enum_reader(kind: type[Enum], read_listed: Reader) -> Reader:
    """Asks the class about values that it does not list: flags combine, `_missing_` may know."""

    def read(value: Any) -> Any:
        try:
            return read_listed(value)
        except Mismatch as misfit:
            if type(value) is bool:
                raise
            return ask(value, misfit)

    def ask(value: Any, misfit: Mismatch) -> Any:
        try:
            return kind(value)
        except (TypeError, ValueError):
            raise misfit from None

    return read
