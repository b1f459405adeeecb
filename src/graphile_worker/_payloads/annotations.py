"""Build the reader for the annotation of a parameter."""

import dataclasses
import sys
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from enum import Enum
from typing import Annotated, Any, Generic, Literal, TypeVar, Union

from graphile_worker._payloads import readers
from graphile_worker._payloads.readers import Field, Reader
from graphile_worker.errors import ConfigurationError, JobSpecError

T = TypeVar("T")

# An object of a class, an object or array of a named tuple, or an object that stays a dict.
ObjectForm = Literal["class", "named tuple", "typed dict"]

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


class AnnotationWalker(Generic[T]):
    """One walk through an annotation, which builds something of each of its parts.

    One subclass builds the readers, another the JSON Schema. Both support the same annotations,
    because only this class distinguishes annotations.
    """

    def build(self, annotation: Any) -> T:
        """Build what an annotation becomes."""
        return self.walk(annotation)

    def build_scalar(self, annotation: Any) -> T:
        """Build one of the scalars in `SCALAR_READERS`."""
        raise NotImplementedError

    def build_choice(
        self, annotation: Any, choices: Sequence[Any], find: Callable[[Any], Any] | None
    ) -> T:
        """Build a choice of listed values. `find` looks up others, for example flags."""
        raise NotImplementedError

    def build_union(self, members: Sequence[T]) -> T:
        raise NotImplementedError

    def build_optional(self, member: T) -> T:
        raise NotImplementedError

    def build_array(self, make: Callable[[list[Any]], Any], item: Any) -> T:
        raise NotImplementedError

    def build_tuple(self, items: Sequence[Any]) -> T:
        raise NotImplementedError

    def build_dict(self, annotation: Any, key: Any, item: Any) -> T:
        raise NotImplementedError

    def build_model(self, model: type) -> T:
        """Build a model of pydantic."""
        raise NotImplementedError

    def build_struct(self, annotation: Any) -> T:
        """Build a struct of msgspec."""
        raise NotImplementedError

    def build_object(self, kind: type, form: ObjectForm, fields: Sequence[tuple[Field, T]]) -> T:
        raise NotImplementedError

    def walk(self, annotation: Any) -> T:
        """Build the parts of an annotation, and put them together."""
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is None:
            return self._walk_plain(annotation)
        if _get_wrapper(annotation):
            return self.build(arguments[0])
        if origin is Literal:
            return self.build_choice(annotation, arguments, None)
        if origin in (Union, types.UnionType):
            return self._walk_union(arguments)
        if getattr(annotation, "__unpacked__", False):
            raise _build_annotation_error(annotation)
        if origin in readers.ARRAY_TYPES or origin in readers.OBJECT_TYPES:
            return self._walk_container(annotation, origin, arguments)
        if is_alias(origin):
            return self.build(
                _fill_type_variables(origin.__value__, origin.__type_params__, arguments)
            )
        return self._walk_class(annotation, origin, arguments)

    def _walk_plain(self, annotation: Any) -> T:
        if type(annotation).__hash__ is None:
            raise _build_annotation_error(annotation)
        if annotation in readers.SCALAR_READERS:
            return self.build_scalar(annotation)
        if annotation in readers.ARRAY_TYPES or annotation in readers.OBJECT_TYPES:
            return self._walk_container(annotation, annotation, ())
        if isinstance(annotation, typing.NewType):
            return self.build(annotation.__supertype__)
        if isinstance(annotation, TypeVar):
            if annotation.__constraints__:
                return self._walk_union(annotation.__constraints__)
            return self.build(annotation.__bound__ or Any)
        if is_alias(annotation):
            return self.build(annotation.__value__)
        if isinstance(annotation, str | typing.ForwardRef):
            raise _build_annotation_error(
                annotation, "resolve it first, with typing.get_type_hints"
            )
        return self._walk_class(annotation, annotation, ())

    def _walk_union(self, members: Sequence[Any]) -> T:
        others = [member for member in members if member not in (None, types.NoneType)]
        built = [self.build(member) for member in others]
        union = built[0] if len(built) == 1 else self.build_union(built)
        return union if len(others) == len(members) else self.build_optional(union)

    def _walk_container(self, annotation: Any, origin: Any, arguments: Sequence[Any]) -> T:
        if origin in readers.OBJECT_TYPES:
            key, item = arguments or (Any, Any)
            return self.build_dict(annotation, key, item)
        if origin is tuple and _has_fixed_length(annotation, arguments):
            return self.build_tuple(arguments)
        return self.build_array(readers.ARRAY_TYPES[origin], arguments[0] if arguments else Any)

    def _walk_class(self, annotation: Any, kind: Any, arguments: Sequence[Any]) -> T:
        if hasattr(kind, "__pydantic_validator__"):
            return self.build_model(kind)
        if hasattr(kind, "__struct_fields__"):
            return self.build_struct(annotation)
        if isinstance(kind, type) and issubclass(kind, Enum):
            # Flags combine, and a class may define `_missing_`.
            is_open = any("_missing_" in base.__dict__ for base in kind.__mro__ if base is not Enum)
            choices = list(kind.__members__.values())
            return self.build_choice(kind, choices, kind if is_open else None)
        form, fields = list_fields(kind)
        if form is None:
            reason = _UNSUPPORTED_REASONS.get(kind, _SUPPORTED_TYPES)
            raise _build_annotation_error(annotation, reason)
        parameters = getattr(kind, "__parameters__", ())
        return self.build_object(
            kind,
            form,
            [
                (
                    field,
                    self._walk_field(
                        kind, field, _fill_type_variables(field.hint, parameters, arguments)
                    ),
                )
                for field in fields
            ],
        )

    def _walk_field(self, kind: type, field: Field, hint: Any) -> T:
        try:
            return self.build(hint)
        except ConfigurationError as error:
            raise ConfigurationError(f"{kind.__qualname__}.{field.key}: {error}") from None


class _ReaderBuilder(AnnotationWalker[Reader]):
    """Builds readers. They enter the cache only if all of a walk were built."""

    def __init__(self) -> None:
        self.readers: dict[tuple[Any, str], Reader] = {}

    def build(self, annotation: Any) -> Reader:
        key = (annotation, repr(annotation))
        try:
            known = _reader_cache.get(key) or self.readers.get(key)
        except TypeError:  # unhashable, for example Annotated[int, []]
            return self.walk(annotation)
        if known:
            return known
        deferred = self.readers[key] = _DeferredReader()
        deferred.read = self.readers[key] = self.walk(annotation)
        return deferred.read

    def build_scalar(self, annotation: Any) -> Reader:
        return readers.SCALAR_READERS[annotation]

    def build_choice(
        self, annotation: Any, choices: Sequence[Any], find: Callable[[Any], Any] | None
    ) -> Reader:
        try:
            return readers.build_choice_reader(choices, find)
        except JobSpecError as error:
            raise _build_annotation_error(annotation, error.reason) from None
        except (TypeError, ValueError) as error:
            raise _build_annotation_error(annotation, str(error)) from None

    def build_union(self, members: Sequence[Reader]) -> Reader:
        return readers.build_union_reader(members)

    def build_optional(self, member: Reader) -> Reader:
        return readers.build_optional_reader(member)

    def build_array(self, make: Callable[[list[Any]], Any], item: Any) -> Reader:
        return readers.build_array_reader(make, self.build(item))

    def build_tuple(self, items: Sequence[Any]) -> Reader:
        return readers.build_tuple_reader([self.build(item) for item in items])

    def build_dict(self, annotation: Any, key: Any, item: Any) -> Reader:
        read_key = self.build(key)
        is_listed = typing.get_origin(key) is Literal or (
            isinstance(key, type) and issubclass(key, Enum) and issubclass(key, str)
        )
        if read_key not in (readers.read_str, readers.read_any) and not is_listed:
            raise _build_annotation_error(annotation, "the keys of a JSON object are text")
        return readers.build_dict_reader(read_key, self.build(item))

    def build_model(self, model: type) -> Reader:
        read = readers.build_model_reader(model)
        if read is None:
            raise _build_annotation_error(model, "its annotations cannot be resolved yet")
        return read

    def build_struct(self, annotation: Any) -> Reader:
        return readers.build_struct_reader(annotation)

    def build_object(
        self, kind: type, form: ObjectForm, fields: Sequence[tuple[Field, Reader]]
    ) -> Reader:
        build = _OBJECT_READERS[form]
        return build(kind, [field._replace(read=read) for field, read in fields])


_OBJECT_READERS: dict[ObjectForm, Callable[[type, Sequence[Field]], Reader]] = {
    "class": readers.build_class_reader,
    "named tuple": readers.build_named_tuple_reader,
    "typed dict": readers.build_typed_dict_reader,
}


def list_fields(kind: Any) -> tuple[ObjectForm | None, Iterable[Field]]:
    """Return how a class is written in JSON, or None if it is not, and its fields."""
    if isinstance(kind, type):
        if issubclass(kind, dict) and hasattr(kind, "__total__"):
            return "typed dict", _list_typed_dict_fields(kind)
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return "named tuple", _list_named_tuple_fields(kind)
        if hasattr(kind, "__dataclass_fields__"):
            return "class", _list_dataclass_fields(kind)
        if hasattr(kind, "__attrs_attrs__"):
            return "class", _list_attrs_fields(kind)
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


def is_alias(annotation: Any) -> bool:
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
