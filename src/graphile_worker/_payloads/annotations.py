"""From the annotation of a parameter to the reader of its JSON."""

import dataclasses
import sys
import types
import typing
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union

from graphile_worker._payloads.readers import (
    _ARRAY_TYPES,
    _OBJECT_TYPES,
    _SCALAR_READERS,
    _SUPPORTED_TYPES,
    _UNSUPPORTED_REASONS,
    Reader,
    _build_annotation_error,
    _build_array_reader,
    _build_choice_reader,
    _build_class_reader,
    _build_dict_reader,
    _build_lenient_enum_reader,
    _build_list_reader,
    _build_model_reader,
    _build_named_tuple_reader,
    _build_optional_reader,
    _build_struct_reader,
    _build_tuple_reader,
    _build_typed_dict_reader,
    _build_union_reader,
    _Field,
    _format_annotation,
    _read_any,
    _read_str,
)
from graphile_worker.errors import ConfigurationError, JobSpecError


def build_reader(annotation: Any) -> Reader:
    """A function that gives a JSON value as the annotation asks, or raises Mismatch.

    Strict about types: no text becomes a number. Of a union the first member that fits is taken,
    except that an integer stays one where int is a member. An annotation that JSON cannot carry
    raises ConfigurationError here, not when a job runs.
    """
    build = _ReaderBuilder()
    read = build.build(annotation)
    _reader_cache.update(build.readers)
    return read


# Readers by annotation and its spelling: `A | B` equals `B | A`, but asks for another order.
_reader_cache: dict[tuple[Any, str], Reader] = {}

_QUALIFIERS = ("Final", "Required", "NotRequired", "ReadOnly", "ClassVar")


class _DeferredReader:
    """Stands for a reader that is still being built, in types that hold themselves."""

    def __init__(self) -> None:
        self.read: Reader = _read_any

    def __call__(self, value: Any) -> Any:
        return self.read(value)


class _ReaderBuilder:
    """One walk through an annotation; what it made is kept only when all of it could be made."""

    def __init__(self) -> None:
        self.readers: dict[tuple[Any, str], Reader] = {}

    def build(self, annotation: Any) -> Reader:
        key = (annotation, repr(annotation))
        try:
            known = _reader_cache.get(key) or self.readers.get(key)
        except TypeError:  # unhashable, such as Annotated[int, []]
            return self._build_uncached(annotation)
        if known:
            return known
        later = self.readers[key] = _DeferredReader()
        later.read = self.readers[key] = self._build_uncached(annotation)
        return later.read

    def _build_uncached(self, annotation: Any) -> Reader:
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is None:
            return self._build_plain(annotation)
        if origin is Annotated or _get_qualifier(origin):
            return self.build(arguments[0])
        if origin is Literal:
            return _build_values_reader(annotation, arguments)
        if origin in (Union, types.UnionType):
            return self._build_union(arguments)
        if getattr(annotation, "__unpacked__", False):
            raise _build_annotation_error(annotation)
        if origin in _ARRAY_TYPES or origin in _OBJECT_TYPES:
            return self._build_container(annotation, origin, arguments)
        if _is_alias(origin):
            return self.build(
                _fill_type_variables(origin.__value__, origin.__type_params__, arguments)
            )
        return self._build_class(annotation, origin, arguments)

    def _build_plain(self, annotation: Any) -> Reader:
        if type(annotation).__hash__ is None:
            raise _build_annotation_error(annotation)
        if annotation in _SCALAR_READERS:
            return _SCALAR_READERS[annotation]
        if annotation in _ARRAY_TYPES or annotation in _OBJECT_TYPES:
            return self._build_container(annotation, annotation, ())
        if isinstance(annotation, typing.NewType):
            return self.build(annotation.__supertype__)
        if isinstance(annotation, TypeVar):
            return self._build_type_variable(annotation)
        if _is_alias(annotation):
            return self.build(annotation.__value__)
        if isinstance(annotation, str | typing.ForwardRef):
            raise _build_annotation_error(
                annotation, "resolve it first, with typing.get_type_hints"
            )
        return self._build_class(annotation, annotation, ())

    def _build_type_variable(self, variable: Any) -> Reader:
        if variable.__constraints__:
            return self._build_union(variable.__constraints__)
        return self.build(variable.__bound__ or Any)

    def _build_union(self, members: Sequence[Any]) -> Reader:
        others = [member for member in members if member not in (None, types.NoneType)]
        readers = [self.build(member) for member in others]
        read = readers[0] if len(readers) == 1 else _build_union_reader(readers)
        return read if len(others) == len(members) else _build_optional_reader(read)

    def _build_container(self, annotation: Any, origin: Any, arguments: Sequence[Any]) -> Reader:
        if origin in _OBJECT_TYPES:
            key, item = arguments or (Any, Any)
            return _build_dict_reader(self._build_key(annotation, key), self.build(item))
        if origin is tuple and _has_fixed_length(annotation, arguments):
            return _build_tuple_reader([self.build(item) for item in arguments])
        read_list = _build_list_reader(self.build(arguments[0] if arguments else Any))
        return _build_array_reader(_ARRAY_TYPES[origin], read_list)

    def _build_key(self, annotation: Any, key: Any) -> Reader:
        read = self.build(key)
        listed = typing.get_origin(key) is Literal or _is_class(key, Enum) and _is_class(key, str)
        if read not in (_read_str, _read_any) and not listed:
            raise _build_annotation_error(annotation, "the keys of a JSON object are text")
        return read

    def _build_class(self, annotation: Any, kind: Any, arguments: Sequence[Any]) -> Reader:
        if hasattr(kind, "__pydantic_validator__"):
            return _build_model_reader(kind)
        if hasattr(kind, "__struct_fields__"):
            return _build_struct_reader(annotation)
        if _is_class(kind, Enum):
            return _build_enum_reader(kind)
        if _is_class(kind, dict) and hasattr(kind, "__total__"):
            return _build_typed_dict_reader(
                self._build_fields(kind, _list_typed_dict_keys(kind), arguments)
            )
        if _is_class(kind, tuple) and hasattr(kind, "_fields"):
            return _build_named_tuple_reader(
                kind, self._build_fields(kind, _list_named_tuple_keys(kind), arguments)
            )
        if _is_class(kind) and hasattr(kind, "__dataclass_fields__"):
            return _build_class_reader(
                kind, self._build_fields(kind, _list_dataclass_keys(kind), arguments)
            )
        if _is_class(kind) and hasattr(kind, "__attrs_attrs__"):
            return _build_class_reader(
                kind, self._build_fields(kind, _list_attrs_keys(kind), arguments)
            )
        raise _build_annotation_error(annotation, _UNSUPPORTED_REASONS.get(kind, _SUPPORTED_TYPES))

    def _build_fields(
        self, kind: Any, keys: Iterable["_DeclaredKey"], arguments: Sequence[Any]
    ) -> list[_Field]:
        parameters = getattr(kind, "__parameters__", ())
        return [
            _Field(
                key,
                keyword,
                self._build_field(kind, key, _fill_type_variables(hint, parameters, arguments)),
                needed,
            )
            for key, keyword, hint, needed in keys
        ]

    def _build_field(self, kind: type, name: str, hint: Any) -> Reader:
        try:
            return self.build(hint)
        except ConfigurationError as error:
            raise ConfigurationError(f"{kind.__qualname__}.{name}: {error}") from None


class _DeclaredKey(NamedTuple):
    """What a class declares about one key of its object."""

    key: str
    keyword: str
    hint: Any
    is_required: bool


def _list_typed_dict_keys(kind: Any) -> Iterable[_DeclaredKey]:
    for name, hint in _get_hints(kind).items():
        qualifiers = _get_qualifiers(hint)
        # Where annotations are strings, the class itself has not seen the qualifiers.
        required = "NotRequired" not in qualifiers and name in kind.__required_keys__
        yield _DeclaredKey(name, name, hint, required or "Required" in qualifiers)


def _list_named_tuple_keys(kind: Any) -> Iterable[_DeclaredKey]:
    hints = _get_hints(kind)
    for name in kind._fields:
        yield _DeclaredKey(name, name, hints.get(name, Any), name not in kind._field_defaults)


def _list_dataclass_keys(kind: Any) -> Iterable[_DeclaredKey]:
    hints = _get_hints(kind)
    ordinary = {field.name for field in dataclasses.fields(kind) if field.init}
    for name, field in kind.__dataclass_fields__.items():
        hint = hints.get(name, Any)
        required = (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        if isinstance(hint, dataclasses.InitVar):
            yield _DeclaredKey(name, name, hint.type, required)
        elif name in ordinary:
            yield _DeclaredKey(name, name, hint, required)


def _list_attrs_keys(kind: Any) -> Iterable[_DeclaredKey]:
    hints = _get_hints(kind)
    nothing = sys.modules["attr"].NOTHING
    for attribute in kind.__attrs_attrs__:
        # The annotation is what a converter gives, not what it takes.
        hint = Any if attribute.converter else hints.get(attribute.name, attribute.type or Any)
        if attribute.init:
            yield _DeclaredKey(attribute.name, attribute.alias, hint, attribute.default is nothing)


def _get_hints(kind: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise ConfigurationError(
            f"the annotations of {_format_annotation(kind)} cannot be resolved: {error}"
        ) from error


def _build_enum_reader(kind: type[Enum]) -> Reader:
    read = _build_values_reader(kind, kind.__members__.values())
    own = any("_missing_" in base.__dict__ for base in kind.__mro__ if base is not Enum)
    return _build_lenient_enum_reader(kind, read) if own else read


def _build_values_reader(annotation: Any, values: Iterable[Any]) -> Reader:
    try:
        return _build_choice_reader(values)
    except JobSpecError as error:
        raise _build_annotation_error(annotation, error.reason) from None
    except (TypeError, ValueError) as error:
        raise _build_annotation_error(annotation, str(error)) from None


def _fill_type_variables(hint: Any, parameters: Sequence[Any], arguments: Sequence[Any]) -> Any:
    """The hint of a generic class, with the arguments in the place of its type variables."""
    given = dict(zip(parameters, arguments, strict=False))
    if isinstance(hint, TypeVar):
        return given.get(hint, hint)
    if not given or isinstance(hint, type) or not getattr(hint, "__parameters__", ()):
        return hint
    return hint[tuple(given.get(variable, variable) for variable in hint.__parameters__)]


def _get_qualifier(origin: Any) -> str | None:
    # By name: typing_extensions has some of these of its own.
    name = getattr(origin, "_name", None)
    return name if name in _QUALIFIERS else None


def _get_qualifiers(hint: Any) -> set[str]:
    found: set[str] = set()
    origin = typing.get_origin(hint)
    while origin is Annotated or _get_qualifier(origin):
        found.add(_get_qualifier(origin) or "")
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
