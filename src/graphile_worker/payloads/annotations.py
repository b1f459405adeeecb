"""From the annotation of a parameter to the reader of its JSON."""

import dataclasses
import sys
import types
import typing
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union

from graphile_worker.errors import ConfigurationError, JobSpecError
from graphile_worker.payloads.readers import (
    _ARRAYS,
    _OBJECTS,
    _POSSIBLE,
    _SCALARS,
    _UNREADABLE,
    Reader,
    _array_reader,
    _as_it_is,
    _choice_reader,
    _class_reader,
    _dict_reader,
    _Field,
    _lenient_enum_reader,
    _list_reader,
    _model_reader,
    _named_tuple_reader,
    _optional_reader,
    _read_str,
    _shown,
    _struct_reader,
    _tuple_reader,
    _typed_dict_reader,
    _union_reader,
    _unreadable,
)


def reader(annotation: Any) -> Reader:
    """A function that gives a JSON value as the annotation asks, or raises Mismatch.

    Strict about types: no text becomes a number. Of a union the first member that fits is taken,
    except that an integer stays one where int is a member. An annotation that JSON cannot carry
    raises ConfigurationError here, not when a job runs.
    """
    build = _Build()
    read = build.reader(annotation)
    _finished.update(build.made)
    return read


# Readers by annotation and its spelling: `A | B` equals `B | A`, but asks for another order.
_finished: dict[tuple[Any, str], Reader] = {}

_QUALIFIERS = ("Final", "Required", "NotRequired", "ReadOnly", "ClassVar")


class _Later:
    """Stands for a reader that is still being built, in types that hold themselves."""

    def __init__(self) -> None:
        self.read: Reader = _as_it_is

    def __call__(self, value: Any) -> Any:
        return self.read(value)


class _Build:
    """One walk through an annotation; what it made is kept only when all of it could be made."""

    def __init__(self) -> None:
        self.made: dict[tuple[Any, str], Reader] = {}

    def reader(self, annotation: Any) -> Reader:
        key = (annotation, repr(annotation))
        try:
            known = _finished.get(key) or self.made.get(key)
        except TypeError:  # unhashable, such as Annotated[int, []]
            return self._new(annotation)
        if known:
            return known
        later = self.made[key] = _Later()
        later.read = self.made[key] = self._new(annotation)
        return later.read

    def _new(self, annotation: Any) -> Reader:
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is None:
            return self._without_arguments(annotation)
        if origin is Annotated or _qualifier(origin):
            return self.reader(arguments[0])
        if origin is Literal:
            return _listed_values(annotation, arguments)
        if origin in (Union, types.UnionType):
            return self._union(arguments)
        if getattr(annotation, "__unpacked__", False):
            raise _unreadable(annotation)
        if origin in _ARRAYS or origin in _OBJECTS:
            return self._container(annotation, origin, arguments)
        if _is_alias(origin):
            return self.reader(_filled(origin.__value__, origin.__type_params__, arguments))
        return self._class(annotation, origin, arguments)

    def _without_arguments(self, annotation: Any) -> Reader:
        if type(annotation).__hash__ is None:
            raise _unreadable(annotation)
        if annotation in _SCALARS:
            return _SCALARS[annotation]
        if annotation in _ARRAYS or annotation in _OBJECTS:
            return self._container(annotation, annotation, ())
        if isinstance(annotation, typing.NewType):
            return self.reader(annotation.__supertype__)
        if isinstance(annotation, TypeVar):
            return self._type_variable(annotation)
        if _is_alias(annotation):
            return self.reader(annotation.__value__)
        if isinstance(annotation, str | typing.ForwardRef):
            raise _unreadable(annotation, "resolve it first, with typing.get_type_hints")
        return self._class(annotation, annotation, ())

    def _type_variable(self, variable: Any) -> Reader:
        if variable.__constraints__:
            return self._union(variable.__constraints__)
        return self.reader(variable.__bound__ or Any)

    def _union(self, members: Sequence[Any]) -> Reader:
        others = [member for member in members if member not in (None, types.NoneType)]
        readers = [self.reader(member) for member in others]
        read = readers[0] if len(readers) == 1 else _union_reader(readers)
        return read if len(others) == len(members) else _optional_reader(read)

    def _container(self, annotation: Any, origin: Any, arguments: Sequence[Any]) -> Reader:
        if origin in _OBJECTS:
            key, item = arguments or (Any, Any)
            return _dict_reader(self._key(annotation, key), self.reader(item))
        if origin is tuple and _has_fixed_length(annotation, arguments):
            return _tuple_reader([self.reader(item) for item in arguments])
        read_list = _list_reader(self.reader(arguments[0] if arguments else Any))
        return _array_reader(_ARRAYS[origin], read_list)

    def _key(self, annotation: Any, key: Any) -> Reader:
        read = self.reader(key)
        listed = typing.get_origin(key) is Literal or _is_class(key, Enum) and _is_class(key, str)
        if read not in (_read_str, _as_it_is) and not listed:
            raise _unreadable(annotation, "the keys of a JSON object are text")
        return read

    def _class(self, annotation: Any, kind: Any, arguments: Sequence[Any]) -> Reader:
        if hasattr(kind, "__pydantic_validator__"):
            return _model_reader(kind)
        if hasattr(kind, "__struct_fields__"):
            return _struct_reader(annotation)
        if _is_class(kind, Enum):
            return _enum_reader(kind)
        if _is_class(kind, dict) and hasattr(kind, "__total__"):
            return _typed_dict_reader(self._fields(kind, _typed_dict_keys(kind), arguments))
        if _is_class(kind, tuple) and hasattr(kind, "_fields"):
            return _named_tuple_reader(kind, self._fields(kind, _named_tuple_keys(kind), arguments))
        if _is_class(kind) and hasattr(kind, "__dataclass_fields__"):
            return _class_reader(kind, self._fields(kind, _dataclass_keys(kind), arguments))
        if _is_class(kind) and hasattr(kind, "__attrs_attrs__"):
            return _class_reader(kind, self._fields(kind, _attrs_keys(kind), arguments))
        raise _unreadable(annotation, _UNREADABLE.get(kind, _POSSIBLE))

    def _fields(self, kind: Any, keys: Iterable["_Key"], arguments: Sequence[Any]) -> list[_Field]:
        parameters = getattr(kind, "__parameters__", ())
        return [
            _Field(
                key, keyword, self._field(kind, key, _filled(hint, parameters, arguments)), needed
            )
            for key, keyword, hint, needed in keys
        ]

    def _field(self, kind: type, name: str, hint: Any) -> Reader:
        try:
            return self.reader(hint)
        except ConfigurationError as error:
            raise ConfigurationError(f"{kind.__qualname__}.{name}: {error}") from None


class _Key(NamedTuple):
    """What a class declares about one key of its object."""

    key: str
    keyword: str
    hint: Any
    required: bool


def _typed_dict_keys(kind: Any) -> Iterable[_Key]:
    for name, hint in _hints(kind).items():
        qualifiers = _qualifiers(hint)
        # Where annotations are strings, the class itself has not seen the qualifiers.
        required = "NotRequired" not in qualifiers and name in kind.__required_keys__
        yield _Key(name, name, hint, required or "Required" in qualifiers)


def _named_tuple_keys(kind: Any) -> Iterable[_Key]:
    hints = _hints(kind)
    for name in kind._fields:
        yield _Key(name, name, hints.get(name, Any), name not in kind._field_defaults)


def _dataclass_keys(kind: Any) -> Iterable[_Key]:
    hints = _hints(kind)
    ordinary = {field.name for field in dataclasses.fields(kind) if field.init}
    for name, field in kind.__dataclass_fields__.items():
        hint = hints.get(name, Any)
        required = (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        if isinstance(hint, dataclasses.InitVar):
            yield _Key(name, name, hint.type, required)
        elif name in ordinary:
            yield _Key(name, name, hint, required)


def _attrs_keys(kind: Any) -> Iterable[_Key]:
    hints = _hints(kind)
    nothing = sys.modules["attr"].NOTHING
    for attribute in kind.__attrs_attrs__:
        # The annotation is what a converter gives, not what it takes.
        hint = Any if attribute.converter else hints.get(attribute.name, attribute.type or Any)
        if attribute.init:
            yield _Key(attribute.name, attribute.alias, hint, attribute.default is nothing)


def _hints(kind: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise ConfigurationError(
            f"the annotations of {_shown(kind)} cannot be resolved: {error}"
        ) from error


def _enum_reader(kind: type[Enum]) -> Reader:
    read = _listed_values(kind, kind.__members__.values())
    own = any("_missing_" in base.__dict__ for base in kind.__mro__ if base is not Enum)
    return _lenient_enum_reader(kind, read) if own else read


def _listed_values(annotation: Any, values: Iterable[Any]) -> Reader:
    try:
        return _choice_reader(values)
    except JobSpecError as error:
        raise _unreadable(annotation, error.reason) from None
    except (TypeError, ValueError) as error:
        raise _unreadable(annotation, str(error)) from None


def _filled(hint: Any, parameters: Sequence[Any], arguments: Sequence[Any]) -> Any:
    """The hint of a generic class, with the arguments in the place of its type variables."""
    given = dict(zip(parameters, arguments, strict=False))
    if isinstance(hint, TypeVar):
        return given.get(hint, hint)
    if not given or isinstance(hint, type) or not getattr(hint, "__parameters__", ()):
        return hint
    return hint[tuple(given.get(variable, variable) for variable in hint.__parameters__)]


def _qualifier(origin: Any) -> str | None:
    # By name: typing_extensions has some of these of its own.
    name = getattr(origin, "_name", None)
    return name if name in _QUALIFIERS else None


def _qualifiers(hint: Any) -> set[str]:
    found: set[str] = set()
    origin = typing.get_origin(hint)
    while origin is Annotated or _qualifier(origin):
        found.add(_qualifier(origin) or "")
        hint = typing.get_args(hint)[0]
        origin = typing.get_origin(hint)
    return found


def _has_fixed_length(annotation: Any, arguments: Sequence[Any]) -> bool:
    # tuple[()] has no arguments either, but is no bare tuple.
    return annotation not in (tuple, typing.Tuple) and tuple(arguments[1:]) != (...,)  # noqa: UP006


def _is_alias(annotation: Any) -> bool:
    # By name: Python 3.11 has it in typing_extensions alone.
    return type(annotation).__name__ == "TypeAliasType"


def _is_class(annotation: Any, base: type = object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, base)
