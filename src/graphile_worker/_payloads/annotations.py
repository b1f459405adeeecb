"""Build the reader for the annotation of a parameter."""

import dataclasses
import sys
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from enum import Enum
from typing import Annotated, Any, Literal, TypeVar, Union

from graphile_worker._payloads import readers
from graphile_worker._payloads.readers import Field, Reader
from graphile_worker.errors import ConfigurationError, JobSpecError

_SUPPORTED_TYPES = (
    "supported are str, int, float, bool, None, datetime, date, time, UUID, Decimal, Enum, "
    "Literal, list, tuple, set, dict, TypedDict, NamedTuple, dataclasses, "
    "classes of attrs, pydantic and msgspec, unions of these, and Any"
)
_UNSUPPORTED_REASONS: dict[Any, str] = {
    **dict.fromkeys((bytes, bytearray), "JSON has no bytes; take text, for example base64"),
    timedelta: "JSON has no durations; take seconds as int or float",
}

# Keyed by annotation and spelling: `A | B` equals `B | A`, but its members are tried in order.
_reader_cache: dict[tuple[Any, str], Reader] = {}


def build_reader(annotation: Any) -> Reader:
    """Build a function that reads a JSON value as the annotation requires, or raises Mismatch.

    Readers never convert between types, for example text to a number. For a union the first member
    that fits is taken, except that an integer stays one where int is a member. An annotation that
    JSON cannot carry raises ConfigurationError here, not when a job runs.
    """
    builder = _ReaderBuilder()
    read = builder.build(annotation)
    _reader_cache.update(builder.readers)
    return read


class _DeferredReader:
    """A placeholder for a reader that is being built, for types that contain themselves."""

    read: Reader

    def __call__(self, value: Any) -> Any:
        return self.read(value)


class _ReaderBuilder:
    """One walk through an annotation. Its readers enter the cache only if all were built."""

    def __init__(self) -> None:
        self.readers: dict[tuple[Any, str], Reader] = {}

    def build(self, annotation: Any) -> Reader:
        key = (annotation, repr(annotation))
        try:
            known = _reader_cache.get(key) or self.readers.get(key)
        except TypeError:  # unhashable, for example Annotated[int, []]
            return self._build_uncached(annotation)
        if known:
            return known
        deferred = self.readers[key] = _DeferredReader()
        deferred.read = self.readers[key] = self._build_uncached(annotation)
        return deferred.read

    def _build_uncached(self, annotation: Any) -> Reader:
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is None:
            return self._build_plain(annotation)
        if _get_wrapper(annotation):
            return self.build(arguments[0])
        if origin is Literal:
            return _build_choice_reader(annotation, arguments)
        if origin in (Union, types.UnionType):
            return self._build_union(arguments)
        if getattr(annotation, "__unpacked__", False):
            raise _build_annotation_error(annotation)
        if origin in readers.ARRAY_TYPES or origin in readers.OBJECT_TYPES:
            return self._build_container(annotation, origin, arguments)
        if _is_alias(origin):
            return self.build(
                _fill_type_variables(origin.__value__, origin.__type_params__, arguments)
            )
        return self._build_class(annotation, origin, arguments)

    def _build_plain(self, annotation: Any) -> Reader:
        if type(annotation).__hash__ is None:
            raise _build_annotation_error(annotation)
        if annotation in readers.SCALAR_READERS:
            return readers.SCALAR_READERS[annotation]
        if annotation in readers.ARRAY_TYPES or annotation in readers.OBJECT_TYPES:
            return self._build_container(annotation, annotation, ())
        if isinstance(annotation, typing.NewType):
            return self.build(annotation.__supertype__)
        if isinstance(annotation, TypeVar):
            if annotation.__constraints__:
                return self._build_union(annotation.__constraints__)
            return self.build(annotation.__bound__ or Any)
        if _is_alias(annotation):
            return self.build(annotation.__value__)
        if isinstance(annotation, str | typing.ForwardRef):
            raise _build_annotation_error(
                annotation, "resolve it first, with typing.get_type_hints"
            )
        return self._build_class(annotation, annotation, ())

    def _build_union(self, members: Sequence[Any]) -> Reader:
        others = [member for member in members if member not in (None, types.NoneType)]
        built = [self.build(member) for member in others]
        read = built[0] if len(built) == 1 else readers.build_union_reader(built)
        return read if len(others) == len(members) else readers.build_optional_reader(read)

    def _build_container(self, annotation: Any, origin: Any, arguments: Sequence[Any]) -> Reader:
        if origin in readers.OBJECT_TYPES:
            key, item = arguments or (Any, Any)
            return readers.build_dict_reader(self._build_key(annotation, key), self.build(item))
        if origin is tuple and _has_fixed_length(annotation, arguments):
            return readers.build_tuple_reader([self.build(item) for item in arguments])
        read_item = self.build(arguments[0] if arguments else Any)
        return readers.build_array_reader(readers.ARRAY_TYPES[origin], read_item)

    def _build_key(self, annotation: Any, key: Any) -> Reader:
        read = self.build(key)
        is_listed = typing.get_origin(key) is Literal or (
            isinstance(key, type) and issubclass(key, Enum) and issubclass(key, str)
        )
        if read not in (readers.read_str, readers.read_any) and not is_listed:
            raise _build_annotation_error(annotation, "the keys of a JSON object are text")
        return read

    def _build_class(self, annotation: Any, kind: Any, arguments: Sequence[Any]) -> Reader:
        if hasattr(kind, "__pydantic_validator__"):
            read = readers.build_model_reader(kind)
            if read is None:
                raise _build_annotation_error(kind, "its annotations cannot be resolved yet")
            return read
        if hasattr(kind, "__struct_fields__"):
            return readers.build_struct_reader(annotation)
        if isinstance(kind, type) and issubclass(kind, Enum):
            return _build_enum_reader(kind)
        build, fields = _list_fields(kind)
        if build is None:
            reason = _UNSUPPORTED_REASONS.get(kind, _SUPPORTED_TYPES)
            raise _build_annotation_error(annotation, reason)
        parameters = getattr(kind, "__parameters__", ())
        return build(
            kind,
            [
                self._build_field(
                    kind, field, _fill_type_variables(field.hint, parameters, arguments)
                )
                for field in fields
            ],
        )

    def _build_field(self, kind: type, field: Field, hint: Any) -> Field:
        try:
            return field._replace(read=self.build(hint))
        except ConfigurationError as error:
            raise ConfigurationError(f"{kind.__qualname__}.{field.key}: {error}") from None


def _list_fields(
    kind: Any,
) -> tuple[Callable[[type, Sequence[Field]], Reader] | None, Iterable[Field]]:
    """Return the function that builds the reader of a class, and the fields of the class."""
    if isinstance(kind, type):
        if issubclass(kind, dict) and hasattr(kind, "__total__"):
            return readers.build_typed_dict_reader, _list_typed_dict_fields(kind)
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return readers.build_named_tuple_reader, _list_named_tuple_fields(kind)
        if hasattr(kind, "__dataclass_fields__"):
            return readers.build_class_reader, _list_dataclass_fields(kind)
        if hasattr(kind, "__attrs_attrs__"):
            return readers.build_class_reader, _list_attrs_fields(kind)
    return None, ()


def _list_typed_dict_fields(kind: Any) -> Iterable[Field]:
    for name, hint in _get_hints(kind).items():
        wrappers, inner = set(), hint
        while wrapper := _get_wrapper(inner):
            wrappers.add(wrapper)
            inner = typing.get_args(inner)[0]
        # `__required_keys__` does not know the qualifiers of annotations that are strings.
        is_required = "NotRequired" not in wrappers and name in kind.__required_keys__
        yield Field(name, name, hint, is_required or "Required" in wrappers)


def _list_named_tuple_fields(kind: Any) -> Iterable[Field]:
    hints = _get_hints(kind)
    for name in kind._fields:
        yield Field(name, name, hints.get(name, Any), name not in kind._field_defaults)


def _list_dataclass_fields(kind: Any) -> Iterable[Field]:
    hints = _get_hints(kind)
    ordinary = {field.name for field in dataclasses.fields(kind) if field.init}
    for name, field in kind.__dataclass_fields__.items():
        hint = hints.get(name, Any)
        is_init_only = isinstance(hint, dataclasses.InitVar)
        if is_init_only or name in ordinary:
            is_required = field.default is field.default_factory is dataclasses.MISSING
            yield Field(name, name, hint.type if is_init_only else hint, is_required)


def _list_attrs_fields(kind: Any) -> Iterable[Field]:
    hints = _get_hints(kind)
    nothing = sys.modules["attr"].NOTHING
    for attribute in kind.__attrs_attrs__:
        # The annotation is the result of a converter, not its argument.
        hint = Any if attribute.converter else hints.get(attribute.name, attribute.type or Any)
        if attribute.init:
            yield Field(attribute.name, attribute.alias, hint, attribute.default is nothing)


def _get_hints(kind: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise ConfigurationError(
            f"the annotations of {_format_annotation(kind)} cannot be resolved: {error}"
        ) from error


def _build_enum_reader(kind: type[Enum]) -> Reader:
    # Flags combine, and a class may define `_missing_`.
    is_open = any("_missing_" in base.__dict__ for base in kind.__mro__ if base is not Enum)
    return _build_choice_reader(kind, kind.__members__.values(), kind if is_open else None)


def _build_choice_reader(
    annotation: Any, choices: Iterable[Any], find: Callable[[Any], Any] | None = None
) -> Reader:
    try:
        return readers.build_choice_reader(choices, find)
    except JobSpecError as error:
        raise _build_annotation_error(annotation, error.reason) from None
    except (TypeError, ValueError) as error:
        raise _build_annotation_error(annotation, str(error)) from None


def _fill_type_variables(hint: Any, parameters: Sequence[Any], arguments: Sequence[Any]) -> Any:
    """Replace the type variables of a generic class by the arguments."""
    filled = dict(zip(parameters, arguments, strict=False))
    if isinstance(hint, TypeVar):
        return filled.get(hint, hint)
    if not filled or isinstance(hint, type) or not getattr(hint, "__parameters__", ()):
        return hint
    return hint[tuple(filled.get(variable, variable) for variable in hint.__parameters__)]


def _get_wrapper(annotation: Any) -> str | None:
    """Return the name of what wraps the annotation: Annotated or a qualifier."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return "Annotated"
    # Compared by name, because typing_extensions defines some of them itself.
    name = getattr(origin, "_name", None)
    return name if name in ("Final", "Required", "NotRequired", "ReadOnly", "ClassVar") else None


def _has_fixed_length(annotation: Any, arguments: Sequence[Any]) -> bool:
    # tuple[()] has no arguments either, but it differs from a bare tuple.
    return annotation not in (tuple, typing.Tuple) and tuple(arguments[1:]) != (...,)  # noqa: UP006


def _is_alias(annotation: Any) -> bool:
    # Compared by name, because Python 3.11 has the class only in typing_extensions.
    return type(annotation).__name__ == "TypeAliasType"


def _format_annotation(annotation: Any) -> str:
    if not isinstance(annotation, type):
        return repr(annotation)
    module = "" if annotation.__module__ == "builtins" else f"{annotation.__module__}."
    return f"{module}{annotation.__qualname__}"


def _build_annotation_error(annotation: Any, reason: str = _SUPPORTED_TYPES) -> ConfigurationError:
    return ConfigurationError(
        f"a payload cannot be read as {_format_annotation(annotation)}: {reason}"
    )
